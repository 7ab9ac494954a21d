/*
 * Admission: may the log grow? The spares are kept that file_needs.c asks for, so that all live records can always be moved
 * and drained; when these can no longer be had, growth is refused (StoreFull).
 */
#include <errno.h>

#include "log/parts.h"
#include "log/space/parts.h"

/* ---- live bytes, and the files that they need ---- */

static uint64_t at_most(uint64_t bytes, uint64_t most) { return bytes < most ? bytes : most; }

static uint64_t used_bytes(const struct log *g) { return log_segments_used(g) * g->segment_size; }

uint64_t admission_expansion(const struct log *g) { return clients_expansion(&g->clients, used_bytes(g)); }

static uint64_t largest_bytes(const struct log *g) {
    uint64_t largest = 0;
    for (size_t i = g->base_index; i < g->segment_count; i++) {
        uint64_t bytes = g->segments[i]->largest_bytes;
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

struct extent admission_extent(const struct log *g) {
    const struct space *space = &g->space;
    return (struct extent){
        .segment_size = g->segment_size,
        .segments = log_segments_used(g),
        .live_bytes = log_live_bytes(g),
        .live_low = space->live_low < space->live_low_before ? space->live_low : space->live_low_before,
        .largest_bytes = largest_bytes(g),
        .expansion = admission_expansion(g),
        .growth_asked = space->growth_asked,
        .longest_asked = space->longest_asked,
    };
}

void admission_compute_needs(struct log *g) {
    struct extent e = admission_extent(g);
    g->space.needs = extent_needs(&e);
    g->space.needs_lsn = g->front.append_lsn;
}

/* Tracks the least live bytes, so that records which live for one or two segments do not make the log longer. */
void admission_note_live(struct log *g) {
    uint64_t live = extent_live_bytes(log_live_bytes(g), used_bytes(g));
    g->space.live_low = live < g->space.live_low ? live : g->space.live_low;
    g->space.live_low_lsn = g->front.append_lsn;
    g->space.released_bytes = 0;
}

/* The bytes that are left in so many files once all live records, and `all` by which they grow, are packed again. */
static bool find_packed_room(const struct log *g, uint64_t files, uint64_t all, uint64_t *room) {
    if (files <= SPARES_RESERVED) {
        return false;
    }
    uint64_t grown = g->space.needs.live_bytes + (g->front.append_lsn - g->space.needs_lsn) + all;
    uint64_t most = (files - SPARES_RESERVED) * g->space.needs.usable;
    uint64_t taken = grown + g->segment_size / ROOM_TO_WORK;
    *room = most - taken;
    return taken <= most;
}

/*
 * Computes by how many bytes live records may grow if they take `expansion` bytes more when moved. False: they may not
 * grow.
 */
static bool find_room(const struct log *g, uint64_t expansion, uint64_t *room) {
    uint64_t all = admission_expansion(g) + expansion;
    return SPARES_RESERVED * g->segment_size + all <= log_spares(g) * g->segment_size + g->segment_size / 2 &&
           find_packed_room(g, log_files_within_all(g), all, room);
}

/* Bytes that an append for this purpose must leave. */
static uint64_t kept_for_work(const struct log *g, enum purpose purpose) {
    uint64_t pool = extent_pool(g->segment_size);
    return purpose == RESERVE_GROWS ? pool : purpose == RESERVE_EXCHANGE ? pool / 2 : 0;
}

static bool suffices(const struct log *g, uint64_t bytes, uint64_t expansion) {
    uint64_t room;
    return find_room(g, expansion, &room) && bytes <= room;
}

uint64_t admission_room(const struct log *g, uint64_t expansion) {
    uint64_t room;
    return !log_cannot_grow(g) && find_room(g, kept_for_work(g, RESERVE_GROWS) + expansion, &room) ? room : 0;
}

uint64_t admission_pool_left(struct log *g) {
    uint64_t room;
    if (!log_cannot_grow(g)) {
        return UINT64_MAX;
    }
    admission_compute_needs(g);
    return find_room(g, 0, &room) ? room : 0;
}

bool admission_has_room(struct log *g, uint64_t bytes, uint64_t expansion, enum purpose purpose) {
    expansion += kept_for_work(g, purpose);
    if (bytes <= g->space.needs.gap_bytes && suffices(g, bytes, expansion)) {
        return true;
    }
    admission_compute_needs(g);
    if (bytes > g->space.needs.gap_bytes) {
        g->space.needs.gap_bytes = bytes;
        g->space.needs.usable = extent_usable(g->segment_size, bytes);
    }
    return suffices(g, bytes, expansion);
}

/* Above this limit the log must not grow: relocation and the next open need the rest. */
bool over_admission_limit(const struct log *g) {
    size_t reserved = g->space.needs.spares_reserved, all = log_files_within_all(g);
    uint64_t weight = log_live_bytes(g) + clients_weight(&g->clients);
    return all <= reserved || weight / 4 * 5 > (all - reserved) * g->segment_size;
}

/* ---- full ---- */

/* Also before the first refusal, for example after an open. */
bool admission_refuses(struct log *g) {
    return g->space.full.since_us != 0 ||
           (log_cannot_grow(g) && (over_admission_limit(g) || !admission_has_room(g, 0, 0, RESERVE_GROWS)));
}

static void change_fullness(struct log *g, uint64_t since_us) {
    g->space.full.since_us = since_us;
    g->space.full.refused_bytes = 0;
    (void)atomic_fetch_add(&g->space.full.changes, 1);
    log_signal(g);
}

static void note_refusal(struct log *g, uint64_t bytes) {
    struct fullness *full = &g->space.full;
    if (full->since_us == 0) {
        change_fullness(g, g->v->now_us(g->v));
    }
    full->refused_bytes = bytes > full->refused_bytes ? bytes : full->refused_bytes;
    full->files = g->space.cannot_grow ? log_files(g) : 0;
    full->error = g->space.cannot_grow ? g->space.grow_error : g->space.others.error;
}

/*
 * How many files the log can have, as far as is known. UINT64_MAX: the disk has room. That is known once a file was made
 * since the last refusal: a try that needed none has not asked the disk.
 */
static uint64_t files_within_reach(const struct log *g) {
    uint64_t files = log_files_within_all(g), most = g->max_log_bytes / g->segment_size;
    if (log_cannot_grow(g) || (g->max_log_bytes == 0 && log_files(g) <= g->space.full.files)) {
        return files;
    }
    return g->max_log_bytes == 0 ? UINT64_MAX : most > files ? most : files;
}

/*
 * Whether there is room for half a segment. If less were enough, a consumer and a publisher in turns would end and
 * begin the state of being full again and again.
 */
static bool has_room_again(struct log *g) {
    admission_compute_needs(g);
    uint64_t size = g->segment_size, reserved = g->space.needs.spares_reserved, files = files_within_reach(g);
    uint64_t refused = g->space.full.refused_bytes, room = refused > size / 2 ? refused : size / 2;
    uint64_t weight = log_live_bytes(g) + clients_weight(&g->clients) + room;
    if (files == UINT64_MAX) {
        return true;
    }
    bool within = files > reserved && weight / 4 * 5 <= (files - reserved) * size;
    return within && (!log_cannot_grow(g) || admission_has_room(g, refused, 0, RESERVE_GROWS));
}

void admission_look_for_room(struct log *g) {
    if (g->space.full.since_us != 0 && has_room_again(g)) {
        change_fullness(g, 0);
    }
    if (admission_is_near(g) || g->front.append_lsn >= g->space.full.near_look_lsn) {
        admission_look_whether_near(g);
    }
}

/* ---- nearly full ---- */

/*
 * A store is nearly full from the moment when growth by half a segment would be refused until there is room for 3/4 of
 * a segment. A limit is known in advance. That a disk has no room for another file is known once the spare thread has
 * tried to make it, which may be for the append that is then refused.
 */
enum {
    LEAST_LOOKED = 1024, /* 1/1024 of a segment is appended between two looks */
    /* One appended byte uses up to 16 bytes of the room: a record of some 80 bytes puts a message on eight queues,
       each of which counts 128. */
    TAKEN_BY_A_BYTE = 16
};

/*
 * Bytes that are appended before the spare thread finds that it cannot make as many spares as are wanted. Of the next
 * segment's records one spare more may be wanted.
 */
static uint64_t appended_until_bound(const struct log *g, uint64_t files) {
    uint64_t most = files * g->segment_size, taken = (log_segments_kept(g) + spares_target(g) + 1) * g->segment_size;
    return most >= taken ? most - taken + log_segment_end(g) - g->front.append_lsn : 0;
}

/* Growth is refused once no more files can be had, and over_admission_limit, or packed again the live records leave no room. */
uint64_t admission_growth_left(struct log *g) {
    admission_compute_needs(g);
    uint64_t files = files_within_reach(g), reserved = g->space.needs.spares_reserved;
    if (files == UINT64_MAX) {
        return UINT64_MAX;
    }
    uint64_t most = files > reserved ? (files - reserved) * g->segment_size / 5 * 4 : 0;
    uint64_t weight = log_live_bytes(g) + clients_weight(&g->clients), kept = kept_for_work(g, RESERVE_GROWS), room;
    bool bound = log_cannot_grow(g);
    bool found = bound ? find_room(g, kept, &room) : find_packed_room(g, files, admission_expansion(g) + kept, &room);
    uint64_t left = found && most > weight ? at_most(room, most - weight) : 0;
    uint64_t before = bound ? 0 : appended_until_bound(g, files);
    return left > before ? left : before;
}

bool admission_is_near(const struct log *g) {
    return (atomic_load_explicit(&g->space.full.near_changes, memory_order_relaxed) & 1) != 0;
}

void admission_look_whether_near(struct log *g) {
    uint64_t size = g->segment_size, least = size / 2;
    if (!g->serving) {
        return;
    }
    uint64_t left = admission_growth_left(g);
    bool near = admission_is_near(g);
    if (near ? left >= least + size / 4 : left < least) {
        near = !near;
        (void)atomic_fetch_add(&g->space.full.near_changes, 1);
        log_signal(g);
    }
    g->space.full.near_look_lsn = near || left == UINT64_MAX
                                      ? UINT64_MAX
                                      : g->front.append_lsn + size / LEAST_LOOKED + (left - least) / TAKEN_BY_A_BYTE;
}

/* ---- taking a spare ---- */

/*
 * Reserved spares are for moves and for the next open; appends that make room wait for other spares. A move may take
 * the last spare: until it is done no other record is appended (see reserve.c). So after a crash the last segment holds
 * only copies, and the next open can reuse it. The last records of a close leave one spare.
 */
bool spares_allow(const struct log *g, enum purpose purpose) {
    size_t kept = g->space.needs.spares_reserved;
    if (purpose == RESERVE_MOVES) {
        kept = 0;
    } else if (purpose == RESERVE_SHRINKS && g->closing) {
        kept = 1;
    }
    return log_spares(g) > kept;
}

int admission_fail_full(const struct log *g) {
    unsigned long long size = g->segment_size, bytes = log_files(g) * size;
    if (!g->space.cannot_grow && others_bound(g)) {
        return fail_errno(
            LS_FULL, g->space.others.error,
            "the store is full: the copy on member %llu has %zu spare segments left, and its disk has no room for "
            "another of %llu bytes; nothing was changed. Consume messages, or free space on that disk",
            (unsigned long long)g->space.others.least_member, g->space.others.spares, size);
    }
    switch (g->space.grow_error) {
    case 0:
        break;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return fail_errno(LS_FULL, g->space.grow_error,
                          "the store is full: the log has %llu bytes, and the disk has no room for another segment of "
                          "%llu bytes; nothing was changed. Consume messages or free disk space",
                          bytes, size);
    case EMFILE:
    case ENFILE:
        return fail_errno(LS_FULL, g->space.grow_error,
                          "another segment of %llu bytes cannot be opened, as too many files are open; nothing was "
                          "changed. Close connections or raise the limit of open files (ulimit -n)",
                          size);
    default:
        return fail_errno(LS_FULL, g->space.grow_error,
                          "another segment of %llu bytes cannot be made; nothing was changed. See to the disk", size);
    }
    return fail(LS_FULL,
                "the store is full: the log has %llu bytes, and max_log_bytes (%llu) allows no further segment of %llu "
                "bytes; nothing was changed. Consume messages or raise max_log_bytes",
                bytes, (unsigned long long)g->max_log_bytes, size);
}

/* A move does not wait for another thread: it recycles or makes a spare, or fails. */
static int need_for_move(struct log *g) {
    spares_recycle(g);
    if (spares_allow(g, RESERVE_MOVES)) {
        return LS_OK;
    }
    return g->space.spare_count > 0 ? admission_fail_full(g) : spares_make(g, false);
}

/*
 * The base may have advanced without a batch that names it; then the segments below it are free only after one more
 * batch. If that is not enough, undurable deaths may advance the base further: this forces them before growth is
 * refused.
 */
static int free_what_died(struct log *g) {
    for (int tries = 0; tries < 2; tries++) {
        int rc = tries == 0 ? LS_OK : log_force(g, g->front.end_lsn);
        rc = rc == LS_OK ? log_name_base(g) : rc;
        if (rc != LS_OK) {
            return rc;
        }
        spares_try(g);
        if (!log_cannot_grow(g)) {
            return LS_OK;
        }
    }
    return LS_OK;
}

int spares_need(struct log *g, enum purpose purpose) {
    log_may_wait(g);
    g->stats.waits_for_spare++;
    if (purpose == RESERVE_MOVES) {
        return need_for_move(g);
    }
    uint64_t moved = g->stats.segments_relocated;
    g->space.spares_awaited++;
    g->space.room_wanted += purpose != RESERVE_GROWS ? 1 : 0;
    spares_try(g);
    g->space.room_wanted -= purpose != RESERVE_GROWS ? 1 : 0;
    /* a moved segment may have made room: the caller checks again */
    bool again = spares_allow(g, purpose) || g->stats.segments_relocated != moved;
    int rc = LS_OK;
    if (!again) {
        rc = purpose == RESERVE_GROWS ? admission_admit(g, 0, 0, purpose) : free_what_died(g);
    }
    if (rc == LS_OK && purpose != RESERVE_GROWS && others_wait(g)) {
        again = true;
    }
    g->space.spares_awaited--;
    if (g->stopping) {
        return LS_OK; /* the log was closed meanwhile: the caller fails */
    }
    if (again || spares_allow(g, purpose) || (rc == LS_OK && !log_cannot_grow(g))) {
        return LS_OK; /* a spare was made, and another thread may have taken it: the caller checks again */
    }
    return rc != LS_OK ? rc : admission_fail_full(g);
}

static int fail_work(const struct log *g) {
    return fail(LS_TRANSACTION_LIMIT,
                "the store is full, and the open transactions, with the messages that transactions have put on other "
                "queues, have used the %llu bytes that it keeps for them; nothing was changed. Commit, take fewer "
                "messages in one transaction, or accept messages without one",
                (unsigned long long)extent_pool(g->segment_size));
}

/* A log that can have no more files still accepts appends that grow it, while enough of it is dead for relocation. */
int admission_admit(struct log *g, uint64_t bytes, uint64_t expansion, enum purpose purpose) {
    log_may_wait(g);
    g->space.growth_asked += bytes + expansion;
    g->space.longest_asked = bytes > g->space.longest_asked ? bytes : g->space.longest_asked;
    int rc = free_what_died(g);
    g->space.growth_asked -= bytes + expansion;
    g->space.longest_asked = g->space.growth_asked > 0 ? g->space.longest_asked : 0;
    admission_compute_needs(g);
    bool full = log_cannot_grow(g) && !admission_has_room(g, bytes, expansion, purpose);
    if (purpose != RESERVE_GROWS) {
        return rc == LS_OK && full ? fail_work(g) : rc;
    }
    full = full || (log_cannot_grow(g) && over_admission_limit(g));
    g->space.asked_lsn = g->segments[g->segment_count - 1]->first_lsn;
    if (rc == LS_OK && full) {
        note_refusal(g, bytes + expansion);
        rc = admission_fail_full(g);
    }
    return rc;
}
