//! `ucmatose`: exchanges messages over many reliable connections at once.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(rdma_tools::cmatose::ucmatose::main(std::env::args_os()))
}
