//! `rping`: pings over a connection by address, by RDMA reads and writes.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(rdma_tools::rping::main(std::env::args_os()))
}
