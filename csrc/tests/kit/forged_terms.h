/*
 * Forged terms of a replicated log, behind the log of a closed store: segments whose batches have an index. What a test does
 * not set is as a leader writes it.
 */
#ifndef LOGSTORE_FORGED_TERMS_H
#define LOGSTORE_FORGED_TERMS_H

#include "tests/kit/forged_log.h"

static struct forged f;
static uint64_t base_lsn;    /* that the next batch names */
static uint64_t next_index;  /* of the next batch; 0: it has none */
static uint64_t known_lsn;   /* known_durable_lsn of the next batch */
static uint64_t members_lsn; /* of the last MEMBERS */
static uint64_t log_end;     /* of the last batch */

static inline uint64_t term_first_lsn(uint64_t term) { return round_up(term << TERM_SHIFT, SEGMENT); }

/* A segment of this term that begins there; its header is on the disk with the first batch. */
static inline void forge_segment(uint64_t term, uint64_t first_lsn, uint64_t prev_end_lsn) {
    memset(f.image, 0, sizeof f.image);
    f.first_lsn = f.header.first_lsn = first_lsn;
    f.header.epoch = term;
    f.header.prev_end_lsn = prev_end_lsn;
    f.seed = format_segment_seed(f.header.uuid, first_lsn, term);
    f.lsn = first_lsn + SEGMENT_HEADER_BYTES;
    f.bytes = BATCH_RECORD_BYTES;
    f.count = 0;
    format_segment_name(f.name, first_lsn);
    format_put_segment_header(f.image, &f.header);
    check(vfs_sim_put(sim, "/s", f.name, f.image, sizeof f.image) == 0);
}

static inline void forge_term(uint64_t term) { forge_segment(term, term_first_lsn(term), log_end); }

/* Seals the batch with what the variables say, and begins the next one. Its LSN. */
static inline uint64_t forge_next(void) {
    struct batch b = {
        .epoch = f.header.epoch,
        .count = f.count,
        .bytes = f.bytes,
        .durable_lsn = f.lsn,
        .base_lsn = base_lsn,
        .index = next_index,
        .known_durable_lsn = next_index != 0 ? known_lsn : 0,
    };
    uint64_t lsn = f.lsn;

    forge_batch(&f, &b);
    check(vfs_sim_put(sim, "/s", f.name, f.image, sizeof f.image) == 0);
    log_end = f.lsn = f.lsn + f.bytes;
    f.bytes = BATCH_RECORD_BYTES;
    f.count = 0;
    next_index += next_index != 0 ? 1 : 0;
    return lsn;
}

/* Adds a MEMBERS to the batch: an original, or a copy of the last one. */
static inline void forge_members(uint64_t index, uint16_t flags, uint64_t id, uint64_t prev) {
    struct slot s = forge_slot(&f, id, prev, flags);
    const struct members m = {.index = index, .config_bytes = 5, .config = (const uint8_t *)"1,2,3"};

    members_lsn = forge_add(&f, format_put_members(&s, &m));
}

static inline uint64_t forge_message(uint32_t queue) {
    struct slot s = forge_slot(&f, 0, 0, FLAG_PUBLISHED);
    return forge_add(&f, format_put_start(&s, 0, 0, &queue, 1, "h", 1, "con", 3));
}

/* A store with one message, closed; replication begins with term 3, whose first batch is MEMBERS. */
static inline void forge_replication(void) {
    fresh();
    (void)put(1, "before", NULL);
    forge_begin(&f);
    base_lsn = f.base_lsn;
    log_end = known_lsn = f.lsn;
    next_index = 1;
    forge_term(3);
    forge_members(1, 0, 0, 0);
    (void)forge_next();
}

#endif
