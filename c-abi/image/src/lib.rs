//! The object code of `libibverbs.so.1`. `cargo xtask c-abi` links it.

pub use ibverbs_c::*;
