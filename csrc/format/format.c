/* The layout of docs/format.md, version 1: sizes, names, and what is no record. See format.h. */
#include "format/format.h"

#include <string.h>

#include "format/bytes.h"
#include "format/xxh64.h"

const char *format_result_text(enum format_result result) {
    switch (result) {
    case FORMAT_OK:
        return "valid";
    case FORMAT_SHORT:
        return "the file ends before it";
    case FORMAT_MAGIC:
        return "its magic is wrong";
    case FORMAT_NEWER:
        return "it is of a newer format version";
    case FORMAT_CHECK:
        return "its checksum differs";
    case FORMAT_PLACE:
        return "it belongs to another place, epoch or store";
    case FORMAT_MALFORMED:
        return "its checksum is right but its contents are impossible";
    }
    return "unknown";
}

/* ---- sizes and names ------------------------------------------------------------------------------------- */

uint64_t format_segment_seed(const uint8_t uuid[UUID_BYTES], uint64_t first_lsn, uint64_t epoch) {
    uint8_t from[UUID_BYTES + 16];
    memcpy(from, uuid, UUID_BYTES);
    put64(from + 16, first_lsn);
    put64(from + 24, epoch);
    return xxh64(from, sizeof from, 0);
}

uint32_t format_record_bytes_max(uint64_t segment_size) {
    uint64_t limit = segment_size / 16;
    return (uint32_t)(limit < (1u << 20) ? limit & ~(uint64_t)7 : 1u << 20);
}

uint32_t format_batch_bytes_max(uint64_t segment_size) {
    uint64_t limit = segment_size / 8;
    return (uint32_t)(limit < (2u << 20) ? limit & ~(uint64_t)7 : 2u << 20);
}

void format_segment_name(char into[SEGMENT_NAME_BYTES], uint64_t first_lsn) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++) {
        into[i] = digits[(first_lsn >> (60 - 4 * i)) & 15];
    }
    memcpy(into + 16, ".seg", 5);
}

bool format_parse_segment_name(const char *name, uint64_t *first_lsn) {
    uint64_t value = 0;
    for (int i = 0; i < 16; i++) {
        char c = name[i];
        if (c >= '0' && c <= '9') {
            value = value << 4 | (uint64_t)(c - '0');
        } else if (c >= 'a' && c <= 'f') {
            value = value << 4 | (uint64_t)(c - 'a' + 10);
        } else {
            return false;
        }
    }
    *first_lsn = value;
    return strcmp(name + 16, ".seg") == 0;
}

/* ---- whole files and blocks ------------------------------------------------------------------------------ */

uint64_t format_record_checksum(const uint8_t header[RECORD_HEADER_BYTES]) { return get64(header); }

/* The preamble that all of them share: magic, version, size, UUID. */
static void put_preamble(uint8_t *into, const char *magic, uint32_t bytes, const uint8_t uuid[UUID_BYTES]) {
    memset(into, 0, bytes);
    memcpy(into, magic, 8);
    put32(into + 8, FORMAT_VERSION);
    put32(into + 12, bytes);
    memcpy(into + 16, uuid, UUID_BYTES);
}

/* What is judged before the checksum: a later version may compute it differently. */
static enum format_result get_preamble(const uint8_t *from, size_t available, const char *magic, uint32_t bytes) {
    if (available < 12) {
        return FORMAT_SHORT;
    }
    if (memcmp(from, magic, 8) != 0) {
        return FORMAT_MAGIC;
    }
    if (get32(from + 8) > FORMAT_VERSION) {
        return FORMAT_NEWER;
    }
    return available < bytes ? FORMAT_SHORT : FORMAT_OK;
}

/* What is judged once the checksum is right: the rest of the preamble, and that what is not used is zero. */
static enum format_result judge(const uint8_t *from, uint32_t bytes, uint32_t used_bytes, bool possible) {
    bool sized = get32(from + 8) == FORMAT_VERSION && get32(from + 12) == bytes;
    bool clean = all_zero(from + used_bytes, bytes - 8 - used_bytes);
    return possible && sized && clean ? FORMAT_OK : FORMAT_MALFORMED;
}

static bool is_segment_size(uint64_t bytes) {
    return bytes >= SEGMENT_BYTES_MIN && bytes <= SEGMENT_BYTES_MAX && bytes % BLOCK_BYTES == 0;
}

void format_put_segment_header(uint8_t *into, const struct segment_header *h) {
    put_preamble(into, "LOGSTORE", SEGMENT_HEADER_BYTES, h->uuid);
    put64(into + 32, h->segment_size);
    put64(into + 40, h->first_lsn);
    put64(into + 48, h->epoch);
    put64(into + 56, h->prev_end_lsn);
    put64(into + 64, h->created_us);
    put64(into + 4088, xxh64(into, 4088, format_segment_seed(h->uuid, h->first_lsn, h->epoch)));
}

enum format_result format_get_segment_header(const uint8_t *from, size_t available, const uint8_t uuid[UUID_BYTES],
                                             uint64_t segment_size, uint64_t first_lsn, struct segment_header *h) {
    enum format_result result = get_preamble(from, available, "LOGSTORE", SEGMENT_HEADER_BYTES);
    if (result != FORMAT_OK) {
        return result;
    }
    memcpy(h->uuid, from + 16, UUID_BYTES);
    h->segment_size = get64(from + 32);
    h->first_lsn = get64(from + 40);
    h->epoch = get64(from + 48);
    h->prev_end_lsn = get64(from + 56);
    h->created_us = get64(from + 64);
    if (get64(from + 4088) != xxh64(from, 4088, format_segment_seed(h->uuid, h->first_lsn, h->epoch))) {
        return FORMAT_CHECK;
    }
    if (memcmp(h->uuid, uuid, UUID_BYTES) != 0 || h->segment_size != segment_size || h->first_lsn != first_lsn) {
        return FORMAT_PLACE;
    }
    bool placed = is_segment_size(segment_size) && is_lsn(first_lsn) && first_lsn % segment_size == 0 &&
                  first_lsn - 1 <= LSN_MAX - segment_size;
    return judge(from, SEGMENT_HEADER_BYTES, 72, placed && h->epoch > 0 && h->prev_end_lsn <= first_lsn);
}

void format_put_meta(uint8_t *into, const struct meta *m) {
    put_preamble(into, "LSTRMETA", META_BYTES, m->uuid);
    put64(into + 32, m->segment_size);
    put64(into + 40, m->max_undurable_bytes);
    put64(into + 48, m->created_us);
    put64(into + 4088, xxh64(into, 4088, 0));
}

enum format_result format_get_meta(const uint8_t *from, size_t available, struct meta *m) {
    enum format_result result = get_preamble(from, available, "LSTRMETA", META_BYTES);
    if (result != FORMAT_OK) {
        return result;
    }
    if (get64(from + 4088) != xxh64(from, 4088, 0)) {
        return FORMAT_CHECK;
    }
    memcpy(m->uuid, from + 16, UUID_BYTES);
    m->segment_size = get64(from + 32);
    m->max_undurable_bytes = get64(from + 40);
    m->created_us = get64(from + 48);
    bool bounded = m->max_undurable_bytes >= 2 * m->segment_size && m->max_undurable_bytes <= LSN_MAX / 4;
    return judge(from, META_BYTES, 56, is_segment_size(m->segment_size) && bounded);
}

void format_put_hint(uint8_t *into, const struct hint *h) {
    put_preamble(into, "LSTRHINT", HINT_BYTES, h->uuid);
    put64(into + 32, h->epoch);
    put64(into + 40, h->durable_lsn);
    put64(into + 48, h->base_lsn);
    put64(into + 56, xxh64(into, 56, 0));
}

enum format_result format_get_hint(const uint8_t *from, size_t available, struct hint *h) {
    enum format_result result = get_preamble(from, available, "LSTRHINT", HINT_BYTES);
    if (result != FORMAT_OK) {
        return result;
    }
    if (get64(from + 56) != xxh64(from, 56, 0)) {
        return FORMAT_CHECK;
    }
    memcpy(h->uuid, from + 16, UUID_BYTES);
    h->epoch = get64(from + 32);
    h->durable_lsn = get64(from + 40);
    h->base_lsn = get64(from + 48);
    return judge(from, HINT_BYTES, 56, h->epoch > 0 && is_lsn(h->durable_lsn) && is_lsn(h->base_lsn));
}

void format_put_closed(uint8_t *into, const struct closed *c) {
    put_preamble(into, "LSTRCLSD", CLOSED_BYTES, c->uuid);
    put64(into + 32, c->epoch);
    put64(into + 40, c->end_lsn);
    put64(into + 48, c->closed_us);
    put64(into + 56, xxh64(into, 56, 0));
}

enum format_result format_get_closed(const uint8_t *from, size_t available, struct closed *c) {
    enum format_result result = get_preamble(from, available, "LSTRCLSD", CLOSED_BYTES);
    if (result != FORMAT_OK) {
        return result;
    }
    if (get64(from + 56) != xxh64(from, 56, 0)) {
        return FORMAT_CHECK;
    }
    memcpy(c->uuid, from + 16, UUID_BYTES);
    c->epoch = get64(from + 32);
    c->end_lsn = get64(from + 40);
    c->closed_us = get64(from + 48);
    return judge(from, CLOSED_BYTES, 56, c->epoch > 0 && is_lsn(c->end_lsn));
}

void format_put_hold(uint8_t *into, const struct hold *h) {
    put_preamble(into, "LSTRHOLD", HOLD_BYTES, h->uuid);
    put64(into + 32, h->hold_lsn);
    put64(into + 40, h->limit_bytes);
    put64(into + 48, h->expires_us);
    put64(into + 56, h->created_us);
    put64(into + 248, xxh64(into, 248, 0));
}

enum format_result format_get_hold(const uint8_t *from, size_t available, struct hold *h) {
    enum format_result result = get_preamble(from, available, "LSTRHOLD", HOLD_BYTES);
    if (result != FORMAT_OK) {
        return result;
    }
    if (get64(from + 248) != xxh64(from, 248, 0)) {
        return FORMAT_CHECK;
    }
    memcpy(h->uuid, from + 16, UUID_BYTES);
    h->hold_lsn = get64(from + 32);
    h->limit_bytes = get64(from + 40);
    h->expires_us = get64(from + 48);
    h->created_us = get64(from + 56);
    return judge(from, HOLD_BYTES, 64, is_lsn(h->hold_lsn));
}
