/*
 * The parts that every call of the simulator shares: counts, the plan of failures, the journal, the handles. Also makes
 * and frees simulators, and answers tests.
 *
 * An event is recorded completely or not at all: its room in the journal is reserved before the call acts, and its bytes
 * are shared with the disk, not copied.
 */
#include "tests/sim/vfs_sim_state.h"

#undef NDEBUG /* assertions stay on in release */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- one call ---- */

vfs_sim *sim_lock(const vfs_sim *sim) {
    vfs_sim *s = (vfs_sim *)(uintptr_t)sim;
    int result = pthread_mutex_lock(&s->mutex);

    assert(result == 0);
    return s;
}

void sim_unlock(vfs_sim *sim) {
    int result = pthread_mutex_unlock(&sim->mutex);

    assert(result == 0);
}

static int reserve_event(vfs_sim *s) {
    if (!s->recording)
        return 0;
    if (sim_reserve(&s->held, &s->held_room, s->event_count, 1, sizeof *s->held) != 0)
        return -ENOMEM;
    return sim_reserve(&s->events, &s->event_room, s->event_count, 1, sizeof *s->events);
}

static int planned(sim_call *c) {
    vfs_sim *s = c->sim;
    const vfs_sim_plan *plan = &s->plan;
    uint64_t count = s->calls[plan->kind];

    if ((plan->error == 0 && plan->shorten == 0) || (plan->kind != 0 && plan->kind != c->event.kind))
        return 0;
    if (plan->forever ? count < plan->nth : count != plan->nth)
        return 0;
    if (plan->error == 0) {
        c->shorten = plan->shorten; /* takes effect at the first call that can be shortened */
        return 0;
    }
    s->fired++;
    c->event.flags |= VFS_SIM_INJECTED;
    return -plan->error;
}

/* Takes the mutex. If the result is below 0 the call must fail with it. `sim_finish` must follow in every case. */
int sim_begin(sim_call *c, vfs *v, int kind, int handle) {
    vfs_sim *s = sim_lock(v->context);

    memset(c, 0, sizeof *c);
    c->sim = s;
    c->event.kind = kind;
    c->event.handle = handle;
    c->generation = s->disk.generation;
    s->calls[0]++;
    s->calls[kind]++;
    s->disk.now_us++;
    s->disk.monotonic_us++;
    if (reserve_event(s) != 0)
        return -ENOMEM;
    return planned(c);
}

static void record(vfs_sim *s, const vfs_sim_event *event, const sim_held *held) {
    vfs_sim_event *e;

    if (!s->recording || s->event_count == s->event_room) /* full only after a failed reserve_event */
        return;
    e = &s->events[s->event_count];
    *e = *event;
    s->held[s->event_count] = *held;
    for (int i = 0; i < SIM_HELD; i++)
        (void)sim_blob_take(held->blob[i], 1);
    e->name = held->blob[SIM_HELD_NAME] != NULL ? (const char *)held->blob[SIM_HELD_NAME]->data : NULL;
    e->to = held->blob[SIM_HELD_TO] != NULL ? (const char *)held->blob[SIM_HELD_TO]->data : NULL;
    e->data = held->blob[SIM_HELD_DATA] != NULL ? held->blob[SIM_HELD_DATA]->data : NULL;
    e->now_us = s->disk.now_us;
    s->event_count++;
}

int64_t sim_finish(sim_call *c, int64_t result) {
    c->event.result = result;
    if (c->sim->disk.generation != c->generation)
        c->event.flags |= VFS_SIM_CHANGES;
    record(c->sim, &c->event, &c->held);
    for (int i = 0; i < SIM_HELD; i++)
        sim_blob_drop(c->held.blob[i], 1);
    sim_unlock(c->sim);
    return result;
}

int sim_hold_name(sim_call *c, int which, const char *name) {
    c->held.blob[which] = sim_name_new(name);
    return c->held.blob[which] != NULL ? 0 : -ENOMEM;
}

/* ---- handles ---- */

static size_t handle_index(const vfs_sim *s, int number) {
    size_t low = 0;
    size_t high = s->handle_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (s->handles[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int sim_handle_of(const vfs_sim *s, int number, int kind, sim_handle **h) {
    size_t i = handle_index(s, number);

    if (i == s->handle_count || s->handles[i].number != number)
        return -EBADF;
    *h = &s->handles[i];
    if (kind != 0 && (*h)->kind != kind)
        return kind == SIM_HANDLE_DIR ? -ENOTDIR : (*h)->kind == SIM_HANDLE_DIR ? -EISDIR : -EBADF;
    return 0;
}

int sim_reserve_handle(vfs_sim *s) {
    return sim_reserve(&s->handles, &s->handle_room, s->handle_count, 1, sizeof *s->handles);
}

int sim_new_handle(sim_call *c, int kind, uint64_t node, unsigned flags) {
    vfs_sim *s = c->sim;
    sim_node *n = sim_find(&s->disk, node);

    assert(s->handle_count < s->handle_room);
    if (n != NULL)
        n->handles++;
    s->handles[s->handle_count++] = (sim_handle){
        .number = s->next_handle,
        .kind = kind,
        .flags = flags,
        .node = node,
        .error_seen = n != NULL ? n->error_seq : 0,
    };
    c->event.file = node;
    c->event.handle = s->next_handle;
    return s->next_handle++;
}

void sim_drop_handle(vfs_sim *s, sim_handle *h) {
    uint64_t node = h->node;
    size_t i = (size_t)(h - s->handles);

    memmove(h, h + 1, (s->handle_count - i - 1) * sizeof *h);
    s->handle_count--;
    if (node != 0) {
        sim_find(&s->disk, node)->handles--;
        sim_collect(&s->disk, node);
    }
}

/* ---- making and freeing ---- */

vfs_sim *sim_new_empty(void) {
    vfs_sim *s = calloc(1, sizeof *s);

    if (s == NULL)
        return NULL;
    if (pthread_mutex_init(&s->mutex, NULL) != 0) {
        free(s);
        return NULL;
    }
    s->table = sim_table;
    s->table.context = s;
    s->next_handle = 3; /* skip 0, 1 and 2, as in a process: a handle of 0 is probably an uninitialised one */
    return s;
}

static void forget_journal(vfs_sim *s) {
    for (size_t i = 0; i < s->event_count; i++) {
        for (int k = 0; k < SIM_HELD; k++)
            sim_blob_drop(s->held[i].blob[k], 1);
    }
    s->event_count = 0;
    if (s->has_origin)
        sim_disk_free(&s->origin);
    if (s->has_cursor)
        sim_disk_free(&s->cursor);
    s->has_origin = s->has_cursor = false;
}

vfs_sim *vfs_sim_new(void) {
    vfs_sim *s = sim_new_empty();

    if (s == NULL)
        return NULL;
    if (sim_disk_init(&s->disk) != 0 || vfs_sim_record(s, 1) != 0) {
        vfs_sim_free(s);
        return NULL;
    }
    return s;
}

vfs *vfs_sim_table(vfs_sim *sim) { return &sim->table; }

void vfs_sim_free(vfs_sim *sim) {
    if (sim == NULL)
        return;
    forget_journal(sim);
    free(sim->events);
    free(sim->held);
    free(sim->handles);
    sim_disk_free(&sim->disk);
    (void)pthread_mutex_destroy(&sim->mutex);
    free(sim);
}

void vfs_sim_seed(vfs_sim *sim, uint64_t seed) {
    (void)sim_lock(sim);
    sim->disk.random = seed;
    sim_unlock(sim);
}

void vfs_sim_advance(vfs_sim *sim, int64_t us) {
    (void)sim_lock(sim);
    sim->disk.now_us += (uint64_t)us;
    sim_unlock(sim);
}

size_t vfs_sim_handles(const vfs_sim *sim) {
    vfs_sim *s = sim_lock(sim);
    size_t count = s->handle_count;

    sim_unlock(s);
    return count;
}

uint64_t vfs_sim_event_count(const vfs_sim *sim, int event) {
    vfs_sim *s = sim_lock(sim);
    sim_handle *h;
    uint64_t count = sim_handle_of(s, event, SIM_HANDLE_EVENT, &h) == 0 ? h->signals : 0;

    sim_unlock(s);
    return count;
}

uint64_t vfs_sim_changes(const vfs_sim *sim) {
    vfs_sim *s = sim_lock(sim);
    uint64_t generation = s->disk.generation;

    sim_unlock(s);
    return generation;
}

/* ---- the journal ---- */

int vfs_sim_record(vfs_sim *sim, int on) {
    int result = 0;

    (void)sim_lock(sim);
    sim->recording = on != 0;
    if (on) {
        forget_journal(sim);
        result = sim_disk_clone(&sim->origin, &sim->disk);
        sim->has_origin = sim->recording = result == 0;
    }
    sim_unlock(sim);
    return result;
}

size_t vfs_sim_journal(const vfs_sim *sim, const vfs_sim_event **events) {
    vfs_sim *s = sim_lock(sim);
    size_t count = s->event_count;

    *events = s->events;
    sim_unlock(s);
    return count;
}

int vfs_sim_mark(vfs_sim *sim, int mark, uint64_t value) {
    vfs_sim_event event = {.kind = VFS_SIM_MARK, .handle = -1, .mark = mark, .value = value};
    sim_held held = {{NULL}};
    int result;

    (void)sim_lock(sim);
    result = reserve_event(sim);
    if (result == 0)
        record(sim, &event, &held);
    sim_unlock(sim);
    return result;
}

/* ---- failures ---- */

void vfs_sim_fail(vfs_sim *sim, const vfs_sim_plan *plan) {
    static const vfs_sim_plan none;

    (void)sim_lock(sim);
    sim->plan = plan != NULL ? *plan : none;
    assert(sim->plan.kind >= 0 && sim->plan.kind < VFS_SIM_CALL_KINDS && sim->plan.error >= 0);
    memset(sim->calls, 0, sizeof sim->calls);
    sim->fired = 0;
    sim_unlock(sim);
}

uint64_t vfs_sim_calls(const vfs_sim *sim, int kind) {
    vfs_sim *s = sim_lock(sim);
    uint64_t calls = kind >= 0 && kind < VFS_SIM_CALL_KINDS ? s->calls[kind] : 0;

    sim_unlock(s);
    return calls;
}

uint64_t vfs_sim_fired(const vfs_sim *sim) {
    vfs_sim *s = sim_lock(sim);
    uint64_t fired = s->fired;

    sim_unlock(s);
    return fired;
}

void vfs_sim_capacity(vfs_sim *sim, uint64_t bytes) {
    (void)sim_lock(sim);
    sim->capacity = bytes;
    sim_unlock(sim);
}

uint64_t vfs_sim_used(const vfs_sim *sim) {
    vfs_sim *s = sim_lock(sim);
    uint64_t used = sim_disk_used(&s->disk) * SIM_PAGE;

    sim_unlock(s);
    return used;
}

/* ---- whole files, for tests ---- */

int64_t vfs_sim_get(const vfs_sim *sim, int layer, const char *path, const char *name, void *into, size_t room) {
    vfs_sim *s = sim_lock(sim);
    uint64_t dir;
    int64_t result = sim_resolve(&s->disk, path, &dir);

    assert(layer >= 0 && layer < SIM_LAYERS);
    if (result == 0) {
        const sim_node *n = sim_find(&s->disk, sim_lookup(&sim_find(&s->disk, dir)->now, name));

        if (n == NULL) {
            result = -ENOENT;
        } else if (n->is_dir) {
            result = -EISDIR;
        } else {
            uint64_t size = layer == VFS_SIM_STABLE ? n->stable_size : n->size;

            sim_read(n, layer, into, size < room ? (size_t)size : room, 0);
            result = (int64_t)size;
        }
    }
    sim_unlock(s);
    return result;
}

int vfs_sim_put(vfs_sim *sim, const char *path, const char *name, const void *from, size_t bytes) {
    vfs_sim_event event = {.kind = VFS_SIM_PUT, .flags = VFS_SIM_CHANGES, .handle = -1, .bytes = bytes};
    sim_held held = {{sim_name_new(name), sim_name_new(path), sim_blob_new(bytes, from, 1)}};
    int result = sim_check_name(name);

    (void)sim_lock(sim);
    if (result == 0 && (held.blob[0] == NULL || held.blob[1] == NULL || held.blob[2] == NULL))
        result = -ENOMEM;
    if (result == 0)
        result = reserve_event(sim);
    if (result == 0)
        result = sim_put(&sim->disk, path, held.blob[SIM_HELD_NAME], from, bytes, &event.file);
    if (result == 0)
        record(sim, &event, &held);
    for (int i = 0; i < SIM_HELD; i++)
        sim_blob_drop(held.blob[i], 1);
    sim_unlock(sim);
    return result;
}
