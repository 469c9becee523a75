/* The page of memory through which tests inject failures, shared with them by a file if CUDA_DOUBLE_CONTROLS is set. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core.h"

static Controls private_controls;
static Controls *controls = &private_controls;

/* Priority 101 is the first that programs may use: other constructors read the controls. */
__attribute__((constructor(101))) static void map_controls(void) {
    const char *path = getenv("CUDA_DOUBLE_CONTROLS");
    if (path == NULL)
        return;
    int file = open(path, O_RDWR | O_CLOEXEC);
    void *page = file < 0 ? MAP_FAILED
                          : mmap(NULL, sizeof(Controls), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) {
        fprintf(stderr, "CUDA_DOUBLE_CONTROLS: %s cannot be mapped: create the file first\n", path);
        abort();
    }
    controls = page;
    close(file);
}

Controls *core_controls(void) { return controls; }
