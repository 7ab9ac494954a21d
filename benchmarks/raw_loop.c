/*
 * The limit every figure is compared with: a C loop that does nothing but put the same bytes on the same disk
 * at the same durability (pwrite, then fdatasync).
 *
 *   raw_loop FILE SIZE COUNT GROUP MODE [ALIGN]
 *
 * SIZE bytes a message, COUNT messages, one pwrite + fdatasync for every GROUP messages. MODE is the state of the
 * file before the clock starts: zeros (written and synced), cold (the same, dropped from the page cache), falloc
 * (fallocated), grow (empty). With ALIGN (a power of two) every write starts at the block that holds its first
 * byte and ends at a block's end, rewriting what the block already held.
 * Prints one line of JSON.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what) {
    perror(what);
    exit(1);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void write_all(int fd, const unsigned char *from, size_t bytes, off_t at) {
    while (bytes > 0) {
        ssize_t n = pwrite(fd, from, bytes, at);
        if (n <= 0) {
            die("pwrite");
        }
        from += n;
        at += n;
        bytes -= (size_t)n;
    }
}

static int prepare(const char *path, const char *mode, size_t total) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) {
        die(path);
    }
    if (strcmp(mode, "falloc") == 0 && fallocate(fd, 0, 0, (off_t)total) != 0) {
        die("fallocate");
    }
    if (strcmp(mode, "zeros") == 0 || strcmp(mode, "cold") == 0) {
        static unsigned char zeros[1 << 20];
        for (size_t at = 0; at < total; at += sizeof zeros) {
            write_all(fd, zeros, sizeof zeros, (off_t)at);
        }
    }
    if (fsync(fd) != 0) {
        die("fsync");
    }
    if (strcmp(mode, "cold") == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0) {
        die("fadvise");
    }
    return fd;
}

int main(int argc, char **argv) {
    if (argc < 6) {
        fprintf(stderr, "usage: raw_loop FILE SIZE COUNT GROUP zeros|cold|falloc|grow [ALIGN]\n");
        return 2;
    }
    size_t size = strtoull(argv[2], NULL, 10), count = strtoull(argv[3], NULL, 10);
    size_t group = strtoull(argv[4], NULL, 10), align = argc > 6 ? strtoull(argv[6], NULL, 10) : 1;
    size_t chunk = size * group, total = size * count + (2u << 20);
    int fd = prepare(argv[1], argv[5], total);
    unsigned char *buffer = aligned_alloc(4096, (chunk + 3 * 4096) & ~(size_t)4095);
    if (buffer == NULL) {
        die("aligned_alloc");
    }
    memset(buffer, 'x', chunk + 4096);
    double start = now_s();
    off_t at = 0;
    for (size_t done = 0; done < count; done += group, at += (off_t)chunk) {
        size_t lead = (size_t)at & (align - 1);
        size_t bytes = (lead + chunk + align - 1) & ~(align - 1);
        write_all(fd, buffer, bytes, at - (off_t)lead);
        if (fdatasync(fd) != 0) {
            die("fdatasync");
        }
    }
    double seconds = now_s() - start;
    printf("{\"size\": %zu, \"count\": %zu, \"group\": %zu, \"mode\": \"%s\", \"align\": %zu, \"seconds\": %.6f, "
           "\"messages_per_s\": %.1f, \"mb_per_s\": %.1f}\n",
           size, count, group, argv[5], align, seconds, (double)count / seconds,
           (double)(size * count) / seconds / 1e6);
    close(fd);
    unlink(argv[1]);
    return 0;
}
