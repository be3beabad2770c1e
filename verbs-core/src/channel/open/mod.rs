//! Opening a device's file, with proof that the file belongs to that device.
//!
//! ```text
//!   /sys/dev/char/231:192/subsystem ─► .../infiniband_verbs   the number is a uverbs device's
//!                         ibdev     ─► rxe0                   and this device's
//!   stat, open, fstat                ─► character device 231:192
//! ```
//!
//! Replies from the file are trusted: they determine which queues are mapped and which descriptors
//! are owned. Other files, such as `/dev/null`, also accept commands. Therefore no file is opened
//! before sysfs has confirmed its number.
//!
//! A program in its own mount namespace can mount anything at `/sys`. Therefore the directory, the
//! device's entry and `ibdev` are each opened once, and trusted only where `fstatfs` reports sysfs.
//! The proof goes no further: a process that may mount other parts of sysfs over these files can
//! deceive itself, like a process that writes to `/proc/self/mem`.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::Mode;
use nix::sys::statfs::{FsType, SYSFS_MAGIC, fstatfs};

use super::node;
use crate::discovery::{DevNum, DeviceInfo};
use crate::errno::Errno;
use crate::error::{Cause, Error, Result};

/// The kernel's directory of character devices by number.
const SYS_DEV_CHAR: &str = "/sys/dev/char";

/// The class of uverbs devices.
const CLASS: &[u8] = b"infiniband_verbs";

/// The reason why a device cannot be opened.
#[derive(Debug, PartialEq, Eq)]
struct Obstacle {
    path: PathBuf,
    errno: Errno,
    hint: &'static str,
}

/// Opens the device's file by its usual name or, failing that, by its number.
///
/// # Errors
/// [`Cause::File`] with the path and a hint; [`Cause::KernelLacks`] for a provider's own device.
pub(super) fn open(device: &DeviceInfo) -> Result<OwnedFd> {
    with_proof("open_device", device, |dev| {
        let path = device.cdev_path();
        node::open(path, dev, OFlag::empty()).map_err(|errno| Obstacle {
            path: path.to_owned(),
            errno,
            hint: hint(errno),
        })
    })
}

/// Checks that an open file belongs to the device.
///
/// # Errors
/// The errors of [`open`]; `ENXIO` if the file is not the device's.
pub(super) fn import(device: &DeviceInfo, file: OwnedFd) -> Result<OwnedFd> {
    with_proof("import_device", device, |dev| {
        let file = File::from(file);
        node::check_number(&file.metadata(), dev).map_err(|errno| Obstacle {
            path: device.cdev_path().to_owned(),
            errno,
            hint: "the descriptor is of another file",
        })?;
        Ok(file.into())
    })
}

/// Returns the file that `find` returns for the device's number, once sysfs has confirmed the
/// number.
fn with_proof(
    verb: &'static str,
    device: &DeviceInfo,
    find: impl FnOnce(DevNum) -> Result<OwnedFd, Obstacle>,
) -> Result<OwnedFd> {
    let error = |errno| Error::new(verb, device.name(), errno);
    let Some(dev) = device.dev() else {
        // Such a device has no file; only its own provider can open it.
        return Err(error(Errno::NODEV)
            .because(Cause::KernelLacks { what: "file for a device that a provider brings" }));
    };
    vouch(Path::new(SYS_DEV_CHAR), SYSFS_MAGIC, dev, device.name()).and_then(|()| find(dev)).map_err(
        |Obstacle { path, errno, hint }| {
            error(errno).because(Cause::File { path: path.display().to_string().into(), hint })
        },
    )
}

/// Checks that sysfs lists the number as the uverbs device of the RDMA device `name`. Tests pass
/// another file system type as `sysfs`.
fn vouch(directory: &Path, sysfs: FsType, dev: DevNum, name: &str) -> Result<(), Obstacle> {
    const GONE: &str = "the device is gone";
    let obstacle = |path: &Path, errno, hint| Obstacle { path: path.to_owned(), errno, hint };
    let on_sysfs = |path: &Path, file: &OwnedFd| match fstatfs(file) {
        Ok(found) if found.filesystem_type() == sysfs => Ok(()),
        Ok(_) => Err(obstacle(path, Errno::NODEV, "not sysfs: mount sysfs at /sys")),
        Err(errno) => Err(obstacle(path, errno.into(), GONE)),
    };
    let place = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;

    let root = nix::fcntl::open(directory, place, Mode::empty()).map_err(|errno| {
        let hint = "sysfs proves that a file is an RDMA device: mount it at /sys";
        obstacle(directory, errno.into(), hint)
    })?;
    on_sysfs(directory, &root)?;

    let (number, path) = (dev.to_string(), directory.join(dev.to_string()));
    let subsystem = path.join("subsystem");
    let no_entry = |errno: nix::errno::Errno| match Errno::from(errno) {
        Errno::NOENT => obstacle(&subsystem, Errno::NODEV, GONE),
        errno => obstacle(&subsystem, errno, GONE),
    };
    let entry = openat(root.as_fd(), number.as_str(), place, Mode::empty()).map_err(no_entry)?;
    on_sysfs(&path, &entry)?;

    let class = readlinkat(entry.as_fd(), "subsystem").map_err(no_entry)?;
    if Path::new(&class).file_name().is_none_or(|class| class.as_bytes() != CLASS) {
        let hint = "the device number is not that of an RDMA device: list the devices again";
        return Err(obstacle(&subsystem, Errno::NXIO, hint));
    }

    let path = path.join("ibdev");
    let ibdev = openat(entry.as_fd(), "ibdev", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(|errno| obstacle(&path, errno.into(), GONE))?;
    on_sysfs(&path, &ibdev)?;
    let mut content = Vec::new();
    File::from(ibdev)
        .read_to_end(&mut content)
        .map_err(|error| obstacle(&path, Errno::from_io(&error), GONE))?;
    if content.strip_suffix(b"\n").unwrap_or(&content) != name.as_bytes() {
        let hint = "the device was renamed, or another took its place: list the devices again";
        return Err(obstacle(&path, Errno::NODEV, hint));
    }
    Ok(())
}

/// Returns advice for the operator after opening the device's file failed.
fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS => "no permission: run as root, or give the user read and write access to it",
        Errno::PERM => {
            "not permitted: let the container's device cgroup allow it (docker run --device), and use the network \
             namespace that has the RDMA device"
        }
        Errno::NOENT => "it is missing: load ib_uverbs, or pass the device into this container",
        Errno::NXIO => "it is another device: remove the stale node, and create it again",
        Errno::NODEV | Errno::IO => "the device is gone",
        Errno::MFILE => crate::discovery::MANY_DESCRIPTORS,
        _ => "it cannot be opened",
    }
}

#[cfg(test)]
mod tests;
