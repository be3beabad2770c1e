//! RoCEv2 without I/O: wire formats, a transport engine and a fabric simulator. No clock, socket,
//! thread or lock is involved.
//!
//! From top to bottom; a module imports only modules below it, except in unit tests:
//!
//! | module | contents |
//! |---|---|
//! | [`sim`] | a fabric of many engines in virtual time, with seeded faults |
//! | [`engine`] | **start here**: queue pairs, memory keys, requester and responder |
//! | [`wire`] | packets as bytes and as meaning, packet sequence numbers, the invariant CRC |
//!
//! # References
//! InfiniBand Architecture Specification volume 1, release 1.4 ("IBTA"), and its annex A17, RoCEv2.

extern crate alloc;

#[cfg(any(target_pointer_width = "16", target_pointer_width = "32", target_endian = "big"))]
compile_error!(
    "roce supports 64-bit little-endian processors only: it is tested on x86-64 and aarch64, and \
     nothing has shown that it is right elsewhere (docs/decisions/0039-64-bit-little-endian.md)"
);

pub mod engine;
pub mod sim;
pub mod wire;

/// Compiles the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
