/* A log read without opening it, for whatever reads one record by record or as a whole. See reader.c. */
#ifndef LOGSTORE_READER_H
#define LOGSTORE_READER_H

#include "read/scan.h"

struct ls_reader {
    vfs *v;
    int dir;
    bool permissive; /* passes over what cannot be read */
    bool live;       /* a writer had it open when this reader was made */
    struct meta meta;
    struct hint hint; /* of that moment, if so */
    struct scan scan;
    uint64_t keep_lsn; /* the log from here on is kept by a hold; 0: there is none */
};

/* The next accepted batch, as ls_reader_next has it. */
int reader_next(ls_reader *reader, struct scan_batch *b);
/* What a failure (LS_CORRUPT or LS_IO, whose error is this thread's last) at this LSN means: damage, or that it was
   recycled while it was read. */
int reader_judge(ls_reader *reader, int rc, uint64_t lsn);
/* One whose log begins at the segment of keep_lsn, which a hold keeps; 0: at the base. */
int reader_open_kept(vfs *v, const char *store_dir, uint64_t keep_lsn, uint64_t from_lsn, bool permissive,
                     ls_reader **reader);
/* One that also gives the records of these streams, which any other refuses. */
int reader_open_known(vfs *v, const char *store_dir, const struct stream_set *known, ls_reader **reader);

#endif
