/*
 * Giving messages back and moving them: release and move in their usual form. Any other form goes to the Python method with the
 * suffix _slow, as in consume.c, and so do times that it would refuse: that method raises the error.
 */
#include <time.h>

#include "publish.h"

/* ---- arguments ---- */

enum { SECOND_US = 1000000 };

/* A move without its queues. */
struct moving {
    ls_place_move move;
    ls_delivery *row; /* of the delivery */
    ls_tx *tx;
    PyObject *transaction; /* NULL or None: there is none */
    bool waits;
};

static bool take_bytes(PyObject *given, Py_ssize_t most, const uint8_t **at, size_t *bytes, int *is_given) {
    *is_given = given != Py_None;
    if (*is_given && PyBytes_CheckExact(given) && PyBytes_GET_SIZE(given) <= most) {
        *at = (const uint8_t *)PyBytes_AS_STRING(given);
        *bytes = (size_t)PyBytes_GET_SIZE(given);
        return true;
    }
    return !*is_given;
}

/* As Python's round(): a half goes to the even number. */
static uint64_t rounded(double given) {
    uint64_t down = (uint64_t)given;
    double rest = given - (double)down;
    return down + (rest > 0.5 || (rest == 0.5 && down % 2 == 1) ? 1 : 0);
}

/* Seconds since 1970 as a plain number. False: the slow path must look at it. */
static bool take_time(PyObject *given, uint64_t *us) {
    const double last_s = 253402300799.0; /* the end of the year 9999 */
    double seconds = PyFloat_CheckExact(given) ? PyFloat_AS_DOUBLE(given) : 0;
    uint64_t whole = 0;
    if (given == Py_None) {
        return true;
    }
    if (PyLong_CheckExact(given) && hot_id(given, &whole)) {
        seconds = (double)whole;
    }
    if (!(seconds > 0 && seconds < last_s)) {
        return false;
    }
    *us = whole > 0 ? whole * SECOND_US : rounded(seconds * SECOND_US);
    return true;
}

static bool times_are_sound(const ls_times *times) {
    struct timespec now;
    if (times->not_before_us == 0 && times->expires_us == 0) {
        return true;
    }
    uint64_t now_us = timespec_get(&now, TIME_UTC) == TIME_UTC
                          ? (uint64_t)now.tv_sec * SECOND_US + (uint64_t)now.tv_nsec / 1000
                          : UINT64_MAX;
    return (times->not_before_us == 0 || times->not_before_us > now_us) &&
           (times->expires_us == 0 || (times->expires_us > now_us && times->expires_us > times->not_before_us));
}

static bool take_keyword(const struct store_calls *of, PyObject *name, PyObject *value, struct moving *m) {
    const struct hot_state *state = of->state;
    ls_place_move *move = &m->move;
    if (name == state->header) {
        return take_bytes(value, HELD_BYTES_MAX, &move->header, &move->header_bytes, &move->header_given);
    }
    if (name == state->note) {
        return take_bytes(value, LS_NOTE_BYTES, &move->note, &move->note_bytes, &move->note_given);
    }
    if (name == state->not_before) {
        return take_time(value, &move->times.not_before_us);
    }
    if (name == state->expires) {
        return take_time(value, &move->times.expires_us);
    }
    if (name == state->transaction) {
        m->transaction = value;
        return hot_transaction(of, value, &m->tx);
    }
    m->waits = value == Py_True;
    return name == state->wait && PyBool_Check(value);
}

/* False: the slow path must look at them. */
static bool take_keywords(const struct store_calls *of, PyObject *const *values, PyObject *names, struct moving *m) {
    Py_ssize_t count = names != NULL ? PyTuple_GET_SIZE(names) : 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!take_keyword(of, PyTuple_GET_ITEM(names, i), values[i], m)) {
            return false;
        }
    }
    return times_are_sound(&m->move.times);
}

/* ---- moving ---- */

static int make_move(const struct store_calls *of, const struct moving *m) {
    const ls_calls *calls = of->state->calls;
    ls_store *store = of->store;
    bool waits = m->waits && m->tx == NULL && !of->relaxed;
    uint64_t lsn;
    int rc = waits ? LS_WOULD_WAIT : calls->move(store, m->row->id, &m->move, m->row, m->tx, LS_TRY, &lsn);
    if (rc == LS_WOULD_WAIT) {
        int flags = waits ? LS_WAIT : 0;
        Py_BEGIN_ALLOW_THREADS
        rc = calls->move(store, m->row->id, &m->move, m->row, m->tx, flags, &lsn);
        Py_END_ALLOW_THREADS
    }
    return rc;
}

/* Moves, and settles the delivery. A queue that is unknown may be the other one. */
static bool move_and_settle(const struct queue_calls *self, struct delivery *d, const struct moving *m) {
    d->settled = true;
    int rc = make_move(self->store, m);
    if (rc != LS_OK) {
        d->settled = rc == LS_UNKNOWN_QUEUE ? self->deleted : hot_is_lost(rc);
        (void)hot_fail(self->store->state, rc);
    }
    return rc == LS_OK;
}

/* The place stays acquired until the outcome, and the delivery is not marked. */
static PyObject *move_within(struct queue_calls *self, PyObject *const *args, Py_ssize_t count, PyObject *names,
                             const struct moving *m) {
    const struct hot_state *state = self->store->state;
    if (make_move(self->store, m) != LS_OK) { /* nothing was done, and nothing is kept of it */
        return hot_slow((PyObject *)self, state->move_slow, args, count, names);
    }
    PyObject *batch = PyTuple_Pack(1, args[0]);
    bool pends = batch != NULL && hot_pend(state, m->transaction, batch, 1);
    Py_XDECREF(batch);
    return pends ? Py_NewRef(Py_None) : NULL;
}

PyObject *hot_move(struct queue_calls *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    struct hot_state *state = hot_state_of((PyObject *)self);
    const struct store_calls *of = hot_store_after_drops(self);
    struct moving m = {.waits = true};
    if (state == NULL) {
        return NULL;
    }
    struct delivery *d = of != NULL && of->store != NULL && count == 2 ? hot_held(state, self, args[0]) : NULL;
    if (d == NULL || !hot_queue_id(of, args[1], &m.move.queue_id) || !take_keywords(of, args + count, names, &m)) {
        return hot_slow((PyObject *)self, state->move_slow, args, count, names);
    }
    m.move.from_queue_id = self->id;
    m.row = &d->row;
    if (m.tx != NULL) {
        return move_within(self, args, count, names, &m);
    }
    return move_and_settle(self, d, &m) ? Py_NewRef(Py_None) : NULL;
}

/* ---- releasing ---- */

struct releasing {
    bool unseen, to_back, waits;
};

/* False: the slow path must look at them; that a delay is given, or what does not go together, too. */
static bool take_release(const struct hot_state *state, PyObject *const *values, PyObject *names, struct releasing *r) {
    Py_ssize_t count = names != NULL ? PyTuple_GET_SIZE(names) : 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        bool *into = name == state->unseen    ? &r->unseen
                     : name == state->to_back ? &r->to_back
                     : name == state->wait    ? &r->waits
                                              : NULL;
        if (into != NULL && PyBool_Check(values[i])) {
            *into = values[i] == Py_True;
        } else if (name != state->delay || values[i] != Py_None) {
            return false;
        }
    }
    return r->to_back ? !r->unseen : !r->waits;
}

/* Gives the place back where it was. */
static bool release_one(const struct queue_calls *self, struct delivery *d, int flags) {
    const struct hot_state *state = self->store->state;
    const ls_calls *calls = state->calls;
    ls_store *store = self->store->store;
    d->settled = true;
    int rc = calls->release(store, self->id, &d->row, 1, LS_TRY | flags);
    if (rc == LS_WOULD_WAIT) {
        Py_BEGIN_ALLOW_THREADS
        rc = calls->release(store, self->id, &d->row, 1, flags);
        Py_END_ALLOW_THREADS
    }
    if (rc == LS_OK || rc == LS_CLOSED || rc == LS_FORKED) { /* after those, nothing is acquired */
        return true;
    }
    d->settled = hot_is_lost(rc);
    (void)hot_fail(state, rc);
    return false;
}

/* Moves it to the end of its queue, with its count, note, header and expiry. */
static bool release_to_back(const struct queue_calls *self, struct delivery *d, bool waits) {
    const struct moving m = {
        .move = {.from_queue_id = self->id, .queue_id = self->id, .keeps_count = 1, .keeps_expiry = 1},
        .row = &d->row,
        .waits = waits,
    };
    return move_and_settle(self, d, &m);
}

PyObject *hot_release(struct queue_calls *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    struct hot_state *state = hot_state_of((PyObject *)self);
    const struct store_calls *of = hot_store_after_drops(self);
    struct releasing r = {.unseen = false};
    if (state == NULL) {
        return NULL;
    }
    bool usual = of != NULL && of->store != NULL && count == 1 && take_release(state, args + 1, names, &r);
    struct delivery *d = usual ? hot_held(state, self, args[0]) : NULL;
    if (d == NULL) {
        return hot_slow((PyObject *)self, state->release_slow, args, count, names);
    }
    bool fine = r.to_back ? release_to_back(self, d, r.waits) : release_one(self, d, r.unseen ? LS_UNSEEN : 0);
    return fine ? PyObject_CallMethodNoArgs((PyObject *)self, state->came_back) : NULL;
}
