//! `ibv_devinfo`: says what RDMA devices can do, and how their ports are.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(rdma_tools::devinfo::main(std::env::args_os()))
}
