/*
 * Rare errors of the operating system: vfs_posix.c must return every error unchanged, repeat only interrupted calls, and
 * undo what it could not finish.
 *
 * Some errors are provoked (no free descriptor, a file size limit, a full tmpfs). For the others the tests replace functions
 * of the C library; a replacement fails as planned, and otherwise makes the system call.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/io.h"
#include "tests/kit/vfs_test.h"

/* ---- the functions that fail on demand ---- */

enum call {
    NONE,
    OPENAT,
    LOOKING, /* openat that makes nothing */
    FSTAT,
    FSTATAT,
    STATX,
    FCHMOD,
    FCHMODAT,
    PREAD,
    PWRITE,
    FTRUNCATE,
    FALLOCATE,
    FSYNC,
    FDATASYNC,
    FADVISE,
    FLOCK,
    GETRANDOM,
    EVENTFD,
    WRITE
};

static enum call failing;
static int failing_errno, failing_times, failed, called;

static void plan(enum call call, int error, int times) {
    failing = call;
    failing_errno = error;
    failing_times = times;
    failed = called = 0;
}

static bool strikes(enum call call) {
    if (call != failing)
        return false;
    called++;
    if (failed == failing_times)
        return false;
    failed++;
    errno = failing_errno;
    return true;
}

int openat(int dir, const char *name, int flags, ...) {
    unsigned mode = 0;
    va_list more;

    va_start(more, flags);
    if ((flags & O_CREAT) != 0)
        mode = va_arg(more, unsigned);
    va_end(more);
    if (strikes(OPENAT) || ((flags & O_CREAT) == 0 && strikes(LOOKING)))
        return -1;
    return (int)syscall(SYS_openat, dir, name, flags, mode);
}

int fstatat(int dir, const char *restrict name, struct stat *restrict st, int flags) {
    return strikes(FSTATAT) ? -1 : (int)syscall(SYS_newfstatat, dir, name, st, flags);
}

int statx(int dir, const char *restrict name, int flags, unsigned mask, struct statx *restrict st) {
    return strikes(STATX) ? -1 : (int)syscall(SYS_statx, dir, name, flags, mask, st);
}

int fstat(int fd, struct stat *st) {
    return strikes(FSTAT) ? -1 : (int)syscall(SYS_newfstatat, fd, "", st, AT_EMPTY_PATH);
}

int fchmod(int fd, mode_t mode) { return strikes(FCHMOD) ? -1 : (int)syscall(SYS_fchmod, fd, mode); }

int fchmodat(int dir, const char *name, mode_t mode, int flags) {
    (void)flags;
    return strikes(FCHMODAT) ? -1 : (int)syscall(SYS_fchmodat, dir, name, mode);
}

ssize_t pread(int fd, void *into, size_t bytes, off_t at) {
    return strikes(PREAD) ? -1 : syscall(SYS_pread64, fd, into, bytes, at);
}

ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at) {
    return strikes(PWRITE) ? -1 : syscall(SYS_pwrite64, fd, from, bytes, at);
}

int ftruncate(int fd, off_t bytes) { return strikes(FTRUNCATE) ? -1 : (int)syscall(SYS_ftruncate, fd, bytes); }

int fallocate(int fd, int mode, off_t at, off_t bytes) {
    return strikes(FALLOCATE) ? -1 : (int)syscall(SYS_fallocate, fd, mode, at, bytes);
}

int fsync(int fd) { return strikes(FSYNC) ? -1 : (int)syscall(SYS_fsync, fd); }

int fdatasync(int fd) { return strikes(FDATASYNC) ? -1 : (int)syscall(SYS_fdatasync, fd); }

int posix_fadvise(int fd, off_t at, off_t bytes, int advice) {
    if (strikes(FADVISE))
        return errno;
    return syscall(SYS_fadvise64, fd, at, bytes, advice) != 0 ? errno : 0;
}

int flock(int fd, int how) { return strikes(FLOCK) ? -1 : (int)syscall(SYS_flock, fd, how); }

ssize_t getrandom(void *into, size_t bytes, unsigned flags) {
    return strikes(GETRANDOM) ? -1 : syscall(SYS_getrandom, into, bytes, flags);
}

int eventfd(unsigned count, int flags) { return strikes(EVENTFD) ? -1 : (int)syscall(SYS_eventfd2, count, flags); }

ssize_t write(int fd, const void *from, size_t bytes) {
    return strikes(WRITE) ? -1 : syscall(SYS_write, fd, from, bytes);
}

/* ---- a directory to work in ---- */

static vfs *v;
static char path[64];
static int dir;

static void enter(void) {
    plan(NONE, 0, 0);
    v = vfs_posix();
    (void)snprintf(path, sizeof path, "/tmp/logstore-test-XXXXXX");
    if (mkdtemp(path) == NULL)
        abort();
    dir = v->open_dir(v, path);
    if (dir < 0)
        abort();
}

static void leave(void) {
    char command[96];

    plan(NONE, 0, 0);
    check(v->close(v, dir) == 0);
    (void)snprintf(command, sizeof command, "rm -rf %s", path);
    check(system(command) == 0);
}

static int count_name(void *context, const char *name) {
    (void)name;
    ++*(int *)context;
    return 0;
}

static int names(void) {
    int n = 0;

    check(v->list(v, dir, count_name, &n) == 0);
    return n;
}

/* ---- tests ---- */

static void an_interrupted_call_is_repeated_until_it_is_not(void) {
    char bytes[16] = "before";
    int file, event;

    enter();
    plan(OPENAT, EINTR, 3);
    file = v->open(v, dir, "f", VFS_WRITE | VFS_CREATE | VFS_EXCLUSIVE);
    check(file >= 0 && failed == 3);
    plan(PWRITE, EINTR, 3);
    check(v->pwrite(v, file, bytes, 6, 0) == 6 && failed == 3);
    plan(PREAD, EINTR, 3);
    check(v->pread(v, file, bytes, 16, 0) == 6 && failed == 3);
    plan(FTRUNCATE, EINTR, 3);
    check(v->truncate(v, file, 3) == 0 && failed == 3 && v->size(v, file) == 3);
    plan(FLOCK, EINTR, 3);
    check(v->lock(v, file, 1) == 0 && failed == 3);
    plan(GETRANDOM, EINTR, 3);
    check(v->random(v, bytes, sizeof bytes) == 0 && failed == 3);
    event = v->event_new(v);
    plan(WRITE, EINTR, 3);
    check(v->event_signal(v, event) == 0 && failed == 3);
    plan(FALLOCATE, EINTR, 3);
    check(v->allocate(v, file, BLOCK) == 0 && failed == 3 && v->size(v, file) == BLOCK);
    check(v->event_close(v, event) == 0 && v->close(v, file) == 0);
    leave();
}

/* A profiler's timer may interrupt every try; an error is better than a call that never returns. */
static void an_allocation_that_is_interrupted_for_ever_gives_up(void) {
    int file;

    enter();
    file = v->open(v, dir, "f", VFS_WRITE | VFS_CREATE);
    plan(FALLOCATE, EINTR, 1000000);
    check(v->allocate(v, file, BLOCK) == -EINTR && called < 1000);
    plan(FALLOCATE, ENOSYS, 1);
    check(v->allocate(v, file, BLOCK) == -EOPNOTSUPP);
    check(v->close(v, file) == 0);
    leave();
}

static void a_call_that_is_interrupted_for_ever_ends_with_that_error(void) {
    enum { FOR_EVER = 100 * 1000 * 1000, ENDURED = 100 * 1000 };
    char bytes[16] = "bytes";
    int file, event, n = 0;

    enter();
    file = v->open(v, dir, "f", VFS_WRITE | VFS_CREATE);
    event = v->event_new(v);
    plan(OPENAT, EINTR, FOR_EVER);
    check(v->open(v, dir, "f", 0) == -EINTR && called < ENDURED);
    plan(OPENAT, EINTR, FOR_EVER);
    check(v->list(v, dir, count_name, &n) == -EINTR && called < ENDURED);
    plan(PREAD, EINTR, FOR_EVER);
    check(v->pread(v, file, bytes, sizeof bytes, 0) == -EINTR && called < ENDURED);
    plan(PREAD, EINTR, FOR_EVER);
    check(io_read(v, file, bytes, sizeof bytes, 0) == -EINTR && called < ENDURED);
    plan(PWRITE, EINTR, FOR_EVER);
    check(v->pwrite(v, file, bytes, sizeof bytes, 0) == -EINTR && called < ENDURED);
    plan(PWRITE, EINTR, FOR_EVER);
    check(io_write(v, file, bytes, sizeof bytes, 0, NULL) == -EINTR && called < ENDURED);
    plan(FTRUNCATE, EINTR, FOR_EVER);
    check(v->truncate(v, file, 3) == -EINTR && called < ENDURED);
    plan(FLOCK, EINTR, FOR_EVER);
    check(v->lock(v, file, 1) == -EINTR && called < ENDURED);
    plan(GETRANDOM, EINTR, FOR_EVER);
    check(v->random(v, bytes, sizeof bytes) == -EINTR && called < ENDURED);
    plan(WRITE, EINTR, FOR_EVER);
    check(v->event_signal(v, event) == -EINTR && called < ENDURED);
    plan(NONE, 0, 0);
    check(v->event_close(v, event) == 0 && v->close(v, file) == 0);
    leave();
}

/* It is unknown what the first try saved; a second one would report success. */
static void a_sync_that_fails_is_reported_and_never_repeated(void) {
    static const int errors[] = {EIO, EINTR, ENOSPC};
    int file;

    enter();
    file = v->open(v, dir, "f", VFS_WRITE | VFS_CREATE);
    for (int i = 0; i < 3; i++) {
        plan(FDATASYNC, errors[i], 1);
        check(v->sync_data(v, file) == -errors[i] && called == 1);
        plan(FSYNC, errors[i], 1);
        check(v->sync_file(v, file) == -errors[i] && called == 1);
        plan(FSYNC, errors[i], 1);
        check(v->sync_dir(v, dir) == -errors[i] && called == 1);
        plan(STATX, errors[i], 1); /* it is unknown whether the file still has a name */
        check(v->sync_data(v, file) == -errors[i]);
        plan(STATX, errors[i], 1);
        check(v->sync_file(v, file) == -errors[i]);
    }
    check(v->close(v, file) == 0);
    leave();
}

static void every_other_error_comes_back_as_it_was(void) {
    char bytes[16] = "x";
    int file, event, n = 0;

    enter();
    file = v->open(v, dir, "f", VFS_WRITE | VFS_CREATE);
    event = v->event_new(v);
    plan(PREAD, EIO, 1);
    check(v->pread(v, file, bytes, 1, 0) == -EIO);
    plan(PWRITE, EDQUOT, 1);
    check(v->pwrite(v, file, bytes, 1, 0) == -EDQUOT);
    plan(FSTAT, EIO, 1);
    check(v->size(v, file) == -EIO);
    plan(FTRUNCATE, EIO, 1);
    check(v->truncate(v, file, 1) == -EIO);
    plan(FADVISE, EINVAL, 1);
    check(v->advise_sequential(v, file, 0, 1) == -EINVAL && called == 1);
    check(v->advise_sequential(v, file, (uint64_t)1 << 63, 1) == -EINVAL &&
          v->advise_sequential(v, file, 1, (uint64_t)1 << 63) == -EINVAL);
    plan(FLOCK, ENOLCK, 1);
    check(v->lock(v, file, 1) == -ENOLCK);
    plan(GETRANDOM, ENOSYS, 1);
    check(v->random(v, bytes, 4) == -ENOSYS);
    plan(EVENTFD, ENODEV, 1);
    check(v->event_new(v) == -ENODEV);
    plan(WRITE, EIO, 1);
    check(v->event_signal(v, event) == -EIO);
    plan(OPENAT, ENOMEM, 1);
    check(v->list(v, dir, count_name, &n) == -ENOMEM && n == 0);
    check(v->close(v, file) == 0 && v->event_close(v, event) == 0);
    check(v->close(v, file) == -EBADF);
    leave();
}

static void a_file_of_unknown_kind_is_not_opened(void) {
    int file, again;

    enter();
    file = v->open(v, dir, "f", VFS_WRITE | VFS_CREATE);
    check(v->close(v, file) == 0);
    plan(FSTAT, EIO, 1);
    check(v->open(v, dir, "f", 0) == -EIO);
    again = v->open(v, dir, "f", 0);
    check(again == file && v->close(v, again) == 0); /* the same number: nothing was left open */
    leave();
}

/* The umask cleared a bit that cannot be set again: the new file must not be left. */
static void a_file_that_cannot_be_made_private_is_removed(void) {
    mode_t before;
    int file;

    enter();
    before = umask(0777);
    plan(FCHMOD, EPERM, 1);
    check(v->open(v, dir, "f", VFS_WRITE | VFS_CREATE) == -EPERM && failed == 1);
    plan(FCHMODAT, EROFS, 1);
    check(v->open_subdir(v, dir, "d", 1) == -EROFS && failed == 1);
    (void)umask(before);
    plan(NONE, 0, 0);
    check(names() == 0);
    plan(FSTAT, EIO, 1); /* the mode cannot be read: it is still set */
    file = v->open(v, dir, "f", VFS_WRITE | VFS_CREATE | VFS_EXCLUSIVE);
    check(file >= 0 && v->close(v, file) == 0);
    plan(FSTATAT, EIO, 1);
    file = v->open_subdir(v, dir, "d", 1);
    check(file >= 0 && v->close(v, file) == 0);
    leave();
}

/* Other processes may create and unlink a name between two calls; open must give up. */
static void an_open_gives_up_on_a_name_that_comes_and_goes(void) {
    enter();
    plan(OPENAT, ENOENT, 1); /* the file is there: only the first look fails */
    check(v->close(v, v->open(v, dir, "f", VFS_WRITE | VFS_CREATE)) == 0);
    plan(OPENAT, ENOENT, 1);
    check(v->close(v, v->open(v, dir, "f", VFS_WRITE | VFS_CREATE)) == 0 && called == 3);
    plan(LOOKING, ENOENT, 1000000);
    check(v->open(v, dir, "f", VFS_WRITE | VFS_CREATE) == -EEXIST && called < 1000);
    leave();
}

static void without_a_free_descriptor_nothing_opens_and_nothing_is_lost(void) {
    struct rlimit before, none;
    int n = 0, file;

    enter();
    file = v->open(v, dir, "f", VFS_WRITE | VFS_CREATE);
    require(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    none.rlim_cur = (rlim_t)file + 1;
    require(setrlimit(RLIMIT_NOFILE, &none) == 0);
    check(v->open(v, dir, "f", 0) == -EMFILE && v->open(v, dir, "g", VFS_WRITE | VFS_CREATE) == -EMFILE);
    check(v->open_dir(v, path) == -EMFILE && v->event_new(v) == -EMFILE);
    check(v->list(v, dir, count_name, &n) == -EMFILE && n == 0);
    check(write_all(v, file, "x", 1, 0) && v->sync_data(v, file) == 0);
    require(setrlimit(RLIMIT_NOFILE, &before) == 0);
    check(names() == 1 && v->close(v, file) == 0);
    leave();
}

static void beyond_the_limit_of_a_files_size_writes_are_cut_and_then_refused(void) {
    struct rlimit before, small;
    char bytes[BLOCK] = {1};
    int file;

    enter();
    file = v->open(v, dir, "f", VFS_WRITE | VFS_CREATE);
    require(getrlimit(RLIMIT_FSIZE, &before) == 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    small = before;
    small.rlim_cur = BLOCK + 100;
    require(setrlimit(RLIMIT_FSIZE, &small) == 0);
    check(v->pwrite(v, file, bytes, sizeof bytes, 0) == BLOCK && v->pwrite(v, file, bytes, sizeof bytes, BLOCK) == 100);
    check(v->pwrite(v, file, bytes, 1, BLOCK + 100) == -EFBIG && v->truncate(v, file, 2 * BLOCK) == -EFBIG);
    check(v->allocate(v, file, 2 * BLOCK) == -EFBIG);
    require(setrlimit(RLIMIT_FSIZE, &before) == 0);
    check(v->size(v, file) == BLOCK + 100);
    check(v->pwrite(v, file, bytes, 1, (uint64_t)1 << 63) == -EFBIG &&
          v->pread(v, file, bytes, 1, (uint64_t)1 << 63) == -EINVAL);
    check(v->truncate(v, file, (uint64_t)1 << 63) == -EFBIG && v->allocate(v, file, (uint64_t)1 << 63) == -EFBIG);
    check(v->allocate(v, file, 0) == 0 && v->close(v, file) == 0);
    leave();
}

static void on_a_full_file_system_the_error_is_enospc_and_what_is_there_stays(void) {
    static char bytes[16 * BLOCK];
    int file, wanted;
    int64_t moved, at = 0;

    enter();
    if (mount("none", path, "tmpfs", 0, "size=64k") != 0) {
        printf("SKIPPED: a full file system: no tmpfs can be mounted here (%s)\n", strerror(errno));
        leave();
        return;
    }
    check(v->close(v, dir) == 0);
    dir = v->open_dir(v, path);
    file = v->open(v, dir, "f", VFS_WRITE | VFS_CREATE);
    memset(bytes, 7, sizeof bytes);
    check(v->allocate(v, file, 1 << 20) == -ENOSPC);
    while ((moved = v->pwrite(v, file, bytes, sizeof bytes, (uint64_t)at)) > 0)
        at += moved;
    check(moved == -ENOSPC && at > 0 && at <= 65536);
    wanted = at < BLOCK ? (int)at : BLOCK;
    check(reads_fill(v, file, 7, (size_t)wanted, 0));
    check(v->close(v, file) == 0 && v->unlink(v, dir, "f") == 0 && v->close(v, dir) == 0);
    check(umount(path) == 0);
    dir = v->open_dir(v, path);
    leave();
}

static void what_is_no_file_or_directory_is_not_opened_as_one(void) {
    enter();
    require(symlinkat("loop", dir, "loop") == 0 && mkfifoat(dir, "fifo", 0600) == 0);
    check(v->open(v, dir, "loop", 0) == -ELOOP && v->open(v, dir, "fifo", 0) == -VFS_NOT_REGULAR);
    check(v->open(v, dir, "loop", VFS_WRITE | VFS_CREATE) == -ELOOP);
    check(v->open_subdir(v, dir, "loop", 0) == -ENOTDIR);
    check(v->open_dir(v, "/dev/null/x") == -ENOTDIR && v->make_dir(v, "/dev/null/x") == -ENOTDIR);
    leave();
}

int main(void) {
    static void (*const tests[])(void) = {
        an_interrupted_call_is_repeated_until_it_is_not,
        an_allocation_that_is_interrupted_for_ever_gives_up,
        a_call_that_is_interrupted_for_ever_ends_with_that_error,
        a_sync_that_fails_is_reported_and_never_repeated,
        every_other_error_comes_back_as_it_was,
        a_file_of_unknown_kind_is_not_opened,
        a_file_that_cannot_be_made_private_is_removed,
        an_open_gives_up_on_a_name_that_comes_and_goes,
        without_a_free_descriptor_nothing_opens_and_nothing_is_lost,
        beyond_the_limit_of_a_files_size_writes_are_cut_and_then_refused,
        on_a_full_file_system_the_error_is_enospc_and_what_is_there_stays,
        what_is_no_file_or_directory_is_not_opened_as_one,
    };
    int passed = 0, failed_tests = 0;

    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        int before = failures_here;

        tests[i]();
        if (failures_here == before)
            passed++;
        else
            failed_tests++;
    }
    return verdict(passed, failed_tests);
}
