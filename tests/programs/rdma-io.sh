#!/bin/bash
# rdma-io, a Rust binding with asynchronous connections: a program with both ends, because the published
# package has no tests.
. "$(dirname "$0")/common.sh"
debian libibverbs-dev librdmacm-dev gcc libc6-dev
source=$here/own/rdma-io
version "rdma-io $(sed -n '/^name = "rdma-io"$/{n;s/version = "\(.*\)"/\1/p}' "$source/Cargo.lock")"

build() { CARGO_TARGET_DIR=$work/target timeout -k 10 1500 cargo build --locked --manifest-path "$source/Cargo.toml"; }
build >build.log 2>&1 || { fail build 'cargo cannot build it' build.log && exit; }
# Messages over each transport, and requests that only one end posts.
for kind in send-recv credit-ring read-ring one-sided; do
	check $kind soft 60 target/debug/rdma-io-program $kind
done
