/*
 * The calls that Python tests need in addition to logstore.h: a file system in memory, and the codec field by field. Only tests
 * build it, as an extension module of its own (tests/kit/testing.py).
 */
#ifndef LOGSTORE_TESTING_H
#define LOGSTORE_TESTING_H

#include <stddef.h>
#include <stdint.h>

#include "logstore.h"

#pragma GCC visibility push(default)

/* cffi:begin */

/* A file system in memory that loses power and fails on demand. `losses`: 0 loses all that was not synced, 1 keeps all,
   2 chooses by seed. It must outlive the stores on it. */
vfs *ls_sim_new(void);
vfs *ls_sim_crash(vfs *sim, int losses, uint64_t seed);
void ls_sim_fail(vfs *sim, uint64_t nth, int forever, int sys_errno);
uint64_t ls_sim_now(vfs *sim);             /* the wall clock, in microseconds; each call of the disk takes one */
void ls_sim_advance(vfs *sim, int64_t us); /* the clock jumps, perhaps back */
void ls_sim_free(vfs *sim);

/* The disk format, field by field, for comparison with another codec. Fields stand in the order of
   docs/format.md, without counts and unused space: numbers, byte strings, and tables of numbers row by row. A signed
   number is its two's complement. */
typedef struct ls_test_record {
    uint64_t lsn;
    uint64_t id;
    uint64_t prev;
    uint32_t length; /* set by both */
    uint16_t type;
    uint16_t flags;
    uint64_t numbers[9];
    const uint8_t *strings[3]; /* header, content and note; gtrid and bqual; a configuration; of an unknown type the
                                  whole body */
    uint64_t string_bytes[3];
    uint64_t *tables[3]; /* queues; chunks, places, pending work; a footer's counts; a change's rows */
    uint64_t rows[3];
} ls_test_record;

#define LS_TEST_VALID     0
#define LS_TEST_REFUSED   1 /* these bytes were not written for this position */
#define LS_TEST_MALFORMED 2 /* right checksums, impossible contents */
#define LS_TEST_NEWER     3 /* of a later version of the format */

#define LS_TEST_SEGMENT_HEADER 0
#define LS_TEST_META           1
#define LS_TEST_HINT           2
#define LS_TEST_HOLD           3
#define LS_TEST_CLOSED         4
#define LS_TEST_CHECKPOINT     5 /* the thirteen numbers of its header */
#define LS_TEST_VOTE           6 /* the cluster's UUID as two numbers, and the nine numbers of a slot */
#define LS_TEST_MARK           7 /* the three numbers of a slot */
#define LS_TEST_SEEN           8

/* Returns the record's length; 0 if it needs more than `room` bytes, or a field does not belong to its type. */
uint32_t ls_test_encode(ls_test_record *record, uint64_t seed, uint8_t *into, size_t room);
/* Strings and tables point into `from` and `cells`; `available` / 4 cells are enough. */
int ls_test_decode(const uint8_t *from, size_t available, uint64_t seed, uint64_t lsn, uint64_t *cells,
                   ls_test_record *record);
/* Encodes a file or header from its UUID and its numbers; returns the bytes written. */
size_t ls_test_encode_file(int what, const uint8_t *uuid, const uint64_t *numbers, uint8_t *into);
/* For a segment header, `uuid`, numbers[0] and numbers[1] give the expected store, segment size and first LSN. */
int ls_test_decode_file(int what, const uint8_t *from, size_t available, uint8_t *uuid, uint64_t *numbers);

/* cffi:end */

#pragma GCC visibility pop

#endif
