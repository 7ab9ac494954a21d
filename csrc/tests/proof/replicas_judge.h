/*
 * The judge of one disk that a crash has left of a copy:
 *   - an ordinary open refuses it if its newest batch has an index, and changes nothing; every way to read it succeeds;
 *   - the copy opens, and has all that it had said to be forced;
 *   - every batch with an index is byte for byte the one that a leader handed out at that place of that log;
 *   - what it takes for durable is in the log that all had in the end, and readers see no more than that;
 *   - brought up to the end of that log, its table is that of another copy's directory.
 */
#ifndef LOGSTORE_REPLICAS_JUDGE_H
#define LOGSTORE_REPLICAS_JUDGE_H

#include "tests/proof/replicas_driver.h"

/* What all copies had in the end. */
struct ending {
    int last; /* in `sent` */
    vfs_sim *disk;
    ls_store *seen; /* of that disk */
};

/* The follower has applied the end of the log: its table is that of the reference. It can only be freed then. */
static bool table_is_right(struct replica *f, const struct ending *e) {
    if (f->end.lsn != sent[e->last].s.end_lsn || f->applied.lsn != f->end.lsn)
        return violated(TABLE, "the copy has not applied the end of the log");
    return settles_as(f, e->seen) || violated(TABLE, "the copy's table is not that of another copy's directory");
}

/* Every batch with an index is that of the log which ends with `last`. */
static bool batches_are_right(const struct replica *f, int last) {
    static int at[SENT_MAX + 1];
    struct scan s = {.file = -1};
    struct scan_batch b;
    struct stream_set known = f->store->scan.known;
    int rc;
    bool same = true;

    for (int i = last; i >= 0; i = sent[i].before)
        at[sent[i].s.index] = i;
    s.known = known;
    rc = scan_open(&s, f->store->directory.v, f->store->directory.dir, &f->store->meta, true, NULL);
    while (rc == LS_OK && same && (rc = scan_next(&s, &b)) == LS_OK) {
        const struct sent *k = NULL;

        if (b.batch.index == 0)
            continue;
        if (last >= 0 && b.batch.index <= sent[last].s.index)
            k = &sent[at[b.batch.index]];
        same = k != NULL && k->s.lsn == b.lsn && k->s.first_lsn == b.first_lsn &&
               k->s.end_lsn - k->s.lsn == b.batch.bytes && memcmp(k->bytes, b.bytes, b.batch.bytes) == 0;
    }
    scan_close(&s);
    if (!same)
        return violated(BYTES, "a batch on the disk is not the one that a leader handed out there");
    return rc == LS_END || violated(REFUSAL, "the copy's log cannot be read");
}

/* ls_open, which would serve it as a single store. */
static bool opens_ordinarily(vfs_sim *disk, bool *replicated) {
    uint64_t changes = vfs_sim_changes(disk);
    ls_options options = r.options;
    ls_store *store = NULL;
    int rc;

    options.create = 0;
    rc = ls_open(vfs_sim_table(disk), "/s", &options, &store);
    ls_free(store);
    *replicated = rc == LS_REPLICATED;
    if (rc != LS_OK && rc != LS_REPLICATED)
        return violated(REFUSAL, "a crash reads as a refusal to open");
    return vfs_sim_changes(disk) == changes || violated(ORDINARY, "an open that serves nothing changed the disk");
}

/* By a reader without a writer: it must stop at what is durable. */
static bool is_read_up_to_what_is_durable(vfs_sim *disk, const struct ending *e) {
    ls_store *with = read_disk(vfs_sim_table(disk), 0), *without, *all;
    uint64_t end_lsn = with != NULL ? with->state.report.end_lsn : 0;
    bool right = with != NULL;
    int at = e->last;

    while (right && at >= 0 && sent[at].s.end_lsn > end_lsn)
        at = sent[at].before;
    if (right && at >= 0 && sent[at].s.end_lsn != end_lsn)
        right = violated(UNDURABLE, "a reader sees what a later leader has cut");
    without = right ? read_disk(vfs_sim_table(disk), LS_INSPECT_NO_CHECKPOINT) : NULL;
    if (without != NULL && without->state.report.end_lsn == end_lsn && !are_equal(with, without))
        right = violated(TABLE, "the directory with its checkpoint differs from its log");
    all = without != NULL ? read_disk(vfs_sim_table(disk), LS_INSPECT_CHECK) : NULL;
    right = right && (all != NULL || violated(REFUSAL, "a crash reads as damage"));
    ls_free(with);
    ls_free(without);
    ls_free(all);
    return right;
}

/* `must`: in `sent`, what the copy had said to be forced. `deep`: its table is compared, too. */
static bool copy_is_right(vfs_sim *disk, int must, const struct ending *e, bool deep) {
    struct copy c = {.sim = disk, .disk = vfs_sim_table(disk)};
    bool replicated = false, right = opens_ordinarily(disk, &replicated) && is_read_up_to_what_is_durable(disk, e);
    int common;

    if (right && replica_open(c.disk, "/s", &r.options, &c.follows) != LS_OK)
        right = violated(REFUSAL, "a crash reads as a refusal to follow");
    if (right && replicated != (c.follows->end.index != 0))
        right = violated(ORDINARY, "an ordinary open and a copy disagree on what the log is");
    if (right && c.follows->store->state.report.checkpoint_state == LS_CHECKPOINT_DAMAGED)
        right = violated(REFUSAL, "a crash reads as a damaged checkpoint");
    c.last = right ? last_of(c.follows) : -1;
    if (right && c.last == UNKNOWN_END)
        right = violated(BYTES, "the copy ends with a batch that no leader handed out");
    if (right && !is_in(c.last, must))
        right = violated(FORCED, "the copy has less than it had said to be forced");
    right = right && batches_are_right(c.follows, c.last);
    common = right ? common_of(c.last, e->last) : -1;
    if (right && c.follows->applied.index > (common >= 0 ? sent[common].s.index : 0))
        right = violated(UNDURABLE, "the copy has applied what a later leader has cut");
    if (right && deep) {
        right = catch_up(&c, e->last) == LS_OK ||
                violated(ANSWER, "the copy does not take the log that all had in the end");
        right = right && (replica_durable(c.follows, c.follows->end.lsn) == LS_OK || violated(ANSWER, "durable"));
        right = right && table_is_right(c.follows, e);
    }
    replica_free(c.follows);
    if (right && vfs_sim_handles(disk) != 0)
        right = violated(SURVIVES, "a handle was left open");
    return right;
}

#endif
