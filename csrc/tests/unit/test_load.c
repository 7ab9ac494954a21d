/*
 * Loading the messages of a queue along a cursor: the loaded bytes are the published ones, and loading stops at the
 * right place.
 */
#include <stdatomic.h>

#include "log/parts.h"
#include "store/store.h"
#include "tests/kit/one_store.h"

enum { MOST = 700, BUFFER_BYTES = 600 << 10 };

static uint64_t ids[MOST];
static uint32_t lengths[MOST];
static uint8_t into[BUFFER_BYTES + 64];
static ls_place places[MOST];
static ls_span spans[MOST];
static vfs slow, *real;
static atomic_bool reading, go_on;
static _Thread_local bool is_a_reader;

static uint8_t byte_of(int i, uint32_t at) { return (uint8_t)(i * 31 + (int)at * 7 + (int)(at >> 8)); }

/* Message i: a header of i % 9 bytes. */
static void publish_as(int i, uint32_t bytes, uint32_t queue, int flags) {
    static uint8_t content[1 << 17];
    uint8_t header[8];

    for (uint32_t at = 0; at < bytes; at++)
        content[at] = byte_of(i, at);
    memset(header, i, sizeof header);
    lengths[i] = bytes;
    check(ls_publish(r.store, &queue, 1, header, (size_t)(i % 9), content, bytes, NULL, flags, &ids[i]) == LS_OK);
}

static bool is_loaded(int i, const ls_span *span) {
    if (span->content_at == 0 || span->header_bytes != (uint32_t)(i % 9) || span->content_bytes != lengths[i])
        return false;
    for (uint32_t at = 0; at < span->header_bytes; at++)
        if (into[span->header_at + at] != (uint8_t)i)
            return false;
    for (uint32_t at = 0; at < span->content_bytes; at++)
        if (into[span->content_at + at] != byte_of(i, at))
            return false;
    return true;
}

/* One byte of its content, in the file. */
static void damage(uint64_t id) {
    static uint8_t image[SEGMENT];
    const struct segment *s = log_segment(r.store->log, id);
    char name[SEGMENT_NAME_BYTES];

    format_segment_name(name, s->first_lsn);
    check(vfs_sim_get(sim, VFS_SIM_SEEN, "/s", name, image, sizeof image) == SEGMENT);
    image[id - s->first_lsn + 150] ^= 1;
    check(vfs_sim_put(sim, "/s", name, image, sizeof image) == 0);
}

static ls_cursor *open_cursor(int kind) {
    ls_cursor *cursor = NULL;

    check(ls_cursor_open(r.store, 1, kind, &cursor) == LS_OK);
    return cursor;
}

/* Loads the queue's messages from `first` to `last` with this buffer; *calls is the number of calls. */
static int load_queue(int first, int last, size_t bytes, size_t n, int *calls) {
    ls_cursor *cursor = open_cursor(LS_CURSOR_ALL);
    int i = first, loaded = 0;
    size_t done = 1;

    for (*calls = 0; done > 0; (*calls)++) {
        memset(into, 0xee, sizeof into);
        check(ls_cursor_load(cursor, places, spans, n, into, bytes, &done) == LS_OK && done <= n);
        for (size_t k = 0; k < done; k++, i++) {
            check(places[k].id == ids[i] && places[k].content_bytes == lengths[i]);
            check(spans[k].content_at == 0 || is_loaded(i, &spans[k]));
            loaded += spans[k].content_at != 0 ? 1 : 0;
        }
        for (size_t at = bytes; at < sizeof into; at++)
            check(into[at] == 0xee);
    }
    check(i == last);
    ls_cursor_close(cursor);
    return loaded;
}

/* Neighbours, gaps of other queues' messages, other segments, the write buffers, and long ones. */
static void messages_come_in_order_as_they_were_published(void) {
    int n = 0, calls, long_ones = 0;

    fresh();
    for (; n < 400; n++) {
        publish_as(n, n % 50 == 7 ? 40000 : 20 + (uint32_t)(n * 37 % 900), 1, n % 60 == 0 ? LS_WAIT : 0);
        long_ones += n % 50 == 7 ? 1 : 0;
        if (n % 3 == 0)
            (void)put_bytes(2, 1, n % 4 == 0 ? 6000 : 60, 0);
    }
    for (size_t at_once = 1; at_once <= MOST; at_once = at_once * 5 + 2) {
        check(load_queue(0, n, BUFFER_BYTES, at_once, &calls) == n - long_ones);
        check(calls >= n / (int)at_once);
    }
    check(ls_force(r.store, 0) == LS_OK);
    check(load_queue(0, n, BUFFER_BYTES, MOST, &calls) == n - long_ones && calls == 2);
    uint64_t advised = vfs_sim_calls(sim, VFS_SIM_ADVISE); /* each file once, however often it is read */
    check(advised > 1 && advised <= r.store->log->segment_count);
    done();
}

static void a_load_stops_before_the_message_that_does_not_fit(void) {
    int n = 0, calls;

    fresh();
    for (; n < 40; n++)
        publish_as(n, n == 20 ? 3000 : 500, 1, n == 30 ? LS_WAIT : 0);
    for (size_t room = 700; room < 3000; room += 61)
        check(load_queue(0, n, room, MOST, &calls) == n - 1);
    check(load_queue(0, n, 4000, MOST, &calls) == n);
    check(load_queue(0, n, 100, MOST, &calls) == 0 && calls == 2); /* none fits, and none is waited for */
    done();
}

static void a_damaged_message_is_not_loaded_and_its_neighbours_are(void) {
    ls_cursor *cursor;
    size_t done_now;

    fresh();
    for (int i = 0; i < 30; i++)
        publish_as(i, 300, 1, i == 29 ? LS_WAIT : 0);
    damage(ids[11]);
    cursor = open_cursor(LS_CURSOR_OFFER);
    check(ls_cursor_load(cursor, places, spans, MOST, into, BUFFER_BYTES, &done_now) == LS_OK && done_now == 30);
    for (int i = 0; i < 30; i++)
        check(i == 11 ? spans[i].content_at == 0 : is_loaded(i, &spans[i]));
    ls_cursor_close(cursor);
    done();
}

static int64_t slow_pread(vfs *w, int file, void *to, size_t bytes, uint64_t at) {
    const struct timespec pause = {.tv_nsec = 1000 * 1000};

    (void)w;
    if (is_a_reader) {
        atomic_store(&reading, true);
        while (!atomic_load(&go_on))
            (void)nanosleep(&pause, NULL);
    }
    return real->pread(real, file, to, bytes, at);
}

static void *load_first(void *cursor) {
    size_t n = 0;

    is_a_reader = true;
    check(ls_cursor_load(cursor, places, spans, 10, into, BUFFER_BYTES, &n) == LS_OK && n == 10);
    atomic_store(&reading, true); /* also if it read nothing, so that nobody waits for it */
    return NULL;
}

/* Its messages are dequeued, its segment dead and its file wanted for new records meanwhile. */
static void what_is_being_loaded_stays_until_it_was_read(void) {
    const struct timespec pause = {.tv_nsec = 1000 * 1000};
    pthread_t reader;
    ls_cursor *cursor;
    uint64_t lsn;

    fresh();
    for (int i = 0; i < 10; i++)
        publish_as(i, 4000, 1, LS_WAIT);
    cursor = open_cursor(LS_CURSOR_ALL);
    real = r.store->log->v;
    slow = *real;
    slow.pread = slow_pread;
    r.store->log->v = &slow;
    check(pthread_create(&reader, NULL, load_first, cursor) == 0);
    while (!atomic_load(&reading))
        (void)nanosleep(&pause, NULL);
    for (int i = 0; i < 10; i++)
        check(ls_dequeue(r.store, ids[i], 1, NULL, 0, 0, LS_WAIT, &lsn) == LS_OK);
    for (int i = 0; i < 100; i++) { /* several segments */
        lsn = put_bytes(2, 0x55, 5000, LS_WAIT);
        check(ls_dequeue(r.store, lsn, 2, NULL, 0, 0, LS_WAIT, &lsn) == LS_OK);
    }
    check(ls_base_lsn(r.store) > ids[9]);
    atomic_store(&go_on, true);
    check(pthread_join(reader, NULL) == 0);
    for (int i = 0; i < 10; i++)
        check(is_loaded(i, &spans[i]));
    r.store->log->v = real;
    ls_cursor_close(cursor);
    done();
}

static void a_load_offers_durable_places_that_are_not_locked(void) {
    ls_cursor *cursor;
    ls_tx *tx;
    uint64_t lsn;
    size_t done_now;

    fresh();
    for (int i = 0; i < 12; i++)
        publish_as(i, 300, 1, i == 9 ? LS_WAIT : 0);
    check(ls_begin(r.store, NULL, &tx) == LS_OK);
    check(ls_dequeue(r.store, ids[4], 1, tx, 0, 0, 0, &lsn) == LS_OK);
    cursor = open_cursor(LS_CURSOR_OFFER);
    check(ls_cursor_load(cursor, places, spans, MOST, into, BUFFER_BYTES, &done_now) == LS_OK && done_now == 9);
    check(places[4].id == ids[5] && is_loaded(5, &spans[4]));
    check(ls_rollback(tx, LS_WAIT) == LS_OK);
    check(ls_cursor_load(cursor, places, spans, 1, into, BUFFER_BYTES, &done_now) == LS_OK && done_now == 1);
    check(places[0].id == ids[4] && is_loaded(4, &spans[0]));
    ls_tx_free(tx);
    check(ls_queue_delete(r.store, 1, 0) == LS_OK);
    check(ls_cursor_load(cursor, places, spans, 1, into, BUFFER_BYTES, &done_now) == LS_UNKNOWN_QUEUE);
    ls_cursor_close(cursor);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        messages_come_in_order_as_they_were_published,          a_load_stops_before_the_message_that_does_not_fit,
        a_damaged_message_is_not_loaded_and_its_neighbours_are, what_is_being_loaded_stays_until_it_was_read,
        a_load_offers_durable_places_that_are_not_locked,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
