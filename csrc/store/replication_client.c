/*
 * The log's client for stream 4, which every store has: the newest MEMBERS lives while the log is replicated, is relocated, and
 * comes back from a checkpoint's row. A CATALOG_CHANGE has no effect on a replay: the catalog takes it.
 */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "relocate/relocate.h"
#include "replay/replay.h"
#include "store/store.h"

enum { REPLICATION_STREAM = 4 };

/* A change of the catalog that was replayed, and was not taken yet. */
struct change {
    struct change *next;
    uint64_t lsn; /* of the last part */
    uint64_t end_lsn;
    uint32_t row_count;
    bool whole; /* its last part is there */
    uint64_t bytes;
    uint8_t *rows;
};

struct records {
    struct log *g;
    struct newest_members newest;
    bool lives;     /* it is counted as a live record */
    uint64_t index; /* see replication_note_index */
    struct {
        uint64_t epoch; /* of the last part; 0: there was none yet */
        uint32_t next;  /* the part that belongs here */
    } change;
    bool collects;
    struct change *first; /* oldest first; the one that was taken last stays until the next call */
    struct change *last;
    bool taken;
};

static void attach(void *context, struct log *g) { ((struct records *)context)->g = g; }

static enum format_result verify(const void *context, const struct record *r) {
    struct members m;
    struct catalog_change c;
    (void)context;
    return r->type == MEMBERS ? format_get_members(r, &m) : format_get_catalog_change(r, &c);
}

static void remember(struct newest_members *into, const struct record *r, const struct members *m) {
    into->id = r->id;
    into->lsn = r->lsn;
    into->index = m->index;
    into->config_bytes = m->config_bytes;
    memcpy(into->config, m->config, m->config_bytes);
}

/* ---- changes that wait for the catalog ---- */

static void drop_first(struct records *records) {
    struct change *c = records->first;
    records->first = c->next;
    records->last = c->next == NULL ? NULL : records->last;
    records->taken = false;
    free(c->rows);
    free(c);
}

static void drop_changes(struct records *records) {
    while (records->first != NULL) {
        drop_first(records);
    }
}

static void free_records(void *context) {
    if (context != NULL) {
        drop_changes(context);
    }
    free(context);
}

static bool add_rows(struct change *c, const struct catalog_change *from, uint64_t bytes) {
    uint8_t *rows = realloc(c->rows, c->bytes + bytes);
    if (rows == NULL) {
        return false;
    }
    memcpy(rows + c->bytes, from->rows, bytes);
    c->rows = rows;
    c->bytes += bytes;
    c->row_count += from->row_count;
    return true;
}

/* One that began below what is replayed, or that a new term left without its end, never counts here. */
static int collect(struct records *records, const struct record *r, const struct catalog_change *from, bool same_term) {
    bool unfinished = records->last != NULL && !records->last->whole;
    if (!records->collects || (from->part != 0 && !(unfinished && same_term))) {
        return LS_OK;
    }
    if (from->part == 0 && unfinished) {
        records->last->row_count = 0;
        records->last->bytes = 0;
    } else if (from->part == 0) {
        struct change *made = calloc(1, sizeof *made);
        if (made == NULL) {
            return fail_memory();
        }
        *(records->last != NULL ? &records->last->next : &records->first) = made;
        records->last = made;
    }
    struct change *c = records->last;
    if (!add_rows(c, from, (uint64_t)(r->bytes + r->length - from->rows))) {
        return fail_memory();
    }
    c->lsn = r->lsn;
    c->end_lsn = r->lsn + r->length;
    c->whole = (r->flags & FLAG_PART) == 0;
    return LS_OK;
}

void replication_collect(ls_store *store) {
    ((struct records *)log_client_of(store->state.clients, MEMBERS)->context)->collects = true;
}

bool replication_next_change(ls_store *store, ls_catalog_rows *change) {
    struct records *records = log_client_of(store->state.clients, MEMBERS)->context;
    if (records->taken) {
        drop_first(records);
    }
    const struct change *c = records->first;
    if (c == NULL || !c->whole) {
        return false;
    }
    records->taken = true;
    *change = (ls_catalog_rows){c->lsn, c->end_lsn, c->row_count, c->bytes, c->rows};
    return true;
}

bool replication_has_change(const ls_store *store) {
    const struct records *records = log_client_of(store->state.clients, MEMBERS)->context;
    const struct change *c = records->taken ? records->first->next : records->first;
    return c != NULL && c->whole;
}

/* The parts of one change follow one another. A new term does not go on with the change of another. */
static int replay_change(struct records *records, const struct replay *p, const struct record *r) {
    struct catalog_change c;
    if (format_get_catalog_change(r, &c) != FORMAT_OK) {
        return replay_malformed(p, r);
    }
    bool known = records->change.epoch != 0, same_term = records->change.epoch == p->newest.epoch;
    bool begins = c.part == 0 && !same_term;
    if (known && !begins && c.part != records->change.next) {
        return replay_inconsistent(p, r, "a part of a catalog change stands where another belongs");
    }
    records->change.epoch = p->newest.epoch;
    records->change.next = (r->flags & FLAG_PART) != 0 ? c.part + 1 : 0;
    return collect(records, r, &c, same_term);
}

/* Whether it is a copy of the newest one. */
static bool is_copy_of(const struct newest_members *newest, const struct record *r, const struct members *m) {
    return r->id == newest->id && m->index == newest->index && m->config_bytes == newest->config_bytes &&
           memcmp(m->config, newest->config, m->config_bytes) == 0;
}

static int replay(void *context, struct replay *p, const struct record *r) {
    struct records *records = context;
    struct members m;
    if (r->type != MEMBERS) {
        return replay_change(records, p, r);
    }
    if (format_get_members(r, &m) != FORMAT_OK) {
        return replay_malformed(p, r);
    }
    bool copied = (r->flags & FLAG_COPY) != 0;
    if (!copied && m.index != p->newest.index) {
        return replay_inconsistent(p, r, "a MEMBERS names another batch than its own");
    }
    if (!copied && p->newest.count != 1) {
        return replay_inconsistent(p, r, "a MEMBERS that is no copy is not alone in its batch");
    }
    if (copied && records->newest.id != 0 && !is_copy_of(&records->newest, r, &m)) {
        return replay_inconsistent(p, r, "a MEMBERS is copied, and is not the newest");
    }
    remember(&records->newest, r, &m);
    return LS_OK;
}

/* Of a log that is no longer replicated nothing lives. */
static int settle(void *context, struct replay *p) {
    struct records *records = context;
    const struct newest_members *newest = &records->newest;
    records->lives = false;
    if (p->newest.index == 0) {
        return LS_OK;
    }
    struct record r = {.lsn = newest->lsn, .id = newest->id};
    if (newest->id == 0) {
        r.lsn = p->base_lsn;
        return replay_inconsistent(p, &r, "it is replicated, and no MEMBERS stands in it");
    }
    if (!replay_count_live(p, newest->lsn, format_members_bytes(newest->config_bytes))) {
        return replay_inconsistent(p, &r, "the newest MEMBERS lies below the base");
    }
    records->lives = true;
    return LS_OK;
}

static void clear(void *context) {
    struct records *records = context;
    records->newest.id = 0;
    records->lives = false;
    records->change.epoch = 0;
    drop_changes(records);
}

static int relocate(void *context, struct mover *v, const struct record *r) {
    struct records *records = context;
    struct newest_members *newest = &records->newest;
    if (r->type != MEMBERS || !records->lives || newest->lsn != r->lsn) {
        return LS_OK;
    }
    int rc = log_reserve(v->g, r->length, RESERVE_MOVES);
    if (rc == LS_OK && records->lives && newest->lsn == r->lsn) {
        newest->lsn = relocate_copy(v, r, FLAG_COPY);
    }
    return rc;
}

/* The newest batch is sealed, and the checkpoint stands at its end. */
static bool put_rows(void *context, struct rows *rows) {
    const struct records *records = context;
    const struct newest_members *newest = &records->newest;
    uint64_t index = log_serves(records->g) ? log_batch_index(records->g) : records->index;
    if (index == 0 || newest->id == 0) {
        return true;
    }
    uint8_t *at = rows_put_client(rows, REPLICATION_STREAM, REPLICATION_ROW_BYTES + newest->config_bytes);
    if (at != NULL) {
        const struct replication_row row = {
            .index = index,
            .members_id = newest->id,
            .members_lsn = newest->lsn,
            .members_index = newest->index,
            .config_bytes = newest->config_bytes,
            .config = newest->config,
        };
        (void)format_put_replication_row(at, &row);
    }
    return at != NULL;
}

static int load_row(void *context, struct replay *p, const uint8_t *bytes, uint32_t length) {
    struct records *records = context;
    struct replication_row row;
    if (records->newest.id != 0 || format_get_replication_row(bytes, length, &row) != FORMAT_OK) {
        return LS_CORRUPT;
    }
    records->newest = (struct newest_members){
        .id = row.members_id,
        .lsn = row.members_lsn,
        .index = row.members_index,
        .config_bytes = row.config_bytes,
    };
    memcpy(records->newest.config, row.config, row.config_bytes);
    p->newest.index = p->newest.last_index = row.index;
    p->newest.any = true;
    return LS_OK;
}

struct log_client replication_client(void) {
    static const uint8_t streams[] = {REPLICATION_STREAM};
    static const struct client_calls calls = {
        .attach = attach,
        .free = free_records,
        .type_name = format_type_name,
        .verify = verify,
        .replay = replay,
        .settle = settle,
        .clear = clear,
        .relocate = relocate,
        .put_rows = put_rows,
        .load_row = load_row,
    };
    return (struct log_client){&calls, calloc(1, sizeof(struct records)), streams, sizeof streams};
}

void replication_note_index(ls_store *store, uint64_t index) {
    ((struct records *)log_client_of(store->state.clients, MEMBERS)->context)->index = index;
}

void replication_put_members(ls_store *store, const void *config, uint32_t config_bytes) {
    struct log *g = store->log;
    struct records *records = log_client_of(store->state.clients, MEMBERS)->context;
    struct slot s = log_slot(g, 0, 0, 0);
    struct members m = {.index = log_batch_index(g), .config_bytes = config_bytes, .config = config};
    s.id = s.lsn;
    uint32_t bytes = format_put_members(&s, &m);
    log_append(g, &s, MEMBERS, bytes);
    if (records->lives) { /* the one before counts no more, once this batch is durable */
        log_release_record(g, records->newest.lsn, format_members_bytes(records->newest.config_bytes));
    }
    log_live_record(g, s.lsn, bytes);
    records->newest =
        (struct newest_members){.id = s.lsn, .lsn = s.lsn, .index = m.index, .config_bytes = config_bytes};
    memcpy(records->newest.config, config, config_bytes);
    records->lives = true;
}

const struct newest_members *replication_members(const struct log_clients *clients) {
    const struct log_client *c = log_client_of(clients, MEMBERS);
    return c != NULL ? &((const struct records *)c->context)->newest : NULL;
}
