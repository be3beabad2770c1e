//! `rdma_xserver`: accepts a connection and receives a message, optionally over XRC.

use std::process::ExitCode;

use rdma_tools::cm::{messages, options::Program};

fn main() -> ExitCode {
    ExitCode::from(messages::main(Program::Xserver, std::env::args_os()))
}
