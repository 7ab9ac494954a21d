/*
 * The table of vfs.h on Linux: the only file of the core that makes system calls on files, clocks and events.
 *
 * Must never
 *   - follow a symbolic link or leave the directory handle it was given: names with '/' and "." and ".." are refused.
 *     (The path of open_dir and make_dir comes from the caller and is resolved as usual, symbolic links included.)
 *   - repeat a call whose repetition could hide a loss: sync_data, sync_file, sync_dir and close run exactly once,
 *     rename and unlink too, because a second try would report the first one's success as -ENOENT.
 *   - report a file as durable that has no name any more: syncing an unlinked file returns -ESTALE, as on NFS.
 *   - wait: a FIFO or a device cannot block open, flock never waits, an eventfd never blocks.
 *
 * What always holds
 *   - After EINTR, open, pread, pwrite, truncate, flock, getrandom and the eventfd's write are repeated, because it
 *     means that nothing happened; after INTERRUPTED_TRIES in a row it is returned, so that no call is endless. allocate
 *     is repeated a few times only, because tmpfs starts again from the beginning. All other calls return it at once.
 *   - New files have mode 0600 and new directories 0700, whatever the umask. Existing ones keep their mode.
 *   - There is no state: the table is constant, and any thread may call it.
 *
 * A process that limits its file size (RLIMIT_FSIZE) must ignore SIGXFSZ, as Python does, to see -EFBIG here.
 */
#include "os/vfs.h"

#undef NDEBUG /* assertions stay on in release */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum {
    FILE_MODE = 0600,
    DIR_MODE = 0700,
    DIR_FLAGS = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
    OPEN_TRIES = 64,     /* another process may create and unlink the name between our open and our create */
    ALLOCATE_TRIES = 16, /* a profiler's timer may interrupt a long fallocate each time */
    INTERRUPTED_TRIES = 1000,
};

/* Whether a call that failed is repeated; `tries` counts its repetitions. */
static bool is_repeated(int *tries) { return errno == EINTR && ++*tries < INTERRUPTED_TRIES; }

static int error_now(void) {
    assert(errno > 0);
    return -errno;
}

static int check_name(const char *name) {
    size_t length = strnlen(name, (size_t)VFS_NAME_MAX + 1);

    if (length > VFS_NAME_MAX)
        return -ENAMETOOLONG;
    if (length == 0 || strchr(name, '/') != NULL || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return -EINVAL;
    return 0;
}

static int openat_again(int dir, const char *name, int flags) {
    int fd, tries = 0;

    do
        fd = openat(dir, name, flags, FILE_MODE);
    while (fd < 0 && is_repeated(&tries));
    return fd < 0 ? error_now() : fd;
}

/* ---- directories ---- */

static int posix_open_dir(vfs *v, const char *path) {
    (void)v;
    return openat_again(AT_FDCWD, path, DIR_FLAGS);
}

/* mkdir, then sets the mode bits that the umask cleared. If that fails, removes the directory again. */
static int make_dir_at(int dir, const char *name) {
    struct stat st;
    int result;

    if (mkdirat(dir, name, DIR_MODE) != 0)
        return error_now();
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && (st.st_mode & 0777) == DIR_MODE)
        return 0;
    if (fchmodat(dir, name, DIR_MODE, AT_SYMLINK_NOFOLLOW) == 0)
        return 0;
    result = error_now();
    (void)unlinkat(dir, name, AT_REMOVEDIR);
    return result;
}

static int posix_make_dir(vfs *v, const char *path) {
    (void)v;
    return make_dir_at(AT_FDCWD, path);
}

static int posix_open_subdir(vfs *v, int dir, const char *name, int create) {
    int result = check_name(name);

    (void)v;
    if (result == 0 && create) {
        result = make_dir_at(dir, name);
        if (result == -EEXIST)
            result = 0; /* if it is not a directory, the open below fails */
    }
    return result != 0 ? result : openat_again(dir, name, DIR_FLAGS | O_NOFOLLOW);
}

static int posix_remove_dir(vfs *v, int dir, const char *name) {
    int result = check_name(name);

    (void)v;
    if (result != 0)
        return result;
    return unlinkat(dir, name, AT_REMOVEDIR) != 0 ? error_now() : 0;
}

/* Opens the directory again for each listing, because duplicates of a descriptor share one read position. */
static int posix_list(vfs *v, int dir, vfs_list_fn *each, void *context) {
    int result = 0;
    int fd = openat_again(dir, ".", DIR_FLAGS);
    DIR *stream;

    (void)v;
    if (fd < 0)
        return fd;
    stream = fdopendir(fd);
    if (stream == NULL) {
        result = error_now();
        (void)close(fd);
        return result;
    }
    while (result == 0) {
        const struct dirent *entry;

        errno = 0;
        entry = readdir(stream);
        if (entry == NULL) {
            result = -errno; /* 0 at the end */
            break;
        }
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            result = each(context, entry->d_name);
    }
    (void)closedir(stream);
    return result;
}

static int posix_sync_dir(vfs *v, int dir) {
    (void)v;
    return fsync(dir) != 0 ? error_now() : 0;
}

static int64_t posix_free_bytes(vfs *v, int dir) {
    struct statvfs found;

    (void)v;
    if (fstatvfs(dir, &found) != 0)
        return error_now();
    if (found.f_frsize != 0 && found.f_bavail > (uint64_t)INT64_MAX / found.f_frsize)
        return INT64_MAX;
    return (int64_t)(found.f_bavail * found.f_frsize);
}

/* ---- files ---- */

static int create_file(int dir, const char *name, int flags) {
    struct stat st;
    int result;
    int fd = openat_again(dir, name, flags | O_CREAT | O_EXCL);

    if (fd < 0)
        return fd;
    if (fstat(fd, &st) == 0 && (st.st_mode & 0777) == FILE_MODE)
        return fd;
    if (fchmod(fd, FILE_MODE) == 0)
        return fd;
    result = error_now();
    (void)unlinkat(dir, name, 0);
    (void)close(fd);
    return result;
}

static int refuse_irregular(int fd) {
    struct stat st;
    int result = 0;

    if (fstat(fd, &st) != 0)
        result = error_now();
    else if (S_ISDIR(st.st_mode))
        result = -EISDIR;
    else if (!S_ISREG(st.st_mode))
        result = -VFS_NOT_REGULAR;
    if (result != 0)
        (void)close(fd);
    return result != 0 ? result : fd;
}

/* O_NONBLOCK keeps a FIFO or a device from blocking the open; for a regular file it has no effect. Opening and creating
 * are separate calls, so that only a file that was created here gets its mode set. */
static int posix_open(vfs *v, int dir, const char *name, unsigned flags) {
    int how = O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    int fd = check_name(name);

    (void)v;
    if (fd != 0)
        return fd;
    how |= flags & VFS_WRITE ? O_RDWR : O_RDONLY;
    how |= flags & VFS_DIRECT ? O_DIRECT : 0;
    if (flags & VFS_CREATE && flags & VFS_EXCLUSIVE)
        return create_file(dir, name, how);
    for (int tries = 0; tries < OPEN_TRIES; tries++) {
        fd = openat_again(dir, name, how);
        if (fd >= 0)
            return refuse_irregular(fd);
        if (fd != -ENOENT || !(flags & VFS_CREATE))
            return fd;
        fd = create_file(dir, name, how);
        if (fd != -EEXIST)
            return fd;
    }
    return fd;
}

/* Not repeated on EINTR: Linux has freed the descriptor's number by then, and another thread may already own it. */
static int posix_close(vfs *v, int handle) {
    (void)v;
    return close(handle) != 0 ? error_now() : 0;
}

static int64_t posix_pread(vfs *v, int file, void *into, size_t bytes, uint64_t at) {
    ssize_t transferred;
    int tries = 0;

    (void)v;
    if (at > INT64_MAX)
        return -EINVAL;
    do
        transferred = pread(file, into, bytes, (off_t)at);
    while (transferred < 0 && is_repeated(&tries));
    return transferred < 0 ? error_now() : (int64_t)transferred;
}

static int64_t posix_pwrite(vfs *v, int file, const void *from, size_t bytes, uint64_t at) {
    ssize_t transferred;
    int tries = 0;

    (void)v;
    if (at > INT64_MAX)
        return -EFBIG;
    do
        transferred = pwrite(file, from, bytes, (off_t)at);
    while (transferred < 0 && is_repeated(&tries));
    return transferred < 0 ? error_now() : (int64_t)transferred;
}

static int64_t posix_size(vfs *v, int file) {
    struct stat st;

    (void)v;
    return fstat(file, &st) != 0 ? error_now() : (int64_t)st.st_size;
}

/* Returns -EOPNOTSUPP where the file system cannot allocate; the caller then writes zeros. glibc's posix_fallocate would
 * write them itself, one byte in each block. */
static int posix_allocate(vfs *v, int file, uint64_t bytes) {
    int result = 0;

    (void)v;
    if (bytes > INT64_MAX)
        return -EFBIG;
    if (bytes == 0)
        return 0;
    for (int tries = 0; tries < ALLOCATE_TRIES; tries++) {
        result = fallocate(file, 0, 0, (off_t)bytes) != 0 ? error_now() : 0;
        if (result != -EINTR)
            break;
    }
    return result == -ENOSYS ? -EOPNOTSUPP : result;
}

static int posix_truncate(vfs *v, int file, uint64_t bytes) {
    int result, tries = 0;

    (void)v;
    if (bytes > INT64_MAX)
        return -EFBIG;
    do
        result = ftruncate(file, (off_t)bytes);
    while (result != 0 && is_repeated(&tries));
    return result != 0 ? error_now() : 0;
}

/*
 * If another process unlinks the file, or renames another file over it, later writes to it are lost with it. The call
 * requests only the link count: a request for times makes kernels from 6.13 on give the next write a new timestamp, and
 * then every fdatasync also writes the inode.
 */
static int still_has_a_name(int file) {
    struct statx st;

    if (statx(file, "", AT_EMPTY_PATH, STATX_NLINK, &st) != 0)
        return error_now();
    return st.stx_nlink > 0 ? 0 : -ESTALE;
}

static int posix_sync_data(vfs *v, int file) {
    (void)v;
    return fdatasync(file) != 0 ? error_now() : still_has_a_name(file);
}

static int posix_sync_file(vfs *v, int file) {
    (void)v;
    return fsync(file) != 0 ? error_now() : still_has_a_name(file);
}

static int posix_start_writeback(vfs *v, int file, uint64_t at, uint64_t bytes) {
    (void)v;
    if (at > INT64_MAX || bytes > INT64_MAX)
        return -EINVAL;
    if (sync_file_range(file, (off_t)at, (off_t)bytes, SYNC_FILE_RANGE_WRITE) == 0)
        return 0;
    return errno == ENOSYS || errno == EOPNOTSUPP || errno == ESPIPE || errno == EPERM ? 0 : -errno;
}

/* Not POSIX_FADV_WILLNEED: docs/decisions/recovery.md, "The kernel's own read-ahead". */
static int posix_advise_sequential(vfs *v, int file, uint64_t at, uint64_t bytes) {
    (void)v;
    if (at > INT64_MAX || bytes > INT64_MAX)
        return -EINVAL;
    return -posix_fadvise(file, (off_t)at, (off_t)bytes, POSIX_FADV_SEQUENTIAL);
}

/* ---- names and locks ---- */

static int posix_rename(vfs *v, int dir, const char *from, const char *to) {
    int result = check_name(from);

    (void)v;
    if (result == 0)
        result = check_name(to);
    if (result != 0)
        return result;
    return renameat(dir, from, dir, to) != 0 ? error_now() : 0;
}

static int posix_unlink(vfs *v, int dir, const char *name) {
    int result = check_name(name);

    (void)v;
    if (result != 0)
        return result;
    return unlinkat(dir, name, 0) != 0 ? error_now() : 0;
}

static int posix_lock(vfs *v, int file, int exclusive) {
    int result, tries = 0;

    (void)v;
    do
        result = flock(file, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB);
    while (result != 0 && is_repeated(&tries));
    return result != 0 ? error_now() : 0;
}

/* ---- clocks, randomness, events ---- */

enum { NS_A_SECOND = 1000000000 };

static uint64_t clock_us(clockid_t which) {
    struct timespec now;
    int result = clock_gettime(which, &now);

    assert(result == 0); /* both clocks exist on every Linux */
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static int posix_wait_s(vfs *v, pthread_cond_t *signal, pthread_mutex_t *held, unsigned seconds) {
    (void)v;
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    return -pthread_cond_timedwait(signal, held, &until);
}

/* Where the C library cannot wait by the monotonic clock, a change of the time of day makes it wrong. */
int vfs_wait_until(sem_t *wake, uint64_t until_ns) {
    if (until_ns == UINT64_MAX) {
        return sem_wait(wake) == 0 ? 0 : -errno;
    }
    struct timespec until = {.tv_sec = (time_t)(until_ns / NS_A_SECOND), .tv_nsec = (long)(until_ns % NS_A_SECOND)};
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 30)
    return sem_clockwait(wake, CLOCK_MONOTONIC, &until) == 0 ? 0 : -errno;
#else
    struct timespec day, now;
    (void)clock_gettime(CLOCK_REALTIME, &day);
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    until.tv_sec += day.tv_sec - now.tv_sec;
    until.tv_nsec += day.tv_nsec - now.tv_nsec;
    until.tv_sec += until.tv_nsec < 0 ? -1 : until.tv_nsec >= NS_A_SECOND ? 1 : 0;
    until.tv_nsec += until.tv_nsec < 0 ? NS_A_SECOND : until.tv_nsec >= NS_A_SECOND ? -NS_A_SECOND : 0;
    return sem_timedwait(wake, &until) == 0 ? 0 : -errno;
#endif
}

static void posix_wait_us(vfs *v, sem_t *wake, uint64_t us) {
    (void)v;
    uint64_t until_ns = us == UINT64_MAX ? UINT64_MAX : (clock_us(CLOCK_MONOTONIC) + us) * 1000;
    while (vfs_wait_until(wake, until_ns) == -EINTR) {
    }
}

static uint64_t posix_now_us(vfs *v) {
    (void)v;
    return clock_us(CLOCK_REALTIME);
}

static uint64_t posix_monotonic_us(vfs *v) {
    (void)v;
    return clock_us(CLOCK_MONOTONIC);
}

static int posix_random(vfs *v, void *into, size_t bytes) {
    unsigned char *next = into;
    int tries = 0;

    (void)v;
    while (bytes > 0) {
        ssize_t got = getrandom(next, bytes, 0);

        if (got < 0) {
            if (is_repeated(&tries))
                continue;
            return error_now();
        }
        assert((size_t)got <= bytes);
        next += got;
        bytes -= (size_t)got;
    }
    return 0;
}

static int posix_event_new(vfs *v) {
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

    (void)v;
    return fd < 0 ? error_now() : fd;
}

static int posix_event_signal(vfs *v, int event) {
    uint64_t one = 1;
    ssize_t transferred;
    int tries = 0;

    (void)v;
    do
        transferred = write(event, &one, sizeof one);
    while (transferred < 0 && is_repeated(&tries));
    if (transferred < 0)
        return errno == EAGAIN ? 0 : error_now(); /* a full counter still wakes the reader */
    return transferred == (ssize_t)sizeof one ? 0 : -EIO;
}

static int posix_socket_dup(vfs *v, int socket) {
    int made = fcntl(socket, F_DUPFD_CLOEXEC, 0);

    (void)v;
    return made < 0 ? error_now() : made;
}

static int64_t posix_send(vfs *v, int socket, const void *from, size_t bytes) {
    ssize_t transferred = send(socket, from, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);

    (void)v;
    return transferred < 0 ? error_now() : transferred;
}

void vfs_advise_large_pages(void *memory, size_t bytes) {
    const uintptr_t page = LARGE_PAGE_BYTES;
    uintptr_t from = ((uintptr_t)memory + page - 1) / page * page, to = ((uintptr_t)memory + bytes) / page * page;

    if (from < to)
        (void)madvise((char *)memory + (from - (uintptr_t)memory), to - from, MADV_HUGEPAGE);
}

vfs *vfs_posix(void) {
    static vfs table = {
        .context = NULL,
        .open_dir = posix_open_dir,
        .make_dir = posix_make_dir,
        .open_subdir = posix_open_subdir,
        .remove_dir = posix_remove_dir,
        .list = posix_list,
        .sync_dir = posix_sync_dir,
        .free_bytes = posix_free_bytes,
        .open = posix_open,
        .close = posix_close,
        .pread = posix_pread,
        .pwrite = posix_pwrite,
        .size = posix_size,
        .allocate = posix_allocate,
        .truncate = posix_truncate,
        .sync_data = posix_sync_data,
        .sync_file = posix_sync_file,
        .start_writeback = posix_start_writeback,
        .advise_sequential = posix_advise_sequential,
        .rename = posix_rename,
        .unlink = posix_unlink,
        .lock = posix_lock,
        .now_us = posix_now_us,
        .wait_s = posix_wait_s,
        .wait_us = posix_wait_us,
        .monotonic_us = posix_monotonic_us,
        .random = posix_random,
        .event_new = posix_event_new,
        .event_signal = posix_event_signal,
        .event_close = posix_close,
        .socket_dup = posix_socket_dup,
        .send = posix_send,
        .socket_close = posix_close,
    };

    return &table;
}
