/*
 * Torn or corrupt: the verdict on a flipped bit, a missing file, and bytes from elsewhere.
 *
 * Below the watermark every damage is corruption, and nothing is written. Above it, damage is a torn tail, in which no
 * record was acknowledged as durable.
 */
#include "tests/kit/store_workload.h"

static struct run r;
static uint8_t image[SEGMENT];

/* Makes a store of several segments, all with live records; `closed`: in order, else by a power cut. */
static vfs_sim *made(bool close) {
    vfs_sim *sim = vfs_sim_new(), *after;
    static const vfs_sim_loss loss = {.mode = VFS_SIM_ALL_LOST};

    memset(&r, 0, sizeof r);
    r.gentle = true;
    run_start(&r, sim, 5);
    for (int i = 0; i < 80; i++)
        publish(&r, PUBLISH, 2u << i % 3, -1, i % 4 == 3, 2000 + (uint32_t)i);
    if (close)
        check(ls_close(r.store) == LS_OK);
    after = close ? vfs_sim_clone(sim) : vfs_sim_crash(sim, &loss);
    run_end(&r);
    vfs_sim_free(sim);
    r.sim = after;
    return after;
}

static int open_quietly(vfs_sim *sim, ls_store **store) {
    return open_store(&r, vfs_sim_table(sim), r.catalog, QUEUES + 1, store);
}

struct names {
    int count;
    char name[32][24];
};

static int keep_name(void *context, const char *name) {
    struct names *n = context;

    if (strlen(name) == 20)
        strcpy(n->name[n->count++], name);
    return 0;
}

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

/* The segments that hold something, in order. */
static struct names segments(vfs_sim *sim) {
    struct names all = {0}, some = {0};
    vfs *v = vfs_sim_table(sim);
    int dir = v->open_dir(v, "/s");

    check(v->list(v, dir, keep_name, &all) == 0);
    check(v->close(v, dir) == 0);
    qsort(all.name, (size_t)all.count, sizeof *all.name, by_name);
    for (int i = 0; i < all.count; i++) {
        check(vfs_sim_get(sim, VFS_SIM_STABLE, "/s", all.name[i], image, sizeof image) == SEGMENT);
        if (image[0] == 'L' && image[BLOCK + 16] != 0)
            strcpy(some.name[some.count++], all.name[i]);
    }
    return some;
}

/* The end of the accepted bytes of the segment in `image`, and the start of its last batch. */
static uint32_t walk(uint32_t *last) {
    uint32_t at = BLOCK, bytes;

    for (*last = at; at + 104 <= SEGMENT && image[at + 16] == 1 && image[at + 17] == 3; at += bytes) {
        memcpy(&bytes, image + at + 60, 4);
        *last = at;
    }
    return at;
}

/* The result of an open with one bit of the file flipped. */
static int with_flip(vfs_sim *sim, const char *name, uint32_t at, int bit, bool *right) {
    vfs_sim *disk = vfs_sim_clone(sim);
    struct bounds all = {0, r.op_count, r.catalog};
    static struct model_state s;
    ls_store *store = NULL;
    uint64_t changes;
    size_t found;
    int rc;

    check(vfs_sim_get(sim, VFS_SIM_STABLE, "/s", name, image, sizeof image) == SEGMENT);
    image[at] ^= (uint8_t)(1 << bit);
    check(vfs_sim_put(disk, "/s", name, image, sizeof image) == 0);
    image[at] ^= (uint8_t)(1 << bit);
    changes = vfs_sim_changes(disk);
    rc = open_quietly(disk, &store);
    *right = rc == LS_OK ? recognise(&r, store, all, &s, &found) && found + 4 >= r.durable
                         : vfs_sim_changes(disk) == changes;
    ls_free(store);
    vfs_sim_free(disk);
    return rc;
}

static void after_an_orderly_close_every_flipped_bit_is_corruption(void) {
    vfs_sim *sim = made(true);
    struct names n = segments(sim);
    uint64_t c = 3;

    require(n.count >= 3);
    for (int i = 0; i < n.count; i++) {
        uint32_t last, end;

        check(vfs_sim_get(sim, VFS_SIM_STABLE, "/s", n.name[i], image, sizeof image) == SEGMENT);
        end = walk(&last);
        for (uint32_t at = 0; at < end; at += 1 + (uint32_t)chance(&c) % (60 * ONE_IN)) {
            bool right, in_close = i == n.count - 1 && at >= last;
            int rc = with_flip(sim, n.name[i], at, (int)(chance(&c) % 8), &right);

            check(right);
            check(in_close ? rc == LS_OK : rc == LS_CORRUPT || (rc == LS_VERSION && at >= 8 && at < 12));
        }
        for (uint32_t at = end; at < SEGMENT; at += 1 + (uint32_t)chance(&c) % (4000 * ONE_IN)) {
            bool right;

            check(with_flip(sim, n.name[i], at, 1, &right) == LS_OK && right); /* not of the log */
        }
    }
    vfs_sim_free(sim);
}

/* Only the last batch is above the watermark, so a flip costs at most that batch. */
static void after_a_crash_a_flipped_bit_is_corruption_only_below_the_watermark(void) {
    vfs_sim *sim = made(false);
    struct names n = segments(sim);
    uint64_t c = 4;

    require(n.count >= 3);
    for (int i = 0; i < n.count; i++) {
        uint32_t last, end;

        check(vfs_sim_get(sim, VFS_SIM_STABLE, "/s", n.name[i], image, sizeof image) == SEGMENT);
        end = walk(&last);
        for (uint32_t at = 0; at < end; at += 1 + (uint32_t)chance(&c) % (90 * ONE_IN)) {
            bool right, torn = i == n.count - 1 && at >= last;
            int rc = with_flip(sim, n.name[i], at, (int)(chance(&c) % 8), &right);

            check(right);
            check(torn ? rc == LS_OK : rc == LS_CORRUPT || (rc == LS_VERSION && at >= 8 && at < 12));
        }
    }
    vfs_sim_free(sim);
}

static void a_missing_segment_is_corruption(void) {
    vfs_sim *sim = made(true);
    struct names n = segments(sim);

    for (int i = 0; i + 1 < n.count; i++) {
        vfs_sim *disk = vfs_sim_clone(sim);
        vfs *v = vfs_sim_table(disk);
        int dir = v->open_dir(v, "/s");
        ls_store *store = NULL;

        check(v->unlink(v, dir, n.name[i]) == 0 && v->close(v, dir) == 0);
        check(open_quietly(disk, &store) == LS_CORRUPT);
        check(strcmp(ls_last_error()->segment, n.name[i]) == 0);
        ls_free(store);
        vfs_sim_free(disk);
    }
    vfs_sim_free(sim);
}

static void a_shortened_segment_is_corruption(void) {
    vfs_sim *sim = made(true);
    struct names n = segments(sim);

    for (int i = 0; i < n.count; i++) {
        vfs_sim *disk = vfs_sim_clone(sim);
        ls_store *store = NULL;
        uint32_t last;

        check(vfs_sim_get(sim, VFS_SIM_STABLE, "/s", n.name[i], image, sizeof image) == SEGMENT);
        (void)walk(&last);
        check(vfs_sim_put(disk, "/s", n.name[i], image, last > BLOCK ? last - 1 : 100) == 0);
        check(open_quietly(disk, &store) == LS_CORRUPT);
        ls_free(store);
        vfs_sim_free(disk);
    }
    vfs_sim_free(sim);
}

static void no_segment_at_all_is_corruption(void) {
    vfs_sim *sim = made(true);
    vfs *v = vfs_sim_table(sim);
    int dir = v->open_dir(v, "/s");
    struct names n = {0};
    ls_store *store = NULL;

    check(v->list(v, dir, keep_name, &n) == 0);
    for (int i = 0; i < n.count; i++)
        check(v->unlink(v, dir, n.name[i]) == 0);
    check(v->close(v, dir) == 0);
    check(open_quietly(sim, &store) == LS_CORRUPT);
    ls_free(store);
    vfs_sim_free(sim);
}

/* Old bytes are in a recycled file; a restored copy or another store's segment may also have wrong bytes. */
static void bytes_of_another_position_name_or_store_never_validate(void) {
    static uint8_t foreign[SEGMENT];
    vfs_sim *other = made(true), *sim;
    struct names n = segments(other);
    static struct model_state s;

    check(vfs_sim_get(other, VFS_SIM_STABLE, "/s", n.name[0], foreign, sizeof foreign) == SEGMENT);
    vfs_sim_free(other);
    for (int i = 0; i < 6; i++) {
        struct bounds b;
        ls_store *store = NULL;
        size_t found;

        sim = made(i % 2 == 0);
        n = segments(sim);
        b = (struct bounds){r.durable, r.op_count, r.catalog};
        check(vfs_sim_get(sim, VFS_SIM_STABLE, "/s", n.name[i / 2], image, sizeof image) == SEGMENT);
        check(vfs_sim_put(sim, "/s", "0000000000ff0000.seg", image, sizeof image) == 0); /* from lower down */
        check(vfs_sim_put(sim, "/s", "0000000000fe0000.seg", foreign, sizeof foreign) ==
              0); /* the same LSNs under another name */
        check(vfs_sim_put(sim, "/s", "0000000000fd0001.seg", image, 5000) == 0);
        require(open_quietly(sim, &store) == LS_OK);
        check(recognise(&r, store, b, &s, &found) && contents_are(&r, store, &s));
        ls_free(store);
        vfs_sim_free(sim);
    }
    sim = made(true); /* in place of one of our own it is damage */
    n = segments(sim);
    vfs_sim_seed(sim, 77);
    foreign[20] ^= 1; /* another UUID */
    check(vfs_sim_put(sim, "/s", n.name[0], foreign, sizeof foreign) == 0);
    ls_store *store = NULL;
    check(open_quietly(sim, &store) == LS_CORRUPT);
    vfs_sim_free(sim);
}

int main(void) {
    static void (*const tests[])(void) = {
        after_an_orderly_close_every_flipped_bit_is_corruption,
        after_a_crash_a_flipped_bit_is_corruption_only_below_the_watermark,
        a_missing_segment_is_corruption,
        a_shortened_segment_is_corruption,
        no_segment_at_all_is_corruption,
        bytes_of_another_position_name_or_store_never_validate,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
