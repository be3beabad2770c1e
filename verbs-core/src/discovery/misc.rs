//! [`Misc`]: a character device of the RDMA subsystem that belongs to no RDMA device, such as the
//! device of the connection manager.
//!
//! ```text
//! netlink GET_CHARDEV, type rdma_cm ──► number, name, ABI version
//!        │ fails or short
//!        ▼
//! <sysfs>/class/misc/rdma_cm/dev          10:125
//!                            abi_version  4
//! ```
//!
//! Kernels before 5.1 lack this netlink request.

use super::netlink::{Conversation, NetlinkSocket, Wire};
use super::nldev;
use super::sysfs::{self, Roots};
use super::{DevNum, path_component};
use crate::errno::Errno;

/// A character device of the RDMA subsystem that belongs to no RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misc {
    /// The number of the character device.
    pub dev: DevNum,
    /// The file name below `/dev/infiniband`.
    pub name: String,
    /// The ABI version.
    pub abi_version: u32,
}

/// Finds the character device of a kind, such as `rdma_cm`.
///
/// # Errors
/// - `ENOENT` if the kernel has no such device (its module is not loaded) or hides the device.
/// - `EMFILE`, `ENFILE` or `EACCES` if the sysfs file cannot be opened.
pub fn misc(kind: &str) -> Result<Misc, Errno> {
    let roots = Roots::system();
    match NetlinkSocket::open() {
        Ok(mut socket) => misc_at(&roots, Some(&mut socket), kind),
        Err(_) => misc_at(&roots, None, kind),
    }
}

/// Finds a device like [`misc`], with the given netlink and files. Used by tests.
///
/// # Errors
/// The errors of [`misc`].
#[doc(hidden)]
pub fn misc_at(roots: &Roots, netlink: Option<&mut dyn Wire>, kind: &str) -> Result<Misc, Errno> {
    netlink.and_then(|wire| by_netlink(wire, kind)).map_or_else(|| by_sysfs(roots, kind), Ok)
}

fn by_netlink(wire: &mut dyn Wire, kind: &str) -> Option<Misc> {
    let reported = nldev::chardev(&mut Conversation::new(wire), kind).ok()?;
    let (dev, abi_version) = (reported.dev?, reported.abi_version?);
    Some(Misc { dev, name: path_component(&reported.name?)?, abi_version })
}

fn by_sysfs(roots: &Roots, kind: &str) -> Result<Misc, Errno> {
    let directory = roots.sysfs.join("class/misc").join(path_component(kind.as_bytes()).ok_or(Errno::NOENT)?);
    let content = sysfs::read(&directory.join("dev"))?;
    let dev = str::from_utf8(&content).ok().and_then(DevNum::from_sysfs).ok_or(Errno::NOENT)?;
    let abi_version = sysfs::read_number(&directory.join("abi_version")).ok_or(Errno::NOENT)?;
    Ok(Misc { dev, name: kind.to_owned(), abi_version })
}
