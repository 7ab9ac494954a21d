/*
 * Digests of segments, made once and kept within a limit: times of batches, outcomes of transactions. See lookback.h.
 */
#include "analysis/lookback_parts.h"

#include <stdlib.h>

#include "os/array.h"
#include "os/error.h"

#define DIGESTS_BYTES_MAX ((uint64_t)256 << 20)

static uint64_t bytes_of(const struct digest *d) {
    return d->time_count * sizeof *d->times + d->outcome_count * sizeof *d->outcomes;
}

static void forget(struct lookback *l, struct digest *d) {
    struct batch_time *times = d->times;
    struct outcome *outcomes = d->outcomes;
    l->digest_bytes -= bytes_of(d);
    *d = (struct digest){.times = NULL, .outcomes = NULL};
    free(times);
    free(outcomes);
}

void look_digests_free(struct lookback *l) {
    for (size_t i = 0; i < l->digest_count; i++) {
        forget(l, &l->digests[i]);
    }
}

static struct digest *oldest_but(struct lookback *l, const struct digest *kept) {
    struct digest *oldest = NULL;
    for (size_t i = 0; i < l->digest_count; i++) {
        struct digest *d = &l->digests[i];
        if (d != kept && bytes_of(d) > 0 && (oldest == NULL || d->used < oldest->used)) {
            oldest = d;
        }
    }
    return oldest;
}

/* Drops the least recently used digests, never the current one. */
static void make_room(struct lookback *l, const struct digest *kept) {
    for (size_t i = 0; i < l->digest_count && l->digest_bytes > DIGESTS_BYTES_MAX; i++) {
        struct digest *oldest = oldest_but(l, kept);
        if (oldest != NULL) {
            forget(l, oldest);
        }
    }
}

static int add_time(struct lookback *l, struct digest *d, uint64_t lsn, uint64_t time_us) {
    if (!array_grow(&d->times, &d->time_capacity, d->time_count, 1)) {
        return fail_memory();
    }
    d->times[d->time_count++] = (struct batch_time){.lsn = lsn, .time_us = time_us};
    l->digest_bytes += sizeof *d->times;
    return LS_OK;
}

static int add_outcome(struct lookback *l, struct digest *d, const struct outcome *o) {
    if (!array_grow(&d->outcomes, &d->outcome_capacity, d->outcome_count, 1)) {
        return fail_memory();
    }
    d->outcomes[d->outcome_count++] = *o;
    l->digest_bytes += sizeof *d->outcomes;
    return LS_OK;
}

/* Notes a record that decides or prepares a transaction. */
static int note_outcome(struct lookback *l, struct digest *d, const struct record *r, uint64_t time_us) {
    struct outcome o = {.tx_id = r->id, .lsn = r->lsn, .time_us = time_us};
    struct tx_relocated t;
    switch (r->type) {
    case TX_COMMIT:
        o.what = LOOK_COMMITTED;
        break;
    case TX_ROLLBACK:
        o.what = LOOK_ROLLED_BACK;
        break;
    case TX_RELOCATED:
        if (format_get_tx_relocated(r, &t) != FORMAT_OK || t.state != TX_STATE_PREPARED) {
            return LS_OK;
        }
        o.what = LOOK_PREPARED;
        break;
    case TX_PREPARE:
        o.what = LOOK_PREPARED;
        break;
    default:
        return LS_OK;
    }
    return add_outcome(l, d, &o);
}

static bool is_outcome_type(uint16_t type) {
    return type == TX_COMMIT || type == TX_ROLLBACK || type == TX_PREPARE || type == TX_RELOCATED;
}

/*
 * Reads the outcomes in one batch, whose batch record is verified. Checks the header of every record, so that no
 * outcome is missed.
 */
static int read_outcomes(struct lookback *l, const struct scan_file *f, uint64_t lsn, const struct batch *b,
                         uint64_t seed, struct digest *d) {
    const uint8_t *at;
    size_t available;
    int rc = look_bytes(l, f, lsn - f->first_lsn, b->bytes, LOOK_WINDOW_BYTES, &at, &available);
    for (uint32_t offset = BATCH_RECORD_BYTES; rc == LS_OK && offset < b->bytes;) {
        struct record r;
        enum format_result why = available < b->bytes
                                     ? FORMAT_SHORT
                                     : format_get_header(at + offset, b->bytes - offset, seed, lsn + offset, &r);
        if (why == FORMAT_OK && is_outcome_type(r.type) && lsn + offset < l->as_of_lsn) {
            why = format_get_record(at + offset, b->bytes - offset, seed, lsn + offset, &r);
            rc = why == FORMAT_OK ? note_outcome(l, d, &r, b->time_us) : rc;
        }
        if (why != FORMAT_OK) {
            return look_failed(l, lsn + offset, why);
        }
        offset += r.length;
    }
    return rc;
}

static int by_transaction(const void *a, const void *b) {
    const struct outcome *x = a, *y = b;
    return x->tx_id != y->tx_id ? (x->tx_id > y->tx_id) - (x->tx_id < y->tx_id) : (x->lsn > y->lsn) - (x->lsn < y->lsn);
}

/* Reads every batch of a segment, up to *at_lsn. */
static int digest_batches(struct lookback *l, const struct scan_file *f, bool times, bool outcomes, struct digest *d,
                          uint64_t *at_lsn) {
    uint64_t seed = format_segment_seed(l->reader->meta.uuid, f->first_lsn, f->header.epoch);
    uint64_t lsn = f->first_lsn + SEGMENT_HEADER_BYTES, end = look_segment_end(l, f);
    int rc = LS_OK;
    while (rc == LS_OK && lsn < end) {
        *at_lsn = lsn;
        const uint8_t *at;
        size_t available;
        struct record r;
        struct batch b;
        rc = look_bytes(l, f, lsn - f->first_lsn, BATCH_RECORD_BYTES, LOOK_WINDOW_BYTES, &at, &available);
        if (rc != LS_OK) {
            return rc;
        }
        enum format_result why = format_get_record(at, available, seed, lsn, &r);
        why = why == FORMAT_OK ? format_get_batch(&r, &b) : why;
        if (why == FORMAT_OK &&
            (b.bytes > end - lsn || b.bytes > format_batch_bytes_max(l->reader->meta.segment_size))) {
            why = FORMAT_MALFORMED;
        }
        if (why != FORMAT_OK) {
            return look_failed(l, lsn, why);
        }
        rc = times ? add_time(l, d, lsn, b.time_us) : LS_OK;
        rc = rc == LS_OK && outcomes ? read_outcomes(l, f, lsn, &b, seed, d) : rc;
        lsn += b.bytes;
    }
    return rc;
}

static int learn(struct lookback *l, const struct scan_file *f, bool times, bool outcomes, struct digest *d) {
    uint64_t at_lsn = f->first_lsn;
    int rc = digest_batches(l, f, times, outcomes, d, &at_lsn);
    if (look_is_unreadable(l, rc)) {
        d->cut_lsn = at_lsn;
        rc = LS_OK;
    }
    if (outcomes && d->outcome_count > 1) {
        qsort(d->outcomes, d->outcome_count, sizeof *d->outcomes, by_transaction);
    }
    return rc;
}

int look_digest(struct lookback *l, const struct scan_file *f, bool times, bool outcomes, struct digest **found) {
    struct digest *d = &l->digests[f - l->reader->scan.files];
    bool learn_times = times && !d->has_times, learn_outcomes = outcomes && !d->has_outcomes;
    *found = d;
    d->used = ++l->clock;
    if (!learn_times && !learn_outcomes) {
        return LS_OK;
    }
    int rc = learn(l, f, learn_times, learn_outcomes, d);
    if (rc != LS_OK) {
        forget(l, d);
        return rc;
    }
    d->has_times = d->has_times || times;
    d->has_outcomes = d->has_outcomes || outcomes;
    make_room(l, d);
    return LS_OK;
}
