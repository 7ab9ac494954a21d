/* Notes and headers of a message's places, read from the log for a relocation. See messages.c. */
#include "relocate/parts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "read/damage.h"

struct own_read {
    struct own_bytes from;
    uint8_t *bytes; /* NULL: not read yet, or none */
};

/* A record that was read last; several notes may lie in one. */
struct last_record {
    uint64_t lsn; /* 0: none */
    uint8_t *memory;
    struct record record;
};

/* Calls `visit` for each note and header of the message, in the order in which a state's rows are described. */
static void visit_own(struct message *m, void (*visit)(void *context, const struct own_bytes *b), void *context) {
    for (uint32_t i = 0; i < m->place_count; i++) {
        const struct own *own = place_state(&message_places(m)[i]).own;
        if (own != NULL && own->note.lsn != 0) {
            visit(context, &own->note);
        }
        if (own != NULL && own->header.lsn != 0) {
            visit(context, &own->header);
        }
    }
    for (const struct work *w = m->extra != NULL ? m->extra->work : NULL; w != NULL; w = w->next_of_message) {
        const struct own *own = w->state != NULL ? w->state->own : NULL;
        if (own != NULL && own->note.lsn != 0) {
            visit(context, &own->note);
        }
        if (own != NULL && own->header.lsn != 0) {
            visit(context, &own->header);
        }
    }
}

struct elsewhere {
    uint64_t lsn;
    bool found;
};

static void look_elsewhere(void *context, const struct own_bytes *b) {
    struct elsewhere *e = context;
    e->found = e->found || b->lsn != e->lsn;
}

bool own_is_in(struct message *m, uint64_t record_lsn) {
    struct elsewhere e = {.lsn = record_lsn};
    visit_own(m, look_elsewhere, &e);
    return !e.found;
}

/* ---- reading ---- */

static void count_one(void *context, const struct own_bytes *b) {
    (void)b;
    (*(size_t *)context)++;
}

static void note_one(void *context, const struct own_bytes *b) {
    struct own_source *own = context;
    own->read[own->read_count++] = (struct own_read){.from = *b};
}

/* (waits) Reads the record, from a write buffer if it is not written yet. LS_END: it is not in the log any more. */
static int read_record(struct message_mover *v, const struct own_bytes *b, struct last_record *last) {
    struct log *g = v->g;
    struct pin p;
    if (last->lsn == b->lsn) {
        return LS_OK;
    }
    free(last->memory);
    *last = (struct last_record){.lsn = 0};
    if (log_segment_lsn(g, b->lsn) == 0) {
        return LS_END;
    }
    const uint8_t *buffered = log_find_record(g, b->lsn, &p);
    if (buffered == NULL) {
        if (p.segment != NULL) {
            log_unpin(g, &p);
        }
        int rc = move_read_record(v, b->lsn, b->record_bytes, &last->memory, &last->record);
        last->lsn = rc == LS_OK ? b->lsn : 0;
        return rc;
    }
    struct record r;
    uint8_t *memory = malloc(b->record_bytes);
    if (memory == NULL) {
        return fail_memory();
    }
    memcpy(memory, buffered, b->record_bytes);
    if (format_get_record(memory, b->record_bytes, p.seed, b->lsn, &r) != FORMAT_OK) {
        free(memory);
        return fail_at(LS_CORRUPT, p.first_lsn, b->lsn, "a record that is to be moved is damaged");
    }
    *last = (struct last_record){.lsn = b->lsn, .memory = memory, .record = r};
    return LS_OK;
}

/* (waits) */
static int read_one(struct message_mover *v, uint64_t id, struct own_read *o, struct last_record *last) {
    const struct own_bytes *b = &o->from;
    int rc = read_record(v, b, last);
    if (rc != LS_OK) {
        return rc;
    }
    if (last->record.id != id || last->record.length != b->record_bytes || b->at > b->record_bytes ||
        b->bytes > b->record_bytes - b->at) {
        return fail_at(LS_CORRUPT, log_segment_lsn(v->g, b->lsn), b->lsn, "a record that is to be moved is damaged");
    }
    assert(last->memory != NULL);
    o->bytes = malloc(b->bytes + 1u);
    if (o->bytes == NULL) {
        return fail_memory();
    }
    memcpy(o->bytes, last->memory + b->at, b->bytes);
    return LS_OK;
}

int own_gather(struct message_mover *v, uint64_t id, uint64_t start_lsn, struct own_source *own) {
    own_free(own);
    struct message *m = chain_still_there(v, id, start_lsn);
    size_t count = 0;
    if (m == NULL) {
        return LS_OK;
    }
    uint32_t version = m->extra->version;
    visit_own(m, count_one, &count);
    if (count == 0) {
        return LS_OK;
    }
    own->read = calloc(count, sizeof *own->read);
    if (own->read == NULL) {
        return fail_memory();
    }
    visit_own(m, note_one, own);
    struct last_record last = {.lsn = 0};
    int rc = LS_OK;
    for (size_t i = 0; rc == LS_OK && i < count; i++) {
        rc = read_one(v, id, &own->read[i], &last);
    }
    free(last.memory);
    m = chain_still_there(v, id, start_lsn);
    return rc == LS_OK && m != NULL && m->extra->version != version ? LS_END : rc;
}

void own_free(struct own_source *own) {
    for (size_t i = 0; i < own->read_count; i++) {
        free(own->read[i].bytes);
    }
    free(own->read);
    *own = (struct own_source){.read = NULL};
}

/* ---- describing ---- */

static const uint8_t *bytes_of(struct own_source *own, const struct own_bytes *b) {
    return own->record != NULL ? own->record + b->at : own->read[own->described++].bytes;
}

struct place_state own_describe(struct own_source *own, const struct remembered *s) {
    struct place_state row = {
        .not_before_us = s->not_before_us,
        .expires_us = s->expires_us,
        .delivery_count = s->delivery_count,
    };
    if (s->own != NULL && s->own->note.lsn != 0) {
        row.note = bytes_of(own, &s->own->note);
        row.note_bytes = (uint8_t)s->own->note.bytes;
    }
    if (s->own != NULL && s->own->header.lsn != 0) {
        row.header = bytes_of(own, &s->own->header);
        row.header_bytes = s->own->header.bytes;
    }
    return row;
}
