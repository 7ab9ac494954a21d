/* Events in the order of their time, and links: in order and once, until a connection breaks. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/consensus_shared.h"

struct link {
    uint64_t last_ms; /* when the newest letter arrives; later ones do not arrive before it */
    uint64_t down_until_ms;
    unsigned connection; /* letters of an older one are lost */
    unsigned told;       /* the connection on which a hello went out, plus 1 */
    unsigned accepted;   /* the connection on which one was accepted, plus 1 */
    bool cut;
};

static struct {
    struct event *heap;
    size_t count;
    size_t capacity;
    uint64_t order;
    uint64_t break_per_4000;
    struct link links[MEMBERS_MAX + 1][MEMBERS_MAX + 1];
} net;

static bool is_before(const struct event *a, const struct event *b) {
    return a->at_ms < b->at_ms || (a->at_ms == b->at_ms && a->order < b->order);
}

static void swap(size_t a, size_t b) {
    struct event kept = net.heap[a];
    net.heap[a] = net.heap[b];
    net.heap[b] = kept;
}

static void push_as_is(struct event e) {
    net.heap = grow(net.heap, &net.capacity, net.count, sizeof *net.heap);
    size_t at = net.count++;
    net.heap[at] = e;
    for (; at > 0 && is_before(&net.heap[at], &net.heap[(at - 1) / 2]); at = (at - 1) / 2)
        swap(at, (at - 1) / 2);
}

void event_push(struct event e) {
    e.order = ++net.order;
    push_as_is(e);
}

/* Moves an event to a later time; the order of the member's events stays. */
void event_defer(struct event e, uint64_t at_ms) {
    e.at_ms = at_ms;
    push_as_is(e);
}

static struct event pop(void) {
    struct event first = net.heap[0];
    net.heap[0] = net.heap[--net.count];
    for (size_t at = 0, least;; at = least) {
        least = at;
        for (size_t child = 2 * at + 1; child <= 2 * at + 2 && child < net.count; child++)
            least = is_before(&net.heap[child], &net.heap[least]) ? child : least;
        if (least == at)
            return first;
        swap(at, least);
    }
}

bool event_next(struct event *e) {
    if (net.count == 0 || net.heap[0].at_ms > sim.now_ms)
        return false;
    *e = pop();
    return true;
}

void net_reset(uint64_t break_per_4000) {
    for (size_t i = 0; i < net.count; i++)
        free(net.heap[i].letter);
    net.count = 0;
    memset(net.links, 0, sizeof net.links);
    net.order = 0;
    net.break_per_4000 = break_per_4000;
}

void net_heal(void) {
    net.break_per_4000 = 0;
    for (uint64_t a = 1; a <= MEMBERS_MAX; a++)
        for (uint64_t b = 1; b <= MEMBERS_MAX; b++)
            net.links[a][b].cut = false;
}

void net_cut(uint64_t from, uint64_t to, bool cut) { net.links[from][to].cut = cut; }

bool net_is_cut(uint64_t from, uint64_t to) { return net.links[from][to].cut; }

void net_reset_connections(uint64_t member) {
    for (uint64_t i = 1; i <= MEMBERS_MAX; i++) {
        net.links[member][i].connection++;
        net.links[i][member].connection++;
    }
}

bool letter_arrives(const struct event *e) {
    struct link *l = &net.links[e->letter->from][e->member];
    if (l->connection != e->connection)
        return false;
    if (!e->letter->is_hello)
        return l->accepted == l->connection + 1;
    if (hello_hears(e->member, e->letter->from, &e->letter->hello))
        l->accepted = l->connection + 1;
    return false;
}

static struct letter *letter_new(uint64_t from) {
    struct letter *letter = malloc(sizeof *letter);
    if (letter == NULL)
        run_failed("no memory for a frame");
    letter->is_hello = false;
    letter->from = from;
    return letter;
}

static void post(const struct link *l, uint64_t to, struct letter *letter) {
    event_push((struct event){
        .at_ms = l->last_ms, .kind = EVENT_LETTER, .member = to, .letter = letter, .connection = l->connection});
}

static void say_hello(struct link *l, uint64_t from, uint64_t to) {
    if (l->told == l->connection + 1)
        return;
    l->told = l->connection + 1;
    struct letter *letter = letter_new(from);
    letter->is_hello = true;
    hello_tell(from, &letter->hello);
    post(l, to, letter);
}

void net_send(uint64_t from, const struct engine_frame *frame) {
    static const uint64_t delays_ms[] = {1, 1, 1, 2, 5, 30, 200};
    if (frame->peer == 0 || frame->peer > MEMBERS_MAX)
        violation("member %llu sends to member %llu, which does not exist", (unsigned long long)from,
                  (unsigned long long)frame->peer);
    struct link *l = &net.links[from][frame->peer];
    sim.counts[COUNT_FRAMES]++;
    if (l->cut) {
        l->connection++;
        return;
    }
    if (random_below(4000) < net.break_per_4000) {
        l->connection++;
        l->down_until_ms = sim.now_ms + 5 + random_below(200);
    }
    if (sim.now_ms < l->down_until_ms)
        return;
    uint64_t at = sim.now_ms + delays_ms[random_below(!sim.calm && random_chance(0.05) ? 7 : 4)];
    l->last_ms = at > l->last_ms ? at : l->last_ms;
    say_hello(l, from, frame->peer);
    struct letter *letter = letter_new(from);
    letter->frame = *frame;
    letter->frame.peer = from;
    for (uint32_t i = 0; i < frame->count; i++) {
        uint64_t index = frame->index + 1 + i;
        letter->batches[i] = letter_batch(from, index);
        if (letter->batches[i] == NO_BATCH)
            violation("member %llu is to send batch %llu, which it does not keep", (unsigned long long)from,
                      (unsigned long long)index);
    }
    post(l, frame->peer, letter);
}
