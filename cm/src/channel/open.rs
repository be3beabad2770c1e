//! Opening and verifying the connection manager's file.
//!
//! ```text
//!   netlink, or sysfs  ─► rdma_cm is 10:125, ABI version 4
//!   stat, open, fstat  ─► character device 10:125
//! ```
//!
//! Another file under the usual name would accept commands and return nothing. Only a character
//! device with the kernel's number is therefore opened.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use verbs::{Cause, DevNum, Errno, Error, Result};
use verbs_core::discovery::{Misc, misc};

/// The directory of the RDMA device files.
const DIRECTORY: &str = "/dev/infiniband";

/// The call that opens the file.
const VERB: &str = "create_event_channel";

/// Opens the connection manager's file in non-blocking mode and returns it with its ABI version.
///
/// # Errors
/// [`Cause::File`] with the path and a hint.
pub(super) fn open() -> Result<(OwnedFd, u32)> {
    let obstacle = |path: &Path, errno| {
        let cause = Cause::File { path: path.display().to_string().into(), hint: hint(errno) };
        Error::new(VERB, "", errno).because(cause)
    };
    let usual = Path::new(DIRECTORY).join("rdma_cm");
    let Misc { dev, name, abi_version } = misc("rdma_cm").map_err(|errno| obstacle(&usual, errno))?;
    let path = Path::new(DIRECTORY).join(name);
    match open_node(&path, Path::new("/dev/char"), dev) {
        Ok(file) => Ok((file, abi_version)),
        Err((path, errno)) => Err(obstacle(&path, errno)),
    }
}

/// Opens the node at `usual`, or else the node in `by_number` for the device number.
fn open_node(usual: &Path, by_number: &Path, dev: DevNum) -> Result<OwnedFd, (PathBuf, Errno)> {
    let errno = match open_checked(usual, dev) {
        Ok(file) => return Ok(file),
        Err(errno) => errno,
    };
    // The node may be missing or stale.
    if matches!(errno, Errno::NOENT | Errno::NXIO)
        && let Ok(file) = open_checked(&by_number.join(dev.to_string()), dev)
    {
        return Ok(file);
    }
    Err((usual.to_owned(), errno))
}

/// Opens a file after checking that it is the character device with this number.
///
/// # Errors
/// Any errno of `stat(2)` or `open(2)`; `ENXIO` for any other file, which is not opened.
fn open_checked(path: &Path, dev: DevNum) -> Result<OwnedFd, Errno> {
    // Checked before because opening has side effects, and again after because the file may have
    // changed.
    check_number(&fs::metadata(path), dev)?;
    let file: File = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)
        .map_err(|error| Errno::from_io(&error))?;
    check_number(&file.metadata(), dev)?;
    Ok(file.into())
}

/// Checks that a file is the character device with this number.
fn check_number(metadata: &io::Result<Metadata>, dev: DevNum) -> Result<(), Errno> {
    match metadata {
        Ok(file) if file.file_type().is_char_device() && DevNum::from_rdev(file.rdev()) == dev => Ok(()),
        Ok(_) => Err(Errno::NXIO),
        Err(error) => Err(Errno::from_io(error)),
    }
}

/// Returns advice for the administrator.
const fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS => "no permission: run as root, or give the user read and write access to it",
        Errno::PERM => "not permitted: let the container's device cgroup allow it (docker run --device)",
        Errno::NOENT => {
            "it is missing: load rdma_ucm, pass the file into this container, or use a soft device (VERBS_SOFT=auto)"
        }
        Errno::NXIO => "it is another device: remove the stale node, and create it again",
        Errno::MFILE => verbs_core::discovery::MANY_DESCRIPTORS,
        _ => "it cannot be opened",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const NULL: DevNum = DevNum { major: 1, minor: 3 };
    const OTHER: DevNum = DevNum { major: 10, minor: 125 };

    /// A temporary directory, removed on drop.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("rdmacm-open-{}-{name}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_a_character_device_with_the_number_is_opened() {
        let directory = Directory::new("only");
        let plain = directory.0.join("plain");
        fs::write(&plain, "").unwrap();
        for path in [Path::new("/dev/null"), &plain, &directory.0] {
            assert_eq!(open_checked(path, OTHER).unwrap_err(), Errno::NXIO, "{}", path.display());
        }
        assert_eq!(open_checked(&directory.0.join("none"), OTHER).unwrap_err(), Errno::NOENT);
        open_checked(Path::new("/dev/null"), NULL).unwrap();
    }

    #[test]
    fn a_missing_or_stale_node_is_found_by_its_number() {
        let directory = Directory::new("stale");
        let missing = directory.0.join("rdma_cm");
        assert_eq!(open_node(&missing, &directory.0, NULL).unwrap_err(), (missing.clone(), Errno::NOENT));
        symlink("/dev/null", directory.0.join(NULL.to_string())).unwrap();
        open_node(&missing, &directory.0, NULL).unwrap();
        open_node(Path::new("/dev/zero"), &directory.0, NULL).unwrap();
    }

    #[test]
    fn each_refusal_to_open_has_its_own_advice() {
        let hints = [Errno::ACCESS, Errno::PERM, Errno::NOENT, Errno::NXIO, Errno::MFILE].map(hint);
        assert!(hints[2].contains("rdma_ucm"), "{}", hints[2]);
        let distinct: std::collections::BTreeSet<_> = hints.into_iter().collect();
        assert_eq!(distinct.len(), hints.len());
    }
}
