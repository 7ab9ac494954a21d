/* What the calls that publish many messages share: room for ids, and buffers of the caller. */
#ifndef LOGSTORE_PUBLISH_H
#define LOGSTORE_PUBLISH_H

#include "hot.h"

enum { HELD_BYTES_MAX = 16 << 10 }; /* a larger content is copied into the log with the interpreter released */

/*
 * The end of an array of 64-bit numbers that the core writes ids to. It has room for them before the core is called, so
 * that reporting the stored messages needs no memory. The array is exported until hot_ids_end, so nothing else changes
 * it.
 */
struct id_room {
    PyObject *array;
    Py_buffer view;
    size_t count; /* of the numbers in the array that are ids; zeros follow */
    size_t room;
};

/* False: an exception is set. In both cases hot_ids_end must follow. */
bool hot_ids_begin(struct id_room *ids, PyObject *array);
/* Makes room for n more. False: an exception is set. */
bool hot_ids_need(struct id_room *ids, size_t n);
uint64_t *hot_ids_next(const struct id_room *ids);
/* Cuts the array to the ids in it. Cannot fail; an exception that is set stays. */
void hot_ids_end(struct id_room *ids);

/* A content or header. Its memory is the caller's while it is exported. */
struct part {
    const uint8_t *at;
    uint64_t bytes;
};

/* The name of an argument with many items, and the index of one item. */
struct item_name {
    const char *argument;
    size_t index;
};

/* Where the item's bytes are; a buffer other than bytes is exported into *view, and *exported says so. False: an exception
   is set, a TypeError that names the argument and the item if it is no contiguous buffer. */
bool hot_part(PyObject *item, struct item_name name, struct part *part, Py_buffer *view, bool *exported);

#endif
