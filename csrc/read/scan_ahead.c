/*
 * Reading ahead: while one thread replays, another reads and verifies what comes next.
 *
 * The second thread has a scan of its own, a copy of the first. It does what scan_next would do, and hands over windows
 * full of accepted batches. It makes no decision: at any anomaly (an invalid batch, an unreadable file, no memory) it
 * stops. The first thread continues alone from there, meets the same anomaly, and reports it. So results and errors are
 * the same as without it.
 *
 * Invariants
 *   - a window belongs to one thread at a time: it is filled, then taken, then free again, under `lock`;
 *   - windows are taken in the order in which they were filled, and batches stand in them in the order of the log;
 *   - the first scan is not touched by the second thread; both read its list of files, which does not change.
 */
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "read/scan_parts.h"

enum {
    WINDOWS = 3,
    FILL_BYTES = 1 << 20,    /* read at once, so that verified bytes are still in the CPU cache at replay */
    BATCHES_MAX = 4096,      /* in a window */
    LOG_BYTES_MIN = 4 << 20, /* a shorter log is read by one thread */
};

struct ahead_window {
    uint8_t *memory;
    struct scan_batch *batches;
    size_t count;
    uint64_t bytes_read;
};

struct scan_ahead {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    struct scan own;
    struct ahead_window windows[WINDOWS];
    size_t capacity;                   /* bytes of each */
    uint64_t filled;                   /* windows, ever: windows[filled % WINDOWS] is filled next */
    uint64_t taken;                    /* windows freed, ever */
    const struct ahead_window *taking; /* window of the first thread; NULL: none */
    size_t next;                       /* batch in that window that the first thread takes next */
    bool ended;                        /* the second thread fills no more windows */
    bool stopping;                     /* the first thread takes no more windows */
};

/* ---- filling, in the second thread ---- */

/* The next batch is whole in the window, and its batch record is valid. */
static bool has_next(const struct scan *s) {
    const struct scan_file *f = &s->files[s->next_file];
    uint64_t offset = s->next_lsn - f->first_lsn;
    struct batch b;
    if (s->file < 0 || s->file_index != s->next_file || offset < s->window_at ||
        offset + BATCH_RECORD_BYTES > s->window_at + s->window_bytes) {
        return false;
    }
    const uint8_t *at = s->window + (offset - s->window_at);
    uint64_t seed = format_segment_seed(s->meta.uuid, f->first_lsn, f->header.epoch);
    return scan_batch_record(at, BATCH_RECORD_BYTES, s->next_lsn, f->header.epoch, seed, &b) == FORMAT_OK &&
           b.bytes <= s->window_at + s->window_bytes - offset;
}

/* The scan continues in this memory: bytes that were read beyond the last batch move there. */
static void change_window(struct scan *s, uint8_t *memory) {
    uint64_t offset = s->next_lsn - s->files[s->next_file].first_lsn, from = offset / BLOCK_BYTES * BLOCK_BYTES;
    uint64_t end = s->window_at + s->window_bytes;
    bool same = s->file >= 0 && s->file_index == s->next_file && from >= s->window_at && end > from;
    if (same && end % BLOCK_BYTES == 0) {
        memcpy(memory, s->window + (from - s->window_at), (size_t)(end - from));
        s->window_bytes = (size_t)(end - from);
    } else {
        s->window_bytes = 0;
    }
    s->window = memory;
    s->window_at = from;
}

/* Reads until the next batch is there or nothing can be added, then takes all valid batches. False: there is none. */
static bool fill(struct scan *s, struct ahead_window *w, size_t capacity) {
    w->count = 0;
    s->bytes_read = 0;
    if (!scan_has_next(s)) {
        return false;
    }
    if (scan_open_segment(s, s->next_file) != LS_OK) {
        return false;
    }
    change_window(s, w->memory);
    bool more = true;
    while (more && (!has_next(s) || s->bytes_read == 0)) {
        size_t room = capacity - s->window_bytes;
        more = scan_fill_window(s, room < FILL_BYTES ? room : FILL_BYTES);
    }
    enum format_result why = FORMAT_OK;
    while (w->count < BATCHES_MAX && has_next(s)) {
        struct scan_batch *b = &w->batches[w->count];
        if (scan_accept_next(s, b, &why) != LS_OK || why != FORMAT_OK) {
            break;
        }
        w->count++;
        if (!scan_has_next(s)) {
            break;
        }
    }
    w->bytes_read = s->bytes_read;
    return w->count > 0;
}

static void *read_ahead(void *context) {
    struct scan_ahead *a = context;
    (void)pthread_mutex_lock(&a->lock);
    while (!a->stopping && !a->ended) {
        if (a->filled - a->taken == WINDOWS) {
            (void)pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        struct ahead_window *w = &a->windows[a->filled % WINDOWS];
        (void)pthread_mutex_unlock(&a->lock);
        bool some = fill(&a->own, w, a->capacity);
        (void)pthread_mutex_lock(&a->lock);
        a->filled += some ? 1 : 0;
        a->ended = !some;
        (void)pthread_cond_signal(&a->changed);
    }
    (void)pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* ---- starting and stopping ---- */

static void free_ahead(struct scan_ahead *a) {
    for (size_t i = 0; i < WINDOWS; i++) {
        free(a->windows[i].memory);
        free(a->windows[i].batches);
    }
    free(a);
}

static struct scan_ahead *new_ahead(const struct scan *s) {
    struct scan_ahead *a = calloc(1, sizeof *a);
    if (a == NULL) {
        return NULL;
    }
    /* the rest of a batch that began in the window before, and one read */
    a->capacity = (size_t)format_batch_bytes_max(s->meta.segment_size) / BLOCK_BYTES * BLOCK_BYTES;
    a->capacity += 2 * (size_t)BLOCK_BYTES + FILL_BYTES;
    a->own = *s;
    a->own.file = -1;
    a->own.window = NULL;
    a->own.window_at = 0;
    a->own.window_bytes = 0;
    a->own.window_capacity = a->capacity;
    a->own.ahead = NULL;
    bool ready = true;
    for (size_t i = 0; i < WINDOWS; i++) {
        a->windows[i].memory = aligned_alloc(BLOCK_BYTES, a->capacity);
        a->windows[i].batches = calloc(BATCHES_MAX, sizeof *a->windows[i].batches);
        ready = ready && a->windows[i].memory != NULL && a->windows[i].batches != NULL;
    }
    if (!ready) {
        free_ahead(a);
        a = NULL;
    }
    return a;
}

void scan_ahead_start(struct scan *s) {
    struct scan_ahead *a = s->end_lsn - s->next_lsn >= LOG_BYTES_MIN ? new_ahead(s) : NULL;
    if (a == NULL) {
        return;
    }
    if (pthread_mutex_init(&a->lock, NULL) != 0) {
        free_ahead(a);
        return;
    }
    if (pthread_cond_init(&a->changed, NULL) != 0) {
        (void)pthread_mutex_destroy(&a->lock);
        free_ahead(a);
        return;
    }
    s->ahead = a;
    if (pthread_create(&a->thread, NULL, read_ahead, a) != 0) {
        s->ahead = NULL;
        (void)pthread_cond_destroy(&a->changed);
        (void)pthread_mutex_destroy(&a->lock);
        free_ahead(a);
    }
}

void scan_ahead_stop(struct scan *s) {
    struct scan_ahead *a = s->ahead;
    if (a == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&a->lock);
    a->stopping = true;
    (void)pthread_cond_signal(&a->changed);
    (void)pthread_mutex_unlock(&a->lock);
    (void)pthread_join(a->thread, NULL);
    if (a->own.file >= 0) {
        (void)a->own.v->close(a->own.v, a->own.file);
    }
    (void)pthread_cond_destroy(&a->changed);
    (void)pthread_mutex_destroy(&a->lock);
    free_ahead(a);
    s->ahead = NULL;
}

/* ---- taking, in the first thread ---- */

/* Gives back a window whose batches have all been taken, and waits for the next. NULL: the second thread has ended. */
static const struct ahead_window *wait_for_window(struct scan *s, struct scan_ahead *a) {
    (void)pthread_mutex_lock(&a->lock);
    if (a->taking != NULL) {
        a->taken++;
        a->next = 0;
        (void)pthread_cond_signal(&a->changed);
    }
    while (a->taken == a->filled && !a->ended) {
        (void)pthread_cond_wait(&a->changed, &a->lock);
    }
    const struct ahead_window *w = a->taken < a->filled ? &a->windows[a->taken % WINDOWS] : NULL;
    (void)pthread_mutex_unlock(&a->lock);
    s->bytes_read += w != NULL ? w->bytes_read : 0;
    return w;
}

bool scan_ahead_take(struct scan *s, struct scan_batch *b) {
    struct scan_ahead *a = s->ahead;
    const struct ahead_window *w = a->taking;
    if (w == NULL || a->next == w->count) {
        w = a->taking = wait_for_window(s, a);
    }
    if (w == NULL) {
        return false;
    }
    *b = w->batches[a->next++];
    assert(b->lsn == s->next_lsn); /* both scans visit the same batches */
    return true;
}
