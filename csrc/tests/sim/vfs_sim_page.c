/*
 * The simulator's pages: reading, zeroing and patching of layers, and applying the fate of a unit.
 *
 * Must never garble a byte that a write does not change, nor touch a layer it was not given. A page first gets a blob of
 * its own, which cannot be observed and may fail, and is changed only then.
 */
#include "tests/sim/vfs_sim_disk.h"

#undef NDEBUG /* assertions stay on in release */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/vfs_sim.h"

/* ---- pages ---- */

static bool same_layers(const sim_page *page, unsigned layers, unsigned *first) {
    *first = SIM_LAYERS;
    for (unsigned i = 0; i < SIM_LAYERS; i++) {
        if (!(layers & 1u << i))
            continue;
        if (*first == SIM_LAYERS)
            *first = i;
        else if (page->layer[i] != page->layer[*first])
            return false;
    }
    return true;
}

void sim_page_set(sim_page *page, unsigned layers, sim_blob *blob) {
    for (unsigned i = 0; i < SIM_LAYERS; i++) {
        if (layers & 1u << i)
            page->layer[i] = blob;
    }
}

static size_t holders(unsigned layers) { return (size_t)__builtin_popcount(layers); }

/* Gives the page of these layers, which share one blob, a blob of its own. */
int sim_page_own(sim_page *page, unsigned layers) {
    unsigned first;
    bool same = same_layers(page, layers, &first);
    sim_blob *old, *copy;

    assert(same && first < SIM_LAYERS);
    old = page->layer[first];
    if (old != NULL && atomic_load_explicit(&old->refs, memory_order_acquire) == holders(layers)) {
        atomic_store_explicit(&old->hash, 0, memory_order_relaxed);
        return 0;
    }
    copy = sim_blob_new(SIM_PAGE, old != NULL ? old->data : NULL, holders(layers));
    if (copy == NULL)
        return -ENOMEM;
    sim_page_set(page, layers, copy);
    sim_blob_drop(old, holders(layers));
    return 0;
}

void sim_page_empty(sim_page *page, unsigned layers) {
    for (unsigned i = 0; i < SIM_LAYERS; i++) {
        if (layers & 1u << i) {
            sim_blob_drop(page->layer[i], 1);
            page->layer[i] = NULL;
        }
    }
}

void sim_page_allocated(sim_node *n, sim_page *page, bool allocated) {
    if (page->allocated != allocated) {
        page->allocated = allocated;
        n->allocated += allocated ? 1 : (uint64_t)-1;
    }
}

int sim_node_pages(sim_node *n, size_t count) {
    sim_page *pages;

    if (count <= n->page_count)
        return 0;
    pages = realloc(n->pages, count * sizeof *pages);
    if (pages == NULL)
        return -ENOMEM;
    memset(pages + n->page_count, 0, (count - n->page_count) * sizeof *pages);
    n->pages = pages;
    n->page_count = count;
    return 0;
}

void sim_read(const sim_node *n, int layer, void *into, size_t bytes, uint64_t at) {
    unsigned char *next = into;

    while (bytes > 0) {
        size_t index = (size_t)(at / SIM_PAGE);
        size_t from = (size_t)(at % SIM_PAGE);
        size_t part = SIM_PAGE - from < bytes ? SIM_PAGE - from : bytes;
        const sim_blob *page = index < n->page_count ? n->pages[index].layer[layer] : NULL;

        if (page != NULL)
            memcpy(next, page->data + from, part);
        else
            memset(next, 0, part);
        next += part;
        at += part;
        bytes -= part;
    }
}

int sim_clip(sim_node *n, unsigned layers, uint64_t size) {
    size_t index = (size_t)(size / SIM_PAGE);
    size_t keep = (size_t)(size % SIM_PAGE);

    if (keep != 0 && index < n->page_count) {
        sim_page *page = &n->pages[index];
        unsigned first;
        unsigned one = same_layers(page, layers, &first) ? layers : 0; /* 0: each on its own */

        for (unsigned i = 0; i < SIM_LAYERS; i++) {
            unsigned bits = one != 0 ? one : 1u << i;

            if (layers & 1u << i && page->layer[i] != NULL && sim_page_own(page, bits) != 0)
                return -ENOMEM;
        }
        for (unsigned i = 0; i < SIM_LAYERS; i++) {
            if (layers & 1u << i && page->layer[i] != NULL)
                memset(page->layer[i]->data + keep, 0, SIM_PAGE - keep);
        }
        index++;
    }
    for (; index < n->page_count; index++) {
        sim_page_empty(&n->pages[index], layers);
        if (layers & SIM_CACHE_BIT)
            sim_page_allocated(n, &n->pages[index], false);
    }
    return 0;
}

/* ---- changes that may be lost ---- */

void sim_drop_changes(sim_disk *d, uint64_t id) {
    size_t kept = 0;

    for (size_t i = 0; i < d->change_count; i++) {
        if (d->changes[i].node == id)
            sim_blob_drop(d->changes[i].data, 1);
        else
            d->changes[kept++] = d->changes[i];
    }
    d->change_count = kept;
}

uint64_t sim_change_units(const sim_change *c) {
    if (c->kind != SIM_WRITE)
        return 1;
    return (c->at + c->bytes - 1) / SIM_SECTOR - c->at / SIM_SECTOR + 1;
}

void sim_change_unit(const sim_change *c, uint64_t unit, uint64_t *from, uint64_t *to) {
    uint64_t sector = c->at / SIM_SECTOR + unit;
    uint64_t end = c->at + c->bytes;

    assert(c->kind == SIM_WRITE);
    *from = unit == 0 ? c->at : sector * SIM_SECTOR;
    *to = (sector + 1) * SIM_SECTOR < end ? (sector + 1) * SIM_SECTOR : end;
}

/* Garbage and zeros go only where the write changes something: powersafe overwrite. */
static void spoil(unsigned char *into, const unsigned char *from, size_t bytes, int fate, uint64_t seed) {
    for (size_t i = 0; i < bytes; i++) {
        if (into[i] != from[i])
            into[i] = fate == VFS_SIM_ZERO ? 0 : (unsigned char)sim_random(&seed);
    }
}

/*
 * One bit of what the write changes. Not in a file's format_version, which is judged before its checksum: a larger one is refused as
 * newer, also where a crash made it so.
 */
static void flip(unsigned char *into, const unsigned char *from, size_t at, size_t bytes, uint64_t seed) {
    enum { VERSION_AT = 8, VERSION_END = 12 };
    size_t changed = 0, which;

    for (size_t i = 0; i < bytes; i++)
        changed += into[i] != from[i] && (at + i < VERSION_AT || at + i >= VERSION_END);
    which = changed > 0 ? (size_t)(sim_mix(seed) % changed) : SIZE_MAX;
    for (size_t i = 0; i < bytes; i++) {
        bool counts = into[i] != from[i] && (at + i < VERSION_AT || at + i >= VERSION_END);

        into[i] = from[i];
        if (counts && which-- == 0)
            into[i] ^= (unsigned char)(1u << sim_mix(seed + 1) % 8);
    }
}

static int apply_sector(sim_node *n, unsigned layers, const sim_change *c, uint64_t unit, int fate, uint64_t seed,
                        uint64_t barrier) {
    uint64_t from, to;
    unsigned char *into;
    const unsigned char *data;
    sim_page *page;
    unsigned first;

    sim_change_unit(c, unit, &from, &to);
    to = to < barrier ? to : barrier;
    if (fate == VFS_SIM_LOST || from >= to)
        return 0;
    page = &n->pages[from / SIM_PAGE]; /* a write made room for its pages */
    data = c->data->data + c->skip + (from - c->at);
    (void)same_layers(page, layers, &first);
    if (page->layer[first] != NULL &&
        memcmp(page->layer[first]->data + from % SIM_PAGE, data, (size_t)(to - from)) == 0)
        return 0; /* the write changes nothing here, so its fate does not matter */
    if (sim_page_own(page, layers) != 0)
        return -ENOMEM;
    (void)same_layers(page, layers, &first);
    into = page->layer[first]->data + from % SIM_PAGE;
    if (fate == VFS_SIM_KEPT)
        memcpy(into, data, (size_t)(to - from));
    else if (fate == VFS_SIM_FLIPPED)
        flip(into, data, (size_t)(from % SIM_PAGE), (size_t)(to - from), seed);
    else
        spoil(into, data, (size_t)(to - from), fate, seed);
    return 0;
}

int sim_apply(sim_node *n, unsigned layers, const sim_change *c, uint64_t unit, int fate, uint64_t seed, uint64_t *size,
              uint64_t *barrier) {
    if (c->kind == SIM_WRITE)
        return apply_sector(n, layers, c, unit, fate, seed, *barrier);
    if (c->kind == SIM_GROW) {
        uint64_t sectors = c->at > *size ? (c->at - *size) / SIM_SECTOR : 0;

        if (fate == VFS_SIM_LOST || c->at <= *size || *barrier != UINT64_MAX)
            return 0;
        *size = fate == VFS_SIM_GARBAGE ? *size + sim_mix(seed) % (sectors + 1) * SIM_SECTOR : c->at;
        return 0;
    }
    if (fate == VFS_SIM_LOST || *barrier != UINT64_MAX) {
        *barrier = c->at < *barrier ? c->at : *barrier;
        return 0;
    }
    *size = c->at;
    return sim_clip(n, layers, c->at);
}
