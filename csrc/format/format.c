/* Sizes, names, and the files and blocks of docs/format.md that are no records. See format.h. */
#include "format/format.h"

#include <string.h>

#include "format/fields.h"
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

const struct format_type format_types[TYPES_KNOWN] = {
#define RECORD(type, code, link, flags, bytes) \
    [(((code) >> 8) - 1) * TYPES_PER_STREAM + ((code)&255) - 1] = {code, #type},
#include "format/layout.def"
};

const char *format_type_name(uint16_t type) {
    uint32_t at = format_type_ordinal(type);
    return at < TYPES_KNOWN && format_types[at].type == type ? format_types[at].name : NULL;
}

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

uint64_t format_record_checksum(const uint8_t header[RECORD_HEADER_BYTES]) {
    return GET(header, RECORD_HEADER, checksum);
}

/*
 * All of them share a preamble.
 *  0       8                12      16     32
 *  | magic | format_version | bytes | uuid |
 */
static void put_preamble(uint8_t *into, const char *magic, uint32_t bytes, const uint8_t uuid[UUID_BYTES]) {
    memset(into, 0, bytes);
    memcpy(into, magic, 8);
    PUT(into, PREAMBLE, format_version, FORMAT_VERSION);
    PUT(into, PREAMBLE, bytes, bytes);
    memcpy(into + AT(PREAMBLE, uuid), uuid, UUID_BYTES);
}

/* Checked before the checksum, which a later version may compute differently. */
static enum format_result get_preamble(const uint8_t *from, size_t available, const char *magic, uint32_t bytes) {
    if (available < 12) {
        return FORMAT_SHORT;
    }
    if (memcmp(from, magic, 8) != 0) {
        return FORMAT_MAGIC;
    }
    if (GET(from, PREAMBLE, format_version) > FORMAT_VERSION) {
        return FORMAT_NEWER;
    }
    return available < bytes ? FORMAT_SHORT : FORMAT_OK;
}

/* Checked after the checksum: the rest of the preamble, and that unused bytes are zero. */
static enum format_result judge(const uint8_t *from, uint32_t bytes, uint32_t used_bytes, bool possible) {
    bool sized = GET(from, PREAMBLE, format_version) == FORMAT_VERSION && GET(from, PREAMBLE, bytes) == bytes;
    bool clean = all_zero(from + used_bytes, bytes - 8 - used_bytes);
    return possible && sized && clean ? FORMAT_OK : FORMAT_MALFORMED;
}

static bool is_segment_size(uint64_t bytes) {
    return bytes >= SEGMENT_BYTES_MIN && bytes <= SEGMENT_BYTES_MAX && bytes % BLOCK_BYTES == 0;
}

/*
 *  0          32             40          48      56             64           72  4088       4096
 *  | preamble | segment_size | first_lsn | epoch | prev_end_lsn | created_us | 0 | checksum |
 */
void format_put_segment_header(uint8_t *into, const struct segment_header *h) {
    put_preamble(into, "LOGSTORE", SEGMENT_HEADER_BYTES, h->uuid);
    PUT(into, SEGMENT_HEADER, segment_size, h->segment_size);
    PUT(into, SEGMENT_HEADER, first_lsn, h->first_lsn);
    PUT(into, SEGMENT_HEADER, epoch, h->epoch);
    PUT(into, SEGMENT_HEADER, prev_end_lsn, h->prev_end_lsn);
    PUT(into, SEGMENT_HEADER, created_us, h->created_us);
    PUT(into, SEGMENT_HEADER, checksum,
        xxh64(into, AT(SEGMENT_HEADER, checksum), format_segment_seed(h->uuid, h->first_lsn, h->epoch)));
}

enum format_result format_get_segment_header(const uint8_t *from, size_t available, const uint8_t uuid[UUID_BYTES],
                                             uint64_t segment_size, uint64_t first_lsn, struct segment_header *h) {
    enum format_result result = get_preamble(from, available, "LOGSTORE", SEGMENT_HEADER_BYTES);
    if (result != FORMAT_OK) {
        return result;
    }
    memcpy(h->uuid, from + AT(PREAMBLE, uuid), UUID_BYTES);
    h->segment_size = GET(from, SEGMENT_HEADER, segment_size);
    h->first_lsn = GET(from, SEGMENT_HEADER, first_lsn);
    h->epoch = GET(from, SEGMENT_HEADER, epoch);
    h->prev_end_lsn = GET(from, SEGMENT_HEADER, prev_end_lsn);
    h->created_us = GET(from, SEGMENT_HEADER, created_us);
    if (GET(from, SEGMENT_HEADER, checksum) !=
        xxh64(from, AT(SEGMENT_HEADER, checksum), format_segment_seed(h->uuid, h->first_lsn, h->epoch))) {
        return FORMAT_CHECK;
    }
    if (memcmp(h->uuid, uuid, UUID_BYTES) != 0 || h->segment_size != segment_size) {
        return FORMAT_PLACE;
    }
    bool possible = is_segment_size(segment_size) && is_lsn(h->first_lsn) && h->first_lsn % segment_size == 0 &&
                    h->first_lsn - 1 <= LSN_MAX - segment_size && h->epoch > 0 && h->prev_end_lsn <= h->first_lsn;
    result = judge(from, SEGMENT_HEADER_BYTES, AT(SEGMENT_HEADER, zero), possible);
    return result == FORMAT_OK && h->first_lsn != first_lsn ? FORMAT_PLACE : result;
}

/*
 *  0          32             40                    48           56  4088       4096
 *  | preamble | segment_size | max_undurable_bytes | created_us | 0 | checksum |
 */
void format_put_meta(uint8_t *into, const struct meta *m) {
    put_preamble(into, "LSTRMETA", META_BYTES, m->uuid);
    PUT(into, META, segment_size, m->segment_size);
    PUT(into, META, max_undurable_bytes, m->max_undurable_bytes);
    PUT(into, META, created_us, m->created_us);
    PUT(into, META, checksum, xxh64(into, AT(META, checksum), 0));
}

enum format_result format_get_meta(const uint8_t *from, size_t available, struct meta *m) {
    enum format_result result = get_preamble(from, available, "LSTRMETA", META_BYTES);
    if (result != FORMAT_OK) {
        return result;
    }
    if (GET(from, META, checksum) != xxh64(from, AT(META, checksum), 0)) {
        return FORMAT_CHECK;
    }
    memcpy(m->uuid, from + AT(PREAMBLE, uuid), UUID_BYTES);
    m->segment_size = GET(from, META, segment_size);
    m->max_undurable_bytes = GET(from, META, max_undurable_bytes);
    m->created_us = GET(from, META, created_us);
    bool bounded = m->max_undurable_bytes >= 2 * m->segment_size && m->max_undurable_bytes <= LSN_MAX / 4;
    return judge(from, META_BYTES, AT(META, zero), is_segment_size(m->segment_size) && bounded);
}

/*
 *  0          32      40            48         56         64
 *  | preamble | epoch | durable_lsn | base_lsn | checksum |
 */
void format_put_hint(uint8_t *into, const struct hint *h) {
    put_preamble(into, "LSTRHINT", HINT_BYTES, h->uuid);
    PUT(into, HINT, epoch, h->epoch);
    PUT(into, HINT, durable_lsn, h->durable_lsn);
    PUT(into, HINT, base_lsn, h->base_lsn);
    PUT(into, HINT, checksum, xxh64(into, AT(HINT, checksum), 0));
}

enum format_result format_get_hint(const uint8_t *from, size_t available, struct hint *h) {
    enum format_result result = get_preamble(from, available, "LSTRHINT", HINT_BYTES);
    if (result != FORMAT_OK) {
        return result;
    }
    if (GET(from, HINT, checksum) != xxh64(from, AT(HINT, checksum), 0)) {
        return FORMAT_CHECK;
    }
    memcpy(h->uuid, from + AT(PREAMBLE, uuid), UUID_BYTES);
    h->epoch = GET(from, HINT, epoch);
    h->durable_lsn = GET(from, HINT, durable_lsn);
    h->base_lsn = GET(from, HINT, base_lsn);
    return judge(from, HINT_BYTES, AT(HINT, checksum), h->epoch > 0 && is_lsn(h->durable_lsn) && is_lsn(h->base_lsn));
}

/*
 *  0          32      40        48          56         64
 *  | preamble | epoch | end_lsn | closed_us | checksum |
 */
void format_put_closed(uint8_t *into, const struct closed *c) {
    put_preamble(into, "LSTRCLSD", CLOSED_BYTES, c->uuid);
    PUT(into, CLOSED, epoch, c->epoch);
    PUT(into, CLOSED, end_lsn, c->end_lsn);
    PUT(into, CLOSED, closed_us, c->closed_us);
    PUT(into, CLOSED, checksum, xxh64(into, AT(CLOSED, checksum), 0));
}

enum format_result format_get_closed(const uint8_t *from, size_t available, struct closed *c) {
    enum format_result result = get_preamble(from, available, "LSTRCLSD", CLOSED_BYTES);
    if (result != FORMAT_OK) {
        return result;
    }
    if (GET(from, CLOSED, checksum) != xxh64(from, AT(CLOSED, checksum), 0)) {
        return FORMAT_CHECK;
    }
    memcpy(c->uuid, from + AT(PREAMBLE, uuid), UUID_BYTES);
    c->epoch = GET(from, CLOSED, epoch);
    c->end_lsn = GET(from, CLOSED, end_lsn);
    c->closed_us = GET(from, CLOSED, closed_us);
    return judge(from, CLOSED_BYTES, AT(CLOSED, checksum), c->epoch > 0 && is_lsn(c->end_lsn));
}

/*
 *  0          32      40         48  56         64
 *  | preamble | epoch | seen_lsn | 0 | checksum |
 */
void format_put_seen(uint8_t *into, const struct seen_file *s) {
    put_preamble(into, "LSTRSEEN", SEEN_BYTES, s->uuid);
    PUT(into, SEEN, epoch, s->epoch);
    PUT(into, SEEN, seen_lsn, s->seen_lsn);
    put64(into + AT(SEEN, zero), 0);
    PUT(into, SEEN, checksum, xxh64(into, AT(SEEN, checksum), 0));
}

enum format_result format_get_seen(const uint8_t *from, size_t available, struct seen_file *s) {
    enum format_result result = get_preamble(from, available, "LSTRSEEN", SEEN_BYTES);
    if (result != FORMAT_OK) {
        return result;
    }
    if (GET(from, SEEN, checksum) != xxh64(from, AT(SEEN, checksum), 0)) {
        return FORMAT_CHECK;
    }
    memcpy(s->uuid, from + AT(PREAMBLE, uuid), UUID_BYTES);
    s->epoch = GET(from, SEEN, epoch);
    s->seen_lsn = GET(from, SEEN, seen_lsn);
    return judge(from, SEEN_BYTES, AT(SEEN, zero), s->epoch > 0 && (s->seen_lsn == 0 || is_lsn(s->seen_lsn)));
}

/*
 *  0          32         40            48           56           64  248        256
 *  | preamble | hold_lsn | limit_bytes | expires_us | created_us | 0 | checksum |
 */
void format_put_hold(uint8_t *into, const struct hold *h) {
    put_preamble(into, "LSTRHOLD", HOLD_BYTES, h->uuid);
    PUT(into, HOLD, hold_lsn, h->hold_lsn);
    PUT(into, HOLD, limit_bytes, h->limit_bytes);
    PUT(into, HOLD, expires_us, h->expires_us);
    PUT(into, HOLD, created_us, h->created_us);
    PUT(into, HOLD, checksum, xxh64(into, AT(HOLD, checksum), 0));
}

enum format_result format_get_hold(const uint8_t *from, size_t available, struct hold *h) {
    enum format_result result = get_preamble(from, available, "LSTRHOLD", HOLD_BYTES);
    if (result != FORMAT_OK) {
        return result;
    }
    if (GET(from, HOLD, checksum) != xxh64(from, AT(HOLD, checksum), 0)) {
        return FORMAT_CHECK;
    }
    memcpy(h->uuid, from + AT(PREAMBLE, uuid), UUID_BYTES);
    h->hold_lsn = GET(from, HOLD, hold_lsn);
    h->limit_bytes = GET(from, HOLD, limit_bytes);
    h->expires_us = GET(from, HOLD, expires_us);
    h->created_us = GET(from, HOLD, created_us);
    return judge(from, HOLD_BYTES, AT(HOLD, zero), is_lsn(h->hold_lsn));
}

/*
 *  0          32             48          56         64     72          80     88        96           104           112
 *  | preamble | cluster_uuid | member_id | sequence | term | voted_for | copy | rebuild | floor_term | floor_index |
 *  112        120  4088       4096
 *  | detached | 0 | checksum |
 */
void format_put_vote(uint8_t *into, const struct vote *v) {
    put_preamble(into, "LSTRVOTE", VOTE_SLOT_BYTES, v->uuid);
    memcpy(into + AT(VOTE, cluster_uuid), v->cluster_uuid, UUID_BYTES);
    PUT(into, VOTE, member_id, v->member_id);
    PUT(into, VOTE, sequence, v->sequence);
    PUT(into, VOTE, term, v->term);
    PUT(into, VOTE, voted_for, v->voted_for);
    PUT(into, VOTE, copy, v->copy);
    PUT(into, VOTE, rebuild, v->rebuild);
    PUT(into, VOTE, floor_term, v->floor_term);
    PUT(into, VOTE, floor_index, v->floor_index);
    PUT(into, VOTE, detached, v->detached);
    PUT(into, VOTE, checksum, xxh64(into, AT(VOTE, checksum), 0));
}

enum format_result format_get_vote(const uint8_t *from, size_t available, struct vote *v) {
    enum format_result result = get_preamble(from, available, "LSTRVOTE", VOTE_SLOT_BYTES);
    if (result != FORMAT_OK) {
        return result;
    }
    if (GET(from, VOTE, checksum) != xxh64(from, AT(VOTE, checksum), 0)) {
        return FORMAT_CHECK;
    }
    memcpy(v->uuid, from + AT(PREAMBLE, uuid), UUID_BYTES);
    memcpy(v->cluster_uuid, from + AT(VOTE, cluster_uuid), UUID_BYTES);
    v->member_id = GET(from, VOTE, member_id);
    v->sequence = GET(from, VOTE, sequence);
    v->term = GET(from, VOTE, term);
    v->voted_for = GET(from, VOTE, voted_for);
    v->copy = GET(from, VOTE, copy);
    v->rebuild = GET(from, VOTE, rebuild);
    v->floor_term = GET(from, VOTE, floor_term);
    v->floor_index = GET(from, VOTE, floor_index);
    v->detached = GET(from, VOTE, detached);
    bool named = v->member_id > 0 && v->sequence > 0 && v->copy > 0 && v->detached <= 1;
    bool floored = v->floor_term <= v->term && (v->floor_term == 0) == (v->floor_index == 0);
    return judge(from, VOTE_SLOT_BYTES, AT(VOTE, zero), named && floored && v->term < TERM_LIMIT);
}

/*
 *  0          32         40         48       56  4088       4096
 *  | preamble | sequence | from_lsn | to_lsn | 0 | checksum |
 */
void format_put_mark(uint8_t *into, const struct mark *m) {
    put_preamble(into, "LSTRMARK", MARK_SLOT_BYTES, m->uuid);
    PUT(into, MARK, sequence, m->sequence);
    PUT(into, MARK, from_lsn, m->from_lsn);
    PUT(into, MARK, to_lsn, m->to_lsn);
    PUT(into, MARK, checksum, xxh64(into, AT(MARK, checksum), 0));
}

enum format_result format_get_mark(const uint8_t *from, size_t available, struct mark *m) {
    enum format_result result = get_preamble(from, available, "LSTRMARK", MARK_SLOT_BYTES);
    if (result != FORMAT_OK) {
        return result;
    }
    if (GET(from, MARK, checksum) != xxh64(from, AT(MARK, checksum), 0)) {
        return FORMAT_CHECK;
    }
    memcpy(m->uuid, from + AT(PREAMBLE, uuid), UUID_BYTES);
    m->sequence = GET(from, MARK, sequence);
    m->from_lsn = GET(from, MARK, from_lsn);
    m->to_lsn = GET(from, MARK, to_lsn);
    bool empty = m->from_lsn == 0 && m->to_lsn == 0;
    bool some = is_lsn(m->from_lsn) && is_lsn(m->to_lsn) && m->from_lsn < m->to_lsn;
    return judge(from, MARK_SLOT_BYTES, AT(MARK, zero), m->sequence > 0 && (empty || some));
}
