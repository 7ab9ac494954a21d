/*
 * Opens a store with an undamaged log and any bytes as its checkpoint. The store always opens. Unrepaired bytes are used
 * only if they are the true checkpoint, and then change no answer. Repaired rows with right checksums may be false: then
 * every read, and the next open, gives a result or a typed error. No assertion fails, nothing leaks, and no allocation
 * exceeds the limit that tools/fuzz.py sets.
 *
 * The first byte of an input chooses how the rest is read: as a whole file, or as rows, which are put into blocks, counted
 * and sealed for the batch that the true checkpoint names. Every process makes the same store.
 */
#include <string.h>

#include "format/bytes.h"
#include "format/checkpoint.h"
#include "tests/fuzz/whole_store.h"

enum { TOLD_AS_A_FILE = 1, TOLD_CRASHED = 2, TOLD_MISCOUNTED = 4 };
enum { SEGMENT = SEGMENT_BYTES_MIN, FILE_BYTES_MAX = CHECKPOINT_HEADER_BYTES + 2 * CHECKPOINT_BLOCK_BYTES };

/* ---- the store ---- */

static struct {
    vfs_sim *closed;
    vfs_sim *crashed; /* before it was closed */
    struct checkpoint_header header;
    uint8_t file[FILE_BYTES_MAX];
    size_t file_bytes;
    uint64_t says[2]; /* of the closed one, of the crashed one */
} whole;

static uint64_t publish(ls_store *store, const uint32_t *queues, size_t n, uint32_t bytes, ls_tx *tx) {
    static const uint8_t content[20000];
    uint64_t id;
    require(ls_publish(store, queues, n, (const uint8_t *)"h", 1, content, bytes, tx, LS_WAIT, &id) == LS_OK);
    return id;
}

/* Counts, notes and headers of places, and operations with them. */
static void state_places(ls_store *store, uint64_t alone, uint64_t many, ls_tx *tx) {
    static const uint8_t note[] = "a note", header[] = "a header of its own";
    const ls_place_move move = {.from_queue_id = 2,
                                .queue_id = 6,
                                .header_given = 1,
                                .header = header,
                                .header_bytes = sizeof header,
                                .note_given = 1,
                                .note = note,
                                .note_bytes = sizeof note};
    const ls_place_move kept = {.from_queue_id = 6, .queue_id = 7};
    ls_delivery one;
    size_t n;
    uint64_t lsn;
    require(ls_acquire(store, 1, &one, 1, 0, &n) == LS_OK && n == 1 && ls_release(store, 1, &one, 1, 0) == LS_OK);
    require(ls_annotate(store, alone, 1, note, sizeof note, NULL, LS_WAIT, &lsn) == LS_OK);
    require(ls_move(store, many, &move, NULL, NULL, LS_WAIT, &lsn) == LS_OK);
    require(ls_move(store, many, &kept, NULL, tx, 0, &lsn) == LS_OK);
    require(ls_annotate(store, many, 3, note, 1, tx, 0, &lsn) == LS_OK);
}

/* Makes state for every kind of row: plain, committed, of several records, pending, prepared, on a deleted queue. */
static void fill_store(ls_store *store) {
    static const uint32_t queues[] = {1, 2, 3, 4, 5};
    const ls_xid xid = {.format_id = 7, .gtrid_bytes = 2, .bqual_bytes = 1, .data = "abc"};
    ls_tx *tx;
    uint64_t id, lsn, alone = 0;
    for (int i = 0; i < 4; i++) {
        alone = publish(store, queues, 1, 50, NULL);
    }
    (void)publish(store, queues, 3, 20, NULL);
    id = publish(store, queues + 1, 2, 9000, NULL);
    require(ls_begin(store, NULL, &tx) == LS_OK);
    (void)publish(store, queues, 1, 30, tx);
    (void)publish(store, queues, 1, 5000, tx);
    require(ls_commit(tx, LS_WAIT) == LS_OK);
    ls_tx_free(tx);
    require(ls_begin(store, &xid, &tx) == LS_OK);
    (void)publish(store, queues + 3, 1, 40, tx);
    require(ls_dequeue(store, id, 2, tx, 1, 0, 0, &lsn) == LS_OK);
    state_places(store, alone, publish(store, queues + 1, 2, 30, NULL), tx);
    require(ls_tx_end(tx) == LS_OK && ls_prepare(tx, LS_WAIT) == LS_OK);
    ls_tx_free(tx);
    (void)publish(store, queues + 4, 1, 10, NULL);
    require(ls_queue_delete(store, 5, LS_WAIT) == LS_OK);
    require(ls_stage(store, NULL, 0, NULL, 0, LS_WAIT, &id) == LS_OK);
    require(ls_checkpoint(store, NULL) == LS_OK);
    (void)publish(store, queues, 2, 60, NULL);
}

static uint64_t what_it_says(vfs_sim *sim) {
    ls_store *store = NULL;
    vfs_sim *disk = vfs_sim_clone(sim);
    require(disk != NULL && open_and_serve(disk, 5, &store) == LS_OK);
    uint64_t says = read_store(store, 5);
    ls_free(store);
    vfs_sim_free(disk);
    return says;
}

static void make_store(void) {
    ls_store *store = NULL;
    vfs_sim *sim = vfs_sim_new();
    require(sim != NULL && vfs_sim_record(sim, 0) == 0);
    require(open_and_serve(sim, 0, &store) == LS_OK);
    fill_store(store);
    whole.crashed = vfs_sim_clone(sim);
    require(ls_close(store) == LS_OK);
    ls_free(store);
    whole.closed = vfs_sim_clone(sim);
    vfs_sim_free(sim);
    int64_t size = vfs_sim_get(whole.closed, VFS_SIM_SEEN, "/s", "CHECKPOINT", whole.file, sizeof whole.file);
    require(whole.crashed != NULL && size > 0 && (size_t)size <= sizeof whole.file);
    whole.file_bytes = (size_t)size;
    require(format_get_checkpoint(whole.file, whole.file_bytes, &whole.header) == FORMAT_OK);
    whole.says[0] = what_it_says(whole.closed);
    whole.says[1] = what_it_says(whole.crashed);
}

/* ---- the checkpoint ---- */

/* The size of a row with its variable part; 0: it is not a row, or incomplete. */
static size_t count_row(struct checkpoint_header *h, const uint8_t *row, size_t left) {
    size_t bytes = format_checkpoint_row_bytes(row[0]);
    if (bytes == 0 || bytes > left) {
        return 0;
    }
    h->deletions += row[0] == ROW_DELETION;
    h->transactions += row[0] == ROW_TRANSACTION;
    h->messages += row[0] == ROW_PLAIN || row[0] == ROW_SINGLE || row[0] == ROW_CHAIN;
    h->places += row[0] == ROW_PLAIN || row[0] == ROW_SINGLE;
    if (row[0] == ROW_CHAIN) {
        uint64_t places = get32(row + 4), chunks = get32(row + 48), parts = get32(row + 52), work = get32(row + 56);
        uint64_t more = places * CHAIN_PLACE_BYTES + chunks * CHAIN_CHUNK_BYTES + parts * CHAIN_PART_BYTES +
                        work * CHAIN_OPERATION_BYTES;
        h->places += places;
        h->operations += work;
        bytes = more > left - bytes ? 0 : bytes + (size_t)more;
    } else if (row[0] == ROW_STATE) {
        size_t more = ((row[1] & ROW_HAS_NOTE) != 0 ? OWN_BYTES_ROW_BYTES : 0u) +
                      ((row[1] & ROW_HAS_HEADER) != 0 ? OWN_BYTES_ROW_BYTES : 0u);
        bytes = more > left - bytes ? 0 : bytes + more;
    }
    return bytes;
}

static size_t count_rows(struct checkpoint_header *h, const uint8_t *rows, size_t bytes) {
    size_t at = 0, taken = 1;
    while (at < bytes && taken > 0) {
        taken = count_row(h, rows + at, bytes - at);
        at += taken;
    }
    return at;
}

/* One block is enough: the longest input is shorter. */
static size_t seal_rows(const uint8_t *rows, size_t bytes, int miscounted, uint8_t *into) {
    static uint8_t block[CHECKPOINT_BLOCK_BYTES];
    struct checkpoint_header h = whole.header;
    size_t most = sizeof block - CHECKPOINT_BLOCK_HEADER_BYTES;
    h.messages = h.places = h.operations = h.transactions = h.deletions = 0;
    bytes = (bytes < most ? bytes : most) / 8 * 8;
    (void)count_rows(&h, rows, bytes);
    h.messages += miscounted != 0;
    size_t used = CHECKPOINT_BLOCK_HEADER_BYTES + bytes;
    h.file_bytes = CHECKPOINT_HEADER_BYTES + (bytes > 0 ? used : 0);
    format_put_checkpoint(into, &h);
    if (bytes > 0) {
        memset(block, 0, sizeof block);
        memcpy(block + CHECKPOINT_BLOCK_HEADER_BYTES, rows, bytes);
        format_put_checkpoint_block(block, &h, 0, (uint32_t)used, (uint32_t)used);
        memcpy(into + CHECKPOINT_HEADER_BYTES, block, used);
    }
    return (size_t)h.file_bytes;
}

/* ---- using the store ---- */

static void check_code(int rc) {
    require(rc == LS_OK || rc == LS_CORRUPT || rc == LS_CATALOG_MISMATCH || rc == LS_FULL || rc == LS_IO);
}

/* A false checkpoint may have been used: every call must still return. */
static void use_store(vfs_sim *disk, ls_store *store) {
    const uint32_t queue = 8;
    uint64_t id;
    (void)read_store(store, 5);
    (void)ls_publish(store, &queue, 1, NULL, 0, (const uint8_t *)"after", 5, NULL, LS_WAIT, &id);
    (void)move_base(store);
    (void)ls_checkpoint(store, NULL);
    (void)ls_close(store);
    ls_free(store);
    store = NULL;
    check_code(open_and_serve(disk, 5, &store));
    ls_free(store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static uint8_t file[FILE_BYTES_MAX];
    if (whole.closed == NULL) {
        make_store();
    }
    if (bytes < 1 || bytes - 1 > CHECKPOINT_BLOCK_BYTES) {
        return 0;
    }
    int as_a_file = (data[0] & TOLD_AS_A_FILE) != 0, crashed = (data[0] & TOLD_CRASHED) != 0;
    size_t n = bytes - 1;
    if (as_a_file) {
        memcpy(file, data + 1, n);
    } else {
        n = seal_rows(data + 1, n, data[0] & TOLD_MISCOUNTED, file);
    }
    vfs_sim *disk = vfs_sim_clone(crashed ? whole.crashed : whole.closed);
    ls_store *store = NULL;
    ls_recovery report;
    require(disk != NULL && vfs_sim_put(disk, "/s", "CHECKPOINT", file, n) == 0);
    int rc = open_and_serve(disk, 5, &store);
    require(rc == LS_OK || (rc == LS_CATALOG_MISMATCH && !as_a_file)); /* a queue that never existed */
    if (rc == LS_OK) {
        ls_recovery_report(store, &report);
        int is_true = n == whole.file_bytes && memcmp(file, whole.file, n) == 0;
        require(!as_a_file || is_true || !report.checkpoint_used);
        require(report.checkpoint_used == (report.checkpoint_state == LS_CHECKPOINT_USED));
        if (!report.checkpoint_used || is_true) {
            require(read_store(store, 5) == whole.says[crashed]);
            ls_free(store);
        } else {
            use_store(disk, store);
        }
    }
    require(vfs_sim_handles(disk) == 0);
    vfs_sim_free(disk);
    return 0;
}
