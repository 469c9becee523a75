/* libcuda.so.1: the functions of CUDA's driver that ask about devices and select them. */

#include <stdio.h>

#include "core.h"

/* The driver has its own names of the codes; the values are those of the runtime, except "invalid context". */
enum { CUDA_ERROR_INVALID_CONTEXT = 201 };

static bool exists(int device) { return device >= 0 && device < core_device_count(); }

int cuInit(unsigned flags) {
    (void)flags;
    return core_device_count() == 0 ? cudaErrorNoDevice : cudaSuccess;
}

int cuDriverGetVersion(int *version) {
    *version = CUDA_VERSION;
    return cudaSuccess;
}

int cuDeviceGetCount(int *count) {
    *count = core_device_count();
    return cudaSuccess;
}

int cuDeviceGet(int *handle, int device) {
    *handle = device;
    return exists(device) ? cudaSuccess : cudaErrorInvalidDevice;
}

int cuDeviceGetName(char *name, int size, int device) {
    if (!exists(device))
        return cudaErrorInvalidDevice;
    snprintf(name, size, "%s", core_device(device)->generation.name);
    return cudaSuccess;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    if (!exists(device))
        return cudaErrorInvalidDevice;
    *bytes = core_device(device)->memory;
    return cudaSuccess;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    if (!exists(device))
        return cudaErrorInvalidDevice;
    *value = core_device_attribute(device, attribute);
    return cudaSuccess;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    cudaError_t error = core_enter();
    if (error == cudaSuccess)
        core_memory_info(core_current_device(), free_bytes, total_bytes);
    return error;
}

/* The handle of a device's primary context is the address of the device. */
int cuDevicePrimaryCtxRetain(const void **context, int device) {
    if (!exists(device))
        return cudaErrorInvalidDevice;
    core_open_context(device);
    *context = core_device(device);
    return core_failure(device);
}

int cuDevicePrimaryCtxRelease_v2(int device) { return exists(device) ? cudaSuccess : cudaErrorInvalidDevice; }

int cuCtxSetCurrent(const void *context) {
    for (int device = 0; device < core_device_count(); device++)
        if (core_device(device) == context) {
            core_set_current_device(device);
            return cudaSuccess;
        }
    return CUDA_ERROR_INVALID_CONTEXT;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    if (!exists(device))
        return cudaErrorInvalidDevice;
    *flags = 0;
    *active = core_has_context(device);
    return cudaSuccess;
}

/* The device that was current before the last push of this thread. */
static _Thread_local int pushed_over;

int cuCtxPushCurrent_v2(const void *context) {
    pushed_over = core_current_device();
    return cuCtxSetCurrent(context);
}

int cuCtxPopCurrent_v2(const void **context) {
    *context = core_device(core_current_device());
    core_set_current_device(pushed_over);
    return cudaSuccess;
}

int cuCtxGetCurrent(const void **context) {
    *context = core_device(core_current_device());
    return cudaSuccess;
}

int cuCtxGetDevice(int *device) {
    *device = core_current_device();
    return cudaSuccess;
}

int cuThreadExchangeStreamCaptureMode(int *mode) {
    core_exchange_capture_mode(mode);
    return cudaSuccess;
}

int cuGetErrorName(int error, const char **name) {
    *name = error_name(error);
    return cudaSuccess;
}

int cuGetErrorString(int error, const char **text) {
    *text = error_text(error);
    return cudaSuccess;
}

/* The layout that the function writes is read only by kernels. */
int cuTensorMapEncodeTiled(void) { return cudaSuccess; }
