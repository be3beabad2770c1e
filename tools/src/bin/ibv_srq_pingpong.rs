//! `ibv_srq_pingpong`: sends messages back and forth over connections that share a receive queue.

use std::process::ExitCode;

use rdma_tools::pingpong::{self, options::Program};

fn main() -> ExitCode {
    ExitCode::from(pingpong::main(Program::Srq, std::env::args_os()))
}
