//! `rdma_xclient`: connects by address and sends a message, optionally over XRC.

use std::process::ExitCode;

use rdma_tools::cm::{messages, options::Program};

fn main() -> ExitCode {
    ExitCode::from(messages::main(Program::Xclient, std::env::args_os()))
}
