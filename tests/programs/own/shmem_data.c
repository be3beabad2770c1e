/* Processing elements put and get memory of their neighbour, add to a counter, and compare every byte. */
#include <shmem.h>
#include <stdio.h>
#include <string.h>

#define SIZE (1 << 20)
#define ROUNDS 5
#define ADDITIONS 50

static long counter;

static unsigned char byte(int element, int round, int index)
{
    return (unsigned char)(index * 7 + index / 251 + element * 31 + round * 13);
}

static void compare(const char *step, const unsigned char *data, int element, int round)
{
    for (int i = 0; i < SIZE; i++) {
        if (data[i] != byte(element, round, i)) {
            fprintf(stderr, "%s of element %d, round %d: byte %d is %d\n", step, element, round, i, data[i]);
            shmem_global_exit(1);
        }
    }
}

int main(void)
{
    shmem_init();
    int me = shmem_my_pe(), elements = shmem_n_pes(), next = (me + 1) % elements;
    unsigned char *own = shmem_malloc(SIZE), *other = shmem_malloc(SIZE);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < SIZE; i++)
            own[i] = byte(me, round, i);
        shmem_barrier_all();
        shmem_putmem(other, own, SIZE, next);
        shmem_quiet();
        shmem_barrier_all();
        compare("put", other, (me + elements - 1) % elements, round);
        shmem_barrier_all();
        shmem_getmem(other, own, SIZE, next);
        compare("get", other, next, round);
        for (int i = 0; i < ADDITIONS; i++)
            shmem_long_atomic_fetch_add(&counter, 1, 0);
        shmem_barrier_all();
    }
    if (me == 0 && counter != (long)ROUNDS * ADDITIONS * elements) {
        fprintf(stderr, "the counter is %ld\n", counter);
        shmem_global_exit(1);
    }
    if (me == 0)
        printf("%d elements: all data is right\n", elements);
    shmem_finalize();
    return 0;
}
