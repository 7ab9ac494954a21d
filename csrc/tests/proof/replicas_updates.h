/*
 * Updates by segments in the copies' explorer. A member is brought up to date from the leader's or another follower's directory, in
 * small steps between which the leader works; the sender is lost, the leader changes, bytes arrive flipped, the receiver dies. Now
 * and then its copy is removed first: until it has what it owes, it neither votes nor leads.
 */
#ifndef LOGSTORE_REPLICAS_UPDATES_H
#define LOGSTORE_REPLICAS_UPDATES_H

#include "tests/proof/replicas_disks.h"

enum { UPDATE_SEGMENTS = 400, PART_BYTES = 24 << 10, UPDATES_MAX = 400 };

/* Of one member that is brought up to date. */
struct updating {
    bool wanted;
    ls_update_source *source; /* NULL: no sender yet */
    int from;
    bool described;
    ls_update_manifest manifest;
    ls_update_segment segments[UPDATE_SEGMENTS];
    int last;             /* in `sent`, the update's end */
    ls_update *at;        /* NULL: not begun, or to begin anew */
    uint64_t flipped_lsn; /* a segment of which a byte arrived flipped */
};

static struct updating updating[COPIES_MAX];
static int updates_to[UPDATES_MAX]; /* in `sent`, their ends */
static size_t updates_to_count;

static void update_ends(int i) {
    ls_update_free(updating[i].at);
    updating[i].at = NULL;
}

static void sender_is_lost(int i) {
    update_ends(i);
    ls_update_source_close(updating[i].source);
    updating[i].source = NULL;
    updating[i].described = false;
}

/* The directory that they were sent from goes. */
static void updates_from_end(int i) {
    for (int j = 0; j < COPIES_MAX; j++) {
        if (updating[j].from == i)
            sender_is_lost(j);
    }
}

static void updates_end(int i) {
    update_ends(i);
    updates_from_end(i);
}

/* An answer that this disk's failure, or the lack of memory, gives. */
static bool is_excused(int i, int rc, bool was_short) { return was_struck(i) || (was_short && rc == LS_NO_MEMORY); }

/* ---- the sender ---- */

static void copy_path_of(const struct host *h, char path[64]) {
    (void)snprintf(path, 64, "%s/copy-%" PRIu64, HOST, h->vote->now.copy);
}

static void finds_sender(int i) {
    struct updating *u = &updating[i];
    char path[64], name[32];
    uint64_t limit_bytes = r.options.max_log_bytes != 0 || dice(3) == 0 ? 4 * SEGMENT : UINT64_C(1) << 40;
    bool was_short;
    int rc;

    u->from = leader >= 0 && copies[leader].leads != NULL && dice(3) != 0 ? leader : (int)dice((uint64_t)d.members);
    if (u->from == i || u->from == d.standby || copies[u->from].host == NULL ||
        (copies[u->from].follows == NULL && copies[u->from].leads == NULL))
        return;
    copy_path_of(copies[u->from].host, path);
    (void)snprintf(name, sizeof name, "update-%d", i);
    memory_is_short(10, 20);
    rc = ls_update_source_open(copies[u->from].disk, path, name, limit_bytes, UINT64_C(86400) * 1000000, 0, &u->source);
    was_short = memory_was_short();
    if (rc != LS_OK && rc != LS_WOULD_WAIT && rc != LS_RECYCLED && !is_excused(u->from, rc, was_short))
        (void)violated(ANSWER, "an update cannot be sent");
}

/* The manifest's end is a batch that some leader has handed out. */
static bool end_is_known(struct updating *u) {
    u->last = UNKNOWN_END;
    for (int at = sent_count; at-- > 0 && u->last == UNKNOWN_END;) {
        if (sent[at].s.end_lsn == u->manifest.end_lsn && sent[at].s.index == u->manifest.index &&
            sent[at].s.term == u->manifest.term)
            u->last = at;
    }
    return u->last != UNKNOWN_END || violated(BYTES, "an update ends with a batch that no leader handed out");
}

static void describes(int i) {
    struct updating *u = &updating[i];
    bool was_short;
    int rc;

    memory_is_short(15, 12);
    rc = ls_update_source_step(u->source, 1 + dice(3 * SEGMENT));
    was_short = memory_was_short();
    if (rc == LS_OK)
        return;
    if (rc == LS_END) {
        rc = ls_update_source_manifest(u->source, &u->manifest, u->segments, UPDATE_SEGMENTS);
        u->described = rc == LS_OK && u->manifest.segment_count <= UPDATE_SEGMENTS && end_is_known(u);
        if (u->described)
            return;
    }
    if (rc != LS_RECYCLED && !is_excused(u->from, rc, was_short))
        (void)violated(ANSWER, "the log to be sent cannot be described");
    sender_is_lost(i);
}

/* ---- the receiver ---- */

static void receiver_fails(int i, int rc, bool was_short, const char *what) {
    bool struck = was_struck(i);

    if (!is_excused(i, rc, was_short))
        (void)violated(ANSWER, what);
    update_ends(i);
    if (struck && copies[i].host != NULL && copies[i].leads == NULL)
        (void)starts_again(i);
}

static bool has_passed(int i) {
    const ls_update_manifest *m = &updating[i].manifest;

    return tail_is_before((struct tail){m->term, m->index}, host_tail(copies[i].host));
}

static void begins_update(int i) {
    struct updating *u = &updating[i];
    bool was_short;
    int rc = learn_term(&copies[i], u->manifest.term);

    if (rc == LS_OK) {
        memory_is_short(15, 6);
        rc = ls_update_begin(copies[i].host, &u->manifest, u->segments, &u->at);
        was_short = memory_was_short();
    } else {
        was_short = false;
    }
    if (rc == LS_REFUSED && has_passed(i)) {
        sender_is_lost(i); /* it has more */
        u->wanted = false;
    } else if (rc != LS_OK) {
        receiver_fails(i, rc, was_short, "a member refuses an update");
    }
}

/* One part, unless what is there already does. False: it has failed, or all is here. */
static bool moves_a_part(int i, int *rc) {
    static uint8_t bytes[PART_BYTES];
    struct updating *u = &updating[i];
    ls_update_part part;
    size_t n;

    *rc = ls_update_next(u->at, &part);
    if (*rc != LS_OK || part.bytes == 0)
        return *rc == LS_OK;
    n = 1 + (size_t)dice(PART_BYTES);
    n = part.bytes < n ? (size_t)part.bytes : n;
    if (ls_update_source_read(u->source, part.first_lsn, part.offset, bytes, n) != LS_OK) {
        int why = ls_last_error()->code;

        if (why != LS_RECYCLED && !was_struck(u->from))
            (void)violated(ANSWER, "a segment cannot be read for an update");
        sender_is_lost(i);
        return false;
    }
    if (dice(200) == 0) {
        bytes[dice(n)] ^= (uint8_t)(1u << dice(8));
        u->flipped_lsn = part.first_lsn;
    }
    *rc = ls_update_write(u->at, part.first_lsn, part.offset, bytes, n);
    if (*rc == LS_REFUSED && u->flipped_lsn == part.first_lsn) {
        u->flipped_lsn = 0;
        *rc = LS_OK;
    }
    return *rc == LS_OK;
}

/* What the present copy alone has, no majority had: nobody relies on it from here on. */
static void finishes(int i) {
    struct updating *u = &updating[i];
    struct copy *c = &copies[i];
    bool passed = has_passed(i), was_short;
    int rc, before = c->last;

    if (!passed) {
        c->last = common_of(c->last, u->last);
        tell(c);
    }
    note_in_journal(i, MARK_SWITCH, 1);
    memory_is_short(8, 80);
    rc = ls_update_finish(u->at);
    was_short = memory_was_short();
    note_in_journal(i, MARK_SWITCH, 0);
    c->follows = c->host->follows;
    if (passed && rc == LS_REFUSED) {
        sender_is_lost(i);
        return;
    }
    if (rc == LS_OK) {
        c->last = last_of(c->follows);
        if (c->last != u->last || c->follows->applied.lsn != c->follows->end.lsn)
            (void)violated(BYTES, "a copy does not end where its update does");
        if (passed)
            (void)violated(FORCED, "an update took what the member had said to be forced");
        tell(c);
        if (updates_to_count < UPDATES_MAX)
            updates_to[updates_to_count++] = u->last;
        d.updates++;
        u->wanted = false;
        sender_is_lost(i);
        updates_from_end(i);
        return;
    }
    if (rc != LS_OUTCOME_UNKNOWN) { /* else the next open finds out which of the two counts */
        c->last = before;
        tell(c);
    }
    receiver_fails(i, rc, was_short, "an update cannot be finished");
}

static void moves_parts(int i) {
    size_t since = journal_end(&copies[i]);
    bool was_short;
    int rc = LS_OK;

    memory_is_short(20, 6);
    for (uint64_t n = 2 + dice(8); n > 0 && moves_a_part(i, &rc); n--)
        continue;
    was_short = memory_was_short();
    if (updating[i].source == NULL || d.broken != NOTHING_BROKEN)
        return;
    if (rc != LS_OK && rc != LS_END) {
        receiver_fails(i, rc, was_short, "an update's bytes are refused");
        return;
    }
    if (rc == LS_END)
        finishes(i);
    if (d.broken == NOTHING_BROKEN && dice(25) == 0) {
        d.update_deaths++;
        (void)dies(i, since, dice(3) != 0);
    }
}

static bool may_lose_its_copy(int i) {
    return !d.ends && d.standby < 0 && d.durable >= 0 && leader >= 0 && i != leader && copies[i].follows != NULL;
}

/* Its copy is as good as lost: a majority without it has all that is durable. */
static void loses_its_copy(int i) {
    struct copy *c = &copies[i];
    size_t since;
    int rc;

    d.standby = i;
    d.owed = d.durable;
    updates_end(i);
    c->last = -1;
    tell(c);
    since = journal_end(c);
    rc = host_remove_copy(c->host);
    c->follows = c->host->follows;
    if (rc != LS_OK) {
        if (!was_struck(i))
            (void)violated(ANSWER, "a copy cannot be removed");
        else
            (void)starts_again(i);
    } else if (dice(4) == 0) {
        (void)dies(i, since, dice(3) != 0);
    }
}

/* A member that follows, or has no copy. */
static void update_moves_on(int i) {
    struct updating *u = &updating[i];

    if (!u->wanted || copies[i].host == NULL || copies[i].leads != NULL || d.broken != NOTHING_BROKEN)
        return;
    if (u->source == NULL)
        finds_sender(i);
    else if (!d.ends && dice(40) == 0)
        sender_is_lost(i);
    else if (u->at != NULL && may_lose_its_copy(i) && dice(25) == 0)
        loses_its_copy(i); /* in the midst of an update */
    else if (!u->described)
        describes(i);
    else if (u->at == NULL)
        begins_update(i);
    else
        moves_parts(i);
    if (i == d.standby && copies[i].follows != NULL && is_in(copies[i].last, d.owed)) {
        d.standby = -1;
        d.relied[i] = journal_end(&copies[i]);
    }
    if (i == d.standby && !u->wanted)
        u->wanted = true;
}

/* A follower lags, now and then until the leader's log does not reach down to it. */
static void some_need_an_update(void) {
    int i = (int)dice((uint64_t)d.members);

    if (updating[i].wanted || i == leader || copies[i].follows == NULL || d.durable < 0 || dice(5) != 0)
        return;
    updating[i].wanted = true;
    if (may_lose_its_copy(i) && dice(6) == 0)
        loses_its_copy(i);
}

static void updates_move_on(void) {
    for (int i = 0; i < d.members; i++)
        update_moves_on(i);
}

#endif
