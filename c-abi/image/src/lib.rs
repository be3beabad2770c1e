//! The object code of `libibverbs.so.1`, as a static library.
//!
//! ```text
//! symbols.rs ──► version script ──┐
//! c-abi ──► this static library ──┴──► cc -shared ──► libibverbs.so.1 ──► compared with symbols.rs
//! symbols.rs ──► nodes alone ────────► cc -shared ──► librdmacm.so.1, libmlx5.so.1, libefa.so.1
//! ```
//!
//! `cargo xtask c-abi` (`xtask/src/c_abi`) links the libraries, and `cargo xtask run-c` does so
//! before it runs a program. rustc cannot do this: its version script for a `cdylib` has no nodes.
//!
//! - **One table.** `c-abi/src/symbols.rs` lists each symbol with its node and state. The link
//!   fails if the archive lacks a listed symbol or defines a name of the API that is not listed, or
//!   if the result exports a symbol in another node.
//! - **One image.** librdmacm (`rdma_*`) and the providers' APIs (`mlx5dv_*`, `efadv_*`) are in
//!   `libibverbs.so.1`, together with the objects that they use. A second copy of the code would
//!   duplicate the list of devices, the soft devices and the connection manager. The other three
//!   libraries therefore contain only nodes.
//! - **A separate crate.** With an `rlib` beside the static library, cargo leaves bitcode without
//!   symbols in the archive of an optimised build. With a separate crate, the exported functions of
//!   the dependency are kept.
//! - **A symbol in several nodes** (`ibv_query_gid_type`) uses `.symver` directives in its module
//!   (`c-abi/src/verbs/gid_type.rs`). The version script has these nodes without symbols.
//! - **No cancellation points except the waits.** `--wrap` replaces the C library's cancellation
//!   points in the image ([`cancellation`]), because a thread cancelled while it holds a lock would
//!   never release it. The link fails if the image calls one without a replacement.
//! - **`-z nodelete`** prevents unloading, because the library's threads and their destructors
//!   would continue to run in unmapped memory. **`-Bsymbolic-functions`** keeps internal calls in
//!   the library even if a program has loaded rdma-core's library first.
//! - **The profile `c-abi`** optimises across crates and aborts on panics. A build takes about 25
//!   seconds after a change; `--profile dev`, for tests, takes 5. In that profile, a panic that
//!   reaches an exported function also aborts.

mod cancellation;

pub use ibverbs_c::*;

/// Serves small allocations when memory is short, so that calls fail with `ENOMEM` instead of
/// aborting the process.
#[global_allocator]
static ALLOCATOR: abi::reserve::Allocator = abi::reserve::Allocator;
