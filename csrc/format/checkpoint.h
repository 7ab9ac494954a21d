/*
 * Bytes <-> structs of a checkpoint: section 8 of docs/format.md. csrc/checkpoint/ handles the meaning of a row.
 *
 * As in format.h: encoders write into memory that is large enough; decoders treat every byte as an attacker's, and
 * FORMAT_OK means that the row keeps every rule of the page that can be checked with the row and the header alone.
 */
#ifndef LOGSTORE_FORMAT_CHECKPOINT_H
#define LOGSTORE_FORMAT_CHECKPOINT_H

#include "format/format.h"

enum { CHECKPOINT_BLOCK_BYTES = 64 << 10 };

struct checkpoint_header {
    uint8_t uuid[UUID_BYTES];
    uint64_t epoch;
    uint64_t lsn; /* everything below it is in the file, nothing else */
    uint64_t batch_lsn;
    uint64_t batch_checksum;
    uint64_t base_lsn;
    uint64_t file_bytes;
    uint64_t salt;
    uint64_t created_us;
    uint64_t messages;
    uint64_t places;
    uint64_t operations;
    uint64_t transactions;
    uint64_t deletions;
};

enum checkpoint_row {
    ROW_DELETION = 1,
    ROW_TRANSACTION = 2,
    ROW_PLAIN = 3,
    ROW_SINGLE = 4,
    ROW_CHAIN = 5,
    ROW_CLIENT = 6,
    ROW_STATE = 7,
};

enum {
    /* A client row lies in one block. */
    CLIENT_BYTES_MAX = CHECKPOINT_BLOCK_BYTES - CHECKPOINT_BLOCK_HEADER_BYTES - CLIENT_ROW_BYTES,
};

enum { ROW_STAGED = 1, ROW_PUBLISHED = 2, ROW_LOOSE = 4, ROW_WIDE = 8 };

enum place_state_row_bit { ROW_OF_OPERATION = 1, ROW_HAS_NOTE = 2, ROW_HAS_HEADER = 4 };

/* The head of a row; only the client of the stream understands the bytes that follow. */
struct client_row {
    uint32_t stream;
    uint32_t length; /* of the bytes that follow, zeros up to a multiple of 8 not counted */
};

/* The client row of stream 4. */
struct replication_row {
    uint64_t index; /* of the batch at whose end the checkpoint was taken */
    uint64_t members_id;
    uint64_t members_lsn;
    uint64_t members_index;
    uint32_t config_bytes;
    const uint8_t *config;
};

struct deletion_row {
    uint64_t lsn;
    uint32_t queue_id;
};

struct transaction_row {
    uint64_t id;
    uint64_t start_lsn;
    uint64_t last_lsn;
    uint64_t start_time_us;
    uint64_t prepare_time_us;
    struct xid xid;
    uint8_t kind;  /* enum tx_kind */
    uint8_t state; /* enum tx_state */
};

/* A message of any of the three kinds. A plain or single row includes its place; a chain's row gives the counts of
   the rows that follow. */
struct message_row {
    uint64_t id;
    uint64_t start_lsn;
    uint64_t last_lsn;
    uint64_t content_total;
    uint64_t order_lsn;
    uint32_t order_index;
    uint32_t queue_id;
    uint32_t record_bytes;
    uint32_t content_bytes;
    uint32_t chunk_count;
    uint32_t part_count;
    uint32_t place_count;
    uint32_t operation_count;
    uint32_t state_bytes;
    uint32_t growth;
    uint32_t work_state;
    uint32_t work_rows;
    uint8_t kind; /* enum checkpoint_row */
    uint8_t flags;
};

struct chain_chunk {
    uint64_t lsn;
    uint64_t offset;
    uint32_t record_bytes;
    uint32_t content_bytes;
};

struct chain_part {
    uint64_t lsn;
    uint32_t record_bytes;
};

struct chain_place {
    uint64_t order_lsn;
    uint32_t order_index;
    uint32_t queue_id;
};

struct chain_operation {
    uint64_t tx_id;
    uint64_t lsn;
    uint32_t queue_id;
    uint32_t order_index;
    uint32_t kind; /* enum pending_kind */
};

/* The state of a place, or of an operation, of the message whose rows are before it. */
struct place_state_row {
    uint64_t not_before_us;
    uint64_t expires_us;
    uint32_t delivery_count;
    uint32_t of;  /* the place's queue id; of an operation how many later ones the message has */
    uint8_t bits; /* enum place_state_row_bit */
};

/* Where a note or header lies; follows its state's row, the note's first. */
struct own_bytes_row {
    uint64_t lsn; /* of the record */
    uint32_t record_bytes;
    uint32_t at; /* in the record */
    uint32_t bytes;
};

void format_put_checkpoint(uint8_t *into, const struct checkpoint_header *h);
enum format_result format_get_checkpoint(const uint8_t *from, size_t available, struct checkpoint_header *h);

/* How many blocks a file of these bytes has, and how many bytes block `index` takes of it. */
uint64_t format_checkpoint_blocks(uint64_t file_bytes);
uint32_t format_checkpoint_extent(uint64_t file_bytes, uint64_t index);
/* Seals the block, whose rows end at `used`, as it stands in the file. */
void format_put_checkpoint_block(uint8_t *block, const struct checkpoint_header *h, uint64_t index, uint32_t used,
                                 uint32_t extent);
/* *used says where the rows end. */
enum format_result format_get_checkpoint_block(const uint8_t *block, const struct checkpoint_header *h, uint64_t index,
                                               uint32_t *used);

/* How many bytes the row that begins with `kind` takes; 0: there is no such kind. */
uint32_t format_checkpoint_row_bytes(uint8_t kind);
uint32_t format_put_client_row(uint8_t *into, const struct client_row *c);
/* Its own bytes, behind the head. */
uint32_t format_put_replication_row(uint8_t *into, const struct replication_row *r);
uint32_t format_put_deletion_row(uint8_t *into, const struct deletion_row *d);
uint32_t format_put_transaction_row(uint8_t *into, const struct transaction_row *t);
uint32_t format_put_message_row(uint8_t *into, const struct message_row *m); /* of its kind */
uint32_t format_put_chain_chunk(uint8_t *into, const struct chain_chunk *c);
uint32_t format_put_chain_part(uint8_t *into, const struct chain_part *p);
uint32_t format_put_chain_place(uint8_t *into, const struct chain_place *p);
uint32_t format_put_chain_operation(uint8_t *into, const struct chain_operation *o);
uint32_t format_put_place_state_row(uint8_t *into, const struct place_state_row *s);
uint32_t format_put_own_bytes_row(uint8_t *into, const struct own_bytes_row *o);

/* From a whole row of a verified block; `lsn` is the checkpoint's, `id` the chain's. */
enum format_result format_get_client_row(const uint8_t *from, struct client_row *c);
enum format_result format_get_replication_row(const uint8_t *from, uint32_t bytes, struct replication_row *r);
enum format_result format_get_deletion_row(const uint8_t *from, uint64_t lsn, struct deletion_row *d);
enum format_result format_get_transaction_row(const uint8_t *from, uint64_t lsn, struct transaction_row *t);
/* Reads the id from the offset at which a message's row has it. */
uint64_t format_checkpoint_row_id(const uint8_t *from);
enum format_result format_get_message_row(const uint8_t *from, uint64_t lsn, struct message_row *m);
enum format_result format_get_chain_chunk(const uint8_t *from, uint64_t lsn, uint64_t id, struct chain_chunk *c);
enum format_result format_get_chain_part(const uint8_t *from, uint64_t lsn, uint64_t id, struct chain_part *p);
enum format_result format_get_chain_place(const uint8_t *from, uint64_t lsn, uint64_t id, struct chain_place *p);
enum format_result format_get_chain_operation(const uint8_t *from, uint64_t lsn, uint64_t id,
                                              struct chain_operation *o);
enum format_result format_get_place_state_row(const uint8_t *from, struct place_state_row *s);
enum format_result format_get_own_bytes_row(const uint8_t *from, uint64_t lsn, uint64_t id, bool is_note,
                                            struct own_bytes_row *o);

#endif
