//! [`CmdFd`]: the descriptor shown as `ibv_context.cmd_fd`.
//!
//! Programs duplicate the descriptor before they query the device's capabilities. A device without
//! a file therefore shows its event file instead, as a stand-in.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};

use verbs_core::fork::ForkLock;
use verbs_core::provider::DeviceOps;
use verbs_core::{Errno, Error, room};

/// The descriptor shown as `ibv_context.cmd_fd`.
pub(crate) struct CmdFd {
    file: OwnedFd,
    /// The entry in [`STAND_INS`] if the device has no file.
    stands_for: Option<(u64, u64)>,
}

/// The device and inode numbers of the files shown as `cmd_fd` for devices without a file.
static STAND_INS: ForkLock<BTreeSet<(u64, u64)>> = ForkLock::new(BTreeSet::new());

impl CmdFd {
    /// Wraps a kernel device's file.
    pub(crate) const fn new(file: OwnedFd) -> Self {
        Self { file, stands_for: None }
    }

    /// Returns a descriptor that stands in for a device without a file.
    ///
    /// # Errors
    /// Any errno from opening the device's event file.
    pub(crate) fn stand_in(device: &dyn DeviceOps) -> Result<Self, Error> {
        let error = |errno| Error::new("open_device", device.device_name(), errno);
        let file = device.async_fd()?.try_clone_to_owned().map_err(|io| error(Errno::from_io(&io)))?;
        let identity = identity(file.as_fd()).map_err(error)?;
        room::check(room::CALL).map_err(error)?;
        STAND_INS.lock_or(BTreeSet::new).insert(identity);
        Ok(Self { file, stands_for: Some(identity) })
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl Drop for CmdFd {
    fn drop(&mut self) {
        if let Some(identity) = self.stands_for {
            STAND_INS.lock_or(BTreeSet::new).remove(&identity);
        }
    }
}

/// Returns the device and inode numbers of a file.
fn identity(file: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    let stat = nix::sys::stat::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Returns whether a file stands in for a device without a file.
pub(crate) fn is_stand_in(file: BorrowedFd<'_>) -> bool {
    let stand_ins = STAND_INS.lock_or(BTreeSet::new);
    identity(file).is_ok_and(|identity| stand_ins.contains(&identity))
}
