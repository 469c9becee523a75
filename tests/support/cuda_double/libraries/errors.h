/* CUDA's error codes that the double returns, with CUDA's own names and texts. */

#ifndef CUDA_DOUBLE_ERRORS_H
#define CUDA_DOUBLE_ERRORS_H

#define CUDA_ERRORS(X)                                                                                  \
    X(0, cudaSuccess, "no error")                                                                       \
    X(1, cudaErrorInvalidValue, "invalid argument")                                                     \
    X(2, cudaErrorMemoryAllocation, "out of memory")                                                    \
    X(9, cudaErrorInvalidConfiguration, "invalid configuration argument")                               \
    X(100, cudaErrorNoDevice, "no CUDA-capable device is detected")                                     \
    X(101, cudaErrorInvalidDevice, "invalid device ordinal")                                            \
    X(400, cudaErrorInvalidResourceHandle, "invalid resource handle")                                   \
    X(401, cudaErrorIllegalState, "the operation cannot be performed in the present state")             \
    X(700, cudaErrorIllegalAddress, "an illegal memory access was encountered")                         \
    X(719, cudaErrorLaunchFailure, "unspecified launch failure")                                        \
    X(900, cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")       \
    X(901, cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture") \
    X(906, cudaErrorStreamCaptureImplicit,                                                              \
      "operation would make the legacy stream depend on a capturing blocking stream")                   \
    X(907, cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream")

typedef enum {
#define ENUMERATOR(code, name, text) name = code,
    CUDA_ERRORS(ENUMERATOR)
#undef ENUMERATOR
} cudaError_t;

/* Return the name or the text of an error; "unrecognized error code" for other codes, as CUDA does. */
static inline const char *error_name(int error) {
    switch (error) {
#define CASE(code, name, text) case code: return #name;
        CUDA_ERRORS(CASE)
#undef CASE
        default: return "unrecognized error code";
    }
}

static inline const char *error_text(int error) {
    switch (error) {
#define CASE(code, name, text) case code: return text;
        CUDA_ERRORS(CASE)
#undef CASE
        default: return "unrecognized error code";
    }
}

#endif
