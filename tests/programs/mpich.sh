#!/bin/bash
# MPICH over UCX (ch4:ucx): the same program as Open MPI's.
. "$(dirname "$0")/common.sh"
devices
debian mpich libmpich-dev gcc libc6-dev
mpicc.mpich -O2 -Wall -o mpi_data "$here/own/mpi_data.c" >build.log 2>&1 || fail build 'mpicc fails' build.log

export UCX_NET_DEVICES=soft0:1

ranks() { UCX_TLS="${2}_v,self" soft 150 mpirun.mpich -np "$1" ./mpi_data; }
for transport in rc ud; do
	for number in 2 4; do check "$transport.$number" ranks $number $transport; done
done
