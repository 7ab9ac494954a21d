/*
 * Explains the tail: which chains need records in the oldest segment, how many bytes are live in every segment, and how
 * many a relocation of the whole log would copy. The table is read in slices, so that other threads wait only briefly;
 * a change between two slices may be seen or not.
 */
#ifndef LOGSTORE_TAIL_H
#define LOGSTORE_TAIL_H

#include "logstore.h"
#include "os/vfs.h"
#include "table/table.h"

struct tail_candidate {
    uint64_t lsn;
    uint64_t id;
    int kind;
};

/* The caller fills in the first part. */
struct tail_look {
    struct table *table;
    ls_tail *tail;
    ls_tail_segment *segments; /* allocated: those of the log by first_lsn, then spares */
    size_t segment_count;      /* of the log */
    vfs *v;
    int dir;
    const uint8_t *uuid;
    void (*yield)(void *context); /* lets others have the lock for a moment; NULL: there are no others */
    void *context;

    struct tail_candidate *lowest; /* the holders with the lowest LSNs, in order */
    size_t count;
    size_t capacity;
};

int tail_prepare(struct tail_look *k, size_t holders_max); /* LS_NO_MEMORY */
void tail_free(struct tail_look *k);
/* With the lock. Completes the tail, fills in the holders, and gives their number. */
size_t tail_explain(struct tail_look *k, ls_holder *holders);
/* Without the lock. Finds since when the holders exist, as far as the file of the oldest segment shows. */
void tail_add_times(const struct tail_look *k, ls_holder *holders, size_t n);

void tail_copy_xid(ls_xid *into, const struct tx *tx);

#endif
