/* Streams, and the capture of their work in graphs. Work completes at once, so a stream holds nothing else. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "core.h"

/* The values of cudaStreamCaptureMode: which threads must not make unsafe calls during a capture. */
enum { CAPTURE_MODE_GLOBAL, CAPTURE_MODE_THREAD_LOCAL, CAPTURE_MODE_RELAXED };

struct Capture {
    Stream *origin;
    int mode;
    pthread_t thread;
    bool invalidated;
    Graph *graph;
    Capture *next;
};

static Stream legacy_streams[MAX_DEVICES];
static _Thread_local Stream thread_streams[MAX_DEVICES];
/* Whether captures of other threads forbid unsafe calls of this thread. */
static _Thread_local int thread_mode = CAPTURE_MODE_GLOBAL;
/* The captures in progress. */
static Capture *_Atomic captures;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

Stream *core_stream(void *handle) {
    int device = core_current_device();
    if ((uintptr_t)handle <= 1) {
        legacy_streams[device].device = device;
        return &legacy_streams[device];
    }
    if ((uintptr_t)handle == 2) {
        thread_streams[device].device = device;
        thread_streams[device].blocking = true;
        return &thread_streams[device];
    }
    Stream *stream = handle;
    return stream->destroyed ? NULL : stream;
}

Stream *core_create_stream(bool blocking) {
    /* Streams are never returned to the heap, so that the use of a destroyed stream is noticed. */
    Stream *stream = calloc(1, sizeof *stream);
    stream->device = core_current_device();
    stream->blocking = blocking;
    return stream;
}

int core_capture_status(const Stream *stream) {
    Capture *capture = stream->capture;
    return capture == NULL ? 0 : capture->invalidated ? 2 : 1;
}

cudaError_t core_begin_work(void *handle, int *device, bool *captured) {
    *device = core_current_device();
    *captured = false;
    cudaError_t error = core_enter();
    if (error != cudaSuccess)
        return error;
    Stream *stream = core_stream(handle);
    if (stream == NULL || stream->device != *device)
        return cudaErrorInvalidResourceHandle;
    if (captures == NULL)
        return cudaSuccess;
    int status = core_capture_status(stream);
    *captured = status != 0;
    if (status == 2)
        return cudaErrorStreamCaptureInvalidated;
    return (uintptr_t)handle <= 1 ? core_legacy_stream_during_capture(*device) : cudaSuccess;
}

cudaError_t core_begin_launch(void *handle, int *device, bool *captured) {
    cudaError_t error = core_begin_work(handle, device, captured);
    if (error != cudaSuccess)
        return error;
    return *captured ? cudaSuccess : core_count_launch(*device);
}

void core_record_node(void *handle, Node node) {
    Graph *graph = core_stream(handle)->capture->graph;
    pthread_mutex_lock(&lock);
    graph->nodes = realloc(graph->nodes, (graph->node_count + 1) * sizeof node);
    graph->nodes[graph->node_count++] = node;
    pthread_mutex_unlock(&lock);
}

cudaError_t core_begin_capture(void *handle, int mode) {
    Stream *stream = core_stream(handle);
    if (stream == NULL)
        return cudaErrorInvalidResourceHandle;
    if ((uintptr_t)handle <= 1)
        return cudaErrorStreamCaptureUnsupported; /* the legacy stream cannot be captured */
    if (stream->capture != NULL)
        return cudaErrorIllegalState;
    Capture *capture = calloc(1, sizeof *capture);
    capture->origin = stream;
    capture->mode = mode;
    capture->thread = pthread_self();
    capture->graph = calloc(1, sizeof *capture->graph);
    pthread_mutex_lock(&lock);
    capture->next = captures;
    captures = capture;
    stream->capture = capture;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t core_end_capture(void *handle, Graph **graph) {
    *graph = NULL;
    Stream *stream = core_stream(handle);
    Capture *capture = stream == NULL ? NULL : stream->capture;
    if (capture == NULL)
        return cudaErrorInvalidValue;
    pthread_mutex_lock(&lock);
    Capture *_Atomic *link = &captures;
    if (captures == capture) {
        *link = capture->next;
    } else {
        Capture *before = captures;
        while (before->next != capture)
            before = before->next;
        before->next = capture->next;
    }
    stream->capture = NULL;
    pthread_mutex_unlock(&lock);
    if (capture->invalidated)
        return cudaErrorStreamCaptureInvalidated;
    *graph = capture->graph;
    return cudaSuccess;
}

void core_exchange_capture_mode(int *mode) {
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
}

void core_invalidate_capture(Stream *stream) { stream->capture->invalidated = true; }

cudaError_t core_unsafe_during_capture(void) {
    if (captures == NULL)
        return cudaSuccess;
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&lock);
    for (Capture *capture = captures; capture != NULL; capture = capture->next) {
        bool own = pthread_equal(capture->thread, pthread_self());
        bool forbids = own ? capture->mode != CAPTURE_MODE_RELAXED
                           : capture->mode == CAPTURE_MODE_GLOBAL && thread_mode == CAPTURE_MODE_GLOBAL;
        if (forbids && thread_mode != CAPTURE_MODE_RELAXED) {
            capture->invalidated = true;
            error = cudaErrorStreamCaptureUnsupported;
        }
    }
    pthread_mutex_unlock(&lock);
    return error;
}

/* Invalidate the captures of a device's streams, or of its blocking streams alone, and return the error if any is. */
static cudaError_t invalidate_captures(int device, bool blocking_alone, cudaError_t error) {
    if (captures == NULL)
        return cudaSuccess;
    cudaError_t found = cudaSuccess;
    pthread_mutex_lock(&lock);
    for (Capture *capture = captures; capture != NULL; capture = capture->next)
        if (capture->origin->device == device && (capture->origin->blocking || !blocking_alone)) {
            capture->invalidated = true;
            found = error;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

cudaError_t core_wait_during_capture(int device) {
    return invalidate_captures(device, false, cudaErrorStreamCaptureUnsupported);
}

cudaError_t core_legacy_stream_during_capture(int device) {
    return invalidate_captures(device, true, cudaErrorStreamCaptureImplicit);
}
