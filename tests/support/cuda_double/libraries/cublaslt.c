/* libcublasLt.so.13: matrix products leave a line in the log, and change nothing. Descriptors hold nothing. */

#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { SUCCESS = 0, EXECUTION_FAILED = 13 }; /* of cublasStatus_t */

/* cublasLtMatmulHeuristicResult_t: a product that needs no workspace and works. */
typedef struct {
    uint64_t algorithm[8];
    size_t workspace;
    int status;
    float waves;
    int unused[4];
} Heuristic;

/* A caller in C may pass more arguments than are declared. */
#define CREATE(name)                    \
    int name(void **descriptor) {       \
        *descriptor = calloc(1, 64);    \
        return SUCCESS;                 \
    }
#define DESTROY(name)                   \
    int name(void *descriptor) {        \
        free(descriptor);               \
        return SUCCESS;                 \
    }
#define IGNORED_CALL(name) \
    int name(void) { return SUCCESS; }
CREATE(cublasLtCreate)
DESTROY(cublasLtDestroy)
CREATE(cublasLtMatmulPreferenceCreate)
DESTROY(cublasLtMatmulPreferenceDestroy)
CREATE(cublasLtMatrixTransformDescCreate)
DESTROY(cublasLtMatrixTransformDescDestroy)
CREATE(cublasLtMatmulDescCreate)
DESTROY(cublasLtMatmulDescDestroy)
CREATE(cublasLtMatrixLayoutCreate)
DESTROY(cublasLtMatrixLayoutDestroy)
IGNORED_CALL(cublasLtMatmulPreferenceSetAttribute)
IGNORED_CALL(cublasLtMatmulAlgoInit)
IGNORED_CALL(cublasLtMatmulAlgoConfigSetAttribute)
IGNORED_CALL(cublasLtMatmulDescSetAttribute)
IGNORED_CALL(cublasLtMatrixLayoutSetAttribute)

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *product, void *a, void *b, void *c, void *d, void *preference,
                                   int requested, Heuristic *heuristics, int *returned) {
    (void)handle, (void)product, (void)a, (void)b, (void)c, (void)d, (void)preference;
    *returned = requested > 0;
    if (requested > 0)
        memset(heuristics, 0, sizeof *heuristics);
    return SUCCESS;
}

int cublasLtMatmul(void *handle, void *product, void *alpha, void *a, void *a_layout, void *b, void *b_layout,
                   void *beta, void *c, void *c_layout, void *d, void *d_layout, void *algorithm, void *workspace,
                   size_t workspace_bytes, void *stream) {
    (void)handle, (void)product, (void)alpha, (void)a, (void)a_layout, (void)b, (void)b_layout, (void)beta, (void)c;
    (void)c_layout, (void)d, (void)d_layout, (void)algorithm, (void)workspace, (void)workspace_bytes;
    int device;
    bool captured;
    cudaError_t error = core_begin_launch(stream, &device, &captured);
    core_log("product", "device=%d", device);
    return error == cudaSuccess ? SUCCESS : EXECUTION_FAILED;
}

int cublasLtMatrixTransform(void *handle, void *transform, void *alpha, void *a, void *a_layout, void *beta, void *b,
                            void *b_layout, void *c, void *c_layout, void *stream) {
    (void)handle, (void)transform, (void)alpha, (void)a, (void)a_layout, (void)beta, (void)b, (void)b_layout, (void)c;
    (void)c_layout;
    int device;
    bool captured;
    return core_begin_launch(stream, &device, &captured) == cudaSuccess ? SUCCESS : EXECUTION_FAILED;
}
