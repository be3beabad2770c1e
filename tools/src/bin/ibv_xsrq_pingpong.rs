//! `ibv_xsrq_pingpong`: sends messages back and forth between processes whose
//! connections (XRC) share a receive queue.

use std::process::ExitCode;

use rdma_tools::pingpong::{self, options::Program};

fn main() -> ExitCode {
    ExitCode::from(pingpong::main(Program::Xsrq, std::env::args_os()))
}
