/*
 * Both forms of a relocated state, MESSAGE_RELOCATED and MESSAGE_RELOCATED_PLACED, read row by row: first all places, from
 * m->places on, then all pending work, from m->pending on.
 */
#ifndef LOGSTORE_ANALYSIS_RELOCATED_H
#define LOGSTORE_ANALYSIS_RELOCATED_H

#include "format/format.h"

static inline enum format_result relocated_get(const struct record *r, struct message_relocated *m) {
    return r->type == MESSAGE_RELOCATED ? format_get_relocated(r, m) : format_get_relocated_placed(r, m);
}

/* The place at *at, which moves behind it, and its state; in a MESSAGE_RELOCATED no place has one. */
static inline struct place_row relocated_place(const struct record *r, const uint8_t **at, struct place_state *state) {
    if (r->type == MESSAGE_RELOCATED_PLACED) {
        return format_placed_place(at, state);
    }
    const uint8_t *from = *at;
    *at += RELOCATED_PLACE_BYTES;
    *state = (struct place_state){.delivery_count = 0};
    return format_place_row(from, 0);
}

/* The same for pending work, and the state that it gives. */
static inline struct pending_row relocated_pending(const struct record *r, const uint8_t **at,
                                                   struct place_state *state) {
    if (r->type == MESSAGE_RELOCATED_PLACED) {
        return format_placed_pending(at, state);
    }
    const uint8_t *from = *at;
    *at += RELOCATED_WORK_BYTES;
    *state = (struct place_state){.delivery_count = 0};
    return format_pending_row(from, 0);
}

#endif
