/*
 * Records with states of places, for codec.c: see there. The notes and headers of a relocated chain's rows stand one
 * behind the other in the first string, and the last two cells of a row are their lengths.
 */
#include <stdlib.h>
#include <string.h>

#include "format/format.h"
#include "tests/sim/codec_placed.h"

enum { PLACE_CELLS = 10, WORK_CELLS = 11 };

/* ---- encoding ---- */

static struct place_state times(const uint64_t numbers[2]) {
    return (struct place_state){.not_before_us = numbers[0], .expires_us = numbers[1]};
}

static uint32_t encode_start(const struct slot *s, const ls_test_record *t, size_t room) {
    uint32_t *ids = calloc(t->rows[0] + 1, sizeof *ids);
    struct message_start m = {
        .tx_id = t->numbers[0],
        .order_index = (uint32_t)t->numbers[1],
        .header_bytes = (uint32_t)t->string_bytes[0],
        .content_bytes = (uint32_t)t->string_bytes[1],
        .queue_count = (uint32_t)t->rows[0],
        .header = t->strings[0],
        .content = t->strings[1],
    };
    struct place_state state = times(t->numbers + 2);
    state.note = t->strings[2];
    state.note_bytes = (uint8_t)t->string_bytes[2];
    uint32_t length = 0;
    for (uint32_t i = 0; ids != NULL && i < m.queue_count; i++) {
        ids[i] = (uint32_t)t->tables[0][i];
    }
    if (ids != NULL && t->string_bytes[2] <= NOTE_BYTES_MAX &&
        format_start_placed_bytes(m.header_bytes, m.content_bytes, m.queue_count, state.note_bytes) <= room) {
        length = format_put_start_placed(s, &m, ids, &state);
    }
    free(ids);
    return length;
}

static uint32_t encode_place(const struct slot *s, const ls_test_record *t, size_t room) {
    struct message_place p = {
        .tx_id = t->numbers[0],
        .queue_id = (uint32_t)t->numbers[1],
        .note_bytes = (uint8_t)t->string_bytes[0],
        .note = t->strings[0],
    };
    bool fits = t->string_bytes[0] <= NOTE_BYTES_MAX && format_place_bytes(p.note_bytes) <= room;
    return fits ? format_put_place(s, &p) : 0;
}

static uint32_t encode_move(const struct slot *s, const ls_test_record *t, size_t room) {
    static const uint8_t none[1];
    unsigned bits = (unsigned)t->numbers[8];
    struct message_move m = {
        .tx_id = t->numbers[0],
        .from_queue_id = (uint32_t)t->numbers[1],
        .queue_id = (uint32_t)t->numbers[2],
        .order_index = (uint32_t)t->numbers[3],
        .reason = (uint8_t)t->numbers[7],
        .keeps_header = (bits & STATE_KEEPS_HEADER) != 0,
        .keeps_note = (bits & STATE_KEEPS_NOTE) != 0,
        .state = times(t->numbers + 5),
    };
    m.state.delivery_count = (uint32_t)t->numbers[4];
    m.state.note = t->strings[0];
    m.state.note_bytes = (uint8_t)t->string_bytes[0];
    m.state.header_bytes = (uint32_t)t->string_bytes[1];
    m.state.header = (bits & STATE_HAS_HEADER) == 0 ? NULL : m.state.header_bytes > 0 ? t->strings[1] : none;
    bool fits =
        t->string_bytes[0] <= NOTE_BYTES_MAX && format_move_bytes(m.state.header_bytes, m.state.note_bytes) <= room;
    return fits ? format_put_move(s, &m) : 0;
}

/* A row's state; its note and header are the next bytes of the string. */
static struct place_state row_state(const uint64_t *times_at, uint64_t count, uint64_t bits, const uint64_t lengths[2],
                                    const uint8_t **at) {
    struct place_state state = times(times_at);
    state.delivery_count = (uint32_t)count;
    state.note = *at;
    state.note_bytes = (uint8_t)lengths[0];
    state.header_bytes = (uint32_t)lengths[1];
    state.header = bits != 0 ? *at + lengths[0] : NULL;
    *at += lengths[0] + lengths[1];
    return state;
}

struct rows {
    struct chunk_row *chunks;
    struct place_row *places;
    struct pending_row *pending;
    struct place_state *place_states;
    struct place_state *pending_states;
};

static uint64_t fill_rows(const struct rows *rows, const struct message_relocated *m, const ls_test_record *t) {
    static const uint8_t none[1];
    const uint8_t *at = t->strings[0] != NULL ? t->strings[0] : none;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < m->chunk_count; i++) {
        const uint64_t *c = t->tables[0] + 3 * (size_t)i;
        rows->chunks[i] = (struct chunk_row){c[0], c[1], (uint32_t)c[2]};
    }
    for (uint32_t i = 0; i < m->place_count; i++) {
        const uint64_t *c = t->tables[1] + PLACE_CELLS * (size_t)i;
        rows->places[i] = (struct place_row){c[0], c[1], (uint32_t)c[2], (uint32_t)c[3], (uint32_t)c[4]};
        rows->place_states[i] = row_state(c + 5, c[4], c[7], c + 8, &at);
        bytes += format_placed_row_bytes(&rows->place_states[i]);
    }
    for (uint32_t i = 0; i < m->pending_count; i++) {
        const uint64_t *c = t->tables[2] + WORK_CELLS * (size_t)i;
        rows->pending[i] = (struct pending_row){c[0], c[1], (uint32_t)c[2], (uint32_t)c[3], (uint32_t)c[8]};
        rows->pending_states[i] = row_state(c + 5, c[4], c[7], c + 9, &at);
        bytes += format_placed_row_bytes(&rows->pending_states[i]);
    }
    return bytes;
}

static uint32_t encode_relocated(const struct slot *s, const ls_test_record *t, size_t room) {
    struct message_relocated m = {
        .content_bytes = t->numbers[0],
        .start_lsn = t->numbers[1],
        .part = (uint32_t)t->numbers[2],
        .chunk_count = (uint32_t)t->rows[0],
        .place_count = (uint32_t)t->rows[1],
        .pending_count = (uint32_t)t->rows[2],
    };
    struct rows rows = {
        .chunks = calloc(m.chunk_count + 1, sizeof *rows.chunks),
        .places = calloc(m.place_count + 1, sizeof *rows.places),
        .pending = calloc(m.pending_count + 1, sizeof *rows.pending),
        .place_states = calloc(m.place_count + 1, sizeof *rows.place_states),
        .pending_states = calloc(m.pending_count + 1, sizeof *rows.pending_states),
    };
    uint32_t length = 0;
    bool made = rows.chunks != NULL && rows.places != NULL && rows.pending != NULL && rows.place_states != NULL &&
                rows.pending_states != NULL;
    if (made && format_relocated_placed_bytes(m.chunk_count, fill_rows(&rows, &m, t)) <= room) {
        length = format_put_relocated_placed(s, &m, rows.chunks, rows.places, rows.place_states, rows.pending,
                                             rows.pending_states);
    }
    free(rows.chunks);
    free(rows.places);
    free(rows.pending);
    free(rows.place_states);
    free(rows.pending_states);
    return length;
}

static uint32_t encode_place_states(const struct slot *s, const ls_test_record *t, size_t room) {
    struct state_row *rows = calloc(t->rows[0] + 1, sizeof *rows);
    uint32_t length = 0;
    for (uint64_t i = 0; rows != NULL && i < t->rows[0]; i++) {
        const uint64_t *c = t->tables[0] + 5 * i;
        rows[i] = (struct state_row){c[0], c[1], c[2], (uint32_t)c[3], (uint32_t)c[4]};
    }
    if (rows != NULL && format_place_states_bytes(t->rows[0]) <= room) {
        length = format_put_place_states(s, rows, (uint32_t)t->rows[0]);
    }
    free(rows);
    return length;
}

bool codec_is_placed(uint16_t type) {
    return type == MESSAGE_START_PLACED || type == MESSAGE_PLACE || type == MESSAGE_MOVE ||
           type == MESSAGE_RELOCATED_PLACED || type == PLACE_STATES;
}

uint32_t codec_encode_placed(const struct slot *s, const ls_test_record *t, size_t room) {
    switch (t->type) {
    case MESSAGE_START_PLACED:
        return encode_start(s, t, room);
    case MESSAGE_PLACE:
        return encode_place(s, t, room);
    case MESSAGE_MOVE:
        return encode_move(s, t, room);
    case MESSAGE_RELOCATED_PLACED:
        return encode_relocated(s, t, room);
    default:
        return encode_place_states(s, t, room);
    }
}

/* ---- decoding ---- */

static void give_string(ls_test_record *t, int i, const uint8_t *at, uint64_t bytes) {
    t->strings[i] = at;
    t->string_bytes[i] = bytes;
}

static enum format_result decode_start(const struct record *r, ls_test_record *t) {
    struct message_start m;
    struct place_state state;
    enum format_result result = format_get_start_placed(r, &m, &state);
    if (result == FORMAT_OK) {
        const uint64_t numbers[] = {m.tx_id, m.order_index, state.not_before_us, state.expires_us};
        memcpy(t->numbers, numbers, sizeof numbers);
        t->rows[0] = m.queue_count;
        for (uint32_t i = 0; i < m.queue_count; i++) {
            t->tables[0][i] = format_queue_id(m.queues, i);
        }
        give_string(t, 0, m.header, m.header_bytes);
        give_string(t, 1, m.content, m.content_bytes);
        give_string(t, 2, state.note, state.note_bytes);
    }
    return result;
}

static enum format_result decode_place(const struct record *r, ls_test_record *t) {
    struct message_place p;
    enum format_result result = format_get_place(r, &p);
    if (result == FORMAT_OK) {
        t->numbers[0] = p.tx_id;
        t->numbers[1] = p.queue_id;
        give_string(t, 0, p.note, p.note_bytes);
    }
    return result;
}

static enum format_result decode_move(const struct record *r, ls_test_record *t) {
    struct message_move m;
    enum format_result result = format_get_move(r, &m);
    if (result == FORMAT_OK) {
        unsigned bits = (m.state.header != NULL ? STATE_HAS_HEADER : 0u) | (m.keeps_header ? STATE_KEEPS_HEADER : 0u) |
                        (m.keeps_note ? STATE_KEEPS_NOTE : 0u);
        const uint64_t numbers[] = {m.tx_id,
                                    m.from_queue_id,
                                    m.queue_id,
                                    m.order_index,
                                    m.state.delivery_count,
                                    m.state.not_before_us,
                                    m.state.expires_us,
                                    m.reason,
                                    bits};
        memcpy(t->numbers, numbers, sizeof numbers);
        give_string(t, 0, m.state.note, m.state.note_bytes);
        give_string(t, 1, m.state.header, m.state.header_bytes);
    }
    return result;
}

static void give_state(const struct place_state *state, uint8_t **to) {
    memcpy(*to, state->note, state->note_bytes);
    *to += state->note_bytes;
    if (state->header != NULL) {
        memcpy(*to, state->header, state->header_bytes);
        *to += state->header_bytes;
    }
}

/* The strings are copied behind the tables: a row of 56 bytes and more has 88 bytes of cells, and the cells are twice the record. */
static enum format_result decode_relocated(const struct record *r, ls_test_record *t) {
    struct message_relocated m;
    struct place_state state;
    enum format_result result = format_get_relocated_placed(r, &m);
    if (result != FORMAT_OK) {
        return result;
    }
    t->numbers[0] = m.content_bytes;
    t->numbers[1] = m.start_lsn;
    t->numbers[2] = m.part;
    t->rows[0] = m.chunk_count;
    t->rows[1] = m.place_count;
    t->rows[2] = m.pending_count;
    t->tables[1] = t->tables[0] + 3 * (size_t)m.chunk_count;
    t->tables[2] = t->tables[1] + PLACE_CELLS * (size_t)m.place_count;
    uint8_t *strings = (uint8_t *)(t->tables[2] + WORK_CELLS * (size_t)m.pending_count), *to = strings;
    for (uint32_t i = 0; i < m.chunk_count; i++) {
        struct chunk_row row = format_chunk_row(m.chunks, i);
        const uint64_t cells[] = {row.lsn, row.offset, row.content_bytes};
        memcpy(t->tables[0] + 3 * (size_t)i, cells, sizeof cells);
    }
    const uint8_t *at = m.places;
    for (uint32_t i = 0; i < m.place_count; i++) {
        struct place_row row = format_placed_place(&at, &state);
        const uint64_t cells[PLACE_CELLS] = {
            row.order_lsn,       row.enqueue_time_us, row.queue_id,         row.order_index,  state.delivery_count,
            state.not_before_us, state.expires_us,    state.header != NULL, state.note_bytes, state.header_bytes};
        memcpy(t->tables[1] + PLACE_CELLS * (size_t)i, cells, sizeof cells);
        give_state(&state, &to);
    }
    at = m.pending;
    for (uint32_t i = 0; i < m.pending_count; i++) {
        struct pending_row row = format_placed_pending(&at, &state);
        const uint64_t cells[WORK_CELLS] = {
            row.tx_id,           row.lsn,          row.queue_id,         row.kind,        state.delivery_count,
            state.not_before_us, state.expires_us, state.header != NULL, row.order_index, state.note_bytes,
            state.header_bytes};
        memcpy(t->tables[2] + WORK_CELLS * (size_t)i, cells, sizeof cells);
        give_state(&state, &to);
    }
    give_string(t, 0, strings, (uint64_t)(to - strings));
    return FORMAT_OK;
}

static enum format_result decode_place_states(const struct record *r, ls_test_record *t) {
    struct place_states p;
    enum format_result result = format_get_place_states(r, &p);
    if (result == FORMAT_OK) {
        t->rows[0] = p.row_count;
        for (uint32_t i = 0; i < p.row_count; i++) {
            struct state_row row = format_state_row(p.rows, i);
            const uint64_t cells[] = {row.id, row.not_before_us, row.expires_us, row.queue_id, row.delivery_count};
            memcpy(t->tables[0] + 5 * (size_t)i, cells, sizeof cells);
        }
    }
    return result;
}

enum format_result codec_decode_placed(const struct record *r, ls_test_record *t) {
    switch (r->type) {
    case MESSAGE_START_PLACED:
        return decode_start(r, t);
    case MESSAGE_PLACE:
        return decode_place(r, t);
    case MESSAGE_MOVE:
        return decode_move(r, t);
    case MESSAGE_RELOCATED_PLACED:
        return decode_relocated(r, t);
    default:
        return decode_place_states(r, t);
    }
}
