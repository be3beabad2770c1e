//! [`Srq`]: the shared receive queue as an object of the kernel, of the kinds BASIC and XRC.
//!
//! | kind | its receives complete with the number of | in |
//! |---|---|---|
//! | BASIC | the queue pair that took them | the queue pair's `recv_cq` |
//! | XRC | the shared receive queue | its `cq` |
//!
//! The device cannot change the size of the queue. The driver ignores the limit of a new one, which
//! is therefore set by a command of its own.
//!
//! # Safety
//! The queue's memory and its doorbell record are lent to the device from the command that creates
//! the shared receive queue to the one that destroys it ([`Life`]).
//!
//! # References
//! `ibv_create_srq_ex(3)`, `ibv_modify_srq(3)`; rdma-core `providers/mlx5/verbs.c`
//! (`mlx5_create_srq_ex`); Linux `drivers/infiniband/hw/mlx5/srq.c`
#![allow(unsafe_code)]

use std::sync::Arc;

use uverbs_abi::mlx5_abi::{Mlx5IbCreateSrq, Mlx5IbCreateSrqResp};
use verbs_core::channel::Uhw;
use verbs_core::cmd::srq::SrqHandles;
use verbs_core::provider::{
    Destroy, DeviceOps as _, EventsRead, PdOps as _, RecvQueue as _, SrqOps, SrqParents, SrqParts, XrcdOps,
};
use verbs_core::types::{SrqAttr, SrqAttrMask, SrqInitAttr, SrqType};
use verbs_core::{Cause, Errno, Error, Result, cmd, explain};
use zerocopy::IntoBytes;

use super::{LINK, Shape, SrqQueue};
use crate::cq::scatter::RecvLists;
use crate::cq::{Queues, Receives, Shared};
use crate::dbrec::Slot;
use crate::device::Device;
use crate::direct::{QueueDirect, SrqDirect};
use crate::life::Life;
use crate::memory::{QueueMemory, Resource};
use crate::record::SrqRecord;
use crate::user_index::UserIndex;
use crate::wqe::UNIT;
use crate::{Mlx5, sizes};

/// A shared receive queue without its queue.
#[derive(Debug)]
pub struct Srq {
    device: Arc<Device>,
    handle: u32,
    /// The number of the queue in the device.
    srqn: u32,
    /// The handle of its protection domain.
    pd: u32,
    shape: Shape,
    requests: Arc<SrqRecord>,
    /// Of the kind XRC.
    xrc: Option<Xrc>,
    life: Arc<Life>,
}

/// The parts that only a shared receive queue of the kind XRC has.
#[derive(Debug)]
struct Xrc {
    srq_num: u32,
    cq: Arc<Shared>,
}

impl Srq {
    pub(crate) fn create(
        device: &Arc<Device>,
        parents: &SrqParents<'_, Mlx5>,
        attr: &SrqInitAttr,
    ) -> Result<SrqParts<Mlx5>> {
        const VERB: &str = "create_srq";
        let error = |errno| device.error(VERB, errno);
        let _cqs = device.cqs();
        let cq = match (attr.srq_type, parents.cq) {
            (SrqType::BASIC, _) => None,
            (SrqType::XRC, Some(cq)) => {
                cq.check(device).map_err(|cause| error(Errno::INVAL).because(cause))?;
                Some(cq)
            }
            (SrqType::XRC, None) => return Err(error(Errno::INVAL)),
            _ => return Err(error(Errno::OPNOTSUPP)),
        };
        let shape = sizes::srq(attr, &device.limits).map_err(|cause| error(Errno::INVAL).because(cause))?;
        let allocator = parents.pd.allocator();
        let memory = QueueMemory::for_object(allocator, Resource::Srq, shape.len()).map_err(error)?;
        let records = device.records.take_for(allocator).map_err(error)?;
        let event_fd = device.kernel.async_fd()?;
        let user_index = cq.map(|_| device.user_index(VERB)).transpose()?;
        let request = Mlx5IbCreateSrq {
            buf_addr: memory.address(),
            db_addr: records.address(),
            uidx: user_index.as_ref().map_or(0, UserIndex::number),
            ..Default::default()
        };
        let mut reply = Mlx5IbCreateSrqResp::default();
        let handles = SrqHandles {
            pd: parents.pd.handle(),
            xrcd: parents.xrcd.map(XrcdOps::handle),
            cq: cq.map(|cq| cq.handle),
        };
        // The driver derives the size of the memory from these.
        let asked = SrqInitAttr { max_wr: shape.max_wr(), max_sge: shape.max_sge(), ..*attr };
        // SAFETY: the addresses are of the queue's memory and of its record, which `Life` lends to
        // the device until the shared receive queue is destroyed.
        let uhw = unsafe { Uhw::reply(reply.as_mut_bytes()).with_input(request.as_bytes()) };
        let info = cmd::srq::create_srq(device.kernel.uverbs(), &handles, &asked, Some(event_fd), uhw)
            .map_err(|error| device.kernel.explain_create_srq(error, attr))?;
        let life = Arc::new(Life::new(memory, records, None, user_index));
        if attr.srq_limit > 0 {
            let limit = SrqAttr { srq_limit: attr.srq_limit, ..SrqAttr::default() };
            let (uverbs, mask) = (device.kernel.uverbs(), SrqAttrMask::LIMIT);
            if let Err(mut error) = cmd::srq::modify_srq(uverbs, info.handle, &limit, mask, Uhw::none()) {
                // The error to report is that of the limit. If the end is not confirmed, the device
                // keeps the records and the number.
                if cmd::srq::destroy_srq(uverbs, info.handle).is_ok() {
                    life.end();
                }
                error.verb = VERB;
                return Err(error);
            }
        }
        // SAFETY: the record is made once, and `life` lives as long as the queue.
        let record = unsafe { life.records().record(Slot::FIRST) };
        let queue = SrqQueue::new(shape, record, Arc::clone(&life));
        let requests = Arc::clone(queue.requests());
        let xrc = cq.map(|cq| Xrc { srq_num: info.srq_num, cq: Arc::clone(&cq.shared) });
        if let (Some(Xrc { cq, .. }), Some(user_index)) = (&xrc, life.user_index()) {
            let recv = Some(Receives::Shared(Arc::clone(&requests)));
            cq.begin(user_index, Queues { send: None, recv, ..Queues::default() });
        }
        let srq = Self {
            device: Arc::clone(device),
            handle: info.handle,
            srqn: reply.srqn,
            pd: handles.pd,
            shape,
            requests,
            xrc,
            life,
        };
        Ok(SrqParts { srq, queue })
    }

    /// Describes the queue for direct access: see [`direct`](crate::direct). The entries without a
    /// receive are linked from the head to the tail.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Foreign`] for the queue of another shared receive queue.
    pub fn direct(&self, queue: &mut SrqQueue) -> Result<SrqDirect> {
        if !Arc::ptr_eq(queue.life(), &self.life) {
            let cause = Cause::Foreign { what: "queue of a shared receive queue" };
            return Err(self.device.error("init_obj", Errno::INVAL).because(cause));
        }
        let (head, tail) = queue.link_free();
        let (stride, buf) = (self.shape.units * UNIT as u32, self.life.memory().region().pointer(0, 0));
        Ok(SrqDirect {
            queue: QueueDirect { buf, entries: self.shape.entries, stride },
            record: self.life.records().direct(),
            head,
            tail,
            srqn: self.srqn,
        })
    }

    /// Returns the lists of its receives.
    pub(crate) fn lists(&self) -> RecvLists {
        let Shape { entries, units } = self.shape;
        RecvLists { life: Arc::downgrade(&self.life), pd: self.pd, entries, units, head: LINK }
    }

    /// Returns the receives in the queue, for the completion queues of queue pairs that take them.
    pub(crate) const fn requests(&self) -> &Arc<SrqRecord> {
        &self.requests
    }

    /// Returns the open device that it belongs to.
    pub(crate) const fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl SrqOps for Srq {
    type Queue = SrqQueue;

    fn handle(&self) -> u32 {
        self.handle
    }

    fn srq_num(&self) -> Option<u32> {
        self.xrc.as_ref().map(|xrc| xrc.srq_num)
    }

    fn attr(&self) -> SrqAttr {
        SrqAttr { max_wr: self.shape.max_wr(), max_sge: self.shape.max_sge(), srq_limit: 0 }
    }

    fn modify(&self, queue: &mut SrqQueue, attr: &SrqAttr, mask: SrqAttrMask) -> Result<()> {
        let refused = |cause| Err(self.device.error("modify_srq", Errno::INVAL).because(cause));
        if !Arc::ptr_eq(queue.life(), &self.life) {
            return refused(Cause::Foreign { what: "queue of a shared receive queue" });
        }
        if mask.contains(SrqAttrMask::MAX_WR) {
            let reason = "the device cannot change the size of a shared receive queue";
            return refused(Cause::Other { reason: reason.into() });
        }
        if mask.contains(SrqAttrMask::LIMIT)
            && let Err(cause) =
                explain::within("srq_limit", attr.srq_limit.into(), 0, self.shape.max_wr().into())
        {
            return refused(cause);
        }
        queue.ring();
        cmd::srq::modify_srq(self.device.kernel.uverbs(), self.handle, attr, mask, Uhw::none())
            .map_err(|error| self.device.kernel.explain_modify_srq(error, attr, mask))
    }

    fn query(&self) -> Result<SrqAttr> {
        cmd::srq::query_srq(self.device.kernel.uverbs(), self.handle)
    }
}

impl Destroy for Srq {
    fn destroy(self) -> Result<(), (Self, Error)> {
        self.destroy_counting_events().map(drop)
    }

    fn destroy_counting_events(self) -> Result<EventsRead, (Self, Error)> {
        match cmd::srq::destroy_srq(self.device.kernel.uverbs(), self.handle) {
            Ok(events) => {
                if let (Some(Xrc { cq, .. }), Some(user_index)) = (&self.xrc, self.life.user_index()) {
                    cq.end(user_index, None);
                }
                self.life.end();
                Ok(events)
            }
            Err(error) => Err((self, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use verbs_core::channel::{Expect, Reply};

    use super::*;
    use crate::device::tests::device;
    use crate::qp::tests::{complete, cq, polled};

    #[test]
    fn the_end_of_a_queue_of_the_kind_xrc_leaves_no_completion() {
        let (device, script) = device();
        let (mut poller, handle, of_cq) = cq(&device, 5);
        let shape = Shape { entries: 8, units: 2 };
        let user_index = device.user_index("create_srq").unwrap();
        let number = user_index.number();
        let (memory, records) = (QueueMemory::new(shape.len()).unwrap(), device.records.take().unwrap());
        let life = Arc::new(Life::new(memory, records, None, Some(user_index)));
        let requests = SrqRecord::new(8);
        let recv = Some(Receives::Shared(Arc::clone(&requests)));
        handle.shared.begin(number, Queues { recv, ..Queues::default() });
        let xrc = Some(Xrc { srq_num: 1, cq: Arc::clone(&handle.shared) });
        let srq = Srq { device: Arc::clone(&device), handle: 4, srqn: 7, pd: 3, shape, requests, xrc, life };
        let received = |entry| {
            srq.requests.put(0, 7);
            srq.requests.mark(0, 1);
            complete(&of_cq, entry, 2, number);
        };
        received(0);
        assert_eq!(polled(&mut poller), [7]);
        received(1);
        script.expect([Expect::anything(Reply::ok())]);
        srq.destroy().map_err(|(_, error)| error).unwrap();
        assert_eq!(polled(&mut poller), [0; 0]);
    }
}
