#include "tests/sim/consensus_disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct segment *disk_find(const struct disk *d, uint64_t first) {
    for (size_t i = d->count; i > 0; i--)
        if (d->segments[i - 1].first == first)
            return &d->segments[i - 1];
    return NULL;
}

static struct segment *find_or_make(struct disk *d, uint64_t first) {
    struct segment *found = disk_find(d, first);
    if (found != NULL)
        return found;
    d->segments = grow(d->segments, &d->capacity, d->count, sizeof *d->segments);
    size_t at = d->count++;
    for (; at > 0 && d->segments[at - 1].first > first; at--)
        d->segments[at] = d->segments[at - 1];
    d->segments[at] = (struct segment){.first = first};
    return &d->segments[at];
}

bool disk_has(const struct disk *d, int id) {
    const struct segment *s = disk_find(d, segment_of(batch_of(id)->lsn));
    for (size_t i = 0; s != NULL && i < s->count; i++)
        if (s->records[i].id == id)
            return !s->records[i].torn;
    return false;
}

void disk_header(struct disk *d, uint64_t first, uint64_t term, uint64_t prev_end) {
    struct segment *s = find_or_make(d, first);
    s->has_header = true;
    s->term = term;
    s->prev_end = prev_end;
}

bool disk_put(struct disk *d, int id, bool torn) {
    uint64_t lsn = batch_of(id)->lsn;
    struct segment *s = find_or_make(d, segment_of(lsn));
    size_t at = s->count;
    while (at > 0 && batch_of(s->records[at - 1].id)->lsn >= lsn)
        at--;
    if (at < s->count && batch_of(s->records[at].id)->lsn == lsn) {
        s->records[at].torn = s->records[at].torn && torn;
        s->records[at].phantom = false; /* written once more */
        return s->records[at].id == id;
    }
    s->records = grow(s->records, &s->capacity, s->count, sizeof *s->records);
    memmove(s->records + at + 1, s->records + at, (s->count - at) * sizeof *s->records);
    s->records[at] = (struct record){id, torn, false};
    s->count++;
    return true;
}

void disk_remove(struct disk *d, uint64_t first) {
    struct segment *s = disk_find(d, first);
    if (s == NULL)
        return;
    size_t at = (size_t)(s - d->segments);
    free(s->records);
    memmove(s, s + 1, (d->count - at - 1) * sizeof *s);
    d->count--;
}

void disk_remove_between(struct disk *d, uint64_t from, uint64_t below) {
    for (size_t i = d->count; i > 0; i--)
        if (d->segments[i - 1].first >= from && d->segments[i - 1].first < below)
            disk_remove(d, d->segments[i - 1].first);
}

void disk_rewrite_tail(struct disk *d, const struct recovered *r) {
    struct segment *s = disk_find(d, r->last_segment);
    for (size_t i = 0; s != NULL && i < s->count; i++)
        s->records[i].phantom = false;
}

void disk_lose_cache(struct disk *d) {
    for (size_t i = 0; i < d->count; i++) {
        struct segment *s = &d->segments[i];
        size_t kept = 0;
        for (size_t k = 0; k < s->count; k++)
            if (!s->records[k].phantom)
                s->records[kept++] = s->records[k];
        s->count = kept;
    }
}

void disk_end_mark(struct disk *d, uint64_t end) {
    struct segment *s = disk_find(d, segment_of(d->mark_from));
    if (s != NULL && end >= d->mark_from && end < d->mark_to) {
        size_t kept = 0;
        for (size_t i = 0; i < s->count; i++) {
            uint64_t lsn = batch_of(s->records[i].id)->lsn;
            if (lsn < end || lsn >= d->mark_to)
                s->records[kept++] = s->records[i];
        }
        s->count = kept;
    }
    d->mark_from = d->mark_to = 0;
}

void disk_copy(struct disk *to, const struct disk *from) {
    disk_free(to);
    to->mark_from = from->mark_from;
    to->mark_to = from->mark_to;
    for (size_t i = 0; i < from->count; i++) {
        const struct segment *s = &from->segments[i];
        struct segment *made = find_or_make(to, s->first);
        made->term = s->term;
        made->prev_end = s->prev_end;
        made->has_header = s->has_header;
        for (size_t k = 0; k < s->count; k++) {
            made->records = grow(made->records, &made->capacity, made->count, sizeof *made->records);
            made->records[made->count++] = s->records[k];
        }
    }
}

void disk_free(struct disk *d) {
    for (size_t i = 0; i < d->count; i++)
        free(d->segments[i].records);
    free(d->segments);
    *d = (struct disk){0};
}

/* ---- recovery ---- */

static char alarm_text[240];

static const char *alarm_of(const char *what, uint64_t where, uint64_t said, uint64_t end, uint64_t base) {
    (void)snprintf(alarm_text, sizeof alarm_text,
                   "FALSE ALARM: %s at %llx says that the log reaches %llx; it ends at %llx, its base is %llx", what,
                   (unsigned long long)where, (unsigned long long)said, (unsigned long long)end,
                   (unsigned long long)base);
    return alarm_text;
}

/* A file that counts, and the LSN at which the next newer file cuts it. */
struct accepted {
    const struct segment *segment;
    uint64_t limit;
};

static size_t accept_files(const struct disk *d, struct accepted *into, uint64_t *highest_term) {
    uint64_t cut = UINT64_MAX;
    size_t count = 0;
    for (size_t i = d->count; i > 0; i--) {
        const struct segment *s = &d->segments[i - 1];
        if (!s->has_header)
            continue;
        *highest_term = s->term > *highest_term ? s->term : *highest_term;
        if (s->first >= cut)
            continue;
        into[count++] = (struct accepted){s, cut};
        cut = s->prev_end;
    }
    return count;
}

static uint64_t largest_known(const struct accepted *files, size_t count) {
    uint64_t known_lsn = 0;
    for (size_t i = 0; i < count; i++) {
        const struct segment *s = files[i].segment;
        for (size_t k = 0; k < s->count; k++) {
            const struct batch *b = batch_of(s->records[k].id);
            if (!s->records[k].torn && b->lsn < files[i].limit && b->known_lsn > known_lsn)
                known_lsn = b->known_lsn;
        }
    }
    return known_lsn;
}

/* By the newest batch at or below the largest known_lsn: one that another batch of this log says to be durable. */
static uint64_t named_base(const struct accepted *files, size_t count) {
    uint64_t known_lsn = largest_known(files, count);
    for (size_t i = 0; i < count; i++) {
        const struct segment *s = files[i].segment;
        for (size_t k = s->count; k > 0; k--) {
            int id = s->records[k - 1].id;
            if (!s->records[k - 1].torn && batch_of(id)->lsn < files[i].limit && batch_end(id) <= known_lsn)
                return batch_of(id)->base;
        }
    }
    return 0;
}

/* The LSN below which all was forced before the batch was written. A batch under MARK can say that only of what lies below MARK. */
static uint64_t said_durable(const struct disk *d, const struct batch *b) {
    bool marked = b->lsn >= d->mark_from && b->lsn < d->mark_to;
    return marked && b->durable_lsn > d->mark_from ? d->mark_from : b->durable_lsn;
}

static const char *read_file(const struct disk *d, const struct accepted *file, struct recovered *r, uint64_t *end) {
    const struct segment *s = file->segment;
    uint64_t at = s->first + HEADER_BYTES;
    bool broken = false;
    for (size_t i = 0; i < s->count; i++) {
        int id = s->records[i].id;
        const struct batch *b = batch_of(id);
        if (b->lsn >= file->limit)
            break;
        broken = broken || s->records[i].torn || b->lsn != at;
        uint64_t said = said_durable(d, b);
        if (broken && !s->records[i].torn && said > *end && said > r->base && said <= file->limit)
            return alarm_of("a batch", b->lsn, said, *end, r->base);
        if (broken)
            continue;
        if (b->index == 0) {
            sequence_put(&r->before, id);
        } else {
            if (r->log.count > 0 && b->index != sequence_last(&r->log) + 1)
                return alarm_of("an index that does not follow", b->lsn, b->index, sequence_last(&r->log), r->base);
            if (r->log.count == 0)
                r->log.first = b->index;
            sequence_put(&r->log, id);
        }
        at = batch_end(id);
        *end = at;
    }
    return NULL;
}

static const char *read_headless(const struct disk *d, const struct accepted *files, size_t count, uint64_t end,
                                 uint64_t base) {
    for (size_t i = 0; i < d->count; i++) {
        const struct segment *s = &d->segments[i];
        for (size_t k = 0; !s->has_header && k < s->count; k++) {
            uint64_t said = said_durable(d, batch_of(s->records[k].id));
            bool inside = false;
            for (size_t f = 0; f < count; f++)
                inside = inside || (said > files[f].segment->first && said <= files[f].limit);
            if (inside && !s->records[k].torn && said > base && said > end)
                return alarm_of("a batch without a header", batch_of(s->records[k].id)->lsn, said, end, base);
        }
    }
    return NULL;
}

const char *recover(const struct disk *d, struct recovered *r) {
    struct accepted *files = calloc(d->count + 1, sizeof *files);
    const char *alarm = NULL;
    uint64_t end = 0;
    *r = (struct recovered){.log = {.first = 1}};
    if (files == NULL) {
        perror("the simulator");
        exit(2);
    }
    size_t count = accept_files(d, files, &r->highest_term);
    r->base = named_base(files, count);
    r->last_segment = count > 0 ? files[0].segment->first : UINT64_MAX;
    for (size_t i = count; i > 0 && alarm == NULL; i--) {
        uint64_t said = files[i - 1].segment->prev_end;
        if (said > end && said > r->base) {
            alarm = alarm_of("a header", files[i - 1].segment->first, said, end, r->base);
            break;
        }
        if (said > end) { /* the files before it were recycled */
            r->log.count = r->before.count = 0;
            end = said;
        }
        alarm = read_file(d, &files[i - 1], r, &end);
    }
    if (alarm == NULL)
        alarm = read_headless(d, files, count, end, r->base);
    r->end = end;
    free(files);
    return alarm;
}

void recovered_free(struct recovered *r) {
    sequence_free(&r->log);
    sequence_free(&r->before);
}
