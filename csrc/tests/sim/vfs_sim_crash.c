/*
 * Power cuts: copies of a simulator after a chosen event, in which units that were not durable are lost, kept or garbled
 * as the caller chose.
 *
 * Must never make a disk that the rules at the top of vfs_sim.h exclude, nor depend on anything but the journal and the
 * loss: units are numbered over the whole disk in the order of the calls, whichever directory entries survive, and a fate
 * depends only on its unit's number. In the image of a node all three layers are the same.
 */
#include "tests/sim/vfs_sim_state.h"

#undef NDEBUG /* assertions stay on in release */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- replaying ---- */

static int replay_made(sim_disk *d, const vfs_sim_event *e, const sim_held *held) {
    uint64_t dir = e->dir;
    uint64_t id = 0;
    sim_blob *name = NULL;
    int result = 0;

    if (e->kind == VFS_SIM_MAKE_DIR)
        result = sim_resolve_new(d, e->name, &dir, &name);
    else
        name = sim_blob_take(held->blob[SIM_HELD_NAME], 1);
    if (result == 0)
        result = sim_create(d, sim_find(d, dir), name, e->kind != VFS_SIM_OPEN, &id);
    assert(result != 0 || id == e->file);
    sim_blob_drop(name, 1);
    return result;
}

static int replay_file(sim_disk *d, const vfs_sim_event *e, const sim_held *held) {
    sim_node *n = sim_find(d, e->file);

    if (n == NULL) /* its name was removed while it was open: no path leads to it any more */
        return 0;
    switch (e->kind) {
    case VFS_SIM_PWRITE:
        return sim_write(d, n, held->blob[SIM_HELD_DATA], (uint64_t)e->result, e->offset,
                         (e->flags & VFS_SIM_UNBUFFERED) != 0);
    case VFS_SIM_ALLOCATE:
        return sim_allocate(d, n, e->bytes);
    case VFS_SIM_TRUNCATE:
        return sim_truncate(d, n, e->bytes);
    default:
        if (e->flags & VFS_SIM_INJECTED)
            return sim_sync_failed(d, n, (int)-e->result, e->seed);
        sim_sync(d, n); /* a result below 0 reported an older failure, or that the file has no name */
        return 0;
    }
}

static int replay(sim_disk *d, const vfs_sim_event *e, const sim_held *held) {
    uint64_t id = 0;
    int result;

    d->now_us = e->now_us;
    if (e->kind == VFS_SIM_GETRANDOM && e->result == 0)
        sim_fill(&d->random, NULL, (size_t)e->bytes);
    if (!(e->flags & VFS_SIM_CHANGES))
        return 0;
    switch (e->kind) {
    case VFS_SIM_MAKE_DIR:
    case VFS_SIM_OPEN_SUBDIR:
    case VFS_SIM_OPEN:
        return replay_made(d, e, held);
    case VFS_SIM_SYNC_DIR:
        return sim_sync_dir(d, sim_find(d, e->dir));
    case VFS_SIM_RENAME:
        return sim_rename(d, sim_find(d, e->dir), held->blob[SIM_HELD_NAME], held->blob[SIM_HELD_TO]);
    case VFS_SIM_UNLINK:
        return sim_unlink(d, sim_find(d, e->dir), held->blob[SIM_HELD_NAME]);
    case VFS_SIM_REMOVE_DIR:
        return sim_remove_dir(d, sim_find(d, e->dir), held->blob[SIM_HELD_NAME]);
    case VFS_SIM_PUT:
        result = sim_put(d, e->to, held->blob[SIM_HELD_NAME], e->data, (size_t)e->bytes, &id);
        assert(result != 0 || id == e->file);
        return result;
    default:
        return replay_file(d, e, held);
    }
}

/* The disk after the first k events: one copy that moves forward, and starts again only for a smaller k. */
static sim_disk *disk_at(vfs_sim *s, size_t k) {
    if (k == VFS_SIM_NOW)
        return &s->disk;
    assert(k <= s->event_count);
    if (s->has_cursor && s->cursor_at > k) {
        sim_disk_free(&s->cursor);
        s->has_cursor = false;
    }
    if (!s->has_cursor) {
        assert(s->has_origin || k == 0); /* without recording there are no events */
        if (sim_disk_clone(&s->cursor, s->has_origin ? &s->origin : &s->disk) != 0)
            return NULL;
        s->has_cursor = true;
        s->cursor_at = 0;
    }
    for (; s->cursor_at < k; s->cursor_at++) {
        if (replay(&s->cursor, &s->events[s->cursor_at], &s->held[s->cursor_at]) != 0) {
            sim_disk_free(&s->cursor);
            s->has_cursor = false;
            return NULL;
        }
    }
    return &s->cursor;
}

vfs_sim *vfs_sim_at(const vfs_sim *sim, size_t k) {
    vfs_sim *copy = sim_new_empty();
    vfs_sim *s;
    const sim_disk *d;

    if (copy == NULL)
        return NULL;
    s = sim_lock(sim);
    d = disk_at(s, k);
    if (d == NULL || sim_disk_clone(&copy->disk, d) != 0) {
        vfs_sim_free(copy);
        copy = NULL;
    }
    sim_unlock(s);
    return copy;
}

vfs_sim *vfs_sim_clone(const vfs_sim *sim) { return vfs_sim_at(sim, VFS_SIM_NOW); }

/* ---- what may be lost ---- */

/* From *i on, the next change of a file that may have a name after the cut; NULL after the last. */
static const sim_change *next_change(const sim_disk *d, size_t *i) {
    while (*i < d->change_count) {
        const sim_change *c = &d->changes[(*i)++];
        const sim_node *n = sim_find(d, c->node);

        assert(n != NULL);
        if (n->links != 0)
            return c;
    }
    return NULL;
}

static uint64_t dir_changes_of(const sim_disk *d, uint64_t dir) {
    uint64_t count = 0;

    for (size_t i = 0; i < d->dir_change_count; i++)
        count += d->dir_changes[i].dir == dir;
    return count;
}

int vfs_sim_unsynced(const vfs_sim *sim, size_t k, vfs_sim_choices *choices) {
    vfs_sim *s = sim_lock(sim);
    const sim_disk *d = disk_at(s, k);
    const sim_change *c;
    size_t i = 0;

    *choices = (vfs_sim_choices){0, 0, 1};
    if (d != NULL) {
        while ((c = next_change(d, &i)) != NULL)
            choices->units += sim_change_units(c);
        choices->dir_ops = d->dir_change_count;
        for (size_t n = 0; n < d->node_count; n++) {
            uint64_t ways = d->nodes[n]->is_dir ? dir_changes_of(d, d->nodes[n]->id) + 1 : 1;

            choices->dir_prefixes =
                choices->dir_prefixes > UINT64_MAX / ways ? UINT64_MAX : choices->dir_prefixes * ways;
        }
    }
    sim_unlock(s);
    return d != NULL ? 0 : -ENOMEM;
}

int vfs_sim_unit_at(const vfs_sim *sim, uint64_t n, vfs_sim_unit *unit) {
    vfs_sim *s = sim_lock(sim);
    const sim_change *c;
    size_t i = 0;
    int result = -ENOENT;

    while (result != 0 && (c = next_change(&s->disk, &i)) != NULL) {
        uint64_t units = sim_change_units(c);

        if (n >= units) {
            n -= units;
            continue;
        }
        *unit = (vfs_sim_unit){c->node, c->at, 0};
        if (c->kind == SIM_WRITE) {
            uint64_t to;

            sim_change_unit(c, n, &unit->at, &to);
            unit->bytes = to - unit->at;
        }
        result = 0;
    }
    sim_unlock(s);
    return result;
}

/* ---- fates ---- */

static int random_fate(uint64_t seed, uint64_t unit) {
    uint64_t kept_of_8 = 1 + sim_mix(seed) % 7;
    uint64_t r = sim_mix(sim_mix(seed + 1) ^ unit);

    if (r % 8 < kept_of_8)
        return VFS_SIM_KEPT;
    switch (r / 8 % 3) {
    case 0:
        return VFS_SIM_LOST;
    case 1:
        return VFS_SIM_GARBAGE;
    default:
        return VFS_SIM_ZERO;
    }
}

static int fate_of(const vfs_sim_loss *loss, uint64_t unit) {
    switch (loss->mode) {
    case VFS_SIM_ALL_LOST:
        return VFS_SIM_LOST;
    case VFS_SIM_ALL_KEPT:
        return VFS_SIM_KEPT;
    case VFS_SIM_PREFIX:
        return unit < loss->n ? VFS_SIM_KEPT : VFS_SIM_LOST;
    case VFS_SIM_ONE_LOST:
        return unit == loss->n ? VFS_SIM_LOST : VFS_SIM_KEPT;
    case VFS_SIM_ONLY_ONE:
        return unit == loss->n ? VFS_SIM_KEPT : VFS_SIM_LOST;
    case VFS_SIM_ONE_GARBAGE:
        return unit == loss->n ? VFS_SIM_GARBAGE : VFS_SIM_KEPT;
    case VFS_SIM_LAST_GARBAGE:
        return unit < loss->n ? VFS_SIM_KEPT : unit == loss->n ? VFS_SIM_GARBAGE : VFS_SIM_LOST;
    case VFS_SIM_ONE_FLIPPED:
        return unit == loss->n ? VFS_SIM_FLIPPED : VFS_SIM_KEPT;
    case VFS_SIM_RANDOM:
        return random_fate(loss->seed, unit);
    default:
        assert(loss->mode == VFS_SIM_MASK);
        assert(unit >= loss->mask_count || loss->mask[unit] <= VFS_SIM_ZERO);
        return unit < loss->mask_count ? loss->mask[unit] : VFS_SIM_LOST;
    }
}

/* How many of a directory's operations survive in the prefix modes; *n is the remaining part of dir_n. */
static uint64_t prefix_of(const vfs_sim_loss *loss, uint64_t dir, uint64_t operations, uint64_t *n) {
    uint64_t kept = 0;

    switch (loss->dir_mode) {
    case VFS_SIM_DIRS_KEPT:
        return operations;
    case VFS_SIM_DIRS_PREFIX:
        kept = *n % (operations + 1);
        *n /= operations + 1;
        return kept;
    case VFS_SIM_DIRS_RANDOM:
        return sim_mix(sim_mix(loss->seed + 2) ^ dir) % (operations + 1);
    default:
        assert(loss->dir_mode == VFS_SIM_DIRS_LOST);
        return 0;
    }
}

static bool same_name(const sim_blob *a, const sim_blob *b) {
    return a != NULL && b != NULL && strcmp((const char *)a->data, (const char *)b->data) == 0;
}

static bool depends(const sim_dir_change *later, const sim_dir_change *earlier) {
    return later->dir == earlier->dir &&
           (same_name(later->name, earlier->name) || same_name(later->name, earlier->to) ||
            same_name(later->to, earlier->name) || same_name(later->to, earlier->to));
}

/* Which operations survive on the whole disk. */
static void choose_operations(const sim_disk *d, const vfs_sim_loss *loss, bool *kept) {
    bool subset = loss->dir_mode == VFS_SIM_DIRS_MASK || loss->dir_mode == VFS_SIM_DIRS_RANDOM_SUBSET;
    uint64_t n = loss->dir_n;

    for (size_t i = 0; subset && i < d->dir_change_count; i++) {
        kept[i] = loss->dir_mode == VFS_SIM_DIRS_MASK ? i < loss->dir_mask_count && loss->dir_mask[i] != 0
                                                      : (sim_mix(sim_mix(loss->seed + 3) ^ i) & 1) != 0;
        for (size_t k = 0; k < i; k++)
            kept[i] = kept[i] && (kept[k] || !depends(&d->dir_changes[i], &d->dir_changes[k]));
    }
    for (size_t i = 0; !subset && i < d->node_count; i++) {
        uint64_t dir = d->nodes[i]->id;
        uint64_t left;

        if (!d->nodes[i]->is_dir)
            continue;
        left = prefix_of(loss, dir, dir_changes_of(d, dir), &n);
        for (size_t k = 0; k < d->dir_change_count && left > 0; k++) {
            if (d->dir_changes[k].dir == dir) {
                kept[k] = true;
                left--;
            }
        }
    }
}

/* ---- images ---- */

static int image_dir(sim_disk *image, const sim_disk *d, const sim_node *from, const bool *kept) {
    sim_node *n = sim_node_new(image, from->id, true);
    int result = n != NULL ? sim_names_copy(&n->now, &from->durable) : -ENOMEM;

    for (size_t i = 0; result == 0 && i < d->dir_change_count; i++) {
        if (kept[i] && d->dir_changes[i].dir == from->id)
            result = sim_names_apply(&n->now, &d->dir_changes[i]);
    }
    return result != 0 ? result : sim_names_copy(&n->durable, &n->now);
}

static int image_file(sim_disk *image, const sim_node *from) {
    sim_node *n = sim_node_new(image, from->id, false);
    int result = n != NULL ? sim_node_pages(n, from->page_count) : -ENOMEM;

    for (size_t i = 0; result == 0 && i < from->page_count; i++) {
        sim_page_set(&n->pages[i], SIM_ALL_BITS, sim_blob_take(from->pages[i].layer[VFS_SIM_STABLE], SIM_LAYERS));
        sim_page_allocated(n, &n->pages[i], from->pages[i].allocated || n->pages[i].layer[VFS_SIM_STABLE] != NULL);
    }
    if (n != NULL)
        n->size = from->stable_size;
    return result;
}

/* Copies every node with a surviving name. A directory's id is below those of its contents, so one ascending pass is
 * enough; `reached` has one element for each node of d. */
static int image_nodes(sim_disk *image, const sim_disk *d, const bool *kept, bool *reached) {
    int result = 0;

    for (size_t i = 0; result == 0 && i < d->node_count; i++) {
        const sim_node *from = d->nodes[i];
        const sim_names *names;

        if (from->id != SIM_ROOT && !reached[i])
            continue;
        result = from->is_dir ? image_dir(image, d, from, kept) : image_file(image, from);
        if (result != 0 || !from->is_dir)
            continue;
        names = &image->nodes[image->node_count - 1]->now;
        for (size_t k = 0; k < names->count; k++) {
            size_t at = i;

            while (d->nodes[at]->id != names->entries[k].id) /* an entry's node cannot be missing */
                at++;
            reached[at] = true;
        }
    }
    for (size_t i = 0; result == 0 && i < image->node_count; i++) {
        const sim_names *names = &image->nodes[i]->now;

        for (size_t k = 0; k < names->count; k++) {
            sim_node *n = sim_find(image, names->entries[k].id);

            n->names++;
            n->links += 2; /* now and durable */
        }
    }
    return result;
}

static int image_changes(sim_disk *image, const sim_disk *d, const vfs_sim_loss *loss) {
    const sim_change *c;
    uint64_t unit = 0;
    size_t i = 0;
    int result = 0;

    while (result == 0 && (c = next_change(d, &i)) != NULL) {
        sim_node *n = sim_find(image, c->node);
        uint64_t units = sim_change_units(c);

        for (uint64_t k = 0; n != NULL && result == 0 && k < units; k++) {
            uint64_t seed = sim_mix(loss->seed + 4) ^ sim_mix(unit + k);

            result = sim_apply(n, SIM_ALL_BITS, c, k, fate_of(loss, unit + k), seed, &n->size, &n->barrier);
        }
        unit += units;
    }
    for (size_t k = 0; result == 0 && k < image->node_count; k++) {
        sim_node *n = image->nodes[k];

        n->stable_size = n->size;
        n->barrier = UINT64_MAX;
        result = sim_clip(n, SIM_ALL_BITS, n->size);
    }
    return result;
}

static int image_of(sim_disk *image, const sim_disk *d, const vfs_sim_loss *loss) {
    bool *flags = calloc(d->dir_change_count + d->node_count, sizeof *flags);
    int result;

    if (flags == NULL)
        return -ENOMEM;
    image->next_id = d->next_id;
    image->random = sim_mix(d->random + 1); /* another boot */
    image->now_us = d->now_us;
    image->generation = d->generation;
    choose_operations(d, loss, flags);
    result = image_nodes(image, d, flags, flags + d->dir_change_count);
    free(flags);
    return result != 0 ? result : image_changes(image, d, loss);
}

vfs_sim *vfs_sim_crash_at(const vfs_sim *sim, size_t k, const vfs_sim_loss *loss) {
    vfs_sim *image = sim_new_empty();
    vfs_sim *s;
    const sim_disk *d;

    if (image == NULL)
        return NULL;
    s = sim_lock(sim);
    d = disk_at(s, k);
    if (d == NULL || image_of(&image->disk, d, loss) != 0) {
        vfs_sim_free(image);
        image = NULL;
    }
    sim_unlock(s);
    return image;
}

vfs_sim *vfs_sim_crash(const vfs_sim *sim, const vfs_sim_loss *loss) {
    return vfs_sim_crash_at(sim, VFS_SIM_NOW, loss);
}

uint64_t vfs_sim_hash(const vfs_sim *sim) {
    vfs_sim *s = sim_lock(sim);
    uint64_t hash = sim_disk_hash(&s->disk);

    sim_unlock(s);
    return hash;
}
