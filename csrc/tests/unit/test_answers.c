/* The answer to one client, which the store sends when an LSN is durable, and the signal that it takes the place of. */
#include <sys/socket.h>
#include <unistd.h>

#include "tests/kit/store_workload.h"

static struct run r;
static vfs_sim *sim;
static int event;
static int ends[2]; /* the server's and the client's */

static const uint8_t answer[] = "confirmed";

static void fresh(void) {
    memset(&r, 0, sizeof r);
    sim = vfs_sim_new();
    run_start(&r, sim, 1);
    require(r.store != NULL && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    check(ls_force(r.store, 0) == LS_OK && ls_event_fd(r.store, &event) == LS_OK);
}

static void done(void) {
    (void)close(ends[0]);
    (void)close(ends[1]);
    ls_free(r.store);
    vfs_sim_free(sim);
}

/* The LSN from which on the message is durable. */
static uint64_t put(void) {
    uint32_t queue = 1;
    uint64_t id = 0;

    check(ls_publish(r.store, &queue, 1, NULL, 0, (const uint8_t *)"x", 1, NULL, 0, &id) == LS_OK);
    return ls_next_lsn(r.store);
}

static int leave(uint64_t lsn) { return ls_event_answer(r.store, event, lsn, ends[0], answer, sizeof answer); }

/* How many bytes of it the client has; complains about others. */
static size_t heard(void) {
    uint8_t into[2 * sizeof answer];
    ssize_t got = recv(ends[1], into, sizeof into, MSG_DONTWAIT);

    check(got <= (ssize_t)sizeof answer && (got <= 0 || memcmp(into, answer, (size_t)got) == 0));
    return got > 0 ? (size_t)got : 0;
}

static uint64_t signals(void) { return vfs_sim_event_count(sim, event); }

static void an_answer_is_sent_once_when_its_lsn_is_durable_and_takes_the_place_of_the_signal(void) {
    fresh();
    uint64_t before = signals();
    check(leave(put()) == LS_OK && heard() == 0);
    check(ls_force(r.store, 0) == LS_OK && heard() == sizeof answer && signals() == before);
    check(ls_event_answered(r.store, event) == sizeof answer);
    check(ls_event_answered(r.store, event) == -1); /* there is none any more */
    (void)put();
    check(ls_force(r.store, 0) == LS_OK && heard() == 0 && signals() == before + 1);
    done();
}

static void the_signal_comes_too_if_more_than_the_answer_waits_for_is_durable(void) {
    fresh();
    uint64_t before = signals();
    check(leave(put()) == LS_OK);
    (void)put();
    check(ls_force(r.store, 0) == LS_OK && heard() == sizeof answer && signals() == before + 1);
    check(ls_event_answered(r.store, event) == sizeof answer);
    done();
}

/* As of a loop that ended without taking its answer back. */
static void an_answer_goes_to_its_own_client_though_another_one_has_the_number_of_the_socket(void) {
    int others[2];

    fresh();
    check(leave(put()) == LS_OK);
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, others) == 0 && dup2(others[0], ends[0]) == ends[0]);
    check(ls_force(r.store, 0) == LS_OK && heard() == sizeof answer);
    uint8_t into[1];
    check(recv(others[1], into, sizeof into, MSG_DONTWAIT) < 0 && errno == EAGAIN);
    check(ls_event_answered(r.store, event) == sizeof answer);
    check(recv(ends[1], into, sizeof into, MSG_DONTWAIT) == 0); /* nobody holds its socket any more */
    (void)close(others[0]);
    (void)close(others[1]);
    done();
}

static void without_a_descriptor_the_answer_is_left_to_the_loop(void) {
    fresh();
    uint64_t before = signals();
    vfs_sim_fail(sim, &(vfs_sim_plan){.kind = VFS_SIM_SOCKET_DUP, .nth = 1, .error = EMFILE});
    check(leave(put()) == LS_WOULD_WAIT);
    check(ls_force(r.store, 0) == LS_OK && heard() == 0 && signals() == before + 1);
    done();
}

static void every_other_event_is_signalled(void) {
    int other;

    fresh();
    check(ls_event_fd(r.store, &other) == LS_OK && leave(put()) == LS_OK);
    check(ls_force(r.store, 0) == LS_OK && vfs_sim_event_count(sim, other) == 1);
    check(ls_event_answered(r.store, other) == -1 && ls_event_answered(r.store, event) == sizeof answer);
    done();
}

static void an_answer_that_was_taken_back_is_not_sent(void) {
    fresh();
    uint64_t before = signals();
    check(leave(put()) == LS_OK && ls_event_answered(r.store, event) == -1);
    check(ls_force(r.store, 0) == LS_OK && heard() == 0 && signals() == before + 1);
    done();
}

static void an_answer_that_cannot_be_sent_as_a_whole_leaves_the_rest_to_the_loop(void) {
    static const int errors[] = {EAGAIN, EPIPE};
    for (size_t i = 0; i < 2; i++) {
        fresh();
        uint64_t before = signals();
        vfs_sim_fail(sim, &(vfs_sim_plan){.kind = VFS_SIM_SEND, .nth = 1, .error = errors[i]});
        check(leave(put()) == LS_OK && ls_force(r.store, 0) == LS_OK);
        check(heard() == 0 && signals() == before + 1 && ls_event_answered(r.store, event) == 0);
        done();
    }
    fresh();
    (void)close(ends[1]);
    check(leave(put()) == LS_OK && ls_force(r.store, 0) == LS_OK); /* no SIGPIPE */
    check(ls_event_answered(r.store, event) == 0);
    done();
}

static void nothing_is_sent_if_the_disk_fails(void) {
    fresh();
    uint64_t before = signals(), lsn = put();
    check(leave(lsn) == LS_OK);
    vfs_sim_fail(sim, &(vfs_sim_plan){.kind = VFS_SIM_SYNC_DATA, .nth = 1, .error = EIO});
    check(ls_force(r.store, 0) == LS_OUTCOME_UNKNOWN && heard() == 0 && signals() > before);
    check(ls_event_answered(r.store, event) == -1 && leave(lsn) != LS_OK);
    done();
}

static void what_cannot_be_sent_later_is_not_taken(void) {
    static const uint8_t much[LS_ANSWER_BYTES_MAX + 1];

    fresh();
    uint64_t lsn = put();
    check(ls_event_answer(r.store, event, lsn, ends[0], much, sizeof much) == LS_OPTION);
    check(ls_event_answer(r.store, event, lsn, ends[0], much, 0) == LS_OPTION);
    check(ls_event_answer(r.store, event + 1, lsn, ends[0], answer, sizeof answer) == LS_OPTION);
    check(leave(ls_durable_lsn(r.store)) == LS_WOULD_WAIT && leave(lsn + 8) == LS_WOULD_WAIT);
    check(leave(lsn) == LS_OK && leave(lsn) == LS_WOULD_WAIT);
    ls_event_end(r.store, event); /* it takes its answer along */
    check(ls_event_fd(r.store, &event) == LS_OK && ls_force(r.store, 0) == LS_OK && heard() == 0);
    check(ls_close(r.store) == LS_OK && leave(lsn) == LS_CLOSED && ls_event_answered(r.store, event) == -1);
    done();
}

static int leave_for_all(int socket, uint64_t *lsn) {
    return ls_event_answer_all(r.store, event, socket, answer, sizeof answer, LS_TRY, lsn);
}

static void an_answer_that_was_sent_as_a_whole_makes_way_for_the_next_one_of_its_event(void) {
    int other;
    fresh();
    uint64_t before = signals();
    for (int i = 0; i < 3; i++) {
        uint64_t lsn = put();
        check(leave(lsn) == LS_OK && leave(lsn) == LS_WOULD_WAIT); /* it was not sent yet */
        check(ls_force(r.store, 0) == LS_OK && heard() == sizeof answer && signals() == before);
    }
    check(ls_event_fd(r.store, &other) == LS_OK);
    check(ls_event_answer(r.store, other, put(), ends[0], answer, sizeof answer) == LS_WOULD_WAIT);
    check(ls_event_answered(r.store, event) == sizeof answer && ls_event_answered(r.store, event) == -1);
    done();
}

static void an_answer_that_was_not_sent_as_a_whole_makes_way_for_none(void) {
    fresh();
    vfs_sim_fail(sim, &(vfs_sim_plan){.kind = VFS_SIM_SEND, .nth = 1, .error = EAGAIN});
    check(leave(put()) == LS_OK && ls_force(r.store, 0) == LS_OK && heard() == 0);
    check(leave(put()) == LS_WOULD_WAIT && ls_event_answered(r.store, event) == 0);
    done();
}

static void an_answer_in_the_place_of_one_that_was_sent_is_not_sent_if_the_disk_fails(void) {
    uint64_t lsn = 0;
    fresh();
    check(leave(put()) == LS_OK && ls_force(r.store, 0) == LS_OK && heard() == sizeof answer);
    uint64_t before = signals();
    (void)put();
    check(leave_for_all(ends[0], &lsn) == LS_OK);
    vfs_sim_fail(sim, &(vfs_sim_plan){.kind = VFS_SIM_SYNC_DATA, .nth = 1, .error = EIO});
    check(ls_force(r.store, 0) == LS_OUTCOME_UNKNOWN && heard() == 0 && signals() > before);
    check(leave_for_all(ends[0], &lsn) == LS_WOULD_WAIT && ls_event_answered(r.store, event) == -1);
    done();
}

static void an_answer_for_all_that_was_appended_gives_its_end(void) {
    uint64_t lsn = 0;
    fresh();
    uint64_t before = signals(), end = put();
    check(leave_for_all(ends[0], &lsn) == LS_OK && lsn == end && heard() == 0);
    check(ls_force(r.store, 0) == LS_OK && heard() == sizeof answer && signals() == before);
    check(leave_for_all(ends[0], &lsn) == LS_WOULD_WAIT && lsn == end); /* all is durable */
    check(ls_event_answered(r.store, event) == sizeof answer && heard() == 0);
    check(leave(end = put()) == LS_OK);
    check(leave_for_all(ends[0], &lsn) == LS_WOULD_WAIT && lsn == end); /* there is one */
    check(ls_event_answered(r.store, event) == -1);
    check(ls_close(r.store) == LS_OK && leave_for_all(ends[0], &lsn) == LS_CLOSED && lsn == 0);
    done();
}

int main(void) {
    static void (*const tests[])(void) = {
        an_answer_is_sent_once_when_its_lsn_is_durable_and_takes_the_place_of_the_signal,
        the_signal_comes_too_if_more_than_the_answer_waits_for_is_durable,
        an_answer_goes_to_its_own_client_though_another_one_has_the_number_of_the_socket,
        without_a_descriptor_the_answer_is_left_to_the_loop,
        every_other_event_is_signalled,
        an_answer_that_was_taken_back_is_not_sent,
        an_answer_that_cannot_be_sent_as_a_whole_leaves_the_rest_to_the_loop,
        nothing_is_sent_if_the_disk_fails,
        what_cannot_be_sent_later_is_not_taken,
        an_answer_that_was_sent_as_a_whole_makes_way_for_the_next_one_of_its_event,
        an_answer_that_was_not_sent_as_a_whole_makes_way_for_none,
        an_answer_in_the_place_of_one_that_was_sent_is_not_sent_if_the_disk_fails,
        an_answer_for_all_that_was_appended_gives_its_end,
    };
    return run_tests(tests, sizeof tests / sizeof *tests);
}
