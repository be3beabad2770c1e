//! `ibv_rc_pingpong`: sends messages back and forth over a reliable connection.

use std::process::ExitCode;

use rdma_tools::pingpong::{self, options::Program};

fn main() -> ExitCode {
    ExitCode::from(pingpong::main(Program::Rc, std::env::args_os()))
}
