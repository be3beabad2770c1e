//! Fuzzes both ends of a ring, with arbitrary writes by the peer between calls; see
//! `src/shm/ring/hostile.rs`.
//!
//! Run `cargo +nightly fuzz run ring` in the directory of the package `provider-soft`. The tests in
//! `src/shm/ring/tests/seeds.rs` write the seeds and run all of them.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| provider_soft::hostile::run(bytes));
