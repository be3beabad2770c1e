//! Memory regions: their keys, and the arguments for registering and changing them.

use core::any::Any;
use core::fmt::{self, Debug};

use super::Provider;
pub use crate::cmd::mr::Memory as MrMemory;
use crate::error::Error;
use crate::types::AccessFlags;

/// A memory region.
pub trait MrOps: Any + Debug + Send + Sync {
    /// Returns the kernel's handle for the region.
    fn handle(&self) -> u32;

    /// Returns the local key, for work requests of this process.
    fn lkey(&self) -> u32;

    /// Returns the remote key, for peers' work requests.
    fn rkey(&self) -> u32;
}

/// The attributes of a new memory region, for
/// [`ContextOps::reg_mr_ex`](super::ContextOps::reg_mr_ex).
#[derive(Debug)]
pub struct MrInitAttr<'a, P: Provider> {
    /// The memory to register: in this process, or in a dma-buf.
    pub memory: MrMemory<'a>,
    /// The length in bytes.
    pub length: usize,
    /// The address of the first byte, as used in work requests.
    pub iova: u64,
    /// The rights of the device and of peers.
    pub access: AccessFlags,
    /// A DMA handle with hints for the device's accesses.
    pub dmah: Option<&'a P::Dmah>,
}

impl<P: Provider> Clone for MrInitAttr<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Provider> Copy for MrInitAttr<'_, P> {}

/// A change to a memory region, for [`ContextOps::rereg_mr`](super::ContextOps::rereg_mr). `None`
/// leaves a property unchanged.
#[derive(Debug)]
pub struct MrChange<'a, P: Provider> {
    /// The new memory of this process: its address, its length in bytes, and the address of the
    /// first byte in work requests.
    pub memory: Option<(*mut u8, usize, u64)>,
    /// The new protection domain.
    pub pd: Option<&'a P::Pd>,
    /// The new rights.
    pub access: Option<AccessFlags>,
}

impl<P: Provider> Clone for MrChange<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Provider> Copy for MrChange<'_, P> {}

impl<P: Provider> Default for MrChange<'_, P> {
    fn default() -> Self {
        Self { memory: None, pd: None, access: None }
    }
}

/// The state of a memory region after a failed change.
///
/// | here | in C |
/// |---|---|
/// | `Unchanged` | `IBV_REREG_MR_ERR_INPUT`, `IBV_REREG_MR_ERR_DONT_FORK_NEW` |
/// | `Changed` | `IBV_REREG_MR_ERR_DO_FORK_OLD` |
/// | `Unusable` | `IBV_REREG_MR_ERR_CMD`, `IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW` |
///
/// # References
/// `ibv_rereg_mr(3)`
#[doc(alias = "ibv_rereg_mr_err_code")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionState {
    /// The region is unchanged.
    #[doc(alias = "IBV_REREG_MR_ERR_INPUT")]
    #[doc(alias = "IBV_REREG_MR_ERR_DONT_FORK_NEW")]
    Unchanged,
    /// The region has changed as requested. Only the old memory stays excluded from forks.
    #[doc(alias = "IBV_REREG_MR_ERR_DO_FORK_OLD")]
    Changed,
    /// The region may have changed in part or not at all. Only deregistration is permitted; until
    /// then the device may access the old and the new memory.
    #[doc(alias = "IBV_REREG_MR_ERR_CMD")]
    #[doc(alias = "IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW")]
    Unusable,
}

/// The error from changing a memory region, with the region's resulting state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReregError {
    /// The reason for the failure.
    pub error: Error,
    /// The resulting state of the region.
    pub region: RegionState,
}

impl ReregError {
    /// Returns the error of a change that left the region unchanged.
    pub const fn unchanged(error: Error) -> Self {
        Self { error, region: RegionState::Unchanged }
    }
}

impl fmt::Display for ReregError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; ", self.error)?;
        f.write_str(match self.region {
            RegionState::Unchanged => "the region is unchanged",
            RegionState::Changed => "the region has changed",
            RegionState::Unusable => "the region must be deregistered",
        })
    }
}

impl std::error::Error for ReregError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<ReregError> for Error {
    fn from(failed: ReregError) -> Self {
        failed.error
    }
}
