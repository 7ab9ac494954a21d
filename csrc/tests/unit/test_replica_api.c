/*
 * Replication by the public header alone, on files: a program that moves the batches of one copy to two others, as any program may
 * that links the library. Its thread takes the leader's batches and says what a majority has.
 */
#include <fcntl.h>
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "logstore.h"

enum { COPIES = 3, MESSAGES = 500 };

static int failures;
static char place[256], paths[COPIES][300], stores[COPIES][320];
static const uint32_t queue = 1;
static ls_options options;
static ls_store *leads;
static ls_host *hosts[COPIES];
static ls_replica *follows[COPIES]; /* NULL: it leads */

#define check(condition) ((condition) ? (void)0 : report(__LINE__, #condition))

static void report(int line, const char *what) {
    printf("test_replica_api.c:%d: %s: %s\n", line, what, ls_last_error()->text);
    failures++;
}

/* ---- directories ---- */

static void copy_file(const char *from, const char *to) {
    static char bytes[1 << 16];
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ssize_t got;

    while ((got = read(in, bytes, sizeof bytes)) > 0)
        if (write(out, bytes, (size_t)got) != got)
            abort();
    (void)close(in);
    (void)close(out);
}

static void each_file(const char *path, const char *to) {
    DIR *dir = opendir(path);
    struct dirent *e;
    char from[600], into[600];

    while (dir != NULL && (e = readdir(dir)) != NULL) {
        struct stat st;

        (void)snprintf(from, sizeof from, "%s/%s", path, e->d_name);
        if (stat(from, &st) != 0 || !S_ISREG(st.st_mode))
            continue;
        if (to == NULL) {
            (void)unlink(from);
            continue;
        }
        (void)snprintf(into, sizeof into, "%s/%s", to, e->d_name);
        copy_file(from, into);
    }
    if (dir != NULL)
        (void)closedir(dir);
}

static void remove_all(void) {
    char holds[400];

    for (int i = 0; i < COPIES; i++) {
        (void)snprintf(holds, sizeof holds, "%s/holds", stores[i]);
        each_file(holds, NULL);
        (void)rmdir(holds);
        each_file(stores[i], NULL);
        (void)rmdir(stores[i]);
        each_file(paths[i], NULL);
        (void)rmdir(paths[i]);
    }
    (void)rmdir(place);
}

/* One store with a message, and two copies of its files; each is in the directory of a member. */
static void make_copies(void) {
    const char *tmp = getenv("TMPDIR");
    ls_store *store;
    uint64_t id;

    (void)snprintf(place, sizeof place, "%s/replica-XXXXXX", tmp != NULL ? tmp : "/tmp");
    if (mkdtemp(place) == NULL)
        abort();
    for (int i = 0; i < COPIES; i++) {
        (void)snprintf(paths[i], sizeof paths[i], "%s/member-%d", place, i + 1);
        (void)snprintf(stores[i], sizeof stores[i], "%s/copy-1", paths[i]);
        if (mkdir(paths[i], 0700) != 0)
            abort();
    }
    ls_options_default(&options);
    options.segment_size = 1 << 20;
    check(ls_open(NULL, stores[0], &options, &store) == LS_OK && ls_serve(store, &queue, 1, 2) == LS_OK);
    check(ls_publish(store, &queue, 1, NULL, 0, (const uint8_t *)"before", 6, NULL, LS_WAIT, &id) == LS_OK);
    check(ls_close(store) == LS_OK);
    ls_free(store);
    for (int i = 1; i < COPIES; i++) {
        if (mkdir(stores[i], 0700) != 0)
            abort();
        each_file(stores[0], stores[i]);
    }
}

/* Without VOTE no copy opens, and it is made once. */
static void make_members(void) {
    ls_member member = {.cluster_uuid = {7}, .copy = 1};

    for (int i = 0; i < COPIES; i++) {
        check(ls_host_open(NULL, paths[i], &options, &hosts[i]) == LS_NOT_A_STORE && hosts[i] == NULL);
        member.member_id = (uint64_t)i + 1;
        check(ls_host_create(NULL, paths[i], &member) == LS_OK);
        check(ls_host_create(NULL, paths[i], &member) == LS_OPTION);
        check(ls_host_open(NULL, paths[i], &options, &hosts[i]) == LS_OK);
        follows[i] = ls_host_replica(hosts[i]);
        check(follows[i] != NULL);
    }
}

/* ---- the program that moves batches ---- */

static atomic_bool stops;

static void *move_batches(void *nothing) {
    struct pollfd ready = {.fd = ls_replica_event_fd(leads), .events = POLLIN};
    uint64_t end_lsn = 0, index = 0, told = 0, counter;

    (void)nothing;
    while (!atomic_load(&stops)) {
        ls_replica_batch b;

        (void)poll(&ready, 1, 10);
        (void)!read(ready.fd, &counter, sizeof counter);
        while (ls_replica_next(leads, &b) == LS_OK) {
            for (int i = 0; i < COPIES; i++)
                check(follows[i] == NULL || ls_replica_take(follows[i], &b) == LS_OK);
            end_lsn = b.end_lsn;
            index = b.index;
        }
        if (index != told && ls_replica_forced(leads) >= index) { /* all three have it */
            check(ls_replica_majority_has(leads, end_lsn) == LS_OK);
            for (int i = 0; i < COPIES; i++)
                check(follows[i] == NULL || ls_replica_durable(follows[i], end_lsn) == LS_OK);
            told = index;
        }
    }
    return NULL;
}

static pthread_t mover;

static void lead(int which, uint64_t term, const char *config) {
    size_t bytes = config != NULL ? strlen(config) : 0;
    int rc;

    check(ls_host_lead(hosts[which], term, (const uint8_t *)config, bytes, &leads) == LS_REFUSED && leads == NULL);
    for (int i = 0; i < COPIES; i++)
        check(ls_host_vote(hosts[i], term, (uint64_t)which + 1) == LS_OK);
    check(ls_host_lead(hosts[which], term, (const uint8_t *)config, bytes, &leads) == LS_OK);
    follows[which] = ls_host_replica(hosts[which]);
    check(follows[which] == NULL);
    check(ls_replica_serve(leads, &queue, 1, 2) == LS_WOULD_WAIT);
    atomic_store(&stops, false);
    check(pthread_create(&mover, NULL, move_batches, NULL) == 0);
    while ((rc = ls_replica_serve(leads, &queue, 1, 2)) == LS_WOULD_WAIT)
        (void)usleep(200);
    check(rc == LS_OK);
}

static void cease(int which) {
    atomic_store(&stops, true);
    check(pthread_join(mover, NULL) == 0);
    check(ls_replica_cease(leads) == LS_OK);
    check(ls_host_note_tail(hosts[which], leads) == LS_OK);
    ls_free(leads);
    leads = NULL;
    check(ls_host_follow(hosts[which]) == LS_OK);
    follows[which] = ls_host_replica(hosts[which]);
    check(ls_host_note_tail(hosts[which], NULL) == LS_OK);
}

static void publish(int n) {
    uint64_t id;

    for (int i = 0; i < n; i++)
        check(ls_publish(leads, &queue, 1, NULL, 0, (const uint8_t *)"message", 7, NULL, i % 50 == 49 ? LS_WAIT : 0,
                         &id) == LS_OK);
    check(ls_force(leads, 0) == LS_OK);
}

int main(void) {
    ls_replica_info info;
    ls_host_info host;
    ls_stats stats;
    uint64_t index, copy;

    make_copies();
    make_members();
    ls_replica_describe(follows[1], &info);
    check(info.index == 0 && info.messages == 1 && info.least_term > 0);
    check(ls_host_vote(hosts[1], info.least_term, 2) == LS_OK);
    check(ls_host_lead(hosts[1], info.least_term, NULL, 0, &leads) == LS_OPTION && leads == NULL);
    lead(0, info.least_term + 1, "1,2,3");
    publish(MESSAGES);
    check(ls_replica_change_members(leads, (const uint8_t *)"1,2,3,4", 7, &index) == LS_OK && index > 1);
    publish(1);
    check(ls_replica_majority_has(leads, UINT64_MAX) == LS_REFUSED);
    cease(0);
    ls_replica_describe(follows[0], &info);
    for (int i = 1; i < COPIES; i++) {
        ls_replica_info other;

        ls_replica_describe(follows[i], &other);
        check(other.index == info.index && other.end_lsn == info.end_lsn && other.term == info.term);
        check(ls_host_cut(hosts[i], 1) == LS_REFUSED);
    }
    ls_host_describe(hosts[0], &host);
    check(host.member.member_id == 1 && host.member.copy == 1 && host.member.cluster_uuid[0] == 7);
    check(host.term == info.term && host.voted_for == 1 && host.start_term == 0 && host.rebuild == 0);
    check(host.tail_term == info.term && host.tail_index == info.index);
    check(host.floor_term == info.term && host.floor_index > 0 && host.floor_index <= info.index);
    check(ls_host_vote(hosts[0], info.term, 2) == LS_REFUSED && ls_host_vote(hosts[0], 1, 2) == LS_REFUSED);
    lead(2, info.least_term, NULL);
    publish(MESSAGES);
    ls_stats_get(leads, &stats);
    check(stats.messages == 2 * MESSAGES + 2);
    cease(2);
    check(ls_host_remove_copy(hosts[2]) == LS_OK && ls_host_replica(hosts[2]) == NULL);
    check(access(stores[2], F_OK) != 0);
    for (int i = 0; i < COPIES; i++)
        ls_host_close(hosts[i]);
    check(ls_open(NULL, stores[1], &options, &leads) == LS_REPLICATED);
    check(ls_backup_detach(NULL, stores[1], &options) == LS_OPTION);
    check(ls_host_detach(NULL, paths[1], &options, info.term + 100, &copy) == LS_OK && copy == 1);
    check(ls_host_open(NULL, paths[1], &options, &hosts[1]) == LS_NOT_A_STORE);
    check(ls_open(NULL, stores[1], &options, &leads) == LS_OK);
    ls_free(leads);
    remove_all();
    printf("%d passed, %d failed\n", failures == 0, failures);
    return failures == 0 ? 0 : 1;
}
