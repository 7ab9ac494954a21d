/* XXH64 as an ordinary function, and in pieces; the steps of the algorithm stand in xxh64.h, once. */
#include "format/xxh64.h"

uint64_t xxh64(const void *data, size_t bytes, uint64_t seed) { return xxh64_inline(data, bytes, seed); }

void xxh64_begin(struct xxh64_sum *sum) {
    *sum = (struct xxh64_sum){.lanes = {XXH64_PRIME_1 + XXH64_PRIME_2, XXH64_PRIME_2, 0, 0 - XXH64_PRIME_1}};
}

/* Whole stripes; returns how many bytes they have. */
static size_t add_stripes(struct xxh64_sum *sum, const unsigned char *at, size_t bytes) {
    uint64_t lane_1 = sum->lanes[0], lane_2 = sum->lanes[1], lane_3 = sum->lanes[2], lane_4 = sum->lanes[3];
    size_t done = 0;
    for (; bytes - done >= XXH64_STRIPE_BYTES; done += XXH64_STRIPE_BYTES) {
        lane_1 = xxh64_round(lane_1, xxh64_load_64(at + done));
        lane_2 = xxh64_round(lane_2, xxh64_load_64(at + done + 8));
        lane_3 = xxh64_round(lane_3, xxh64_load_64(at + done + 16));
        lane_4 = xxh64_round(lane_4, xxh64_load_64(at + done + 24));
    }
    sum->lanes[0] = lane_1;
    sum->lanes[1] = lane_2;
    sum->lanes[2] = lane_3;
    sum->lanes[3] = lane_4;
    return done;
}

void xxh64_add(struct xxh64_sum *sum, const void *data, size_t bytes) {
    const unsigned char *at = data;
    size_t held = sum->bytes % XXH64_STRIPE_BYTES;
    if (bytes == 0) {
        return;
    }
    sum->bytes += bytes;
    if (held > 0) {
        size_t missing = XXH64_STRIPE_BYTES - held, more = bytes < missing ? bytes : missing;
        memcpy(sum->rest + held, at, more);
        at += more;
        bytes -= more;
        if (more < missing) {
            return;
        }
        (void)add_stripes(sum, sum->rest, XXH64_STRIPE_BYTES);
    }
    size_t done = add_stripes(sum, at, bytes);
    memcpy(sum->rest, at + done, bytes - done);
}

uint64_t xxh64_end(const struct xxh64_sum *sum) {
    const uint64_t *l = sum->lanes;
    uint64_t hash = XXH64_PRIME_5;
    if (sum->bytes >= XXH64_STRIPE_BYTES) {
        hash = xxh64_rotate_left(l[0], 1) + xxh64_rotate_left(l[1], 7) + xxh64_rotate_left(l[2], 12) +
               xxh64_rotate_left(l[3], 18);
        for (int i = 0; i < 4; i++) {
            hash = xxh64_merge(hash, l[i]);
        }
    }
    return xxh64_tail(hash + sum->bytes, sum->rest, sum->bytes % XXH64_STRIPE_BYTES);
}
