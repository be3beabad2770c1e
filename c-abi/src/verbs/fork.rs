//! Registered memory and `fork(2)`, as [`verbs_core::fork`] protects it.
//!
//! Kernels since Linux 5.12 copy registered pages for a child, so nothing needs protection. On
//! older kernels, after `ibv_fork_init(3)`, the pages of each region are excluded from forks as
//! long as a region covers them: memory registration holds an [`Excluded`] for each region.
//!
//! # Safety
//! The functions are exported under names reserved by this library's version script. They pass
//! addresses to `madvise(2)`, which affects only the memory of forked children.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};

use verbs_core::Errno;
use verbs_core::fork::{self, Excluded};
use verbs_core::types::{AccessFlags, ForkStatus};

use crate::abi::c::{IBV_FORK_DISABLED, IBV_FORK_ENABLED, IBV_FORK_UNNEEDED, ibv_fork_status};
use crate::abi::errno::{fail, refused};

/// Protects registered memory from forks on kernels that do not protect it. Returns 0; `EINVAL` if
/// memory was registered without protection before; `ENOSYS` if the kernel cannot exclude pages.
///
/// # References
/// `ibv_fork_init(3)`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    fork::init().map_or_else(Errno::raw, |()| 0)
}

/// Returns whether registered memory is protected from forks, or needs no protection.
///
/// # References
/// `ibv_is_fork_initialized(3)`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    match fork::status() {
        ForkStatus::Disabled => IBV_FORK_DISABLED,
        ForkStatus::Enabled => IBV_FORK_ENABLED,
        ForkStatus::Unneeded => IBV_FORK_UNNEEDED,
    }
}

/// Excludes the pages of `size` bytes at `base` from forks, if memory is protected. Returns 0, or
/// -1 with the errno from `madvise(2)`.
///
/// Ranges may overlap: a page is shared with children again only after [`ibv_dofork_range`] was
/// called for every range that covers it.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(base: *mut c_void, size: usize) -> c_int {
    match Excluded::new(base.cast(), size) {
        Ok(excluded) => {
            excluded.keep();
            0
        }
        Err(errno) => {
            fail(&refused("dontfork_range", errno, "the pages cannot be excluded from forks"));
            -1
        }
    }
}

/// Reverts [`ibv_dontfork_range`] for the same bytes, except for pages that another range covers.
/// Returns 0, even if a page stays excluded because it was unmapped.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(base: *mut c_void, size: usize) -> c_int {
    // A page that stays excluded only harms a child that accesses it.
    let _ = fork::release_range(base.cast(), size);
    0
}

/// Excludes the pages of a new region from forks, if memory is protected and registration pins it.
/// `pins_memory` is the result of the provider's
/// [`pins_memory`](verbs_core::provider::ContextOps::pins_memory).
///
/// # Errors
/// The errno from `madvise(2)`; in that case, no page is excluded.
pub(crate) fn exclude(
    pins_memory: bool,
    access: AccessFlags,
    addr: *mut u8,
    length: usize,
) -> Result<Excluded, Errno> {
    if !pins_memory || access.contains(AccessFlags::ON_DEMAND) {
        return Ok(Excluded::NONE);
    }
    Excluded::new(addr, length)
}
