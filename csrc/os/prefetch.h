/* Loading memory into the CPU's cache before it is needed. */
#ifndef LOGSTORE_PREFETCH_H
#define LOGSTORE_PREFETCH_H

static inline void prefetch(const void *at) {
    __builtin_prefetch(at, 1);
    /* Without it gcc finds that a function which only prefetches has no effect, and removes its calls. */
    __asm__ volatile("");
}

#endif
