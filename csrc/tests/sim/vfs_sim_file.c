/*
 * The simulator's files: writing, resizing and syncing them.
 *
 * Must never make a byte stable without a sync, nor lose one after a sync. Each function first allocates all the memory
 * it needs and then changes the file, so that a failed malloc changes nothing.
 */
#include "tests/sim/vfs_sim_disk.h"

#undef NDEBUG /* assertions stay on in release */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/vfs_sim.h"

static const uint64_t FILE_BYTES_MAX = (uint64_t)1 << 34; /* the page array is dense */

/* The layers that share the page's blob: cache and device, unless they differ. */
static unsigned written_together(const sim_page *page) {
    return page->layer[VFS_SIM_SEEN] == page->layer[VFS_SIM_DEVICE] ? SIM_WRITTEN_BITS : SIM_CACHE_BIT;
}

static void push_change(sim_disk *d, int kind, const sim_node *n, uint64_t at, uint64_t bytes, sim_blob *data) {
    assert(d->change_count < d->change_room); /* the caller reserved it */
    d->changes[d->change_count++] = (sim_change){kind, n->id, at, bytes, sim_blob_take(data, 1), 0};
    d->generation++;
}

/* No unsynced change touches these bytes, so every power cut leaves them as they are. */
static bool is_settled(const sim_disk *d, const sim_node *n, uint64_t at, uint64_t bytes) {
    if (at + bytes > n->stable_size)
        return false;
    for (size_t i = 0; i < d->change_count; i++) {
        const sim_change *c = &d->changes[i];

        if (c->node == n->id && (c->kind != SIM_WRITE || (c->at < at + bytes && at < c->at + c->bytes)))
            return false;
    }
    for (uint64_t page = at / SIM_PAGE; page <= (at + bytes - 1) / SIM_PAGE; page++) {
        if (n->pages[page].layer[VFS_SIM_SEEN] != n->pages[page].layer[VFS_SIM_DEVICE])
            return false;
    }
    return true;
}

static bool is_stable(const sim_node *n, const sim_change *c, uint64_t unit) {
    unsigned char there[SIM_SECTOR];
    uint64_t from, to;

    sim_change_unit(c, unit, &from, &to);
    sim_read(n, VFS_SIM_STABLE, there, (size_t)(to - from), from);
    return memcmp(there, c->data->data + c->skip + (from - c->at), (size_t)(to - from)) == 0;
}

/*
 * Records a write. Sectors at its ends that rewrite settled bytes are not units, because every fate of them gives the
 * same disk. At least one unit remains.
 */
static void push_write(sim_disk *d, const sim_node *n, uint64_t at, uint64_t bytes, sim_blob *data) {
    bool settled = is_settled(d, n, at, bytes);
    sim_change *c;

    push_change(d, SIM_WRITE, n, at, bytes, data);
    c = &d->changes[d->change_count - 1];
    while (settled && sim_change_units(c) > 1 && is_stable(n, c, 0)) {
        uint64_t from, to;

        sim_change_unit(c, 0, &from, &to);
        c->skip += to - from;
        c->bytes -= to - from;
        c->at = to;
    }
    while (settled && sim_change_units(c) > 1 && is_stable(n, c, sim_change_units(c) - 1)) {
        uint64_t from, to;

        sim_change_unit(c, sim_change_units(c) - 1, &from, &to);
        c->bytes -= to - from;
    }
}

static bool all_zero(const unsigned char *data) { return data[0] == 0 && memcmp(data, data + 1, SIM_PAGE - 1) == 0; }

/* One page's part of a write. */
typedef struct {
    sim_page *page;
    const unsigned char *data;
    size_t from; /* in the page */
    size_t bytes;
} span;

static span span_at(sim_node *n, sim_blob *data, uint64_t bytes, uint64_t at, uint64_t done) {
    span s;
    uint64_t here = at + done;

    s.page = &n->pages[here / SIM_PAGE];
    s.data = data->data + done;
    s.from = (size_t)(here % SIM_PAGE);
    s.bytes = SIM_PAGE - s.from;
    if (s.bytes > bytes - done)
        s.bytes = (size_t)(bytes - done);
    return s;
}

/* A page of zeros needs no blob. */
static bool becomes_null(const span *s) {
    return s->bytes == SIM_PAGE && written_together(s->page) == SIM_WRITTEN_BITS && all_zero(s->data);
}

static int span_own(const span *s, bool direct) {
    int result = 0;
    unsigned together = written_together(s->page);

    if (becomes_null(s))
        return 0;
    result = sim_page_own(s->page, together);
    if (result == 0 && direct && together != SIM_WRITTEN_BITS)
        result = sim_page_own(s->page, SIM_DEVICE_BIT);
    return result;
}

static void span_write(const span *s, bool direct) {
    sim_page *page = s->page;

    if (becomes_null(s)) {
        sim_page_empty(page, SIM_WRITTEN_BITS);
        return;
    }
    memcpy(page->layer[VFS_SIM_SEEN]->data + s->from, s->data, s->bytes);
    if (written_together(page) == SIM_WRITTEN_BITS)
        return;
    if (direct) {
        memcpy(page->layer[VFS_SIM_DEVICE]->data + s->from, s->data, s->bytes);
    } else { /* a phantom page becomes dirty as a whole */
        sim_page_empty(page, SIM_DEVICE_BIT);
        page->layer[VFS_SIM_DEVICE] = sim_blob_take(page->layer[VFS_SIM_SEEN], 1);
    }
}

/* A buffered write into a part of a phantom page also writes the rest of the page, recorded as a write of its own. */
typedef struct {
    sim_blob *copy[2]; /* at the first and at the last page */
    uint64_t at[2];
    int count;
} phantoms;

static int phantoms_prepare(phantoms *p, sim_node *n, sim_blob *data, uint64_t bytes, uint64_t at) {
    for (uint64_t done = 0; done < bytes;) {
        span s = span_at(n, data, bytes, at, done);

        if (written_together(s.page) != SIM_WRITTEN_BITS && s.bytes < SIM_PAGE) {
            assert(p->count < 2);
            p->copy[p->count] = sim_blob_new(SIM_PAGE, NULL, 1);
            if (p->copy[p->count] == NULL)
                return -ENOMEM;
            p->at[p->count++] = (at + done) / SIM_PAGE * SIM_PAGE;
        }
        done += s.bytes;
    }
    return 0;
}

static void phantoms_record(phantoms *p, sim_disk *d, const sim_node *n) {
    for (int i = 0; i < p->count; i++) {
        uint64_t bytes = n->size - p->at[i] < SIM_PAGE ? n->size - p->at[i] : SIM_PAGE;

        sim_read(n, VFS_SIM_SEEN, p->copy[i]->data, SIM_PAGE, p->at[i]);
        push_change(d, SIM_WRITE, n, p->at[i], bytes, p->copy[i]);
    }
}

int sim_write(sim_disk *d, sim_node *n, sim_blob *data, uint64_t bytes, uint64_t at, bool direct) {
    phantoms phantom = {.count = 0};
    int result = 0;

    assert(bytes <= data->bytes);
    if (bytes == 0)
        return 0;
    if (at > FILE_BYTES_MAX || bytes > FILE_BYTES_MAX - at)
        return -EFBIG;
    result = sim_node_pages(n, (size_t)((at + bytes - 1) / SIM_PAGE + 1));
    if (result == 0)
        result = sim_reserve(&d->changes, &d->change_room, d->change_count, 4, sizeof *d->changes);
    if (result == 0 && !direct)
        result = phantoms_prepare(&phantom, n, data, bytes, at);
    for (uint64_t done = 0; result == 0 && done < bytes;) {
        span s = span_at(n, data, bytes, at, done);

        result = span_own(&s, direct);
        done += s.bytes;
    }
    if (result == 0) { /* nothing can fail from here on */
        if (at + bytes > n->size) {
            push_change(d, SIM_GROW, n, at + bytes, 0, NULL);
            n->size = at + bytes;
        }
        push_write(d, n, at, bytes, data);
        for (uint64_t done = 0; done < bytes;) {
            span s = span_at(n, data, bytes, at, done);

            span_write(&s, direct);
            sim_page_allocated(n, s.page, true);
            done += s.bytes;
        }
        phantoms_record(&phantom, d, n);
    }
    for (int i = 0; i < phantom.count; i++)
        sim_blob_drop(phantom.copy[i], 1);
    return result;
}

int sim_truncate(sim_disk *d, sim_node *n, uint64_t size) {
    int kind = size < n->size ? SIM_SHRINK : SIM_GROW;
    int result;

    if (size > FILE_BYTES_MAX)
        return -EFBIG;
    if (size == n->size)
        return 0;
    result = sim_reserve(&d->changes, &d->change_room, d->change_count, 1, sizeof *d->changes);
    if (result == 0 && kind == SIM_SHRINK)
        result = sim_clip(n, SIM_WRITTEN_BITS, size);
    if (result != 0)
        return result;
    push_change(d, kind, n, size, 0, NULL);
    n->size = size;
    return 0;
}

int sim_allocate(sim_disk *d, sim_node *n, uint64_t size) {
    size_t pages = (size_t)((size + SIM_PAGE - 1) / SIM_PAGE);
    int result;

    if (size > FILE_BYTES_MAX)
        return -EFBIG;
    result = sim_node_pages(n, pages);
    if (result == 0 && size > n->size)
        result = sim_truncate(d, n, size);
    for (size_t i = 0; result == 0 && i < pages; i++) {
        d->generation += !n->pages[i].allocated;
        sim_page_allocated(n, &n->pages[i], true);
    }
    return result;
}

uint64_t sim_room_for(const sim_disk *d, const sim_node *n, uint64_t bytes, uint64_t at, uint64_t capacity) {
    uint64_t used = sim_disk_used(d);
    uint64_t left = capacity / SIM_PAGE > used ? capacity / SIM_PAGE - used : 0;

    for (uint64_t done = 0; done < bytes;) {
        uint64_t index = (at + done) / SIM_PAGE;

        if (index >= n->page_count || !n->pages[index].allocated) {
            if (left == 0)
                return done;
            left--;
        }
        done = (index + 1) * SIM_PAGE - at;
    }
    return bytes;
}

/* ---- syncing ---- */

void sim_sync(sim_disk *d, sim_node *n) {
    size_t before;

    for (size_t i = 0; i < n->page_count; i++) {
        sim_page *page = &n->pages[i];

        if (page->layer[VFS_SIM_STABLE] != page->layer[VFS_SIM_DEVICE]) {
            sim_blob_drop(page->layer[VFS_SIM_STABLE], 1);
            page->layer[VFS_SIM_STABLE] = sim_blob_take(page->layer[VFS_SIM_DEVICE], 1);
        }
    }
    n->stable_size = n->size;
    before = d->change_count;
    sim_drop_changes(d, n->id);
    d->generation += d->change_count != before;
}

/* The changes that remain after the failed sync: those of other files, the sizes, and the sectors that reached the disk,
 * each as a write of its own; they are still in the disk's volatile cache. */
static int surviving_changes(const sim_disk *d, uint64_t id, uint64_t survive, sim_change **into, size_t *count) {
    size_t room = 0;
    uint64_t unit = 0;

    for (size_t i = 0; i < d->change_count; i++) {
        const sim_change *c = &d->changes[i];
        bool lossy = c->node == id && c->kind == SIM_WRITE;
        uint64_t units = lossy ? sim_change_units(c) : 1;

        if (sim_reserve(into, &room, *count, (size_t)units, sizeof **into) != 0)
            return -ENOMEM;
        if (!lossy) {
            (*into)[(*count)++] = (sim_change){c->kind, c->node, c->at, c->bytes, sim_blob_take(c->data, 1), c->skip};
            continue;
        }
        for (uint64_t k = 0; k < units; k++, unit++) {
            uint64_t from, to;
            sim_blob *data;

            if (survive == 0 || !(sim_mix(survive ^ sim_mix(unit)) & 1))
                continue;
            sim_change_unit(c, k, &from, &to);
            data = sim_blob_new((size_t)(to - from), c->data->data + c->skip + (from - c->at), 1);
            if (data == NULL)
                return -ENOMEM;
            (*into)[(*count)++] = (sim_change){SIM_WRITE, id, from, to - from, data, 0};
        }
    }
    return 0;
}

/* Rebuilds the device layer after the loss: the stable layer plus the remaining changes. */
static int rebuild_device(const sim_node *n, sim_node *fresh, const sim_change *changes, size_t count) {
    uint64_t size = n->stable_size;
    uint64_t barrier = UINT64_MAX;
    int result = sim_node_pages(fresh, n->page_count);

    for (size_t i = 0; result == 0 && i < n->page_count; i++)
        fresh->pages[i].layer[VFS_SIM_DEVICE] = sim_blob_take(n->pages[i].layer[VFS_SIM_STABLE], 1);
    for (size_t i = 0; i < count; i++) {
        uint64_t units = changes[i].node == n->id ? sim_change_units(&changes[i]) : 0;

        for (uint64_t k = 0; result == 0 && k < units; k++)
            result = sim_apply(fresh, SIM_DEVICE_BIT, &changes[i], k, VFS_SIM_KEPT, 0, &size, &barrier);
    }
    assert(result != 0 || size == n->size);
    return result;
}

int sim_sync_failed(sim_disk *d, sim_node *n, int error, uint64_t survive) {
    sim_node fresh = {.id = n->id};
    sim_change *changes = NULL;
    size_t count = 0;
    int result = surviving_changes(d, n->id, survive, &changes, &count);

    if (result == 0)
        result = rebuild_device(n, &fresh, changes, count);
    if (result == 0) {
        sim_change *old = d->changes;
        size_t old_count = d->change_count;

        for (size_t i = 0; i < n->page_count; i++) {
            sim_blob *device = n->pages[i].layer[VFS_SIM_DEVICE];

            n->pages[i].layer[VFS_SIM_DEVICE] = fresh.pages[i].layer[VFS_SIM_DEVICE];
            fresh.pages[i].layer[VFS_SIM_DEVICE] = device;
        }
        d->changes = changes;
        d->change_count = d->change_room = count;
        changes = old;
        count = old_count;
        n->error = error;
        n->error_seq++;
        d->generation++;
    }
    for (size_t i = 0; i < fresh.page_count; i++)
        sim_page_empty(&fresh.pages[i], SIM_DEVICE_BIT);
    free(fresh.pages);
    for (size_t i = 0; i < count; i++)
        sim_blob_drop(changes[i].data, 1);
    free(changes);
    return result;
}

int sim_replace(sim_disk *d, sim_node *n, const void *from, size_t bytes) {
    size_t pages = (bytes + SIM_PAGE - 1) / SIM_PAGE;
    sim_node fresh = {.id = n->id};
    int result = sim_node_pages(&fresh, pages);

    for (size_t i = 0; result == 0 && i < pages; i++) {
        size_t part = bytes - i * SIM_PAGE < SIM_PAGE ? bytes - i * SIM_PAGE : SIM_PAGE;
        sim_blob *blob = sim_blob_new(SIM_PAGE, NULL, SIM_LAYERS);

        if (blob == NULL) {
            result = -ENOMEM;
            break;
        }
        memcpy(blob->data, (const unsigned char *)from + i * SIM_PAGE, part);
        sim_page_set(&fresh.pages[i], SIM_ALL_BITS, blob);
        fresh.pages[i].allocated = true;
    }
    if (result == 0) {
        sim_page *old = n->pages;
        size_t old_count = n->page_count;

        n->pages = fresh.pages;
        n->page_count = fresh.page_count;
        n->allocated = pages;
        n->size = n->stable_size = bytes;
        sim_drop_changes(d, n->id);
        d->generation++;
        fresh.pages = old;
        fresh.page_count = old_count;
    }
    for (size_t i = 0; i < fresh.page_count; i++)
        sim_page_empty(&fresh.pages[i], SIM_ALL_BITS);
    free(fresh.pages);
    return result;
}
