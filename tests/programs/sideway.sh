#!/bin/bash
# sideway, a Rust binding: its own tests, which link libibverbs and librdmacm.
. "$(dirname "$0")/common.sh"
debian libibverbs-dev librdmacm-dev libclang-dev pkgconf
crate sideway 0.4.3
cargo_tests sideway-0.4.3
