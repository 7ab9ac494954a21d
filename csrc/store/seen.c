/*
 * Which places a consumer may have had before this open. After a crash every place may have been handed out. An orderly
 * close writes all counts, so after it a place without a count was not, unless a crash came before that: the file SEEN keeps
 * the end of the log at the last crash as long as places from before it are there.
 *
 * SEEN counts only if it is of the newest epoch, which every open begins durably before it serves: a program that served
 * and was killed has handed out what it will, even if it has written no record.
 */
#include <string.h>

#include "os/io.h"
#include "store/store.h"

void seen_read(ls_store *store) {
    const struct directory *d = &store->directory;
    const struct scan *s = &store->scan;
    uint8_t bytes[SEEN_BYTES];
    struct seen_file seen;
    uint64_t epoch = s->renamed_epoch > s->epoch_max ? s->renamed_epoch : s->epoch_max;
    store->was_orderly = false;
    store->seen_lsn = s->end_lsn;
    int file = s->clean ? d->v->open(d->v, d->dir, "SEEN", 0) : -1;
    if (file < 0) {
        return;
    }
    int64_t got = io_read(d->v, file, bytes, sizeof bytes, 0);
    (void)d->v->close(d->v, file);
    if (got == (int64_t)sizeof bytes && format_get_seen(bytes, sizeof bytes, &seen) == FORMAT_OK &&
        memcmp(seen.uuid, store->meta.uuid, UUID_BYTES) == 0 && seen.epoch == epoch) {
        store->was_orderly = true;
        store->seen_lsn = seen.seen_lsn;
    }
}

/* Whether places are left that became visible below the LSN: each run is in that order. */
static bool has_places_below(const struct table *t, uint64_t lsn) {
    bool some = false;
    for (uint32_t i = 0; !some && i < t->queue_count; i++) {
        struct cursor c = {.chunk = t->queues[i] != NULL && !t->queues[i]->deleted ? t->queues[i]->first : NULL};
        uint64_t position;
        const struct entry *e = cursor_entry(&c, &position);
        some = e != NULL && e->order_lsn < lsn;
    }
    return some;
}

void seen_publish(ls_store *store) {
    const struct directory *d = &store->directory;
    uint8_t bytes[SEEN_BYTES];
    struct seen_file seen = {.epoch = log_epoch(store->log)};
    seen.seen_lsn = has_places_below(&store->state.table, store->seen_lsn) ? store->seen_lsn : 0;
    memcpy(seen.uuid, store->meta.uuid, UUID_BYTES);
    format_put_seen(bytes, &seen);
    log_unlock_for_io(store->log);
    int file = d->v->open(d->v, d->dir, "SEEN", VFS_WRITE | VFS_CREATE);
    bool fine = file >= 0 && io_write(d->v, file, bytes, sizeof bytes, 0, &store->directory.written) == 0 &&
                d->v->sync_data(d->v, file) == 0;
    if (file >= 0) {
        (void)d->v->close(d->v, file);
    }
    if (fine) {
        (void)d->v->sync_dir(d->v, d->dir);
    }
    log_relock_after_io(store->log);
}
