//! Every path of ours that docs/libibverbs.md or a table of the manual names, in code: an item that
//! is renamed or removed does not compile here. The test `libibverbs` writes the files.

// The lines name types without their lifetimes.
#![allow(elided_lifetimes_in_paths)]

mod constants;
mod fields;
mod functions;
mod types;
mod variants;
