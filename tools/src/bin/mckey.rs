//! `mckey`: sends datagrams to the members of a multicast group.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(rdma_tools::cmatose::mckey::main(std::env::args_os()))
}
