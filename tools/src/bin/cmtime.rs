//! `cmtime`: measures each step of making and ending connections.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(rdma_tools::cmtime::main(std::env::args_os()))
}
