//! `libibverbs.so.1` in Rust: the C ABI of rdma-core's libibverbs and librdmacm, for programs built
//! against them.
//!
//! ```text
//!   program ──► ibv_...()  (symbols)       ─┐
//!          ──► ibv_context.ops, inlines    ─┼─► this crate, generic over the provider ──► provider
//!          ──► verbs_context, ibv_cq_ex, …  ─┘
//! ```
//! | module | content |
//! |---|---|
//! | [`abi`] | C's types, conversions, `errno`, functions without objects |
//! | [`device`], [`context`] | the list of devices, open devices, the tables of operations |
//! | [`query`] | queries of devices, ports, GIDs and partition keys |
//! | [`pd`], [`mr`], [`mw`], [`dm`], [`ah`] | domains, regions, windows, device memory, addresses |
//! | [`channel`], [`event`] | completion channels, asynchronous events |
//! | [`cq`], [`cq_ex`] | completion queues: polling into arrays, and one completion at a time |
//! | [`qp`], [`post`], [`wr`] | queue pairs: state, `ibv_post_send`, `ibv_wr_...` |
//! | [`srq`], [`xrcd`], [`wq`], [`flow`], [`counters`] | the other objects |
//! | [`address`], [`fork`] | functions without objects: addresses, forks |
//! | [`symbols`], [`facade`], [`gid_type`] | the table of symbols, and functions for it alone |
//! | [`rdmacm`] | `librdmacm.so.1`: connections by address |
//! | [`mlx5dv`] | `libmlx5.so.1`: direct access to ConnectX devices |
//! | [`left`] | the end of objects that a program does not destroy |
//! | [`wait`] | the system calls that are cancellation points |
//! | [`object`], [`shared`], [`lock`], [`thread`] | common parts |
//!
//! An object of C is a box. The public struct comes first, then the provider's object, so a pointer
//! held by the program is a pointer to the box. A context holds the functions for its provider as a
//! trait object. The data path has separate functions for each provider; as in C, the only indirect
//! call is the one through the public table.
//!
//! # Safety
//! Every exported function has the contract of the function of that name in rdma-core's libibverbs.
//! Pointers are null where the manual page allows it, and otherwise point to live objects of this
//! library or to the program's memory. Objects are not used after they were destroyed. Nothing is
//! required beyond the requirements of C.

pub mod abi;
pub mod symbols;

pub use self::abi::c;

pub mod address;
pub mod ah;
pub mod channel;
pub mod context;
pub mod counters;
pub mod cq;
mod cq_ex;
pub mod device;
pub mod dm;
pub mod event;
mod facade;
mod flow;
pub mod fork;
mod gid_type;
mod left;
mod lock;
mod mlx5dv;
pub mod mr;
mod mw;
mod object;
pub mod pd;
mod post;
pub mod qp;
pub mod query;
mod rdmacm;
mod shared;
pub mod srq;
mod thread;
mod wait;
mod wq;
mod wr;
mod xrcd;
