//! The suites on a soft device, in this process: conformance, plus those cases of other suites that
//! need nothing from the kernel.
//!
//! `cargo test -p verbs-tests --test soft [-- WORD...]` runs the cases whose names contain a word,
//! or all cases. Each runs in a separate process with a separate device.
//!
//! The device sends packets to itself through memory in cases that hide the provider. In cases that
//! name the provider or count packets, it sends them over UDP ([`link`]).

use std::process::ExitCode;

use verbs_fixtures::fabric;
use verbs_harness::runner::{self, Case, Options};
use verbs_harness::{address, forked};

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
    let mut cases: Vec<_> = verbs_tests::of_any_device().into_iter().map(at_own_address).collect();
    cases.retain(|case| words.is_empty() || words.iter().any(|word| case.name.contains(word)));
    options.env.push((fabric::VARIABLE.to_owned(), "soft0".to_owned()));
    options.at_once = runner::processors();
    runner::main(&options, &cases)
}

/// Gives the case's soft device a separate address, with memory or UDP as its link.
fn at_own_address(case: Case) -> Case {
    let link = link(&case.name);
    case.after(move || {
        let address = address::own().to_string();
        forked::set_variables(&[("VERBS_SOFT", &address), ("VERBS_SOFT_SHM", link)])
    })
}

/// Returns the value of `VERBS_SOFT_SHM` for a case: 0 for UDP.
fn link(case: &str) -> &'static str {
    let counts_packets = BY_PATH_MTU.iter().any(|name| case.contains(name));
    if case.ends_with(" static") || counts_packets { "0" } else { "1" }
}

/// Cases that count packets of the path MTU's size. Packets through memory are longer.
const BY_PATH_MTU: [&str; 3] = [
    "sequence_numbers_move_on_with_every_packet",
    "sequence_numbers_wrap_after_24_bits",
    "packets_are_as_long_as_the_path_mtu",
];
