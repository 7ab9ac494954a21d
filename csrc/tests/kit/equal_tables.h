/* Whether two stores, or copies that follow, have equal tables, whatever each has recycled. */
#ifndef LOGSTORE_EQUAL_TABLES_H
#define LOGSTORE_EQUAL_TABLES_H

#include <stdio.h>
#include <stdlib.h>

#include "inspect/inspect.h"
#include "replica/replica.h"
#include "tests/kit/tallies.h"

/* Each copy removes what lies below the base when it can. */
static inline struct state from_base(const ls_store *store) {
    struct state s = store->state;

    while (s.segment_count > 0 && s.segments->behind) {
        s.segments++;
        s.segment_count--;
    }
    return s;
}

static inline bool are_equal(const ls_store *a, const ls_store *b) {
    ls_checkpoint_difference d;
    struct state x, y;

    if (a == NULL || b == NULL)
        return false;
    x = from_base(a);
    y = from_base(b);
    if (checkpoint_compare(&x, &y, &d) != LS_OK)
        return false;
    if (d.differs)
        printf("message %llu: %s\n", (unsigned long long)d.id, d.text);
    return !d.differs && tallies_are_those_of_a_walk(&x.table) && tallies_are_those_of_a_walk(&y.table);
}

/* As replica_lead does before a term begins, but records are counted from this base. */
static inline bool settles(struct replica *f, uint64_t base_lsn) {
    struct state *s = &f->store->state;
    struct live_segment *made = calloc(f->segment_count + 1, sizeof *made);

    if (made == NULL)
        abort();
    for (size_t i = 0; i < f->segment_count; i++) {
        const struct replica_segment *from = &f->segments[i];

        made[i] = (struct live_segment){
            .first_lsn = from->first_lsn,
            .epoch = from->term,
            .prev_end_lsn = from->prev_end_lsn,
            .end_lsn = i + 1 < f->segment_count ? from[1].prev_end_lsn : f->end.lsn,
            .behind = from->first_lsn < base_lsn,
        };
    }
    replica_checkpoint_give_up(f);
    free(s->segments);
    s->segments = made;
    s->segment_count = f->segment_count;
    s->base_lsn = base_lsn;
    replay_free(&f->replay);
    f->replay.counted = NULL;
    f->replay.inspects = true;
    return replay_settle(&f->replay) == LS_OK;
}

#endif
