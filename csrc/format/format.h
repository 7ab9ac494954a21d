/*
 * Bytes <-> structs, and nothing else. layout.def has every record type, length and offset of docs/format.md, once;
 * encode.c and decode.c have the records, checkpoint.c has checkpoints, format.c has the other files and the names.
 *
 * Encoders write into memory that the caller has made large enough (the *_bytes functions say how much) and leave it
 * sealed: header check and checksum filled in. Decoders treat every byte as an attacker's: nothing is read beyond
 * `available`, a length is used only after the header check, and FORMAT_OK means that the record keeps every rule of
 * the page, so that encoding what was decoded gives the same bytes again. On any other result the struct's contents
 * have no meaning.
 */
#ifndef LOGSTORE_FORMAT_H
#define LOGSTORE_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The length of each file, header, row and record of a fixed length: META_BYTES, BATCH_RECORD_BYTES and so on. */
enum {
#define SIZE(owner, bytes) owner##_BYTES = (bytes),
#include "format/layout.def"
};

enum {
    FORMAT_VERSION = 1,
    BLOCK_BYTES = 4096,
    UUID_BYTES = 16,
    FOOTER_TYPES_MAX = 24,
    FOOTER_BYTES_MAX = 72 + 8 * FOOTER_TYPES_MAX,
    XID_PART_BYTES_MAX = 64,
    XID_RECORD_BYTES_MAX = 64 + 2 * XID_PART_BYTES_MAX,
    DEQUEUE_REASON_MAX = 6,
    NOTE_BYTES_MAX = 255,
    MEMBERS_CONFIG_MAX = 4032, /* so that a MEMBERS fits the records of the smallest segment */
};

#define SEGMENT_BYTES_MIN ((uint64_t)64 << 10)
#define SEGMENT_BYTES_MAX ((uint64_t)1 << 30)
#define LSN_MAX           ((uint64_t)INT64_MAX)
#define QUEUE_ID_MAX      ((uint32_t)0xfffffffe)
#define ORDER_INDEX_MAX   ((uint32_t)0xffffff) /* enqueues of one transaction are numbered from 0 */
#define CONTENT_BYTES_MAX ((uint64_t)INT64_MAX)
#define PLACE_TIME_MAX    ((uint64_t)INT64_MAX) /* in microseconds since 1970 */

enum record_type {
#define RECORD(type, code, link, flags, bytes) type = (code),
#include "format/layout.def"
};

/* A type's high byte, without bit 15, is its stream. A footer counts the types of streams 1 to 3. */
enum {
    TYPES_PER_STREAM = 12, /* at most */
    STREAMS_MAX = 128,
    STREAMS_COUNTED = 3,
    STREAMS_KNOWN = 4,
    TYPES_COUNTED = STREAMS_COUNTED * TYPES_PER_STREAM,
    TYPES_KNOWN = STREAMS_KNOWN * TYPES_PER_STREAM,
};

static inline uint32_t format_stream_of(uint16_t type) { return type >> 8 & 0x7fu; }

static inline uint32_t format_type_ordinal(uint16_t type) {
    return ((type >> 8) - 1u) * TYPES_PER_STREAM + (type & 0xffu) - 1u;
}

/* Every type at its ordinal; an ordinal without a type has type 0 and no name. */
struct format_type {
    uint16_t type;
    const char *name;
};
extern const struct format_type format_types[TYPES_KNOWN];
const char *format_type_name(uint16_t type); /* NULL: unknown */
/* Streams beyond 4 whose records the reader knows how to use. */
struct stream_set {
    uint64_t bits[STREAMS_MAX / 64];
};

static inline void format_add_stream(struct stream_set *set, uint32_t stream) {
    set->bits[stream / 64] |= (uint64_t)1 << stream % 64;
}

enum record_flag {
    FLAG_COPY = 1,
    FLAG_PART = 2,
    FLAG_DELETES = 4,
    FLAG_PUBLISHED = 8,
    FLAG_STAGED = 16,        /* on relocated state: never enqueued yet */
    FLAG_INLINE = 32,        /* on a copied start: the whole state is in it */
    FLAG_ORDERED = 64,       /* on an inline copy: with an order key of its own */
    TYPE_SKIPPABLE = 0x8000, /* in a type: a reader that does not know it passes over the record */
};

/* Kind and state of relocated work and of a relocated transaction; 0 is never valid. */
enum pending_kind { PENDING_ENQUEUE = 1, PENDING_DEQUEUE = 2, PENDING_NOTE = 3 }; /* a note only in rows with states */
enum tx_kind { TX_KIND_LOCAL = 1, TX_KIND_DISTRIBUTED = 2 };
enum tx_state { TX_STATE_ACTIVE = 1, TX_STATE_ENDED = 2, TX_STATE_PREPARED = 3 };

/* Why bytes are not valid; FORMAT_OK is 0. */
enum format_result {
    FORMAT_OK = 0,
    FORMAT_SHORT,     /* fewer bytes than it needs */
    FORMAT_MAGIC,     /* not a file of this kind */
    FORMAT_NEWER,     /* right magic, larger version; or an unknown type that may not be skipped */
    FORMAT_CHECK,     /* the header check or the checksum differs */
    FORMAT_PLACE,     /* intact, but of another LSN, store, epoch or size */
    FORMAT_MALFORMED, /* checksums right, contents impossible */
};

const char *format_result_text(enum format_result result);

struct segment_header {
    uint8_t uuid[UUID_BYTES];
    uint64_t segment_size;
    uint64_t first_lsn;
    uint64_t epoch;
    uint64_t prev_end_lsn; /* where the log before this segment ends; 0 in the store's first */
    uint64_t created_us;
};

struct meta {
    uint8_t uuid[UUID_BYTES];
    uint64_t segment_size;
    uint64_t max_undurable_bytes;
    uint64_t created_us;
};

struct hint {
    uint8_t uuid[UUID_BYTES];
    uint64_t epoch;
    uint64_t durable_lsn;
    uint64_t base_lsn;
};

/* The file CLOSED, which an orderly close writes next to the log. */
struct closed {
    uint8_t uuid[UUID_BYTES];
    uint64_t epoch;
    uint64_t end_lsn; /* where CLOSE stands: all below it was durable */
    uint64_t closed_us;
};

/* The file SEEN, which an orderly close writes last. */
struct seen_file {
    uint8_t uuid[UUID_BYTES];
    uint64_t epoch;    /* of the writer that closed */
    uint64_t seen_lsn; /* places that became visible below it may have been handed out, whatever their count; 0: none */
};

struct hold {
    uint8_t uuid[UUID_BYTES];
    uint64_t hold_lsn;
    uint64_t limit_bytes; /* 0: none */
    uint64_t expires_us;
    uint64_t created_us;
};

/* A slot of VOTE. */
struct vote {
    uint8_t uuid[UUID_BYTES];         /* of the store */
    uint8_t cluster_uuid[UUID_BYTES]; /* of the cluster */
    uint64_t member_id;
    uint64_t sequence; /* the larger one of the two valid slots counts */
    uint64_t term;
    uint64_t voted_for;   /* a member's id; 0: none */
    uint64_t copy;        /* the store is in the directory copy-N */
    uint64_t rebuild;     /* how often this member's copy was removed and made again */
    uint64_t floor_term;  /* of the tail that the log must reach; 0: none is known */
    uint64_t floor_index; /* and its index */
    uint64_t detached;    /* 1: replication has ended here */
};

enum { MARK_SLOTS = 2 };

/* A slot of MARK: batches of one segment that a copy writes with one force. */
struct mark {
    uint8_t uuid[UUID_BYTES];
    uint64_t sequence; /* the larger one of the two valid slots counts */
    uint64_t from_lsn; /* what these batches call durable counts only up to here; 0: none are marked */
    uint64_t to_lsn;
};

/* A record's header, and where it stands in memory. */
struct record {
    const uint8_t *bytes;
    uint32_t length;
    uint16_t type;
    uint16_t flags;
    uint64_t lsn;
    uint64_t id;
    uint64_t prev;
};

struct batch {
    uint64_t epoch;
    uint32_t count; /* records after the batch record */
    uint32_t bytes; /* of the whole batch */
    uint64_t durable_lsn;
    uint64_t base_lsn;
    uint64_t time_us;
    uint64_t index;             /* since replication began; 0: not replicated */
    uint64_t known_durable_lsn; /* with an index: a majority had everything below it when this batch was written */
};

/* The epoch of a batch with an index is its term; a term's LSNs begin at the term times 2^40. */
enum { TERM_SHIFT = 40 };
#define TERM_LIMIT ((uint64_t)1 << 23)

struct members {
    uint64_t index; /* of the batch in which it was first written */
    uint32_t config_bytes;
    const uint8_t *config; /* in the encoding of the consensus library */
};

enum catalog_action { CATALOG_PUT = 1, CATALOG_DELETE = 2 };
enum catalog_object { CATALOG_QUEUE = 1, CATALOG_EXCHANGE = 2, CATALOG_BINDING = 3, CATALOG_CONFIG = 4 };

struct catalog_change {
    uint32_t part; /* from 0 on */
    uint32_t row_count;
    const uint8_t *rows; /* read with format_catalog_row */
};

struct catalog_row {
    uint8_t action; /* enum catalog_action */
    uint8_t object; /* enum catalog_object */
    uint32_t queue_id;
    uint32_t bytes;
    const uint8_t *data;
};

struct message_start {
    uint64_t tx_id;           /* of a record that is not INLINE */
    uint64_t enqueue_time_us; /* of an INLINE one, but not ORDERED */
    uint64_t order_lsn;       /* of an INLINE one: its places' order key, with the order index */
    uint32_t order_index;     /* of the first inline enqueue among those of its transaction */
    uint32_t header_bytes;
    uint32_t content_bytes;
    uint32_t queue_count;
    const uint8_t *queues; /* little-endian; read with format_queue_id */
    const uint8_t *header;
    const uint8_t *content;
};

struct message_chunk {
    uint64_t offset;
    uint32_t content_bytes;
    const uint8_t *content;
};

struct message_enqueue {
    uint64_t tx_id;
    uint32_t order_index; /* as of a start */
    uint32_t queue_count;
    const uint8_t *queues;
};

struct message_dequeue {
    uint64_t tx_id;
    uint32_t queue_id;
    uint16_t delivery_count;
    uint16_t reason;
};

/* A chain's state, or a part of it. Rows are little-endian: read with format_chunk_row and so on. */
struct message_relocated {
    uint64_t content_bytes; /* of the whole content */
    uint64_t start_lsn;
    uint32_t part;
    uint32_t chunk_count;
    uint32_t place_count;
    uint32_t pending_count;
    const uint8_t *chunks;
    const uint8_t *places;
    const uint8_t *pending;
};

struct chunk_row {
    uint64_t lsn;
    uint64_t offset;
    uint32_t content_bytes;
};

struct place_row {
    uint64_t order_lsn;
    uint64_t enqueue_time_us;
    uint32_t queue_id;
    uint32_t order_index;
    uint32_t delivery_count;
};

struct pending_row {
    uint64_t tx_id;
    uint64_t lsn; /* of the operation */
    uint32_t queue_id;
    uint32_t kind;        /* enum pending_kind */
    uint32_t order_index; /* within the transaction */
};

/* The state of a place beside its order; all zero: none. */
struct place_state {
    uint64_t not_before_us; /* it is not offered before this time; 0: none */
    uint64_t expires_us;    /* nor from this time on; 0: none */
    uint32_t delivery_count;
    uint32_t header_bytes;
    const uint8_t *header; /* NULL: none of its own; the message's counts */
    const uint8_t *note;
    uint8_t note_bytes;
};

/* Bits of a record or row with a place's state. */
enum place_state_bit {
    STATE_HAS_HEADER = 1,
    STATE_KEEPS_HEADER = 2, /* of the place that ends; both only in a move */
    STATE_KEEPS_NOTE = 4,
};

struct message_place {
    uint64_t tx_id;
    uint32_t queue_id;
    uint8_t note_bytes; /* 0: the note is taken away */
    const uint8_t *note;
};

struct message_move {
    uint64_t tx_id;
    uint32_t from_queue_id; /* of the place that ends; 0: none */
    uint32_t queue_id;
    uint32_t order_index;
    uint8_t reason;    /* why the place ends */
    bool keeps_header; /* the own header of the place that ends, if it has one */
    bool keeps_note;
    struct place_state state; /* of the new place, without what is kept */
};

/* A row of PLACE_STATES. */
struct state_row {
    uint64_t id; /* of the message */
    uint64_t not_before_us;
    uint64_t expires_us;
    uint32_t queue_id;
    uint32_t delivery_count;
};

struct place_states {
    uint32_t row_count;
    const uint8_t *rows; /* read with format_state_row */
};

struct xid {
    int64_t format_id;
    uint8_t gtrid_bytes;
    uint8_t bqual_bytes;
    uint8_t data[2 * XID_PART_BYTES_MAX]; /* gtrid, then bqual at once */
};

struct tx_relocated {
    struct xid xid; /* of a local transaction: all zero */
    uint8_t kind;   /* enum tx_kind */
    uint8_t state;  /* enum tx_state */
    uint64_t start_time_us;
    uint64_t prepare_time_us;
};

struct footer_count {
    uint32_t type;
    uint32_t count;
};

struct footer {
    uint64_t last_lsn;
    uint64_t bytes;
    uint32_t batches;
    uint32_t n;
    struct footer_count counts[FOOTER_TYPES_MAX];
};

/*
 * Bytes of a message's state in its MESSAGE_RELOCATED records. A long state has several records; one more byte for each row
 * pays for their heads.
 */
enum {
    STATE_HEAD_BYTES = 80,
    STATE_BYTES = STATE_HEAD_BYTES + RELOCATED_PLACE_BYTES, /* a state with one row */
    ROW_BYTES = RELOCATED_PLACE_BYTES + 1,                  /* for a place or a pending operation */
    ROW_FOR_ID_BYTES = ROW_BYTES - 4,                       /* that replaces a queue id in a start record's list */
    CHUNK_ROW_BYTES = RELOCATED_CHUNK_BYTES + 1,
    WIDER_ROW_BYTES = PLACED_ROW_BYTES - RELOCATED_PLACE_BYTES, /* by which a row with a state is longer */
};

static inline uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

uint64_t format_segment_seed(const uint8_t uuid[UUID_BYTES], uint64_t first_lsn, uint64_t epoch);
uint32_t format_record_bytes_max(uint64_t segment_size);
uint32_t format_batch_bytes_max(uint64_t segment_size);

/* Whole files and blocks. The encoders fill all of the fixed size. */
void format_put_segment_header(uint8_t *into, const struct segment_header *h);
enum format_result format_get_segment_header(const uint8_t *from, size_t available, const uint8_t uuid[UUID_BYTES],
                                             uint64_t segment_size, uint64_t first_lsn, struct segment_header *h);
void format_put_meta(uint8_t *into, const struct meta *m);
enum format_result format_get_meta(const uint8_t *from, size_t available, struct meta *m);
void format_put_hint(uint8_t *into, const struct hint *h);
enum format_result format_get_hint(const uint8_t *from, size_t available, struct hint *h);
void format_put_closed(uint8_t *into, const struct closed *c);
enum format_result format_get_closed(const uint8_t *from, size_t available, struct closed *c);
void format_put_seen(uint8_t *into, const struct seen_file *s);
enum format_result format_get_seen(const uint8_t *from, size_t available, struct seen_file *s);
void format_put_hold(uint8_t *into, const struct hold *h);
enum format_result format_get_hold(const uint8_t *from, size_t available, struct hold *h);
void format_put_vote(uint8_t *into, const struct vote *v); /* one slot */
enum format_result format_get_vote(const uint8_t *from, size_t available, struct vote *v);
void format_put_mark(uint8_t *into, const struct mark *m); /* one slot */
enum format_result format_get_mark(const uint8_t *from, size_t available, struct mark *m);

/* Names of segment files: 16 hexadecimal digits and ".seg". */
enum { SEGMENT_NAME_BYTES = 21 };
void format_segment_name(char into[SEGMENT_NAME_BYTES], uint64_t first_lsn);
bool format_parse_segment_name(const char *name, uint64_t *first_lsn);

/* Records. How many bytes one needs (a multiple of 8): */
uint64_t format_start_bytes(uint64_t header_bytes, uint64_t content_bytes, uint64_t queue_count);
uint64_t format_chunk_bytes(uint64_t content_bytes);
uint64_t format_enqueue_bytes(uint64_t queue_count);
uint64_t format_relocated_bytes(uint64_t chunk_count, uint64_t place_count, uint64_t pending_count);
uint32_t format_xid_record_bytes(const struct xid *x);
uint32_t format_tx_relocated_bytes(const struct xid *x);

/* Where a record goes: everything its header needs but type and length. */
struct slot {
    uint8_t *at;
    uint64_t seed;
    uint64_t lsn;
    uint64_t id;
    uint64_t prev;
    uint16_t flags;
};

uint32_t format_put_plain(const struct slot *s, enum record_type type);
/* `key` is the transaction, or of an INLINE copy enqueue_time_us, or with ORDERED order_lsn. */
uint32_t format_put_start(const struct slot *s, uint64_t key, uint32_t order_index, const uint32_t *queues,
                          uint32_t queue_count, const void *header, uint32_t header_bytes, const void *content,
                          uint32_t content_bytes);
uint32_t format_put_chunk(const struct slot *s, uint64_t offset, const void *content, uint32_t content_bytes);
uint32_t format_put_enqueue(const struct slot *s, uint64_t tx_id, uint32_t order_index, const uint32_t *queues,
                            uint32_t queue_count);
uint32_t format_put_dequeue(const struct slot *s, const struct message_dequeue *d);
/* The counts of `m` say how many rows there are; its pointers are not used. */
uint32_t format_put_relocated(const struct slot *s, const struct message_relocated *m, const struct chunk_row *chunks,
                              const struct place_row *places, const struct pending_row *pending);
uint32_t format_put_xid(const struct slot *s, enum record_type type, const struct xid *x);
uint32_t format_put_tx_relocated(const struct slot *s, const struct tx_relocated *t);
/*
 * Records with states of places (placed.c).
 *
 * A message's first record with one state for all its places. Its header and content are those of a MESSAGE_START; the
 * state has times and a note alone.
 */
uint64_t format_start_placed_bytes(uint64_t header_bytes, uint64_t content_bytes, uint64_t queue_count,
                                   uint32_t note_bytes);
uint32_t format_put_start_placed(const struct slot *s, const struct message_start *m, const uint32_t *queues,
                                 const struct place_state *state);
uint64_t format_place_bytes(uint32_t note_bytes);
uint32_t format_put_place(const struct slot *s, const struct message_place *p);
uint64_t format_move_bytes(uint64_t header_bytes, uint32_t note_bytes);
uint32_t format_put_move(const struct slot *s, const struct message_move *m);
uint64_t format_placed_row_bytes(const struct place_state *state);
/* `rows_bytes`: of all places and all pending work. */
uint64_t format_relocated_placed_bytes(uint64_t chunk_count, uint64_t rows_bytes);
/* As format_put_relocated; state n belongs to row n. Of a note's state only the note counts. */
uint32_t format_put_relocated_placed(const struct slot *s, const struct message_relocated *m,
                                     const struct chunk_row *chunks, const struct place_row *places,
                                     const struct place_state *place_states, const struct pending_row *pending,
                                     const struct place_state *pending_states);
uint64_t format_place_states_bytes(uint64_t row_count);
uint32_t format_put_place_states(const struct slot *s, const struct state_row *rows, uint32_t row_count);
/* A record with an encoder elsewhere, such as another client's: the body, padded to a multiple of 8. */
uint64_t format_body_record_bytes(uint64_t body_bytes);
uint32_t format_put_body(const struct slot *s, uint16_t type, const void *body, uint32_t body_bytes);
uint32_t format_put_queue_delete(const struct slot *s, uint32_t queue_id);
uint32_t format_members_bytes(uint32_t config_bytes);
uint32_t format_put_members(const struct slot *s, const struct members *m);
uint64_t format_catalog_row_bytes(uint32_t bytes);
uint64_t format_catalog_change_bytes(uint64_t rows_bytes); /* of the record */
/* `rows` is what format_put_catalog_row wrote, a multiple of 8 bytes. */
uint32_t format_put_catalog_change(const struct slot *s, uint32_t part, uint32_t row_count, const void *rows,
                                   uint32_t rows_bytes);
uint32_t format_put_catalog_row(uint8_t *into, const struct catalog_row *row);
uint32_t format_put_footer(const struct slot *s, const struct footer *f);
uint32_t format_put_batch(const struct slot *s, const struct batch *b);

/* One record at `from`, which should be the one with this LSN; on FORMAT_OK its checksums are right, its header
   keeps the rules of its type, and the type is known or to be skipped. The functions below check its body. */
enum format_result format_get_record(const uint8_t *from, size_t available, uint64_t seed, uint64_t lsn,
                                     struct record *r);
/* The same for a reader that also knows these streams: their records keep the rules of the header, whatever the type. */
enum format_result format_get_known_record(const uint8_t *from, size_t available, uint64_t seed, uint64_t lsn,
                                           const struct stream_set *known, struct record *r);
/* Reads the header alone, and checks the header check and the LSN: enough to step over the record, but its body is
   unverified. */
enum format_result format_get_header(const uint8_t *from, size_t available, uint64_t seed, uint64_t lsn,
                                     struct record *r);
/* The header of a record that format_get_record found valid before; checks nothing. */
void format_read_verified(const uint8_t *from, struct record *r);
enum format_result format_get_batch(const struct record *r, struct batch *b);
enum format_result format_get_start(const struct record *r, struct message_start *m);
enum format_result format_get_chunk(const struct record *r, struct message_chunk *m);
enum format_result format_get_enqueue(const struct record *r, struct message_enqueue *m);
enum format_result format_get_dequeue(const struct record *r, struct message_dequeue *m);
enum format_result format_get_relocated(const struct record *r, struct message_relocated *m);
/* A MESSAGE_START_PLACED; what they point to lies in the record. */
enum format_result format_get_start_placed(const struct record *r, struct message_start *m, struct place_state *state);
enum format_result format_get_either_start(const struct record *r, struct message_start *m); /* without a state */
enum format_result format_get_place(const struct record *r, struct message_place *p);
enum format_result format_get_move(const struct record *r, struct message_move *m);
/* A MESSAGE_RELOCATED_PLACED: its places and pending work are read with format_placed_place and format_placed_pending. */
enum format_result format_get_relocated_placed(const struct record *r, struct message_relocated *m);
enum format_result format_get_place_states(const struct record *r, struct place_states *p);
enum format_result format_get_xid(const struct record *r, struct xid *x);
enum format_result format_get_tx_relocated(const struct record *r, struct tx_relocated *t);
enum format_result format_get_queue_delete(const struct record *r, uint32_t *queue_id);
enum format_result format_get_footer(const struct record *r, struct footer *f);
enum format_result format_get_members(const struct record *r, struct members *m);
enum format_result format_get_catalog_change(const struct record *r, struct catalog_change *c);
/* Whether these bytes are so many rows, and nothing else. */
bool format_are_catalog_rows(const uint8_t *rows, uint64_t bytes, uint32_t row_count);
/* The row at *at, in a change that format_get_catalog_change found valid; *at moves behind it. */
struct catalog_row format_catalog_row(const uint8_t **at);
uint32_t format_queue_id(const uint8_t *queues, uint32_t index);
/* Queue ids in rows: those of a list, or of a state's places or pending work. */
struct queue_rows {
    const uint8_t *first; /* the id in the first row; NULL: there is no such list */
    uint32_t count;
    uint32_t row_bytes; /* 0: the rows are those of a MESSAGE_RELOCATED_PLACED, which differ in length */
};
struct queue_rows format_list_queues(const uint8_t *queues, uint32_t count);
struct queue_rows format_place_queues(const struct message_relocated *m);
struct queue_rows format_pending_queues(const struct message_relocated *m);
/* The places or the pending work of a MESSAGE_RELOCATED_PLACED. */
struct queue_rows format_placed_queues(const uint8_t *rows, uint32_t count);
struct queue_rows format_state_queues(const struct place_states *p);
/* The id in the row behind the one whose id stands at `at`. */
const uint8_t *format_next_queue(const struct queue_rows *rows, const uint8_t *at);
struct chunk_row format_chunk_row(const uint8_t *chunks, uint32_t index);
struct place_row format_place_row(const uint8_t *places, uint32_t index);
struct pending_row format_pending_row(const uint8_t *pending, uint32_t index);
/* The row at *at, in a record that was found valid; *at moves behind it. */
struct place_row format_placed_place(const uint8_t **at, struct place_state *state);
struct pending_row format_placed_pending(const uint8_t **at, struct place_state *state);
struct state_row format_state_row(const uint8_t *rows, uint32_t index);

/* The checksum that stands in a record's header. */
uint64_t format_record_checksum(const uint8_t header[RECORD_HEADER_BYTES]);
/* Whether the bytes look like the batch record of this LSN, and its epoch; the checksum is not verified. */
bool format_peek_batch(const uint8_t *from, size_t available, uint64_t lsn, uint64_t *epoch);
/* Finds the next such place from *at on, in bytes that begin at lsn. False: there is none, and *at says where to
   continue. */
bool format_find_batch(const uint8_t *from, size_t bytes, uint64_t lsn, size_t *at, uint64_t *epoch);
/* Whether a record's header has this LSN; nothing else is checked. */
bool format_names_place(const uint8_t header[RECORD_HEADER_BYTES], uint64_t lsn);
/* Whether a record was once written here, although some bits may have changed since: its LSN is right, or its header
   check is right after the LSN is corrected. */
bool format_stood_here(const uint8_t header[RECORD_HEADER_BYTES], uint64_t seed, uint64_t lsn);

#endif
