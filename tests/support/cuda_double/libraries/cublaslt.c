/* libcublasLt.so.13: matrix products leave a line in the log, and change nothing. */

#include <stdlib.h>
#include <string.h>

#include "blas_types.h"
#include "core.h"

/* The attributes that the log needs, of cublasLtMatmulDescAttributes_t and cublasLtMatrixLayoutAttribute_t. */
enum { PRODUCT_A_ORDER = 3, PRODUCT_B_ORDER = 4, LAYOUT_BATCH = 5 };

typedef struct {
    int type;
    uint64_t rows, columns;
    int batch;
} Layout;

typedef struct {
    int compute_type;
    int a_order; /* cublasOperation_t: 0 for a matrix that is not transposed */
    int b_order;
} Product;

/* cublasLtMatmulHeuristicResult_t: a product that needs no workspace and works. */
typedef struct {
    uint64_t algorithm[8];
    size_t workspace;
    int status;
    float waves;
    int unused[4];
} Heuristic;

static int create(void **descriptor) {
    *descriptor = calloc(1, 64);
    return CUBLAS_STATUS_SUCCESS;
}

static int destroy(void *descriptor) {
    free(descriptor);
    return CUBLAS_STATUS_SUCCESS;
}

int cublasLtCreate(void **handle) { return create(handle); }
int cublasLtDestroy(void *handle) { return destroy(handle); }
int cublasLtMatmulPreferenceCreate(void **preference) { return create(preference); }
int cublasLtMatmulPreferenceDestroy(void *preference) { return destroy(preference); }
int cublasLtMatmulPreferenceSetAttribute(void) { return CUBLAS_STATUS_SUCCESS; }
int cublasLtMatmulAlgoInit(void) { return CUBLAS_STATUS_SUCCESS; }
int cublasLtMatmulAlgoConfigSetAttribute(void) { return CUBLAS_STATUS_SUCCESS; }
int cublasLtMatrixTransformDescCreate(void **descriptor) { return create(descriptor); }
int cublasLtMatrixTransformDescDestroy(void *descriptor) { return destroy(descriptor); }

int cublasLtMatmulDescCreate(Product **product, int compute_type) {
    *product = calloc(1, sizeof **product);
    (*product)->compute_type = compute_type;
    return CUBLAS_STATUS_SUCCESS;
}

int cublasLtMatmulDescDestroy(Product *product) { return destroy(product); }

int cublasLtMatmulDescSetAttribute(Product *product, int attribute, const void *value, size_t size) {
    if (attribute == PRODUCT_A_ORDER)
        memcpy(&product->a_order, value, size);
    if (attribute == PRODUCT_B_ORDER)
        memcpy(&product->b_order, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

int cublasLtMatrixLayoutCreate(Layout **layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    (void)leading;
    *layout = malloc(sizeof **layout);
    **layout = (Layout){.type = type, .rows = rows, .columns = columns, .batch = 1};
    return CUBLAS_STATUS_SUCCESS;
}

int cublasLtMatrixLayoutDestroy(Layout *layout) { return destroy(layout); }

int cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *value, size_t size) {
    if (attribute == LAYOUT_BATCH)
        memcpy(&layout->batch, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, const Product *product, const Layout *a, const Layout *b,
                                   const Layout *c, const Layout *d, void *preference, int requested,
                                   Heuristic *heuristics, int *returned) {
    (void)handle, (void)product, (void)a, (void)b, (void)c, (void)d, (void)preference;
    *returned = requested > 0;
    if (requested > 0)
        memset(heuristics, 0, sizeof *heuristics);
    return CUBLAS_STATUS_SUCCESS;
}

int cublasLtMatmul(void *handle, const Product *product, const void *alpha, const void *a, const Layout *a_layout,
                   const void *b, const Layout *b_layout, const void *beta, const void *c, const Layout *c_layout,
                   void *d, const Layout *d_layout, const void *algorithm, void *workspace, size_t workspace_bytes,
                   void *stream) {
    (void)handle, (void)alpha, (void)a, (void)b, (void)beta, (void)c, (void)c_layout, (void)d, (void)algorithm;
    (void)workspace, (void)workspace_bytes;
    int device;
    bool captured;
    cudaError_t error = core_begin_launch(stream, &device, &captured);
    unsigned long k = product->a_order == 0 ? a_layout->columns : a_layout->rows;
    core_log("product",
             "device=%d call=cublasLtMatmul m=%lu n=%lu k=%lu batch=%d a=%s b=%s c=%s compute=%s math_mode=0 stream=%p "
             "captured=%d error=%d",
             device, d_layout->rows, d_layout->columns, k, d_layout->batch, type_name(a_layout->type),
             type_name(b_layout->type), type_name(d_layout->type), compute_name(product->compute_type), stream,
             captured, error);
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

int cublasLtMatrixTransform(void *handle, const void *transform, const void *alpha, const void *a,
                            const Layout *a_layout, const void *beta, const void *b, const Layout *b_layout, void *c,
                            const Layout *c_layout, void *stream) {
    (void)handle, (void)transform, (void)alpha, (void)a, (void)a_layout, (void)beta, (void)b, (void)b_layout, (void)c;
    (void)c_layout;
    int device;
    bool captured;
    cudaError_t error = core_begin_launch(stream, &device, &captured);
    core_log("call", "device=%d name=cublasLtMatrixTransform stream=%p captured=%d error=%d", device, stream, captured,
             error);
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
