/*
 * A visitor while a writer runs: a reader, with or without a hold, that does a step now and then between two calls of
 * the writer. These promises are checked:
 *
 *   - it gets every durable batch as the writer wrote it, in order, and no batch that is not durable;
 *   - while it has a hold within its limit, everything from the hold's LSN on stays readable;
 *   - without a hold it may get LS_RECYCLED, but never LS_CORRUPT, and never other bytes;
 *   - a hold with an owner is not removed;
 *   - the writer recycles exactly the segments that no hold keeps: a hold over its limit, expired, without an owner or of
 *     another store keeps nothing.
 *
 * The visitor knows the batches from the writer's writes, and the valid holds because it made them.
 */
#ifndef LOGSTORE_EXPLORER_BESIDE_H
#define LOGSTORE_EXPLORER_BESIDE_H

#include "format/format.h"
#include "tests/kit/store_workload.h"

enum { BATCHES_MAX = 8192, FILES_MAX = 512, SEGMENTS_MAX = 512, HOLDS = 2 };

enum hold_kind {
    HOLD_GOOD,      /* its limit is never reached */
    HOLD_LIMITED,   /* limited to a few segments */
    HOLD_EXPIRED,   /* its time is over */
    HOLD_OWNERLESS, /* its file is not locked */
    HOLD_FOREIGN,   /* another store's */
    HOLD_KINDS,
};

struct one_hold {
    bool there;
    bool ran_out; /* it was invalid at some time, so nothing is promised any more */
    enum hold_kind kind;
    int file; /* -1: it is not open here */
    uint64_t lsn;
    uint64_t limit_bytes;
};

struct beside {
    struct run *run;
    bool here;   /* the visitor is present; the writer may outlast it */
    bool inside; /* a step of the visitor is in progress and makes calls itself */
    vfs below;   /* the writer's calls before the visitor came */
    uint64_t chance;
    struct {
        int file;
        uint64_t first_lsn;
        bool direct;
    } files[FILES_MAX]; /* the writer's segments */
    size_t file_count;
    struct {
        uint64_t lsn;
        uint32_t bytes;
        uint64_t hash;
    } batches[BATCHES_MAX]; /* as the writer wrote them */
    size_t batch_count;
    struct {
        uint64_t first_lsn;
        uint64_t end_lsn;
        bool gone;
    } segments[SEGMENTS_MAX]; /* that these are in */
    size_t segment_count;
    int holds_dir;                /* the writer's */
    struct one_hold holds[HOLDS]; /* the reader's own hold, and another one of any kind */
    ls_hold *hold;                /* the first of them */
    bool all_known;               /* every segment is of this open */
    ls_reader *reader;
    uint64_t from_lsn; /* the hold that it relies on */
    uint64_t until_lsn;
    size_t next;  /* the batch that it must be given */
    bool looking; /* the writer is listing the holds */
    bool judging; /* the visitor notes which segments the writer recycles and which holds keep */
    bool opening; /* recycled while it opened the store, by a base that no hint names yet */
    uint64_t recyclable_lsn;
    uint64_t kept_from_lsn;
    uint64_t given, overtaken, looks, kept; /* counts: a run without such events proves nothing */
    char broken[256];
};

static struct beside beside;

static inline void beside_broken(const char *what) {
    if (beside.broken[0] == '\0')
        (void)snprintf(beside.broken, sizeof beside.broken, "%s (%.100s)", what, ls_last_error()->text);
}

static inline uint64_t beside_chance(uint64_t n) { return chance(&beside.chance) % n; }

static inline uint64_t hash_of_bytes(const uint8_t *bytes, size_t n) {
    uint64_t hash = n;

    for (size_t i = 0; i < n; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* ---- the writer's batches ---- */

static inline uint64_t batches_end(uint64_t first_lsn) {
    const struct beside *b = &beside;

    if (b->segment_count > 0 && b->segments[b->segment_count - 1].first_lsn == first_lsn)
        return b->segments[b->segment_count - 1].end_lsn;
    return first_lsn + SEGMENT_HEADER_BYTES;
}

static inline void batch_is_written(uint64_t first_lsn, uint64_t lsn, const uint8_t *bytes, uint32_t size) {
    struct beside *b = &beside;

    if (b->batch_count == BATCHES_MAX || b->segment_count == SEGMENTS_MAX)
        abort();
    if (b->segment_count == 0 || b->segments[b->segment_count - 1].first_lsn != first_lsn) {
        b->segments[b->segment_count].first_lsn = first_lsn;
        b->segments[b->segment_count++].gone = false;
    }
    b->segments[b->segment_count - 1].end_lsn = lsn + size;
    b->batches[b->batch_count].lsn = lsn;
    b->batches[b->batch_count].bytes = size;
    b->batches[b->batch_count++].hash = hash_of_bytes(bytes, size);
}

/* A batch written in parts ends with its record, so now it is complete. */
static inline const uint8_t *complete_batch(uint64_t first_lsn, uint64_t offset, uint32_t size) {
    static uint8_t segment[SEGMENT];
    char name[SEGMENT_NAME_BYTES];

    format_segment_name(name, first_lsn);
    if (offset + size > SEGMENT ||
        vfs_sim_get(beside.run->sim, VFS_SIM_SEEN, "/s", name, segment, sizeof segment) != (int64_t)sizeof segment)
        return NULL;
    return segment + offset;
}

/* A write of whole blocks: bytes already in them, the next batch, and zeros. */
static inline void segment_is_written(uint64_t first_lsn, const uint8_t *from, uint64_t bytes, uint64_t at) {
    uint64_t lsn = batches_end(first_lsn);

    while (lsn >= first_lsn + at && lsn - first_lsn - at + BATCH_RECORD_BYTES <= bytes) {
        const uint8_t *here = from + (lsn - first_lsn - at);
        struct record r;
        struct batch batch;

        format_read_verified(here, &r);
        if (r.type != BATCH || r.lsn != lsn || format_get_batch(&r, &batch) != FORMAT_OK)
            return;
        if (batch.bytes > bytes - (lsn - first_lsn - at))
            here = complete_batch(first_lsn, lsn - first_lsn, batch.bytes);
        if (here == NULL)
            return;
        batch_is_written(first_lsn, lsn, here, batch.bytes);
        lsn += batch.bytes;
    }
}

/* ---- what everybody finds ---- */

static inline bool hint_is(vfs *v, struct hint *h) {
    int dir = v->open_dir(v, "/s"), file = dir >= 0 ? v->open(v, dir, "HINT", 0) : -1;
    uint8_t bytes[HINT_BYTES];
    bool there = file >= 0 && v->pread(v, file, bytes, sizeof bytes, 0) == HINT_BYTES &&
                 format_get_hint(bytes, sizeof bytes, h) == FORMAT_OK;

    if (file >= 0)
        (void)v->close(v, file);
    if (dir >= 0)
        (void)v->close(v, dir);
    return there;
}

/* ---- holds ---- */

static const char *const hold_names[HOLDS] = {"reader.hold", "other.hold"};

static const uint64_t HOLD_LASTS_US = UINT64_C(86400) * 1000 * 1000;

static inline int holds_dir_of(vfs *v) {
    int dir = v->open_dir(v, "/s/holds");

    if (dir < 0)
        abort();
    return dir;
}

/* Makes a hold of any kind that no reader relies on. */
static inline void other_hold_comes(vfs *v, enum hold_kind kind) {
    struct one_hold *o = &beside.holds[1];
    uint8_t bytes[HOLD_BYTES];
    struct hold h = {.created_us = 1};
    struct hint hint;
    int dir;

    if (!hint_is(v, &hint))
        return;
    h.hold_lsn = hint.base_lsn; /* a hold on a recycled part of the log would keep nothing */
    dir = holds_dir_of(v);

    ls_uuid(beside.run->store, h.uuid);
    h.uuid[0] ^= kind == HOLD_FOREIGN;
    h.expires_us = kind == HOLD_EXPIRED ? 1 : UINT64_MAX / 4;
    h.limit_bytes = kind == HOLD_LIMITED ? 1 : 0;
    format_put_hold(bytes, &h);
    *o = (struct one_hold){.there = true, .kind = kind, .lsn = h.hold_lsn, .limit_bytes = h.limit_bytes, .file = -1};
    if (vfs_sim_put(beside.run->sim, "/s/holds", hold_names[1], bytes, sizeof bytes) != 0)
        abort();
    if (kind != HOLD_OWNERLESS) {
        o->file = v->open(v, dir, hold_names[1], VFS_WRITE);
        if (o->file < 0 || v->lock(v, o->file, 1) != 0)
            abort();
    }
    (void)v->close(v, dir);
}

static inline void other_hold_goes(vfs *v) {
    int dir = holds_dir_of(v);

    if (beside.holds[1].file >= 0) {
        if (beside_chance(2) != 0) /* an owner that dies leaves its hold */
            (void)v->unlink(v, dir, hold_names[1]);
        (void)v->close(v, beside.holds[1].file);
    }
    (void)v->close(v, dir);
    beside.holds[1] = (struct one_hold){.file = -1};
}

static inline bool reader_takes_a_hold(vfs *v, bool limited) {
    struct one_hold *o = &beside.holds[0];
    ls_hold_info info;

    *o = (struct one_hold){.kind = limited ? HOLD_LIMITED : HOLD_GOOD, .file = -1};
    o->limit_bytes = limited ? (1 + beside_chance(4)) * SEGMENT : (uint64_t)1 << 40;
    if (ls_hold_take(v, "/s", "reader", 0, o->limit_bytes, HOLD_LASTS_US, &beside.hold) != LS_OK) {
        beside_broken("no hold can be taken");
        return false;
    }
    ls_hold_describe(beside.hold, &info);
    o->there = true;
    o->lsn = info.lsn;
    if (beside.holds[1].kind == HOLD_OWNERLESS) /* a process that takes a hold removes abandoned ones */
        beside.holds[1].there = false;
    return true;
}

static inline void reader_lets_go(void) {
    ls_hold_release(beside.hold);
    beside.hold = NULL;
    beside.holds[0] = (struct one_hold){.file = -1};
}

/* Bytes of the segments below the base that the writer would recycle without this hold. */
static inline uint64_t kept_by_hold(const struct one_hold *o, uint64_t base_lsn) {
    uint64_t bytes = 0;

    for (size_t i = 0; i < beside.segment_count; i++) {
        if (!beside.segments[i].gone && beside.segments[i].first_lsn < base_lsn &&
            beside.segments[i].first_lsn + SEGMENT > o->lsn)
            bytes += SEGMENT;
    }
    return bytes;
}

static inline bool hold_counts(const struct one_hold *o, uint64_t base_lsn) {
    return o->there &&
           (o->kind == HOLD_GOOD || (o->kind == HOLD_LIMITED && kept_by_hold(o, base_lsn) <= o->limit_bytes));
}

static inline void holds_are_there(vfs *v) {
    int dir = holds_dir_of(v);

    for (int i = 0; i < HOLDS; i++) {
        bool owned = i == 0 ? beside.hold != NULL : beside.holds[i].file >= 0;
        int file = owned ? v->open(v, dir, hold_names[i], 0) : -1;

        if (owned && file < 0)
            beside_broken("a hold with an owner was removed");
        if (file >= 0)
            (void)v->close(v, file);
    }
    (void)v->close(v, dir);
}

/* Makes all changes to holds durable at once: the cuts are not meant to divide them. See MARK_BESIDE. */
static inline void holds_settle(vfs *v) {
    int dir = holds_dir_of(v);
    int file = beside.hold != NULL ? v->open(v, dir, hold_names[0], VFS_WRITE) : -1;

    if (file >= 0) {
        (void)v->sync_file(v, file);
        (void)v->close(v, file);
    }
    (void)v->sync_dir(v, dir);
    (void)v->close(v, dir);
    mark(beside.run, MARK_BESIDE, 0);
}

/* ---- recycling ---- */

/* The writer lists the holds before it recycles. */
static inline void holds_are_listed(vfs *v) {
    struct hint h;

    beside.looks++;
    beside.opening = beside.run->store == NULL;
    beside.judging = hint_is(v, &h) || beside.opening;
    if (!beside.judging)
        return;
    beside.recyclable_lsn = beside.opening ? UINT64_MAX : h.base_lsn;
    beside.kept_from_lsn = UINT64_MAX;
    for (int i = 0; i < HOLDS; i++) {
        struct one_hold *o = &beside.holds[i];
        bool counts = hold_counts(o, beside.recyclable_lsn);

        if (counts && o->lsn < beside.kept_from_lsn)
            beside.kept_from_lsn = o->lsn;
        o->ran_out = o->ran_out || (o->there && !counts);
        if (o->kind == HOLD_OWNERLESS) /* and removes abandoned ones */
            o->there = false;
    }
}

static inline bool segment_is_there(vfs *v, int dir, uint64_t first_lsn) {
    char name[SEGMENT_NAME_BYTES];
    int file;

    format_segment_name(name, first_lsn);
    file = v->open(v, dir, name, 0);
    if (file >= 0)
        (void)v->close(v, file);
    return file >= 0;
}

/* The writer writes again, so recycling is over: exactly the segments that no hold keeps are gone. */
static inline void recycling_is_judged(vfs *v) {
    int dir = v->open_dir(v, "/s");

    beside.judging = false;
    for (size_t i = 0; i + 1 < beside.segment_count; i++) {
        bool held = beside.segments[i].first_lsn + SEGMENT > beside.kept_from_lsn;
        bool needless = beside.segments[i].first_lsn < beside.recyclable_lsn && !held;
        bool there = !beside.segments[i].gone && segment_is_there(v, dir, beside.segments[i].first_lsn);

        if (needless && there && !beside.opening)
            beside_broken("a segment that is neither needed nor held was not recycled");
        if (!needless && !there && !beside.segments[i].gone)
            beside_broken("a segment was recycled that is needed or held");
        beside.segments[i].gone = !there;
        beside.kept += there && beside.segments[i].first_lsn < beside.recyclable_lsn && !beside.opening;
    }
    (void)v->close(v, dir);
}

/* ---- reading ---- */

static inline bool reading_is_kept(void) { return beside.hold != NULL && !beside.holds[0].ran_out; }

static inline void reader_ends(void) {
    ls_reader_close(beside.reader);
    beside.reader = NULL;
    if (beside.hold != NULL)
        reader_lets_go();
}

/* With a hold it reads everything from the hold's LSN on, even below the base. */
static inline void reader_begins(vfs *v) {
    struct beside *b = &beside;
    struct hint h = {.durable_lsn = 0};
    ls_reader_info info;
    int rc;

    if (!hint_is(v, &h))
        return;
    b->from_lsn = b->hold != NULL ? b->holds[0].lsn : h.base_lsn;
    rc = b->hold != NULL ? ls_hold_read(b->hold, b->from_lsn, &b->reader)
                         : ls_reader_open(v, "/s", b->from_lsn, &b->reader);
    if (rc != LS_OK) {
        b->reader = NULL;
        if (rc != LS_RECYCLED || b->hold == NULL || reading_is_kept())
            beside_broken("a reader beside the writer cannot begin");
        reader_ends();
        return;
    }
    ls_reader_describe(b->reader, &info);
    b->until_lsn = info.live ? h.durable_lsn : info.end_lsn;
    if (info.live && info.end_lsn > h.durable_lsn)
        beside_broken("a reader goes beyond what is durable");
    b->next = 0;
    while (b->next < b->batch_count && b->batches[b->next].lsn < b->from_lsn)
        b->next++;
}

static inline void batch_is_given(const ls_batch *batch) {
    struct beside *b = &beside;

    b->given++;
    if (b->batch_count == 0 || batch->lsn < b->batches[0].lsn || batch->lsn < b->from_lsn)
        return; /* a batch of an earlier open, or an earlier one in the same segment */
    if (b->next == b->batch_count || b->batches[b->next].lsn != batch->lsn)
        beside_broken("a reader is given another batch than the next one");
    else if (b->batches[b->next].bytes != batch->size ||
             b->batches[b->next].hash != hash_of_bytes(batch->bytes, batch->size))
        beside_broken("a reader is given other bytes than were written");
    else if (batch->lsn + batch->size > b->until_lsn)
        beside_broken("a reader is given what was not durable");
    b->next++;
}

/* All durable batches were given. The reader advances its hold and continues, or ends. */
static inline void end_is_reached(vfs *v) {
    struct beside *b = &beside;

    if (b->next < b->batch_count && b->batches[b->next].lsn < b->until_lsn)
        beside_broken("a reader ends before the durable log does");
    if (!reading_is_kept() || beside_chance(3) == 0) {
        reader_ends();
        return;
    }
    ls_reader_close(b->reader);
    b->reader = NULL;
    if (ls_hold_advance(b->hold, b->until_lsn, HOLD_LASTS_US) != LS_OK)
        beside_broken("a valid hold cannot be advanced");
    b->holds[0].lsn = b->until_lsn;
    reader_begins(v);
}

static inline void reader_goes_on(vfs *v) {
    for (uint64_t n = beside.hold != NULL ? 1 + beside_chance(6) : 1; n > 0 && beside.reader != NULL; n--) {
        ls_batch batch;
        int rc = ls_reader_next(beside.reader, &batch);

        if (rc == LS_OK) {
            batch_is_given(&batch);
        } else if (rc == LS_END) {
            end_is_reached(v);
        } else {
            if (rc != LS_RECYCLED)
                beside_broken("a reader beside the writer reports damage");
            else if (reading_is_kept())
                beside_broken("a reader is overtaken although its hold is valid");
            beside.overtaken++;
            reader_ends();
        }
    }
}

/* Takes a hold and reads at once or later; or only reads. */
static inline void visitor_begins(vfs *v) {
    struct hint h;
    uint64_t choice = beside_chance(8);

    if (!hint_is(v, &h))
        return;
    if (choice < 6 && !reader_takes_a_hold(v, choice < 2 && beside.all_known))
        return;
    if (choice % 3 != 0)
        reader_begins(v);
}

/* While the writer lists the holds, the visitor does nothing that would make the result of the listing uncertain. */
static inline void beside_step(void) {
    vfs *v = vfs_sim_table(beside.run->sim);
    ls_error kept = *ls_last_error();

    if (beside.inside || beside.run->store == NULL)
        return;
    beside.inside = true;
    if (beside.run->hint_settles)
        mark(beside.run, MARK_BESIDE, 1);
    holds_are_there(v);
    if (beside.reader != NULL && !beside.looking)
        reader_goes_on(v);
    else if (beside.reader == NULL && beside.hold != NULL)
        reader_begins(v);
    else if (beside.reader == NULL && beside_chance(4) == 0)
        visitor_begins(v);
    if (!beside.looking && beside.holds[1].there && beside_chance(24) == 0)
        other_hold_goes(v);
    else if (!beside.looking && !beside.holds[1].there && beside_chance(12) == 0)
        other_hold_comes(v, (enum hold_kind)beside_chance(HOLD_KINDS));
    if (beside.run->hint_settles)
        holds_settle(v);
    beside.inside = false;
    memcpy((void *)(uintptr_t)ls_last_error(), &kept, sizeof kept);
}

static inline void maybe_step(void) {
    if (!beside.inside && beside_chance(6) == 0)
        beside_step();
}

/* ---- between the writer and its files ---- */

static inline int beside_open(vfs *v, int dir, const char *name, unsigned flags) {
    uint64_t first_lsn;
    int file;

    maybe_step();
    file = beside.below.open(v, dir, name, flags);
    if (file >= 0 && (flags & VFS_WRITE) != 0 && format_parse_segment_name(name, &first_lsn)) {
        if (beside.file_count == FILES_MAX)
            abort();
        beside.files[beside.file_count].file = file;
        beside.files[beside.file_count].direct = (flags & VFS_DIRECT) != 0;
        beside.files[beside.file_count++].first_lsn = first_lsn;
    }
    return file;
}

static inline int beside_close(vfs *v, int handle) {
    for (size_t i = 0; i < beside.file_count; i++) {
        if (beside.files[i].file == handle)
            beside.files[i] = beside.files[--beside.file_count];
    }
    return beside.below.close(v, handle);
}

static inline int64_t beside_pwrite(vfs *v, int file, const void *from, size_t bytes, uint64_t at) {
    int64_t done;

    if (beside.judging)
        recycling_is_judged(vfs_sim_table(beside.run->sim));
    maybe_step();
    done = beside.below.pwrite(v, file, from, bytes, at);
    for (size_t i = 0; done == (int64_t)bytes && i < beside.file_count; i++) {
        if (beside.files[i].file == file && !beside.files[i].direct)
            segment_is_written(beside.files[i].first_lsn, from, bytes, at);
    }
    return done;
}

static inline int beside_sync_data(vfs *v, int file) {
    maybe_step();
    return beside.below.sync_data(v, file);
}

static inline int beside_rename(vfs *v, int dir, const char *from, const char *to) {
    uint64_t was, is;
    int rc;

    maybe_step();
    rc = beside.below.rename(v, dir, from, to);
    for (size_t i = 0; rc == 0 && i < beside.file_count; i++) {
        if (format_parse_segment_name(from, &was) && format_parse_segment_name(to, &is) &&
            beside.files[i].first_lsn == was)
            beside.files[i].first_lsn = is;
    }
    return rc;
}

static inline int beside_unlink(vfs *v, int dir, const char *name) {
    maybe_step();
    return beside.below.unlink(v, dir, name);
}

static inline int beside_open_subdir(vfs *v, int dir, const char *name, int create) {
    int subdir = beside.below.open_subdir(v, dir, name, create);

    if (strcmp(name, "holds") == 0)
        beside.holds_dir = subdir;
    return subdir;
}

static inline int beside_list(vfs *v, int dir, vfs_list_fn *each, void *context) {
    int rc;

    if (dir == beside.holds_dir && beside.here && !beside.inside) {
        maybe_step();
        holds_are_listed(vfs_sim_table(beside.run->sim));
        beside.looking = true;
    }
    rc = beside.below.list(v, dir, each, context);
    beside.looking = false;
    return rc;
}

/* Joins the store that is opened over r->watched next. */
static inline void beside_joins(struct run *r) {
    memset(&beside, 0, sizeof beside);
    beside.run = r;
    beside.here = true;
    beside.all_known = r->op_count == 0;
    beside.below = r->watched;
    beside.chance = r->chance + 1;
    beside.holds_dir = -1;
    for (int i = 0; i < HOLDS; i++)
        beside.holds[i].file = -1;
    r->watched.open = beside_open;
    r->watched.close = beside_close;
    r->watched.pwrite = beside_pwrite;
    r->watched.sync_data = beside_sync_data;
    r->watched.rename = beside_rename;
    r->watched.unlink = beside_unlink;
    r->watched.open_subdir = beside_open_subdir;
    r->watched.list = beside_list;
}

/* Returns the promise to the visitor that was broken, or NULL. */
static inline const char *beside_leaves(struct run *r) {
    vfs *v = vfs_sim_table(r->sim);

    if (!beside.here)
        return NULL;
    beside.here = beside.judging = false;
    beside.inside = true;
    reader_ends();
    if (beside.holds[1].there || beside.holds[1].file >= 0)
        other_hold_goes(v);
    return beside.broken[0] != '\0' ? beside.broken : NULL;
}

#endif
