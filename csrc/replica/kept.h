/*
 * The kept window: the batches at a copy's end that it can still give to other members, by index. Their places are in memory, and
 * their bytes are read from the segments, which stay as long as the window has a batch in them.
 */
#ifndef LOGSTORE_KEPT_H
#define LOGSTORE_KEPT_H

#include "read/scan.h"

struct kept;

/* Makes the window of the store in this directory, and opens the directory by itself. LS_NO_MEMORY, LS_IO. */
int kept_new(vfs *v, const char *store_dir, const struct scan *s, struct kept **kept);
void kept_free(struct kept *k); /* NULL: nothing */
/* Adds the next batch, whose bytes are those of b. A batch that is there already is not added again; one that does not
   follow the last makes the window begin with it. False: no memory. */
bool kept_add(struct kept *k, const struct scan_batch *b);
void kept_cut(struct kept *k, uint64_t index);  /* what lies above it was abandoned */
void kept_drop(struct kept *k, uint64_t index); /* batches below it are not needed */
/* The indexes in the window; last below first: it is empty. */
void kept_range(const struct kept *k, uint64_t *first, uint64_t *last);
/* The first LSN of the oldest segment that the window needs, or that may hold the next batch; UINT64_MAX: it has had no
   batch yet. */
uint64_t kept_lsn(const struct kept *k);
/* LS_REFUSED: it is not there. */
int kept_entry(const struct kept *k, uint64_t index, ls_replica_entry *entry);
/* The batch with its bytes, verified, valid until the next call. LS_REFUSED: the window does not have it; LS_CORRUPT,
   LS_IO. */
int kept_read(struct kept *k, uint64_t index, ls_replica_batch *batch);

#endif
