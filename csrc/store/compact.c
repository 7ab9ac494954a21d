/*
 * Compaction on demand: plans how many of the oldest segments to relocate so that the log becomes as short as possible,
 * and lets the log do it. Only the oldest segment can be removed, so a dense segment is relocated if segments after it
 * have dead bytes to gain. Of all plans that give the shortest log, the one that relocates the fewest segments is
 * taken.
 */
#include <stdlib.h>

#include "inspect/inspect.h"
#include "read/damage.h"
#include "store/store.h"

struct plan {
    size_t moved;        /* segments, from the base on */
    size_t moved_to;     /* index of the first that stays */
    uint64_t to_lsn;     /* where that segment begins */
    size_t left;         /* segments of the log after the relocation */
    size_t held;         /* dead segments that holds keep then */
    uint64_t copy_bytes; /* upper estimate of the copied bytes */
};

/* The number of segments that the copies need in addition to the rest of the current one. */
static size_t segments_for(const struct planned_log *l, uint64_t copy_bytes) {
    uint64_t size = l->extent.segment_size, room = size - SEGMENT_HEADER_BYTES - SEGMENT_END_RESERVE;
    uint64_t batches = copy_bytes / (format_batch_bytes_max(size) / 2) + 2;
    uint64_t all = l->current_bytes + copy_bytes + batches * BATCH_RECORD_BYTES;
    return copy_bytes == 0 || all <= room ? 0 : (size_t)((all - room + l->needs.usable - 1) / l->needs.usable);
}

/* The first segment from `from` on with live records; the current one if there is none. */
static size_t first_needed(const struct planned_log *l, size_t from) {
    while (from + 1 < l->segment_count && l->segments[from].records == 0) {
        from++;
    }
    return from;
}

/* The segments below segment `to` that only holds will keep. */
static size_t count_held_below(const struct planned_log *l, size_t to) {
    size_t n = 0;
    while (n < to && l->segments[to - 1 - n].first_lsn + l->extent.segment_size > l->kept_from_lsn) {
        n++;
    }
    return n;
}

static struct plan plan_compaction(const struct planned_log *l) {
    size_t n = l->segment_count, base = first_needed(l, l->base_index);
    struct plan best = {.moved_to = base, .left = n - base, .held = count_held_below(l, base)};
    uint64_t copy_bytes = 0;
    for (size_t k = base; k + 1 < n && !l->segments[k].stuck; k++) {
        copy_bytes += l->segments[k].bytes;
        size_t next = first_needed(l, k + 1), held = count_held_below(l, next);
        size_t left = n - next + segments_for(l, copy_bytes + l->extent.expansion);
        if (left + held < best.left + best.held) {
            best = (struct plan){
                .moved = k + 1 - base, .moved_to = k + 1, .left = left, .held = held, .copy_bytes = copy_bytes};
        }
    }
    return best;
}

/* The caller has filled in bytes_before and segments_before. A plan that does not shorten the log is not carried out. */
static struct plan report_plan(const struct planned_log *l, ls_compaction *report) {
    struct plan p = plan_compaction(l);
    size_t files = p.left + p.held + needed_spares(&l->needs, p.left, SPARES_AHEAD);
    report->live_bytes = l->extent.live_bytes;
    report->held_bytes = p.held * l->extent.segment_size;
    report->planned_bytes = files * l->extent.segment_size;
    report->shrinks = report->planned_bytes < report->bytes_before;
    report->segments_moved = report->shrinks ? p.moved : 0;
    report->copied_bytes = report->shrinks ? p.copy_bytes : 0;
    report->segments_after = report->shrinks ? p.left + p.held : report->segments_before;
    report->bytes_after = report->shrinks ? report->planned_bytes : report->bytes_before;
    return p;
}

/* (waits) LS_NO_MEMORY */
static int plan_serving(struct log *g, ls_compaction *report, struct plan *p) {
    struct planned_log l;
    int rc = log_planned(g, &l);
    *report = (ls_compaction){.bytes_before = log_bytes(g), .segments_before = log_segment_count(g)};
    if (rc != LS_OK) {
        return rc;
    }
    *p = report_plan(&l, report);
    p->to_lsn = l.segments[p->moved_to].first_lsn;
    free(l.segments);
    return LS_OK;
}

static int fail_in_part(const struct log *g, int code) {
    uint64_t first_lsn = log_base_lsn(g);
    switch (code) {
    case LS_CLOSED:
        return fail(LS_CLOSED, "the store is being closed; the log was compacted in part");
    case LS_CORRUPT:
        return fail_at(LS_CORRUPT, first_lsn, first_lsn,
                       "the segment has a record that cannot be read, so it stays, and what is behind it too");
    default:
        return fail(LS_FULL, "there is no room to move what lives: free disk space, or raise max_log_bytes");
    }
}

/* (waits) */
static int carry_out(struct log *g, uint64_t to_lsn) {
    int rc = log_move_base(g); /* all dead segments leave the log */
    if (rc != LS_OK) {
        return rc;
    }
    rc = log_compact_to(g, to_lsn);
    return rc == LS_OK ? LS_OK : fail_in_part(g, rc);
}

/* An inspected store has no log: the plan is made for the log that an open would recover, which begins one more segment. */
static int plan_inspected(const ls_store *store, ls_compaction *report) {
    const struct state *state = &store->state;
    struct planned_log l = {
        .segments = calloc(state->segment_count + 1, sizeof *l.segments),
        .segment_count = state->segment_count + 1,
        .base_index = store->inspection->base_index,
        .extent = {.segment_size = state->segment_size, .live_low = UINT64_MAX},
        .kept_from_lsn = UINT64_MAX,
    };
    ls_inspection seen;
    if (l.segments == NULL) {
        return fail_memory();
    }
    l.extent.segments = state->segment_count - l.base_index;
    l.extent.expansion = clients_expansion(state->clients, l.extent.segments * l.extent.segment_size);
    for (size_t i = 0; i < state->segment_count; i++) {
        const struct live_segment *s = &state->segments[i];
        l.segments[i] = (struct planned_segment){.first_lsn = s->first_lsn, .records = s->records, .bytes = s->bytes};
    }
    for (size_t i = l.base_index; i < state->segment_count; i++) {
        const struct live_segment *s = &state->segments[i];
        l.extent.live_bytes += s->bytes;
        l.extent.largest_bytes = s->largest_bytes > l.extent.largest_bytes ? s->largest_bytes : l.extent.largest_bytes;
    }
    l.needs = extent_needs(&l.extent);
    inspection_describe(store->inspection, &seen);
    *report = (ls_compaction){.bytes_before = seen.log.log_bytes, .segments_before = state->segment_count};
    (void)report_plan(&l, report);
    free(l.segments);
    return LS_OK;
}

int ls_compact(ls_store *store, int dry_run, ls_compaction *report) {
    struct log *g = store->log;
    struct plan p = {.moved = 0};
    int rc = dry_run ? store_look(store) : store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    if (store->inspection != NULL) {
        return store_leave(store, plan_inspected(store, report), LEAVE_QUIETLY);
    }
    struct relocated before = log_relocated(g);
    if (!dry_run) {
        spares_finish_tries(g);
    }
    rc = plan_serving(g, report, &p);
    if (rc == LS_OK && !dry_run && report->shrinks) {
        rc = carry_out(g, p.to_lsn);
        report->segments_moved = log_relocated(g).segments - before.segments;
        report->copied_bytes = log_relocated(g).bytes - before.bytes;
        report->segments_after = log_segment_count(g);
        report->bytes_after = log_bytes(g);
    }
    return store_leave(store, rc, LEAVE_QUIETLY);
}
