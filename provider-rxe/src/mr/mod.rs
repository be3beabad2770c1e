//! The memory region: the kernel's region, and whether its deregistration can be trusted.
//!
//! ```text
//!           the kernel confirms, in time       tasks have ended
//!   Registered ─────────────────────► Deregistering ──────────────────► destroyed: memory is free
//!     │                                   ▲   │ unknown: `Err`, may be tried again
//!     │                                   └───┘
//!     └──────────────────────────────► Abandoned      `Err` for good: memory is never free
//!       it confirms, after it gave up waiting
//! ```
//!
//! # Safety
//! The caller of [`Mr::rereg`] must meet the requirements on the memory.
//!
//! # References
//! `ibv_dereg_mr(3)`; Linux `drivers/infiniband/sw/rxe/rxe_verbs.c` (`rxe_dereg_mr`), `rxe_pool.c`
//! (`__rxe_cleanup`)

#![allow(unsafe_code)]

mod paged;

use std::sync::Arc;
use std::time::{Duration, Instant};

use verbs_core::kernel::{Kernel, KernelMr};
use verbs_core::provider::{Destroy, MrChange, MrOps, RegionState, ReregError};
use verbs_core::types::AccessFlags;
use verbs_core::{Cause, Errno, Error};

use crate::rxe::Rxe;
use crate::settle::{PATIENCE, after_dereg};

pub(crate) use self::paged::Paged;

/// A memory region.
#[derive(Debug)]
pub struct Mr {
    context: Kernel,
    /// Whether the region has remote rights, so the responder of any queue pair in the domain may
    /// access it.
    is_exposed: bool,
    /// The set of live on-demand paged regions, if this region is one of them.
    paged: Option<Arc<Paged>>,
    state: MrState,
}

#[derive(Debug)]
enum MrState {
    Registered(KernelMr),
    Deregistering(RegionIds),
    Abandoned(RegionIds),
}

/// The handle and keys of a region that no longer exists in the kernel.
#[derive(Clone, Copy, Debug)]
struct RegionIds {
    handle: u32,
    lkey: u32,
    rkey: u32,
}

/// The clock and the wait for the kernel's tasks. A test replaces both.
trait World {
    fn now(&self) -> Duration;
    fn wait_for_tasks(&self) -> Result<(), Errno>;
}

impl Mr {
    pub(crate) fn new(context: &Kernel, paged: &Arc<Paged>, region: KernelMr, access: AccessFlags) -> Self {
        let is_exposed = access.intersects(REMOTE);
        let paged = access.contains(AccessFlags::ON_DEMAND).then(|| Arc::clone(paged));
        if let Some(paged) = &paged {
            paged.insert(region.lkey());
        }
        Self { context: context.clone(), is_exposed, paged, state: MrState::Registered(region) }
    }

    /// Changes the region in place as far as the kernel can: rxe changes the protection domain and
    /// the rights (since some release after Linux 6.4, at the latest 6.12) but not the memory.
    ///
    /// # Safety
    /// Same as [`ContextOps::rereg_mr`](verbs_core::provider::ContextOps::rereg_mr).
    ///
    /// # Errors
    /// Same as [`ContextOps::rereg_mr`](verbs_core::provider::ContextOps::rereg_mr).
    pub(crate) unsafe fn rereg(&mut self, change: &MrChange<'_, Rxe>) -> Result<(), ReregError> {
        let MrChange { memory, pd, access } = *change;
        let MrState::Registered(region) = &mut self.state else {
            let error = self.context.uverbs().error("rereg_mr", Errno::INVAL);
            return Err(ReregError { error, region: RegionState::Unusable });
        };
        // A peer's request that began under the old rights may still be in progress when the region
        // is destroyed, so the flag stays set.
        self.is_exposed |= access.is_some_and(|access| access.intersects(REMOTE));
        // SAFETY: the caller makes the same promise.
        unsafe { region.rereg(memory, pd, access) }.map_err(|error| {
            // `rxe_rereg_user_mr` rejects other memory and unknown rights before any change, but
            // changes the domain before it checks the rights.
            let in_part = pd.is_some() && access.is_some();
            let region = if in_part { RegionState::Unusable } else { RegionState::Unchanged };
            ReregError { error, region }
        })
    }

    fn ids(&self) -> RegionIds {
        match &self.state {
            MrState::Registered(region) => {
                RegionIds { handle: region.handle(), lkey: region.lkey(), rkey: region.rkey() }
            }
            MrState::Deregistering(ids) | MrState::Abandoned(ids) => *ids,
        }
    }

    #[allow(clippy::result_large_err)]
    fn destroy_in(self, world: &impl World) -> Result<(), (Self, Error)> {
        let ids = self.ids();
        let Self { context, is_exposed, paged, state } = self;
        let at = |state| Self { context: context.clone(), is_exposed, paged: paged.clone(), state };
        match state {
            MrState::Registered(region) => {
                if let Some(Err(lost)) = paged.as_deref().map(|paged| paged.remove(ids.lkey)) {
                    let error = context.uverbs().error("dereg_mr", lost.into());
                    return Err((at(MrState::Registered(region)), error));
                }
                let started = world.now();
                if let Err((region, error)) = region.destroy() {
                    if let Some(paged) = &paged {
                        paged.insert(ids.lkey);
                    }
                    return Err((at(MrState::Registered(region)), error));
                }
                if world.now().saturating_sub(started) >= PATIENCE {
                    return Err((at(MrState::Abandoned(ids)), abandoned(&context)));
                }
            }
            MrState::Deregistering(_) => {}
            MrState::Abandoned(_) => return Err((at(state), abandoned(&context))),
        }
        // Only peers can still write to the region: requests of this process no longer name it.
        if is_exposed && let Err(errno) = world.wait_for_tasks() {
            return Err((at(MrState::Deregistering(ids)), context.uverbs().error("dereg_mr", errno)));
        }
        Ok(())
    }
}

fn abandoned(context: &Kernel) -> Error {
    let by = "the kernel, which gave up waiting for its own references (see its log)";
    context.uverbs().error("dereg_mr", Errno::TIMEDOUT).because(Cause::InUse { by })
}

impl MrOps for Mr {
    fn handle(&self) -> u32 {
        self.ids().handle
    }

    fn lkey(&self) -> u32 {
        self.ids().lkey
    }

    fn rkey(&self) -> u32 {
        self.ids().rkey
    }
}

impl Destroy for Mr {
    fn destroy(self) -> Result<(), (Self, Error)> {
        self.destroy_in(&Real(Instant::now()))
    }
}

/// The running kernel, with the time at which its clock reads zero.
struct Real(Instant);

impl World for Real {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn wait_for_tasks(&self) -> Result<(), Errno> {
        after_dereg()
    }
}

/// The rights that let peers access a region, through its own key or a window's key.
const REMOTE: AccessFlags = AccessFlags::REMOTE_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::MW_BIND);

#[cfg(test)]
mod tests;
