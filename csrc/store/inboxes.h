/*
 * An inbox: what an event loop, or a thread, is told of its takers (takers.c), its watches (inboxes.c) and its notices
 * (notices.c), with one eventfd.
 * Everything here needs the lock.
 */
#ifndef LOGSTORE_INBOXES_H
#define LOGSTORE_INBOXES_H

#include "store/store.h"
#include "table/notices.h"

struct ls_inbox {
    struct watcher watcher; /* the first field */
    ls_store *store;
    int event;                         /* -1: closed */
    size_t users;                      /* its owner, and its takers */
    ls_taker *first, *last;            /* served, and not told yet */
    struct notices *deaths, *in_doubt; /* NULL: not wanted */
    ls_inbox *next_noticing;           /* those of the store that want one of these */
};

void inbox_signal(ls_inbox *inbox);
void inbox_drop(
    ls_inbox *inbox); /* one user less; also without the lock, in a fork, where the parent's threads do not run */
/* takers.c: takes up to n served takers off its list. */
size_t inbox_take(ls_inbox *inbox, uint64_t *numbers, size_t n);
/* notices.c: it wants none any more. */
void notices_end(ls_inbox *inbox);

#endif
