/* Preloaded into a process: a file with one byte says what its disk does. 'f': it is full, nothing gets further blocks. 'h': it hangs,
 * a sync returns once the byte is another. 'n': it hangs where new files are made, in fsync, and writes to files that are there. 'e': each sync fails; with $DISK_FAILS, each of a file whose path contains that. It may change
 * at any moment. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static volatile const char *state;

__attribute__((constructor)) static void map(void) {
    const char *path = getenv("DISK_FAULTS");
    int file = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = file < 0 ? MAP_FAILED : mmap(NULL, 1, PROT_READ, MAP_SHARED, file, 0);

    if (at == MAP_FAILED)
        abort();
    state = at;
    (void)close(file);
}

static int lacks_blocks(int file, off_t end) {
    struct stat s;

    return *state == 'f' && fstat(file, &s) == 0 && S_ISREG(s.st_mode) && end > (off_t)s.st_blocks * 512;
}

static int is_to_fail(int file) {
    const char *part = getenv("DISK_FAILS");
    char link[32], path[4096];

    if (part == NULL)
        return 1;
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    path[size < 0 ? 0 : size] = 0;
    return strstr(path, part) != NULL;
}

static int fails_or_hangs(int file, int makes_file) {
    struct timespec pause = {.tv_nsec = 5000000};

    while (*state == 'h' || (*state == 'n' && makes_file))
        (void)nanosleep(&pause, NULL);
    int fails = *state == 'e' && is_to_fail(file);
    errno = fails ? EIO : errno;
    return fails;
}

int fallocate(int file, int mode, off_t at, off_t bytes) {
    static int (*real)(int, int, off_t, off_t);

    if (real == NULL)
        real = (int (*)(int, int, off_t, off_t))dlsym(RTLD_NEXT, "fallocate");
    if (lacks_blocks(file, at + bytes)) {
        errno = ENOSPC;
        return -1;
    }
    return real(file, mode, at, bytes);
}

/* glibc has both names, and SQLite uses the second one. */
static ssize_t write_at(const char *name, int file, const void *from, size_t bytes, off_t at) {
    ssize_t (*real)(int, const void *, size_t, off_t) = (ssize_t(*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, name);

    if (lacks_blocks(file, at + (off_t)bytes)) {
        errno = ENOSPC;
        return -1;
    }
    return real(file, from, bytes, at);
}

ssize_t pwrite(int file, const void *from, size_t bytes, off_t at) { return write_at("pwrite", file, from, bytes, at); }

ssize_t pwrite64(int file, const void *from, size_t bytes, off_t at) {
    return write_at("pwrite64", file, from, bytes, at);
}

int fdatasync(int file) {
    static int (*real)(int);

    if (real == NULL)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return fails_or_hangs(file, 0) ? -1 : real(file);
}

int fsync(int file) {
    static int (*real)(int);

    if (real == NULL)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return fails_or_hangs(file, 1) ? -1 : real(file);
}
