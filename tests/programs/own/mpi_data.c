/* Ranks exchange messages and one-sided accesses of many sizes, and compare every byte. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define LARGEST (1 << 20)

static int rank, ranks;

/* The byte at `index` of the message of `round` from one rank to another. */
static unsigned char byte(int from, int to, int round, int index)
{
    return (unsigned char)(index * 7 + index / 251 + from * 31 + to * 17 + round * 13);
}

static void fill(unsigned char *data, int size, int from, int to, int round)
{
    for (int i = 0; i < size; i++)
        data[i] = byte(from, to, round, i);
}

static void compare(const char *step, const unsigned char *data, int size, int from, int to, int round)
{
    for (int i = 0; i < size; i++) {
        if (data[i] != byte(from, to, round, i)) {
            fprintf(stderr, "rank %d: %s of %d bytes from %d: byte %d is %d, not %d\n", rank, step, size, from, i,
                    data[i], byte(from, to, round, i));
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
}

/* Each rank sends to its right neighbour and receives from its left one. */
static void messages(unsigned char *out, unsigned char *in)
{
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks, round = 0;
    for (int size = 1; size <= LARGEST; size = size * 3 + 1, round++) {
        fill(out, size, rank, right, round);
        MPI_Sendrecv(out, size, MPI_BYTE, right, round, in, size, MPI_BYTE, left, round, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        compare("message", in, size, left, rank, round);
    }
}

static void collectives(unsigned char *out, unsigned char *in)
{
    int size = LARGEST / ranks;
    for (int to = 0; to < ranks; to++)
        fill(out + to * size, size, rank, to, 100);
    MPI_Alltoall(out, size, MPI_BYTE, in, size, MPI_BYTE, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++)
        compare("alltoall", in + from * size, size, from, rank, 100);
    long sum = 0, mine = rank + 1;
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (sum != (long)ranks * (ranks + 1) / 2) {
        fprintf(stderr, "rank %d: the sum is %ld\n", rank, sum);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* Puts to the right neighbour, gets from the left one, and atomics at rank 0. */
static void one_sided(unsigned char *out, unsigned char *in)
{
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks, round = 200;
    unsigned char *exposed;
    MPI_Win window, counters;
    MPI_Win_allocate(2 * LARGEST, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &exposed, &window);
    for (int size = 1; size <= LARGEST; size = size * 5 + 3, round++) {
        fill(out, size, rank, right, round);
        fill(exposed + LARGEST, size, rank, right, round + 50);
        MPI_Win_fence(0, window);
        MPI_Put(out, size, MPI_BYTE, right, 0, size, MPI_BYTE, window);
        MPI_Get(in, size, MPI_BYTE, left, LARGEST, size, MPI_BYTE, window);
        MPI_Win_fence(0, window);
        compare("put", exposed, size, left, rank, round);
        compare("get", in, size, left, rank, round + 50);
    }
    MPI_Win_free(&window);

    long *counter, one = 1, before, last = -1;
    MPI_Win_allocate(sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &counter, &counters);
    *counter = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, counters);
    for (int i = 0; i < 200; i++) {
        MPI_Fetch_and_op(&one, &before, MPI_LONG, 0, 0, MPI_SUM, counters);
        MPI_Win_flush(0, counters);
        if (before <= last) {
            fprintf(stderr, "rank %d: the counter went from %ld to %ld\n", rank, last, before);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        last = before;
    }
    MPI_Win_unlock_all(counters);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0 && *counter != 200L * ranks) {
        fprintf(stderr, "the counter is %ld after %d additions\n", *counter, 200 * ranks);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Win_free(&counters);
}

int main(int argc, char **argv)
{
    unsigned char *out, *in;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    out = malloc(2 * LARGEST);
    in = malloc(2 * LARGEST);
    messages(out, in);
    collectives(out, in);
    one_sided(out, in);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks: all data is right\n", ranks);
    free(out);
    free(in);
    MPI_Finalize();
    return 0;
}
