//! [`Srq`]: the shared receive queue as a kernel object, of the kinds BASIC, XRC and TM.
//!
//! | kind | user index in its completions | complete in |
//! |---|---|---|
//! | BASIC | the queue pair that took them | the queue pair's `recv_cq` |
//! | XRC, TM | the shared receive queue | its `cq` |
//!
//! The kind TM has a hidden queue pair, connected to itself, whose send queue carries the
//! operations on the tag list. Like the driver's clients, the hidden queue pair names its peer by a
//! LID, so it needs a port with the InfiniBand link layer.
//!
//! The device cannot change the size of the queue. The driver ignores the limit of a new queue, so
//! a separate command sets it.
//!
//! # Safety
//! The device uses the queue's memory and its doorbell record from the command that creates the
//! shared receive queue until the command that destroys it ([`QueueResources`]).
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
    Destroy, DeviceOps as _, EventsRead, PdOps as _, QpOps as _, QpParents, QpParts, RecvQueue as _, SrqOps,
    SrqParents, SrqParts, TAG_LIST, XrcdOps,
};
use verbs_core::types::{
    AhAttr, Mtu, QpAttr, QpAttrMask, QpCap, QpCreateAttr, QpInitAttr, QpState, QpType, SrqAttr, SrqAttrMask,
    SrqInitAttr, SrqType, TmCap,
};
use verbs_core::{Cause, Errno, Error, Result, cmd, explain};
use zerocopy::IntoBytes;

use crate::device::Device;
use crate::device::user_index::UserIndex;
use crate::direct::{QueueDirect, SrqDirect};
use crate::doorbell::dbrec::Slot;
use crate::memory::{QueueMemory, Resource};
use crate::objects::mlx5::Mlx5;
use crate::objects::qp::{Qp, ScatterToCqe};
use crate::queue::cq::{Queues, Receives, RecvLists, SharedCq};
use crate::queue::record::SrqRecord;
use crate::queue::resources::QueueResources;
use crate::queue::rq::Rq;
use crate::queue::sizes;
use crate::queue::sq::Sq;
use crate::queue::srq::tags::MAX_TAGS;
use crate::queue::srq::{LINK, Shape, SrqQueue, TagList, TagRecord};
use crate::wqe::UNIT;

/// A shared receive queue as a kernel object, separate from its [`SrqQueue`].
#[derive(Debug)]
pub struct Srq {
    device: Arc<Device>,
    handle: u32,
    /// The queue's number in the device.
    srqn: u32,
    /// The handle of the queue's protection domain.
    pd: u32,
    shape: Shape,
    requests: Arc<SrqRecord>,
    /// The queue's own completion queue, for the kinds XRC and TM.
    own: Option<Arc<SharedCq>>,
    /// The queue pair for operations on the tag list, for the kind TM.
    commands: Option<Qp>,
    /// The number of events read for the command queue pair, once it has been destroyed.
    tag_events: u32,
    resources: Arc<QueueResources>,
}

impl Srq {
    pub(crate) fn create(
        device: &Arc<Device>,
        parents: &SrqParents<'_, Mlx5>,
        attr: &SrqInitAttr,
    ) -> Result<SrqParts<Mlx5>> {
        const VERB: &str = "create_srq";
        let error = |errno| device.error(VERB, errno);
        if attr.srq_type == SrqType::TM {
            check_tags(device, attr.tm)?;
        }
        let cqs = device.cqs(VERB)?;
        let cq = match (attr.srq_type, parents.cq) {
            (SrqType::BASIC, _) => None,
            (SrqType::XRC | SrqType::TM, Some(cq)) => {
                cq.check(device, VERB)?;
                Some(cq)
            }
            (SrqType::XRC | SrqType::TM, None) => {
                let reason = "a shared receive queue of this type needs a completion queue".into();
                return Err(error(Errno::INVAL).because(Cause::Other { reason }));
            }
            (other, _) => {
                let reason = format!("shared receive queues are BASIC, XRC or TM, not of type {}", other.0);
                return Err(error(Errno::OPNOTSUPP).because(Cause::Other { reason: reason.into() }));
            }
        };
        let shape = sizes::srq(attr, &device.limits).map_err(|cause| error(Errno::INVAL).because(cause))?;
        let allocator = parents.pd.allocator();
        let mut records = SrqRecord::size(shape.entries);
        if attr.srq_type == SrqType::TM {
            records += TagRecord::size(attr.tm.max_num_tags);
        }
        let memory = QueueMemory::for_object(allocator, Resource::Srq, shape.len(), records)
            .map_err(|errno| device.short(VERB, errno, shape.len()))?;
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
        // The driver derives the size of the memory from these two values.
        let asked = SrqInitAttr { max_wr: shape.max_wr(), max_sge: shape.max_sge(), ..*attr };
        // SAFETY: the addresses belong to the queue's memory and its record, which `QueueResources`
        // lends to the device until the shared receive queue is destroyed.
        let uhw = unsafe { Uhw::reply(reply.as_mut_bytes()).with_input(request.as_bytes()) };
        let info = cmd::srq::create_srq(device.kernel.uverbs(), &handles, &asked, Some(event_fd), uhw)
            .map_err(|error| device.kernel.explain_create_srq(error, attr))?;
        let resources = Arc::new(QueueResources::new(memory, records, None, user_index));
        if attr.srq_limit > 0 {
            let limit = SrqAttr { srq_limit: attr.srq_limit, ..SrqAttr::default() };
            let (uverbs, mask) = (device.kernel.uverbs(), SrqAttrMask::LIMIT);
            if let Err(mut error) = cmd::srq::modify_srq(uverbs, info.handle, &limit, mask, Uhw::none()) {
                // The error in setting the limit is the one to report. If the destruction is not
                // confirmed, the device keeps the records and the number.
                if cmd::srq::destroy_srq(uverbs, info.handle).is_ok() {
                    resources.end();
                }
                error.verb = VERB;
                return Err(error);
            }
        }
        // SAFETY: the record is created once, and `resources` live as long as the queue.
        let record = unsafe { resources.records().record(Slot::FIRST) };
        let queue = SrqQueue::new(shape, record, Arc::clone(&resources));
        let requests = Arc::clone(queue.requests());
        let own = cq.map(|cq| Arc::clone(&cq.shared));
        let mut srq = Self {
            device: Arc::clone(device),
            handle: info.handle,
            srqn: reply.srqn,
            pd: handles.pd,
            shape,
            requests,
            own,
            commands: None,
            tag_events: 0,
            resources,
        };
        let mut queue = queue;
        let mut recv = Receives::Shared(Arc::clone(&srq.requests));
        // The command for the queue pair takes the lock again. It names the completion queue, which
        // the shared receive queue keeps alive.
        drop(cqs);
        if attr.srq_type == SrqType::TM {
            match srq.create_commands(parents, attr) {
                Ok((commands, tags)) => {
                    recv = Receives::Tagged(Arc::clone(tags.record()));
                    srq.commands = Some(commands);
                    queue.tags = Some(Box::new(tags));
                }
                Err(error) => {
                    // As above. If the queue cannot be destroyed, closing the context destroys it.
                    if cmd::srq::destroy_srq(device.kernel.uverbs(), srq.handle).is_ok() {
                        srq.resources.end();
                    }
                    return Err(Error { verb: VERB, ..error });
                }
            }
        }
        if let (Some(cq), Some(user_index)) = (&srq.own, srq.resources.user_index()) {
            cq.begin(user_index, Queues { send: None, recv: Some(recv), ..Queues::default() });
        }
        Ok(SrqParts { srq, queue })
    }

    /// Creates the tag list and the queue pair for tag list operations. The program does not know
    /// this queue pair, so the queue pair's events are raised for the shared receive queue
    /// ([`TAG_LIST`]).
    ///
    /// # References
    /// rdma-core `providers/mlx5/verbs.c` (`create_cmd_qp`)
    fn create_commands(&self, parents: &SrqParents<'_, Mlx5>, srq: &SrqInitAttr) -> Result<(Qp, TagList)> {
        let tm = srq.tm;
        let cap = QpCap { max_send_wr: tm.max_ops, max_send_sge: 1, ..QpCap::default() };
        let user_handle = srq.user_handle | TAG_LIST;
        let attr = QpInitAttr { user_handle, qp_type: QpType::RC, cap, sq_sig_all: false };
        let (pd, cq) = (Some(parents.pd), parents.cq);
        let of = QpParents { pd, send_cq: cq, recv_cq: cq, srq: Some(self), xrcd: None };
        let usual = QpCreateAttr::default();
        let QpParts { mut qp, mut sq, mut rq } =
            Qp::create(&self.device, &of, &attr, &usual, ScatterToCqe::Never)?;
        match connect_to_itself(&self.device, &mut qp, &mut sq, &mut rq) {
            Ok(()) => {
                let tags = TagList::new(tm.max_num_tags, sq, qp.qp_num(), &self.requests);
                Ok((qp, tags))
            }
            Err(error) => {
                // If this fails, closing the context destroys the queue pair.
                let _ = qp.destroy();
                Err(error)
            }
        }
    }

    /// Describes the queue for direct access: see [`direct`](crate::direct). The entries without a
    /// receive are linked from the head to the tail.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Foreign`] for the queue of another shared receive queue.
    pub fn direct(&self, queue: &mut SrqQueue) -> Result<SrqDirect> {
        if !Arc::ptr_eq(queue.resources(), &self.resources) {
            let cause = Cause::Foreign { what: "queue of a shared receive queue" };
            return Err(self.device.error("init_obj", Errno::INVAL).because(cause));
        }
        let (head, tail) = queue.link_free();
        let (stride, buf) = (self.shape.units * UNIT as u32, self.resources.memory().region().pointer(0, 0));
        Ok(SrqDirect {
            queue: QueueDirect { buf, entries: self.shape.entries, stride },
            record: self.resources.records().direct(),
            head,
            tail,
            srqn: self.srqn,
        })
    }

    /// Returns the location of the receives' scatter lists in the queue's memory.
    pub(crate) fn lists(&self) -> RecvLists {
        let Shape { entries, units } = self.shape;
        RecvLists { resources: Arc::downgrade(&self.resources), pd: self.pd, entries, units, head: LINK }
    }

    /// Returns the queue's receives, for the completion queues of its queue pairs.
    pub(crate) const fn requests(&self) -> &Arc<SrqRecord> {
        &self.requests
    }

    /// Returns whether the queue has a tag list.
    pub(crate) const fn has_tags(&self) -> bool {
        self.commands.is_some()
    }

    /// Returns the open device the queue belongs to.
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
        Some(self.srqn)
    }

    fn attr(&self) -> SrqAttr {
        SrqAttr { max_wr: self.shape.max_wr(), max_sge: self.shape.max_sge(), srq_limit: 0 }
    }

    fn modify(&self, queue: &mut SrqQueue, attr: &SrqAttr, mask: SrqAttrMask) -> Result<()> {
        let refused = |cause| Err(self.device.error("modify_srq", Errno::INVAL).because(cause));
        if !Arc::ptr_eq(queue.resources(), &self.resources) {
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

    fn destroy_counting_events(mut self) -> Result<EventsRead, (Self, Error)> {
        if let Some(commands) = self.commands.take() {
            match commands.destroy_counting_events() {
                Ok(events) => self.tag_events = events.asynchronous,
                Err((commands, error)) => {
                    self.commands = Some(commands);
                    return Err((self, Error { verb: "destroy_srq", ..error }));
                }
            }
        }
        match cmd::srq::destroy_srq(self.device.kernel.uverbs(), self.handle) {
            Ok(mut events) => {
                events.asynchronous = events.asynchronous.wrapping_add(self.tag_events);
                if let (Some(cq), Some(user_index)) = (&self.own, self.resources.user_index()) {
                    cq.end(user_index, None);
                }
                self.resources.end();
                Ok(events)
            }
            Err(error) => Err((self, error)),
        }
    }
}

/// Checks that the device supports a tag list of this capacity.
fn check_tags(device: &Device, tm: TmCap) -> Result<()> {
    let caps = device.query_device_ex()?.tm_caps;
    let error = |errno| device.error("create_srq", errno);
    if caps.max_num_tags == 0 {
        let reason = "the device matches no tags; ConnectX does on InfiniBand ports alone".into();
        return Err(error(Errno::OPNOTSUPP).because(Cause::Other { reason }));
    }
    let max_num_tags = caps.max_num_tags.min(MAX_TAGS);
    explain::within("max_num_tags", tm.max_num_tags.into(), 1, max_num_tags.into())
        .and_then(|()| explain::within("max_ops", tm.max_ops.into(), 1, caps.max_ops.into()))
        .map_err(|cause| error(Errno::INVAL).because(cause))
}

/// The port of the queue pair for tag list operations.
const PORT: u8 = 1;

/// Moves a queue pair to RTS, with itself as its peer.
fn connect_to_itself(device: &Device, qp: &mut Qp, sq: &mut Sq, rq: &mut Rq) -> Result<()> {
    let lid = device.query_port(PORT)?.lid;
    let attr = |qp_state| QpAttr {
        qp_state,
        port_num: PORT,
        path_mtu: Mtu::MTU_256,
        dest_qp_num: qp.qp_num(),
        ah_attr: AhAttr { dlid: lid, port_num: PORT, ..AhAttr::default() },
        ..QpAttr::default()
    };
    let steps = [
        (QpState::INIT, QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS),
        (
            QpState::RTR,
            QpAttrMask::AV
                | QpAttrMask::PATH_MTU
                | QpAttrMask::DEST_QPN
                | QpAttrMask::RQ_PSN
                | QpAttrMask::MAX_DEST_RD_ATOMIC
                | QpAttrMask::MIN_RNR_TIMER,
        ),
        (
            QpState::RTS,
            QpAttrMask::TIMEOUT
                | QpAttrMask::RETRY_CNT
                | QpAttrMask::RNR_RETRY
                | QpAttrMask::SQ_PSN
                | QpAttrMask::MAX_QP_RD_ATOMIC,
        ),
    ];
    for (state, mask) in steps.map(|(state, mask)| (attr(state), mask)) {
        qp.modify(sq, rq, &state, QpAttrMask::STATE | mask)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use uverbs_abi::ib_user_verbs::IbUverbsExQueryDeviceResp;
    use uverbs_abi::mlx5_abi::Mlx5IbQueryDeviceResp;
    use verbs_core::channel::{Expect, Reply};

    use verbs_core::kernel::KernelPd;

    use super::*;
    use crate::Pd;
    use crate::device::tests::device;
    use crate::objects::qp::tests::{complete, cq, polled};

    #[test]
    fn the_sizes_of_a_tag_list_are_within_those_of_the_device() {
        let (device, script) = device();
        let check = |announced: u32, max_num_tags, max_ops| {
            let mut caps = IbUverbsExQueryDeviceResp::default();
            caps.response_length = size_of_val(&caps) as u32;
            (caps.tm_caps.max_num_tags, caps.tm_caps.max_ops) = (announced, 9);
            let own = Mlx5IbQueryDeviceResp::default();
            script.expect([Expect::anything(Reply::outputs([caps.as_bytes(), own.as_bytes()]))]);
            check_tags(&device, TmCap { max_num_tags, max_ops })
        };
        assert!(check(7, 7, 9).is_ok() && check(7, 1, 1).is_ok());
        assert_eq!(check(0, 1, 1).unwrap_err().errno, Errno::OPNOTSUPP);
        for (tags, ops, what) in
            [(8, 9, "max_num_tags"), (0, 9, "max_num_tags"), (7, 10, "max_ops"), (7, 0, "max_ops")]
        {
            let error = check(7, tags, ops).unwrap_err();
            assert_eq!(error.errno, Errno::INVAL);
            assert!(matches!(error.cause, Cause::Limit { name, .. } if name == what), "{error}");
        }
        // An index has 16 bits, and the list has one more index than tags.
        assert!(check(u32::MAX, 0xfffe, 1).is_ok() && check(u32::MAX, 0xffff, 1).is_err());
    }

    /// Replies to the query of the device's properties as a device with tag lists.
    fn tag_matching() -> Reply {
        let mut caps = IbUverbsExQueryDeviceResp::default();
        caps.response_length = size_of_val(&caps) as u32;
        (caps.tm_caps.max_num_tags, caps.tm_caps.max_ops) = (7, 9);
        Reply::outputs([caps.as_bytes(), Mlx5IbQueryDeviceResp::default().as_bytes()])
    }

    #[test]
    fn the_events_of_a_tag_list_are_those_of_its_shared_receive_queue() {
        const USER_HANDLE: u64 = 0x1234_5678_9abc;
        let (device, script) = device();
        let (_poller, handle, _) = cq(&device, 5);
        let pd = Pd::new(&device, KernelPd::import(&device.kernel, 3), None);
        // SAFETY: the call accesses no memory. The context takes the file and closes it.
        let events = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        script.expect([
            Expect::anything(tag_matching()),
            Expect::anything(Reply::outputs([&events.to_ne_bytes()])),
            Expect::anything(Reply::outputs([&4_u32.to_ne_bytes()])),
            // No register is left for the queue pair, so it shares one.
            Expect::anything(Reply::Errno(Errno::NOMEM)),
            Expect::anything(Reply::outputs([&7_u32.to_ne_bytes(), &[0; 20], &0xabcd_u32.to_ne_bytes()])),
            // The device's properties: no windows.
            Expect::anything(Reply::Errno(Errno::INVAL)),
            // The port and the transitions of the queue pair to RTS.
            Expect::anything(Reply::ok()),
            Expect::anything(Reply::ok()),
            Expect::anything(Reply::ok()),
            Expect::anything(Reply::ok()),
        ]);
        let attr = SrqInitAttr {
            srq_type: SrqType::TM,
            max_wr: 4,
            max_sge: 1,
            srq_limit: 0,
            tm: TmCap { max_num_tags: 7, max_ops: 9 },
            user_handle: USER_HANDLE,
        };
        let parents = SrqParents { pd: &pd, xrcd: None, cq: Some(&handle) };
        let SrqParts { srq, queue } = Srq::create(&device, &parents, &attr).unwrap();
        let seen = script.seen();
        let has = |ioctl, attr: &str| seen.iter().any(|seen| seen.starts_with(ioctl) && seen.contains(attr));
        assert!(has("ioctl 5.0: ", &format!(", 0x4 u64 {USER_HANDLE:#x},")), "{seen:#?}");
        assert!(has("ioctl 4.0: ", &format!(", 0x7 u64 {:#x},", USER_HANDLE | TAG_LIST)), "{seen:#?}");

        // The first attempt to destroy the shared receive queue fails.
        let read = |count: u32| Expect::anything(Reply::outputs([&count.to_ne_bytes()]));
        script.expect([read(2), Expect::anything(Reply::Errno(Errno::BUSY))]);
        let (srq, error) = srq.destroy_counting_events().unwrap_err();
        assert_eq!((error.verb, error.errno), ("destroy_srq", Errno::BUSY));
        script.expect([read(3)]);
        let read = srq.destroy_counting_events().map_err(|(_, error)| error).unwrap();
        assert_eq!(read, EventsRead { comp: 0, asynchronous: 5 }, "of the tag list and of the queue");
        drop(queue);
    }

    #[test]
    fn the_end_of_a_queue_of_the_kind_xrc_leaves_no_completion() {
        let (device, script) = device();
        let (mut poller, handle, of_cq) = cq(&device, 5);
        let shape = Shape { entries: 8, units: 2 };
        let user_index = device.user_index("create_srq").unwrap();
        let number = user_index.number();
        let (memory, records) = (QueueMemory::new(shape.len()).unwrap(), device.records.take().unwrap());
        let resources = Arc::new(QueueResources::new(memory, records, None, Some(user_index)));
        let requests = SrqRecord::new(8);
        let recv = Some(Receives::Shared(Arc::clone(&requests)));
        handle.shared.begin(number, Queues { recv, ..Queues::default() });
        let own = Some(Arc::clone(&handle.shared));
        let device = Arc::clone(&device);
        let (commands, tag_events) = (None, 0);
        let srq =
            Srq { device, handle: 4, srqn: 7, pd: 3, shape, requests, own, commands, tag_events, resources };
        let received = |entry| {
            srq.requests.put(0, 7);
            srq.requests.mark(0, 1);
            complete(&of_cq, entry, 2, number);
        };
        assert_eq!(srq.srq_num(), Some(7));
        received(0);
        assert_eq!(polled(&mut poller), [7]);
        received(1);
        script.expect([Expect::anything(Reply::ok())]);
        srq.destroy().map_err(|(_, error)| error).unwrap();
        assert_eq!(polled(&mut poller), [0; 0]);
    }
}
