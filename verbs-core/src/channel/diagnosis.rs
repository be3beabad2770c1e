//! [`cause`]: the state of the device behind an `EIO`, `ENOLINK` or `ENXIO`.
//!
//! The kernel returns `EIO` both for a detached device and for a command that failed on a working
//! device. If a driver has given up on a device, its commands return various errors: for mlx5
//! `ENOLINK`, `ENXIO` or `EIO`, depending on its version and on timing. Two queries distinguish the
//! cases:
//!
//! | GID query | port query | cause |
//! |---|---|---|
//! | `EIO` | | [`Cause::DeviceGone`] |
//! | anything else | an error | [`Cause::DeviceFailed`] |
//! | anything else | success | [`Cause::CommandFailed`] for `EIO`, otherwise unknown |
//!
//! The kernel serves a GID query from its own table, so the query fails with `EIO` only if the
//! context has lost its device. A port query goes to the driver and needs the device. Kernels
//! before 5.10 cannot query a GID, so there a detached device is reported as failed.
//!
//! The result is meant for people. It proves nothing about whether the device accesses memory, and
//! the state may change a moment later.
//!
//! # References
//! Linux `drivers/infiniband/core/uverbs_main.c` (`ib_uverbs_get_ucontext_file`),
//! `uverbs_std_types_device.c`, `drivers/net/ethernet/mellanox/mlx5/core/cmd.c`

use super::{Uverbs, queries};
use crate::errno::Errno;
use crate::error::Cause;

/// A port that every device has.
const PORT: u8 = 1;

/// Returns whether the state of the device may be the cause of an error with this errno.
pub(super) const fn concerns(errno: Errno) -> bool {
    matches!(errno, Errno::IO | Errno::NOLINK | Errno::NXIO)
}

/// Returns the cause of an error just returned by the kernel.
pub(super) fn cause(uverbs: &Uverbs, errno: Errno) -> Cause {
    if matches!(queries::gid_entry(uverbs, PORT, 0), Err(Errno::IO)) {
        return Cause::DeviceGone;
    }
    match queries::port(uverbs, PORT) {
        Ok(_) if errno == Errno::IO => Cause::CommandFailed,
        Ok(_) => Cause::Unknown,
        Err(_) => Cause::DeviceFailed,
    }
}
