/*
 * Compaction on demand: how many of the oldest segments have to be moved for the log to be as short as moving can make
 * it, and having that done. Only the oldest can go, so what is dense at the front is moved for the sake of what is dead
 * behind it; the plan takes the shortest front that gives the shortest log.
 */
#include <stdlib.h>

#include "store/store.h"
#include "read/damage.h"

struct plan {
    size_t moved;        /* segments, from the base on */
    size_t left;         /* segments of the log then */
    uint64_t copy_bytes; /* at most, about */
};

/* As many more segments as the copies need behind what the current one holds. */
static size_t segments_for(const struct log *g, uint64_t copy_bytes) {
    const struct segment *current = g->segments[g->segment_count - 1];
    uint64_t room = g->segment_size - SEGMENT_HEADER_BYTES - SEGMENT_END_RESERVE;
    uint64_t used = g->serving ? g->append_lsn - current->first_lsn - SEGMENT_HEADER_BYTES : 0;
    uint64_t batches = copy_bytes / (g->batch_bytes_max / 2) + 2;
    uint64_t all = used + copy_bytes + batches * BATCH_RECORD_BYTES;
    return copy_bytes == 0 || all <= room ? 0 : (size_t)((all - room + g->space.usable - 1) / g->space.usable);
}

/* A store that is only looked at will have one more once it is opened. */
static size_t segments_in_service(const struct log *g) { return g->segment_count + (g->serving ? 0 : 1); }

/* Live records of the segment once everything appended is durable. */
static struct release staying(const struct log *g, const struct segment *s) {
    struct release r = {s->live_records, s->live_bytes};
    for (uint32_t i = 0; i < g->buffer_count; i++) {
        r.records -= s->pending[i].records;
        r.bytes -= s->pending[i].bytes;
    }
    return r;
}

/* The first from `from` on that holds something; the current one at the latest. */
static size_t first_needed(const struct log *g, size_t from) {
    while (from + 1 < segments_in_service(g) && staying(g, g->segments[from]).records == 0) {
        from++;
    }
    return from;
}

static struct plan plan_compaction(struct log *g) {
    spares_reckon(g);
    size_t n = segments_in_service(g), base = first_needed(g, g->base_index);
    struct plan best = {.left = n - base};
    uint64_t expansion = log_expansion(g), copy_bytes = 0;
    for (size_t k = base; k + 1 < n; k++) {
        const struct segment *s = g->segments[k];
        if (g->append_lsn < s->stuck_until_lsn) {
            break;
        }
        copy_bytes += staying(g, s).bytes;
        size_t left = n - first_needed(g, k + 1) + segments_for(g, copy_bytes + expansion);
        if (left < best.left) {
            best = (struct plan){.moved = k + 1 - base, .left = left, .copy_bytes = copy_bytes};
        }
    }
    return best;
}

static uint64_t all_bytes(const struct log *g) {
    return (uint64_t)(g->segment_count + g->space.spare_count) * g->segment_size;
}

/* Everything that is dead leaves the log: the base is named, and what is behind it is recycled. */
static int clear_dead(struct log *g) {
    int rc = log_force(g, g->end_lsn);
    log_advance_base(g);
    if (rc == LS_OK && log_base_lsn(g) > g->named_base_lsn) {
        rc = log_reserve(g, 0, RESERVE_SHRINKS);
        rc = rc == LS_OK ? log_force_batch(g) : rc;
    }
    return rc;
}

/* (waits) Relocates and gives spares back, again while that makes progress. */
static int carry_out(struct log *g, uint64_t to_lsn) {
    uint64_t before;
    g->relocation.compacting++;
    do {
        before = log_base_lsn(g);
        g->relocation.compact_to_lsn = to_lsn > g->relocation.compact_to_lsn ? to_lsn : g->relocation.compact_to_lsn;
        spares_try(g);
    } while (log_base_lsn(g) < to_lsn && log_base_lsn(g) > before && g->serving && g->poison == 0);
    g->relocation.compacting--;
    g->relocation.compact_to_lsn = g->relocation.compacting > 0 ? g->relocation.compact_to_lsn : 0;
    if (!g->serving) {
        return fail(LS_CLOSED, "the store is being closed; the log was compacted in part");
    }
    if (log_base_lsn(g) >= to_lsn) {
        return LS_OK;
    }
    const struct segment *s = g->segments[g->base_index];
    bool stuck = g->append_lsn < s->stuck_until_lsn;
    return stuck ? fail_at(LS_CORRUPT, s->first_lsn, s->first_lsn,
                           "a segment cannot be moved: look at it with verify; what is behind it was left where it is")
                 : fail(LS_FULL, "there is no room to move what lives: free disk space, or raise max_log_bytes");
}

static void report_plan(struct log *g, ls_compaction *report, struct plan *p) {
    *p = plan_compaction(g);
    report->live_bytes = log_live_bytes(g);
    report->held_bytes = g->space.held_count * g->segment_size;
    report->segments_moved = p->moved;
    report->copied_bytes = p->copy_bytes;
    report->segments_after = p->left + g->space.held_count;
    report->bytes_after = (report->segments_after + spares_for(g, p->left)) * g->segment_size;
}

/* An inspected store has no log: the plan is made on the log that an open would recover, which has no buffers. */
static int plan_inspected(ls_store *store, ls_compaction *report) {
    struct log planned = {.clients = store->log.clients};
    struct plan p;
    ls_options options = store->options;
    options.max_write_buffers = 0;
    int rc = log_init(&planned, store->log.v, &options, &store->meta);
    planned.durable_lsn = store->state.report.end_lsn;
    planned.append_lsn = planned.end_lsn = store->state.report.end_lsn;
    rc = rc == LS_OK ? recover_give_to_log(&planned, &store->state) : rc;
    if (rc == LS_OK) {
        log_advance_base(&planned);
        *report = (ls_compaction){.bytes_before = all_bytes(&planned), .segments_before = planned.segment_count};
        report_plan(&planned, report, &p);
    }
    log_free(&planned);
    return rc;
}

int ls_compact(ls_store *store, int dry_run, ls_compaction *report) {
    struct log *g = &store->log;
    struct plan p;
    int rc = dry_run ? store_look(store) : store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    if (store->inspection != NULL) {
        return store_leave(store, plan_inspected(store, report), LEAVE_QUIETLY);
    }
    *report = (ls_compaction){.bytes_before = all_bytes(g), .segments_before = g->segment_count};
    uint64_t moved = g->stats.segments_relocated, copied = g->stats.relocated_bytes;
    rc = dry_run ? LS_OK : clear_dead(g);
    if (rc == LS_OK) {
        report_plan(g, report, &p);
    }
    if (rc == LS_OK && !dry_run) {
        rc = carry_out(g, g->segments[first_needed(g, g->base_index) + p.moved]->first_lsn);
        report->segments_moved = g->stats.segments_relocated - moved;
        report->copied_bytes = g->stats.relocated_bytes - copied;
        report->segments_after = g->segment_count;
        report->bytes_after = all_bytes(g);
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}
