//! The object code of `libibverbs.so.1`. `cargo xtask c-abi` links it.

mod cancellation;

pub use ibverbs_c::*;
