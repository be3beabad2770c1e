//! The search for RDMA devices: netlink, then sysfs.
//!
//! | file | contents |
//! |---|---|
//! | [`netlink`] | requests and their replies: [`Wire`], [`NetlinkSocket`], [`NetlinkError`] |
//! | [`nldev`] | parsers of the netlink attributes |
//! | [`sysfs`] | the same properties, read from files below [`Roots`] |
//! | [`device`] | [`DeviceInfo`] and its field types |
//! | [`skipped`] | [`Skipped`], an existing device missing from the list |
//! | `misc` | [`Misc`]: a file that belongs to no RDMA device, such as the connection manager's |
//!
//! ```text
//! netlink GET dump ──► GET_CHARDEV, for each ──► /dev/infiniband/uverbsN exists ──► list
//!        │ fails              │ fails or short             │ no
//!        ▼                    ▼                            ▼
//! class/infiniband_verbs   sysfs, for this one          skipped
//! ```
//!
//! Devices are listed in the kernel's order (ascending index), or, with sysfs alone, in the
//! directory's order, as `ibv_get_device_list(3)` does.
//!
//! `discover_at`, `Roots`, `Wire`, `NetlinkSocket`, `DeviceParts`, `DeviceInfo::from_parts` and
//! `DeviceInfo::parts` are for tests that play the kernel. They are public for the tests of other
//! crates and hidden from the documentation.
//!
//! Invariant: a name used in a path is one path component. Whatever netlink and sysfs return,
//! discovery does not panic, hang, or read a file outside the two [`Roots`].

mod device;
mod misc;
pub(crate) mod netlink;
mod nldev;
mod skipped;
mod sysfs;

use core::fmt;
use std::path::Path;

#[doc(hidden)]
pub use device::DeviceParts;
pub use device::{DevNum, DeviceInfo, NodeType, OwnDevice, TransportType};
#[doc(hidden)]
pub use misc::misc_at;
pub use misc::{Misc, misc};
pub use netlink::NetlinkError;
#[doc(hidden)]
pub use netlink::{NetlinkSocket, Wire};
pub use skipped::Skipped;
#[doc(hidden)]
pub use sysfs::Roots;
pub use sysfs::SOFT_ADDRESS;
pub use uverbs_abi::ib_user_ioctl_verbs::RdmaDriverId;

pub use crate::skip_reason::{MANY_DESCRIPTORS, SkipReason};

use netlink::Conversation;
use nldev::{NlChardev, NlDevice};
use sysfs::UverbsEntry;

use crate::errno::Errno;
use crate::error::{Cause, Error, Result};

/// The result of discovery.
///
/// Any code can assemble this struct, but the [`DeviceInfo`]s in it come from discovery, from a
/// provider that creates its own devices, or from unsafe code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The devices that could be opened, in rdma-core's order.
    pub devices: Vec<DeviceInfo>,
    /// The skipped devices, with reasons.
    pub skipped: Vec<Skipped>,
    /// The source of the list.
    pub source: Source,
    /// The reason why netlink did not list the devices; `None` if netlink listed them.
    pub netlink_error: Option<NetlinkError>,
}

/// The source of a device list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// Netlink only.
    Netlink,
    /// Netlink, with sysfs for the properties that netlink did not report.
    NetlinkAndSysfs,
    /// sysfs only.
    Sysfs,
    /// Neither, because this kernel has no RDMA or hides it.
    None,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Netlink => "netlink",
            Self::NetlinkAndSysfs => "netlink and sysfs",
            Self::Sysfs => "sysfs",
            Self::None => "none: this kernel has no RDMA loaded (modprobe ib_uverbs and the device's driver)",
        })
    }
}

/// Lists the RDMA devices.
///
/// If netlink reports everything, this makes four system calls plus four per device. A kernel
/// without RDMA yields an empty list whose [`Found::source`] is [`Source::None`], not an error.
///
/// # Errors
/// [`Cause::File`] with the errno and the path if sysfs was needed but could not be read; `ENOSYS`
/// for a uverbs ABI version other than 3 to 6; the error names the version.
///
/// # References
/// `ibv_get_device_list(3)`
#[doc(alias = "ibv_get_device_list")]
pub fn discover() -> Result<Found> {
    let roots = Roots::system();
    match NetlinkSocket::open() {
        Ok(mut socket) => search(&roots, Ok(&mut socket)),
        Err(errno) => search(&roots, Err(errno)),
    }
}

/// Returns whether the kernel copies registered pages for a forked child (Linux 5.12), or `None` if
/// RDMA netlink does not reply.
#[doc(alias = "ibv_is_fork_initialized")]
pub fn copies_on_fork() -> Option<bool> {
    let mut socket = NetlinkSocket::open().ok()?;
    nldev::copies_on_fork(&mut Conversation::new(&mut socket)).ok()
}

/// Lists devices like [`discover`], with the given netlink and files. Used by tests.
///
/// # Safety
/// Same as [`DeviceInfo::from_parts`], for each device that netlink and the files report.
///
/// # Errors
/// The errors of [`discover`].
#[doc(hidden)]
#[allow(unsafe_code)]
pub unsafe fn discover_at(roots: &Roots, netlink: Result<&mut dyn Wire, Errno>) -> Result<Found> {
    search(roots, netlink)
}

fn search(roots: &Roots, netlink: Result<&mut dyn Wire, Errno>) -> Result<Found> {
    let mut search =
        Search { roots, devices: Vec::new(), skipped: Vec::new(), class: None, used_sysfs: false };
    let error = match netlink {
        Ok(wire) => match search.by_netlink(wire) {
            Ok(()) => {
                let source = if search.used_sysfs { Source::NetlinkAndSysfs } else { Source::Netlink };
                return Ok(search.found(source, None));
            }
            Err(Failure::Netlink(error)) => error,
            Err(Failure::Sysfs(error)) => return Err(error),
        },
        Err(errno) => NetlinkError::NoSocket(errno),
    };
    let source = search.by_sysfs()?;
    Ok(search.found(source, Some(error)))
}

/// The state of a running discovery.
struct Search<'r> {
    roots: &'r Roots,
    devices: Vec<DeviceInfo>,
    skipped: Vec<Skipped>,
    /// The entries of the class directory, if already read.
    class: Option<Vec<UverbsEntry>>,
    used_sysfs: bool,
}

enum Failure {
    Netlink(NetlinkError),
    Sysfs(Error),
}

impl Search<'_> {
    fn found(self, source: Source, netlink_error: Option<NetlinkError>) -> Found {
        Found { devices: self.devices, skipped: self.skipped, source, netlink_error }
    }

    fn by_netlink(&mut self, wire: &mut dyn Wire) -> Result<(), Failure> {
        let mut conversation = Conversation::new(wire);
        let mut any_chardev = false;
        for device in nldev::devices(&mut conversation).map_err(Failure::Netlink)? {
            let chardev = match device.index {
                Some(index) => nldev::uverbs(&mut conversation, index),
                None => Err(NetlinkError::Malformed("a device has no index")),
            };
            any_chardev |= chardev.is_ok();
            self.one_of_netlink(device, chardev);
        }
        // A kernel with GET_CHARDEV has version 6, the latest.
        if !any_chardev && !self.devices.is_empty() {
            self.check_uverbs_abi().map_err(Failure::Sysfs)?;
        }
        Ok(())
    }

    /// Adds a device and its character device, as reported by netlink.
    fn one_of_netlink(&mut self, device: NlDevice, chardev: Result<NlChardev, NetlinkError>) {
        let raw_name = device.name;
        let Some(name) = path_component(&raw_name) else {
            return self.skip(&raw_name, SkipReason::BadName);
        };
        let ibdev_path = self.roots.ibdev(&name);
        let (reported, error) = match chardev {
            Ok(reported) => (reported, None),
            Err(error) => (NlChardev::default(), Some(error)),
        };
        let (dev_name, dev, abi_version) = match (reported.name, reported.dev, reported.abi_version) {
            (Some(raw), Some(dev), Some(abi_version)) => match path_component(&raw) {
                Some(dev_name) => (dev_name, dev, abi_version),
                None => return self.skip(&raw_name, SkipReason::BadName),
            },
            _ => match self.uverbs_of(&name, &ibdev_path, error) {
                Ok(uverbs) => uverbs,
                Err(reason) => return self.skip(&raw_name, reason),
            },
        };
        let node_type = device.node_type.unwrap_or_else(|| {
            self.used_sysfs = true;
            sysfs::node_type(&ibdev_path).unwrap_or(NodeType::UNKNOWN)
        });
        let node_guid = device.node_guid.unwrap_or_else(|| {
            self.used_sysfs = true;
            sysfs::node_guid(&ibdev_path).unwrap_or_default()
        });
        self.list(DeviceInfo {
            cdev_path: self.roots.dev.join(&dev_name),
            name,
            dev_name,
            dev: Some(dev),
            node_type,
            node_guid,
            index: device.index,
            driver_id: reported.driver_id,
            abi_version,
            phys_port_cnt: device.phys_port_cnt,
            ibdev_path,
            own: None,
        });
    }

    /// Reads the name, number and ABI version of a device's character device from sysfs.
    fn uverbs_of(
        &mut self,
        name: &str,
        ibdev_path: &Path,
        error: Option<NetlinkError>,
    ) -> Result<(String, DevNum, u32), SkipReason> {
        self.used_sysfs = true;
        let is_ours = |entry: &UverbsEntry| entry.ibdev.as_deref() == Ok(name.as_bytes());
        // Several RDMA devices can belong to one bus device, which then lists the character devices
        // of all of them.
        let near = sysfs::uverbs_in(&ibdev_path.join("device/infiniband_verbs")).unwrap_or_default();
        let entry = near.into_iter().find(is_ours).or_else(|| {
            // A device without a bus has no such directory.
            let class = self
                .class
                .get_or_insert_with(|| sysfs::uverbs_in(&self.roots.uverbs_class()).unwrap_or_default());
            class.iter().position(is_ours).map(|at| class.swap_remove(at))
        });
        let errno = match error {
            Some(NetlinkError::Refused(errno) | NetlinkError::Io(errno)) => Some(errno),
            _ => None,
        };
        uverbs_at(&entry.ok_or(SkipReason::NoChardev { errno })?)
    }

    fn by_sysfs(&mut self) -> Result<Source> {
        let class = self.roots.uverbs_class();
        let entries = match sysfs::uverbs_in(&class) {
            Ok(entries) => entries,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Source::None),
            Err(errno) => return Err(sysfs_error(&class, errno)),
        };
        for entry in entries {
            self.one_of_sysfs(&entry);
        }
        if !self.devices.is_empty() {
            self.check_uverbs_abi()?;
        }
        Ok(Source::Sysfs)
    }

    /// Adds the device described by a class directory entry.
    fn one_of_sysfs(&mut self, entry: &UverbsEntry) {
        let raw_name = match &entry.ibdev {
            Ok(raw_name) => raw_name,
            Err(errno) => {
                let path = entry.path.join("ibdev");
                return self.skip(&entry.dev_name, SkipReason::Unreadable { path, errno: *errno });
            }
        };
        let Some(name) = path_component(raw_name) else {
            return self.skip(raw_name, SkipReason::BadName);
        };
        let (dev_name, dev, abi_version) = match uverbs_at(entry) {
            Ok(uverbs) => uverbs,
            Err(reason) => return self.skip(raw_name, reason),
        };
        let ibdev_path = self.roots.ibdev(&name);
        self.list(DeviceInfo {
            cdev_path: self.roots.dev.join(&dev_name),
            name,
            dev_name,
            dev: Some(dev),
            node_type: sysfs::node_type(&ibdev_path).unwrap_or(NodeType::UNKNOWN),
            node_guid: sysfs::node_guid(&ibdev_path).unwrap_or_default(),
            index: None,
            driver_id: None,
            abi_version,
            phys_port_cnt: None,
            ibdev_path,
            own: None,
        });
    }

    /// Adds a device to the list if its file exists, and otherwise to the skipped devices.
    fn list(&mut self, device: DeviceInfo) {
        match nix::sys::stat::stat(&device.cdev_path) {
            Ok(_) => self.devices.push(device),
            Err(errno) => {
                let path = device.cdev_path;
                self.skip(device.name.as_bytes(), SkipReason::NodeMissing { path, errno: errno.into() });
            }
        }
    }

    fn skip(&mut self, name: &[u8], reason: SkipReason) {
        let name = String::from_utf8_lossy(name).escape_debug().to_string();
        self.skipped.push(Skipped { name, reason });
    }

    /// Checks the version of uverbs itself, which kernels without `GET_CHARDEV` report only in
    /// sysfs.
    fn check_uverbs_abi(&self) -> Result<()> {
        let path = self.roots.uverbs_class().join("abi_version");
        match sysfs::read_number(&path) {
            Some(UVERBS_ABI_MIN..=UVERBS_ABI_MAX) => Ok(()),
            Some(abi) => {
                let (min, max) = (UVERBS_ABI_MIN, UVERBS_ABI_MAX);
                let reason =
                    format!("the kernel's uverbs speaks ABI version {abi}, this library {min} to {max}");
                Err(Error::new(VERB, "", Errno::NOSYS).because(Cause::Other { reason: reason.into() }))
            }
            None => Err(sysfs_error(&path, Errno::NOSYS)),
        }
    }
}

/// Reads the name, number and ABI version of the character device described by a sysfs directory.
fn uverbs_at(entry: &UverbsEntry) -> Result<(String, DevNum, u32), SkipReason> {
    let dev_name = path_component(&entry.dev_name).ok_or(SkipReason::BadName)?;
    let path = entry.path.join("dev");
    let content = match sysfs::read(&path) {
        Ok(content) => content,
        Err(errno) => return Err(SkipReason::Unreadable { path, errno }),
    };
    let Some(dev) = str::from_utf8(&content).ok().and_then(DevNum::from_sysfs) else {
        return Err(SkipReason::Nonsense { path });
    };
    // A driver that reports no version has version 0.
    let abi_version = sysfs::read_number(&entry.path.join("abi_version")).unwrap_or(0);
    Ok((dev_name, dev, abi_version))
}

/// Returns `raw` as a name if it is one path component without control characters.
fn path_component(raw: &[u8]) -> Option<String> {
    let name = str::from_utf8(raw).ok()?;
    let usable = !matches!(name, "" | "." | "..")
        && name.len() <= NAME_MAX
        && !name.contains(|c: char| c == '/' || c.is_control());
    usable.then(|| name.to_owned())
}

fn sysfs_error(path: &Path, errno: Errno) -> Error {
    let path = path.display().to_string().into();
    let hint = match errno {
        Errno::MFILE => MANY_DESCRIPTORS,
        _ => "check that sysfs is mounted whole",
    };
    Error::new(VERB, "", errno).because(Cause::File { path, hint })
}

/// The verb's name in C, without the prefix `ibv_`.
const VERB: &str = "get_device_list";

/// The maximum length of a file name in bytes. The names of kernel RDMA devices have at most 63
/// bytes.
const NAME_MAX: usize = 255;

/// The range of uverbs ABI versions that rdma-core accepts. Kernels since 2.6.15 have version 6.
const UVERBS_ABI_MIN: u32 = 3;
const UVERBS_ABI_MAX: u32 = 6;

#[cfg(test)]
mod tests;
