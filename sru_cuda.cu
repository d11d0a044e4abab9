/* sru_cuda.cu - the operators of sru.h on NVIDIA GPUs. Public domain or MIT, like sru.h.

       nvcc -O2 -arch=native -c sru_cuda.cu         for this machine's GPU, of compute capability
                                                    7.5 or later; links with -lcublas

   In the program:
       #define SRU_CUDA                   // before sru.h: sru_cuda_open() and sru_cuda_close()

       sru_context gpu = {0};
       gpu.op = sru_cuda_open(NULL, SRU_CUDA_FLOAT32, error);
       float *x = gpu.op->alloc(&gpu, bytes);       // device memory
       gpu.op->copy(&gpu, x, host_x, bytes);        // from and to host or device memory
       sru_forward(&gpu, &model, &io);              // model.weights, io.x, io.h ... on the device

   First come the kernels, with their equations and, for most, the bytes that they move; then the
   operators, which launch them; then the table. Sums are taken in a fixed order, so the same call
   gives the same bits. If ctx->work is given and results stay on the device, nothing waits for the
   GPU and nothing is allocated, so calls can be captured in a CUDA graph. A graph keeps arguments
   that are not arrays as they were: the context's seed and step, adamw's t and scale. */
#define SRU_CUDA
#include "sru.h"
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <initializer_list>
#include <limits.h>
#include <math.h>
#include <new>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#ifndef SRU_CUDA_U              /* bytes of scratch memory for u at a time: with less, products */
#define SRU_CUDA_U (256 << 20)  /* have too few rows to fill the GPU evenly */
#endif
#ifndef SRU_CUDA_SCORES         /* bytes for attention's scores at a time: this much stays in L2 */
#define SRU_CUDA_SCORES (24 << 20)
#endif

namespace {

enum { WARP = 32, PARTS = 32, PANEL = 16 };     /* PARTS: groups of rows, each summed by itself */

/* =================================================================================================
   Kernels */

typedef __nv_bfloat16 bf16;
typedef __half        fp16;

__device__ __forceinline__ float get(float x) { return x; }
__device__ __forceinline__ float get(bf16 x)  { return __bfloat162float(x); }
__device__ __forceinline__ float get(fp16 x)  { return __half2float(x); }
__device__ __forceinline__ void put(float *y, float x) { *y = x; }
__device__ __forceinline__ void put(bf16 *y, float x) { *y = __float2bfloat16(x); }
__device__ __forceinline__ void put(fp16 *y, float x) { *y = __float2half(x); }

/* sigmoid(z), given -z log2(e) instead of z: callers fold the factor into the terms of z. 2^x and
   1/x are one instruction each, accurate to 2 and 1 units in the last place. */
#define MINUS_LOG2E -1.4426950408889634f
__device__ __forceinline__ float sigmoid(float z)
{
#ifdef __CUDA_ARCH__
    float power, y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(z));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1 + power));
    return y;
#else
    return 1/(1 + exp2f(z));
#endif
}

__device__ __forceinline__ float warp_sum(float x)
{
    for (int lanes = WARP/2; lanes; lanes /= 2) x += __shfl_xor_sync(~0u, x, lanes);
    return x;
}

__device__ __forceinline__ float warp_max(float x)
{
    for (int lanes = WARP/2; lanes; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, lanes));
    return x;
}

/* The sum or the maximum over a block, the same in all threads. none: a value without effect. */
template <float over_warp(float)>
__device__ __forceinline__ float over_block(float x, float none, float (&shared)[WARP])
{
    const unsigned lane = threadIdx.x%WARP;
    x = over_warp(x);
    if (blockDim.x == WARP) {
        __syncwarp();                   /* lanes may now overwrite what others have read */
        return x;
    }
    __syncthreads();
    if (lane == 0) shared[threadIdx.x/WARP] = x;
    __syncthreads();
    return over_warp(lane < blockDim.x/WARP ? shared[lane] : none);
}

/* The recurrence, whose equations are in sru.h at sru_scan. A thread takes one column of one
   sequence through time. In each step it computes only what depends on the step before. The rest is
   done ahead, so that no step waits for memory: other warps of the block, the helpers, read the
   next steps and leave in shared memory all that can be computed without the state. Few columns
   need many helpers. In the backward pass, many columns need none: each thread loads its own next
   steps ahead.

   For each (t,b,n), forward reads K values of u, and x unless K = 4, and writes h: 20 bytes, or 16
   if K = 2; c adds 4. Half of that if s.storage is bfloat16 or float16. If only u has such a type,
   as scratch memory for products: 14, or 12 unless K = 3. State, gates, sums are always float32. */
enum unit { PLAIN, TANH, SSRU };    /* g(c) is c; tanh(c); or max(c, 0), with one gate, K = 2 */
enum { FEW = 6, MANY = 2 };         /* helpers for a warp of columns, if columns are few or many */
enum { SCAN = 64 };                 /* columns of a block without helpers; with them, it has 32 */

/* Where a column begins and which way it goes, in the forward pass or, if from_end, in backward. */
struct column {
    size_t n, row;                  /* column; t*B + b where it begins */
    int step;                       /* from each step to the next in (T,B,N), in values */

    __device__ column(const sru_scan &s, size_t i, bool from_end) : n(i%s.N), row(i/s.N)
    {
        const bool back = (s.bidirectional && n >= s.N/2) != from_end;
        if (back && s.T) row += (s.T - 1)*s.B;
        step = (int)(s.B*s.N)*(back ? -1 : 1);
    }
};

/* An array along a column: one value for each step, each `values` elements after the last. */
template <class X> struct stream {
    char *p;
    int step;                       /* in bytes */

    __device__ stream(const X *p, int values) : p((char *)p), step(values*(int)sizeof(X)) {}

    __device__ __forceinline__ X *at(int t) const
    {
#ifdef __CUDA_ARCH__
        long long bytes;            /* becomes one instruction with the sum */
        asm("mul.wide.s32 %0, %1, %2;" : "=l"(bytes) : "r"(step), "r"(t));
#else
        const ptrdiff_t bytes = (ptrdiff_t)t*step;
#endif
        return (X *)(p + bytes);
    }
    __device__ __forceinline__ X operator[](int t) const { return *at(t); }
};

/* A missing array is read as zeros. */
__device__ const float zero = 0;

template <class X> __device__ stream<X> given(const X *all, size_t at, int values)
{
    return all ? stream<X>(all + at, values) : stream<X>((const X *)&zero, 0);
}

/* a*b + c, computed in this place: the wait for `a` must come before the next loads are issued, or
   it would be a wait for these as well. */
__device__ __forceinline__ float here(float a, float b, float c)
{
#ifdef __CUDA_ARCH__
    float y;
    asm volatile("fma.rn.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
    return y;
#else
    return fmaf(a, b, c);
#endif
}

/* Returns x, but nothing that uses the result can be computed before this place. */
__device__ __forceinline__ float pinned(unsigned lanes, float x)
{
    return __shfl_xor_sync(lanes, x, 0);
}

/* Step t or, if t is past the end, the last one, whose values are then not used. */
__device__ __forceinline__ int within(int t, int T) { return t < T ? t : T - 1; }

/* Takes T steps, loading R of them ahead. load(v, t) reads what step t needs, x = begin(v, t) waits
   for it, and step(x, t) computes the step. pin() keeps steps from being computed before the next
   loads are under way. */
template <int R, class V, class X, class Load, class Begin, class Pin, class Step>
__device__ __forceinline__ void alone(int T, Load load, Begin begin, Pin pin, Step step)
{
    V loaded[R];
    X tile[R];
    auto fetch = [&](int t) {
#pragma unroll
        for (int k = 0; k < R; k++) load(loaded[k], within(t + k, T));
    };
    if (T > 0) fetch(0);
    for (int t = 0; t < T; t += R) {
#pragma unroll
        for (int k = 0; k < R; k++) tile[k] = begin(loaded[k], t + k);
        if (t + R < T) fetch(t + R);
        pin();
        if (t + R <= T) {
#pragma unroll
            for (int k = 0; k < R; k++) step(tile[k], t + k);
        } else {
#pragma unroll
            for (int k = 0; k < R; k++)
                if (t + k < T) step(tile[k], t + k);
        }
    }
}

/* The same with helpers. A helper calls start(t), then loads and prepares its R steps of a tile.
   y = prepare(v, t) is all that step(y, t) needs; the first warp takes steps one tile behind. Steps
   past the last may be prepared. The barrier is one that warps may reach at different places. */
template <int HELPERS, int R, class V, class Y, class Start, class Load, class Prepare, class Step>
__device__ __forceinline__ void with_helpers(Y (&tiles)[2][HELPERS*R][WARP], int T, Start start,
                                             Load load, Prepare prepare, Step step)
{
    enum { TILE = HELPERS*R };
    const int warp = (int)threadIdx.x/WARP, lane = (int)threadIdx.x%WARP;
    int odd = 0;
    if (warp) {
        const int first = (warp - 1)*R;
        for (int t = first; t < T + first; t += TILE, odd ^= 1) {
            V loaded[R];
            if (t < T) {
                start(t);
#pragma unroll
                for (int k = 0; k < R; k++) load(loaded[k], within(t + k, T));
#pragma unroll
                for (int k = 0; k < R; k++)
                    tiles[odd][first + k][lane] = prepare(loaded[k], t + k);
            }
            __barrier_sync(1);
        }
    } else {
        for (int t = 0; t < T; t += TILE, odd ^= 1) {
            const int n = T - t < TILE ? T - t : TILE;
            __barrier_sync(1);
            Y y = tiles[odd][0][lane];
#pragma unroll 8
            for (int k = 0; k < n; k++) {
                const Y next = tiles[odd][k + 1 < TILE ? k + 1 : 0][lane];
                step(y, t + k);
                y = next;
            }
        }
    }
}

/* What both passes read in each step: u of type U, the skip term of type S, vt and mask_pad. EXTRA:
   there is vt, mask_pad or dvt. */
template <class U, class S, unit UNIT, bool EXTRA> struct inputs {
    enum { GATES = UNIT == SSRU ? 1 : 2 };
    struct loaded { U u0, u1, u2; S x; float vf, vr; uint8_t pad; };
    const stream<U> u0, u1, u2;
    const stream<S> skip;
    const stream<float> vf, vr;
    const stream<uint8_t> pad;
    const float bf, br, scale;

    __device__ inputs(const sru_scan &s, const column &at, const U *u, const S *x)
        : u0(u + at.row*(size_t)s.K*s.N + at.n, at.step*s.K), u1(u0.at(0) + s.N, at.step*s.K),
          u2(u1.at(0) + (UNIT == SSRU ? 0 : s.N), at.step*s.K),
          skip(given(x, at.row*(s.K == 4 ? 4 : 1)*s.N + at.n, at.step*(s.K == 4 ? 4 : 1))),
          vf(given(s.vt, at.row*GATES*s.N + at.n, at.step*GATES)),
          vr(given(UNIT == SSRU ? NULL : s.vt, at.row*GATES*s.N + at.n + s.N, at.step*GATES)),
          pad(given(s.mask_pad, at.row, at.step/(int)s.N)),
          bf(s.bias ? s.bias[at.n]*MINUS_LOG2E : 0),
          br(s.bias && UNIT != SSRU ? s.bias[s.N + at.n]*MINUS_LOG2E : 0),
          scale(s.K == 4 ? 1 : s.scale_x) {}

    __device__ __forceinline__ void load(loaded &v, int t) const
    {
        v.u0 = u0[t];
        v.u1 = u1[t];
        v.u2 = UNIT == SSRU ? v.u1 : u2[t];
        v.x = skip[t];
        v.vf = EXTRA ? vf[t] : 0;
        v.vr = EXTRA && UNIT != SSRU ? vr[t] : 0;
        v.pad = EXTRA ? pad[t] : 0;
    }
};

/* g(c). NaN stays NaN. */
template <unit UNIT> __device__ __forceinline__ float activation(float c)
{
    return UNIT == TANH ? tanhf(c) : UNIT == SSRU && c < 0 ? 0 : c;
}

/* What is prepared for a step before its turn comes. */
template <bool EXTRA> struct alignas(16) forward_ready { float u0, zf, zr, x; };
template <> struct alignas(16) forward_ready<true> { float u0, zf, zr, x, vf, vr; bool pad; };

/* U, S, H: types of u, of the skip term, and of h and c. If columns are many, eight blocks should
   fit on a multiprocessor at a time. */
template <class U, class S, class H, unit UNIT, bool EXTRA, int HELPERS>
__global__ void __launch_bounds__((1 + HELPERS)*WARP, HELPERS == MANY && UNIT != TANH ? 8 : 1)
scan_forward_kernel(const sru_scan s, size_t ldc, const U *u, const S *skip)
{
    enum { R = EXTRA ? 4 : 8 };
    typedef typename inputs<U, S, UNIT, EXTRA>::loaded loaded;
    typedef forward_ready<EXTRA> ready;
    __shared__ ready tiles[2][HELPERS*R][WARP];
    const size_t i = (size_t)blockIdx.x*WARP + threadIdx.x%WARP, N = s.N;
    if (i >= s.B*N) return;
    const column at(s, i, false);
    const size_t b = i/N, n = at.n;
    const bool has_c = s.c;
    const inputs<U, S, UNIT, EXTRA> from(s, at, u, skip);
    const stream<H> h((H *)s.h + at.row*N + n, at.step);
    const stream<H> cs((H *)(has_c ? s.c : s.h) + at.row*N + n, at.step);
    const float vf = s.v ? s.v[n]*MINUS_LOG2E : 0;
    const float vr = s.v && UNIT != SSRU ? s.v[N + n]*MINUS_LOG2E : 0;
    const float keep = s.mask_c ? s.mask_c[i] : 1;
    float c = s.c0 ? s.c0[b*ldc + n] : 0;

    auto start = [](int) {};
    auto load = [&](loaded &v, int t) { from.load(v, t); };
    auto prepare = [&](const loaded &v, int) {
        ready y;
        y.u0 = get(v.u0);
        y.zf = fmaf(get(v.u1), MINUS_LOG2E, from.bf);
        y.zr = fmaf(get(v.u2), MINUS_LOG2E, from.br);
        y.x  = get(v.x)*from.scale;
        if constexpr (EXTRA) y.vf = v.vf*MINUS_LOG2E, y.vr = v.vr*MINUS_LOG2E, y.pad = v.pad;
        return y;
    };
    auto step = [&](const ready &y, int t) {
        float wf = vf, wr = vr;
        bool pad = false;
        if constexpr (EXTRA) wf += y.vf, wr += y.vr, pad = y.pad;
        const float f = sigmoid(fmaf(wf, c, y.zf));
        const float r = UNIT == SSRU ? 1 : sigmoid(fmaf(wr, c, y.zr));
        c = pad ? c : fmaf(c - y.u0, f, y.u0);
        const float g = activation<UNIT>(c);
        put(h.at(t), pad ? 0 : fmaf(UNIT == SSRU ? g : g - y.x, r*keep, y.x));
        if (has_c) put(cs.at(t), c);
    };

    with_helpers<HELPERS, R, loaded>(tiles, (int)s.T, start, load, prepare, step);
    if (s.cT && threadIdx.x < WARP) s.cT[b*ldc + n] = c;
}

/* Goes from the last step to the first. Since c is stored, only dc is passed from step to step: dc
   of the step before is (dc + dg)*keep + more. The gradient of u0 is (dc + dg)*du0, that of the
   forget gate (dc + dg)*zf, that of the reset gate zr. c1 is c of the step before. */
struct alignas(16) backward_ready { float dg, keep, more, du0, zf, zr, c1; };

/* For each (t,b,n), reads u, x, c and dh and writes du and dx: 40 bytes, or 32 if K = 2; half of
   that if H, the type s.storage, has 16 bits. sums (B,2,G,N): each sequence's part of dv, dbias. */
template <class H, unit UNIT, bool EXTRA, int HELPERS>
__global__ void __launch_bounds__(HELPERS ? (1 + HELPERS)*WARP : SCAN)
scan_backward_kernel(const sru_scan s, size_t ldc, float *sums, const H *skip, H *dskip)
{
    enum { R = HELPERS || EXTRA ? 4 : 8, LANES = HELPERS ? (int)WARP : (int)SCAN };
    enum { GATES = inputs<H, H, UNIT, EXTRA>::GATES };
    struct loaded : inputs<H, H, UNIT, EXTRA>::loaded { H dh, c1; };
    struct begun { float u0, zf, zr, x, wf, wr, dh, c, c1; bool pad; };
    const size_t i = (size_t)blockIdx.x*LANES + threadIdx.x%LANES, N = s.N;
    const unsigned lanes = __ballot_sync(~0u, i < s.B*N);
    if (i >= s.B*N) return;
    const column at(s, i, true);
    const size_t b = i/N, n = at.n, u_at = at.row*(size_t)s.K*N + n, x_at = at.row*N + n;
    const bool has_dx = dskip, has_dvt = EXTRA && s.dvt;
    const inputs<H, H, UNIT, EXTRA> from(s, at, (const H *)s.u, skip);
    const stream<H> dhs((const H *)s.dh + x_at, at.step), cs((const H *)s.c + x_at, at.step);
    const stream<H> du0((const H *)s.du + u_at, at.step*s.K), du1(du0.at(0) + N, at.step*s.K),
                    du2(du1.at(0) + N, at.step*s.K);
    const stream<H> dx(has_dx ? dskip + (s.K == 4 ? u_at : x_at) : (const H *)s.du,
                       at.step*(s.K == 4 ? 4 : 1));
    const stream<float> dvtf((has_dvt ? s.dvt : (float *)s.du) + at.row*GATES*N + n,
                             at.step*GATES),
                        dvtr(dvtf.at(0) + N, at.step*GATES);
    float vf = s.v ? s.v[n] : 0, vr = s.v && UNIT != SSRU ? s.v[N + n] : 0;
    const float keep = s.mask_c ? s.mask_c[i] : 1;
    const float c0 = s.c0 ? s.c0[b*ldc + n] : 0, one = HELPERS || s.T;
    const int T = (int)s.T;
    float dc = s.dc ? s.dc[b*ldc + n] : 0, dvf = 0, dvr = 0, dbf = 0, dbr = 0, c = 0;

    /* fma(a, one, -0.0f) is a. Without helpers, it makes the thread wait for `a` here. The compiler
       must not know that `one` is 1, or it might drop what changes nothing */
    auto fma = [](float a, float b, float c) { return HELPERS ? fmaf(a, b, c) : here(a, b, c); };
    auto start = [&](int t) { c = get(cs[t]); };
    auto load = [&](loaded &v, int t) {
        from.load(v, t);
        v.dh = dhs[t];
        v.c1 = cs[within(t + 1, T)];
    };
    auto begin = [&](const loaded &v, int t) {
        begun x;
        x.u0 = fma(get(v.u0), one, -0.0f);
        x.zf = fma(get(v.u1), MINUS_LOG2E, from.bf);
        x.zr = fma(get(v.u2), MINUS_LOG2E, from.br);
        x.x  = fma(get(v.x), from.scale, -0.0f);
        x.wf = EXTRA ? fma(v.vf, one, -0.0f) : 0;
        x.wr = EXTRA ? fma(v.vr, one, -0.0f) : 0;
        x.pad = EXTRA && v.pad;
        x.dh = x.pad ? 0 : fma(get(v.dh), one, -0.0f);
        x.c = c;
        c = x.c1 = t + 1 < T ? fma(get(v.c1), one, -0.0f) : c0;     /* c of the step before */
        return x;
    };
    auto pin = [&] {
        vf = pinned(lanes, vf);
        vr = pinned(lanes, vr);
    };
    auto prepare = [&](const begun &x, int t) {
        const float g = activation<UNIT>(x.c);
        const float wf = EXTRA ? vf + x.wf : vf, wr = EXTRA ? vr + x.wr : vr;
        const float f = sigmoid(fmaf(wf*MINUS_LOG2E, x.c1, x.zf));
        const bool no_reset = UNIT == SSRU || x.pad;       /* if padded, values may be anything */
        const float r = no_reset ? 1 : sigmoid(fmaf(wr*MINUS_LOG2E, x.c1, x.zr));
        backward_ready y;

        /* forward: h = (g - x)*r*keep + x, r = sigmoid(zr); with one gate, h = g*keep + x */
        const float d = x.dh*keep, dg = d*r;
        y.dg = UNIT == TANH ? dg*fmaf(-g, g, 1) : UNIT == SSRU && !(x.c > 0) ? 0 : dg;
        y.zr = no_reset ? 0 : d*(g - x.x)*r*(1 - r);

        /* forward: c = (c1 - u0)*f + u0, f = sigmoid(zf) */
        y.zf = x.pad ? 0 : (x.c1 - x.u0)*f*(1 - f);
        y.du0 = x.pad ? 0 : 1 - f;

        /* forward: zf = u1 + wf*c1 + bf, zr = u2 + wr*c1 + br */
        y.keep = x.pad ? 1 : fmaf(y.zf, wf, f);
        y.more = no_reset ? 0 : y.zr*wr;
        y.c1 = x.c1;
        if (HELPERS && t >= T) return y;
        if (UNIT != SSRU) put(du2.at(t), y.zr);
        if (has_dx) put(dx.at(t), (UNIT == SSRU ? x.dh : x.dh - dg)*from.scale);
        if (has_dvt && UNIT != SSRU) *dvtr.at(t) = y.zr*x.c1;
        return y;
    };
    auto step = [&](const backward_ready &y, int t) {
        dc += y.dg;
        const float zf = dc*y.zf;
        put(du0.at(t), dc*y.du0);
        put(du1.at(t), zf);
        if (has_dvt) *dvtf.at(t) = zf*y.c1;
        dvf = fmaf(zf, y.c1, dvf);
        dvr = fmaf(y.zr, y.c1, dvr);
        dbf += zf;
        dbr += y.zr;
        dc = fmaf(dc, y.keep, y.more);
    };

    if constexpr (HELPERS) {
        __shared__ backward_ready tiles[2][HELPERS*R][WARP];
        with_helpers<HELPERS, R, loaded>(tiles, T, start, load, [&](const loaded &v, int t) {
            return prepare(begin(v, t), t);
        }, step);
        if (threadIdx.x >= WARP) return;
    } else {
        if (T > 0) start(0);
        alone<R, loaded, begun>(T, load, begin, pin, [&](const begun &x, int t) {
            step(prepare(x, t), t);
        });
    }
    if (s.dc) s.dc[b*ldc + n] = dc;
    sums += b*2*GATES*N + n;
    sums[0]       = dvf;
    sums[GATES*N] = dbf;
    if (UNIT == SSRU) return;
    sums[N]       = dvr;
    sums[3*N]     = dbr;
}

/* Sums the columns of in (rows,n) in a fixed order. Blocks with index y sum part y of the rows into
   part y of out (parts,n). A single part is added instead: its first `split` columns to out and the
   others to more, unless these are NULL. Reads 4 bytes a value. 32 x 8 threads. */
__global__ void sum_rows_kernel(float *out, float *more, size_t split, const float *in, size_t rows,
                                size_t n)
{
    __shared__ float sums[8][WARP];
    const size_t col = (size_t)blockIdx.x*WARP + threadIdx.x;
    const size_t end = rows*(blockIdx.y + 1)/gridDim.y;
    float sum = 0;
    for (size_t row = rows*blockIdx.y/gridDim.y + threadIdx.y; row < end && col < n; row += 8)
        sum += in[row*n + col];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || col >= n) return;
    for (int y = 1; y < 8; y++) sum += sums[y][threadIdx.x];
    if (gridDim.y > 1) out[blockIdx.y*n + col] = sum;
    else if (col < split && out) out[col] += sum;
    else if (col >= split && more) more[col - split] += sum;
}

/* y = x in fewer bits. 6 bytes a value: each thread has several values on their way at a time. */
enum { NARROW = 8*256 };            /* values of a block */

template <class S> __global__ void narrow_kernel(S *y, const float *x, size_t n)
{
    const size_t at = (size_t)blockIdx.x*NARROW + threadIdx.x;
    float v[NARROW/256];
#pragma unroll
    for (int k = 0; k < NARROW/256; k++) v[k] = at + k*256 < n ? x[at + k*256] : 0;
#pragma unroll
    for (int k = 0; k < NARROW/256; k++)
        if (at + k*256 < n) put(y + at + k*256, v[k]);
}

/* A block has one row. Each thread keeps up to KEPT values of it; any others are read each time. */
enum { KEPT = 4, ROW = 1024 };      /* ROW: the most threads of a block */

struct row {
    const float *p;
    float kept[KEPT];

    __device__ __forceinline__ row(const float *p, unsigned n) : p(p)
    {
#pragma unroll
        for (unsigned k = 0; k < KEPT; k++) {
            const unsigned j = threadIdx.x + k*blockDim.x;
            kept[k] = j < n ? p[j] : 0;
        }
    }
    __device__ __forceinline__ float at(unsigned k, unsigned j) const
    {
        return k < KEPT ? kept[k] : p[j];
    }
};

/* Calls body(k, j) for each column j of a thread: its k-th or, if not kept, k = KEPT. */
template <class Body> __device__ __forceinline__ void each(unsigned n, Body body)
{
#pragma unroll
    for (unsigned k = 0; k < KEPT; k++)
        if (threadIdx.x + k*blockDim.x < n) body(k, threadIdx.x + k*blockDim.x);
    for (unsigned j = threadIdx.x + KEPT*blockDim.x; j < n; j += blockDim.x) body(KEPT, j);
}

/* y = (x - mean)*rstd*gain + bias. 8 bytes a value. */
__global__ void __launch_bounds__(ROW)
layernorm_forward_kernel(float *y, float *stats, const float *xs, const float *__restrict__ gain,
                         const float *__restrict__ bias, unsigned n)
{
    __shared__ float shared[WARP];
    const row x(xs + (size_t)blockIdx.x*n, n);
    float sum = 0, squares = 0;
    y += (size_t)blockIdx.x*n;
    const float first = x.p[0];         /* summing from it makes the mean of a constant row exact */
    each(n, [&](unsigned k, unsigned j) { sum += x.at(k, j) - first; });
    const float mean = first + over_block<warp_sum>(sum, 0, shared)/(float)n;
    each(n, [&](unsigned k, unsigned j) {
        const float d = x.at(k, j) - mean;
        squares = fmaf(d, d, squares);
    });
    const float rstd = 1/sqrtf(over_block<warp_sum>(squares, 0, shared)/(float)n + 1e-5f);
    each(n, [&](unsigned k, unsigned j) {
        y[j] = fmaf((x.at(k, j) - mean)*rstd, gain[j], bias[j]);
    });
    if (stats && threadIdx.x == 0) {
        stats[2*(size_t)blockIdx.x] = mean;
        stats[2*(size_t)blockIdx.x + 1] = rstd;
    }
}

/* dx = (g - mean(g) - xhat*mean(g*xhat))*rstd + beta*dx, g = dy*gain, xhat = (x - mean)*rstd.
   12 bytes a value, 16 with beta. dx may be dy. */
__global__ void __launch_bounds__(ROW)
layernorm_backward_kernel(float *dx, const float *dys, const float *xs,
                          const float *__restrict__ gain, const float *stats, float beta,
                          unsigned n)
{
    __shared__ float shared[WARP];
    const row x(xs + (size_t)blockIdx.x*n, n), dy(dys + (size_t)blockIdx.x*n, n);
    const float mean = stats[2*(size_t)blockIdx.x], rstd = stats[2*(size_t)blockIdx.x + 1];
    float s1 = 0, s2 = 0;
    dx += (size_t)blockIdx.x*n;
    each(n, [&](unsigned k, unsigned j) {
        const float g = dy.at(k, j)*gain[j];
        s1 += g;
        s2 = fmaf(g, (x.at(k, j) - mean)*rstd, s2);
    });
    const float m1 = over_block<warp_sum>(s1, 0, shared)/(float)n;
    const float m2 = over_block<warp_sum>(s2, 0, shared)/(float)n;
    each(n, [&](unsigned k, unsigned j) {
        const float g = (dy.at(k, j)*gain[j] - m1 - (x.at(k, j) - mean)*rstd*m2)*rstd;
        dx[j] = beta != 0 ? fmaf(beta, dx[j], g) : g;
    });
}

/* Part y of parts (gridDim.y,2,n): dgain = sum of dy*xhat and dbias = sum of dy over its rows. */
__global__ void layernorm_sums_kernel(float *parts, const float *dy, const float *x,
                                      const float *stats, size_t rows, size_t n)
{
    const size_t col = (size_t)blockIdx.x*blockDim.x + threadIdx.x;
    const size_t end = rows*(blockIdx.y + 1)/gridDim.y;
    float gain = 0, bias = 0;
    if (col >= n) return;
#pragma unroll 4
    for (size_t row = rows*blockIdx.y/gridDim.y; row < end; row++) {
        const float d = dy[row*n + col];
        gain = fmaf(d, (x[row*n + col] - stats[2*row])*stats[2*row + 1], gain);
        bias += d;
    }
    parts[blockIdx.y*2*n + col] = gain;
    parts[blockIdx.y*2*n + n + col] = bias;
}

/* y[i] = table[tokens[i]]. A block has one row. 8 bytes a value. */
__global__ void embedding_forward_kernel(float *y, const int32_t *tokens, const float *table,
                                         size_t n, size_t size)
{
    const size_t row = blockIdx.x;
    const int32_t token = tokens[row];
    const bool known = token >= 0 && (size_t)token < size;
    for (size_t j = threadIdx.x; j < n; j += blockDim.x)
        y[row*n + j] = known ? table[(size_t)token*n + j] : 0;
}

/* dtable[x] += the rows of dy whose token is x, in order. Each warp of a block searches all tokens,
   32 at a time. So that searches are few, a thread sums several columns. */
enum { TABLE_COLUMNS = 4 };

__global__ void embedding_backward_kernel(float *dtable, const float *dy, const int32_t *tokens,
                                          size_t rows, size_t n)
{
    const size_t first = (size_t)blockIdx.y*TABLE_COLUMNS*blockDim.x + threadIdx.x;
    const size_t lane = threadIdx.x%WARP;
    const int32_t mine = (int32_t)blockIdx.x;
    float sum[TABLE_COLUMNS] = { 0 };
    bool any = false;
    for (size_t i = 0; i < rows; i += WARP) {
        unsigned found = __ballot_sync(~0u, i + lane < rows && tokens[i + lane] == mine);
        for (; found; found &= found - 1) {
            const float *row = dy + (i + (size_t)__ffs((int)found) - 1)*n;
#pragma unroll
            for (unsigned k = 0; k < TABLE_COLUMNS; k++)
                if (first + k*blockDim.x < n) sum[k] += row[first + k*blockDim.x];
            any = true;
        }
    }
#pragma unroll
    for (unsigned k = 0; k < TABLE_COLUMNS; k++)
        if (any && first + k*blockDim.x < n)
            dtable[(size_t)mine*n + first + k*blockDim.x] += sum[k];
}

/* The random numbers of sru.h: number i for a key, uniform in [0,1). */
__host__ __device__ __forceinline__ uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30))*0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27))*0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

__device__ __forceinline__ float uniform(uint64_t key, uint64_t i)
{
    return (float)(mix(key + (i + 1)*0x9e3779b97f4a7c15u) >> 40)*(1.0f/16777216.0f);
}

/* Attention. cuBLAS computes the scores (B,n,keys) for one head, some sequences and some queries at
   a time. The keys start at k0 and include all that these queries see. In the kernels below, a
   block has one row of scores: those of one query. */
struct seen {
    size_t h, b0, B;                /* head; first sequence, number of sequences */
    size_t t0, n, k0, keys;         /* first query, number of queries; first key, number of keys */
    float scale, keep;              /* 1/sqrt(P/H); 1/(1 - dropout) */
    uint64_t key;                   /* of dropout */
};

/* How many keys there are, in memory and own. */
__host__ __device__ __forceinline__ size_t keys_of(const sru_attention &s)
{
    return s.M + (s.cross ? 0 : s.T);
}

/* The query of a row of scores, and which keys it may see. */
struct query {
    size_t b, t, S, head;

    __device__ query(const sru_attention &s, const seen &k, size_t row)
        : b(k.b0 + row/k.n), t(k.t0 + row%k.n), S(keys_of(s)), head(b*(size_t)s.H + k.h) {}

    /* The score of key j, given the product x; -infinity if the key is hidden. */
    __device__ float score(const sru_attention &s, float x, size_t j) const
    {
        const size_t at = s.M + t;
        bool hidden = ((s.causal || s.window) && j > at) || (s.window && j + s.window <= at);
        if (j < s.M) hidden = hidden || (s.memory_mask_pad && s.memory_mask_pad[j*s.B + b]);
        else hidden = hidden || (s.mask_pad && s.mask_pad[(j - s.M)*s.B + b]);
        if (s.attn_mask) {
            const float by = s.attn_mask[t*S + j];
            x = by < -3.4e38f ? by : x + by;        /* even if the score is infinite */
        }
        return hidden || x <= -1e30f ? -INFINITY : x;
    }

    /* By what dropout multiplies the weight of key j. */
    __device__ float factor(const sru_attention &s, const seen &k, size_t j) const
    {
        if (!(s.dropout > 0)) return 1;
        return uniform(k.key, ((uint64_t)head*s.T + t)*S + j) < s.dropout ? 0 : k.keep;
    }
};

enum { ATTEND = 128 };              /* threads of a block */

/* Turns scores (B,n,keys) into weights: their softmax, with dropout. 24 bytes a score, from L2. */
__global__ void softmax_kernel(const sru_attention s, const seen k, float *scores)
{
    __shared__ float shared[WARP];
    const query q(s, k, blockIdx.x);
    float most = -INFINITY, sum = 0;
    scores += blockIdx.x*k.keys;
    for (size_t j = threadIdx.x; j < k.keys; j += ATTEND) {
        scores[j] = q.score(s, scores[j], k.k0 + j);
        most = fmaxf(most, scores[j]);
    }
    most = over_block<warp_max>(most, -INFINITY, shared);
    if (most == -INFINITY) most = 0;                    /* it sees no key: all weights are 0 */
    for (size_t j = threadIdx.x; j < k.keys; j += ATTEND) {
        scores[j] = expf(scores[j] - most);
        sum += scores[j];
    }
    sum = over_block<warp_sum>(sum, 0, shared);
    const float by = sum > 0 ? 1/sum : 0;
    for (size_t j = threadIdx.x; j < k.keys; j += ATTEND)
        scores[j] *= by*q.factor(s, k, k.k0 + j);
    if (!s.stats || threadIdx.x) return;
    s.stats[2*(q.head*s.T + q.t)] = most;
    s.stats[2*(q.head*s.T + q.t) + 1] = by;
}

/* forward: w = p*factor, a = w v. Replaces scores by w, and dw, the gradients of w, by those of the
   scores: ds = p*(dp - sum of p*dp), where dp = dw*factor. 32 bytes a score, from L2. */
__global__ void softmax_backward_kernel(const sru_attention s, const seen k, float *scores,
                                        float *dw)
{
    __shared__ float shared[WARP];
    const query q(s, k, blockIdx.x);
    const float most = s.stats[2*(q.head*s.T + q.t)], by = s.stats[2*(q.head*s.T + q.t) + 1];
    float mean = 0;
    scores += blockIdx.x*k.keys;
    dw += blockIdx.x*k.keys;
    for (size_t j = threadIdx.x; j < k.keys; j += ATTEND) {
        scores[j] = expf(q.score(s, scores[j], k.k0 + j) - most)*by;
        dw[j] = scores[j] == 0 ? 0 : dw[j]*q.factor(s, k, k.k0 + j);    /* dw may be infinite */
        mean = fmaf(scores[j], dw[j], mean);
    }
    mean = over_block<warp_sum>(mean, 0, shared);
    for (size_t j = threadIdx.x; j < k.keys; j += ATTEND) {
        const float p = scores[j];
        scores[j] = p*q.factor(s, k, k.k0 + j);
        dw[j] = p*(dw[j] - mean);
    }
}

/* o = q + alpha*a; alpha NULL: o = a. 12 bytes a value. */
__global__ void attention_output_kernel(float *o, const float *q, const float *a,
                                        const float *alpha, size_t n)
{
    const size_t i = (size_t)blockIdx.x*256 + threadIdx.x;
    if (i < n) o[i] = alpha ? fmaf(alpha[0], a[i], q[i]) : a[i];
}

/* Its backward: da = alpha*do; dq = do, or 0 without alpha; and for each query and head, dots =
   do.a, to be summed for dalpha. A warp has one query and head. */
__global__ void attention_output_backward_kernel(const sru_attention s, float *da, double *dots)
{
    const size_t H = (size_t)s.H, hd = s.P/H, lane = threadIdx.x%WARP;
    const size_t i = (size_t)blockIdx.x*(blockDim.x/WARP) + threadIdx.x/WARP;
    if (i >= s.T*s.B*H) return;
    const size_t t = i/H/s.B, b = i/H%s.B, at = i*hd, head = b*H + i%H;
    const float alpha = s.alpha ? s.alpha[0] : 1;
    float dot = 0;
    for (size_t j = at + lane; j < at + hd; j += WARP) {
        dot = fmaf(s.dout[j], s.a[j], dot);
        da[j] = alpha*s.dout[j];
        s.dq[j] = s.alpha ? s.dout[j] : 0;
    }
    dot = warp_sum(dot);
    if (lane == 0) dots[head*s.T + t] = dot;
}

/* Attention through rings. A sequence's ring is [place | keys before], then C slots for a key and a
   value (2,P). A block has one head of one sequence, in one of the steps from t0 on. Keys of these
   steps, if they have any, are still in kv, earlier ones in slots. scores (steps, B*H, window) is
   scratch memory. */
enum { RING = 1024, RING_STEPS = 128 };     /* the most threads of a block, and steps at a time */

/* A counter of a ring, whatever the state holds: what is not from 0 to below `end` counts as 0. */
__device__ __forceinline__ size_t ring_count(float x, size_t end)
{
    return x >= 0 && x < (float)end ? (size_t)x : 0;
}

__global__ void __launch_bounds__(RING)
ring_kernel(const sru_attention s, size_t C, size_t t0, float scale, float *scores)
{
    __shared__ unsigned char steps[RING_STEPS];     /* those not padded, up to this one */
    __shared__ float shared[WARP], sums[RING];
    const size_t H = (size_t)s.H, hd = s.P/H, b = blockIdx.x/H, h = blockIdx.x%H;
    const size_t t = t0 + blockIdx.y, row = t*s.B + b, lane = threadIdx.x%WARP;
    const float *q = s.q + row*s.P + h*hd;
    const float *ring = s.ring + b*s.ld_ring, *slots = ring + 2 + h*hd;
    /* the next slot to fill; keys in the slots before it; keys in kv before this step's own */
    const size_t place = ring_count(ring[0], C), before = ring_count(ring[1], s.window);
    size_t now = 0;
    if (s.mask_pad && s.mask_pad[row]) return;
    for (unsigned i = 0; i < blockIdx.y && !s.cross; i++) {
        if (s.mask_pad && s.mask_pad[(t0 + i)*s.B + b]) continue;
        if (threadIdx.x == 0) steps[now] = (unsigned char)i;
        now++;
    }
    if (threadIdx.x == 0) steps[now] = (unsigned char)blockIdx.y;
    __syncthreads();
    const size_t own = s.cross ? 0 : 1;
    const size_t keys = before + now < s.window ? before + now + own : s.window;
    auto key = [&](size_t i) {              /* from the earliest to this step's own, if any */
        const size_t ago = keys - own - i;
        if (ago <= now) return s.kv + ((t0 + steps[now - ago])*s.B + b)*2*s.P + h*hd;
        const size_t slot = place + C + now - ago;
        return slots + (slot < C ? slot : slot - C)*2*s.P;
    };
    scores += ((size_t)blockIdx.y*gridDim.x + blockIdx.x)*s.window;
    float most = -INFINITY, sum = 0;
    for (size_t i = threadIdx.x/WARP; i < keys; i += blockDim.x/WARP) { /* one key a warp */
        const float *k = key(i);
        float dot = 0;
        for (size_t j = lane; j < hd; j += WARP) dot = fmaf(q[j], k[j], dot);
        dot = warp_sum(dot)*scale;
        if (lane == 0) scores[i] = dot;
        most = fmaxf(most, dot);
    }
    most = over_block<warp_max>(most, -INFINITY, shared);
    for (size_t i = threadIdx.x; i < keys; i += blockDim.x) {
        scores[i] = expf(scores[i] - most);
        sum += scores[i];
    }
    sum = over_block<warp_sum>(sum, 0, shared);
    /* Threads side by side sum columns of values, or parts of columns if threads are enough. */
    const size_t wide = (hd + WARP - 1)/WARP*WARP;
    const unsigned columns = wide < blockDim.x ? (unsigned)wide : blockDim.x;
    const unsigned parts = blockDim.x/columns, part = threadIdx.x/columns;
    for (size_t first = 0; first < hd; first += columns) {
        const size_t j = first + threadIdx.x%columns, end = j < hd ? keys : 0;
        float a = 0;
#pragma unroll 8
        for (size_t i = part; i < end; i += parts)
            a = fmaf(scores[i], key(i)[s.P + j], a);
        sums[threadIdx.x] = a;
        __syncthreads();
        a = 0;
        for (unsigned i = 0; i < parts; i++) a += sums[i*columns + threadIdx.x%columns];
        __syncthreads();
        if (part || j >= hd) continue;
        a = keys ? a/sum : 0;
        if (s.a) s.a[row*s.P + h*hd + j] = a;
        s.o[row*s.P + h*hd + j] = s.alpha ? fmaf(s.alpha[0], a, q[j]) : a;
    }
    if (!s.stats || threadIdx.x) return;
    s.stats[2*(blockIdx.x*s.T + t)] = keys ? most : 0;
    s.stats[2*(blockIdx.x*s.T + t) + 1] = keys ? 1/sum : 0;
}

/* Once all blocks have read a ring, appends the keys and values of the n steps from t0 to it. A
   thread has four values of a step under way at a time. */
__global__ void __launch_bounds__(RING)
ring_advance_kernel(const sru_attention s, size_t C, size_t t0, size_t n)
{
    const size_t b = blockIdx.x, P2 = 2*s.P;
    float *ring = s.ring + b*s.ld_ring;
    size_t place = ring_count(ring[0], C), before = ring_count(ring[1], s.window);
    for (size_t row = t0*s.B + b; row < (t0 + n)*s.B; row += s.B) {
        if (s.mask_pad && s.mask_pad[row]) continue;
        for (size_t j = threadIdx.x; j < P2; j += 4*blockDim.x) {
            float v[4];
#pragma unroll
            for (unsigned k = 0; k < 4; k++)
                if (j + k*blockDim.x < P2) v[k] = s.kv[row*P2 + j + k*blockDim.x];
#pragma unroll
            for (unsigned k = 0; k < 4; k++)
                if (j + k*blockDim.x < P2) ring[2 + place*P2 + j + k*blockDim.x] = v[k];
        }
        place = place + 1 < C ? place + 1 : 0;
        before = before + 1 < s.window ? before + 1 : s.window - 1;
    }
    __syncthreads();
    if (threadIdx.x) return;
    ring[0] = (float)place;
    ring[1] = (float)before;
}

/* y[t] = beta y[t] + x[t]*mask. A thread draws its factor once. 8 bytes a value, 12 with beta. */
__global__ void dropout_kernel(float *y, const float *x, const float *mask, float p, uint64_t key,
                               float beta, size_t T, size_t n)
{
    const size_t i = (size_t)blockIdx.x*blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float factor = mask ? mask[i] : uniform(key, i) < p ? 0 : 1/(1 - p);
    for (size_t t = blockIdx.y; t < T; t += gridDim.y) {
        const float value = x ? x[t*n + i]*factor : factor;
        y[t*n + i] = beta != 0 && x ? y[t*n + i] + value : value;
    }
}

/* losses[i] = -log softmax(y[i])[target], dy = scale*(softmax - onehot). A warp has one row. A row
   of up to a few hundred columns is read once from memory and twice from L1: 8 bytes a value; a
   longer one takes up to 16. A target of n or more makes NaN. */
__global__ void softmax_loss_kernel(double *losses, float *dy, const float *y,
                                    const int32_t *targets, float scale, size_t rows, size_t n)
{
    const size_t row = (size_t)blockIdx.x*(blockDim.x/WARP) + threadIdx.x/WARP;
    const unsigned lane = threadIdx.x%WARP;
    float most = -INFINITY, sum = 0;
    if (row >= rows) return;
    const int32_t target = targets[row];
    const bool within = target >= 0 && (size_t)target < n;
    y += row*n;
    if (dy) dy += row*n;
    for (size_t j = lane; j < n; j += WARP) most = fmaxf(most, y[j]);
    most = warp_max(most);
    for (size_t j = lane; j < n; j += WARP) sum += expf(y[j] - most);
    sum = warp_sum(sum);
    if (lane == 0)
        losses[row] = target < 0 ? 0 : within ? log((double)sum) + ((double)most - y[target]) : NAN;
    __syncwarp();                                   /* y[target] has been read: dy may be y */
    const float by = scale/sum;
    for (size_t j = lane; dy && j < n; j += WARP)
        dy[j] = target < 0 ? 0 : expf(y[j] - most)*by - (j == (size_t)target ? scale : 0);
}

/* out[block] = the sum of the block's share of the values (SUM), its root (ROOT), out + the sum
   (ADD), or the sum of the values' squares (SQUARES). 256 threads. */
enum total { SUM, ROOT, ADD, SQUARES };

template <total WHAT, class Y = double, class X = double>
__global__ void total_kernel(Y *out, const X *values, size_t n)
{
    __shared__ double sums[256];
    double sum = 0;
    for (size_t i = (size_t)blockIdx.x*256 + threadIdx.x; i < n; i += (size_t)gridDim.x*256)
        sum += WHAT == SQUARES ? (double)values[i]*(double)values[i] : (double)values[i];
    sums[threadIdx.x] = sum;
    for (unsigned half = 128; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x) return;
    out += blockIdx.x;
    *out = (Y)(WHAT == ROOT ? sqrt(sums[0]) : WHAT == ADD ? *out + sums[0] : sums[0]);
}

/* p -= lr*(m1/(sqrt(v1) + eps) + decay*p), see sru.h. 32 bytes a value. */
struct adamw_factors { float scale, step1, step2, eps, rate, shrink, root_unbias2; };

__global__ void adamw_kernel(float *p, float *m, float *v, float *g, const adamw_factors s,
                             size_t n)
{
    const size_t i = (size_t)blockIdx.x*256 + threadIdx.x;
    if (i >= n) return;
    const float d = g[i]*s.scale;
    const float m1 = fmaf(d - m[i], s.step1, m[i]), sum = fmaf(fmaf(d, d, -v[i]), s.step2, v[i]);
    const float v1 = sum > 3.4e38f ? 3.4e38f : sum;     /* infinity would become NaN next time */
    m[i] = m1;
    v[i] = v1;
    p[i] = p[i]*s.shrink - m1*s.rate/(sqrtf(v1)*s.root_unbias2 + s.eps);
    g[i] = 0;
}

/* =================================================================================================
   What the operators share */

struct device {
    sru_backend    op;
    cudaStream_t   stream;
    cublasHandle_t blas;
    void          *workspace;       /* for cuBLAS, so that it allocates none as it runs */
    sru_cuda_math  math;
    int            number;
    size_t         multiprocessors, room;   /* room on each for blocks of 48 KB of shared memory */
    bool           reads_host;      /* the GPU can read all of the host's memory */
};
enum { WORKSPACE = 32 << 20 };

const device *device_of(const sru_context *c) { return (const device *)c->op->kernels; }

sru_status fail(const sru_context *c, sru_status status, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    if (c->error) vsnprintf(c->error, SRU_ERROR_SIZE, format, list);
    va_end(list);
    return status;
}

sru_status check(const sru_context *c, const char *name, cudaError_t e)
{
    if (e == cudaSuccess) return SRU_OK;
    cudaGetLastError();             /* or it would be reported again */
    return fail(c, e == cudaErrorMemoryAllocation ? SRU_ENOMEM : SRU_EDEVICE, "%s: CUDA: %s", name,
                cudaGetErrorString(e));
}

#define TRY(call)                                                                                  \
    do {                                                                                           \
        const sru_status status_ = (call);                                                         \
        if (status_) return status_;                                                               \
    } while (0)

cudaMemoryType kind_of(const void *p)
{
    cudaPointerAttributes a;
    if (cudaPointerGetAttributes(&a, p) == cudaSuccess) return a.type;
    cudaGetLastError();
    return cudaMemoryTypeUnregistered;
}

bool on_device(const void *p)
{
    const cudaMemoryType kind = kind_of(p);
    return kind == cudaMemoryTypeDevice || kind == cudaMemoryTypeManaged;
}

/* A pointer that the GPU cannot read is reported here, before it causes a fault there. */
struct named { const char *name; const void *p; };
#define P(p) { #p, p }
#define P_IF(n, p) { #p, (n) ? (p) : NULL }     /* without elements, it may be at any address */

sru_status check_pointers(const sru_context *c, const char *name, std::initializer_list<named> list)
{
    int current = -1;
    if (c->measure) return SRU_OK;
    TRY(check(c, name, cudaGetDevice(&current)));
    if (current != device_of(c)->number)
        return fail(c, SRU_EINVAL, "%s: device %d is current, but the backend's is %d", name,
                    current, device_of(c)->number);
    if (device_of(c)->reads_host) return SRU_OK;
    for (const named &x : list) {
        cudaPointerAttributes a;
        if (!x.p) continue;
        TRY(check(c, name, cudaPointerGetAttributes(&a, x.p)));
        if (!a.devicePointer)
            return fail(c, SRU_EINVAL, "%s: %s is not in memory that the GPU can read", name,
                        x.name);
    }
    return SRU_OK;
}

/* The product of sizes, or SIZE_MAX if that is SIZE_MAX/4 or more. */
size_t product(std::initializer_list<size_t> sizes)
{
    size_t p = 1;
    for (size_t n : sizes) {
        if (!n) return 0;
        p = p > SIZE_MAX/4/n ? SIZE_MAX/4 : p*n;
    }
    return p < SIZE_MAX/4 ? p : SIZE_MAX;
}

size_t ceil_div(size_t a, size_t b) { return a/b + (a%b != 0); }

/* Takes scratch memory, as sru.h does. */
template <class X> X *take(sru_context *c, size_t count)
{
    const size_t bytes = product({count, sizeof(X)}), start = c->work_used;
    if (bytes == SIZE_MAX || start > SIZE_MAX/2) return NULL;
    c->work_used += (bytes + 63)/64*64;
    if (c->measure) {
        if (*c->measure < c->work_used + 63) *c->measure = c->work_used + 63;
        return (X *)(uintptr_t)64;
    }
    if (!c->work || c->work_used + 63 > c->work_size) return NULL;
    return (X *)((char *)c->work + (64 - (uintptr_t)c->work%64)%64 + start);
}

sru_status no_memory(const sru_context *c, const char *name)
{
    return fail(c, SRU_ENOMEM, "%s: %zu bytes of scratch memory are too few, or work_used is not "
                "0: sru_size() tells how many a network needs, ctx->measure how many any call",
                name, c->work_size);
}

/* Runs body on a copy of the context, which gets scratch memory for this call if it has none. */
template <class Body> sru_status run(const sru_context *ctx, const char *name, Body body)
{
    sru_context c = *ctx;
    size_t need = 0;
    if (c.work) TRY(check_pointers(&c, name, {{"ctx->work", c.work}}));
    if (c.measure || c.work) return body(&c);
    c.work_used = 0;
    c.measure = &need;
    TRY(body(&c));
    c.measure = NULL;
    c.work_used = 0;
    if (need) {
        TRY(check(ctx, name, cudaMalloc(&c.work, need)));
        c.work_size = need;
    }
    const sru_status status = body(&c);
    if (need) cudaFree(c.work);
    return status;
}

/* All kernels are launched here. Arguments are converted to the kernel's parameter types. */
template <class... P, class... A>
sru_status launch(const sru_context *c, const char *name, void (*kernel)(P...), size_t blocks,
                  size_t parts, dim3 threads, A... args)
{
    if (!blocks || !parts) return SRU_OK;
    if (blocks > INT_MAX || parts > 65535)
        return fail(c, SRU_EINVAL, "%s: the sizes are too large for one launch", name);
    return [&](P... p) {
        void *values[] = { (void *)&p... };
        return check(c, name, cudaLaunchKernel(kernel, dim3((unsigned)blocks, (unsigned)parts),
                                               threads, values, 0, device_of(c)->stream));
    }(args...);
}

/* Adds the sums of the columns of in (rows,n) to `out`; from column `split` on, to `more`. */
sru_status add_columns(sru_context *c, const char *name, float *out, float *more, size_t split,
                       const float *in, size_t rows, size_t n)
{
    const size_t blocks = ceil_div(n, WARP), parts = rows > 8*PARTS ? (size_t)PARTS : 1;
    float *sums = parts > 1 ? take<float>(c, parts*n) : NULL;
    if (parts > 1 && !sums) return no_memory(c, name);
    if (c->measure || (!out && !more)) return SRU_OK;
    if (parts > 1)
        TRY(launch(c, name, sum_rows_kernel, blocks, parts, dim3(WARP, 8), sums, nullptr, n, in,
                   rows, n));
    return launch(c, name, sum_rows_kernel, blocks, 1, dim3(WARP, 8), out, more, split,
                  sums ? sums : in, sums ? parts : rows, n);
}

/* Copies a result, one double, to where the caller wants it, and waits if that is host memory. */
sru_status deliver(const sru_context *c, const char *name, double *to, const double *from)
{
    if (to == from) return SRU_OK;
    TRY(check(c, name, cudaMemcpyAsync(to, from, sizeof *to, cudaMemcpyDefault,
                                       device_of(c)->stream)));
    return check(c, name, cudaStreamSynchronize(device_of(c)->stream));
}

/* =================================================================================================
   Operators: memory */

void *alloc(const sru_context *ctx, size_t bytes)
{
    void *p = NULL;
    if (check_pointers(ctx, "alloc", {})) return NULL;
    if (check(ctx, "alloc", cudaMalloc(&p, bytes ? bytes : 1))) return NULL;
    if (check(ctx, "alloc", cudaMemsetAsync(p, 0, bytes, device_of(ctx)->stream))
        || check(ctx, "alloc", cudaStreamSynchronize(device_of(ctx)->stream))) {
        cudaFree(p);
        return NULL;
    }
    return p;
}

void release(const sru_context *, void *memory) { cudaFree(memory); }

/* On return, host memory may be read or changed. Within the GPU, nothing is waited for. */
sru_status copy(const sru_context *ctx, void *to, const void *from, size_t bytes)
{
    const cudaStream_t stream = device_of(ctx)->stream;
    if (ctx->measure || !bytes) return SRU_OK;
    TRY(check_pointers(ctx, "copy", {}));
    if (!to) return fail(ctx, SRU_EINVAL, "copy: the destination is NULL");
    if (!from && !on_device(to)) {      /* the GPU may have access to it and still be using it */
        TRY(check(ctx, "copy", cudaStreamSynchronize(stream)));
        memset(to, 0, bytes);
        return SRU_OK;
    }
    if (from) TRY(check(ctx, "copy", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream)));
    else TRY(check(ctx, "copy", cudaMemsetAsync(to, 0, bytes, stream)));
    if (kind_of(to) == cudaMemoryTypeDevice && (!from || kind_of(from) == cudaMemoryTypeDevice))
        return SRU_OK;
    return check(ctx, "copy", cudaStreamSynchronize(stream));
}

/* =================================================================================================
   Operators: products, by cuBLAS */

size_t size_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

/* A row-major matrix, or `count` of them, `stride` values apart. */
struct matrix {
    const void  *p;
    cudaDataType type;
    size_t       ld;
    bool         transposed = false;
    size_t       stride = 0;
};

/* y (m,n) = a (m,k) b (k,n) + beta y. cuBLAS is column-major: there it is y' = b' a'. */
sru_status gemm(const sru_context *c, const char *name, const matrix &y, const matrix &a,
                const matrix &b, size_t m, size_t n, size_t k, float alpha, float beta,
                size_t count = 1)
{
    const device *d = device_of(c);
    const cublasComputeType_t compute =
        d->math != SRU_CUDA_FLOAT32 && a.type == CUDA_R_32F ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                            : CUBLAS_COMPUTE_32F;
    if (!m || !n || !count) return SRU_OK;
    for (size_t size : {m, n, k, y.ld, a.ld, b.ld, count})
        if (size > INT_MAX)
            return fail(c, SRU_EINVAL, "%s: %zu rows or columns are too many for cuBLAS", name,
                        size);
    const cublasStatus_t status = cublasGemmStridedBatchedEx(
        d->blas, b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
        (int)n, (int)m, (int)k, &alpha, b.p, b.type, (int)b.ld, (long long)b.stride, a.p, a.type,
        (int)a.ld, (long long)a.stride, &beta, (void *)y.p, y.type, (int)y.ld, (long long)y.stride,
        (int)count, compute, CUBLAS_GEMM_DEFAULT);
    if (status == CUBLAS_STATUS_SUCCESS) return SRU_OK;
    cudaGetLastError();                 /* reported here, and not once more later */
    return fail(c, status == CUBLAS_STATUS_ALLOC_FAILED ? SRU_ENOMEM : SRU_EDEVICE,
                "%s: cuBLAS: %s", name, cublasGetStatusString(status));
}

/* The type in which float32 values are multiplied. Gradients need bfloat16's range. */
cudaDataType product_type(const sru_context *c, bool backward)
{
    const sru_cuda_math math = device_of(c)->math;
    return math == SRU_CUDA_BF16 || (math == SRU_CUDA_FP16 && backward) ? CUDA_R_16BF
         : math == SRU_CUDA_FP16 ? CUDA_R_16F : CUDA_R_32F;
}

/* The type of values in memory; SRU_PLAIN is float32. */
cudaDataType type_of(sru_type type)
{
    return type == SRU_BF16 ? CUDA_R_16BF : type == SRU_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* The type in which weights are multiplied: packed ones, as they are. */
cudaDataType weights_type(const sru_context *c, sru_type type)
{
    return type == SRU_PLAIN ? product_type(c, false) : type_of(type);
}

sru_status narrow(const sru_context *c, const char *name, void *y, cudaDataType type,
                  const float *x, size_t n)
{
    if (type == CUDA_R_16BF)
        return launch(c, name, narrow_kernel<bf16>, ceil_div(n, NARROW), 1, 256, (bf16 *)y, x, n);
    return launch(c, name, narrow_kernel<fp16>, ceil_div(n, NARROW), 1, 256, (fp16 *)y, x, n);
}

/* *y is x itself if that has the type; else x, which is float32, narrowed in scratch memory. */
sru_status operand(sru_context *c, const char *name, const void **y, const void *x, cudaDataType is,
                   size_t n, cudaDataType type)
{
    void *p;
    *y = x;
    if (is == type) return SRU_OK;
    *y = p = take<char>(c, product({n, 2}));
    if (!p) return no_memory(c, name);
    return c->measure ? SRU_OK : narrow(c, name, p, type, (const float *)x, n);
}

size_t packed_rows(sru_type type, size_t k)         /* bytes of 16 rows; sru.h reserves no fewer */
{
    return type == SRU_F32 ? 64*k : type == SRU_BF16 || type == SRU_F16 ? 64*ceil_div(k, 2) : 0;
}

sru_status check_type(const sru_context *c, const char *name, sru_type type)
{
    if (type == SRU_PLAIN || type == SRU_F32 || type == SRU_BF16 || type == SRU_F16) return SRU_OK;
    return fail(c, SRU_EINVAL, "%s: on the GPU there are SRU_PLAIN, SRU_F32, SRU_BF16 and SRU_F16",
                name);
}

/* Packed weights lie row after row: as they are, or in bfloat16 or float16. */
size_t pack(const sru_context *ctx, void *packed, sru_type type, const float *w, size_t n, size_t k)
{
    const size_t bytes = type == SRU_PLAIN ? n*k*4 : ceil_div(n, PANEL)*packed_rows(type, k);
    if (check_type(ctx, "pack", type)) return 0;
    if (product({ceil_div(n, PANEL), k, 128}) == SIZE_MAX)
        return fail(ctx, SRU_EINVAL, "pack: n %zu, k %zu are too large", n, k), 0;
    if (!packed || ctx->measure) return bytes;
    if (n && k && !w) return fail(ctx, SRU_EINVAL, "pack: w must not be NULL"), 0;
    if (check_pointers(ctx, "pack", {P(packed), P(w)})) return 0;
    if (type_of(type) != CUDA_R_32F)
        return narrow(ctx, "pack", packed, type_of(type), w, n*k) ? 0 : bytes;
    return copy(ctx, packed, w, n*k*4) ? 0 : bytes;
}

sru_status linear_forward(const sru_context *ctx, float *y, const float *x, const void *w,
                          sru_type type, const float *b, size_t rows, size_t n, size_t k)
{
    static const char name[] = "linear_forward";
    if (product({rows, n, 4}) == SIZE_MAX || product({rows, k, 4}) == SIZE_MAX
        || product({n, k, 4}) == SIZE_MAX)
        return fail(ctx, SRU_EINVAL, "%s: rows %zu, n %zu, k %zu are too large", name, rows, n, k);
    if (!rows || !n) return SRU_OK;
    if (!y || (k && (!x || !w)))
        return fail(ctx, SRU_EINVAL, "%s: y, x and w must not be NULL", name);
    TRY(check_type(ctx, name, type));
    TRY(check_pointers(ctx, name, {P(y), P_IF(k, x), P_IF(k, w), P(b)}));
    return run(ctx, name, [=](sru_context *c) -> sru_status {
        const cudaDataType t = weights_type(c, type);
        const void *wt, *xt;
        TRY(operand(c, name, &wt, w, type_of(type), n*k, t));
        TRY(operand(c, name, &xt, x, CUDA_R_32F, rows*k, t));
        if (c->measure) return SRU_OK;
        if (b)                                  /* each row of y is b at first */
            TRY(launch(c, name, dropout_kernel, ceil_div(n, 256), rows < 64 ? rows : 64, 256, y,
                       nullptr, b, 0, 0, 0, rows, n));
        if (!k) return b ? SRU_OK : copy(c, y, NULL, rows*n*4);
        return gemm(c, name, {y, CUDA_R_32F, n}, {xt, t, k}, {wt, t, k, true}, rows, n, k, 1,
                    b ? 1.0f : 0.0f);
    });
}

/* dx = dy w + beta dx, dw += dy' x, where dx, dy and x have the type `stored`. */
sru_status products_backward(sru_context *c, const char *name, void *dx, float *dw, const void *dy,
                             const void *x, cudaDataType stored, const float *w, float beta,
                             size_t rows, size_t n, size_t k)
{
    const cudaDataType t = stored == CUDA_R_32F ? product_type(c, true) : stored;
    const void *wt = w, *xt = x, *dyt;
    if (!rows || !k) return SRU_OK;
    if (!n) return dx && beta == 0 ? copy(c, dx, NULL, rows*k*size_of(stored)) : SRU_OK;
    TRY(operand(c, name, &dyt, dy, stored, rows*n, t));
    if (dx) TRY(operand(c, name, &wt, w, CUDA_R_32F, n*k, t));
    if (dw) TRY(operand(c, name, &xt, x, stored, rows*k, t));
    if (c->measure) return SRU_OK;
    if (dw)                                     /* before x, which dx may be, is overwritten */
        TRY(gemm(c, name, {dw, CUDA_R_32F, k}, {dyt, t, n, true}, {xt, t, k}, n, k, rows, 1, 1));
    if (dx) TRY(gemm(c, name, {dx, stored, k}, {dyt, t, n}, {wt, t, k}, rows, k, n, 1, beta));
    return SRU_OK;
}

/* forward: y = x w' + b */
sru_status linear_backward(const sru_context *ctx, float *dx, float *dw, float *db, const float *dy,
                           const float *x, const float *w, float beta, size_t rows, size_t n,
                           size_t k)
{
    static const char name[] = "linear_backward";
    if (product({rows, n, 4}) == SIZE_MAX || product({rows, k, 4}) == SIZE_MAX
        || product({n, k, 4}) == SIZE_MAX)
        return fail(ctx, SRU_EINVAL, "%s: rows %zu, n %zu, k %zu are too large", name, rows, n, k);
    if (rows && n && (!dy || (k && ((dw && !x) || (dx && !w)))))
        return fail(ctx, SRU_EINVAL, "%s: dy, x and w must not be NULL", name);
    if (dx && rows && k && beta != 0 && beta != 1)
        return fail(ctx, SRU_EINVAL, "%s: beta must be 0 or 1", name);
    if (rows) TRY(check_pointers(ctx, name, {P_IF(k, dx), P_IF(k, dw), P(db), P(dy), P_IF(k, x),
                                             P_IF(k, w)}));
    return run(ctx, name, [=](sru_context *c) -> sru_status {
        if (db && rows) {
            sru_context inner = *c;
            TRY(add_columns(&inner, name, db, NULL, n, dy, rows, n));
        }
        return products_backward(c, name, dx, dw, dy, x, CUDA_R_32F, w, beta, rows, n, k);
    });
}

/* =================================================================================================
   Operators: scan */

sru_status check_scan(const sru_context *c, const sru_scan *s, const char *name)
{
    if (s->K < 2 || s->K > 4) return fail(c, SRU_EINVAL, "%s: K must be 2, 3 or 4", name);
    if (s->K == 2 && s->use_tanh)
        return fail(c, SRU_EINVAL, "%s: with K = 2 use_tanh must be 0", name);
    if (s->bidirectional && s->N%2)
        return fail(c, SRU_EINVAL, "%s: N is %zu, but bidirectional wants it even", name, s->N);
    if (product({s->T, s->B, (size_t)s->K, s->N, 4}) == SIZE_MAX
        || product({s->T, s->B, s->A, 4}) == SIZE_MAX
        || product({(size_t)s->K, s->N, s->A, 4}) == SIZE_MAX
        || product({s->B, s->ldc, 4}) == SIZE_MAX)
        return fail(c, SRU_EINVAL, "%s: T %zu, B %zu, N %zu, A %zu, ldc %zu are too large", name,
                    s->T, s->B, s->N, s->A, s->ldc);
    if (s->T > INT_MAX/2 || product({s->B, (size_t)s->K, s->N, 4}) > INT_MAX)
        return fail(c, SRU_EINVAL, "%s: T %zu, or a step of B %zu, N %zu, is too large for the GPU",
                    name, s->T, s->B, s->N);
    if (s->ldc && s->ldc < s->N)
        return fail(c, SRU_EINVAL, "%s: ldc %zu is less than N %zu", name, s->ldc, s->N);
    if (s->T && s->B && s->N && s->w && !s->a)
        return fail(c, SRU_EINVAL, "%s: with w, a must not be NULL", name);
    if (s->T && s->B && s->N && !s->w && !s->u)
        return fail(c, SRU_EINVAL, "%s: u and w must not both be NULL", name);
    TRY(check_type(c, name, s->type));
    TRY(check_type(c, name, s->storage));
    if (s->storage == SRU_F32)
        return fail(c, SRU_EINVAL, "%s: storage must be SRU_PLAIN, SRU_BF16 or SRU_F16", name);
    if (s->w && s->type != SRU_PLAIN && s->storage != SRU_PLAIN && s->type != s->storage)
        return fail(c, SRU_EINVAL, "%s: packed weights and storage must be of one type", name);
    if (!s->B || !s->N) return SRU_OK;      /* arrays without elements may be at any address */
    TRY(check_pointers(c, name, {P_IF(s->A, s->w), P(s->v), P(s->bias), P(s->mask_c), P(s->c0),
                                 P(s->cT), P(s->dc), P_IF(s->A, s->dw), P(s->dv), P(s->dbias)}));
    if (!s->T) return SRU_OK;
    return check_pointers(c, name, {P_IF(s->A, s->a), P(s->u), P(s->vt), P(s->mask_pad), P(s->h),
                                    P_IF(s->K < 4, s->x), P(s->c), P(s->dh), P(s->du), P(s->dx),
                                    P_IF(s->A, s->da), P(s->dvt)});
}

/* u (rows,K,N) = a (rows,A) w'. Packed, w consists of groups of D rows: see pack in sru.h. */
sru_status scan_product(const sru_context *c, const sru_scan *s, void *u, cudaDataType u_type,
                        const void *a, const void *w, cudaDataType type, size_t rows)
{
    const size_t dirs = s->bidirectional ? 2 : 1, D = s->N/dirs, KN = (size_t)s->K*s->N;
    const size_t group = ceil_div(D, PANEL)*packed_rows(s->type, s->A)/size_of(type);
    if (!s->A)
        return check(c, "scan_forward", cudaMemsetAsync(u, 0, rows*KN*size_of(u_type),
                                                        device_of(c)->stream));
    if (s->type == SRU_PLAIN)
        return gemm(c, "scan_forward", {u, u_type, KN}, {a, type, s->A}, {w, type, s->A, true},
                    rows, KN, s->A, 1, 0);
    return gemm(c, "scan_forward", {u, u_type, KN, false, D}, {a, type, s->A},
                {w, type, s->A, true, group}, rows, D, s->A, 1, 0, dirs*(size_t)s->K);
}

size_t gates(const sru_scan &s) { return s.K == 2 ? 1 : 2; }

/* Whether the columns are so few that all of their blocks run at once, at most `most` of them on a
   multiprocessor: its registers are enough for 3 blocks of a forward or 2 of a backward pass. */
bool few(const sru_context *c, const sru_scan &s, size_t most)
{
    const device *d = device_of(c);
    return ceil_div(s.B*s.N, WARP) <= d->multiprocessors*(d->room < most ? d->room : most);
}

template <int HELPERS, class H, unit UNIT, class U, class S>
sru_status scan_with(const sru_context *c, const sru_scan &s, size_t ldc, const U *u, const S *skip)
{
    return launch(c, "scan_forward",
                  s.vt || s.mask_pad ? scan_forward_kernel<U, S, H, UNIT, true, HELPERS>
                                     : scan_forward_kernel<U, S, H, UNIT, false, HELPERS>,
                  ceil_div(s.B*s.N, WARP), 1, (1 + HELPERS)*WARP, s, ldc, u, skip);
}

template <class H, unit UNIT, class U, class S>
sru_status scan_skip(const sru_context *c, const sru_scan &s, size_t ldc, const U *u, const S *skip)
{
    return few(c, s, 3) ? scan_with<FEW, H, UNIT>(c, s, ldc, u, skip)
                        : scan_with<MANY, H, UNIT>(c, s, ldc, u, skip);
}

template <class H, unit UNIT, class U>
sru_status scan_unit(const sru_context *c, const sru_scan &s, size_t ldc, const U *u)
{
    return s.K == 4 ? scan_skip<H, UNIT>(c, s, ldc, u, u + 3*s.N)
                    : scan_skip<H, UNIT>(c, s, ldc, u, (const H *)s.x);
}

template <class H, class U>
sru_status scan_u(const sru_context *c, const sru_scan &s, size_t ldc, const U *u)
{
    if (s.K == 2) return scan_skip<H, SSRU>(c, s, ldc, u, (const H *)s.x);
    return s.use_tanh ? scan_unit<H, TANH>(c, s, ldc, u) : scan_unit<H, PLAIN>(c, s, ldc, u);
}

sru_status scan(const sru_context *c, const sru_scan &s, size_t ldc, const void *u,
                cudaDataType type)
{
    if (s.storage == SRU_BF16) return scan_u<bf16>(c, s, ldc, (const bf16 *)u);
    if (s.storage == SRU_F16) return scan_u<fp16>(c, s, ldc, (const fp16 *)u);
    if (type == CUDA_R_16BF) return scan_u<float>(c, s, ldc, (const bf16 *)u);
    if (type == CUDA_R_16F) return scan_u<float>(c, s, ldc, (const fp16 *)u);
    return scan_u<float>(c, s, ldc, (const float *)u);
}

/* p, moved on by n values of `size` bytes; NULL stays NULL. */
template <class X> X *further(X *p, size_t n, size_t size)
{
    return p ? (X *)((uintptr_t)p + n*size) : NULL;
}

sru_status scan_forward(const sru_context *ctx, const sru_scan *args)
{
    static const char name[] = "scan_forward";
    if (!args) return fail(ctx, SRU_EINVAL, "%s: the scan is NULL", name);
    TRY(check_scan(ctx, args, name));
    if (args->T && args->B && args->N && !args->h)
        return fail(ctx, SRU_EINVAL, "%s: h must not be NULL", name);
    if (!ctx->measure && args->T && args->B && args->w && args->a && args->a == args->h
        && (args->bidirectional || args->A != args->N))
        return fail(ctx, SRU_EINVAL, "%s: h may be a in one direction only, and where A %zu is "
                    "N %zu", name, args->A, args->N);
    return run(ctx, name, [=](sru_context *c) -> sru_status {
        sru_scan s = *args;
        const size_t T = s.T, row = s.B*(size_t)s.K*s.N, ldc = s.ldc ? s.ldc : s.N;
        const cudaDataType stored = type_of(s.storage);
        const cudaDataType type = stored == CUDA_R_32F ? weights_type(c, s.type) : stored;
        const cudaDataType u_type = s.u ? stored : type;
        const size_t size = size_of(stored);
        const void *w = s.w;
        size_t steps = T, rows = T*s.B, t = 0;
        void *u = s.u;
        if (!row) return SRU_OK;
        if (s.scale_x == 0) s.scale_x = 1;
        /* u for `steps` steps at a time, in even parts; for all if a direction starts at the end */
        if (s.w && !s.u && !s.bidirectional && T) {
            const size_t some = (size_t)SRU_CUDA_U/size_of(u_type)/((size_t)s.K*s.N);
            rows = some < s.B ? s.B : some < rows ? some : rows;
            steps = ceil_div(T, ceil_div(T, rows/s.B));
        }
        if (s.w && !s.u) u = take<char>(c, product({rows, (size_t)s.K*s.N, size_of(u_type)}));
        if (!s.cT && steps < T) s.cT = take<float>(c, s.B*ldc);     /* from chunk to chunk */
        if ((s.w && !u) || (steps < T && !s.cT)) return no_memory(c, name);
        if (s.w) TRY(operand(c, name, &w, s.w, type_of(s.type), (size_t)s.K*s.N*s.A, type));
        do {                                    /* for no steps, too: cT is then c0 */
            sru_context chunk = *c;
            sru_scan p = s;
            const size_t at = t*s.B;
            const void *a;
            p.T = T - t < steps ? T - t : steps;
            if (s.w) {
                TRY(operand(&chunk, name, &a, further(s.a, at*s.A, size), stored,
                            (c->measure ? rows : p.T*s.B)*s.A, type));
                if (!c->measure)
                    TRY(scan_product(c, &s, u, u_type, a, w, type, p.T*s.B));
            }
            if (c->measure) return SRU_OK;
            if (t) p.c0 = s.cT;
            p.h = further(s.h, at*s.N, size);
            p.x = further(s.x, at*s.N, size);
            p.c = further(s.c, at*s.N, size);
            p.vt = further(s.vt, at*gates(s)*s.N, sizeof(float));
            p.mask_pad = further(s.mask_pad, at, 1);
            TRY(scan(c, p, ldc, u, u_type));
        } while ((t += steps) < T);
        return SRU_OK;
    });
}

template <int HELPERS, unit UNIT, class H>
sru_status scan_back_with(const sru_context *c, const sru_scan &s, size_t ldc, float *sums,
                          const H *skip, H *dskip)
{
    return launch(c, "scan_backward",
                  s.vt || s.dvt || s.mask_pad ? scan_backward_kernel<H, UNIT, true, HELPERS>
                                              : scan_backward_kernel<H, UNIT, false, HELPERS>,
                  ceil_div(s.B*s.N, HELPERS ? (size_t)WARP : (size_t)SCAN), 1,
                  HELPERS ? (1 + HELPERS)*WARP : (int)SCAN, s, ldc, sums, skip, dskip);
}

template <unit UNIT, class H>
sru_status scan_back_unit(const sru_context *c, const sru_scan &s, size_t ldc, float *sums)
{
    const H *skip = (const H *)(s.K == 4 ? further(s.u, 3*s.N, sizeof(H)) : s.x);
    H *dskip = (H *)(s.K == 4 ? further(s.du, 3*s.N, sizeof(H)) : s.x ? s.dx : NULL);
    return few(c, s, 2) ? scan_back_with<FEW, UNIT>(c, s, ldc, sums, skip, dskip)
                        : scan_back_with<0, UNIT>(c, s, ldc, sums, skip, dskip);
}

template <class H>
sru_status scan_back(const sru_context *c, const sru_scan &s, size_t ldc, float *sums)
{
    return s.K == 2   ? scan_back_unit<SSRU, H>(c, s, ldc, sums)
         : s.use_tanh ? scan_back_unit<TANH, H>(c, s, ldc, sums)
                      : scan_back_unit<PLAIN, H>(c, s, ldc, sums);
}

sru_status scan_backward(const sru_context *ctx, const sru_scan *args)
{
    static const char name[] = "scan_backward";
    if (!args) return fail(ctx, SRU_EINVAL, "%s: the scan is NULL", name);
    TRY(check_scan(ctx, args, name));
    if (args->T && args->B && args->N && (!args->u || !args->du || !args->c || !args->dh))
        return fail(ctx, SRU_EINVAL, "%s: u, du, c and dh must not be NULL", name);
    if (args->w && args->type != SRU_PLAIN)
        return fail(ctx, SRU_EINVAL, "%s: w must be SRU_PLAIN", name);
    return run(ctx, name, [=](sru_context *c) -> sru_status {
        sru_scan s = *args;
        const size_t ldc = s.ldc ? s.ldc : s.N, GN = gates(s)*s.N;
        if (s.scale_x == 0) s.scale_x = 1;
        if (s.K == 4) s.x = NULL;
        if (s.T && s.B && s.N) {
            sru_context inner = *c;
            float *sums = take<float>(&inner, s.B*2*GN);
            if (!sums) return no_memory(c, name);
            if (!c->measure)
                TRY(s.storage == SRU_BF16  ? scan_back<bf16>(c, s, ldc, sums)
                    : s.storage == SRU_F16 ? scan_back<fp16>(c, s, ldc, sums)
                                           : scan_back<float>(c, s, ldc, sums));
            TRY(add_columns(&inner, name, s.dv, s.dbias, GN, sums, s.B, 2*GN));
        }
        if (!s.w) return SRU_OK;
        /* forward: u = a w' */
        return products_backward(c, name, s.da, s.dw, s.du, s.a, type_of(s.storage),
                                 (const float *)s.w, s.da && s.da == s.dx && s.x ? 1.0f : 0.0f,
                                 s.T*s.B, (size_t)s.K*s.N, s.A);
    });
}

/* =================================================================================================
   Operators: attention */

uint64_t key_of(const sru_context *c, uint32_t id)
{
    return mix(mix(mix(c->seed + 0x9e3779b97f4a7c15u) + c->step) + id);
}

size_t ring_slots(size_t window) { return (ceil_div(window - 1, 64) + 1)*64; }

sru_status check_attention(const sru_context *c, const sru_attention *s, const char *name)
{
    const size_t S = s->M + s->T;       /* more than there are in cross-attention */
    if (s->H < 1 || !s->P || s->P%(size_t)s->H)
        return fail(c, SRU_EINVAL, "%s: H must be at least 1, and P %zu a multiple of it", name,
                    s->P);
    if (s->M > SIZE_MAX/4 || s->T > SIZE_MAX/4 || s->window > (size_t)1 << 23
        || product({S + 128, s->B, s->P, 8, 4}) == SIZE_MAX || product({S, s->T}) == SIZE_MAX
        || (s->ring && product({s->B, s->ld_ring, 4}) == SIZE_MAX))
        return fail(c, SRU_EINVAL, "%s: T %zu, B %zu, M %zu, P %zu, window %zu, ld_ring %zu are "
                    "too large", name, s->T, s->B, s->M, s->P, s->window, s->ld_ring);
    if (!(s->dropout >= 0 && s->dropout < 1))
        return fail(c, SRU_EINVAL, "%s: dropout must be from 0 to below 1", name);
    if (s->ring && (!s->window || s->M || s->attn_mask || s->dropout > 0
                    || s->ld_ring < 2 + ring_slots(s->window)*2*s->P))
        return fail(c, SRU_EINVAL, "%s: a ring wants a window, a larger ld_ring, and no memory, "
                    "attn_mask or dropout", name);
    if (s->cross && (s->causal || (!s->ring && (s->window || !s->M))))
        return fail(c, SRU_EINVAL, "%s: cross-attention wants memory or a ring, and no causal, nor "
                    "a window without a ring", name);
    /* a ring can do with one of them */
    if (s->T && s->B && !(s->q && s->kv) && !(s->ring && (s->cross ? s->q : s->kv)))
        return fail(c, SRU_EINVAL, "%s: q or kv is NULL; with a ring, kv alone fills it if cross "
                    "is 0, and q alone reads it if cross is 1", name);
    if (!s->B) return SRU_OK;
    if (!s->T) return check_pointers(c, name, {P_IF(s->M, s->dkv)});
    return check_pointers(c, name, {P(s->q), P(s->kv), P(s->alpha), P(s->mask_pad),
                                    P_IF(s->M, s->memory_mask_pad),
                                    P(s->attn_mask), P(s->ring), P(s->o), P(s->a), P(s->stats),
                                    P(s->dout), P(s->dq), P(s->dkv), P(s->dalpha)});
}

enum { SCORES = SRU_CUDA_SCORES/2/4, QUERIES = 128 };   /* SCORES: half, for backward has ds, too */

/* How many queries of each sequence to take at a time, so that their scores stay in L2. All
   sequences are taken together, unless only a few queries would fit, and all keys would be read
   again for every few: then it is QUERIES, of as many sequences as there is room for. */
size_t queries(const sru_attention *s)
{
    const size_t S = keys_of(*s), least = s->T < QUERIES ? s->T : (size_t)QUERIES;
    const size_t all = SCORES/(s->B*S), one = SCORES/S, n = one < least ? one : least;
    const size_t some = all < n ? n : all;
    return some < 1 ? 1 : some < s->T ? some : s->T;
}

size_t sequences(const sru_attention *s)
{
    const size_t n = SCORES/(queries(s)*keys_of(*s));
    return n < 1 ? 1 : n < s->B ? n : s->B;
}

/* How many steps to take at a time through rings, of all sequences and heads. */
size_t ring_steps(const sru_attention *s, size_t most)
{
    const size_t n = SCORES/(s->B*(size_t)s->H*s->window);
    return n < 1 ? 1 : n < most ? n : most;
}

/* Floats for the scores at a time; enough for fewer steps or sequences, too. */
size_t scores_size(const sru_attention *s)
{
    const size_t most = s->ring && s->T > RING_STEPS ? (size_t)RING_STEPS : s->T;
    const size_t one = s->ring ? s->B*(size_t)s->H*s->window : keys_of(*s);
    const size_t all = s->ring ? most*one : s->B*most*one;
    const size_t n = s->ring ? ring_steps(s, most)*one : queries(s)*sequences(s)*one;
    return n == all ? n : SCORES > one ? (size_t)SCORES : one;
}

/* Calls body(k) for each head and block of sequences and queries; k is what these see. */
template <class Body>
sru_status each_block(const sru_context *c, const sru_attention *s, Body body)
{
    const size_t heads = (size_t)s->H, blocks = heads*ceil_div(s->B, sequences(s));
    for (size_t i = 0; i < blocks; i++)
        for (size_t t = 0; t < s->T; t += queries(s)) {
            const size_t b = i/heads*sequences(s), at = s->M + t;
            seen k;
            k.h = i%heads;
            k.b0 = b;
            k.B = s->B - b < sequences(s) ? s->B - b : sequences(s);
            k.t0 = t;
            k.n = s->T - t < queries(s) ? s->T - t : queries(s);
            k.k0 = s->window && at + 1 > s->window ? at + 1 - s->window : 0;
            k.keys = (s->causal || s->window ? at + k.n : keys_of(*s)) - k.k0;
            k.scale = (float)(1/sqrt((double)(s->P/heads)));
            k.keep = 1/(1 - s->dropout);
            k.key = key_of(c, s->id);
            TRY(body(k));
        }
    return SRU_OK;
}

/* A block's part of p (steps,B,P), or of one plane of (steps,B,2,P), from a step on. */
matrix head_of(const sru_attention *s, const float *p, const seen &k, size_t step,
               size_t planes = 1, bool transposed = false)
{
    const size_t wide = planes*s->P;
    return {p + (step*s->B + k.b0)*wide + k.h*(s->P/(size_t)s->H), CUDA_R_32F, s->B*wide,
            transposed, wide};
}

matrix scores_of(const seen &k, const float *p, bool transposed)
{
    return {p, CUDA_R_32F, k.keys, transposed, k.n*k.keys};
}

sru_status attention_forward(const sru_context *ctx, const sru_attention *s)
{
    static const char name[] = "attention_forward";
    if (!s) return fail(ctx, SRU_EINVAL, "%s: the attention is NULL", name);
    TRY(check_attention(ctx, s, name));
    if (!s->T || !s->B) return SRU_OK;
    if (s->q && !s->o) return fail(ctx, SRU_EINVAL, "%s: o must not be NULL", name);
    return run(ctx, name, [=](sru_context *c) -> sru_status {
        const size_t hd = s->P/(size_t)s->H, n = s->T*s->B*s->P;
        float *scores = take<float>(c, scores_size(s));
        float *a = s->a ? s->a : s->o;
        if (!scores) return no_memory(c, name);
        if (c->measure) return SRU_OK;
        if (s->ring) {
            const size_t C = ring_slots(s->window), most = ring_steps(s, RING_STEPS);
            const size_t warps = ceil_div(s->window, 8);        /* each has 8 keys or more */
            const unsigned threads = WARP*(unsigned)(warps < 4 ? 4 : warps < 32 ? warps : 32);
            const size_t fours = ceil_div(2*s->P, 4*WARP);      /* warps: 4 values a thread */
            const unsigned copies = WARP*(unsigned)(fours < 32 ? fours : 32);
            for (size_t t = 0; t < s->T; t += most) {
                const size_t steps = s->T - t < most ? s->T - t : most;
                if (s->q)
                    TRY(launch(c, name, ring_kernel, s->B*(size_t)s->H, steps, threads, *s, C, t,
                               (float)(1/sqrt((double)hd)), scores));
                if (!s->cross)
                    TRY(launch(c, name, ring_advance_kernel, s->B, 1, copies, *s, C, t, steps));
            }
            return SRU_OK;
        }
        TRY(each_block(c, s, [&](const seen &k) -> sru_status {
            TRY(gemm(c, name, scores_of(k, scores, false), head_of(s, s->q, k, k.t0),
                     head_of(s, s->kv, k, k.k0, 2, true), k.n, k.keys, hd, k.scale, 0, k.B));
            TRY(launch(c, name, softmax_kernel, k.B*k.n, 1, ATTEND, *s, k, scores));
            return gemm(c, name, head_of(s, a, k, k.t0), scores_of(k, scores, false),
                        head_of(s, s->kv + s->P, k, k.k0, 2), k.n, hd, k.keys, 1, 0, k.B);
        }));
        if (!s->alpha && a == s->o) return SRU_OK;
        return launch(c, name, attention_output_kernel, ceil_div(n, 256), 1, 256, s->o, s->q, a,
                      s->alpha, n);
    });
}

sru_status attention_backward(const sru_context *ctx, const sru_attention *s)
{
    static const char name[] = "attention_backward";
    if (!s) return fail(ctx, SRU_EINVAL, "%s: the attention is NULL", name);
    TRY(check_attention(ctx, s, name));
    if (!s->T || !s->B)                 /* no query has seen the memory */
        return s->dkv ? copy(ctx, s->dkv, NULL, s->M*s->B*2*s->P*4) : SRU_OK;
    if (s->ring || !s->a || !s->stats || !s->dout || !s->dq || !s->dkv)
        return fail(ctx, SRU_EINVAL, "%s: a, stats, dout, dq and dkv must not be NULL, and there "
                    "is none through a ring", name);
    return run(ctx, name, [=](sru_context *c) -> sru_status {
        const size_t heads = s->B*(size_t)s->H, hd = s->P/(size_t)s->H;
        double *dots = take<double>(c, heads*s->T);
        float *da = take<float>(c, s->T*s->B*s->P);
        float *scores = take<float>(c, scores_size(s)), *ds = take<float>(c, scores_size(s));
        if (!da || !dots || !scores || !ds) return no_memory(c, name);
        if (c->measure) return SRU_OK;
        TRY(launch(c, name, attention_output_backward_kernel, ceil_div(heads*s->T, 4), 1, 4*WARP,
                   *s, da, dots));
        if (s->dalpha)
            TRY(launch(c, name, total_kernel<ADD, float>, 1, 1, 256, s->dalpha, dots, heads*s->T));
        TRY(copy(c, s->dkv, NULL, keys_of(*s)*s->B*2*s->P*4));
        return each_block(c, s, [&](const seen &k) -> sru_status {
            const matrix keys = head_of(s, s->kv, k, k.k0, 2);
            const matrix dkeys = head_of(s, s->dkv, k, k.k0, 2);
            const matrix dvalues = head_of(s, s->dkv + s->P, k, k.k0, 2);
            const matrix q = head_of(s, s->q, k, k.t0), out = head_of(s, da, k, k.t0);
            TRY(gemm(c, name, scores_of(k, scores, false), q,
                     head_of(s, s->kv, k, k.k0, 2, true), k.n, k.keys, hd, k.scale, 0, k.B));
            TRY(gemm(c, name, scores_of(k, ds, false), out,
                     head_of(s, s->kv + s->P, k, k.k0, 2, true), k.n, k.keys, hd, 1, 0, k.B));
            TRY(launch(c, name, softmax_backward_kernel, k.B*k.n, 1, ATTEND, *s, k, scores, ds));
            /* forward: a = w v, scores = scale q k' */
            TRY(gemm(c, name, dvalues, scores_of(k, scores, true), out, k.keys, hd, k.n, 1, 1,
                     k.B));
            TRY(gemm(c, name, dkeys, scores_of(k, ds, true), q, k.keys, hd, k.n, k.scale, 1, k.B));
            return gemm(c, name, head_of(s, s->dq, k, k.t0), scores_of(k, ds, false), keys, k.n,
                        hd, k.keys, k.scale, 1, k.B);
        });
    });
}

/* =================================================================================================
   Operators: rows */

enum { ROWS = 4 };                  /* of a block: one for each warp */

/* As many threads as can keep a row, at most ROW. */
unsigned row_threads(size_t n)
{
    const size_t threads = ceil_div(n, WARP*KEPT)*WARP;
    return (unsigned)(threads < ROW ? threads : (size_t)ROW);
}

sru_status layernorm_forward(const sru_context *ctx, float *y, float *stats, const float *x,
                             const float *gain, const float *bias, size_t rows, size_t n)
{
    static const char name[] = "layernorm_forward";
    if (product({rows, n, 4}) == SIZE_MAX || n > INT_MAX)
        return fail(ctx, SRU_EINVAL, "%s: rows %zu, n %zu are too large", name, rows, n);
    if (!rows || !n) return SRU_OK;
    if (!y || !x || !gain || !bias)
        return fail(ctx, SRU_EINVAL, "%s: y, x, gain, bias must not be NULL", name);
    TRY(check_pointers(ctx, name, {P(y), P(stats), P(x), P(gain), P(bias)}));
    if (ctx->measure) return SRU_OK;
    return launch(ctx, name, layernorm_forward_kernel, rows, 1, row_threads(n), y, stats, x, gain,
                  bias, (unsigned)n);
}

sru_status layernorm_backward(const sru_context *ctx, float *dx, float *dgain, float *dbias,
                              const float *dy, const float *x, const float *gain,
                              const float *stats, float beta, size_t rows, size_t n)
{
    static const char name[] = "layernorm_backward";
    if (beta != 0 && beta != 1) return fail(ctx, SRU_EINVAL, "%s: beta must be 0 or 1", name);
    if (product({rows + 16*PARTS, n, 4}) == SIZE_MAX || n > INT_MAX)
        return fail(ctx, SRU_EINVAL, "%s: rows %zu, n %zu are too large", name, rows, n);
    if (!rows || !n) return SRU_OK;
    if (!dy || !x || !gain || !stats)
        return fail(ctx, SRU_EINVAL, "%s: dy, x, gain, stats must be given", name);
    TRY(check_pointers(ctx, name, {P(dx), P(dgain), P(dbias), P(dy), P(x), P(gain), P(stats)}));
    return run(ctx, name, [=](sru_context *c) -> sru_status {
        const size_t parts = rows < 8*PARTS ? rows : (size_t)8*PARTS;
        float *sums = take<float>(c, parts*2*n);
        if (!sums) return no_memory(c, name);
        if (dgain || dbias) {
            if (!c->measure)
                TRY(launch(c, name, layernorm_sums_kernel, ceil_div(n, 128), parts, 128, sums, dy,
                           x, stats, rows, n));
            TRY(add_columns(c, name, dgain, dbias, n, sums, parts, 2*n));
        }
        if (!dx || c->measure) return SRU_OK;
        return launch(c, name, layernorm_backward_kernel, rows, 1, row_threads(n), dx, dy, x, gain,
                      stats, beta, (unsigned)n);
    });
}

sru_status check_embedding(const sru_context *c, const char *name, const float *y,
                           const int32_t *tokens, const float *table, size_t rows, size_t n,
                           size_t size)
{
    if (product({rows, n, 4}) == SIZE_MAX || product({size, n, 4}) == SIZE_MAX || size > INT_MAX)
        return fail(c, SRU_EINVAL, "%s: rows %zu, n %zu, size %zu are too large", name, rows, n,
                    size);
    if (rows && n && (!y || !tokens || (size && !table)))
        return fail(c, SRU_EINVAL, "%s: no pointer may be NULL", name);
    if (!rows || !n) return SRU_OK;
    return check_pointers(c, name, {P(y), P(tokens), P_IF(size, table)});
}

sru_status embedding_forward(const sru_context *ctx, float *y, const int32_t *tokens,
                             const float *table, size_t rows, size_t n, size_t size)
{
    static const char name[] = "embedding_forward";
    TRY(check_embedding(ctx, name, y, tokens, table, rows, n, size));
    if (!n || ctx->measure) return SRU_OK;
    return launch(ctx, name, embedding_forward_kernel, rows, 1, 128, y, tokens, table, n, size);
}

sru_status embedding_backward(const sru_context *ctx, float *dtable, const float *dy,
                              const int32_t *tokens, size_t rows, size_t n, size_t size)
{
    static const char name[] = "embedding_backward";
    TRY(check_embedding(ctx, name, dy, tokens, dtable, rows, n, size));
    if (!rows || ctx->measure) return SRU_OK;
    return launch(ctx, name, embedding_backward_kernel, size, ceil_div(n, 128*TABLE_COLUMNS), 128,
                  dtable, dy, tokens, rows, n);
}

sru_status dropout(const sru_context *ctx, float *y, const float *x, const float *mask, float p,
                   uint32_t id, float beta, size_t T, size_t n)
{
    static const char name[] = "dropout";
    if (product({T, n, 4}) == SIZE_MAX)
        return fail(ctx, SRU_EINVAL, "%s: T %zu, n %zu are too large", name, T, n);
    if (!mask && !(p >= 0 && p <= 1))
        return fail(ctx, SRU_EINVAL, "%s: the probability must be from 0 to 1", name);
    if (beta != 0 && beta != 1) return fail(ctx, SRU_EINVAL, "%s: beta must be 0 or 1", name);
    if (!T || !n) return SRU_OK;
    if (!y) return fail(ctx, SRU_EINVAL, "%s: y must not be NULL", name);
    TRY(check_pointers(ctx, name, {P(y), P(x), P(mask)}));
    if (ctx->measure) return SRU_OK;
    return launch(ctx, name, dropout_kernel, ceil_div(n, 256), T < 64 ? T : 64, 256, y, x, mask, p,
                  key_of(ctx, id), beta, T, n);
}

/* The loss, like norm's result, may go to the device or to host memory, which is waited for. */
sru_status softmax_loss(const sru_context *ctx, double *loss, float *dy, const float *y,
                        const int32_t *targets, float scale, size_t rows, size_t n)
{
    static const char name[] = "softmax_loss";
    if (product({rows, n, 4}) == SIZE_MAX)
        return fail(ctx, SRU_EINVAL, "%s: rows %zu, n %zu are too large", name, rows, n);
    if (!loss || (rows && (!targets || (n && !y))))
        return fail(ctx, SRU_EINVAL, "%s: loss, y and targets must not be NULL", name);
    if (rows) TRY(check_pointers(ctx, name, {P_IF(n, dy), P_IF(n, y), P(targets)}));
    return run(ctx, name, [=](sru_context *c) -> sru_status {
        double *losses = take<double>(c, rows + 1), *sum = losses + rows;
        if (!losses) return no_memory(c, name);
        if (c->measure) return SRU_OK;
        if (on_device(loss)) sum = loss;
        TRY(launch(c, name, softmax_loss_kernel, ceil_div(rows, ROWS), 1, ROWS*WARP, losses, dy, y,
                   targets, scale, rows, n));
        TRY(launch(c, name, total_kernel<SUM>, 1, 1, 256, sum, losses, rows));
        return deliver(c, name, loss, sum);
    });
}

/* =================================================================================================
   Operators: the optimizer */

sru_status norm(const sru_context *ctx, double *norm, const float *g, size_t n)
{
    static const char name[] = "norm";
    if (!norm || (n && !g)) return fail(ctx, SRU_EINVAL, "%s: norm and g must not be NULL", name);
    if (product({n, 4}) == SIZE_MAX)
        return fail(ctx, SRU_EINVAL, "%s: n %zu is too large", name, n);
    if (n) TRY(check_pointers(ctx, name, {P(g)}));
    return run(ctx, name, [=](sru_context *c) -> sru_status {
        const size_t parts = n < 256*256 ? ceil_div(n, 256) : 256;
        double *sums = take<double>(c, parts + 1), *sum = sums + parts;
        if (!sums) return no_memory(c, name);
        if (c->measure) return SRU_OK;
        if (on_device(norm)) sum = norm;
        TRY(launch(c, name, total_kernel<SQUARES, double, float>, parts, 1, 256, sums, g, n));
        TRY(launch(c, name, total_kernel<ROOT>, 1, 1, 256, sum, sums, parts));
        return deliver(c, name, norm, sum);
    });
}

sru_status adamw(const sru_context *ctx, float *p, float *m, float *v, float *g, float scale,
                 float lr, float beta1, float beta2, float eps, float decay, uint64_t t, size_t n)
{
    static const char name[] = "adamw";
    adamw_factors s;
    if (n && (!p || !m || !v || !g))
        return fail(ctx, SRU_EINVAL, "%s: no pointer may be NULL", name);
    if (product({n, 4}) == SIZE_MAX)
        return fail(ctx, SRU_EINVAL, "%s: n %zu is too large", name, n);
    if (!t || !(beta1 >= 0 && beta1 < 1) || !(beta2 >= 0 && beta2 < 1))
        return fail(ctx, SRU_EINVAL, "%s: t must be at least 1, betas from 0 to below 1", name);
    if (ctx->measure) return SRU_OK;
    if (n) TRY(check_pointers(ctx, name, {P(p), P(m), P(v), P(g)}));
    s.scale = scale;
    s.step1 = 1 - beta1;
    s.step2 = 1 - beta2;
    s.eps = eps;
    s.rate = (float)(lr/(1 - pow(beta1, (double)t)));
    s.shrink = 1 - lr*decay;
    s.root_unbias2 = (float)sqrt(1/(1 - pow(beta2, (double)t)));
    return launch(ctx, name, adamw_kernel, ceil_div(n, 256), 1, 256, p, m, v, g, s, n);
}

/* =================================================================================================
   The table */

const sru_backend table = {
    "cuda", 4096, NULL, alloc, release, copy, pack, linear_forward, linear_backward, scan_forward,
    scan_backward, attention_forward, attention_backward, layernorm_forward, layernorm_backward,
    embedding_forward, embedding_backward, dropout, softmax_loss, norm, adamw
};

} /* namespace */

const sru_backend *sru_cuda_open(void *stream, sru_cuda_math math, char *error)
{
    device *d = new (std::nothrow) device();
    sru_context c;
    int major = 0, minor = 0, reads = 0, count = 0, shared = 0;
    memset(&c, 0, sizeof c);
    c.error = error;
    if (!d) return fail(&c, SRU_ENOMEM, "sru_cuda_open: there is no memory"), nullptr;
    d->op = table;
    d->op.kernels = d;
    d->stream = (cudaStream_t)stream;
    d->math = math;
    auto open = [&]() -> sru_status {
        TRY(check(&c, "sru_cuda_open", cudaGetDevice(&d->number)));
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, d->number);
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, d->number);
        cudaDeviceGetAttribute(&reads, cudaDevAttrPageableMemoryAccess, d->number);
        cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, d->number);
        cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor, d->number);
        d->multiprocessors = (size_t)count;
        d->room = (size_t)shared/(49 << 10);    /* CUDA takes 1 KB more for each block */
        d->reads_host = reads != 0;
        if (10*major + minor < 75)
            return fail(&c, SRU_EDEVICE, "sru_cuda_open: the GPU's compute capability is %d.%d, "
                        "and 7.5 is needed", major, minor);
        TRY(check(&c, "sru_cuda_open", cudaMalloc(&d->workspace, WORKSPACE)));
        if (cublasCreate(&d->blas) != CUBLAS_STATUS_SUCCESS) {
            d->blas = NULL;
            return fail(&c, SRU_EDEVICE, "sru_cuda_open: cuBLAS does not start");
        }
        if (cublasSetStream(d->blas, d->stream) != CUBLAS_STATUS_SUCCESS
            || cublasSetWorkspace(d->blas, d->workspace, WORKSPACE) != CUBLAS_STATUS_SUCCESS
            || cublasSetMathMode(d->blas, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)
               != CUBLAS_STATUS_SUCCESS)    /* so parts of a sum over k are float32, too */
            return fail(&c, SRU_EDEVICE, "sru_cuda_open: cuBLAS takes no stream or workspace");
        return SRU_OK;
    };
    if (!open()) return &d->op;
    sru_cuda_close(&d->op);
    return NULL;
}

void sru_cuda_close(const sru_backend *op)
{
    const device *d = op ? (const device *)op->kernels : NULL;
    if (!d) return;
    if (d->blas) cublasDestroy(d->blas);
    cudaFree(d->workspace);
    delete d;
}
