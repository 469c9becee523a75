/* The devices: their properties, the current device of each thread, waits, and failures. */

#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core.h"

enum { MICROSECONDS_BETWEEN_LOOKS = 500 };

/* From the table "technical specifications per compute capability" of NVIDIA's programming guide. */
static const Generation GENERATIONS[] = {
    {75, "Tesla T4", 40, 65536, 65536, 1024, 16},
    {80, "NVIDIA A100-SXM4-80GB", 108, 167936, 166912, 2048, 32},
    {86, "NVIDIA A10", 72, 102400, 101376, 1536, 16},
    {89, "NVIDIA L4", 58, 102400, 101376, 1536, 24},
    {90, "NVIDIA H100 80GB HBM3", 132, 233472, 232448, 2048, 32},
    {100, "NVIDIA B200", 148, 233472, 232448, 2048, 32},
    {120, "NVIDIA RTX PRO 6000 Blackwell Server Edition", 188, 102400, 101376, 1536, 24},
};
static const size_t GENERATION_COUNT = sizeof GENERATIONS / sizeof *GENERATIONS;

static Device devices[MAX_DEVICES];
static int device_count;
/* The error that the context of each device is poisoned with. */
static _Atomic int errors[MAX_DEVICES];
static atomic_bool has_context[MAX_DEVICES];
static _Thread_local int current_device;

/* Copy the value of a device from a list such as "80,24", whose last value is also that of the remaining devices. */
static bool read_value(const char *variable, int device, char *value, size_t size) {
    const char *list = getenv(variable);
    if (list == NULL || *list == '\0')
        return false;
    for (const char *comma; device > 0 && (comma = strchr(list, ',')) != NULL; device--)
        list = comma + 1;
    snprintf(value, size, "%.*s", (int)strcspn(list, ","), list);
    return true;
}

static double read_number(const char *variable, int device, double otherwise) {
    char value[64];
    return read_value(variable, device, value, sizeof value) ? atof(value) : otherwise;
}

static Generation read_generation(int device) {
    char value[64] = "9.0";
    read_value("CUDA_DOUBLE_CAPABILITY", device, value, sizeof value);
    int major = 0, minor = 0;
    sscanf(value, "%d.%d", &major, &minor);
    Generation generation = GENERATIONS[0];
    for (size_t i = 0; i < GENERATION_COUNT; i++)
        if (GENERATIONS[i].capability <= major * 10 + minor)
            generation = GENERATIONS[i];
    generation.capability = major * 10 + minor;
    return generation;
}

__attribute__((constructor(102))) static void read_environment(void) {
    const char *count = getenv("CUDA_DOUBLE_DEVICES");
    device_count = count == NULL ? 1 : atoi(count);
    if (device_count > MAX_DEVICES)
        device_count = MAX_DEVICES;
    for (int i = 0; i < device_count; i++) {
        devices[i].generation = read_generation(i);
        devices[i].memory = (size_t)(read_number("CUDA_DOUBLE_MEMORY_GIB", i, 80) * (1 << 30));
    }
}

int core_device_count(void) { return device_count; }

const Device *core_device(int device) { return &devices[device]; }

int core_device_attribute(int device, int attribute) {
    const Generation *generation = &core_device(device)->generation;
    switch (attribute) {
        case 1: return MAX_THREADS_PER_BLOCK;                                /* MaxThreadsPerBlock */
        case 2: case 3: return MAX_THREADS_PER_BLOCK;                        /* MaxBlockDimX, Y */
        case 4: return MAX_BLOCK_Z;                                          /* MaxBlockDimZ */
        case 5: return MAX_GRID_X;                                           /* MaxGridDimX */
        case 6: case 7: return MAX_GRID_Y_Z;                                 /* MaxGridDimY, Z */
        case 8: return DEFAULT_SHARED_MEMORY;                                /* MaxSharedMemoryPerBlock */
        case 10: return WARP_SIZE;                                           /* WarpSize */
        case 12: case 82: return REGISTERS;                                  /* MaxRegistersPerBlock */
        case 16: return generation->processors;                              /* MultiProcessorCount */
        case 18: return 0;                                                   /* Integrated */
        case 38: return L2_CACHE_BYTES;                                      /* L2CacheSize */
        case 39: return generation->threads_per_processor;                   /* MaxThreadsPerMultiProcessor */
        case 75: return generation->capability / 10;                         /* ComputeCapabilityMajor */
        case 76: return generation->capability % 10;                         /* ComputeCapabilityMinor */
        case 81: return (int)generation->shared_memory_per_processor;        /* MaxSharedMemoryPerMultiprocessor */
        case 97: return (int)generation->shared_memory_per_block;            /* MaxSharedMemoryPerBlockOptin */
        case 106: return generation->blocks_per_processor;                   /* MaxBlocksPerMultiprocessor */
        case 111: return 1024;                                               /* ReservedSharedMemoryPerBlock */
        default: return 1;                                                   /* the feature is supported */
    }
}

int core_current_device(void) { return current_device; }

void core_set_current_device(int device) { current_device = device; }

void core_open_context(int device) { has_context[device] = true; }

bool core_has_context(int device) { return has_context[device]; }

static void poison(int device, int error) {
    int none = cudaSuccess;
    if (atomic_compare_exchange_strong(&errors[device], &none, error))
        core_log("failure", "device=%d error=%d", device, error);
}

cudaError_t core_failure(int device) { return errors[device]; }

cudaError_t core_count_launch(int device) {
    DeviceControls *controls = &core_controls()->devices[device];
    if (controls->launch_error != 0 && controls->launches_before_error-- <= 0) {
        poison(device, (int)controls->launch_error);
        controls->launch_error = 0; /* a process that starts later has a context of its own */
    }
    return core_failure(device);
}

cudaError_t core_enter(void) {
    if (device_count == 0)
        return cudaErrorNoDevice;
    core_open_context(current_device);
    return core_failure(current_device);
}

cudaError_t core_wait(int device) {
    core_log("wait", "device=%d", device);
    DeviceControls *controls = &core_controls()->devices[device];
    if (controls->hangs) {
        controls->waiting_threads++;
        while (controls->hangs)
            usleep(MICROSECONDS_BETWEEN_LOOKS);
        controls->waiting_threads--;
    }
    return core_failure(device);
}
