//! `ibv_uc_pingpong`: sends messages back and forth over an unreliable connection.

use std::process::ExitCode;

use rdma_tools::pingpong::{self, options::Program};

fn main() -> ExitCode {
    ExitCode::from(pingpong::main(Program::Uc, std::env::args_os()))
}
