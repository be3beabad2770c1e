//! Shared receive queues made, armed, filled and destroyed.

use crate::engine::Engine;
use crate::engine::memory::Memory;
use crate::engine::queue::{MAX_SRQ_SGE, Srq};
use crate::engine::types::{CqId, Pd, PostRefused, RecvWr, Refused, SrqId, XrcDomain};

impl<M: Memory> Engine<M> {
    /// A shared receive queue, of at most 32 scatter elements for each receive.
    ///
    /// # Errors
    /// [`Refused::NoRoom`]; [`Refused::NoSuchObject`] for the protection domain;
    /// [`Refused::Invalid`] for more elements.
    pub fn create_srq(
        &mut self,
        pd: Pd,
        max_wr: u32,
        max_sge: u32,
        xrc_domain: Option<XrcDomain>,
    ) -> Result<SrqId, Refused> {
        if max_sge > MAX_SRQ_SGE {
            return Err(Refused::Invalid(
                "a shared receive queue has at most 32 scatter elements for each receive",
            ));
        }
        let srq = Srq::new(pd, max_wr, max_sge, xrc_domain)?;
        self.use_pd(pd)?;
        let objects = &mut self.objects;
        let inserted = objects.srqs.insert(srq, &mut *objects.random);
        inserted.map(SrqId).inspect_err(|_| self.leave_pd(pd))
    }

    /// Arms [`Event::SrqLimitReached`](crate::engine::Event::SrqLimitReached): it is raised once,
    /// when fewer than `limit` receives are left.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`]; [`Refused::Invalid`] for a limit above the queue's size.
    pub fn arm_srq(&mut self, srq: SrqId, limit: u32) -> Result<(), Refused> {
        self.objects.srqs.get_mut(srq.0).ok_or(Refused::NoSuchObject)?.arm(limit)
    }

    /// The limit that it is armed with; 0: it is not, or was reached.
    pub fn srq_limit(&self, srq: SrqId) -> Option<u32> {
        self.objects.srqs.get(srq.0).map(Srq::limit)
    }

    /// Where the receives of an XRC shared receive queue complete.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`].
    pub fn set_srq_cq(&mut self, srq: SrqId, cq: CqId) -> Result<(), Refused> {
        self.objects.srqs.get_mut(srq.0).ok_or(Refused::NoSuchObject)?.cq = Some(cq);
        Ok(())
    }

    /// Destroys a shared receive queue.
    ///
    /// # Errors
    /// [`Refused::Busy`] while a queue pair uses it.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), Refused> {
        let objects = &mut self.objects;
        let used = objects.srqs.get(srq.0).ok_or(Refused::NoSuchObject)?.users > 0;
        if used {
            return Err(Refused::Busy);
        }
        if let Some(srq) = objects.srqs.remove(srq.0) {
            self.leave_pd(srq.pd);
        }
        Ok(())
    }

    /// Posts a receive to a shared receive queue.
    ///
    /// # Errors
    /// Why it was refused; the queue is as before.
    pub fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), PostRefused> {
        self.objects.srqs.get_mut(srq.0).ok_or(PostRefused::NoSuchQueue)?.rq.post(wr)
    }

    /// How many receives a shared receive queue holds: those that no message has taken.
    pub fn srq_outstanding(&self, srq: SrqId) -> Option<u32> {
        self.objects.srqs.get(srq.0).map(|srq| srq.rq.len() as u32)
    }
}
