/*
 * The processor time of replication in one process: a single store, and then a leader with two copies that follow, on real files at
 * equal durability. Usage: replica DIRECTORY [MESSAGES]. It uses the public header alone.
 *
 * Followers have a thread each, and one thread moves the batches to them; what these use is taken off the leader's.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "logstore.h"

enum { COPIES = 3, CONTENT = 1024, WINDOW = 100, RUN = 1000 };

static const uint32_t queue = 1;
static ls_options options;
static char paths[COPIES + 1][512]; /* of members, and of the single store */

static void must(int rc, const char *what) {
    if (rc != LS_OK) {
        (void)fprintf(stderr, "replica: %s: %s\n", what, ls_last_error()->text);
        exit(1);
    }
}

static double seconds(clockid_t clock) {
    struct timespec t;
    (void)clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- followers ---- */

struct item {
    struct item *next;
    ls_replica_batch batch;
    uint8_t header[4096];
    uint8_t bytes[];
};

static struct follower {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct item *first, **end;
    ls_host *host;
    ls_replica *copy;
    _Atomic uint64_t forced_index;
    bool stops;
    double cpu_s;
} followers[COPIES];

static void *follow(void *context) {
    struct follower *f = context;
    for (;;) {
        (void)pthread_mutex_lock(&f->lock);
        while (f->first == NULL && !f->stops) {
            (void)pthread_cond_wait(&f->wake, &f->lock);
        }
        struct item *i = f->first;
        if (i != NULL) {
            f->first = i->next;
            f->end = f->first == NULL ? &f->first : f->end;
        }
        (void)pthread_mutex_unlock(&f->lock);
        if (i == NULL) {
            break;
        }
        must(ls_replica_take(f->copy, &i->batch), "a copy takes a batch");
        atomic_store(&f->forced_index, i->batch.index);
        free(i);
    }
    f->cpu_s = seconds(CLOCK_THREAD_CPUTIME_ID);
    return NULL;
}

static void give(struct follower *f, const ls_replica_batch *b) {
    size_t bytes = (size_t)(b->end_lsn - b->lsn);
    struct item *i = malloc(sizeof *i + bytes);
    if (i == NULL) {
        must(LS_NO_MEMORY, "a batch");
        return;
    }
    i->next = NULL;
    i->batch = *b;
    memcpy(i->bytes, b->bytes, bytes);
    i->batch.bytes = i->bytes;
    if (b->header != NULL) {
        memcpy(i->header, b->header, sizeof i->header);
        i->batch.header = i->header;
    }
    (void)pthread_mutex_lock(&f->lock);
    *f->end = i;
    f->end = &i->next;
    (void)pthread_cond_signal(&f->wake);
    (void)pthread_mutex_unlock(&f->lock);
}

/* ---- the leader ---- */

static ls_store *leads;
static atomic_bool stops;
static double mover_cpu_s;
static uint64_t batches;

static uint64_t middle(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t low = a < b ? a : b, high = a < b ? b : a;
    return c < low ? low : c > high ? high : c;
}

/* The end of each batch that is not durable yet, by index. */
static void *move(void *nothing) {
    static uint64_t ends[4096];
    struct pollfd ready = {.fd = ls_replica_event_fd(leads), .events = POLLIN};
    uint64_t told = 0, counter;
    (void)nothing;
    while (!atomic_load(&stops)) {
        ls_replica_batch b;
        (void)poll(&ready, 1, 1);
        (void)!read(ready.fd, &counter, sizeof counter);
        while (ls_replica_next(leads, &b) == LS_OK) {
            ends[b.index % 4096] = b.end_lsn;
            told = told == 0 ? b.index - 1 : told;
            batches++;
            for (int i = 1; i < COPIES; i++) {
                give(&followers[i], &b);
            }
        }
        uint64_t has = middle(ls_replica_forced(leads), followers[1].forced_index, followers[2].forced_index);
        if (has > told) {
            must(ls_replica_majority_has(leads, ends[has % 4096]), "a majority has it");
            told = has;
        }
    }
    mover_cpu_s = seconds(CLOCK_THREAD_CPUTIME_ID);
    return NULL;
}

/* ---- the load ---- */

static void publish_in_window(ls_store *store, int messages) {
    static uint8_t content[CONTENT];
    uint64_t sent[WINDOW] = {0}, id;
    for (int n = 0; n < messages; n++) {
        if (sent[n % WINDOW] != 0 && ls_durable_lsn(store) < sent[n % WINDOW]) {
            must(ls_force(store, sent[n % WINDOW]), "force");
        }
        must(ls_publish(store, &queue, 1, NULL, 0, content, sizeof content, NULL, 0, &id), "publish");
        sent[n % WINDOW] = ls_next_lsn(store);
    }
    must(ls_force(store, 0), "force");
}

static void publish_runs(ls_store *store, int messages) {
    static uint8_t contents[RUN * CONTENT];
    static uint64_t sizes[RUN], ids[RUN];
    for (int i = 0; i < RUN; i++) {
        sizes[i] = CONTENT;
    }
    for (int n = 0; n < messages; n += RUN) {
        size_t count;
        must(ls_publish_many(store, queue, RUN, contents, sizes, NULL, NULL, NULL, NULL, LS_WAIT, ids, &count),
             "publish");
    }
}

typedef void load(ls_store *store, int messages);

struct result {
    double wall_s, leader_us, follower_us, moving_us, batch_messages, device_bytes;
};

static struct result single(load *run, const char *path, int messages) {
    ls_store *store;
    ls_stats before, after;
    must(ls_open(NULL, path, &options, &store), "open");
    must(ls_serve(store, &queue, 1, 2), "serve");
    ls_stats_get(store, &before);
    double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID), wall = seconds(CLOCK_MONOTONIC);
    run(store, messages);
    struct result r = {.wall_s = seconds(CLOCK_MONOTONIC) - wall,
                       .leader_us = 1e6 * (seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu) / messages};
    ls_stats_get(store, &after);
    r.batch_messages = (double)messages / (double)(after.batches - before.batches);
    r.device_bytes = (double)(after.device_bytes - before.device_bytes) / messages;
    must(ls_close(store), "close");
    ls_free(store);
    return r;
}

static struct result trio(load *run, int messages) {
    ls_host *first;
    ls_replica_info info, then;
    pthread_t mover;
    must(ls_host_open(NULL, paths[0], &options, &first), "follow");
    ls_replica_describe(ls_host_replica(first), &info);
    for (int i = 1; i < COPIES; i++) {
        struct follower *f = &followers[i];
        *f = (struct follower){.stops = false};
        f->end = &f->first;
        (void)pthread_mutex_init(&f->lock, NULL);
        (void)pthread_cond_init(&f->wake, NULL);
        must(ls_host_open(NULL, paths[i], &options, &f->host), "follow");
        must(ls_host_vote(f->host, info.least_term, 1), "vote");
        f->copy = ls_host_replica(f->host);
        (void)pthread_create(&f->thread, NULL, follow, f);
    }
    const uint8_t *config = info.index == 0 ? (const uint8_t *)"1,2,3" : NULL;
    must(ls_host_vote(first, info.least_term, 1), "vote");
    must(ls_host_lead(first, info.least_term, config, config != NULL ? 5 : 0, &leads), "lead");
    atomic_store(&stops, false);
    batches = 0;
    (void)pthread_create(&mover, NULL, move, NULL);
    while (ls_replica_leads(leads) == 0) {
        (void)usleep(100);
    }
    must(ls_replica_serve(leads, &queue, 1, 2), "serve");
    uint64_t before = batches;
    double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID), wall = seconds(CLOCK_MONOTONIC);
    run(leads, messages);
    double used = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    struct result r = {.wall_s = seconds(CLOCK_MONOTONIC) - wall};
    r.batch_messages = (double)messages / (double)(batches - before);
    atomic_store(&stops, true);
    (void)pthread_join(mover, NULL);
    double followed = 0;
    for (int i = 1; i < COPIES; i++) {
        struct follower *f = &followers[i];
        (void)pthread_mutex_lock(&f->lock);
        f->stops = true;
        (void)pthread_cond_signal(&f->wake);
        (void)pthread_mutex_unlock(&f->lock);
        (void)pthread_join(f->thread, NULL);
        followed += f->cpu_s;
        ls_replica_describe(f->copy, &then);
        r.device_bytes += (double)then.stats.device_bytes / messages / (COPIES - 1);
        ls_host_close(f->host);
    }
    must(ls_replica_cease(leads), "cease");
    ls_free(leads);
    ls_host_close(first);
    r.leader_us = 1e6 * (used - followed - mover_cpu_s) / messages;
    r.follower_us = 1e6 * followed / messages / (COPIES - 1);
    r.moving_us = 1e6 * mover_cpu_s / messages;
    return r;
}

static void show(const char *name, const struct result *one, const struct result *three) {
    printf("| %s | %.2f | %.2f | %+.2f | %.2f | %.2f | %.0f | %.0f | %.2f | %.2f |\n", name, one->leader_us,
           three->leader_us, three->leader_us - one->leader_us, three->follower_us, three->moving_us,
           one->batch_messages, three->batch_messages, one->device_bytes / CONTENT, three->device_bytes / CONTENT);
}

/* ---- leading and following again ---- */

static void failover(void) {
    ls_host *host;
    ls_replica_info info;
    double at = seconds(CLOCK_MONOTONIC);
    must(ls_host_open(NULL, paths[0], &options, &host), "follow");
    double followed = seconds(CLOCK_MONOTONIC) - at;
    ls_replica_describe(ls_host_replica(host), &info);
    at = seconds(CLOCK_MONOTONIC);
    must(ls_host_vote(host, info.least_term, 1), "vote");
    must(ls_host_lead(host, info.least_term, NULL, 0, &leads), "lead");
    double led = seconds(CLOCK_MONOTONIC) - at;
    at = seconds(CLOCK_MONOTONIC);
    must(ls_replica_cease(leads), "cease");
    ls_free(leads);
    printf("\n%llu live messages: to follow %.3f s, to lead %.3f s, to cease %.3f s\n",
           (unsigned long long)info.messages, followed, led, seconds(CLOCK_MONOTONIC) - at);
    ls_host_close(host);
}

/* The single store, and a copy of its files in the directory of each member. */
static void make_members(const char *place) {
    char command[2200];
    ls_store *store;
    (void)snprintf(paths[COPIES], sizeof paths[COPIES], "%s/single", place);
    must(ls_open(NULL, paths[COPIES], &options, &store), "open");
    must(ls_serve(store, &queue, 1, 2), "serve");
    must(ls_close(store), "close");
    ls_free(store);
    for (int i = 0; i < COPIES; i++) {
        ls_member member = {.cluster_uuid = {1}, .member_id = (uint64_t)i + 1, .copy = 1};
        (void)snprintf(paths[i], sizeof paths[i], "%s/member-%d", place, i + 1);
        (void)snprintf(command, sizeof command, "mkdir '%s' && cp -r '%s' '%s/copy-1'", paths[i], paths[COPIES],
                       paths[i]);
        if (system(command) != 0) {
            exit(1);
        }
        must(ls_host_create(NULL, paths[i], &member), "create");
    }
}

int main(int argc, char **argv) {
    int messages = argc > 2 ? atoi(argv[2]) : 200 * RUN;
    if (argc < 2 || messages < RUN || messages % RUN != 0) {
        (void)fprintf(stderr, "usage: replica DIRECTORY [MESSAGES, a multiple of %d]\n", RUN);
        return 2;
    }
    ls_options_default(&options);
    make_members(argv[1]);
    struct result one = single(publish_in_window, paths[COPIES], messages), three = trio(publish_in_window, messages);
    printf("Processor time in µs a message of 1 KiB, %d messages; device bytes as a multiple of the content.\n\n",
           messages);
    printf("| load | single store | leader | more | follower | moving | messages a batch, single | leader | device, "
           "single | copy |\n");
    printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    show("window of 100", &one, &three);
    one = single(publish_runs, paths[COPIES], messages);
    three = trio(publish_runs, messages);
    show("publish_many of 1000", &one, &three);
    failover();
    return 0;
}
