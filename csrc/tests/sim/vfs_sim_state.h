/*
 * A simulator from inside: its disk, what is open, the journal, and the plan of failures. Private to vfs_sim*.c.
 *
 * Everything here is read and written under the one mutex. `origin` and `cursor` are separate disks: replay of the journal
 * starts from a copy of `origin` and has reached `cursor`.
 */
#ifndef LOGSTORE_VFS_SIM_STATE_H
#define LOGSTORE_VFS_SIM_STATE_H

#include <pthread.h>

#include "tests/sim/vfs_sim.h"
#include "tests/sim/vfs_sim_disk.h"

enum { SIM_HANDLE_DIR = 1, SIM_HANDLE_FILE, SIM_HANDLE_EVENT };
enum { SIM_HELD_NAME, SIM_HELD_TO, SIM_HELD_DATA, SIM_HELD };

typedef struct {
    int number; /* never reused, so that a use after close is detected */
    int kind;
    unsigned flags;
    int lock; /* 0, LOCK_SH or LOCK_EX */
    uint64_t node;
    uint32_t error_seen; /* of the node's error_seq */
    uint64_t signals;
} sim_handle;

/* Owns the memory that an event's pointers refer to. */
typedef struct {
    sim_blob *blob[SIM_HELD];
} sim_held;

struct vfs_sim {
    vfs table;
    pthread_mutex_t mutex;
    sim_disk disk;

    sim_handle *handles; /* by number */
    size_t handle_count;
    size_t handle_room;
    int next_handle;

    bool recording;
    vfs_sim_event *events;
    size_t event_count;
    size_t event_room;
    sim_held *held; /* beside events */
    size_t held_room;
    sim_disk origin; /* before the first event */
    sim_disk cursor; /* after the first `cursor_at` events, if has_cursor */
    size_t cursor_at;
    bool has_origin;
    bool has_cursor;

    vfs_sim_plan plan;
    uint64_t calls[VFS_SIM_CALL_KINDS]; /* [0]: all */
    uint64_t fired;
    uint64_t capacity;
};

extern const vfs sim_table; /* without context */

typedef struct {
    vfs_sim *sim;
    vfs_sim_event event;
    sim_held held;
    uint64_t generation;
    int shorten;
} sim_call;

/* Takes the mutex. If the result is below 0 the call must fail with it. sim_finish must follow in every case: it records
 * the call, drops its references, releases the mutex, and returns its argument. */
int sim_begin(sim_call *c, vfs *v, int kind, int handle);
int64_t sim_finish(sim_call *c, int64_t result);
int sim_hold_name(sim_call *c, int which, const char *name);

int sim_handle_of(const vfs_sim *s, int number, int kind, sim_handle **h); /* kind 0: any */
int sim_reserve_handle(vfs_sim *s);
int sim_new_handle(sim_call *c, int kind, uint64_t node, unsigned flags); /* in room that sim_reserve_handle has made */
void sim_drop_handle(vfs_sim *s, sim_handle *h);

/* Has a table and a mutex, but no disk yet. */
vfs_sim *sim_new_empty(void);
/* Locks a const simulator, too: its mutex is the only thing that changes. */
vfs_sim *sim_lock(const vfs_sim *sim);
void sim_unlock(vfs_sim *sim);

#endif
