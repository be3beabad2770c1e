//! Soft devices through the contract and through the API: one module per subject, in one program,
//! because linking one program per subject would take longer than all tests.
//!
//! Tests that count in their process (`lifetime`, `loss`), limit it (`memory`), fork it (`exit`,
//! `parts`) or measure waiting times in it (`stalls`, `slow_link`) are separate programs.

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

/// Whether packets between the devices of [`common::open`] travel through memory.
const SHARED_MEMORY: bool = false;
