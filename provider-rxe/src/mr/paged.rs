//! The on-demand paged regions of a context. The kernel may receive advice only about these
//! regions.
//!
//! `rxe_ib_advise_mr` treats every element's region as on-demand paged (seen on 7.2). If the region
//! is pinned, the kernel reads pointers beyond the end of a smaller structure and crashes.
//! Therefore an element's key reaches the kernel only while this set contains it. A key leaves the
//! set before the region is deregistered.
//!
//! # References
//! `ibv_advise_mr(3)`; Linux `drivers/infiniband/sw/rxe/rxe_odp.c` (`rxe_ib_prefetch_sg_list`),
//! `rxe_mr.c` (`lookup_mr`)

use std::collections::BTreeSet;

use verbs_core::fork::{ForkRwLock, Lost};
use verbs_core::kernel::KernelPd;
use verbs_core::types::{Advice, AdviseFlags, Sge};
use verbs_core::{Cause, Errno, Error};

/// The local keys of a context's on-demand paged regions.
#[derive(Debug, Default)]
pub(crate) struct Paged(ForkRwLock<BTreeSet<u32>>);

impl Paged {
    /// Adds a region. In a forked child whose parent was changing the set, the region is not added,
    /// so the kernel never gets advice about it.
    pub(super) fn insert(&self, lkey: u32) {
        if let Ok(mut paged) = self.0.write() {
            paged.insert(lkey);
        }
    }

    /// Removes a region, once no call passes advice about it to the kernel.
    ///
    /// # Errors
    /// [`Lost`] in a forked child whose parent was changing the set.
    pub(super) fn remove(&self, lkey: u32) -> Result<(), Lost> {
        self.0.write()?.remove(&lkey);
        Ok(())
    }

    /// Passes advice to the kernel. Elements whose region is not in this set reach the kernel
    /// without a key; the kernel returns its errno for them.
    ///
    /// # Errors
    /// `EINVAL` if an element's region is not an on-demand paged region of this context; `ENODEV`
    /// in a forked child whose parent was changing the set; otherwise the errors of
    /// [`KernelPd::advise_mr`].
    pub(crate) fn advise(
        &self,
        pd: &KernelPd,
        advice: Advice,
        flags: AdviseFlags,
        sges: &[Sge],
    ) -> Result<(), Error> {
        // Held during the call: otherwise the region could be deregistered meanwhile and a pinned
        // region could reuse its key.
        let paged = self.0.read().map_err(|lost| Error::new("advise_mr", "", lost.into()))?;
        let is_paged = |sge: &Sge| paged.contains(&sge.lkey);
        let Some(first) = sges.iter().find(|sge| !is_paged(sge)) else {
            return pd.advise_mr(advice, flags, sges);
        };
        // No region has index 0 (`RXE_MIN_MR_INDEX`), so none has this key.
        let masked: Vec<Sge> =
            sges.iter().map(|sge| if is_paged(sge) { *sge } else { Sge { lkey: 0, ..*sge } }).collect();
        pd.advise_mr(advice, flags, &masked).map_err(|error| {
            if error.errno != Errno::INVAL {
                return error;
            }
            let reason = format!("the key {:#x} names no on-demand paged region of this context", first.lkey);
            error.because(Cause::Other { reason: reason.into() })
        })
    }
}
