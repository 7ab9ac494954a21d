/*
 * Describes the log to other parts: its figures, its segments, whether it may grow, and the input for a compaction
 * plan.
 */
#include <stdlib.h>

#include "log/parts.h"

uint64_t log_epoch(const struct log *g) { return g->epoch; }

int log_poison(const struct log *g) { return g->poison; }

bool log_serves(const struct log *g) { return g->serving && !g->stopping; }

size_t log_segment_count(const struct log *g) { return g->segment_count; }

uint64_t log_bytes(const struct log *g) { return (g->segment_count + g->space.spare_count) * g->segment_size; }

struct relocated log_relocated(const struct log *g) {
    return (struct relocated){.segments = g->stats.segments_relocated, .bytes = g->stats.relocated_bytes};
}

void log_stats(struct log *g, ls_stats *stats) {
    *stats = g->stats;
    stats->live_bytes = log_live_bytes(g);
    stats->counted_bytes = stats->live_bytes + clients_weight(&g->clients);
    stats->segments = g->segment_count;
    stats->spares = g->space.spare_count;
    stats->log_bytes = log_bytes(g);
    stats->held_segments = g->space.held_count;
    stats->held_bytes = g->space.held_count * g->segment_size;
    stats->full = admission_refuses(g);
}

static uint64_t end_of(const struct log *g, const struct segment *s) {
    return s->end_lsn != 0 ? s->end_lsn : g->front.end_lsn;
}

size_t log_segments(const struct log *g, ls_segment_info *into, size_t n) {
    for (size_t i = 0; i < g->segment_count && i < n; i++) {
        const struct segment *s = g->segments[i];
        into[i] = (ls_segment_info){
            .first_lsn = s->first_lsn,
            .epoch = s->epoch,
            .end_lsn = end_of(g, s),
            .live_bytes = s->live_bytes,
            .live_records = s->live_records,
            .current = i + 1 == g->segment_count,
        };
    }
    return g->segment_count;
}

uint64_t log_bytes_since(const struct log *g, uint64_t lsn) {
    uint64_t bytes = 0;
    for (size_t i = g->segment_count; i-- > g->base_index;) {
        const struct segment *s = g->segments[i];
        uint64_t end_lsn = end_of(g, s), from = lsn > s->first_lsn ? lsn : s->first_lsn;
        bytes += end_lsn > from ? end_lsn - from : 0;
        if (from > s->first_lsn) {
            break;
        }
    }
    return bytes;
}

/* ---- the tail ---- */

static ls_tail_segment tail_segment(const struct log *g, size_t i) {
    const struct segment *s = g->segments[i];
    bool current = i + 1 == g->segment_count;
    return (ls_tail_segment){
        .first_lsn = s->first_lsn,
        .epoch = s->epoch,
        .end_lsn = end_of(g, s),
        .live_bytes = s->live_bytes,
        .live_records = s->live_records,
        .state = i < g->base_index ? LS_SEGMENT_DEAD
                 : current         ? LS_SEGMENT_CURRENT
                                   : LS_SEGMENT_NEEDED,
    };
}

int log_tail(const struct log *g, ls_tail *tail, ls_tail_segment **segments) {
    ls_tail_segment *all = calloc(g->segment_count + g->space.spare_count + 1, sizeof *all);
    *segments = all;
    if (all == NULL) {
        return fail_memory();
    }
    for (size_t i = 0; i < g->segment_count; i++) {
        *all++ = tail_segment(g, i);
    }
    for (const struct segment *s = g->space.spares; s != NULL; s = s->next_spare) {
        *all++ = (ls_tail_segment){.first_lsn = s->first_lsn, .state = LS_SEGMENT_SPARE};
    }
    *tail = (ls_tail){
        .segment_size = g->segment_size,
        .base_lsn = log_base_lsn(g),
        .durable_lsn = g->front.durable_lsn,
        .next_lsn = g->front.end_lsn,
        .live_bytes = log_live_bytes(g),
        .segments = g->segment_count,
        .spares = g->space.spare_count,
        .held_segments = g->space.held_count,
        .files_wanted = g->space.needs.files_wanted,
        .will_move = g->serving && relocation_is_behind(g),
    };
    return LS_OK;
}

/* ---- whether it may grow ---- */

bool log_can_grow(const struct log *g) { return g->poison == 0 && !log_cannot_grow(g); }

void log_fullness(struct log *g, ls_fullness *into) {
    uint64_t live_bytes = log_live_bytes(g), counted_bytes = live_bytes + clients_weight(&g->clients);
    *into = (ls_fullness){
        .since_us = g->space.full.since_us,
        .segment_size = g->segment_size,
        .log_bytes = log_files(g) * g->segment_size,
        .held_bytes = g->space.held_count * g->segment_size,
        .max_log_bytes = g->max_log_bytes,
        .live_bytes = live_bytes,
        .counted_bytes = counted_bytes,
        .full = admission_refuses(g),
        .pool_bytes = extent_pool(g->segment_size),
        .pool_left = admission_pool_left(g),
        .growth_left = admission_growth_left(g),
        .near = admission_is_near(g),
        .needed_bytes = needed_bytes_for(counted_bytes, g->space.needs.spares_reserved, g->segment_size),
        .sys_errno = g->space.full.since_us != 0 ? g->space.full.error
                     : g->space.cannot_grow      ? g->space.grow_error
                                                 : g->space.others.error,
    };
}

uint64_t log_fullness_changes(const struct log *g) {
    return atomic_load_explicit(&g->space.full.changes, memory_order_relaxed);
}

uint64_t log_near_changes(const struct log *g) {
    return atomic_load_explicit(&g->space.full.near_changes, memory_order_relaxed);
}

/* ---- for the plan of a compaction ---- */

/* Once everything appended is durable. */
static struct planned_segment planned(const struct log *g, const struct segment *s) {
    struct planned_segment p = {
        .first_lsn = s->first_lsn,
        .records = s->live_records,
        .bytes = s->live_bytes,
        .stuck = g->front.append_lsn < s->stuck_until_lsn,
    };
    for (uint32_t k = 0; k < g->buffer_count; k++) {
        p.records -= s->pending[k].records;
        p.bytes -= s->pending[k].bytes;
    }
    return p;
}

int log_planned(struct log *g, struct planned_log *l) {
    uint64_t kept_from_lsn = spares_kept_from(g);
    admission_compute_needs(g);
    *l = (struct planned_log){
        .segments = calloc(g->segment_count, sizeof *l->segments),
        .segment_count = g->segment_count,
        .base_index = g->base_index,
        .current_bytes = g->front.append_lsn - log_head_lsn(g) - SEGMENT_HEADER_BYTES,
        .extent = admission_extent(g),
        .needs = g->space.needs,
        .kept_from_lsn = kept_from_lsn,
    };
    if (l->segments == NULL) {
        return fail_memory();
    }
    for (size_t i = 0; i < g->segment_count; i++) {
        l->segments[i] = planned(g, g->segments[i]);
    }
    return LS_OK;
}
