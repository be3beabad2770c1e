//! `ibv_devinfo`: prints the capabilities of RDMA devices and the state of their ports.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(rdma_tools::devinfo::main(std::env::args_os()))
}
