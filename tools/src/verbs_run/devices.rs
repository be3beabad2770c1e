//! [`lay`] and [`present`]: soft devices where programs look for RDMA devices.
//!
//! ```text
//!   /sys/class/infiniband/soft0          ─► /sys/devices/soft/soft0/infiniband/soft0
//!   /sys/class/infiniband_verbs/uverbs0  ─► /sys/devices/soft/soft0/infiniband_verbs/uverbs0
//!   /dev/infiniband/uverbs0                 /dev/null
//! ```
//!
//! The first two folders keep the kernel's devices. The library in the program recognises its
//! devices' files and updates their counters ([`provider_soft::sysfs`]).

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::Path;

use nix::sys::stat::{Mode, umask};
use provider_soft::SoftDevice;
use provider_soft::sysfs::{DevicePaths, Tree};
use verbs_core::discovery::{DeviceInfo, SOFT_ADDRESS, Skipped};

use super::layout::{self, Layout};
use super::namespace::Refusal;

/// A presented device. It also exists in this process until the program replaces the process.
#[derive(Debug)]
pub struct Presented {
    info: DeviceInfo,
    paths: DevicePaths,
}

impl fmt::Display for Presented {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, folder) = (self.info.name(), self.paths.ibdev_path.display());
        write!(f, "{name} is {folder} and {NODES}/{}", self.paths.dev_name)
    }
}

/// Creates the folders that present devices.
///
/// # Errors
/// Fails if a folder cannot be created; the error names it.
pub fn lay() -> Result<(), Refusal> {
    let _mask = Umask::set();
    let mut layout = Layout::default();
    // These belong to another `verbs-run`, which started this one.
    let (rdma, chardevs) = (presented_in(IBDEV_CLASS), presented_in(UVERBS_CLASS));
    let is_kernels = |name: &OsStr| !rdma.iter().chain(&chardevs).any(|presented| presented == name);
    for (path, keeps) in [
        (IBDEV_CLASS, &is_kernels as &dyn Fn(&OsStr) -> bool),
        (UVERBS_CLASS, &is_kernels),
        (DEVICES, &|_| false),
        (NODES, &is_kernels),
    ] {
        let made = layout.folder(Path::new(path), keeps);
        made.map_err(|error| Refusal::new(&format!("{path} cannot be made"), &error))?;
    }
    Ok(())
}

/// Writes the files of the devices that this value of `VERBS_SOFT` requests, and returns the
/// devices. Reports devices that cannot be created.
///
/// # Errors
/// Fails if a file cannot be written.
pub fn present(list: &OsStr, report: impl Fn(&Skipped)) -> Result<Vec<Presented>, Refusal> {
    let _mask = Umask::set();
    let failed = |error: io::Error| Refusal::new("the files of the soft devices cannot be written", &error);
    let mut tree = Tree::present(Path::new("/sys")).map_err(|errno| failed(errno.into()))?;
    let mut presented = Vec::new();
    for made in SoftDevice::of_request(&list.to_string_lossy()) {
        match made {
            Ok(info) => {
                let paths = tree.add(&info).map_err(|errno| failed(errno.into()))?;
                layout::device(&Path::new(NODES).join(&paths.dev_name)).map_err(failed)?;
                presented.push(Presented { info, paths });
            }
            Err(skipped) => report(&skipped),
        }
    }
    Ok(presented)
}

/// Returns the names of presented devices in a class.
fn presented_in(class: &str) -> Vec<OsString> {
    let entries = Path::new(class).read_dir().into_iter().flatten().flatten();
    let is_presented = |path: &Path| {
        let chardevs = path.join("device/infiniband_verbs").read_dir().into_iter().flatten().flatten();
        chardevs.into_iter().any(|chardev| chardev.path().join(SOFT_ADDRESS).exists())
    };
    entries.filter(|entry| is_presented(&entry.path())).map(|entry| entry.file_name()).collect()
}

/// A file mode mask that lets other users read new files. Dropping it restores the previous mask.
struct Umask(Mode);

impl Umask {
    fn set() -> Self {
        Self(umask(Mode::S_IWGRP | Mode::S_IWOTH))
    }
}

impl Drop for Umask {
    fn drop(&mut self) {
        umask(self.0);
    }
}

/// The folders of the device classes.
const IBDEV_CLASS: &str = "/sys/class/infiniband";
const UVERBS_CLASS: &str = "/sys/class/infiniband_verbs";

/// The folder of the devices.
const DEVICES: &str = "/sys/devices/soft";

/// The folder of the device files.
const NODES: &str = "/dev/infiniband";
