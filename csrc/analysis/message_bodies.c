/*
 * The first bytes of messages' contents. A pass keeps only where they are: in the start record and in chunks; of a message that
 * began before the pass, in the bodies of the pass that it resumes. They are read when the row is put.
 *
 * A message that began before the first pass has its body from a relocation, if the records that this names are in the log
 * that the reader has: a hold's, or all of it.
 *
 * A body is whole or null. See message_rows.h.
 */
#include <stdlib.h>

#include "analysis/message_rows.h"
#include "format/bytes.h"
#include "os/array.h"
#include "os/error.h"
#include "os/io.h"
#include "read/damage.h"

#define BODY_BYTES_MAX ((uint64_t)1 << 30) /* of one row: a column holds twice as much */

enum {
    BODY_CHUNKS_MAX = 1 << 20, /* of one body; one that has more is null */
    CHUNK_BYTES = 16,          /* in a rest: LSN, offset */
};

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- where they are ---- */

void body_forget(struct life_content *content) {
    free(content->chunks);
    *content = (struct life_content){.where = CONTENT_UNKNOWN};
}

void body_begins(pass *p, uint32_t number, uint64_t lsn, uint64_t content_bytes) {
    if (p->body_bytes > 0) {
        struct life_content *content = life_content(p, number);
        content->where = CONTENT_LOGGED;
        content->at = lsn;
        content->first_bytes = (uint32_t)least(content_bytes, p->body_bytes);
    }
}

void body_moved(pass *p, uint32_t number, uint64_t start_lsn, uint64_t content_bytes) {
    struct life_content *moved = &p->moving.content;
    bool there = lookback_has(p->look, start_lsn);
    for (uint32_t i = 0; there && i < moved->chunk_count; i++) {
        there = lookback_has(p->look, moved->chunks[i].lsn);
    }
    if (there) {
        body_forget(life_content(p, number));
        *life_content(p, number) = *moved;
        *moved = (struct life_content){.where = CONTENT_UNKNOWN};
        body_begins(p, number, start_lsn, content_bytes);
    }
}

int body_goes_on(pass *p, struct life_content *content, uint64_t lsn, uint64_t offset, uint64_t bytes) {
    while (content->chunk_count > 0 && content->chunks[content->chunk_count - 1].offset >= offset) {
        content->chunk_count--;
    }
    if (bytes == 0) {
        content->first_bytes = (uint32_t)least(content->first_bytes, offset);
    } else if (offset < p->body_bytes && content->chunk_count < BODY_CHUNKS_MAX) {
        if (!array_grow(&content->chunks, &content->chunk_capacity, content->chunk_count, 1)) {
            return fail_memory();
        }
        content->chunks[content->chunk_count++] = (struct life_chunk){.lsn = lsn, .offset = offset};
    }
    return LS_OK;
}

int ls_message_rows_bodies(ls_message_rows *rows, uint64_t body_bytes, int file) {
    if (body_bytes == 0 || body_bytes > BODY_BYTES_MAX) {
        return fail(LS_OPTION, "a body has 1 to %llu bytes, not %llu", (unsigned long long)BODY_BYTES_MAX,
                    (unsigned long long)body_bytes);
    }
    if (rows->began || rows->slab_count > 0 || rows->moving.id != 0) {
        return fail(LS_WRONG_STATE, "bodies are asked for before anything else is given to a pass");
    }
    rows->body_bytes = body_bytes;
    rows->body_file = file;
    return LS_OK;
}

int ls_message_rows_seed_bodies(ls_message_rows *rows, const int64_t *ids, const uint64_t *starts,
                                const uint64_t *sizes, size_t n) {
    if (rows->failure != LS_OK) {
        return fail_again(&rows->error);
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t number;
        bool possible = rows->body_bytes > 0 && rows->body_file >= 0 && ids[i] > 0 && starts[i] <= INT64_MAX &&
                        sizes[i] <= INT64_MAX - starts[i];
        if (!possible || lives_find(rows, (uint64_t)ids[i], &number) == NULL) {
            return pass_keep_failure(
                rows,
                fail(LS_OPTION,
                     "the body of message %lld is that of no open message: use the open set that the last run left",
                     (long long)ids[i]));
        }
        struct life_content *content = life_content(rows, number);
        content->where = CONTENT_SEEDED;
        content->at = starts[i];
        content->first_bytes = (uint32_t)least(sizes[i], rows->body_bytes);
    }
    return LS_OK;
}

int bodies_begin(pass *p, ls_reader *reader) {
    if (p->body_bytes > 0 && p->look == NULL) {
        p->look = lookback_new(reader, 0);
        p->system = reader->v;
        return p->look != NULL ? LS_OK : fail_memory();
    }
    return LS_OK;
}

/* ---- reading them ---- */

uint64_t body_bytes_most(const pass *p, uint32_t number) {
    return least(life_at(p, number)->content_bytes, p->body_bytes);
}

/* A body that is being read: the first `done` of the `wanted` bytes are there. */
struct body {
    uint8_t *into;
    uint64_t wanted;
    uint64_t done;
};

static int read_seeded(const pass *p, const struct life_content *content, struct body *b) {
    uint64_t wanted = least(content->first_bytes, b->wanted);
    int64_t got = wanted > 0 ? io_read(p->system, p->body_file, b->into, (size_t)wanted, content->at) : 0;
    if (got < 0) {
        return fail_errno(LS_IO, (int)-got, "a body that the last run left cannot be read");
    }
    b->done = (uint64_t)got;
    return (uint64_t)got == wanted ? LS_OK
                                   : fail(LS_IO, "the file with the bodies that the last run left was cut short");
}

/* The content of one record, which goes on at this offset of what is there. */
static int read_logged(const pass *p, uint64_t id, uint64_t lsn, uint64_t offset, uint64_t bytes_max, struct body *b) {
    struct content_found found;
    int rc = lookback_content(p->look, id, lsn, &found);
    if (rc != LS_OK || found.offset != offset) {
        return rc != LS_OK ? rc : LS_END;
    }
    uint64_t taken = least(least(found.count, bytes_max), b->wanted - offset);
    if (taken > 0) {
        memcpy(b->into + offset, found.bytes, (size_t)taken);
    }
    b->done = offset + taken;
    return LS_OK;
}

static int read_body(const pass *p, const struct life *l, const struct life_content *content, struct body *b) {
    int rc = LS_OK;
    switch (content->where) {
    case CONTENT_LOGGED:
        rc = content->first_bytes > 0 ? read_logged(p, l->id, content->at, 0, content->first_bytes, b) : LS_OK;
        break;
    case CONTENT_SEEDED:
        rc = read_seeded(p, content, b);
        break;
    default:
        return LS_END;
    }
    for (uint32_t i = 0; rc == LS_OK && i < content->chunk_count && content->chunks[i].offset < b->wanted; i++) {
        const struct life_chunk *chunk = &content->chunks[i];
        rc = chunk->offset <= b->done ? read_logged(p, l->id, chunk->lsn, chunk->offset, UINT32_MAX, b) : LS_END;
    }
    return rc == LS_OK && b->done < b->wanted ? LS_END : rc;
}

int body_put(pass *p, struct column *c, uint32_t number) {
    const struct life_content *content = life_content(p, number);
    uint64_t wanted = content->where != CONTENT_UNKNOWN ? body_bytes_most(p, number) : 0;
    if (!column_has_room_for(c, wanted)) {
        return fail_memory();
    }
    struct body b = {.into = c->values + c->value_bytes, .wanted = wanted};
    int rc = read_body(p, life_at(p, number), content, &b);
    if (rc != LS_OK && rc != LS_END) {
        return rc;
    }
    c->value_bytes += rc == LS_OK ? wanted : 0;
    column_put_none(c, 1);
    if (rc == LS_END) {
        column_make_null(c);
    }
    return LS_OK;
}

/* ---- for the pass that resumes behind this one ---- */

size_t bodies_rest_bytes(const pass *p) { return (size_t)p->moving.content.chunk_count * CHUNK_BYTES; }

void bodies_rest_put(const pass *p, uint8_t *at) {
    const struct life_content *content = &p->moving.content;
    for (uint32_t i = 0; i < content->chunk_count; i++, at += CHUNK_BYTES) {
        put64(at, content->chunks[i].lsn);
        put64(at + 8, content->chunks[i].offset);
    }
}

bool bodies_rest_take(pass *p, const uint8_t *at, size_t bytes, int *rc) {
    bool sound = bytes % CHUNK_BYTES == 0 && bytes / CHUNK_BYTES <= BODY_CHUNKS_MAX;
    uint64_t before = 0;
    for (size_t i = 0; sound && *rc == LS_OK && p->body_bytes > 0 && i < bytes / CHUNK_BYTES; i++, at += CHUNK_BYTES) {
        uint64_t lsn = get64(at), offset = get64(at + 8);
        sound = lsn > 0 && lsn < p->start_lsn && offset <= CONTENT_BYTES_MAX && (i == 0 || offset > before);
        before = offset;
        *rc = sound ? body_goes_on(p, &p->moving.content, lsn, offset, 1) : *rc;
    }
    return sound;
}
