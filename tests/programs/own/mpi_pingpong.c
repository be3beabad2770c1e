/* Two ranks send a message back and forth: prints the round trip of 8 bytes in microseconds (`mpi_pingpong 8`),
 * or of any other length the bytes per second. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rank, length = argc > 1 ? atoi(argv[1]) : 8, rounds = argc > 2 ? atoi(argv[2]) : 1000;
    unsigned char *out = calloc(length, 1), *in = calloc(length, 1);
    double start = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int round = -rounds / 10; round < rounds; round++) {
        if (round == 0)
            start = MPI_Wtime();
        if (rank == 0) {
            out[0] = round;
            MPI_Send(out, length, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        }
        MPI_Recv(in, length, MPI_BYTE, !rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1) {
            out[0] = in[0];
            MPI_Send(out, length, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        } else if (in[0] != (unsigned char)round) {
            fprintf(stderr, "round %d: the reply has other data\n", round);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    double each = (MPI_Wtime() - start) / rounds;
    if (rank == 0)
        printf("%g\n", length == 8 ? each * 1e6 : 2 * length / each);
    MPI_Finalize();
    return 0;
}
