//! Shared receive queues: created, armed, filled and destroyed.

use crate::engine::Engine;
use crate::engine::memory::Memory;
use crate::engine::queue::{MAX_SRQ_SGE, Srq};
use crate::engine::types::{CqId, Pd, PostRefused, Qpn, RecvWr, Refused, SrqId, XrcDomain};

impl<M: Memory> Engine<M> {
    /// Returns the value of [`qpn_modulus`](Self::qpn_modulus), but for shared receive queues.
    pub fn srqn_modulus(&self) -> usize {
        self.objects.srqs.modulus()
    }

    /// Creates a shared receive queue, with at most 32 scatter elements per receive.
    ///
    /// # Errors
    /// [`Refused::NoMemory`]; [`Refused::NoRoom`] if
    /// [`Config::max_srq`](crate::engine::Config::max_srq) exist already; [`Refused::NoSuchObject`]
    /// for an unknown protection domain; [`Refused::Invalid`] for more than 32 elements.
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

    /// Arms [`Event::SrqLimitReached`](crate::engine::Event::SrqLimitReached), raised once when
    /// fewer than `limit` receives remain.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`]; [`Refused::Invalid`] for a limit above the size of the queue.
    pub fn arm_srq(&mut self, srq: SrqId, limit: u32) -> Result<(), Refused> {
        self.objects.srqs.get_mut(srq.0).ok_or(Refused::NoSuchObject)?.arm(limit)
    }

    /// Returns the armed limit of a queue; 0 if the queue is not armed or has reached its limit.
    pub fn srq_limit(&self, srq: SrqId) -> Option<u32> {
        self.objects.srqs.get(srq.0).map(Srq::limit)
    }

    /// Sets the completion queue for the receives of an XRC shared receive queue.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`].
    pub fn set_srq_cq(&mut self, srq: SrqId, cq: CqId) -> Result<(), Refused> {
        self.objects.srqs.get_mut(srq.0).ok_or(Refused::NoSuchObject)?.cq = Some(cq);
        Ok(())
    }

    /// Lets the sink choose the memory for each send that arrives at a shared receive queue.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`].
    pub fn set_srq_matching(&mut self, srq: SrqId) -> Result<(), Refused> {
        self.objects.srqs.get_mut(srq.0).ok_or(Refused::NoSuchObject)?.matching = true;
        Ok(())
    }

    /// Changes the size of a shared receive queue. Its receives stay in their order.
    ///
    /// # Errors
    /// [`Refused::Invalid`] for a size below the number of its receives or its limit;
    /// [`Refused::NoMemory`] if memory is short; [`Refused::NoSuchObject`]. After an error, the
    /// queue is unchanged.
    pub fn resize_srq(&mut self, srq: SrqId, max_wr: u32) -> Result<(), Refused> {
        self.objects.srqs.get_mut(srq.0).ok_or(Refused::NoSuchObject)?.resize(max_wr)
    }

    /// Destroys a shared receive queue. Receives taken from it by XRC targets end; their messages
    /// are refused. None of its receives writes or completes afterwards.
    ///
    /// # Errors
    /// [`Refused::Busy`] while a queue pair uses the queue; [`Refused::NoSuchObject`].
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), Refused> {
        let objects = &mut self.objects;
        let its = objects.srqs.get(srq.0).ok_or(Refused::NoSuchObject)?;
        if its.users > 0 {
            return Err(Refused::Busy);
        }
        // Requests name the queue, so XRC targets do not count as users.
        let (mut left, mut position) = (its.taken, 0);
        while left > 0
            && let Some(number) = objects.qps.number_at(position)
        {
            if let Some(qp) = objects.qps.get_mut(number).filter(|qp| qp.resp.current.is_from(srq)) {
                // The next packet of the receive's message is refused, because no receive is left
                // for the message.
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
    /// [`PostRefused::NoSuchQueue`], [`PostRefused::QueueFull`] or [`PostRefused::TooManySge`]; the
    /// queue is unchanged.
    pub fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), PostRefused> {
        self.objects.srqs.get_mut(srq.0).ok_or(PostRefused::NoSuchQueue)?.rq.post(wr)
    }

    /// Returns the number of posted receives not yet taken by a message.
    pub fn srq_outstanding(&self, srq: SrqId) -> Option<u32> {
        self.objects.srqs.get(srq.0).map(|srq| srq.rq.len() as u32)
    }
}
