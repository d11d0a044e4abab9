/* float16 in the stand-in for the CUDA Toolkit: see cuda_runtime.h. */
#pragma once
#include "cuda_runtime.h"

struct __half { uint16_t bits; };

inline float __half2float(__half x)
{
    const int exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
    float y = exponent == 31 ? (fraction ? NAN : INFINITY)
            : exponent ? ldexpf((float)(1024 + fraction), exponent - 25)
            : ldexpf((float)fraction, -24);
    return x.bits & 0x8000 ? -y : y;
}

inline __half __float2half(float x)                 /* to nearest, even */
{
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    float y = fabsf(x);
    int exponent;
    if (x != x) return {0x7fff};
    if (y >= 65520) return {(uint16_t)(sign | 0x7c00)};
    frexpf(y, &exponent);
    exponent = std::max(exponent, -13);             /* below, numbers are 2^-24 apart */
    y = nearbyintf(ldexpf(y, 11 - exponent));       /* up to 2048 */
    return {(uint16_t)(sign + (y >= 1024 ? ((exponent + 13) << 10) + (int)y : (int)y))};
}
