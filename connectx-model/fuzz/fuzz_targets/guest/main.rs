//! A hostile guest: any sequence of stores, commands, work requests and faults. See `driver.rs`.

#![no_main]

mod driver;
mod program;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| program::run(bytes));
