//! Soft devices through the contract and through the API: a module for each subject, in one
//! program, because linking one for each costs more than all tests take.
//!
//! Tests that count in their process (`lifetime`, `loss`), limit it (`memory`), fork it (`exit`,
//! `parts`) or measure who waits in it (`stalls`, `slow_link`) are programs of their own.

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
mod strangers;
mod traffic;
mod xrcd;
