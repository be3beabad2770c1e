//! `ibv_devices`: lists the RDMA devices of this machine.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(rdma_tools::devices::main(std::env::args_os()))
}
