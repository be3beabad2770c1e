//! RoCE v2 over UDP sockets of this process: devices for any machine, without a kernel module or
//! special rights.
//!
//! A soft device exists only if requested: by the program with [`auto`] or [`bind`], or by its user
//! with the environment variable `VERBS_SOFT`. Its value, `auto` or comma-separated IP addresses,
//! appends the devices `soft0`, `soft1`, … to every [`DeviceList`](crate::DeviceList). Further
//! variables configure these devices:
//!
//! | variable | setting |
//! |---|---|
//! | `VERBS_SOFT_STRICT_PORTS=1` | [`Builder::strict_ports`] |
//! | `VERBS_SOFT_CHECKED_MEMORY=none`, `files` or `all` | [`Builder::checked_memory`] |
//! | `VERBS_SOFT_SHM=0` | [`Builder::shared_memory`] |
//! | `VERBS_SOFT_SHM=/run/verbs` | [`Builder::shared_memory_folder`] |
//! | `VERBS_SOFT_FAULTS=loss=1%,delay=100us,seed=7` | [`Builder::faults`] |
//! | `VERBS_SOFT_PCAP=/tmp/packets.pcap` | [`Builder::capture`] |
//!
//! ```no_run
//! let context = verbs::soft::auto()?.open()?;
//! println!("{}: {}", context.device_name(), context.find_gid(1)?.gid);
//! # Ok::<(), verbs::Error>(())
//! ```
//!
//! # Fork
//! A device belongs to the process that made it. In a child after `fork(2)`, calls fail with
//! `ENODEV` and [`Cause::Forked`](crate::Cause::Forked), posting fails with `ENODEV`, polling finds
//! no completion, and dropping a handle does not affect the parent. Two calls succeed in the child:
//! queries of the device's attributes and [`Context::alloc_dm`](crate::Context::alloc_dm). The
//! child can make its own devices with [`auto`] or [`bind`], or by listing devices again. A parent
//! and its child may share an address as other processes do.

use std::net::IpAddr;
use std::path::PathBuf;

pub use provider_soft::{
    Ah, CheckedMemory, Completion, Context, Counters, Cq, CqHandle, Dm, Faults, InvalidFaults, Mr, Mw, Pd,
    Qp, Rq, Soft, SoftBuilder, SoftDevice, Sq, Srq, SrqQueue, Td, Xrcd,
};
use verbs_core::discovery::DeviceInfo;

use crate::device::Device;
use verbs_core::Result;

/// Creates a device on an IP address of this machine and UDP port 4791.
///
/// Processes of one user may each have a device on the same address. The address stays in use until
/// the device and all objects opened from it are dropped. Opening the device or a clone of it
/// returns a context of the same device.
///
/// # Errors
/// [`Cause::LeftOut`](crate::Cause::LeftOut) with
/// [`SkipReason::Address`](crate::SkipReason::Address):
/// - `EADDRINUSE`: this process has a device on the address, or the port is taken by another user's
///   process, by a device made with [`auto`], or by the kernel's `rdma_rxe`.
/// - `EADDRNOTAVAIL`: the address does not belong to this machine.
/// - `ETIMEDOUT`: no process that shares the address replies within 5 s.
/// - `EUSERS`: 253 processes share the address.
/// - any other errno from creating sockets.
pub fn bind(address: IpAddr) -> Result<Device> {
    builder().bind(address)
}

/// Creates a device that only programs on this machine, in the same network namespace, can reach.
/// The devices of all these programs reach each other without configuration.
///
/// The first such device of a process has the address of the interface with the default route; all
/// processes of one user share this address. On a machine without such an address, or for a second
/// user, it has an address in 127.0.0.0/8, as does each further device of a process.
///
/// # Errors
/// Same as [`bind`]; `EADDRINUSE` if the port is taken on every address in 127.0.0.0/8, for example
/// by the kernel's `rdma_rxe`.
pub fn auto() -> Result<Device> {
    builder().auto()
}

/// Returns the device that a connection manager found by address. Opening the device fails with
/// `ENODEV` unless it is a soft device of this process.
pub fn device_of(info: DeviceInfo) -> Device {
    Device::brought::<Soft>(info)
}

/// Returns a builder for a device with non-default settings.
///
/// ```no_run
/// let device = verbs::soft::builder().strict_ports(true).auto()?;
/// # Ok::<(), verbs::Error>(())
/// ```
pub fn builder() -> Builder {
    Builder(SoftDevice::builder())
}

/// The settings of a new soft device.
#[derive(Clone, Debug)]
pub struct Builder(SoftBuilder);

impl Builder {
    /// Sets whether each connected queue pair accepts packets only from one UDP source port of its
    /// peer, the source port of the first accepted packet. Off by default. See
    /// [`SoftBuilder::strict_ports`].
    pub fn strict_ports(self, strict: bool) -> Self {
        Self(self.0.strict_ports(strict))
    }

    /// Sets which kinds of registered memory may lose their pages. The kernel accesses such memory
    /// for the device. The default is file-backed memory. See [`CheckedMemory`].
    pub fn checked_memory(self, checked: CheckedMemory) -> Self {
        Self(self.0.checked_memory(checked))
    }

    /// Sets whether packets to other devices of this user on this machine go through shared memory
    /// instead of UDP. On by default. See [`SoftBuilder::shared_memory`].
    pub fn shared_memory(self, enabled: bool) -> Self {
        Self(self.0.shared_memory(enabled))
    }

    /// Sets a folder in which devices find each other to exchange packets through shared memory,
    /// instead of in their network namespace. Containers can share the folder. See
    /// [`SoftBuilder::shared_memory_folder`].
    pub fn shared_memory_folder(self, folder: impl Into<PathBuf>) -> Self {
        Self(self.0.shared_memory_folder(folder))
    }

    /// Injects faults into the packets that the device sends: loss, delay and others, repeatable
    /// through a seed. None by default. See [`Faults`].
    ///
    /// ```
    /// let faults = "loss=1%,reorder=5%,seed=7".parse()?;
    /// let device = verbs::soft::builder().faults(faults).auto()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn faults(self, faults: Faults) -> Self {
        Self(self.0.faults(faults))
    }

    /// Writes copies of the packets that the device sends and receives to a pcap file for Wireshark
    /// or tcpdump. None by default. See [`SoftBuilder::capture`].
    pub fn capture(self, file: impl Into<PathBuf>) -> Self {
        Self(self.0.capture(file))
    }

    /// Sets the interface of a link-local IPv6 address by its index, because several interfaces may
    /// have the address. See [`SoftBuilder::scope_id`].
    pub fn scope_id(self, index: u32) -> Self {
        Self(self.0.scope_id(index))
    }

    /// Creates the device as [`bind`] does.
    ///
    /// # Errors
    /// Same as [`bind`].
    pub fn bind(self, address: IpAddr) -> Result<Device> {
        self.0.bind(address).map(Device::brought::<Soft>)
    }

    /// Creates the device as [`auto`] does.
    ///
    /// # Errors
    /// Same as [`auto`].
    pub fn auto(self) -> Result<Device> {
        self.0.auto().map(Device::brought::<Soft>)
    }
}
