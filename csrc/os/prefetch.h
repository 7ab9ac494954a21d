/* Loading memory into the CPU's cache before it is needed. */
#ifndef LOGSTORE_PREFETCH_H
#define LOGSTORE_PREFETCH_H

#include <stddef.h>

static inline void prefetch(const void *at) {
    __builtin_prefetch(at, 1);
    /* Without it gcc finds that a function which only prefetches has no effect, and removes its calls. */
    __asm__ volatile("");
}

/* The same for so many bytes; NULL: none. */
static inline void prefetch_bytes(const void *from, size_t bytes) {
    enum { LINE = 64 };
    for (size_t at = 0; from != NULL && at < bytes; at += LINE) {
        prefetch((const char *)from + at);
    }
}

#endif
