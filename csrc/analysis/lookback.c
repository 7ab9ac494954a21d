/* Finds records by their LSN, times, outcomes, and the enqueue of a place. See lookback.h. */
#include "analysis/lookback_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/relocated.h"
#include "read/damage.h"
#include "os/array.h"
#include "os/error.h"
#include "os/io.h"

/* ---- files ---- */

uint64_t look_segment_end(const struct lookback *l, const struct scan_file *f) {
    return f->end_lsn != 0 ? f->end_lsn : l->reader->scan.end_lsn;
}

const struct scan_file *look_segment(const struct lookback *l, uint64_t lsn) {
    const struct scan *s = &l->reader->scan;
    uint64_t first_lsn = lsn / s->meta.segment_size * s->meta.segment_size;
    size_t low = array_lower_bound(struct scan_file, s->files, s->count, first_lsn, first_lsn);
    bool there = low < s->count && s->files[low].first_lsn == first_lsn && s->files[low].in_log &&
                 first_lsn >= l->floor_lsn && lsn >= first_lsn + SEGMENT_HEADER_BYTES;
    return there && lsn < look_segment_end(l, &s->files[low]) ? &s->files[low] : NULL;
}

bool lookback_has(const struct lookback *l, uint64_t lsn) { return look_segment(l, lsn) != NULL; }

static int open_segment(struct lookback *l, const struct scan_file *f) {
    if (l->file >= 0 && l->file_of == f) {
        return LS_OK;
    }
    vfs *v = l->reader->v;
    char name[SEGMENT_NAME_BYTES];
    format_segment_name(name, f->first_lsn);
    int file = v->open(v, l->reader->dir, name, 0);
    if (file < 0) {
        int rc = file == -ENOENT
                     ? fail_at(LS_CORRUPT, f->first_lsn, f->first_lsn, "the log is damaged: a segment is missing")
                     : fail_errno(LS_IO, -file, "segment %s cannot be opened", name);
        return reader_judge(l->reader, rc, f->first_lsn);
    }
    if (l->file >= 0) {
        (void)v->close(v, l->file);
    }
    l->file = file;
    l->file_of = f;
    return LS_OK;
}

static struct window *oldest_window(struct lookback *l) {
    struct window *oldest = &l->windows[0];
    for (size_t i = 1; i < LOOK_WINDOWS; i++) {
        oldest = l->windows[i].used < oldest->used ? &l->windows[i] : oldest;
    }
    return oldest;
}

static struct window *window_with(struct lookback *l, const struct scan_file *f, uint64_t offset, size_t bytes) {
    struct window *w = l->last;
    if (w != NULL && w->file == f && offset >= w->at && offset + bytes <= w->at + w->bytes) {
        return w;
    }
    for (size_t i = 0; i < LOOK_WINDOWS; i++) {
        w = &l->windows[i];
        if (w->file == f && offset >= w->at && offset + bytes <= w->at + w->bytes) {
            return w;
        }
    }
    return NULL;
}

/* Few records need more memory than LOOK_WINDOW_BYTES, but they may be as long as a segment: one window has it at a time. */
static void free_large_windows(struct lookback *l) {
    for (size_t i = 0; i < LOOK_WINDOWS; i++) {
        struct window *w = &l->windows[i];
        if (w->capacity > LOOK_WINDOW_BYTES) {
            free(w->data);
            *w = (struct window){.file = NULL};
        }
    }
}

/* Reads at least `bytes` from the block of `offset` on. */
static int fill_window(struct lookback *l, const struct scan_file *f, uint64_t offset, size_t bytes, size_t ahead,
                       struct window *w) {
    uint64_t from = offset / BLOCK_BYTES * BLOCK_BYTES, left = l->reader->meta.segment_size - from;
    size_t want = (size_t)(offset - from) + bytes;
    want = want < ahead ? ahead : want;
    want = left < want ? (size_t)left : want;
    int rc = open_segment(l, f);
    if (rc != LS_OK) {
        return rc;
    }
    w->file = NULL;
    if (want > w->capacity) {
        if (want > LOOK_WINDOW_BYTES) {
            free_large_windows(l);
        }
        uint8_t *data = malloc(want);
        if (data == NULL) {
            return fail_memory();
        }
        free(w->data);
        w->data = data;
        w->capacity = want;
    }
    int64_t got = io_read(l->reader->v, l->file, w->data, want, from);
    if (got < 0) {
        rc = fail_at(LS_IO, f->first_lsn, f->first_lsn + offset, "a segment cannot be read: %s", strerror((int)-got));
        return reader_judge(l->reader, rc, f->first_lsn + offset);
    }
    w->file = f;
    w->at = from;
    w->bytes = (size_t)got;
    return LS_OK;
}

int look_bytes(struct lookback *l, const struct scan_file *f, uint64_t offset, size_t bytes, size_t ahead,
               const uint8_t **at, size_t *available) {
    struct window *w = window_with(l, f, offset, bytes);
    *available = 0;
    if (w == NULL) {
        w = oldest_window(l);
        int rc = fill_window(l, f, offset, bytes, ahead, w);
        if (rc != LS_OK) {
            return rc;
        }
        l->verified_lsn = 0;
    }
    w->used = ++l->clock;
    l->verified_lsn = w == l->last ? l->verified_lsn : 0;
    l->last = w;
    uint64_t skip = offset - w->at;
    *available = skip < w->bytes ? w->bytes - (size_t)skip : 0;
    *at = w->data + (*available > 0 ? skip : 0);
    return LS_OK;
}

int look_failed(struct lookback *l, uint64_t lsn, enum format_result why) {
    uint64_t first_lsn = lsn / l->reader->meta.segment_size * l->reader->meta.segment_size;
    int rc =
        fail_at(LS_CORRUPT, first_lsn, lsn,
                "the log is damaged: a record that another one refers to cannot be read (%s). Nothing was changed; "
                "run `logstore verify`, then `logstore salvage`",
                format_result_text(why));
    return reader_judge(l->reader, rc, lsn);
}

static int find_record(struct lookback *l, uint64_t lsn, struct record *r) {
    const struct scan_file *f = look_segment(l, lsn);
    if (f == NULL) {
        return LS_END;
    }
    const uint8_t *at;
    size_t available;
    uint64_t offset = lsn - f->first_lsn, most = look_segment_end(l, f) - lsn;
    int rc = look_bytes(l, f, offset, RECORD_HEADER_BYTES, LOOK_RECORD_BYTES, &at, &available);
    if (rc != LS_OK) {
        return rc;
    }
    if (l->verified_lsn == lsn) {
        format_read_verified(at, r);
        return LS_OK;
    }
    uint64_t seed = format_segment_seed(l->reader->meta.uuid, f->first_lsn, f->header.epoch);
    enum format_result why = format_get_header(at, available, seed, lsn, r);
    if (why == FORMAT_SHORT && available >= RECORD_HEADER_BYTES && r->length <= most &&
        r->length <= format_record_bytes_max(l->reader->meta.segment_size)) {
        rc = look_bytes(l, f, offset, r->length, LOOK_RECORD_BYTES, &at, &available);
        if (rc != LS_OK) {
            return rc;
        }
    }
    available = available < most ? available : (size_t)most;
    why = format_get_record(at, available, seed, lsn, r);
    if (why != FORMAT_OK) {
        return look_failed(l, lsn, why);
    }
    l->verified_lsn = lsn;
    return LS_OK;
}

int lookback_record(struct lookback *l, uint64_t lsn, struct record *r) {
    int rc = find_record(l, lsn, r);
    return look_is_unreadable(l, rc) ? LS_END : rc;
}

static int find_content(struct lookback *l, uint64_t id, uint64_t lsn, struct content_found *found) {
    struct record r;
    int rc = find_record(l, lsn, &r);
    if (rc != LS_OK) {
        return rc;
    }
    bool starts = r.type == MESSAGE_START || r.type == MESSAGE_START_PLACED;
    if (r.id != id || (!starts && r.type != MESSAGE_CHUNK)) {
        return look_failed(l, lsn, FORMAT_PLACE);
    }
    struct message_start start;
    struct message_chunk chunk;
    if ((starts ? format_get_either_start(&r, &start) : format_get_chunk(&r, &chunk)) != FORMAT_OK) {
        return look_failed(l, lsn, FORMAT_MALFORMED);
    }
    *found = starts ? (struct content_found){.bytes = start.content, .count = start.content_bytes}
                    : (struct content_found){chunk.offset, chunk.content, chunk.content_bytes};
    return LS_OK;
}

int lookback_content(struct lookback *l, uint64_t id, uint64_t lsn, struct content_found *found) {
    int rc = find_content(l, id, lsn, found);
    return look_is_unreadable(l, rc) ? LS_END : rc;
}

/* ---- times and outcomes ---- */

int lookback_time(struct lookback *l, uint64_t lsn, uint64_t *time_us) {
    const struct scan_file *f = look_segment(l, lsn);
    struct digest *d;
    *time_us = 0;
    int rc = f != NULL ? look_digest(l, f, true, false, &d) : LS_OK;
    if (rc != LS_OK || f == NULL || (d->cut_lsn != 0 && lsn >= d->cut_lsn)) {
        return rc;
    }
    size_t above = array_lower_bound(struct batch_time, d->times, d->time_count, lsn, lsn + 1);
    *time_us = above > 0 ? d->times[above - 1].time_us : 0;
    return LS_OK;
}

/* The newest state of a transaction in one segment: its outcome, or that it is prepared. */
static const struct outcome *find_outcome(const struct digest *d, uint64_t tx_id) {
    size_t above = array_lower_bound(struct outcome, d->outcomes, d->outcome_count, tx_id, tx_id + 1);
    return above > 0 && d->outcomes[above - 1].tx_id == tx_id ? &d->outcomes[above - 1] : NULL;
}

/* A segment of this part of the log is missing, or could not be read to its end. */
static bool misses_segment_between(const struct lookback *l, uint64_t from_lsn, uint64_t to_lsn) {
    const struct scan *s = &l->reader->scan;
    uint64_t at = from_lsn;
    for (size_t i = 0; i < s->count && s->files[i].first_lsn < to_lsn; i++) {
        const struct scan_file *f = &s->files[i];
        if (!f->in_log || look_segment_end(l, f) <= from_lsn) {
            continue;
        }
        if ((f->first_lsn > at && f->header.prev_end_lsn != at) || l->digests[i].cut_lsn != 0) {
            return true;
        }
        at = look_segment_end(l, f);
    }
    return at < to_lsn || (s->permissive && to_lsn == s->end_lsn && s->end_lsn < s->watermark_lsn);
}

static int search_outcome(struct lookback *l, uint64_t tx_id, uint64_t from_lsn, struct outcome *o) {
    const struct scan *s = &l->reader->scan;
    uint64_t first_lsn = from_lsn / s->meta.segment_size * s->meta.segment_size;
    *o = (struct outcome){.tx_id = tx_id, .what = LOOK_OPEN};
    for (size_t i = 0; i < s->count && (o->what == LOOK_OPEN || o->what == LOOK_PREPARED); i++) {
        const struct scan_file *f = &s->files[i];
        struct digest *d;
        if (!f->in_log || f->first_lsn < first_lsn || f->first_lsn >= l->as_of_lsn) {
            continue;
        }
        int rc = look_digest(l, f, false, true, &d);
        if (rc != LS_OK) {
            return rc;
        }
        const struct outcome *said = find_outcome(d, tx_id);
        *o = said != NULL ? *said : *o;
    }
    bool open = o->what == LOOK_OPEN || o->what == LOOK_PREPARED;
    if (open && l->reader->permissive && misses_segment_between(l, from_lsn, l->as_of_lsn)) {
        *o = (struct outcome){.tx_id = tx_id, .what = LOOK_UNKNOWN};
    }
    return LS_OK;
}

int lookback_outcome(struct lookback *l, uint64_t tx_id, uint64_t from_lsn, struct outcome *o) {
    struct outcome *kept = &l->outcomes[look_slot(tx_id, LOOK_OUTCOMES)];
    int rc = LS_OK;
    if (kept->tx_id != tx_id) {
        rc = search_outcome(l, tx_id, from_lsn, o);
        if (rc == LS_OK) {
            *kept = *o;
        }
    } else {
        *o = *kept;
    }
    return rc;
}

/* ---- the enqueue of a place ---- */

void lookback_passed(struct lookback *l, const struct recent_start *start) {
    struct recent_start *set = &l->starts[look_start_set(start->id)];
    set[set[1].id < set[0].id ? 1 : 0] = *start;
}

/*
 * Whether an enqueue at `lsn` made the place, and when; tx_id 0: outside transactions. A transaction that ends a place
 * that it made itself has made it, whatever its outcome.
 */
static int judge_enqueue(struct lookback *l, uint64_t lsn, uint64_t tx_id, const struct place_wanted *wanted,
                         struct place_found *found, bool *made) {
    *made = true;
    *found = (struct place_found){.lsn = lsn};
    if (tx_id == 0) {
        return lookback_time(l, lsn, &found->time_us);
    }
    struct outcome o;
    int rc = lookback_outcome(l, tx_id, lsn, &o);
    if (rc == LS_OK) {
        bool committed = o.what == LOOK_COMMITTED;
        *made = committed || o.what == LOOK_UNKNOWN || tx_id == wanted->tx_id;
        *found = (struct place_found){.lsn = committed ? o.lsn : 0, .time_us = committed ? o.time_us : 0};
    }
    return rc;
}

static int known_since(struct lookback *l, uint64_t order_lsn, uint64_t time_us, struct place_found *found) {
    *found = (struct place_found){.lsn = order_lsn, .time_us = time_us};
    return time_us != 0 ? LS_OK : lookback_time(l, order_lsn, &found->time_us);
}

static bool names_queue(const uint8_t *queues, uint32_t count, uint32_t queue_id) {
    for (uint32_t i = 0; i < count; i++) {
        if (format_queue_id(queues, i) == queue_id) {
            return true;
        }
    }
    return false;
}

static int judge_list(struct lookback *l, const struct record *r, const struct message_enqueue *e,
                      const struct place_wanted *wanted, struct place_found *found, bool *made) {
    return names_queue(e->queues, e->queue_count, wanted->queue_id)
               ? judge_enqueue(l, r->lsn, e->tx_id, wanted, found, made)
               : LS_OK;
}

static int judge_start(struct lookback *l, const struct record *r, const struct place_wanted *wanted,
                       struct place_found *found, bool *made) {
    struct message_start m;
    struct place_state state;
    bool placed = r->type == MESSAGE_START_PLACED;
    if ((placed ? format_get_start_placed(r, &m, &state) : format_get_start(r, &m)) != FORMAT_OK) {
        return look_failed(l, r->lsn, FORMAT_MALFORMED);
    }
    if ((r->flags & FLAG_INLINE) != 0 && names_queue(m.queues, m.queue_count, wanted->queue_id)) {
        *made = true;
        return known_since(l, m.order_lsn, m.enqueue_time_us, found);
    }
    const struct message_enqueue e = {.tx_id = m.tx_id, .queue_count = m.queue_count, .queues = m.queues};
    return judge_list(l, r, &e, wanted, found, made);
}

/* A pending enqueue on the queue that is wanted. */
struct pending_enqueue {
    uint64_t lsn;
    uint64_t tx_id;
};

/* Of pending enqueues on that queue the newest that took effect counts. */
static int judge_pending(struct lookback *l, const struct pending_enqueue *pending, uint32_t n,
                         const struct place_wanted *wanted, struct place_found *found, bool *made) {
    int rc = LS_OK;
    for (uint32_t i = 0; rc == LS_OK && i < n; i++) {
        struct place_found one;
        bool counts = false;
        rc = judge_enqueue(l, pending[i].lsn, pending[i].tx_id, wanted, &one, &counts);
        *found = counts ? one : *found;
        *made = *made || counts;
    }
    return rc;
}

/* Reads all of the record before anything is looked up: that may take the record's window. */
static int judge_relocated(struct lookback *l, const struct record *r, const struct place_wanted *wanted,
                           struct place_found *found, bool *made) {
    struct message_relocated m;
    struct place_state state;
    if (relocated_get(r, &m) != FORMAT_OK) {
        return look_failed(l, r->lsn, FORMAT_MALFORMED);
    }
    const uint8_t *at = m.places;
    for (uint32_t i = 0; i < m.place_count; i++) {
        struct place_row row = relocated_place(r, &at, &state);
        if (row.queue_id == wanted->queue_id) {
            *made = true;
            return known_since(l, row.order_lsn, row.enqueue_time_us, found);
        }
    }
    struct pending_enqueue *pending = NULL;
    uint32_t count = 0, capacity = 0;
    at = m.pending;
    for (uint32_t i = 0; i < m.pending_count; i++) {
        struct pending_row row = relocated_pending(r, &at, &state);
        if (row.queue_id != wanted->queue_id || row.kind != PENDING_ENQUEUE) {
            continue;
        }
        if (!array_grow(&pending, &capacity, count, 1)) {
            free(pending);
            return fail_memory();
        }
        pending[count++] = (struct pending_enqueue){.lsn = row.lsn, .tx_id = row.tx_id};
    }
    int rc = judge_pending(l, pending, count, wanted, found, made);
    free(pending);
    return rc;
}

/* Whether this record of the chain made the place, and when; for a record of any type. */
static int judge_record(struct lookback *l, const struct record *r, const struct place_wanted *wanted,
                        struct place_found *found, bool *made) {
    struct message_enqueue e;
    struct message_move m;
    switch (r->type) {
    case MESSAGE_START:
    case MESSAGE_START_PLACED:
        return judge_start(l, r, wanted, found, made);
    case MESSAGE_ENQUEUE:
        return format_get_enqueue(r, &e) == FORMAT_OK ? judge_list(l, r, &e, wanted, found, made)
                                                      : look_failed(l, r->lsn, FORMAT_MALFORMED);
    case MESSAGE_MOVE:
        if (format_get_move(r, &m) != FORMAT_OK) {
            return look_failed(l, r->lsn, FORMAT_MALFORMED);
        }
        return m.queue_id == wanted->queue_id ? judge_enqueue(l, r->lsn, m.tx_id, wanted, found, made) : LS_OK;
    case MESSAGE_RELOCATED:
    case MESSAGE_RELOCATED_PLACED:
        return judge_relocated(l, r, wanted, found, made);
    default:
        return LS_OK;
    }
}

/* The known run of this chain's dequeues, or the oldest entry of its set, to be replaced. */
static struct dequeues_only *find_run(struct lookback *l, uint64_t id) {
    struct dequeues_only *set = &l->chains[look_slot(id, LOOK_CHAINS / LOOK_WAYS) * LOOK_WAYS], *oldest = set;
    for (size_t i = 0; i < LOOK_WAYS; i++) {
        if (set[i].id == id) {
            return &set[i];
        }
        oldest = set[i].top < oldest->top ? &set[i] : oldest;
    }
    return oldest;
}

/* Follows the chain's back-links to the record that made the place. A known run of dequeues is skipped. */
static int follow_chain(struct lookback *l, const struct record *dequeue, const struct place_wanted *wanted,
                        struct place_found *found) {
    struct dequeues_only *run = find_run(l, dequeue->id);
    uint64_t at = dequeue->prev, below = dequeue->lsn;
    bool made = false, dequeues_only = dequeue->type == MESSAGE_DEQUEUE;
    while (at >= dequeue->id && at < below && !made) {
        struct record r;
        if (run->id == dequeue->id && run->top == at) {
            below = at;
            at = run->next;
            continue;
        }
        int rc = lookback_record(l, at, &r);
        if (rc == LS_OK && r.id != dequeue->id) {
            return look_failed(l, at, FORMAT_PLACE);
        }
        bool makes_one = rc == LS_OK && r.type != MESSAGE_DEQUEUE && r.type != MESSAGE_PLACE;
        if (dequeues_only && (rc == LS_END || makes_one)) {
            dequeues_only = false;
            *run = (struct dequeues_only){.id = dequeue->id, .top = dequeue->lsn, .next = at};
        }
        if (rc != LS_OK) {
            return rc == LS_END ? LS_OK : rc; /* recycled: the place stays unknown */
        }
        below = at;
        at = r.prev;
        rc = judge_record(l, &r, wanted, found, &made);
        if (rc != LS_OK) {
            return rc;
        }
        *found = made ? *found : (struct place_found){.lsn = 0};
    }
    return LS_OK;
}

void lookback_know(struct lookback *l, const ls_rows_options *options) { l->known = options; }

/* Looks among the places that the caller knows: their records may have been recycled. */
static void ask_known(const struct lookback *l, uint64_t id, uint32_t queue_id, struct place_found *found) {
    const ls_rows_options *o = l->known;
    if (o == NULL || o->place_count == 0) {
        return;
    }
    size_t low = array_lower_bound_of(o->place_ids, o->place_count, id);
    size_t high = array_lower_bound_of(o->place_ids, o->place_count, id + 1);
    low += array_lower_bound_of(o->place_queue_ids + low, high - low, queue_id);
    bool there = low < high && o->place_queue_ids[low] == queue_id;
    if (there && (found->lsn == 0 || found->lsn == o->place_lsns[low])) {
        *found = (struct place_found){.lsn = o->place_lsns[low], .time_us = o->place_times[low]};
    }
}

int lookback_enqueue(struct lookback *l, const struct record *dequeue, const struct place_wanted *wanted,
                     struct place_found *found) {
    const struct recent_start *start = dequeue->prev == dequeue->id ? look_recent_start(l, dequeue->id) : NULL;
    *found = (struct place_found){.lsn = 0};
    if (start != NULL) {
        *found = (struct place_found){.lsn = start->id, .time_us = start->time_us};
        return LS_OK;
    }
    int rc = follow_chain(l, dequeue, wanted, found);
    if (look_is_unreadable(l, rc)) {
        *found = (struct place_found){.lsn = 0};
        rc = LS_OK;
    }
    if (rc == LS_OK && found->time_us == 0) {
        ask_known(l, dequeue->id, wanted->queue_id, found);
    }
    return rc;
}

/* ---- made and freed ---- */

struct lookback *lookback_new(ls_reader *reader, uint64_t as_of_lsn) {
    struct lookback *l = calloc(1, sizeof *l);
    if (l == NULL) {
        return NULL;
    }
    l->reader = reader;
    l->v = reader->v;
    l->digest_count = reader->scan.count;
    l->file = -1;
    /* Segments below a hold may be recycled at any time, so rows never depend on them. */
    uint64_t kept_lsn = reader->keep_lsn / reader->meta.segment_size * reader->meta.segment_size;
    l->floor_lsn = kept_lsn > reader->scan.base_lsn ? kept_lsn : reader->scan.base_lsn;
    l->as_of_lsn = as_of_lsn == 0 || as_of_lsn > reader->scan.end_lsn ? reader->scan.end_lsn : as_of_lsn;
    l->digests = calloc(reader->scan.count + 1, sizeof *l->digests);
    l->starts = calloc(LOOK_STARTS, sizeof *l->starts);
    l->outcomes = calloc(LOOK_OUTCOMES, sizeof *l->outcomes);
    l->chains = calloc(LOOK_CHAINS, sizeof *l->chains);
    if (l->digests == NULL || l->starts == NULL || l->outcomes == NULL || l->chains == NULL) {
        lookback_free(l);
        return NULL;
    }
    return l;
}

void lookback_free(struct lookback *l) {
    if (l == NULL) {
        return;
    }
    if (l->digests != NULL) {
        look_digests_free(l);
    }
    for (size_t i = 0; i < LOOK_WINDOWS; i++) {
        free(l->windows[i].data);
    }
    if (l->file >= 0) {
        (void)l->v->close(l->v, l->file);
    }
    free(l->digests);
    free(l->starts);
    free(l->outcomes);
    free(l->chains);
    free(l);
}
