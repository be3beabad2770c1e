//! The API on a paper device ([`common`]) and on soft devices, one module per subject. The modules
//! form one program, because linking several programs would take longer than running all tests.
//!
//! Tests that change their process (`fork`), count in it (`objects`), end it (`scope_abort`) or
//! start the examples (`examples`) are separate programs.

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
