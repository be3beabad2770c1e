//! `ibv_asyncwatch`: prints the asynchronous events of a device.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(rdma_tools::asyncwatch::main(std::env::args_os()))
}
