/* See file_needs.h. */
#include "log/space/file_needs.h"

uint64_t extent_pool(uint64_t segment_size) { return segment_size / POOL_OF_WORK; }

static uint64_t at_most(uint64_t bytes, uint64_t most) { return bytes < most ? bytes : most; }

/* Subtracts the bytes that stay free when a record of `gap_bytes` does not fit at the end. */
uint64_t extent_usable(uint64_t segment_size, uint64_t gap_bytes) {
    return segment_size - SEGMENT_HEADER_BYTES - SEGMENT_END_RESERVE - 16 * BATCH_RECORD_BYTES - gap_bytes;
}

/*
 * How many spares are kept, and why. It must be possible to drain all live records even if no more files can be made.
 * Let `grown` be the live bytes plus the expansion by which they grow when moved. Two things hold from the first record
 * on:
 *   - spares >= SPARES_RESERVED + expansion: while the oldest segments are moved and grow as much as they may, there
 *     are files for all of it and for one segment in the making;
 *   - (files - SPARES_RESERVED) * usable >= grown + segment / ROOM_TO_WORK: packed again as loosely as possible, all
 *     live records leave room for the records that a drain appends. Those are dead at once, so relocation regains their
 *     room and that of the drained records: the room only grows.
 * Draining never breaks these conditions: it makes no record longer, and takes a spare only if more than the first
 * condition needs are left.
 *
 * A drain in transactions does make records longer: an open transaction lives itself, and a message with pending work is
 * moved with a state that it would not need otherwise, and keeps it until it is moved again or dies. Such an append is
 * admitted only within the two conditions (`grown` includes it), so they hold all the time, also after a rollback and
 * after an open, which count what is there. Growth leaves a pool, extent_pool() more than the conditions ask for, and so
 * a full log always has had room for that much work. What is over is freed by outcomes and deaths. An exchange, which puts a
 * message from one queue on another, leaves half of the pool, because the message stays longer after the commit too.
 * Prepare and outcomes append only what is dead at once. So a transaction may be refused when it begins or works, and
 * never when it ends.
 */
struct file_needs extent_needs(const struct extent *e) {
    uint64_t size = e->segment_size, used_bytes = e->segments * size;
    uint64_t expansion = e->expansion + e->growth_asked;
    struct file_needs needs = {
        .spares_reserved = SPARES_RESERVED + (size_t)((expansion + size / 2) / size),
        .gap_bytes = at_most(e->largest_bytes, format_record_bytes_max(size)),
        .live_bytes = extent_live_bytes(e->live_bytes, used_bytes),
    };
    needs.gap_bytes = e->longest_asked > needs.gap_bytes ? e->longest_asked : needs.gap_bytes;
    needs.usable = extent_usable(size, needs.gap_bytes);
    expansion += extent_pool(size);
    uint64_t moved = (expansion + size / 2) / size;
    uint64_t packed = (needs.live_bytes + expansion + size / ROOM_TO_WORK) / needs.usable + 1;
    uint64_t more = packed > e->segments ? packed - e->segments : 0;
    needs.spares_wanted = SPARES_RESERVED + (size_t)(more > moved ? more : moved);
    uint64_t twice = (2 * at_most(e->live_low, needs.live_bytes) + size - 1) / size;
    needs.files_wanted =
        (size_t)(twice > LOG_SEGMENTS_MIN ? twice : LOG_SEGMENTS_MIN) + 1 + needs.spares_reserved - SPARES_RESERVED;
    return needs;
}

size_t needed_spares(const struct file_needs *needs, size_t segments, size_t ahead) {
    size_t room = needs->files_wanted > segments ? needs->files_wanted - segments : 0;
    size_t most = needs->spares_wanted + ahead;
    most = most < room ? most : room;
    return most > needs->spares_wanted ? most : needs->spares_wanted;
}
