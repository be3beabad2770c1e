//! `guest [--list] [--skip-interop] [SUITE...]`: runs the suites, inside the guest, as root, with
//! rxe0.
//!
//! Prints `ok NAME`, `FAIL NAME: why` or `skip NAME: why` for each case and ends with `N passed, N
//! failed, N skipped`. SUITE is a suite's name or the beginning of cases' names, word by word. 0 if
//! no case failed.

use std::process::ExitCode;

use verbs_tests::runner::{self, Options};
use verbs_tests::suites;

fn main() -> ExitCode {
    let mut options = Options::default();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--list" => options.list = true,
            "--skip-interop" => {
                options.skip.push(("interop".to_owned(), "asked for with --skip-interop".to_owned()));
            }
            "--case" => options.case = args.next(),
            _ if arg.starts_with('-') => {
                eprintln!("usage: guest [--list] [--skip-interop] [SUITE...]");
                return ExitCode::from(2);
            }
            _ => options.only.push(arg),
        }
    }
    runner::main(&options, &suites::all())
}
