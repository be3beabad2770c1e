//! The job of a guest as a file: the command with its bytes preserved, and the device that must
//! exist when it starts. The host writes it, and process 1 of the guest reads it.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

use super::connectx::Port;

/// One command for one guest.
#[derive(PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Program and arguments.
    pub(crate) argv: Vec<OsString>,
    /// The command's whole environment, names and values.
    pub(crate) env: Vec<(OsString, OsString)>,
    /// The directory in which the command starts.
    pub(crate) cwd: OsString,
    /// The host's directory that becomes /lib/modules.
    pub(crate) modules: OsString,
    /// The device that must exist when the command starts.
    pub(crate) device: Device,
    /// RLIMIT_MEMLOCK in KiB; `None` for no limit.
    pub(crate) memlock_kib: Option<u64>,
    /// Whether the command's stdin is the host's.
    pub(crate) interactive: bool,
}

/// The RDMA device of a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Device {
    None,
    /// rxe0, which process 1 creates.
    Rxe,
    /// Functions of the ConnectX model; process 1 loads their driver.
    Mlx5 {
        port: Port,
        functions: u8,
    },
}
