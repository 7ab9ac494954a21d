/*
 * Readers while a writer runs, or after it: they give exactly the accepted batches up to the durable LSN, LS_RECYCLED
 * if they are overtaken, LS_CORRUPT for damage, and write nothing. And holds, with which a reader keeps segments.
 */
#include "format/format.h"
#include "tests/kit/one_store.h"

static vfs *v;

static void open_fresh(void) {
    fresh();
    v = r.v;
}

struct seen {
    uint64_t batches, first_lsn, first_segment, end_lsn, bytes;
    bool in_order;
    int rc;
};

/* Reads to the end, or to the first error. */
static struct seen read_on(ls_reader *reader) {
    struct seen s = {.in_order = true};
    ls_batch b;

    while ((s.rc = ls_reader_next(reader, &b)) == LS_OK) {
        s.first_lsn = s.batches == 0 ? b.lsn : s.first_lsn;
        s.first_segment = s.batches == 0 ? b.first_lsn : s.first_segment;
        s.in_order = s.in_order && b.lsn >= s.end_lsn && b.lsn - b.first_lsn < SEGMENT;
        s.end_lsn = b.lsn + b.size;
        s.bytes += b.size;
        s.batches++;
    }
    return s;
}

static struct seen read_from(vfs *system, uint64_t from, ls_reader_info *info) {
    struct seen s = {.in_order = true};
    ls_reader *reader;

    s.rc = ls_reader_open(system, "/s", from, &reader);
    if (s.rc == LS_OK) {
        ls_reader_describe(reader, info);
        s = read_on(reader);
    } else {
        check(reader == NULL);
    }
    ls_reader_close(reader);
    return s;
}

static bool exists(uint64_t first_lsn) {
    char name[SEGMENT_NAME_BYTES];
    int dir = v->open_dir(v, "/s"), file;

    format_segment_name(name, first_lsn);
    file = v->open(v, dir, name, 0);
    if (file >= 0)
        check(v->close(v, file) == 0);
    check(v->close(v, dir) == 0);
    return file >= 0;
}

/* ---- after a close, and beside a writer ---- */

static void a_closed_store_is_read_from_its_base_to_its_end_and_not_changed(void) {
    ls_reader_info info;
    ls_segment_info segments[32];
    ls_reader *reader;
    struct seen s;
    uint64_t changes;
    size_t n, all;
    uint8_t uuid[16];

    open_fresh();
    for (int i = 0; i < 60; i++)
        (void)put_bytes(1, 0, 3000, i % 3 == 0 ? LS_WAIT : 0);
    ls_uuid(r.store, uuid);
    check(ls_close(r.store) == LS_OK);
    changes = vfs_sim_changes(sim);
    require(ls_reader_open(v, "/s", 0, &reader) == LS_OK);
    ls_reader_describe(reader, &info);
    check(!info.live && info.clean && info.segment_size == SEGMENT && memcmp(info.uuid, uuid, 16) == 0);
    check(ls_reader_segments(reader, segments, 32, &all) == LS_OK && all == info.segments && all >= 3);
    check(segments[all - 1].current && !segments[0].current && segments[0].first_lsn == info.base_lsn &&
          segments[all - 1].end_lsn == info.end_lsn && segments[0].end_lsn <= segments[1].first_lsn);
    check(ls_reader_segments(reader, segments, 1, &n) == LS_OK && n == all);
    s = read_on(reader);
    check(s.rc == LS_END && s.in_order && s.batches >= 20 && s.end_lsn == info.end_lsn);
    check(s.first_lsn == info.base_lsn + BLOCK);
    check(read_on(reader).rc == LS_END); /* and it stays at the end */
    ls_reader_close(reader);
    check(vfs_sim_changes(sim) == changes);
    done();
}

static void a_reader_begins_in_the_segment_of_its_lsn(void) {
    ls_segment_info segments[32];
    ls_reader_info info;
    size_t n;

    open_fresh();
    for (int i = 0; i < 60; i++)
        (void)put_bytes(1, 0, 3000, LS_WAIT);
    require(ls_segments(r.store, segments, 32, &n) == LS_OK && n >= 3);
    check(ls_segments(r.store, NULL, 0, &n) == LS_OK && n >= 3);
    check(segments[n - 1].current && segments[0].end_lsn <= segments[1].first_lsn && segments[0].live_records > 0);
    check(ls_close(r.store) == LS_OK);
    for (size_t i = 0; i < n; i++) {
        struct seen s = read_from(v, segments[i].first_lsn + BLOCK, &info);

        check(s.rc == LS_END && s.first_segment == segments[i].first_lsn);
    }
    check(read_from(v, UINT64_MAX, &info).first_segment == segments[n - 1].first_lsn);
    check(read_from(v, info.end_lsn, &info).end_lsn == info.end_lsn);
    done();
}

static void beside_a_writer_it_reads_what_is_durable_and_no_further(void) {
    ls_reader_info info;
    ls_segment_info segments[8];
    ls_reader *reader;
    struct seen s;
    uint64_t durable;
    size_t n;

    open_fresh();
    for (int i = 0; i < 10; i++)
        (void)put_bytes(1, 0, 500, LS_WAIT);
    durable = ls_durable_lsn(r.store);
    require(ls_reader_open(v, "/s", 0, &reader) == LS_OK);
    (void)put_bytes(1, 0, 500, LS_WAIT);
    (void)put_bytes(1, 0, 500, 0);
    ls_reader_describe(reader, &info);
    check(info.live && !info.clean && info.end_lsn == durable && info.base_lsn == ls_base_lsn(r.store));
    check(ls_reader_segments(reader, segments, 8, &n) == LS_OK && segments[n - 1].end_lsn == durable);
    s = read_on(reader);
    check(s.rc == LS_END && s.end_lsn == durable && s.in_order);
    ls_reader_close(reader);
    s = read_from(v, 0, &info);
    check(s.rc == LS_END && s.end_lsn == info.end_lsn && info.end_lsn > durable);
    ls_reader_close(NULL);
    done();
}

static void a_reader_refuses_a_damaged_store_with_a_clear_error(void) {
    uint8_t meta[BLOCK];
    ls_reader_info info;
    int dir;

    open_fresh();
    (void)put_bytes(1, 0, 100, LS_WAIT);
    check(ls_close(r.store) == LS_OK);
    check(vfs_sim_get(sim, VFS_SIM_STABLE, "/s", "META", meta, sizeof meta) == BLOCK);
    meta[100] ^= 1;
    check(vfs_sim_put(sim, "/s", "META", meta, sizeof meta) == 0 && read_from(v, 0, &info).rc == LS_CORRUPT);
    meta[100] ^= 1;
    meta[8] = 9;
    check(vfs_sim_put(sim, "/s", "META", meta, sizeof meta) == 0 && read_from(v, 0, &info).rc == LS_VERSION);
    meta[0] ^= 1;
    check(vfs_sim_put(sim, "/s", "META", meta, sizeof meta) == 0 && read_from(v, 0, &info).rc == LS_NOT_A_STORE);
    meta[0] ^= 1;
    meta[8] = 1;
    check(vfs_sim_put(sim, "/s", "META", meta, 11) == 0 && read_from(v, 0, &info).rc == LS_CORRUPT);
    check(vfs_sim_put(sim, "/s", "META", meta, sizeof meta) == 0 && read_from(v, 0, &info).rc == LS_END);
    dir = v->open_dir(v, "/s");
    check(v->unlink(v, dir, "LOCK") == 0); /* a copy of a store need not have it */
    check(read_from(v, 0, &info).rc == LS_END);
    check(v->unlink(v, dir, "META") == 0 && read_from(v, 0, &info).rc == LS_NOT_A_STORE);
    check(v->close(v, dir) == 0);
    done();
}

static void a_path_that_is_not_a_directory_is_not_a_store(void) {
    ls_reader *reader;

    open_fresh();
    check(ls_reader_open(v, "/s/none", 0, &reader) == LS_NOT_A_STORE && reader == NULL);
    check(ls_reader_open(v, "/s/META", 0, &reader) == LS_NOT_A_STORE && reader == NULL);
    check(ls_reader_open(NULL, "/dev/null", 0, &reader) == LS_NOT_A_STORE && reader == NULL);
    done();
}

/* Whichever call fails, the batches given before are a prefix of the log, and no handle stays open. */
static void whichever_call_fails_a_reader_gives_a_prefix_of_the_log(void) {
    static const int errors[] = {EIO, EINTR, EMFILE, ENOENT, EACCES, EINVAL};
    ls_reader_info info;
    struct seen truth;
    size_t handles;

    for (int live = 0; live < 2; live++) {
        open_fresh();
        for (int i = 0; i < 60; i++)
            (void)put_bytes(1, 0, 3000, i % 3 == 0 ? LS_WAIT : 0);
        if (live)
            check(ls_force(r.store, 0) == LS_OK);
        else
            check(ls_close(r.store) == LS_OK);
        handles = vfs_sim_handles(sim);
        truth = read_from(v, 0, &info);
        check(truth.rc == LS_END && truth.batches > 15);
        for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
            bool fired = true;

            for (uint64_t nth = 1; fired; nth++) {
                vfs_sim_plan p = {.nth = nth, .error = errors[e]};
                struct seen s;

                vfs_sim_fail(sim, &p);
                s = read_from(v, 0, &info);
                fired = vfs_sim_fired(sim) > 0;
                vfs_sim_fail(sim, NULL);
                check(s.rc != LS_OK && s.in_order && s.bytes <= truth.bytes);
                check(s.rc != LS_END || s.bytes == truth.bytes);
                /* a listing or a file that is not there is damage; a call that fails is not */
                check(s.rc != LS_CORRUPT || errors[e] == ENOENT);
                check(vfs_sim_handles(sim) == handles);
            }
        }
        done();
    }
}

/* ---- the writer comes, goes, and overtakes ---- */

/* A table that does something between the calls of the real one. */
static vfs meddling;
static void (*between)(void);
static int at_lists, at_opens, at_locks;

static int meddled_list(vfs *w, int dir, vfs_list_fn *each, void *context) {
    int result = v->list(w, dir, each, context);

    if (--at_lists == 0)
        between();
    return result;
}

static int meddled_open(vfs *w, int dir, const char *name, unsigned flags) {
    if (--at_opens == 0)
        between();
    return v->open(w, dir, name, flags);
}

static int meddled_lock(vfs *w, int file, int exclusive) {
    if (at_locks > 0) {
        at_locks--;
        return 0; /* the writer has not come yet */
    }
    return v->lock(w, file, exclusive);
}

static vfs *meddle(void (*what)(void), int lists, int opens, int locks) {
    meddling = *v;
    meddling.list = meddled_list;
    meddling.open = meddled_open;
    meddling.lock = meddled_lock;
    between = what;
    at_lists = lists;
    at_opens = opens;
    at_locks = locks;
    return &meddling;
}

static void overtake(void) { churn(120); }

static void a_reader_that_is_overtaken_is_told_so_and_never_reads_another_generation(void) {
    uint64_t ids[60], lsn, first;
    ls_reader *reader;
    ls_batch b;
    struct seen s;

    open_fresh();
    for (int i = 0; i < 60; i++)
        ids[i] = put_bytes(2, 0, 3000, LS_WAIT);
    first = ls_base_lsn(r.store);
    require(ls_reader_open(v, "/s", 0, &reader) == LS_OK && ls_reader_next(reader, &b) == LS_OK);
    for (int i = 0; i < 60; i++)
        check(ls_dequeue(r.store, ids[i], 2, NULL, 1, 0, LS_WAIT, &lsn) == LS_OK);
    overtake();
    check(!exists(first) && ls_base_lsn(r.store) > first);
    s = read_on(reader);
    check(s.rc == LS_RECYCLED && s.in_order);
    ls_reader_close(reader);
    done();
}

static void a_reader_lists_again_if_files_are_recycled_while_it_opens(void) {
    ls_reader_info info;
    struct seen s;

    open_fresh();
    churn(40);
    s = read_from(meddle(overtake, 1, 0, 0), 0, &info); /* between the listing and the first file */
    check(at_lists <= 0 && s.rc == LS_END && s.in_order && info.live);
    check(info.base_lsn == ls_base_lsn(r.store) && s.end_lsn == ls_durable_lsn(r.store));
    done();
}

static void drop_first(void) {
    ls_segment_info first;
    char name[SEGMENT_NAME_BYTES];
    size_t n;
    int dir = v->open_dir(v, "/s");

    check(ls_segments(r.store, &first, 1, &n) == LS_OK);
    format_segment_name(name, first.first_lsn);
    check(v->unlink(v, dir, name) == 0 && v->close(v, dir) == 0);
}

static void a_segment_that_is_gone_beside_an_idle_writer_is_damage(void) {
    ls_reader_info info;

    open_fresh();
    for (int i = 0; i < 60; i++)
        (void)put_bytes(1, 0, 3000, LS_WAIT);
    drop_first();
    check(read_from(v, 0, &info).rc == LS_CORRUPT);
    done();
}

static void damage_beside_an_idle_writer_is_damage_and_not_recycling(void) {
    ls_segment_info first;
    ls_reader_info info;
    static uint8_t image[SEGMENT];
    char name[SEGMENT_NAME_BYTES];
    struct seen s;
    size_t n;

    open_fresh();
    for (int i = 0; i < 40; i++)
        (void)put_bytes(1, 0, 3000, LS_WAIT);
    check(ls_segments(r.store, &first, 1, &n) == LS_OK);
    format_segment_name(name, first.first_lsn);
    check(vfs_sim_get(sim, VFS_SIM_SEEN, "/s", name, image, sizeof image) == SEGMENT);
    image[20000] ^= 1;
    check(vfs_sim_put(sim, "/s", name, image, sizeof image) == 0);
    s = read_from(v, 0, &info);
    check(s.rc == LS_CORRUPT && s.batches > 0 && ls_last_error()->offset > 0 &&
          strcmp(ls_last_error()->segment, name) == 0);
    done();
}

/* The reader lists the files before the writer comes, and reads them after. */
static void a_reader_notices_a_writer_that_starts_while_it_opens(void) {
    ls_reader_info info;
    struct seen s;

    open_fresh();
    churn(40);
    s = read_from(meddle(overtake, 1, 0, 1), 0, &info);
    check(s.rc == LS_END && info.live && s.in_order);
    done();
}

static void close_it(void) {
    overtake();
    check(ls_close(r.store) == LS_OK);
}

static void a_reader_notices_a_writer_that_closes_while_it_opens(void) {
    ls_reader_info info;
    struct seen s;

    open_fresh();
    churn(40);
    s = read_from(meddle(close_it, 1, 0, 0), 0, &info);
    check(s.rc == LS_END && !info.live && info.clean && s.in_order);
    done();
}

static void without_a_hint_a_store_that_is_in_use_is_locked(void) {
    static uint8_t bytes[HINT_BYTES];
    ls_reader_info info;

    open_fresh();
    (void)put_bytes(1, 0, 100, LS_WAIT);
    check(vfs_sim_get(sim, VFS_SIM_SEEN, "/s", "HINT", bytes, sizeof bytes) == HINT_BYTES);
    bytes[20] ^= 1; /* another store's, then a torn one, then none */
    check(vfs_sim_put(sim, "/s", "HINT", bytes, sizeof bytes) == 0 && read_from(v, 0, &info).rc == LS_LOCKED);
    check(vfs_sim_put(sim, "/s", "HINT", bytes, 40) == 0 && read_from(v, 0, &info).rc == LS_LOCKED);
    check(ls_close(r.store) == LS_OK && read_from(v, 0, &info).rc == LS_END); /* no reader needs it then */
    done();
}

/* ---- holds ---- */

struct wish {
    const char *name;
    struct hold hold;
    int flaw; /* which byte is wrong, 0 none; -1 short */
    bool owned;
    bool kept; /* whether the segments are kept for it */
};

static int hold_files(const char *name) {
    int dir = v->open_dir(v, "/s/holds"), file = v->open(v, dir, name, 0);

    if (file >= 0)
        check(v->close(v, file) == 0);
    check(v->close(v, dir) == 0);
    return file >= 0;
}

static void one_wish(const struct wish *w) {
    uint8_t bytes[HOLD_BYTES];
    struct hold h = w->hold;
    uint64_t first;
    int dir, file = -1;

    open_fresh();
    ls_uuid(r.store, h.uuid);
    first = ls_base_lsn(r.store);
    h.hold_lsn = h.hold_lsn == 0 ? first : h.hold_lsn;
    h.expires_us += v->now_us(v);
    format_put_hold(bytes, &h);
    if (w->flaw > 0)
        bytes[w->flaw] ^= 1;
    dir = v->open_dir(v, "/s/holds");
    file = v->open(v, dir, w->name, VFS_WRITE | VFS_CREATE);
    check(write_all(v, file, bytes, w->flaw < 0 ? 100 : sizeof bytes, 0));
    if (w->owned)
        check(v->lock(v, file, 1) == 0);
    churn(120);
    check(ls_base_lsn(r.store) > first);
    if (exists(first) != w->kept)
        printf("the hold %s, flaw %d\n", w->name, w->flaw);
    check(exists(first) == w->kept);
    check(hold_files(w->name) == (w->owned || strcmp(w->name, "a.hold") != 0)); /* a hold without an owner is removed */
    check(v->close(v, file) == 0 && v->close(v, dir) == 0);
    churn(30);
    check(!exists(first) || strcmp(w->name, "b.hold") == 0); /* its owner is gone */
    done();
}

static void a_hold_keeps_segments_while_it_is_owned_valid_and_within_its_limits(void) {
    static const struct wish wishes[] = {
        {"a.hold", {.expires_us = 1000000000}, 0, true, true},
        {"a.hold", {.expires_us = 1000000000, .limit_bytes = (uint64_t)1 << 40}, 0, true, true},
        {"a.hold", {.expires_us = 1000000000, .limit_bytes = 1000}, 0, true, false},
        {"a.hold", {.expires_us = 1000000000, .hold_lsn = LSN_MAX}, 0, true, false},
        {"a.hold", {.expires_us = 0}, 0, true, false},
        {"a.hold", {.expires_us = 1000000000}, 20, true, false},
        {"a.hold", {.expires_us = 1000000000}, -1, true, false},
        {"a.hold", {.expires_us = 1000000000}, 0, false, false},
        {".hold", {.expires_us = 1000000000}, 0, true, false},
        {"a.held", {.expires_us = 1000000000}, 0, true, false},
    };

    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++)
        one_wish(&wishes[i]);
}

static void the_lowest_of_this_stores_holds_counts(void) {
    uint8_t bytes[HOLD_BYTES];
    struct hold h = {.hold_lsn = SEGMENT};
    uint64_t first;
    int dir, files[3];

    open_fresh();
    first = ls_base_lsn(r.store);
    h.expires_us = v->now_us(v) + 1000000000;
    dir = v->open_dir(v, "/s/holds");
    for (int i = 0; i < 3; i++) { /* the first is another store's, the lowest of ours comes before a higher one */
        char name[] = "0.hold";

        name[0] = (char)('0' + i);
        if (i > 0)
            ls_uuid(r.store, h.uuid);
        h.hold_lsn = i == 2 ? first + 20 * SEGMENT : i == 1 ? first + SEGMENT : 1;
        format_put_hold(bytes, &h);
        files[i] = v->open(v, dir, name, VFS_WRITE | VFS_CREATE);
        check(write_all(v, files[i], bytes, sizeof bytes, 0) && v->lock(v, files[i], 1) == 0);
    }
    churn(150);
    check(!exists(first) && exists(first + SEGMENT));
    for (int i = 0; i < 3; i++)
        check(v->close(v, files[i]) == 0);
    check(v->close(v, dir) == 0);
    done();
}

/* The holds' directory cannot be listed: everything that may be held is kept, and the store goes on. */
static void holds_that_cannot_be_read_are_honoured_in_full(void) {
    uint64_t first;
    vfs_sim_plan p = {.kind = VFS_SIM_LIST, .nth = 1, .forever = 1, .error = EIO};

    open_fresh();
    first = ls_base_lsn(r.store);
    vfs_sim_fail(sim, &p);
    churn(120);
    check(exists(first) && ls_base_lsn(r.store) > first && vfs_sim_fired(sim) > 0);
    vfs_sim_fail(sim, NULL);
    churn(30);
    check(!exists(first));
    done();
}

/* ---- reading a damaged log ---- */

enum harm { GONE, NO_HEADER, EMPTY, CUT_IN_THE_MIDDLE, HARMS };

static void do_harm(vfs_sim *disk, uint64_t first_lsn, enum harm harm, uint64_t middle_lsn) {
    static uint8_t image[SEGMENT];
    char name[SEGMENT_NAME_BYTES];
    vfs *system = vfs_sim_table(disk);
    int dir = system->open_dir(system, "/s");

    format_segment_name(name, first_lsn);
    check(vfs_sim_get(disk, VFS_SIM_SEEN, "/s", name, image, sizeof image) == SEGMENT);
    image[harm == NO_HEADER ? 40 : middle_lsn - first_lsn + 9] ^= 0x40;
    if (harm == GONE)
        check(system->unlink(system, dir, name) == 0 && system->sync_dir(system, dir) == 0);
    else
        check(vfs_sim_put(disk, "/s", name, image, harm == EMPTY ? 0 : sizeof image) == 0);
    check(system->close(system, dir) == 0);
}

/* Reads the damaged log and compares it with the whole: the reader reports exactly the missing parts. */
static bool gives_the_rest(vfs_sim *disk, const ls_segment_info *segments, size_t n, size_t bad, enum harm harm,
                           uint64_t middle_lsn) {
    uint64_t lost_from = harm == CUT_IN_THE_MIDDLE ? middle_lsn
                         : bad == 0                ? segments[0].first_lsn
                                                   : segments[bad - 1].end_lsn;
    uint64_t lost_to = bad + 1 < n ? segments[bad + 1].first_lsn : UINT64_MAX;
    ls_reader_info info;
    struct seen strict = read_from(vfs_sim_table(disk), 0, &info), rest;
    ls_lsn_range missing[4];
    ls_reader *reader;
    ls_batch b;
    uint64_t batches = 0, inside = 0;
    size_t count = 0;
    bool well = strict.rc == LS_CORRUPT;
    char words[200];

    if (ls_reader_open_permissive(vfs_sim_table(disk), "/s", 0, 0, &reader) != LS_OK)
        return complain(ls_last_error()->text);
    while (ls_reader_next(reader, &b) == LS_OK) {
        batches++;
        inside += b.lsn >= lost_from && b.lsn < lost_to;
    }
    well = well && ls_reader_missing(reader, missing, 4, &count) == LS_OK && count == 1 &&
           missing[0].first_lsn == lost_from && inside == 0 &&
           (bad + 1 == n ? missing[0].end_lsn > lost_from : missing[0].end_lsn == lost_to);
    ls_reader_close(reader);
    if (ls_reader_open(v, "/s", 0, &reader) != LS_OK)
        return complain(ls_last_error()->text);
    rest = (struct seen){.batches = 0};
    while (ls_reader_next(reader, &b) == LS_OK)
        rest.batches += b.lsn < lost_from || b.lsn >= lost_to;
    ls_reader_close(reader);
    (void)snprintf(words, sizeof words,
                   "segment %zu of %zu, harm %d: %zu missing, from %llu to %llu, not from %llu to %llu", bad, n,
                   (int)harm, count, (unsigned long long)missing[0].first_lsn, (unsigned long long)missing[0].end_lsn,
                   (unsigned long long)lost_from, (unsigned long long)lost_to);
    return (well && batches == rest.batches) || complain(words);
}

static void harm_each_segment(bool closed) {
    const vfs_sim_loss kept = {.mode = VFS_SIM_ALL_KEPT};
    ls_segment_info segments[32];
    uint64_t middles[32];
    ls_reader *reader;
    ls_reader_info info;
    ls_batch b;
    size_t n = 0, at = 0;

    require(ls_reader_open(v, "/s", 0, &reader) == LS_OK);
    ls_reader_describe(reader, &info);
    check(ls_reader_segments(reader, segments, 32, &n) == LS_OK && n >= 4 && info.clean == closed);
    while (ls_reader_next(reader, &b) == LS_OK) { /* the second batch of each */
        for (; segments[at].first_lsn < b.first_lsn; at++)
            ;
        if (b.lsn == segments[at].first_lsn + SEGMENT_HEADER_BYTES)
            middles[at] = b.lsn + b.size;
    }
    ls_reader_close(reader);
    for (size_t bad = 0; bad < n; bad++) {
        for (int harm = GONE; harm < HARMS; harm++) {
            vfs_sim *disk = vfs_sim_crash(sim, &kept);

            if (closed || bad + 1 < n) { /* a log that was not closed does not show the loss of its last segment */
                do_harm(disk, segments[bad].first_lsn, (enum harm)harm, middles[bad]);
                check(gives_the_rest(disk, segments, n, bad, (enum harm)harm, middles[bad]));
            }
            vfs_sim_free(disk);
        }
    }
}

static void a_permissive_reader_gives_every_batch_of_the_segments_that_can_be_read(void) {
    const vfs_sim_loss kept = {.mode = VFS_SIM_ALL_KEPT};
    vfs_sim *cut;

    open_fresh();
    for (int i = 0; i < 100; i++)
        (void)put_bytes(1, 0, 3000, LS_WAIT);
    cut = vfs_sim_crash(sim, &kept);
    done();
    sim = cut;
    v = vfs_sim_table(sim);
    harm_each_segment(false);
    require(open_store(&r, v, r.catalog, QUEUES + 1, &r.store) == LS_OK);
    for (int i = 0; i < 40; i++)
        (void)put_bytes(1, 0, 3000, LS_WAIT);
    check(ls_close(r.store) == LS_OK);
    harm_each_segment(true);
    done();
}

static void a_permissive_reader_of_a_whole_log_gives_what_any_reader_gives(void) {
    ls_lsn_range missing;
    ls_reader_info info;
    ls_reader *reader;
    struct seen whole, all;
    size_t count = 1;

    open_fresh();
    for (int i = 0; i < 40; i++)
        (void)put_bytes(1, 0, 3000, LS_WAIT);
    for (int live = 1; live >= 0; live--) {
        whole = read_from(v, 0, &info);
        require(ls_reader_open_permissive(v, "/s", 0, 0, &reader) == LS_OK);
        all = read_on(reader);
        check(all.rc == LS_END && all.batches == whole.batches && all.bytes == whole.bytes &&
              all.end_lsn == whole.end_lsn);
        check(ls_reader_missing(reader, &missing, 1, &count) == LS_OK && count == 0);
        ls_reader_close(reader);
        if (live)
            check(ls_close(r.store) == LS_OK);
    }
    done();
}

static void a_permissive_reader_of_no_segment_says_that_the_log_is_missing(void) {
    ls_segment_info segments[32];
    ls_reader *reader;
    size_t n;

    open_fresh();
    (void)put_bytes(1, 0, 3000, LS_WAIT);
    require(ls_segments(r.store, segments, 32, &n) == LS_OK && n == 1);
    check(ls_close(r.store) == LS_OK);
    do_harm(sim, segments[0].first_lsn, NO_HEADER, 0);
    check(ls_reader_open_permissive(v, "/s", 0, 0, &reader) == LS_CORRUPT && reader == NULL);
    check(ls_reader_open_permissive(v, "/s", UINT64_MAX, 0, &reader) == LS_OPTION && reader == NULL);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        a_closed_store_is_read_from_its_base_to_its_end_and_not_changed,
        a_reader_begins_in_the_segment_of_its_lsn,
        beside_a_writer_it_reads_what_is_durable_and_no_further,
        a_reader_refuses_a_damaged_store_with_a_clear_error,
        a_path_that_is_not_a_directory_is_not_a_store,
        whichever_call_fails_a_reader_gives_a_prefix_of_the_log,
        a_reader_that_is_overtaken_is_told_so_and_never_reads_another_generation,
        a_reader_lists_again_if_files_are_recycled_while_it_opens,
        a_segment_that_is_gone_beside_an_idle_writer_is_damage,
        damage_beside_an_idle_writer_is_damage_and_not_recycling,
        a_reader_notices_a_writer_that_starts_while_it_opens,
        a_reader_notices_a_writer_that_closes_while_it_opens,
        without_a_hint_a_store_that_is_in_use_is_locked,
        a_hold_keeps_segments_while_it_is_owned_valid_and_within_its_limits,
        the_lowest_of_this_stores_holds_counts,
        holds_that_cannot_be_read_are_honoured_in_full,
        a_permissive_reader_gives_every_batch_of_the_segments_that_can_be_read,
        a_permissive_reader_of_a_whole_log_gives_what_any_reader_gives,
        a_permissive_reader_of_no_segment_says_that_the_log_is_missing,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
