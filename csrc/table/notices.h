/*
 * Notices: what an inbox is told of single messages or transactions, in the order in which it happened. What always holds,
 * under the log's lock:
 *
 *   - a notice is given out once the record that did it is durable, so a crash takes back nothing that was told;
 *   - its memory is allocated when the listener comes, so an event allocates nothing, and a listener that does not look
 *     costs no more than `limit` notices. The others are dropped and counted; they are told as a number, which also
 *     waits until their records are durable.
 */
#ifndef LOGSTORE_TABLE_NOTICES_H
#define LOGSTORE_TABLE_NOTICES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dropped {
    uint64_t count;
    uint64_t end_lsn; /* all of them are durable once durable_lsn has reached it */
};

struct notices {
    uint64_t *end_lsns;      /* a ring; the notice is durable once durable_lsn has reached this */
    unsigned char *items;    /* in the same places */
    size_t item_bytes;       /* of each */
    size_t limit;            /* places */
    size_t first, count;     /* in use */
    struct dropped collects; /* those that are dropped now */
    struct dropped waits;    /* earlier ones, whose end_lsn grows no more */
    uint64_t missed;         /* still earlier ones, which are durable */
    bool rung;               /* the inbox was signalled, and has not taken all durable ones since */
};

struct notices *notices_new(size_t item_bytes, size_t limit); /* NULL: no memory */
void notices_free(struct notices *n);                         /* NULL: does nothing */
/* The notice is dropped if there is no place for it. No earlier one has a greater end_lsn. */
void notices_add(struct notices *n, const void *item, uint64_t end_lsn);
bool notices_ready(struct notices *n, uint64_t durable_lsn); /* whether notices_take would give something */
/* Takes up to `most` durable notices, and how many durable ones were dropped since the last call. */
size_t notices_take(struct notices *n, uint64_t durable_lsn, void *into, size_t most, uint64_t *missed);

#endif
