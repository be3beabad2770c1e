//! `udaddy`: exchanges datagrams between services that find each other by address.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(rdma_tools::cmatose::udaddy::main(std::env::args_os()))
}
