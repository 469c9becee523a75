/* libcublas.so.13: matrix products leave a line in the log, and change nothing. */

#include <stdlib.h>

#include "blas_types.h"
#include "core.h"

typedef struct {
    void *stream;
    int math_mode;
} Handle;

enum { COMPUTE_FLOAT32 = 68, COMPUTE_FLOAT64 = 70 };

static int status_of(cudaError_t error) {
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

static int multiply(Handle *handle, const char *call, int m, int n, int k, int batch, int a_type, int b_type,
                    int c_type, int compute_type) {
    int device;
    bool captured;
    cudaError_t error = core_begin_launch(handle->stream, &device, &captured);
    core_log("product",
             "device=%d call=%s m=%d n=%d k=%d batch=%d a=%s b=%s c=%s compute=%s math_mode=%d stream=%p captured=%d "
             "error=%d",
             device, call, m, n, k, batch, type_name(a_type), type_name(b_type), type_name(c_type),
             compute_name(compute_type), handle->math_mode, handle->stream, captured, error);
    return status_of(error);
}

/* Log a call that is not a matrix product. */
static int other_call(Handle *handle, const char *call) {
    int device;
    bool captured;
    cudaError_t error = core_begin_launch(handle->stream, &device, &captured);
    core_log("call", "device=%d name=%s stream=%p captured=%d error=%d", device, call, handle->stream, captured, error);
    return status_of(error);
}

int cublasCreate_v2(Handle **handle) {
    cudaError_t error = core_enter();
    if (error != cudaSuccess)
        return 1; /* CUBLAS_STATUS_NOT_INITIALIZED */
    *handle = calloc(1, sizeof **handle);
    return CUBLAS_STATUS_SUCCESS;
}

int cublasDestroy_v2(Handle *handle) {
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

int cublasGetMathMode(const Handle *handle, int *mode) {
    *mode = handle->math_mode;
    return CUBLAS_STATUS_SUCCESS;
}

int cublasSetMathMode(Handle *handle, int mode) {
    handle->math_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

int cublasSetStream_v2(Handle *handle, void *stream) {
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusName(int status) {
    switch (status) {
        case 0: return "CUBLAS_STATUS_SUCCESS";
        case 1: return "CUBLAS_STATUS_NOT_INITIALIZED";
        case 13: return "CUBLAS_STATUS_EXECUTION_FAILED";
        default: return "CUBLAS_STATUS_UNKNOWN";
    }
}

const char *cublasGetStatusString(int status) {
    switch (status) {
        case 0: return "success";
        case 1: return "the library was not initialized";
        case 13: return "the function failed to launch on the GPU";
        default: return "an unknown error occurred";
    }
}

/* `a_order` and `b_order` are cublasOperation_t: m, n and k are those of the product whatever the order. */
#define OPERANDS Handle *handle, int a_order, int b_order, int m, int n, int k, const void *alpha
#define IGNORE_OPERANDS (void)a_order, (void)b_order, (void)alpha, (void)a, (void)b, (void)beta, (void)c, (void)a_row, \
                        (void)b_row, (void)c_row

int cublasGemmEx(OPERANDS, const void *a, int a_type, int a_row, const void *b, int b_type, int b_row,
                 const void *beta, void *c, int c_type, int c_row, int compute_type, int algorithm) {
    IGNORE_OPERANDS, (void)algorithm;
    return multiply(handle, "cublasGemmEx", m, n, k, 1, a_type, b_type, c_type, compute_type);
}

int cublasGemmStridedBatchedEx(OPERANDS, const void *a, int a_type, int a_row, long long a_stride, const void *b,
                               int b_type, int b_row, long long b_stride, const void *beta, void *c, int c_type,
                               int c_row, long long c_stride, int batch, int compute_type, int algorithm) {
    IGNORE_OPERANDS, (void)a_stride, (void)b_stride, (void)c_stride, (void)algorithm;
    return multiply(handle, "cublasGemmStridedBatchedEx", m, n, k, batch, a_type, b_type, c_type, compute_type);
}

int cublasGemmBatchedEx(OPERANDS, const void *a, int a_type, int a_row, const void *b, int b_type, int b_row,
                        const void *beta, void *c, int c_type, int c_row, int batch, int compute_type, int algorithm) {
    IGNORE_OPERANDS, (void)algorithm;
    return multiply(handle, "cublasGemmBatchedEx", m, n, k, batch, a_type, b_type, c_type, compute_type);
}

#define SINGLE_PRODUCT(name, type, compute)                                                                       \
    int name(OPERANDS, const void *a, int a_row, const void *b, int b_row, const void *beta, void *c, int c_row) { \
        IGNORE_OPERANDS;                                                                                           \
        return multiply(handle, #name, m, n, k, 1, type, type, type, compute);                                     \
    }
SINGLE_PRODUCT(cublasSgemm_v2, TYPE_FLOAT32, COMPUTE_FLOAT32)
SINGLE_PRODUCT(cublasDgemm_v2, TYPE_FLOAT64, COMPUTE_FLOAT64)

#define BATCHED_PRODUCT(name, type, compute)                                                                       \
    int name(OPERANDS, const void *a, int a_row, const void *b, int b_row, const void *beta, void *c, int c_row, \
             int batch) {                                                                                        \
        IGNORE_OPERANDS;                                                                                           \
        return multiply(handle, #name, m, n, k, batch, type, type, type, compute);                                 \
    }
BATCHED_PRODUCT(cublasSgemmBatched, TYPE_FLOAT32, COMPUTE_FLOAT32)
BATCHED_PRODUCT(cublasDgemmBatched, TYPE_FLOAT64, COMPUTE_FLOAT64)

#define STRIDED_PRODUCT(name, type, compute)                                                                       \
    int name(OPERANDS, const void *a, int a_row, long long a_stride, const void *b, int b_row, long long b_stride, \
             const void *beta, void *c, int c_row, long long c_stride, int batch) {                                \
        IGNORE_OPERANDS, (void)a_stride, (void)b_stride, (void)c_stride;                                           \
        return multiply(handle, #name, m, n, k, batch, type, type, type, compute);                                 \
    }
STRIDED_PRODUCT(cublasSgemmStridedBatched, TYPE_FLOAT32, COMPUTE_FLOAT32)
STRIDED_PRODUCT(cublasDgemmStridedBatched, TYPE_FLOAT64, COMPUTE_FLOAT64)

/* Functions whose other arguments the log does not show: a caller in C may pass more arguments than are declared. */
#define OTHER_CALL(name) \
    int name(Handle *handle) { return other_call(handle, #name); }
OTHER_CALL(cublasSgeam)
OTHER_CALL(cublasDgeam)
OTHER_CALL(cublasScopy_v2)
OTHER_CALL(cublasSscal_v2)
OTHER_CALL(cublasSgetrfBatched)
OTHER_CALL(cublasDgetrfBatched)
OTHER_CALL(cublasSgetriBatched)
OTHER_CALL(cublasDgetriBatched)
