/*
 * What tests in Python ask of the core beyond logstore.h: a file system in memory, and the codec field by field. It is
 * built into an extension module of its own, which only tests build (tests/kit/build_testing.py).
 */
#ifndef LOGSTORE_TESTING_H
#define LOGSTORE_TESTING_H

#include <stddef.h>
#include <stdint.h>

#include "logstore.h"

#pragma GCC visibility push(default)

/* cffi:begin */

/* A file system in memory that loses power and fails on demand; `losses`: 0 all that was not synced is lost, 1 all is
   kept, 2 by seed. It outlives the stores on it. */
vfs *ls_sim_new(void);
vfs *ls_sim_crash(vfs *sim, int losses, uint64_t seed);
void ls_sim_fail(vfs *sim, uint64_t nth, int forever, int sys_errno);
void ls_sim_free(vfs *sim);

/* The disk format, field by field, so that another codec can be held against this one. Fields stand in the order of
   docs/format.md, without counts and unused space: numbers, byte strings, and tables of numbers row by row. A signed
   number is its two's complement. */
typedef struct ls_test_record {
    uint64_t lsn;
    uint64_t id;
    uint64_t prev;
    uint32_t length; /* set by both */
    uint16_t type;
    uint16_t flags;
    uint64_t numbers[6];
    const uint8_t *strings[2]; /* header and content, gtrid and bqual, opaque; the whole body of an unknown type */
    uint64_t string_bytes[2];
    uint64_t *tables[3]; /* queues; chunks, places, pending work; a footer's counts */
    uint64_t rows[3];
} ls_test_record;

#define LS_TEST_VALID     0
#define LS_TEST_REFUSED   1 /* not what was written at this place */
#define LS_TEST_MALFORMED 2 /* right checksums, impossible contents */
#define LS_TEST_NEWER     3 /* of a later version of the format */

#define LS_TEST_SEGMENT_HEADER 0
#define LS_TEST_META           1
#define LS_TEST_HINT           2
#define LS_TEST_HOLD           3
#define LS_TEST_CLOSED         4
#define LS_TEST_CHECKPOINT     5 /* its header: thirteen numbers */

/* The record's length; 0 if it needs more than `room` bytes, or fields that its type has not. */
uint32_t ls_test_encode(ls_test_record *record, uint64_t seed, uint8_t *into, size_t room);
/* Strings and tables point into `from` and `cells`, of which `available` / 4 are enough. */
int ls_test_decode(const uint8_t *from, size_t available, uint64_t seed, uint64_t lsn, uint64_t *cells,
                   ls_test_record *record);
/* What is no record: its UUID and up to five numbers, where it says no more; the size that was written. */
size_t ls_test_encode_file(int what, const uint8_t *uuid, const uint64_t *numbers, uint8_t *into);
/* For a segment header `uuid`, numbers[0] and numbers[1] say which store, segment size and first LSN are expected. */
int ls_test_decode_file(int what, const uint8_t *from, size_t available, uint8_t *uuid, uint64_t *numbers);

/* cffi:end */

#pragma GCC visibility pop

#endif
