/* cuBLAS in the stand-in for the CUDA Toolkit: see cuda_runtime.h. Sums are taken in double. */
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"

enum cublasStatus_t {
    CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_ALLOC_FAILED = 3, CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_NOT_SUPPORTED = 15
};
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cudaDataType { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_FAST_TF32 = 77 };
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT = -1 };

struct standin_cublas { cudaStream_t stream; };
typedef standin_cublas *cublasHandle_t;

inline const char *cublasGetStatusString(cublasStatus_t e)
{
    return e == CUBLAS_STATUS_INVALID_VALUE ? "invalid value" : e ? "not supported" : "success";
}
inline cublasStatus_t cublasCreate(cublasHandle_t *h)
{
    *h = new standin_cublas{nullptr};
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasDestroy(cublasHandle_t h) { delete h; return CUBLAS_STATUS_SUCCESS; }
inline cublasStatus_t cublasSetWorkspace(cublasHandle_t, void *, size_t)
{
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetStream(cublasHandle_t h, cudaStream_t s)
{
    h->stream = s;
    return CUBLAS_STATUS_SUCCESS;
}

enum cublasMath_t { CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16 };
inline cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

namespace standin {

inline double element(const void *p, cudaDataType type, long long i, bool tf32)
{
    float x = type == CUDA_R_16BF ? __bfloat162float(((const __nv_bfloat16 *)p)[i])
            : type == CUDA_R_16F ? __half2float(((const __half *)p)[i]) : ((const float *)p)[i];
    uint32_t bits;
    if (!tf32) return x;
    memcpy(&bits, &x, 4);
    bits = (bits + 0x1000) & ~0x1fffu;              /* 10 bits of fraction */
    memcpy(&x, &bits, 4);
    return x;
}

inline void put(void *p, cudaDataType type, long long i, float x)
{
    if (type == CUDA_R_16BF) ((__nv_bfloat16 *)p)[i] = __float2bfloat16(x);
    else if (type == CUDA_R_16F) ((__half *)p)[i] = __float2half(x);
    else ((float *)p)[i] = x;
}

} /* namespace standin */

inline cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta,
    cublasOperation_t tb, int m, int n, int k, const void *alpha, const void *A, cudaDataType at,
    int lda, long long sa, const void *B, cudaDataType bt, int ldb, long long sb, const void *beta,
    void *C, cudaDataType ct, int ldc, long long sc, int batch, cublasComputeType_t compute,
    cublasGemmAlgo_t)
{
    const float scale = *(const float *)alpha, keep = *(const float *)beta;
    const bool tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    if (m < 0 || n < 0 || k < 0 || batch < 0 || lda < std::max(1, ta == CUBLAS_OP_N ? m : k)
        || ldb < std::max(1, tb == CUBLAS_OP_N ? k : n) || ldc < std::max(1, m))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (at != bt || (at == CUDA_R_32F && ct != CUDA_R_32F) || (ct != at && ct != CUDA_R_32F))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    standin::push(h->stream, [=] {
        for (long long z = 0; z < batch; z++)
            for (long long j = 0; j < n; j++)
                for (long long i = 0; i < m; i++) {
                    const long long to = z*sc + i + j*ldc;
                    double sum = 0;
                    for (long long q = 0; q < k; q++) {
                        const long long a = ta == CUBLAS_OP_N ? i + q*lda : q + i*lda;
                        const long long b = tb == CUBLAS_OP_N ? q + j*ldb : j + q*ldb;
                        sum += standin::element(A, at, z*sa + a, tf32)
                             * standin::element(B, bt, z*sb + b, tf32);
                    }
                    sum *= scale;
                    if (keep != 0) sum += keep*standin::element(C, ct, to, false);
                    standin::put(C, ct, to, (float)sum);
                }
    });
    return CUBLAS_STATUS_SUCCESS;
}
