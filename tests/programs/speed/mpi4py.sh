#!/bin/bash
# mpi4py's own tests on 2 and 4 ranks, on two processors: UCX over our device, UCX's own shared memory,
# and Open MPI's TCP.
. "$(dirname "$0")/turns.sh"
devices
debian openmpi-bin python3-mpi4py python3-numpy
pypi_source mpi4py 3.1.4
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Without these, Open MPI takes UCX on network devices alone.
any='--mca opal_common_ucx_tls any --mca opal_common_ucx_devices any'
forget

# tests NUMBER OPTION...: prints the seconds that the tests take. ../mpi4py.sh says why some are left out.
tests() {
	local number=$1
	shift
	(cd mpi4py-3.1.4 && soft 300 mpirun.openmpi -np "$number" --oversubscribe --mca mpi_yield_when_idle 1 "$@" --mca osc ^ucx \
		/usr/bin/python3 test/runtests.py --no-builddir -e test_spawn -e test_cco_ngh_buf ${PROGRAMS_TESTS:-}) >&2 || return 1
	sed -nE 's/^Ran [0-9]+ tests in ([0-9.]+)s.*/\1/p' "$work/$row.$side.log" | sort -n | tail -n 1
}
ours() (
	export UCX_NET_DEVICES=soft0:1 UCX_TLS=rc_v,self
	tests "$1" --mca pml ucx $any
)
sm() (
	export UCX_TLS=sm,self
	tests "$1" --mca pml ucx $any
)
tcp() { tests "$1" --mca pml ob1 --mca btl tcp,self; }
for _ in $(seq "$runs"); do
	for number in ${PROGRAMS_RANKS:-2 4}; do
		for side in ours sm tcp; do turn "ranks.$number" $side $side "$number"; done
		turn "ranks.$number" again sm "$number"
	done
done
for number in ${PROGRAMS_RANKS:-2 4}; do
	ratio "ranks.$number" ours sm '<= 1.1'
	ratio "ranks.$number" ours tcp '<= 1.1'
	ratio "ranks.$number" again sm
done
