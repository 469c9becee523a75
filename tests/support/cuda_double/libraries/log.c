/* The log: one line per event, appended by one system call, so that no line is lost when the process is killed. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core.h"

enum { LONGEST_LINE = 16384 }; /* names of template kernels take several thousand bytes */

static int log_file = -1;

__attribute__((constructor)) static void open_log(void) {
    const char *path = getenv("CUDA_DOUBLE_LOG");
    if (path != NULL)
        log_file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

static void write_line(const char *event, const char *format, va_list fields) {
    char line[LONGEST_LINE];
    int length = snprintf(line, sizeof line, "%s ", event);
    length += vsnprintf(line + length, sizeof line - length, format, fields);
    if (length > LONGEST_LINE - 1)
        length = LONGEST_LINE - 1;
    line[length] = '\n';
    ssize_t written = write(log_file, line, length + 1);
    (void)written;
}

void core_log(const char *event, const char *format, ...) {
    if (log_file < 0 || core_controls()->logging_off)
        return;
    va_list fields;
    va_start(fields, format);
    write_line(event, format, fields);
    va_end(fields);
}

void core_log_always(const char *event, const char *format, ...) {
    if (log_file < 0)
        return;
    va_list fields;
    va_start(fields, format);
    write_line(event, format, fields);
    va_end(fields);
}
