/*
 * Applies durable batches to the table, by the replay that an open runs. Between a replay and its settling the table
 * has the places with their keys and no queues; it stays in that state until this copy leads. See replica.h.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "os/array.h"
#include "read/damage.h"
#include "replica/replica.h"

/* This copy needs no record below it: a durable batch says that the batch which named this base is durable. */
static uint64_t needless_below(struct replica *r) {
    uint32_t n = 0;
    while (n < r->named_count && r->named[n].end_lsn <= r->said_lsn) {
        r->safe_base_lsn = r->named[n++].base_lsn;
    }
    r->named_count -= n;
    memmove(r->named, r->named + n, r->named_count * sizeof *r->named);
    return r->safe_base_lsn < r->hinted_base_lsn ? r->safe_base_lsn : r->hinted_base_lsn;
}

/* A base that a batch names counts only when a later batch says that the first one is durable. */
void replica_note_base(struct replica *r, uint64_t base_lsn, uint64_t end_lsn) {
    uint64_t newest = r->named_count > 0 ? r->named[r->named_count - 1].base_lsn : r->safe_base_lsn;
    if (base_lsn <= newest) {
        return;
    }
    if (r->named_count == REPLICA_BASES) {
        r->named_count--;
        memmove(r->named, r->named + 1, r->named_count * sizeof *r->named);
    }
    r->named[r->named_count].end_lsn = end_lsn;
    r->named[r->named_count++].base_lsn = base_lsn;
}

static void note_said(struct replica *r, const struct batch *b) {
    r->said_lsn = b->known_durable_lsn > r->said_lsn ? b->known_durable_lsn : r->said_lsn;
    (void)needless_below(r);
    if (b->base_lsn > r->base_lsn) {
        r->base_lsn = r->replay.base_lsn = b->base_lsn;
    }
    replica_note_base(r, b->base_lsn, r->applied.lsn);
}

/* Looks at each record before it is replayed. */
static int note_chain(void *context, const struct scan_batch *b, const struct record *record) {
    struct replica *r = context;
    (void)b;
    bool copied = (record->type == MESSAGE_START || record->type == MESSAGE_CHUNK) && (record->flags & FLAG_COPY) != 0;
    if (copied || record->type == MESSAGE_RELOCATED || record->type == MESSAGE_RELOCATED_PLACED) {
        bool completes = (record->flags & FLAG_INLINE) != 0 || (!copied && (record->flags & FLAG_PART) == 0);
        r->mid_chain = completes ? 0 : record->id;
    }
    if (record->type == QUEUE_DELETE) {
        replica_sweep_begin(r);
    }
    return LS_OK;
}

static int apply_batch(struct replica *r, const struct scan_batch *b) {
    r->replay.look = note_chain;
    r->replay.look_context = r;
    if (r->applied.term != 0 && r->applied.term != b->batch.epoch) {
        replay_take_over(&r->replay); /* as the leader's beginning did */
    }
    int rc = replay_batch(&r->replay, b);
    r->applied = (struct replica_end){
        .lsn = b->lsn + b->batch.bytes,
        .index = b->batch.index,
        .term = b->batch.epoch,
        .known_durable_lsn = b->batch.known_durable_lsn,
    };
    r->applied_batch.lsn = b->lsn;
    r->applied_batch.checksum = format_record_checksum(b->bytes);
    note_said(r, &b->batch);
    r->stats.applied_batches++;
    if (rc == LS_OK && b->batch.index != 0) {
        replica_sweep_some(r);
    }
    return rc;
}

int replica_apply_batch(struct replica *r, const struct scan_batch *b) {
    (void)pthread_mutex_lock(&r->table_lock);
    int rc = apply_batch(r, b);
    (void)pthread_mutex_unlock(&r->table_lock);
    return rc;
}

static int apply_waiting(struct replica *r, const struct replica_batch *w) {
    struct scan_batch b = {.bytes = w->bytes, .lsn = w->lsn, .first_lsn = w->first_lsn};
    struct record record;
    b.seed = format_segment_seed(r->store->meta.uuid, w->first_lsn, w->term);
    format_read_verified(w->bytes, &record);
    if (format_get_batch(&record, &b.batch) != FORMAT_OK) {
        return fail_at(LS_CORRUPT, w->first_lsn, w->lsn, "a batch in memory is not what was checked");
    }
    return replica_apply_batch(r, &b);
}

/* A batch that cannot be applied may be in the table in part, so no later batch may be applied. */
int replica_apply(struct replica *r, uint64_t lsn) {
    int rc = r->error == 0 ? LS_OK : replica_fail_poisoned(r);
    while (rc == LS_OK && r->waiting_from < r->waiting_count && r->waiting[r->waiting_from].end_lsn <= lsn) {
        struct replica_batch *w = &r->waiting[r->waiting_from++];
        rc = apply_waiting(r, w);
        free(w->bytes);
        w->bytes = NULL;
        r->error = rc == LS_OK ? 0 : rc == LS_NO_MEMORY ? ENOMEM : EIO;
    }
    if (r->waiting_from == r->waiting_count) {
        r->waiting_from = r->waiting_count = 0;
    }
    return rc;
}

/* ---- readers, and the files below the base ---- */

static void tell_readers(struct replica *r) {
    r->hinted_base_lsn = log_publish(r->store->log, r->applied.term, r->applied.lsn, r->base_lsn);
}

/* How many of the n oldest segments are kept by no hold; 0 if memory runs out. */
static size_t count_unheld(const struct replica *r, size_t n) {
    uint64_t *first_lsns = calloc(n, sizeof *first_lsns), size = r->store->meta.segment_size;
    size_t unheld = 0;
    if (first_lsns == NULL) {
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        first_lsns[i] = r->segments[i].first_lsn;
    }
    uint64_t held_lsn = log_held_from(r->store->log, first_lsns, n);
    while (unheld < n && first_lsns[unheld] + size <= held_lsn) {
        unheld++;
    }
    free(first_lsns);
    return unheld;
}

/* Unneeded files become spares, or are removed if there are enough spares; if memory for their names runs out, this
   happens later. */
static void recycle(struct replica *r) {
    const struct directory *d = &r->store->directory;
    uint64_t below_lsn = needless_below(r), size = r->store->meta.segment_size, catalog_lsn = r->catalog_lsn;
    size_t dead = 0;
    below_lsn = catalog_lsn / size * size < below_lsn ? catalog_lsn / size * size : below_lsn;
    below_lsn = kept_lsn(r->kept) < below_lsn ? kept_lsn(r->kept) : below_lsn;
    while (dead + 1 < r->segment_count && r->segments[dead].first_lsn < below_lsn) {
        dead++;
    }
    size_t n = dead > 0 ? count_unheld(r, dead) : 0;
    if (n == 0 || !array_grow(&r->spares.all, &r->spares.capacity, r->spares.count, n)) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        r->spares.all[r->spares.count++] = r->segments[i].first_lsn;
    }
    r->segment_count -= n;
    memmove(r->segments, r->segments + n, r->segment_count * sizeof *r->segments);
    r->stats.segments_recycled += n;
    while (r->spares.count > REPLICA_SPARES) {
        char name[SEGMENT_NAME_BYTES];
        format_segment_name(name, r->spares.all[--r->spares.count]);
        (void)d->v->unlink(d->v, d->dir, name);
    }
}

void replica_publish(struct replica *r) {
    tell_readers(r);
    recycle(r);
    replica_make_spare(r, false);
}

int replica_durable(struct replica *r, uint64_t lsn) {
    uint64_t before = r->applied.lsn;
    if (lsn > r->end.lsn) {
        return fail(LS_REFUSED, "LSN %llu is called durable, and this copy ends at %llu (term %llu, index %llu)",
                    (unsigned long long)lsn, (unsigned long long)r->end.lsn, (unsigned long long)r->end.term,
                    (unsigned long long)r->end.index);
    }
    r->durable_lsn = lsn > r->durable_lsn ? lsn : r->durable_lsn;
    int rc = replica_apply(r, r->durable_lsn);
    if (rc == LS_OK && r->applied.lsn > before) {
        replica_publish(r);
    }
    return rc;
}
