/* libcudart.so.13: CUDA's runtime. Copies and memsets are real, kernels only leave a line in the log. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core.h"

typedef struct {
    unsigned x, y, z;
} dim3;

enum {
    /* A copy between devices is skipped above this size: its content is the garbage of kernels that did not run. */
    LARGEST_DEVICE_COPY = 16 << 20,
    /* Pages of a memset to zero above this size are returned to the operating system, which provides new ones. */
    LARGEST_WRITTEN_ZEROS = 1 << 20,
    PAGE_BYTES = 4096,
};

/* ---- errors ---- */

static _Thread_local cudaError_t last_error;

/* Remember an error for cudaGetLastError, and return the error. */
static cudaError_t result(cudaError_t error) {
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

/* Return from the calling function if the current device does not work. */
#define ENTER()                              \
    do {                                     \
        cudaError_t entered = core_enter();  \
        if (entered != cudaSuccess)          \
            return result(entered);          \
    } while (0)

#define RETURN_IF_ERROR(call)          \
    do {                               \
        cudaError_t error_ = (call);   \
        if (error_ != cudaSuccess)     \
            return result(error_);     \
    } while (0)

/* A caller in C may pass more arguments than are declared. */
#define IGNORED_CALL(name) \
    cudaError_t name(void) { return cudaSuccess; }

cudaError_t cudaPeekAtLastError(void) {
    cudaError_t failure = core_failure(core_current_device());
    return failure != cudaSuccess ? failure : last_error;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorName(cudaError_t error) { return error_name(error); }

const char *cudaGetErrorString(cudaError_t error) { return error_text(error); }

/* ---- devices ---- */

/* cudaDeviceProp of CUDA 13, as far as the provider may read it: the offsets are those of driver_types.h. */
enum { DEVICE_PROPERTIES_BYTES = 1008 };

#define SET_PROPERTY(offset, type, value) (*(type *)((char *)properties + (offset)) = (value))

cudaError_t cudaGetDeviceCount(int *count) {
    *count = core_device_count();
    return *count == 0 ? result(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = core_current_device();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= core_device_count())
        return result(cudaErrorInvalidDevice);
    core_set_current_device(device);
    ENTER();
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(void *properties, int device) {
    if (device < 0 || device >= core_device_count())
        return result(cudaErrorInvalidDevice);
    const Device *described = core_device(device);
    const Generation *generation = &described->generation;
    memset(properties, 0, DEVICE_PROPERTIES_BYTES);
    snprintf(properties, 256, "%s", generation->name);
    SET_PROPERTY(288, size_t, described->memory);                               /* totalGlobalMem */
    SET_PROPERTY(296, size_t, DEFAULT_SHARED_MEMORY);                           /* sharedMemPerBlock */
    SET_PROPERTY(304, int, REGISTERS);                                          /* regsPerBlock */
    SET_PROPERTY(308, int, WARP_SIZE);                                          /* warpSize */
    SET_PROPERTY(312, size_t, MAX_GRID_X);                                      /* memPitch */
    SET_PROPERTY(320, int, MAX_THREADS_PER_BLOCK);                              /* maxThreadsPerBlock */
    SET_PROPERTY(324, int, MAX_THREADS_PER_BLOCK);                              /* maxThreadsDim */
    SET_PROPERTY(328, int, MAX_THREADS_PER_BLOCK);
    SET_PROPERTY(332, int, MAX_BLOCK_Z);
    SET_PROPERTY(336, int, MAX_GRID_X);                                         /* maxGridSize */
    SET_PROPERTY(340, int, MAX_GRID_Y_Z);
    SET_PROPERTY(344, int, MAX_GRID_Y_Z);
    SET_PROPERTY(352, size_t, 65536);                                           /* totalConstMem */
    SET_PROPERTY(360, int, generation->capability / 10);                        /* major */
    SET_PROPERTY(364, int, generation->capability % 10);                        /* minor */
    SET_PROPERTY(384, int, generation->processors);                             /* multiProcessorCount */
    SET_PROPERTY(392, int, 1);                                                  /* canMapHostMemory */
    SET_PROPERTY(560, int, 1);                                                  /* concurrentKernels */
    SET_PROPERTY(568, int, device + 1);                                         /* pciBusID */
    SET_PROPERTY(584, int, 2);                                                  /* asyncEngineCount */
    SET_PROPERTY(588, int, 1);                                                  /* unifiedAddressing */
    SET_PROPERTY(592, int, 5120);                                               /* memoryBusWidth */
    SET_PROPERTY(596, int, L2_CACHE_BYTES);                                     /* l2CacheSize */
    SET_PROPERTY(604, int, generation->threads_per_processor);                  /* maxThreadsPerMultiProcessor */
    SET_PROPERTY(624, size_t, generation->shared_memory_per_processor);         /* sharedMemPerMultiprocessor */
    SET_PROPERTY(632, int, REGISTERS);                                          /* regsPerMultiprocessor */
    SET_PROPERTY(636, int, 1);                                                  /* managedMemory */
    SET_PROPERTY(668, int, 1);                                                  /* cooperativeLaunch */
    SET_PROPERTY(672, size_t, generation->shared_memory_per_block);             /* sharedMemPerBlockOptin */
    SET_PROPERTY(688, int, generation->blocks_per_processor);                   /* maxBlocksPerMultiProcessor */
    SET_PROPERTY(696, size_t, 1024);                                            /* reservedSharedMemPerBlock */
    SET_PROPERTY(720, int, 1);                                                  /* memoryPoolsSupported */
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device) {
    if (device < 0 || device >= core_device_count())
        return result(cudaErrorInvalidDevice);
    *value = core_device_attribute(device, attribute);
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDA_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDA_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags, int *query_result) {
    (void)version, (void)flags;
    static void *driver;
    if (driver == NULL)
        driver = dlopen("libcuda.so.1", RTLD_NOW);
    *function = driver == NULL ? NULL : dlsym(driver, symbol);
    if (query_result != NULL)
        *query_result = *function == NULL; /* 1: cudaDriverEntryPointSymbolNotFound */
    return cudaSuccess;
}

/* ---- kernels ---- */

typedef struct {
    const void *function; /* the kernel's address on the host */
    const char *name;
    int id; /* in the log, after the number of the process; 0 until the kernel is launched */
    size_t shared_memory_limit;
} Kernel;

static void *kernels; /* a tree of Kernel */
static int launched_kernels;
static pthread_mutex_t kernels_lock = PTHREAD_MUTEX_INITIALIZER;

static int compare_kernels(const void *left, const void *right) {
    const char *a = ((const Kernel *)left)->function, *b = ((const Kernel *)right)->function;
    return (a > b) - (a < b);
}

/* Return the kernel of a host function; add the kernel if it is new. */
static Kernel *find_kernel(const void *function, const char *name) {
    Kernel sought = {.function = function};
    pthread_mutex_lock(&kernels_lock);
    Kernel **found = tfind(&sought, &kernels, compare_kernels);
    Kernel *kernel;
    if (found != NULL) {
        kernel = *found;
    } else {
        kernel = malloc(sizeof *kernel);
        *kernel = (Kernel){.function = function, .name = name, .shared_memory_limit = DEFAULT_SHARED_MEMORY};
        tsearch(kernel, &kernels, compare_kernels);
    }
    pthread_mutex_unlock(&kernels_lock);
    return kernel;
}

/* Log the name of a kernel when it is launched for the first time; later lines hold only its number. */
static int kernel_id(Kernel *kernel) {
    if (kernel->id != 0)
        return kernel->id;
    pthread_mutex_lock(&kernels_lock);
    if (kernel->id == 0) {
        core_log_always("kernel", "id=%d.%d name=%s", getpid(), launched_kernels + 1, kernel->name);
        kernel->id = ++launched_kernels;
    }
    pthread_mutex_unlock(&kernels_lock);
    return kernel->id;
}

/* Say why a card refuses a launch; NULL if it does not. Static shared memory and registers are unknown. */
static const char *invalid_launch(const Kernel *kernel, int device, dim3 grid, dim3 block, size_t shared_memory) {
    if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z)
        return "zero";
    if (grid.x > MAX_GRID_X || grid.y > MAX_GRID_Y_Z || grid.z > MAX_GRID_Y_Z)
        return "grid";
    if ((unsigned long long)block.x * block.y * block.z > MAX_THREADS_PER_BLOCK || block.z > MAX_BLOCK_Z)
        return "block";
    if (shared_memory > kernel->shared_memory_limit ||
        shared_memory > core_device(device)->generation.shared_memory_per_block)
        return "shared_memory";
    return NULL;
}

static cudaError_t launch(const void *function, dim3 grid, dim3 block, size_t shared_memory, void *stream) {
    Kernel *kernel = find_kernel(function, "unknown");
    int device;
    bool captured;
    cudaError_t error = core_begin_work(stream, &device, &captured);
    const char *invalid = invalid_launch(kernel, device, grid, block, shared_memory);
    if (error == cudaSuccess && invalid != NULL)
        error = strcmp(invalid, "shared_memory") == 0 ? cudaErrorInvalidValue : cudaErrorInvalidConfiguration;
    else if (error == cudaSuccess)
        error = core_begin_launch(stream, &device, &captured);
    core_log("launch", "device=%d kernel=%d.%d grid=%u,%u,%u invalid=%s", device, getpid(), kernel_id(kernel), grid.x,
             grid.y, grid.z, invalid == NULL ? "-" : invalid);
    return result(error);
}

void **__cudaRegisterFatBinary(void *binary) {
    (void)binary;
    static void *handle;
    return &handle;
}

void __cudaRegisterFunction(void **handle, const void *function, char *device_function, const char *name,
                            int thread_limit, void *tid, void *bid, dim3 *block, dim3 *grid, int *warp_size) {
    (void)handle, (void)device_function, (void)thread_limit, (void)tid, (void)bid, (void)block, (void)grid;
    (void)warp_size;
    find_kernel(function, name);
}

IGNORED_CALL(__cudaRegisterFatBinaryEnd)
IGNORED_CALL(__cudaUnregisterFatBinary)
IGNORED_CALL(__cudaRegisterVar)

/* The arguments of `kernel<<<grid, block, shared_memory, stream>>>`, on their way to the launch. */
static _Thread_local struct {
    dim3 grid, block;
    size_t shared_memory;
    void *stream;
} call_configuration;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_memory, void *stream) {
    call_configuration.grid = grid;
    call_configuration.block = block;
    call_configuration.shared_memory = shared_memory;
    call_configuration.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_memory, void **stream) {
    *grid = call_configuration.grid;
    *block = call_configuration.block;
    *shared_memory = call_configuration.shared_memory;
    *stream = call_configuration.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(const void **kernel, const void *function) {
    *kernel = function;
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared_memory,
                               void *stream) {
    (void)arguments;
    return launch(kernel, grid, block, shared_memory, stream);
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared_memory,
                             void *stream) {
    (void)arguments;
    return launch(function, grid, block, shared_memory, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                                        size_t shared_memory, void *stream) {
    (void)arguments;
    return launch(function, grid, block, shared_memory, stream);
}

/* cudaLaunchConfig_t up to its list of attributes. */
typedef struct {
    dim3 grid, block;
    size_t shared_memory;
    void *stream;
} LaunchConfig;

cudaError_t cudaLaunchKernelExC(const LaunchConfig *config, const void *function, void **arguments) {
    (void)arguments;
    return launch(function, config->grid, config->block, config->shared_memory, config->stream);
}

cudaError_t cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
    int device;
    bool captured;
    RETURN_IF_ERROR(core_begin_work(stream, &device, &captured));
    if (!captured)
        function(data);
    return cudaSuccess;
}

cudaError_t cudaLibraryLoadData(void **library) {
    ENTER();
    *library = (void *)1;
    return cudaSuccess;
}

IGNORED_CALL(cudaLibraryUnload)

cudaError_t cudaLibraryGetKernel(const void **kernel, void *library, const char *name) {
    (void)library;
    char *copy = strdup(name);
    find_kernel(copy, copy);
    *kernel = copy;
    return cudaSuccess;
}

enum { MAX_DYNAMIC_SHARED_MEMORY = 8 }; /* of cudaFuncAttribute */

cudaError_t cudaKernelSetAttributeForDevice(const void *function, int attribute, int value, int device) {
    if (attribute != MAX_DYNAMIC_SHARED_MEMORY)
        return cudaSuccess;
    if ((size_t)value > core_device(device)->generation.shared_memory_per_block)
        return result(cudaErrorInvalidValue);
    find_kernel(function, "unknown")->shared_memory_limit = value;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, int attribute, int value) {
    ENTER();
    return cudaKernelSetAttributeForDevice(function, attribute, value, core_current_device());
}

/* cudaFuncAttributes of CUDA 13, which takes 144 bytes. */
typedef struct {
    size_t static_shared_memory, constant_memory, local_memory;
    int max_threads, registers, ptx_version, binary_version, cache_mode, max_dynamic_shared_memory;
    char unused[96];
} FunctionAttributes;
_Static_assert(sizeof(FunctionAttributes) == 144, "as in driver_types.h");

cudaError_t cudaFuncGetAttributes(FunctionAttributes *attributes, const void *function) {
    ENTER();
    int capability = core_device(core_current_device())->generation.capability;
    *attributes = (FunctionAttributes){
        .max_threads = MAX_THREADS_PER_BLOCK,
        .registers = 64,
        .ptx_version = capability,
        .binary_version = capability,
        .max_dynamic_shared_memory = (int)find_kernel(function, "unknown")->shared_memory_limit,
    };
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                                   size_t shared_memory, unsigned flags) {
    (void)function, (void)flags;
    ENTER();
    const Generation *generation = &core_device(core_current_device())->generation;
    int by_threads = threads > 0 ? generation->threads_per_processor / threads : 0;
    int by_memory = shared_memory > 0 ? (int)(generation->shared_memory_per_processor / shared_memory) : by_threads;
    *blocks = by_threads < by_memory ? by_threads : by_memory;
    if (*blocks > generation->blocks_per_processor)
        *blocks = generation->blocks_per_processor;
    return cudaSuccess;
}

/* ---- memory ---- */

static cudaError_t allocate(void **address, size_t bytes) {
    ENTER();
    return result(core_allocate(core_current_device(), bytes, address));
}

cudaError_t cudaMalloc(void **address, size_t bytes) {
    RETURN_IF_ERROR(core_unsafe_during_capture());
    return allocate(address, bytes);
}

cudaError_t cudaFree(void *address) {
    ENTER();
    if (address == NULL)
        return cudaSuccess;
    RETURN_IF_ERROR(core_unsafe_during_capture());
    Memory memory = core_find_memory(address);
    if (memory.kind != ON_DEVICE)
        return result(cudaErrorInvalidValue);
    RETURN_IF_ERROR(core_wait(memory.device));
    return result(core_free(address));
}

cudaError_t cudaMallocFromPoolAsync(void **address, size_t bytes, void *pool, void *stream) {
    (void)pool, (void)stream;
    return allocate(address, bytes);
}

cudaError_t cudaFreeAsync(void *address, void *stream) {
    (void)stream;
    ENTER();
    return address == NULL ? cudaSuccess : result(core_free(address));
}

cudaError_t cudaMemPoolCreate(void **pool) {
    ENTER();
    *pool = (void *)1;
    return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(void *pool, int attribute, void *value) {
    (void)pool, (void)attribute;
    ENTER();
    *(uint64_t *)value = 0;
    return cudaSuccess;
}

IGNORED_CALL(cudaMemPoolDestroy)
IGNORED_CALL(cudaMemPoolSetAttribute)
IGNORED_CALL(cudaMemPoolTrimTo)

cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned flags) {
    (void)flags;
    ENTER();
    RETURN_IF_ERROR(core_unsafe_during_capture());
    return result(core_allocate_pinned(bytes, address));
}

cudaError_t cudaMallocHost(void **address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }

cudaError_t cudaFreeHost(void *address) {
    ENTER();
    return address == NULL ? cudaSuccess : result(core_free_pinned(address));
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    ENTER();
    core_memory_info(core_current_device(), free_bytes, total_bytes);
    return cudaSuccess;
}

/* cudaPointerAttributes of CUDA 13, which takes 88 bytes. */
typedef struct {
    int type; /* 0: unregistered, 1: pinned, 2: device */
    int device;
    void *device_address, *host_address;
    char unused[64];
} PointerAttributes;
_Static_assert(sizeof(PointerAttributes) == 88, "as in driver_types.h");

cudaError_t cudaPointerGetAttributes(PointerAttributes *attributes, const void *address) {
    ENTER();
    Memory memory = core_find_memory(address);
    *attributes = (PointerAttributes){.type = memory.kind, .device = memory.device};
    attributes->device_address = memory.kind == PAGEABLE ? NULL : (void *)address;
    attributes->host_address = memory.kind == ON_DEVICE ? NULL : (void *)address;
    return cudaSuccess;
}

/* ---- copies ---- */

static const char *const KIND_NAMES[] = {[PAGEABLE] = "pageable", [PINNED] = "pinned", [ON_DEVICE] = "device"};

static bool is_inside(Memory memory, const void *address, size_t bytes) {
    return memory.kind == PAGEABLE || (const char *)address + bytes <= memory.start + memory.bytes;
}

static void copy_bytes(void *target, const void *source, size_t bytes) {
    bool on_device = core_find_memory(target).kind == ON_DEVICE && core_find_memory(source).kind == ON_DEVICE;
    if (!on_device || bytes <= LARGEST_DEVICE_COPY)
        memmove(target, source, bytes);
}

/* Return whether a copy waits until the work before it is done: "API synchronization behavior" in CUDA's manual. */
static bool copy_waits(MemoryKind target, MemoryKind source, bool blocking) {
    if (target == ON_DEVICE && source == ON_DEVICE)
        return false;
    return blocking || (source == ON_DEVICE && target == PAGEABLE);
}

/* Check and log a copy, and wait if the copy does; `captured` says if the copy belongs to a graph. */
static cudaError_t begin_copy(void *target, const void *source, size_t bytes, void *stream, bool blocking,
                              bool *captured) {
    int device;
    cudaError_t error = core_begin_work(stream, &device, captured);
    if (error == cudaSuccess && blocking)
        error = core_unsafe_during_capture();
    Memory to = core_find_memory(target), from = core_find_memory(source);
    if (error == cudaSuccess && !(is_inside(to, target, bytes) && is_inside(from, source, bytes)))
        error = cudaErrorInvalidValue;
    bool waits = copy_waits(to.kind, from.kind, blocking) && !*captured;
    core_log("copy", "device=%d source=%s target=%s bytes=%zu waits=%d", device, KIND_NAMES[from.kind],
             KIND_NAMES[to.kind], bytes, waits);
    if (error == cudaSuccess && waits)
        error = core_wait(device);
    return error;
}

cudaError_t cudaMemcpy(void *target, const void *source, size_t bytes, int kind) {
    (void)kind;
    bool captured;
    RETURN_IF_ERROR(begin_copy(target, source, bytes, NULL, true, &captured));
    copy_bytes(target, source, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes, int kind, void *stream) {
    (void)kind;
    bool captured;
    RETURN_IF_ERROR(begin_copy(target, source, bytes, stream, false, &captured));
    if (captured)
        core_record_node(stream, (Node){.target = target, .source = source, .bytes = bytes});
    else
        copy_bytes(target, source, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *target, size_t target_pitch, const void *source, size_t source_pitch, size_t width,
                              size_t height, int kind, void *stream) {
    (void)kind;
    bool captured;
    RETURN_IF_ERROR(begin_copy(target, source, width * height, stream, false, &captured));
    for (size_t row = 0; row < height; row++) {
        char *to = (char *)target + row * target_pitch;
        const char *from = (const char *)source + row * source_pitch;
        if (captured)
            core_record_node(stream, (Node){.target = to, .source = from, .bytes = width});
        else
            copy_bytes(to, from, width);
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpyFromSymbol(void *target, const void *symbol, size_t bytes, size_t offset, int kind) {
    (void)symbol, (void)offset, (void)kind;
    ENTER();
    memset(target, 0, bytes);
    return cudaSuccess;
}

static void fill(char *target, int value, size_t bytes) {
    if (value == 0 && bytes > LARGEST_WRITTEN_ZEROS) {
        char *first_page = (char *)(((uintptr_t)target + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
        char *last_page = (char *)((uintptr_t)(target + bytes) / PAGE_BYTES * PAGE_BYTES);
        memset(target, 0, first_page - target);
        madvise(first_page, last_page - first_page, MADV_DONTNEED);
        memset(last_page, 0, target + bytes - last_page);
    } else {
        memset(target, value, bytes);
    }
}

cudaError_t cudaMemsetAsync(void *target, int value, size_t bytes, void *stream) {
    int device;
    bool captured;
    cudaError_t error = core_begin_work(stream, &device, &captured);
    Memory memory = core_find_memory(target);
    if (error == cudaSuccess && (memory.kind == PAGEABLE || !is_inside(memory, target, bytes)))
        error = cudaErrorInvalidValue;
    RETURN_IF_ERROR(error);
    if (captured)
        core_record_node(stream, (Node){.target = target, .value = value, .bytes = bytes});
    else
        fill(target, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *target, int value, size_t bytes) { return cudaMemsetAsync(target, value, bytes, NULL); }

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithFlags(void **stream, unsigned flags) {
    ENTER();
    *stream = core_create_stream(!(flags & 1)); /* 1: cudaStreamNonBlocking */
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(void **stream) { return cudaStreamCreateWithFlags(stream, 0); }

cudaError_t cudaStreamDestroy(void *handle) {
    ENTER();
    Stream *stream = core_stream(handle);
    if ((uintptr_t)handle <= 2 || stream == NULL)
        return result(cudaErrorInvalidResourceHandle);
    stream->destroyed = true;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(void *handle) {
    ENTER();
    Stream *stream = core_stream(handle);
    if (stream == NULL)
        return result(cudaErrorInvalidResourceHandle);
    if (stream->capture != NULL) {
        core_invalidate_capture(stream);
        return result(cudaErrorStreamCaptureUnsupported);
    }
    if ((uintptr_t)handle <= 1)
        RETURN_IF_ERROR(core_legacy_stream_during_capture(stream->device));
    return result(core_wait(stream->device));
}

cudaError_t cudaDeviceSynchronize(void) {
    ENTER();
    int device = core_current_device();
    RETURN_IF_ERROR(core_wait_during_capture(device));
    return result(core_wait(device));
}

/* ---- events ---- */

typedef struct {
    int device;
    bool captured; /* last recorded in a capturing stream */
} Event;

cudaError_t cudaEventCreateWithFlags(Event **event, unsigned flags) {
    (void)flags;
    ENTER();
    *event = calloc(1, sizeof **event);
    (*event)->device = core_current_device();
    return cudaSuccess;
}

cudaError_t cudaEventCreate(Event **event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(Event *event) {
    ENTER();
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(Event *event, void *stream, unsigned flags) {
    (void)flags;
    int device;
    return result(core_begin_work(stream, &device, &event->captured));
}

cudaError_t cudaEventRecord(Event *event, void *stream) { return cudaEventRecordWithFlags(event, stream, 0); }

cudaError_t cudaEventSynchronize(Event *event) {
    ENTER();
    if (event->captured)
        return result(cudaErrorCapturedEvent);
    return result(core_wait(event->device));
}

/* Kernels that do not run take no time. */
cudaError_t cudaEventElapsedTime(float *milliseconds) {
    *milliseconds = 0;
    return cudaSuccess;
}

IGNORED_CALL(cudaStreamWaitEvent)

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(void *stream, int mode) {
    ENTER();
    cudaError_t error = core_begin_capture(stream, mode);
    core_log("capture", "device=%d action=begin error=%d", core_current_device(), error);
    return result(error);
}

cudaError_t cudaStreamEndCapture(void *stream, Graph **graph) {
    ENTER();
    cudaError_t error = core_end_capture(stream, graph);
    core_log("capture", "device=%d action=end error=%d", core_current_device(), error);
    return result(error);
}

cudaError_t cudaStreamIsCapturing(void *handle, int *status) {
    ENTER();
    Stream *stream = core_stream(handle);
    if (stream == NULL)
        return result(cudaErrorInvalidResourceHandle);
    *status = core_capture_status(stream);
    return cudaSuccess;
}

static Graph *copy_graph(const Graph *graph) {
    Graph *copy = malloc(sizeof *copy);
    *copy = *graph;
    copy->nodes = malloc(graph->node_count * sizeof *graph->nodes);
    memcpy(copy->nodes, graph->nodes, graph->node_count * sizeof *graph->nodes);
    return copy;
}

static cudaError_t destroy_graph(Graph *graph) {
    free(graph->nodes);
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(Graph **executable, const Graph *graph, unsigned long long flags) {
    (void)flags;
    ENTER();
    if (graph == NULL)
        return result(cudaErrorInvalidValue);
    *executable = copy_graph(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(const Graph *executable, void *stream) {
    int device;
    bool captured;
    cudaError_t error = core_begin_launch(stream, &device, &captured);
    core_log("graph", "device=%d", device);
    RETURN_IF_ERROR(error);
    for (const Node *node = executable->nodes; node < executable->nodes + executable->node_count; node++)
        if (node->source == NULL)
            fill(node->target, node->value, node->bytes);
        else
            copy_bytes(node->target, node->source, node->bytes);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(Graph *graph) { return destroy_graph(graph); }

cudaError_t cudaGraphExecDestroy(Graph *executable) { return destroy_graph(executable); }
