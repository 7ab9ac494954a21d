/*
 * The state of a pass as bytes, for the pass that resumes there: one state for each open message, and one for the rest.
 * Numbers are little-endian. The checksum of a message's state is seeded with its id, that of the rest with 0.
 *
 *   state: magic (4), version (4), checksum (8) of all that follows; id, epoch, epoch_lsn, start_time, content_bytes,
 *          record_bytes, copied_bytes (8 each); flags, header_bytes, record_count, copy_count, place_count, work_count (4 each);
 *          then the places (64 each) and the work (32 each)
 *   rest:  magic (4), version (4), checksum (8); epoch, epoch_lsn, the moving chain's id, named_bytes, start_lsn (8 each);
 *          start_bytes, header_bytes, next_part, published, copy_count, place_count, work_count, 0 (4 each); then copies
 *          (LSN, bytes, 8 each), and rows as a MESSAGE_RELOCATED has them (32 each)
 *
 * Version 3 of the rest is of a pass with bodies: the last word is the number of bytes of chunks (bodies_rest_put), which stand
 * at the end. It is written only if there are any.
 *
 * Version 1 is of places without states. Version 2 adds them at the end (life_placed_put), each with the number of its place, or
 * with the number of places and that of its work; also a note is work only there. So a program that knows only version 1
 * reads all that version 1 can say, and refuses the rest as newer.
 *
 * The bytes are not trusted: every number is checked before it is used.
 */
#include <stdlib.h>

#include "os/array.h"
#include "os/error.h"
#include "format/bytes.h"
#include "analysis/message_rows.h"
#include "format/xxh64.h"

enum {
    WITHOUT_STATES = 1, /* versions */
    WITH_STATES = 2,
    WITH_BODIES = 3,
    PREFIX_BYTES = 16,
    STATE_BYTES_MIN = 96,
    REST_BYTES_MIN = 88,
    PLACE_BYTES = 64,
    WORK_BYTES = 32,
    KEPT_FLAGS = LIFE_WHOLE | LIFE_PUBLISHED | LIFE_ENQUEUED | LIFE_HEADER,
    HAS_GONE = 1, /* of work: its queue was deleted */
    COPY_BYTES = 16,
    HAS_PREPARED = 2, /* ... its transaction is prepared */
};

static const uint32_t state_magic = 0x534d534c, rest_magic = 0x524d534c; /* LSMS, LSMR */

static bool need_blob(pass *p, size_t bytes) {
    if (bytes > p->blob_capacity) {
        uint8_t *grown = realloc(p->blob, bytes);
        if (grown == NULL) {
            return false;
        }
        p->blob = grown;
        p->blob_capacity = bytes;
    }
    memset(p->blob, 0, bytes);
    return true;
}

static void seal(uint8_t *at, size_t bytes, uint32_t magic, uint32_t version, uint64_t seed) {
    put32(at, magic);
    put32(at + 4, version);
    put64(at + 8, xxh64(at + PREFIX_BYTES, bytes - PREFIX_BYTES, seed));
}

/* NULL, or a text that says what is wrong. */
static const char *judge_seal(const uint8_t *at, size_t bytes, size_t bytes_min, uint32_t magic, uint64_t seed) {
    const uint32_t newest = magic == rest_magic ? WITH_BODIES : WITH_STATES;
    if (bytes < 8 || get32(at) != magic) {
        return "it is something else";
    }
    if (get32(at + 4) < WITHOUT_STATES || get32(at + 4) > newest) {
        return get32(at + 4) > newest ? "it is of a newer version" : "its version is impossible";
    }
    if (bytes < bytes_min) {
        return "it is cut short";
    }
    return get64(at + 8) != xxh64(at + PREFIX_BYTES, bytes - PREFIX_BYTES, seed) ? "its checksum differs" : NULL;
}

static uint32_t version_at(const uint8_t *at) { return get32(at + 4); }

/* ---- states, after the rows of places and work ---- */

/* The version that can say all of it, and the bytes of the states. */
static uint32_t measure_states(const struct life_place *places, uint32_t place_count, const struct life_work *work,
                               uint32_t work_count, size_t *bytes) {
    bool notes = false;
    *bytes = 0;
    for (uint32_t i = 0; i < place_count; i++) {
        *bytes += life_placed_bytes(places[i].state);
    }
    for (uint32_t i = 0; i < work_count; i++) {
        *bytes += life_placed_bytes(work[i].state);
        notes = notes || work[i].kind == PENDING_NOTE;
    }
    return *bytes > 0 || notes ? WITH_STATES : WITHOUT_STATES;
}

static void put_states(uint8_t *at, const struct life_place *places, uint32_t place_count, const struct life_work *work,
                       uint32_t work_count) {
    for (uint32_t i = 0; i < place_count; i++) {
        at = life_placed_put(at, i, places[i].state);
    }
    for (uint32_t i = 0; i < work_count; i++) {
        at = life_placed_put(at, place_count + i, work[i].state);
    }
}

/* A state that this work gives; a dequeue gives none, and a note has nothing else. */
static bool is_state_of(uint8_t kind, const struct life_placed *kept) {
    const struct place_state s = life_placed_view(kept);
    bool bare = s.not_before_us == 0 && s.expires_us == 0 && s.delivery_count == 0 && s.header == NULL;
    return kept == NULL || kind == PENDING_ENQUEUE || (kind == PENDING_NOTE && bare);
}

static bool is_kind(uint8_t kind, uint32_t version) {
    return kind == PENDING_ENQUEUE || kind == PENDING_DEQUEUE || (kind == PENDING_NOTE && version >= WITH_STATES);
}

/* ---- a message's ---- */

static void put_place(uint8_t *at, const struct life_place *place) {
    put64(at, place->enqueue_lsn);
    put64(at + 8, place->enqueue_time_us);
    put64(at + 16, place->enqueue_tx);
    put64(at + 24, place->end.lsn);
    put64(at + 32, place->end.time_us);
    put64(at + 40, place->end.tx_id);
    put32(at + 48, place->queue_id);
    put32(at + 52, place->order_index);
    put32(at + 56, place->ended_as);
    put16(at + 60, place->end.delivery_count);
    at[62] = place->end.reason;
    at[63] = place->end.how;
}

static void put_work(const pass *p, uint8_t *at, const struct life_work *w) {
    const struct life_tx *tx = lives_tx(p, w->tx_id);
    put64(at, w->tx_id);
    put64(at + 8, w->lsn);
    put32(at + 16, w->queue_id);
    put32(at + 20, w->order_index);
    put16(at + 24, w->delivery_count);
    at[26] = w->reason;
    at[27] = w->kind;
    at[28] = (uint8_t)((w->queue_gone ? HAS_GONE : 0) | (tx != NULL && tx->prepared ? HAS_PREPARED : 0));
}

int life_state_put(pass *p, const struct life *l, size_t *bytes) {
    const struct life_place one = {.enqueue_lsn = l->enqueue_lsn,
                                   .enqueue_time_us = l->enqueue_time_us,
                                   .enqueue_tx = l->enqueue_tx,
                                   .queue_id = l->queue_id,
                                   .order_index = l->order_index};
    const struct life_place *places = l->more != NULL ? l->more->places : &one;
    uint32_t place_count = l->more != NULL ? l->more->place_count : (l->flags & LIFE_PLACE) != 0 ? 1 : 0;
    uint32_t work_count = life_work_count(l);
    const struct life_work *work = l->more != NULL ? l->more->work : NULL;
    size_t state_bytes;
    uint32_t version = measure_states(places, place_count, work, work_count, &state_bytes);
    *bytes = STATE_BYTES_MIN + (size_t)place_count * PLACE_BYTES + (size_t)work_count * WORK_BYTES + state_bytes;
    if (!need_blob(p, *bytes)) {
        return fail_memory();
    }
    uint8_t *at = p->blob;
    const uint64_t longs[] = {l->id,           p->epoch,       p->epoch_lsn, l->start_time_us, l->content_bytes,
                              l->record_bytes, l->copied_bytes};
    const uint32_t words[] = {l->flags & KEPT_FLAGS, l->header_bytes, l->record_count,
                              l->copy_count,         place_count,     work_count};
    for (size_t i = 0; i < sizeof longs / sizeof *longs; i++) {
        put64(at + PREFIX_BYTES + 8 * i, longs[i]);
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        put32(at + 72 + 4 * i, words[i]);
    }
    at += STATE_BYTES_MIN;
    for (uint32_t i = 0; i < place_count; i++, at += PLACE_BYTES) {
        put_place(at, &places[i]);
    }
    for (uint32_t i = 0; i < work_count; i++, at += WORK_BYTES) {
        put_work(p, at, &work[i]);
    }
    put_states(at, places, place_count, work, work_count);
    seal(p->blob, *bytes, state_magic, version, l->id);
    return LS_OK;
}

static bool is_below(const pass *p, uint64_t lsn) { return lsn > 0 && lsn < p->start_lsn; }
static bool is_below_or_none(const pass *p, uint64_t lsn) { return lsn < p->start_lsn; }
static bool is_number(uint64_t n) { return n <= INT64_MAX; }
static bool is_queue(uint32_t id) { return id > 0 && id <= QUEUE_ID_MAX; }

static bool get_place(const pass *p, const uint8_t *at, uint32_t place_count, struct life_place *place) {
    *place = (struct life_place){
        .enqueue_lsn = get64(at),
        .enqueue_time_us = get64(at + 8),
        .enqueue_tx = get64(at + 16),
        .end = {.lsn = get64(at + 24),
                .time_us = get64(at + 32),
                .tx_id = get64(at + 40),
                .delivery_count = get16(at + 60),
                .reason = at[62],
                .how = at[63]},
        .queue_id = get32(at + 48),
        .order_index = get32(at + 52),
        .ended_as = get32(at + 56),
    };
    const struct ending *e = &place->end;
    bool begun = is_below(p, place->enqueue_lsn) && is_number(place->enqueue_time_us) &&
                 is_below_or_none(p, place->enqueue_tx) && is_queue(place->queue_id) &&
                 place->order_index <= ORDER_INDEX_MAX;
    bool told = is_below_or_none(p, e->lsn) && is_number(e->time_us) && is_below_or_none(p, e->tx_id) &&
                e->reason <= DEQUEUE_REASON_MAX && e->how <= PLACE_QUEUE_DELETED;
    bool open = e->how == PLACE_OPEN;
    bool nothing = e->lsn == 0 && e->time_us == 0 && e->tx_id == 0 && e->reason == 0 && e->delivery_count == 0;
    bool has_lsn = (e->how == PLACE_OPEN) == (e->lsn == 0);
    bool counted = open ? place->ended_as == 0 && nothing : place->ended_as > 0 && place->ended_as <= place_count;
    return begun && told && has_lsn && counted;
}

static bool get_work(const pass *p, const uint8_t *at, uint32_t version, struct life_work *w, bool *prepared) {
    *w = (struct life_work){
        .tx_id = get64(at),
        .lsn = get64(at + 8),
        .queue_id = get32(at + 16),
        .order_index = get32(at + 20),
        .delivery_count = get16(at + 24),
        .reason = at[26],
        .kind = at[27],
        .queue_gone = (at[28] & HAS_GONE) != 0,
    };
    *prepared = (at[28] & HAS_PREPARED) != 0;
    return is_below(p, w->tx_id) && is_below(p, w->lsn) && w->tx_id < w->lsn && is_queue(w->queue_id) &&
           w->order_index <= ORDER_INDEX_MAX && w->reason <= DEQUEUE_REASON_MAX && is_kind(w->kind, version) &&
           at[28] <= (HAS_GONE | HAS_PREPARED) && all_zero(at + 29, 3);
}

static bool get_work_state(struct life_placed_reader *states, uint32_t number, struct life_work *w, int *rc) {
    if (!life_placed_get(states, number, &w->state, rc)) {
        return false;
    }
    if (is_state_of(w->kind, w->state)) {
        return true;
    }
    free(w->state);
    w->state = NULL;
    return false;
}

/* Decodes the fixed part of a state into *l. NULL, or a text that says what is wrong. */
static const char *get_life(const pass *p, const uint8_t *at, size_t n, uint64_t id, struct life *l) {
    *l = (struct life){
        .id = get64(at + 16),
        .start_time_us = get64(at + 40),
        .content_bytes = get64(at + 48),
        .record_bytes = get64(at + 56),
        .copied_bytes = get64(at + 64),
        .flags = get32(at + 72),
        .header_bytes = get32(at + 76),
        .record_count = get32(at + 80),
        .copy_count = get32(at + 84),
    };
    uint64_t places = get32(at + 88), work = get32(at + 92);
    uint64_t rows_end = STATE_BYTES_MIN + places * PLACE_BYTES + work * WORK_BYTES;
    bool sized = places <= LIFE_PLACES_MAX && work <= LIFE_WORK_MAX &&
                 (version_at(at) == WITH_STATES ? n >= rows_end : n == rows_end);
    bool numbers = is_number(l->start_time_us) && is_number(l->content_bytes) && is_number(l->record_bytes) &&
                   is_number(l->copied_bytes) && l->record_count <= INT32_MAX && l->copy_count <= INT32_MAX &&
                   (l->flags & ~(uint32_t)KEPT_FLAGS) == 0;
    bool lsns = get64(at + 24) <= INT64_MAX && is_below_or_none(p, get64(at + 32));
    if (!sized || !numbers || !lsns) {
        return "its contents are impossible";
    }
    if (l->id != id) {
        return "it is another message's";
    }
    return is_below(p, id) ? NULL : "the message begins behind where this pass does";
}

static const char *take_life(pass *p, uint32_t number, const uint8_t *at, size_t n, int *rc) {
    uint32_t places = get32(at + 88), work = get32(at + 92), version = version_at(at);
    size_t rows_end = STATE_BYTES_MIN + (size_t)places * PLACE_BYTES + (size_t)work * WORK_BYTES;
    struct life_placed_reader states = {.at = at + rows_end, .bytes = n - rows_end};
    bool sound = places == 0 || !life_is_staged(life_at(p, number));
    at += STATE_BYTES_MIN;
    assert(n >= rows_end);
    for (uint32_t i = 0; sound && *rc == LS_OK && i < places; i++, at += PLACE_BYTES) {
        struct life_place place;
        sound = get_place(p, at, places, &place) && life_placed_get(&states, i, &place.state, rc);
        *rc = sound && *rc == LS_OK ? life_add_place(p, number, &place) : *rc;
    }
    for (uint32_t i = 0; sound && *rc == LS_OK && i < work; i++, at += WORK_BYTES) {
        struct life_work w;
        bool prepared;
        sound = get_work(p, at, version, &w, &prepared) && get_work_state(&states, places + i, &w, rc);
        *rc = sound && *rc == LS_OK ? life_add_work(p, number, &w) : *rc;
        if (sound && *rc == LS_OK && prepared) {
            lives_tx(p, w.tx_id)->prepared = true;
        }
    }
    const struct life *l = life_at(p, number);
    bool alive = life_is_staged(l) || life_open_places(l) > 0 || life_work_count(l) > 0;
    return *rc != LS_OK || (sound && alive && states.bytes == 0) ? NULL : "its contents are impossible";
}

int life_state_get(pass *p, uint64_t id, const uint8_t *bytes, size_t n) {
    uint32_t number;
    struct life l;
    const char *wrong = judge_seal(bytes, n, STATE_BYTES_MIN, state_magic, id);
    wrong = wrong == NULL ? get_life(p, bytes, n, id, &l) : wrong;
    wrong = wrong == NULL && lives_find(p, id, &number) != NULL ? "the message is there twice" : wrong;
    int rc = LS_OK;
    if (wrong == NULL) {
        rc = lives_add(p, id, l.flags, &number);
    }
    if (wrong == NULL && rc == LS_OK) {
        struct life *made = life_at(p, number);
        made->start_time_us = l.start_time_us;
        made->content_bytes = l.content_bytes;
        made->record_bytes = l.record_bytes;
        made->copied_bytes = l.copied_bytes;
        made->header_bytes = l.header_bytes;
        made->record_count = l.record_count;
        made->copy_count = l.copy_count;
        wrong = take_life(p, number, bytes, n, &rc);
    }
    if (wrong != NULL) {
        return fail(LS_OPTION,
                    "cannot resume open message %llu: %s. Use the open set that the last run left, or begin "
                    "without one",
                    (unsigned long long)id, wrong);
    }
    if (rc == LS_OK && get64(bytes + 24) > p->epoch) {
        p->epoch = get64(bytes + 24);
        p->epoch_lsn = get64(bytes + 32);
    }
    return rc;
}

/* ---- the rest ---- */

static void put_rows(uint8_t *at, const struct life_moving *v) {
    for (uint32_t i = 0; i < v->copy_count; i++, at += COPY_BYTES) {
        put64(at, v->copies[i].lsn);
        put64(at + 8, v->copies[i].bytes);
    }
    for (uint32_t i = 0; i < v->place_count; i++, at += WORK_BYTES) {
        put64(at, v->places[i].enqueue_lsn);
        put64(at + 8, v->places[i].enqueue_time_us);
        put32(at + 16, v->places[i].queue_id);
        put32(at + 20, v->places[i].order_index);
    }
    for (uint32_t i = 0; i < v->work_count; i++, at += WORK_BYTES) {
        put64(at, v->work[i].tx_id);
        put64(at + 8, v->work[i].lsn);
        put32(at + 16, v->work[i].queue_id);
        put32(at + 20, v->work[i].kind);
        put32(at + 24, v->work[i].order_index);
    }
    put_states(at, v->places, v->place_count, v->work, v->work_count);
}

int ls_message_rows_rest(ls_message_rows *rows, const uint8_t **rest, size_t *bytes) {
    const struct life_moving *v = &rows->moving;
    *rest = NULL;
    *bytes = 0;
    if (rows->epoch == 0) {
        return LS_OK;
    }
    size_t state_bytes;
    uint32_t version = measure_states(v->places, v->place_count, v->work, v->work_count, &state_bytes);
    size_t body_bytes = bodies_rest_bytes(rows);
    size_t n = REST_BYTES_MIN + (size_t)v->copy_count * COPY_BYTES +
               ((size_t)v->place_count + v->work_count) * WORK_BYTES + state_bytes + body_bytes;
    version = body_bytes > 0 ? WITH_BODIES : version;
    if (!need_blob(rows, n)) {
        return fail_memory();
    }
    const uint64_t longs[] = {rows->epoch, rows->epoch_lsn, v->id, v->named_bytes, v->start_lsn};
    const uint32_t words[] = {v->start_bytes, v->header_bytes, v->next_part,  v->published ? 1 : 0,
                              v->copy_count,  v->place_count,  v->work_count, (uint32_t)body_bytes};
    for (size_t i = 0; i < sizeof longs / sizeof *longs; i++) {
        put64(rows->blob + PREFIX_BYTES + 8 * i, longs[i]);
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        put32(rows->blob + 56 + 4 * i, words[i]);
    }
    put_rows(rows->blob + REST_BYTES_MIN, v);
    bodies_rest_put(rows, rows->blob + n - body_bytes);
    seal(rows->blob, n, rest_magic, version, 0);
    *rest = rows->blob;
    *bytes = n;
    return LS_OK;
}

/* False: a row is impossible. *rc: LS_NO_MEMORY, or LS_OK. */
static bool get_copies(pass *p, const uint8_t *at, uint32_t n, int *rc) {
    struct life_moving *v = &p->moving;
    bool sound = true;
    for (uint32_t i = 0; sound && *rc == LS_OK && i < n; i++, at += COPY_BYTES) {
        uint64_t lsn = get64(at), before = i > 0 ? v->copies[i - 1].lsn : 0;
        sound = is_below(p, lsn) && lsn > before && get64(at + 8) <= UINT32_MAX;
        *rc = array_grow(&v->copies, &v->copy_capacity, i, 1) ? LS_OK : fail_memory();
        if (*rc == LS_OK) {
            v->copies[v->copy_count++] = (struct life_copy){.lsn = lsn, .bytes = get32(at + 8)};
        }
    }
    return sound;
}

/* One row, and its state. */
static bool get_moved_place(const pass *p, const uint8_t *at, struct life_placed_reader *states, uint32_t number,
                            struct life_place *place, int *rc) {
    const struct place_row row = format_place_row(at, 0);
    *place = (struct life_place){.enqueue_lsn = row.order_lsn,
                                 .enqueue_time_us = row.enqueue_time_us,
                                 .queue_id = row.queue_id,
                                 .order_index = row.order_index};
    return is_below(p, row.order_lsn) && is_queue(row.queue_id) && is_number(row.enqueue_time_us) &&
           row.order_index <= ORDER_INDEX_MAX && life_placed_get(states, number, &place->state, rc);
}

static bool get_moved_work(const pass *p, const uint8_t *at, uint32_t version, struct life_placed_reader *states,
                           uint32_t number, struct life_work *work, int *rc) {
    const struct pending_row row = format_pending_row(at, 0);
    *work = (struct life_work){.tx_id = row.tx_id,
                               .lsn = row.lsn,
                               .queue_id = row.queue_id,
                               .order_index = row.order_index,
                               .kind = (uint8_t)row.kind};
    return is_below(p, row.tx_id) && is_below(p, row.lsn) && row.tx_id < row.lsn && is_queue(row.queue_id) &&
           row.order_index <= ORDER_INDEX_MAX && row.kind <= PENDING_NOTE && is_kind(work->kind, version) &&
           get_work_state(states, number, work, rc);
}

static bool get_rows(pass *p, const uint8_t *at, uint32_t version, uint32_t places, uint32_t work,
                     struct life_placed_reader states, int *rc) {
    bool sound = true;
    for (uint32_t i = 0; sound && *rc == LS_OK && i < places; i++, at += WORK_BYTES) {
        struct life_place place;
        sound = get_moved_place(p, at, &states, i, &place, rc);
        if (sound && *rc == LS_OK && !moves_take_place(&p->moving, &place)) {
            *rc = fail_memory();
        }
    }
    for (uint32_t i = 0; sound && *rc == LS_OK && i < work; i++, at += WORK_BYTES) {
        struct life_work w;
        sound = get_moved_work(p, at, version, &states, places + i, &w, rc);
        if (sound && *rc == LS_OK && !moves_take_work(&p->moving, &w)) {
            *rc = fail_memory();
        }
    }
    return sound && (*rc != LS_OK || states.bytes == 0);
}

static const char *take_rest(pass *p, const uint8_t *at, size_t n, int *rc) {
    struct life_moving *v = &p->moving;
    const uint32_t version = version_at(at), body_bytes = get32(at + 84);
    uint64_t copies = get32(at + 72), places = get32(at + 76), work = get32(at + 80);
    uint64_t rows_end = REST_BYTES_MIN + copies * COPY_BYTES + (places + work) * WORK_BYTES;
    bool sound = places <= LIFE_PLACES_MAX && work <= LIFE_WORK_MAX && (version == WITH_BODIES) == (body_bytes > 0) &&
                 (version >= WITH_STATES ? n >= rows_end + body_bytes : n == rows_end);
    sound = sound && get64(at + 16) > 0 && is_number(get64(at + 16)) && is_below_or_none(p, get64(at + 24)) &&
            is_below_or_none(p, get64(at + 32)) && is_number(get64(at + 40)) && is_below_or_none(p, get64(at + 48)) &&
            get32(at + 68) <= 1;
    if (!sound) {
        return "its contents are impossible";
    }
    moves_forget(p);
    p->epoch = get64(at + 16);
    p->epoch_lsn = get64(at + 24);
    v->id = get64(at + 32);
    v->named_bytes = get64(at + 40);
    v->start_lsn = get64(at + 48);
    v->start_bytes = get32(at + 56);
    v->header_bytes = get32(at + 60);
    v->next_part = get32(at + 64);
    v->published = get32(at + 68) != 0;
    const struct life_placed_reader states = {.at = at + rows_end, .bytes = n - (size_t)rows_end - body_bytes};
    const uint8_t *bodies = at + n - body_bytes;
    at += REST_BYTES_MIN;
    sound = get_copies(p, at, (uint32_t)copies, rc) &&
            (*rc != LS_OK ||
             get_rows(p, at + copies * COPY_BYTES, version, (uint32_t)places, (uint32_t)work, states, rc)) &&
            (*rc != LS_OK || bodies_rest_take(p, bodies, body_bytes, rc));
    return sound ? NULL : "its contents are impossible";
}

int ls_message_rows_seed_rest(ls_message_rows *rows, const uint8_t *rest, size_t bytes) {
    if (rows->failure != LS_OK) {
        return fail_again(&rows->error);
    }
    int rc = LS_OK;
    const char *wrong = judge_seal(rest, bytes, REST_BYTES_MIN, rest_magic, 0);
    wrong = wrong == NULL ? take_rest(rows, rest, bytes, &rc) : wrong;
    if (wrong != NULL) {
        rc = fail(LS_OPTION,
                  "cannot resume behind the last run: %s. Use the open set as that run left it, or begin without "
                  "one",
                  wrong);
    }
    return pass_keep_failure(rows, rc);
}

static int seed_one(ls_message_rows *rows, uint64_t id, const uint8_t *state, size_t bytes) {
    if (rows->failure != LS_OK) {
        return fail_again(&rows->error);
    }
    return pass_keep_failure(rows, life_state_get(rows, id, state, bytes));
}

int ls_message_rows_seed_all(ls_message_rows *rows, const int64_t *ids, const uint8_t *states, const int32_t *offsets,
                             size_t n) {
    int rc = LS_OK;
    for (size_t i = 0; rc == LS_OK && i < n; i++) {
        if (ids[i] <= 0 || offsets[i] < 0 || offsets[i + 1] < offsets[i]) {
            return pass_keep_failure(
                rows, fail(LS_OPTION, "row %llu of the open set has an impossible id or state", (unsigned long long)i));
        }
        rc = seed_one(rows, (uint64_t)ids[i], states + offsets[i], (size_t)(offsets[i + 1] - offsets[i]));
    }
    return rc;
}
