/*
 * Recovery at an open: scans the log, loads a checkpoint if one can be used, replays the rest, settles, and gives the log its
 * segments with their counts of live records. Writes nothing.
 */
#include <string.h>

#include "replay/replay.h"
#include "store/store.h"

static int replay_and_settle(struct replay *p, bool background, uint64_t start_us) {
    vfs *v = p->scan->v;
    if (background) {
        scan_ahead_start(p->scan);
    }
    int rc = replay_log(p);
    scan_ahead_stop(p->scan);
    replay_free(p);
    p->report->scan_us = v->monotonic_us(v) - start_us;
    return rc == LS_OK ? replay_settle(p) : rc;
}

/* Forgets what was read from the checkpoint; the report still says that there was one. */
static void begin_without_checkpoint(struct replay *p, const ls_recovery *before) {
    ls_recovery now = *p->report;
    *p->report = *before;
    p->report->checkpoint_state = LS_CHECKPOINT_CONTRADICTS;
    p->report->checkpoint_lsn = now.checkpoint_lsn;
    p->report->checkpoint_bytes = now.checkpoint_bytes;
    p->report->checkpoint_us = now.checkpoint_us;
    checkpoint_forget(p);
}

int recover_replay(ls_store *store) {
    struct state *state = &store->state;
    struct scan *scan = &store->scan;
    struct replay p = {.state = state, .scan = scan, .t = &state->table, .report = &state->report};
    vfs *v = store->directory.v;
    bool background = store->options.background != 0, used = false;
    struct loaded_checkpoint loaded = {.lsn = 0};
    uint64_t start_us = v->monotonic_us(v);
    int rc = scan_open(scan, v, store->directory.dir, &store->meta, true, NULL);
    p.base_lsn = scan->base_lsn;
    if (rc == LS_OK && scan->index != 0) {
        rc = fail(LS_REPLICATED,
                  "the store is a copy of a replicated one (term %llu, index %llu), and its other copies count on it. "
                  "Start its "
                  "member, or make it a single store with `logstore cluster detach`",
                  (unsigned long long)scan->term, (unsigned long long)scan->index);
    }
    rc = rc == LS_OK ? state_take_segments(state, scan) : rc;
    store->was_clean = scan->clean;
    seen_read(store);
    p.orderly = store->was_orderly;
    p.seen_lsn = store->seen_lsn;
    const ls_recovery before = state->report;
    if (rc == LS_OK && store->options.no_checkpoint == 0) {
        rc = checkpoint_load(&p, store->directory.dir, &loaded, &used);
    }
    rc = rc == LS_OK ? replay_and_settle(&p, background, start_us) : rc;
    if (rc == LS_CORRUPT && used) { /* the checkpoint may be the cause: replay the log alone */
        begin_without_checkpoint(&p, &before);
        loaded = (struct loaded_checkpoint){.lsn = 0};
        rc = replay_and_settle(&p, background, start_us);
    }
    store->checkpoints.lsn = loaded.lsn;
    store->checkpoints.bytes = loaded.bytes;
    store->checkpoints.epoch = loaded.epoch;
    if (rc == LS_OK && state->report.checkpoint_used) {
        scan_raise_watermark(scan, state->report.checkpoint_lsn);
        state->report.watermark_lsn = scan->watermark_lsn;
    }
    return rc == LS_OK ? log_recover(store->log, state->segments, state->segment_count, state->base_lsn) : rc;
}

void ls_recovery_items(const ls_store *store, ls_recovered *into, size_t n, size_t *count) {
    const struct recovered *r = &store->state.recovered;
    *count = r->count;
    if (n > 0 && *count > 0) {
        memcpy(into, r->items, (n < *count ? n : *count) * sizeof *into);
    }
}
