//! `libibverbs.so.1` in Rust: the C ABI of rdma-core's libibverbs, and of its librdmacm, for
//! programs that were built against them.
//!
//! ```text
//!   program ──► ibv_...()  (symbols)       ─┐
//!          ──► ibv_context.ops, inlines    ─┼─► this crate, generic over the provider ──► provider
//!          ──► verbs_context, ibv_cq_ex, …  ─┘
//! ```
//! | module | for |
//! |---|---|
//! | [`c`] | the types of `infiniband/verbs.h` |
//! | [`device`], [`context`] | the list of devices, open devices, the tables of operations |
//! | [`query`] | queries of devices, ports, GIDs and partition keys |
//! | [`pd`], [`mr`], [`mw`], [`dm`], [`ah`] | domains, regions, windows, device memory, addresses |
//! | [`channel`], [`event`] | completion channels, asynchronous events |
//! | [`cq`], [`cq_ex`] | completion queues: arrays, and lent completions |
//! | [`qp`], [`post`], [`wr`] | queue pairs: state, `ibv_post_send`, `ibv_wr_...` |
//! | [`srq`], [`xrcd`], [`wq`], [`flow`], [`counters`] | the other objects |
//! | [`address`], [`fork`], [`marshall`] | functions without objects: addresses, forks, structs |
//! | [`rates`], [`strings`], [`sysfs`] | functions without objects: numbers, names, files |
//! | [`symbols`], [`facade`], [`gid_type`] | the table of symbols, and functions for it alone |
//! | [`rdmacm`] | `librdmacm.so.1`: connections by address |
//! | [`mlx5dv`] | `libmlx5.so.1`: direct access to ConnectX devices |
//! | [`reserve`] | memory for small allocations when the process has run out |
//! | [`left`] | the end of objects that a program leaves behind |
//! | [`wait`] | the system calls that are cancellation points |
//! | [`object`], [`shared`], [`lock`], [`thread`], [`errno`], [`convert`] | common parts |
//!
//! An object of C is a box: the public struct first, then the provider's object, so that a pointer
//! of the program is a pointer to the box. A context keeps the functions for its provider as a
//! trait object; the data path has functions of its own for each provider, so that the indirect
//! call through the public table is the only one, as in C.
//!
//! # Safety
//! Every exported function has the contract of the function of that name in rdma-core's
//! libibverbs: pointers are null where the manual page allows it, and otherwise point to live
//! objects of this library or to the program's memory; objects are not used after they were
//! destroyed. Only what C requires is required.

pub mod c;
pub mod symbols;

pub mod address;
pub mod ah;
pub mod channel;
pub mod context;
mod convert;
pub mod counters;
pub mod cq;
mod cq_ex;
pub mod device;
pub mod dm;
mod errno;
pub mod event;
mod facade;
mod flow;
pub mod fork;
mod gid_type;
mod left;
mod lock;
pub mod marshall;
mod mlx5dv;
pub mod mr;
mod mw;
mod object;
pub mod pd;
mod post;
pub mod qp;
pub mod query;
pub mod rates;
mod rdmacm;
pub mod reserve;
mod shared;
pub mod srq;
pub mod strings;
pub mod sysfs;
mod thread;
mod wait;
mod wq;
mod wr;
mod xrcd;
