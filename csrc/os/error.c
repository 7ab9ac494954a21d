/* See error.h. Never allocates, so that it can report a failed allocation. */
#include "os/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "os/vfs.h"

static _Thread_local ls_error last_error;

const ls_error *ls_last_error(void) { return &last_error; }

int fail_with(int code, const char *format, va_list arguments) {
    memset(&last_error, 0, sizeof last_error);
    last_error.code = code;
    (void)vsnprintf(last_error.text, sizeof last_error.text, format, arguments);
    return code;
}

int(fail)(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)fail_with(code, format, arguments);
    va_end(arguments);
    return code;
}

int(fail_errno)(int code, int sys_errno, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)fail_with(code, format, arguments);
    va_end(arguments);
    bool irregular = sys_errno == VFS_NOT_REGULAR;
    last_error.sys_errno = irregular ? EINVAL : sys_errno;
    size_t used = strlen(last_error.text);
    (void)snprintf(last_error.text + used, sizeof last_error.text - used, ": %s",
                   irregular ? "it is not a regular file" : strerror(sys_errno));
    return code;
}

void error_locate(const char *segment, uint64_t offset, uint64_t lsn) {
    (void)snprintf(last_error.segment, sizeof last_error.segment, "%s", segment);
    last_error.lsn = lsn;
    last_error.offset = offset;
}

int(fail_memory)(void) { return fail(LS_NO_MEMORY, "out of memory; nothing was changed"); }

int fail_again(const ls_error *kept) {
    last_error = *kept;
    return kept->code;
}
