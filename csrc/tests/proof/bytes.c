/*
 * Damages the bytes of small stores on the disk: every bit, every length, every sector, every file. The stores contain
 * every record type; bytes_verdict.h has the required answers.
 *
 *   bytes [--tier fast|full] [--seconds S] [--seed N] [--without CHECK[,CHECK]] [--first-violation]
 *
 * fast: at least 65,536 different bits, of headers and records first. full: all bits of all files, all lengths, all
 * sectors. The last line is one JSON object; the exit status is 0 if nothing was violated.
 */
#include <signal.h>
#include <unistd.h>

#include "tests/proof/bytes_checkpoint.h"
#include "tests/proof/bytes_files.h"
#include "tests/proof/bytes_flips.h"

enum { FLIPS_FAST = 66560, SPOTS_MAX = 4 << 20 };

static struct {
    uint64_t seed;
    double seconds; /* 0: no limit */
    bool full;
} asked = {.seed = 1};

static uint64_t flips, live_flips, moves;

/* ---- time ---- */

static bool time_is_up(void) {
    tally.stop = tally.stop || (tally.until > 0 && seconds_of(CLOCK_MONOTONIC) > tally.until);
    return tally.stop;
}

/* ---- the last line ---- */

static void print_counts(void) {
    uint64_t undetected = tally.violations[CHECK_DETECTED];

    printf("{\"tool\":\"bytes\",\"tier\":\"%s\",\"seed\":%llu,\"flips\":%llu,\"undetected\":%llu,\"live_flips\":%llu,"
           "\"moves\":%llu,"
           "\"truncations\":%llu,\"sectors\":%llu,\"files\":%llu,\"cases\":%llu,\"refused\":%llu,\"harmless\":%llu,"
           "\"checkpoint_flips\":%llu,\"checkpoints\":%llu,\"below_checkpoint\":%llu,\"unmet\":%llu,"
           "\"refused_reads\":%llu,\"behind_checkpoint\":%llu,\"cut\":%llu,\"cut_unreported\":%llu,\"largest_"
           "allocation\":%zu,\"cpu_seconds\":%.1f,\"violations\":%llu",
           asked.full ? "full" : "fast", (unsigned long long)asked.seed, (unsigned long long)flips,
           (unsigned long long)undetected, (unsigned long long)live_flips, (unsigned long long)moves,
           (unsigned long long)counts.truncations, (unsigned long long)counts.sectors, (unsigned long long)counts.files,
           (unsigned long long)tally.cases, (unsigned long long)tally.refused, (unsigned long long)tally.harmless,
           (unsigned long long)pointed.flips, (unsigned long long)pointed.damaged, (unsigned long long)pointed.below,
           (unsigned long long)pointed.unmet, (unsigned long long)pointed.refused, (unsigned long long)pointed.behind,
           (unsigned long long)tally.cut, (unsigned long long)tally.beyond, tally.largest,
           seconds_of(CLOCK_PROCESS_CPUTIME_ID), (unsigned long long)tally.all);
    if (tally.killed_by >= 0)
        printf(",\"killed_by\":\"%s\"", check_words[tally.killed_by]);
    printf("}\n");
    (void)fflush(stdout);
}

/* A signal handler: the process ends here in any case, so it may call functions that are not signal-safe. */
static void crashed(int signal_number) {
    (void)signal(signal_number, SIG_DFL);
    tally.first_only = false;
    violated(CHECK_CRASH, signal_number == SIGALRM ? "it does not end" : "a crash");
    print_counts();
    _exit(tally.all != 0);
}

/* ---- flips ---- */

static uint64_t flip_pass(struct subject *const *subjects, const struct spot *spots, size_t n, int kind, int pass,
                          uint32_t step, uint64_t limit) {
    uint64_t done = 0, of_kind = 0;

    for (size_t i = 0; i < n && done < limit && !time_is_up(); i++) {
        const struct spot *p = &spots[i];

        if (p->kind != kind || of_kind++ % step != asked.seed % step)
            continue;
        flip(subjects[p->store], p->file, p->at, (int)((p->at * 2654435761u >> 16) + (uint32_t)pass) & 7);
        done++;
    }
    flips += done;
    return done;
}

static size_t of_kind(const struct spot *spots, size_t n, int kind) {
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += spots[i].kind == kind;
    return count;
}

/*
 * A pass flips one bit of each byte that it visits, and another bit in each pass. Fast: one pass over all structural bytes,
 * then a share of each other kind; the remaining number comes from the structural bytes again.
 */
static void flip_all(struct subject *const *subjects, const struct spot *spots, size_t n) {
    size_t structure = of_kind(spots, n, OF_STRUCTURE), rest = structure < FLIPS_FAST ? FLIPS_FAST - structure : 0;

    if (asked.full) {
        for (int kind = OF_STRUCTURE; kind <= OF_CONTENT; kind++) {
            for (int pass = 0; pass < 8; pass++)
                (void)flip_pass(subjects, spots, n, kind, pass, 1, UINT64_MAX);
        }
        return;
    }
    (void)flip_pass(subjects, spots, n, OF_STRUCTURE, 0, 1, UINT64_MAX);
    (void)flip_pass(subjects, spots, n, OF_CONTENT, 0,
                    (uint32_t)(of_kind(spots, n, OF_CONTENT) * 10 / (rest * 8 + 1) + 1), UINT64_MAX);
    (void)flip_pass(subjects, spots, n, OF_NOTHING, 0, (uint32_t)(of_kind(spots, n, OF_NOTHING) * 10 / (rest + 1) + 1),
                    UINT64_MAX);
    for (int pass = 1; pass < 8 && flips < FLIPS_FAST && !time_is_up(); pass++)
        (void)flip_pass(subjects, spots, n, OF_STRUCTURE, pass, 1, FLIPS_FAST - flips);
}

/* ---- everything ---- */

static void check_record_types(const struct subject *s) {
    static const uint16_t types[] = {
        MESSAGE_START, MESSAGE_CHUNK, MESSAGE_ENQUEUE, MESSAGE_DEQUEUE, MESSAGE_DELETE, MESSAGE_RELOCATED,
        DTX_START,     TX_START,      TX_END,          TX_PREPARE,      TX_COMMIT,      TX_ROLLBACK,
        TX_DELETE,     TX_RELOCATED,  BATCH,           FOOTER,          QUEUE_DELETE};

    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if ((s->types & type_bit(types[i])) == 0) {
            printf("the %s store holds no record of type %04x\n", store_words[s->kind], types[i]);
            exit(1);
        }
    }
}

static void damage_all(struct subject *const *subjects, const struct subject *other, const struct spot *spots,
                       size_t n) {
    for (int i = 0; i < 3 && !time_is_up(); i++) {
        (void)alarm(10 * CASE_SECONDS_MAX);
        live_flips += flip_under(subjects[i], asked.full ? 1 : 64);
        moves += flip_under_moves(subjects[i]);
        damage_files(subjects[i], other);
        lengthen_all(subjects[i]);
    }
    for (int i = 0; i < 3 && !time_is_up(); i++) {
        (void)alarm(10 * CASE_SECONDS_MAX);
        misdirect_all(subjects[i]);
        damage_sectors(subjects[i], SECTOR, asked.full ? 1 : 2, asked.seed);
        damage_sectors(subjects[i], BLOCK, 1, asked.seed);
        truncate_all(subjects[i], 4099);
    }
    flip_all(subjects, spots, n);
    for (int i = 0; asked.full && i < 3 && !time_is_up(); i++)
        truncate_all(subjects[i], 1);
    for (int pass = 0; asked.full && pass < 8; pass++)
        (void)flip_pass(subjects, spots, n, OF_NOTHING, pass, 1, UINT64_MAX);
}

static void switch_off(char *names) {
    for (char *save, *name = strtok_r(names, ",", &save); name != NULL; name = strtok_r(NULL, ",", &save)) {
        bool known = false;

        for (int i = 0; i < CHECKS; i++) {
            bool is = strcmp(name, check_words[i]) == 0;

            tally.off[i] = tally.off[i] || is;
            known = known || is;
        }
        if (!known) {
            printf("there is no check %s\n", name);
            exit(2);
        }
    }
}

static void read_arguments(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        char *value = i + 1 < argc ? argv[i + 1] : NULL;

        if (strcmp(argv[i], "--first-violation") == 0) {
            tally.first_only = true;
            continue;
        }
        if (value != NULL && strcmp(argv[i], "--tier") == 0)
            asked.full = strcmp(value, "full") == 0;
        else if (value != NULL && strcmp(argv[i], "--seconds") == 0)
            asked.seconds = strtod(value, NULL);
        else if (value != NULL && strcmp(argv[i], "--seed") == 0)
            asked.seed = strtoull(value, NULL, 10);
        else if (value != NULL && strcmp(argv[i], "--without") == 0)
            switch_off(value);
        else {
            printf("usage: bytes [--tier fast|full] [--seconds S] [--seed N] [--without CHECK[,CHECK]] "
                   "[--first-violation]\n");
            exit(2);
        }
        i++;
    }
}

int main(int argc, char **argv) {
    static struct spot spots[SPOTS_MAX];
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM};
    struct subject *subjects[STORES];
    size_t n;

    read_arguments(argc, argv);
    tally.until = asked.seconds > 0 ? seconds_of(CLOCK_MONOTONIC) + asked.seconds : 0;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        (void)signal(signals[i], crashed);
    SAY("making the stores");
    for (int kind = 0; kind < STORES; kind++)
        subjects[kind] = subject_new(kind, asked.seed);
    for (int kind = 0; kind < STORES; kind++) {
        if (subjects[kind]->wrong)
            violated(CHECK_STATE, "an undamaged store differs from the model");
        if (kind != STORE_OTHER)
            check_record_types(subjects[kind]);
    }
    n = list_spots(subjects, STORE_OTHER, spots);
    (void)alarm(10 * CASE_SECONDS_MAX);
    damage_checkpoints(subjects[STORE_POINTED], subjects[STORE_OTHER], asked.seed, asked.full);
    damage_all(subjects, subjects[STORE_OTHER], spots, n);
    (void)alarm(0);
    for (int kind = 0; kind < STORES; kind++)
        subject_free(subjects[kind]);
    print_counts();
    return tally.all != 0;
}
