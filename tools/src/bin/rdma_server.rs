//! `rdma_server`: sends a message back over a connection by address.

use std::process::ExitCode;

use rdma_tools::cm::{messages, options::Program};

fn main() -> ExitCode {
    ExitCode::from(messages::main(Program::Server, std::env::args_os()))
}
