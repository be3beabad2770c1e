//! [`ForkStatus`]: whether forks are safe for registered memory.

/// Whether and how registered memory is protected from forks.
#[doc(alias = "ibv_fork_status")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkStatus {
    /// Forks are unsafe: neither the kernel nor this library protects registered memory.
    #[doc(alias = "IBV_FORK_DISABLED")]
    Disabled,
    /// Pages with registered memory are excluded from forks.
    #[doc(alias = "IBV_FORK_ENABLED")]
    Enabled,
    /// The kernel copies registered pages for the child (since Linux 5.12), so forks are safe.
    #[doc(alias = "IBV_FORK_UNNEEDED")]
    Unneeded,
}
