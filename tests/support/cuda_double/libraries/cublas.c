/* libcublas.so.13: matrix products leave a line in the log, and change nothing. */

#include <stdlib.h>

#include "core.h"

typedef struct {
    void *stream;
    int math_mode;
} Handle;

enum { SUCCESS = 0, NOT_INITIALIZED = 1, EXECUTION_FAILED = 13 }; /* of cublasStatus_t */

static int launch(Handle *handle, bool is_product) {
    int device;
    bool captured;
    cudaError_t error = core_begin_launch(handle->stream, &device, &captured);
    if (is_product)
        core_log("product", "device=%d", device);
    return error == cudaSuccess ? SUCCESS : EXECUTION_FAILED;
}

int cublasCreate_v2(Handle **handle) {
    if (core_enter() != cudaSuccess)
        return NOT_INITIALIZED;
    *handle = calloc(1, sizeof **handle);
    return SUCCESS;
}

int cublasDestroy_v2(Handle *handle) {
    free(handle);
    return SUCCESS;
}

int cublasGetMathMode(const Handle *handle, int *mode) {
    *mode = handle->math_mode;
    return SUCCESS;
}

int cublasSetMathMode(Handle *handle, int mode) {
    handle->math_mode = mode;
    return SUCCESS;
}

int cublasSetStream_v2(Handle *handle, void *stream) {
    handle->stream = stream;
    return SUCCESS;
}

const char *cublasGetStatusName(int status) {
    switch (status) {
        case SUCCESS: return "CUBLAS_STATUS_SUCCESS";
        case NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
        case EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
        default: return "CUBLAS_STATUS_UNKNOWN";
    }
}

const char *cublasGetStatusString(int status) {
    switch (status) {
        case SUCCESS: return "success";
        case NOT_INITIALIZED: return "the library was not initialized";
        case EXECUTION_FAILED: return "the function failed to launch on the GPU";
        default: return "an unknown error occurred";
    }
}

/* A caller in C may pass more arguments than are declared. */
#define PRODUCT(name) \
    int name(Handle *handle) { return launch(handle, true); }
PRODUCT(cublasGemmEx)
PRODUCT(cublasGemmStridedBatchedEx)
PRODUCT(cublasGemmBatchedEx)
PRODUCT(cublasSgemm_v2)
PRODUCT(cublasDgemm_v2)
PRODUCT(cublasSgemmBatched)
PRODUCT(cublasDgemmBatched)
PRODUCT(cublasSgemmStridedBatched)
PRODUCT(cublasDgemmStridedBatched)

#define OTHER_CALL(name) \
    int name(Handle *handle) { return launch(handle, false); }
OTHER_CALL(cublasSgeam)
OTHER_CALL(cublasDgeam)
OTHER_CALL(cublasScopy_v2)
OTHER_CALL(cublasSscal_v2)
OTHER_CALL(cublasSgetrfBatched)
OTHER_CALL(cublasDgetrfBatched)
OTHER_CALL(cublasSgetriBatched)
OTHER_CALL(cublasDgetriBatched)
