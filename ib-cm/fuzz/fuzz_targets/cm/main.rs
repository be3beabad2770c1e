//! Any sequence of messages and calls: see `driver.rs`.
//!
//! Run `cargo +nightly fuzz run cm` in the folder of the package `ib-cm`. The test `fuzz_seeds`
//! writes the seeds and runs all of them.

#![no_main]

mod driver;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| driver::run(bytes));
