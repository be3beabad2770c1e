#!/bin/bash
# OpenSHMEM of Open MPI, over UCX: puts, gets and atomics of 2 and 4 processing elements.
. "$(dirname "$0")/common.sh"
devices
debian openmpi-bin libopenmpi-dev gcc libc6-dev
oshcc -O2 -Wall -Wno-deprecated-declarations -o shmem_data "$here/own/shmem_data.c" >build.log 2>&1 || fail build 'oshcc fails' build.log

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 UCX_NET_DEVICES=soft0:1

# elements NUMBER TRANSPORTS
elements() {
	UCX_TLS="${2}_v,self" soft 100 oshrun -np "$1" --oversubscribe --mca spml ucx --mca osc ^rdma ./shmem_data
}
for transport in rc ud; do
	for number in 2 4; do check "$transport.$number" elements $number $transport; done
done
