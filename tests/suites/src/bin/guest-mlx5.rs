//! `guest-mlx5 [--list] [--usual] [--form erased|static] [--skip SUITE[: WHY]]... [--port ib|roce]
//! [--functions 1|2] [SUITE...]`: runs the suites for mlx5 devices as root, inside the guest.
//!
//! Without options it detects the ports and functions. Prints `ok NAME`, `FAIL NAME: why` or `skip
//! NAME: why` for each case and ends with `N passed, N failed, N skipped`. SUITE is a suite name,
//! or a prefix of case names that ends at a word boundary. Without SUITE, all cases run. With
//! `--usual`, two guests share the cases, and this one runs its part. Exits with 0 if no case
//! failed.
//!
//! `guest-mlx5 --compile` compiles the suites' C programs on the host, next to this program.

use std::process::ExitCode;

use verbs_c_programs::compiled;
use verbs_fixtures::functions::{self, Setup};
use verbs_harness::runner::{self, Options, left_out};
use verbs_tests::mlx5;

const USAGE: &str = "usage: guest-mlx5 --compile | [--list] [--usual] [--form erased|static] [--skip 'SUITE[: WHY]']... [--port ib|roce] [--functions 1|2] [SUITE...]";

fn main() -> ExitCode {
    if std::env::args().skip(1).eq(["--compile"]) {
        return compiled::main("guest-mlx5", &mlx5::PROGRAMS);
    }
    match read(std::env::args().skip(1)) {
        Ok((mut options, setup, is_usual)) => {
            if is_usual {
                options.form.get_or_insert(mlx5::usual_form(setup));
                options.skip.extend(mlx5::left_out(setup));
            }
            runner::main(&options, &mlx5::all(setup))
        }
        Err(why) => {
            eprintln!("guest-mlx5: {why}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn read(mut args: impl Iterator<Item = String>) -> Result<(Options, Setup, bool), String> {
    let (mut options, mut is_usual) = (Options::default(), false);
    // A case's process gets the setup from its parent. The parent gets it from arguments or detects
    // it.
    let mut setup = Setup::from_env().unwrap_or_else(Setup::found);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} of what?"));
        match arg.as_str() {
            "--list" => options.list = true,
            "--usual" => is_usual = true,
            "--case" => options.case = Some(value()?),
            "--form" => options.form = Some(value()?.parse()?),
            "--skip" => options.skip.push(left_out(&value()?)),
            "--port" => setup.port = value()?.parse()?,
            "--functions" => {
                setup.functions = match &*value()? {
                    "1" => 1,
                    "2" => 2,
                    other => return Err(format!("--functions {other}: 1 or 2")),
                };
            }
            _ if arg.starts_with('-') => return Err(format!("{arg} is no option")),
            _ => options.only.push(arg),
        }
    }
    options.env.push((functions::VARIABLE.to_owned(), setup.to_string()));
    options.env.push(mlx5::ours::variable());
    Ok((options, setup, is_usual))
}
