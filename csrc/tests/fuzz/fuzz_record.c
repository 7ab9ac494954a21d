/*
 * Decodes any bytes as a record and as each header and file of the format: no byte beyond them is read, and accepted bytes
 * encode to the same bytes again. Checksums are repaired first, because no random input would pass them; for half of the
 * inputs also the record header's length, position and links, so that bodies are reached.
 *
 * tools/fuzz.py builds and runs it; csrc/tests/unit/test_fuzz_record.c replays the stored inputs.
 */
#include <stdlib.h>
#include <string.h>

#include "format/format.h"
#include "format/bytes.h"
#include "logstore.h"
#include "tests/sim/testing.h"
#include "format/xxh64.h"

enum { SEED = 12345, FILES = 4 };

/* The bits of the first byte choose how the others are read. */
enum { MAKE_PLAUSIBLE = 1, AS_FILE = 2 };

static const size_t file_bytes[FILES] = {SEGMENT_HEADER_BYTES, META_BYTES, HINT_BYTES, HOLD_BYTES};
static const char *const file_magic[FILES] = {"LOGSTORE", "LSTRMETA", "LSTRHINT", "LSTRHOLD"};

static void require(int holds) {
    if (!holds) {
        abort();
    }
}

/* A copy without slack, so that the address sanitizer detects a read of the first byte after it. */
static uint8_t *exact_copy(const uint8_t *data, size_t bytes) {
    uint8_t *copy = malloc(bytes > 0 ? bytes : 1);
    require(copy != NULL);
    if (bytes > 0) {
        memcpy(copy, data, bytes);
    }
    return copy;
}

static void make_header_plausible(uint8_t *record, size_t bytes) {
    uint64_t lsn = 1 << 20;
    uint32_t type = get16(record + 16);
    int housekeeping = type >> 8 == 3;
    int copy = (type == MESSAGE_START) && (get16(record + 18) & 1) != 0;
    int first =
        (type == MESSAGE_START && !copy) || type == MESSAGE_START_PLACED || type == DTX_START || type == TX_START;
    put32(record + 12, (uint32_t)bytes);
    put32(record + 20, 0);
    put64(record + 24, lsn);
    put64(record + 32, housekeeping ? 0 : first ? lsn : 4096);
    put64(record + 40, housekeeping || first ? 0 : 4096);
}

/* Encodes the decoded record again and compares; skips types that this version does not know. */
static void compare_with_encoded(ls_test_record *found, const uint8_t *record) {
    if ((found->type & TYPE_SKIPPABLE) != 0) {
        return;
    }
    uint32_t length = found->length;
    size_t room = length > FOOTER_BYTES_MAX ? length : FOOTER_BYTES_MAX;
    uint8_t *again = malloc(room);
    require(again != NULL);
    require(ls_test_encode(found, SEED, again, room) == length);
    require(memcmp(again, record, length) == 0);
    free(again);
}

static void try_record(const uint8_t *data, size_t bytes, uint8_t switches) {
    uint8_t *record = exact_copy(data, bytes);
    if (bytes >= RECORD_HEADER_BYTES && (switches & MAKE_PLAUSIBLE) != 0) {
        make_header_plausible(record, bytes);
    }
    uint64_t lsn = 0;
    if (bytes >= RECORD_HEADER_BYTES) {
        lsn = get64(record + 24);
        uint32_t length = get32(record + 12);
        put32(record + 8, (uint32_t)xxh64(record + 12, 36, SEED));
        if (length >= RECORD_HEADER_BYTES && length <= bytes) {
            put64(record, xxh64(record + 8, length - 8, SEED));
        }
    }
    uint64_t *cells = calloc(bytes / 4 + 1, sizeof *cells);
    require(cells != NULL);
    ls_test_record found;
    if (ls_test_decode(record, bytes, SEED, lsn, cells, &found) == LS_TEST_VALID) {
        compare_with_encoded(&found, record);
    }
    uint64_t epoch;
    (void)format_peek_batch(record, bytes, lsn, &epoch);
    free(cells);
    free(record);
}

static void try_file(const uint8_t *data, size_t bytes, uint8_t switches) {
    int what = switches >> 2 & 3;
    size_t size = file_bytes[what];
    uint8_t *file = exact_copy(data, bytes);
    uint8_t uuid[UUID_BYTES] = {0};
    uint64_t numbers[5] = {0};
    if (bytes >= size) {
        uint64_t seed = 0;
        if ((switches & MAKE_PLAUSIBLE) != 0) {
            memcpy(file, file_magic[what], 8);
            put32(file + 8, FORMAT_VERSION);
            put32(file + 12, (uint32_t)size);
        }
        memcpy(uuid, file + 16, UUID_BYTES);
        if (what == LS_TEST_SEGMENT_HEADER) {
            numbers[0] = get64(file + 32);
            numbers[1] = get64(file + 40);
            seed = format_segment_seed(uuid, numbers[1], get64(file + 48));
        }
        put64(file + size - 8, xxh64(file, size - 8, seed));
    }
    if (ls_test_decode_file(what, file, bytes, uuid, numbers) == LS_TEST_VALID) {
        uint8_t again[SEGMENT_HEADER_BYTES];
        require(ls_test_encode_file(what, uuid, numbers, again) == size);
        require(memcmp(again, file, size) == 0);
    }
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < 1) {
        return 0;
    }
    uint8_t switches = data[0];
    if ((switches & AS_FILE) != 0) {
        try_file(data + 1, bytes - 1, switches);
    } else {
        try_record(data + 1, bytes - 1, switches);
    }
    return 0;
}
