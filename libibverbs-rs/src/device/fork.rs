//! [`fork_init`] and [`is_fork_initialized`]: protection of registered memory from `fork(2)`, which
//! [`verbs_core::fork`] implements.

use verbs_core::fork;
use verbs_core::types::ForkStatus;
use verbs_core::{Cause, Errno, Error, Result};

/// Protects registered memory from forks, unless the kernel already does.
///
/// Call it before the first region is registered. The environment variables `RDMAV_FORK_SAFE` and
/// `IBV_FORK_SAFE` do the same; `RDMAV_HUGEPAGES_SAFE` also protects memory in huge pages, whose
/// size is read from `/proc/self/smaps` for each region.
///
/// Whole pages are excluded from the child, which receives SIGSEGV if it touches one. The child may
/// therefore only call `exec(3)` or `_exit(2)`, and until then it must not need other data in these
/// pages. So do not register a slice on the stack [in place](crate::Pd::register) or [in a
/// scope](crate::Pd::scope). [`alloc_buf`](crate::Pd::alloc_buf) allocates whole pages. Memory of
/// soft devices and on-demand paged regions need no protection.
///
/// # Errors
/// `EINVAL` after memory was registered without protection; `ENOSYS` if the kernel cannot exclude
/// pages.
///
/// # References
/// `ibv_fork_init(3)`
#[doc(alias = "ibv_fork_init")]
pub fn fork_init() -> Result<()> {
    fork::init().map_err(|errno| {
        let error = Error::new("fork_init", "", errno);
        if errno != Errno::INVAL {
            return error;
        }
        let reason = "memory is registered already: call fork_init before the first registration";
        error.because(Cause::Other { reason: reason.into() })
    })
}

/// Returns whether registered memory is protected from forks.
///
/// # References
/// `ibv_is_fork_initialized(3)`
#[doc(alias = "ibv_is_fork_initialized")]
pub fn is_fork_initialized() -> ForkStatus {
    fork::status()
}
