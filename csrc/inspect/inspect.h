/* What inspect.c and inspect/check.c share. See inspect.c. */
#ifndef LOGSTORE_INSPECT_H
#define LOGSTORE_INSPECT_H

#include "read/reader.h"
#include "replay/replay.h"
#include "store/store.h"

/* What the log must also keep to, though no replay needs it. */
struct checks {
    uint64_t first_lsn; /* of the segment being read */
    uint32_t type_counts[TYPES_COUNTED];
    uint64_t last_lsn;   /* of the newest record that is no batch record */
    uint64_t before_lsn; /* of the newest record */
    uint64_t durable_lsn;
    uint64_t base_lsn;
    uint64_t copied_id; /* of the chain that is being copied */
    uint64_t copied_lsn;
    uint64_t footers;
};

struct inspection {
    ls_reader *reader;
    struct replay replay;
    struct checks checks;
    int flags;
    bool taken_over; /* the writer beside has its own batches; what its open did to older work is done here, too */
    int result;      /* of the first failure, told again by every later step */
    ls_error failure;
    uint64_t staged;
    uint32_t queue_id_max;
    uint64_t start_us;
};

/* ls_inspect_open for a log with more clients than messages. */
int inspect_open_with(vfs *system, const char *store_dir, int flags, const struct log_client *clients, size_t count,
                      ls_store **store);

/* Before the record is replayed. LS_CORRUPT: it is not what stands before it in its batch, segment or chain. */
int check_batch(struct inspection *i, const struct scan_batch *b);
int check_record(struct inspection *i, const struct scan_batch *b, const struct record *r);

#endif
