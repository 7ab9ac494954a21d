/* One run over the real log: its members and their first disks, a loop over milliseconds, and an end without faults. */
#include "tests/sim/consensus_real.h"

#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEALED_MS = 10000, LONGER_MS = 6000, FLOOR_EVERY_MS = 500, WAITS_MS = 20000 };

static struct member members[MEMBERS_MAX + 1];

const char *const run_mode = "real: ";
const char *const run_mutants[] = {"NONE"};
const size_t run_scenario_count = SCENARIO_IDENTITY; /* which is the model's */
const size_t run_mutant_count = 1; /* others are planted in the core and the engine: tools/mutants.py */

ls_options options;

void note(const struct member *m, const char *format, ...) {
    if (!sim.trace)
        return;
    va_list arguments;
    va_start(arguments, format);
    (void)printf("%8.3f s  member %llu  ", (double)sim.now_ms / 1000, AT_MEMBER(m));
    (void)vprintf(format, arguments);
    (void)printf("\n");
    va_end(arguments);
}

/* ---- the beginning ---- */

static void choose_options(void) {
    ls_options_default(&options);
    options.segment_size = UINT64_C(64) << 10;
    options.max_write_buffers = 2 + (uint32_t)random_below(random_chance(0.5) ? 4 : 14);
    options.initial_segments = 2 + (uint32_t)random_below(3);
    options.background = 0;
    options.max_log_bytes = random_chance(0.6) ? (10 + random_below(8)) * options.segment_size : 0;
    options.kept_bytes = (1 + random_below(5)) * options.segment_size;
}

/* A store that had messages before it became replicated. */
static vfs_sim *make_store(void) {
    static const uint32_t queues[QUEUES] = {1, 2, 3};
    vfs_sim *disk = vfs_sim_new();
    ls_store *store = NULL;
    uint64_t id;
    if (disk == NULL)
        run_failed("no memory for a disk");
    vfs_sim_seed(disk, 1 + random_below(UINT32_MAX));
    (void)vfs_sim_record(disk, 0);
    vfs *v = vfs_sim_table(disk);
    int rc = v->make_dir(v, "/m") == 0 ? ls_open(v, "/m/copy-1", &options, &store) : LS_IO;
    rc = rc == LS_OK ? ls_serve(store, queues, QUEUES, QUEUES + 1) : rc;
    for (uint64_t n = random_chance(0.5) ? random_below(30) : 0; rc == LS_OK && n > 0; n--)
        rc = ls_publish(store, queues, 1, NULL, 0, (const uint8_t *)"before", 6, NULL, 0, &id);
    rc = rc == LS_OK ? ls_close(store) : rc;
    if (rc != LS_OK)
        violation("the first store cannot be made: %.250s", ls_last_error()->text);
    ls_free(store);
    return disk;
}

/* One member writes the first configuration as the only voter; the other voters get a copy of that batch. */
static void begin_replication(vfs_sim **disks, uint64_t voters) {
    static const char *const addresses[] = {"one:1", "two:2", "three:3", "four:4", "five:5"};
    uint64_t ids[MEMBERS_MAX];
    uint8_t config[ENGINE_CONFIGURATION_MAX];
    uint32_t bytes = 0;
    ls_host *hosts[MEMBERS_MAX] = {NULL};
    ls_store *store = NULL;
    ls_replica_batch b = {.index = 0};
    int rc = LS_OK;
    for (uint64_t i = 0; i < voters; i++) {
        ids[i] = i + 1;
        rc = rc == LS_OK ? ls_host_open(vfs_sim_table(disks[i]), "/m", &options, &hosts[i]) : rc;
    }
    if (rc != LS_OK || engine_bootstrap(ids, addresses, voters, config, &bytes) != ENGINE_OK)
        violation("no first members: %.250s", ls_last_error()->text);
    uint64_t term = replica_least_term(hosts[0]->follows);
    rc = ls_host_vote(hosts[0], term, 1);
    rc = rc == LS_OK ? ls_host_lead(hosts[0], term, config, bytes, &store) : rc;
    rc = rc == LS_OK ? ls_replica_next(store, &b) : rc;
    if (rc != LS_OK)
        violation("replication cannot begin: %.250s", ls_last_error()->text);
    int id = batches_add(1, &b, ENGINE_MEMBERS, NO_BATCH);
    for (uint64_t i = 1; rc == LS_OK && i < voters; i++) {
        rc = ls_host_vote(hosts[i], term, 1);
        rc = rc == LS_OK ? ls_replica_take(ls_host_replica(hosts[i]), &batch_of(id)->b) : rc;
    }
    if (rc != LS_OK)
        violation("the first batch is refused: %.250s", ls_last_error()->text);
    (void)ls_replica_cease(store);
    ls_free(store);
    for (uint64_t i = 0; i < voters; i++)
        ls_host_close(hosts[i]);
}

static void begin(uint64_t voters) {
    vfs_sim *disks[MEMBERS_MAX] = {NULL};
    vfs_sim *store = make_store();
    ls_member first = {.cluster_uuid = {1}, .copy = 1};
    ls_host *host = NULL;
    ls_host_info info;
    int rc = LS_OK;
    for (uint64_t i = 0; rc == LS_OK && i < sim.count; i++) {
        disks[i] = i < voters ? vfs_sim_clone(store) : vfs_sim_new();
        if (disks[i] == NULL)
            run_failed("no memory for a disk");
        (void)vfs_sim_record(disks[i], 0);
        vfs_sim_seed(disks[i], 1 + random_below(UINT32_MAX));
        vfs *v = vfs_sim_table(disks[i]);
        first.member_id = i + 1;
        if (i >= voters)
            rc = v->make_dir(v, "/m");
        rc = rc == LS_OK ? ls_host_create(v, "/m", &first) : rc;
        if (i > 0 || rc != LS_OK)
            continue;
        rc = ls_host_open(v, "/m", &options, &host);
        if (rc == LS_OK) { /* whose UUID all have */
            ls_host_describe(host, &info);
            memcpy(first.uuid, info.member.uuid, sizeof first.uuid);
            ls_host_close(host);
        }
    }
    if (rc != LS_OK)
        violation("the first hosts cannot be made: %d %.250s", rc, ls_last_error()->text);
    tables_first(store);
    begin_replication(disks, voters);
    for (uint64_t i = 1; i <= sim.count; i++) {
        struct member *m = &sim.members[i];
        *m = (struct member){.id = i,
                             .pending = m->pending,
                             .pending_capacity = m->pending_capacity,
                             .tellings = m->tellings,
                             .telling_capacity = m->telling_capacity};
        member_first(m, disks[i - 1]);
        member_start(m);
    }
}

/* ---- a millisecond ---- */

static void happen(const struct event *e) {
    struct member *m = &sim.members[e->member];
    bool same_process = m->up && e->generation == m->generation;
    if (m->up && m->frozen_until_ms > sim.now_ms && (e->kind == EVENT_LETTER || same_process)) {
        event_defer(*e, m->frozen_until_ms);
        return;
    }
    switch (e->kind) {
    case EVENT_LETTER:
        if (m->up && letter_arrives(e))
            member_receive(m, e->letter);
        free(e->letter);
        break;
    case EVENT_CRASH:
        if (!same_process || sim.now_ms >= sim.faults_end_ms)
            break;
        crash(m);
        if (random_chance(0.7))
            event_push((struct event){
                .at_ms = sim.now_ms + 1 + random_below(sim.churn ? 900 : 40), .kind = EVENT_START, .member = m->id});
        break;
    case EVENT_START:
        if (!m->up)
            member_start(m);
        break;
    case EVENT_LINKS_BACK:
        for (uint64_t i = 1; i <= sim.count; i++)
            net_cut(m->id, i, false);
        break;
    case EVENT_LOST:
        if (same_process && engine_lost(m->e, sim.now_ms, e->value) == ENGINE_OK)
            member_act(m, NULL);
        break;
    default:
        break;
    }
}

static void work(struct member *m) {
    if (m->up && m->frozen_until_ms <= sim.now_ms)
        disk_tell_due(m);
    if (m->up && m->frozen_until_ms <= sim.now_ms && engine_answer(m->e)->due_ms <= sim.now_ms) {
        if (engine_time(m->e, sim.now_ms) != ENGINE_OK)
            violation("member %llu: engine_time fails", AT_MEMBER(m));
        member_act(m, NULL);
    }
    if (!m->up || m->frozen_until_ms > sim.now_ms)
        return;
    if (m->p->store == NULL)
        disk_take(m);
    update_work(m);
    if (m->up && random_chance(m->snapshot_wanted ? 0.2 : 0.01))
        keep_snapshot(m);
    if (m->up && (sim.now_ms + m->id * 97) % FLOOR_EVERY_MS == 0)
        disk_floor(m);
    struct replica *r = m->up ? copy_of(m) : NULL;
    if (r != NULL && random_chance(0.01)) {
        bool some = false;
        bool begins = r->checkpoint == NULL;
        int rc = !begins ? replica_checkpoint_ended(r, &some) : replica_checkpoint_begin(r, &some);
        if (rc != LS_OK)
            core_failed(m, "a checkpoint fails", rc);
        sim.counts[COUNT_CHECKPOINTS] += begins && some;
    }
    if (m->up && m->has_copy && random_chance(0.01)) {
        uint64_t lsn = r != NULL ? r->applied.lsn : m->p->store != NULL ? ls_durable_lsn(m->p->store) : 0;
        ls_host_catalog_has(m->p->host, m->p->store, lsn);
    }
    if (m->up)
        lead_work(m);
}

static void heal(void) {
    sim.healing = true;
    net_heal();
    for (uint64_t i = 1; i <= sim.count; i++) {
        sim.members[i].hangs_until_ms = 0;
        if (!sim.members[i].up)
            member_start(&sim.members[i]);
    }
}

void step(void) {
    struct event e;
    sim.now_ms++;
    if (sim.now_ms == sim.faults_end_ms)
        heal();
    while (event_next(&e))
        happen(&e);
    for (uint64_t i = 1; i <= sim.count; i++)
        work(&sim.members[i]);
    if (!sim.healing)
        faults_now();
}

/* Replaces the C library's sem_wait: while a call waits for a majority, simulated time passes. */
int sem_wait(sem_t *__sem) {
    uint64_t limit_ms = (sim.now_ms > sim.faults_end_ms ? sim.now_ms : sim.faults_end_ms) + WAITS_MS;
    while (sem_trywait(__sem) != 0) {
        if (sim.now_ms > limit_ms)
            violation("LIVENESS: a call waits for ever");
        step();
    }
    return 0;
}

static bool somebody_serves(void) {
    for (uint64_t i = 1; i <= sim.count; i++)
        if (sim.members[i].up && sim.members[i].serves)
            return true;
    return false;
}

static void choose(uint64_t seed) {
    bool by_seed = sim.scenario == SCENARIO_DEFAULT;
    sim.churn = sim.scenario == SCENARIO_CHURN || (by_seed && seed % 8 == 3);
    sim.slow_vote = sim.scenario == SCENARIO_SLOW_VOTE || (by_seed && seed % 8 == 5);
    sim.count = sim.scenario == SCENARIO_TWO ? 2 : MEMBERS_MAX;
}

void run_seed(uint64_t seed, uint64_t ms) {
    sim.members = members;
    random_seed(seed);
    batches_reset();
    judge_reset();
    client_reset();
    sim.unprotected = sim.over = false;
    sim.now_ms = 0;
    sim.faults_end_ms = ms;
    sim.healing = false;
    choose(seed);
    choose_options();
    net_reset(sim.scenario == SCENARIO_TWO ? 0 : random_below(60));
    faults_begin();
    begin(sim.scenario == SCENARIO_TWO || random_below(3) == 0 ? 1 : 3);
    while (sim.now_ms < ms + HEALED_MS || (sim.now_ms < ms + HEALED_MS + LONGER_MS && !somebody_serves()))
        step();
    judge_end();
    for (uint64_t i = 1; i <= sim.count; i++)
        tables_compare_at_end(&sim.members[i]);
    for (uint64_t i = 1; i <= sim.count; i++) {
        if (sim.members[i].up)
            member_ends(&sim.members[i], NULL);
        vfs_sim_free(sim.members[i].disk);
        sim.members[i].disk = NULL;
    }
    tables_reset();
    net_reset(0);
}
