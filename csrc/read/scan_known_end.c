/*
 * Opening a scan whose end is known, without a search. See scan.h.
 *
 * Without a writer the end of the log must be searched: the last segment is verified, and every file behind it is looked
 * through for batches. Whoever knows an end, from an earlier scan, spares this. The log is then opened as if a writer's hint
 * gave that end, and nothing is weaker:
 *
 *   - an end that was accepted is the end of a batch, and stays one: a segment is only appended to;
 *   - a writer that came since has begun a segment above the known end, whose header says how much of the log it took over.
 *     If it took over less, the log must be searched;
 *   - all headers are read, and the chain must be whole from the known end back to the base; else the log must be searched;
 *   - every batch is verified when it is read. All below the known end must be there, so that no damage passes for a torn
 *     tail. Where a batch is damaged or missing, the reader searches then, and reports what it would have reported at the
 *     open (reader_judge).
 */
#include "os/io.h"
#include "read/scan_parts.h"

uint64_t scan_kept_end(const struct scan *s, uint64_t end_lsn) {
    uint64_t kept_lsn = end_lsn;
    for (size_t i = 0; i < s->count; i++) {
        const struct scan_file *f = &s->files[i];
        if (f->state == SCAN_VALID && f->first_lsn >= end_lsn && f->header.prev_end_lsn < kept_lsn) {
            kept_lsn = f->header.prev_end_lsn;
        }
    }
    return kept_lsn;
}

/* All batches of a segment are replicated, or none is: its first one tells. False: there is none. */
static bool note_replication(struct scan *s) {
    const struct scan_file *f = &s->files[s->last];
    uint8_t bytes[BATCH_RECORD_BYTES];
    uint64_t seed = format_segment_seed(s->meta.uuid, f->first_lsn, f->header.epoch);
    int64_t got =
        scan_open_segment(s, s->last) == LS_OK ? io_read(s->v, s->file, bytes, sizeof bytes, SEGMENT_HEADER_BYTES) : -1;
    struct batch first;
    if (got < 0 || scan_batch_record(bytes, (size_t)got, f->first_lsn + SEGMENT_HEADER_BYTES, f->header.epoch, seed,
                                     &first) != FORMAT_OK) {
        return false;
    }
    s->index = first.index;
    s->term = first.index != 0 ? first.epoch : 0;
    s->durable_lsn = first.index != 0 ? s->end_lsn : 0;
    return true;
}

bool scan_open_known(struct scan *s, vfs *v, int dir, const struct meta *meta, uint64_t base_lsn, uint64_t end_lsn) {
    const struct hint h = {.base_lsn = base_lsn, .durable_lsn = end_lsn};
    if (scan_open(s, v, dir, meta, false, &h) != LS_OK) {
        return false;
    }
    const struct scan_file *f = &s->files[s->last];
    s->watermark_lsn = f->header.prev_end_lsn; /* what is known to have been durable, without a look at the batches */
    return end_lsn > f->first_lsn + SEGMENT_HEADER_BYTES && end_lsn - f->first_lsn <= meta->segment_size &&
           scan_kept_end(s, end_lsn) == end_lsn && note_replication(s);
}
