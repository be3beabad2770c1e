//! `ibv_rc_pingpong`: sends messages back and forth over a reliable connection.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(rdma_tools::pingpong::main(std::env::args_os()))
}
