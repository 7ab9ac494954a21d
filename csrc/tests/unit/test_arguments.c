/*
 * Arguments at and beyond the ends of their ranges, and limits: each call is refused with its own code before anything
 * is changed, or accepted as docs/api.md says.
 */
#include "format/format.h"
#include "table/table.h"
#include "tests/kit/one_store.h"
#include "tests/sim/testing.h"

static const uint32_t one = 1;
static const ls_options usual = {.segment_size = SEGMENT, .create = 1, .initial_segments = 2, .max_write_buffers = 4};

/* ---- options and paths ---- */

static int open_with(ls_options o, const char *path) {
    vfs_sim *disk = vfs_sim_new();
    ls_store *s = (ls_store *)disk;
    int rc = ls_open(vfs_sim_table(disk), path, &o, &s);

    check((s == NULL) == (rc != LS_OK));
    ls_free(s);
    check(vfs_sim_handles(disk) == 0);
    vfs_sim_free(disk);
    return rc;
}

static void each_option_is_refused_beyond_its_range_and_taken_at_its_ends(void) {
    ls_options o = usual;

    check(open_with(o, "/s") == LS_OK);
    o.max_write_buffers = 1;
    check(open_with(o, "/s") == LS_OPTION);
    o.max_write_buffers = LS_BUFFERS_MAX + 1;
    check(open_with(o, "/s") == LS_OPTION);
    o.max_write_buffers = LS_BUFFERS_MAX;
    check(open_with(o, "/s") == LS_OK);
    o.initial_segments = 0;
    check(open_with(o, "/s") == LS_OPTION);
    o.initial_segments = 65537;
    check(open_with(o, "/s") == LS_OPTION);
    o.initial_segments = 1;
    check(open_with(o, "/s") == LS_OK);
    o.segment_size = SEGMENT_BYTES_MAX + 1;
    check(open_with(o, "/s") == LS_OPTION);
    o.segment_size = SEGMENT;
    o.max_undurable_bytes = (LSN_MAX / 4) + 1;
    check(open_with(o, "/s") == LS_OPTION);
    o.max_undurable_bytes = LSN_MAX / 4;
    check(open_with(o, "/s") == LS_OK);
    o.max_log_bytes = 6 * SEGMENT - 1;
    check(open_with(o, "/s") == LS_OPTION);
    o.max_log_bytes = 6 * SEGMENT;
    check(open_with(o, "/s") == LS_OK);
}

static void a_segment_size_is_rounded_up_to_what_can_be_and_defaults_to_16_mib(void) {
    static const uint64_t sizes[][2] = {{1, 65536}, {65537, 65536 + 4096}, {0, 16 << 20}, {1 << 20, 1 << 20}};

    for (int i = 0; i < 4; i++) {
        ls_options o = usual;
        vfs_sim *disk = vfs_sim_new();
        ls_store *s;

        o.segment_size = sizes[i][0];
        require(ls_open(vfs_sim_table(disk), "/s", &o, &s) == LS_OK);
        check(ls_segment_size(s) == sizes[i][1]);
        ls_free(s);
        vfs_sim_free(disk);
    }
}

/* The parent directory is synced, however the path is written. */
static void a_store_is_made_under_any_form_of_path(void) {
    static const char *const paths[] = {"/s", "/s/", "//s//", "s", "s/", "."};

    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        check(open_with(usual, paths[i]) == LS_OK || complain(paths[i]));
}

static int open_existing(bool create, const char *path) {
    ls_options o = usual;
    ls_store *s;
    int rc;

    o.create = create;
    rc = ls_open(r.v, path, &o, &s);
    ls_free(s);
    return rc;
}

static void a_directory_without_a_store_is_refused_unless_it_is_to_be_created(void) {
    vfs_sim_plan made_meanwhile = {.kind = VFS_SIM_MAKE_DIR, .nth = 1, .error = EEXIST};
    uint8_t meta[BLOCK] = "something else";
    int dir;

    fresh();
    check(ls_close(r.store) == LS_OK);
    check(open_existing(false, "/none") == LS_NOT_A_STORE && open_existing(false, "/s") == LS_OK);
    check(vfs_sim_put(sim, "/x", "file", meta, 10) == 0);
    check(open_existing(false, "/x") == LS_NOT_A_STORE); /* a directory, but no store */
    check(open_existing(true, "/x/file") == LS_NOT_A_STORE && open_existing(true, "/x/file/y") != LS_OK);
    check(vfs_sim_put(sim, "/y", "META", meta, sizeof meta) == 0 && open_existing(true, "/y") == LS_NOT_A_STORE);
    check(vfs_sim_put(sim, "/y", "LOCK", meta, 0) == 0 && open_existing(false, "/y") == LS_NOT_A_STORE);
    vfs_sim_fail(sim, &made_meanwhile); /* by another process, which has removed it again */
    check(open_existing(true, "/z") == LS_NOT_A_STORE);
    vfs_sim_fail(sim, NULL);
    dir = r.v->open_dir(r.v, "/s");
    check(r.v->unlink(r.v, dir, "META") == 0 && r.v->close(r.v, dir) == 0);
    check(open_existing(false, "/s") == LS_NOT_A_STORE);
    done();
}

static int count_names(void *context, const char *name) {
    (void)context;
    (void)name;
    return 1;
}

static void a_refused_limit_leaves_no_trace_of_a_new_store(void) {
    static const char *const paths[] = {"/absent", "/empty"};
    ls_options small = usual;
    ls_store *s;
    uint64_t sizes[] = {SEGMENT, 2 * SEGMENT};

    fresh();
    check(r.v->make_dir(r.v, "/empty") == 0);
    small.max_log_bytes = 6 * SEGMENT - 1;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        int dir;

        check(ls_open(r.v, paths[i], &small, &s) == LS_OPTION && s == NULL);
        dir = r.v->open_dir(r.v, paths[i]);
        check(i == 0 ? dir == -ENOENT : dir >= 0 && r.v->list(r.v, dir, count_names, NULL) == 0);
        check(dir < 0 || r.v->close(r.v, dir) == 0);
        small.segment_size = sizes[1];
        small.max_log_bytes = 6 * sizes[1];
        require(ls_open(r.v, paths[i], &small, &s) == LS_OK);
        check(ls_segment_size(s) == sizes[1]);
        ls_free(s);
        small = usual;
        small.max_log_bytes = 6 * SEGMENT - 1;
    }
    check(ls_open(r.v, "/s/none/above", &small, &s) == LS_OPTION);
    done();
}

/* A later version had begun to create the store, which must not be created again. */
static void a_creation_begun_by_a_later_version_is_refused(void) {
    uint8_t meta[META_BYTES];
    struct meta m = {.segment_size = SEGMENT, .max_undurable_bytes = 2 * SEGMENT};
    ls_store *s;

    fresh();
    format_put_meta(meta, &m);
    meta[8] = 2;
    check(vfs_sim_put(sim, "/n", "META.new", meta, sizeof meta) == 0 && open_existing(true, "/n") == LS_VERSION);
    meta[8] = 1;
    meta[100] = 1; /* torn: it is ignored, and a new one is made */
    check(vfs_sim_put(sim, "/n", "META.new", meta, sizeof meta) == 0 && open_existing(true, "/n") == LS_OK);
    meta[100] = 0; /* intact: the creation is finished with its UUID */
    meta[16] = 0;
    check(vfs_sim_put(sim, "/n", "META.new", meta, sizeof meta) == 0);
    require(ls_open(r.v, "/n", &usual, &s) == LS_OK);
    ls_uuid(s, meta);
    check(meta[0] == 0 && ls_creating(s));
    ls_free(s);
    done();
}

/* ---- messages and queues ---- */

static void a_queue_id_is_in_its_range(void) {
    static const uint32_t most = QUEUE_ID_MAX;
    uint64_t id;

    fresh();
    check(ls_queue_add(r.store, 0) == LS_OPTION && ls_queue_add(r.store, UINT32_MAX) == LS_OPTION);
    check(ls_queue_add(r.store, most) == LS_OK && ls_queue_add(r.store, most) == LS_OK);
    check(ls_publish(r.store, &most, 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &id) == LS_OK);
    check(ls_queue_delete(r.store, 77, 0) == LS_UNKNOWN_QUEUE && ls_queue_delete(r.store, most, 0) == LS_OK);
    done();
}

static void the_queues_of_a_range_of_ids_are_deleted_and_no_others(void) {
    static const uint32_t ids[] = {10, 11, 12, 19, 20};
    uint64_t id, places, locked;
    size_t n = 7;

    fresh();
    for (size_t i = 0; i < 5; i++) {
        check(ls_queue_add(r.store, ids[i]) == LS_OK);
        check(ls_publish(r.store, &ids[i], 1, NULL, 0, NULL, 0, NULL, 0, &id) == LS_OK);
    }
    check(ls_publish(r.store, ids, 5, NULL, 0, NULL, 0, NULL, 0, &id) == LS_OK);
    check(ls_queues_delete(r.store, 11, 19, LS_WAIT, &n) == LS_OK && n == 3);
    for (size_t i = 0; i < 5; i++) {
        bool gone = ids[i] >= 11 && ids[i] <= 19;
        check(ls_queue_depth(r.store, ids[i], &places, &locked) == (gone ? LS_UNKNOWN_QUEUE : LS_OK));
        check(gone || places == 2);
    }
    check(ls_queues_delete(r.store, 11, 19, LS_WAIT, &n) == LS_OK && n == 0);
    check(ls_queues_delete(r.store, 20, 10, LS_WAIT, &n) == LS_OK && n == 0);
    check(ls_queues_delete(r.store, 0, UINT32_MAX, LS_WAIT, &n) == LS_OK && n == FIRST_QUEUES + 2);
    done();
}

static void there_are_a_million_queues_and_no_more(void) {
    uint32_t n = FIRST_QUEUES;

    fresh();
    while (n < QUEUES_MAX && ls_queue_add(r.store, n + 1) == LS_OK)
        n++;
    check(n == QUEUES_MAX && ls_queue_add(r.store, n + 1) == LS_BUSY);
    check(ls_queue_delete(r.store, 9, 0) == LS_OK && ls_queue_add(r.store, n + 1) == LS_OK);
    done();
}

static void the_queues_and_the_header_of_a_record_are_limited(void) {
    enum { ALL = 1100 };
    static uint32_t queues[ALL];
    static uint8_t header[8192];
    ls_message_info info;
    uint64_t id = 1, lsn, fits = 0;
    size_t at_most = 0;

    fresh();
    for (uint32_t i = 0; i < ALL; i++) {
        queues[i] = i + 1;
        check(ls_queue_add(r.store, i + 1) == LS_OK);
    }
    for (size_t n = 900; n <= ALL; n++) {
        int rc = ls_publish(r.store, queues, n, NULL, 0, NULL, 0, NULL, 0, &id);

        check(rc == LS_OK ? id != 0 : rc == LS_OPTION && id == 0);
        at_most = rc == LS_OK ? n : at_most;
    }
    check(at_most == (4096 - 64) / 4); /* in an enqueue of its own */
    check(ls_publish(r.store, queues, 5000, NULL, 0, NULL, 0, NULL, 0, &id) == LS_OPTION);
    check(ls_stage(r.store, NULL, 0, NULL, 0, 0, &id) == LS_OK);
    check(ls_enqueue(r.store, id, queues, 0, NULL, 0, &lsn) == LS_OPTION);
    check(ls_enqueue(r.store, id, queues, at_most + 1, NULL, 0, &lsn) == LS_OPTION);
    check(ls_enqueue(r.store, id, queues, at_most, NULL, 0, &lsn) == LS_OK);
    check(ls_message(r.store, id, &info) == LS_OK && info.places == at_most);
    for (size_t n = 3900; n < sizeof header; n += 8) {
        int rc = ls_stage(r.store, header, n, (const uint8_t *)"x", 1, 0, &id);

        check(rc == LS_OK ? id != 0 : rc == LS_OPTION && id == 0);
        fits = rc == LS_OK ? n : fits;
    }
    check(fits >= 3990 && fits < 4096);
    check(ls_stage(r.store, header, SIZE_MAX - 4096, NULL, 0, 0, &id) == LS_OPTION);
    done();
}

/* A publish that cannot be finished ends the message that it had staged. */
static void a_publish_to_too_many_queues_leaves_nothing_behind(void) {
    enum { ALL = 1100 };
    static uint32_t queues[ALL];
    static const uint32_t twice[] = {1, 1};
    static uint8_t content[9000];
    ls_stats stats;
    ls_tx *tx;
    uint64_t id;

    fresh();
    for (uint32_t i = 0; i < ALL; i++) {
        queues[i] = i + 1;
        check(ls_queue_add(r.store, i + 1) == LS_OK);
    }
    check(ls_publish(r.store, queues, ALL, NULL, 0, content, sizeof content, NULL, 0, &id) == LS_OPTION && id == 0);
    check(ls_publish(r.store, twice, 2, NULL, 0, content, sizeof content, NULL, 0, &id) == LS_OPTION);
    check(ls_begin(r.store, NULL, &tx) == LS_OK && ls_commit(tx, 0) == LS_OK);
    check(ls_publish(r.store, &one, 1, NULL, 0, content, sizeof content, tx, 0, &id) == LS_TRANSACTION_ENDED);
    ls_tx_free(tx);
    ls_stats_get(r.store, &stats);
    check(stats.messages == 0 && stats.places == 0);
    done();
}

static void a_dequeue_refuses_a_reason_or_delivery_count_out_of_range(void) {
    static const int counts[][2] = {{-5, 0}, {7, 7}, {65535, 65535}, {70000, 65535}};
    ls_reader *reader;
    ls_batch b;
    uint64_t lsn, id;
    size_t n, seen = 0;

    fresh();
    id = put(1, "x", NULL);
    check(ls_dequeue(r.store, id, 1, NULL, -1, 0, 0, &lsn) == LS_OPTION && lsn == 0);
    check(ls_dequeue(r.store, id, 1, NULL, DEQUEUE_REASON_MAX + 1, 0, 0, &lsn) == LS_OPTION);
    check(ls_dequeue_many(r.store, &id, 1, 1, NULL, 7, 0, &n) == LS_OPTION && n == 0);
    check(ls_dequeue_many(r.store, &id, 1, 77, NULL, 1, 0, &n) == LS_UNKNOWN_QUEUE && has(id));
    check(ls_dequeue(r.store, id, 77, NULL, 1, 0, 0, &lsn) == LS_UNKNOWN_QUEUE);
    for (int i = 0; i < 4; i++)
        check(ls_dequeue(r.store, put(1, "x", NULL), 1, NULL, i, counts[i][0], LS_WAIT, &lsn) == LS_OK);
    require(ls_reader_open(r.v, "/s", 0, &reader) == LS_OK);
    while (ls_reader_next(reader, &b) == LS_OK) {
        struct record found;
        struct message_dequeue d;

        for (uint64_t at = BATCH_RECORD_BYTES; at < b.size; at += found.length) {
            format_read_verified(b.bytes + at, &found);
            if (found.type == MESSAGE_DEQUEUE && format_get_dequeue(&found, &d) == FORMAT_OK) {
                check(d.delivery_count == counts[seen][1] && d.reason == seen);
                seen++;
            }
        }
    }
    check(seen == 4);
    ls_reader_close(reader);
    done();
}

static void a_staged_or_pending_message_refuses_calls_that_do_not_fit_its_state(void) {
    ls_tx *tx;
    uint64_t id, lsn;

    fresh();
    check(ls_append_content(r.store, 8, NULL, 0, 0) == LS_UNKNOWN_MESSAGE &&
          ls_destroy(r.store, 8, 0) == LS_UNKNOWN_MESSAGE);
    check(ls_stage(r.store, NULL, 0, NULL, 0, 0, &id) == LS_OK && ls_begin(r.store, NULL, &tx) == LS_OK);
    check(ls_enqueue(r.store, id, &one, 1, tx, 0, &lsn) == LS_OK);
    check(ls_append_content(r.store, id, (const uint8_t *)"x", 1, 0) == LS_MESSAGE_IN_USE);
    check(ls_destroy(r.store, id, 0) == LS_MESSAGE_IN_USE);
    check(ls_rollback(tx, 0) == LS_OK);
    check(ls_append_content(r.store, id, (const uint8_t *)"x", 1, 0) == LS_OK && ls_destroy(r.store, id, 0) == LS_OK);
    check(!has(id));
    ls_tx_free(tx);
    done();
}

static void a_batch_of_publishes_stops_at_the_first_that_fails(void) {
    static const uint8_t contents[] = "onetwothree", headers[] = "aabbb";
    static const uint64_t sizes[] = {3, 3, 5}, header_sizes[] = {0, 2, 3}, too_large[] = {3, 5000, 3};
    static uint8_t header[5000], into[16];
    uint64_t ids[3] = {0};
    size_t done_count, n;
    ls_tx *tx;

    fresh();
    check(ls_publish_many(r.store, 1, 3, contents, sizes, headers, header_sizes, NULL, NULL, LS_WAIT, ids, &n) ==
          LS_OK);
    check(n == 3 && ls_load_content(r.store, ids[2], 0, into, 16, &n) == LS_OK && n == 5 &&
          memcmp(into, "three", 5) == 0);
    check(ls_load_header(r.store, ids[2], into, 16, &n) == LS_OK && n == 3 && memcmp(into, "bbb", 3) == 0);
    check(ls_load_header(r.store, ids[0], into, 16, &n) == LS_OK && n == 0);
    check(ls_publish_many(r.store, 1, 3, contents, sizes, header, too_large, NULL, NULL, 0, ids, &n) == LS_OPTION &&
          n == 1);
    check(has(ids[0]) && ids[1] == 0);
    check(ls_publish_many(r.store, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, LS_WAIT, NULL, &n) == LS_OK && n == 0);
    check(ls_begin(r.store, NULL, &tx) == LS_OK);
    check(ls_publish_many(r.store, 2, 3, contents, sizes, NULL, NULL, NULL, tx, LS_WAIT, ids, &done_count) == LS_OK &&
          done_count == 3);
    check(ls_dequeue_many(r.store, ids, 3, 2, tx, 1, LS_WAIT, &done_count) == LS_OK && done_count == 3);
    check(ls_commit(tx, LS_WAIT) == LS_OK && !has(ids[0]));
    ls_tx_free(tx);
    done();
}

static void a_check_of_places_tells_present_locked_and_gone_apart(void) {
    ls_place places[4];
    ls_cursor *c;
    ls_tx *tx;
    uint64_t ids[5], positions[5];
    uint8_t states[5];
    size_t n;

    fresh();
    for (int i = 0; i < 4; i++)
        (void)put(1, "x", NULL);
    check(ls_cursor_open(r.store, 9, 0, &c) == LS_UNKNOWN_QUEUE && c == NULL);
    check(ls_cursor_open(r.store, 1, LS_CURSOR_ALL, &c) == LS_OK && ls_cursor_next(c, places, 4, &n) == LS_OK &&
          n == 4);
    ls_cursor_close(c);
    for (int i = 0; i < 4; i++) {
        ids[i] = places[i].id;
        positions[i] = places[i].position;
    }
    ids[4] = places[3].id;
    positions[4] = places[3].position + 1;
    check(ls_begin(r.store, NULL, &tx) == LS_OK && take(ids[1], 1, tx) == LS_OK && take(ids[2], 1, NULL) == LS_OK);
    check(ls_places_check(r.store, 1, ids, positions, 5, states) == LS_OK);
    check(states[0] == 1 && states[1] == 2 && states[2] == 0 && states[3] == 1 && states[4] == 0);
    check(ls_places_check(r.store, 2, ids, positions, 1, states) == LS_OK && states[0] == 0);
    ls_tx_free(tx);
    done();
}

/* ---- transactions ---- */

static void an_abandoned_handle_refuses_every_call_and_lets_its_transaction_go(void) {
    ls_xid xid = {.format_id = 1, .gtrid_bytes = 1};
    ls_tx *local, *branch, *taken, *none;
    ls_tx_info info;
    uint64_t ids[2], id;
    size_t n;

    fresh();
    check(ls_begin(r.store, NULL, &local) == LS_OK && ls_begin(r.store, &xid, &branch) == LS_OK);
    ls_tx_abandon(local);
    ls_tx_abandon(local);
    ls_tx_describe(local, &info);
    check(info.state == LS_TX_ROLLED_BACK && ls_commit(local, 0) == LS_TRANSACTION_ENDED);
    check(ls_publish(r.store, &one, 1, NULL, 0, NULL, 0, local, 0, &id) == LS_TRANSACTION_ENDED);
    check(ls_tx_end(branch) == LS_OK && ls_prepare(branch, 0) == LS_OK);
    ls_tx_abandon(branch);
    check(ls_rollback(branch, 0) == LS_TRANSACTION_ENDED);
    check(ls_in_doubt(r.store, ids, 2, &n) == LS_OK && n == 1);
    check(ls_in_doubt_take(r.store, ids[0], &taken) == LS_OK);
    ls_tx_free(branch);
    check(ls_in_doubt_take(r.store, ids[0], &none) == LS_BUSY);
    check(ls_commit(taken, 0) == LS_OK);
    ls_tx_free(taken);
    ls_tx_free(local);
    done();
}

static void a_transaction_serves_its_own_store_and_each_step_once(void) {
    ls_xid xid = {.format_id = 1, .gtrid_bytes = 64, .bqual_bytes = 64};
    ls_tx *local, *branch, *none;
    ls_store *other;
    uint64_t id, lsn;

    fresh();
    require(ls_open(r.v, "/other", &usual, &other) == LS_OK && ls_serve(other, &one, 1, 2) == LS_OK);
    check(ls_begin(r.store, NULL, &local) == LS_OK && ls_begin(r.store, &xid, &branch) == LS_OK);
    check(ls_publish(other, &one, 1, NULL, 0, NULL, 0, local, 0, &id) == LS_WRONG_STATE);
    check(ls_tx_end(local) == LS_WRONG_STATE && ls_prepare(local, 0) == LS_WRONG_STATE);
    check(ls_prepare(branch, 0) == LS_WRONG_STATE && ls_commit(branch, 0) == LS_WRONG_STATE);
    check(ls_tx_end(branch) == LS_OK && ls_tx_end(branch) == LS_WRONG_STATE);
    check(ls_publish(r.store, &one, 1, NULL, 0, NULL, 0, branch, 0, &id) == LS_WRONG_STATE);
    check(ls_prepare(branch, 0) == LS_OK && ls_prepare(branch, 0) == LS_WRONG_STATE);
    check(ls_commit(branch, 0) == LS_OK && ls_rollback(branch, 0) == LS_TRANSACTION_ENDED &&
          ls_tx_end(branch) == LS_TRANSACTION_ENDED && ls_prepare(branch, 0) == LS_TRANSACTION_ENDED);
    check(ls_enqueue(r.store, 8, &one, 1, local, 0, &lsn) == LS_UNKNOWN_MESSAGE);
    xid.gtrid_bytes = 65;
    check(ls_begin(r.store, &xid, &none) == LS_OPTION && none == NULL);
    xid.gtrid_bytes = 64;
    xid.bqual_bytes = 65;
    check(ls_begin(r.store, &xid, &none) == LS_OPTION && none == NULL);
    ls_tx_free(local);
    ls_tx_free(branch);
    ls_free(other);
    done();
}

static void xids_are_the_same_only_byte_for_byte(void) {
    static const ls_xid xids[] = {
        {.format_id = 1, .gtrid_bytes = 2, .bqual_bytes = 2, .data = "abcd"},
        {.format_id = 2, .gtrid_bytes = 2, .bqual_bytes = 2, .data = "abcd"},
        {.format_id = 1, .gtrid_bytes = 3, .bqual_bytes = 1, .data = "abcd"},
        {.format_id = 1, .gtrid_bytes = 2, .bqual_bytes = 1, .data = "abc"},
        {.format_id = 1, .gtrid_bytes = 2, .bqual_bytes = 2, .data = "abce"},
        {.format_id = 1},
    };
    enum { N = sizeof xids / sizeof *xids };
    ls_tx *txs[N], *none;

    fresh();
    for (int i = 0; i < N; i++)
        check(ls_begin(r.store, &xids[i], &txs[i]) == LS_OK);
    for (int i = 0; i < N; i++)
        check(ls_begin(r.store, &xids[i], &none) == LS_DUPLICATE_XID && none == NULL);
    for (int i = 0; i < N; i++)
        ls_tx_free(txs[i]);
    check(ls_begin(r.store, &xids[0], &none) == LS_OK); /* and again when it is over */
    ls_tx_free(none);
    done();
}

static void max_prepared_limits_prepared_transactions(void) {
    ls_options o = usual;
    ls_xid xid = {.format_id = 1, .gtrid_bytes = 1};
    uint64_t ids[4];
    ls_tx *txs[3], *none;
    size_t n;

    o.max_prepared = 2;
    fresh_with(&o);
    for (int i = 0; i < 3; i++) {
        xid.data[0] = (uint8_t)i;
        check(ls_begin(r.store, &xid, &txs[i]) == LS_OK && ls_tx_end(txs[i]) == LS_OK);
        check(ls_prepare(txs[i], LS_WAIT) == (i < 2 ? LS_OK : LS_TRANSACTION_LIMIT));
    }
    check(ls_in_doubt(r.store, ids, 1, &n) == LS_OK && n == 2);
    check(ls_in_doubt_take(r.store, ids[0] + 8, &none) == LS_UNKNOWN_XID && none == NULL);
    check(ls_in_doubt_take(r.store, ids[0], &none) == LS_BUSY && none == NULL);
    check(ls_rollback(txs[0], 0) == LS_OK && ls_prepare(txs[2], LS_WAIT) == LS_OK);
    for (int i = 0; i < 3; i++)
        ls_tx_free(txs[i]);
    done();
}

static void the_number_of_open_transactions_is_limited(void) {
    static ls_tx *txs[TX_MAX];
    ls_tx *none;
    int n = 0;

    fresh();
    while (n < TX_MAX && ls_begin(r.store, NULL, &txs[n]) == LS_OK)
        n++;
    check(n == TX_MAX && ls_begin(r.store, NULL, &none) == LS_TRANSACTION_LIMIT && none == NULL);
    check(ls_rollback(txs[7], 0) == LS_OK && ls_begin(r.store, NULL, &none) == LS_OK);
    ls_free(r.store); /* rolls all of them back */
    r.store = NULL;
    ls_tx_free(none);
    for (int i = 0; i < n; i++)
        ls_tx_free(txs[i]);
    check(open_again() == LS_OK);
    check(ls_begin(r.store, NULL, &none) == LS_OK);
    ls_tx_free(none);
    done();
}

/* Their start records fill whole segments; they must count as live, or the log seems to be all garbage. */
static void many_open_transactions_do_not_cause_endless_relocation(void) {
    enum { MANY = 4000 };
    static ls_tx *txs[MANY];
    ls_xid xid = {.format_id = 1, .gtrid_bytes = 64};
    ls_stats stats;

    fresh();
    for (int i = 0; i < MANY; i++) {
        memcpy(xid.data, &i, sizeof i);
        check(ls_begin(r.store, &xid, &txs[i]) == LS_OK && ls_tx_end(txs[i]) == LS_OK);
        check(ls_prepare(txs[i], 0) == LS_OK);
    }
    ls_stats_get(r.store, &stats);
    check(stats.segments_relocated > 0 && stats.relocated_bytes < 3 * stats.appended_bytes / 4);
    check(stats.live_bytes >= MANY * (uint64_t)128 && stats.counted_bytes >= MANY * (uint64_t)(128 + 128));
    for (int i = 0; i < MANY; i++)
        ls_tx_free(txs[i]);
    again(); /* and as recovery counts them */
    churn(60);
    ls_stats_get(r.store, &stats);
    check(stats.transactions == MANY && stats.relocated_bytes < 3 * stats.appended_bytes / 4);
    check(stats.live_bytes >= MANY * (uint64_t)128 && stats.counted_bytes >= MANY * (uint64_t)(128 + 128));
    done();
}

/* ---- figures and events ---- */

static void each_waiter_gets_an_event_of_its_own_until_none_is_left(void) {
    vfs_sim_plan p = {.kind = VFS_SIM_EVENT_NEW, .nth = 1, .error = EMFILE};
    int fd = -1, other = -1, more = -1, made = 2;

    fresh();
    vfs_sim_fail(sim, &p);
    check(ls_event_fd(r.store, &fd) == LS_IO && ls_last_error()->sys_errno == EMFILE);
    vfs_sim_fail(sim, NULL);
    check(ls_event_fd(r.store, &fd) == LS_OK && fd >= 0 && ls_event_fd(r.store, &other) == LS_OK && other != fd);
    (void)put(1, "x", NULL);
    check(vfs_sim_event_count(sim, fd) > 0 && vfs_sim_event_count(sim, other) > 0);
    ls_event_end(r.store, fd);
    ls_event_end(r.store, fd); /* an event that has ended already */
    check(ls_event_fd(r.store, &more) == LS_OK);
    while (made < LS_EVENTS_MAX && ls_event_fd(r.store, &more) == LS_OK)
        made++;
    check(made == LS_EVENTS_MAX && ls_event_fd(r.store, &more) == LS_OPTION);
    ls_event_end(r.store, other);
    check(ls_event_fd(r.store, &more) == LS_OK);
    (void)put(1, "y", NULL);
    check(vfs_sim_event_count(sim, more) > 0);
    done();
}

static void a_force_beyond_the_end_is_refused(void) {
    uint64_t id;

    fresh();
    check(ls_publish(r.store, &one, 1, NULL, 0, NULL, 0, NULL, 0, &id) == LS_OK);
    check(ls_durable_lsn(r.store) <= id && ls_flush_soon(r.store) == LS_OK);
    check(ls_force(r.store, UINT64_MAX) == LS_OPTION && ls_force(r.store, ls_next_lsn(r.store) + 1) == LS_OPTION);
    check(ls_force(r.store, ls_next_lsn(r.store)) == LS_OK && ls_durable_lsn(r.store) == ls_next_lsn(r.store));
    check(ls_force(r.store, 1) == LS_OK);
    done();
}

static void a_relaxed_store_does_not_wait_unless_it_is_forced(void) {
    ls_options o = usual;
    ls_stats stats;

    o.relaxed = 1;
    fresh_with(&o);
    (void)put(1, "x", NULL);
    check(ls_durable_lsn(r.store) < ls_next_lsn(r.store));
    check(ls_force(r.store, 0) == LS_OK && ls_durable_lsn(r.store) == ls_next_lsn(r.store));
    ls_stats_get(r.store, &stats);
    check(stats.relaxed);
    done();
}

static void sizes_follow_from_offsets_of_either_width_if_they_ascend_within_the_data(void) {
    static const uint32_t narrow[] = {5, 5, 9, 100};
    static const uint64_t wide[] = {0, 8, 7};
    static const int32_t negative[] = {0, -1}, far[] = {0, INT32_MAX, INT32_MIN};
    static const int64_t negative_wide[] = {-8, 0};
    uint64_t sizes[3];

    check(ls_sizes_of_offsets((const uint8_t *)narrow, 4, 3, 100, sizes) == LS_OK);
    check(sizes[0] == 0 && sizes[1] == 4 && sizes[2] == 91);
    check(ls_sizes_of_offsets((const uint8_t *)narrow, 4, 3, 99, sizes) == LS_OPTION);
    check(ls_sizes_of_offsets((const uint8_t *)wide, 8, 1, 8, sizes) == LS_OK && sizes[0] == 8);
    check(ls_sizes_of_offsets((const uint8_t *)wide, 8, 2, 8, sizes) == LS_OPTION);
    check(ls_sizes_of_offsets((const uint8_t *)negative, 4, 1, UINT64_MAX, sizes) == LS_OPTION);
    check(ls_sizes_of_offsets((const uint8_t *)far, 4, 1, UINT64_MAX, sizes) == LS_OK && sizes[0] == INT32_MAX);
    check(ls_sizes_of_offsets((const uint8_t *)far, 4, 2, UINT64_MAX, sizes) == LS_OPTION);
    check(ls_sizes_of_offsets((const uint8_t *)negative_wide, 8, 1, UINT64_MAX, sizes) == LS_OPTION);
}

static void the_simulators_handle_makes_breaks_and_crashes(void) {
    vfs *system = ls_sim_new(), *after;
    ls_store *s;
    uint64_t id;

    require(system != NULL && ls_open(system, "/s", &usual, &s) == LS_OK && ls_serve(s, &one, 1, 2) == LS_OK);
    check(ls_publish(s, &one, 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &id) == LS_OK);
    check(ls_sim_crash(system, -1, 0) == NULL && ls_sim_crash(system, 3, 0) == NULL);
    ls_sim_fail(system, 1, 1, EIO);
    check(ls_publish(s, &one, 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &id) == LS_OUTCOME_UNKNOWN);
    ls_sim_fail(system, 0, 0, 0);
    after = ls_sim_crash(system, 0, 1);
    ls_free(s);
    require(after != NULL && ls_open(after, "/s", &usual, &s) == LS_OK && ls_serve(s, &one, 1, 2) == LS_OK);
    ls_free(s);
    ls_sim_free(after);
    ls_sim_free(system);
}

int main(void) {
    static void (*const tests[])(void) = {
        each_option_is_refused_beyond_its_range_and_taken_at_its_ends,
        a_segment_size_is_rounded_up_to_what_can_be_and_defaults_to_16_mib,
        a_store_is_made_under_any_form_of_path,
        a_directory_without_a_store_is_refused_unless_it_is_to_be_created,
        a_refused_limit_leaves_no_trace_of_a_new_store,
        a_creation_begun_by_a_later_version_is_refused,
        a_queue_id_is_in_its_range,
        the_queues_of_a_range_of_ids_are_deleted_and_no_others,
        there_are_a_million_queues_and_no_more,
        the_queues_and_the_header_of_a_record_are_limited,
        a_publish_to_too_many_queues_leaves_nothing_behind,
        a_dequeue_refuses_a_reason_or_delivery_count_out_of_range,
        a_staged_or_pending_message_refuses_calls_that_do_not_fit_its_state,
        a_batch_of_publishes_stops_at_the_first_that_fails,
        a_check_of_places_tells_present_locked_and_gone_apart,
        an_abandoned_handle_refuses_every_call_and_lets_its_transaction_go,
        a_transaction_serves_its_own_store_and_each_step_once,
        xids_are_the_same_only_byte_for_byte,
        max_prepared_limits_prepared_transactions,
        the_number_of_open_transactions_is_limited,
        many_open_transactions_do_not_cause_endless_relocation,
        each_waiter_gets_an_event_of_its_own_until_none_is_left,
        a_force_beyond_the_end_is_refused,
        a_relaxed_store_does_not_wait_unless_it_is_forced,
        sizes_follow_from_offsets_of_either_width_if_they_ascend_within_the_data,
        the_simulators_handle_makes_breaks_and_crashes,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
