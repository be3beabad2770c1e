//! `rdma_client`: connects by address, sends a message, receives one back.

use std::process::ExitCode;

use rdma_tools::cm::{messages, options::Program};

fn main() -> ExitCode {
    ExitCode::from(messages::main(Program::Client, std::env::args_os()))
}
