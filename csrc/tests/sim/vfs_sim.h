/*
 * The table of vfs.h in memory: it records every call, fails any of them on demand, and can lose power.
 *
 * For tests only: no test of crash or failure may need a real disk. It must never lose what a real disk would keep
 * (a sync that returned 0), never keep more than it is told to, and never depend on time, addresses or chance: the
 * same calls and the same numbers give the same bytes.
 *
 * What a file is
 *   seen    what buffered reads see: the page cache
 *   device  what direct reads see: everything written, a disk's volatile cache included
 *   stable  what is certain to be there after a power cut: `device` as of the last successful sync
 * seen and device differ only after a failed sync: pages are then clean in the cache and not on the disk, later
 * syncs succeed and do nothing for them (phantom pages). A buffered write into such a page takes all of it along.
 * A directory has the same layers, without the middle one: its entries, and those a sync_dir made durable.
 *
 * What a power cut may do
 *   - Everything since the last successful sync of its file is a row of units in the order of the calls: one unit
 *     for each 512-byte sector of each write, and one for each change of the size. Each has its own fate.
 *   - Garbage and zeros reach only those bytes which the write changes (powersafe overwrite).
 *   - A shrinking that is lost takes along every later change of that file above it, as a journal would.
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

/* The calls that are counted and can fail, then what only the journal has. 0 is none of them. */
enum {
    VFS_SIM_OPEN_DIR = 1,
    VFS_SIM_MAKE_DIR,
    VFS_SIM_OPEN_SUBDIR,
    VFS_SIM_LIST,
    VFS_SIM_SYNC_DIR,
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
    VFS_SIM_CALL_KINDS, /* one more than the last call */
    VFS_SIM_PUT,        /* vfs_sim_put */
    VFS_SIM_MARK,       /* vfs_sim_mark */
};

/* ---- life ---- */

/* An empty root directory, "" or "/" or ".", durable; recording is on. Any path can be made: below a directory that
 * exists as POSIX has it, else in the root under the whole path, whose leading parts then open as the root. */
vfs_sim *vfs_sim_new(void);
vfs *vfs_sim_table(vfs_sim *sim);
void vfs_sim_free(vfs_sim *sim);

void vfs_sim_seed(vfs_sim *sim, uint64_t seed);     /* of random() */
void vfs_sim_advance(vfs_sim *sim, int64_t us);     /* moves now_us alone, back too: a clock jump */
size_t vfs_sim_handles(const vfs_sim *sim);         /* open files, directories and events: 0 shows no leak */
uint64_t vfs_sim_event_count(const vfs_sim *, int); /* signals that this event got while it was open; 0 afterwards */
uint64_t vfs_sim_changes(const vfs_sim *sim);       /* grows with every successful change: the same, nothing wrote */

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
    uint64_t file;    /* identity of the file or directory the handle or name stands for, the same for ever; 0: none */
    uint64_t dir;     /* identity of the directory that `name` is in */
    const char *name; /* the (old) name or path, or NULL */
    const char *to;   /* the new name of rename, the path of put, or NULL */
    uint64_t offset;
    uint64_t bytes;   /* asked for; or the new size */
    const void *data; /* what was written: `result` bytes, `bytes` for put; or NULL */
    int mark;         /* of vfs_sim_mark */
    uint64_t value;   /* of vfs_sim_mark */
    uint64_t seed;    /* which part of a failing sync reached the disk; 0 none */
    uint64_t now_us;  /* the simulated clock */
} vfs_sim_event;

/* On: forgets the journal and starts a new one here. Off: stops, and keeps it. Copies start with it off. */
int vfs_sim_record(vfs_sim *sim, int on);
size_t vfs_sim_journal(const vfs_sim *sim, const vfs_sim_event **events);
int vfs_sim_mark(vfs_sim *sim, int mark, uint64_t value); /* an application's word in between; -ENOMEM */

/* ---- failures ---- */

enum { VFS_SIM_HALF = 1, VFS_SIM_ONE_BYTE = 2 };

/* With neither error nor shorten there is no plan. A shortening passes over what cannot be shortened; a direct
 * transfer is cut to whole sectors, and nothing is cut to 0. A failed call did nothing, but close, which closes, and
 * the file syncs: what they should have saved is lost but for a part that `survive` chooses (0: nothing). */
typedef struct {
    int kind;         /* count calls of this kind only; 0: all calls */
    uint64_t nth;     /* 1 is the first from now on */
    int forever;      /* every one from there on, else only that one */
    int error;        /* an errno: 5, not -5 */
    int shorten;      /* VFS_SIM_HALF, VFS_SIM_ONE_BYTE: transfers only */
    uint64_t survive; /* seed: which sectors reach the disk all the same in a failing sync */
} vfs_sim_plan;

void vfs_sim_fail(vfs_sim *sim, const vfs_sim_plan *plan); /* replaces the plan before; NULL: none */
uint64_t vfs_sim_calls(const vfs_sim *sim, int kind);      /* since the plan was set, or from the start; 0: all */
uint64_t vfs_sim_fired(const vfs_sim *sim);                /* how often the plan struck */

/* The bytes that files may occupy, in pages of 4096; 0 is no limit. Beyond it -ENOSPC, or a short write first. */
void vfs_sim_capacity(vfs_sim *sim, uint64_t bytes);
uint64_t vfs_sim_used(const vfs_sim *sim);

/* ---- power cuts ---- */

/* The fate of a unit. For a size that grows, GARBAGE is a size in between, and ZERO is KEPT; one that shrinks is
 * LOST or not. */
enum { VFS_SIM_LOST = 0, VFS_SIM_KEPT = 1, VFS_SIM_GARBAGE = 2, VFS_SIM_ZERO = 3 };

/* Which fates. */
enum {
    VFS_SIM_ALL_LOST = 0,
    VFS_SIM_ALL_KEPT,
    VFS_SIM_PREFIX,       /* the first n units are kept */
    VFS_SIM_ONE_LOST,     /* unit n is lost, the others are kept */
    VFS_SIM_ONLY_ONE,     /* unit n is kept, the others are lost */
    VFS_SIM_ONE_GARBAGE,  /* unit n is garbage, the others are kept */
    VFS_SIM_LAST_GARBAGE, /* the first n units are kept, the next is garbage, the others are lost */
    VFS_SIM_RANDOM,       /* each its own, by seed; some seeds keep much, some little */
    VFS_SIM_MASK,         /* mask[i] is the fate of unit i; lost where there is none */
};

/* Which directory operations. */
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

/* One unit, for words about a finding. */
typedef struct {
    uint64_t file;
    uint64_t at;    /* in the file, or the new size */
    uint64_t bytes; /* 0: a change of the size */
} vfs_sim_unit;

#define VFS_SIM_NOW SIZE_MAX /* in place of a number of events: the present moment, journal or none */

/* A copy as another process would find it after SIGKILL: the page cache survives, handles and locks do not. `_at`:
 * as it was after the first k events (quick when k goes upwards). It can lose power in turn. */
vfs_sim *vfs_sim_clone(const vfs_sim *sim);
vfs_sim *vfs_sim_at(const vfs_sim *sim, size_t k);

/* A copy as the machine finds it after the power cut: nothing is unsynced in it. */
vfs_sim *vfs_sim_crash(const vfs_sim *sim, const vfs_sim_loss *loss);
vfs_sim *vfs_sim_crash_at(const vfs_sim *sim, size_t k, const vfs_sim_loss *loss);

int vfs_sim_unsynced(const vfs_sim *sim, size_t k, vfs_sim_choices *choices); /* -ENOMEM */
int vfs_sim_unit_at(const vfs_sim *sim, uint64_t n, vfs_sim_unit *unit);      /* of the present; -ENOENT */

/* Names, sizes and device bytes of everything, whatever the identities; two disks that differ differ in it. */
uint64_t vfs_sim_hash(const vfs_sim *sim);

/* ---- whole files, for tests ---- */

enum { VFS_SIM_SEEN = 0, VFS_SIM_DEVICE = 1, VFS_SIM_STABLE = 2 };

/* The file's size in that layer, and up to `room` of its bytes; -ENOENT. The stable layer of a file is given even
 * while its name is not durable. */
int64_t vfs_sim_get(const vfs_sim *sim, int layer, const char *path, const char *name, void *into, size_t room);

/* Makes the content, the file and its directory as they are to be, durable in every layer at once. */
int vfs_sim_put(vfs_sim *sim, const char *path, const char *name, const void *from, size_t bytes);

#endif
