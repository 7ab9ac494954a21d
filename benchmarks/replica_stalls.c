/*
 * How long a copy that follows keeps a batch waiting: while it takes a checkpoint of many live messages, and where a segment begins.
 * Usage: replica_stalls DIRECTORY [MESSAGES]. It uses the public header alone.
 *
 * A leader and one copy, on real files; the program calls what both have durable.
 */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "logstore.h"

enum { RUN = 1000, CONTENT = 100, LARGE = 1024, LISTED_MAX = 1 << 16 };

static const uint32_t queue = 1;
static ls_options options;
static char paths[2][512];
static ls_host *hosts[2];
static ls_store *leads;
static ls_replica *copy;

static void must(int rc, const char *what) {
    if (rc != LS_OK) {
        (void)fprintf(stderr, "replica_stalls: %s: %s\n", what, ls_last_error()->text);
        exit(1);
    }
}

static double now_ms(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

/* ---- the times of a kind ---- */

struct times {
    double ms[LISTED_MAX];
    size_t count;
};

static struct times plain, turns;

static void note(struct times *t, double ms) {
    if (t->count < LISTED_MAX) {
        t->ms[t->count++] = ms;
    }
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void show(const char *name, struct times *t) {
    if (t->count > 0) {
        qsort(t->ms, t->count, sizeof t->ms[0], by_size);
        printf("| %s | %zu | %.2f | %.2f | %.2f |\n", name, t->count, t->ms[t->count / 2],
               t->ms[t->count - 1 - t->count / 100], t->ms[t->count - 1]);
    }
    t->count = 0;
}

/* ---- batches ---- */

static atomic_bool publishes;

/* Until all that was published is durable. */
static void pump(bool timed) {
    struct pollfd ready = {.fd = ls_replica_event_fd(leads), .events = POLLIN};
    uint64_t counter;
    while (atomic_load(&publishes) || ls_durable_lsn(leads) < ls_next_lsn(leads)) {
        ls_replica_batch b;
        (void)poll(&ready, 1, 1);
        (void)!read(ready.fd, &counter, sizeof counter);
        while (ls_replica_next(leads, &b) == LS_OK) {
            double at = now_ms();
            must(ls_replica_take(copy, &b), "take");
            if (timed) {
                note(b.header != NULL ? &turns : &plain, now_ms() - at);
            }
            while (ls_replica_forced(leads) < b.index) {
                (void)usleep(20);
            }
            must(ls_replica_majority_has(leads, b.end_lsn), "a majority has it");
        }
    }
}

struct load {
    int messages;
    uint64_t bytes;
};

static void *publisher(void *context) {
    static uint8_t contents[RUN * LARGE];
    static uint64_t sizes[RUN], ids[RUN];
    const struct load *l = context;
    for (int i = 0; i < RUN; i++) {
        sizes[i] = l->bytes;
    }
    for (int n = 0; n < l->messages; n += RUN) {
        size_t count, part = l->messages - n < RUN ? (size_t)(l->messages - n) : RUN;
        must(ls_publish_many(leads, queue, part, contents, sizes, NULL, NULL, NULL, NULL, LS_WAIT, ids, &count),
             "publish");
    }
    atomic_store(&publishes, false);
    return NULL;
}

static void publish(int messages, uint64_t bytes, bool timed) {
    struct load l = {messages, bytes};
    pthread_t thread;
    atomic_store(&publishes, true);
    (void)pthread_create(&thread, NULL, publisher, &l);
    pump(timed);
    (void)pthread_join(thread, NULL);
}

/* ---- the two questions ---- */

/* Batches come until it has ended. */
static void checkpoint(void) {
    int begun, ended = 0;
    double at = now_ms(), took;
    must(ls_replica_checkpoint_begin(copy, &begun), "checkpoint");
    took = now_ms() - at;
    while (ended == 0) {
        publish(100, CONTENT, true);
        must(ls_replica_checkpoint_ended(copy, &ended), "checkpoint");
    }
    show("batches during a checkpoint", &plain);
    printf("| its beginning | %d | %.2f | | |\n| all of it | 1 | %.2f | | |\n", begun, took, now_ms() - at);
    turns.count = 0;
}

static void begin(const char *place) {
    char command[2200];
    ls_store *store;
    ls_replica_info info;
    for (int i = 0; i < 2; i++) {
        ls_member member = {.cluster_uuid = {1}, .member_id = (uint64_t)i + 1, .copy = 1};
        char first[560];
        (void)snprintf(paths[i], sizeof paths[i], "%s/member-%d", place, i + 1);
        (void)snprintf(first, sizeof first, "%s/copy-1", paths[i]);
        if (i == 0) {
            (void)snprintf(command, sizeof command, "mkdir '%s'", paths[0]);
        } else {
            (void)snprintf(command, sizeof command, "mkdir '%s' && cp -r '%s/copy-1' '%s'", paths[1], paths[0],
                           paths[1]);
        }
        if (system(command) != 0) {
            exit(1);
        }
        if (i == 0) {
            must(ls_open(NULL, first, &options, &store), "open");
            must(ls_serve(store, &queue, 1, 2), "serve");
            must(ls_close(store), "close");
            ls_free(store);
        }
        must(ls_host_create(NULL, paths[i], &member), "create");
    }
    for (int i = 0; i < 2; i++) {
        must(ls_host_open(NULL, paths[i], &options, &hosts[i]), "follow");
        ls_replica_describe(ls_host_replica(hosts[i]), &info);
        must(ls_host_vote(hosts[i], info.least_term, 1), "vote");
    }
    copy = ls_host_replica(hosts[1]);
    must(ls_host_lead(hosts[0], info.least_term, (const uint8_t *)"1,2", 3, &leads), "lead");
    pump(false);
    must(ls_replica_serve(leads, &queue, 1, 2), "serve");
}

int main(int argc, char **argv) {
    int messages = argc > 2 ? atoi(argv[2]) : 1000 * RUN;
    if (argc < 2 || messages < RUN || messages % RUN != 0) {
        (void)fprintf(stderr, "usage: replica_stalls DIRECTORY [MESSAGES, a multiple of %d]\n", RUN);
        return 2;
    }
    ls_options_default(&options);
    options.segment_size = 1 << 20;
    begin(argv[1]);
    publish(messages, CONTENT, false);
    printf("%d live messages. How long ls_replica_take lasts, in ms.\n\n| | number | p50 | p99 | longest |\n"
           "| --- | --- | --- | --- | --- |\n",
           messages);
    checkpoint();
    publish(300 * RUN, LARGE, true);
    show("batches in a segment", &plain);
    show("batches that begin one", &turns);
    must(ls_replica_cease(leads), "cease");
    ls_free(leads);
    ls_host_close(hosts[0]);
    ls_host_close(hosts[1]);
    return 0;
}
