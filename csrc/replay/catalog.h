/*
 * Compares the queues of the catalog with those of the log. A queue that only the log has was deleted, and the record
 * of that may be missing; a queue that the catalog cannot have known is a mismatch.
 */
#ifndef LOGSTORE_CATALOG_H
#define LOGSTORE_CATALOG_H

#include "table/table.h"

/* A sorted copy of the catalog's queue ids, which the caller frees; NULL: no memory. */
uint32_t *catalog_sorted(const uint32_t *queue_ids, size_t n);
bool catalog_has(const uint32_t *sorted, size_t n, uint32_t id);
/* Adds to the table the queues of the catalog, and those named by pending work. LS_CATALOG_MISMATCH, LS_NO_MEMORY. */
int catalog_check(struct table *t, const uint32_t *sorted, size_t n, uint32_t next_queue_id);

#endif
