/*
 * The kept window: the batches at a copy's end that it can still give to other members, by index. Their places are in memory, and
 * their bytes are read from the segments, which stay as long as the window has a batch in them.
 */
#ifndef LOGSTORE_KEPT_H
#define LOGSTORE_KEPT_H

#include "read/scan.h"

struct kept;

/* Of the store in this directory, which it opens by itself. LS_NO_MEMORY, LS_IO. */
int kept_new(vfs *v, const char *store_dir, const struct scan *s, struct kept **kept);
void kept_free(struct kept *k); /* NULL: nothing */
/* The next one; its bytes are those of b. One that is there already is not added again, and one
   that does not follow from the last begins the window anew. False: no memory. */
bool kept_add(struct kept *k, const struct scan_batch *b);
void kept_cut(struct kept *k, uint64_t index);  /* what lies above it was abandoned */
void kept_drop(struct kept *k, uint64_t index); /* what lies below it is not needed */
/* The indexes that it has; last below first: none. */
void kept_range(const struct kept *k, uint64_t *first, uint64_t *last);
/* The first LSN of the oldest segment that it needs, or that the next batch may lie in; UINT64_MAX: it had none yet. */
uint64_t kept_lsn(const struct kept *k);
/* LS_REFUSED: it is not there. */
int kept_entry(const struct kept *k, uint64_t index, ls_replica_entry *entry);
/* Its bytes, verified, valid until the next call. LS_REFUSED: it is not there; LS_CORRUPT, LS_IO. */
int kept_read(struct kept *k, uint64_t index, ls_replica_batch *batch);

#endif
