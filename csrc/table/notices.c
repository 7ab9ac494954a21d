/* The ring of notices.h. */
#include "table/notices.h"

#include <stdlib.h>
#include <string.h>

struct notices *notices_new(size_t item_bytes, size_t limit) {
    struct notices *n = calloc(1, sizeof *n);
    uint64_t *end_lsns = calloc(limit, sizeof *end_lsns);
    unsigned char *items = calloc(limit, item_bytes);
    if (n == NULL || end_lsns == NULL || items == NULL) {
        free(n);
        free(end_lsns);
        free(items);
        return NULL;
    }
    *n = (struct notices){.end_lsns = end_lsns, .items = items, .item_bytes = item_bytes, .limit = limit};
    return n;
}

void notices_free(struct notices *n) {
    if (n != NULL) {
        free(n->end_lsns);
        free(n->items);
        free(n);
    }
}

void notices_add(struct notices *n, const void *item, uint64_t end_lsn) {
    if (n->count == n->limit) {
        n->collects = (struct dropped){n->collects.count + 1, end_lsn};
        return;
    }
    size_t at = (n->first + n->count++) % n->limit;
    n->end_lsns[at] = end_lsn;
    memcpy(n->items + at * n->item_bytes, item, n->item_bytes);
}

/* While many are dropped, `collects` may never be durable as a whole; `waits` is, once. */
static void settle_dropped(struct notices *n, uint64_t durable_lsn) {
    for (int i = 0; i < 2; i++) {
        if (n->waits.count == 0) {
            n->waits = n->collects;
            n->collects = (struct dropped){0, 0};
        }
        if (n->waits.end_lsn <= durable_lsn) {
            n->missed += n->waits.count;
            n->waits = (struct dropped){0, 0};
        }
    }
}

bool notices_ready(struct notices *n, uint64_t durable_lsn) {
    settle_dropped(n, durable_lsn);
    return n->missed > 0 || (n->count > 0 && n->end_lsns[n->first] <= durable_lsn);
}

size_t notices_take(struct notices *n, uint64_t durable_lsn, void *into, size_t most, uint64_t *missed) {
    size_t taken = 0;
    settle_dropped(n, durable_lsn);
    *missed = n->missed;
    n->missed = 0;
    while (taken < most && n->count > 0 && n->end_lsns[n->first] <= durable_lsn) {
        memcpy((unsigned char *)into + taken * n->item_bytes, n->items + n->first * n->item_bytes, n->item_bytes);
        n->first = (n->first + 1) % n->limit;
        n->count--;
        taken++;
    }
    n->first = n->count > 0 ? n->first : 0; /* an empty ring uses the same few pages again */
    return taken;
}
