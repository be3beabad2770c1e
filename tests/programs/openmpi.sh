#!/bin/bash
# Open MPI over UCX: messages, collectives and one-sided accesses, over RC and UD, of 2 and 4 ranks.
. "$(dirname "$0")/common.sh"
devices
debian openmpi-bin libopenmpi-dev gcc libc6-dev
mpicc.openmpi -O2 -Wall -o mpi_data "$here/own/mpi_data.c" >build.log 2>&1 || fail build 'mpicc fails' build.log

# Open MPI refuses root and more ranks than processors unless it is told otherwise. UCX must not use
# shared memory or TCP; rc_v stands for RC, with UD to connect.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 UCX_NET_DEVICES=soft0:1

# ranks NUMBER TRANSPORTS
ranks() {
	UCX_TLS="${2}_v,self" soft 150 mpirun.openmpi -np "$1" --oversubscribe --mca mpi_yield_when_idle 1 --mca pml ucx --mca osc ucx ./mpi_data
}
numbers="2 4"
[ -z "${PROGRAMS_FEW:-}" ] || numbers=2
for transport in rc ud; do
	for number in $numbers; do check "$transport.$number" ranks $number $transport; done
done
