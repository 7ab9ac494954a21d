/*
 * Mutants: deliberate faults in the core, each a mistake that somebody could make. They exist only in a build with
 * -DLOGSTORE_MUTANTS, where the environment variable LOGSTORE_MUTANT chooses one for the whole process. Everywhere else
 * MUTANT(NAME) is the constant false, and not one instruction of them is compiled in.
 *
 * They test the tests: `tools/mutants.py` shows for each which check of which program notices it, and that it goes
 * unnoticed with that check switched off. A mutant that lives is a hole in an oracle or in a workload.
 *
 * X(NAME, what it breaks: a rule of docs/format.md or docs/recovery.md, what the fault is)
 */
#ifndef LOGSTORE_MUTANTS_H
#define LOGSTORE_MUTANTS_H

#include <stdbool.h>

#define MUTANTS_OF_WRITING(X)                                                                                          \
    X(NO_BATCH_SYNC, "acknowledged is durable", "a batch is written and never synced")                                 \
    X(SYNC_BEFORE_WRITE, "acknowledged is durable", "a batch is synced before it is written")                          \
    X(ACK_BEFORE_SYNC, "acknowledged is durable", "durable_lsn passes a batch before it is written")                   \
    X(ACK_WITHOUT_FORCE, "acknowledged is durable", "an operation that waits returns at once")                         \
    X(COMMIT_NOT_FORCED, "acknowledged is durable", "a commit returns at once")                                        \
    X(SYNC_ONE_FOR_TWO, "one batch at a time", "a batch is not synced if another one waits behind it")                 \
    X(NO_DIR_SYNC_FOR_A_NEW_FILE, "a name is durable before its file is used", "a spare is made, its name not synced") \
    X(NO_DIR_SYNC_FOR_A_RECYCLED_FILE, "a name is durable before its file is used", "a rename is not synced")          \
    X(NO_DIR_SYNC_AT_OPEN, "a name is durable before its file is used", "spares taken at open: names not synced")      \
    X(HEADER_UNSYNCED, "a header is durable before its batches count", "a header goes out after its batch's sync")     \
    X(HEADER_TOO_EARLY, "below prev_end_lsn all is durable", "a header is written before the last batch below it")     \
    X(TAIL_BLOCK_FORGOTTEN, "what is durable is not touched again", "a batch overwrites what shares its first block")  \
    X(EARLY_BLOCK_CUT_SHORT, "acknowledged is durable",                                                                \
      "a block that was written early half full is not written again")                                                 \
    X(EARLY_ERROR_IGNORED, "a failed write poisons", "an early write that failed is taken as done")                    \
    X(DURABLE_LSN_UNDERSTATED, "the watermark", "a batch names only its segment's beginning as durable")               \
    X(SHORT_WRITE_IS_WHOLE, "a short write goes on", "what a short write left out is left out")                        \
    X(INTERRUPTED_WRITE_IS_WHOLE, "EINTR means that nothing happened", "an interrupted write is taken as done")        \
    X(SYNC_ERROR_IGNORED, "a failed sync poisons", "a failed sync of a batch is taken as done")                        \
    X(SYNC_RETRIED, "a failed sync poisons", "a failed sync of a batch is tried once more and believed")               \
    X(POISON_FORGOTTEN, "a poisoned store refuses writes", "records are taken after a failed write or sync")           \
    X(UNDURABLE_WITHOUT_LIMIT, "ids are never reused", "the writer runs further ahead than max_undurable_bytes")       \
    X(GAP_AFTER_A_FAILED_SPARE, "ids are never reused", "a spare that could not be made uses up its LSNs")

#define MUTANTS_OF_READING(X)                                                                                          \
    X(HEADER_CHECKSUM_NOT_CHECKED, "section 4 of the format", "a segment header's checksum is not looked at")          \
    X(RECORD_HEADER_NOT_CHECKED, "a length is believed after its check", "a record's header check is not looked at")   \
    X(RECORD_CHECKSUM_NOT_CHECKED, "section 5 of the format", "a record's checksum is not looked at")                  \
    X(BATCH_CHECKSUM_NOT_CHECKED, "section 5 of the format", "a batch record's checksum is not looked at")             \
    X(LSN_NOT_CHECKED, "a record belongs to its place", "a record's own LSN is not looked at")                         \
    X(SEED_WITHOUT_EPOCH, "a checksum belongs to a place", "the epoch is not in the seed")                             \
    X(SEED_WITHOUT_FIRST_LSN, "a checksum belongs to a place", "the segment's first LSN is not in the seed")           \
    X(TORN_BATCH_IN_PART, "a batch counts whole or not at all", "a torn batch counts up to its tear")                  \
    X(WATERMARK_IGNORED, "damage below the watermark is corruption", "all damage in the last segment is a torn tail")  \
    X(WATERMARK_NOT_SEARCHED, "damage below the watermark is corruption", "batches behind a tear raise no watermark")  \
    X(LATER_FILES_NOT_SEARCHED, "damage below the watermark is corruption", "files behind the last header are spares") \
    X(PREV_END_IGNORED, "prev_end_lsn is the cut", "a segment is read beyond the end that the next one gives it")      \
    X(CUT_SEGMENT_ACCEPTED, "damage below the watermark is corruption", "a file that was cut short is read as it is")  \
    X(READ_UNVERIFIED, "what is read is verified", "content is handed out whatever its record's checksum says")        \
    X(MOVED_UNVERIFIED, "what is read is verified", "a damaged record is moved, and gets a new checksum")

#define MUTANTS_OF_OPENING(X)                                                                                         \
    X(TAIL_NOT_REWRITTEN, "the tail is rewritten", "what was read at or above the watermark is not written again")    \
    X(PAGE_CACHE_BELIEVED, "the tail is rewritten", "the tail is read through the page cache, and not written again") \
    X(REWRITE_NOT_FORCED, "the tail is rewritten", "the rewritten tail is not synced")                                \
    X(EPOCH_NOT_FORCED, "an epoch is forced before an id is given", "its header is not synced")                       \
    X(EPOCH_NOT_RAISED, "every open is an epoch of its own", "an open takes the last epoch's number")                 \
    X(NO_GAP, "ids are never reused", "a new epoch begins right behind the end of the log")                           \
    X(LEFT_OUT_IDS_AGAIN, "ids are never reused", "a new epoch does not look at a segment that is left out")          \
    X(NEEDED_COPIES_LEFT_OUT, "a durable base is relied on", "copies are left out although a base relies on them")    \
    X(LAST_REUSED_TOO_EARLY, "an epoch's segment is a spare after the next", "its file is taken for the next header") \
    X(META_NOT_FORCED, "a file is synced before its rename", "META.new is not synced")                                \
    X(META_RENAME_NOT_FORCED, "a store exists once META does", "the rename of META is not synced")                    \
    X(STORE_DIR_NOT_SYNCED, "a store exists once META does", "the directory above is not synced")                     \
    X(CLOSE_TOO_EARLY, "after a close every flip is seen", "CLOSE goes into the last batch")

#define MUTANTS_OF_THE_BASE(X)                                                                                     \
    X(BASE_MOVED_EARLY, "a death counts once it is durable", "a death moves the base at once")                     \
    X(COPY_COUNTS_EARLY, "the old place counts until the new one is durable", "a copy moves the base at once")     \
    X(RECYCLED_TOO_EARLY, "a file is reused behind a durable base",                                                \
      "a dead segment is recycled before a base says so")                                                          \
    X(MOVED_WITHOUT_A_PLACE, "a relocation holds the whole state", "the last of several places is left out")       \
    X(MOVED_WITHOUT_WORK, "a relocation holds the whole state", "pending dequeues are left out")                   \
    X(MOVED_AS_UNPREPARED, "a relocation holds the whole state", "a prepared transaction is moved as an open one") \
    X(MOVED_TO_ITS_FIRST_PLACE, "order survives relocation", "a place of its own order is moved without it")       \
    X(COPIES_COUNTED, "copies count only through their state", "a copied chunk is replayed as a chunk")

#define MUTANTS_OF_RELOCATION(X)                                                                                  \
    X(MOVED_WITHOUT_A_CHUNK, "a relocation holds the whole state", "the last of the chunks is left out")          \
    X(MOVED_WITHOUT_ENQUEUES, "a relocation holds the whole state", "pending enqueues are left out")              \
    X(MOVED_AS_NOT_STAGED, "a relocation holds the whole state", "a staged message is moved as one that is not")  \
    X(MOVED_WITHOUT_ITS_INDEX, "order survives relocation", "places of one commit are moved without their order") \
    X(MOVED_WITHOUT_ITS_XID, "a relocation holds the whole state", "a transaction is moved without its xid")      \
    X(MOVED_STALE, "the state is that of this moment", "a chain that changed between two parts is not looked at") \
    X(MOVED_STATE_NOT_COUNTED, "what lives is counted", "the records of a long state count for nothing")          \
    X(COPY_NOT_NAMED, "the old place counts no longer", "a state names a copied chunk where it was before")       \
    X(MOVED_WORK_ADDED, "a relocation replaces the chain", "its pending work is added to what was replayed")      \
    X(SUPERSEDED_REFUSED, "what a relocation replaces is no error", "a state whose start is gone is corruption")

#define MUTANTS_OF_RECYCLING(X)                                                                                    \
    X(RECYCLED_WITH_ITS_SEED, "old bytes of a recycled file never validate", "it keeps its old seed")              \
    X(RECYCLED_WITH_ITS_HEADER, "a segment belongs to one epoch", "a recycled file keeps its old header")          \
    X(RECYCLED_UNDER_ONE_NAME, "a name is one file's", "two recycled files get one name")                          \
    X(RECYCLED_AS_STUCK, "a recycled file is as good as new", "what held damage once is never moved again")        \
    X(RECYCLED_UNDER_A_READ, "a read pins its segment", "a segment is recycled while content is read from it")     \
    X(HINT_NOT_WAITED_FOR, "the hint names the base first", "a base that no reader was told of is recycled below") \
    X(HINT_LATE, "the hint names the base first", "the hint names the base that was named before")

#define MUTANTS_OF_HOLDS(X)                                                                                       \
    X(HELD_IS_OF_THE_LOG, "what a hold keeps is the reader's", "segments that only a hold keeps fill up the log") \
    X(HOLD_IGNORED, "a hold keeps its segments", "nobody looks at the holds")                                     \
    X(HOLD_LIMIT_IGNORED, "a hold is limited", "a hold keeps more than its limit")                                \
    X(HOLD_TIME_IGNORED, "a hold ends", "a hold is honoured after its time")                                      \
    X(HOLD_OF_ANOTHER_STORE, "a hold is one store's", "another store's hold is honoured")                         \
    X(HOLD_WITHOUT_OWNER, "a hold ends with its owner", "a hold that nobody has locked is honoured")              \
    X(HOLD_CLEARED_THOUGH_OWNED, "a hold ends with its owner", "the file of a hold in use is taken away")         \
    X(LAST_HOLD_COUNTS, "every hold keeps its segments", "of several holds the one listed last counts")           \
    X(UNREAD_HOLDS_IGNORED, "what may be held is kept", "holds that cannot be looked at count for nothing")       \
    X(HELD_FROM_THE_NEXT_ON, "a hold keeps its segments", "the segment that the hold begins in goes")             \
    X(HOLD_NOT_CONFIRMED, "the base in the hint counts", "a hold below the base is taken as good")                \
    X(HOLD_NOT_LOCKED, "a hold has its name when it is locked", "a hold is made without its lock")                \
    X(OVERTAKEN_IS_DAMAGE, "below the base nothing is corrupt", "a reader that is overtaken calls it damage")     \
    X(DAMAGE_IS_OVERTAKEN, "damage is never recycling", "a reader takes damage for recycling")

#define MUTANTS_OF_CHECKPOINTS(X)                                                                                  \
    X(CHECKPOINT_NOT_FORCED, "a file is forced before its rename", "CHECKPOINT.new is not synced")                 \
    X(CHECKPOINT_RENAMED_FIRST, "a file is forced before its rename", "it has its name before it is whole")        \
    X(CHECKPOINT_LSN_TOO_LATE, "a checkpoint is the state at its LSN", "it names the last batch at its end")       \
    X(CHECKPOINT_LSN_TOO_EARLY, "a checkpoint is the state at its LSN", "it names the batch before what waits")    \
    X(CHECKPOINT_NOT_TOUCHED, "a checkpoint is the state at its LSN",                                              \
      "what changes meanwhile is copied as it is then")                                                            \
    X(CHECKPOINT_TAKES_NEW_ONES, "a checkpoint is the state at its LSN", "messages that come meanwhile are in it") \
    X(UNTOUCHED_BY_A_DEQUEUE, "a checkpoint is the state at its LSN", "a dequeue hands nothing over")              \
    X(UNTOUCHED_BY_A_CHUNK, "a checkpoint is the state at its LSN", "content that is added hands nothing over")    \
    X(UNTOUCHED_BY_A_MOVE, "a checkpoint is the state at its LSN", "a move hands nothing over")                    \
    X(CHECKPOINT_WITHOUT_WORK, "a checkpoint is the whole state", "pending work is left out")                      \
    X(CHECKPOINT_WITHOUT_TRANSACTIONS, "a checkpoint is the whole state", "transactions are left out")             \
    X(CHECKPOINT_UNPREPARED, "a checkpoint is the whole state", "a prepared transaction is told as an open one")   \
    X(CHECKPOINT_WITHOUT_XID, "a checkpoint is the whole state", "a transaction is told without its xid")          \
    X(CHECKPOINT_WITHOUT_DELETIONS, "a checkpoint is the whole state", "deleted queues are left out")              \
    X(CHECKPOINT_UNSTAGED, "a checkpoint is the whole state", "a staged message is told as one that is not")       \
    X(CHECKPOINT_WITHOUT_ORDER, "a checkpoint is the whole state", "places stand where their message began")       \
    X(CHECKPOINT_WITHOUT_PARTS, "a checkpoint is the whole state", "the records of a long state are left out")     \
    X(CHECKPOINT_STATE_NOT_COUNTED, "what lives is counted", "a state behind its start counts for nothing")        \
    X(CHECKPOINT_WITHOUT_GROWTH, "what lives can be drained", "what a message takes more when moved is left out")  \
    X(CHECKPOINT_HEADER_NOT_CHECKED, "an invalid one is ignored", "its header's checksum is not looked at")        \
    X(CHECKPOINT_BLOCK_NOT_CHECKED, "an invalid one is ignored", "its blocks' checksums are not looked at")        \
    X(CHECKPOINT_NOT_COUNTED, "an invalid one is ignored", "what it holds is not compared with its header")        \
    X(CHECKPOINT_BATCH_NOT_COMPARED, "its batch is in the log", "any batch that ends there will do")               \
    X(CHECKPOINT_OF_ANOTHER_STORE, "its batch is in the log", "another store's is looked for in the log")          \
    X(CHECKPOINT_BELIEVED, "the log decides", "a log that contradicts its checkpoint is called corrupt")

#define MUTANTS_OF_OPERATIONS(X)                                                                                   \
    X(OUTCOME_FORGOTTEN, "an outcome follows its operations", "the commit of a transaction begun below the base")  \
    X(COMMIT_BEFORE_ITS_RECORD, "order is that of becoming visible", "places of a commit stand where it began")    \
    X(PREPARED_ROLLED_BACK, "prepared is in doubt", "recovery undoes a prepared transaction")                      \
    X(ENDED_KEPT, "unprepared is rolled back", "recovery takes an ended transaction for a prepared one")           \
    X(ROLLBACK_NOT_LOGGED, "what recovery rolls back is logged", "no record tells of an abandoned transaction")    \
    X(WORK_COUNTS_AT_ONCE, "an enqueue is invisible until commit", "replay takes a pending publish as done")       \
    X(DEQUEUE_DROPPED_WITH_DEATH, "accepted is never seen again", "a dequeue that ends its message is not logged") \
    X(QUEUE_DELETE_NOT_LOGGED, "a deletion is logged", "a queue's deletion is not logged")                         \
    X(QUEUES_UNSORTED, "order survives recovery", "recovered places stand in the order of the table")              \
    X(COMMIT_WITHOUT_MEMORY, "nothing fails in the middle", "a commit goes on although memory is short")

/*
 * Equivalent: no test can kill them, because nothing that they leave out can ever be missed. They are not counted.
 *
 *   EPOCH_NOT_CHECKED  A batch record is looked at only after its checksum was right under the seed of (uuid, first
 *                      LSN, epoch). Only log_append's caller seals records, with `segment->seed`, which segment_new
 *                      and recycle make of the same `segment->epoch` that lead_one writes into the batch. So the
 *                      epoch in clear differs from that of the seed only if two seeds or checksums collide.
 *   COUNT_NOT_CHECKED  The batch record's checksum was right, so the count is what lead_one wrote: that of the records
 *                      that fill `bytes`. verify_batch has just read exactly the records that fill `bytes`, each with
 *                      its own checksum and LSN, so it has counted the same.
 *   CHECKPOINT_NAME_NOT_FORCED  Without the sync a power cut may leave the old name, or the old file under it, or none.
 *                      Each of these is a whole checkpoint of this log, or none at all, and the log is kept from the
 *                      base on whatever there is: nothing is given up because a checkpoint exists.
 */
#define EQUIVALENT_MUTANTS(X)                                                                       \
    X(EPOCH_NOT_CHECKED, "section 6 of the format", "the epoch in a batch record is not looked at") \
    X(CHECKPOINT_NAME_NOT_FORCED, "never needed", "the rename of a checkpoint is not synced")       \
    X(COUNT_NOT_CHECKED, "section 6 of the format", "the count in a batch record is not looked at")

#define MUTANTS(X)            \
    MUTANTS_OF_WRITING(X)     \
    MUTANTS_OF_READING(X)     \
    MUTANTS_OF_OPENING(X)     \
    MUTANTS_OF_THE_BASE(X)    \
    MUTANTS_OF_RELOCATION(X)  \
    MUTANTS_OF_RECYCLING(X)   \
    MUTANTS_OF_HOLDS(X)       \
    MUTANTS_OF_CHECKPOINTS(X) \
    MUTANTS_OF_OPERATIONS(X)  \
    EQUIVALENT_MUTANTS(X)

#define MUTANT_NUMBER(name, breaks, what) MUTANT_##name,
enum mutant { NO_MUTANT, MUTANTS(MUTANT_NUMBER) MUTANT_COUNT };
#undef MUTANT_NUMBER

#ifdef LOGSTORE_MUTANTS
extern enum mutant ls_mutant; /* the one chosen; the same from start to end */
bool ls_mutant_strikes(void); /* true, and counted: how often is said at the end */
#define MUTANT(name) (ls_mutant == MUTANT_##name && ls_mutant_strikes())
#else
#define MUTANT(name) (MUTANT_##name == NO_MUTANT) /* false, and a name that there is not does not compile */
#endif

#endif
