/* See state.h. */
#include "replay/state.h"

#include <stdlib.h>
#include <string.h>

#include "os/array.h"
#include "os/error.h"

void state_init(struct state *s, struct log_clients *clients) {
    s->clients = clients;
    table_init(&s->table);
}

void state_free(struct state *s) {
    table_free(&s->table);
    free(s->deletions.items);
    free(s->recovered.items);
    free(s->segments);
}

int state_take_segments(struct state *s, struct scan *scan) {
    s->segment_size = scan->meta.segment_size;
    s->base_lsn = scan->base_lsn;
    s->segments = calloc(scan->count + 1, sizeof *s->segments);
    if (s->segments == NULL) {
        return fail_memory();
    }
    for (size_t i = 0; i < scan->count; i++) {
        struct scan_file *f = &scan->files[i];
        bool behind = f->state == SCAN_VALID && f->first_lsn < scan->base_lsn;
        if (i == scan->last && scan->end_lsn <= f->first_lsn) {
            f->in_log = false; /* no record of the log is in it */
        }
        if (!f->in_log && !behind) {
            continue;
        }
        s->segments[s->segment_count++] = (struct live_segment){
            .first_lsn = f->first_lsn,
            .epoch = f->header.epoch,
            .prev_end_lsn = f->header.prev_end_lsn,
            .end_lsn = behind            ? f->first_lsn + s->segment_size
                       : f->end_lsn != 0 ? f->end_lsn
                                         : scan->end_lsn,
            .behind = behind,
        };
        s->report.segments += behind ? 0 : 1;
    }
    return LS_OK;
}

struct live_segment *state_segment(const struct state *s, uint64_t lsn) {
    size_t above = array_lower_bound(struct live_segment, s->segments, s->segment_count, first_lsn, lsn + 1);
    struct live_segment *found = above > 0 ? &s->segments[above - 1] : NULL;
    return found != NULL && lsn - found->first_lsn < s->segment_size ? found : NULL;
}

void state_clear(struct state *s) {
    table_free(&s->table);
    table_init(&s->table);
    for (size_t i = 0; i < s->clients->count; i++) {
        const struct log_client *c = &s->clients->all[i];
        if (c->calls->clear != NULL) {
            c->calls->clear(c->context);
        }
    }
    s->deletions.count = 0;
    s->recovered.count = 0;
    memset(s->recovered.kept, 0, sizeof s->recovered.kept);
    for (size_t i = 0; i < s->segment_count; i++) {
        s->segments[i].records = s->segments[i].bytes = s->segments[i].largest_bytes = 0;
    }
}

bool state_prepare_deletions(struct state *s, size_t more) {
    struct deletions *d = &s->deletions;
    return array_grow(&d->items, &d->capacity, d->count, more);
}

void state_note_deletion(struct state *s, uint32_t queue_id, uint64_t lsn) {
    s->deletions.items[s->deletions.count++] = (struct deletion){.lsn = lsn, .queue_id = queue_id};
}
