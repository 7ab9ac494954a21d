/*
 * The simulator under random calls: its crashes are compared with a plain model of bytes, its replay with the original.
 *
 * Seeds are fixed, so that a failure is the same failure every time.
 */
#include "tests/kit/vfs_test.h"

/* ---- chance against a model ---- */

enum { MODEL_BYTES = 24 * SECTOR };

typedef struct {
    unsigned char bytes[MODEL_BYTES];
    size_t size;
} model;

static bool matches(const vfs_sim *sim, const model *m) {
    static unsigned char bytes[MODEL_BYTES];

    return vfs_sim_get(sim, VFS_SIM_DEVICE, "/s", "g", bytes, sizeof bytes) == (int64_t)m->size &&
           memcmp(bytes, m->bytes, m->size) == 0;
}

static void resize(model *m, size_t size) {
    if (size < m->size)
        memset(m->bytes + size, 0, m->size - size);
    m->size = size;
}

/* One random call on the file, and on the model of what is written; true if it made it durable. */
static bool model_step(const world *w, int buffered, int direct, model *m, uint64_t *random) {
    static _Alignas(SECTOR) unsigned char bytes[MODEL_BYTES];
    uint64_t kind = chance(random) % 12;
    size_t at = chance(random) % (MODEL_BYTES - SECTOR);
    size_t count = 1 + chance(random) % (chance(random) % 2 ? 600 : MODEL_BYTES - at);

    count = count < MODEL_BYTES - at ? count : MODEL_BYTES - at;
    if (kind == 0) {
        check(w->v->sync_data(w->v, chance(random) % 2 ? buffered : direct) == 0);
        return true;
    }
    if (kind == 1) {
        check(w->v->truncate(w->v, buffered, at) == 0);
        resize(m, at);
        return false;
    }
    if (kind == 2) {
        check(w->v->allocate(w->v, buffered, at) == 0);
        m->size = m->size > at ? m->size : at;
        return false;
    }
    if (kind < 5) {
        at -= at % SECTOR;
        count = (count + SECTOR - 1) / SECTOR * SECTOR;
    }
    memset(bytes, (int)(chance(random) % 5), sizeof bytes);
    check(write_all(w->v, kind < 5 ? direct : buffered, bytes, count, at));
    memcpy(m->bytes + at, bytes, count);
    m->size = m->size > at + count ? m->size : at + count;
    return false;
}

static void a_power_cut_leaves_what_a_plain_model_says(void) {
    static model now, durable;
    uint64_t random = 4711;

    for (int round = 0; round < 40 && failures_here == 0; round++) {
        world w = world_new();
        int buffered = w.v->open(w.v, w.dir, "g", VFS_WRITE);
        int direct = w.v->open(w.v, w.dir, "g", VFS_WRITE | VFS_DIRECT);

        memset(&now, 0, sizeof now);
        durable = now;
        for (int step = 0; step < 60; step++) {
            vfs_sim *lost, *kept;

            if (model_step(&w, buffered, direct, &now, &random))
                durable = now;
            lost = vfs_sim_crash(w.sim, &(vfs_sim_loss){.mode = VFS_SIM_ALL_LOST});
            kept = vfs_sim_crash(w.sim, &(vfs_sim_loss){.mode = VFS_SIM_ALL_KEPT});
            require(lost != NULL && kept != NULL);
            check(matches(w.sim, &now) && matches(lost, &durable) && matches(kept, &now));
            check(vfs_sim_hash(kept) == vfs_sim_hash(w.sim));
            vfs_sim_free(lost);
            vfs_sim_free(kept);
        }
        check(w.v->close(w.v, buffered) == 0 && w.v->close(w.v, direct) == 0);
        world_free(&w);
    }
}

enum { REPLAY_STEPS = 300, REPLAY_LOSSES = 5 };

static uint64_t crash_hash(const vfs_sim *sim, size_t k, int which) {
    vfs_sim_loss loss = {.mode = VFS_SIM_RANDOM, .seed = (uint64_t)which, .dir_mode = VFS_SIM_DIRS_RANDOM};
    vfs_sim *copy;
    uint64_t hash;

    if (which == 3)
        loss.dir_mode = VFS_SIM_DIRS_RANDOM_SUBSET;
    copy = which == 0 ? vfs_sim_at(sim, k) : vfs_sim_crash_at(sim, k, &loss);
    hash = copy != NULL ? vfs_sim_hash(copy) : 0;
    vfs_sim_free(copy);
    return hash;
}

static void random_call(const world *w, int files[3], uint64_t *random) {
    static const char *const names[] = {"a", "b", "f", "g"};
    static _Alignas(SECTOR) unsigned char bytes[9 * SECTOR];
    uint64_t n = chance(random) % 3;
    const char *name = names[chance(random) % 4];
    size_t at = chance(random) % (12 * SECTOR);

    memset(bytes, (int)(chance(random) % 5), sizeof bytes);
    switch (chance(random) % 12) {
    case 0:
        (void)w->v->close(w->v, files[n]);
        files[n] = w->v->open(w->v, w->dir, name, VFS_WRITE | VFS_CREATE | (n == 0 ? VFS_DIRECT : 0u));
        break;
    case 1:
        (void)w->v->rename(w->v, w->dir, name, names[chance(random) % 4]);
        break;
    case 2:
        (void)w->v->unlink(w->v, w->dir, name);
        break;
    case 3:
        (void)w->v->sync_dir(w->v, w->dir);
        break;
    case 4:
        (void)w->v->truncate(w->v, files[n], at);
        break;
    case 5:
        (void)w->v->allocate(w->v, files[n], at);
        break;
    case 6:
    case 7:
        (void)w->v->sync_data(w->v, files[n]);
        break;
    case 8:
        (void)w->v->random(w->v, bytes, 20);
        break;
    default:
        at = n == 0 ? at / SECTOR * SECTOR : at;
        (void)w->v->pwrite(w->v, files[n], bytes, n == 0 ? SECTOR * (1 + at % 9) : 1 + at % sizeof bytes, at);
    }
}

static void replaying_the_journal_gives_the_same_disk(void) {
    static uint64_t hashes[REPLAY_STEPS][REPLAY_LOSSES];
    static size_t moments[REPLAY_STEPS];

    for (uint64_t seed = 1; seed <= 8 && failures_here == 0; seed++) {
        world w = world_new();
        int files[3] = {-1, -1, -1};
        uint64_t random = seed;
        const vfs_sim_event *events;

        for (int step = 0; step < REPLAY_STEPS; step++) {
            vfs_sim_plan plan = {.nth = 1, .error = EIO, .survive = chance(&random) % 2 * seed};

            if (chance(&random) % 3 == 0)
                plan = (vfs_sim_plan){.nth = 1, .shorten = VFS_SIM_HALF};
            vfs_sim_fail(w.sim, chance(&random) % 5 == 0 ? &plan : NULL);
            random_call(&w, files, &random);
            moments[step] = vfs_sim_journal(w.sim, &events);
            for (int which = 0; which < REPLAY_LOSSES; which++)
                hashes[step][which] = crash_hash(w.sim, VFS_SIM_NOW, which);
        }
        for (int i = 0; i < REPLAY_STEPS; i++) {
            int step = i % 50 == 0 ? (int)(chance(&random) % REPLAY_STEPS) : i; /* back now and then */

            for (int which = 0; which < REPLAY_LOSSES; which++)
                check(hashes[step][which] == crash_hash(w.sim, moments[step], which));
        }
        vfs_sim_fail(w.sim, NULL);
        for (int i = 0; i < 3; i++)
            (void)w.v->close(w.v, files[i]);
        world_free(&w);
    }
}

/* ---- running them ---- */

static const struct {
    const char *promise;
    void (*test)(void);
} tests[] = {
    {"a_power_cut_leaves_what_a_plain_model_says", a_power_cut_leaves_what_a_plain_model_says},
    {"replaying_the_journal_gives_the_same_disk", replaying_the_journal_gives_the_same_disk},
};

int main(void) {
    int passed = 0;
    int failed = 0;

    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        failures_here = 0;
        tests[i].test();
        if (failures_here != 0)
            printf("FAILED: %s\n", tests[i].promise);
        *(failures_here == 0 ? &passed : &failed) += 1;
    }
    return verdict(passed, failed);
}
