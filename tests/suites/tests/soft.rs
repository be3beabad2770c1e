//! The suites on a soft device, in this process: conformance, plus cases of other suites that need
//! nothing from the kernel.
//!
//! `cargo test -p verbs-tests --test soft [-- WORD...]` runs the cases whose names contain a word,
//! or all cases. Each runs in a separate process with a separate device.

use std::process::ExitCode;

use verbs_fixtures::fabric;
use verbs_harness::runner::{self, Options};

fn main() -> ExitCode {
    let mut options = Options::default();
    let mut words = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--list" => options.list = true,
            "--case" => options.case = args.next(),
            // Other arguments from `cargo test` are for its standard harness.
            "--skip" | "--test-threads" | "--format" | "--color" | "--logfile" | "-Z" => drop(args.next()),
            _ if arg.starts_with('-') => {}
            _ => words.push(arg),
        }
    }
    let mut cases = verbs_tests::of_any_device();
    cases.retain(|case| words.is_empty() || words.iter().any(|word| case.name.contains(word)));
    for (name, value) in [("VERBS_SOFT", "auto"), (fabric::VARIABLE, "soft0")] {
        options.env.push((name.to_owned(), value.to_owned()));
    }
    runner::main(&options, &cases)
}
