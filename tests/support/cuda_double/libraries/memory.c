/* The memory of the devices and pinned host memory: address ranges of this process, in a search tree. */

#define _GNU_SOURCE
#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "core.h"

static void *allocations; /* a tree of Memory */
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static size_t bytes_in_use[MAX_DEVICES];

/* Order ranges by address; ranges that overlap are equal, so a range of one byte finds the allocation around it. */
static int compare(const void *left, const void *right) {
    const Memory *a = left, *b = right;
    if (a->start + a->bytes <= b->start)
        return -1;
    return b->start + b->bytes <= a->start;
}

static Memory *find(const void *address) {
    Memory byte = {.start = (char *)address, .bytes = 1};
    Memory **found = tfind(&byte, &allocations, compare);
    return found == NULL ? NULL : *found;
}

/* Map pages that the operating system does not provide until they are written. */
static Memory *map(size_t bytes, MemoryKind kind, int device) {
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return NULL;
    Memory *memory = malloc(sizeof *memory);
    *memory = (Memory){.start = start, .bytes = bytes, .kind = kind, .device = device};
    tsearch(memory, &allocations, compare);
    return memory;
}

/* Unmap an allocation and return its size; 0 if no such allocation starts at the address. */
static size_t unmap(void *address, MemoryKind kind, int *device) {
    Memory *memory = find(address);
    if (memory == NULL || memory->start != address || memory->kind != kind)
        return 0;
    size_t bytes = memory->bytes;
    *device = memory->device;
    tdelete(memory, &allocations, compare);
    munmap(memory->start, bytes);
    free(memory);
    return bytes;
}

cudaError_t core_allocate(int device, size_t bytes, void **address) {
    *address = NULL;
    if (bytes == 0)
        return cudaSuccess;
    DeviceControls *controls = &core_controls()->devices[device];
    pthread_rwlock_wrlock(&lock);
    bool fits = bytes <= core_device(device)->memory - bytes_in_use[device];
    fits = fits && (controls->largest_allocation == 0 || bytes <= (size_t)controls->largest_allocation);
    Memory *memory = fits ? map(bytes, ON_DEVICE, device) : NULL;
    if (memory != NULL) {
        bytes_in_use[device] += bytes;
        controls->bytes_in_use += (int64_t)bytes;
        *address = memory->start;
    }
    core_log("allocate", "device=%d in_use=%zu error=%d", device, bytes_in_use[device],
             memory == NULL ? cudaErrorMemoryAllocation : cudaSuccess);
    pthread_rwlock_unlock(&lock);
    return memory == NULL ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t core_free(void *address) {
    int device = 0;
    pthread_rwlock_wrlock(&lock);
    size_t bytes = unmap(address, ON_DEVICE, &device);
    if (bytes != 0) {
        bytes_in_use[device] -= bytes;
        core_controls()->devices[device].bytes_in_use -= (int64_t)bytes;
        core_log("free", "device=%d in_use=%zu", device, bytes_in_use[device]);
    }
    pthread_rwlock_unlock(&lock);
    return bytes == 0 ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t core_allocate_pinned(size_t bytes, void **address) {
    *address = NULL;
    if (bytes == 0)
        return cudaSuccess;
    pthread_rwlock_wrlock(&lock);
    Memory *memory = map(bytes, PINNED, -1);
    if (memory != NULL)
        *address = memory->start;
    pthread_rwlock_unlock(&lock);
    return memory == NULL ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t core_free_pinned(void *address) {
    int device;
    pthread_rwlock_wrlock(&lock);
    size_t bytes = unmap(address, PINNED, &device);
    pthread_rwlock_unlock(&lock);
    return bytes == 0 ? cudaErrorInvalidValue : cudaSuccess;
}

Memory core_find_memory(const void *address) {
    pthread_rwlock_rdlock(&lock);
    Memory *memory = find(address);
    Memory found = memory == NULL ? (Memory){.start = (char *)address, .kind = PAGEABLE, .device = -1} : *memory;
    pthread_rwlock_unlock(&lock);
    return found;
}

void core_memory_info(int device, size_t *free_bytes, size_t *total_bytes) {
    pthread_rwlock_rdlock(&lock);
    *total_bytes = core_device(device)->memory;
    *free_bytes = *total_bytes - bytes_in_use[device];
    pthread_rwlock_unlock(&lock);
}
