/*
 * Failures: one ls_error per thread, filled where the failure is known best, and the code returned upwards.
 * Texts say what happened, where, and what to do next.
 */
#ifndef LOGSTORE_ERROR_H
#define LOGSTORE_ERROR_H

#include <stdarg.h>

#include "logstore.h"

int fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int fail_errno(int code, int sys_errno, const char *format, ...) __attribute__((format(printf, 3, 4)));
int fail_with(int code, const char *format, va_list arguments) __attribute__((format(printf, 2, 0)));
int fail_memory(void);
/* A failure that was kept while something else was tried. */
int fail_again(const ls_error *kept);
/* Adds to the last failure where in the log it lies: the segment's file, the offset in it, and the LSN. */
void error_locate(const char *segment, uint64_t offset, uint64_t lsn);

/* So that compilers and analysers see that what comes back is the code that went in, and not 0. */
#define fail(code, ...)                  (fail((code), __VA_ARGS__), (code))
#define fail_errno(code, sys_errno, ...) (fail_errno((code), (sys_errno), __VA_ARGS__), (code))
#define fail_memory()                    (fail_memory(), LS_NO_MEMORY)

#endif
