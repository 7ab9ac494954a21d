/* See io.h. */
#include "io.h"

#include <errno.h>

#include "mutants.h"

int io_write(vfs *v, int file, const void *from, size_t bytes, uint64_t at, struct io_written *written) {
    const unsigned char *next = from;
    while (bytes > 0) {
        int64_t moved = v->pwrite(v, file, next, bytes, at);
        if (moved == -EINTR && MUTANT(INTERRUPTED_WRITE_IS_WHOLE)) {
            return 0;
        }
        if (moved == -EINTR) {
            continue;
        }
        if (moved < 0) {
            return (int)moved;
        }
        if ((uint64_t)moved < bytes && MUTANT(SHORT_WRITE_IS_WHOLE)) {
            return 0;
        }
        if (moved == 0 || (uint64_t)moved > bytes) {
            return -EIO;
        }
        if (written != NULL) {
            atomic_fetch_add_explicit(&written->bytes, (uint64_t)moved, memory_order_relaxed);
            atomic_fetch_add_explicit(&written->calls, 1, memory_order_relaxed);
        }
        next += moved;
        at += (uint64_t)moved;
        bytes -= (size_t)moved;
    }
    return 0;
}

int64_t io_read(vfs *v, int file, void *into, size_t bytes, uint64_t at) {
    unsigned char *next = into;
    size_t left = bytes;
    while (left > 0) {
        int64_t moved = v->pread(v, file, next, left, at);
        if (moved == -EINTR) {
            continue;
        }
        if (moved < 0) {
            return moved;
        }
        if (moved == 0) {
            break;
        }
        if ((uint64_t)moved > left) {
            return -EIO;
        }
        next += moved;
        at += (uint64_t)moved;
        left -= (size_t)moved;
    }
    return (int64_t)(bytes - left);
}
