/*
 * Failures: one ls_error per thread, filled where the failure is known best, and the code returned upwards.
 * Texts say what happened, where, and what to do next.
 */
#ifndef LOGSTORE_ERROR_H
#define LOGSTORE_ERROR_H

#include "logstore.h"

int fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int fail_errno(int code, int sys_errno, const char *format, ...) __attribute__((format(printf, 3, 4)));
int fail_at(int code, uint64_t first_lsn, uint64_t lsn, const char *format, ...) __attribute__((format(printf, 4, 5)));
int fail_memory(void);
/* A failure that was kept while something else was tried. */
int fail_again(const ls_error *kept);

/* So that compilers and analysers see that what comes back is the code that went in, and not 0. */
#define fail(code, ...)                    (fail((code), __VA_ARGS__), (code))
#define fail_errno(code, sys_errno, ...)   (fail_errno((code), (sys_errno), __VA_ARGS__), (code))
#define fail_at(code, first_lsn, lsn, ...) (fail_at((code), (first_lsn), (lsn), __VA_ARGS__), (code))
#define fail_memory()                      (fail_memory(), LS_NO_MEMORY)

#endif
