/* Reads a log without opening it, batch by batch. See reader.c. */
#ifndef LOGSTORE_READER_H
#define LOGSTORE_READER_H

#include "read/scan.h"

struct ls_reader {
    vfs *v;
    int dir;
    bool permissive; /* continues after parts that cannot be read */
    bool live;       /* a writer had the store open when this reader was made */
    bool undurable;  /* gives also what no majority is known to have */
    struct meta meta;
    struct hint hint; /* as read at that moment, if live */
    struct scan scan;
    uint64_t keep_lsn;      /* the log from here on is kept by a hold; 0: there is none */
    uint64_t known_end_lsn; /* where an earlier reader found the end of the log; 0: unknown */
};

/* As ls_reader_next. */
int reader_next(ls_reader *reader, struct scan_batch *b);
/* Distinguishes damage from recycling after LS_CORRUPT or LS_IO (this thread's last error) at this LSN: LS_RECYCLED
   if the segment was recycled meanwhile, else the failure itself. */
int reader_judge(ls_reader *reader, int rc, uint64_t lsn);
/* The log begins at the segment of keep_lsn, which a hold keeps; 0: at the base. */
int reader_open_kept(vfs *v, const char *store_dir, uint64_t keep_lsn, uint64_t from_lsn, ls_reader **reader);
/* Also gives the records of these streams, which other readers refuse, and batches that are not known to be on a
   majority's disks. */
int reader_open_known(vfs *v, const char *store_dir, const struct stream_set *known, bool undurable,
                      ls_reader **reader);

#endif
