//! `guest [--list] [--form erased|static] [--skip SUITE[: WHY]]... [--skip-interop]
//! [--without-ioctls] [SUITE...]`: runs the suites with rxe0 as root, inside the guest.
//!
//! Prints `ok NAME`, `FAIL NAME: why` or `skip NAME: why` for each case and ends with `N passed, N
//! failed, N skipped`. SUITE is a suite name, or a prefix of case names that ends at a word
//! boundary. With `--form`, cases that use our API run in one form only: with their provider erased
//! or named. Exits with 0 if no case failed.
//!
//! With `--without-ioctls`, every case runs with the provider erased, under a filter that rejects
//! uverbs ioctls. Exits with 3 if the filter is not available.
//!
//! `guest --compile` compiles the suites' C programs on the host, next to this program.

use std::process::ExitCode;

use verbs_c_programs::{arguments, beside_poller, compiled, together};
use verbs_harness::refuse;
use verbs_harness::runner::{self, Form, Options, left_out};

fn main() -> ExitCode {
    if std::env::args().skip(1).eq(["--compile"]) {
        return compiled::main("guest", &[together::LIBRARY, arguments::PROGRAM, beside_poller::PROGRAM]);
    }
    let mut options = Options::default();
    let mut without_ioctls = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--list" => options.list = true,
            "--skip-interop" => {
                options.skip.push(("interop".to_owned(), "asked for with --skip-interop".to_owned()));
            }
            "--skip" => {
                let Some(suite) = args.next() else { return usage() };
                options.skip.push(left_out(&suite));
            }
            "--without-ioctls" => {
                without_ioctls = true;
                // With the provider named, the commands would be the same.
                options.form = Some(Form::Erased);
            }
            "--form" => match args.next().as_deref().map(str::parse) {
                Some(Ok(form)) => options.form = Some(form),
                _ => return usage(),
            },
            "--case" => options.case = args.next(),
            _ if arg.starts_with('-') => return usage(),
            _ => options.only.push(arg),
        }
    }
    if without_ioctls && let Err(error) = refuse::every_ioctl() {
        eprintln!("guest: {error}");
        return ExitCode::from(3);
    }
    runner::main(&options, &verbs_tests::all())
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: guest --compile | [--list] [--form erased|static] [--skip 'SUITE[: WHY]']... [--skip-interop] \
         [--without-ioctls] [SUITE...]"
    );
    ExitCode::from(2)
}
