/* The part that all libraries of the double share: the log, the devices, their memory, their streams and failures. */

#ifndef CUDA_DOUBLE_CORE_H
#define CUDA_DOUBLE_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "errors.h"

enum { MAX_DEVICES = 16 };

/* ---- log.c ---- */

/* Write one line: the event, and the given fields `name=value`. */
__attribute__((format(printf, 2, 3))) void core_log(const char *event, const char *format, ...);
/* The same, also while logging is switched off. */
__attribute__((format(printf, 2, 3))) void core_log_always(const char *event, const char *format, ...);

/* ---- controls.c: a page of memory that other processes may change while this process runs ---- */

/* The layout is known to controls.py. Each field takes eight bytes. */
typedef struct {
    _Atomic int64_t hangs;                    /* 1: waits for the device do not return */
    _Atomic int64_t launch_error;             /* the error code of the launch that fails; 0: no launch fails */
    _Atomic int64_t launches_before_error;    /* launches that succeed before the launch that fails */
    _Atomic int64_t largest_allocation;       /* larger allocations fail; 0: no limit */
    /* The double counts the rest, over all processes that share the page. */
    _Atomic int64_t bytes_in_use;
    _Atomic int64_t waiting_threads;          /* threads that wait for a device that hangs */
    int64_t unused[10];
} DeviceControls;

typedef struct {
    _Atomic int64_t logging_off;
    int64_t unused[15];
    DeviceControls devices[MAX_DEVICES];
} Controls;

Controls *core_controls(void);

/* ---- devices.c ---- */

enum {
    CUDA_VERSION = 13000,
    MAX_THREADS_PER_BLOCK = 1024,
    MAX_BLOCK_Z = 64,
    MAX_GRID_X = 2147483647,
    MAX_GRID_Y_Z = 65535,
    REGISTERS = 65536,
    WARP_SIZE = 32,
    L2_CACHE_BYTES = 50 << 20,
    /* Kernels get more dynamic shared memory than this only after cudaFuncSetAttribute. */
    DEFAULT_SHARED_MEMORY = 48 << 10,
};

/* What cards of one compute capability have in common. */
typedef struct {
    int capability; /* 90 for 9.0 */
    const char *name;
    int processors;
    size_t shared_memory_per_processor;
    size_t shared_memory_per_block; /* the opt-in limit */
    int threads_per_processor;
    int blocks_per_processor;
} Generation;

typedef struct {
    Generation generation;
    size_t memory;
} Device;

int core_device_count(void);
const Device *core_device(int device);
/* Return an attribute of cudaDeviceAttr, which has the numbers of the driver's CUdevice_attribute. */
int core_device_attribute(int device, int attribute);
/* The current device of this thread. */
int core_current_device(void);
void core_set_current_device(int device);
void core_open_context(int device);
bool core_has_context(int device);

/* Return the error that a device's context is poisoned with; cudaSuccess if the device works. */
cudaError_t core_failure(int device);
/* Return the error of a launch if it fails. The error poisons the context. */
cudaError_t core_count_launch(int device);
/* Open a context on the current device, and return `core_failure`. */
cudaError_t core_enter(void);
/* Log a wait, and block while the device hangs. */
cudaError_t core_wait(int device);

/* ---- memory.c ---- */

typedef enum { PAGEABLE, PINNED, ON_DEVICE } MemoryKind;

typedef struct {
    char *start;
    size_t bytes;
    MemoryKind kind;
    int device;
} Memory;

cudaError_t core_allocate(int device, size_t bytes, void **address);
cudaError_t core_free(void *address);
cudaError_t core_allocate_pinned(size_t bytes, void **address);
cudaError_t core_free_pinned(void *address);
/* Return the allocation that contains an address; pageable memory if the double did not allocate the address. */
Memory core_find_memory(const void *address);
void core_memory_info(int device, size_t *free_bytes, size_t *total_bytes);

/* ---- streams.c ---- */

typedef struct Capture Capture;

typedef struct {
    int device;
    bool blocking; /* waits for the legacy stream */
    bool destroyed;
    Capture *_Atomic capture; /* NULL if the stream is not capturing */
} Stream;

/* A copy or a memset of a graph, which runs when the graph is launched. */
typedef struct {
    void *target;
    const void *source; /* NULL for a memset */
    int value;
    size_t bytes;
} Node;

typedef struct {
    Node *nodes;
    size_t node_count;
} Graph;

/* The stream of a handle: NULL and 1 are the legacy stream, 2 is the thread's own stream. NULL if destroyed. */
Stream *core_stream(void *handle);
Stream *core_create_stream(bool blocking);

/* Check a stream before work on it: the error of the device or of the handle. `captured` says if a graph records it. */
cudaError_t core_begin_work(void *handle, int *device, bool *captured);
/* As `core_begin_work`, and count a launch. A captured launch is not counted: it does not run. */
cudaError_t core_begin_launch(void *handle, int *device, bool *captured);
/* Add a copy or a memset to the graph that the stream records. */
void core_record_node(void *handle, Node node);

cudaError_t core_begin_capture(void *handle, int mode);
cudaError_t core_end_capture(void *handle, Graph **graph);
/* Return 0 (not capturing), 1 (capturing) or 2 (invalidated): the values of cudaStreamCaptureStatus. */
int core_capture_status(const Stream *stream);
/* Set which captures forbid unsafe calls of this thread, and return the mode before. */
void core_exchange_capture_mode(int *mode);
/* Return the error of a call that is unsafe during a capture, such as cudaMalloc, and invalidate the capture. */
cudaError_t core_unsafe_during_capture(void);
/* Return the error of a wait for the whole device, or of a use of the legacy stream, while a stream captures. */
cudaError_t core_wait_during_capture(int device);
cudaError_t core_legacy_stream_during_capture(int device);
void core_invalidate_capture(Stream *stream);

#endif
