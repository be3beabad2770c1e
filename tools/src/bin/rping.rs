//! `rping`: pings a peer with RDMA reads and writes over a connection made by address.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(rdma_tools::rping::main(std::env::args_os()))
}
