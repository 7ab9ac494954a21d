/*
 * Records with states of places: what a place remembers beside its order. Both directions, because every one of these
 * types holds the same few fields. See format.h, and section 6 of docs/format.md.
 */
#include <string.h>

#include "format/format.h"
#include "format/parts.h"

static bool is_place_time(uint64_t time_us) { return time_us <= PLACE_TIME_MAX; }

static bool are_times(const struct place_state *state) {
    return is_place_time(state->not_before_us) && is_place_time(state->expires_us);
}

/* The note, directly followed by the header. Returns where they end. */
static uint8_t *put_note_and_header(uint8_t *at, const struct place_state *state) {
    if (state->note_bytes > 0) {
        memcpy(at, state->note, state->note_bytes);
    }
    at += state->note_bytes;
    if (state->header_bytes > 0) {
        memcpy(at, state->header, state->header_bytes);
    }
    return at + state->header_bytes;
}

/* The same of what stands `at`; a header of no bytes is there, too. */
static void get_note_and_header(const uint8_t *at, bool has_header, struct place_state *state) {
    state->note = at;
    state->header = has_header ? at + state->note_bytes : NULL;
}

static uint8_t own_header_bit(const struct place_state *state) { return state->header != NULL ? STATE_HAS_HEADER : 0; }

/* ---- a start whose places have a state ---- */

uint64_t format_start_placed_bytes(uint64_t header_bytes, uint64_t content_bytes, uint64_t queue_count,
                                   uint32_t note_bytes) {
    return pad8(AT(MESSAGE_START_PLACED, queues) + pad8(4 * queue_count) + note_bytes + header_bytes + content_bytes);
}

/*
 * Zeros fill the queue ids up to a multiple of 8.
 *  48      56             60              64            68            72              80           88           89  96
 *  | tx_id | header_bytes | content_bytes | queue_count | order_index | not_before_us | expires_us | note_bytes | 0 |
 *  | queue ids | note | header | content |
 */
uint32_t format_put_start_placed(const struct slot *s, const struct message_start *m, const uint32_t *queues,
                                 const struct place_state *state) {
    uint32_t length =
        (uint32_t)format_start_placed_bytes(m->header_bytes, m->content_bytes, m->queue_count, state->note_bytes);
    assert(state->header == NULL && state->delivery_count == 0);
    start_record(s, MESSAGE_START_PLACED, length);
    PUT(s->at, MESSAGE_START_PLACED, tx_id, m->tx_id);
    PUT(s->at, MESSAGE_START_PLACED, header_bytes, m->header_bytes);
    PUT(s->at, MESSAGE_START_PLACED, content_bytes, m->content_bytes);
    PUT(s->at, MESSAGE_START_PLACED, queue_count, m->queue_count);
    PUT(s->at, MESSAGE_START_PLACED, order_index, m->order_index);
    PUT(s->at, MESSAGE_START_PLACED, not_before_us, state->not_before_us);
    PUT(s->at, MESSAGE_START_PLACED, expires_us, state->expires_us);
    PUT(s->at, MESSAGE_START_PLACED, note_bytes, state->note_bytes);
    memset(s->at + AT(MESSAGE_START_PLACED, zero), 0,
           AT(MESSAGE_START_PLACED, queues) - AT(MESSAGE_START_PLACED, zero));
    uint8_t *at = s->at + AT(MESSAGE_START_PLACED, queues);
    put_queues(at, queues, m->queue_count);
    if (m->queue_count % 2 != 0) {
        put32(at + 4 * (size_t)m->queue_count, 0);
    }
    at = put_note_and_header(at + pad8(4 * (uint64_t)m->queue_count), state);
    if (m->header_bytes > 0) {
        memcpy(at, m->header, m->header_bytes);
    }
    if (m->content_bytes > 0) {
        memcpy(at + m->header_bytes, m->content, m->content_bytes);
    }
    return seal_record(s, length);
}

enum format_result format_get_start_placed(const struct record *r, struct message_start *m, struct place_state *state) {
    if (r->type != MESSAGE_START_PLACED || r->length < AT(MESSAGE_START_PLACED, queues)) {
        return FORMAT_MALFORMED;
    }
    *m = (struct message_start){
        .tx_id = GET(r->bytes, MESSAGE_START_PLACED, tx_id),
        .header_bytes = GET(r->bytes, MESSAGE_START_PLACED, header_bytes),
        .content_bytes = GET(r->bytes, MESSAGE_START_PLACED, content_bytes),
        .queue_count = GET(r->bytes, MESSAGE_START_PLACED, queue_count),
        .order_index = GET(r->bytes, MESSAGE_START_PLACED, order_index),
        .queues = r->bytes + AT(MESSAGE_START_PLACED, queues),
    };
    *state = (struct place_state){
        .not_before_us = GET(r->bytes, MESSAGE_START_PLACED, not_before_us),
        .expires_us = GET(r->bytes, MESSAGE_START_PLACED, expires_us),
        .note_bytes = GET(r->bytes, MESSAGE_START_PLACED, note_bytes),
    };
    uint64_t note = AT(MESSAGE_START_PLACED, queues) + pad8(4 * (uint64_t)m->queue_count);
    uint64_t header = note + state->note_bytes;
    if (!body_ends(r, header + m->header_bytes + m->content_bytes)) {
        return FORMAT_MALFORMED;
    }
    get_note_and_header(r->bytes + note, false, state);
    m->header = r->bytes + header;
    m->content = m->header + m->header_bytes;
    bool clean = all_zero(r->bytes + AT(MESSAGE_START_PLACED, zero),
                          AT(MESSAGE_START_PLACED, queues) - AT(MESSAGE_START_PLACED, zero)) &&
                 (m->queue_count % 2 == 0 || get32(r->bytes + note - 4) == 0);
    bool stated = state->not_before_us != 0 || state->expires_us != 0 || state->note_bytes != 0;
    return verdict(clean && stated && are_times(state) && m->queue_count > 0 &&
                   (m->tx_id == 0 || is_earlier(r, m->tx_id)) &&
                   is_numbered(m->tx_id, m->order_index, m->queue_count) && are_queue_ids(m->queues, m->queue_count));
}

enum format_result format_get_either_start(const struct record *r, struct message_start *m) {
    struct place_state state;
    return r->type == MESSAGE_START ? format_get_start(r, m) : format_get_start_placed(r, m, &state);
}

/* ---- a note ---- */

uint64_t format_place_bytes(uint32_t note_bytes) { return pad8(AT(MESSAGE_PLACE, note) + (uint64_t)note_bytes); }

/*
 *  48      56         60           61  64
 *  | tx_id | queue_id | note_bytes | 0 | note |
 */
uint32_t format_put_place(const struct slot *s, const struct message_place *p) {
    uint32_t length = (uint32_t)format_place_bytes(p->note_bytes);
    start_record(s, MESSAGE_PLACE, length);
    PUT(s->at, MESSAGE_PLACE, tx_id, p->tx_id);
    PUT(s->at, MESSAGE_PLACE, queue_id, p->queue_id);
    PUT(s->at, MESSAGE_PLACE, note_bytes, p->note_bytes);
    memset(s->at + AT(MESSAGE_PLACE, zero), 0, AT(MESSAGE_PLACE, note) - AT(MESSAGE_PLACE, zero));
    if (p->note_bytes > 0) {
        memcpy(s->at + AT(MESSAGE_PLACE, note), p->note, p->note_bytes);
    }
    return seal_record(s, length);
}

enum format_result format_get_place(const struct record *r, struct message_place *p) {
    if (r->type != MESSAGE_PLACE || r->length < AT(MESSAGE_PLACE, note)) {
        return FORMAT_MALFORMED;
    }
    p->tx_id = GET(r->bytes, MESSAGE_PLACE, tx_id);
    p->queue_id = GET(r->bytes, MESSAGE_PLACE, queue_id);
    p->note_bytes = GET(r->bytes, MESSAGE_PLACE, note_bytes);
    p->note = r->bytes + AT(MESSAGE_PLACE, note);
    bool clean = all_zero(r->bytes + AT(MESSAGE_PLACE, zero), AT(MESSAGE_PLACE, note) - AT(MESSAGE_PLACE, zero));
    return verdict(clean && body_ends(r, AT(MESSAGE_PLACE, note) + (uint64_t)p->note_bytes) &&
                   (p->tx_id == 0 || is_earlier(r, p->tx_id)) && is_queue_id(p->queue_id));
}

/* ---- a move ---- */

uint64_t format_move_bytes(uint64_t header_bytes, uint32_t note_bytes) {
    return pad8(AT(MESSAGE_MOVE, note) + note_bytes + header_bytes);
}

/*
 *  48      56              60         64            68               72              80           88
 *  | tx_id | from_queue_id | queue_id | order_index | delivery_count | not_before_us | expires_us |
 *  88             92           93       94           96
 *  | header_bytes | note_bytes | reason | state_bits | note | header |
 */
uint32_t format_put_move(const struct slot *s, const struct message_move *m) {
    const struct place_state *state = &m->state;
    uint32_t length = (uint32_t)format_move_bytes(state->header_bytes, state->note_bytes);
    unsigned bits =
        own_header_bit(state) | (m->keeps_header ? STATE_KEEPS_HEADER : 0u) | (m->keeps_note ? STATE_KEEPS_NOTE : 0u);
    start_record(s, MESSAGE_MOVE, length);
    PUT(s->at, MESSAGE_MOVE, tx_id, m->tx_id);
    PUT(s->at, MESSAGE_MOVE, from_queue_id, m->from_queue_id);
    PUT(s->at, MESSAGE_MOVE, queue_id, m->queue_id);
    PUT(s->at, MESSAGE_MOVE, order_index, m->order_index);
    PUT(s->at, MESSAGE_MOVE, delivery_count, state->delivery_count);
    PUT(s->at, MESSAGE_MOVE, not_before_us, state->not_before_us);
    PUT(s->at, MESSAGE_MOVE, expires_us, state->expires_us);
    PUT(s->at, MESSAGE_MOVE, header_bytes, state->header_bytes);
    PUT(s->at, MESSAGE_MOVE, note_bytes, state->note_bytes);
    PUT(s->at, MESSAGE_MOVE, reason, m->reason);
    PUT(s->at, MESSAGE_MOVE, state_bits, (uint16_t)bits);
    (void)put_note_and_header(s->at + AT(MESSAGE_MOVE, note), state);
    return seal_record(s, length);
}

/* Whether the bits fit together, and the rest of the record fits them. */
static bool are_move_bits(const struct message_move *m, unsigned bits) {
    bool known = bits < 2 * STATE_KEEPS_NOTE;
    bool one_header = !m->keeps_header || (bits & STATE_HAS_HEADER) == 0;
    bool header_told = (bits & STATE_HAS_HEADER) != 0 || m->state.header_bytes == 0;
    bool one_note = !m->keeps_note || m->state.note_bytes == 0;
    bool ends_one = m->from_queue_id != 0 || (!m->keeps_header && !m->keeps_note && m->reason == 0);
    return known && one_header && header_told && one_note && ends_one;
}

enum format_result format_get_move(const struct record *r, struct message_move *m) {
    if (r->type != MESSAGE_MOVE || r->length < AT(MESSAGE_MOVE, note)) {
        return FORMAT_MALFORMED;
    }
    unsigned bits = GET(r->bytes, MESSAGE_MOVE, state_bits);
    *m = (struct message_move){
        .tx_id = GET(r->bytes, MESSAGE_MOVE, tx_id),
        .from_queue_id = GET(r->bytes, MESSAGE_MOVE, from_queue_id),
        .queue_id = GET(r->bytes, MESSAGE_MOVE, queue_id),
        .order_index = GET(r->bytes, MESSAGE_MOVE, order_index),
        .reason = GET(r->bytes, MESSAGE_MOVE, reason),
        .keeps_header = (bits & STATE_KEEPS_HEADER) != 0,
        .keeps_note = (bits & STATE_KEEPS_NOTE) != 0,
        .state = {.delivery_count = GET(r->bytes, MESSAGE_MOVE, delivery_count),
                  .not_before_us = GET(r->bytes, MESSAGE_MOVE, not_before_us),
                  .expires_us = GET(r->bytes, MESSAGE_MOVE, expires_us),
                  .header_bytes = GET(r->bytes, MESSAGE_MOVE, header_bytes),
                  .note_bytes = GET(r->bytes, MESSAGE_MOVE, note_bytes)},
    };
    get_note_and_header(r->bytes + AT(MESSAGE_MOVE, note), (bits & STATE_HAS_HEADER) != 0, &m->state);
    return verdict(body_ends(r, AT(MESSAGE_MOVE, note) + (uint64_t)m->state.note_bytes + m->state.header_bytes) &&
                   are_move_bits(m, bits) && are_times(&m->state) && (m->tx_id == 0 || is_earlier(r, m->tx_id)) &&
                   (m->from_queue_id == 0 || is_queue_id(m->from_queue_id)) && is_queue_id(m->queue_id) &&
                   is_numbered(m->tx_id, m->order_index, 1) && m->reason <= DEQUEUE_REASON_MAX);
}

/* ---- a relocated chain whose places have states ---- */

_Static_assert((int)AT(MESSAGE_RELOCATED_PLACED, chunks) == (int)AT(MESSAGE_RELOCATED, chunks),
               "both forms of a state begin in the same way");
_Static_assert((int)AT(PLACED_PLACE, queue_id) == (int)AT(PLACED_WORK, queue_id) &&
                   (int)AT(PLACED_PLACE, delivery_count) == (int)AT(PLACED_WORK, delivery_count) &&
                   (int)AT(PLACED_PLACE, header_bytes) == (int)AT(PLACED_WORK, header_bytes) &&
                   (int)AT(PLACED_PLACE, not_before_us) == (int)AT(PLACED_WORK, not_before_us) &&
                   (int)AT(PLACED_PLACE, expires_us) == (int)AT(PLACED_WORK, expires_us) &&
                   (int)AT(PLACED_PLACE, note_bytes) == (int)AT(PLACED_WORK, note_bytes) &&
                   (int)AT(PLACED_PLACE, state_bits) == (int)AT(PLACED_WORK, state_bits) &&
                   (int)AT(PLACED_PLACE, zero) == (int)AT(PLACED_WORK, zero),
               "both sorts of rows have the state in the same place");

static uint64_t row_bytes(uint32_t note_bytes, uint32_t header_bytes) {
    return pad8(PLACED_ROW_BYTES + (uint64_t)note_bytes + header_bytes);
}

uint64_t format_placed_row_bytes(const struct place_state *state) {
    return row_bytes(state->note_bytes, state->header_bytes);
}

uint64_t format_relocated_placed_bytes(uint64_t chunk_count, uint64_t rows_bytes) {
    return AT(MESSAGE_RELOCATED_PLACED, chunks) + RELOCATED_CHUNK_BYTES * chunk_count + rows_bytes;
}

/*
 *  24               28             32              40           48           49           50  52            56
 *  | delivery_count | header_bytes | not_before_us | expires_us | note_bytes | state_bits | 0 | order_index | note |
 *  | header | 0 |
 */
static uint8_t *put_state(uint8_t *at, const struct place_state *state) {
    uint8_t *end = at + format_placed_row_bytes(state);
    put64(end - 8, 0);
    PUT(at, PLACED_PLACE, delivery_count, state->delivery_count);
    PUT(at, PLACED_PLACE, header_bytes, state->header_bytes);
    PUT(at, PLACED_PLACE, not_before_us, state->not_before_us);
    PUT(at, PLACED_PLACE, expires_us, state->expires_us);
    PUT(at, PLACED_PLACE, note_bytes, state->note_bytes);
    PUT(at, PLACED_PLACE, state_bits, own_header_bit(state));
    PUT(at, PLACED_PLACE, zero, 0);
    (void)put_note_and_header(at + PLACED_ROW_BYTES, state);
    return end;
}

/*
 *  0           8                 16         20            24
 *  | order_lsn | enqueue_time_us | queue_id | order_index | the state
 */
static uint8_t *put_placed_places(uint8_t *at, const struct place_row *rows, const struct place_state *states,
                                  uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        struct place_state state = states[i];
        uint8_t *end;
        state.delivery_count = rows[i].delivery_count;
        end = put_state(at, &state);
        PUT(at, PLACED_PLACE, order_lsn, rows[i].order_lsn);
        PUT(at, PLACED_PLACE, enqueue_time_us, rows[i].enqueue_time_us);
        PUT(at, PLACED_PLACE, queue_id, rows[i].queue_id);
        PUT(at, PLACED_PLACE, order_index, rows[i].order_index);
        PUT(at, PLACED_PLACE, more_zero, 0);
        at = end;
    }
    return at;
}

/*
 *  0       8     16         20     24
 *  | tx_id | lsn | queue_id | kind | the state
 */
static void put_placed_pending(uint8_t *at, const struct pending_row *rows, const struct place_state *states,
                               uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *end = put_state(at, &states[i]);
        PUT(at, PLACED_WORK, tx_id, rows[i].tx_id);
        PUT(at, PLACED_WORK, lsn, rows[i].lsn);
        PUT(at, PLACED_WORK, queue_id, rows[i].queue_id);
        PUT(at, PLACED_WORK, kind, rows[i].kind);
        PUT(at, PLACED_WORK, order_index, rows[i].order_index);
        at = end;
    }
}

static uint64_t rows_bytes_of(const struct place_state *states, uint32_t count) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        bytes += format_placed_row_bytes(&states[i]);
    }
    return bytes;
}

/*
 *  48              56          64     68            72            76              80
 *  | content_bytes | start_lsn | part | chunk_count | place_count | pending_count | chunks | places | pending work |
 */
uint32_t format_put_relocated_placed(const struct slot *s, const struct message_relocated *m,
                                     const struct chunk_row *chunks, const struct place_row *places,
                                     const struct place_state *place_states, const struct pending_row *pending,
                                     const struct place_state *pending_states) {
    uint64_t rows = rows_bytes_of(place_states, m->place_count) + rows_bytes_of(pending_states, m->pending_count);
    uint32_t length = (uint32_t)format_relocated_placed_bytes(m->chunk_count, rows);
    start_record(s, MESSAGE_RELOCATED_PLACED, length);
    PUT(s->at, MESSAGE_RELOCATED_PLACED, content_bytes, m->content_bytes);
    PUT(s->at, MESSAGE_RELOCATED_PLACED, start_lsn, m->start_lsn);
    PUT(s->at, MESSAGE_RELOCATED_PLACED, part, m->part);
    PUT(s->at, MESSAGE_RELOCATED_PLACED, chunk_count, m->chunk_count);
    PUT(s->at, MESSAGE_RELOCATED_PLACED, place_count, m->place_count);
    PUT(s->at, MESSAGE_RELOCATED_PLACED, pending_count, m->pending_count);
    uint8_t *at = put_chunk_rows(s->at + AT(MESSAGE_RELOCATED_PLACED, chunks), chunks, m->chunk_count);
    at = put_placed_places(at, places, place_states, m->place_count);
    put_placed_pending(at, pending, pending_states, m->pending_count);
    return seal_record(s, length);
}

static void get_state(const uint8_t **at, struct place_state *state) {
    const uint8_t *from = *at;
    *state = (struct place_state){
        .delivery_count = GET(from, PLACED_PLACE, delivery_count),
        .header_bytes = GET(from, PLACED_PLACE, header_bytes),
        .not_before_us = GET(from, PLACED_PLACE, not_before_us),
        .expires_us = GET(from, PLACED_PLACE, expires_us),
        .note_bytes = GET(from, PLACED_PLACE, note_bytes),
    };
    get_note_and_header(from + PLACED_ROW_BYTES, GET(from, PLACED_PLACE, state_bits) != 0, state);
    *at = from + format_placed_row_bytes(state);
}

struct place_row format_placed_place(const uint8_t **at, struct place_state *state) {
    const uint8_t *from = *at;
    get_state(at, state);
    return (struct place_row){
        .order_lsn = GET(from, PLACED_PLACE, order_lsn),
        .enqueue_time_us = GET(from, PLACED_PLACE, enqueue_time_us),
        .queue_id = GET(from, PLACED_PLACE, queue_id),
        .order_index = GET(from, PLACED_PLACE, order_index),
        .delivery_count = state->delivery_count,
    };
}

struct pending_row format_placed_pending(const uint8_t **at, struct place_state *state) {
    const uint8_t *from = *at;
    get_state(at, state);
    return (struct pending_row){
        .tx_id = GET(from, PLACED_WORK, tx_id),
        .lsn = GET(from, PLACED_WORK, lsn),
        .queue_id = GET(from, PLACED_WORK, queue_id),
        .kind = GET(from, PLACED_WORK, kind),
        .order_index = GET(from, PLACED_WORK, order_index),
    };
}

struct queue_rows format_placed_queues(const uint8_t *rows, uint32_t count) {
    return (struct queue_rows){.first = rows + AT(PLACED_PLACE, queue_id), .count = count};
}

uint32_t format_placed_row_from_queue(const uint8_t *queue) {
    const uint8_t *from = queue - AT(PLACED_PLACE, queue_id);
    return (uint32_t)row_bytes(GET(from, PLACED_PLACE, note_bytes), GET(from, PLACED_PLACE, header_bytes));
}

/* Whether the rules that both sorts of rows have hold for the row at `from`; then it may be read. */
static bool is_placed_row(const uint8_t *from, uint64_t available) {
    if (available < PLACED_ROW_BYTES) {
        return false;
    }
    uint32_t note_bytes = GET(from, PLACED_PLACE, note_bytes), header_bytes = GET(from, PLACED_PLACE, header_bytes);
    uint64_t used = PLACED_ROW_BYTES + (uint64_t)note_bytes + header_bytes, bytes = row_bytes(note_bytes, header_bytes);
    unsigned bits = GET(from, PLACED_PLACE, state_bits);
    return bytes <= available && bits <= STATE_HAS_HEADER && (bits != 0 || header_bytes == 0) &&
           is_place_time(GET(from, PLACED_PLACE, not_before_us)) &&
           is_place_time(GET(from, PLACED_PLACE, expires_us)) && GET(from, PLACED_PLACE, zero) == 0 &&
           is_queue_id(GET(from, PLACED_PLACE, queue_id)) && all_zero(from + used, bytes - used);
}

static bool is_placed_place(const struct record *r, const uint8_t **at, uint64_t available) {
    struct place_state state;
    const uint8_t *from = *at;
    return is_placed_row(from, available) && GET(from, PLACED_PLACE, more_zero) == 0 &&
           is_earlier(r, format_placed_place(at, &state).order_lsn);
}

static bool is_placed_pending(const struct record *r, const uint8_t **at, uint64_t available) {
    struct place_state state;
    if (!is_placed_row(*at, available)) {
        return false;
    }
    struct pending_row row = format_placed_pending(at, &state);
    bool untimed = state.not_before_us == 0 && state.expires_us == 0 && state.delivery_count == 0;
    bool bare = untimed && state.header == NULL;
    bool known = row.kind == PENDING_ENQUEUE || (row.kind == PENDING_DEQUEUE && bare && state.note_bytes == 0) ||
                 (row.kind == PENDING_NOTE && bare);
    return known && row.tx_id > 0 && row.tx_id < row.lsn && is_earlier(r, row.lsn);
}

/* Whether the record's rows are those that it counts, and fill it. */
static bool are_placed_rows(const struct record *r, struct message_relocated *m) {
    const uint8_t *at = m->places, *end = r->bytes + r->length;
    for (uint32_t i = 0; i < m->place_count; i++) {
        if (!is_placed_place(r, &at, (uint64_t)(end - at))) {
            return false;
        }
    }
    m->pending = at;
    for (uint32_t i = 0; i < m->pending_count; i++) {
        if (!is_placed_pending(r, &at, (uint64_t)(end - at))) {
            return false;
        }
    }
    return at == end;
}

enum format_result format_get_relocated_placed(const struct record *r, struct message_relocated *m) {
    if (r->type != MESSAGE_RELOCATED_PLACED || r->length < AT(MESSAGE_RELOCATED_PLACED, chunks)) {
        return FORMAT_MALFORMED;
    }
    m->content_bytes = GET(r->bytes, MESSAGE_RELOCATED_PLACED, content_bytes);
    m->start_lsn = GET(r->bytes, MESSAGE_RELOCATED_PLACED, start_lsn);
    m->part = GET(r->bytes, MESSAGE_RELOCATED_PLACED, part);
    m->chunk_count = GET(r->bytes, MESSAGE_RELOCATED_PLACED, chunk_count);
    m->place_count = GET(r->bytes, MESSAGE_RELOCATED_PLACED, place_count);
    m->pending_count = GET(r->bytes, MESSAGE_RELOCATED_PLACED, pending_count);
    if (format_relocated_placed_bytes(m->chunk_count, 0) > r->length) {
        return FORMAT_MALFORMED;
    }
    m->chunks = r->bytes + AT(MESSAGE_RELOCATED_PLACED, chunks);
    m->places = m->chunks + RELOCATED_CHUNK_BYTES * (size_t)m->chunk_count;
    return verdict(m->content_bytes <= CONTENT_BYTES_MAX && is_earlier(r, m->start_lsn) && are_chunk_rows(r, m) &&
                   are_placed_rows(r, m));
}

/* ---- counts and times of many places ---- */

uint64_t format_place_states_bytes(uint64_t row_count) { return AT(PLACE_STATES, rows) + STATE_ROW_BYTES * row_count; }

/*
 *  48          52  56
 *  | row_count | 0 | rows |
 *  0    8               16           24         28               32
 *  | id | not_before_us | expires_us | queue_id | delivery_count |
 */
uint32_t format_put_place_states(const struct slot *s, const struct state_row *rows, uint32_t row_count) {
    uint32_t length = (uint32_t)format_place_states_bytes(row_count);
    start_record(s, PLACE_STATES, length);
    PUT(s->at, PLACE_STATES, row_count, row_count);
    PUT(s->at, PLACE_STATES, zero, 0);
    uint8_t *at = s->at + AT(PLACE_STATES, rows);
    for (uint32_t i = 0; i < row_count; i++, at += STATE_ROW_BYTES) {
        PUT(at, STATE_ROW, id, rows[i].id);
        PUT(at, STATE_ROW, not_before_us, rows[i].not_before_us);
        PUT(at, STATE_ROW, expires_us, rows[i].expires_us);
        PUT(at, STATE_ROW, queue_id, rows[i].queue_id);
        PUT(at, STATE_ROW, delivery_count, rows[i].delivery_count);
    }
    return seal_record(s, length);
}

struct state_row format_state_row(const uint8_t *rows, uint32_t index) {
    const uint8_t *at = rows + STATE_ROW_BYTES * (size_t)index;
    return (struct state_row){
        .id = GET(at, STATE_ROW, id),
        .not_before_us = GET(at, STATE_ROW, not_before_us),
        .expires_us = GET(at, STATE_ROW, expires_us),
        .queue_id = GET(at, STATE_ROW, queue_id),
        .delivery_count = GET(at, STATE_ROW, delivery_count),
    };
}

enum format_result format_get_place_states(const struct record *r, struct place_states *p) {
    if (r->type != PLACE_STATES || r->length < AT(PLACE_STATES, rows)) {
        return FORMAT_MALFORMED;
    }
    p->row_count = GET(r->bytes, PLACE_STATES, row_count);
    p->rows = r->bytes + AT(PLACE_STATES, rows);
    if (p->row_count == 0 || format_place_states_bytes(p->row_count) != r->length) {
        return FORMAT_MALFORMED;
    }
    bool possible = GET(r->bytes, PLACE_STATES, zero) == 0;
    for (uint32_t i = 0; possible && i < p->row_count; i++) {
        struct state_row row = format_state_row(p->rows, i);
        possible = is_earlier(r, row.id) && is_place_time(row.not_before_us) && is_place_time(row.expires_us) &&
                   is_queue_id(row.queue_id);
    }
    return verdict(possible);
}
