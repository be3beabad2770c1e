//! [`Owner`]: the process that listens under a name, as reported by the kernel.

use std::os::fd::AsFd;
use std::sync::OnceLock;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use verbs_core::Errno;

use super::sys::effective_user;

/// The process listening under a name, and that process's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The process ID; 0 stands for a process outside this process's PID namespace.
    pub(crate) pid: libc::pid_t,
    uid: u32,
}

impl Owner {
    /// Returns the owner of the name at the other end of a stream.
    ///
    /// # Errors
    /// Any errno of `getsockopt(2)`.
    pub(crate) fn from_stream(stream: &impl AsFd) -> Result<Self, Errno> {
        let owner = getsockopt(stream, PeerCredentials)?;
        Ok(Self { pid: owner.pid(), uid: owner.uid() })
    }

    /// Returns the owner's user ID.
    pub(crate) fn uid(self) -> u32 {
        self.uid
    }

    /// Returns whether the owner's user is root or this process's user. Either could also kill this
    /// process.
    pub(crate) fn is_trusted(self) -> bool {
        self.uid == 0 || self.is_own_user()
    }

    /// Returns whether the owner's user is this process's user.
    pub(crate) fn is_own_user(self) -> bool {
        let own = effective_user();
        self.uid == own && own != overflow_uid()
    }

    /// Returns whether both owners are certainly the same process.
    pub(crate) fn is_process_of(self, other: Self) -> bool {
        self.pid > 0 && self == other
    }

    /// Returns whether both owners belong to the same user.
    pub(crate) fn is_user_of(self, other: Self) -> bool {
        self.uid == other.uid && self.uid != overflow_uid()
    }
}

/// Returns the user ID that stands for every user not mapped into this user namespace.
///
/// # References
/// `proc_sys_kernel(5)` (`overflowuid`)
fn overflow_uid() -> u32 {
    static OVERFLOW_UID: OnceLock<u32> = OnceLock::new();
    *OVERFLOW_UID.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
        text.ok().and_then(|number| number.trim().parse().ok()).unwrap_or(DEFAULT_OVERFLOW_UID)
    })
}

/// The kernel's default for this user ID (`DEFAULT_OVERFLOWUID`), used if the ID cannot be read.
const DEFAULT_OVERFLOW_UID: u32 = 65534;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_own_user_are_trusted_and_nobody_is_not() {
        let own = effective_user();
        let owner = |pid, uid| Owner { pid, uid };
        assert!(owner(7, 0).is_trusted() && owner(0, own).is_trusted());
        assert!(!owner(7, own ^ 0x4000_0000).is_trusted() && !owner(7, overflow_uid()).is_trusted());
        assert!(
            owner(7, 5).is_user_of(owner(8, 5))
                && !owner(7, overflow_uid()).is_user_of(owner(7, overflow_uid()))
        );
        assert!(owner(7, 5).is_process_of(owner(7, 5)) && !owner(7, 5).is_process_of(owner(8, 5)));
        assert!(!owner(0, 5).is_process_of(owner(0, 5)), "of another PID namespace");
    }
}
