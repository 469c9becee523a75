/* libcudnn.so.9: calls change nothing. Descriptors hold nothing. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum {
    CUDNN_STATUS_SUCCESS = 0,
    CUDNN_STATUS_NOT_INITIALIZED = 1001,
    CUDNN_STATUS_EXECUTION_FAILED_CUDART = 5003,
};

enum { CUDNN_VERSION = 91400, CUDART_VERSION = 13000, MAX_DIMENSIONS = 8, TYPE_INT64 = 3, TYPE_DESCRIPTOR = 15 };

typedef struct {
    void *stream;
} Handle;

typedef struct {
    int type, dimensions, sizes[MAX_DIMENSIONS], strides[MAX_DIMENSIONS];
} Tensor;

static int compute(const Handle *handle) {
    int device;
    bool captured;
    cudaError_t error = core_begin_launch(handle->stream, &device, &captured);
    return error == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED_CUDART;
}

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }

const char *cudnnGetErrorString(int status) {
    switch (status) {
        case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
        case CUDNN_STATUS_NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
        case CUDNN_STATUS_EXECUTION_FAILED_CUDART: return "CUDNN_STATUS_EXECUTION_FAILED_CUDART";
        default: return "CUDNN_UNKNOWN_STATUS";
    }
}

void cudnnGetLastErrorString(char *message, size_t size) { snprintf(message, size, "none"); }

int cudnnCreate(Handle **handle) {
    if (core_enter() != cudaSuccess)
        return CUDNN_STATUS_NOT_INITIALIZED;
    *handle = calloc(1, sizeof **handle);
    return CUDNN_STATUS_SUCCESS;
}

int cudnnDestroy(Handle *handle) {
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

int cudnnSetStream(Handle *handle, void *stream) {
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

int cudnnGetStream(const Handle *handle, void **stream) {
    *stream = handle->stream;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- descriptors ---- */

int cudnnSetTensorNdDescriptor(Tensor *tensor, int type, int dimensions, const int *sizes, const int *strides) {
    tensor->type = type;
    tensor->dimensions = dimensions < MAX_DIMENSIONS ? dimensions : MAX_DIMENSIONS;
    memcpy(tensor->sizes, sizes, tensor->dimensions * sizeof *sizes);
    memcpy(tensor->strides, strides, tensor->dimensions * sizeof *strides);
    return CUDNN_STATUS_SUCCESS;
}

int cudnnGetTensorNdDescriptor(const Tensor *tensor, int requested, int *type, int *dimensions, int *sizes,
                               int *strides) {
    int count = requested < tensor->dimensions ? requested : tensor->dimensions;
    *type = tensor->type;
    *dimensions = tensor->dimensions;
    memcpy(sizes, tensor->sizes, count * sizeof *sizes);
    memcpy(strides, tensor->strides, count * sizeof *strides);
    return CUDNN_STATUS_SUCCESS;
}

/* Every descriptor has room for a Tensor. */
#define DESCRIPTOR(kind)                                     \
    int cudnnCreate##kind##Descriptor(void **descriptor) {   \
        *descriptor = calloc(1, sizeof(Tensor));             \
        return CUDNN_STATUS_SUCCESS;                         \
    }                                                        \
    int cudnnDestroy##kind##Descriptor(void *descriptor) {   \
        free(descriptor);                                    \
        return CUDNN_STATUS_SUCCESS;                         \
    }
DESCRIPTOR(Activation)
DESCRIPTOR(Convolution)
DESCRIPTOR(Dropout)
DESCRIPTOR(Filter)
DESCRIPTOR(LRN)
DESCRIPTOR(Pooling)
DESCRIPTOR(ReduceTensor)
DESCRIPTOR(RNN)
DESCRIPTOR(RNNData)
DESCRIPTOR(Tensor)

/* A caller in C may pass more arguments than are declared. */
#define IGNORED_CALL(name) \
    int name(void) { return CUDNN_STATUS_SUCCESS; }
IGNORED_CALL(cudnnDeriveBNTensorDescriptor)
IGNORED_CALL(cudnnGetRNNWeightParams)
IGNORED_CALL(cudnnSetActivationDescriptor)
IGNORED_CALL(cudnnSetConvolutionGroupCount)
IGNORED_CALL(cudnnSetConvolutionMathType)
IGNORED_CALL(cudnnSetConvolutionNdDescriptor)
IGNORED_CALL(cudnnSetDropoutDescriptor)
IGNORED_CALL(cudnnSetFilterNdDescriptor)
IGNORED_CALL(cudnnSetLRNDescriptor)
IGNORED_CALL(cudnnSetPoolingNdDescriptor)
IGNORED_CALL(cudnnSetRNNDataDescriptor)
IGNORED_CALL(cudnnSetRNNDescriptor_v8)
IGNORED_CALL(cudnnSetReduceTensorDescriptor)

/* ---- sizes of workspaces: none is needed ---- */

static int no_bytes(size_t *bytes) {
    *bytes = 0;
    return CUDNN_STATUS_SUCCESS;
}

int cudnnDropoutGetStatesSize(Handle *handle, size_t *bytes) {
    (void)handle;
    return no_bytes(bytes);
}

int cudnnGetReductionIndicesSize(Handle *handle, void *reduction, void *a, void *c, size_t *bytes) {
    (void)handle, (void)reduction, (void)a, (void)c;
    return no_bytes(bytes);
}

int cudnnGetReductionWorkspaceSize(Handle *handle, void *reduction, void *a, void *c, size_t *bytes) {
    (void)handle, (void)reduction, (void)a, (void)c;
    return no_bytes(bytes);
}

int cudnnGetConvolutionForwardWorkspaceSize(Handle *handle, void *x, void *w, void *convolution, void *y, int algorithm,
                                            size_t *bytes) {
    (void)handle, (void)x, (void)w, (void)convolution, (void)y, (void)algorithm;
    return no_bytes(bytes);
}

int cudnnGetRNNTempSpaceSizes(Handle *handle, void *rnn, int mode, void *x, size_t *workspace, size_t *reserve) {
    (void)handle, (void)rnn, (void)mode, (void)x;
    *reserve = 0;
    return no_bytes(workspace);
}

/* cudnnConvolutionFwdAlgoPerf_t */
typedef struct {
    int algorithm, status;
    float milliseconds;
    size_t workspace;
    int unused[5];
} ConvolutionAlgorithm;

static int one_algorithm(int *returned, ConvolutionAlgorithm *algorithms) {
    *returned = 1;
    memset(algorithms, 0, sizeof *algorithms);
    return CUDNN_STATUS_SUCCESS;
}

int cudnnGetConvolutionForwardAlgorithm_v7(Handle *handle, void *x, void *w, void *convolution, void *y, int requested,
                                           int *returned, ConvolutionAlgorithm *algorithms) {
    (void)handle, (void)x, (void)w, (void)convolution, (void)y, (void)requested;
    return one_algorithm(returned, algorithms);
}

int cudnnFindConvolutionForwardAlgorithmEx(Handle *handle, void *x_tensor, void *x, void *w_filter, void *w,
                                           void *convolution, void *y_tensor, void *y, int requested, int *returned,
                                           ConvolutionAlgorithm *algorithms, void *workspace, size_t bytes) {
    (void)handle, (void)x_tensor, (void)x, (void)w_filter, (void)w, (void)convolution, (void)y_tensor, (void)y;
    (void)requested, (void)workspace, (void)bytes;
    return one_algorithm(returned, algorithms);
}

/* ---- calls that compute ---- */

#define COMPUTING_CALL(name) \
    int name(Handle *handle) { return compute(handle); }
COMPUTING_CALL(cudnnActivationForward)
COMPUTING_CALL(cudnnAddTensor)
COMPUTING_CALL(cudnnBackendExecute)
COMPUTING_CALL(cudnnBatchNormalizationForwardInference)
COMPUTING_CALL(cudnnBatchNormalizationForwardTraining)
COMPUTING_CALL(cudnnConvolutionBiasActivationForward)
COMPUTING_CALL(cudnnConvolutionForward)
COMPUTING_CALL(cudnnLRNCrossChannelForward)
COMPUTING_CALL(cudnnPoolingForward)
COMPUTING_CALL(cudnnRNNForward)
COMPUTING_CALL(cudnnReduceTensor)
COMPUTING_CALL(cudnnSoftmaxForward)

/* ---- the backend that plans graphs of operations: each graph has one plan, without a workspace ---- */

int cudnnBackendCreateDescriptor(int type, void **descriptor) {
    (void)type;
    *descriptor = calloc(1, sizeof(Tensor));
    return CUDNN_STATUS_SUCCESS;
}

int cudnnBackendDestroyDescriptor(void *descriptor) {
    free(descriptor);
    return CUDNN_STATUS_SUCCESS;
}

IGNORED_CALL(cudnnBackendFinalize)
IGNORED_CALL(cudnnBackendSetAttribute)

/* One descriptor or one number, which is 0; no element of other types, such as the notes on an engine. */
int cudnnBackendGetAttribute(void *descriptor, int attribute, int type, int64_t requested, int64_t *count,
                             void *elements) {
    (void)descriptor, (void)attribute;
    bool one = type == TYPE_INT64 || type == TYPE_DESCRIPTOR;
    if (count != NULL)
        *count = one;
    if (type == TYPE_INT64 && requested > 0 && elements != NULL)
        *(int64_t *)elements = 0;
    return CUDNN_STATUS_SUCCESS;
}
