/* Reading a log into a state. See inspect.h. */
#include "inspect/inspect.h"

#include <stdlib.h>

#include "checkpoint/checkpoint.h"
#include "os/error.h"

void inspection_free(struct inspection *i) {
    if (i != NULL) {
        replay_free(&i->replay);
        ls_reader_close(i->reader);
        free(i);
    }
}

/* ---- each record ---- */

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
        uint32_t id = format_queue_id(queues, n);
        one = id > one ? id : one;
    }
    i->queue_id_max = one > i->queue_id_max ? one : i->queue_id_max;
}

static void note_moved_queues(struct inspection *i, const struct record *r) {
    struct message_relocated m;
    if (r->type != MESSAGE_RELOCATED || format_get_relocated(r, &m) != FORMAT_OK) {
        return;
    }
    for (uint32_t n = 0; n < m.place_count; n++) {
        uint32_t id = format_place_row(m.places, n).queue_id;
        i->queue_id_max = id > i->queue_id_max ? id : i->queue_id_max;
    }
    for (uint32_t n = 0; n < m.pending_count; n++) {
        uint32_t id = format_pending_row(m.pending, n).queue_id;
        i->queue_id_max = id > i->queue_id_max ? id : i->queue_id_max;
    }
}

static int look_at_record(void *context, const struct scan_batch *b, const struct record *r) {
    struct inspection *i = context;
    note_queues(i, r);
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
    int rc = reader_open_known(v, store_dir, &state->clients->known, &i->reader);
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

/*
 * Repeats what the writer's open did to older work before its first batch. The log does not show all of it: a rollback
 * is logged later, and a staged message is dropped without a record. So this runs at the first batch of the writer's
 * epoch, or at the end if there is none yet.
 */
static void take_over(struct inspection *i) {
    struct replay *p = &i->replay;
    for (uint32_t n = 0; n < p->t->tx_slots; n++) {
        struct tx *tx = p->t->txs[n];
        if (tx != NULL && tx->started &&
            tx->state != LS_TX_PREPARED) { /* for all others, a relocated state or the outcome follows */
            tx->undone_at_open = true;     /* the rollback may not be logged yet */
            replay_undo(p, tx);
        }
    }
    replay_drop_work_on_deleted(p->t, NULL, NULL);
    for (uint32_t number = 0; number < p->t->message_slots; number++) {
        const struct message *m = table_message(p->t, number);
        if ((m->flags & (MESSAGE_FREE | MESSAGE_STAGED)) == MESSAGE_STAGED && message_pending(m) == 0) {
            table_remove(p->t, number);
        }
    }
    i->taken_over = true;
}

static int read_batch(struct inspection *i, const struct scan_batch *b) {
    if (i->replay.has_writer && !i->taken_over && b->batch.epoch == i->reader->hint.epoch) {
        take_over(i);
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

static int finish(struct inspection *i) {
    vfs *v = i->reader->v;
    struct state *s = i->state;
    if (i->replay.has_writer && !i->taken_over) {
        take_over(i);
    }
    s->report.scan_us = v->monotonic_us(v) - i->start_us;
    int rc = replay_settle(&i->replay);
    if (rc == LS_OK) {
        recovered_finish(&s->recovered);
        i->staged = count_staged(&s->table);
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
