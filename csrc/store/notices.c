/*
 * Notices of the whole store for inboxes: messages that died, transactions that came into doubt or left it.
 * table/notices.h has the rings and what always holds.
 *
 * An inbox's eventfd is signalled when a notice of one kind is durable, and not again until all of that kind were taken.
 */
#include "store/inboxes.h"

enum { NOTICES = LS_NOTICE_DEATHS | LS_NOTICE_IN_DOUBT };

/* ---- telling, with the lock ---- */

static void ring_if_ready(ls_inbox *inbox, struct notices *n) {
    if (n != NULL && !n->rung && notices_ready(n, log_durable_lsn(inbox->store->log))) {
        n->rung = true;
        inbox_signal(inbox);
    }
}

void notices_serve(ls_store *store) {
    for (ls_inbox *inbox = store->noticing.first; inbox != NULL; inbox = inbox->next_noticing) {
        ring_if_ready(inbox, inbox->deaths);
        ring_if_ready(inbox, inbox->in_doubt);
    }
}

/* The record of a queue's deletion may be durable long before the sweep ends the message. */
void notices_of_death(ls_store *store, uint64_t id) {
    uint64_t end_lsn = log_end_lsn(store->log);
    for (ls_inbox *inbox = store->noticing.first; inbox != NULL; inbox = inbox->next_noticing) {
        if (inbox->deaths != NULL) {
            notices_add(inbox->deaths, &id, end_lsn);
            ring_if_ready(inbox, inbox->deaths);
        }
    }
}

void notices_of_tx(ls_store *store, const ls_tx_info *info) {
    for (ls_inbox *inbox = store->noticing.first; inbox != NULL; inbox = inbox->next_noticing) {
        if (inbox->in_doubt != NULL) {
            notices_add(inbox->in_doubt, info, log_end_lsn(store->log));
        }
    }
}

/* ---- the calls ---- */

static void count_kinds(ls_store *store) {
    store->noticing.deaths = store->noticing.in_doubt = false;
    for (const ls_inbox *inbox = store->noticing.first; inbox != NULL; inbox = inbox->next_noticing) {
        store->noticing.deaths = store->noticing.deaths || inbox->deaths != NULL;
        store->noticing.in_doubt = store->noticing.in_doubt || inbox->in_doubt != NULL;
    }
}

static void leave(ls_inbox *inbox) {
    ls_inbox **link = &inbox->store->noticing.first;
    while (*link != NULL && *link != inbox) {
        link = &(*link)->next_noticing;
    }
    if (*link != NULL) {
        *link = inbox->next_noticing;
    }
}

static void drop(struct notices **of) {
    notices_free(*of);
    *of = NULL;
}

void notices_end(ls_inbox *inbox) {
    leave(inbox);
    drop(&inbox->deaths);
    drop(&inbox->in_doubt);
    count_kinds(inbox->store);
}

/* False: no memory. */
static bool make(struct notices **of, bool is_wanted, size_t item_bytes, size_t limit) {
    if (is_wanted && *of == NULL) {
        *of = notices_new(item_bytes, limit);
    }
    return !is_wanted || *of != NULL;
}

static int notice(ls_inbox *inbox, int kinds) {
    bool deaths = (kinds & LS_NOTICE_DEATHS) != 0, in_doubt = (kinds & LS_NOTICE_IN_DOUBT) != 0;
    bool had_deaths = inbox->deaths != NULL;
    if (!make(&inbox->deaths, deaths, sizeof(uint64_t), LS_DEATHS_MAX)) {
        return fail_memory();
    }
    if (!make(&inbox->in_doubt, in_doubt, sizeof(ls_tx_info), LS_IN_DOUBT_MAX)) {
        if (!had_deaths) {
            drop(&inbox->deaths);
        }
        return fail_memory();
    }
    if (!deaths) {
        drop(&inbox->deaths);
    }
    if (!in_doubt) {
        drop(&inbox->in_doubt);
    }
    leave(inbox);
    if (kinds != 0) {
        inbox->next_noticing = inbox->store->noticing.first;
        inbox->store->noticing.first = inbox;
    }
    count_kinds(inbox->store);
    return LS_OK;
}

int ls_inbox_notice(ls_inbox *inbox, int kinds) {
    ls_store *store = inbox->store;
    if ((kinds & ~NOTICES) != 0) {
        return fail(LS_OPTION, "an inbox notices LS_NOTICE_DEATHS and LS_NOTICE_IN_DOUBT, not %d", kinds);
    }
    int rc = store_enter(store);
    if (rc != LS_OK) {
        return rc;
    }
    rc = notice(inbox, kinds);
    takers_await(store);
    return store_leave(store, rc, LEAVE_QUIETLY);
}

static size_t take(ls_inbox *inbox, struct notices *const *of, void *into, size_t n, uint64_t *missed) {
    ls_store *store = inbox->store;
    size_t count = 0;
    *missed = 0;
    if (atomic_load(&store->foreign)) {
        return 0;
    }
    log_lock(store->log);
    if (store->phase == PHASE_SERVING && *of != NULL) {
        uint64_t durable_lsn = log_durable_lsn(store->log);
        count = notices_take(*of, durable_lsn, into, n, missed);
        (*of)->rung = notices_ready(*of, durable_lsn);
    }
    log_unlock(store->log);
    return count;
}

size_t ls_inbox_deaths(ls_inbox *inbox, uint64_t *ids, size_t n, uint64_t *missed) {
    return take(inbox, &inbox->deaths, ids, n, missed);
}

size_t ls_inbox_in_doubt(ls_inbox *inbox, ls_tx_info *into, size_t n, uint64_t *missed) {
    return take(inbox, &inbox->in_doubt, into, n, missed);
}
