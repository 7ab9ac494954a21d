/*
 * One table of functions for every system call of the core on files, directories, clocks and events.
 *
 * Nothing else in csrc/ may open, read, write, sync, rename, lock or map a file. vfs_posix.c implements it for Linux.
 * The tests' vfs_sim.c implements it in memory; it records calls, and fails and crashes on demand.
 *
 * Conventions
 *   - A result below 0 is -errno. Transfers return the bytes moved, which may be fewer than requested (callers
 *     loop); 0 from pread is the end of the file.
 *   - A file or directory is a small non-negative int owned by the table; it is closed with close().
 *   - Names are single path components relative to a directory handle; symbolic links are refused.
 *   - Files are created 0600, directories 0700, and only regular files are opened (else -VFS_NOT_REGULAR, or
 *     -EISDIR).
 *   - Functions may be called from several threads at once, on different or the same handles.
 */
#ifndef LOGSTORE_VFS_H
#define LOGSTORE_VFS_H

#include <pthread.h>
#include <semaphore.h>
#include <stddef.h>
#include <stdint.h>

enum {
    VFS_WRITE = 1,     /* open for reading and writing; without it, for reading only */
    VFS_CREATE = 2,    /* create the file if it is absent */
    VFS_EXCLUSIVE = 4, /* with VFS_CREATE: -EEXIST if it is there */
    VFS_DIRECT = 8,    /* bypass the page cache; -EINVAL where the file system cannot */
};

/* The error for opening a FIFO, a socket or a device. Larger than every errno. */
enum { VFS_NOT_REGULAR = 1 << 16 };

enum { VFS_NAME_MAX = 255, LARGE_PAGE_BYTES = 2 << 20 };

typedef struct vfs vfs;

/* Called once per directory entry (never "." or ".."); a result other than 0 stops the listing and is returned. */
typedef int vfs_list_fn(void *context, const char *name);

struct vfs {
    void *context; /* the implementation's own */

    int (*open_dir)(vfs *v, const char *path);                         /* an existing directory */
    int (*make_dir)(vfs *v, const char *path);                         /* one level, 0700; -EEXIST if there */
    int (*open_subdir)(vfs *v, int dir, const char *name, int create); /* in `dir`; made if absent and `create` */
    int (*list)(vfs *v, int dir, vfs_list_fn *each, void *context);
    int (*sync_dir)(vfs *v, int dir);
    int64_t (*free_bytes)(vfs *v, int dir);               /* of its file system, for this user */
    int (*remove_dir)(vfs *v, int dir, const char *name); /* an empty directory in `dir`; -ENOTEMPTY */

    int (*open)(vfs *v, int dir, const char *name, unsigned flags);
    int (*close)(vfs *v, int handle); /* files and directories; the handle is gone whatever the result */
    int64_t (*pread)(vfs *v, int file, void *into, size_t bytes, uint64_t at);
    int64_t (*pwrite)(vfs *v, int file, const void *from, size_t bytes, uint64_t at);
    int64_t (*size)(vfs *v, int file);
    int (*allocate)(vfs *v, int file, uint64_t bytes); /* reserve blocks and extend to bytes; reads as zeros */
    int (*truncate)(vfs *v, int file, uint64_t bytes);
    int (*sync_data)(vfs *v, int file); /* fdatasync; -ESTALE if no name leads to the file any more */
    int (*sync_file)(vfs *v, int file); /* fsync, likewise */
    /* Asks the device to start writing this range; makes nothing durable. 0 also where the system cannot do this. */
    int (*start_writeback)(vfs *v, int file, uint64_t at, uint64_t bytes);
    int (*advise_sequential)(vfs *v, int file, uint64_t at, uint64_t bytes); /* will be read in order; advice only */

    int (*rename)(vfs *v, int dir, const char *from, const char *to); /* replaces `to` */
    int (*unlink)(vfs *v, int dir, const char *name);
    int (*lock)(vfs *v, int file, int exclusive); /* flock without waiting: -EWOULDBLOCK if held by another */

    uint64_t (*now_us)(vfs *v);       /* wall clock, µs since 1970 */
    uint64_t (*monotonic_us)(vfs *v); /* for durations */
    /* Waits for the signal; -ETIMEDOUT after about `seconds`, unless the clock is a simulated one that stands still. */
    int (*wait_s)(vfs *v, pthread_cond_t *signal, pthread_mutex_t *held, unsigned seconds);
    /* Waits for the semaphore, at most about this long (UINT64_MAX: for ever), unless the clock is a simulated one that stands still. */
    void (*wait_us)(vfs *v, sem_t *wake, uint64_t us);
    int (*random)(vfs *v, void *into, size_t bytes); /* for the store's UUID */
    int (*event_new)(vfs *v);                        /* an eventfd, non-blocking, close-on-exec */
    int (*event_signal)(vfs *v, int event);          /* adds one; a full counter is not an error */
    int (*event_close)(vfs *v, int event);
    int (*socket_dup)(vfs *v, int socket);                               /* a second descriptor, close-on-exec */
    int64_t (*send)(vfs *v, int socket, const void *from, size_t bytes); /* what fits now; -EAGAIN: nothing */
    int (*socket_close)(vfs *v, int socket);
};

/* The Linux implementation; one static table, never freed. */
vfs *vfs_posix(void);
/* Waits for the semaphore until this time of the monotonic clock, UINT64_MAX: for ever. 0, -EINTR or -ETIMEDOUT. */
int vfs_wait_until(sem_t *wake, uint64_t until_ns);
/* Advises the system to back this memory with large pages, because all of it will be used at random. Keeps the contents.
   Neither is in the table: a simulation needs no other version of them. */
void vfs_advise_large_pages(void *memory, size_t bytes);

#endif
