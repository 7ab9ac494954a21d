/* Eventfds that are signalled at each group commit, for event loops. */
#include <errno.h>

#include "log/parts.h"

int log_event_new(struct log *g, int *fd) {
    if (g->event_count == LS_EVENTS_MAX) {
        return fail(
            LS_OPTION,
            "%d event loops or threads wait for this store's group commits already; close one, or wait in fewer",
            LS_EVENTS_MAX);
    }
    int made = g->v->event_new(g->v);
    if (made < 0) {
        return fail_errno(LS_IO, -made, "no eventfd can be made");
    }
    g->events[g->event_count++] = *fd = made;
    return LS_OK;
}

void log_event_end(struct log *g, int fd) {
    for (int i = 0; i < g->event_count; i++) {
        if (g->events[i] == fd) {
            g->events[i] = g->events[--g->event_count];
            (void)g->v->event_close(g->v, fd);
            return;
        }
    }
}

void log_signal(struct log *g) {
    for (int i = 0; i < g->event_count; i++) {
        (void)g->v->event_signal(g->v, g->events[i]);
    }
}
