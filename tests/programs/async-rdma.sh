#!/bin/bash
# async-rdma, a Rust binding: its own tests and examples, and a program with immediate data.
. "$(dirname "$0")/common.sh"
debian libibverbs-dev librdmacm-dev libclang-dev gcc libc6-dev make iproute2
crate async-rdma 0.5.0
cp "$here/own/async_rdma_messages.rs" async-rdma-0.5.0/examples/

# A network of their own, because the examples have fixed ports.
network 10.77.0.1
export VERBS_SOFT=10.77.0.1
# The crate denies warnings, and newer compilers have more of them.
export RUSTFLAGS="--cap-lints warn"
skip src.lib.context.tests.test1 'it takes the name of a device from "rdma link", which lists only devices of the kernel'
imm='it expects the completion flags of Soft-RoCE for immediate data, 3; other devices set IBV_WC_WITH_IMM alone'
skip tests.imm "$imm"
skip example.server "$imm"
skipped="--skip context::tests::test1 --skip send_with_imm --skip write_with_imm"
cargo_tests async-rdma-0.5.0 --features "cm raw" || exit 0
examples=$work/target/debug/examples

# pair READY SERVER -- CLIENT: a server, which answers when its data is right, and a client, which must
# succeed. READY succeeds when the server listens.
pair() {
	local ready=$1 server=
	shift
	while [ "$1" != -- ]; do server="$server $1" && shift; done
	shift
	start server.log soft 90 $server
	until_true 30 $ready && soft 60 "$@" && return
	cat server.log
	return 1
}

rpc() { soft 60 "$examples/rpc" && [ "$(grep -cE '^response: (hello|world)$' example.rpc.log)" = 2 ]; }

check messages pair 'listens 18901' "$examples/async_rdma_messages" server 127.0.0.1:18901 -- \
	"$examples/async_rdma_messages" client 127.0.0.1:18901
stop_all
check example.cm_server pair 'soft_listens 7471' "$examples/cm_server" -- "$examples/cm_client" 10.77.0.1 7471
stop_all
check example.rpc rpc
