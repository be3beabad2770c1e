//! [`Mr`]: a kernel memory region, or the null region, which has a key but no kernel object.
//!
//! # Safety
//! The functions that register memory pass on their callers' guarantees unchanged.
//!
//! # References
//! `ibv_rereg_mr(3)`, `ibv_alloc_null_mr(3)`; rdma-core `providers/mlx5/verbs.c`
//! (`mlx5_alloc_null_mr`); Linux `drivers/infiniband/hw/mlx5/mr.c` (`mlx5_ib_rereg_user_mr`)
#![allow(unsafe_code)]

use std::sync::Arc;

use verbs_core::fork::Lost;
use verbs_core::kernel::{KernelMr, KernelPd};
use verbs_core::provider::{Destroy, MrOps, RegionState, ReregError};
use verbs_core::ring::page_size;
use verbs_core::types::AccessFlags;
use verbs_core::{Cause, Errno, Error, Result};

use crate::device::Device;
use crate::device::regions::{RegionInfo, Regions};

/// A memory region.
#[derive(Debug)]
pub struct Mr(Kind);

#[derive(Debug)]
enum Kind {
    Kernel {
        region: KernelMr,
        regions: Arc<Regions>,
    },
    /// `info` is the entry of a region that another context registered; `None` if this context
    /// registered the region.
    Imported {
        region: KernelMr,
        regions: Arc<Regions>,
        info: Option<RegionInfo>,
    },
    Null {
        device: Arc<Device>,
        lkey: u32,
    },
}

/// A change to a region: memory, domain and rights.
pub(crate) type Change<'a> = (Option<(*mut u8, usize, u64)>, Option<&'a KernelPd>, Option<AccessFlags>);

impl Mr {
    /// Wraps a kernel region and adds its entry to the table of regions.
    pub(crate) fn new(device: &Device, region: KernelMr, info: RegionInfo) -> Self {
        let regions = Arc::clone(&device.regions);
        regions.add(region.lkey(), info);
        Self(Kind::Kernel { region, regions })
    }

    /// Wraps an imported region and adds its entry to the table of regions. This process cannot
    /// access the region's memory unless this context registered it.
    pub(crate) fn imported(device: &Device, region: KernelMr, info: RegionInfo) -> Self {
        let regions = Arc::clone(&device.regions);
        let info = regions.add_imported(region.lkey(), info);
        Self(Kind::Imported { region, regions, info })
    }

    /// Returns the null region. All null regions of a device share one key, which needs no
    /// protection domain and no command.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has no null region.
    pub(crate) fn null(device: &Arc<Device>) -> Result<Self> {
        let Some(lkey) = device.null_key else {
            let reason = "the device has no key of a null region".into();
            let error = device.error("alloc_null_mr", Errno::OPNOTSUPP);
            return Err(error.because(Cause::Other { reason }));
        };
        Ok(Self(Kind::Null { device: Arc::clone(device), lkey }))
    }

    /// Changes the region in place, or replaces it in the kernel with a new region that has new
    /// keys.
    ///
    /// # Safety
    /// Same as [`ContextOps::rereg_mr`](verbs_core::provider::ContextOps::rereg_mr).
    ///
    /// # Errors
    /// Same as [`ContextOps::rereg_mr`](verbs_core::provider::ContextOps::rereg_mr).
    pub(crate) unsafe fn rereg(&mut self, change: Change<'_>) -> Result<(), ReregError> {
        let (memory, pd, access) = change;
        match &mut self.0 {
            Kind::Kernel { region, regions } | Kind::Imported { region, regions, .. } => {
                let before = regions
                    .remove(region.lkey())
                    .map_err(|lost| ReregError::unchanged(Error::new("rereg_mr", "", lost.into())))?;
                // SAFETY: the caller makes the same promise.
                let changed = unsafe { region.rereg(memory, pd, access) }.map_err(|error| ReregError {
                    region: state_after(error.errno, change, page_size()),
                    error,
                });
                let after =
                    before.map(|before| if changed.is_ok() { before.changed(change) } else { before });
                // An unusable region cannot receive data, so it has no entry in the table.
                let is_usable =
                    !changed.as_ref().is_err_and(|error| matches!(error.region, RegionState::Unusable));
                if let Some(info) = after.filter(|_| is_usable) {
                    regions.add(region.lkey(), info);
                }
                changed
            }
            Kind::Null { device, .. } => {
                let reason = "the null region does not change".into();
                let error = device.error("rereg_mr", Errno::INVAL).because(Cause::Other { reason });
                Err(ReregError::unchanged(error))
            }
        }
    }
}

/// Returns the state of a region after the kernel has rejected a change.
///
/// The driver revokes a region before it changes the memory or replaces the region, and leaves it
/// revoked if a later step fails. Only these errors are certain to precede the revocation:
///
/// | errno | from |
/// |---|---|
/// | `EOPNOTSUPP` | the kernel's core, or the driver before its first step |
/// | `EFAULT` | pinning the new memory, before the revocation |
/// | `EINVAL` | the core, for a change it rejects; otherwise, any step |
fn state_after(errno: Errno, (memory, pd, access): Change<'_>, page: usize) -> RegionState {
    let no_change = memory.is_none() && pd.is_none() && access.is_none();
    let in_page = page as u64 - 1;
    let is_shifted = memory.is_some_and(|(addr, _, iova)| (addr.addr() as u64 ^ iova) & in_page != 0);
    let needs_local = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let is_without_local = access
        .is_some_and(|access| access.intersects(needs_local) && !access.contains(AccessFlags::LOCAL_WRITE));
    match errno {
        Errno::OPNOTSUPP | Errno::FAULT => RegionState::Unchanged,
        Errno::INVAL if no_change || is_shifted || is_without_local => RegionState::Unchanged,
        _ => RegionState::Unusable,
    }
}

impl RegionInfo {
    /// Returns a region's entry after a change.
    fn changed(self, (memory, pd, access): Change<'_>) -> Self {
        use verbs_core::provider::PdOps as _;
        let mut info = self;
        if let Some(access) = access {
            info.is_writable = access.contains(AccessFlags::LOCAL_WRITE);
        }
        if let Some((addr, length, iova)) = memory {
            (info.addr, info.length) = (Some(addr.expose_provenance()), length as u64);
            let is_zero_based = access.is_some_and(|access| access.contains(AccessFlags::ZERO_BASED));
            info.iova = if is_zero_based { 0 } else { iova };
        }
        if let Some(pd) = pd {
            info.pd = pd.handle();
        }
        info
    }
}

impl MrOps for Mr {
    /// Returns the kernel's handle; for the null region, a handle that no region has.
    fn handle(&self) -> u32 {
        match &self.0 {
            Kind::Kernel { region, .. } | Kind::Imported { region, .. } => region.handle(),
            Kind::Null { .. } => u32::MAX,
        }
    }

    fn lkey(&self) -> u32 {
        match &self.0 {
            Kind::Kernel { region, .. } | Kind::Imported { region, .. } => region.lkey(),
            Kind::Null { lkey, .. } => *lkey,
        }
    }

    /// Returns the remote key, or 0 for the null region; no region has the key 0.
    fn rkey(&self) -> u32 {
        match &self.0 {
            Kind::Kernel { region, .. } | Kind::Imported { region, .. } => region.rkey(),
            Kind::Null { .. } => 0,
        }
    }
}

fn of_parent(lost: Lost) -> Error {
    Error::new("dereg_mr", "", lost.into())
}

impl Destroy for Mr {
    fn destroy(self) -> Result<(), (Self, Error)> {
        match self.0 {
            Kind::Kernel { region, regions } => {
                let info = match regions.remove(region.lkey()) {
                    Ok(info) => info,
                    Err(lost) => return Err((Self(Kind::Kernel { region, regions }), of_parent(lost))),
                };
                region.destroy().map_err(|(region, error)| {
                    if let Some(info) = info {
                        regions.add(region.lkey(), info);
                    }
                    (Self(Kind::Kernel { region, regions }), error)
                })
            }
            Kind::Imported { region, regions, info } => {
                if let Some(info) = info
                    && let Err(lost) = regions.remove_imported(region.lkey(), info)
                {
                    return Err((
                        Self(Kind::Imported { region, regions, info: Some(info) }),
                        of_parent(lost),
                    ));
                }
                let again = |(region, error)| (Self(Kind::Imported { region, regions, info }), error);
                region.destroy().map_err(again)
            }
            Kind::Null { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::ptr;

    use super::*;
    use crate::device::tests::{NULL_KEY, device};

    #[test]
    fn the_null_region_is_a_key_without_a_command() {
        let (device, _script) = device();
        let mut mr = Mr::null(&device).unwrap();
        assert_eq!((mr.handle(), mr.lkey(), mr.rkey()), (u32::MAX, NULL_KEY, 0));
        // SAFETY: no memory is registered.
        let failed = unsafe { mr.rereg((None, None, Some(AccessFlags::LOCAL_WRITE))) }.unwrap_err();
        assert_eq!((failed.error.errno, failed.region), (Errno::INVAL, RegionState::Unchanged));
        mr.destroy().map_err(|(_, error)| error).unwrap();
    }

    #[test]
    fn a_region_is_unchanged_only_after_errors_before_the_first_step() {
        let (unchanged, unusable) = (RegionState::Unchanged, RegionState::Unusable);
        let rights = Some(AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE);
        let memory_at = |iova| Some((ptr::without_provenance_mut(0x8010), 64, iova));
        let memory = memory_at(0x10);
        for (errno, change, state) in [
            (Errno::OPNOTSUPP, (memory, None, rights), unchanged),
            (Errno::FAULT, (memory, None, None), unchanged),
            (Errno::NOMEM, (memory, None, None), unusable),
            (Errno::INVAL, (memory, None, rights), unusable),
            (Errno::INVAL, (None, None, None), unchanged),
            (Errno::INVAL, (None, None, Some(AccessFlags::REMOTE_WRITE)), unchanged),
            (Errno::INVAL, (None, None, rights), unusable),
            (Errno::INVAL, (memory_at(0), None, None), unchanged),
            (Errno::IO, (None, None, rights), unusable),
        ] {
            for page in [4096, 16384] {
                let state_after = state_after(errno, change, page);
                assert_eq!(state_after, state, "{errno:?} after {change:?}, pages of {page}");
            }
        }
        // The same offset in a page of 4 KiB and a different one in a page of 16 KiB.
        for (page, state) in [(4096, unusable), (16384, unchanged)] {
            let change = (memory_at(0x1010), None, None);
            assert_eq!(state_after(Errno::INVAL, change, page), state, "pages of {page}");
        }
    }
}
