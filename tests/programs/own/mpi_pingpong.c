/* Two ranks send a message back and forth: prints the round trip of 8 bytes in microseconds (`mpi_pingpong 8`),
 * or of any other length the bytes per second. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    int rank, length = argc > 1 ? atoi(argv[1]) : 8, rounds = argc > 2 ? atoi(argv[2]) : 1000;
    unsigned char *out = malloc(length), *in = malloc(length);
    double start = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int round = -rounds / 10; round < rounds; round++) {
        if (round == 0)
            start = MPI_Wtime();
        memset(out, rank ? in[0] : (unsigned char)round, 1);
        if (rank == 0)
            MPI_Send(out, length, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(in, length, MPI_BYTE, !rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1) {
            out[0] = in[0];
            MPI_Send(out, length, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        } else if (in[0] != (unsigned char)round) {
            fprintf(stderr, "round %d: another answer than asked for\n", round);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    double each = (MPI_Wtime() - start) / rounds;
    if (rank == 0)
        printf("%g\n", length == 8 ? each * 1e6 : 2 * length / each);
    MPI_Finalize();
    return 0;
}
