/* bfloat16 in the stand-in for the CUDA Toolkit: see cuda_runtime.h. */
#pragma once
#include "cuda_runtime.h"

struct __nv_bfloat16 { uint16_t bits; };

inline float __bfloat162float(__nv_bfloat16 x)
{
    const uint32_t bits = (uint32_t)x.bits << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}

inline __nv_bfloat16 __float2bfloat16(float x)      /* to nearest, even */
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (x != x) return {0x7fff};
    return {(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
