//! Creates, arms, fills and destroys shared receive queues.

use crate::engine::Engine;
use crate::engine::memory::Memory;
use crate::engine::queue::{MAX_SRQ_SGE, Srq};
use crate::engine::types::{CqId, Pd, PostRefused, Qpn, RecvWr, Refused, SrqId, XrcDomain};

impl<M: Memory> Engine<M> {
    /// Same as [`qpn_modulus`](Self::qpn_modulus), for shared receive queues.
    pub fn srqn_modulus(&self) -> usize {
        self.objects.srqs.modulus()
    }

    /// Creates a shared receive queue for `max_wr` receives with up to `max_sge` scatter elements
    /// each, at most 32.
    ///
    /// # Errors
    /// [`Refused::NoMemory`] if an allocation fails; [`Refused::NoRoom`] if
    /// [`Config::max_srq`](crate::engine::Config::max_srq) queues exist already;
    /// [`Refused::NoSuchObject`] for an unknown protection domain; [`Refused::Invalid`] for more
    /// than 32 elements.
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

    /// Returns the XRC domain of an XRC target.
    pub fn xrc_domain_of(&self, qpn: Qpn) -> Option<XrcDomain> {
        self.objects.qps.get(qpn.0)?.xrc_domain
    }

    /// Arms [`Event::SrqLimitReached`](crate::engine::Event::SrqLimitReached). The event is raised
    /// once, when fewer than `limit` receives remain.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`] if the queue does not exist; [`Refused::Invalid`] if the limit
    /// exceeds the size of the queue.
    pub fn arm_srq(&mut self, srq: SrqId, limit: u32) -> Result<(), Refused> {
        self.objects.srqs.get_mut(srq.0).ok_or(Refused::NoSuchObject)?.arm(limit)
    }

    /// Returns the limit for which a shared receive queue is armed; 0 if it is not armed or has
    /// reached its limit.
    pub fn srq_limit(&self, srq: SrqId) -> Option<u32> {
        self.objects.srqs.get(srq.0).map(Srq::limit)
    }

    /// Sets the completion queue for the receives of an XRC shared receive queue.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`] if the queue does not exist.
    pub fn set_srq_cq(&mut self, srq: SrqId, cq: CqId) -> Result<(), Refused> {
        self.objects.srqs.get_mut(srq.0).ok_or(Refused::NoSuchObject)?.cq = Some(cq);
        Ok(())
    }

    /// Makes the sink choose the memory for each send that arrives at a shared receive queue.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`] if the queue does not exist.
    pub fn set_srq_matching(&mut self, srq: SrqId) -> Result<(), Refused> {
        self.objects.srqs.get_mut(srq.0).ok_or(Refused::NoSuchObject)?.matching = true;
        Ok(())
    }

    /// Changes the size of a shared receive queue. Its receives keep their order.
    ///
    /// # Errors
    /// [`Refused::Invalid`] if the size is below the queue's limit or the number of its receives;
    /// [`Refused::NoMemory`] if an allocation fails; [`Refused::NoSuchObject`] if the queue does
    /// not exist. After an error, the queue is unchanged.
    pub fn resize_srq(&mut self, srq: SrqId, max_wr: u32) -> Result<(), Refused> {
        self.objects.srqs.get_mut(srq.0).ok_or(Refused::NoSuchObject)?.resize(max_wr)
    }

    /// Destroys a shared receive queue. Receives that XRC targets have taken from it end without a
    /// completion, and their messages are rejected. None of its receives is written or completes
    /// afterwards.
    ///
    /// # Errors
    /// [`Refused::Busy`] while a queue pair uses the queue; [`Refused::NoSuchObject`] if it does
    /// not exist.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), Refused> {
        let objects = &mut self.objects;
        let its = objects.srqs.get(srq.0).ok_or(Refused::NoSuchObject)?;
        if its.users > 0 {
            return Err(Refused::Busy);
        }
        // XRC requests name their shared receive queue, so XRC targets do not count as users.
        let (mut left, mut position) = (its.taken, 0);
        while left > 0
            && let Some(number) = objects.qps.number_at(position)
        {
            if let Some(qp) = objects.qps.get_mut(number).filter(|qp| qp.resp.current.is_from(srq)) {
                // The next packet of the message is rejected, because its receive is gone.
                qp.resp.current.release(&mut objects.srqs);
                left -= 1;
            }
            position += 1;
        }
        if let Some(srq) = objects.srqs.remove(srq.0) {
            self.leave_pd(srq.pd);
        }
        Ok(())
    }

    /// Posts a receive to a shared receive queue.
    ///
    /// # Errors
    /// [`PostRefused::NoSuchQueue`], [`PostRefused::QueueFull`] or [`PostRefused::TooManySge`]. The
    /// queue is then unchanged.
    pub fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), PostRefused> {
        self.objects.srqs.get_mut(srq.0).ok_or(PostRefused::NoSuchQueue)?.rq.post(wr)
    }

    /// Returns the number of posted receives that no message has taken yet.
    pub fn srq_outstanding(&self, srq: SrqId) -> Option<u32> {
        self.objects.srqs.get(srq.0).map(|srq| srq.rq.len() as u32)
    }
}
