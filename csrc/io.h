/* Whole transfers over a vfs that may move less than asked, or be interrupted. */
#ifndef LOGSTORE_IO_H
#define LOGSTORE_IO_H

#include "vfs.h"

/* All bytes, or -errno. A pwrite that moves nothing is -EIO. */
int io_write(vfs *v, int file, const void *from, size_t bytes, uint64_t at);
/* Bytes read, fewer than asked only at the end of the file; or -errno. */
int64_t io_read(vfs *v, int file, void *into, size_t bytes, uint64_t at);

#endif
