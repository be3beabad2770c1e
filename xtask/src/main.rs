//! `cargo xtask`: the project's own commands.
//!
//! One module per subcommand ([`Command`]), each with an `Args` (its command line) and a `run`.
//! Read [`vm`] first, because the others build on it. They share these modules:
//!
//! | module | content |
//! |---|---|
//! | [`apt`] | Debian packages, for the host and for guests |
//! | [`cache`] | downloads, and everything derived from them |
//! | [`cargo`], [`process`] | cargo calls; programs that run beside this one |
//! | [`soft_programs`] | programs on soft devices, in an emulator or an empty root |
//! | [`progress`] | messages on stderr |
//! | [`arch`] | the architectures of programs and guests |

mod aarch64;
mod abi;
mod apt;
mod arch;
mod bench;
mod c_abi;
mod cache;
mod cargo;
mod demo;
mod fuzz;
mod musl;
mod mutants;
mod process;
mod progress;
mod sanitizer;
mod soak;
mod soft_programs;
mod test;
mod toolchain;
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
    /// Boot a guest with an RDMA device and run one command in it
    Vm(vm::Args),
    /// Run every check, on the host and in guests
    Test(test::Args),
    /// Show a device and a verified ping-pong
    Demo(demo::Args),
    /// Run random traffic for a long time on a soft device
    Soak(soak::Args),
    /// Run the fuzz targets for input from peers, guests and programs
    Fuzz(fuzz::Args),
    /// Find mutants that no test detects, in a change or from a list
    Mutants(mutants::Args),
    /// Run tests and programs for aarch64 in an emulator
    Aarch64(aarch64::Args),
    /// Run tests in static programs with musl, and the programs in an empty root
    Musl(musl::Args),
    /// Run tests under AddressSanitizer or ThreadSanitizer
    Sanitizer(sanitizer::Args),
    /// Print where the nightly toolchain is, and how to build the standard library with it
    Toolchain,
    /// Compare this library with rdma-core's in a guest
    Bench(bench::Args),
    /// Write the golden files of uverbs-abi and c-abi from Debian's headers
    Abi,
    /// Link libibverbs.so.1, librdmacm.so.1, libmlx5.so.1 and libefa.so.1 for C programs
    CAbi(c_abi::Args),
    /// Run a C program on our libibverbs.so.1
    RunC(c_abi::run::Args),
}

fn main() -> ExitCode {
    // In a guest, this program is process 1, which must not end with an error from a command line
    // parser.
    if std::env::args_os().nth(1).is_some_and(|a| a == vm::guest::SUBCOMMAND) {
        vm::guest::main();
    }
    // `vm` and `run-c` return their command's status, so their own failures need a status that
    // commands do not use.
    let (misuse, failure) = match std::env::args_os().nth(1) {
        Some(name) if name == "vm" => (vm::STATUS_VM_FAILED, vm::STATUS_VM_FAILED),
        Some(name) if name == "run-c" => (c_abi::run::STATUS_NOT_BUILT, c_abi::run::STATUS_NOT_BUILT),
        _ => (2, 1),
    };
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(message) => {
            // Help is such a message too. If printing fails, that cannot be reported either.
            let _ = message.print();
            return ExitCode::from(if message.use_stderr() { misuse } else { 0 });
        }
    };
    let result = match cli.command {
        Command::Vm(args) => vm::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Mutants(args) => mutants::run(&args),
        Command::Aarch64(args) => aarch64::run(&args),
        Command::Musl(args) => musl::run(&args),
        Command::Sanitizer(args) => sanitizer::run(&args),
        Command::Toolchain => toolchain::run(),
        Command::Bench(args) => bench::run(&args),
        Command::Abi => abi::run(),
        Command::CAbi(args) => c_abi::run(&args),
        Command::RunC(args) => c_abi::run::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::from(failure)
    })
}
