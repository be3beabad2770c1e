#!/bin/bash
# Intel MPI from PyPI, over its own libfabric with the providers verbs and rxm.
. "$(dirname "$0")/common.sh"
debian gcc libc6-dev iproute2
pypi impi-rt==2021.18.1 impi-devel==2021.18.1
gcc -O2 -Wall -o mpi_data "$here/own/mpi_data.c" -Ivenv/include -Lvenv/lib -lmpi >build.log 2>&1 || fail build 'gcc fails' build.log

# libfabric takes no address of a loopback interface.
network 10.77.0.1
export VERBS_SOFT=10.77.0.1
export I_MPI_ROOT=$work/venv LD_LIBRARY_PATH=$work/venv/lib FI_PROVIDER_PATH=$work/venv/lib
# I_MPI_DEBUG prints the provider; processes are not bound, because there may be fewer processors.
export FI_PROVIDER=verbs I_MPI_FABRICS=ofi I_MPI_DEBUG=2 I_MPI_PIN=0

ranks() {
	soft 100 venv/bin/mpiexec.hydra -launcher fork -n "$1" ./mpi_data >ranks.log 2>&1 || { cat ranks.log && return 1; }
	cat ranks.log
	grep -q 'provider: verbs;ofi_rxm' ranks.log && grep -q 'all data is right' ranks.log
}
for number in 2 4; do check "ranks.$number" ranks $number; done
