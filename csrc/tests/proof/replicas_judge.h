/*
 * The judge of one disk that a crash has left of a copy:
 *   - an ordinary open of the copy that VOTE names refuses it if its newest batch has an index, and changes nothing; every way to
 *     read it succeeds; what there is of an update does not open, and without VOTE no member does;
 *   - the host opens, with the term and the vote that it told, and its copy has all that it had said to be forced;
 *   - every batch with an index is byte for byte the one that a leader handed out at that place of that log;
 *   - what it takes for durable is in the log that all had in the end, and readers see no more than that;
 *   - brought up to the end of that log, by batches or by an update, its table is that of another copy's directory.
 */
#ifndef LOGSTORE_REPLICAS_JUDGE_H
#define LOGSTORE_REPLICAS_JUDGE_H

#include "tests/proof/replicas_driver.h"

/* What all copies had in the end. */
struct ending {
    int last; /* in `sent` */
    vfs_sim *disk;
    char path[64];  /* of its copy */
    ls_store *seen; /* of that */
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

/* The copy that counts on a disk without a process; 0: VOTE cannot be read. */
static uint64_t copy_that_counts(const vfs_sim *disk) {
    static uint8_t bytes[VOTE_SLOTS * VOTE_SLOT_BYTES];
    int64_t got = vfs_sim_get(disk, VFS_SIM_DEVICE, HOST, "VOTE", bytes, sizeof bytes);
    struct vote v, newest = {.sequence = 0};

    for (int64_t at = 0; at + VOTE_SLOT_BYTES <= got; at += VOTE_SLOT_BYTES) {
        if (format_get_vote(bytes + at, VOTE_SLOT_BYTES, &v) == FORMAT_OK && v.sequence > newest.sequence)
            newest = v;
    }
    return newest.copy;
}

static bool has_directory(vfs *v, const char *path) {
    int dir = v->open_dir(v, path);

    if (dir >= 0)
        (void)v->close(v, dir);
    return dir >= 0;
}

static int open_ordinarily(vfs_sim *disk, const char *path) {
    ls_options options = r.options;
    ls_store *store = NULL;
    int rc;

    options.create = 0;
    rc = ls_open(vfs_sim_table(disk), path, &options, &store);
    ls_free(store);
    return rc;
}

/* ls_open, which would serve it as a single store. */
static bool opens_ordinarily(vfs_sim *disk, uint64_t copy, bool *replicated) {
    uint64_t changes = vfs_sim_changes(disk);
    char path[64];
    int rc;

    (void)snprintf(path, sizeof path, "%s/copy-%" PRIu64, HOST, copy + 1);
    if (has_directory(vfs_sim_table(disk), path) && open_ordinarily(disk, path) == LS_OK)
        return violated(ORDINARY, "the copy of an update opens as a store");
    (void)snprintf(path, sizeof path, "%s/copy-%" PRIu64, HOST, copy);
    rc = open_ordinarily(disk, path);
    *replicated = rc == LS_REPLICATED;
    if (rc != LS_OK && rc != LS_REPLICATED)
        return violated(REFUSAL, "a crash reads as a refusal to open");
    return vfs_sim_changes(disk) == changes || violated(ORDINARY, "an open that serves nothing changed the disk");
}

static bool needs_vote(const vfs_sim *left) {
    vfs_sim *disk = vfs_sim_clone(left);
    vfs *v = vfs_sim_table(disk);
    struct host *h = NULL;
    int dir = v->open_dir(v, HOST), rc;

    if (dir < 0 || v->unlink(v, dir, "VOTE") != 0)
        abort();
    (void)v->close(v, dir);
    rc = host_open(v, HOST, &r.options, &h);
    host_close(h);
    vfs_sim_free(disk);
    return rc == LS_NOT_A_STORE || violated(VOTE, "a member starts without VOTE");
}

/* By a reader without a writer: it must stop at what is durable. `wholly`: also without its checkpoint, and what is not durable. */
static bool is_read_up_to_what_is_durable(vfs_sim *disk, const char *path, const struct ending *e, bool wholly) {
    ls_store *with = read_store_in(vfs_sim_table(disk), path, 0), *without, *all;
    uint64_t end_lsn = with != NULL ? with->state.report.end_lsn : 0;
    bool right = with != NULL;
    int at = e->last;

    while (right && at >= 0 && sent[at].s.end_lsn > end_lsn)
        at = sent[at].before;
    if (right && at >= 0 && sent[at].s.end_lsn != end_lsn)
        right = violated(UNDURABLE, "a reader sees what a later leader has cut");
    without = right && wholly ? read_store_in(vfs_sim_table(disk), path, LS_INSPECT_NO_CHECKPOINT) : NULL;
    if (without != NULL && without->state.report.end_lsn == end_lsn && !are_equal(with, without))
        right = violated(TABLE, "the directory with its checkpoint differs from its log");
    all = without != NULL ? read_store_in(vfs_sim_table(disk), path, LS_INSPECT_CHECK) : NULL;
    right = right && (!wholly || all != NULL || violated(REFUSAL, "a crash reads as damage"));
    ls_free(with);
    ls_free(without);
    ls_free(all);
    return right;
}

/* ---- an update of what a crash has left, from the copy that all had in the end ---- */

static bool is_described(ls_update_source *source, ls_update_manifest *m, ls_update_segment *segments) {
    int rc;

    do
        rc = ls_update_source_step(source, 1 << 20);
    while (rc == LS_OK);
    return rc == LS_END && ls_update_source_manifest(source, m, segments, UPDATE_SEGMENTS) == LS_OK &&
           m->segment_count <= UPDATE_SEGMENTS;
}

static bool is_moved(ls_update_source *source, ls_update *u) {
    static uint8_t bytes[SEGMENT];
    ls_update_part part;
    int rc;

    while ((rc = ls_update_next(u, &part)) == LS_OK) {
        if (part.bytes > 0 &&
            (ls_update_source_read(source, part.first_lsn, part.offset, bytes, (size_t)part.bytes) != LS_OK ||
             ls_update_write(u, part.first_lsn, part.offset, bytes, (size_t)part.bytes) != LS_OK))
            return false;
    }
    return rc == LS_END && ls_update_finish(u) == LS_OK;
}

static bool is_updated(struct host *h, const struct ending *e) {
    static ls_update_segment segments[UPDATE_SEGMENTS];
    ls_update_manifest m;
    ls_update_source *source = NULL;
    ls_update *u = NULL;
    vfs *from = vfs_sim_table(e->disk);
    uint64_t term = sent[e->last].s.term;
    int opened =
        ls_update_source_open(from, e->path, "judge", UINT64_C(1) << 40, UINT64_C(86400) * 1000000, 0, &source);
    bool right = opened == LS_OK && is_described(source, &m, segments) &&
                 (h->vote->now.term >= term || host_vote(h, term, 0) == LS_OK);

    if (opened ==
        LS_WOULD_WAIT) /* its log says less than its program knew when it recycled, and no batch follows here */
        return true;
    if (right && !tail_is_before((struct tail){m.term, m.index}, host_tail(h)))
        right = ls_update_begin(h, &m, segments, &u) == LS_OK && is_moved(source, u);
    if (!right)
        (void)violated(ANSWER, "a member cannot be brought up to date after a crash");
    ls_update_free(u);
    ls_update_source_close(source);
    return right;
}

/* ---- a disk ---- */

/* What is done with a disk beside opening the host: each costs much, and is done with a part of the disks. */
struct judged {
    bool read;     /* by an ordinary open, and a reader, */
    bool wholly;   /* in each way */
    bool compared; /* byte for byte with what leaders handed out */
    bool deep;     /* brought to the end of the log, and its table compared, */
    bool updates;  /* by an update */
    bool voteless; /* opened without VOTE first */
};

/* What there is of the copy. */
static bool log_is_right(struct copy *c, const struct promise *told, const struct ending *e, bool compared) {
    int common;

    if (c->follows->store->state.report.checkpoint_state == LS_CHECKPOINT_DAMAGED)
        return violated(REFUSAL, "a crash reads as a damaged checkpoint");
    c->last = last_of(c->follows);
    if (c->last == UNKNOWN_END)
        return violated(BYTES, "the copy ends with a batch that no leader handed out");
    if (!is_in(c->last, told->last))
        return violated(FORCED, "the copy has less than it had said to be forced");
    if (compared && !batches_are_right(c->follows, c->last))
        return false;
    common = common_of(c->last, e->last);
    return c->follows->applied.index <= (common >= 0 ? sent[common].s.index : 0) ||
           violated(UNDURABLE, "the copy has applied what a later leader has cut");
}

/* By an update, if `updates`, and then by batches. */
static bool comes_to_the_end(struct copy *c, const struct ending *e, bool updates) {
    if (updates) {
        if (!is_updated(c->host, e))
            return false;
        c->follows = c->host->follows;
        c->last = c->follows != NULL ? last_of(c->follows) : -1;
        if (c->follows != NULL && (c->last == UNKNOWN_END || !batches_are_right(c->follows, c->last)))
            return violated(BYTES, "an update brought a batch that no leader handed out");
    }
    if (c->follows == NULL)
        return true;
    if (catch_up(c, e->last) != LS_OK)
        return violated(ANSWER, "the copy does not take the log that all had in the end");
    if (replica_durable(c->follows, c->follows->end.lsn) != LS_OK)
        return violated(ANSWER, "durable");
    return table_is_right(c->follows, e);
}

/* `told`: what others may rely on. */
static bool copy_is_right(vfs_sim *disk, const struct promise *told, const struct ending *e, struct judged judged) {
    struct copy c = {.sim = disk, .disk = vfs_sim_table(disk), .last = -1};
    uint64_t copy = copy_that_counts(disk);
    char path[64];
    bool replicated = false, there, right = !judged.voteless || needs_vote(disk);

    (void)snprintf(path, sizeof path, "%s/copy-%" PRIu64, HOST, copy);
    there = has_directory(c.disk, path);
    if (right && there && judged.read)
        right =
            opens_ordinarily(disk, copy, &replicated) && is_read_up_to_what_is_durable(disk, path, e, judged.wholly);
    if (right && host_open(c.disk, HOST, &r.options, &c.host) != LS_OK)
        right = violated(REFUSAL, "a crash reads as a refusal to start");
    right = right && vote_is_kept(c.host, told);
    c.follows = right ? c.host->follows : NULL;
    if (right && c.follows == NULL && (there || told->last >= 0))
        right = violated(FORCED, "the copy that had something is gone");
    if (right && c.follows != NULL && judged.read && replicated != (c.follows->end.index != 0))
        right = violated(ORDINARY, "an ordinary open and a copy disagree on what the log is");
    right = right && (c.follows == NULL || log_is_right(&c, told, e, judged.compared));
    right = right && (!judged.deep || comes_to_the_end(&c, e, judged.updates));
    host_close(c.host);
    if (right && vfs_sim_handles(disk) != 0)
        right = violated(SURVIVES, "a handle was left open");
    return right;
}

#endif
