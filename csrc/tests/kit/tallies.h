/* Compares what each queue counts with a walk over its places. The caller has the store's lock, or the only thread. */
#ifndef LOGSTORE_KIT_TALLIES_H
#define LOGSTORE_KIT_TALLIES_H

#include <string.h>

#include "table/table.h"

static inline bool tallies_are_those_of_a_walk(const struct table *t) {
    bool same = true;

    for (uint32_t i = 0; i < t->queue_count; i++) {
        const struct queue *q = t->queues[i];
        struct cursor c = {.chunk = q != NULL ? q->first : NULL};
        struct tally found[STANDINGS];
        uint64_t position;
        const struct entry *e;

        memset(found, 0, sizeof found);
        while ((e = cursor_entry(&c, &position)) != NULL) {
            found[entry_standing(e)].places++;
            found[entry_standing(e)].bytes += message_content_bytes(table_message(t, e->message));
            cursor_step(&c);
        }
        same = same && (q == NULL || memcmp(found, q->tallies, sizeof found) == 0);
    }
    return same;
}

#endif
