//! Compiles every path of ours in docs/libibverbs.md or a table of the manual: a renamed or removed
//! item does not compile here. The test `libibverbs` generates the files.

// The lines name types without their lifetimes.
#![allow(elided_lifetimes_in_paths)]

mod constants;
mod fields;
mod functions;
mod types;
mod variants;
