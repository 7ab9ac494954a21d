/* See io.h. */
#include "os/io.h"

#include <errno.h>

enum { READ_TRIES = 16 }; /* reads in a row that may end before the end of their first block */

int io_write(vfs *v, int file, const void *from, size_t bytes, uint64_t at, struct io_written *written) {
    const unsigned char *next = from;
    int interrupted = 0;
    while (bytes > 0) {
        int64_t transferred = v->pwrite(v, file, next, bytes, at);
        if (transferred == -EINTR && ++interrupted < IO_INTERRUPTED_MAX) {
            continue;
        }
        if (transferred < 0) {
            return (int)transferred;
        }
        if (transferred == 0 || (uint64_t)transferred > bytes) {
            return -EIO;
        }
        if (written != NULL) {
            atomic_fetch_add_explicit(&written->bytes, (uint64_t)transferred, memory_order_relaxed);
            atomic_fetch_add_explicit(&written->calls, 1, memory_order_relaxed);
        }
        interrupted = 0;
        next += transferred;
        at += (uint64_t)transferred;
        bytes -= (size_t)transferred;
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
        int64_t transferred = v->pread(v, file, next + got, bytes - got, at + got);
        if (transferred == -EINTR && ++interrupted < IO_INTERRUPTED_MAX) {
            continue;
        }
        if (transferred <= 0 || (uint64_t)transferred > bytes - got) {
            return transferred < 0 ? transferred : transferred == 0 ? (int64_t)got : -EIO;
        }
        interrupted = 0;
        size_t end = got + (size_t)transferred, whole = end - end % IO_BLOCK_BYTES;
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
        int64_t transferred = v->pread(v, file, next, left, at);
        if (transferred == -EINTR && ++interrupted < IO_INTERRUPTED_MAX) {
            continue;
        }
        if (transferred < 0) {
            return transferred;
        }
        if (transferred == 0) {
            break;
        }
        if ((uint64_t)transferred > left) {
            return -EIO;
        }
        interrupted = 0;
        next += transferred;
        at += (uint64_t)transferred;
        left -= (size_t)transferred;
    }
    return (int64_t)(bytes - left);
}
