#!/bin/bash
# ibverbs, a Rust binding: its own tests, and its example, which compares the message.
. "$(dirname "$0")/common.sh"
debian libibverbs-dev libclang-dev cmake pkgconf gcc libc6-dev
crate ibverbs 0.9.2

cargo_tests ibverbs-0.9.2 || exit 0
check example.loopback soft 60 target/debug/examples/loopback
