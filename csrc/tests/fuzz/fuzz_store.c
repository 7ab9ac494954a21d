/*
 * Opens any bytes as a whole store directory: META, HINT, and segments under any names. The open succeeds, or fails with a
 * typed error and writes nothing. A store that opens is read completely, changed, closed and opened again, and has the same
 * state. No assertion fails, nothing leaks, and no allocation exceeds the limit that tools/fuzz.py sets.
 *
 * Byte 0: whether checksums are repaired, and whether there is a META. Byte 1: the segment size, and the queue that the
 * catalog no longer has. Then files: what it is (a segment's position, or one of FILE_*), its length, and its bytes, for
 * segments as in repair.h. tools/fuzz.py builds and runs it; csrc/tests/unit/test_fuzz_store.c replays the stored inputs.
 */
#include "tests/fuzz/repair.h"
#include "tests/fuzz/whole_store.h"

enum { STORE_REPAIRED = 1, STORE_WITHOUT_META = 2 };
enum { FILE_META = 255, FILE_META_NEW = 254, FILE_HINT = 253 };
enum { FILES_TOLD_MAX = 12, DISK_BYTES = 16 << 20 };

static const uint8_t store_uuid[UUID_BYTES] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

/* ---- the directory ---- */

static void put(vfs_sim *sim, const char *name, const uint8_t *bytes, size_t n) {
    require(vfs_sim_put(sim, "/s", name, bytes, n) == 0);
}

static void put_segment(vfs_sim *sim, struct repair *p, uint64_t segment_size, uint8_t place, const uint8_t *told,
                        size_t bytes, int repaired) {
    char name[SEGMENT_NAME_BYTES];
    uint64_t first_lsn = (place + (uint64_t)1) * segment_size;
    uint8_t *segment = calloc(1, (size_t)segment_size);
    require(segment != NULL);
    format_segment_name(name, first_lsn);
    tell_segment(p, store_uuid, segment_size, first_lsn, told, bytes, repaired, segment);
    put(sim, name, segment, (size_t)segment_size);
    free(segment);
}

static void put_meta(vfs_sim *sim, uint64_t segment_size, uint8_t switches) {
    static uint8_t bytes[META_BYTES];
    struct meta meta = {
        .segment_size = segment_size, .max_undurable_bytes = 2 * segment_size << (switches >> 4), .created_us = 1};
    memcpy(meta.uuid, store_uuid, UUID_BYTES);
    format_put_meta(bytes, &meta);
    put(sim, "META", bytes, sizeof bytes);
}

static vfs_sim *directory_of(const uint8_t *data, size_t bytes) {
    uint8_t switches = data[0];
    uint64_t segment_size = SEGMENT_BYTES_MIN << (data[1] & 1);
    struct repair *p = calloc(1, sizeof *p);
    vfs_sim *sim = vfs_sim_new();
    require(sim != NULL && p != NULL && vfs_sim_record(sim, 0) == 0);
    vfs_sim_capacity(sim, DISK_BYTES);
    if ((switches & STORE_WITHOUT_META) == 0) {
        put_meta(sim, segment_size, switches);
    }
    data += 2;
    bytes -= 2;
    for (int i = 0; i < FILES_TOLD_MAX && bytes >= 3; i++) {
        size_t n = get16(data + 1);
        uint8_t what = data[0];
        data += 3;
        bytes -= 3;
        n = n < bytes ? n : bytes;
        if (what >= FILE_HINT) {
            put(sim, what == FILE_META ? "META" : what == FILE_HINT ? "HINT" : "META.new", data, n);
        } else {
            put_segment(sim, p, segment_size, what, data, n, switches & STORE_REPAIRED);
        }
        data += n;
        bytes -= n;
    }
    free(p);
    return sim;
}

/* Of the first place of each queue, as far as the store takes it. */
static void put_notes(ls_store *store, uint32_t deleted) {
    for (uint32_t q = 1; q <= QUEUES; q++) {
        ls_cursor *cursor;
        ls_place place;
        size_t n = 0;
        uint64_t lsn;
        if (q == deleted) {
            continue;
        }
        require(ls_cursor_open(store, q, LS_CURSOR_ALL, &cursor) == LS_OK);
        require(ls_cursor_next(cursor, &place, 1, &n) == LS_OK);
        ls_cursor_close(cursor);
        if (n > 0) {
            (void)ls_annotate(store, place.id, q, (const uint8_t *)"note", 4, NULL, 0, &lsn);
        }
    }
}

/* Whether the open that serves the store began the last epoch that there can be: every later one refuses. */
static bool is_last_epoch(ls_store *store) {
    ls_recovery report;
    ls_recovery_report(store, &report);
    return report.epoch == UINT64_MAX;
}

static void check_refusal(int rc) {
    require(rc == LS_CORRUPT || rc == LS_VERSION || rc == LS_NOT_A_STORE || rc == LS_CATALOG_MISMATCH ||
            rc == LS_FULL || rc == LS_IO);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < 2) {
        return 0;
    }
    vfs_sim *sim = directory_of(data, bytes);
    ls_store *store = NULL;
    uint32_t deleted = data[1] >> 1 & 7;
    int rc = open_and_serve(sim, deleted, &store);
    if (rc == LS_OK) {
        const uint32_t queue = 8;
        uint64_t id;
        (void)ls_publish(store, &queue, 1, NULL, 0, (const uint8_t *)"after", 5, NULL, LS_WAIT, &id);
        put_notes(store, deleted);
        (void)move_base(store);
        uint64_t before = read_store(store, deleted);
        bool last_epoch = is_last_epoch(store);
        int closed = ls_close(store);
        ls_free(store);
        rc = open_and_serve(sim, deleted, &store);
        require(rc == LS_OK || closed != LS_OK || rc == LS_FULL || (last_epoch && rc == LS_CORRUPT));
        require(rc != LS_OK || read_store(store, deleted) == before);
        ls_free(store);
    } else {
        check_refusal(rc);
    }
    require(vfs_sim_handles(sim) == 0);
    vfs_sim_free(sim);
    return 0;
}
