/*
 * Readers that know the end of the log from an earlier reader: they give what that one could have read, without a search
 * for the end, and report what such a search would have reported.
 */
#include "format/format.h"
#include "format/xxh64.h"
#include "read/damage.h"
#include "read/reader.h"
#include "tests/kit/one_store.h"

static vfs *v;
static ls_hold *held; /* from the first LSN on */

struct seen {
    uint64_t batches, end_lsn, digest;
    int rc;
    ls_error error;
};

static struct seen read_all(ls_reader *reader) {
    struct seen s = {.batches = 0};
    ls_batch b;

    while ((s.rc = ls_reader_next(reader, &b)) == LS_OK) {
        s.digest = xxh64(b.bytes, b.size, s.digest);
        s.end_lsn = b.lsn + b.size;
        s.batches++;
    }
    s.error = *ls_last_error();
    ls_reader_close(reader);
    return s;
}

/* end_lsn 0: the reader searches. */
static struct seen read_to(vfs *system, uint64_t keep_lsn, uint64_t end_lsn) {
    struct seen s = {.batches = 0};
    ls_reader *reader;

    s.rc = ls_reader_open_kept(system, "/s", keep_lsn, end_lsn, 0, &reader);
    if (s.rc == LS_OK)
        return read_all(reader);
    check(reader == NULL);
    s.error = *ls_last_error();
    return s;
}

static ls_reader_info info_of(vfs *system) {
    ls_reader_info info = {.base_lsn = 0};
    ls_reader *reader;

    check(ls_reader_open(system, "/s", 0, &reader) == LS_OK || complain("a search"));
    if (reader != NULL)
        ls_reader_describe(reader, &info);
    ls_reader_close(reader);
    return info;
}

static void put_some(int messages) {
    for (int i = 0; i < messages; i++)
        (void)put_bytes(1, (uint8_t)i, 3000, i % 3 == 0 ? LS_WAIT : 0);
}

static void hold_all(void) {
    check(ls_hold_take(v, "/s", "all", 0, (uint64_t)1 << 40, (uint64_t)1 << 40, &held) == LS_OK || complain("take"));
}

static void open_filled(int messages) {
    fresh();
    v = r.v;
    hold_all();
    put_some(messages);
}

static void end(void) {
    ls_hold_release(held);
    held = NULL;
    done();
}

/* The processes are killed. Without a loss the machine goes on, else it loses power. */
static void be_killed(const vfs_sim_loss *loss) {
    vfs_sim *left = loss == NULL ? vfs_sim_clone(sim) : vfs_sim_crash(sim, loss);

    end();
    sim = left;
    v = r.v = vfs_sim_table(sim);
    hold_all();
}

static bool same(const struct seen *a, const struct seen *b) {
    return a->rc == LS_END && b->rc == LS_END && a->batches == b->batches && a->digest == b->digest;
}

static void it_gives_the_same_log_whatever_happens_to_the_store_afterwards(void) {
    open_filled(60);
    check(ls_close(r.store) == LS_OK);
    ls_reader_info info = info_of(v);
    struct seen closed = read_to(v, info.base_lsn, 0), now = read_to(v, info.base_lsn, info.end_lsn);
    check(closed.batches > 20 && closed.end_lsn == info.end_lsn && same(&closed, &now));

    ls_free(r.store);
    check(open_again() == LS_OK);
    put_some(40);
    now = read_to(v, info.base_lsn, info.end_lsn); /* beside a writer */
    check(same(&closed, &now));

    be_killed(NULL);
    info = info_of(v);
    struct seen crashed = read_to(v, info.base_lsn, 0);
    now = read_to(v, info.base_lsn, info.end_lsn);
    check(crashed.batches > 10 && same(&crashed, &now));
    for (int epoch = 0; epoch < 3; epoch++) {
        check(open_again() == LS_OK);
        put_some(epoch * 10);
        check(ls_close(r.store) == LS_OK);
        ls_free(r.store);
        now = read_to(v, info.base_lsn, info.end_lsn);
        check(same(&crashed, &now));
    }
    r.store = NULL;
    end();
}

static uint64_t bytes_asked;

static int64_t counted_pread(vfs *w, int file, void *into, size_t bytes, uint64_t at) {
    bytes_asked += bytes;
    return v->pread(w, file, into, bytes, at);
}

static void at_the_open_it_reads_headers_alone(void) {
    open_filled(60);
    check(ls_close(r.store) == LS_OK);
    ls_reader_info info = info_of(v);
    vfs counting = *v;
    ls_reader *reader;

    counting.pread = counted_pread;
    bytes_asked = 0;
    require(ls_reader_open_kept(&counting, "/s", info.base_lsn, info.end_lsn, 0, &reader) == LS_OK);
    check(bytes_asked < (info.segments + info.spares + 4) * BLOCK);
    ls_reader_close(reader);
    bytes_asked = 0;
    require(ls_reader_open_kept(&counting, "/s", info.base_lsn, 0, 0, &reader) == LS_OK);
    check(bytes_asked > SEGMENT);
    ls_reader_close(reader);
    end();
}

enum { MOST = 32 };
enum harm { GONE, NO_HEADER, EMPTY, ONE_BYTE, HARMS };

static void do_harm(vfs_sim *disk, const ls_segment_info *segment, enum harm harm) {
    static uint8_t image[SEGMENT];
    char name[SEGMENT_NAME_BYTES];
    vfs *system = vfs_sim_table(disk);
    int dir = system->open_dir(system, "/s");

    format_segment_name(name, segment->first_lsn);
    check(vfs_sim_get(disk, VFS_SIM_SEEN, "/s", name, image, sizeof image) == SEGMENT);
    image[harm == NO_HEADER ? 40 : (segment->end_lsn - segment->first_lsn) / 2] ^= 0x40;
    if (harm == GONE)
        check(system->unlink(system, dir, name) == 0);
    else
        check(vfs_sim_put(disk, "/s", name, image, harm == EMPTY ? 0 : sizeof image) == 0);
    check(system->close(system, dir) == 0);
}

/* A closed store: its log as a search finds it, and the number of segments. */
static size_t open_closed(ls_segment_info *segments, ls_reader_info *info) {
    ls_reader *reader;
    size_t n = 0;

    open_filled(60);
    check(ls_close(r.store) == LS_OK);
    *info = info_of(v);
    require(ls_reader_open(v, "/s", 0, &reader) == LS_OK && ls_reader_segments(reader, segments, MOST, &n) == LS_OK);
    ls_reader_close(reader);
    return n;
}

/* A search reports damage of the last segment at the open, this reader at its batch. */
static void damage_below_the_known_end_is_reported_as_by_a_search(void) {
    const vfs_sim_loss kept = {.mode = VFS_SIM_ALL_KEPT};
    ls_segment_info segments[MOST];
    ls_reader_info info;
    size_t n = open_closed(segments, &info);

    check(n >= 3);
    for (size_t bad = 0; bad < n; bad++) {
        for (int harm = GONE; harm < HARMS; harm++) {
            vfs_sim *disk = vfs_sim_crash(sim, &kept);

            do_harm(disk, &segments[bad], (enum harm)harm);
            struct seen searched = read_to(vfs_sim_table(disk), info.base_lsn, 0);
            struct seen known = read_to(vfs_sim_table(disk), info.base_lsn, info.end_lsn);
            check((searched.rc == LS_CORRUPT && known.rc == LS_CORRUPT && searched.error.lsn == known.error.lsn &&
                   strcmp(searched.error.segment, known.error.segment) == 0 &&
                   strcmp(searched.error.text, known.error.text) == 0) ||
                  complain(known.error.text));
            vfs_sim_free(disk);
        }
    }
    end();
}

/* A reader accepts what is in the page cache, and a power cut takes it. */
static void an_end_that_the_system_has_lost_is_refused_now_and_in_later_epochs(void) {
    const vfs_sim_loss lost = {.mode = VFS_SIM_ALL_LOST};
    uint64_t id;
    const vfs_sim_plan no_sync = {.kind = VFS_SIM_SYNC_DATA, .nth = 1, .error = EIO};

    open_filled(40);
    check(ls_force(r.store, 0) == LS_OK);
    uint64_t durable_lsn = ls_durable_lsn(r.store);
    vfs_sim_fail(sim, &no_sync);
    check(ls_publish(r.store, (const uint32_t[]){1}, 1, NULL, 0, NULL, 0, NULL, LS_WAIT, &id) != LS_OK);
    vfs_sim_fail(sim, NULL);
    be_killed(NULL);
    ls_reader_info info = info_of(v);
    check(info.end_lsn > durable_lsn);
    check(read_to(v, info.base_lsn, info.end_lsn).rc == LS_END);

    be_killed(&lost);
    check(info_of(v).end_lsn == durable_lsn);
    struct seen s = read_to(v, info.base_lsn, info.end_lsn);
    check((s.rc == LS_RECYCLED && s.end_lsn == durable_lsn) || complain(s.error.text));

    check(open_again() == LS_OK);
    check(read_to(v, info.base_lsn, info.end_lsn).end_lsn <= durable_lsn); /* the hint says less, or the next header */
    put_some(40);
    s = read_to(v, info.base_lsn, info.end_lsn);
    check(s.rc != LS_END && s.end_lsn <= durable_lsn);
    check(ls_close(r.store) == LS_OK);
    s = read_to(v, info.base_lsn, info.end_lsn);
    check((s.rc == LS_RECYCLED && s.end_lsn <= durable_lsn) || complain(s.error.text));
    check(read_to(v, info.base_lsn, durable_lsn).rc == LS_END);
    end();
}

/* The log ends before its last batch for the writer that comes next; then the batch is there again. */
static void a_batch_that_a_later_writer_did_not_take_over_is_not_given(void) {
    static uint8_t image[SEGMENT], cut[SEGMENT];
    ls_segment_info segments[32];
    ls_reader *reader;
    ls_batch b = {.lsn = 0};
    uint64_t before_lsn = 0;
    char name[SEGMENT_NAME_BYTES];
    size_t n;

    open_filled(40);
    check(ls_force(r.store, 0) == LS_OK);
    be_killed(NULL);
    ls_reader_info info = info_of(v);
    require(ls_reader_open(v, "/s", 0, &reader) == LS_OK && ls_reader_segments(reader, segments, 32, &n) == LS_OK);
    for (ls_batch next; ls_reader_next(reader, &next) == LS_OK; b = next)
        before_lsn = b.lsn + b.size;
    uint64_t last_lsn = b.lsn, first_lsn = segments[n - 1].first_lsn;
    ls_reader_close(reader);
    format_segment_name(name, first_lsn);
    require(vfs_sim_get(sim, VFS_SIM_SEEN, "/s", name, image, sizeof image) == SEGMENT);
    memcpy(cut, image, sizeof cut);
    memset(cut + (last_lsn - first_lsn), 0, info.end_lsn - last_lsn);
    require(vfs_sim_put(sim, "/s", name, cut, sizeof cut) == 0);

    check(open_again() == LS_OK);
    put_some(10);
    check(ls_close(r.store) == LS_OK);
    ls_free(r.store);
    r.store = NULL;
    require(vfs_sim_put(sim, "/s", name, image, sizeof image) == 0);
    require(ls_reader_open_kept(v, "/s", info.base_lsn, before_lsn, 0, &reader) == LS_OK);
    check(read_all(reader).end_lsn == before_lsn);
    check(ls_reader_open_kept(v, "/s", info.base_lsn, info.end_lsn, last_lsn, &reader) == LS_RECYCLED);
    end();
}

static void what_was_recycled_below_the_known_end_is_recycled(void) {
    ls_reader *reader;
    ls_batch b;

    open_filled(60);
    ls_hold_release(held);
    held = NULL;
    check(ls_close(r.store) == LS_OK);
    ls_reader_info info = info_of(v);
    require(ls_reader_open_kept(v, "/s", info.base_lsn, info.end_lsn, 0, &reader) == LS_OK &&
            ls_reader_next(reader, &b) == LS_OK);
    ls_free(r.store);
    check(open_again() == LS_OK);
    churn(200);
    check(ls_base_lsn(r.store) > info.end_lsn && read_to(v, info.base_lsn, info.end_lsn).rc == LS_RECYCLED);
    check(ls_close(r.store) == LS_OK);
    check(read_to(v, info.base_lsn, info.end_lsn).rc == LS_RECYCLED);
    check(read_all(reader).rc == LS_RECYCLED);
    end();
}

static void whichever_call_fails_it_gives_a_prefix_of_the_log(void) {
    static const int errors[] = {EIO, EMFILE, ENOENT};

    open_filled(60);
    check(ls_close(r.store) == LS_OK);
    ls_reader_info info = info_of(v);
    struct seen truth = read_to(v, info.base_lsn, 0);
    size_t handles = vfs_sim_handles(sim);

    for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
        bool fired = true;

        for (uint64_t nth = 1; fired; nth++) {
            const vfs_sim_plan p = {.nth = nth, .error = errors[e]};

            vfs_sim_fail(sim, &p);
            struct seen s = read_to(v, info.base_lsn, info.end_lsn);
            fired = vfs_sim_fired(sim) > 0;
            vfs_sim_fail(sim, NULL);
            check(s.rc == LS_END ? s.digest == truth.digest : s.rc != LS_OK && s.batches < truth.batches);
            check(s.rc != LS_CORRUPT || errors[e] == ENOENT || complain(s.error.text));
            check(vfs_sim_handles(sim) == handles);
        }
    }
    end();
}

static void an_end_that_no_reader_can_have_found_is_refused(void) {
    ls_reader *reader;

    open_filled(20);
    for (int live = 1; live >= 0; live--) {
        check(ls_force(r.store, 0) == LS_OK);
        if (!live)
            check(ls_close(r.store) == LS_OK);
        ls_reader_info info = info_of(v);
        check(read_to(v, info.base_lsn, info.end_lsn - 8).rc == LS_OPTION);
        check(read_to(v, info.base_lsn, info.end_lsn + BLOCK).rc == LS_RECYCLED);
        check(read_to(v, info.base_lsn, info.end_lsn + (uint64_t)9 * SEGMENT).rc == LS_RECYCLED);
    }
    check(ls_reader_open_kept(v, "/s", 1, UINT64_MAX, 0, &reader) == LS_OPTION && reader == NULL);
    end();
}

/* Its end lies behind the header of its segment, which the next open sets aside: nothing goes with it. */
static void the_end_at_which_a_writer_was_killed_before_its_first_batch_is_kept(void) {
    open_filled(20);
    check(ls_close(r.store) == LS_OK);
    ls_free(r.store);
    struct seen closed = read_to(v, info_of(v).base_lsn, 0);
    check(open_again() == LS_OK);
    ls_reader_info info = info_of(v);
    check(info.live && info.end_lsn % SEGMENT == BLOCK && info.end_lsn > closed.end_lsn);
    struct seen now = read_to(v, info.base_lsn, info.end_lsn);
    check(same(&closed, &now));
    be_killed(NULL);
    for (int epoch = 0; epoch < 3; epoch++) {
        now = read_to(v, info.base_lsn, info.end_lsn);
        check(same(&closed, &now) || complain(now.error.text));
        check(open_again() == LS_OK);
        put_some(epoch * 10);
        now = read_to(v, info.base_lsn, info.end_lsn); /* beside a writer */
        check(same(&closed, &now) || complain(now.error.text));
        check(ls_close(r.store) == LS_OK);
        ls_free(r.store);
    }
    r.store = NULL;
    end();
}

static int locks_asked;

/* A writer comes while the search looks, and then the system refuses. */
static int failing_lock(vfs *w, int file, int how) {
    (void)w;
    locks_asked++;
    return locks_asked == 2 ? -EWOULDBLOCK : locks_asked == 3 ? -EIO : v->lock(v, file, how);
}

static void a_search_for_the_reason_of_damage_may_fail(void) {
    const vfs_sim_loss kept = {.mode = VFS_SIM_ALL_KEPT};
    ls_segment_info segments[MOST];
    ls_reader_info info;
    ls_reader *reader;
    size_t n = open_closed(segments, &info);

    vfs_sim *disk = vfs_sim_crash(sim, &kept);
    do_harm(disk, &segments[n - 1], ONE_BYTE);
    vfs *whole = v;
    v = vfs_sim_table(disk);
    vfs failing = *v;
    failing.lock = failing_lock;
    require(ls_reader_open_kept(&failing, "/s", info.base_lsn, info.end_lsn, 0, &reader) == LS_OK);
    locks_asked = 0;
    struct seen s = read_all(reader);
    check((s.rc == LS_IO && locks_asked >= 3) || complain(s.error.text));
    check(vfs_sim_handles(disk) == 0);
    v = whole;
    vfs_sim_free(disk);
    end();
}

/* A record may be valid and contradict another one: a search for the end cannot see that. */
static void what_was_said_of_a_valid_batch_stays(void) {
    static const char text[] = "a record that another one refers to is none";
    ls_reader *reader;
    ls_batch b;

    open_filled(60);
    check(ls_close(r.store) == LS_OK);
    ls_reader_info info = info_of(v);
    require(ls_reader_open_kept(v, "/s", info.base_lsn, info.end_lsn, 0, &reader) == LS_OK);
    while (ls_reader_next(reader, &b) == LS_OK) {
        int rc = fail_at(LS_CORRUPT, b.first_lsn, b.lsn + 8, "%s", text);
        check(reader_judge(reader, rc, b.lsn + 8) == LS_CORRUPT && strcmp(ls_last_error()->text, text) == 0 &&
              ls_last_error()->lsn == b.lsn + 8);
    }
    ls_reader_close(reader);
    end();
}

int main(void) {
    static void (*const tests[])(void) = {
        it_gives_the_same_log_whatever_happens_to_the_store_afterwards,
        at_the_open_it_reads_headers_alone,
        damage_below_the_known_end_is_reported_as_by_a_search,
        an_end_that_the_system_has_lost_is_refused_now_and_in_later_epochs,
        a_batch_that_a_later_writer_did_not_take_over_is_not_given,
        what_was_recycled_below_the_known_end_is_recycled,
        whichever_call_fails_it_gives_a_prefix_of_the_log,
        an_end_that_no_reader_can_have_found_is_refused,
        the_end_at_which_a_writer_was_killed_before_its_first_batch_is_kept,
        a_search_for_the_reason_of_damage_may_fail,
        what_was_said_of_a_valid_batch_stays,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
