//! A simulation of the kernel's side of the queues in plain memory, for tests and benchmarks
//! without a device.
//!
//! [`PaperDevice`] replies to commands that create objects. [`PaperQueue`] is a queue in the
//! kernel's layout. [`PaperQp`] and [`PaperCq`] hold a provider's object together with the kernel's
//! ends of its queues. Nothing here accesses the memory named by work requests: a paper device
//! moves no data.
//!
//! Every function is for tests and panics on misuse.
//!
//! The module is public for this crate's tests and benchmarks; the crate `verbs` does not re-export
//! it. It is not behind a feature, because programs and tests could then no longer share builds of
//! this crate and the crates above it.
//!
//! # Safety
//! The holder of a [`PaperDevice`] acts as the kernel of its context and must behave like a kernel
//! ([`PaperDevice::new`]). A [`PaperQueue`] accesses its memory from one thread, which it cannot
//! leave; only the unsafe [`PaperQueue::region`] shares the memory with another thread.
#![allow(unsafe_code)]
// A module for tests: a panic is a defect of the test.
#![allow(clippy::missing_panics_doc)]

use core::marker::PhantomData;
use core::mem::{offset_of, size_of};
use std::path::Path;

use uverbs_abi::ib_user_ioctl_verbs::{IbUverbsQpCap, RdmaDriverId};
use uverbs_abi::ib_user_verbs::{
    IbUverbsExQueryDeviceResp, IbUverbsQueryQpResp, IbUverbsWc, IbUverbsWrOpcode,
};
use uverbs_abi::rdma_user_rxe::{
    Mminfo, RxeCreateAhResp, RxeCreateCqResp, RxeCreateQpResp, RxeCreateSrqResp, RxeQueueBuf, RxeRecvWqe,
    RxeSendWqe,
};
use verbs_core::channel::{Expect, Reply, Scripted, Uhw, Uverbs};
use verbs_core::kernel::{KernelContext, KernelPd};
use verbs_core::provider::{ContextOps, QpOps, QpParents, QpParts, SrqParents, SrqParts};
use verbs_core::ring::{Index, Region, SharedIndex};
use verbs_core::types::{
    AhAttr, CqInitAttr, DeviceCapFlags, Mtu, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType,
    SendFlags, SrqInitAttr, SrqType, TmCap, WcOpcode, WcStatus,
};
use verbs_core::{Result, transition};
use zerocopy::{FromBytes, IntoBytes};

use crate::ah::Ah;
use crate::context::Context;
use crate::cq::{Cq, CqHandle};
use crate::rxe::Rxe;

/// A queue in the kernel's layout and the kernel's end of it.
///
/// The queue cannot leave its thread, because its accesses are not atomic:
///
/// ```
/// let queue = provider_rxe::paper::PaperQueue::new(4, 64);
/// assert_eq!(queue.peek::<u32>(4), 3);
/// ```
/// ```compile_fail
/// let queue = provider_rxe::paper::PaperQueue::new(4, 64);
/// std::thread::spawn(move || queue.peek::<u32>(4));
/// ```
#[derive(Clone, Debug)]
pub struct PaperQueue {
    region: Region,
    mask: u32,
    stride: usize,
    /// Clones stay on one thread, so their plain accesses do not race.
    _one_thread: PhantomData<*const ()>,
}

const DATA: usize = size_of::<RxeQueueBuf>();
const PRODUCER: usize = offset_of!(RxeQueueBuf, producer_index);
const CONSUMER: usize = offset_of!(RxeQueueBuf, consumer_index);

impl PaperQueue {
    /// Creates a queue of `slots` slots of `stride` bytes each, both powers of two.
    pub fn new(slots: u32, stride: usize) -> Self {
        assert!(slots.is_power_of_two() && stride.is_power_of_two());
        let region = Region::plain(DATA + slots as usize * stride);
        let queue = Self { region, mask: slots - 1, stride, _one_thread: PhantomData };
        queue.poke(offset_of!(RxeQueueBuf, log2_elem_size), stride.trailing_zeros());
        queue.poke(offset_of!(RxeQueueBuf, index_mask), slots - 1);
        queue
    }

    /// Reads a value at any offset of the queue, in bytes.
    pub fn peek<T: FromBytes>(&self, offset: usize) -> T {
        // SAFETY: clones of this queue are on this thread. Other code has the memory from `region`
        // or from a `PaperDevice`, whose callers promised that no two threads use it at the same
        // time.
        unsafe { self.region.read(offset) }
    }

    /// Writes a value at any offset of the queue, in bytes.
    pub fn poke<T: IntoBytes>(&self, offset: usize, value: T) {
        // SAFETY: as in `peek`.
        unsafe { self.region.write(offset, value) }
    }

    /// Returns the memory shared by both ends.
    ///
    /// # Safety
    /// The caller must not use the region on one thread while another thread uses the queue, and
    /// must not dereference addresses stored in the queue.
    pub unsafe fn region(&self) -> Region {
        self.region.clone()
    }

    fn index(&self, offset: usize) -> SharedIndex {
        // SAFETY: the index lives during a call of a method here. Nothing else accesses the word in
        // this time, because the queue is on one thread and the other end is not used at the same
        // time. No device acts on the published values.
        unsafe { self.region.index(offset) }
    }

    /// Returns the number of mapped bytes.
    pub fn size(&self) -> usize {
        self.region.len()
    }

    /// Returns the producer's and the consumer's indices.
    pub fn indices(&self) -> (u32, u32) {
        (self.index(PRODUCER).load_acquire(), self.index(CONSUMER).load_acquire())
    }

    /// Sets the producer's and the consumer's indices to any values.
    pub fn set_indices(&self, producer: u32, consumer: u32) {
        self.index(PRODUCER).store_release(producer);
        self.index(CONSUMER).store_release(consumer);
    }

    /// Returns the number of elements in the queue.
    pub fn count(&self) -> u32 {
        let (producer, consumer) = self.indices();
        producer.wrapping_sub(consumer) & self.mask
    }

    /// Returns all bytes of a slot.
    pub fn slot(&self, index: u32) -> Vec<u8> {
        let start = DATA + (index & self.mask) as usize * self.stride;
        (start..start + self.stride).map(|at| self.peek::<u8>(at)).collect()
    }

    /// Fills all slots with a byte, as a stand-in for the contents left by earlier use.
    pub fn fill(&self, byte: u8) {
        (DATA..DATA + (self.mask as usize + 1) * self.stride).for_each(|at| self.poke(at, byte));
    }

    /// Removes and returns the next element and the bytes after it in the slot.
    pub fn take<W: FromBytes>(&self) -> Option<(W, Vec<u8>)> {
        let (producer, consumer) = self.indices();
        if self.count() == 0 {
            return None;
        }
        let slot = self.slot(consumer);
        let (element, rest) = W::read_from_prefix(&slot).ok()?;
        let rest = rest.to_vec();
        self.set_indices(producer, (consumer + 1) & self.mask);
        Some((element, rest))
    }

    /// Removes every element without reading it.
    pub fn drain(&self) {
        let (producer, _) = self.indices();
        self.set_indices(producer, producer);
    }

    /// Adds an element. Returns `false` if the queue is full.
    pub fn put<W: IntoBytes>(&self, element: W) -> bool {
        let (producer, consumer) = self.indices();
        if self.count() == self.mask {
            return false;
        }
        assert!(size_of::<W>() <= self.stride);
        self.poke(DATA + (producer & self.mask) as usize * self.stride, element);
        self.set_indices((producer + 1) & self.mask, consumer);
        true
    }

    /// Puts the last `count` removed elements back into the empty queue.
    pub fn refill(&self, count: u32) {
        let (producer, consumer) = self.indices();
        self.set_indices(consumer.wrapping_add(count) & self.mask, consumer);
        debug_assert!(producer == consumer, "the queue was empty");
    }
}

/// A completion queue and the kernel's end of it.
#[derive(Debug)]
pub struct PaperCq {
    /// The provider's object.
    pub cq: Cq,
    /// The kernel's handle for the completion queue.
    pub handle: CqHandle,
    /// The kernel's end of the completion queue.
    pub queue: PaperQueue,
}

impl core::ops::Deref for PaperCq {
    type Target = Cq;

    fn deref(&self) -> &Cq {
        &self.cq
    }
}

/// A queue pair and the kernel's ends of its queues.
#[derive(Debug)]
pub struct PaperQp {
    /// The provider's objects.
    pub parts: QpParts<Rxe>,
    /// The kernel's end of the send queue.
    pub sq: PaperQueue,
    /// The kernel's end of the receive queue.
    pub rq: PaperQueue,
    sig_all: bool,
}

impl PaperQp {
    /// Same as [`QpOps::modify`].
    ///
    /// # Errors
    /// Same as [`QpOps::modify`].
    pub fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let QpParts { qp, sq, rq } = &mut self.parts;
        qp.modify(sq, rq, attr, mask)
    }

    /// Completes every posted send without executing it: one completion per signalled request.
    pub fn complete_sends(&self, cq: &mut PaperCq) {
        while let Some((wqe, _)) = self.sq.take::<RxeSendWqe>() {
            assert_eq!(
                (wqe.status, wqe.state),
                (0, 0),
                "the kernel starts entries in this state, and completes them with this status"
            );
            if self.sig_all || wqe.wr.send_flags & SendFlags::SIGNALED.bits() != 0 {
                assert!(
                    cq.queue.put(self.send_completion(&wqe, WcStatus::SUCCESS)),
                    "the completion queue is full"
                );
            }
        }
    }

    /// Flushes both queues, as the kernel does for a queue pair in ERR: one completion per request.
    pub fn flush(&self, cq: &mut PaperCq) {
        while let Some((wqe, _)) = self.sq.take::<RxeSendWqe>() {
            assert!(
                cq.queue.put(self.send_completion(&wqe, WcStatus::WR_FLUSH_ERR)),
                "the completion queue is full"
            );
        }
        while let Some((wqe, _)) = self.rq.take::<RxeRecvWqe>() {
            let status = WcStatus::WR_FLUSH_ERR.0;
            let wc =
                IbUverbsWc { wr_id: wqe.wr_id, status, qp_num: self.parts.qp.qp_num(), ..Default::default() };
            assert!(cq.queue.put(wc), "the completion queue is full");
        }
    }

    /// Drains both queues and clears the send queue's slots, as the kernel does on a transition to
    /// RESET.
    pub fn drain(&self) {
        self.sq.drain();
        self.rq.drain();
        self.sq.fill(0);
    }

    fn send_completion(&self, wqe: &RxeSendWqe, status: WcStatus) -> IbUverbsWc {
        let opcode = match IbUverbsWrOpcode(wqe.wr.opcode) {
            IbUverbsWrOpcode::IB_UVERBS_WR_RDMA_WRITE
            | IbUverbsWrOpcode::IB_UVERBS_WR_RDMA_WRITE_WITH_IMM => WcOpcode::RDMA_WRITE,
            IbUverbsWrOpcode::IB_UVERBS_WR_RDMA_READ => WcOpcode::RDMA_READ,
            IbUverbsWrOpcode::IB_UVERBS_WR_ATOMIC_CMP_AND_SWP => WcOpcode::COMP_SWAP,
            IbUverbsWrOpcode::IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD => WcOpcode::FETCH_ADD,
            IbUverbsWrOpcode::IB_UVERBS_WR_LOCAL_INV => WcOpcode::LOCAL_INV,
            IbUverbsWrOpcode::IB_UVERBS_WR_BIND_MW => WcOpcode::BIND_MW,
            _ => WcOpcode::SEND,
        };
        IbUverbsWc {
            wr_id: wqe.wr.wr_id,
            status: status.0,
            opcode: opcode.0,
            byte_len: wqe.dma.length,
            qp_num: self.parts.qp.qp_num(),
            ..Default::default()
        }
    }
}

/// A device that replies to commands from a script.
#[derive(Debug)]
pub struct PaperDevice {
    /// The provider's context.
    pub context: Context,
    /// A protection domain of the context.
    pub pd: KernelPd,
    /// The script of expected commands and their replies.
    pub script: Scripted,
}

impl PaperDevice {
    /// The number of every queue pair that the device creates.
    pub const QP_NUM: u32 = 17;
    /// The handle of every completion queue that the device creates.
    pub const CQ_HANDLE: u32 = 3;
    /// The handle of every queue pair that the device creates.
    pub const QP_HANDLE: u32 = 4;
    /// The mapping offset of a completion queue.
    pub const CQ_OFFSET: u64 = 0x1000_0000;
    /// The mapping offset of a receive queue.
    pub const RQ_OFFSET: u64 = 0x2000_0000;
    /// The mapping offset of a send queue.
    pub const SQ_OFFSET: u64 = 0x3000_0000;
    /// The handle of every shared receive queue that the device creates.
    pub const SRQ_HANDLE: u32 = 8;
    /// The mapping offset of a shared receive queue.
    pub const SRQ_OFFSET: u64 = 0x5000_0000;

    /// Opens a device and allocates a protection domain.
    ///
    /// # Safety
    /// The caller must behave like the kernel: the script gives away no file descriptor with
    /// another owner; a completion is put in once, after its work request has ended; and no two
    /// threads use the two ends of a queue at the same time.
    pub unsafe fn new() -> Self {
        // The context owns the descriptor in the reply, a stand-in for the kernel's event file.
        // SAFETY: opens a descriptor, which has no other owner.
        let events = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        assert!(events >= 0);
        let script = Scripted::new([
            Expect::anything(Reply::outputs([&1_u32.to_ne_bytes(), &0_u64.to_ne_bytes()])),
            Expect::anything(Reply::outputs([&2_u32.to_ne_bytes()])),
            Expect::anything(Reply::outputs([&events.to_ne_bytes()])),
        ]);
        // SAFETY: the caller makes the same promise.
        let uverbs =
            unsafe { Uverbs::new(Box::new(script.clone()), RdmaDriverId::RDMA_DRIVER_RXE.0, "rxe0") };
        let kernel =
            KernelContext::new(uverbs, Path::new("/nonexistent"), crate::context::fw_ver, Uhw::none());
        let context = Context::new(kernel.unwrap());
        let pd = context.alloc_pd().unwrap();
        context.device().async_fd().unwrap();
        let caps = DeviceCapFlags::FLUSH_GLOBAL | DeviceCapFlags::ATOMIC_WRITE | DeviceCapFlags::MEM_WINDOW;
        script.expect([Self::device_ex_reply(caps)]);
        assert_eq!(context.caps(), caps);
        Self { context, pd, script }
    }

    /// Returns the attributes for an RC queue pair with 15 requests per queue, 4 SGEs and 64 inline
    /// bytes.
    pub fn rc() -> QpInitAttr {
        let cap =
            QpCap { max_send_wr: 15, max_recv_wr: 15, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };
        QpInitAttr { qp_type: QpType::RC, cap, sq_sig_all: false, user_handle: 0 }
    }

    /// Creates a completion queue of `slots` slots, all but one usable.
    pub fn create_cq(&self, slots: u32) -> PaperCq {
        let queue = PaperQueue::new(slots, 64);
        let (cq, handle) = self.create_cq_over(&queue).unwrap();
        PaperCq { cq, handle, queue }
    }

    /// Creates a completion queue over the given paper queue.
    ///
    /// # Errors
    /// Any errno from the provider.
    pub fn create_cq_over(&self, queue: &PaperQueue) -> Result<(Cq, CqHandle)> {
        let reply = RxeCreateCqResp { mi: Self::mminfo(Self::CQ_OFFSET, queue) };
        self.script.expect([Self::cq_reply(queue.mask, reply.as_bytes())]);
        self.expect_map(Self::CQ_OFFSET, queue);
        self.context.create_cq(None, &Self::cq_attr())
    }

    /// Returns the attributes for this device's completion queues.
    pub fn cq_attr() -> CqInitAttr<'static> {
        CqInitAttr::new(1)
    }

    /// Returns the reply to the extended query for a device with these capabilities.
    pub fn device_ex_reply(capabilities: DeviceCapFlags) -> Expect {
        let reply = IbUverbsExQueryDeviceResp {
            response_length: size_of::<IbUverbsExQueryDeviceResp>() as u32,
            device_cap_flags_ex: capabilities.bits(),
            ..Default::default()
        };
        Expect::anything(Reply::outputs([reply.as_bytes()]))
    }

    /// Returns the reply to CREATE_CQ, with the bytes `driver` as the driver's part.
    pub fn cq_reply(cqe: u32, driver: &[u8]) -> Expect {
        Expect::anything(Reply::outputs([&Self::CQ_HANDLE.to_ne_bytes(), &cqe.to_ne_bytes(), driver]))
    }

    /// Creates a queue pair with exactly the requested capacity, in queues sized like the kernel's.
    pub fn create_qp(&self, cq: CqHandle, attr: QpInitAttr) -> PaperQp {
        let cap = attr.cap;
        let list = (cap.max_send_sge as usize * 16).max(cap.max_inline_data as usize);
        let sq_stride = (size_of::<RxeSendWqe>() + list).next_power_of_two();
        let rq_stride = (size_of::<RxeRecvWqe>() + cap.max_recv_sge as usize * 16).next_power_of_two();
        let sq = PaperQueue::new((cap.max_send_wr + 1).next_power_of_two(), sq_stride);
        let rq = PaperQueue::new((cap.max_recv_wr + 1).next_power_of_two(), rq_stride.max(64));
        self.create_qp_over(cq, attr, sq, rq).unwrap()
    }

    /// Creates a queue pair over the given paper queues.
    ///
    /// # Errors
    /// Any errno from the provider.
    pub fn create_qp_over(
        &self,
        cq: CqHandle,
        attr: QpInitAttr,
        sq: PaperQueue,
        rq: PaperQueue,
    ) -> Result<PaperQp> {
        let reply = RxeCreateQpResp {
            rq_mi: Self::mminfo(Self::RQ_OFFSET, &rq),
            sq_mi: Self::mminfo(Self::SQ_OFFSET, &sq),
        };
        self.script.expect([Self::qp_reply(&attr.cap, reply.as_bytes())]);
        self.expect_map(Self::RQ_OFFSET, &rq);
        self.expect_map(Self::SQ_OFFSET, &sq);
        let parts = self.context.create_qp(&QpParents::new(&self.pd, &cq, &cq), &attr)?;
        Ok(PaperQp { parts, sq, rq, sig_all: attr.sq_sig_all })
    }

    /// Creates a shared receive queue of `slots` slots, all but one usable, for receives of up to 4
    /// SGEs. Also returns the kernel's end of its queue.
    pub fn create_srq(&self, slots: u32) -> (SrqParts<Rxe>, PaperQueue) {
        let (max_wr, max_sge) = (slots - 1, 4_u32);
        let queue = PaperQueue::new(slots, 128);
        let driver = RxeCreateSrqResp { mi: Self::mminfo(Self::SRQ_OFFSET, &queue), srq_num: 1, reserved: 0 };
        self.script.expect([Expect::anything(Reply::outputs([
            &Self::SRQ_HANDLE.to_ne_bytes()[..],
            &max_wr.to_ne_bytes(),
            &max_sge.to_ne_bytes(),
            driver.as_bytes(),
        ]))]);
        self.expect_map(Self::SRQ_OFFSET, &queue);
        let attr = SrqInitAttr {
            srq_type: SrqType::BASIC,
            max_wr,
            max_sge,
            srq_limit: 0,
            tm: TmCap::default(),
            user_handle: 0,
        };
        let parents = SrqParents { pd: &self.pd, xrcd: None, cq: None };
        (self.context.create_srq(&parents, &attr).unwrap(), queue)
    }

    /// Returns the reply to CREATE_QP, with the bytes `driver` as the driver's part.
    pub fn qp_reply(cap: &QpCap, driver: &[u8]) -> Expect {
        let cap = IbUverbsQpCap {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline_data,
        };
        Expect::anything(Reply::outputs([
            &Self::QP_HANDLE.to_ne_bytes(),
            cap.as_bytes(),
            &Self::QP_NUM.to_ne_bytes(),
            driver,
        ]))
    }

    /// Creates an address handle. The kernel's reply contains `ah_num` as the number of the handle,
    /// or 0 for no number.
    ///
    /// # Errors
    /// Any errno from the provider.
    pub fn create_ah(&self, attr: &AhAttr, ah_num: u32) -> Result<Ah> {
        let reply = RxeCreateAhResp { ah_num, reserved: 0 };
        self.script.expect([Expect::anything(Reply::outputs([&9_u32.to_ne_bytes(), reply.as_bytes()]))]);
        self.context.create_ah(&self.pd, attr)
    }

    /// Moves a queue pair from RESET to a state by the shortest path, or from any state to RESET or
    /// ERR.
    pub fn move_to(&self, qp: &mut PaperQp, to: QpState) {
        let path: &[QpState] = match to {
            QpState::INIT => &[QpState::INIT],
            QpState::RTR => &[QpState::INIT, QpState::RTR],
            QpState::RTS => &[QpState::INIT, QpState::RTR, QpState::RTS],
            _ => &[to],
        };
        for &to in path {
            let from = qp.parts.qp.state();
            let required = transition::lookup(qp.parts.qp.qp_type(), from, to).unwrap().required;
            if to == QpState::RESET {
                qp.drain();
            }
            self.script.expect([Expect::anything(Reply::ok())]);
            if to == QpState::RESET {
                self.script.expect([Self::state_reply(to)]);
            }
            let (path_mtu, qkey) = (Mtu::MTU_1024, 0x1111_1111);
            let attr = QpAttr { qp_state: to, path_mtu, qkey, ..QpAttr::default() };
            qp.modify(&attr, required | QpAttrMask::STATE).unwrap();
        }
    }

    /// Returns the reply to a query of a queue pair in the state `qp_state`.
    pub fn state_reply(qp_state: QpState) -> Expect {
        let reply = IbUverbsQueryQpResp { qp_state: qp_state.0, ..Default::default() };
        Expect::anything(Reply::outputs([reply.as_bytes()]))
    }

    /// Expects the next mapping to cover a whole queue at `offset`.
    pub fn expect_map(&self, offset: u64, queue: &PaperQueue) {
        self.expect_map_of(offset, queue.size(), queue);
    }

    /// Expects the next mapping to cover `len` bytes at `offset` and replies with a queue's memory.
    pub fn expect_map_of(&self, offset: u64, len: usize, queue: &PaperQueue) {
        // SAFETY: the region goes to this device's context, and the caller of `new` promised that
        // only one thread at a time uses both ends of its queues. A paper device accesses no memory
        // named by a queue.
        let region = unsafe { queue.region() };
        self.script.expect_map(offset, len, region);
    }

    /// Returns the `Mminfo` that the kernel reports for mapping `queue` at `offset`.
    pub fn mminfo(offset: u64, queue: &PaperQueue) -> Mminfo {
        Mminfo { offset, size: queue.size() as u32, pad: 0 }
    }
}
