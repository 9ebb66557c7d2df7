/* The timed loops for peers with a C interface: the same as `exchange.rs` and `stream.rs` of the benches,
 * and as `src/collective.rs`, down to the order of the statements, so that all peers run the same loop.
 *
 * A peer includes this at its end, after defining
 *   struct peer, with `crowded`, `helped` and `work`
 *   open_peer, close_peer, version
 *   send_message, receive_message       one at a time; they return once the buffer is free, or filled
 *   start_send, finish_send, start_receive, finish_receive, with a `request`
 *   finish_sends, finish_receives       the same for several requests
 *   put, fence, looked                  into the other's memory; `looked` runs between two looks at one's own
 *   start_put, finish_put               the same in two steps, with a `request`
 *   help                                what a helper thread does again and again: it lets the library make progress
 * and, if it defines COLLECTIVES,
 *   rank, members of the struct; barrier, allreduce, broadcast of i64, in place
 * and, if it defines ACTIVE_MESSAGES,
 *   start_active, finish_active         sends one, with a `request`
 *   expect                              where messages go; IN_PLACE, the handler reads them if they are touched
 *   receive_active                      waits for at most so many; returns their number, or -1
 */
#ifndef LOOPS_H
#define LOOPS_H

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <x86intrin.h>

#define TAG 7
/* The number of looks before a yield, with more processes than processors. The same as in `transport.rs`. */
#define LOOKS 64
/* The most messages in a batch. The same as in `transport.rs`. */
#define BATCH 64
/* Marks the word that announces a message. The same as in `native.rs`. */
#define ARRIVED (UINT64_C(1) << 63)

/* Active messages are copied to the target, or read by their handler in place. */
enum work { MESSAGES, PUTS, ACTIVE, IN_PLACE };
enum part { PING, PONG, POUR, DRAIN, STREAM, BARRIER, ALLREDUCE, BROADCAST, COMPUTING, POUR_BATCHES, DRAIN_BATCHES };
enum transfer { SEND, RECEIVE, PUT };

/* The member that broadcasts, the elements of a cache line, and the steps of work: the same as in `collective.rs`. */
#define ROOT 0
#define LINE_ELEMENTS 8
#define STEPS_LEAST 1000
#define STEPS_MORE 2000

/* The layouts match those of `foreign.rs`. */
struct setup {
    int node, crowded, work, window, helped;
    size_t bytes;
    /* Gives the other process a blob and takes its blob. Returns the length of that blob, or -1. */
    void *context;
    long (*swap)(void *context, const char *name, const void *mine, size_t bytes, void *theirs, size_t room);
};

struct section {
    int part, touched;
    size_t bytes, warmup, count, sends, receives, window;
    uint8_t *source, *target;
    uint8_t **sources, **targets;
    uint64_t *samples;
};

struct why {
    char text[512];
};

#define FAIL(why, ...) (snprintf((why)->text, sizeof(why)->text, __VA_ARGS__), -1)
#define TRY(call)               \
    do {                        \
        if ((call) != 0)        \
            return -1;          \
    } while (0)

static inline uint64_t ticks(void)
{
    unsigned processor;
    return __rdtscp(&processor);
}

/* The bytes from this place in a message to the end of its line, or of the message. */
static inline size_t touch_line(const uint8_t *message, size_t at, size_t bytes)
{
    size_t line = 64 - (uintptr_t)(message + at) % 64;
    return line < bytes - at ? line : bytes - at;
}

/* Writes a word into every line that a message occupies, or a byte where it has less than a word. */
static inline void touch_write(uint8_t *message, size_t bytes, uint64_t value)
{
    for (size_t at = 0, line; at < bytes; at += line) {
        line = touch_line(message, at, bytes);
        if (line >= sizeof value)
            memcpy(message + at, &value, sizeof value);
        else
            message[at] = (uint8_t)value;
    }
    /* Makes the compiler believe that the written bytes are used. */
    __asm__ volatile("" : : "r"(message) : "memory");
}

static inline void touch_read(const uint8_t *message, size_t bytes)
{
    uint64_t sum = 0;
    for (size_t at = 0, line; at < bytes; at += line) {
        line = touch_line(message, at, bytes);
        uint64_t word = message[at];
        if (line >= sizeof word)
            memcpy(&word, message + at, sizeof word);
        sum += word;
    }
    __asm__ volatile("" : : "r"(sum));
}

/* Runs after a look that found nothing. */
static inline void look_again(int crowded, unsigned *looks)
{
    if (crowded && ++*looks % LOOKS == 0)
        sched_yield();
}

#endif

#ifdef PEER

static inline int put_message(struct peer *peer, const uint8_t *message, size_t bytes, struct why *why)
{
    size_t body = bytes > 8 ? bytes - 8 : 0;
    uint64_t word = ARRIVED | ++peer->sent;
    if (body > 0) {
        TRY(put(peer, message, body, 0, why));
        /* A reader that sees the last word sees the others. */
        TRY(fence(peer, why));
    }
    return put(peer, &word, sizeof word, body, why);
}

static inline int wait_for_put(struct peer *peer, size_t bytes, struct why *why)
{
    const volatile uint64_t *last = (const volatile uint64_t *)(peer->landing + (bytes > 8 ? bytes - 8 : 0));
    uint64_t expected = ARRIVED | ++peer->received;
    unsigned looks = 0;
    while (*last != expected) {
        TRY(looked(peer, why));
        look_again(peer->crowded, &looks);
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return 0;
}

static inline int carry_out(struct peer *peer, int kind, const uint8_t *message, size_t bytes, struct why *why)
{
#ifdef ACTIVE_MESSAGES
    if (kind == ACTIVE || kind == IN_PLACE) {
        request r;
        TRY(start_active(peer, message, bytes, &r, why));
        return finish_active(peer, &r, why);
    }
#endif
    return kind == PUTS ? put_message(peer, message, bytes, why) : send_message(peer, message, bytes, why);
}

static inline int carry_in(struct peer *peer, int kind, uint8_t *into, size_t bytes, struct why *why)
{
#ifdef ACTIVE_MESSAGES
    if (kind == ACTIVE || kind == IN_PLACE)
        return receive_active(peer, 1, why) < 0 ? -1 : 0;
#endif
    return kind == PUTS ? wait_for_put(peer, bytes, why) : receive_message(peer, into, bytes, why);
}

/* The compiler makes one copy for each combination, as that of the Rust loops does: the two flags are constants. */
static inline __attribute__((always_inline)) int exchange(struct peer *peer, const struct section *s, int kind, int touched,
                                                          struct why *why)
{
    uint8_t *source = s->source, *target = kind == PUTS ? peer->landing : s->target;
    size_t bytes = s->bytes, all = s->warmup + s->count;
    int read = touched && kind != IN_PLACE;
    switch (s->part) {
    case PING:
        for (size_t i = 0; i < all; i++) {
            uint64_t start = ticks();
            if (touched)
                touch_write(source, bytes, i);
            TRY(carry_out(peer, kind, source, bytes, why));
            TRY(carry_in(peer, kind, target, bytes, why));
            if (read)
                touch_read(target, bytes);
            s->samples[i] = ticks() - start;
        }
        return 0;
    case PONG:
        for (size_t i = 0; i < all; i++) {
            TRY(carry_in(peer, kind, target, bytes, why));
            if (read)
                touch_read(target, bytes);
            if (touched)
                touch_write(source, bytes, i);
            TRY(carry_out(peer, kind, source, bytes, why));
        }
        return 0;
    case POUR:
        for (size_t i = 0; i < all; i++) {
            if (touched)
                touch_write(source, bytes, i);
            TRY(carry_out(peer, kind, source, bytes, why));
        }
        return 0;
    case DRAIN:
        for (size_t i = 0; i < all; i++) {
            TRY(carry_in(peer, kind, target, bytes, why));
            if (read)
                touch_read(target, bytes);
        }
        return 0;
    }
    return FAIL(why, "there is no part %d", s->part);
}

/* Sends the messages of a section, a batch at a time: all of it are started before the first is finished. */
static inline __attribute__((always_inline)) int pour_batches(struct peer *peer, const struct section *s, int kind, int touched,
                                                              struct why *why)
{
    request sending[BATCH];
    uint64_t value = 0;
    for (size_t left = s->warmup + s->count, count; left > 0; left -= count) {
        count = left < BATCH ? left : BATCH;
        for (size_t at = 0; at < count; at++) {
            uint8_t *message = s->source + at * s->bytes;
            if (touched)
                touch_write(message, s->bytes, ++value);
#ifdef ACTIVE_MESSAGES
            if (kind == IN_PLACE) {
                TRY(start_active(peer, message, s->bytes, &sending[at], why));
                continue;
            }
#endif
            TRY(start_send(peer, message, s->bytes, &sending[at], why));
        }
#ifdef ACTIVE_MESSAGES
        if (kind == IN_PLACE) {
            for (size_t at = 0; at < count; at++)
                TRY(finish_active(peer, &sending[at], why));
            continue;
        }
#endif
        TRY(finish_sends(peer, sending, count, why));
    }
    return 0;
}

/* Receives the messages of a section, a batch at a time. */
static inline __attribute__((always_inline)) int drain_batches(struct peer *peer, const struct section *s, int kind, int touched,
                                                               struct why *why)
{
    request receiving[BATCH];
    size_t left = s->warmup + s->count;
#ifdef ACTIVE_MESSAGES
    while (kind == IN_PLACE && left > 0) {
        long count = receive_active(peer, left, why);
        if (count < 0)
            return -1;
        left -= (size_t)count;
    }
#endif
    for (size_t count; left > 0; left -= count) {
        count = left < BATCH ? left : BATCH;
        for (size_t at = 0; at < count; at++)
            TRY(start_receive(peer, s->target + at * s->bytes, s->bytes, &receiving[at], why));
        TRY(finish_receives(peer, receiving, count, why));
        for (size_t at = 0; touched && at < count; at++)
            touch_read(s->target + at * s->bytes, s->bytes);
    }
    return 0;
}

/* Sends and receives in turns, with a window of messages under way, completed in the order of their start. */
static inline __attribute__((always_inline)) int stream(struct peer *peer, const struct section *s, int touched, struct why *why)
{
    size_t window = s->window, turns = s->sends > s->receives ? s->sends : s->receives;
    request *sending = calloc(window, sizeof *sending), *receiving = calloc(window, sizeof *receiving);
    int failed = sending == NULL || receiving == NULL ? FAIL(why, "no memory for a window of %zu messages", window) : 0;
    for (size_t i = 0; !failed && i < window && i < s->receives; i++)
        failed = start_receive(peer, s->targets[i], s->bytes, &receiving[i], why);
    for (size_t turn = 0; !failed && turn < turns; turn++) {
        size_t at = turn % window;
        if (turn < s->sends) {
            if (turn >= window)
                failed = finish_send(peer, &sending[at], why);
            if (touched)
                touch_write(s->sources[at], s->bytes, turn);
            failed = failed || start_send(peer, s->sources[at], s->bytes, &sending[at], why);
        }
        if (!failed && turn < s->receives) {
            failed = finish_receive(peer, &receiving[at], why);
            if (touched)
                touch_read(s->targets[at], s->bytes);
            if (!failed && turn + window < s->receives)
                failed = start_receive(peer, s->targets[at], s->bytes, &receiving[at], why);
        }
    }
    for (size_t i = s->sends > window ? s->sends - window : 0; !failed && i < s->sends; i++)
        failed = finish_send(peer, &sending[i % window], why);
    free(sending);
    free(receiving);
    return failed ? -1 : 0;
}

#ifdef COLLECTIVES

static inline void write_elements(int64_t *vector, size_t elements, int64_t value)
{
    for (size_t at = 0; at < elements; at += LINE_ELEMENTS)
        vector[at] = value;
}

static inline int64_t read_elements(const int64_t *vector, size_t elements)
{
    int64_t sum = 0;
    for (size_t at = 0; at < elements; at += LINE_ELEMENTS)
        sum += vector[at];
    return sum;
}

static inline void compute(uint64_t call, uint64_t rank)
{
    uint64_t x = (call << 8 | rank) * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    for (uint64_t steps = STEPS_LEAST + (x >> 32) % STEPS_MORE; steps > 0; steps--)
        x = x * UINT64_C(0x9E3779B97F4A7C15) ^ 1;
    __asm__ volatile("" : : "r"(x));
}

/* The compiler makes one copy for each operation, as above. */
static inline __attribute__((always_inline)) int collect(struct peer *peer, const struct section *s, int part, int touched,
                                                         struct why *why)
{
    int64_t *vector = (int64_t *)s->source, wrong = 0, members = peer->members;
    int64_t shares = part == BROADCAST ? 1 : members * (members + 1) / 2;
    size_t elements = s->bytes / sizeof *vector, all = s->warmup + s->count;
    int64_t lines = (int64_t)((elements + LINE_ELEMENTS - 1) / LINE_ELEMENTS);
    uint64_t start = 0;
    for (size_t i = 0; i < all; i++) {
        int64_t call = (int64_t)i + 1;
        if (i == s->warmup) {
            TRY(barrier(peer, why));
            start = ticks();
        }
        if (part == COMPUTING)
            compute(i, (uint64_t)peer->rank);
        if (part == BARRIER) {
            TRY(barrier(peer, why));
        } else if (part == BROADCAST) {
            if (touched && peer->rank == ROOT)
                write_elements(vector, elements, call);
            TRY(broadcast(peer, vector, elements, why));
            if (touched && peer->rank != ROOT)
                wrong |= read_elements(vector, elements) ^ (lines * call * shares);
        } else {
            if (touched)
                write_elements(vector, elements, call * (peer->rank + 1));
            TRY(allreduce(peer, vector, elements, why));
            if (touched)
                wrong |= read_elements(vector, elements) ^ (lines * call * shares);
        }
    }
    *s->samples = ticks() - start;
    return wrong == 0 ? 0 : FAIL(why, "part %d with %zu bytes gave member %d a wrong result", part, s->bytes, peer->rank);
}

#endif

static pthread_t helper;
static int helper_stops;
/* The transfer under way of `peer_start`. */
static request begun;

static void *run_helper(void *peer)
{
    unsigned looks = 0;
    while (!__atomic_load_n(&helper_stops, __ATOMIC_ACQUIRE)) {
        help(peer);
        /* The other process waits on the same processor. */
        look_again(1, &looks);
    }
    return NULL;
}

__attribute__((visibility("default"))) struct peer *peer_open(const struct setup *setup, struct why *why)
{
    struct peer *peer = calloc(1, sizeof *peer);
    if (peer == NULL) {
        snprintf(why->text, sizeof why->text, "no memory");
        return NULL;
    }
    peer->crowded = setup->crowded;
    peer->work = setup->work;
    peer->helped = setup->helped;
    if (open_peer(peer, setup, why) != 0) {
        free(peer);
        return NULL;
    }
    if (peer->helped && pthread_create(&helper, NULL, run_helper, peer) != 0) {
        snprintf(why->text, sizeof why->text, "could not start a helper thread");
        peer->helped = 0;
        close_peer(peer);
        free(peer);
        return NULL;
    }
    return peer;
}

__attribute__((visibility("default"))) int peer_play(struct peer *peer, const struct section *s, struct why *why)
{
    int kind = peer->work;
#ifdef COLLECTIVES
    switch (s->part) {
    case BARRIER:
        return collect(peer, s, BARRIER, 0, why);
    case ALLREDUCE:
        return s->touched ? collect(peer, s, ALLREDUCE, 1, why) : collect(peer, s, ALLREDUCE, 0, why);
    case BROADCAST:
        return s->touched ? collect(peer, s, BROADCAST, 1, why) : collect(peer, s, BROADCAST, 0, why);
    case COMPUTING:
        return s->touched ? collect(peer, s, COMPUTING, 1, why) : collect(peer, s, COMPUTING, 0, why);
    }
#endif
    if (s->part == STREAM)
        return s->touched ? stream(peer, s, 1, why) : stream(peer, s, 0, why);
    if (kind == PUTS)
        return s->touched ? exchange(peer, s, PUTS, 1, why) : exchange(peer, s, PUTS, 0, why);
#ifdef ACTIVE_MESSAGES
    expect(peer, kind == ACTIVE ? s->target : NULL, s->bytes, s->touched);
    if (kind == IN_PLACE) {
        switch (s->part) {
        case POUR_BATCHES:
            return s->touched ? pour_batches(peer, s, IN_PLACE, 1, why) : pour_batches(peer, s, IN_PLACE, 0, why);
        case DRAIN_BATCHES:
            return drain_batches(peer, s, IN_PLACE, 0, why);
        }
        return s->touched ? exchange(peer, s, IN_PLACE, 1, why) : exchange(peer, s, IN_PLACE, 0, why);
    }
    if (kind == ACTIVE)
        return s->touched ? exchange(peer, s, ACTIVE, 1, why) : exchange(peer, s, ACTIVE, 0, why);
#endif
    switch (s->part) {
    case POUR_BATCHES:
        return s->touched ? pour_batches(peer, s, MESSAGES, 1, why) : pour_batches(peer, s, MESSAGES, 0, why);
    case DRAIN_BATCHES:
        return s->touched ? drain_batches(peer, s, MESSAGES, 1, why) : drain_batches(peer, s, MESSAGES, 0, why);
    }
    return s->touched ? exchange(peer, s, MESSAGES, 1, why) : exchange(peer, s, MESSAGES, 0, why);
}

/* A transfer in two steps, between which the process computes. */
__attribute__((visibility("default"))) int peer_start(struct peer *peer, int transfer, uint8_t *memory, size_t bytes, struct why *why)
{
    switch (transfer) {
    case SEND:
        return start_send(peer, memory, bytes, &begun, why);
    case RECEIVE:
        return start_receive(peer, memory, bytes, &begun, why);
    }
    return start_put(peer, memory, bytes, &begun, why);
}

__attribute__((visibility("default"))) int peer_finish(struct peer *peer, int transfer, struct why *why)
{
    switch (transfer) {
    case SEND:
        return finish_send(peer, &begun, why);
    case RECEIVE:
        return finish_receive(peer, &begun, why);
    }
    return finish_put(peer, &begun, why);
}

__attribute__((visibility("default"))) void peer_close(struct peer *peer)
{
    if (peer->helped) {
        __atomic_store_n(&helper_stops, 1, __ATOMIC_RELEASE);
        pthread_join(helper, NULL);
    }
    close_peer(peer);
    free(peer);
}

__attribute__((visibility("default"))) void peer_version(struct why *text)
{
    version(text);
}

#endif
