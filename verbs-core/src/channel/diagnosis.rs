//! [`cause`]: the state of a device that stands behind an `EIO`, `ENOLINK` or `ENXIO`.
//!
//! The kernel returns `EIO` for a device that it has taken away, and for a command that a working
//! device has failed. Drivers return different errors for a device that they have given up: mlx5
//! `ENOLINK`, `ENXIO` or `EIO`, by its version and by the moment. Two queries tell these apart:
//!
//! | query of a GID | query of a port | cause |
//! |---|---|---|
//! | `EIO` | | [`Cause::DeviceGone`] |
//! | anything else | an error | [`Cause::DeviceFailed`] |
//! | anything else | success | [`Cause::CommandFailed`] of `EIO`, otherwise unknown |
//!
//! The kernel answers the query of a GID by itself, from its own table: it fails in this way only
//! when the context has lost its device. The query of a port is the driver's, and needs the device.
//! On kernels before 5.10, which have no query of a GID, a device that is gone counts as one that
//! has failed.
//!
//! The answer is for people. It proves nothing about the device's accesses to memory, and the
//! device may be another one a moment later.
//!
//! # References
//! Linux `drivers/infiniband/core/uverbs_main.c` (`ib_uverbs_get_ucontext_file`),
//! `uverbs_std_types_device.c`, `drivers/net/ethernet/mellanox/mlx5/core/cmd.c`

use super::Uverbs;
use crate::{Cause, Errno, cmd};

/// The port that every device has.
const PORT: u8 = 1;

/// Returns whether the state of the device may be the cause of an error.
pub(super) const fn concerns(errno: Errno) -> bool {
    matches!(errno, Errno::IO | Errno::NOLINK | Errno::NXIO)
}

/// Returns the cause of an error of this kind that the kernel has just returned.
pub(super) fn cause(uverbs: &Uverbs, errno: Errno) -> Cause {
    if matches!(cmd::gid::entry(uverbs, PORT, 0), Err(Errno::IO)) {
        return Cause::DeviceGone;
    }
    match cmd::device::port(uverbs, PORT) {
        Ok(_) if errno == Errno::IO => Cause::CommandFailed,
        Ok(_) => Cause::Unknown,
        Err(_) => Cause::DeviceFailed,
    }
}
