//! A guest's job as a file: the command, byte for byte, and the device that must exist when it
//! starts. The host writes the file; process 1 in the guest reads it.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

/// A command for a guest.
#[derive(Serialize, Deserialize)]
pub(crate) struct Job {
    /// The program and its arguments.
    pub(crate) argv: Vec<OsString>,
    /// The command's whole environment: names and values.
    pub(crate) env: Vec<(OsString, OsString)>,
    /// The command's working directory.
    pub(crate) cwd: OsString,
    /// The host's directory that becomes /lib/modules.
    pub(crate) modules: OsString,
    /// The device that must exist when the command starts.
    pub(crate) device: Device,
    /// A ConnectX's port type and number of functions.
    pub(crate) port: Port,
    pub(crate) functions: u8,
    /// Whether the command's stdin is the host's stdin.
    pub(crate) interactive: bool,
}

/// Values of `--device`: the kinds of RDMA device that a guest can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, Serialize, Deserialize)]
pub(crate) enum Device {
    /// rxe0 on a veth with 10.9.9.1/24
    Rxe,
    /// A software model of a ConnectX under the kernel's mlx5 driver: mlx5_0, and mlx5_1 with
    /// --functions 2
    Mlx5,
    /// No device; the modules are loaded
    None,
}

/// Values of `--port`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum, Serialize, Deserialize)]
pub(crate) enum Port {
    /// InfiniBand
    #[default]
    Ib,
    /// Ethernet; netdevs with 10.9.9.1/24, and 10.9.9.2/24 in the network namespace "peer"
    Roce,
}

/// The serial port for injecting ConnectX faults from a guest, with the model's socket for it.
pub(crate) const CONNECTX_PORT: &str = "connectx";

/// The PCI slot of a ConnectX's first function. The next function takes the next slot, so that the
/// kernel finds them in this order.
pub(crate) const CONNECTX_SLOT: u8 = 0x10;

/// The name of the model's listening socket for a function. It is relative to the guest's
/// directory, which is the working directory of the model and of QEMU. A socket's path has at most
/// 107 bytes, and the cache directory can have a long path.
pub(crate) fn socket(function: u8) -> String {
    format!("function{function}")
}
