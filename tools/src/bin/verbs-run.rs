//! `verbs-run`: runs a program on our `libibverbs.so.1`, with soft devices where programs look for
//! RDMA devices.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(rdma_tools::verbs_run::main(std::env::args_os().skip(1)))
}
