/*
 * What is durable becomes the table, by the replay that an open runs. Between a replay and its settling the table has the
 * places with their keys and no queues; so it stays until this copy leads. See replica.h.
 */
#include <stdlib.h>
#include <string.h>

#include "read/damage.h"
#include "replica/replica.h"

/* A base that a batch names counts when a later one says that the first is durable. */
static void note_base(struct replica *r, const struct batch *b) {
    r->said_lsn = b->known_durable_lsn > r->said_lsn ? b->known_durable_lsn : r->said_lsn;
    if (b->base_lsn <= r->base_lsn) {
        return;
    }
    r->base_lsn = r->replay.base_lsn = b->base_lsn;
    if (r->named_count == REPLICA_BASES) {
        r->named_count--;
        memmove(r->named, r->named + 1, r->named_count * sizeof *r->named);
    }
    r->named[r->named_count].end_lsn = r->applied.lsn;
    r->named[r->named_count++].base_lsn = b->base_lsn;
}

int replica_apply_batch(struct replica *r, const struct scan_batch *b) {
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
    note_base(r, &b->batch);
    r->stats.applied_batches++;
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

int replica_apply(struct replica *r, uint64_t lsn) {
    int rc = LS_OK;
    while (rc == LS_OK && r->waiting_from < r->waiting_count && r->waiting[r->waiting_from].end_lsn <= lsn) {
        struct replica_batch *w = &r->waiting[r->waiting_from++];
        rc = apply_waiting(r, w);
        free(w->bytes);
        w->bytes = NULL;
    }
    if (r->waiting_from == r->waiting_count) {
        r->waiting_from = r->waiting_count = 0;
    }
    return rc;
}

/* ---- the files below the base ---- */

static uint64_t recyclable_below(struct replica *r) {
    uint64_t base_lsn = 0;
    uint32_t n = 0;
    while (n < r->named_count && r->named[n].end_lsn <= r->said_lsn) {
        base_lsn = r->named[n++].base_lsn;
    }
    r->named_count -= n;
    memmove(r->named, r->named + n, r->named_count * sizeof *r->named);
    return base_lsn;
}

int replica_recycle(struct replica *r) {
    const struct directory *d = &r->store->directory;
    uint64_t below_lsn = recyclable_below(r);
    size_t n = 0;
    while (n + 1 < r->segment_count && r->segments[n].first_lsn < below_lsn) {
        n++;
    }
    for (size_t i = 0; i < n; i++) {
        if (!replica_add_file(&r->spares, r->segments[i].first_lsn)) {
            return fail_memory();
        }
    }
    r->segment_count -= n;
    memmove(r->segments, r->segments + n, r->segment_count * sizeof *r->segments);
    r->stats.segments_recycled += n;
    while (r->spares.count > REPLICA_SPARES) {
        char name[SEGMENT_NAME_BYTES];
        format_segment_name(name, r->spares.all[--r->spares.count]);
        (void)d->v->unlink(d->v, d->dir, name);
    }
    return LS_OK;
}

int replica_durable(struct replica *r, uint64_t lsn) {
    if (lsn > r->end.lsn) {
        return fail(LS_REFUSED, "LSN %llu is called durable, and this copy ends at %llu (term %llu, index %llu)",
                    (unsigned long long)lsn, (unsigned long long)r->end.lsn, (unsigned long long)r->end.term,
                    (unsigned long long)r->end.index);
    }
    r->durable_lsn = lsn > r->durable_lsn ? lsn : r->durable_lsn;
    int rc = replica_apply(r, r->durable_lsn);
    return rc == LS_OK ? replica_recycle(r) : rc;
}
