//! The memory region: the kernel's region, and whether its deregistration can be trusted.
//!
//! ```text
//!           the kernel confirms, in time            tasks have ended
//!   Alive ──────────────────────────────► Ending ─────────────────────► destroyed: memory is free
//!     │                                    ▲   │ unknown: `Err`, may be tried again
//!     │                                    └───┘
//!     └───────────────────────────────► Forsaken      `Err` for good: memory is never free
//!       it confirms, after it gave up waiting
//! ```
//!
//! # Safety
//! The caller of [`Mr::rereg`] makes the promises about the memory.
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

use crate::Rxe;
use crate::settle::{PATIENCE, after_dereg};

pub(crate) use self::paged::Paged;

/// A memory region.
#[derive(Debug)]
pub struct Mr {
    context: Kernel,
    /// Whether the region has remote rights, so that the responder of any queue pair of the domain
    /// may access it.
    is_exposed: bool,
    /// The set of live on-demand paged regions, if this is one.
    paged: Option<Arc<Paged>>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Alive(KernelMr),
    Ending(Keys),
    Forsaken(Keys),
}

/// The numbers of a region the kernel no longer has.
#[derive(Clone, Copy, Debug)]
struct Keys {
    handle: u32,
    lkey: u32,
    rkey: u32,
}

/// The clock and the wait for the kernel's tasks; a test replaces both.
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
        Self { context: context.clone(), is_exposed, paged, stage: Stage::Alive(region) }
    }

    /// Changes the region in place as far as the kernel can: rxe changes the protection domain and
    /// the rights (later than Linux 6.4, and in 6.12), not the memory.
    ///
    /// # Safety
    /// Same as [`ContextOps::rereg_mr`](verbs_core::provider::ContextOps::rereg_mr).
    ///
    /// # Errors
    /// Same as [`ContextOps::rereg_mr`](verbs_core::provider::ContextOps::rereg_mr).
    pub(crate) unsafe fn rereg(&mut self, change: &MrChange<'_, Rxe>) -> Result<(), ReregError> {
        let MrChange { memory, pd, access } = *change;
        let Stage::Alive(region) = &mut self.stage else {
            let error = self.context.uverbs().error("rereg_mr", Errno::INVAL);
            return Err(ReregError { error, region: RegionState::Unusable });
        };
        // A peer's request that began under the old rights may still be in progress when the region
        // is destroyed, so the mark stays set.
        self.is_exposed |= access.is_some_and(|access| access.intersects(REMOTE));
        // SAFETY: the caller's promise is the same.
        unsafe { region.rereg(memory, pd, access) }.map_err(|error| {
            // `rxe_rereg_user_mr` rejects other memory and unknown rights before any change, but
            // changes the domain before it checks the rights.
            let in_part = pd.is_some() && access.is_some();
            let region = if in_part { RegionState::Unusable } else { RegionState::Unchanged };
            ReregError { error, region }
        })
    }

    fn keys(&self) -> Keys {
        match &self.stage {
            Stage::Alive(region) => {
                Keys { handle: region.handle(), lkey: region.lkey(), rkey: region.rkey() }
            }
            Stage::Ending(keys) | Stage::Forsaken(keys) => *keys,
        }
    }

    #[allow(clippy::result_large_err)]
    fn destroy_in(self, world: &impl World) -> Result<(), (Self, Error)> {
        let keys = self.keys();
        let Self { context, is_exposed, paged, stage } = self;
        let at = |stage| Self { context: context.clone(), is_exposed, paged: paged.clone(), stage };
        match stage {
            Stage::Alive(region) => {
                if let Some(Err(lost)) = paged.as_deref().map(|paged| paged.remove(keys.lkey)) {
                    let error = context.uverbs().error("dereg_mr", lost.into());
                    return Err((at(Stage::Alive(region)), error));
                }
                let started = world.now();
                if let Err((region, error)) = region.destroy() {
                    if let Some(paged) = &paged {
                        paged.insert(keys.lkey);
                    }
                    return Err((at(Stage::Alive(region)), error));
                }
                if world.now().saturating_sub(started) >= PATIENCE {
                    return Err((at(Stage::Forsaken(keys)), forsaken(&context)));
                }
            }
            Stage::Ending(_) => {}
            Stage::Forsaken(_) => return Err((at(stage), forsaken(&context))),
        }
        // Only peers can still write the region: requests of this process no longer name it.
        if is_exposed && let Err(errno) = world.wait_for_tasks() {
            return Err((at(Stage::Ending(keys)), context.uverbs().error("dereg_mr", errno)));
        }
        Ok(())
    }
}

fn forsaken(context: &Kernel) -> Error {
    let by = "the kernel, which gave up waiting for its own references (see its log)";
    context.uverbs().error("dereg_mr", Errno::TIMEDOUT).because(Cause::InUse { by })
}

impl MrOps for Mr {
    fn handle(&self) -> u32 {
        self.keys().handle
    }

    fn lkey(&self) -> u32 {
        self.keys().lkey
    }

    fn rkey(&self) -> u32 {
        self.keys().rkey
    }
}

impl Destroy for Mr {
    fn destroy(self) -> Result<(), (Self, Error)> {
        self.destroy_in(&Real(Instant::now()))
    }
}

/// The running kernel and the start of its clock.
struct Real(Instant);

impl World for Real {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn wait_for_tasks(&self) -> Result<(), Errno> {
        after_dereg()
    }
}

/// The rights that let peers access a region, by its own key or by a window's.
const REMOTE: AccessFlags = AccessFlags::REMOTE_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::MW_BIND);

#[cfg(test)]
mod tests;
