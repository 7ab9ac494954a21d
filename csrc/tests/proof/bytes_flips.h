/*
 * Flips single bits, each on its own copy of the disk: first those of headers and records, then contents and the other
 * written bytes, then bytes that no log needs. Also flips bits while the store is open.
 */
#ifndef LOGSTORE_BYTES_FLIPS_H
#define LOGSTORE_BYTES_FLIPS_H

#include "tests/proof/bytes_verdict.h"

enum { OF_STRUCTURE, OF_CONTENT, OF_NOTHING, BYTE_KINDS };

struct spot {
    uint8_t store;
    uint8_t file;
    uint8_t kind;
    uint32_t at;
};

/* ---- the kind of each byte ---- */

static inline void paint(uint8_t *kinds, uint32_t from, uint32_t to, int kind) {
    if (to > from)
        memset(kinds + from, kind, to - from);
}

static inline void paint_batch(uint8_t *kinds, const uint8_t *file, const struct place_of_batch *b) {
    struct record r;

    for (uint32_t at = b->at; at < b->at + b->bytes; at += r.length) {
        struct message_start start;

        format_read_verified(file + at, &r);
        paint(kinds, at, at + r.length, OF_STRUCTURE);
        if (r.type == MESSAGE_START && format_get_start(&r, &start) == FORMAT_OK)
            paint(kinds, (uint32_t)(start.header - file), at + r.length, OF_CONTENT);
        if (r.type == MESSAGE_CHUNK)
            paint(kinds, at + 64, at + r.length, OF_CONTENT);
    }
}

static inline void paint_file(const struct subject *s, size_t file, uint8_t *kinds) {
    const struct image *f = &s->files[file];

    paint(kinds, 0, (uint32_t)f->size, OF_NOTHING);
    if (strcmp(f->name, "META") == 0 || f->in_log) { /* both end in a checksum, and are mostly zeros */
        paint(kinds, 0, META_BYTES, OF_CONTENT);
        paint(kinds, 0, 80, OF_STRUCTURE);
        paint(kinds, META_BYTES - 8, META_BYTES, OF_STRUCTURE);
    }
    for (size_t i = 0; i < s->batch_count; i++) {
        if (s->batches[i].file == file)
            paint_batch(kinds, f->bytes, &s->batches[i]);
    }
}

static inline size_t list_spots(struct subject *const *subjects, size_t n, struct spot *into) {
    static uint8_t kinds[SEGMENT];
    size_t count = 0;

    for (size_t s = 0; s < n; s++) {
        for (size_t file = 0; file < subjects[s]->file_count; file++) {
            paint_file(subjects[s], file, kinds);
            for (uint32_t at = 0; at < subjects[s]->files[file].size; at++)
                into[count++] = (struct spot){(uint8_t)s, (uint8_t)file, kinds[at], at};
        }
    }
    return count;
}

/* ---- one bit ---- */

static inline void turn(vfs_sim *disk, const char *name, uint32_t at, uint8_t byte) {
    vfs *v = vfs_sim_table(disk);
    int dir = v->open_dir(v, "/s"), file = v->open(v, dir, name, VFS_WRITE);

    if (!write_all(v, file, &byte, 1, at) || v->close(v, file) != 0 || v->close(v, dir) != 0)
        abort();
}

static inline void flip(struct subject *s, size_t file, uint32_t at, int bit) {
    struct damage d = {.s = s, .disk = vfs_sim_clone(s->sim), .flip = true, .file = file, .at = at};

    (void)snprintf(tally.what, sizeof tally.what, "%s store, %s, byte %u, bit %d", store_words[s->kind],
                   s->files[file].name, at, bit);
    turn(d.disk, s->files[file].name, at, (uint8_t)(s->files[file].bytes[at] ^ 1u << bit));
    judge(&d);
    vfs_sim_free(d.disk);
}

/* ---- under an open store ---- */

/* Each content is right, or refused with the damaged record's position: reads verify again what recovery verified. */
static inline void read_under(const struct subject *s, ls_store *store, uint64_t id, uint64_t lsn) {
    static uint8_t expected[1 << 16], into[1 << 16];
    const struct told *t = told_of(&s->r, id);

    for (int part = 0; part < 2; part++) {
        uint32_t bytes = part == 0 ? t->header_bytes : t->content_bytes;
        size_t done = 0;
        int rc = part == 0 ? ls_load_header(store, id, into, sizeof into, &done)
                           : ls_load_content(store, id, 0, into, sizeof into, &done);

        fill(expected, t->seed + (uint32_t)part, bytes);
        if (rc == LS_OK && (done != bytes || memcmp(into, expected, bytes) != 0))
            violated(CHECK_CONTENT, "a read gives wrong bytes");
        else if (rc != LS_OK && rc != LS_CORRUPT)
            violated(CHECK_REPORTS, "a read fails for the wrong reason");
        else if (rc == LS_CORRUPT && ls_last_error()->lsn != lsn)
            violated(CHECK_REPORTS, "a read names another record than the damaged one");
    }
}

static inline uint64_t flip_record_under(const struct subject *s, vfs_sim *disk, ls_store *store, size_t file,
                                         uint32_t at, uint32_t step) {
    const uint8_t *bytes = s->files[file].bytes;
    struct record r;
    ls_message_info info;
    uint64_t done = 0;

    format_read_verified(bytes + at, &r);
    if ((r.type != MESSAGE_START && r.type != MESSAGE_CHUNK) || ls_message(store, r.id, &info) != LS_OK)
        return 0;
    for (uint32_t i = at; i < at + r.length && !tally.stop; i += i - at < 72 ? 1 : step) {
        int bit = (int)(i * 5 % 8);

        (void)snprintf(tally.what, sizeof tally.what, "%s store while open, %s, byte %u, bit %d", store_words[s->kind],
                       s->files[file].name, i, bit);
        turn(disk, s->files[file].name, i, (uint8_t)(bytes[i] ^ 1u << bit));
        read_under(s, store, r.id, r.lsn);
        turn(disk, s->files[file].name, i, bytes[i]);
        done++;
    }
    return done;
}

static inline uint64_t flip_under(struct subject *s, uint32_t step) {
    vfs_sim *disk = vfs_sim_clone(s->sim);
    ls_store *store = NULL;
    uint64_t done = 0;
    struct record r;

    if (open_store(&s->r, vfs_sim_table(disk), s->r.catalog, QUEUES + 1, &store) != LS_OK)
        abort();
    for (size_t i = 0; i < s->batch_count; i++) {
        const struct place_of_batch *b = &s->batches[i];

        for (uint32_t at = b->at; at < b->at + b->bytes && !tally.stop; at += r.length) {
            format_read_verified(s->files[b->file].bytes + at, &r);
            done += flip_record_under(s, disk, store, b->file, at, step);
        }
    }
    ls_free(store);
    vfs_sim_free(disk);
    return done;
}

/* ---- under relocation ---- */

/* Every message that still exists reads as it was stored, or the read is refused. */
static inline void contents_are_not_wrong(const struct subject *s, ls_store *store) {
    static uint8_t expected[1 << 16], into[1 << 16];

    for (size_t i = 0; i < s->r.told_count; i++) {
        const struct told *t = &s->r.told[i];
        ls_message_info info;
        size_t done = 0;

        if (ls_message(store, t->id, &info) != LS_OK)
            continue;
        fill(expected, t->seed + 1, t->content_bytes);
        if (ls_load_content(store, t->id, 0, into, sizeof into, &done) == LS_OK &&
            (done != t->content_bytes || memcmp(into, expected, done) != 0))
            violated(CHECK_CONTENT, "a damaged record was moved and reads as whole");
    }
}

static inline bool is_of_content(const struct subject *s, const struct record *r) {
    return told_of(&s->r, r->id) != NULL && (r->type == MESSAGE_START || r->type == MESSAGE_CHUNK);
}

/* Short-lived messages fill segments; a full segment needs a spare, and so starts relocation. */
static inline void fill_a_little(ls_store *store) {
    static const uint8_t content[3300];
    const uint32_t queue = 1;
    uint64_t id, lsn;

    if (ls_publish(store, &queue, 1, NULL, 0, content, sizeof content, NULL, 0, &id) == LS_OK)
        (void)ls_dequeue(store, id, queue, NULL, 0, 0, 0, &lsn);
}

/* Flips one bit of the record while the store is open, relocates old records, and opens the store again. */
static inline bool move_with_flip(struct subject *s, const char *name, uint32_t at, uint8_t byte) {
    vfs_sim *disk = vfs_sim_clone(s->past[s->before_move]);
    ls_store *store = NULL;
    ls_stats stats = {.segments_relocated = 0};

    if (open_store(&s->r, vfs_sim_table(disk), s->r.catalog, QUEUES + 1, &store) != LS_OK)
        abort();
    turn(disk, name, at, byte);
    for (int i = 0; i < 60 && stats.segments_relocated + stats.relocation_failures == 0; i++) {
        fill_a_little(store);
        ls_stats_get(store, &stats);
    }
    contents_are_not_wrong(s, store);
    ls_free(store);
    store = NULL;
    if (open_store(&s->r, vfs_sim_table(disk), s->r.catalog, QUEUES + 1, &store) == LS_OK)
        contents_are_not_wrong(s, store);
    ls_free(store);
    vfs_sim_free(disk);
    return stats.segments_relocated + stats.relocation_failures > 0;
}

/* Flips the middle of every record with content before its relocation; returns how many relocations met a flip. */
static inline uint64_t flip_under_moves(struct subject *s) {
    static uint8_t bytes[SEGMENT];
    ls_reader *reader = NULL;
    ls_batch b;
    uint64_t met = 0;

    if (ls_reader_open(vfs_sim_table(s->past[s->before_move]), "/s", 0, &reader) != LS_OK)
        abort();
    while (ls_reader_next(reader, &b) == LS_OK && !tally.stop) {
        struct record r;
        char name[SEGMENT_NAME_BYTES];

        memcpy(bytes, b.bytes, b.size);
        format_segment_name(name, b.first_lsn);
        for (uint32_t at = 0; at < b.size && !tally.stop; at += r.length) {
            uint32_t hit;

            format_read_verified(bytes + at, &r);
            hit = at + r.length - r.length / 4;
            if (!is_of_content(s, &r))
                continue;
            (void)snprintf(tally.what, sizeof tally.what, "%s store before a move, %s, LSN %llu", store_words[s->kind],
                           name, (unsigned long long)r.lsn);
            met += move_with_flip(s, name, (uint32_t)(b.lsn - b.first_lsn) + hit, bytes[hit] ^ 1);
        }
    }
    ls_reader_close(reader);
    return met;
}

#endif
