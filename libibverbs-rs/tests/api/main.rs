//! The API on a device on paper ([`common`]), and on soft devices: a module for each subject, in
//! one program, because linking one for each costs more than all tests take.
//!
//! Tests that change their process (`fork`), that count in it (`objects`), that end it
//! (`scope_abort`), or that start the examples (`examples`) are programs of their own.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod batches;
mod devices;
mod domains;
mod endpoint;
mod errors;
mod events;
mod handles;
mod in_flight;
mod ladder;
mod memory;
mod mlx5;
mod numbers;
mod panics;
mod polling;
mod posting;
mod raw_batches;
mod registered;
mod scope;
mod sentences;
mod shared;
mod soft;
mod steering;
mod traits;
mod unplug;
mod windows;
