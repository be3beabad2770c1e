//! Arbitrary calls by a program to an untrusted kernel: see `driver.rs`.
//!
//! Run `cargo +nightly fuzz run ucma` in the folder of the package `rdma-cm`. The tests of its
//! module `hostile` write the seeds and run all of them.

#![no_main]

mod driver;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| driver::run(bytes));
