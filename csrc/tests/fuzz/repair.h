/*
 * Repairs what a fuzzer cannot guess: positions, checksums, and links to existing chains. So inputs reach the checks behind
 * these: which record may follow which, and what bodies may contain.
 *
 * The short form of a segment: epoch, prev_end_lsn, then the bytes from the first record position on; the rest is zeros.
 * The core needs no repair: an unrepaired input is read as well.
 */
#ifndef LOGSTORE_FUZZ_REPAIR_H
#define LOGSTORE_FUZZ_REPAIR_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "format/format.h"
#include "format/bytes.h"
#include "format/xxh64.h"

enum { CHAINS_MAX = 256, TOLD_BYTES = 16, BATCH_RECORDS_MAX = 255, STATE_ROWS_AT = 56 };

struct repair {
    uint64_t first_lsn;          /* of the first segment: what began below it stays as it is */
    uint64_t chains[CHAINS_MAX]; /* first LSNs of messages, a ring */
    uint64_t newest[CHAINS_MAX]; /* LSN of the chain's last record */
    uint32_t chain_count;
    uint64_t txs[CHAINS_MAX];
    uint64_t tx_newest[CHAINS_MAX];
    uint32_t tx_count;
};

static inline bool is_known_chain(const uint64_t *starts, uint32_t count, uint64_t id, uint32_t *at) {
    uint32_t n = count < CHAINS_MAX ? count : CHAINS_MAX;

    for (*at = 0; *at < n && starts[*at] != id;)
        (*at)++;
    return *at < n;
}

/* CHAINS_MAX: none. */
static inline uint32_t known_chain(const struct repair *p, const uint64_t *starts, uint32_t count, uint64_t id) {
    uint32_t n = count < CHAINS_MAX ? count : CHAINS_MAX, at;

    return is_known_chain(starts, count, id, &at)     ? at
           : n > 0 && (id == 0 || id >= p->first_lsn) ? (uint32_t)(id % n)
                                                      : CHAINS_MAX;
}

/* Sets the record's chain: its own if it is a first record, else one that has begun, perhaps below the base: then a relocated
   copy is the first that is seen of it. */
static inline void repair_links(struct repair *p, uint8_t *record, uint64_t lsn) {
    uint32_t type = get16(record + 16), stream = type >> 8;
    int copy = type == MESSAGE_START && (get16(record + 18) & FLAG_COPY) != 0;
    int first =
        (type == MESSAGE_START && !copy) || type == MESSAGE_START_PLACED || type == DTX_START || type == TX_START;
    uint64_t *starts = stream == 2 ? p->txs : p->chains, *newest = stream == 2 ? p->tx_newest : p->newest;
    uint32_t *count = stream == 2 ? &p->tx_count : &p->chain_count, at;
    uint64_t id = get64(record + 32), prev = get64(record + 40);

    if (stream != 1 && stream != 2) {
        memset(record + 32, 0, 16);
        return;
    }
    if (first) {
        at = *count % CHAINS_MAX;
        starts[at] = lsn;
        newest[at] = 0;
        (*count)++;
    } else if ((copy || type == TX_RELOCATED) && id < lsn && prev < lsn && !is_known_chain(starts, *count, id, &at)) {
        at = *count % CHAINS_MAX;
        starts[at] = id;
        newest[at] = prev;
        (*count)++;
    } else {
        at = known_chain(p, starts, *count, id);
    }
    if (at == CHAINS_MAX)
        return; /* of no known chain: as if it began below the base */
    put64(record + 32, starts[at]);
    put64(record + 40, newest[at]);
    newest[at] = lsn;
}

/* Sets the messages that the rows of PLACE_STATES name. */
static inline void repair_rows(const struct repair *p, uint8_t *record, uint32_t length) {
    for (uint32_t at = STATE_ROWS_AT; at + STATE_ROW_BYTES <= length; at += STATE_ROW_BYTES) {
        uint32_t chain = known_chain(p, p->chains, p->chain_count, get64(record + at));

        if (chain != CHAINS_MAX)
            put64(record + at, p->chains[chain]);
    }
}

/* Sets the transaction that an operation names, if there is one. */
static inline void repair_work(const struct repair *p, uint8_t *record) {
    uint32_t type = get16(record + 16), at = known_chain(p, p->txs, p->tx_count, get64(record + 48));
    int names_one = type == MESSAGE_START || type == MESSAGE_ENQUEUE || type == MESSAGE_DEQUEUE ||
                    type == MESSAGE_START_PLACED || type == MESSAGE_PLACE || type == MESSAGE_MOVE;

    if (type == MESSAGE_START && (get16(record + 18) & FLAG_COPY) != 0)
        return;
    if (names_one && get64(record + 48) != 0 && at != CHAINS_MAX)
        put64(record + 48, p->txs[at]);
}

static inline void seal(uint8_t *record, uint32_t length, uint64_t seed) {
    put32(record + 12, length);
    put32(record + 8, (uint32_t)xxh64(record + 12, 36, seed));
    put64(record, xxh64(record + 8, length - 8, seed));
}

/* Repairs one record of a batch; returns its length, or 0 if there is no room for one. */
static inline uint32_t repair_record(struct repair *p, uint8_t *record, uint32_t room, uint64_t lsn, uint64_t seed) {
    uint32_t length = room < RECORD_HEADER_BYTES ? 0 : get32(record + 12) / 8 * 8;

    if (length == 0)
        return 0;
    if (length < RECORD_HEADER_BYTES)
        length = RECORD_HEADER_BYTES;
    if (length > room)
        length = room / 8 * 8;
    put32(record + 20, 0);
    put64(record + 24, lsn);
    repair_links(p, record, lsn);
    if (get16(record + 16) == PLACE_STATES)
        repair_rows(p, record, length);
    else if (length >= RECORD_HEADER_BYTES + 8)
        repair_work(p, record);
    seal(record, length, seed);
    return length;
}

/* Repairs batch after batch up to `end`, each with the number of records in its count. */
static inline void repair_records(struct repair *p, uint8_t *segment, uint32_t end, uint64_t first_lsn, uint64_t epoch,
                                  uint64_t seed, uint64_t segment_size) {
    uint32_t at = SEGMENT_HEADER_BYTES, most = format_batch_bytes_max(segment_size);

    while (at + BATCH_RECORD_BYTES <= end && get16(segment + at + 16) == BATCH) {
        uint8_t *batch = segment + at;
        uint32_t bytes = BATCH_RECORD_BYTES, count = 0, wanted = get32(batch + 56) % (BATCH_RECORDS_MAX + 1);

        while (count < wanted) {
            uint32_t room = end - at - bytes < most - bytes ? end - at - bytes : most - bytes;
            uint32_t length = repair_record(p, batch + bytes, room, first_lsn + at + bytes, seed);

            if (length == 0)
                break;
            bytes += length;
            count++;
        }
        put16(batch + 18, 0);
        put32(batch + 20, 0);
        put64(batch + 24, first_lsn + at);
        memset(batch + 32, 0, 16);
        put64(batch + 48, epoch);
        put32(batch + 56, count);
        put32(batch + 60, bytes);
        if (get64(batch + 64) == 0 || get64(batch + 64) > first_lsn + at)
            put64(batch + 64, first_lsn + at);
        if (get64(batch + 72) == 0 || get64(batch + 72) % segment_size != 0 || get64(batch + 72) > first_lsn)
            put64(batch + 72, first_lsn);
        seal(batch, BATCH_RECORD_BYTES, seed);
        at += bytes;
    }
}

/* Expands the short form to a file of segment_size bytes in `segment`, which is zero before. */
static inline void tell_segment(struct repair *p, const uint8_t uuid[UUID_BYTES], uint64_t segment_size,
                                uint64_t first_lsn, const uint8_t *told, size_t bytes, int repaired, uint8_t *segment) {
    struct segment_header h = {.segment_size = segment_size, .first_lsn = first_lsn, .created_us = 1};
    size_t room = (size_t)segment_size - SEGMENT_HEADER_BYTES;

    if (bytes < TOLD_BYTES)
        return;
    p->first_lsn = p->first_lsn == 0 ? first_lsn : p->first_lsn;
    memcpy(h.uuid, uuid, UUID_BYTES);
    h.epoch = get64(told);
    h.prev_end_lsn = get64(told + 8);
    bytes -= TOLD_BYTES;
    bytes = bytes < room ? bytes : room;
    memcpy(segment + SEGMENT_HEADER_BYTES, told + TOLD_BYTES, bytes);
    format_put_segment_header(segment, &h);
    if (repaired)
        repair_records(p, segment, SEGMENT_HEADER_BYTES + (uint32_t)bytes, first_lsn, h.epoch,
                       format_segment_seed(uuid, first_lsn, h.epoch), segment_size);
}

#endif
