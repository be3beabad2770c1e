//! `guest [--list] [--form erased|static] [--skip SUITE[: WHY]]... [--skip-interop]
//! [--without-ioctls] [SUITE...]`: runs the suites, inside the guest, as root, with rxe0.
//!
//! Prints `ok NAME`, `FAIL NAME: why` or `skip NAME: why` for each case and ends with `N passed, N
//! failed, N skipped`. SUITE is a suite's name, or a prefix of cases' names that ends at a word.
//! With `--form`, cases on our API run in one form only: with their provider hidden, or named.
//! Exits with 0 if no case failed.
//!
//! With `--without-ioctls` every case runs with the provider hidden and under a filter that rejects
//! the ioctls of uverbs. Exits with 3 if the filter is not available.
//!
//! `guest --compile` compiles the C programs of the suites on the host, beside this program.

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
                // The commands are the same with the provider named.
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
