//! Opening and verifying the connection manager's file.
//!
//! ```text
//!   netlink, or sysfs  ─► rdma_cm is 10:125, ABI version 4
//!   stat, open, fstat  ─► character device 10:125
//! ```
//!
//! Another file under the usual name would accept commands and return nothing. Only a character
//! device with the kernel's device number is therefore opened.

use std::os::fd::OwnedFd;
use std::path::Path;

use nix::fcntl::OFlag;
use verbs::{Cause, Errno, Error, Result};
use verbs_core::channel::node;
use verbs_core::discovery::{Misc, misc};

/// The directory of the RDMA device files.
const DIRECTORY: &str = "/dev/infiniband";

/// The name of the verb in errors from opening the file.
const VERB: &str = "create_event_channel";

/// Opens the connection manager's device file in non-blocking mode and returns it with its ABI
/// version.
///
/// # Errors
/// [`Cause::File`], with the path and a hint, if the device is not found or its file cannot be
/// opened.
pub(super) fn open() -> Result<(OwnedFd, u32)> {
    let obstacle = |path: &Path, errno| {
        let cause = Cause::File { path: path.display().to_string().into(), hint: hint(errno) };
        Error::new(VERB, "", errno).because(cause)
    };
    let usual = Path::new(DIRECTORY).join("rdma_cm");
    let Misc { dev, name, abi_version } = misc("rdma_cm").map_err(|errno| obstacle(&usual, errno))?;
    let path = Path::new(DIRECTORY).join(name);
    match node::open(&path, dev, OFlag::O_NONBLOCK) {
        Ok(file) => Ok((file, abi_version)),
        Err(errno) => Err(obstacle(&path, errno)),
    }
}

/// Returns advice for the administrator about an errno from opening the file.
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
    use super::*;

    #[test]
    fn each_refusal_to_open_has_its_own_advice() {
        let hints = [Errno::ACCESS, Errno::PERM, Errno::NOENT, Errno::NXIO, Errno::MFILE].map(hint);
        assert!(hints[2].contains("rdma_ucm"), "{}", hints[2]);
        let distinct: std::collections::BTreeSet<_> = hints.into_iter().collect();
        assert_eq!(distinct.len(), hints.len());
    }
}
