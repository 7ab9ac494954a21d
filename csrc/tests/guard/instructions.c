/*
 * Measures the core's hot paths in instructions. tools/instructions.py runs it under callgrind and compares the counts.
 *
 * Each `measured_*` function does one operation a fixed number of times, on a store in a simulated file system, with one
 * thread, a fixed seed and a simulated clock, so that the same program executes the same instructions every time.
 * Callgrind counts from the entry of such a function to its end, but not within `outside_*`, the simulated system calls.
 * So the counts are those of the core and of its C library calls.
 *
 * Prints the compiler and the C library, then one line for each function: its name and the number of operations. If built
 * with PLANTED_INSTRUCTIONS=N and linked with --wrap=table_add, every message added to the table costs about N more
 * instructions, which the comparison must detect.
 */
#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "logstore.h"
#include "table/table.h"
#include "tests/sim/vfs_sim.h"

#ifdef __clang__
#define COMPILER __VERSION__
#define MEASURED __attribute__((noinline))
#else
#define COMPILER "gcc " __VERSION__
#define MEASURED __attribute__((noinline, noclone))
#endif

enum {
    QUEUE = 1,
    OTHER = 2,
    SINGLES = 1000,
    AT_ONCE = 100,
    BATCHES = 10,
    MANY = AT_ONCE * BATCHES,
    TX_OPERATIONS = 10,
    ROUNDS = 2, /* of MANY, in a log that is recovered */
    TXS = 50,
    WIDE = 4 << 20, /* bytes of a segment: enough for everything that is measured */
    NARROW = 1 << 20,
    SEED = 6,
    CONTENT_MAX = 1024,
};

/* ---- the system, outside ---- */

static vfs_sim *sim;
static vfs outside;

static vfs *real(void) { return vfs_sim_table(sim); }

/* The simulator's result goes through a variable: a tail call would become a jump, and Callgrind would miss its end. */
MEASURED static int outside_open(vfs *v, int dir, const char *name, unsigned flags) {
    (void)v;
    volatile int result = real()->open(real(), dir, name, flags);
    return result;
}

MEASURED static int outside_close(vfs *v, int handle) {
    (void)v;
    volatile int result = real()->close(real(), handle);
    return result;
}

MEASURED static int64_t outside_pread(vfs *v, int file, void *into, size_t bytes, uint64_t at) {
    (void)v;
    volatile int64_t result = real()->pread(real(), file, into, bytes, at);
    return result;
}

MEASURED static int64_t outside_pwrite(vfs *v, int file, const void *from, size_t bytes, uint64_t at) {
    (void)v;
    volatile int64_t result = real()->pwrite(real(), file, from, bytes, at);
    return result;
}

MEASURED static int outside_sync_data(vfs *v, int file) {
    (void)v;
    volatile int result = real()->sync_data(real(), file);
    return result;
}

MEASURED static int outside_allocate(vfs *v, int file, uint64_t bytes) {
    (void)v;
    volatile int result = real()->allocate(real(), file, bytes);
    return result;
}

MEASURED static uint64_t outside_monotonic_us(vfs *v) {
    (void)v;
    volatile uint64_t result = real()->monotonic_us(real());
    return result;
}

MEASURED static int outside_list(vfs *v, int dir, vfs_list_fn *each, void *context) {
    (void)v;
    volatile int result = real()->list(real(), dir, each, context);
    return result;
}

static void make_system(void) {
    sim = vfs_sim_new();
    if (sim == NULL) {
        abort();
    }
    (void)vfs_sim_record(sim, 0);
    vfs_sim_seed(sim, SEED);
    outside = *real();
    outside.open = outside_open;
    outside.close = outside_close;
    outside.pread = outside_pread;
    outside.pwrite = outside_pwrite;
    outside.sync_data = outside_sync_data;
    outside.allocate = outside_allocate;
    outside.list = outside_list;
    outside.monotonic_us = outside_monotonic_us;
}

/* ---- the store ---- */

static ls_store *store;
static uint8_t content[CONTENT_MAX * AT_ONCE];
static uint64_t sizes[AT_ONCE];
static uint64_t ids[MANY];

/* Aborts on an error: a failed operation would be counted as a cheap one. */
static void must(int rc) {
    if (rc != LS_OK) {
        (void)fprintf(stderr, "instructions: %s\n", ls_last_error()->text);
        exit(1);
    }
}

static void must_be(bool so, const char *what) {
    if (!so) {
        (void)fprintf(stderr, "instructions: %s\n", what);
        exit(1);
    }
}

static void open_store(const char *path, uint64_t segment_size) {
    ls_options options;
    ls_options_default(&options);
    options.segment_size = segment_size;
    options.initial_segments = 1;
    options.background = 0;
    options.no_checkpoint = 1;
    must(ls_open(&outside, path, &options, &store));
}

static void serve_store(void) {
    const uint32_t queues[] = {QUEUE, OTHER};
    must(ls_serve(store, queues, 2, OTHER + 1));
}

static void close_store(void) {
    must(ls_close(store));
    ls_free(store);
}

static void publish(size_t bytes, size_t n) {
    const uint32_t queue = QUEUE;
    for (size_t i = 0; i < n; i++) {
        must(ls_publish(store, &queue, 1, NULL, 0, content, bytes, NULL, 0, &ids[i]));
    }
}

static void publish_many(size_t bytes) {
    size_t done;
    for (size_t i = 0; i < AT_ONCE; i++) {
        sizes[i] = bytes;
    }
    for (size_t i = 0; i < BATCHES; i++) {
        must(ls_publish_many(store, QUEUE, AT_ONCE, content, sizes, NULL, NULL, NULL, NULL, 0, ids + i * AT_ONCE,
                             &done));
    }
}

/* From AT_ONCE buffers, as a binding has them. */
static void publish_gather(size_t bytes) {
    const uint8_t *contents[AT_ONCE];
    size_t done;
    for (size_t i = 0; i < AT_ONCE; i++) {
        contents[i] = content + i * CONTENT_MAX;
        sizes[i] = bytes;
    }
    for (size_t i = 0; i < BATCHES; i++) {
        must(ls_publish_gather(store, QUEUE, AT_ONCE, contents, sizes, NULL, NULL, NULL, NULL, 0, ids + i * AT_ONCE,
                               &done));
    }
}

static void empty(size_t n) {
    size_t done;
    must(ls_dequeue_many(store, ids, n, QUEUE, NULL, 1, LS_WAIT, &done));
}

/* ---- the measured functions; each begins with everything durable ---- */

MEASURED static void measured_publish_100(void) { publish(100, SINGLES); }

MEASURED static void measured_publish_1024(void) { publish(1024, SINGLES); }

MEASURED static void measured_publish_many_100(void) { publish_many(100); }

MEASURED static void measured_publish_many_1024(void) { publish_many(1024); }

MEASURED static void measured_publish_gather_100(void) { publish_gather(100); }

MEASURED static void measured_publish_gather_1024(void) { publish_gather(1024); }

MEASURED static void measured_dequeue(void) {
    uint64_t lsn;
    for (size_t i = 0; i < SINGLES; i++) {
        must(ls_dequeue(store, ids[i], QUEUE, NULL, 1, 0, 0, &lsn));
    }
}

MEASURED static void measured_annotate(void) {
    uint64_t lsn;
    for (size_t i = 0; i < SINGLES; i++) {
        must(ls_annotate(store, ids[i], QUEUE, content, 24, NULL, 0, &lsn));
    }
}

/* With a header of its own, as a broker gives it to a dead letter. */
MEASURED static void measured_move(const ls_delivery *held) {
    const ls_place_move move = {.from_queue_id = QUEUE,
                                .queue_id = OTHER,
                                .reason = 1,
                                .header_given = 1,
                                .header = content,
                                .header_bytes = 200};
    uint64_t lsn;
    for (size_t i = 0; i < SINGLES; i++) {
        must(ls_move(store, held[i].id, &move, &held[i], NULL, 0, &lsn));
    }
}

MEASURED static void measured_dequeue_many(void) {
    size_t done;
    for (size_t i = 0; i < BATCHES; i++) {
        must(ls_dequeue_many(store, ids + i * AT_ONCE, AT_ONCE, QUEUE, NULL, 1, 0, &done));
    }
}

MEASURED static void measured_acquire_and_settle(void) {
    ls_delivery deliveries[AT_ONCE];
    size_t acquired, done;
    for (size_t i = 0; i < BATCHES; i++) {
        must(ls_acquire(store, QUEUE, deliveries, AT_ONCE, 0, &acquired));
        must_be(acquired == AT_ONCE, "places are missing");
        must(ls_settle_all(store, QUEUE, deliveries, AT_ONCE, NULL, 0, 0, &done));
    }
}

MEASURED static void measured_queue_counts(void) {
    ls_queue_counts counts;
    for (size_t i = 0; i < MANY; i++) {
        must(ls_queue_counts_get(store, QUEUE, &counts));
        must_be(counts.ready == MANY, "places are missing");
    }
}

MEASURED static void measured_acquire_and_release(void) {
    ls_delivery deliveries[AT_ONCE];
    size_t acquired;
    for (size_t i = 0; i < BATCHES; i++) {
        must(ls_acquire(store, QUEUE, deliveries, AT_ONCE, 0, &acquired));
        must_be(acquired == AT_ONCE, "places are missing");
        must(ls_release(store, QUEUE, deliveries, AT_ONCE, 0));
    }
}

MEASURED static void measured_durable_publish_100(void) {
    const uint32_t queue = QUEUE;
    for (size_t i = 0; i < AT_ONCE; i++) {
        must(ls_publish(store, &queue, 1, NULL, 0, content, 100, NULL, LS_WAIT, &ids[i]));
    }
}

MEASURED static void measured_force(void) { must(ls_force(store, 0)); }

MEASURED static void measured_transaction(void) {
    const uint32_t queue = QUEUE;
    for (size_t i = 0; i < TXS; i++) {
        ls_tx *tx;
        must(ls_begin(store, NULL, &tx));
        for (size_t k = 0; k < TX_OPERATIONS; k++) {
            must(ls_publish(store, &queue, 1, NULL, 0, content, 100, tx, 0, &ids[i * TX_OPERATIONS + k]));
        }
        must(ls_commit(tx, LS_WAIT));
        ls_tx_free(tx);
    }
}

MEASURED static void measured_read_places(void) {
    ls_cursor *cursor;
    ls_place places[AT_ONCE];
    size_t done, seen = 0;
    must(ls_cursor_open(store, QUEUE, LS_CURSOR_ALL, &cursor));
    do {
        must(ls_cursor_next(cursor, places, AT_ONCE, &done));
        seen += done;
    } while (done > 0);
    ls_cursor_close(cursor);
    must_be(seen == MANY, "places are missing");
}

MEASURED static void measured_load_in_order_1024(void) {
    static uint8_t into[AT_ONCE * 2 * CONTENT_MAX];
    ls_cursor *cursor;
    ls_place places[AT_ONCE];
    ls_span spans[AT_ONCE];
    size_t done, seen = 0;
    must(ls_cursor_open(store, QUEUE, LS_CURSOR_ALL, &cursor));
    do {
        must(ls_cursor_load(cursor, places, spans, AT_ONCE, into, sizeof into, &done));
        for (size_t i = 0; i < done; i++) {
            seen += spans[i].content_at != 0;
        }
    } while (done > 0);
    ls_cursor_close(cursor);
    must_be(seen == MANY, "contents are missing");
}

MEASURED static void measured_load_content_1024(void) {
    uint8_t into[CONTENT_MAX];
    size_t done;
    for (size_t i = 0; i < MANY; i++) {
        must(ls_load_content(store, ids[i], 0, into, sizeof into, &done));
    }
}

MEASURED static void measured_scan_100(void) {
    ls_reader *reader;
    ls_batch b;
    int rc;
    must(ls_reader_open(&outside, "/recover-100", 0, &reader));
    while ((rc = ls_reader_next(reader, &b)) == LS_OK) {
    }
    must_be(rc == LS_END, "the log cannot be scanned");
    ls_reader_close(reader);
}

/* All columns but bodies; the reader is open. */
MEASURED static void measured_rows(ls_reader *reader) {
    const ls_rows_options options = {.columns = (UINT64_C(1) << LS_ROWS_BODY) - 1, .rows_max = MANY};
    ls_rows *rows;
    ls_columns *columns;
    int rc;
    must(ls_rows_open(reader, &options, &rows));
    while ((rc = ls_rows_next(rows, &columns)) == LS_OK) {
        ls_columns_free(columns);
    }
    must_be(rc == LS_END, "the log cannot be scanned");
    ls_rows_free(rows);
}

MEASURED static void measured_message_rows(ls_reader *reader) {
    ls_message_rows *rows;
    ls_columns *columns;
    int rc;
    must(ls_message_rows_new(0, INT64_MAX, NULL, 0, MANY, &rows));
    while ((rc = ls_message_rows_next(rows, reader, &columns)) == LS_OK) {
        ls_columns_free(columns);
    }
    must_be(rc == LS_END, "the log cannot be scanned");
    ls_message_rows_free(rows);
}

MEASURED static void measured_recover_100(void) { open_store("/recover-100", NARROW); }

MEASURED static void measured_recover_1024(void) { open_store("/recover-1024", NARROW); }

MEASURED static void measured_recover_dequeued(void) { open_store("/recover-dequeued", NARROW); }

/* ---- each in turn ---- */

static void tell(const char *name, size_t operations) { printf("%s %zu\n", name, operations); }

static void measure_changes(void) {
    make_system();
    open_store("/changes", WIDE);
    serve_store();
    publish(1024, SINGLES); /* allocate every buffer, index and slab before counting begins */
    empty(SINGLES);
    must(ls_force(store, 0));
    measured_publish_100();
    tell("publish_100", SINGLES);
    measured_force();
    tell("force", 1);
    measured_dequeue();
    tell("dequeue", SINGLES);
    must(ls_force(store, 0));
    measured_publish_1024();
    tell("publish_1024", SINGLES);
    empty(SINGLES);
    measured_publish_many_100();
    tell("publish_many_100", MANY);
    must(ls_force(store, 0));
    measured_dequeue_many();
    tell("dequeue_many", MANY);
    must(ls_force(store, 0));
    measured_publish_many_1024();
    tell("publish_many_1024", MANY);
    must(ls_force(store, 0));
    measured_read_places();
    tell("read_places", MANY);
    measured_load_content_1024();
    tell("load_content_1024", MANY);
    measured_load_in_order_1024();
    tell("load_in_order_1024", MANY);
    measured_queue_counts();
    tell("queue_counts", MANY);
    measured_acquire_and_release();
    tell("acquire_and_release", MANY);
    measured_acquire_and_settle();
    tell("acquire_and_settle", MANY);
    must(ls_force(store, 0));
    measured_publish_gather_100();
    tell("publish_gather_100", MANY);
    empty(MANY);
    measured_publish_gather_1024();
    tell("publish_gather_1024", MANY);
    empty(MANY);
    measured_durable_publish_100();
    tell("durable_publish_100", AT_ONCE);
    empty(AT_ONCE);
    measured_transaction();
    tell("transaction", TXS);
    publish_many(100);
    must(ls_force(store, 0));
    measured_annotate();
    tell("annotate", MANY);
    empty(MANY);
    publish_many(100);
    must(ls_force(store, 0));
    static ls_delivery held[SINGLES];
    size_t acquired;
    must(ls_acquire(store, QUEUE, held, SINGLES, 0, &acquired));
    must_be(acquired == SINGLES, "places are missing");
    measured_move(held);
    tell("move", SINGLES);
    close_store();
    vfs_sim_free(sim);
}

/* Makes a log of this many messages, all live or all dequeued. */
static void make_log(const char *path, size_t bytes, bool dequeued) {
    open_store(path, NARROW);
    serve_store();
    for (size_t i = 0; i < ROUNDS; i++) {
        publish_many(bytes);
        if (dequeued) {
            empty(MANY);
        }
    }
    must(ls_force(store, 0));
    close_store();
}

static void measure_recovery(void) {
    make_system();
    make_log("/recover-100", 100, false);
    measured_recover_100();
    tell("recover_100", ROUNDS * MANY);
    serve_store();
    close_store();
    measured_scan_100();
    tell("scan_100", ROUNDS * MANY);
    make_log("/recover-1024", 1024, false);
    measured_recover_1024();
    tell("recover_1024", ROUNDS * MANY);
    serve_store();
    close_store();
    make_log("/recover-dequeued", 100, true);
    ls_reader *reader;
    must(ls_reader_open(&outside, "/recover-dequeued", 0, &reader));
    measured_rows(reader);
    tell("rows", 2 * ROUNDS * MANY);
    ls_reader_close(reader);
    must(ls_reader_open(&outside, "/recover-dequeued", 0, &reader));
    measured_message_rows(reader);
    tell("message_rows", 2 * ROUNDS * MANY);
    ls_reader_close(reader);
    measured_recover_dequeued();
    tell("recover_dequeued", 2 * ROUNDS * MANY);
    serve_store();
    close_store();
    vfs_sim_free(sim);
}

/* ---- a planted cost ---- */

#ifdef PLANTED_INSTRUCTIONS
uint32_t __real_table_add(struct table *t, uint64_t id, uint16_t flags);
uint32_t __wrap_table_add(struct table *t, uint64_t id, uint16_t flags);

/* Three instructions per round. */
uint32_t __wrap_table_add(struct table *t, uint64_t id, uint16_t flags) {
    for (int rounds = PLANTED_INSTRUCTIONS / 3; rounds > 0; rounds--) {
        __asm__ volatile("nop");
    }
    return __real_table_add(t, id, flags);
}
#endif

/* With any argument: only the operations that change the store. */
int main(int argc, char **argv) {
    (void)argv;
    printf("%s, glibc %s\n", COMPILER, gnu_get_libc_version());
    memset(content, 'x', sizeof content);
    measure_changes();
    if (argc == 1) {
        measure_recovery();
    }
    return 0;
}
