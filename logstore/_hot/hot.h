/*
 * logstore._hot: CPython's own calls for the few hot paths, over the core's public C API. They convert arguments and
 * results and have no policy of their own: an unusual argument goes to the Python method that each function names.
 *
 * It never blocks while it holds the interpreter: it then calls the core with LS_TRY only, and makes all other calls
 * with the interpreter released. Nothing is global: each module object has a state, and each object points to that of
 * its module.
 *
 * The core is logstore._core. It is not linked; cffi hands over its table of calls once, at import (see bind).
 */
#ifndef LOGSTORE_HOT_H
#define LOGSTORE_HOT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdbool.h>
#include <sys/types.h>

#include "logstore_calls.h"

enum { SPARE_DELIVERIES = 1024 };

/* The state of a module object. Names are interned, so that a keyword is recognized by its address. */
struct hot_state {
    const ls_calls *calls; /* NULL until bind */
    PyObject *failure;     /* logstore.core.native.failure: a code -> the exception */
    PyTypeObject *store_type;
    PyTypeObject *queue_type;
    PyTypeObject *transaction_type;
    PyTypeObject *delivery_type;
    PyTypeObject *waiters_type;
    PyTypeObject *waiter_type;
    PyTypeObject *owner_type;
    PyTypeObject *taker_type;
    PyObject *header;
    PyObject *transaction;
    PyObject *wait;
    PyObject *publish_slow;
    PyObject *dequeue_slow;
    PyObject *annotate_slow;
    PyObject *load_content_slow;
    PyObject *header_slow;
    PyObject *next_lsn_slow;
    PyObject *durable_lsn_slow;
    PyObject *room_percent_slow;
    PyObject *undurable_slow;
    PyObject *nearly_full_slow;
    PyObject *note;
    PyObject *not_before;
    PyObject *expires;
    PyObject *unseen;
    PyObject *to_back;
    PyObject *delay;
    PyObject *load;
    PyObject *accept;
    PyObject *reject;
    PyObject *release;
    PyObject *acquire_slow;
    PyObject *accept_slow;
    PyObject *accept_many_slow;
    PyObject *release_slow;
    PyObject *move_slow;
    PyObject *refuse;
    PyObject *token_of;
    PyObject *came_back;
    PyObject *settles;
    struct delivery *spares[SPARE_DELIVERIES]; /* memory of deliveries that were freed; see delivery.c */
    size_t spare_count;
};

/* The kinds of objects that the core makes and an owner frees. */
enum owns {
    OWNS_STORE,
    OWNS_CURSOR,
    OWNS_TX,
    OWNS_HOLD,
    OWNS_READER,
    OWNS_ROWS,
    OWNS_MESSAGE_ROWS,
    OWNS_COLUMNS,
    OWNS_INBOX,
};

union owned {
    void *any;
    ls_store *store;
    ls_cursor *cursor;
    ls_tx *tx;
    ls_hold *hold;
    ls_reader *reader;
    ls_rows *rows;
    ls_message_rows *message_rows;
    ls_columns *columns;
    ls_inbox *inbox;
};

struct owner {
    PyObject ob_base;
    const ls_calls *calls; /* a copy: the module's state may be gone when this is freed */
    union owned at;        /* NULL: empty, or freed */
    enum owns kind;
    pid_t process; /* 0: does not matter */
};

/* The base of MessageStore. */
struct store_calls {
    PyObject ob_base;
    struct hot_state *state;
    ls_store *store;  /* NULL until _attach; valid while `owner` lives, which is as long as this object */
    PyObject *owner;  /* a struct owner */
    PyObject *queues; /* a dict: id -> the only valid handle */
    bool relaxed;     /* no call waits until a change is durable */
    /* Memory of the last load_content or header. NULL: a call uses it, or there was none. */
    struct small *spare;
    /* Deliveries that were dropped unsettled; see dropped.c. */
    struct delivery *dropped;  /* their places are still acquired */
    struct delivery *released; /* their places came back, and `notify` has been called or is about to be */
    PyObject *notify;          /* called with None to wake the thread that calls the listeners; NULL: there are none */
    bool notified;             /* `notify` was called, and the thread has not looked since */
};

/* The base of Queue. */
struct queue_calls {
    PyObject ob_base;
    PyObject *key; /* the id as an int, NULL until _attach */
    struct store_calls *store;
    uint32_t id;
    char deleted; /* its deliveries cannot be settled any more */
};

struct delivery {
    PyObject ob_base;
    struct queue_calls *queue;
    PyObject *header, *content; /* bytes; NULL: not loaded */
    ls_delivery row;
    /* For a freed delivery in a list of its store. */
    struct delivery *next;
    uint32_t queue_id;
    char settled;  /* or a call is settling it; it no longer holds the place */
    char detached; /* a token holds the place; `settled` is set too */
};

/* The base of Transaction. */
struct transaction_calls {
    PyObject ob_base;
    ls_tx *handle;   /* NULL until _attach; valid while `owner` lives, which is as long as this object */
    PyObject *owner; /* a struct owner */
    PyObject *store; /* its store, a struct store_calls */
};

extern struct PyModuleDef hot_module;
extern PyType_Spec hot_store_spec;
extern PyType_Spec hot_queue_spec;
extern PyType_Spec hot_transaction_spec;
extern PyType_Spec hot_delivery_spec;
extern PyType_Spec hot_waiters_spec;
extern PyType_Spec hot_waiter_spec;
extern PyType_Spec hot_owner_spec;
extern PyType_Spec hot_taker_spec;

/* The state of the module to which the object's type belongs. NULL: an exception is set. */
struct hot_state *hot_state_of(PyObject *object);
/* Raises the exception for a code that the core has just returned to this thread. Returns NULL. */
PyObject *hot_fail(const struct hot_state *state, int code);
/* Calls the Python method of this name with the same arguments. */
PyObject *hot_slow(PyObject *self, PyObject *name, PyObject *const *args, Py_ssize_t count, PyObject *keywords);
/* The queue's id if it is a handle of this store that counts; false for anything else. Raises nothing. */
bool hot_queue_id(const struct store_calls *store, PyObject *given, uint32_t *id);
/* Whether it is an exact int from 1 to 2**63 - 1, as every id is. Raises nothing. */
bool hot_id(PyObject *given, uint64_t *id);

/* Gives the pointer that an owner of this kind holds. False: ValueError is set; `given` is no such owner, or empty. */
bool hot_owned(const struct hot_state *state, PyObject *given, enum owns kind, union owned *at);

/* _read_places(cursor, queue id, Message, load, views): the next places; an empty list at the end. */
PyObject *hot_read_places(struct store_calls *self, PyObject *args);

/* _publish_items(queue_id, contents, headers, transaction, not_before_us, expires_us, flags, ids): all of a tuple, in pieces. */
PyObject *hot_publish_items(struct store_calls *self, PyObject *args);
/* _publish_packed(queue_id, data, sizes, transaction, not_before_us, expires_us, flags, ids): contents one after another. */
PyObject *hot_publish_packed(struct store_calls *self, PyObject *args);
/* _publish_each(queue_id, contents, headers, transaction, ids): of iterators, one by one. 0; 1: there are more headers than
   contents; -1: fewer. */
PyObject *hot_publish_each(struct store_calls *self, PyObject *args);

PyObject *hot_delivery(struct hot_state *state, struct queue_calls *queue, const ls_delivery *row);
/* Keeps the memory of a freed delivery for the next one, or frees it. */
void hot_recycle(struct delivery *freed);
void hot_free_spares(struct hot_state *state);

/* Notes that a freed delivery still holds its place. Never fails; calls neither the core nor Python code. */
void hot_drop(struct store_calls *store, struct delivery *freed, uint32_t queue_id);
/* Gives back the places of dropped deliveries. Raises nothing. */
void hot_release_dropped(struct store_calls *store);
/* _release_dropped(): the same, for Python. */
PyObject *hot_release_dropped_now(struct store_calls *self, PyObject *unused);
/* _released_queues(): the same, and gives the ids of the queues whose listeners must be called, each once. */
PyObject *hot_released_queues(struct store_calls *self, PyObject *unused);
int hot_visit_dropped(const struct store_calls *store, visitproc visit, void *arg);
void hot_free_dropped(struct store_calls *store);
/* Places that were acquired. */
struct acquired {
    ls_delivery *rows;
    size_t count;
};

/* The list of their deliveries. If it cannot be made, they are released unseen. */
PyObject *hot_hand_out(struct queue_calls *queue, const struct acquired *a, bool load);
/* _taker(n, inbox=None, number=0): an acquire that waits. */
PyObject *hot_taker(struct queue_calls *self, PyObject *args);
/* An acquire takes places that the queue offers, from the front or after a position, or those that have expired. */
enum taken { TAKE_FRONT, TAKE_AFTER, TAKE_EXPIRED };
/* Acquires up to `most` places and hands them out. */
PyObject *hot_acquire_rows(struct queue_calls *self, const struct store_calls *of, enum taken what, uint64_t after,
                           uint64_t most, bool load);
/* Every call of a consumer begins with this: places of deliveries dropped earlier come back before it looks. */
struct store_calls *hot_store_after_drops(const struct queue_calls *self);
/* The methods of a queue in take.c: _acquire_after(n, position, load), _acquire_expired(n, load),
   _acquire_ids(ids, load), and _publish_acquired(header, content, staged, expires_us). */
PyObject *hot_acquire_after(struct queue_calls *self, PyObject *args);
PyObject *hot_acquire_expired(struct queue_calls *self, PyObject *args);
PyObject *hot_acquire_ids(struct queue_calls *self, PyObject *args);
PyObject *hot_publish_acquired(struct queue_calls *self, PyObject *args);
/* The methods of a queue in consume.c. */
PyObject *hot_acquire(struct queue_calls *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *hot_accept(struct queue_calls *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *hot_accept_many(struct queue_calls *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
/* The delivery if it can be settled on this queue; NULL for anything else. Raises nothing. */
struct delivery *hot_held(const struct hot_state *state, const struct queue_calls *queue, PyObject *given);
/* Whether a delivery that the core refused so has lost its place for good. */
bool hot_is_lost(int rc);
/* The transaction keeps the first `done` of the batch until its outcome; its commit settles them. */
bool hot_pend(const struct hot_state *state, PyObject *transaction, PyObject *batch, size_t done);
/* The methods of a queue in moving.c. */
PyObject *hot_release(struct queue_calls *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *hot_move(struct queue_calls *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
/* mark_settled(batch): the transaction that settles these deliveries has committed; see accept_batch. */
PyObject *hot_mark_settled(PyObject *module, PyObject *batch);
/* _accept_batch(batch, wait, transaction): accept_many of a tuple of deliveries, and (id, position, count) of tokens. */
PyObject *hot_accept_batch(struct queue_calls *self, PyObject *args);

/* The handle of a transaction of this store, NULL for None; false for anything else. */
bool hot_transaction(const struct store_calls *store, PyObject *given, ls_tx **handle);

#endif
