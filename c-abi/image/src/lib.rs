//! The object code of `libibverbs.so.1`. `cargo xtask c-abi` links it.

mod cancellation;

pub use ibverbs_c::*;

/// Serves small allocations when memory is short, so that calls fail with `ENOMEM` instead of
/// ending the process.
#[global_allocator]
static ALLOCATOR: reserve::Allocator = reserve::Allocator;
