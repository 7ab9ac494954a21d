/*
 * The simulator: the table of vfs.h in memory. It records every call, fails any call on demand, and can lose power.
 *
 * With it no test of crashes or failures needs a real disk. It must never lose what a real disk would keep (a sync
 * returned 0), never keep more than the test chose, and never depend on time, addresses or randomness: the same calls
 * and the same numbers give the same bytes.
 *
 * What a file is
 *   seen    what buffered reads return: the page cache
 *   device  what direct reads return: everything written, including the disk's volatile cache
 *   stable  what every power cut leaves: `device` as of the last successful sync
 * seen and device differ only after a failed sync: pages are then clean in the cache and not on the disk, and later
 * syncs succeed without writing them (phantom pages). A buffered write into such a page makes all of it dirty again.
 * A directory has two layers: its entries, and the entries that a sync_dir made durable.
 *
 * What a power cut may do
 *   - Everything since the last successful sync of its file is a sequence of units in the order of the calls: one unit
 *     for each 512-byte sector of each write, and one for each change of the size. Each unit has its own fate.
 *   - Garbage and zeros reach only those bytes which the write changes (powersafe overwrite).
 *   - If a shrinking is lost, so is every later change of that file above the new size, as in a journal.
 *   - Directory operations survive as a prefix in each directory; in the weak modes as any subset that is closed
 *     under dependency (an earlier operation on one of the same names). A file's sync never keeps its name.
 *
 * All functions may be called from several threads; what `vfs_sim_journal` gives is valid until the next call of
 * the table. Functions that make a simulator return NULL when memory is short.
 */
#ifndef LOGSTORE_VFS_SIM_H
#define LOGSTORE_VFS_SIM_H

#include <stddef.h>
#include <stdint.h>

#include "os/vfs.h"

typedef struct vfs_sim vfs_sim;

/* Calls that are counted and can fail; after them, events that only the journal has. 0 is invalid. */
enum {
    VFS_SIM_OPEN_DIR = 1,
    VFS_SIM_MAKE_DIR,
    VFS_SIM_OPEN_SUBDIR,
    VFS_SIM_LIST,
    VFS_SIM_SYNC_DIR,
    VFS_SIM_FREE_BYTES,
    VFS_SIM_OPEN,
    VFS_SIM_CLOSE,
    VFS_SIM_PREAD,
    VFS_SIM_PWRITE,
    VFS_SIM_SIZE,
    VFS_SIM_ALLOCATE,
    VFS_SIM_TRUNCATE,
    VFS_SIM_SYNC_DATA,
    VFS_SIM_SYNC_FILE,
    VFS_SIM_WRITEBACK,
    VFS_SIM_ADVISE,
    VFS_SIM_RENAME,
    VFS_SIM_UNLINK,
    VFS_SIM_LOCK,
    VFS_SIM_GETRANDOM,
    VFS_SIM_EVENT_NEW,
    VFS_SIM_EVENT_SIGNAL,
    VFS_SIM_EVENT_CLOSE,
    VFS_SIM_REMOVE_DIR,
    VFS_SIM_SOCKET_DUP,
    VFS_SIM_SEND,
    VFS_SIM_CALL_KINDS, /* one more than the last call */
    VFS_SIM_PUT,        /* vfs_sim_put */
    VFS_SIM_MARK,       /* vfs_sim_mark */
};

/* ---- making and freeing ---- */

/* Makes a simulator with an empty, durable root directory ("", "/" or "."), and recording on. Any path can be made: below
 * an existing directory as in POSIX, else in the root under the whole path; its leading parts then open as the root. */
vfs_sim *vfs_sim_new(void);
vfs *vfs_sim_table(vfs_sim *sim);
void vfs_sim_free(vfs_sim *sim);

void vfs_sim_seed(vfs_sim *sim, uint64_t seed);     /* of random() */
void vfs_sim_advance(vfs_sim *sim, int64_t us);     /* changes only now_us, also backwards: a clock jump */
size_t vfs_sim_handles(const vfs_sim *sim);         /* open files, directories and events; 0: no leak */
uint64_t vfs_sim_event_count(const vfs_sim *, int); /* signals to this event; 0 after it was closed */
uint64_t vfs_sim_changes(const vfs_sim *sim);       /* grows with every successful change; equal values: no change */

/* ---- the journal ---- */

enum {
    VFS_SIM_CREATED = 1,    /* this call made the file or directory */
    VFS_SIM_INJECTED = 2,   /* the result is a planned failure or shortening */
    VFS_SIM_UNBUFFERED = 4, /* through a VFS_DIRECT handle */
    VFS_SIM_CHANGES = 8,    /* the disk after this event may differ from the disk before it */
};

typedef struct {
    int kind;
    unsigned flags;
    int handle;       /* as given, or as returned by what opens; -1 without */
    int64_t result;   /* of the call; of vfs_sim_put, 0 */
    uint64_t file;    /* permanent identity of the file or directory of the handle or name; 0: none */
    uint64_t dir;     /* identity of the directory of `name` */
    const char *name; /* the (old) name or path, or NULL */
    const char *to;   /* the new name of rename, the path of put, or NULL */
    uint64_t offset;
    uint64_t bytes;   /* requested; or the new size */
    const void *data; /* what was written: `result` bytes, `bytes` for put; or NULL */
    int mark;         /* of vfs_sim_mark */
    uint64_t value;   /* of vfs_sim_mark */
    uint64_t seed;    /* which part of a failing sync reached the disk; 0 none */
    uint64_t now_us;  /* the simulated clock */
} vfs_sim_event;

/* On: starts an empty journal here. Off: stops recording and keeps the journal. Copies start with recording off. */
int vfs_sim_record(vfs_sim *sim, int on);
size_t vfs_sim_journal(const vfs_sim *sim, const vfs_sim_event **events);
int vfs_sim_mark(vfs_sim *sim, int mark, uint64_t value); /* adds a note of the application to the journal; -ENOMEM */

/* ---- failures ---- */

enum { VFS_SIM_HALF = 1, VFS_SIM_ONE_BYTE = 2 };

/* A plan has an error or a shortening. A shortening skips calls that it cannot shorten; it cuts a direct transfer to
 * whole sectors, and never cuts to 0. A failed call has no effect, with two exceptions: close closes; a file's sync loses
 * the data that it should have saved, except for a part chosen by `survive` (0: loses all). */
typedef struct {
    int kind;         /* count calls of this kind only; 0: all calls */
    uint64_t nth;     /* 1 is the first from now on */
    int forever;      /* 1: that call and all later ones; 0: only that call */
    int error;        /* an errno: 5, not -5 */
    int shorten;      /* VFS_SIM_HALF, VFS_SIM_ONE_BYTE: transfers only */
    uint64_t survive; /* seed that chooses the sectors that reach the disk in a failing sync */
} vfs_sim_plan;

void vfs_sim_fail(vfs_sim *sim, const vfs_sim_plan *plan); /* replaces the plan before; NULL: none */
uint64_t vfs_sim_calls(const vfs_sim *sim, int kind);      /* since the plan was set, or from the start; 0: all */
uint64_t vfs_sim_fired(const vfs_sim *sim);                /* how often the plan struck */

/* The bytes that files may occupy, in pages of 4096 bytes; 0: no limit. Beyond it: a short write, then -ENOSPC. */
void vfs_sim_capacity(vfs_sim *sim, uint64_t bytes);
uint64_t vfs_sim_used(const vfs_sim *sim);

/* ---- power cuts ---- */

/* The fate of a unit. For a growing size, GARBAGE is a size in between, and ZERO and FLIPPED are the same as KEPT; a shrinking
 * size is LOST or kept. FLIPPED is kept but for one bit of what the write changes,
 * outside of a format_version. */
enum { VFS_SIM_LOST = 0, VFS_SIM_KEPT = 1, VFS_SIM_GARBAGE = 2, VFS_SIM_ZERO = 3, VFS_SIM_FLIPPED = 4 };

/* How the fates of units are chosen. */
enum {
    VFS_SIM_ALL_LOST = 0,
    VFS_SIM_ALL_KEPT,
    VFS_SIM_PREFIX,       /* the first n units are kept */
    VFS_SIM_ONE_LOST,     /* unit n is lost, the others are kept */
    VFS_SIM_ONLY_ONE,     /* unit n is kept, the others are lost */
    VFS_SIM_ONE_GARBAGE,  /* unit n is garbage, the others are kept */
    VFS_SIM_LAST_GARBAGE, /* the first n units are kept, the next is garbage, the others are lost */
    VFS_SIM_ONE_FLIPPED,  /* of unit n one bit is another one, the others are kept */
    VFS_SIM_RANDOM,       /* each unit by seed; some seeds keep most, some few */
    VFS_SIM_MASK,         /* mask[i] is the fate of unit i; lost where there is none */
};

/* How the surviving directory operations are chosen. */
enum {
    VFS_SIM_DIRS_LOST = 0,
    VFS_SIM_DIRS_KEPT,
    VFS_SIM_DIRS_PREFIX,        /* dir_n counts through all combinations of prefixes, one for each directory */
    VFS_SIM_DIRS_RANDOM,        /* a prefix in each, by seed */
    VFS_SIM_DIRS_MASK,          /* weak: those with dir_mask[i] != 0 whose dependencies are kept too */
    VFS_SIM_DIRS_RANDOM_SUBSET, /* weak: by seed */
};

typedef struct {
    int mode;
    int dir_mode;
    uint64_t n;
    uint64_t dir_n;
    uint64_t seed; /* RANDOM's, and what garbage looks like */
    const uint8_t *mask;
    size_t mask_count;
    const uint8_t *dir_mask;
    size_t dir_mask_count;
} vfs_sim_loss;

typedef struct {
    uint64_t units;        /* fates to choose */
    uint64_t dir_ops;      /* bits of dir_mask to choose */
    uint64_t dir_prefixes; /* values of dir_n, from 0; the last keeps everything */
} vfs_sim_choices;

/* One unit, for the description of a finding. */
typedef struct {
    uint64_t file;
    uint64_t at;    /* in the file, or the new size */
    uint64_t bytes; /* 0: a change of the size */
} vfs_sim_unit;

#define VFS_SIM_NOW SIZE_MAX /* instead of a number of events: now, with or without a journal */

/* A copy as another process finds it after SIGKILL: the page cache survives, handles and locks do not. `_at`: as it was
 * after the first k events (fast if k ascends). The copy can lose power, too. */
vfs_sim *vfs_sim_clone(const vfs_sim *sim);
vfs_sim *vfs_sim_at(const vfs_sim *sim, size_t k);

/* A copy as the machine finds it after the power cut: nothing is unsynced in it. */
vfs_sim *vfs_sim_crash(const vfs_sim *sim, const vfs_sim_loss *loss);
vfs_sim *vfs_sim_crash_at(const vfs_sim *sim, size_t k, const vfs_sim_loss *loss);

int vfs_sim_unsynced(const vfs_sim *sim, size_t k, vfs_sim_choices *choices); /* -ENOMEM */
int vfs_sim_unit_at(const vfs_sim *sim, uint64_t n, vfs_sim_unit *unit);      /* of the present; -ENOENT */

/* A hash of all names, sizes and device bytes, independent of identities. */
uint64_t vfs_sim_hash(const vfs_sim *sim);

/* ---- whole files, for tests ---- */

enum { VFS_SIM_SEEN = 0, VFS_SIM_DEVICE = 1, VFS_SIM_STABLE = 2 };

/* Returns the file's size in that layer and copies up to `room` of its bytes; -ENOENT. The stable layer can be read even
 * while the file's name is not durable. */
int64_t vfs_sim_get(const vfs_sim *sim, int layer, const char *path, const char *name, void *into, size_t room);

/* Sets the content of a file, made with its directory if absent, durably and in every layer. */
int vfs_sim_put(vfs_sim *sim, const char *path, const char *name, const void *from, size_t bytes);

#endif
