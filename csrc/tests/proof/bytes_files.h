/*
 * Damage larger than a bit: files cut at a length; sectors that are zeroed, garbled, swapped or duplicated; files that are
 * missing, swapped, duplicated, renamed, of an earlier time, or of another store.
 */
#ifndef LOGSTORE_BYTES_FILES_H
#define LOGSTORE_BYTES_FILES_H

#include "tests/proof/bytes_verdict.h"

static struct {
    uint64_t truncations;
    uint64_t sectors;
    uint64_t files;
} counts;

/* ---- putting damage on a disk ---- */

static inline struct damage damage_new(struct subject *s) {
    return (struct damage){.s = s, .disk = vfs_sim_clone(s->sim)};
}

static inline void put_file(vfs_sim *disk, const char *name, const uint8_t *bytes, uint64_t size) {
    vfs *v = vfs_sim_table(disk);
    int dir = v->open_dir(v, "/s");

    if (bytes == NULL ? v->unlink(v, dir, name) != 0 : vfs_sim_put(disk, "/s", name, bytes, size) != 0)
        abort();
    (void)v->close(v, dir);
}

/* `now` must outlive the damage. */
static inline void touch(struct damage *d, size_t file, const uint8_t *now, uint64_t size) {
    if (d->n == TOUCHED_MAX)
        abort();
    d->touched[d->n++] = (struct touched){file, now, size};
    put_file(d->disk, d->s->files[file].name, now, size);
}

static inline void judge_and_free(struct damage *d) {
    judge(d);
    vfs_sim_free(d->disk);
}

#define SAY(...) ((void)snprintf(tally.what, sizeof tally.what, __VA_ARGS__))

/* ---- lengths ---- */

static inline void truncate_at(struct subject *s, size_t file, uint64_t size) {
    struct damage d = damage_new(s);

    SAY("%s store, %s cut to %llu bytes", store_words[s->kind], s->files[file].name, (unsigned long long)size);
    touch(&d, file, s->files[file].bytes, size);
    judge_and_free(&d);
    counts.truncations++;
}

static inline bool is_border(const struct subject *s, size_t file, uint64_t at) {
    const uint8_t *bytes = s->files[file].bytes;
    struct record r;

    for (size_t i = 0; i < s->batch_count; i++) {
        const struct place_of_batch *b = &s->batches[i];

        if (b->file != file || at + 1 < b->at || at > b->at + b->bytes + 1u)
            continue;
        for (uint32_t from = b->at; from <= b->at + b->bytes; from += r.length) {
            if (at + 1 >= from && at <= from + 1)
                return true;
            if (from == b->at + b->bytes)
                break;
            format_read_verified(bytes + from, &r);
        }
    }
    return at < 2 || (at + 1 >= SEGMENT_HEADER_BYTES && at <= SEGMENT_HEADER_BYTES + 1) ||
           at + 2 >= s->files[file].size;
}

/* step 1: every length. Otherwise each record's end and the lengths next to it, and every step-th length. */
static inline void truncate_all(struct subject *s, uint32_t step) {
    for (size_t file = 0; file < s->file_count; file++) {
        for (uint64_t at = 0; at < s->files[file].size && !tally.stop; at++) {
            if (at % step == 0 || is_border(s, file, at))
                truncate_at(s, file, at);
        }
    }
}

/* A file that grew: bytes after the segment's size do not belong to the log. */
static inline void lengthen_all(struct subject *s) {
    static uint8_t longer[2 * SEGMENT];

    for (size_t file = 0; file < s->file_count && !tally.stop; file++) {
        struct damage d = damage_new(s);
        uint64_t size = s->files[file].size;

        memcpy(longer, s->files[file].bytes, size);
        memset(longer + size, 0xa5, SEGMENT);
        if (s->files[file].first_lsn == 0) { /* the other files have fixed sizes, and nothing reads beyond them */
            vfs_sim_free(d.disk);
            continue;
        }
        SAY("%s store, %s grew", store_words[s->kind], s->files[file].name);
        touch(&d, file, longer, size + SEGMENT);
        judge_and_free(&d);
        counts.truncations++;
    }
}

/* ---- sectors ---- */

enum sector_fault { SECTOR_ZERO, SECTOR_GARBAGE, SECTOR_SWAP, SECTOR_COPY, SECTOR_FAULTS };

static const char *const sector_words[SECTOR_FAULTS] = {"zeros", "garbage", "swapped", "a copy"};

static inline void damage_sector(struct subject *s, enum sector_fault fault, size_t file, uint32_t at, size_t other,
                                 uint32_t other_at, uint32_t bytes) {
    static uint8_t one[SEGMENT], two[SEGMENT];
    const struct image *f = &s->files[file], *o = &s->files[other];
    uint8_t *second = other == file ? one : two;
    struct damage d = damage_new(s);
    uint64_t c = at * 31 + file;

    SAY("%s store, %u bytes of %s at %u: %s (%s at %u)", store_words[s->kind], bytes, f->name, at, sector_words[fault],
        o->name, other_at);
    memcpy(one, f->bytes, f->size);
    memcpy(two, o->bytes, o->size);
    for (uint32_t i = 0; fault == SECTOR_GARBAGE && i < bytes; i++)
        one[at + i] = (uint8_t)chance(&c);
    if (fault == SECTOR_ZERO)
        memset(one + at, 0, bytes);
    if (fault == SECTOR_SWAP || fault == SECTOR_COPY)
        memcpy(one + at, o->bytes + other_at, bytes);
    if (fault == SECTOR_SWAP)
        memcpy(second + other_at, f->bytes + at, bytes);
    touch(&d, file, one, f->size);
    if (fault == SECTOR_SWAP && other != file)
        touch(&d, other, two, o->size);
    judge_and_free(&d);
    counts.sectors++;
}

static inline uint32_t any_sector(const struct image *f, uint32_t bytes, uint64_t *c) {
    uint32_t end = f->in_log && chance(c) % 4 != 0 ? f->end : (uint32_t)f->size;

    return end < bytes ? 0 : (uint32_t)(chance(c) % ((end + bytes - 1) / bytes)) * bytes;
}

/* Damages every step-th sector or block of all segments: each fault once, with randomly chosen partners. */
static inline void damage_sectors(struct subject *s, uint32_t bytes, uint32_t step, uint64_t seed) {
    uint64_t c = seed;

    for (size_t file = 0; file < s->file_count; file++) {
        const struct image *f = &s->files[file];

        for (uint32_t at = 0; f->size == SEGMENT && at + bytes <= f->size && !tally.stop; at += bytes) {
            uint32_t often = at < f->end ? step : 16 * step;

            for (int fault = 0; fault < SECTOR_FAULTS && at / bytes % often == 0; fault++) {
                size_t other;

                do
                    other = chance(&c) % s->file_count;
                while (s->files[other].size != SEGMENT);
                damage_sector(s, (enum sector_fault)fault, file, at, other, any_sector(&s->files[other], bytes, &c),
                              bytes);
            }
        }
    }
}

/* ---- misdirected writes ---- */

/* Copies a batch over another one of its segment, or after the last: intact, but at the wrong position. */
static inline void misdirect(struct subject *s, size_t batch, uint32_t to) {
    static uint8_t now[SEGMENT];
    const struct place_of_batch *b = &s->batches[batch];
    const struct image *f = &s->files[b->file];
    struct damage d;

    if (to == b->at || to + b->bytes > SEGMENT)
        return;
    d = damage_new(s);
    SAY("%s store, the batch at %u of %s also at %u", store_words[s->kind], b->at, f->name, to);
    memcpy(now, f->bytes, SEGMENT);
    memcpy(now + to, f->bytes + b->at, b->bytes);
    touch(&d, b->file, now, SEGMENT);
    judge_and_free(&d);
    counts.sectors++;
}

static inline void misdirect_all(struct subject *s) {
    for (size_t i = 0; i < s->batch_count; i++) {
        for (size_t k = 0; k < s->batch_count && !tally.stop; k++) {
            if (s->batches[k].file == s->batches[i].file)
                misdirect(s, i, s->batches[k].at);
        }
        if (!tally.stop)
            misdirect(s, i, s->files[s->batches[i].file].end);
    }
}

/* ---- whole files ---- */

static inline void remove_all(struct subject *s) {
    for (size_t file = 0; file < s->file_count && !tally.stop; file++) {
        struct damage d = damage_new(s);

        SAY("%s store, %s is gone", store_words[s->kind], s->files[file].name);
        touch(&d, file, NULL, 0);
        judge_and_free(&d);
        counts.files++;
    }
}

static inline void replace(struct subject *s, size_t file, const uint8_t *with, uint64_t size, const char *what) {
    struct damage d = damage_new(s);

    SAY("%s store, %s is %s", store_words[s->kind], s->files[file].name, what);
    touch(&d, file, with, size);
    judge_and_free(&d);
    counts.files++;
}

/* Copies each segment over each other one, and swaps both. */
static inline void exchange_all(struct subject *s) {
    for (size_t a = 0; a < s->file_count; a++) {
        for (size_t b = 0; b < s->file_count && !tally.stop; b++) {
            struct damage d;

            if (a == b || s->files[a].first_lsn == 0 || s->files[b].first_lsn == 0)
                continue;
            replace(s, a, s->files[b].bytes, s->files[b].size, s->files[b].name);
            if (a > b)
                continue;
            d = damage_new(s);
            SAY("%s store, %s and %s are swapped", store_words[s->kind], s->files[a].name, s->files[b].name);
            touch(&d, a, s->files[b].bytes, s->files[b].size);
            touch(&d, b, s->files[a].bytes, s->files[a].size);
            judge_and_free(&d);
            counts.files++;
        }
    }
}

/* Gives a file an unused name: as a second copy, and instead of its own name. */
static inline void rename_all(struct subject *s) {
    for (size_t file = 0; file < s->file_count; file++) {
        for (uint64_t slot = 1; slot < 64 && s->files[file].first_lsn != 0 && !tally.stop; slot += 3) {
            char name[SEGMENT_NAME_BYTES];
            bool taken = false;

            format_segment_name(name, slot * SEGMENT);
            for (size_t i = 0; i < s->file_count; i++)
                taken = taken || strcmp(s->files[i].name, name) == 0;
            for (int moved = 0; !taken && moved < 2; moved++) {
                struct damage d = damage_new(s);

                SAY("%s store, %s is %s %s", store_words[s->kind], s->files[file].name, moved ? "now" : "also", name);
                put_file(d.disk, name, s->files[file].bytes, s->files[file].size);
                if (moved)
                    touch(&d, file, NULL, 0);
                judge_and_free(&d);
                counts.files++;
            }
        }
    }
}

/* Takes every file of the other disk: over the file of that name, or as an additional file. */
static inline void take_from(struct subject *s, vfs_sim *other, const char *what) {
    static uint8_t bytes[SEGMENT];

    for (uint64_t slot = 1; slot < 64 && !tally.stop; slot++) {
        char name[SEGMENT_NAME_BYTES];
        int64_t size;
        size_t file = 0;

        format_segment_name(name, slot * SEGMENT);
        size = vfs_sim_get(other, VFS_SIM_SEEN, "/s", name, bytes, sizeof bytes);
        if (size < 0)
            continue;
        while (file < s->file_count && strcmp(s->files[file].name, name) != 0)
            file++;
        if (file < s->file_count) {
            replace(s, file, bytes, (uint64_t)size, what);
        } else {
            struct damage d = damage_new(s);

            SAY("%s store, beside it a file %s, %s", store_words[s->kind], name, what);
            put_file(d.disk, name, bytes, (uint64_t)size);
            judge_and_free(&d);
            counts.files++;
        }
    }
}

/* Takes the other store's segments under every segment's name. */
static inline void take_under_any_name(struct subject *s, const struct subject *other) {
    for (size_t file = 0; file < s->file_count; file++) {
        for (size_t from = 0; from < other->file_count && !tally.stop; from++) {
            if (s->files[file].first_lsn != 0 && other->files[from].first_lsn != 0)
                replace(s, file, other->files[from].bytes, other->files[from].size, "of another store");
        }
    }
}

static inline void damage_files(struct subject *s, const struct subject *other) {
    remove_all(s);
    exchange_all(s);
    rename_all(s);
    take_from(s, other->sim, "of another store");
    take_under_any_name(s, other);
    for (size_t i = 0; i < s->past_count; i++)
        take_from(s, s->past[i], "of an earlier time");
}

#endif
