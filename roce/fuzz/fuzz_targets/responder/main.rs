//! Fuzzes the responder with sequences of packets and calls; see `driver.rs`.
//!
//! Run `cargo +nightly fuzz run responder` in the directory of the package `roce`. The test
//! `responder_seeds` writes the seeds and runs all of them.

#![no_main]

mod driver;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| driver::run(bytes));
