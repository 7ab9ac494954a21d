/*
 * The verdict on a damaged store.
 *
 * Damage is each byte that differs from the undamaged images. It alone determines the required answer:
 *
 *   damaged                                                   required answer
 *   neither a batch of the log, nor a header, nor META        the store opens, with its state unchanged
 *   META; or a file of the log is too short; or the first     the open is refused with the right code; the error names
 *   damaged batch is followed by proof that it was durable    the damaged place; nothing was written
 *   (an intact batch record or a later segment's header)
 *   a batch that nothing intact follows: the same as a        the store opens with its state before that batch, and
 *   crash, which must never be reported as damage             reports the cut; if it is the batch of CLOSE, the state
 *                                                             is unchanged and the close not orderly
 */
#ifndef LOGSTORE_BYTES_VERDICT_H
#define LOGSTORE_BYTES_VERDICT_H

#include <time.h>
#include <unistd.h>

#include "tests/proof/bytes_store.h"

enum { CASE_SECONDS_MAX = 120 };

/* ---- the checks ---- */

enum check_name {
    CHECK_DETECTED,
    CHECK_CONTENT,
    CHECK_STATE,
    CHECK_REPORTS,
    CHECK_READER,
    CHECK_CRASH,
    CHECK_ALLOCATION,
    CHECK_REFUSED_WRITES_NOTHING,
    CHECKS,
};

static const char *const check_words[CHECKS] = {"detected", "content", "state",      "reports",
                                                "reader",   "crash",   "allocation", "refused_writes_nothing"};

static struct {
    bool off[CHECKS];
    bool first_only;
    bool stop;
    double until; /* by the monotonic clock, in seconds; 0: no limit */
    uint64_t violations[CHECKS];
    uint64_t all;
    int killed_by;  /* the first check that was violated; -1: none */
    char what[160]; /* the present damage, in words */
    uint64_t cases;
    uint64_t refused;
    uint64_t cut;      /* opened without its last batch */
    uint64_t beyond;   /* of these, stores with damage of more than one bit: there may be no torn byte to report */
    uint64_t harmless; /* opened, with the state unchanged */
    size_t largest;    /* the largest allocation while the core worked */
} tally = {.killed_by = -1};

static inline double seconds_of(clockid_t clock) {
    struct timespec t;

    (void)clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static inline void violated(enum check_name check, const char *words) {
    if (tally.off[check])
        return;
    tally.violations[check]++;
    if (tally.killed_by < 0)
        tally.killed_by = (int)check;
    if (tally.all++ < 20)
        printf("%s: %s: %s [%d %s@%llu: %s]\n", check_words[check], tally.what, words, ls_last_error()->code,
               ls_last_error()->segment, (unsigned long long)ls_last_error()->offset, ls_last_error()->text);
    tally.stop = tally.stop || tally.first_only;
}

/* ---- allocations: replaces the C library's allocator, which sanitizers do not allow ---- */

static size_t largest_allocation;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static inline size_t asked_for(size_t bytes) {
    largest_allocation = bytes > largest_allocation ? bytes : largest_allocation;
    return bytes;
}

void *malloc(size_t bytes) { return __libc_malloc(asked_for(bytes)); }
void *calloc(size_t n, size_t bytes) {
    (void)asked_for(n != 0 && bytes > SIZE_MAX / n ? SIZE_MAX : n * bytes);
    return __libc_calloc(n, bytes);
}
void *realloc(void *old, size_t bytes) { return __libc_realloc(old, asked_for(bytes)); }
void *aligned_alloc(size_t alignment, size_t bytes) { return __libc_memalign(alignment, asked_for(bytes)); }
#endif

/* The bound: the size of all files, or the 1 MiB buffer with which an open rewrites the tail. */
static inline void allocations_are_bounded(const struct subject *s) {
    size_t bound = s->bytes > (1 << 20) ? (size_t)s->bytes : 1 << 20;

    tally.largest = largest_allocation > tally.largest ? largest_allocation : tally.largest;
    if (largest_allocation > bound)
        violated(CHECK_ALLOCATION, "an allocation beyond what the files justify");
}

/* ---- the damage ---- */

enum { TOUCHED_MAX = 4 };

struct touched {
    size_t file;
    const uint8_t *now; /* NULL: it is gone */
    uint64_t size;
};

struct damage {
    struct subject *s;
    vfs_sim *disk;
    bool flip; /* one bit at `at` of the file, and nothing else */
    size_t file;
    uint32_t at;
    struct touched touched[TOUCHED_MAX];
    size_t n;
};

static inline bool is_intact(const struct damage *d, size_t file, uint32_t from, uint32_t bytes) {
    if (d->flip)
        return file != d->file || d->at < from || d->at - from >= bytes;
    for (size_t i = 0; i < d->n; i++) {
        const struct touched *t = &d->touched[i];

        if (t->file == file)
            return t->now != NULL && t->size >= from + (uint64_t)bytes &&
                   memcmp(t->now + from, d->s->files[file].bytes + from, bytes) == 0;
    }
    return true;
}

static inline uint64_t size_now(const struct damage *d, size_t file) {
    for (size_t i = 0; i < d->n; i++) {
        if (d->touched[i].file == file)
            return d->touched[i].now != NULL ? d->touched[i].size : 0;
    }
    return d->s->files[file].size;
}

static inline bool header_is_intact(const struct damage *d, size_t file) {
    return is_intact(d, file, 0, SEGMENT_HEADER_BYTES);
}

static inline bool batch_is_intact(const struct damage *d, size_t batch) {
    const struct place_of_batch *b = &d->s->batches[batch];

    return is_intact(d, b->file, b->at, b->bytes);
}

/* ---- the required answer ---- */

struct wanted {
    size_t cut; /* index of the first damaged batch; the number of batches: none is */
    bool refuse;
    bool may_version;     /* the damage is in a version field */
    bool may_not_a_store; /* the damage is in META's magic */
    bool meta;
    bool remains; /* a part of the batch is left, so that a cut can be reported */
};

static inline uint64_t closed_at(const struct image *f) {
    struct closed c = {.end_lsn = 0};

    (void)format_get_closed(f->bytes, (size_t)f->size, &c);
    return c.end_lsn;
}

static inline bool was_durable(const struct damage *d, size_t cut) {
    for (size_t i = cut + 1; i < d->s->batch_count; i++) {
        if (is_intact(d, d->s->batches[i].file, d->s->batches[i].at, BATCH_RECORD_BYTES))
            return true;
    }
    for (size_t i = 0; i < d->s->file_count; i++) {
        if (d->s->files[i].in_log && d->s->files[i].prev_end_lsn > d->s->batches[cut].lsn && header_is_intact(d, i))
            return true;
        if (strcmp(d->s->files[i].name, "CLOSED") == 0 && is_intact(d, i, 0, CLOSED_BYTES) &&
            closed_at(&d->s->files[i]) > d->s->batches[cut].lsn)
            return true;
    }
    return d->s->kind == STORE_TORN && is_intact(d, d->s->torn_file, d->s->torn_at, BATCH_RECORD_BYTES) &&
           header_is_intact(d, d->s->torn_file);
}

static inline struct wanted wanted_of(const struct damage *d) {
    struct wanted w = {.cut = d->s->batch_count, .remains = d->flip};

    for (size_t i = 0; i < d->s->file_count; i++) {
        const struct image *f = &d->s->files[i];

        if (strcmp(f->name, "META") == 0 && !is_intact(d, i, 0, META_BYTES)) {
            w.meta = w.refuse = true;
            w.may_not_a_store = !is_intact(d, i, 0, 8);
        }
        if (f->in_log && size_now(d, i) >= SEGMENT_HEADER_BYTES && size_now(d, i) < SEGMENT && header_is_intact(d, i))
            w.refuse = true;
        if (size_now(d, i) >= 12 && !is_intact(d, i, 8, 4))
            w.may_version = true;
    }
    for (size_t i = 0; i < d->s->batch_count && w.cut == d->s->batch_count; i++) {
        if (!batch_is_intact(d, i) || !header_is_intact(d, d->s->batches[i].file))
            w.cut = i;
    }
    w.refuse = w.refuse || (w.cut < d->s->batch_count && was_durable(d, w.cut));
    return w;
}

static inline bool is_in(uint64_t lsn, uint64_t from, uint64_t bytes) { return lsn >= from && lsn - from < bytes; }

/* The error names a damaged file and a damaged place in it. */
static inline bool names_the_place(const struct damage *d, const ls_error *e) {
    uint64_t first_lsn;

    if (!format_parse_segment_name(e->segment, &first_lsn) || e->lsn != first_lsn + e->offset)
        return false;
    for (size_t i = 0; i < d->s->file_count; i++) {
        const struct image *f = &d->s->files[i];

        if (f->in_log && f->first_lsn == first_lsn && (!header_is_intact(d, i) || size_now(d, i) < SEGMENT))
            return is_in(e->lsn, first_lsn, SEGMENT);
    }
    for (size_t i = 0; i < d->s->batch_count; i++) {
        if (d->s->files[d->s->batches[i].file].first_lsn == first_lsn && !batch_is_intact(d, i) &&
            is_in(e->lsn, d->s->batches[i].lsn, d->s->batches[i].bytes))
            return true;
    }
    return false;
}

/* Without an intact header there is no log, and so no place to name. */
static inline bool any_header_is_intact(const struct damage *d) {
    for (size_t i = 0; i < d->s->file_count; i++) {
        if (d->s->files[i].in_log && size_now(d, i) >= SEGMENT_HEADER_BYTES && header_is_intact(d, i))
            return true;
    }
    return false;
}

static inline void judge_refusal(const struct damage *d, const struct wanted *w, int rc, uint64_t changes) {
    const ls_error *e = ls_last_error();
    bool hit = w->refuse || w->cut < d->s->batch_count;

    tally.refused++;
    if (vfs_sim_changes(d->disk) != changes)
        violated(CHECK_REFUSED_WRITES_NOTHING, "a refused open changed the disk");
    if (rc == LS_VERSION && w->may_version)
        return;
    if (!hit)
        violated(CHECK_STATE, "damage outside the log is refused");
    else if (!w->refuse && reference_of(d->s, w->cut)->opens)
        violated(CHECK_STATE, "damage that a crash may leave is refused");
    else if (rc == LS_NOT_A_STORE ? !w->may_not_a_store : rc != LS_CORRUPT)
        violated(CHECK_REPORTS, "refused for the wrong reason");
    else if (!w->meta && (w->refuse || w->remains) && any_header_is_intact(d) && !names_the_place(d, e))
        violated(CHECK_REPORTS, "the error names a place that is not damaged");
}

/* ---- a store that opened ---- */

/* Commits the transactions in doubt; their effects are those that were prepared. */
static inline bool doubts_are(ls_store *store, struct model_state *state, unsigned catalog) {
    while (state->tx_count > 0) {
        ls_tx *tx;
        bool right = ls_in_doubt_take(store, state->txs[0].id, &tx) == LS_OK && ls_commit(tx, LS_WAIT) == LS_OK;

        if (!right)
            return false;
        ls_tx_free(tx);
        model_end_tx(state, &state->txs[0], true, catalog);
    }
    return store_is(store, state, catalog);
}

static inline void judge_report(const struct damage *d, const struct wanted *w, const struct reference *ref,
                                const ls_recovery *report) {
    bool cut = w->cut < d->s->batch_count;

    if ((report->clean != 0) != ref->clean && (w->remains || !cut))
        violated(CHECK_REPORTS, "it reports wrongly whether it was closed in order");
    if (report->end_lsn != ref->end_lsn)
        violated(CHECK_REPORTS, "it reports a wrong end of the log");
    if (cut && w->remains && report->torn_bytes == 0)
        violated(CHECK_REPORTS, "a batch was cut and not reported");
}

static inline void judge_opened(const struct damage *d, const struct wanted *w, ls_store *store) {
    static struct model_state state;
    const struct reference ref_then = *reference_of(d->s, w->cut), *ref = &ref_then;
    struct run *r = &d->s->r;
    ls_recovery report;

    if (!ref->opens) {
        violated(CHECK_DETECTED, "it opens although the base of the rest is gone");
        return;
    }
    ls_recovery_report(store, &report);
    if (d->s->kind == STORE_CLOSED && w->cut + 1 == d->s->batch_count) /* CLOSE is alone in its batch */
        model_after(r, reference_of(d->s, d->s->batch_count)->found, r->catalog, &state);
    else
        model_after(r, ref->found, r->catalog, &state);
    if (!store_is(store, &state, r->catalog))
        violated(CHECK_STATE, "the store differs from the model");
    else if (!contents_are(r, store, &state))
        violated(CHECK_CONTENT, "a content is wrong, or there are too many or too few messages");
    else if (!doubts_are(store, &state, r->catalog))
        violated(CHECK_STATE, "the transactions in doubt differ from the model");
    judge_report(d, w, ref, &report);
    tally.cut += w->cut < d->s->batch_count;
    tally.beyond += w->cut < d->s->batch_count && !w->remains;
    tally.harmless += w->cut == d->s->batch_count;
}

static inline void judge_store(const struct damage *d, const struct wanted *w) {
    struct run *r = &d->s->r;
    uint64_t changes = vfs_sim_changes(d->disk);
    ls_store *store = NULL;
    int rc;

    largest_allocation = 0;
    rc = ls_open(vfs_sim_table(d->disk), "/s", &r->options, &store);
    if (rc != LS_OK) {
        judge_refusal(d, w, rc, changes);
    } else if (w->refuse) {
        violated(CHECK_DETECTED, "damage was not detected");
    } else {
        uint32_t ids[QUEUES];

        rc = ls_serve(store, ids, list_queues(r->catalog, ids), QUEUES + 1);
        if (rc != LS_OK)
            violated(CHECK_STATE, "it opens, but does not serve");
        else
            judge_opened(d, w, store);
    }
    ls_free(store);
    allocations_are_bounded(d->s);
}

/* ---- the reader ---- */

/* It gives exactly the undamaged batches in order, up to a refusal or the end that the store must have. */
static inline void judge_reader(const struct damage *d, const struct wanted *w) {
    const struct subject *s = d->s;
    ls_reader *reader = NULL;
    ls_batch b;
    size_t n = 0;
    int rc = ls_reader_open(vfs_sim_table(d->disk), "/s", 0, &reader);

    while (rc == LS_OK && (rc = ls_reader_next(reader, &b)) == LS_OK) {
        if (b.lsn < s->batches[0].lsn) /* the batch that was cut may be the one that named the base */
            continue;
        if (n == s->batch_count || b.lsn != s->batches[n].lsn || b.size != s->batches[n].bytes ||
            memcmp(b.bytes, s->files[s->batches[n].file].bytes + s->batches[n].at, b.size) != 0) {
            violated(CHECK_READER, "the reader gives bytes that were never written");
            break;
        }
        n++;
    }
    ls_reader_close(reader);
    if (rc == LS_END && (w->refuse || n != w->cut))
        violated(CHECK_READER, "the reader ends before the damage without an error");
    if (rc != LS_END && rc != LS_OK && !w->refuse && w->cut == s->batch_count && !(rc == LS_VERSION && w->may_version))
        violated(CHECK_READER, "the reader refuses an undamaged batch");
}

static inline void judge(const struct damage *d) {
    struct wanted w = wanted_of(d);

    tally.cases++;
    (void)alarm(CASE_SECONDS_MAX);
    tally.stop = tally.stop || (tally.until > 0 && seconds_of(CLOCK_MONOTONIC) > tally.until);
    if (!tally.off[CHECK_READER])
        judge_reader(d, &w);
    judge_store(d, &w);
}

#endif
