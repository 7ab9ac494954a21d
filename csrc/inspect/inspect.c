/* Reading a log into a state. See inspect.h. */
#include "inspect/inspect.h"

#include <stdlib.h>

#include "checkpoint/checkpoint.h"
#include "os/error.h"
#include "table/remembered.h"

void inspection_free(struct inspection *i) {
    if (i != NULL) {
        replay_free(&i->replay);
        ls_reader_close(i->reader);
        free(i);
    }
}

/* ---- each record ---- */

static void note_queue(struct inspection *i, uint32_t id) {
    i->queue_id_max = id > i->queue_id_max ? id : i->queue_id_max;
}

static void note_queues(struct inspection *i, const struct record *r) {
    struct message_start m;
    struct message_enqueue e;
    struct message_dequeue d;
    const uint8_t *queues = NULL;
    uint32_t count = 0, one = 0;
    if (r->type == MESSAGE_START && format_get_start(r, &m) == FORMAT_OK) {
        queues = m.queues;
        count = m.queue_count;
    } else if (r->type == MESSAGE_ENQUEUE && format_get_enqueue(r, &e) == FORMAT_OK) {
        queues = e.queues;
        count = e.queue_count;
    } else if (r->type == MESSAGE_DEQUEUE && format_get_dequeue(r, &d) == FORMAT_OK) {
        one = d.queue_id;
    } else if (r->type == QUEUE_DELETE && format_get_queue_delete(r, &one) != FORMAT_OK) {
        one = 0;
    }
    for (uint32_t n = 0; n < count; n++) {
        note_queue(i, format_queue_id(queues, n));
    }
    note_queue(i, one);
}

/* The same of records with states of places. */
static void note_queues_of_states(struct inspection *i, const struct record *r) {
    struct message_start m;
    struct place_state state;
    struct message_place p;
    struct message_move move;
    struct place_states s;
    if (r->type == MESSAGE_START_PLACED && format_get_start_placed(r, &m, &state) == FORMAT_OK) {
        for (uint32_t n = 0; n < m.queue_count; n++) {
            note_queue(i, format_queue_id(m.queues, n));
        }
    } else if (r->type == MESSAGE_PLACE && format_get_place(r, &p) == FORMAT_OK) {
        note_queue(i, p.queue_id);
    } else if (r->type == MESSAGE_MOVE && format_get_move(r, &move) == FORMAT_OK) {
        note_queue(i, move.queue_id);
        note_queue(i, move.from_queue_id);
    } else if (r->type == PLACE_STATES && format_get_place_states(r, &s) == FORMAT_OK) {
        for (uint32_t n = 0; n < s.row_count; n++) {
            note_queue(i, format_state_row(s.rows, n).queue_id);
        }
    }
}

static void note_moved_queues(struct inspection *i, const struct record *r) {
    struct message_relocated m;
    if (r->type == MESSAGE_RELOCATED && format_get_relocated(r, &m) == FORMAT_OK) {
        for (uint32_t n = 0; n < m.place_count; n++) {
            note_queue(i, format_place_row(m.places, n).queue_id);
        }
        for (uint32_t n = 0; n < m.pending_count; n++) {
            note_queue(i, format_pending_row(m.pending, n).queue_id);
        }
    } else if (r->type == MESSAGE_RELOCATED_PLACED && format_get_relocated_placed(r, &m) == FORMAT_OK) {
        struct place_state state;
        const uint8_t *at = m.places;
        for (uint32_t n = 0; n < m.place_count; n++) {
            note_queue(i, format_placed_place(&at, &state).queue_id);
        }
        at = m.pending;
        for (uint32_t n = 0; n < m.pending_count; n++) {
            note_queue(i, format_placed_pending(&at, &state).queue_id);
        }
    }
}

static int look_at_record(void *context, const struct scan_batch *b, const struct record *r) {
    struct inspection *i = context;
    note_queues(i, r);
    note_queues_of_states(i, r);
    note_moved_queues(i, r);
    return (i->flags & LS_INSPECT_CHECK) != 0 ? check_record(i, b, r) : LS_OK;
}

/* ---- opening ---- */

static int begin(struct inspection *i) {
    struct scan *s = &i->reader->scan;
    struct state *state = i->state;
    i->replay = (struct replay){.state = state,
                                .scan = s,
                                .t = &state->table,
                                .report = &state->report,
                                .base_lsn = s->base_lsn,
                                .inspects = true,
                                .has_writer = i->reader->live,
                                .look = look_at_record,
                                .look_context = i};
    if ((i->flags & LS_INSPECT_DIRECT) != 0) {
        ls_reader_past_cache(i->reader);
    }
    int rc = state_take_segments(state, s);
    if (rc == LS_OK && (i->flags & (LS_INSPECT_CHECK | LS_INSPECT_NO_CHECKPOINT)) == 0) {
        struct loaded_checkpoint loaded;
        bool used;
        rc = checkpoint_load(&i->replay, i->reader->dir, &loaded, &used);
        i->taken_over = used && i->reader->live && loaded.epoch == i->reader->hint.epoch;
    }
    return rc;
}

int inspection_open(vfs *v, const char *store_dir, int flags, struct state *state, struct inspection **made) {
    *made = NULL;
    struct inspection *i = calloc(1, sizeof *i);
    if (i == NULL) {
        return fail_memory();
    }
    i->flags = flags;
    i->state = state;
    i->start_us = v->monotonic_us(v);
    int rc = reader_open_known(v, store_dir, &state->clients->known, (flags & LS_INSPECT_CHECK) != 0, &i->reader);
    rc = rc == LS_OK ? begin(i) : rc;
    if (rc != LS_OK) {
        ls_error kept = *ls_last_error();
        inspection_free(i);
        return fail_again(&kept);
    }
    *made = i;
    return LS_OK;
}

/* ---- reading ---- */

static int read_batch(struct inspection *i, const struct scan_batch *b) {
    if (i->replay.has_writer && !i->taken_over && b->batch.epoch == i->reader->hint.epoch) {
        replay_take_over(&i->replay);
        i->taken_over = true;
    }
    int rc = (i->flags & LS_INSPECT_CHECK) != 0 ? check_batch(i, b) : LS_OK;
    return rc == LS_OK ? replay_batch(&i->replay, b) : rc;
}

static uint64_t count_staged(const struct table *t) {
    uint64_t staged = 0;
    for (uint32_t number = 0; number < t->message_slots; number++) {
        const struct message *m = table_message(t, number);
        staged += (m->flags & (MESSAGE_FREE | MESSAGE_STAGED)) == MESSAGE_STAGED && message_pending(m) == 0 ? 1 : 0;
    }
    return staged;
}

static uint64_t count_stated(const struct table *t) {
    uint64_t stated = 0;
    for (uint32_t number = 0; number < t->message_slots; number++) {
        struct message *m = table_message(t, number);
        for (uint32_t i = 0; (m->flags & MESSAGE_FREE) == 0 && i < m->place_count; i++) {
            const struct remembered state = place_state(&message_places(m)[i]);
            stated += remembers_nothing(&state) ? 0 : 1;
        }
    }
    return stated;
}

static int finish(struct inspection *i) {
    vfs *v = i->reader->v;
    struct state *s = i->state;
    if (i->replay.has_writer && !i->taken_over) {
        replay_take_over(&i->replay);
        i->taken_over = true;
    }
    s->report.scan_us = v->monotonic_us(v) - i->start_us;
    int rc = replay_settle(&i->replay);
    if (rc == LS_OK) {
        recovered_finish(&s->recovered);
        i->staged = count_staged(&s->table);
        i->stated = count_stated(&s->table);
        s->report.total_us = v->monotonic_us(v) - i->start_us;
        inspection_advance_base(i);
        i->finished = true;
    }
    return rc;
}

int inspection_step(struct inspection *i, uint64_t bytes, uint64_t *lsn) {
    if (i->result != LS_OK) {
        return fail_again(&i->failure);
    }
    int rc = i->finished ? LS_END : LS_OK;
    uint64_t done = 0;
    while (rc == LS_OK && done < bytes) {
        struct scan_batch b;
        rc = reader_next(i->reader, &b);
        if (rc == LS_OK) {
            done += b.batch.bytes;
            rc = read_batch(i, &b);
        } else if (rc == LS_END) {
            int finished = finish(i);
            rc = finished == LS_OK ? LS_END : finished;
        }
    }
    *lsn = i->reader->scan.next_lsn;
    if (rc != LS_OK && rc != LS_END) {
        i->failure = *ls_last_error();
        i->result = rc;
    }
    return rc;
}
