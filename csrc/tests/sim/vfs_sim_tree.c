/*
 * The simulator's directories: names, their changes since the last sync_dir, and paths.
 *
 * Only sync_dir of its directory makes a name durable. Until then every operation is kept, in order, so that a power cut
 * can apply only some of them. Links are counted for present names, for durable names, and for operations that are not
 * durable yet; a file without links and handles is forgotten.
 */
#include "tests/sim/vfs_sim_disk.h"

#undef NDEBUG /* assertions stay on in release */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/vfs_sim.h"

enum { PATH_BYTES_MAX = 4096 };

/* ---- names ---- */

int sim_check_name(const char *name) {
    size_t length = strnlen(name, (size_t)VFS_NAME_MAX + 1);

    if (length > VFS_NAME_MAX)
        return -ENAMETOOLONG;
    if (length == 0 || strchr(name, '/') != NULL || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return -EINVAL;
    return 0;
}

static const char *text(const sim_blob *name) { return (const char *)name->data; }

static size_t find_entry(const sim_names *names, const char *name) {
    size_t i = 0;

    while (i < names->count && strcmp(text(names->entries[i].name), name) != 0)
        i++;
    return i;
}

uint64_t sim_lookup(const sim_names *names, const char *name) {
    size_t i = find_entry(names, name);

    return i < names->count ? names->entries[i].id : 0;
}

static void remove_entry(sim_names *names, size_t i) {
    sim_blob_drop(names->entries[i].name, 1);
    names->entries[i] = names->entries[--names->count];
}

static int set_entry(sim_names *names, sim_blob *name, uint64_t id) {
    size_t i = find_entry(names, text(name));

    if (i == names->count) {
        if (sim_reserve(&names->entries, &names->room, names->count, 1, sizeof *names->entries) != 0)
            return -ENOMEM;
        names->entries[names->count++].name = sim_blob_take(name, 1);
    }
    names->entries[i].id = id;
    return 0;
}

int sim_names_apply(sim_names *names, const sim_dir_change *change) {
    size_t from, to;

    if (change->kind == SIM_LINK)
        return set_entry(names, change->name, change->node);
    from = find_entry(names, text(change->name));
    if (from == names->count)
        return 0;
    if (change->kind == SIM_UNLINK) {
        remove_entry(names, from);
        return 0;
    }
    to = find_entry(names, text(change->to));
    if (to < names->count) {
        names->entries[to].id = names->entries[from].id;
        remove_entry(names, from);
    } else {
        sim_blob_drop(names->entries[from].name, 1);
        names->entries[from].name = sim_blob_take(change->to, 1);
    }
    return 0;
}

int sim_names_copy(sim_names *names, const sim_names *from) {
    assert(names->count == 0);
    if (sim_reserve(&names->entries, &names->room, 0, from->count, sizeof *names->entries) != 0)
        return -ENOMEM;
    for (size_t i = 0; i < from->count; i++) {
        names->entries[i] = from->entries[i];
        (void)sim_blob_take(from->entries[i].name, 1);
    }
    names->count = from->count;
    return 0;
}

void sim_names_free(sim_names *names) {
    for (size_t i = 0; i < names->count; i++)
        sim_blob_drop(names->entries[i].name, 1);
    free(names->entries);
    memset(names, 0, sizeof *names);
}

/* ---- operations ---- */

static void push_change(sim_disk *d, int kind, const sim_node *dir, uint64_t node, sim_blob *name, sim_blob *to) {
    assert(d->dir_change_count < d->dir_change_room); /* the caller reserved it */
    d->dir_changes[d->dir_change_count++] =
        (sim_dir_change){kind, dir->id, node, sim_blob_take(name, 1), sim_blob_take(to, 1)};
    d->generation++;
}

static int reserve_change(sim_disk *d) {
    return sim_reserve(&d->dir_changes, &d->dir_change_room, d->dir_change_count, 1, sizeof *d->dir_changes);
}

static void add_links(sim_disk *d, const sim_names *names, int by) {
    for (size_t i = 0; i < names->count; i++)
        sim_find(d, names->entries[i].id)->links += (uint32_t)by;
}

static void drop_name(sim_disk *d, uint64_t id) {
    sim_node *n = sim_find(d, id);

    assert(n->names > 0 && n->links > 0);
    n->names--;
    n->links--;
    sim_collect(d, id);
}

int sim_create(sim_disk *d, sim_node *dir, sim_blob *name, bool is_dir, uint64_t *id) {
    sim_node *n;
    int result = reserve_change(d);

    if (result == 0)
        result = sim_reserve(&dir->now.entries, &dir->now.room, dir->now.count, 1, sizeof *dir->now.entries);
    if (result != 0)
        return result;
    assert(sim_lookup(&dir->now, text(name)) == 0);
    n = sim_node_new(d, d->next_id, is_dir);
    if (n == NULL)
        return -ENOMEM;
    *id = d->next_id++;
    result = set_entry(&dir->now, name, *id);
    assert(result == 0);
    n->names = 1;
    n->links = 2; /* the name, and the operation */
    push_change(d, SIM_LINK, dir, *id, name, NULL);
    return 0;
}

static int remove_name(sim_disk *d, sim_node *dir, sim_blob *name, bool is_dir) {
    size_t i = find_entry(&dir->now, text(name));
    const sim_node *n;
    uint64_t id;

    if (i == dir->now.count)
        return -ENOENT;
    id = dir->now.entries[i].id;
    n = sim_find(d, id);
    if (n->is_dir != is_dir)
        return is_dir ? -ENOTDIR : -EISDIR;
    if (is_dir && n->now.count != 0)
        return -ENOTEMPTY;
    if (reserve_change(d) != 0)
        return -ENOMEM;
    push_change(d, SIM_UNLINK, dir, 0, name, NULL);
    remove_entry(&dir->now, i);
    drop_name(d, id);
    return 0;
}

int sim_unlink(sim_disk *d, sim_node *dir, sim_blob *name) { return remove_name(d, dir, name, false); }

int sim_remove_dir(sim_disk *d, sim_node *dir, sim_blob *name) { return remove_name(d, dir, name, true); }

int sim_rename(sim_disk *d, sim_node *dir, sim_blob *from, sim_blob *to) {
    uint64_t moved = sim_lookup(&dir->now, text(from));
    uint64_t displaced = sim_lookup(&dir->now, text(to));
    int result;

    if (moved == 0)
        return -ENOENT;
    if (displaced == moved)
        return 0;
    if (displaced != 0 && sim_find(d, displaced)->is_dir)
        return sim_find(d, moved)->is_dir ? -ENOTEMPTY : -EISDIR;
    if (displaced != 0 && sim_find(d, moved)->is_dir)
        return -ENOTDIR;
    if (reserve_change(d) != 0)
        return -ENOMEM;
    push_change(d, SIM_RENAME, dir, 0, from, to);
    result = sim_names_apply(&dir->now, &d->dir_changes[d->dir_change_count - 1]);
    assert(result == 0); /* a rename needs no room */
    if (displaced != 0)
        drop_name(d, displaced);
    return 0;
}

int sim_sync_dir(sim_disk *d, sim_node *dir) {
    sim_names before = dir->durable;
    sim_names after = {.count = 0};
    size_t kept = 0;

    if (sim_names_copy(&after, &dir->now) != 0)
        return -ENOMEM;
    add_links(d, &after, 1);
    dir->durable = after;
    add_links(d, &before, -1);
    for (size_t i = 0; i < d->dir_change_count; i++) {
        sim_dir_change change = d->dir_changes[i];

        if (change.dir != dir->id) {
            d->dir_changes[kept++] = change;
            continue;
        }
        if (change.kind == SIM_LINK) {
            sim_find(d, change.node)->links--;
            sim_collect(d, change.node);
        }
        sim_blob_drop(change.name, 1);
        sim_blob_drop(change.to, 1);
    }
    d->generation += d->dir_change_count != kept;
    d->dir_change_count = kept;
    for (size_t i = 0; i < before.count; i++)
        sim_collect(d, before.entries[i].id);
    sim_names_free(&before);
    return 0;
}

/* ---- paths ---- */

/* Removes leading, double and trailing slashes and "."; "" is the root. */
static int plain_path(const char *path, char *into) {
    size_t length = 0;

    if (strnlen(path, PATH_BYTES_MAX) == PATH_BYTES_MAX)
        return -ENAMETOOLONG;
    while (*path != '\0') {
        size_t part = strcspn(path, "/");

        if (part == 2 && path[0] == '.' && path[1] == '.')
            return -EINVAL;
        if (part != 0 && !(part == 1 && path[0] == '.')) {
            if (length != 0)
                into[length++] = '/';
            memcpy(into + length, path, part);
            length += part;
        }
        path += part;
        path += *path == '/';
    }
    into[length] = '\0';
    return 0;
}

static uint64_t walk(const sim_disk *d, char *path) {
    const sim_node *dir;
    uint64_t id = path[0] == '\0' ? SIM_ROOT : sim_lookup(&sim_find(d, SIM_ROOT)->now, path);
    char *slash = strrchr(path, '/');

    if (id != 0 || slash == NULL)
        return id;
    *slash = '\0';
    id = walk(d, path);
    *slash = '/';
    dir = sim_find(d, id);
    return dir != NULL ? sim_lookup(&dir->now, slash + 1) : 0;
}

/* Whether this is a leading part of a path that was made as a whole, whose name is in the root. */
static bool is_leading_part(const sim_disk *d, const char *path) {
    const sim_names *names = &sim_find(d, SIM_ROOT)->now;
    size_t length = strlen(path);

    for (size_t i = 0; i < names->count; i++) {
        if (strncmp(text(names->entries[i].name), path, length) == 0 && text(names->entries[i].name)[length] == '/')
            return true;
    }
    return false;
}

int sim_resolve(const sim_disk *d, const char *path, uint64_t *dir) {
    char plain[PATH_BYTES_MAX];
    int result = plain_path(path, plain);

    if (result != 0)
        return result;
    *dir = walk(d, plain);
    if (*dir == 0 && is_leading_part(d, plain))
        *dir = SIM_ROOT;
    if (*dir == 0)
        return -ENOENT;
    return sim_find(d, *dir)->is_dir ? 0 : -ENOTDIR;
}

int sim_resolve_new(const sim_disk *d, const char *path, uint64_t *dir, sim_blob **name) {
    char plain[PATH_BYTES_MAX];
    char *slash;
    const char *last = plain;
    int result = plain_path(path, plain);

    if (result != 0)
        return result;
    if (walk(d, plain) != 0 || is_leading_part(d, plain))
        return -EEXIST;
    *dir = SIM_ROOT;
    slash = strrchr(plain, '/');
    if (slash != NULL) {
        uint64_t parent;

        *slash = '\0';
        parent = walk(d, plain);
        *slash = '/';
        if (parent != 0) {
            *dir = parent;
            last = slash + 1;
        }
    }
    if (!sim_find(d, *dir)->is_dir)
        return -ENOTDIR;
    *name = sim_name_new(last);
    return *name != NULL ? 0 : -ENOMEM;
}

/* ---- files set by tests ---- */

static int make_durable(sim_disk *d, sim_node *dir, sim_blob *name, uint64_t id) {
    uint64_t before = sim_lookup(&dir->durable, text(name));

    if (set_entry(&dir->durable, name, id) != 0)
        return -ENOMEM;
    sim_find(d, id)->links++;
    if (before != 0) {
        sim_find(d, before)->links--;
        sim_collect(d, before);
    }
    return 0;
}

static int find_or_make(sim_disk *d, uint64_t dir_id, sim_blob *name, bool is_dir, uint64_t *id) {
    sim_node *dir = sim_find(d, dir_id);
    bool made;
    int result = 0;

    *id = sim_lookup(&dir->now, text(name));
    made = *id == 0;
    if (made)
        result = sim_create(d, dir, name, is_dir, id);
    if (result == 0)
        result = make_durable(d, dir, name, *id);
    if (result == 0 && made) { /* its operation can no longer be lost */
        sim_blob_drop(d->dir_changes[--d->dir_change_count].name, 1);
        sim_find(d, *id)->links--;
    }
    return result;
}

int sim_put(sim_disk *d, const char *path, sim_blob *name, const void *from, size_t bytes, uint64_t *id) {
    uint64_t dir;
    int result = sim_resolve(d, path, &dir);

    if (result == -ENOENT) {
        sim_blob *last;
        uint64_t above;

        result = sim_resolve_new(d, path, &above, &last);
        if (result == 0) {
            result = find_or_make(d, above, last, true, &dir);
            sim_blob_drop(last, 1);
        }
    }
    if (result == 0)
        result = find_or_make(d, dir, name, false, id);
    if (result == 0 && sim_find(d, *id)->is_dir)
        result = -EISDIR;
    return result != 0 ? result : sim_replace(d, sim_find(d, *id), from, bytes);
}
