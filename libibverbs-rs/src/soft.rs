//! RoCE v2 over UDP sockets of this process: devices for any machine, with no kernel module and no
//! rights.
//!
//! None is there unless somebody asks: the program, with [`auto`] or [`bind`], or whoever starts
//! it, with `VERBS_SOFT` in the environment: `auto`, or IP addresses separated by commas, for
//! devices `soft0`, `soft1`, … at the end of every [`DeviceList`](crate::DeviceList).
//! `VERBS_SOFT_STRICT_PORTS=1` beside it sets [`Builder::strict_ports`] for them.
//!
//! ```no_run
//! let context = verbs::soft::auto()?.open()?;
//! println!("{}: {}", context.device_name(), context.find_gid(1)?.gid);
//! # Ok::<(), verbs::Error>(())
//! ```
//!
//! # Fork
//! A device belongs to the process that made it. In a child after `fork(2)`, every call fails with
//! `ENODEV` and [`Cause::Forked`](crate::Cause::Forked), posting fails with `ENODEV`, polling finds
//! nothing, and dropping a handle does not affect the parent. The child makes devices of its own:
//! by [`auto`] or [`bind`], or by listing devices again. The parent keeps its address while it
//! lives.

use std::net::IpAddr;

pub use provider_soft::*;

use crate::{Device, Result};

/// A device on one IP address of this machine, UDP port 4791.
///
/// The address is taken from now until the device and all that was opened from it are gone. Every
/// open of the device, and of its clones, is a context of the same device.
///
/// # Errors
/// [`Cause::LeftOut`](crate::Cause::LeftOut) with why the address cannot be had: `EADDRINUSE` where
/// the port is taken, `EADDRNOTAVAIL` where the address is not this machine's.
pub fn bind(address: IpAddr) -> Result<Device> {
    builder().bind(address)
}

/// A device on a free address of 127.0.0.0/8: processes on this machine reach each other with
/// nothing to configure.
///
/// # Errors
/// As [`bind`]; the kernel's `rdma_rxe`, where it is loaded, has the port on every address.
pub fn auto() -> Result<Device> {
    builder().auto()
}

/// A device with other settings than the usual ones.
///
/// ```no_run
/// let device = verbs::soft::builder().strict_ports(true).auto()?;
/// # Ok::<(), verbs::Error>(())
/// ```
pub fn builder() -> Builder {
    Builder(SoftDevice::builder())
}

/// The settings of a device that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Builder(SoftBuilder);

impl Builder {
    /// Sets whether each connected queue pair hears one UDP source port of its peer only, the first
    /// that it accepted a packet from: see [`SoftBuilder::strict_ports`]. Off unless set.
    pub fn strict_ports(self, strict: bool) -> Self {
        Self(self.0.strict_ports(strict))
    }

    /// As [`bind`].
    ///
    /// # Errors
    /// As there.
    pub fn bind(self, address: IpAddr) -> Result<Device> {
        self.0.bind(address).map(Device::brought::<Soft>)
    }

    /// As [`auto`].
    ///
    /// # Errors
    /// As there.
    pub fn auto(self) -> Result<Device> {
        self.0.auto().map(Device::brought::<Soft>)
    }
}
