//! [`Srq`]: a shared receive queue of the engine. Its queue is a ring read by the engine.
//!
//! A receive leaves the engine's queue when a message begins. This frees its slot in the ring, so
//! the ring and the engine's queue together never exceed the queue's size.
//!
//! # Safety
//! The caller that posts a request guarantees that the request's memory is valid. Nothing here
//! accesses this memory.
//!
//! # References
//! `ibv_create_srq(3)`, `ibv_modify_srq(3)`; IBTA volume 1, section 10.2.9
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use roce::engine::{Refused, SrqId};
use verbs_core::provider::{Destroy, EventsRead, RecvQueue, SrqOps, SrqParents, SrqParts};
use verbs_core::types::{PostError, PostReason, RecvWr, SrqAttr, SrqAttrMask, SrqInitAttr, SrqType};
use verbs_core::{Cause, Errno, Error, Result};

use crate::device::error::{allocation, destroyed, foreign, refusal, within};
use crate::device::sink::{Channel, SrqEnd};
use crate::device::xrc_domains::XrcHandle;
use crate::device::{Device, limits};
use crate::objects::rq::Rq;
use crate::objects::soft::Soft;
use crate::sync::ring::{ring, ring_in_use};

/// A shared receive queue, except for its posting side ([`SrqQueue`]).
#[derive(Debug)]
pub struct Srq {
    device: Arc<Device>,
    srq: SrqId,
    slot: usize,
    max_wr: AtomicU32,
    max_sge: u32,
    xrc: Option<XrcHandle>,
}

/// The posting side of a shared receive queue.
#[derive(Debug)]
pub struct SrqQueue(Rq);

impl Srq {
    pub(crate) fn create(
        device: &Arc<Device>,
        parents: &SrqParents<'_, Soft>,
        attr: &SrqInitAttr,
        events: &Channel,
    ) -> Result<SrqParts<Soft>> {
        const VERB: &str = "create_srq";
        let pd = parents.pd.id_on(device, VERB)?;
        let xrc = match attr.srq_type {
            SrqType::BASIC => None,
            SrqType::XRC => {
                let missing = || {
                    let reason = "the type XRC needs an XRC domain and a completion queue";
                    device.error(VERB, Errno::INVAL).because(Cause::Other { reason: reason.into() })
                };
                let handle = parents.xrcd.ok_or_else(missing)?.handle_on(device, VERB)?;
                Some((handle, parents.cq.ok_or_else(missing)?.id_on(device, VERB)?))
            }
            _ => return Err(device.error(VERB, Errno::OPNOTSUPP)),
        };
        let (xrc, cq) = xrc.unzip();
        let domain = xrc.map(|handle| handle.domain);
        let SrqInitAttr { max_wr, max_sge, srq_limit, user_handle, .. } = *attr;
        within(device, VERB, "max_wr", max_wr.into(), 1, limits::MAX_SRQ_WR.into())?;
        within(device, VERB, "max_sge", max_sge.into(), 0, limits::MAX_SRQ_SGE.into())?;
        within(device, VERB, "srq_limit", srq_limit.into(), 0, max_wr.into())?;
        let short = |bytes| allocation(device, VERB, bytes);
        let (to_rq, rq) = ring(max_wr, max_sge as usize).map_err(short)?;
        let events = events.clone();
        let (srq, slot) = device.control(VERB, |core, _| {
            let refused = |refused| refusal(device, VERB, refused);
            let srq = core.engine.create_srq(pd, max_wr, max_sge, domain).map_err(refused)?;
            core.engine.arm_srq(srq, srq_limit).map_err(refused)?;
            if let Some(cq) = cq {
                core.engine.set_srq_cq(srq, cq).map_err(refused)?;
            }
            let end = SrqEnd { srq, rq, cq, events, user_handle, raised: 0 };
            match core.sink.add_srq(end, core.engine.srqn_modulus()) {
                Ok(slot) => {
                    if let Some(handle) = xrc {
                        core.domains.enter(handle);
                    }
                    Ok((srq, slot))
                }
                Err(reason) => {
                    let _ = core.engine.destroy_srq(srq);
                    Err(refused(reason))
                }
            }
        })?;
        let queue = SrqQueue(Rq::of_srq(device, to_rq, slot, max_sge));
        let max_wr = AtomicU32::new(max_wr);
        Ok(SrqParts { srq: Self { device: Arc::clone(device), srq, slot, max_wr, max_sge, xrc }, queue })
    }

    /// Returns the queue's number in the engine, if the queue belongs to this device.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Foreign`] for a shared receive queue of another device.
    pub(crate) fn id_on(&self, device: &Arc<Device>, verb: &'static str) -> Result<SrqId> {
        if Arc::ptr_eq(&self.device, device) {
            Ok(self.srq)
        } else {
            Err(foreign(device, verb, "shared receive queue"))
        }
    }
}

impl SrqOps for Srq {
    type Queue = SrqQueue;

    fn handle(&self) -> u32 {
        self.srq.0
    }

    fn srq_num(&self) -> Option<u32> {
        self.xrc.map(|_| self.srq.0)
    }

    fn attr(&self) -> SrqAttr {
        SrqAttr { max_wr: self.max_wr.load(Ordering::Relaxed), max_sge: self.max_sge, srq_limit: 0 }
    }

    fn modify(&self, queue: &mut SrqQueue, attr: &SrqAttr, mask: SrqAttrMask) -> Result<()> {
        const VERB: &str = "modify_srq";
        let (device, srq) = (&self.device, self.srq);
        if !queue.0.is_of_srq(device, self.slot) {
            return Err(foreign(device, VERB, "queue of a shared receive queue"));
        }
        // Unknown bits of the mask are ignored, as in the kernel's drivers.
        let resizes = mask.contains(SrqAttrMask::MAX_WR);
        let max_wr = if resizes { attr.max_wr } else { self.max_wr.load(Ordering::Relaxed) };
        within(device, VERB, "max_wr", max_wr.into(), 1, limits::MAX_SRQ_WR.into())?;
        if mask.contains(SrqAttrMask::LIMIT) {
            within(device, VERB, "srq_limit", attr.srq_limit.into(), 0, max_wr.into())?;
        }
        if resizes {
            queue.0.ring.publish();
        }
        let ring = device.control(VERB, |core, _| {
            let refused = |refused| refusal(device, VERB, refused);
            let mut ring = None;
            if resizes {
                core.pump_srq(self.slot);
                let outstanding = core.engine.srq_outstanding(srq).unwrap_or(0);
                let armed = core.engine.srq_limit(srq).unwrap_or(0);
                let min = outstanding.max(if mask.contains(SrqAttrMask::LIMIT) { 0 } else { armed });
                within(device, VERB, "max_wr", max_wr.into(), min.into(), limits::MAX_SRQ_WR.into())?;
                let (to_rq, rq) = ring_in_use(max_wr, self.max_sge as usize, outstanding)
                    .map_err(|bytes| allocation(device, VERB, bytes))?;
                if mask.contains(SrqAttrMask::LIMIT) {
                    // The old limit, which may exceed the new size, is replaced below.
                    core.engine.arm_srq(srq, 0).map_err(refused)?;
                }
                if let Err(why) = core.engine.resize_srq(srq, max_wr) {
                    let _ = core.engine.arm_srq(srq, armed);
                    return Err(refused(why));
                }
                if let Some(end) = core.sink.srq(srq) {
                    end.rq = rq;
                }
                ring = Some(to_rq);
            }
            if mask.contains(SrqAttrMask::LIMIT) {
                core.engine.arm_srq(srq, attr.srq_limit).map_err(refused)?;
            }
            Ok(ring)
        })?;
        if let Some(ring) = ring {
            queue.0.ring = ring;
            self.max_wr.store(max_wr, Ordering::Relaxed);
        }
        Ok(())
    }

    fn query(&self) -> Result<SrqAttr> {
        const VERB: &str = "query_srq";
        let srq_limit = self.device.control(VERB, |core, _| {
            let gone = || refusal(&self.device, VERB, Refused::NoSuchObject);
            core.engine.srq_limit(self.srq).ok_or_else(gone)
        })?;
        Ok(SrqAttr { srq_limit, ..self.attr() })
    }
}

impl Destroy for Srq {
    fn destroy(self) -> Result<(), (Self, Error)> {
        self.destroy_counting_events().map(drop)
    }

    fn destroy_counting_events(self) -> Result<EventsRead, (Self, Error)> {
        let (srq, xrc) = (self.srq, self.xrc);
        destroyed(&self.device, "destroy_srq", |core| {
            core.engine.destroy_srq(srq)?;
            let read = core.sink.remove_srq(srq);
            if let Some(handle) = xrc {
                core.domains.leave(handle);
            }
            Ok(read)
        })
        .map_err(|error| {
            let is_used = error.errno == Errno::BUSY;
            (self, if is_used { error.because(Cause::InUse { by: "queue pairs" }) } else { error })
        })
    }
}

impl RecvQueue for SrqQueue {
    #[inline]
    unsafe fn post_one(&mut self, wr: &RecvWr<'_>) -> Result<(), PostReason> {
        // SAFETY: the caller fulfils the same contract.
        unsafe { self.0.post_one(wr) }
    }

    #[inline]
    fn ring(&mut self) {
        self.0.ring();
    }

    #[inline]
    unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller fulfils the same contract.
        unsafe { self.0.post_recv(wrs) }
    }
}
