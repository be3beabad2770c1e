//! Any calls of a program, at a kernel that is not to be trusted: see `driver.rs`.
//!
//! `cargo +nightly fuzz run ucma`, from the folder of the package `rdma-cm`. The test of its module
//! `hostile` writes the seeds, and runs all of them.

#![no_main]

mod driver;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| driver::run(bytes));
