/*
 * Waiters: the tasks of one event loop that wait for group commits. Waiter: one await of one task.
 *
 * A Waiter follows asyncio's protocol of futures: the task hands over a function that resumes it, and its context. A group
 * commit resumes the tasks whose LSN it has reached in one callback of the loop, in the order of their LSNs, then of
 * their arrival, with no future and no handle for each. A Waiter has no close, throw or send, so whatever ends a
 * coroutine ends this one await only; and it is used again for a later await once nothing else refers to it.
 *
 * A cancelled await ends like that of a future: a future of the loop takes over the task, and is cancelled. The Waiter
 * stays in the list, marked as over; the list is compacted once half of its Waiters are over.
 *
 * A task may be resumed early, so it compares `reported_lsn` again. The objects are used in their loop's thread only.
 */
#include "hot.h"

enum { SPARE_WAITERS = 1024, OVER_MIN = 32 };

enum step {
    STEP_FRESH,  /* no task waits yet */
    STEP_LISTED, /* in the list */
    STEP_DUE,    /* taken off the list, to be resumed */
    STEP_OVER,   /* resumed or cancelled; the rest of the fields has no meaning */
};

struct waiters;

struct waiter {
    PyObject ob_base;
    struct waiters *waiters; /* NULL for a spare one */
    PyObject *resume;        /* with `context`: from STEP_LISTED to STEP_DUE */
    PyObject *context;
    uint64_t lsn;
    enum step step;
    bool yielded;  /* yielded to the task's step, so the next resumption ends the await */
    char blocking; /* part of asyncio's protocol: the task yielded this object by an await */
};

struct waiters {
    PyObject ob_base;
    PyObject *loop;
    PyObject *failed;        /* makes the exception for every task that would still wait; NULL: no failure yet */
    PyObject *done;          /* a finished future; a resumed task gets it as the future that it waited for */
    PyTypeObject *type;      /* of struct waiter */
    struct waiter **waiting; /* `count` items from `first` on, ordered by LSN, then by arrival */
    size_t first;
    size_t count;
    size_t over; /* of `count` */
    size_t room;
    unsigned long long reported_lsn;
    size_t spare_count;
    struct waiter *spares[SPARE_WAITERS];
};

static int waiters_init(struct waiters *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"loop", "done", NULL};
    PyObject *loop, *done;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO:Waiters", names, &loop, &done)) {
        return -1;
    }
    const struct hot_state *state = hot_state_of((PyObject *)self);
    if (state == NULL) {
        return -1;
    }
    Py_XSETREF(self->loop, Py_NewRef(loop));
    Py_XSETREF(self->done, Py_NewRef(done));
    Py_XSETREF(self->type, (PyTypeObject *)Py_NewRef(state->waiter_type));
    return 0;
}

/* False, with an exception: __init__ was not called, or the garbage collector has taken the object apart. */
static bool is_set_up(const struct waiters *self) {
    if (self == NULL || self->loop == NULL || self->done == NULL || self->type == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "these waiters have no event loop: call __init__ first");
        return false;
    }
    return true;
}

static int waiters_traverse(struct waiters *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->loop);
    Py_VISIT(self->failed);
    Py_VISIT(self->done);
    Py_VISIT(self->type);
    for (size_t i = self->first; i < self->first + self->count; i++) {
        Py_VISIT(self->waiting[i]);
    }
    for (size_t i = 0; i < self->spare_count; i++) {
        Py_VISIT(self->spares[i]);
    }
    return 0;
}

static int waiters_clear(struct waiters *self) {
    struct waiter **items = self->waiting;
    size_t first = self->first, count = self->count;
    self->waiting = NULL;
    self->first = self->count = self->over = self->room = 0;
    for (size_t i = first; i < first + count; i++) {
        Py_DECREF(items[i]);
    }
    PyMem_Free(items);
    while (self->spare_count > 0) {
        Py_DECREF(self->spares[--self->spare_count]);
    }
    Py_CLEAR(self->loop);
    Py_CLEAR(self->failed);
    Py_CLEAR(self->done);
    Py_CLEAR(self->type);
    return 0;
}

static void waiters_dealloc(struct waiters *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)waiters_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- one await ---- */

static int waiter_traverse(struct waiter *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->waiters);
    Py_VISIT(self->resume);
    Py_VISIT(self->context);
    return 0;
}

static int waiter_clear(struct waiter *self) {
    self->step = STEP_OVER; /* the list of waiters may be taken apart later */
    Py_CLEAR(self->resume);
    Py_CLEAR(self->context);
    Py_CLEAR(self->waiters);
    return 0;
}

static void waiter_dealloc(struct waiter *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    (void)waiter_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

PyDoc_STRVAR(until_doc, "until($self, lsn, /)\n--\n\n"
                        "An object for the running task to await at once, once. Raises the failure if there is one.");

static PyObject *waiters_until(struct waiters *self, PyObject *lsn) {
    PyObject *number = PyNumber_Long(lsn);
    unsigned long long value = number != NULL ? PyLong_AsUnsignedLongLong(number) : ULLONG_MAX;
    Py_XDECREF(number);
    if (value == ULLONG_MAX && PyErr_Occurred() != NULL) {
        return NULL;
    }
    if (!is_set_up(self)) {
        return NULL;
    }
    if (self->failed != NULL) {
        PyObject *problem = PyObject_CallNoArgs(self->failed);
        if (problem != NULL) {
            PyErr_SetObject((PyObject *)Py_TYPE(problem), problem);
            Py_DECREF(problem);
        }
        return NULL;
    }
    bool is_spare = self->spare_count > 0;
    struct waiter *made =
        is_spare ? self->spares[--self->spare_count] : (struct waiter *)self->type->tp_alloc(self->type, 0);
    if (made != NULL) {
        made->waiters = (struct waiters *)Py_NewRef(self);
        made->lsn = value;
    }
    return (PyObject *)made;
}

/* Gives up the list's reference to a waiter that is over: keeps the object for a later await if it is the only one. */
static void let_go(struct waiters *self, struct waiter *waiter) {
    if (Py_REFCNT(waiter) != 1 || self->spare_count == SPARE_WAITERS || self->type == NULL) {
        Py_DECREF(waiter);
        return;
    }
    waiter->step = STEP_FRESH;
    waiter->yielded = false;
    waiter->blocking = 0;
    self->spares[self->spare_count++] = waiter;
    Py_CLEAR(waiter->waiters); /* not the last reference: the caller has one */
}

static PyObject *waiter_next(struct waiter *self) {
    if (self->yielded) {
        return NULL; /* the task was resumed */
    }
    self->yielded = true;
    self->blocking = 1;
    return Py_NewRef(self);
}

static PyObject *waiter_get_loop(struct waiter *self, PyObject *Py_UNUSED(none)) {
    return is_set_up(self->waiters) ? Py_NewRef(self->waiters->loop) : NULL;
}

static bool make_room(struct waiters *self) {
    if (self->first + self->count < self->room) {
        return true;
    }
    if (self->first > self->count) {
        memmove(self->waiting, self->waiting + self->first, self->count * sizeof(struct waiter *));
        self->first = 0;
        return true;
    }
    size_t room = 2 * self->count + 16;
    struct waiter **items = PyMem_Malloc(room * sizeof(struct waiter *));
    if (items == NULL) {
        (void)PyErr_NoMemory();
        return false;
    }
    if (self->count > 0) {
        memcpy(items, self->waiting + self->first, self->count * sizeof(struct waiter *));
    }
    PyMem_Free(self->waiting);
    self->waiting = items;
    self->first = 0;
    self->room = room;
    return true;
}

/* Calls `resume` in the loop's next turn. */
static bool schedule(const struct waiters *self, PyObject *resume, PyObject *context) {
    PyObject *call_soon = PyObject_GetAttrString(self->loop, "call_soon");
    PyObject *args = PyTuple_Pack(2, resume, self->done);
    PyObject *keywords = Py_BuildValue("{sO}", "context", context);
    PyObject *handle =
        call_soon != NULL && args != NULL && keywords != NULL ? PyObject_Call(call_soon, args, keywords) : NULL;
    Py_XDECREF(call_soon);
    Py_XDECREF(args);
    Py_XDECREF(keywords);
    Py_XDECREF(handle);
    return handle != NULL;
}

/* add_done_callback(resume, *, context), as a task calls it. */
static PyObject *waiter_add(struct waiter *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    if (count != 1 || names == NULL || PyTuple_GET_SIZE(names) != 1 || !PyContext_CheckExact(args[1])) {
        return PyErr_Format(PyExc_TypeError, "only a task can wait here, with its context");
    }
    struct waiters *all = self->waiters;
    if (!is_set_up(all)) {
        return NULL;
    }
    if (self->step != STEP_FRESH) {
        return PyErr_Format(PyExc_RuntimeError, "a task waits here already: each await needs an object of its own");
    }
    if (all->failed != NULL || self->lsn <= all->reported_lsn) { /* it became durable after until() */
        self->step = STEP_OVER;
        return schedule(all, args[0], args[1]) ? Py_NewRef(Py_None) : NULL;
    }
    if (!make_room(all)) {
        return NULL;
    }
    size_t at = all->first + all->count;
    for (; at > all->first && all->waiting[at - 1]->lsn > self->lsn; at--) { /* rare: LSNs usually grow */
        all->waiting[at] = all->waiting[at - 1];
    }
    all->waiting[at] = (struct waiter *)Py_NewRef(self);
    all->count++;
    self->resume = Py_NewRef(args[0]);
    self->context = Py_NewRef(args[1]);
    self->step = STEP_LISTED;
    Py_RETURN_NONE;
}

static void compact(struct waiters *self) {
    struct waiter **all = self->waiting + self->first;
    size_t kept = 0;
    for (size_t at = 0; at < self->count; at++) {
        if (all[at]->step == STEP_LISTED) {
            all[kept++] = all[at];
        } else {
            let_go(self, all[at]); /* runs no other code, since it no longer refers to a task */
        }
    }
    self->count = kept;
    self->over = 0;
}

/* Ends the await; the caller gets its function and its context. */
static void take_task(struct waiter *self, PyObject **resume, PyObject **context) {
    *resume = self->resume;
    *context = self->context;
    self->resume = self->context = NULL;
    self->step = STEP_OVER;
}

/* A future of the loop that resumes the task once it is done. */
static PyObject *make_future(const struct waiters *all, PyObject *resume, PyObject *context) {
    PyObject *future = PyObject_CallMethod(all->loop, "create_future", NULL);
    PyObject *add = future != NULL ? PyObject_GetAttrString(future, "add_done_callback") : NULL;
    PyObject *args = PyTuple_Pack(1, resume);
    PyObject *keywords = Py_BuildValue("{sO}", "context", context);
    PyObject *added = add != NULL && args != NULL && keywords != NULL ? PyObject_Call(add, args, keywords) : NULL;
    Py_XDECREF(add);
    Py_XDECREF(args);
    Py_XDECREF(keywords);
    if (added == NULL) {
        Py_CLEAR(future);
    }
    Py_XDECREF(added);
    return future;
}

/* As cancel() of a future: True, and the await ends with CancelledError; False if it is over, or has no task. */
static PyObject *waiter_cancel(struct waiter *self, PyObject *args, PyObject *keywords) {
    static char *names[] = {"msg", NULL};
    PyObject *message = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:cancel", names, &message)) {
        return NULL;
    }
    if (self->step != STEP_LISTED && self->step != STEP_DUE) {
        Py_RETURN_FALSE;
    }
    struct waiters *all = self->waiters;
    if (!is_set_up(all)) {
        return NULL;
    }
    PyObject *resume = Py_NewRef(self->resume), *context = Py_NewRef(self->context);
    PyObject *future = make_future(all, resume, context);
    Py_DECREF(resume);
    Py_DECREF(context);
    if (future == NULL) {
        return NULL;
    }
    if (self->step != STEP_LISTED && self->step != STEP_DUE) { /* ended by a signal handler meanwhile */
        Py_DECREF(future);
        Py_RETURN_FALSE;
    }
    bool listed = self->step == STEP_LISTED;
    take_task(self, &resume, &context);
    if (listed && ++all->over >= OVER_MIN && 2 * all->over > all->count) {
        compact(all);
    }
    Py_DECREF(resume);
    Py_DECREF(context);
    PyObject *cancelled = PyObject_CallMethod(future, "cancel", "(O)", message);
    Py_DECREF(future);
    return cancelled;
}

/* ---- waking ---- */

/* False: an exception is set. The waiter is still due if its task's context could not be entered. */
static bool resume_now(PyObject *done, struct waiter *waiter) {
    if (waiter->step != STEP_DUE) {
        return true; /* cancelled by a task that was resumed before */
    }
    if (PyContext_Enter(waiter->context) != 0) {
        return false;
    }
    PyObject *resume, *context;
    take_task(waiter, &resume, &context);
    PyObject *result = PyObject_CallOneArg(resume, done);
    PyObject *kind, *problem, *traceback;
    PyErr_Fetch(&kind, &problem, &traceback);
    int left = PyContext_Exit(context);
    Py_DECREF(resume);
    Py_DECREF(context);
    Py_XDECREF(result);
    if (result != NULL) {
        return left == 0;
    }
    PyErr_Restore(kind, problem, traceback);
    return false;
}

/* Resumes the task in the loop's next turn. */
static void resume_soon(const struct waiters *self, struct waiter *waiter) {
    if (waiter->step != STEP_DUE) {
        return;
    }
    PyObject *resume, *context;
    take_task(waiter, &resume, &context);
    if (!schedule(self, resume, context)) {
        PyErr_WriteUnraisable(self->loop); /* the loop was closed by a task that was resumed before */
    }
    Py_DECREF(resume);
    Py_DECREF(context);
}

/*
 * Resumes all tasks, and takes ownership of the items. If a task raises, as with KeyboardInterrupt, the others are
 * scheduled for the next turn.
 */
static PyObject *resume_all(struct waiters *self, struct waiter **items, size_t count) {
    PyObject *done = Py_NewRef(self->done);
    size_t at = 0;
    while (at < count && resume_now(done, items[at])) {
        let_go(self, items[at++]);
    }
    bool raised = at < count;
    PyObject *kind, *problem, *traceback;
    PyErr_Fetch(&kind, &problem, &traceback);
    for (; at < count; at++) {
        resume_soon(self, items[at]);
        let_go(self, items[at]);
    }
    PyErr_Restore(kind, problem, traceback);
    PyMem_Free(items);
    Py_DECREF(done);
    return raised ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(wake_doc, "_wake($self, lsn, /)\n--\n\nResumes every task that waits for this LSN or a lower one.");

static PyObject *waiters_wake(struct waiters *self, PyObject *lsn) {
    unsigned long long end = PyLong_AsUnsignedLongLong(lsn);
    if ((end == ULLONG_MAX && PyErr_Occurred() != NULL) || !is_set_up(self)) {
        return NULL;
    }
    size_t count = 0;
    while (count < self->count && self->waiting[self->first + count]->lsn <= end) {
        count++;
    }
    struct waiter **items = PyMem_Malloc((count + 1) * sizeof(struct waiter *)); /* never 0 bytes */
    if (items == NULL) {
        return PyErr_NoMemory();
    }
    for (size_t i = 0; i < count; i++) {
        items[i] = self->waiting[self->first + i];
        if (items[i]->step == STEP_LISTED) {
            items[i]->step = STEP_DUE;
        } else if (self->over > 0) {
            self->over--;
        }
    }
    self->first += count;
    self->count -= count;
    return resume_all(self, items, count);
}

static PyMethodDef waiters_methods[] = {
    {"until", (PyCFunction)(void (*)(void))waiters_until, METH_O, until_doc},
    {"_wake", (PyCFunction)(void (*)(void))waiters_wake, METH_O, wake_doc},
    {NULL, NULL, 0, NULL},
};

static PyObject *waiters_waiting(struct waiters *self, void *Py_UNUSED(closure)) {
    return PyLong_FromSize_t(self->count - self->over);
}

static PyGetSetDef waiters_properties[] = {
    {"waiting", (getter)(void (*)(void))waiters_waiting, NULL, "How many tasks wait.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef waiters_members[] = {
    {"failed", T_OBJECT, offsetof(struct waiters, failed), 0,
     "Makes the exception for every task that would still wait; None while there is none."},
    {"loop", T_OBJECT_EX, offsetof(struct waiters, loop), READONLY, NULL},
    {"reported_lsn", T_ULONGLONG, offsetof(struct waiters, reported_lsn), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot waiters_slots[] = {
    {Py_tp_doc, (void *)"The tasks of one event loop that wait for group commits."},
    {Py_tp_init, waiters_init},
    {Py_tp_methods, waiters_methods},
    {Py_tp_members, waiters_members},
    {Py_tp_getset, waiters_properties},
    {Py_tp_traverse, waiters_traverse},
    {Py_tp_clear, waiters_clear},
    {Py_tp_dealloc, waiters_dealloc},
    {0, NULL},
};

PyType_Spec hot_waiters_spec = {
    .name = "logstore._hot.Waiters",
    .basicsize = sizeof(struct waiters),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = waiters_slots,
};

static PyMethodDef waiter_methods[] = {
    {"get_loop", (PyCFunction)(void (*)(void))waiter_get_loop, METH_NOARGS, NULL},
    {"add_done_callback", (PyCFunction)(void (*)(void))waiter_add, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"cancel", (PyCFunction)(void (*)(void))waiter_cancel, METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef waiter_members[] = {
    {"_asyncio_future_blocking", T_BOOL, offsetof(struct waiter, blocking), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot waiter_slots[] = {
    {Py_tp_doc, (void *)"One await of one task."},
    {Py_tp_methods, waiter_methods},
    {Py_tp_members, waiter_members},
    {Py_am_await, PyObject_SelfIter},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, waiter_next},
    {Py_tp_traverse, waiter_traverse},
    {Py_tp_clear, waiter_clear},
    {Py_tp_dealloc, waiter_dealloc},
    {0, NULL},
};

PyType_Spec hot_waiter_spec = {
    .name = "logstore._hot.Waiter",
    .basicsize = sizeof(struct waiter),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = waiter_slots,
};
