//! `ibv_ud_pingpong`: sends messages back and forth as datagrams.

use std::process::ExitCode;

use rdma_tools::pingpong::{self, options::Program};

fn main() -> ExitCode {
    ExitCode::from(pingpong::main(Program::Ud, std::env::args_os()))
}
