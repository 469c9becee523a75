/* What cuBLAS and cuBLASLt share: status codes and the names of types. */

#ifndef CUDA_DOUBLE_BLAS_TYPES_H
#define CUDA_DOUBLE_BLAS_TYPES_H

enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
};

enum { TYPE_FLOAT32 = 0, TYPE_FLOAT64 = 1 };

/* Return the name of a cudaDataType. */
static inline const char *type_name(int type) {
    switch (type) {
        case TYPE_FLOAT32: return "float32";
        case TYPE_FLOAT64: return "float64";
        case 2: return "float16";
        case 3: return "int8";
        case 8: return "uint8";
        case 10: return "int32";
        case 14: return "bfloat16";
        case 28: return "float8_e4m3";
        case 29: return "float8_e5m2";
        default: return "other";
    }
}

/* Return the name of a cublasComputeType_t. */
static inline const char *compute_name(int type) {
    switch (type) {
        case 64: case 65: return "float16";
        case 68: case 69: return "float32";
        case 74: return "float16_in_float32";
        case 75: return "bfloat16_in_float32";
        case 77: return "tf32";
        case 70: case 71: return "float64";
        case 72: case 73: return "int32";
        default: return "other";
    }
}

#endif
