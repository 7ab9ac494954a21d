/*
 * Damages a store with a checkpoint: in the checkpoint, in the log below its LSN, and in the log after it.
 *
 *   the checkpoint   is never needed: the store opens with its state unchanged, and reports that it did not use it
 *   below its LSN    the open may not read the damage: then the state is unchanged, and every content is right or refused;
 *                    an open without the checkpoint refuses, as if there were none
 *   after it         as in any other store (bytes_verdict.h)
 */
#ifndef LOGSTORE_BYTES_CHECKPOINT_H
#define LOGSTORE_BYTES_CHECKPOINT_H

#include "format/checkpoint.h"
#include "tests/proof/bytes_files.h"
#include "tests/proof/bytes_flips.h"

static struct {
    uint64_t flips;   /* of the checkpoint's bits */
    uint64_t damaged; /* checkpoints damaged in other ways */
    uint64_t below;   /* records damaged below its LSN */
    uint64_t unmet;   /* of these, stores that opened from the checkpoint */
    uint64_t refused; /* contents that a read refused */
    uint64_t behind;  /* records damaged at or above its LSN */
} pointed;

static inline size_t checkpoint_file_of(const struct subject *s) {
    size_t i = 0;

    while (i < s->file_count && strcmp(s->files[i].name, "CHECKPOINT") != 0)
        i++;
    if (i == s->file_count)
        abort();
    return i;
}

/* ---- the required answers ---- */

/* It opens with the model's state; contents are right or, if the log is damaged, refused. *used: from the checkpoint. */
static inline bool state_is_whole(struct subject *s, vfs_sim *disk, bool log_is_whole, bool *used) {
    static struct model_state state;
    struct run *r = &s->r;
    ls_store *store = NULL;
    ls_recovery report = {.checkpoint_used = 0};
    int rc = open_store(r, vfs_sim_table(disk), r->catalog, QUEUES + 1, &store);

    if (rc != LS_OK) {
        *used = false;
        if (log_is_whole || rc != LS_CORRUPT)
            violated(CHECK_STATE, "it does not open");
        return false;
    }
    ls_recovery_report(store, &report);
    *used = report.checkpoint_used != 0;
    model_after(r, reference_of(s, s->batch_count)->found, r->catalog, &state);
    if (!store_is(store, &state, r->catalog))
        violated(CHECK_STATE, "the store differs from the model");
    if (log_is_whole && !contents_are(r, store, &state))
        violated(CHECK_CONTENT, "a content is wrong, or there are too many or too few messages");
    if (!log_is_whole)
        contents_are_not_wrong(s, store);
    for (size_t i = 0; !log_is_whole && i < r->told_count; i++) {
        ls_message_info info;
        uint8_t byte;
        size_t done;

        if (ls_message(store, r->told[i].id, &info) == LS_OK &&
            ls_load_header(store, r->told[i].id, &byte, 1, &done) == LS_CORRUPT)
            pointed.refused++;
    }
    if (log_is_whole && !doubts_are(store, &state, r->catalog))
        violated(CHECK_STATE, "the transactions in doubt differ from the model");
    ls_free(store);
    return true;
}

/* Judges a checkpoint that differs from the written one. `usable`: it is still a valid one of this store. */
static inline void judge_bad_checkpoint(struct subject *s, vfs_sim *disk, bool usable) {
    bool used;

    tally.cases++;
    (void)alarm(CASE_SECONDS_MAX);
    largest_allocation = 0;
    if (state_is_whole(s, disk, true, &used) && used && !usable)
        violated(CHECK_REPORTS, "a damaged checkpoint was used");
    allocations_are_bounded(s);
    vfs_sim_free(disk);
}

/* ---- the checkpoint itself ---- */

static inline void flip_checkpoint(struct subject *s, uint32_t step, uint64_t seed) {
    size_t file = checkpoint_file_of(s);
    const struct image *f = &s->files[file];

    for (uint32_t at = 0; at < f->size && !tally.stop; at++) {
        vfs_sim *disk;
        int bit = (int)((at * 2654435761u >> 16) + seed) & 7;

        if (at >= 144 && at < CHECKPOINT_HEADER_BYTES - 8 && at % step != seed % step) /* the header is mostly zeros */
            continue;
        disk = vfs_sim_clone(s->sim);
        SAY("%s store, %s, byte %u, bit %d", store_words[s->kind], f->name, at, bit);
        turn(disk, f->name, at, (uint8_t)(f->bytes[at] ^ 1u << bit));
        judge_bad_checkpoint(s, disk, false);
        pointed.flips++;
    }
}

static inline void put_checkpoint(struct subject *s, const uint8_t *bytes, uint64_t size, bool usable) {
    vfs_sim *disk = vfs_sim_clone(s->sim);

    put_file(disk, "CHECKPOINT", bytes, size);
    judge_bad_checkpoint(s, disk, usable);
    pointed.damaged++;
}

static inline void damage_checkpoint(struct subject *s, const struct subject *other, uint64_t seed) {
    static uint8_t now[2 * SEGMENT];
    const struct image *f = &s->files[checkpoint_file_of(s)];
    uint64_t c = seed;
    int64_t size;

    if (f->size + SECTOR > sizeof now)
        abort();
    for (uint64_t to = 0; to < f->size && !tally.stop; to += to < 200 || to + 64 > f->size ? 1 : 61) {
        SAY("%s store, CHECKPOINT cut to %llu bytes", store_words[s->kind], (unsigned long long)to);
        put_checkpoint(s, f->bytes, to, false);
    }
    memcpy(now, f->bytes, f->size);
    memset(now + f->size, 0, SECTOR);
    SAY("%s store, CHECKPOINT grew", store_words[s->kind]);
    put_checkpoint(s, now, f->size + 8, false);
    put_checkpoint(s, now, f->size + SECTOR, false);
    for (uint64_t at = 0; at < f->size && !tally.stop; at += 64) {
        uint64_t n = f->size - at < 64 ? f->size - at : 64;

        memcpy(now, f->bytes, f->size);
        for (uint64_t i = 0; i < n; i++)
            now[at + i] ^= (uint8_t)(chance(&c) % 255 + 1);
        SAY("%s store, CHECKPOINT, garbage at %llu", store_words[s->kind], (unsigned long long)at);
        put_checkpoint(s, now, f->size, false);
    }
    size = vfs_sim_get(other->sim, VFS_SIM_SEEN, "/s", "CHECKPOINT", now, sizeof now);
    SAY("%s store, CHECKPOINT of another store", store_words[s->kind]);
    if (size > 0)
        put_checkpoint(s, now, (uint64_t)size, false);
    for (size_t i = 0; i < s->past_count && !tally.stop; i++) {
        size = vfs_sim_get(s->past[i], VFS_SIM_SEEN, "/s", "CHECKPOINT", now, sizeof now);
        SAY("%s store, CHECKPOINT of an earlier time", store_words[s->kind]);
        if (size > 0)
            put_checkpoint(s, now, (uint64_t)size, true);
    }
    SAY("%s store, no CHECKPOINT", store_words[s->kind]);
    put_checkpoint(s, NULL, 0, false);
}

/* ---- the log ---- */

static inline uint64_t checkpoint_lsn_of(const struct subject *s) {
    vfs_sim *disk = vfs_sim_clone(s->sim);
    ls_store *store = NULL;
    ls_recovery report;

    if (open_store(&s->r, vfs_sim_table(disk), s->r.catalog, QUEUES + 1, &store) != LS_OK)
        abort();
    ls_recovery_report(store, &report);
    ls_free(store);
    vfs_sim_free(disk);
    if (!report.checkpoint_used)
        violated(CHECK_STATE, "the checkpoint of an undamaged store is not used");
    return report.checkpoint_lsn;
}

/* One bit of one record. */
static inline void damage_record(struct subject *s, size_t file, uint32_t at, bool below) {
    struct damage d = {.s = s, .disk = vfs_sim_clone(s->sim), .flip = true, .file = file, .at = at};
    bool used;

    SAY("%s store, %s the checkpoint's LSN, %s, byte %u", store_words[s->kind], below ? "below" : "behind",
        s->files[file].name, at);
    turn(d.disk, s->files[file].name, at, s->files[file].bytes[at] ^ 4);
    if (below) {
        vfs_sim *disk = vfs_sim_clone(d.disk);

        tally.cases++;
        (void)state_is_whole(s, disk, false, &used);
        pointed.unmet += used;
        pointed.below++;
        vfs_sim_free(disk);
    } else {
        pointed.behind++;
    }
    s->r.options.no_checkpoint = below;
    judge(&d);
    s->r.options.no_checkpoint = 0;
    vfs_sim_free(d.disk);
}

static inline void damage_log_around(struct subject *s) {
    uint64_t lsn = checkpoint_lsn_of(s);

    for (size_t i = 0; i < s->batch_count; i++) {
        const struct place_of_batch *b = &s->batches[i];
        struct record r;

        for (uint32_t at = b->at; at < b->at + b->bytes && !tally.stop; at += r.length) {
            format_read_verified(s->files[b->file].bytes + at, &r);
            damage_record(s, b->file, at + 4, b->lsn < lsn);
            damage_record(s, b->file, at + r.length - r.length / 4, b->lsn < lsn);
        }
    }
}

static inline void damage_checkpoints(struct subject *s, const struct subject *other, uint64_t seed, bool full) {
    for (int pass = 0; pass < (full ? 8 : 1); pass++)
        flip_checkpoint(s, full ? 1 : 16, seed + (uint64_t)pass);
    damage_checkpoint(s, other, seed);
    damage_log_around(s);
    if (pointed.unmet == 0 && !tally.stop)
        violated(CHECK_STATE, "no open from the checkpoint skipped the damage below it, so this proved nothing");
}

#endif
