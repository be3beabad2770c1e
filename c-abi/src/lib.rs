//! `libibverbs.so.1` in Rust: the C ABI of rdma-core's libibverbs and librdmacm, for programs built
//! against them.
//!
//! ```text
//!   program ──► ibv_...()  (symbols)       ─┐
//!          ──► ibv_context.ops, inlines    ─┼─► this crate, generic over the provider ──► provider
//!          ──► verbs_context, ibv_cq_ex, …  ─┘
//! ```
//!
//! From top to bottom; a folder imports only folders below it:
//!
//! | module | content |
//! |---|---|
//! | [`rdmacm`] | `librdmacm.so.1`: connections by address |
//! | [`mlx5dv`] | `libmlx5.so.1`: direct access to ConnectX devices |
//! | [`symbols`], [`facade`] | the symbol table, and functions that fail on every device |
//! | [`tables`] | open devices: their providers and operation tables |
//! | [`verbs`] | one file per kind of object: its functions and its operations |
//! | [`handle`] | the objects behind the C pointers and their locks |
//! | [`abi`] | the C types, conversions, `errno`, functions without objects |
//!
//! An object in C is a box: the public struct, then the provider's object. A pointer that the
//! program holds is therefore a pointer to the box. A control verb matches on the provider of its
//! context; `handle/context.rs` lists the providers. The data path has separate functions for each
//! provider; as in C, the only indirect call goes through the public table.
//!
//! # Safety
//! Every exported function has the same contract as the function of that name in rdma-core's
//! libibverbs. Pointers are null only where the manual page allows it, and otherwise point to live
//! objects of this library or to the program's memory. Objects are not used after they were
//! destroyed. Nothing more is required than in C.

pub mod abi;
pub mod symbols;
pub mod tables;
pub mod verbs;

pub use self::abi::c;

mod facade;
mod handle;
mod mlx5dv;
mod rdmacm;
