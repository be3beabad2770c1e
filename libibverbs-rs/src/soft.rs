//! RoCE v2 over UDP sockets of this process: devices for any machine, with no kernel module and no rights.
//!
//! None is there unless somebody asks: the program, with [`auto`] or [`bind`], or whoever starts it, with `VERBS_SOFT` in the
//! environment: `auto`, or IP addresses separated by commas, for devices `soft0`, `soft1`, … at the end of every
//! [`DeviceList`](crate::DeviceList).
//!
//! ```no_run
//! let context = verbs::soft::auto()?.open()?;
//! println!("{}: {}", context.device_name(), context.find_gid(1)?.gid);
//! # Ok::<(), verbs::Error>(())
//! ```

use std::net::IpAddr;

pub use provider_soft::*;

use crate::{Device, Result};

/// A device on one IP address of this machine, UDP port 4791.
///
/// The address is taken from now until the device and all that was opened from it are gone. Every open of the device, and of
/// its clones, is a context of the same device.
///
/// # Errors
/// [`Cause::LeftOut`](crate::Cause::LeftOut) with why the address cannot be had: `EADDRINUSE` where the port is taken,
/// `EADDRNOTAVAIL` where the address is not this machine's.
pub fn bind(address: IpAddr) -> Result<Device> {
    SoftDevice::bind(address).map(Device::brought::<Soft>)
}

/// A device on a free address of 127.0.0.0/8: processes on this machine reach each other with nothing to configure.
///
/// # Errors
/// As [`bind`]; the kernel's `rdma_rxe`, where it is loaded, has the port on every address.
pub fn auto() -> Result<Device> {
    SoftDevice::auto().map(Device::brought::<Soft>)
}
