/*
 * The simulator's disk: files and directories in layers, what is not yet durable of them, and nothing else.
 *
 * Private to vfs_sim*.c. It knows no handles, faults, locks or journal. The caller holds the simulator's mutex. A
 * function that returns -errno has changed nothing that can be observed.
 *
 * What always holds
 *   - Bytes beyond a file's size are zero in every layer; a NULL page is zeros.
 *   - A blob is changed in place only if all its references belong to the page that changes it; simulators share
 *     nothing but blobs.
 *   - Nodes are sorted by id; a directory's id is below the ids of everything in it, and ids are never reused.
 *   - `changes` and `dir_changes` are in the order of the calls, and hold exactly what a power cut may lose.
 */
#ifndef LOGSTORE_VFS_SIM_DISK_H
#define LOGSTORE_VFS_SIM_DISK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SIM_PAGE = 4096, SIM_SECTOR = 512, SIM_LAYERS = 3, SIM_ROOT = 1 };

/* Sets of layers, bits of VFS_SIM_SEEN, _DEVICE and _STABLE. */
enum { SIM_CACHE_BIT = 1, SIM_DEVICE_BIT = 2, SIM_WRITTEN_BITS = 3, SIM_ALL_BITS = 7 };

/* Bytes with several owners: a page, a name (with its NUL), or the data of a write. */
typedef struct {
    atomic_size_t refs;
    _Atomic uint64_t hash; /* 0: not yet known */
    size_t bytes;
    unsigned char data[];
} sim_blob;

typedef struct {
    sim_blob *layer[SIM_LAYERS];
    bool allocated; /* occupies space */
} sim_page;

typedef struct {
    sim_blob *name;
    uint64_t id;
} sim_entry;

typedef struct {
    sim_entry *entries;
    size_t count;
    size_t room;
} sim_names;

typedef struct {
    uint64_t id;
    bool is_dir;
    uint32_t names;   /* entries that name it now */
    uint32_t links;   /* those, the durable entries, and operations that are not durable yet */
    uint32_t handles; /* open ones */

    uint64_t size; /* of seen and device */
    uint64_t stable_size;
    uint64_t barrier; /* while a crash image is made: the offset from which a lost shrinking loses later changes */
    sim_page *pages;
    size_t page_count;
    uint64_t allocated; /* pages */
    int error;          /* of the last failed sync */
    uint32_t error_seq; /* counts failed syncs: each open handle reports each of them once */

    sim_names now; /* of a directory */
    sim_names durable;
} sim_node;

enum { SIM_WRITE = 1, SIM_GROW, SIM_SHRINK };

typedef struct {
    int kind;
    uint64_t node;
    uint64_t at; /* or the new size */
    uint64_t bytes;
    sim_blob *data; /* `bytes` from `skip` on */
    uint64_t skip;
} sim_change;

enum { SIM_LINK = 1, SIM_RENAME, SIM_UNLINK };

typedef struct {
    int kind;
    uint64_t dir;
    uint64_t node; /* of SIM_LINK */
    sim_blob *name;
    sim_blob *to; /* of SIM_RENAME */
} sim_dir_change;

typedef struct {
    sim_node **nodes;
    size_t node_count;
    size_t node_room;
    sim_change *changes;
    size_t change_count;
    size_t change_room;
    sim_dir_change *dir_changes;
    size_t dir_change_count;
    size_t dir_change_room;
    uint64_t next_id;
    uint64_t random; /* state of random() */
    uint64_t now_us;
    uint64_t monotonic_us;
    uint64_t generation; /* grows with every change */
} sim_disk;

/* ---- blobs and small tools ---- */

sim_blob *sim_blob_new(size_t bytes, const void *data,
                       size_t refs); /* data NULL: zeros; returns NULL if there is no memory */
sim_blob *sim_name_new(const char *name);
sim_blob *sim_blob_take(sim_blob *blob, size_t refs); /* NULL gives NULL */
void sim_blob_drop(sim_blob *blob, size_t refs);
uint64_t sim_mix(uint64_t x);
uint64_t sim_random(uint64_t *state);
void sim_fill(uint64_t *state, unsigned char *into, size_t bytes); /* into NULL: only advances the generator */
/* Makes room for `more` items after the first `count`; -ENOMEM. */
int sim_reserve(void *array, size_t *room, size_t count, size_t more, size_t item_bytes);

/* ---- the disk ---- */

int sim_disk_init(sim_disk *d);
void sim_disk_free(sim_disk *d);
int sim_disk_clone(sim_disk *d, const sim_disk *from); /* d is unset before; without handles */
sim_node *sim_find(const sim_disk *d, uint64_t id);    /* NULL: gone */
void sim_collect(sim_disk *d, uint64_t id);            /* forgets a file that has neither name nor handle */
uint64_t sim_disk_used(const sim_disk *d);             /* pages */
uint64_t sim_disk_hash(const sim_disk *d);
sim_node *sim_node_new(sim_disk *d, uint64_t id, bool is_dir); /* id is above all others; NULL: no memory */

/* ---- directories (vfs_sim_tree.c) ---- */

int sim_check_name(const char *name);
uint64_t sim_lookup(const sim_names *names, const char *name); /* 0: absent */
int sim_resolve(const sim_disk *d, const char *path, uint64_t *dir);
/* The directory and the name under which make_dir makes that path; the caller drops the name. -EEXIST. */
int sim_resolve_new(const sim_disk *d, const char *path, uint64_t *dir, sim_blob **name);
int sim_create(sim_disk *d, sim_node *dir, sim_blob *name, bool is_dir, uint64_t *id);
int sim_unlink(sim_disk *d, sim_node *dir, sim_blob *name);
int sim_remove_dir(sim_disk *d, sim_node *dir, sim_blob *name);
int sim_rename(sim_disk *d, sim_node *dir, sim_blob *from, sim_blob *to);
int sim_sync_dir(sim_disk *d, sim_node *dir);
int sim_put(sim_disk *d, const char *path, sim_blob *name, const void *from, size_t bytes, uint64_t *id);

int sim_names_apply(sim_names *names, const sim_dir_change *change); /* -ENOMEM; counts no links */
int sim_names_copy(sim_names *names, const sim_names *from);         /* into empty ones */
void sim_names_free(sim_names *names);

/* ---- pages (vfs_sim_page.c) ---- */

int sim_node_pages(sim_node *n, size_t count);
int sim_page_own(sim_page *page, unsigned layers); /* gives these layers, which share one blob, a blob of their own */
void sim_page_set(sim_page *page, unsigned layers, sim_blob *blob);
void sim_page_empty(sim_page *page, unsigned layers);
void sim_page_allocated(sim_node *n, sim_page *page, bool allocated);
void sim_read(const sim_node *n, int layer, void *into, size_t bytes, uint64_t at);
int sim_clip(sim_node *n, unsigned layers, uint64_t size); /* zeros from there on */

/* The units of a change, and the fate of one of them applied to the layers, which must be equal. The caller keeps `size`
 * (the size so far) and `barrier` (where a lost shrinking began) from change to change. */
uint64_t sim_change_units(const sim_change *c);
void sim_change_unit(const sim_change *c, uint64_t unit, uint64_t *from, uint64_t *to); /* of a write */
int sim_apply(sim_node *n, unsigned layers, const sim_change *c, uint64_t unit, int fate, uint64_t seed, uint64_t *size,
              uint64_t *barrier);
void sim_drop_changes(sim_disk *d, uint64_t id);

/* ---- files (vfs_sim_file.c) ---- */

int sim_write(sim_disk *d, sim_node *n, sim_blob *data, uint64_t bytes, uint64_t at, bool direct);
int sim_truncate(sim_disk *d, sim_node *n, uint64_t size);
int sim_allocate(sim_disk *d, sim_node *n, uint64_t size);
/* How many of the bytes fit, given the new pages that they need. */
uint64_t sim_room_for(const sim_disk *d, const sim_node *n, uint64_t bytes, uint64_t at, uint64_t capacity);
void sim_sync(sim_disk *d, sim_node *n);
int sim_sync_failed(sim_disk *d, sim_node *n, int error, uint64_t survive); /* -ENOMEM: it did not happen */
int sim_replace(sim_disk *d, sim_node *n, const void *from, size_t bytes);  /* durable at once */

#endif
