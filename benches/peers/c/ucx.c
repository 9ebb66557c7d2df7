/* UCX as a peer of Doorbell: tagged messages, active messages and puts of libucp. */

#include "loops.h"
#include <ucp/api/ucp.h>

struct peer {
    int crowded, helped, work;
    uint64_t sent, received;
    /* Active messages: where they go, unless their handler reads them in place; their length; how many came and were taken. */
    uint8_t *into;
    size_t expected;
    int reads, is_wrong;
    uint64_t arrived, taken;
    uint8_t *landing;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h other;
    ucp_mem_h memory;
    ucp_rkey_h key;
    uint64_t theirs;
};

typedef ucs_status_ptr_t request;

#define CHECK(call, what)                                                        \
    do {                                                                         \
        ucs_status_t status = (call);                                            \
        if (status != UCS_OK)                                                    \
            return FAIL(why, what " failed: %s", ucs_status_string(status));     \
    } while (0)

/* All memory is host memory, so UCX need not detect its type. */
static const ucp_request_param_t HOST = {
    .op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE,
    .memory_type = UCS_MEMORY_TYPE_HOST,
};

/* Waits for an operation that has not completed yet. */
static inline int finish(struct peer *peer, ucs_status_ptr_t *begun, const char *what, struct why *why)
{
    ucs_status_ptr_t r = *begun;
    unsigned looks = 0;
    *begun = NULL;
    if (r == NULL)
        return 0;
    if (UCS_PTR_IS_ERR(r))
        return FAIL(why, "%s failed: %s", what, ucs_status_string(UCS_PTR_STATUS(r)));
    ucs_status_t status;
    while ((status = ucp_request_check_status(r)) == UCS_INPROGRESS) {
        /* With a helper thread, this one only looks. */
        if (peer->helped || ucp_worker_progress(peer->worker) == 0)
            look_again(peer->crowded, &looks);
    }
    ucp_request_free(r);
    return status == UCS_OK ? 0 : FAIL(why, "%s failed: %s", what, ucs_status_string(status));
}

/* The handler of active messages. */
static ucs_status_t handle(void *argument, const void *header, size_t header_bytes, void *data, size_t bytes,
                           const ucp_am_recv_param_t *about)
{
    struct peer *peer = argument;
    (void)header;
    (void)header_bytes;
    if (bytes != peer->expected || (about->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0)
        peer->is_wrong = 1;
    else if (peer->into != NULL)
        memcpy(peer->into, data, bytes);
    else if (peer->reads)
        touch_read(data, bytes);
    peer->arrived++;
    return UCS_OK;
}

static int open_memory(struct peer *peer, const struct setup *setup, struct why *why)
{
    ucp_mem_map_params_t ask = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
        .length = setup->bytes,
        .flags = UCP_MEM_MAP_ALLOCATE,
    };
    CHECK(ucp_mem_map(peer->context, &ask, &peer->memory), "ucp_mem_map");
    ucp_mem_attr_t got = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    CHECK(ucp_mem_query(peer->memory, &got), "ucp_mem_query");
    peer->landing = got.address;
    memset(peer->landing, 1, setup->bytes);

    void *packed;
    size_t bytes;
    CHECK(ucp_rkey_pack(peer->context, peer->memory, &packed, &bytes), "ucp_rkey_pack");
    uint64_t mine = (uint64_t)(uintptr_t)peer->landing;
    uint8_t key[4096];
    long address = setup->swap(setup->context, "landing", &mine, sizeof mine, &peer->theirs, sizeof peer->theirs);
    long length = setup->swap(setup->context, "key", packed, bytes, key, sizeof key);
    ucp_rkey_buffer_release(packed);
    if (address != sizeof peer->theirs || length < 0)
        return FAIL(why, "could not exchange the keys of the memory for puts");
    CHECK(ucp_ep_rkey_unpack(peer->other, key, &peer->key), "ucp_ep_rkey_unpack");
    return 0;
}

static int open_peer(struct peer *peer, const struct setup *setup, struct why *why)
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_TAG | (setup->work == PUTS ? UCP_FEATURE_RMA : 0) | (setup->work >= ACTIVE ? UCP_FEATURE_AM : 0),
    };
    CHECK(ucp_init(&params, NULL, &peer->context), "ucp_init");
    ucp_worker_params_t worker = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = peer->helped ? UCS_THREAD_MODE_MULTI : UCS_THREAD_MODE_SINGLE,
    };
    CHECK(ucp_worker_create(peer->context, &worker, &peer->worker), "ucp_worker_create");
    if (setup->work >= ACTIVE) {
        ucp_am_handler_param_t handler = {
            .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
            .id = TAG,
            .cb = handle,
            .arg = peer,
        };
        CHECK(ucp_worker_set_am_recv_handler(peer->worker, &handler), "ucp_worker_set_am_recv_handler");
    }
    ucp_address_t *address;
    size_t bytes;
    CHECK(ucp_worker_get_address(peer->worker, &address, &bytes), "ucp_worker_get_address");
    uint8_t theirs[4096];
    long length = setup->swap(setup->context, "address", address, bytes, theirs, sizeof theirs);
    ucp_worker_release_address(peer->worker, address);
    if (length < 0)
        return FAIL(why, "could not exchange the addresses of the workers");
    ucp_ep_params_t end = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
        .address = (const ucp_address_t *)theirs,
    };
    CHECK(ucp_ep_create(peer->worker, &end, &peer->other), "ucp_ep_create");
    return setup->work == PUTS ? open_memory(peer, setup, why) : 0;
}

static void close_peer(struct peer *peer)
{
    struct why ignored;
    uint8_t byte = 0;
    request r;
    /* Both processes still exist when one has seen the other's last message; after that, neither needs the other. */
    peer->crowded = 1;
    peer->helped = 0;
    r = ucp_tag_send_nbx(peer->other, &byte, 1, TAG + 1, &HOST);
    if (finish(peer, &r, "ucp_tag_send_nbx", &ignored) == 0) {
        r = ucp_tag_recv_nbx(peer->worker, &byte, 1, TAG + 1, UINT64_MAX, &HOST);
        finish(peer, &r, "ucp_tag_recv_nbx", &ignored);
    }
    if (peer->key != NULL)
        ucp_rkey_destroy(peer->key);
    ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    r = ucp_ep_close_nbx(peer->other, &force);
    finish(peer, &r, "ucp_ep_close_nbx", &ignored);
    if (peer->memory != NULL)
        ucp_mem_unmap(peer->context, peer->memory);
    ucp_worker_destroy(peer->worker);
    ucp_cleanup(peer->context);
}

static void version(struct why *text)
{
    snprintf(text->text, sizeof text->text, "UCX %s", ucp_get_version_string());
}

static inline int start_send(struct peer *peer, const uint8_t *message, size_t bytes, request *r, struct why *why)
{
    (void)why;
    *r = ucp_tag_send_nbx(peer->other, message, bytes, TAG, &HOST);
    return 0;
}

static inline int finish_send(struct peer *peer, request *r, struct why *why)
{
    return finish(peer, r, "ucp_tag_send_nbx", why);
}

static inline int start_receive(struct peer *peer, uint8_t *into, size_t bytes, request *r, struct why *why)
{
    (void)why;
    *r = ucp_tag_recv_nbx(peer->worker, into, bytes, TAG, UINT64_MAX, &HOST);
    return 0;
}

static inline int finish_receive(struct peer *peer, request *r, struct why *why)
{
    return finish(peer, r, "ucp_tag_recv_nbx", why);
}

static inline int finish_sends(struct peer *peer, request *all, size_t count, struct why *why)
{
    for (size_t at = 0; at < count; at++)
        TRY(finish_send(peer, &all[at], why));
    return 0;
}

static inline int finish_receives(struct peer *peer, request *all, size_t count, struct why *why)
{
    for (size_t at = 0; at < count; at++)
        TRY(finish_receive(peer, &all[at], why));
    return 0;
}

static inline int start_active(struct peer *peer, const uint8_t *message, size_t bytes, request *r, struct why *why)
{
    static const ucp_request_param_t EAGER = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_FLAGS,
        .memory_type = UCS_MEMORY_TYPE_HOST,
        .flags = UCP_AM_SEND_FLAG_EAGER,
    };
    (void)why;
    *r = ucp_am_send_nbx(peer->other, TAG, NULL, 0, message, bytes, &EAGER);
    return 0;
}

static inline int finish_active(struct peer *peer, request *r, struct why *why)
{
    return finish(peer, r, "ucp_am_send_nbx", why);
}

static inline void expect(struct peer *peer, uint8_t *into, size_t bytes, int reads)
{
    peer->into = into;
    peer->expected = bytes;
    peer->reads = reads;
}

static inline long receive_active(struct peer *peer, size_t most, struct why *why)
{
    unsigned looks = 0;
    while (peer->arrived == peer->taken) {
        if (ucp_worker_progress(peer->worker) == 0)
            look_again(peer->crowded, &looks);
    }
    if (peer->is_wrong)
        return FAIL(why, "an active message of another length came, or one by rendezvous");
    uint64_t count = peer->arrived - peer->taken;
    count = count < most ? count : most;
    peer->taken += count;
    return (long)count;
}

static inline int send_message(struct peer *peer, const uint8_t *message, size_t bytes, struct why *why)
{
    request r;
    TRY(start_send(peer, message, bytes, &r, why));
    return finish_send(peer, &r, why);
}

static inline int receive_message(struct peer *peer, uint8_t *into, size_t bytes, struct why *why)
{
    request r;
    TRY(start_receive(peer, into, bytes, &r, why));
    return finish_receive(peer, &r, why);
}

static inline int put(struct peer *peer, const void *from, size_t bytes, size_t at, struct why *why)
{
    request r = ucp_put_nbx(peer->other, from, bytes, peer->theirs + at, peer->key, &HOST);
    return finish(peer, &r, "ucp_put_nbx", why);
}

static inline int fence(struct peer *peer, struct why *why)
{
    CHECK(ucp_worker_fence(peer->worker), "ucp_worker_fence");
    return 0;
}

static inline int start_put(struct peer *peer, const uint8_t *message, size_t bytes, request *r, struct why *why)
{
    (void)why;
    *r = ucp_put_nbx(peer->other, message, bytes, peer->theirs, peer->key, &HOST);
    return 0;
}

static inline int finish_put(struct peer *peer, request *r, struct why *why)
{
    TRY(finish(peer, r, "ucp_put_nbx", why));
    *r = ucp_ep_flush_nbx(peer->other, &HOST);
    return finish(peer, r, "ucp_ep_flush_nbx", why);
}

static inline void help(struct peer *peer)
{
    ucp_worker_progress(peer->worker);
}

static inline int looked(struct peer *peer, struct why *why)
{
    (void)why;
    ucp_worker_progress(peer->worker);
    return 0;
}

#define ACTIVE_MESSAGES
#define PEER
#include "loops.h"
