/*
 * The limit for every figure: a C loop that only writes the same bytes to the same disk with the same durability (pwrite,
 * then fdatasync).
 *
 *   raw_loop FILE BYTES MODE
 *
 * MODE is the state of the file before the clock starts: zeros (BYTES of them, written and synced; the loop goes round
 * and round in it, as a log does in recycled segments), falloc (BYTES fallocated), grow (empty before every command and
 * never longer than BYTES). Commands come on standard input, a line each, and are answered by a line of JSON:
 *
 *   SIZE GROUP SECONDS MAX_BYTES              one pwrite + fdatasync for every GROUP messages of SIZE bytes
 *   SIZE GROUP SECONDS MAX_BYTES OUTCOME LOGS  the same and an outcome of OUTCOME bytes for each group: with LOGS 1
 *                                              behind it in the same write, with LOGS 2 in a second file (FILE.2), that
 *                                              is written and synced once the first is
 *
 * A command ends after SECONDS or MAX_BYTES of content, whichever comes first. The files are removed at the end.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OUTCOME_MAX = 4096 };

struct file {
    char path[4096];
    int fd;
    size_t bytes; /* where it starts again */
    size_t at;
    int grows;
};

struct command {
    size_t size, group, max_bytes, outcome, logs;
    double seconds;
};

static void die(const char *what) {
    perror(what);
    exit(1);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void write_all(int fd, const unsigned char *from, size_t bytes, size_t at) {
    while (bytes > 0) {
        ssize_t n = pwrite(fd, from, bytes, (off_t)at);
        if (n <= 0) {
            die("pwrite");
        }
        from += n;
        at += (size_t)n;
        bytes -= (size_t)n;
    }
}

static void prepare(struct file *f, const char *mode) {
    f->fd = open(f->path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (f->fd < 0) {
        die(f->path);
    }
    f->grows = strcmp(mode, "grow") == 0;
    if (strcmp(mode, "falloc") == 0 && fallocate(f->fd, 0, 0, (off_t)f->bytes) != 0) {
        die("fallocate");
    }
    if (strcmp(mode, "zeros") == 0) {
        static unsigned char zeros[1 << 20];
        for (size_t at = 0; at < f->bytes; at += sizeof zeros) {
            write_all(f->fd, zeros, sizeof zeros, at);
        }
    }
    if (fsync(f->fd) != 0) {
        die("fsync");
    }
}

static void start(struct file *f) {
    if (f->grows) {
        f->at = 0;
        if (ftruncate(f->fd, 0) != 0 || fsync(f->fd) != 0) {
            die("ftruncate");
        }
    }
}

static void put(struct file *f, const unsigned char *from, size_t bytes) {
    if (f->at + bytes > f->bytes) {
        f->at = 0;
    }
    write_all(f->fd, from, bytes, f->at);
    f->at += bytes;
    if (fdatasync(f->fd) != 0) {
        die("fdatasync");
    }
}

static void run(const struct command *c, struct file *first, struct file *second) {
    size_t chunk = c->size * c->group, units = 0;
    if (chunk == 0 || chunk + OUTCOME_MAX > first->bytes || c->outcome > OUTCOME_MAX) {
        fprintf(stderr, "raw_loop: a group of %zu messages of %zu bytes does not fit into the file\n", c->group,
                c->size);
        exit(2);
    }
    unsigned char *buffer = malloc(chunk + OUTCOME_MAX);
    if (buffer == NULL) {
        die("malloc");
    }
    memset(buffer, 'x', chunk + OUTCOME_MAX);
    start(first);
    start(second);
    double begin = now_s(), seconds = 0;
    do {
        if (c->logs == 2) {
            put(first, buffer, chunk);
            put(second, buffer, c->outcome);
        } else {
            put(first, buffer, chunk + c->outcome);
        }
        units++;
        seconds = now_s() - begin;
    } while (seconds < c->seconds && (units + 1) * chunk <= c->max_bytes);
    free(buffer);
    printf("{\"units\": %zu, \"seconds\": %.9f, \"messages_per_s\": %.3f}\n", units, seconds,
           (double)(units * c->group) / seconds);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc != 4 || strlen(argv[1]) + 3 > sizeof(((struct file *)0)->path)) {
        fprintf(stderr, "usage: raw_loop FILE BYTES zeros|falloc|grow\n");
        return 2;
    }
    struct file files[2] = {{.bytes = strtoull(argv[2], NULL, 10)}, {.bytes = 8u << 20}};
    snprintf(files[0].path, sizeof files[0].path, "%s", argv[1]);
    snprintf(files[1].path, sizeof files[1].path, "%s.2", argv[1]);
    prepare(&files[0], argv[3]);
    prepare(&files[1], argv[3]);
    char line[256];
    while (fgets(line, sizeof line, stdin) != NULL) {
        struct command c = {.logs = 1};
        int read =
            sscanf(line, "%zu %zu %lf %zu %zu %zu", &c.size, &c.group, &c.seconds, &c.max_bytes, &c.outcome, &c.logs);
        if (read != 4 && read != 6) {
            fprintf(stderr, "raw_loop: not a command: %s", line);
            return 2;
        }
        run(&c, &files[0], &files[1]);
    }
    for (int i = 0; i < 2; i++) {
        close(files[i].fd);
        unlink(files[i].path);
    }
    return 0;
}
