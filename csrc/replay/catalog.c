/* Compares the queues of the catalog with those of the log. See catalog.h. */
#include "replay/catalog.h"

#include <stdlib.h>
#include <string.h>

#include "logstore.h"
#include "os/array.h"
#include "os/error.h"

bool catalog_has(const uint32_t *sorted, size_t n, uint32_t id) {
    size_t low = array_lower_bound_of(sorted, n, id);
    return low < n && sorted[low] == id;
}

static int by_id(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

uint32_t *catalog_sorted(const uint32_t *queue_ids, size_t n) {
    uint32_t *sorted = malloc((n + 1) * sizeof *sorted);
    if (sorted != NULL && n > 0) {
        memcpy(sorted, queue_ids, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, by_id);
    }
    return sorted;
}

static int check_id(uint32_t id, uint32_t next_queue_id) {
    if (id < next_queue_id) {
        return LS_OK;
    }
    return fail(LS_CATALOG_MISMATCH,
                "the log knows queue %u, but the catalog has only given out ids below %u: it is older "
                "than the log. Nothing was changed. Restore the catalog that belongs to it, or see what "
                "'logstore repair-catalog DIR --dry-run' would do",
                (unsigned)id, (unsigned)next_queue_id);
}

int catalog_check(struct table *t, const uint32_t *sorted, size_t n, uint32_t next_queue_id) {
    int rc = LS_OK;
    for (uint32_t i = 0; rc == LS_OK && i < t->queue_count; i++) {
        rc = t->queues[i] != NULL ? check_id(t->queues[i]->id, next_queue_id) : LS_OK;
    }
    for (uint32_t i = 0; rc == LS_OK && i < t->tx_slots; i++) {
        for (struct work *w = t->txs[i] != NULL ? t->txs[i]->first : NULL; rc == LS_OK && w != NULL; w = w->next) {
            rc = check_id(w->queue_id, next_queue_id);
            if (rc == LS_OK && table_any_queue(t, w->queue_id) == NULL && !table_add_queue(t, w->queue_id)) {
                rc = fail_memory(); /* if the catalog no longer has it, its deletion must be logged, as with places */
            }
        }
    }
    for (size_t i = 0; rc == LS_OK && i < n; i++) {
        struct queue *q = table_any_queue(t, sorted[i]);
        if (q != NULL && q->deleted) {
            rc = fail(LS_CATALOG_MISMATCH,
                      "the log says that queue %u was deleted, but the catalog has it: it is older than "
                      "the log. Nothing was changed. Restore the catalog that belongs to it, or see what "
                      "'logstore repair-catalog DIR --dry-run' would do",
                      (unsigned)sorted[i]);
        } else if (q == NULL && !table_add_queue(t, sorted[i])) {
            rc = fail_memory();
        }
    }
    return rc;
}
