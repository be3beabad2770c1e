//! Tests of soft devices through the provider contract and through the API, with one module per
//! subject. They form one program, because linking one program per subject would take longer than
//! all tests.
//!
//! Tests that count resources of their process (`lifetime`, `loss`), limit them (`memory`), fork
//! the process (`exit`, `parts`) or measure waiting times in it (`stalls`, `slow_link`) are
//! separate programs.

#[path = "../common/mod.rs"]
mod common;

mod causes;
mod datagrams;
mod dm;
mod events;
mod events_read;
mod failures;
mod multicast;
mod odp;
mod scale;
mod strangers;
mod traffic;
mod xrcd;

/// Whether packets between devices opened by [`common::open`] travel through memory.
const SHARED_MEMORY: bool = false;
