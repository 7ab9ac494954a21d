/*
 * The contract of vfs.h, which both implementations keep. test_vfs_sim.c has the simulator's other promises.
 *
 * Each test is a function whose name is the promise. The contract tests run twice, in a fresh directory of the real
 * file system and in a fresh simulator; one random sequence of calls must give the same answers in both.
 */
#include "tests/kit/vfs_test.h"

#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    vfs *v;
    int dir;
    const char *path; /* of that directory */
    bool real;
} place;

static int create(const place *p, const char *name) { return p->v->open(p->v, p->dir, name, VFS_WRITE | VFS_CREATE); }

/* ---- the contract ---- */

static void what_is_written_is_read_back_up_to_the_end(const place *p) {
    char into[16];
    int f = create(p, "a");

    require(f >= 0);
    check(p->v->size(p->v, f) == 0);
    check(p->v->pread(p->v, f, into, sizeof into, 0) == 0);
    check(p->v->pwrite(p->v, f, "hello", 5, 3) == 5);
    check(p->v->size(p->v, f) == 8);
    check(p->v->pread(p->v, f, into, sizeof into, 0) == 8);
    check(memcmp(into, "\0\0\0hello", 8) == 0);
    check(p->v->pread(p->v, f, into, sizeof into, 8) == 0);
    check(p->v->pwrite(p->v, f, "x", 0, 100) == 0);
    check(p->v->size(p->v, f) == 8);
    check(p->v->pread(p->v, f, into, 1, UINT64_MAX) == -EINVAL);
    check(p->v->pwrite(p->v, f, into, 1, UINT64_MAX) < 0);
    check(p->v->sync_data(p->v, f) == 0 && p->v->sync_file(p->v, f) == 0 && p->v->sync_dir(p->v, p->dir) == 0);
    check(p->v->advise_sequential(p->v, f, 0, 8) == 0);
    check(p->v->close(p->v, f) == 0);
    check(p->v->close(p->v, f) == -EBADF);
}

static void opening_keeps_to_its_flags(const place *p) {
    int f = p->v->open(p->v, p->dir, "a", VFS_WRITE);
    int g;

    check(f == -ENOENT);
    f = p->v->open(p->v, p->dir, "a", VFS_WRITE | VFS_CREATE | VFS_EXCLUSIVE);
    require(f >= 0);
    check(p->v->open(p->v, p->dir, "a", VFS_WRITE | VFS_CREATE | VFS_EXCLUSIVE) == -EEXIST);
    g = p->v->open(p->v, p->dir, "a", 0);
    require(g >= 0);
    check(p->v->pwrite(p->v, g, "x", 1, 0) == -EBADF);
    check(p->v->allocate(p->v, g, 10) == -EBADF);
    check(p->v->truncate(p->v, g, 0) == -EINVAL);
    check(p->v->close(p->v, g) == 0);
    g = create(p, "a");
    require(g >= 0);
    check(write_all(p->v, g, "yes", 3, 0) && reads(p->v, f, "yes", 3, 0));
    check(p->v->close(p->v, f) == 0 && p->v->close(p->v, g) == 0);
}

static void names_are_single_components(const place *p) {
    static const char *const bad[] = {"", ".", "..", "a/b", "/", "/a", "a/"};
    char long_name[VFS_NAME_MAX + 2];
    int f;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        check(p->v->open(p->v, p->dir, bad[i], 0) == -EINVAL);
        check(p->v->open(p->v, p->dir, bad[i], VFS_WRITE | VFS_CREATE) == -EINVAL);
        check(p->v->open_subdir(p->v, p->dir, bad[i], 1) == -EINVAL);
        check(p->v->remove_dir(p->v, p->dir, bad[i]) == -EINVAL);
        check(p->v->unlink(p->v, p->dir, bad[i]) == -EINVAL);
        check(p->v->rename(p->v, p->dir, bad[i], "ok") == -EINVAL);
        check(p->v->rename(p->v, p->dir, "ok", bad[i]) == -EINVAL);
    }
    memset(long_name, 'n', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    check(create(p, long_name) == -ENAMETOOLONG);
    check(p->v->unlink(p->v, p->dir, long_name) == -ENAMETOOLONG);
    long_name[VFS_NAME_MAX] = '\0';
    f = create(p, long_name);
    require(f >= 0);
    check(p->v->rename(p->v, p->dir, long_name, "a/b") == -EINVAL);
    check(p->v->close(p->v, f) == 0 && p->v->unlink(p->v, p->dir, long_name) == 0);
}

static void a_directory_knows_the_free_bytes_of_its_file_system(const place *p) {
    int f = create(p, "file");

    require(f >= 0);
    check(p->v->free_bytes(p->v, p->dir) > 0);
    check(p->v->free_bytes(p->v, -1) == -EBADF);
    check(p->v->close(p->v, f) == 0);
}

static void directories_and_files_are_distinguished(const place *p) {
    int f = create(p, "file");
    int sub = p->v->open_subdir(p->v, p->dir, "sub", 1);
    int again = p->v->open_subdir(p->v, p->dir, "sub", 1);
    char path[512];

    require(f >= 0 && sub >= 0 && again >= 0);
    check(p->v->open_subdir(p->v, p->dir, "none", 0) == -ENOENT);
    check(p->v->open_subdir(p->v, p->dir, "file", 0) == -ENOTDIR);
    check(p->v->open_subdir(p->v, p->dir, "file", 1) == -ENOTDIR);
    check(p->v->open(p->v, p->dir, "sub", 0) == -EISDIR);
    check(p->v->open(p->v, p->dir, "sub", VFS_WRITE | VFS_CREATE) == -EISDIR);
    check(p->v->unlink(p->v, p->dir, "sub") == -EISDIR);
    check(p->v->remove_dir(p->v, p->dir, "file") == -ENOTDIR && p->v->remove_dir(p->v, p->dir, "none") == -ENOENT);
    check(p->v->rename(p->v, p->dir, "file", "sub") == -EISDIR);
    check(p->v->rename(p->v, p->dir, "sub", "file") == -ENOTDIR);
    check(p->v->open(p->v, f, "x", VFS_WRITE | VFS_CREATE) == -ENOTDIR);
    check(p->v->make_dir(p->v, p->path) == -EEXIST);
    (void)snprintf(path, sizeof path, "%s/sub", p->path);
    check(p->v->make_dir(p->v, path) == -EEXIST);
    check(p->v->close(p->v, again) == 0);
    again = p->v->open_dir(p->v, path);
    require(again >= 0);
    check(p->v->close(p->v, p->v->open(p->v, sub, "inner", VFS_WRITE | VFS_CREATE)) == 0);
    check(p->v->remove_dir(p->v, p->dir, "sub") == -ENOTEMPTY);
    check(p->v->unlink(p->v, again, "inner") == 0);
    check(p->v->close(p->v, p->v->open_subdir(p->v, p->dir, "empty", 1)) == 0);
    check(p->v->remove_dir(p->v, p->dir, "empty") == 0 && p->v->remove_dir(p->v, p->dir, "empty") == -ENOENT);
    (void)snprintf(path, sizeof path, "%s/file", p->path);
    check(p->v->open_dir(p->v, path) == -ENOTDIR);
    (void)snprintf(path, sizeof path, "%s/none", p->path);
    check(p->v->open_dir(p->v, path) == -ENOENT);
    check(p->v->close(p->v, f) == 0 && p->v->close(p->v, sub) == 0 && p->v->close(p->v, again) == 0);
}

static void sizes_change_with_zeros(const place *p) {
    static unsigned char full[3 * BLOCK];
    int f = create(p, "a");
    int result;

    require(f >= 0);
    memset(full, 7, sizeof full);
    check(write_all(p->v, f, full, sizeof full, 0));
    check(p->v->truncate(p->v, f, BLOCK + 10) == 0 && p->v->size(p->v, f) == BLOCK + 10);
    check(p->v->truncate(p->v, f, 3 * BLOCK) == 0 && p->v->size(p->v, f) == 3 * BLOCK);
    check(reads_fill(p->v, f, 7, BLOCK + 10, 0) && reads_fill(p->v, f, 0, 2 * BLOCK - 10, BLOCK + 10));
    result = p->v->allocate(p->v, f, 5 * BLOCK);
    check(result == 0 || result == -EOPNOTSUPP);
    if (result == 0) {
        check(p->v->size(p->v, f) == 5 * BLOCK && reads_fill(p->v, f, 0, 2 * BLOCK, 3 * BLOCK));
        check(p->v->allocate(p->v, f, BLOCK) == 0 && p->v->size(p->v, f) == 5 * BLOCK);
        check(p->v->allocate(p->v, f, 0) == 0 && p->v->size(p->v, f) == 5 * BLOCK);
    }
    check(p->v->truncate(p->v, f, UINT64_MAX) == -EFBIG && p->v->allocate(p->v, f, UINT64_MAX) == -EFBIG);
    check(p->v->close(p->v, f) == 0);
}

static void rename_replaces_and_handles_follow_the_file(const place *p) {
    int a = create(p, "a");
    int b = create(p, "b");
    int c;

    require(a >= 0 && b >= 0);
    check(write_all(p->v, a, "from a", 6, 0) && write_all(p->v, b, "from b", 6, 0));
    check(p->v->rename(p->v, p->dir, "a", "b") == 0);
    check(p->v->rename(p->v, p->dir, "a", "b") == -ENOENT);
    check(p->v->rename(p->v, p->dir, "b", "b") == 0);
    check(reads(p->v, a, "from a", 6, 0) && reads(p->v, b, "from b", 6, 0));
    c = p->v->open(p->v, p->dir, "b", 0);
    require(c >= 0);
    check(reads(p->v, c, "from a", 6, 0));
    check(p->v->unlink(p->v, p->dir, "b") == 0 && p->v->unlink(p->v, p->dir, "b") == -ENOENT);
    check(write_all(p->v, a, "still ", 6, 0) && reads(p->v, c, "still ", 6, 0));
    check(p->v->sync_data(p->v, a) == -ESTALE && p->v->sync_file(p->v, b) == -ESTALE); /* it has no name */
    check(p->v->close(p->v, a) == 0 && p->v->close(p->v, b) == 0 && p->v->close(p->v, c) == 0);
}

typedef struct {
    const place *p;
    int seen;
    int stop_after;
} listing;

static int count_and_open(void *context, const char *name) {
    listing *l = context;
    int f = l->p->v->open(l->p->v, l->p->dir, name, 0);

    (void)l->p->v->close(l->p->v, f);
    if (f < 0 || strlen(name) != 1 || name[0] < 'a' || name[0] > 'e')
        return -EIO;
    l->seen += 1 << (4 * (name[0] - 'a'));
    return --l->stop_after == 0 ? 42 : 0;
}

static void a_listing_gives_each_name_once_and_may_use_the_table(const place *p) {
    listing all = {p, 0, -1};
    listing two = {p, 0, 2};

    for (char name[2] = "a"; name[0] <= 'e'; name[0]++)
        check(p->v->close(p->v, create(p, name)) == 0);
    check(p->v->list(p->v, p->dir, count_and_open, &all) == 0 && all.seen == 0x11111);
    all.seen = 0;
    check(p->v->list(p->v, p->dir, count_and_open, &all) == 0 && all.seen == 0x11111);
    check(p->v->list(p->v, p->dir, count_and_open, &two) == 42 && two.stop_after == 0);
}

static void locks_belong_to_the_open_file(const place *p) {
    int a = create(p, "LOCK");
    int b = create(p, "LOCK");
    int c = p->v->open(p->v, p->dir, "LOCK", 0);

    require(a >= 0 && b >= 0 && c >= 0);
    check(p->v->lock(p->v, a, 1) == 0 && p->v->lock(p->v, a, 1) == 0);
    check(p->v->lock(p->v, b, 1) == -EWOULDBLOCK && p->v->lock(p->v, b, 0) == -EWOULDBLOCK);
    check(p->v->close(p->v, a) == 0);
    check(p->v->lock(p->v, b, 0) == 0 && p->v->lock(p->v, c, 0) == 0);
    check(p->v->lock(p->v, b, 1) == -EWOULDBLOCK); /* and b's shared lock is gone with that */
    check(p->v->lock(p->v, c, 1) == 0);
    check(p->v->close(p->v, b) == 0 && p->v->close(p->v, c) == 0);
}

static void direct_transfers_are_aligned_and_agree_with_buffered_ones(const place *p) {
    static _Alignas(BLOCK) unsigned char block[BLOCK];
    int f = create(p, "a");
    int g = p->v->open(p->v, p->dir, "a", VFS_WRITE | VFS_DIRECT);

    require(f >= 0);
    if (p->real && g == -EINVAL) {
        check(p->v->close(p->v, f) == 0);
        return; /* tmpfs of older kernels */
    }
    require(g >= 0);
    memset(block, 1, sizeof block);
    check(write_all(p->v, f, block, BLOCK, 0) && reads_fill(p->v, g, 1, BLOCK, 0));
    memset(block, 2, sizeof block);
    check(write_all(p->v, g, block, BLOCK, 0) && reads_fill(p->v, f, 2, BLOCK, 0));
    check(write_all(p->v, g, block, BLOCK, BLOCK) && p->v->size(p->v, f) == 2 * BLOCK);
    check(p->v->truncate(p->v, f, BLOCK + 100) == 0);
    check(p->v->pread(p->v, g, block, BLOCK, BLOCK) == 100);
    if (!p->real) { /* some real file systems take anything */
        check(p->v->pwrite(p->v, g, block, 100, 0) == -EINVAL && p->v->pwrite(p->v, g, block, SECTOR, 1) == -EINVAL);
        check(p->v->pread(p->v, g, block, 100, 0) == -EINVAL && p->v->pread(p->v, g, block + 1, SECTOR, 0) == -EINVAL);
    }
    check(p->v->close(p->v, f) == 0 && p->v->close(p->v, g) == 0);
}

static void clocks_advance_and_random_bytes_differ(const place *p) {
    unsigned char a[40] = {0};
    unsigned char b[40] = {0};
    uint64_t first = p->v->monotonic_us(p->v);

    check(p->v->now_us(p->v) > UINT64_C(1500000000000000));
    check(p->v->monotonic_us(p->v) >= first);
    check(p->v->random(p->v, a, sizeof a) == 0 && p->v->random(p->v, b, sizeof b) == 0);
    check(memcmp(a, b, sizeof a) != 0);
}

static void an_event_takes_any_number_of_signals(const place *p) {
    int e = p->v->event_new(p->v);

    require(e >= 0);
    for (int i = 0; i < 3; i++)
        check(p->v->event_signal(p->v, e) == 0);
    if (p->real) {
        uint64_t count = UINT64_MAX - 1;

        check(read(e, &count, sizeof count) == (ssize_t)sizeof count && count == 3);
        count = UINT64_MAX - 1;
        check(write(e, &count, sizeof count) == (ssize_t)sizeof count);
        check(p->v->event_signal(p->v, e) == 0); /* full */
    } else {
        check(vfs_sim_event_count(p->v->context, e) == 3);
    }
    check(p->v->event_close(p->v, e) == 0);
    check(p->v->event_signal(p->v, e) == -EBADF);
}

static void a_socket_takes_what_fits_and_no_call_waits_or_signals(const place *p) {
    uint8_t bytes[4096] = {1}, got[4096];
    int ends[2];

    require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    check(p->v->send(p->v, ends[0], bytes, 5) == 5 && recv(ends[1], got, sizeof got, MSG_DONTWAIT) == 5);
    int64_t sent;
    do
        sent = p->v->send(p->v, ends[0], bytes, sizeof bytes);
    while (sent > 0);
    check(sent == -EAGAIN);
    (void)close(ends[1]);
    check(p->v->send(p->v, ends[0], bytes, 5) == -EPIPE);
    int second = p->v->socket_dup(p->v, ends[0]);
    require(second >= 0 && second != ends[0]);
    (void)close(ends[0]);
    check(p->v->send(p->v, ends[0], bytes, 5) == -EBADF && p->v->send(p->v, second, bytes, 5) == -EPIPE);
    check(p->v->socket_close(p->v, second) == 0 && p->v->send(p->v, second, bytes, 5) == -EBADF);
    check(p->v->socket_dup(p->v, second) == -EBADF);
}

typedef struct {
    const place *p;
    int file;
    int number;
    bool fine;
} worker;

static void *write_own_blocks(void *context) {
    worker *w = context;
    vfs *v = w->p->v;
    unsigned char block[1000], back[1000];
    char name[16];

    w->fine = true;
    memset(block, 'A' + w->number, sizeof block);
    (void)snprintf(name, sizeof name, "own%d", w->number);
    for (unsigned i = 0; i < 50; i++) {
        uint64_t at = (i * 4 + (unsigned)w->number) * sizeof block;
        int own = create(w->p, name);

        w->fine = w->fine && own >= 0 && write_all(v, w->file, block, sizeof block, at) &&
                  v->sync_data(v, w->file) == 0 && v->pread(v, w->file, back, sizeof back, at) == sizeof back &&
                  memcmp(block, back, sizeof block) == 0 && v->close(v, own) == 0 &&
                  v->rename(v, w->p->dir, name, name) == 0 && v->unlink(v, w->p->dir, name) == 0;
    }
    return NULL;
}

static void threads_do_not_disturb_each_other(const place *p) {
    worker workers[4];
    pthread_t threads[4];
    int f = create(p, "shared");

    require(f >= 0);
    for (int i = 0; i < 4; i++) {
        workers[i] = (worker){p, f, i, false};
        require(pthread_create(&threads[i], NULL, write_own_blocks, &workers[i]) == 0);
    }
    for (int i = 0; i < 4; i++)
        check(pthread_join(threads[i], NULL) == 0 && workers[i].fine);
    check(p->v->size(p->v, f) == 200 * 1000);
    check(p->v->close(p->v, f) == 0);
}

/* ---- what only Linux has ---- */

static void links_pipes_and_umasks_do_not_mislead(const place *p) {
    mode_t before;
    struct stat st;
    int f, d;
    char path[512];

    require(p->real);
    check(symlinkat("nowhere", p->dir, "link") == 0 && symlinkat(".", p->dir, "dirlink") == 0);
    check(mkfifoat(p->dir, "fifo", 0600) == 0);
    check(p->v->open(p->v, p->dir, "link", 0) == -ELOOP);
    check(p->v->open(p->v, p->dir, "link", VFS_WRITE | VFS_CREATE) == -ELOOP);
    check(p->v->open(p->v, p->dir, "link", VFS_WRITE | VFS_CREATE | VFS_EXCLUSIVE) == -EEXIST);
    check(p->v->open_subdir(p->v, p->dir, "dirlink", 1) == -ENOTDIR);
    check(p->v->open(p->v, p->dir, "fifo", 0) == -VFS_NOT_REGULAR &&
          p->v->open(p->v, p->dir, "fifo", VFS_WRITE) == -VFS_NOT_REGULAR);
    for (mode_t mask = 0; mask <= 0777; mask += 0777) {
        before = umask(mask);
        f = create(p, "f");
        d = p->v->open_subdir(p->v, p->dir, "d", 1);
        (void)umask(before);
        check(f >= 0 && fstat(f, &st) == 0 && (st.st_mode & 07777) == 0600);
        check(fcntl(f, F_GETFD) == FD_CLOEXEC && fcntl(d, F_GETFD) == FD_CLOEXEC);
        check(d >= 0 && fstat(d, &st) == 0 && (st.st_mode & 0777) == 0700);
        check(p->v->close(p->v, f) == 0 && p->v->close(p->v, d) == 0);
        check(p->v->unlink(p->v, p->dir, "f") == 0 && unlinkat(p->dir, "d", AT_REMOVEDIR) == 0);
    }
    (void)snprintf(path, sizeof path, "%s/no/such", p->path);
    check(p->v->make_dir(p->v, path) == -ENOENT);
}

/* ---- one sequence of calls, two file systems ---- */

enum { OPEN_FILES = 5, STEPS = 4000, OFFSET_MAX = 5 * BLOCK };

static unsigned char both_bytes[2][3 * BLOCK];

typedef struct {
    const place *at[2];
    int files[2][OPEN_FILES];
    uint64_t random;
} pair;

static int64_t one_call(const pair *both, int which, int slot, uint64_t kind, uint64_t a, uint64_t b) {
    static const char *const names[] = {"a", "b", "c", "sub", "a/", "d"};
    static const unsigned flags[] = {0, VFS_WRITE, VFS_WRITE | VFS_CREATE, VFS_WRITE | VFS_CREATE | VFS_EXCLUSIVE};
    vfs *v = both->at[which]->v;
    int dir = both->at[which]->dir;
    int file = both->files[which][slot];

    switch (kind) {
    case 0:
        return v->open(v, dir, names[a % 6], flags[b % 4]);
    case 1:
        return v->close(v, file);
    case 2:
        return v->rename(v, dir, names[a % 6], names[b % 6]);
    case 3:
        return a % 3 == 0 ? v->unlink(v, dir, names[b % 6]) : 0;
    case 4:
        return a % 4 == 0 ? v->truncate(v, file, b % OFFSET_MAX) : 0;
    case 5:
        return a % 4 == 0 ? v->allocate(v, file, b % OFFSET_MAX) : 0;
    case 6:
        return v->lock(v, file, a % 2 == 0);
    case 7:
        return a % 4 == 0 ? v->sync_data(v, file) : v->size(v, file);
    case 8:
    case 9:
        return v->pwrite(v, file, both_bytes[which], a % sizeof both_bytes[which], b % OFFSET_MAX);
    default:
        return v->pread(v, file, both_bytes[which], a % sizeof both_bytes[which], b % OFFSET_MAX);
    }
}

static void a_random_sequence_gives_the_same_answers(const place *real, const place *sim) {
    pair both = {.at = {real, sim}, .random = 20240117};

    for (int i = 0; i < OPEN_FILES; i++)
        both.files[0][i] = both.files[1][i] = -1;
    for (int step = 0; step < STEPS; step++) {
        int slot = (int)(chance(&both.random) % OPEN_FILES);
        uint64_t kind = both.files[0][slot] < 0 ? 0 : 1 + chance(&both.random) % 11;
        uint64_t a = chance(&both.random);
        uint64_t b = chance(&both.random);
        int64_t result[2];

        memset(both_bytes, (int)(chance(&both.random) % 256), sizeof both_bytes);
        for (int which = 0; which < 2; which++)
            result[which] = one_call(&both, which, slot, kind, a, b);
        if (kind == 0 && result[0] >= 0 && result[1] >= 0) {
            both.files[0][slot] = (int)result[0];
            both.files[1][slot] = (int)result[1];
        } else {
            if (!check_at(result[0] == result[1] && memcmp(both_bytes[0], both_bytes[1], sizeof both_bytes[0]) == 0,
                          "the same answer from both", __FILE__, __func__, __LINE__))
                printf("  step %d kind %d: %lld and %lld\n", step, (int)kind, (long long)result[0],
                       (long long)result[1]);
            if (kind == 1)
                both.files[0][slot] = both.files[1][slot] = -1;
        }
        if (failures_here > 0)
            break;
    }
    for (int i = 0; i < OPEN_FILES; i++) {
        for (int which = 0; which < 2; which++)
            (void)both.at[which]->v->close(both.at[which]->v, both.files[which][i]);
    }
}

/* ---- running them ---- */

typedef void contract(const place *p);

static const struct {
    const char *promise;
    contract *test;
    bool real_only;
} contracts[] = {
#define TEST(name) \
    { #name, name, false }
    TEST(what_is_written_is_read_back_up_to_the_end),
    TEST(opening_keeps_to_its_flags),
    TEST(names_are_single_components),
    TEST(a_directory_knows_the_free_bytes_of_its_file_system),
    TEST(directories_and_files_are_distinguished),
    TEST(sizes_change_with_zeros),
    TEST(rename_replaces_and_handles_follow_the_file),
    TEST(a_listing_gives_each_name_once_and_may_use_the_table),
    TEST(locks_belong_to_the_open_file),
    TEST(direct_transfers_are_aligned_and_agree_with_buffered_ones),
    TEST(clocks_advance_and_random_bytes_differ),
    TEST(an_event_takes_any_number_of_signals),
    TEST(a_socket_takes_what_fits_and_no_call_waits_or_signals),
    TEST(threads_do_not_disturb_each_other),
    {"links_pipes_and_umasks_do_not_mislead", links_pipes_and_umasks_do_not_mislead, true},
};

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

/* Makes an empty directory; false if that is not possible. */
static bool place_new(place *p, vfs_sim *sim, char *path, size_t room) {
    const char *parent = getenv("TMPDIR");

    if (sim != NULL) {
        (void)snprintf(path, room, "/test");
        *p = (place){vfs_sim_table(sim), -1, path, false};
        if (p->v->make_dir(p->v, path) != 0)
            return false;
    } else {
        (void)snprintf(path, room, "%s/test_vfs.XXXXXX", parent != NULL ? parent : "/tmp");
        if (mkdtemp(path) == NULL)
            return false;
        *p = (place){vfs_posix(), -1, path, true};
    }
    p->dir = p->v->open_dir(p->v, path);
    return p->dir >= 0;
}

static void place_free(place *p, vfs_sim *sim) {
    check(p->v->close(p->v, p->dir) == 0);
    if (p->real)
        check(nftw(p->path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
    else
        check(vfs_sim_handles(sim) == 0);
    vfs_sim_free(sim);
}

int main(void) {
    int passed = 0;
    int failed = 0;
    place p, q;
    char path[256], other[256];
    vfs_sim *sim;

    for (size_t i = 0; i < sizeof contracts / sizeof *contracts; i++) {
        for (int real = 0; real < 2; real++) {
            if (contracts[i].real_only && !real)
                continue;
            failures_here = 0;
            sim = real ? NULL : vfs_sim_new();
            if (check_at((real || sim != NULL) && place_new(&p, sim, path, sizeof path), "a fresh directory", __FILE__,
                         contracts[i].promise, __LINE__)) {
                contracts[i].test(&p);
                place_free(&p, sim);
            }
            if (failures_here != 0)
                printf("FAILED: %s, %s\n", contracts[i].promise, real ? "on Linux" : "simulated");
            *(failures_here == 0 ? &passed : &failed) += 1;
        }
    }
    failures_here = 0;
    sim = vfs_sim_new();
    if (check_at(sim != NULL && place_new(&p, NULL, path, sizeof path) && place_new(&q, sim, other, sizeof other),
                 "two fresh directories", __FILE__, __func__, __LINE__)) {
        a_random_sequence_gives_the_same_answers(&p, &q);
        place_free(&p, NULL);
        place_free(&q, sim);
    }
    *(failures_here == 0 ? &passed : &failed) += 1;
    return verdict(passed, failed);
}
