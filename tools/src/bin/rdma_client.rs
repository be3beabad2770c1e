//! `rdma_client`: sends a message over a connection by address, and waits for one.

use std::process::ExitCode;

use rdma_tools::cm::{messages, options::Program};

fn main() -> ExitCode {
    ExitCode::from(messages::main(Program::Client, std::env::args_os()))
}
