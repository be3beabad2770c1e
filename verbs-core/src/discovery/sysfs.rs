//! Device properties from sysfs, for kernels without netlink or with incomplete netlink replies.
//!
//! ```text
//! <sysfs>/class/infiniband_verbs/abi_version          6
//!                                uverbs0/ibdev        rxe0
//!                                        dev          231:192
//!                                        abi_version  1
//! <sysfs>/class/infiniband/rxe0/node_type             1: CA
//!                               node_guid             5054:00ff:fe12:3456
//!                               device/infiniband_verbs/uverbs0    if the device is on a bus
//! ```

use std::fs;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::NodeType;
use crate::environment;
use crate::errno::Errno;
use crate::types::Guid;

/// The directories that discovery reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// The mount point of sysfs (`/sys`).
    pub sysfs: PathBuf,
    /// The directory of the character devices.
    pub dev: PathBuf,
}

impl Roots {
    /// Returns `/dev/infiniband` and either `/sys` or the value of `SYSFS_PATH` in the environment.
    ///
    /// The variable is ignored in a program with more rights than its caller
    /// ([`environment`](crate::environment)).
    #[doc(alias = "ibv_get_sysfs_path")]
    pub fn system() -> Self {
        let sysfs = environment::variable_os("SYSFS_PATH").filter(|path| !path.is_empty());
        Self { sysfs: sysfs.map_or_else(|| "/sys".into(), PathBuf::from), dev: "/dev/infiniband".into() }
    }

    /// Returns the sysfs directory of an RDMA device.
    pub(super) fn ibdev(&self, name: &str) -> PathBuf {
        self.sysfs.join("class/infiniband").join(name)
    }

    /// Returns the sysfs directory of uverbs devices.
    pub(super) fn uverbs_class(&self) -> PathBuf {
        self.sysfs.join("class/infiniband_verbs")
    }
}

/// The name of a file that contains the address of a soft device. `verbs-run` presents it to the
/// process in the directory of a uverbs device; no kernel has such a file.
pub const SOFT_ADDRESS: &str = "soft_address";

/// An entry of a directory of uverbs devices.
pub(super) struct UverbsEntry {
    /// The file name, unchecked.
    pub(super) dev_name: Vec<u8>,
    /// The path of the device's directory.
    pub(super) path: PathBuf,
    /// The name of the RDMA device, unchecked.
    pub(super) ibdev: Result<Vec<u8>, Errno>,
}

/// Returns the kernel's uverbs devices in a directory, in the directory's order, which rdma-core
/// also uses.
///
/// # Errors
/// The errno from `opendir(3)`; notably `ENOENT` if the kernel has no RDMA.
pub(super) fn uverbs_in(directory: &Path) -> Result<Vec<UverbsEntry>, Errno> {
    let entries = fs::read_dir(directory).map_err(|error| Errno::from_io(&error))?;
    Ok(entries
        .map_while(Result::ok)
        .filter(|entry| !entry.file_name().as_bytes().starts_with(b"."))
        .map(|entry| {
            let path = entry.path();
            UverbsEntry { dev_name: entry.file_name().into_vec(), ibdev: read(&path.join("ibdev")), path }
        })
        // The class also has plain files, such as abi_version.
        .filter(|entry| entry.ibdev != Err(Errno::NOTDIR))
        // The provider of soft devices lists its own devices.
        .filter(|entry| !entry.path.join(SOFT_ADDRESS).exists())
        .collect())
}

/// Returns the first 4 KiB of a sysfs file without the newline.
///
/// # Errors
/// The errno from `open(2)` or `read(2)`.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Errno> {
    // A sysfs file is shorter than a page and arrives in one read. O_NONBLOCK avoids waiting if a
    // pipe is in its place.
    let open = || fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let mut content = vec![0; 4096];
    let len = open().and_then(|mut file| file.read(&mut content)).map_err(|error| Errno::from_io(&error))?;
    content.truncate(len);
    if content.last() == Some(&b'\n') {
        content.pop();
    }
    Ok(content)
}

/// Reads a number from a file; `None` if the file cannot be read or holds no number.
pub(super) fn read_number(path: &Path) -> Option<u32> {
    parse_number(str::from_utf8(&read(path).ok()?).ok()?)
}

/// Parses a decimal number without a sign or blanks.
pub(super) fn parse_number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Returns an RDMA device's node type, such as `1: CA` in sysfs.
pub(super) fn node_type(ibdev: &Path) -> Option<NodeType> {
    let content = read(&ibdev.join("node_type")).ok()?;
    let (number, _) = str::from_utf8(&content).ok()?.split_once(':')?;
    parse_number(number).map(NodeType)
}

/// Returns an RDMA device's node GUID, such as `5054:00ff:fe12:3456` in sysfs.
pub(super) fn node_guid(ibdev: &Path) -> Option<Guid> {
    let content = read(&ibdev.join("node_guid")).ok()?;
    let mut groups = str::from_utf8(&content).ok()?.split(':');
    let mut guid = 0;
    for _ in 0..4 {
        let group = groups.next().filter(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        guid = guid << 16 | u64::from(u16::from_str_radix(group, 16).ok()?);
    }
    groups.next().is_none().then_some(Guid(guid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_digits_only() {
        assert_eq!(parse_number("4294967295"), Some(u32::MAX));
        for text in ["", " 1", "1 ", "+1", "-1", "0x1", "4294967296", "１"] {
            assert_eq!(parse_number(text), None, "{text:?}");
        }
    }
}
