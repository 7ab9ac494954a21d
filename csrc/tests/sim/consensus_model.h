/*
 * What the simulated members share: batches, configurations, logs and tables. A batch stands here once, under a number; two
 * members have the same bytes of a batch if they have the same number. So "equal bytes" is a comparison of two integers.
 */
#ifndef LOGSTORE_CONSENSUS_MODEL_H
#define LOGSTORE_CONSENSUS_MODEL_H

#include "tests/sim/consensus_shared.h"

enum { BORN_MAX = 6, DIED_MAX = 6, MOVED_MAX = 3, HEADER_BYTES = 64, TERM_SHIFT = 40, TERMS = 1 << 16 };

#define SEGMENT_BYTES UINT64_C(16384)

struct batch {
    uint64_t index; /* 0: from before replication began */
    uint64_t term;
    uint64_t lsn;
    uint64_t bytes;
    uint64_t prev_end;    /* where the log before it ends */
    uint64_t durable_lsn; /* forced on its disk before it was written */
    uint64_t known_lsn;   /* durable by majority, as its leader knew */
    uint64_t base;
    uint32_t kind;     /* ENGINE_BATCH, ENGINE_FIRST or ENGINE_MEMBERS; 0 for index 0 */
    int configuration; /* of ENGINE_MEMBERS; else -1 */
    int relocated;     /* the batch whose MEMBERS this one repeats, or NO_BATCH */
    uint64_t catalog;  /* a change of the catalog; 0: none */
    uint32_t born;     /* messages, with ids that follow from the LSN */
    uint32_t died_count;
    uint32_t moved_count;
    uint64_t died[DIED_MAX];
    uint64_t moved[MOVED_MAX];
};

struct configuration {
    uint8_t bytes[512];
    uint32_t count;
    uint32_t voters;
    uint64_t ids[ENGINE_MEMBERS_MAX];
    uint32_t members;
};

/* Batches in the order of their indexes. */
struct sequence {
    int *ids;
    size_t count;
    size_t capacity;
    uint64_t first; /* index of ids[0] */
};

struct item {
    uint64_t id;
    uint64_t position; /* LSN of the batch that has it now */
    int born;          /* the batch that published it */
};

/* The live messages, and the newest configuration. Two tables with equal fingerprints are taken to be equal. */
struct table {
    struct item *items; /* by id */
    size_t count;
    size_t capacity;
    uint64_t sum;
    uint64_t applied; /* index of the last batch */
    int members;      /* batch of the newest MEMBERS, or NO_BATCH */
    uint64_t members_position;
};

/* All end the program if memory runs out. */
void model_reset(void);
int batch_new(void);
struct batch *batch_of(int id);
uint64_t batch_end(int id);
uint64_t segment_of(uint64_t lsn);

/* The bytes are copied. */
int configuration_new(const uint8_t *bytes, uint32_t count);
const struct configuration *configuration_of(int number);
bool configuration_names(int number, uint64_t member);
struct engine_entry entry_of(int id);

int sequence_at(const struct sequence *s, uint64_t index); /* NO_BATCH: not there */
uint64_t sequence_last(const struct sequence *s);          /* first - 1 if empty */
void sequence_put(struct sequence *s, int id);
void sequence_cut(struct sequence *s, uint64_t index);  /* from this index on */
void sequence_drop(struct sequence *s, uint64_t index); /* up to this index */
void sequence_copy(struct sequence *to, const struct sequence *from);
void sequence_free(struct sequence *s);

void table_clear(struct table *t);
void table_copy(struct table *to, const struct table *from);
void table_apply(struct table *t, int id);
bool table_has(const struct table *t, uint64_t id);
uint64_t table_fingerprint(const struct table *t);
uint64_t table_base(const struct table *t, uint64_t end);
void table_free(struct table *t);

#endif
