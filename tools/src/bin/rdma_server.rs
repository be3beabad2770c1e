//! `rdma_server`: accepts a connection by address, receives a message, sends one back.

use std::process::ExitCode;

use rdma_tools::cm::{messages, options::Program};

fn main() -> ExitCode {
    ExitCode::from(messages::main(Program::Server, std::env::args_os()))
}
