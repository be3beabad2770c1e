//! `cargo xtask`: the project's own commands.
//!
//! One module per subcommand, each with an `Args` (what the command line says) and a `run`. Read [`vm`] first: the
//! others stand on it.
//!
//! | subcommand | module | what it does |
//! |---|---|---|
//! | `vm` | [`vm`] | boots a guest with a Soft-RoCE device and runs one command in it |
//! | `abi` | [`abi`] | writes uverbs-abi's golden files from Debian's newest kernel headers |

mod abi;
mod apt;
mod cache;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Boot a guest with a Soft-RoCE device and run one command in it
    Vm(vm::Args),
    /// Write uverbs-abi's golden files from Debian's newest kernel headers
    Abi(abi::Args),
}

fn main() -> ExitCode {
    // Inside the guest this very program is process 1: it must not depend on a command line parser's idea of errors.
    if std::env::args_os().nth(1).is_some_and(|a| a == vm::guest::SUBCOMMAND) {
        vm::guest::main();
    }
    let result = match Cli::parse().command {
        Command::Vm(args) => vm::run(&args),
        Command::Abi(args) => abi::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::from(vm::STATUS_VM_FAILED)
    })
}
