//! Fuzzes the communication manager with sequences of messages and calls; see `driver.rs`.
//!
//! Run `cargo +nightly fuzz run cm` in the directory of the package `ib-cm`. The test `fuzz_seeds`
//! runs all seeds and can rewrite them.

#![no_main]

mod driver;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| driver::run(bytes));
