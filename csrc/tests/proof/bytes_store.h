/*
 * The small stores that are damaged: one closed in order, one that lost power, one that lost power while its last batch
 * was written. They contain everything that a log can contain, and the model has their state.
 *
 * What always holds: images, batches and states here come from the undamaged disk and never change.
 */
#ifndef LOGSTORE_BYTES_STORE_H
#define LOGSTORE_BYTES_STORE_H

#include "format/format.h"
#include "tests/kit/store_workload.h"

enum { FILES_MAX = 48, BATCHES_MAX = 1200, PAST_MAX = 24, SMALL = 120 };
enum { STORE_CLOSED, STORE_CRASHED, STORE_TORN, STORE_OTHER, STORE_POINTED, STORES };

static const char *const store_words[STORES] = {"closed", "crashed", "torn", "other", "checkpointed"};

struct image {
    char name[24];
    uint8_t *bytes;
    uint64_t size;
    uint64_t first_lsn;    /* 0: no segment */
    uint64_t prev_end_lsn; /* the field of the header, if it is a segment of the log */
    bool in_log;
    uint32_t end; /* where the log ends in it; 0 if the file is not of the log */
};

struct place_of_batch {
    size_t file;
    uint32_t at;
    uint32_t bytes;
    uint64_t lsn;
};

/* The state of a store whose log was cut before one batch. */
struct reference {
    size_t cut;   /* index of the batch; the number of batches: nothing was cut */
    bool opens;   /* false: the rest is not a complete log, because its base was recycled */
    size_t found; /* operations of the sequence that are in it */
    bool clean;
    uint64_t end_lsn;
};

struct subject {
    int kind;
    struct run r;
    vfs_sim *sim;
    vfs_sim *past[PAST_MAX]; /* the same disk at the end of earlier epochs */
    size_t past_count;
    struct image files[FILES_MAX];
    size_t file_count;
    struct place_of_batch batches[BATCHES_MAX];
    size_t batch_count;
    struct reference references[8];
    size_t reference_count;
    size_t before_move; /* index in `past`: the disk before an epoch that relocated */
    size_t torn_file;   /* of STORE_TORN: the position of the torn batch's record */
    uint32_t torn_at;
    bool wrong;     /* it differs from the model although no byte was damaged */
    uint64_t bytes; /* of all files together */
    uint64_t types; /* the record types in the accepted log, by type_bit */
};

/* ---- writing the stores ---- */

static inline void remember(struct subject *s) {
    if (s->past_count < PAST_MAX)
        s->past[s->past_count++] = vfs_sim_clone(s->r.sim);
}

static inline void tx_of_kind(struct run *r, int slot, bool distributed) {
    do {
        if (r->handles[slot] != NULL) {
            answered(r, ls_rollback(r->handles[slot], 0), false, (struct op){.kind = ROLLBACK, .tx = r->tx_ids[slot]});
            forget_handle(r, slot);
        }
        begin(r, slot);
    } while (r->distributed[slot] != distributed);
}

static inline void outcome(struct run *r, int slot, int kind) {
    int rc = kind == COMMIT ? ls_commit(r->handles[slot], LS_WAIT) : ls_rollback(r->handles[slot], LS_WAIT);

    answered(r, rc, true, (struct op){.kind = kind, .tx = r->tx_ids[slot]});
    forget_handle(r, slot);
}

static inline void prepare_tx(struct run *r, int slot) {
    answered(r, ls_tx_end(r->handles[slot]), false, (struct op){.kind = END});
    answered(r, ls_prepare(r->handles[slot], LS_WAIT), true, (struct op){.kind = PREPARE, .tx = r->tx_ids[slot]});
    r->ended[slot] = true;
}

static inline uint64_t first_on(const struct run *r, int queue) { return r->now.places[queue][0].id; }

/* One epoch with operations of every kind. Slot 0 is for a transaction that the next open finds in doubt. */
static inline void some_of_all(struct run *r) {
    publish(r, PUBLISH, 1u << 1, -1, true, SMALL);
    publish(r, PUBLISH, 1u << 1 | 1u << 2 | 1u << 3, -1, false, (uint32_t)below(r, 60));
    publish(r, PUBLISH, 1u << 2, -1, true, 0);
    publish(r, STAGE, 0, -1, true, 90);
    use_staged(r, -1, true);
    enqueue_more(r, -1, false);
    tx_of_kind(r, 1, false);
    publish(r, PUBLISH, 1u << 3, 1, false, 40);
    change_place(r, DEQUEUE, first_on(r, 1), 1, 1, false);
    outcome(r, 1, COMMIT);
    tx_of_kind(r, 1, false);
    publish(r, PUBLISH, 1u << 2, 1, false, 30);
    change_place(r, DEQUEUE, first_on(r, 2), 2, 1, false);
    outcome(r, 1, ROLLBACK);
    tx_of_kind(r, 2, true);
    publish(r, PUBLISH, 1u << 4, 2, false, 50);
    prepare_tx(r, 2);
    outcome(r, 2, COMMIT);
    dequeue_some(r, -1, true);
}

/* Fills the segment to its end, so that it gets a footer, and the next one begins in the same epoch. */
static inline void fill_a_segment(struct run *r) {
    uint64_t from = ls_next_lsn(r->store) / SEGMENT;

    while (ls_next_lsn(r->store) / SEGMENT == from) {
        publish(r, PUBLISH, 1u << 4, -1, false, 3300);
        change_place(r, DEQUEUE, r->now.places[4][r->now.depth[4] - 1].id, 4, -1, false);
    }
    if (ls_force(r->store, 0) != LS_OK)
        abort();
}

static inline void note_checkpoint(struct subject *s) {
    if ((s->kind == STORE_POINTED || s->kind == STORE_OTHER) && ls_checkpoint(s->r.store, NULL) != LS_OK)
        abort();
}

static inline void next_epoch(struct subject *s) {
    reopen(&s->r);
    remember(s);
}

/*
 * Nine epochs. All messages of the first one end, so that the base moves and relocation copies the live records of the
 * next segments: chunked content, several places, pending work of a prepared transaction, and the transaction itself.
 */
static inline void write_everything(struct subject *s) {
    struct run *r = &s->r;

    for (int i = 0; i < 3; i++)
        publish(r, PUBLISH, 1u << 1, -1, true, SMALL);
    while (r->now.depth[1] > 0)
        change_place(r, DEQUEUE, first_on(r, 1), 1, -1, true);
    next_epoch(s);
    publish(r, PUBLISH, 1u << 1 | 1u << 3, -1, true, 9000);
    enqueue_more(r, -1, true);
    some_of_all(r);
    tx_of_kind(r, 2, true);
    publish(r, PUBLISH, 1u << 2, 2, false, 70);
    change_place(r, DEQUEUE, first_on(r, 3), 3, 2, false);
    prepare_tx(r, 2);
    next_epoch(s);
    add_queue(r);
    publish(r, PUBLISH, 1u << 5 | 1u << 2, -1, true, 60);
    some_of_all(r);
    next_epoch(s);
    note_checkpoint(s);
    if (s->kind == STORE_OTHER)
        return;
    delete_queue(r, 5, true);
    for (int i = 0; i < 3; i++)
        next_epoch(s);
    s->before_move = s->past_count - 1;
    if (move_base(r->store) != LS_OK)
        abort();
    some_of_all(r);
    fill_a_segment(r);
    some_of_all(r);
    note_checkpoint(s);
    next_epoch(s);
    some_of_all(r);
    note_checkpoint(s);
    remember(s);
    publish(r, PUBLISH, 1u << 1, -1, true, 5000);
    some_of_all(r);
    fill_a_segment(r); /* with a footer, and too close to the head to be relocated */
    add_queue(r);
    publish(r, PUBLISH, 1u << 6, -1, true, 60);
    delete_queue(r, 6, true);
    some_of_all(r);
}

/* ---- the contents of the disk ---- */

static inline int keep_file(void *context, const char *name) {
    struct subject *s = context;

    if (strcmp(name, "holds") == 0)
        return 0;
    if (s->file_count == FILES_MAX || strlen(name) >= sizeof s->files[0].name)
        abort();
    strcpy(s->files[s->file_count++].name, name);
    return 0;
}

static inline void take_images(struct subject *s) {
    vfs *v = vfs_sim_table(s->sim);
    int dir = v->open_dir(v, "/s");

    if (v->list(v, dir, keep_file, s) != 0)
        abort();
    (void)v->close(v, dir);
    for (size_t i = 0; i < s->file_count; i++) {
        struct image *f = &s->files[i];
        int64_t size = vfs_sim_get(s->sim, VFS_SIM_SEEN, "/s", f->name, NULL, 0);

        f->size = (uint64_t)size;
        f->bytes = calloc(1, f->size + 1);
        if (size < 0 || f->bytes == NULL || vfs_sim_get(s->sim, VFS_SIM_SEEN, "/s", f->name, f->bytes, f->size) != size)
            abort();
        (void)format_parse_segment_name(f->name, &f->first_lsn);
        s->bytes += f->size;
    }
}

static inline size_t file_of(const struct subject *s, uint64_t first_lsn) {
    for (size_t i = 0; i < s->file_count; i++) {
        if (s->files[i].first_lsn == first_lsn)
            return i;
    }
    abort();
}

static inline uint64_t type_bit(uint32_t type) { return (uint64_t)1 << ((type >> 8) * 16 + (type & 0xff) - 16); }

static inline void note_types(struct subject *s, const uint8_t *batch, uint32_t bytes) {
    struct record r;

    for (uint32_t at = 0; at < bytes; at += r.length) {
        format_read_verified(batch + at, &r);
        s->types |= type_bit(r.type);
    }
}

static inline void take_batches(struct subject *s) {
    ls_reader *reader;
    ls_segment_info segments[FILES_MAX];
    ls_batch b;
    size_t n;

    if (ls_reader_open(vfs_sim_table(s->sim), "/s", 0, &reader) != LS_OK ||
        ls_reader_segments(reader, segments, FILES_MAX, &n) != LS_OK)
        abort();
    for (size_t i = 0; i < n; i++) {
        struct image *f = &s->files[file_of(s, segments[i].first_lsn)];

        f->in_log = segments[i].end_lsn > f->first_lsn + BLOCK; /* false: no batch follows the header */
        if (!f->in_log)
            continue;
        f->end = (uint32_t)(segments[i].end_lsn - f->first_lsn);
        memcpy(&f->prev_end_lsn, f->bytes + 56, 8);
    }
    while (ls_reader_next(reader, &b) == LS_OK) {
        if (s->batch_count == BATCHES_MAX)
            abort();
        s->batches[s->batch_count++] =
            (struct place_of_batch){file_of(s, b.first_lsn), (uint32_t)(b.lsn - b.first_lsn), (uint32_t)b.size, b.lsn};
        note_types(s, b.bytes, (uint32_t)b.size);
    }
    ls_reader_close(reader);
}

/* ---- the states that it must have ---- */

static inline void zero_from(const struct subject *s, vfs *v, int dir, size_t file, uint32_t at) {
    static const uint8_t zeros[SEGMENT];
    int f = v->open(v, dir, s->files[file].name, VFS_WRITE);

    if (!write_all(v, f, zeros, SEGMENT - at, at) || v->close(v, f) != 0)
        abort();
}

/* A disk on which the batch and everything after it is zero, a torn batch at the end included. */
static inline vfs_sim *cut_before(const struct subject *s, size_t cut) {
    vfs_sim *disk = vfs_sim_clone(s->sim);
    vfs *v = vfs_sim_table(disk);
    int dir = v->open_dir(v, "/s");

    for (size_t i = cut; i < s->batch_count; i++)
        zero_from(s, v, dir, s->batches[i].file, s->batches[i].at);
    (void)v->close(v, dir);
    return disk;
}

/* The prefix of the sequence that this disk has. If it has none, the store is defective, not these bytes. */
static inline const struct reference *reference_of(struct subject *s, size_t cut) {
    static struct model_state state;
    struct reference *made = &s->references[s->reference_count];
    ls_store *store = NULL;
    ls_recovery report;
    vfs_sim *disk;

    for (size_t i = 0; i < s->reference_count; i++) {
        if (s->references[i].cut == cut)
            return &s->references[i];
    }
    if (s->reference_count + 1 == sizeof s->references / sizeof *s->references)
        s->reference_count = 1; /* the first is that of the whole log */
    made = &s->references[s->reference_count];
    disk = cut_before(s, cut);
    *made = (struct reference){.cut = cut, .found = SIZE_MAX};
    s->reference_count++;
    if (open_store(&s->r, vfs_sim_table(disk), s->r.catalog, QUEUES + 1, &store) != LS_OK) {
        vfs_sim_free(disk);
        return made;
    }
    ls_recovery_report(store, &report);
    made->opens = true;
    made->clean = report.clean != 0;
    made->end_lsn = report.end_lsn;
    for (size_t i = s->r.op_count + 1; i-- > 0 && made->found == SIZE_MAX;) {
        model_after(&s->r, i, s->r.catalog, &state);
        if (store_is(store, &state, s->r.catalog) && contents_are(&s->r, store, &state))
            made->found = i;
    }
    ls_free(store);
    vfs_sim_free(disk);
    if (made->found == SIZE_MAX || (cut == s->batch_count && made->found < s->r.durable)) {
        made->found = s->r.op_count;
        s->wrong = true;
    }
    return made;
}

/* ---- a subject ---- */

static inline vfs_sim *ended(struct subject *s) {
    const vfs_sim_loss lost = {.mode = VFS_SIM_ALL_LOST, .dir_mode = VFS_SIM_DIRS_LOST};
    const vfs_sim_event *events;
    size_t n;

    if (s->kind == STORE_CLOSED || s->kind == STORE_OTHER || s->kind == STORE_POINTED) {
        publish(&s->r, PUBLISH, 1u << 2, -1, false, 50); /* only the close has waited for it */
        answered(&s->r, ls_close(s->r.store), true, (struct op){.kind = REOPEN});
        return vfs_sim_clone(s->r.sim);
    }
    if (s->kind == STORE_CRASHED)
        return vfs_sim_crash(s->r.sim, &lost);
    for (int i = 0; i < 4; i++)
        publish(&s->r, PUBLISH, 1u << 2, -1, i == 3, 400);
    for (n = vfs_sim_journal(s->r.sim, &events); events[n - 1].kind != VFS_SIM_SYNC_DATA;)
        n--;
    s->r.durable -= 4; /* that batch's sync never returns here */
    for (uint64_t seed = 1;; seed++) {
        vfs_sim_loss torn = {.mode = VFS_SIM_LAST_GARBAGE, .dir_mode = VFS_SIM_DIRS_KEPT, .n = seed};
        vfs_sim *disk = vfs_sim_crash_at(s->r.sim, n - 1, &torn);
        ls_reader *reader;
        ls_reader_info info;

        if (ls_reader_open(vfs_sim_table(disk), "/s", 0, &reader) != LS_OK)
            abort();
        ls_reader_describe(reader, &info);
        ls_reader_close(reader);
        if (info.torn_bytes > BATCH_RECORD_BYTES) /* its record reached the disk, but not all of the batch */
            return disk;
        vfs_sim_free(disk);
    }
}

static inline struct subject *subject_new(int kind, uint64_t seed) {
    struct subject *s = calloc(1, sizeof *s);
    vfs_sim *sim = vfs_sim_new();

    if (s == NULL || sim == NULL)
        abort();
    s->kind = kind;
    s->r.gentle = true;
    vfs_sim_seed(sim, seed * STORES + (uint64_t)kind);
    if (kind == STORE_TORN ? vfs_sim_record(sim, 1) != 0 : vfs_sim_record(sim, 0) != 0)
        abort();
    run_start(&s->r, sim, seed);
    write_everything(s);
    s->sim = ended(s);
    run_end(&s->r);
    vfs_sim_free(sim);
    s->r.sim = s->sim;
    s->r.v = NULL;
    take_images(s);
    take_batches(s);
    s->torn_file = s->batches[s->batch_count - 1].file;
    s->torn_at = s->files[s->torn_file].end;
    s->wrong = !reference_of(s, s->batch_count)->opens || s->wrong;
    return s;
}

static inline void subject_free(struct subject *s) {
    for (size_t i = 0; i < s->file_count; i++)
        free(s->files[i].bytes);
    for (size_t i = 0; i < s->past_count; i++)
        vfs_sim_free(s->past[i]);
    vfs_sim_free(s->sim);
    free(s);
}

#endif
