/* See io.h. */
#include "os/io.h"

#include <errno.h>

enum { READ_TRIES = 16 }; /* reads in a row that may end before the end of their first block */

int io_write(vfs *v, int file, const void *from, size_t bytes, uint64_t at, struct io_written *written) {
    const unsigned char *next = from;
    int interrupted = 0;
    while (bytes > 0) {
        int64_t moved = v->pwrite(v, file, next, bytes, at);
        if (moved == -EINTR && ++interrupted < IO_INTERRUPTED_MAX) {
            continue;
        }
        if (moved < 0) {
            return (int)moved;
        }
        if (moved == 0 || (uint64_t)moved > bytes) {
            return -EIO;
        }
        if (written != NULL) {
            atomic_fetch_add_explicit(&written->bytes, (uint64_t)moved, memory_order_relaxed);
            atomic_fetch_add_explicit(&written->calls, 1, memory_order_relaxed);
        }
        interrupted = 0;
        next += moved;
        at += (uint64_t)moved;
        bytes -= (size_t)moved;
    }
    return 0;
}

/*
 * Past the page cache every read must begin at a block's start. So after a read that ended within a block, the next one
 * repeats that block, unless the file ends there.
 */
int64_t io_read_direct(vfs *v, int file, void *into, size_t bytes, uint64_t at) {
    unsigned char *next = into;
    size_t got = 0;
    int tries = 0, interrupted = 0;
    while (got < bytes) {
        int64_t moved = v->pread(v, file, next + got, bytes - got, at + got);
        if (moved == -EINTR && ++interrupted < IO_INTERRUPTED_MAX) {
            continue;
        }
        if (moved <= 0 || (uint64_t)moved > bytes - got) {
            return moved < 0 ? moved : moved == 0 ? (int64_t)got : -EIO;
        }
        interrupted = 0;
        size_t end = got + (size_t)moved, whole = end - end % IO_BLOCK_BYTES;
        if (whole < end) {
            int64_t size = v->size(v, file);
            if (size < 0) {
                return size;
            }
            if (at + end >= (uint64_t)size) {
                return (int64_t)end;
            }
            tries = whole > got ? 0 : tries + 1;
            if (tries == READ_TRIES) {
                return -EIO;
            }
        }
        got = whole;
    }
    return (int64_t)got;
}

int64_t io_read(vfs *v, int file, void *into, size_t bytes, uint64_t at) {
    unsigned char *next = into;
    size_t left = bytes;
    int interrupted = 0;
    while (left > 0) {
        int64_t moved = v->pread(v, file, next, left, at);
        if (moved == -EINTR && ++interrupted < IO_INTERRUPTED_MAX) {
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
        interrupted = 0;
        next += moved;
        at += (uint64_t)moved;
        left -= (size_t)moved;
    }
    return (int64_t)(bytes - left);
}
