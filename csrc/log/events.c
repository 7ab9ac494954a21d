/*
 * Eventfds that are signalled at each group commit, for event loops; and the answer.
 *
 * An event loop that has one client's answer to send, and nothing else to do when an LSN is durable, leaves it here. The
 * thread that makes the LSN durable sends it, and does not signal the loop's event if nothing after that LSN is durable yet:
 * the loop sleeps on. The loop takes the answer back before it waits for any other LSN or writes to the socket, and then
 * knows whether it was sent.
 *
 * The answer has a descriptor of its own for the socket: if a loop ends without taking it back, the number of the closed
 * socket may be that of another client's, or of a file.
 *
 * Always holds, under the lock: an answer is sent at most once, and only when its LSN is durable. A loop whose answer was
 * not sent, or not as a whole, gets its signal. An answer that was sent as a whole makes way for the loop's next one.
 */
#include <errno.h>
#include <string.h>

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
            if (g->answer.event == fd) {
                log_answer_drop(g);
            }
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

static void close_socket(struct log *g) {
    if (g->answer.lsn != 0 && g->answer.socket >= 0) {
        (void)g->v->socket_close(g->v, g->answer.socket);
        g->answer.socket = -1;
    }
}

void log_answer_drop(struct log *g) {
    close_socket(g);
    g->answer.lsn = 0;
}

/* Sends the answer if it is due. Returns the event that need not be signalled at this commit, or -1. */
static int send_answer(struct log *g) {
    struct answer *a = &g->answer;
    if (a->lsn == 0 || a->sent != ANSWER_WAITS || a->lsn > g->front.durable_lsn) {
        return -1;
    }
    int64_t sent = g->v->send(g->v, a->socket, a->bytes, a->bytes_count);
    a->sent = sent > 0 ? sent : 0;
    close_socket(g);
    return a->sent == (int64_t)a->bytes_count && a->lsn == g->front.durable_lsn ? a->event : -1;
}

void log_signal_commit(struct log *g) {
    int answered = send_answer(g);
    for (int i = 0; i < g->event_count; i++) {
        if (g->events[i] != answered) {
            (void)g->v->event_signal(g->v, g->events[i]);
        }
    }
}

static bool has_event(const struct log *g, int fd) {
    int i = 0;
    while (i < g->event_count && g->events[i] != fd) {
        i++;
    }
    return i < g->event_count;
}

/* Whether an answer is there that the loop has to take back. */
static bool is_taken(const struct answer *a, int event) {
    return a->lsn != 0 && (a->event != event || a->sent != (int64_t)a->bytes_count);
}

int log_answer(struct log *g, int fd, uint64_t lsn, int socket, const uint8_t *bytes, size_t count) {
    if (count == 0 || count > LS_ANSWER_BYTES_MAX) {
        return fail(LS_OPTION, "an answer has 1 to %d bytes, not %zu", LS_ANSWER_BYTES_MAX, count);
    }
    if (!has_event(g, fd)) {
        return fail(LS_OPTION, "%d is no eventfd of this store", fd);
    }
    if (lsn <= g->front.durable_lsn || lsn > g->front.end_lsn || g->poison != 0 || is_taken(&g->answer, fd)) {
        return LS_WOULD_WAIT;
    }
    int own = g->v->socket_dup(g->v, socket);
    if (own < 0) {
        return LS_WOULD_WAIT;
    }
    g->answer = (struct answer){.lsn = lsn, .event = fd, .socket = own, .sent = ANSWER_WAITS, .bytes_count = count};
    memcpy(g->answer.bytes, bytes, count);
    return LS_OK;
}

int log_answer_all(struct log *g, int fd, int socket, const uint8_t *bytes, size_t count, uint64_t *lsn) {
    int rc = log_answer(g, fd, g->front.end_lsn, socket, bytes, count);
    *lsn = log_next_lsn(g);
    return rc;
}

int64_t log_answered(struct log *g, int fd) {
    if (g->answer.lsn == 0 || g->answer.event != fd) {
        return ANSWER_WAITS;
    }
    log_answer_drop(g);
    return g->answer.sent;
}
