/*
 * A broker's day in C alone, on the operating system's files, for a tracer to watch: no Python is near it.
 *
 * Between phases it writes one line to standard error, which the tracer sees among the other calls. It must use
 * the public header only, and exits 1 with a sentence at the first thing that goes wrong.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "logstore.h"

enum { QUEUE = 1, OTHER = 2, PUBLISHES = 20, COMMITS = 5, ROUNDS = 400 };

static void expect(int fine, const char *what) {
    if (!fine) {
        (void)fprintf(stderr, "%s: %s\n", what, ls_last_error()->text);
        exit(1);
    }
}

static void phase(const char *name) {
    char line[64];
    int n = snprintf(line, sizeof line, "phase %s\n", name);
    expect(write(STDERR_FILENO, line, (size_t)n) == n, "the tracer cannot be told");
}

static ls_store *open_store(const char *path) {
    static const uint32_t queues[] = {QUEUE, OTHER};
    ls_options options;
    ls_store *store;
    ls_options_default(&options);
    options.segment_size = 512 * 1024;
    expect(ls_open(NULL, path, &options, &store) == LS_OK, "open");
    expect(ls_serve(store, queues, 2, 3) == LS_OK, "serve");
    return store;
}

static uint64_t publish(ls_store *store, size_t bytes, ls_tx *tx, int flags) {
    static uint8_t content[40000];
    static const uint32_t queue = QUEUE;
    uint64_t id;
    expect(ls_publish(store, &queue, 1, (const uint8_t *)"head", 4, content, bytes, tx, flags, &id) == LS_OK, "publish");
    return id;
}

static void durable_publishes(ls_store *store) {
    phase("durable");
    for (int i = 0; i < PUBLISHES; i++) {
        (void)publish(store, 100, NULL, LS_WAIT);
    }
    phase("between");
}

static void commits(ls_store *store) {
    phase("commits");
    for (int i = 0; i < COMMITS; i++) {
        ls_tx *tx;
        expect(ls_begin(store, NULL, &tx) == LS_OK, "begin");
        for (int j = 0; j < 10; j++) {
            (void)publish(store, 100, tx, 0);
        }
        expect(ls_commit(tx, LS_WAIT) == LS_OK, "commit");
        ls_tx_free(tx);
    }
    phase("between");
}

static void empty_the_queue(ls_store *store) {
    ls_cursor *cursor;
    ls_place places[PUBLISHES + COMMITS * 10 + 1];
    size_t n, done;
    expect(ls_cursor_open(store, QUEUE, LS_CURSOR_OFFER, &cursor) == LS_OK, "cursor");
    expect(ls_cursor_next(cursor, places, sizeof places / sizeof *places, &n) == LS_OK, "next");
    expect(n == PUBLISHES + COMMITS * 10, "not all that was published is offered");
    ls_cursor_close(cursor);
    for (size_t i = 0; i < n; i++) {
        expect(ls_dequeue_many(store, &places[i].id, 1, QUEUE, NULL, 0, 0, &done) == LS_OK, "dequeue many");
    }
}

/* Through many segments: staged in chunks, read back, dequeued, so that files are made, recycled and removed. */
static void churn(ls_store *store) {
    static uint8_t content[100000], back[100000];
    static const uint32_t queues[] = {QUEUE, OTHER};
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t id, lsn;
        size_t done;
        memset(content, i, sizeof content);
        expect(ls_stage(store, NULL, 0, content, 1000, 0, &id) == LS_OK, "stage");
        expect(ls_append_content(store, id, content, sizeof content - 1000, 0) == LS_OK, "append");
        expect(ls_enqueue(store, id, queues, 2, NULL, i % 10 == 0 ? LS_WAIT : 0, &lsn) == LS_OK, "enqueue");
        expect(ls_load_content(store, id, 0, back, sizeof back, &done) == LS_OK && done == sizeof back &&
                   memcmp(content, back, sizeof back) == 0, "load");
        expect(ls_dequeue(store, id, QUEUE, NULL, 0, 0, 0, &lsn) == LS_OK, "dequeue");
        expect(ls_dequeue(store, id, OTHER, NULL, 0, 0, i % 10 == 5 ? LS_WAIT : 0, &lsn) == LS_OK, "dequeue");
    }
}

static void look_beside(const char *path) {
    ls_reader *reader;
    ls_batch batch;
    int rc;
    expect(ls_reader_open(NULL, path, 0, &reader) == LS_OK, "read beside the writer");
    while ((rc = ls_reader_next(reader, &batch)) == LS_OK) {
    }
    expect(rc == LS_END || rc == LS_RECYCLED, "read to the end");
    ls_reader_close(reader);
}

int main(int argc, char **argv) {
    expect(argc == 2, "usage: workload DIRECTORY");
    const char *path = argv[1];
    int fd;
    phase("start");
    ls_store *store = open_store(path);
    expect(ls_event_fd(store, &fd) == LS_OK, "event");
    durable_publishes(store);
    commits(store);
    empty_the_queue(store);
    phase("churn");
    churn(store);
    look_beside(path);
    ls_compaction report;
    expect(ls_compact(store, 0, &report) == LS_OK, "compact");
    (void)publish(store, 30000, NULL, LS_WAIT);
    ls_stats stats;
    ls_stats_get(store, &stats);
    expect(stats.segments_recycled > 0, "no segment was recycled");
    expect(ls_close(store) == LS_OK, "close");
    ls_free(store);
    phase("again");
    store = open_store(path);
    uint64_t places, locked;
    expect(ls_queue_depth(store, QUEUE, &places, &locked) == LS_OK && places == 1, "depth");
    expect(ls_close(store) == LS_OK, "close again");
    ls_free(store);
    phase("end");
    return 0;
}
