/*
 * The simulator's disk as a whole: shared bytes, the sorted array of files and directories, copies, and the hash.
 *
 * Two disks share only blobs, whose reference counts are atomic, because other threads use the copies. vfs_sim_disk.h
 * has the invariants.
 */
#include "tests/sim/vfs_sim_disk.h"

#undef NDEBUG /* assertions stay on in release */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/vfs_sim.h"

static const uint64_t FIRST_US = UINT64_C(1700000000000000); /* the simulated world begins in November 2023 */

/* ---- small tools ---- */

/* The finalizer of splitmix64, from its published constants: every bit of x reaches every bit of the result. */
uint64_t sim_mix(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint64_t sim_random(uint64_t *state) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return sim_mix(*state);
}

void sim_fill(uint64_t *state, unsigned char *into, size_t bytes) {
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = sim_random(state);

        if (into != NULL)
            memcpy(into + at, &word, bytes - at < sizeof word ? bytes - at : sizeof word);
    }
}

int sim_reserve(void *array, size_t *room, size_t count, size_t more, size_t item_bytes) {
    void *items;
    size_t want;

    if (more <= *room - count && *room >= count)
        return 0;
    want = *room * 2 > count + more ? *room * 2 : count + more + 8;
    if (want > SIZE_MAX / item_bytes)
        return -ENOMEM;
    memcpy(&items, array, sizeof items); /* `array` is the address of a pointer of any type */
    items = realloc(items, want * item_bytes);
    if (items == NULL)
        return -ENOMEM;
    memcpy(array, &items, sizeof items);
    *room = want;
    return 0;
}

sim_blob *sim_blob_new(size_t bytes, const void *data, size_t refs) {
    sim_blob *blob;

    if (bytes > SIZE_MAX - sizeof *blob)
        return NULL;
    blob = malloc(sizeof *blob + bytes);
    if (blob == NULL)
        return NULL;
    atomic_init(&blob->refs, refs);
    atomic_init(&blob->hash, 0);
    blob->bytes = bytes;
    if (data != NULL)
        memcpy(blob->data, data, bytes);
    else
        memset(blob->data, 0, bytes);
    return blob;
}

sim_blob *sim_name_new(const char *name) { return sim_blob_new(strlen(name) + 1, name, 1); }

sim_blob *sim_blob_take(sim_blob *blob, size_t refs) {
    if (blob != NULL)
        (void)atomic_fetch_add_explicit(&blob->refs, refs, memory_order_relaxed);
    return blob;
}

void sim_blob_drop(sim_blob *blob, size_t refs) {
    size_t before;

    if (blob == NULL)
        return;
    before = atomic_fetch_sub_explicit(&blob->refs, refs, memory_order_acq_rel);
    assert(before >= refs);
    if (before == refs)
        free(blob);
}

/* Four lanes, so that the multiplications overlap: this runs over every page of every crash state. */
static uint64_t bytes_hash(const unsigned char *data, size_t bytes) {
    uint64_t lane[4] = {bytes, 2, 3, 4};
    size_t at = 0;

    for (; at + sizeof lane <= bytes; at += sizeof lane) {
        uint64_t word[4];

        memcpy(word, data + at, sizeof word);
        for (int i = 0; i < 4; i++) {
            lane[i] = (lane[i] ^ word[i]) * UINT64_C(0x9fb21c651e98df25);
            lane[i] ^= lane[i] >> 29;
        }
    }
    for (; at < bytes; at++)
        lane[at % 4] = sim_mix(lane[at % 4] ^ data[at]) + 1;
    return sim_mix(lane[0] + sim_mix(lane[1] + sim_mix(lane[2] + sim_mix(lane[3] + 1)))) | 1;
}

static uint64_t blob_hash(sim_blob *blob) {
    uint64_t hash = atomic_load_explicit(&blob->hash, memory_order_relaxed);

    if (hash == 0) {
        hash = bytes_hash(blob->data, blob->bytes);
        atomic_store_explicit(&blob->hash, hash, memory_order_relaxed);
    }
    return hash;
}

/* ---- nodes ---- */

sim_node *sim_find(const sim_disk *d, uint64_t id) {
    size_t low = 0;
    size_t high = d->node_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (d->nodes[middle]->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < d->node_count && d->nodes[low]->id == id ? d->nodes[low] : NULL;
}

sim_node *sim_node_new(sim_disk *d, uint64_t id, bool is_dir) {
    sim_node *n;

    assert(d->node_count == 0 || d->nodes[d->node_count - 1]->id < id);
    if (sim_reserve(&d->nodes, &d->node_room, d->node_count, 1, sizeof(sim_node *)) != 0)
        return NULL;
    n = calloc(1, sizeof *n);
    if (n == NULL)
        return NULL;
    n->id = id;
    n->is_dir = is_dir;
    n->barrier = UINT64_MAX;
    d->nodes[d->node_count++] = n;
    return n;
}

static void node_free(sim_node *n) {
    for (size_t i = 0; i < n->page_count; i++)
        sim_page_empty(&n->pages[i], SIM_ALL_BITS);
    free(n->pages);
    sim_names_free(&n->now);
    sim_names_free(&n->durable);
    free(n);
}

void sim_collect(sim_disk *d, uint64_t id) {
    sim_node *n = sim_find(d, id);

    if (n == NULL || n->is_dir || n->links != 0 || n->handles != 0)
        return;
    sim_drop_changes(d, id);
    for (size_t i = 0; i < d->node_count; i++) {
        if (d->nodes[i] == n) {
            memmove(&d->nodes[i], &d->nodes[i + 1], (d->node_count - i - 1) * sizeof(sim_node *));
            break;
        }
    }
    d->node_count--;
    node_free(n);
}

/* ---- disks ---- */

int sim_disk_init(sim_disk *d) {
    memset(d, 0, sizeof *d);
    d->next_id = SIM_ROOT + 1;
    d->now_us = FIRST_US;
    return sim_node_new(d, SIM_ROOT, true) != NULL ? 0 : -ENOMEM;
}

void sim_disk_free(sim_disk *d) {
    for (size_t i = 0; i < d->node_count; i++)
        node_free(d->nodes[i]);
    for (size_t i = 0; i < d->change_count; i++)
        sim_blob_drop(d->changes[i].data, 1);
    for (size_t i = 0; i < d->dir_change_count; i++) {
        sim_blob_drop(d->dir_changes[i].name, 1);
        sim_blob_drop(d->dir_changes[i].to, 1);
    }
    free(d->nodes);
    free(d->changes);
    free(d->dir_changes);
    memset(d, 0, sizeof *d);
}

static int node_clone(sim_disk *d, const sim_node *from) {
    sim_node *n = sim_node_new(d, from->id, from->is_dir);
    int result = n != NULL ? sim_node_pages(n, from->page_count) : -ENOMEM;

    if (result == 0)
        result = sim_names_copy(&n->now, &from->now);
    if (result == 0)
        result = sim_names_copy(&n->durable, &from->durable);
    if (result != 0)
        return result;
    n->names = from->names;
    n->links = from->links;
    n->size = from->size;
    n->stable_size = from->stable_size;
    n->allocated = from->allocated;
    n->error = from->error;
    n->error_seq = from->error_seq;
    for (size_t i = 0; i < from->page_count; i++) {
        const sim_page *page = &from->pages[i];
        sim_blob *seen = page->layer[VFS_SIM_SEEN];

        n->pages[i] = *page;
        if (seen == page->layer[VFS_SIM_DEVICE] && seen == page->layer[VFS_SIM_STABLE]) {
            (void)sim_blob_take(seen, SIM_LAYERS);
        } else {
            for (int k = 0; k < SIM_LAYERS; k++)
                (void)sim_blob_take(page->layer[k], 1);
        }
    }
    return 0;
}

int sim_disk_clone(sim_disk *d, const sim_disk *from) {
    int result = 0;

    memset(d, 0, sizeof *d);
    d->next_id = from->next_id;
    d->random = from->random;
    d->now_us = from->now_us;
    d->monotonic_us = from->monotonic_us;
    d->generation = from->generation;
    for (size_t i = 0; result == 0 && i < from->node_count; i++) {
        if (from->nodes[i]->is_dir || from->nodes[i]->links != 0)
            result = node_clone(d, from->nodes[i]);
    }
    if (result == 0)
        result = sim_reserve(&d->changes, &d->change_room, 0, from->change_count, sizeof *d->changes);
    if (result == 0)
        result = sim_reserve(&d->dir_changes, &d->dir_change_room, 0, from->dir_change_count, sizeof *d->dir_changes);
    if (result != 0) {
        sim_disk_free(d);
        return result;
    }
    for (size_t i = 0; i < from->change_count; i++) {
        if (sim_find(d, from->changes[i].node) == NULL) /* of an open file without a name */
            continue;
        d->changes[d->change_count] = from->changes[i];
        (void)sim_blob_take(d->changes[d->change_count++].data, 1);
    }
    for (size_t i = 0; i < from->dir_change_count; i++) {
        d->dir_changes[i] = from->dir_changes[i];
        (void)sim_blob_take(d->dir_changes[i].name, 1);
        (void)sim_blob_take(d->dir_changes[i].to, 1);
    }
    d->dir_change_count = from->dir_change_count;
    return 0;
}

uint64_t sim_disk_used(const sim_disk *d) {
    uint64_t pages = 0;

    for (size_t i = 0; i < d->node_count; i++) {
        if (d->nodes[i]->names != 0 || d->nodes[i]->handles != 0)
            pages += d->nodes[i]->allocated;
    }
    return pages;
}

static uint64_t file_hash(const sim_node *n) {
    static const unsigned char zero_page[SIM_PAGE]; /* a page of zeros counts as no page */
    static _Atomic uint64_t zero_hash;
    uint64_t zeros = atomic_load_explicit(&zero_hash, memory_order_relaxed);
    uint64_t hash = sim_mix(n->size + 1);

    if (zeros == 0) {
        zeros = bytes_hash(zero_page, sizeof zero_page);
        atomic_store_explicit(&zero_hash, zeros, memory_order_relaxed);
    }
    for (size_t i = 0; i < n->page_count; i++) {
        sim_blob *page = n->pages[i].layer[VFS_SIM_DEVICE];

        if (page != NULL && blob_hash(page) != zeros)
            hash = sim_mix(hash ^ (blob_hash(page) + i * 2));
    }
    return hash;
}

static uint64_t node_hash(const sim_disk *d, uint64_t id) {
    const sim_node *n = sim_find(d, id);
    uint64_t hash = 0;

    assert(n != NULL);
    if (!n->is_dir)
        return file_hash(n);
    for (size_t i = 0; i < n->now.count; i++) /* a sum, so that the order of entries does not matter */
        hash += sim_mix(blob_hash(n->now.entries[i].name) ^ sim_mix(node_hash(d, n->now.entries[i].id)));
    return sim_mix(hash ^ n->now.count);
}

uint64_t sim_disk_hash(const sim_disk *d) { return node_hash(d, SIM_ROOT); }
