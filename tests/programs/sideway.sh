#!/bin/bash
# sideway, a Rust binding: its own tests, which link libibverbs and librdmacm.
. "$(dirname "$0")/common.sh"
debian libibverbs-dev librdmacm-dev libclang-dev cmake pkgconf
crate sideway 0.4.3
cargo_tests sideway-0.4.3 --lib --test test_atomic --test test_cq --test test_mr_and_cq --test test_post_send --test test_qp
