#!/bin/bash
# ruapc, an RPC library: its own tests with its feature `rdma`, and those of its binding, ruapc-rdma.
. "$(dirname "$0")/common.sh"
debian libibverbs-dev libclang-dev pkgconf gcc libc6-dev iproute2
crate ruapc 0.2.0-alpha.7
crate ruapc-rdma 0.2.0-alpha.7

# ruapc ignores GIDs of loopback addresses.
network 10.77.0.1
export VERBS_SOFT=10.77.0.1
case=rdma::poller::tests::shard_admission_tries_other_queues_and_reclaims_failed_setup
skip "src.lib.${case//::/.}" \
	'it expects a completion queue of exactly 63 entries, as on rxe and ConnectX; soft devices round 63 up to 64'
skipped="--skip $case"
cargo_tests ruapc-0.2.0-alpha.7 --features rdma
skipped=
prefix=binding.
# Without this feature, the binding sends its own commands to the kernel's device files.
cargo_tests ruapc-rdma-0.2.0-alpha.7 --lib --features ibv-query-gid-ex
