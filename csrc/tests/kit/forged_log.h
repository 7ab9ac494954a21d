/*
 * Appends forged records to a store's log: complete, with right checksums, in an accepted batch after the last one. The
 * test chooses their contents, so that it can show replay every contradiction.
 */
#ifndef LOGSTORE_FORGED_LOG_H
#define LOGSTORE_FORGED_LOG_H

#include "format/format.h"
#include "format/bytes.h"
#include "format/xxh64.h"
#include "tests/kit/one_store.h"

struct forged {
    char name[SEGMENT_NAME_BYTES];
    uint64_t first_lsn;
    uint64_t seed;
    uint64_t lsn; /* of the batch */
    uint64_t base_lsn;
    uint32_t bytes;
    uint32_t count;
    struct segment_header header;
    uint8_t image[SEGMENT];
};

/* The store must be closed. Loads its last segment and begins a batch after its end. */
static inline void forge_begin(struct forged *f) {
    ls_segment_info segments[64];
    ls_reader_info info;
    ls_reader *reader;
    uint8_t uuid[16];
    size_t n;

    memset(f, 0, sizeof *f);
    if (r.store != NULL) {
        check(ls_close(r.store) == LS_OK);
        ls_free(r.store);
        r.store = NULL;
    }
    if (ls_reader_open(r.v, "/s", 0, &reader) != LS_OK)
        abort();
    ls_reader_describe(reader, &info);
    check(ls_reader_segments(reader, segments, 64, &n) == LS_OK && n > 0 && n <= 64);
    ls_reader_close(reader);
    memcpy(uuid, info.uuid, 16);
    f->first_lsn = segments[n - 1].first_lsn;
    f->lsn = info.end_lsn;
    f->base_lsn = info.base_lsn;
    f->bytes = BATCH_RECORD_BYTES;
    format_segment_name(f->name, f->first_lsn);
    if (vfs_sim_get(sim, VFS_SIM_STABLE, "/s", f->name, f->image, sizeof f->image) != SEGMENT)
        abort();
    check(format_get_segment_header(f->image, BLOCK, uuid, SEGMENT, f->first_lsn, &f->header) == FORMAT_OK);
    f->seed = format_segment_seed(uuid, f->first_lsn, f->header.epoch);
    if (f->lsn - f->first_lsn + 20000 > SEGMENT)
        abort(); /* no room after it */
}

/* The position of the next record. id 0: its own LSN. */
static inline struct slot forge_slot(struct forged *f, uint64_t id, uint64_t prev, uint16_t flags) {
    struct slot s = {.seed = f->seed, .lsn = f->lsn + f->bytes, .id = id, .prev = prev, .flags = flags};

    s.at = f->image + (s.lsn - f->first_lsn);
    s.id = id == 0 ? s.lsn : id;
    return s;
}

/* Adds the record that was encoded at the slot to the batch; returns its LSN. */
static inline uint64_t forge_add(struct forged *f, uint32_t bytes) {
    uint64_t lsn = f->lsn + f->bytes;

    f->bytes += bytes;
    f->count++;
    return lsn;
}

static inline void forge_batch(struct forged *f, const struct batch *b) {
    struct slot s = {.at = f->image + (f->lsn - f->first_lsn), .seed = f->seed, .lsn = f->lsn};

    (void)format_put_batch(&s, b);
}

/* Seals the batch and writes the segment to the disk. */
static inline void forge_end(struct forged *f) {
    struct batch b = {
        .epoch = f->header.epoch, .count = f->count, .bytes = f->bytes, .durable_lsn = f->lsn, .base_lsn = f->base_lsn};

    forge_batch(f, &b);
    check(vfs_sim_put(sim, "/s", f->name, f->image, sizeof f->image) == 0);
}

/* Changes some bytes of the last encoded record and seals it again. */
static inline void forge_spoil(struct slot s, uint32_t bytes, uint32_t offset, int width, uint64_t value) {
    if (width == 8)
        put64(s.at + offset, value);
    else if (width == 4)
        put32(s.at + offset, (uint32_t)value);
    else
        put16(s.at + offset, (uint16_t)value);
    put32(s.at + 8, (uint32_t)xxh64(s.at + 12, 36, s.seed));
    put64(s.at, xxh64(s.at + 8, bytes - 8, s.seed));
}

#endif
