//! Fuzzes the connection manager with calls by a program and invalid replies from the kernel; see
//! `driver.rs`.
//!
//! Run `cargo +nightly fuzz run ucma` in the directory of the package `rdma-cm`. The tests in its
//! module `hostile` write the seeds and run all of them.

#![no_main]

mod driver;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| driver::run(bytes));
