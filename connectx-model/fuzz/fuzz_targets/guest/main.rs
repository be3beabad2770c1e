//! Fuzzes the model with a hostile guest: any sequence of stores, commands, work requests and
//! faults. See `program.rs`.

#![no_main]

mod driver;
mod program;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| program::run(bytes));
