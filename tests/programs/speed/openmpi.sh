#!/bin/bash
# Open MPI's ping-pong between two ranks, UCX over our device beside UCX's own shared memory.
. "$(dirname "$0")/turns.sh"
devices
debian openmpi-bin libopenmpi-dev gcc libc6-dev
mpicc.openmpi -O2 -Wall -o mpi_pingpong "$here/own/mpi_pingpong.c" >build.log 2>&1 || fail build 'mpicc fails' build.log
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Without these, Open MPI takes UCX on network devices alone.
any='--mca opal_common_ucx_tls any --mca opal_common_ucx_devices any'
forget

# ranks TRANSPORTS LENGTH ROUNDS
ranks() {
	UCX_TLS=$1 soft 60 mpirun.openmpi -np 2 --oversubscribe --mca pml ucx --mca osc ^ucx $any ./mpi_pingpong "$2" "$3"
}
ours() (
	export UCX_NET_DEVICES=soft0:1
	ranks rc_v,self "$@"
)
sm() { ranks sm,self "$@"; }
for _ in $(seq "$runs"); do
	for test in '8 50000' '65536 5000' '1048576 1000'; do
		for side in ours sm; do turn "pingpong.${test% *}" $side $side $test; done
		turn "pingpong.${test% *}" again sm $test
	done
done
ratio pingpong.8 ours sm '<= 3'
for length in 65536 1048576; do ratio pingpong.$length ours sm '>= 0.5'; done
for length in 8 65536 1048576; do ratio pingpong.$length again sm; done
