/*
 * The limit for recovery: reads every byte of the files once, in order, and hashes it with the log's checksum.
 *
 *   read_and_hash FILE...
 *
 * The caller decides whether the files are in the page cache before. Prints one line of JSON.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "format/xxh64.h"

enum { CHUNK_BYTES = 1 << 20 };

static void die(const char *what) {
    perror(what);
    exit(1);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static unsigned long long read_one(const char *path, unsigned char *chunk, uint64_t *hash) {
    unsigned long long bytes = 0;
    int fd = open(path, O_RDONLY);
    if (fd < 0) {
        die(path);
    }
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    for (;;) {
        ssize_t n = read(fd, chunk, CHUNK_BYTES);
        if (n < 0) {
            die(path);
        }
        if (n == 0) {
            break;
        }
        *hash = xxh64(chunk, (size_t)n, *hash);
        bytes += (unsigned long long)n;
    }
    close(fd);
    return bytes;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: read_and_hash FILE...\n");
        return 2;
    }
    unsigned char *chunk = aligned_alloc(4096, CHUNK_BYTES);
    if (chunk == NULL) {
        die("aligned_alloc");
    }
    unsigned long long bytes = 0;
    uint64_t hash = 0;
    double start = now_s();
    for (int i = 1; i < argc; i++) {
        bytes += read_one(argv[i], chunk, &hash);
    }
    double seconds = now_s() - start;
    printf("{\"files\": %d, \"bytes\": %llu, \"seconds\": %.6f, \"mb_per_s\": %.1f, \"hash\": \"%016llx\"}\n", argc - 1,
           bytes, seconds, (double)bytes / seconds / 1e6, (unsigned long long)hash);
    free(chunk);
    return 0;
}
