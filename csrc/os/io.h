/* Whole transfers over a vfs whose pread and pwrite may move fewer bytes than requested, or be interrupted. */
#ifndef LOGSTORE_IO_H
#define LOGSTORE_IO_H

#include <stdatomic.h>

#include "os/vfs.h"

/* The device's unit: a transfer past the page cache must have a multiple of it as its size and its offset. */
enum { IO_BLOCK_BYTES = 4096 };

/* A transfer returns -EINTR after this many interruptions in a row without progress, so that no call is endless. */
enum { IO_INTERRUPTED_MAX = 16 };

/* Bytes and calls that pwrite has accepted; any thread may add to them. */
struct io_written {
    _Atomic uint64_t bytes;
    _Atomic uint64_t calls;
};

/* The directory of a store: its open handle, and what was written to its files. */
struct directory {
    vfs *v;
    int dir;
    struct io_written written;
};

/* Writes all bytes and returns 0, or -errno; -EIO if a pwrite moves nothing. Adds to `written`, which may be NULL. */
int io_write(vfs *v, int file, const void *from, size_t bytes, uint64_t at, struct io_written *written);
/* Returns the bytes read, fewer than requested only at the end of the file; or -errno. */
int64_t io_read(vfs *v, int file, void *into, size_t bytes, uint64_t at);
/* The same past the page cache, in whole blocks; -EIO if reads repeatedly end within the same block. */
int64_t io_read_direct(vfs *v, int file, void *into, size_t bytes, uint64_t at);

#endif
