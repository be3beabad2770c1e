//! [`Wq`]: a work queue, which is a receive queue shared by queue pairs through a table.
//!
//! Like a queue pair, a work queue has a unique user index in its completions.
//!
//! | transition to | queue | completions in the completion queue |
//! |---|---|---|
//! | RESET | closed, emptied | skipped |
//! | RDY, ERR | open | |
//!
//! # Safety
//! The device uses the queue's memory and its doorbell record from the command that creates the
//! work queue until the command that destroys it ([`QueueResources`]).
//!
//! # References
//! `ibv_create_wq(3)`, `ibv_modify_wq(3)`; rdma-core `providers/mlx5/verbs.c` (`create_wq`,
//! `mlx5_modify_wq`); Linux `drivers/infiniband/hw/mlx5/qp.c` (`mlx5_ib_create_wq`)
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs_abi::mlx5_abi::{Mlx5IbCreateWq, Mlx5IbCreateWqResp, Mlx5IbModifyWq};
use verbs_core::channel::Uhw;
use verbs_core::kernel::KernelRwqIndTable;
use verbs_core::provider::{Destroy, DeviceOps as _, EventsRead, PdOps as _, WqOps, WqParents, WqParts};
use verbs_core::types::{QpCap, QpState, WqAttr, WqInitAttr, WqState, WqType};
use verbs_core::{Cause, Errno, Error, Result, cmd, explain};
use zerocopy::IntoBytes;

use crate::device::Device;
use crate::direct::WqDirect;
use crate::doorbell::dbrec::Slot;
use crate::memory::{self, QueueMemory, Resource};
use crate::objects::mlx5::Mlx5;
use crate::queue::cq::{Queues, Receives, SharedCq};
use crate::queue::record::{Kind, RecvRecord};
use crate::queue::resources::QueueResources;
use crate::queue::rq::{self, Rq};
use crate::queue::sizes;
use crate::wqe::UNIT;

/// A work queue as a kernel object, separate from its [`Rq`].
#[derive(Debug)]
pub struct Wq {
    device: Arc<Device>,
    handle: u32,
    wq_num: u32,
    shape: rq::Shape,
    state: AtomicU32,
    cq: Arc<SharedCq>,
    resources: Arc<QueueResources>,
}

impl Wq {
    pub(crate) fn create(
        device: &Arc<Device>,
        parents: &WqParents<'_, Mlx5>,
        attr: &WqInitAttr,
    ) -> Result<WqParts<Mlx5>> {
        const VERB: &str = "create_wq";
        let error = |errno| device.error(VERB, errno);
        let _cqs = device.cqs(VERB)?;
        parents.cq.check(device, VERB)?;
        if attr.wq_type != WqType::RQ {
            let reason = format!("ConnectX has work queues of type RQ, not {}", attr.wq_type.0);
            return Err(error(Errno::OPNOTSUPP).because(Cause::Other { reason: reason.into() }));
        }
        let cap = QpCap { max_recv_wr: attr.max_wr, max_recv_sge: attr.max_sge, ..QpCap::default() };
        let max = device.limits.max_recv_wr.into();
        let shape = explain::within("max_wr", attr.max_wr.into(), 1, max)
            .and_then(|()| sizes::recv(&cap, &device.limits))
            .map_err(|cause| error(Errno::INVAL).because(cause))?
            .ok_or_else(|| {
                let reason = "a work queue has at least one element in each receive (max_sge)".into();
                error(Errno::INVAL).because(Cause::Other { reason })
            })?;
        let entry = shape.units * UNIT as u32;
        let (allocator, len) = (parents.pd.allocator(), shape.entries as usize * entry as usize);
        let memory = QueueMemory::for_object(allocator, Resource::Wq, len, RecvRecord::size(shape.entries))
            .map_err(|errno| device.short(VERB, errno, len))?;
        let records = device.records.take_for(allocator).map_err(error)?;
        let event_fd = device.kernel.async_fd()?;
        let user_index = device.user_index(VERB)?;
        let request = Mlx5IbCreateWq {
            buf_addr: memory.address(),
            db_addr: records.address(),
            rq_wqe_count: shape.entries,
            rq_wqe_shift: entry.trailing_zeros(),
            user_index: user_index.number(),
            ..Default::default()
        };
        let mut reply = Mlx5IbCreateWqResp::default();
        let uverbs = device.kernel.uverbs();
        // SAFETY: the addresses belong to the queue's memory and its record, which `QueueResources`
        // lends to the device until the work queue is destroyed.
        let uhw = unsafe { Uhw::reply(reply.as_mut_bytes()).with_input(request.as_bytes()) };
        let (pd, cq) = (parents.pd.handle(), parents.cq.handle);
        let info = cmd::wq::create_wq(uverbs, pd, cq, attr, Some(event_fd), uhw)?;
        let number = user_index.number();
        let resources = Arc::new(QueueResources::new(memory, records, None, Some(user_index)));
        // SAFETY: the record is created once, and `resources` live as long as the queue.
        let record = unsafe { resources.records().record(Slot::FIRST) };
        let queue = Rq::new(shape, record, Arc::clone(&resources));
        let cq = Arc::clone(&parents.cq.shared);
        cq.begin(number, queues(device, &queue));
        let wq = Self {
            device: Arc::clone(device),
            handle: info.handle,
            wq_num: info.wq_num,
            shape,
            state: AtomicU32::new(WqState::RESET.0),
            cq,
            resources,
        };
        Ok(WqParts { wq, queue })
    }

    /// Describes the work queue for direct access: see [`direct`](crate::direct).
    pub fn direct(&self) -> WqDirect {
        let start = self.resources.memory().region().pointer(0, 0);
        WqDirect { queue: self.shape.direct(start), record: self.resources.records().direct() }
    }

    /// Creates a table of work queues.
    pub(crate) fn create_table(device: &Arc<Device>, wqs: &[&Self]) -> Result<KernelRwqIndTable> {
        if wqs.iter().any(|wq| !Arc::ptr_eq(&wq.device, device)) {
            let cause = Cause::Foreign { what: "work queue" };
            return Err(device.error("create_rwq_ind_table", Errno::INVAL).because(cause));
        }
        let handles: Vec<u32> = wqs.iter().map(|wq| wq.handle).collect();
        KernelRwqIndTable::create(&device.kernel, &handles)
    }
}

/// Returns the queues that complete with a work queue's user index.
fn queues(device: &Device, queue: &Rq) -> Queues {
    let recv_kind = if device.has_ip_csum() { Kind::FRAME } else { Kind::RECEIVE };
    Queues { send: None, recv: Some(Receives::Own(Arc::clone(queue.requests()))), recv_kind, lists: None }
}

/// Returns the queue pair state that accepts the same receives as this work queue state.
const fn of_queue(state: WqState) -> QpState {
    match state {
        WqState::RDY => QpState::RTR,
        WqState::ERR => QpState::ERR,
        _ => QpState::RESET,
    }
}

impl WqOps for Wq {
    type Queue = Rq;

    fn handle(&self) -> u32 {
        self.handle
    }

    fn wq_num(&self) -> u32 {
        self.wq_num
    }

    fn state(&self) -> WqState {
        WqState(self.state.load(Ordering::Relaxed))
    }

    fn max_wr(&self) -> u32 {
        self.shape.entries
    }

    fn max_sge(&self) -> u32 {
        self.shape.units
    }

    fn modify(&self, queue: &mut Rq, attr: &WqAttr) -> Result<()> {
        if !Arc::ptr_eq(queue.resources(), &self.resources) {
            let cause = Cause::Foreign { what: "queue of a work queue" };
            return Err(self.device.error("modify_wq", Errno::INVAL).because(cause));
        }
        if attr.wq_state == Some(WqState::RESET) {
            // After the device confirms the command, the queue gets a new record.
            let bytes = RecvRecord::size(self.shape.entries);
            memory::check_records(bytes).map_err(|errno| self.device.short("modify_wq", errno, bytes))?;
        }
        let request = Mlx5IbModifyWq::default();
        // SAFETY: the request consists of numbers.
        let uhw = unsafe { Uhw::none().with_input(request.as_bytes()) };
        cmd::wq::modify_wq(self.device.kernel.uverbs(), self.handle, attr, uhw)?;
        if let Some(state) = attr.wq_state {
            self.state.store(state.0, Ordering::Relaxed);
            queue.moved_to(of_queue(state));
            if state == WqState::RESET
                && let Some(user_index) = self.resources.user_index()
            {
                self.cq.end(user_index, Some(queues(&self.device, queue)));
            }
        }
        Ok(())
    }
}

impl Destroy for Wq {
    fn destroy(self) -> Result<(), (Self, Error)> {
        self.destroy_counting_events().map(drop)
    }

    fn destroy_counting_events(self) -> Result<EventsRead, (Self, Error)> {
        match cmd::wq::destroy_wq(self.device.kernel.uverbs(), self.handle) {
            Ok(events) => {
                if let Some(user_index) = self.resources.user_index() {
                    self.cq.end(user_index, None);
                }
                self.resources.end();
                Ok(events)
            }
            Err(error) => Err((self, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use verbs_core::channel::{Expect, Reply, Scripted};
    use verbs_core::provider::RecvQueue as _;
    use verbs_core::types::RecvWr;

    use super::*;
    use crate::device::tests::device;
    use crate::memory::tests::{in_a_process_of_its_own, with_no_more_than};
    use crate::objects::cq::CqHandle;
    use crate::objects::qp::tests::{complete, cq, polled};

    /// Creates a work queue with this many entries. Also returns its user index.
    fn create(device: &Arc<Device>, script: &Scripted, cq: &CqHandle, entries: u32) -> (Wq, Rq, u32) {
        let user_index = device.user_index("create_wq").unwrap();
        let number = user_index.number();
        let cap = QpCap { max_recv_wr: 4, max_recv_sge: 1, ..QpCap::default() };
        let shape = rq::Shape { entries, ..sizes::recv(&cap, &device.limits).unwrap().unwrap() };
        let len = (shape.entries * shape.units) as usize * UNIT;
        let (memory, records) = (QueueMemory::new(len).unwrap(), device.records.take().unwrap());
        let resources = Arc::new(QueueResources::new(memory, records, None, Some(user_index)));
        // SAFETY: the record is created once, and no device reads it.
        let record = unsafe { resources.records().record(Slot::FIRST) };
        let queue = Rq::new(shape, record, Arc::clone(&resources));
        // The query of the device's properties, which are empty.
        script.expect([Expect::anything(Reply::ok())]);
        cq.shared.begin(number, queues(device, &queue));
        let wq = Wq {
            device: Arc::clone(device),
            handle: 4,
            wq_num: 1,
            shape,
            state: AtomicU32::new(WqState::RESET.0),
            cq: Arc::clone(&cq.shared),
            resources,
        };
        (wq, queue, number)
    }

    #[test]
    fn a_reset_for_whose_record_there_is_no_memory_changes_nothing() {
        const ENTRIES: u32 = 1 << 15;
        const NAME: &str = "objects::wq::tests::a_reset_for_whose_record_there_is_no_memory_changes_nothing";
        in_a_process_of_its_own(NAME, || {
            let (device, script) = device();
            let (_poller, handle, _) = cq(&device, 5);
            let (wq, mut queue, _) = create(&device, &script, &handle, ENTRIES);
            let size = RecvRecord::size(ENTRIES);
            for spare in [16 << 10, size + (16 << 10)] {
                script.expect([Expect::anything(Reply::ok())]);
                let reset = WqAttr { wq_state: Some(WqState::RESET), ..WqAttr::default() };
                let error = with_no_more_than(spare, || wq.modify(&mut queue, &reset)).unwrap_err();
                assert_eq!(error.errno, Errno::NOMEM);
                assert_eq!(error.cause, Cause::Allocation { bytes: size as u64 });
                assert_eq!(script.remaining(), 1, "the command was not sent");
                wq.modify(&mut queue, &reset).unwrap();
            }
        });
    }

    #[test]
    fn a_reset_and_the_end_of_a_work_queue_leave_no_completion() {
        let (device, script) = device();
        let (mut poller, handle, of_cq) = cq(&device, 5);
        let (wq, mut queue, number) = create(&device, &script, &handle, 4);
        let move_to = |queue: &mut Rq, state| {
            script.expect([Expect::anything(Reply::ok())]);
            wq.modify(queue, &WqAttr { wq_state: Some(state), ..WqAttr::default() }).unwrap();
        };
        let post = |queue: &mut Rq, wr_id| {
            // SAFETY: no device has the queue.
            unsafe { queue.post_recv(&[RecvWr { wr_id, sge: &[] }]) }.unwrap();
        };
        move_to(&mut queue, WqState::RDY);
        post(&mut queue, 7);
        complete(&of_cq, 0, 2, number);
        assert_eq!(polled(&mut poller), [7]);
        post(&mut queue, 8);
        complete(&of_cq, 1, 2, number);
        move_to(&mut queue, WqState::RESET);
        assert_eq!(polled(&mut poller), [0; 0], "after the reset");
        move_to(&mut queue, WqState::RDY);
        post(&mut queue, 9);
        complete(&of_cq, 2, 2, number);
        script.expect([Expect::anything(Reply::ok())]);
        wq.destroy().map_err(|(_, error)| error).unwrap();
        assert_eq!(polled(&mut poller), [0; 0], "after the end");
    }
}
