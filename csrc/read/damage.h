/* Errors that name a segment and an LSN. */
#ifndef LOGSTORE_DAMAGE_H
#define LOGSTORE_DAMAGE_H

#include "os/error.h"

/* As fail(), naming the segment that begins at first_lsn, the LSN, and the offset between the two. */
int fail_at(int code, uint64_t first_lsn, uint64_t lsn, const char *format, ...) __attribute__((format(printf, 4, 5)));

#define fail_at(code, first_lsn, lsn, ...) (fail_at((code), (first_lsn), (lsn), __VA_ARGS__), (code))

#endif
