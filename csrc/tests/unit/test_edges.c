/*
 * Boundary cases of the state in memory and of the codec: an empty log, gaps between segments, more items than a first
 * allocation has room for, cursors at the end of a queue, records given to the wrong decoder.
 */
#include "format/format.h"
#include "log/parts.h"
#include "store/store.h"
#include "tests/kit/forged_log.h"

/* ---- segments ---- */

static void a_log_finds_the_segment_of_an_lsn_and_none_in_gaps_or_beyond(void) {
    static const uint64_t firsts[] = {2, 3, 7, 8};
    struct buffer buffers[2] = {{.index = 0}, {.index = 1}};
    struct log g = {.segment_size = SEGMENT, .buffers = buffers, .buffer_count = 2, .front.durable_lsn = UINT64_MAX};

    check(log_base_lsn(&g) == 0 && log_segment(&g, SEGMENT) == NULL);
    segment_free(&g, NULL);
    for (int i = 0; i < 4; i++)
        require(log_add_segment(&g, segment_new(&g, firsts[i] * SEGMENT, 1)) == LS_OK);
    for (uint64_t n = 0; n < 12; n++) {
        struct segment *first = log_segment(&g, n * SEGMENT), *last = log_segment(&g, (n + 1) * SEGMENT - 1);
        bool there = n == 2 || n == 3 || n == 7 || n == 8;

        check(first == last && (first != NULL) == there && (first == NULL || first->first_lsn == n * SEGMENT));
    }
    log_live(g.segments[1], 1, 8);
    g.segments[0]->end_lsn = 3 * SEGMENT;
    log_advance_base(&g);
    check(log_base_lsn(&g) == 3 * (uint64_t)SEGMENT);
    log_release(&g, g.segments[1], 1, 8); /* no batch is undurable: takes effect at once */
    check(g.segments[1]->live_records == 0);
    log_advance_base(&g);
    check(log_base_lsn(&g) == 3 * (uint64_t)SEGMENT); /* the segment has no end yet */
    for (int i = 0; i < 3; i++) {
        struct segment *s = g.segments[0];

        log_remove_segment(&g, 0); /* behind the base the base moves along, else the next is it */
        segment_free(&g, s);
        check(log_base_lsn(&g) == (i == 0 ? 3 : firsts[i + 1]) * SEGMENT);
    }
    for (uint32_t i = 0; i < g.segment_count; i++)
        segment_free(&g, g.segments[i]);
    free(g.segments);
    free(buffers[0].released);
    free(buffers[1].released);
}

static int closed[6];

static int note_closed(vfs *v, int handle) {
    (void)v;
    closed[handle]++;
    return 0;
}

/* A segment that is being read, is still filling, or is not forced keeps its handle even if too many are open. */
static void only_handles_of_idle_segments_are_closed_when_there_are_too_many(void) {
    vfs v = {.close = note_closed};
    struct segment s[6];
    struct segment *row[6];
    struct log g = {
        .v = &v, .segments = row, .segment_count = 6, .front.forced_lsn = 100, .open_files = OPEN_FILES_MAX + 1};

    memset(closed, 0, sizeof closed);
    for (int i = 0; i < 6; i++) {
        s[i] = (struct segment){.file = i, .end_lsn = 100};
        row[i] = &s[i];
    }
    s[0].readers = 1;
    s[1].end_lsn = 0;
    s[2].end_lsn = 101;
    log_close_idle_files(&g);
    check(g.open_files == OPEN_FILES_MAX - 1 && s[3].file == -1 && s[4].file == -1);
    for (int i = 0; i < 6; i++)
        check(closed[i] == (i == 3 || i == 4));
    g.open_files = OPEN_FILES_MAX;
    log_close_idle_files(&g); /* no segment is idle any more: the others stay open */
    check(g.open_files == OPEN_FILES_MAX && closed[0] + closed[1] + closed[2] + closed[5] == 0);
}

/* ---- queues ---- */

static uint64_t next_offered(ls_cursor *c) {
    ls_place place;
    size_t n = 0;

    check(ls_cursor_next(c, &place, 1, &n) == LS_OK);
    return n == 1 ? place.id : 0;
}

static void a_cursor_goes_back_to_an_unlocked_place_only_from_behind_it(void) {
    static uint64_t ids[2 * CHUNK_PLACES];
    ls_cursor *early, *late;
    ls_tx *tx;

    fresh();
    for (int i = 0; i < 2 * CHUNK_PLACES; i++)
        ids[i] = put_bytes(1, 1, 8, 0);
    check(ls_force(r.store, 0) == LS_OK);
    check(ls_begin(r.store, NULL, &tx) == LS_OK && take(ids[1], 1, tx) == LS_OK && take(ids[5], 1, tx) == LS_OK);
    check(ls_cursor_open(r.store, 1, LS_CURSOR_OFFER, &early) == LS_OK);
    check(ls_cursor_open(r.store, 1, LS_CURSOR_OFFER, &late) == LS_OK);
    check(next_offered(early) == ids[0]);
    for (int i = 0; i < 2 * CHUNK_PLACES - 2; i++)
        check(next_offered(late) != 0);
    check(next_offered(late) == 0);
    for (int i = CHUNK_PLACES; i < 2 * CHUNK_PLACES; i++)
        check(take(ids[i], 1, NULL) == LS_OK);
    check(next_offered(late) == 0);
    check(ls_rollback(tx, LS_WAIT) == LS_OK);
    check(next_offered(late) == ids[1] && next_offered(late) == ids[2]);
    check(next_offered(early) == ids[1]);
    ls_tx_free(tx);
    ls_cursor_close(early); /* the older of two */
    check(next_offered(late) == ids[3]);
    ls_cursor_close(late);
    done();
}

static void a_removed_queue_frees_its_spare_chunks_and_stops_its_cursors(void) {
    struct table t;
    struct cursor c;
    struct queue *q;

    table_init(&t);
    require(table_add_queue(&t, 7));
    q = table_queue(&t, 7);
    require(queue_prepare(q, 3 * CHUNK_PLACES) && queue_prepare(q, 3 * CHUNK_PLACES) && q->prepared != NULL);
    cursor_start(&c, q, LS_CURSOR_ALL);
    table_remove_queue(&t, q);
    check(c.queue == NULL && table_any_queue(&t, 7) == NULL && t.live_queues == 0);
    cursor_stop(&c); /* once more does no harm */
    table_free(&t);
}

static void a_queue_larger_than_one_sweep_is_deleted_completely(void) {
    uint64_t id, places, locked;

    fresh();
    id = put(2, "stays", NULL);
    for (int i = 0; i < 2100; i++)
        (void)put_bytes(1, 1, 1, 0);
    check(add(id, 1, NULL) == LS_OK);
    check(ls_queue_delete(r.store, 1, LS_WAIT) == LS_OK && has(id));
    check(ls_queue_depth(r.store, 1, &places, &locked) == LS_UNKNOWN_QUEUE);
    r.catalog &= ~2u;
    again();
    check(has(id) && ls_queue_depth(r.store, 2, &places, &locked) == LS_OK && places == 1);
    done();
}

/* ---- records with right checksums at their positions that differ from the table ---- */

static uint64_t chunked_id, plain_id;

/* Changes the record at an LSN of the open store's disk and seals it again. */
static void replace_there(uint64_t lsn, uint32_t offset, int width, uint64_t value) {
    static uint8_t image[SEGMENT];
    struct segment *s = log_segment(r.store->log, lsn);
    char name[SEGMENT_NAME_BYTES];
    struct slot slot;

    require(s != NULL);
    format_segment_name(name, s->first_lsn);
    require(vfs_sim_get(sim, VFS_SIM_SEEN, "/s", name, image, sizeof image) == SEGMENT);
    slot = (struct slot){.at = image + (lsn - s->first_lsn), .seed = s->seed};
    forge_spoil(slot, get32(slot.at + 12), offset, width, value);
    check(vfs_sim_put(sim, "/s", name, image, sizeof image) == 0);
}

static void a_valid_record_of_another_message_is_damage_to_reads_and_relocation(void) {
    enum { TYPE = 16, ID = 32, BODY = 48, CHUNK_BYTES = 56, MAY_BE_SKIPPED = 0x8123 };
    static const struct {
        bool chunk, plain;
        uint32_t offset;
        int width;
        uint64_t value;
        bool reads; /* it may still be read: the table has the chunk's offset in the content */
    } ways[] = {
        {false, true, TYPE, 2, MAY_BE_SKIPPED, false}, {false, false, TYPE, 2, MAY_BE_SKIPPED, false},
        {false, true, BODY, 8, UINT64_MAX, false},     {false, false, BODY, 8, UINT64_MAX, false},
        {true, false, TYPE, 2, MAY_BE_SKIPPED, false}, {true, false, ID, 8, 4096 + SEGMENT, false},
        {true, false, CHUNK_BYTES, 4, 1 << 20, false}, {true, false, BODY, 8, 8, true},
    };
    static uint8_t content[30000], into[30000];

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        uint32_t queue = 1;
        uint64_t id;
        size_t n;
        int rc;

        fresh();
        plain_id = put_bytes(1, 4, 900, 0);
        check(ls_publish(r.store, &queue, 1, NULL, 0, content, sizeof content, NULL, LS_WAIT, &chunked_id) == LS_OK);
        id = ways[i].plain ? plain_id : chunked_id;
        if (ways[i].chunk) {
            struct message *m = table_message(&r.store->state.table, table_find(&r.store->state.table, id));

            require(m->extra != NULL && m->extra->chunk_count > 1);
            replace_there(m->extra->chunks[1].lsn, ways[i].offset, ways[i].width, ways[i].value);
        } else {
            replace_there(id, ways[i].offset, ways[i].width, ways[i].value);
        }
        rc = ls_load_content(r.store, id, 0, into, sizeof into, &n);
        check(rc == (ways[i].reads ? LS_OK : LS_CORRUPT) || complain("the read"));
        for (int k = 0; k < 120; k++) {
            uint64_t passing = put_bytes(2, 0, 3900, 0), lsn;

            check(ls_dequeue(r.store, passing, 2, NULL, 1, 0, k % 4 == 3 ? LS_WAIT : 0, &lsn) == LS_OK);
        }
        rc = move_base(r.store);
        check(rc == LS_OK || rc == LS_CORRUPT || rc == LS_FULL);
        check(ls_poisoned(r.store) == 0 && has(id)); /* the record is still at its place, for an analysis */
        done();
    }
}

static void a_file_that_became_shorter_is_damage_to_a_read(void) {
    static uint8_t image[SEGMENT], into[4096];
    char name[SEGMENT_NAME_BYTES];
    uint64_t id;
    size_t n;

    fresh();
    id = put_bytes(1, 4, 900, LS_WAIT);
    check(ls_load_header(r.store, id + 8, into, sizeof into, &n) == LS_UNKNOWN_MESSAGE && n == 0);
    format_segment_name(name, log_segment(r.store->log, id)->first_lsn);
    require(vfs_sim_get(sim, VFS_SIM_SEEN, "/s", name, image, sizeof image) == SEGMENT);
    check(vfs_sim_put(sim, "/s", name, image, 4096 + 200) == 0);
    check(ls_load_content(r.store, id, 0, into, sizeof into, &n) == LS_CORRUPT && n == 0);
    check(vfs_sim_put(sim, "/s", name, image, sizeof image) == 0);
    check(ls_load_content(r.store, id, 0, into, sizeof into, &n) == LS_OK && n == 900 && into[899] == 4);
    done();
}

/* For messages in the write buffers and on the disk, in one record and in chunks. */
static void a_load_of_many_stops_at_the_end_of_the_buffer_or_at_an_error(void) {
    static uint8_t content[30000], into[40000];
    static const uint8_t head[5] = "head";
    uint32_t queue = 1;
    uint64_t ids[4], sizes[8];
    size_t n;

    fresh();
    for (size_t i = 0; i < sizeof content; i++) {
        content[i] = (uint8_t)(i * 7 + i / 256);
    }
    for (int i = 0; i < 4; i++) {
        size_t bytes = i == 2 ? sizeof content : 900;
        check(ls_publish(r.store, &queue, 1, head, i == 1 ? 0 : sizeof head, content + i, bytes - (size_t)i, NULL,
                         i < 3 ? LS_WAIT : 0, &ids[i]) == LS_OK);
    }
    check(ls_load_many(r.store, ids, 4, into, sizeof into, sizes, &n) == LS_OK && n == 4);
    uint64_t at = 0;
    for (int i = 0; i < 4; i++) {
        size_t bytes = (i == 2 ? sizeof content : 900) - (size_t)i;
        check(sizes[2 * i] == (i == 1 ? 0 : sizeof head) && sizes[2 * i + 1] == bytes);
        check(memcmp(into + at, head, (size_t)sizes[2 * i]) == 0);
        check(memcmp(into + at + sizes[2 * i], content + i, bytes) == 0);
        at += sizes[2 * i] + sizes[2 * i + 1];
    }
    for (size_t room = 0; room < 2200; room += 37) {
        memset(into, 0xEE, sizeof into);
        check(ls_load_many(r.store, ids, 2, into, room, sizes, &n) == LS_OK && n <= room / 900);
        for (size_t i = room; i < room + 100; i++) {
            check(into[i] == 0xEE);
        }
    }
    check(n == 2);
    ids[1]++;
    check(ls_load_many(r.store, ids, 4, into, sizeof into, sizes, &n) == LS_UNKNOWN_MESSAGE && n == 1);
    check(ls_load_many(r.store, ids, 0, into, sizeof into, sizes, &n) == LS_OK && n == 0);
    replace_there(ids[2], 48, 8, UINT64_MAX); /* of its body, which the checksum covers */
    check(ls_load_many(r.store, &ids[2], 2, into, sizeof into, sizes, &n) == LS_CORRUPT && n == 0);
    done();
}

/* As if directories were mixed up: the LSNs of another log mean nothing here. */
static void the_hint_of_another_store_is_ignored(void) {
    struct closed c = {.epoch = 9, .end_lsn = 1 << 30};
    struct hint h = {.epoch = 9, .durable_lsn = 1 << 30, .base_lsn = 1 << 29};
    uint8_t bytes[64] = {0};
    ls_reader_info info;
    ls_reader *reader;
    uint64_t id;

    fresh();
    id = put(1, "stays", NULL);
    memset(c.uuid, 0x77, UUID_BYTES);
    memset(h.uuid, 0x77, UUID_BYTES);
    format_put_hint(bytes, &h);
    check(vfs_sim_put(sim, "/s", "HINT", bytes, HINT_BYTES) == 0);
    check(ls_reader_open(r.v, "/s", 0, &reader) == LS_LOCKED); /* now only the hint says what is durable */
    check(ls_close(r.store) == LS_OK);
    format_put_closed(bytes, &c);
    check(vfs_sim_put(sim, "/s", "CLOSED", bytes, CLOSED_BYTES) == 0);
    format_put_hint(bytes, &h);
    check(vfs_sim_put(sim, "/s", "HINT", bytes, HINT_BYTES) == 0);
    check(ls_reader_open(r.v, "/s", 0, &reader) == LS_OK);
    ls_reader_describe(reader, &info);
    check(info.base_lsn <= id && info.end_lsn > id && info.end_lsn < 1 << 29);
    ls_reader_close(reader);
    ls_free(r.store);
    check(open_again() == LS_OK && has(id));
    again();
    check(has(id));
    done();
}

/* ---- messages and transactions ---- */

static void the_table_grows_beyond_its_first_allocation(void) {
    enum { ROWS = 17, AT_ONCE = SLAB_MESSAGES };
    static uint64_t sizes[AT_ONCE], ids[AT_ONCE], first_ids[ROWS];
    ls_options o = {.segment_size = 1 << 20, .create = 1, .initial_segments = 1, .max_write_buffers = 4};
    uint64_t places, locked;
    size_t n;

    fresh_with(&o);
    for (int i = 0; i < ROWS; i++) {
        check(ls_publish_many(r.store, 1, AT_ONCE, (const uint8_t *)"", sizes, NULL, NULL, NULL, NULL, LS_WAIT, ids,
                              &n) == LS_OK &&
              n == AT_ONCE);
        first_ids[i] = ids[0];
    }
    for (int pass = 0; pass < 2; pass++) {
        check(ls_queue_depth(r.store, 1, &places, &locked) == LS_OK && places == (uint64_t)ROWS * AT_ONCE);
        for (int i = 0; i < ROWS; i++)
            check(has(first_ids[i]));
        again();
    }
    done();
}

static void a_commit_that_ends_very_many_messages_ends_them_all(void) {
    static uint64_t ids[300];
    ls_tx *tx;

    fresh();
    for (int i = 0; i < 300; i++)
        ids[i] = put_bytes(1, 1, 8, 0);
    check(ls_begin(r.store, NULL, &tx) == LS_OK);
    for (int i = 0; i < 300; i++)
        check(take(ids[i], 1, tx) == LS_OK);
    check(ls_commit(tx, LS_WAIT) == LS_OK);
    ls_tx_free(tx);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < 300; i++)
            check(!has(ids[i]));
        again();
    }
    done();
}

static void a_transaction_at_its_limit_takes_no_more(void) {
    uint64_t id, other;
    ls_tx *tx;
    struct tx *inside;
    uint32_t work, enqueues;

    fresh();
    id = put(1, "one", NULL);
    check(ls_begin(r.store, NULL, &tx) == LS_OK);
    other = put(2, "in it", tx);
    inside = tx_of(tx);
    work = inside->work_count;
    enqueues = inside->enqueue_count;
    inside->work_count = ORDER_INDEX_MAX; /* sixteen million calls later */
    check(take(id, 1, tx) == LS_TRANSACTION_LIMIT);
    inside = tx_of(tx);
    inside->work_count = work;
    inside->enqueue_count = ORDER_INDEX_MAX;
    check(add(id, 3, tx) == LS_TRANSACTION_LIMIT);
    tx_of(tx)->enqueue_count = enqueues;
    check(ls_commit(tx, LS_WAIT) == LS_OK && has(other));
    ls_tx_free(tx);
    done();
}

static void only_a_prepared_transaction_can_be_taken_as_in_doubt(void) {
    const ls_xid xid = {.format_id = 1, .gtrid_bytes = 1};
    ls_tx *tx, *taken;
    ls_tx_info info;

    fresh();
    check(ls_begin(r.store, &xid, &tx) == LS_OK);
    ls_tx_describe(tx, &info);
    check(ls_in_doubt_take(r.store, info.id, &taken) == LS_UNKNOWN_XID);
    check(ls_rollback(tx, LS_WAIT) == LS_OK);
    ls_tx_describe(tx, &info);
    check(info.state == LS_TX_ROLLED_BACK);
    ls_tx_free(tx);
    done();
}

static void a_header_of_impossible_length_is_refused(void) {
    static const size_t absurd[] = {SIZE_MAX, SIZE_MAX - 7, SIZE_MAX - 80, SIZE_MAX / 2, 1 << 20};
    uint64_t id;

    fresh();
    for (size_t i = 0; i < sizeof absurd / sizeof *absurd; i++) {
        check(ls_stage(r.store, (const uint8_t *)"", absurd[i], NULL, 0, 0, &id) == LS_OPTION);
        check(id == 0);
    }
    done();
}

/* ---- two stores, of which the older is closed first ---- */

static void stores_may_be_closed_in_the_order_they_were_opened(void) {
    vfs_sim *disk = vfs_sim_new();
    const ls_options o = {.segment_size = SEGMENT, .create = 1, .initial_segments = 1, .max_write_buffers = 2};
    ls_store *first, *second, *third;

    check(ls_open(vfs_sim_table(disk), "/a", &o, &first) == LS_OK);
    check(ls_open(vfs_sim_table(disk), "/b", &o, &second) == LS_OK);
    check(ls_open(vfs_sim_table(disk), "/a", &o, &third) == LS_LOCKED);
    ls_free(first);
    check(ls_open(vfs_sim_table(disk), "/a", &o, &third) == LS_OK);
    ls_free(second);
    ls_free(third);
    check(vfs_sim_handles(disk) == 0);
    vfs_sim_free(disk);
}

/* ---- the codec ---- */

/* Gives every decoder of one type records of its type with another length, and of another type with its length. */
static void a_decoder_refuses_records_of_another_type_or_length(void) {
    static const uint8_t bytes[256];
    static const struct {
        uint16_t type;
        uint32_t length;
    } its_own[] = {{BATCH, BATCH_RECORD_BYTES},
                   {MESSAGE_DEQUEUE, DEQUEUE_RECORD_BYTES},
                   {QUEUE_DELETE, QUEUE_DELETE_RECORD_BYTES}};
    struct batch b;
    struct message_dequeue d;
    uint32_t queue_id;

    for (uint32_t i = 0; i < 3; i++) {
        struct record r1 = {.bytes = bytes, .type = its_own[i].type, .length = its_own[i].length + 8, .lsn = 1 << 20};
        struct record r2 = {.bytes = bytes, .type = FILLER, .length = its_own[i].length, .lsn = 1 << 20};

        for (int way = 0; way < 2; way++) {
            const struct record *x = way ? &r1 : &r2;

            check((i != 0 || format_get_batch(x, &b) == FORMAT_MALFORMED) &&
                  (i != 1 || format_get_dequeue(x, &d) == FORMAT_MALFORMED) &&
                  (i != 2 || format_get_queue_delete(x, &queue_id) == FORMAT_MALFORMED));
        }
    }
}

static void the_closed_file_has_an_epoch_and_an_lsn(void) {
    static const struct closed good = {.epoch = 3, .end_lsn = 1 << 20, .closed_us = 5};
    uint8_t bytes[CLOSED_BYTES];

    for (int i = 0; i < 4; i++) {
        struct closed c = good, found;

        c.epoch = i == 1 ? 0 : c.epoch;
        c.end_lsn = i == 2 ? 0 : i == 3 ? UINT64_MAX : c.end_lsn;
        memset(bytes, 0, sizeof bytes);
        format_put_closed(bytes, &c);
        check(format_get_closed(bytes, sizeof bytes, &found) == (i == 0 ? FORMAT_OK : FORMAT_MALFORMED));
        bytes[50] ^= 1;
        check(format_get_closed(bytes, sizeof bytes, &found) == FORMAT_CHECK);
    }
}

static void a_segment_beyond_the_last_lsn_is_refused(void) {
    static uint8_t bytes[SEGMENT_HEADER_BYTES];
    struct segment_header h = {.segment_size = SEGMENT, .epoch = 1}, found;
    uint64_t last = LSN_MAX / SEGMENT * SEGMENT;

    for (int i = 0; i < 3; i++) {
        enum format_result result;

        h.first_lsn = last - (uint64_t)i * SEGMENT;
        memset(bytes, 0, sizeof bytes);
        format_put_segment_header(bytes, &h);
        result = format_get_segment_header(bytes, sizeof bytes, h.uuid, SEGMENT, h.first_lsn, &found);
        check(result == (h.first_lsn - 1 <= LSN_MAX - SEGMENT ? FORMAT_OK : FORMAT_MALFORMED));
    }
}

/* An open renames unused files, and the next one must not read more in their headers. */
static void a_header_that_is_impossible_at_its_own_place_is_so_under_every_name(void) {
    static uint8_t bytes[SEGMENT_HEADER_BYTES];
    struct segment_header h = {.segment_size = SEGMENT, .first_lsn = 4 * SEGMENT, .epoch = UINT64_MAX}, found;

    for (int i = 0; i < 3; i++) {
        memset(bytes, 0, sizeof bytes);
        h.prev_end_lsn = i == 0 ? h.first_lsn : h.first_lsn + 8;
        h.epoch = i == 2 ? 0 : h.epoch;
        format_put_segment_header(bytes, &h);
        for (uint64_t name = 2 * SEGMENT; name < 7 * SEGMENT; name += SEGMENT) {
            enum format_result moved = name == h.first_lsn ? FORMAT_OK : FORMAT_PLACE;
            check(format_get_segment_header(bytes, sizeof bytes, h.uuid, SEGMENT, name, &found) ==
                  (i == 0 ? moved : FORMAT_MALFORMED));
        }
    }
}

static void a_chunk_may_be_empty(void) {
    static uint8_t bytes[256];
    struct slot s = {.at = bytes, .seed = 5, .lsn = 1 << 20, .id = 1 << 19, .prev = 1 << 19};
    uint32_t length = format_put_chunk(&s, 100, NULL, 0);
    struct message_chunk m;
    struct record found;

    check(format_get_record(bytes, length, 5, 1 << 20, &found) == FORMAT_OK);
    if (format_get_chunk(&found, &m) == FORMAT_OK)
        check(m.offset == 100 && m.content_bytes == 0);
}

int main(void) {
    static void (*const tests[])(void) = {
        a_log_finds_the_segment_of_an_lsn_and_none_in_gaps_or_beyond,
        only_handles_of_idle_segments_are_closed_when_there_are_too_many,
        a_cursor_goes_back_to_an_unlocked_place_only_from_behind_it,
        a_removed_queue_frees_its_spare_chunks_and_stops_its_cursors,
        a_queue_larger_than_one_sweep_is_deleted_completely,
        a_valid_record_of_another_message_is_damage_to_reads_and_relocation,
        a_file_that_became_shorter_is_damage_to_a_read,
        a_load_of_many_stops_at_the_end_of_the_buffer_or_at_an_error,
        the_hint_of_another_store_is_ignored,
        the_table_grows_beyond_its_first_allocation,
        a_commit_that_ends_very_many_messages_ends_them_all,
        a_transaction_at_its_limit_takes_no_more,
        only_a_prepared_transaction_can_be_taken_as_in_doubt,
        a_header_of_impossible_length_is_refused,
        stores_may_be_closed_in_the_order_they_were_opened,
        a_decoder_refuses_records_of_another_type_or_length,
        the_closed_file_has_an_epoch_and_an_lsn,
        a_segment_beyond_the_last_lsn_is_refused,
        a_header_that_is_impossible_at_its_own_place_is_so_under_every_name,
        a_chunk_may_be_empty,
    };

    return run_tests(tests, sizeof tests / sizeof *tests);
}
