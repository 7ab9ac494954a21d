/* Whole transfers over a vfs that may move less than asked, or be interrupted. */
#ifndef LOGSTORE_IO_H
#define LOGSTORE_IO_H

#include <stdatomic.h>

#include "os/vfs.h"

/* What the device moves at once: past the page cache only whole blocks at whole offsets may be asked for. */
enum { IO_BLOCK_BYTES = 4096 };

/* A transfer that is interrupted so often without moving anything ends with -EINTR: no wait is endless. */
enum { IO_INTERRUPTED_MAX = 16 };

/* What was handed to the system to write, counted by whoever does it, from any thread. */
struct io_written {
    _Atomic uint64_t bytes;
    _Atomic uint64_t calls;
};

/* All bytes, or -errno. A pwrite that moves nothing is -EIO. Adds what moved to `written`, which may be NULL. */
int io_write(vfs *v, int file, const void *from, size_t bytes, uint64_t at, struct io_written *written);
/* Bytes read, fewer than asked only at the end of the file; or -errno. */
int64_t io_read(vfs *v, int file, void *into, size_t bytes, uint64_t at);
/* The same past the page cache, of whole blocks; -EIO if no read gets to the end of a block. */
int64_t io_read_direct(vfs *v, int file, void *into, size_t bytes, uint64_t at);

#endif
