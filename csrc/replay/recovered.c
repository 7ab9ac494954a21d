/*
 * Names the messages and transactions that recovery ended, for its report. ls_recovery has their counts. See state.h.
 */
#include <stdlib.h>
#include <string.h>

#include "os/array.h"
#include "replay/state.h"

void recovered_note(struct recovered *r, int kind, uint64_t id, uint64_t count, const struct tx *tx) {
    if (r->kept[kind] == LS_RECOVERED_MAX || !array_grow(&r->items, &r->capacity, r->count, 1)) {
        return;
    }
    ls_recovered *made = &r->items[r->count++];
    r->kept[kind]++;
    *made = (ls_recovered){.id = id, .count = count, .kind = kind};
    if (tx != NULL && tx->distributed) {
        made->distributed = 1;
        made->xid.format_id = tx->xid.format_id;
        made->xid.gtrid_bytes = tx->xid.gtrid_bytes;
        made->xid.bqual_bytes = tx->xid.bqual_bytes;
        memcpy(made->xid.data, tx->xid.data, sizeof tx->xid.data);
    }
}

static int by_kind_and_id(const void *a, const void *b) {
    const ls_recovered *x = a, *y = b;
    int by_kind = (x->kind > y->kind) - (x->kind < y->kind);
    return by_kind != 0 ? by_kind : (x->id > y->id) - (x->id < y->id);
}

void recovered_finish(struct recovered *r) {
    if (r->count > 1) {
        qsort(r->items, r->count, sizeof *r->items, by_kind_and_id);
    }
}
