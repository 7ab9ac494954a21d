/*
 * _publish_each: messages of any iterable. Before this asks it for the next item, all earlier items are in the core,
 * and the flusher is awake. So earlier items become durable and are offered while the iterable computes, or waits for a
 * consumer of them.
 *
 * The iterable may run any code, also on this store. Only the room for ids is kept over its calls.
 */
#include "publish.h"

enum {
    HELD_WORK_MAX = 1 << 20, /* bytes and items until the interpreter is released: an iterable in C may never do it */
    ITEM_WORK = 1 << 10,     /* counted for each item in addition to its bytes */
    ROOM_FIRST = 16,         /* first memory for this many ids, then for twice as many */
    ROOM_MAX = 1024,
};

struct each {
    const struct store_calls *self;
    PyObject *contents; /* iterators */
    PyObject *headers;  /* NULL: none */
    PyObject *transaction;
    uint32_t queue_id;
    ls_times times; /* of every place; zeros: none */
    size_t held_work;
    size_t room_step;
    struct id_room ids;
};

/* How it ended. */
enum end {
    END_FAILED = -2, /* an exception is set */
    END_FEWER_HEADERS = -1,
    END_FINE = 0,
    END_MORE_HEADERS = 1,
    NOT_YET = 2,
};

static bool need_room(struct each *e) {
    if (e->ids.count < e->ids.room) {
        return true;
    }
    if (!hot_ids_need(&e->ids, e->room_step)) {
        return false;
    }
    e->room_step = e->room_step < ROOM_MAX ? 2 * e->room_step : ROOM_MAX;
    return true;
}

/*
 * Publishes one message. Never waits for the disk, and never blocks while it holds the interpreter. The transaction is
 * looked up for each message, since the iterable may have ended it.
 */
static bool put(struct each *e, const struct part *content, const struct part *header) {
    const ls_calls *calls = e->self->state->calls;
    ls_store *store = e->self->store;
    ls_tx *tx;
    if (!hot_transaction(e->self, e->transaction, &tx)) {
        return PyErr_Format(PyExc_ValueError, "the transaction is of another store now") != NULL;
    }
    uint64_t *id = hot_ids_next(&e->ids);
    size_t bytes = (size_t)(content->bytes + header->bytes);
    int rc = LS_WOULD_WAIT;
    if (bytes <= HELD_BYTES_MAX && e->held_work < HELD_WORK_MAX) {
        e->held_work += bytes + ITEM_WORK;
        rc = calls->publish_timed(store, &e->queue_id, 1, header->at, (size_t)header->bytes, content->at,
                                  (size_t)content->bytes, &e->times, tx, LS_TRY, id);
    }
    if (rc == LS_WOULD_WAIT) {
        e->held_work = 0;
        Py_BEGIN_ALLOW_THREADS
        rc = calls->publish_timed(store, &e->queue_id, 1, header->at, (size_t)header->bytes, content->at,
                                  (size_t)content->bytes, &e->times, tx, 0, id);
        Py_END_ALLOW_THREADS
    }
    if (rc != LS_OK) {
        (void)hot_fail(e->self->state, rc);
        return false;
    }
    e->ids.count++;
    return true;
}

static bool put_items(struct each *e, PyObject *content, PyObject *header) {
    Py_buffer views[2];
    bool exported[2] = {false, false};
    struct part c, h = {.at = NULL};
    const struct item_name named = {"contents", e->ids.count}, named_header = {"headers", e->ids.count};
    bool fine = hot_part(content, named, &c, &views[0], &exported[0]) &&
                (header == NULL || hot_part(header, named_header, &h, &views[1], &exported[1])) && need_room(e) &&
                put(e, &c, &h);
    for (size_t i = 0; i < 2; i++) {
        if (exported[i]) {
            PyBuffer_Release(&views[i]);
        }
    }
    return fine;
}

/* After the last content, checks whether there are more headers. */
static enum end end_of_contents(const struct each *e) {
    PyObject *more = e->headers != NULL ? PyIter_Next(e->headers) : NULL;
    if (more != NULL) {
        Py_DECREF(more);
        return END_MORE_HEADERS;
    }
    return PyErr_Occurred() != NULL ? END_FAILED : END_FINE;
}

static enum end publish_next(struct each *e) {
    PyObject *content = PyIter_Next(e->contents), *header = NULL;
    if (content == NULL) {
        return PyErr_Occurred() != NULL ? END_FAILED : end_of_contents(e);
    }
    enum end end = NOT_YET;
    if (e->headers != NULL) {
        header = PyIter_Next(e->headers);
        end = header != NULL ? NOT_YET : PyErr_Occurred() != NULL ? END_FAILED : END_FEWER_HEADERS;
    }
    if (end == NOT_YET && !(put_items(e, content, header) && PyErr_CheckSignals() == 0)) {
        end = END_FAILED;
    }
    Py_DECREF(content);
    Py_XDECREF(header);
    return end;
}

PyObject *hot_publish_each(struct store_calls *self, PyObject *args) {
    struct each e = {.self = self, .room_step = ROOM_FIRST};
    PyObject *headers, *array;
    unsigned int queue_id;
    unsigned long long not_before_us, expires_us;
    ls_tx *tx;
    if (!PyArg_ParseTuple(args, "IOOOKKO:_publish_each", &queue_id, &e.contents, &headers, &e.transaction,
                          &not_before_us, &expires_us, &array)) {
        return NULL;
    }
    e.queue_id = queue_id;
    e.times = (ls_times){.not_before_us = not_before_us, .expires_us = expires_us};
    e.headers = headers != Py_None ? headers : NULL;
    if (self->store == NULL || !hot_transaction(self, e.transaction, &tx) || !PyIter_Check(e.contents) ||
        (e.headers != NULL && !PyIter_Check(e.headers))) {
        return PyErr_Format(PyExc_ValueError,
                            "contents and headers are iterators, for an open store and its own transaction");
    }
    enum end end = hot_ids_begin(&e.ids, array) ? NOT_YET : END_FAILED;
    while (end == NOT_YET) {
        end = publish_next(&e);
    }
    hot_ids_end(&e.ids);
    return end != END_FAILED ? PyLong_FromLong(end) : NULL;
}
