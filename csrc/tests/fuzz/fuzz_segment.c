/*
 * Reads any bytes as a store's only segment. The reader gives records that follow the rules of docs/format.md, or reports
 * where the log is damaged. It never reads beyond the file, never fails an assertion, and gives the same result again.
 *
 * The first byte chooses how the others are read: as the file, or as a short form of a segment (repair.h), with or without
 * repaired checksums. tools/fuzz.py builds and runs it; csrc/tests/unit/test_fuzz_segment.c replays the stored inputs.
 */
#include "logstore.h"
#include "tests/fuzz/repair.h"
#include "tests/sim/vfs_sim.h"

enum { SEGMENT_RAW = 2, SEGMENT_REPAIRED = 1 };
enum { SEGMENT_BYTES = 64 << 10 };

static const uint8_t segment_uuid[UUID_BYTES] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

static void require(int holds) {
    if (!holds) {
        abort();
    }
}

/* Decodes every record again: the reader must have verified them. */
static uint64_t check_batch(const ls_batch *b) {
    uint64_t seed = format_segment_seed(segment_uuid, b->first_lsn, b->epoch), all = b->lsn;
    uint32_t at = 0;
    struct record r;
    require(b->size <= format_batch_bytes_max(SEGMENT_BYTES) && b->lsn % 8 == 0);
    require(b->lsn >= b->first_lsn + SEGMENT_HEADER_BYTES && b->lsn + b->size <= b->first_lsn + SEGMENT_BYTES);
    while (at < b->size) {
        require(format_get_record(b->bytes + at, b->size - at, seed, b->lsn + at, &r) == FORMAT_OK);
        require((r.type == BATCH) == (at == 0));
        all = all * 31 + xxh64(r.bytes, r.length, 0);
        at += r.length;
    }
    require(at == b->size);
    return all;
}

static uint64_t walk(vfs_sim *sim, int *ended) {
    ls_reader *reader = NULL;
    ls_reader_info info;
    ls_batch b;
    uint64_t all = 0, end_lsn = 0;
    int rc = *ended = ls_reader_open(vfs_sim_table(sim), "/s", 0, &reader);
    if (rc != LS_OK) {
        require(rc == LS_CORRUPT || rc == LS_VERSION);
        return (uint64_t)rc;
    }
    ls_reader_describe(reader, &info);
    while ((rc = ls_reader_next(reader, &b)) == LS_OK) {
        require(b.lsn >= end_lsn);
        end_lsn = b.lsn + b.size;
        all = all * 31 + check_batch(&b);
    }
    *ended = rc;
    require(rc == LS_END || rc == LS_CORRUPT || rc == LS_VERSION);
    require(end_lsn <= info.end_lsn && (rc != LS_END || end_lsn == 0 || end_lsn == info.end_lsn));
    ls_reader_close(reader);
    return all * 31 + (uint64_t)rc;
}

/* A permissive reader gives intact batches in order, at least those that a strict reader gives, and lists the gaps. */
static uint64_t walk_permissively(vfs_sim *sim) {
    ls_reader *reader = NULL;
    ls_lsn_range missing[4];
    ls_batch b;
    uint64_t all = 0, end_lsn = 0;
    size_t n = 0;
    int rc = ls_reader_open_permissive(vfs_sim_table(sim), "/s", 0, 0, &reader);
    if (rc != LS_OK) {
        require(rc == LS_CORRUPT || rc == LS_VERSION);
        return (uint64_t)rc;
    }
    while ((rc = ls_reader_next(reader, &b)) == LS_OK) {
        require(b.lsn >= end_lsn);
        end_lsn = b.lsn + b.size;
        all = all * 31 + check_batch(&b);
    }
    require(rc == LS_END || rc == LS_VERSION);
    require(ls_reader_missing(reader, missing, 4, &n) == LS_OK && n <= 2);
    for (size_t i = 0; i < n; i++) {
        require(missing[i].first_lsn < missing[i].end_lsn &&
                (i == 0 || missing[i].first_lsn >= missing[i - 1].end_lsn));
    }
    ls_reader_close(reader);
    return all * 31 + (uint64_t)rc;
}

static void put(vfs_sim *sim, const char *name, const uint8_t *bytes, size_t n) {
    require(vfs_sim_put(sim, "/s", name, bytes, n) == 0);
}

static vfs_sim *disk_of(const uint8_t *data, size_t bytes, uint8_t switches) {
    static uint8_t meta_bytes[META_BYTES], segment[SEGMENT_BYTES];
    struct meta meta = {.segment_size = SEGMENT_BYTES, .max_undurable_bytes = 2 * SEGMENT_BYTES};
    vfs_sim *sim = vfs_sim_new();
    require(sim != NULL && vfs_sim_record(sim, 0) == 0);
    memcpy(meta.uuid, segment_uuid, UUID_BYTES);
    format_put_meta(meta_bytes, &meta);
    put(sim, "META", meta_bytes, sizeof meta_bytes);
    if ((switches & SEGMENT_RAW) != 0) {
        put(sim, "0000000000010000.seg", data, bytes < SEGMENT_BYTES ? bytes : SEGMENT_BYTES);
    } else {
        struct repair *p = calloc(1, sizeof *p);
        require(p != NULL);
        memset(segment, 0, sizeof segment);
        tell_segment(p, segment_uuid, SEGMENT_BYTES, SEGMENT_BYTES, data, bytes, switches & SEGMENT_REPAIRED, segment);
        put(sim, "0000000000010000.seg", segment, sizeof segment);
        free(p);
    }
    return sim;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < 1) {
        return 0;
    }
    vfs_sim *sim = disk_of(data + 1, bytes - 1, data[0]);
    int ended;
    uint64_t changes = vfs_sim_changes(sim), first = walk(sim, &ended);
    require(walk(sim, &ended) == first);
    uint64_t rest = walk_permissively(sim);
    require(ended != LS_END || rest == first);
    require(vfs_sim_changes(sim) == changes && vfs_sim_handles(sim) == 0);
    vfs_sim_free(sim);
    return 0;
}
