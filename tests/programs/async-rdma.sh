#!/bin/bash
# async-rdma, a Rust library: its own tests, each a server and a client of one process.
. "$(dirname "$0")/common.sh"
debian libibverbs-dev librdmacm-dev libclang-dev
crate async-rdma 0.5.0
cargo_tests async-rdma-0.5.0
