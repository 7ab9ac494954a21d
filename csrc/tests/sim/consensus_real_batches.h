/*
 * All batches that leaders have handed out in a run, each once under a number, with its bytes; and which of them are durable. What a
 * member has on its disk is compared with them.
 */
#ifndef LOGSTORE_CONSENSUS_REAL_BATCHES_H
#define LOGSTORE_CONSENSUS_REAL_BATCHES_H

#include "logstore.h"
#include "tests/sim/consensus_shared.h"

struct made {
    ls_replica_batch b; /* its header and bytes are its own */
    uint32_t kind;
    const uint8_t *config; /* of ENGINE_MEMBERS, in its bytes */
    size_t config_bytes;
    int before;      /* in its leader's log; NO_BATCH: none */
    int next;        /* another one with this index */
    uint64_t leader; /* the member */
};

void batches_reset(void);
/* Judges that no LSN is given twice, and that index and term increase. */
int batches_add(uint64_t leader, const ls_replica_batch *b, uint32_t kind, int before);
const struct made *batch_of(int id);
int batches_find(uint64_t term, uint64_t index); /* NO_BATCH: nobody made it */
bool batches_same_bytes(int id, const ls_replica_batch *b);
struct engine_entry entry_of(int id);
bool batch_names(int id, uint64_t member); /* of ENGINE_MEMBERS */

/* Known to be durable in `term`, with all before it: judged to be the ones that are known. */
void durable_up_to(uint64_t member, int id, uint64_t term);
int durable_at(uint64_t index); /* NO_BATCH: not known to be durable */
uint64_t durable_last(void);
int durable_members(uint64_t index);     /* the newest configuration up to this index, or NO_BATCH */
bool is_named_anywhere(uint64_t member); /* by the newest durable configuration, or a later one that was made */
/* Every batch that was durable before the term is in the log which ends with `last`. */
void judge_completeness(uint64_t member, uint64_t term, int last);
bool is_in_log(int last, int id); /* which ends with `last` */

#endif
