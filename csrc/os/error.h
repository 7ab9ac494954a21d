/*
 * Failures. The function that detects a failure fills the thread's ls_error and returns the code; its callers pass
 * the code on. A text says what happened, where, and what to do next.
 */
#ifndef LOGSTORE_ERROR_H
#define LOGSTORE_ERROR_H

#include <stdarg.h>

#include "logstore.h"

int fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int fail_errno(int code, int sys_errno, const char *format, ...) __attribute__((format(printf, 3, 4)));
int fail_with(int code, const char *format, va_list arguments) __attribute__((format(printf, 2, 0)));
int fail_memory(void);
/* Makes a saved failure the thread's last one again, and returns its code. */
int fail_again(const ls_error *kept);
/* Adds the position in the log to the last failure: the segment's file name, the offset in that file, and the LSN. */
void error_locate(const char *segment, uint64_t offset, uint64_t lsn);

/* These macros show compilers and analysers that the result is the code argument, and so never 0. */
#define fail(code, ...)                  (fail((code), __VA_ARGS__), (code))
#define fail_errno(code, sys_errno, ...) (fail_errno((code), (sys_errno), __VA_ARGS__), (code))
#define fail_memory()                    (fail_memory(), LS_NO_MEMORY)

#endif
