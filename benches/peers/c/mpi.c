/* MPI as a peer of Doorbell: Open MPI, Intel MPI and MPICH, each with a library of its own. */

#include "loops.h"
#include <mpi.h>

struct peer {
    int crowded, helped, work, other, rank, members;
    uint64_t sent, received;
    uint8_t *landing;
    MPI_Win window;
};

typedef MPI_Request request;

#define CHECK(call, what)                                          \
    do {                                                           \
        int code = (call);                                         \
        if (code != MPI_SUCCESS)                                   \
            return FAIL(why, what " failed with code %d", code);   \
    } while (0)

static int open_peer(struct peer *peer, const struct setup *setup, struct why *why)
{
    int needed = peer->helped ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, provided;
    CHECK(MPI_Init_thread(NULL, NULL, needed, &provided), "MPI_Init_thread");
    if (provided < needed)
        return FAIL(why, "this MPI allows no helper thread");
    int rank;
    CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    if (rank != setup->node)
        return FAIL(why, "this is rank %d, where %d was expected", rank, setup->node);
    peer->other = rank ^ 1;
    peer->rank = rank;
    CHECK(MPI_Comm_size(MPI_COMM_WORLD, &peer->members), "MPI_Comm_size");
    peer->window = MPI_WIN_NULL;
    if (setup->work == PUTS) {
        CHECK(MPI_Win_allocate((MPI_Aint)setup->bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &peer->landing, &peer->window),
              "MPI_Win_allocate");
        memset(peer->landing, 1, setup->bytes);
        CHECK(MPI_Win_lock_all(MPI_MODE_NOCHECK, peer->window), "MPI_Win_lock_all");
    }
    CHECK(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
    return 0;
}

static void close_peer(struct peer *peer)
{
    if (peer->window != MPI_WIN_NULL) {
        MPI_Win_unlock_all(peer->window);
        MPI_Win_free(&peer->window);
    }
    MPI_Finalize();
}

static void version(struct why *text)
{
    int length;
    char all[MPI_MAX_LIBRARY_VERSION_STRING];
    MPI_Get_library_version(all, &length);
    /* Keep one line, up to the number. */
    all[strcspn(all, ",\n")] = '\0';
    char *blank = strchr(all, '\t');
    if (blank != NULL)
        *blank = ' ';
    snprintf(text->text, sizeof text->text, "%s", all);
}

static inline int send_message(struct peer *peer, const uint8_t *message, size_t bytes, struct why *why)
{
    CHECK(MPI_Send(message, (int)bytes, MPI_BYTE, peer->other, TAG, MPI_COMM_WORLD), "MPI_Send");
    return 0;
}

static inline int receive_message(struct peer *peer, uint8_t *into, size_t bytes, struct why *why)
{
    CHECK(MPI_Recv(into, (int)bytes, MPI_BYTE, peer->other, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE), "MPI_Recv");
    return 0;
}

static inline int start_send(struct peer *peer, const uint8_t *message, size_t bytes, request *r, struct why *why)
{
    CHECK(MPI_Isend(message, (int)bytes, MPI_BYTE, peer->other, TAG, MPI_COMM_WORLD, r), "MPI_Isend");
    return 0;
}

static inline int finish_send(struct peer *peer, request *r, struct why *why)
{
    (void)peer;
    CHECK(MPI_Wait(r, MPI_STATUS_IGNORE), "MPI_Wait");
    return 0;
}

static inline int start_receive(struct peer *peer, uint8_t *into, size_t bytes, request *r, struct why *why)
{
    CHECK(MPI_Irecv(into, (int)bytes, MPI_BYTE, peer->other, TAG, MPI_COMM_WORLD, r), "MPI_Irecv");
    return 0;
}

static inline int finish_receive(struct peer *peer, request *r, struct why *why)
{
    return finish_send(peer, r, why);
}

static inline int finish_sends(struct peer *peer, request *all, size_t count, struct why *why)
{
    (void)peer;
    CHECK(MPI_Waitall((int)count, all, MPI_STATUSES_IGNORE), "MPI_Waitall");
    return 0;
}

static inline int finish_receives(struct peer *peer, request *all, size_t count, struct why *why)
{
    return finish_sends(peer, all, count, why);
}

static inline int fence(struct peer *peer, struct why *why)
{
    CHECK(MPI_Win_flush(peer->other, peer->window), "MPI_Win_flush");
    return 0;
}

static inline int put(struct peer *peer, const void *from, size_t bytes, size_t at, struct why *why)
{
    CHECK(MPI_Put(from, (int)bytes, MPI_BYTE, peer->other, (MPI_Aint)at, (int)bytes, MPI_BYTE, peer->window), "MPI_Put");
    /* The word that announces the message must be on its way, too, when this returns. */
    return bytes == sizeof(uint64_t) ? fence(peer, why) : 0;
}

static inline int start_put(struct peer *peer, const uint8_t *message, size_t bytes, request *r, struct why *why)
{
    (void)r;
    return put(peer, message, bytes, 0, why);
}

static inline int finish_put(struct peer *peer, request *r, struct why *why)
{
    (void)r;
    return fence(peer, why);
}

static inline void help(struct peer *peer)
{
    int there;
    MPI_Iprobe(peer->other, TAG + 1, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
}

static inline int looked(struct peer *peer, struct why *why)
{
    CHECK(MPI_Win_sync(peer->window), "MPI_Win_sync");
    return 0;
}

static inline int barrier(struct peer *peer, struct why *why)
{
    (void)peer;
    CHECK(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
    return 0;
}

static inline int allreduce(struct peer *peer, int64_t *vector, size_t elements, struct why *why)
{
    (void)peer;
    CHECK(MPI_Allreduce(MPI_IN_PLACE, vector, (int)elements, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD), "MPI_Allreduce");
    return 0;
}

static inline int broadcast(struct peer *peer, int64_t *vector, size_t elements, struct why *why)
{
    (void)peer;
    CHECK(MPI_Bcast(vector, (int)elements, MPI_INT64_T, ROOT, MPI_COMM_WORLD), "MPI_Bcast");
    return 0;
}

#define COLLECTIVES
#define PEER
#include "loops.h"
