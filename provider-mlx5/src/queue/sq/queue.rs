//! [`Sq`]: the queue, its free space and its doorbell.
//!
//! # Safety
//! Entries are stored at blocks within the queue that no unfinished request uses: a request takes
//! at most [`Shape::blocks_of_request`] blocks, and at most [`Shape::max_post`] requests are
//! unfinished. The device reads an entry only once the doorbell record covers it; `ring` stores the
//! record after the entry.
//!
//! # References
//! `ibv_post_send(3)`; rdma-core `providers/mlx5/qp.c`
#![allow(unsafe_code)]

use core::fmt;
use core::ptr::NonNull;
use std::sync::Arc;

use verbs_core::Errno;
use verbs_core::checks::SendChecks;
use verbs_core::provider::{FastPath, SendQueue};
use verbs_core::ring::barrier;
use verbs_core::types::{PostError, PostReason, QpCap, QpState, QpType, SendFlags, SendWr};

use super::frame::Frames;
use super::limits::{CONTROL_FLAGS, Limits};
use super::umr;
use crate::doorbell::{BlueFlame, Record};
use crate::queue::record::{Kind, SendRecord, SendSlot};
use crate::queue::resources::QueueResources;
use crate::wqe::{self, BLOCK, UNIT, control};

/// The dimensions of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The number of basic blocks in the queue, a power of two.
    pub(crate) blocks: u32,
    /// The number of blocks in the longest request.
    pub(crate) blocks_of_request: u32,
    /// The maximum number of unfinished requests.
    pub(crate) max_post: u32,
    /// The capacity reported to the program.
    pub(crate) cap: QpCap,
}

/// The arguments for a new send queue.
pub(crate) struct Parts {
    pub(crate) qp_num: u32,
    pub(crate) qp_type: QpType,
    pub(crate) sq_sig_all: bool,
    pub(crate) shape: Shape,
    /// The offset of the queue in its memory, in bytes. The queue has [`Shape::blocks`] blocks.
    pub(crate) offset: usize,
    pub(crate) record: Record,
    pub(crate) bell: BlueFlame,
    /// Whether a doorbell may carry a whole request even if the request has no inline data.
    pub(crate) prefers_blue_flame: bool,
    /// Whether the device has memory windows.
    pub(crate) has_windows: bool,
    /// The properties of frames on a raw packet queue pair.
    pub(crate) frames: Frames,
    /// The queue pair's resources, whose memory contains the queue.
    pub(crate) resources: Arc<QueueResources>,
}

/// The send queue of a queue pair.
pub struct Sq {
    pub(super) start: NonNull<u8>,
    /// The number of blocks minus one, times the slot size: the mask for the offset of a block's
    /// slot in bytes.
    slot_mask: usize,
    /// The number of the next entry's block, in the upper half. It keeps counting across the end of
    /// the queue and overflows together with the device's block numbers.
    pub(super) next: u32,
    /// The number of requests put into the queue.
    pub(super) head: u32,
    /// The limit of `head` for the fast path. Once `head` reaches it, the queue may be full or the
    /// next request is fenced.
    pub(super) limit: u32,
    /// The limit of `head` for a request with its own doorbell; not beyond `head` while other
    /// requests wait for a doorbell.
    lone_limit: u32,
    /// The last request off the fast path, if no doorbell has followed it: the block after it, and
    /// its control segment. A request on the fast path has one block.
    pub(super) last: Option<(u16, NonNull<u8>)>,
    /// The queue pair's number; `qpn_word` is the number as stored in control segments.
    pub(super) qp_num: u32,
    pub(super) qpn_word: u32,
    pub(super) checks: SendChecks,
    pub(super) limits: Limits,
    /// The second half of a control segment without immediate data, indexed by the flags of a
    /// request.
    pub(super) flags: [u64; CONTROL_FLAGS as usize + 1],
    requests: Arc<SendRecord>,
    /// The address of the slots in `requests`, one per block.
    slots: NonNull<SendSlot>,
    /// The values of `head` and `fence` at the last doorbell after a request off the fast path.
    rung_fence: (u32, u8),
    /// The doorbell record, which also shows how far the last doorbell reached.
    record: Record,
    bell: BlueFlame,
    prefers_blue_flame: bool,
    /// Whether the doorbell carries one-block requests even if they have no inline data.
    carries_blocks: bool,
    /// The fence for the next request, if it follows an operation on a key.
    pub(super) fence: u8,
    max_post: u32,
    /// The number of units in the longest request.
    max_units: u32,
    pub(super) frames: Frames,
    resources: Arc<QueueResources>,
}

// SAFETY: the pointers blocked the auto impls. They point into the memory of `resources` and to the
// slots of `requests`; both are `Send + Sync` and live as long. The queue is written through `&mut`
// alone.
unsafe impl Send for Sq {}
// SAFETY: as for `Send`.
unsafe impl Sync for Sq {}

impl Sq {
    /// Returns the send queue of a queue pair in RESET.
    ///
    /// # Panics
    /// Panics if the queue does not lie within its memory, or is not aligned to a unit.
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { qp_num, qp_type, sq_sig_all, shape, offset, record, bell, resources, .. } = parts;
        assert!(shape.blocks.is_power_of_two() && shape.blocks_of_request > 0, "{shape:?}");
        assert!(shape.max_post.saturating_mul(shape.blocks_of_request) <= shape.blocks, "{shape:?}");
        // A completion names a block with 16 bits, and a request's size has 6 bits.
        assert!(shape.blocks <= 1 << 15 && shape.blocks_of_request <= 1 << 4, "{shape:?}");
        let longest = longest_request(qp_type, &shape.cap, parts.has_windows, &parts.frames);
        let is_enough = longest <= shape.blocks_of_request * 4 || shape.max_post == 0;
        assert!(is_enough, "{longest} units in {shape:?}");
        record.store(0);
        let len = shape.blocks as usize * BLOCK;
        let start = resources.memory().region().pointer(offset, len);
        assert!(start.addr().get().is_multiple_of(UNIT), "a queue at {offset} is not aligned");
        let mut checks = SendChecks::new(qp_type, &shape.cap);
        if parts.has_windows {
            checks = checks.with_windows_of_every_type();
        }
        if parts.frames.has_ip_csum {
            checks = checks.with_ip_csum();
        }
        if parts.frames.max_tso_header > 0 {
            checks = checks.with_tso();
        }
        let requests = SendRecord::new(shape.blocks);
        Self {
            start,
            slot_mask: (shape.blocks as usize - 1) * SLOT,
            next: 0,
            head: 0,
            limit: shape.max_post,
            lone_limit: shape.max_post,
            last: None,
            qp_num,
            qpn_word: (qp_num << 8).to_be(),
            limits: Limits::new(&checks),
            checks,
            flags: control_flags(sq_sig_all),
            slots: NonNull::from(requests.slots()).cast(),
            requests,
            rung_fence: (0, 0),
            carries_blocks: parts.prefers_blue_flame && bell.max_units >= (BLOCK / UNIT) as u32,
            record,
            bell,
            prefers_blue_flame: parts.prefers_blue_flame,
            fence: 0,
            max_post: shape.max_post,
            max_units: shape.blocks_of_request * 4,
            frames: parts.frames,
            resources,
        }
    }

    /// Returns the resources of the queue pair.
    pub(crate) const fn resources(&self) -> &Arc<QueueResources> {
        &self.resources
    }

    /// Returns the requests in the queue, for the poller of its completion queue.
    pub(crate) const fn requests(&self) -> &Arc<SendRecord> {
        &self.requests
    }

    /// Adapts the queue to the queue pair's new state.
    ///
    /// After RESET, the queue restarts at its first block, with a new record of its requests and a
    /// doorbell record of 0, as the device expects.
    pub(crate) fn moved_to(&mut self, state: QpState) {
        self.checks.moved_to(state);
        self.limits = Limits::new(&self.checks);
        if state == QpState::RESET {
            (self.next, self.head, self.fence) = (0, 0, 0);
            (self.limit, self.lone_limit) = (self.max_post, self.max_post);
            (self.last, self.rung_fence) = (None, (0, 0));
            self.requests = SendRecord::new((self.slot_mask / SLOT + 1) as u32);
            self.slots = NonNull::from(self.requests.slots()).cast();
            self.record.store(0);
        }
    }

    /// Puts a raw request from the program into the queue: a control segment and the segments after
    /// it. The queue inserts the entry's number. The request completes with the opcode
    /// [`DRIVER2`](verbs_core::types::WcOpcode::DRIVER2).
    ///
    /// # Safety
    /// Same as [`SendQueue::post_one`], for the memory named by the segments. The device must
    /// accept the request from this queue pair.
    ///
    /// # Errors
    /// [`PostReason::QueueFull`]; [`PostReason::TooManySge`] for a request that is longer than the
    /// queue's maximum or whose control segment states another length; the reason for rejecting
    /// requests in the current state.
    pub unsafe fn post_raw(&mut self, wr_id: u64, request: &[[u8; UNIT]]) -> Result<(), PostReason> {
        let given = request.len();
        let told = request.first().map(|control| usize::from(control[7] & 0x3f));
        if told != Some(given) || given > self.max_units as usize {
            return Err(PostReason::TooManySge { given, max: self.max_units });
        }
        self.checks.check_state()?;
        if !self.has_room() {
            return Err(PostReason::QueueFull);
        }
        let (block, head) = (self.next_block(), self.head.wrapping_add(1));
        let at = self.block(block);
        // SAFETY: at a block of the queue. The request takes at most `Shape::blocks_of_request`
        // blocks, which are free (`has_room`).
        unsafe {
            let mut cursor = wqe::Cursor::new(at, self.start, self.end(), 0);
            for unit in request {
                let [first, second] = [0, 8].map(|half| core::array::from_fn(|byte| unit[half + byte]));
                cursor.put([u64::from_be_bytes(first), u64::from_be_bytes(second)]);
            }
            let [high, low] = block.to_be_bytes();
            (*at.add(1).as_ptr(), *at.add(2).as_ptr()) = (high, low);
        }
        self.requests.put(block.into(), wr_id, head, Kind::RAW);
        self.next = self.place().behind(given.div_ceil(4) as u32).next;
        (self.head, self.last) = (head, Some((self.next_block(), at)));
        self.fence = 0;
        Ok(())
    }

    /// Returns the offset of the queue in its memory, in bytes.
    #[cfg(test)]
    pub(crate) fn start_offset(&self) -> usize {
        self.start.addr().get() - self.resources.memory().region().pointer(0, 0).addr().get()
    }

    /// Returns the number of the next request's block.
    #[inline(always)]
    pub(crate) const fn next_block(&self) -> u16 {
        (self.next >> 16) as u16
    }

    /// Returns whether one more request fits, for requests off the fast path.
    pub(super) fn has_room(&mut self) -> bool {
        let tail = self.requests.tail();
        self.limit = tail.wrapping_add(self.max_post);
        self.lone_limit = self.head;
        self.head != self.limit
    }

    /// Returns the number of blocks that wait for a doorbell. The record's counter is always large
    /// enough for this number.
    #[inline(always)]
    fn waiting(&self) -> u32 {
        self.next_block().wrapping_sub(self.record.load() as u16).into()
    }

    /// Returns the address of the last request's control segment. No doorbell has followed this
    /// request yet.
    #[inline(always)]
    fn last(&self) -> NonNull<u8> {
        match self.last {
            Some((behind, at)) if behind == self.next_block() => at,
            _ => self.last_block(),
        }
    }

    /// Returns the address of the block before the next block.
    #[inline(always)]
    fn last_block(&self) -> NonNull<u8> {
        self.block_at(self.next.wrapping_sub(1 << 16))
    }

    /// Returns the address of the end of the queue's memory.
    #[inline(always)]
    pub(super) fn end(&self) -> NonNull<u8> {
        // SAFETY: the blocks lie within the memory (`new`).
        unsafe { self.start.add((self.slot_mask / SLOT + 1) * BLOCK) }
    }

    /// Returns the address of a block.
    fn block(&self, number: u16) -> NonNull<u8> {
        self.block_at(u32::from(number) << 16)
    }

    /// Returns the address of the block whose number is in the upper half of `next`.
    #[inline(always)]
    pub(super) fn block_at(&self, next: u32) -> NonNull<u8> {
        // SAFETY: the masked number is below the number of blocks, which lie within the memory
        // (`new`).
        unsafe { self.start.add(self.slot_at(next) * (BLOCK / SLOT)) }
    }

    /// Returns the address of the slot for the block whose number is in the upper half of `next`.
    #[inline(always)]
    pub(super) fn slot(&self, next: u32) -> NonNull<SendSlot> {
        // SAFETY: there is a slot for each block (`new`).
        unsafe { self.slots.byte_add(self.slot_at(next)) }
    }

    /// Returns the offset of a block's slot in bytes. It also serves as the scaled offset of the
    /// block, with a scale that instruction addresses support.
    #[inline(always)]
    const fn slot_at(&self, next: u32) -> usize {
        (next >> (16 - SLOT.trailing_zeros())) as usize & self.slot_mask
    }

    /// Posts a batch of any length.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_send`].
    #[inline(never)]
    unsafe fn post_many(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller makes the same promise.
        let accepted = unsafe { self.put_batch(wrs) };
        if accepted < wrs.len() || accepted < 2 || self.last.is_some() {
            // SAFETY: as above.
            return unsafe { self.post_rest(wrs, accepted) };
        }
        self.ring_many();
        Ok(())
    }

    /// Posts the rest of a batch, whose first `accepted` requests are in the queue, and rings.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_send`].
    #[inline(never)]
    unsafe fn post_rest(&mut self, wrs: &[SendWr<'_>], mut accepted: usize) -> Result<(), PostError> {
        let mut refused = None;
        for wr in &wrs[accepted..] {
            // SAFETY: the caller makes the same promise.
            let posted = unsafe { self.post_one(wr) };
            if let Err(reason) = posted {
                refused = Some(reason);
                break;
            }
            accepted += 1;
        }
        if accepted > 0 {
            self.ring_all();
        }
        refused.map_or(Ok(()), |reason| Err(PostError { accepted, reason }))
    }

    /// Publishes the request at `at`. It took the fast path, and no other request waits for a
    /// doorbell.
    #[inline(always)]
    fn ring_one(&mut self, at: NonNull<u8>) {
        if self.resources.is_over() {
            return;
        }
        barrier::to_device();
        self.record.store(self.next_block().into());
        if self.carries_blocks {
            // SAFETY: the request is in the queue and has been stored; it has one block.
            unsafe { self.bell.ring_block(at) };
        } else {
            self.ring_other(at, 1);
        }
    }

    /// Publishes all requests since the last doorbell. There are several requests, all on the fast
    /// path, so the doorbell carries no request, and no request needs a fence after it.
    #[inline(always)]
    fn ring_many(&mut self) {
        self.lone_limit = self.limit;
        if self.resources.is_over() {
            return;
        }
        barrier::to_device();
        self.record.store(self.next_block().into());
        let last = self.last_block();
        // SAFETY: the last request is in the queue and has been stored.
        self.bell.ring(unsafe { wqe::head(last) });
    }

    /// Publishes all requests since the last doorbell.
    #[inline(always)]
    fn ring_all(&mut self) {
        if self.last.is_some() {
            return self.ring_special();
        }
        match self.waiting() {
            0 => {}
            1 => {
                self.lone_limit = self.limit;
                self.ring_one(self.last_block());
            }
            _ => self.ring_many(),
        }
    }

    /// Same as [`ring_all`](Self::ring_all), if some requests were off the fast path.
    #[inline(never)]
    fn ring_special(&mut self) {
        let (blocks, last) = (self.waiting(), self.last());
        if blocks == 0 || self.resources.is_over() {
            return;
        }
        (self.lone_limit, self.last) = (self.limit, None);
        barrier::to_device();
        self.record.store(self.next_block().into());
        self.ring_other(last, blocks);
    }

    /// Rings when the fast path of [`ring_all`](Self::ring_all) does not apply.
    #[inline(never)]
    fn ring_other(&mut self, last: NonNull<u8>, blocks: u32) {
        self.rung_fence = (self.head, self.fence);
        let (start, end) = (self.start, self.end());
        // SAFETY: the last request is in the queue and has been stored.
        let (head, ds) = unsafe { (wqe::head(last), wqe::size(last)) };
        let is_inline = || self.requests.kind((head >> 40) as u32 & 0xffff) == Kind::INLINE;
        let is_alone = ds.div_ceil(4) == blocks;
        let may_carry = is_alone && ds > 1 && (self.prefers_blue_flame || is_inline());
        if may_carry && ds <= self.bell.max_units {
            // SAFETY: as above.
            unsafe { self.bell.ring_request(last, start, end, ds) };
        } else {
            self.bell.ring(head);
        }
    }
}

impl SendQueue for Sq {
    #[inline(always)]
    unsafe fn post_one(&mut self, wr: &SendWr<'_>) -> Result<(), PostReason> {
        // SAFETY: the caller makes the same promise.
        if unsafe { self.post_fast(wr, FastPath::Inlined) } {
            return Ok(());
        }
        // A copy, so that a request built by the caller for this call stays in registers on the
        // fast path, together with its list.
        let one = wr.sge.first().copied();
        let sge = if wr.sge.len() == 1 { one.as_slice() } else { wr.sge };
        let wr = SendWr { sge, ..*wr };
        // SAFETY: the caller makes the same promise.
        unsafe { self.post_any(&wr) }
    }

    #[inline(always)]
    unsafe fn post_fast(&mut self, wr: &SendWr<'_>, path: FastPath) -> bool {
        let place = self.place();
        if path == FastPath::Alone {
            if place.head.wrapping_sub(self.lone_limit).cast_signed() >= 0 {
                return false;
            }
            // SAFETY: the caller makes the same promise; there is room.
            let Some(at) = (unsafe { self.put_wqe::<false, false>(place, wr) }) else { return false };
            self.move_to(place.behind(1));
            self.ring_one(at);
            return true;
        }
        if place.head == self.limit {
            return false;
        }
        // SAFETY: as above.
        let put = unsafe {
            if path == FastPath::Inlined {
                self.put_wqe::<true, false>(place, wr)
            } else {
                self.put_wqe::<false, true>(place, wr)
            }
        };
        if put.is_none() {
            // SAFETY: as above.
            return path == FastPath::Shared && unsafe { post_rare(self, wr) };
        }
        self.lone_limit = place.head;
        self.move_to(place.behind(1));
        true
    }

    #[inline(always)]
    fn ring(&mut self) -> Result<(), Errno> {
        self.ring_all();
        Ok(())
    }

    fn rollback(&mut self, count: usize) -> usize {
        let mut block = self.next_block().wrapping_sub(self.waiting() as u16);
        if block == self.next_block() {
            return 0;
        }
        let before = self.requests.head(block.into()).wrapping_sub(1);
        let pending = self.head.wrapping_sub(before);
        let count = pending.min(u32::try_from(count).unwrap_or(u32::MAX));
        if count == 0 {
            return 0;
        }
        // Entries vary in size, and each contains its own size: walk from the last doorbell.
        let (fenced, mut fence) = self.rung_fence;
        fence = if fenced == before { fence } else { 0 };
        self.last = None;
        for _ in 0..pending - count {
            let at = self.block(block);
            fence = self.requests.kind(block.into()).fence_behind();
            // SAFETY: this queue stored a whole entry there.
            block = block.wrapping_add(unsafe { wqe::size(at) }.div_ceil(4) as u16);
            self.last = Some((block, at));
        }
        (self.next, self.fence) = (u32::from(block) << 16, fence);
        self.head = self.head.wrapping_sub(count);
        // The fast path resumes with the next call to `has_room`.
        (self.limit, self.lone_limit) = (self.head, self.head);
        count as usize
    }

    #[inline(always)]
    unsafe fn post_send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let [wr] = wrs else {
            // SAFETY: the caller makes the same promise.
            return unsafe { self.post_many(wrs) };
        };
        // SAFETY: as above.
        if unsafe { self.post_fast(wr, FastPath::Alone) } {
            return Ok(());
        }
        let (one, wr) = (wr.sge.first().copied(), *wr);
        // A copy, so that a request built by the caller for this call stays in registers.
        let sge = if wr.sge.len() == 1 { one.as_slice() } else { wr.sge };
        // SAFETY: as above.
        unsafe { self.post_rest(&[SendWr { sge, ..wr }], 0) }
    }
}

/// Posts a request that [`FastPath::Shared`] does not handle. Not inlined, so that its caller needs
/// few registers.
///
/// # Safety
/// Same as [`SendQueue::post_one`].
#[cold]
#[inline(never)]
unsafe fn post_rare(sq: &mut Sq, wr: &SendWr<'_>) -> bool {
    // SAFETY: the caller makes the same promise.
    unsafe { sq.post_fast(wr, FastPath::Inlined) }
}

impl fmt::Debug for Sq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sq")
            .field("checks", &self.checks)
            .field("next_block", &self.next_block())
            .field("head", &self.head)
            .field("record", &self.record)
            .finish_non_exhaustive()
    }
}

/// The size of a slot in bytes.
const SLOT: usize = size_of::<SendSlot>();
const _: () = assert!(BLOCK == 4 * SLOT);

/// Returns the number of units in the longest request of a queue.
fn longest_request(qp_type: QpType, cap: &QpCap, has_windows: bool, frames: &Frames) -> u32 {
    let data = wqe::inline_units(cap.max_inline_data).max(cap.max_send_sge);
    let address = match qp_type {
        QpType::RAW_PACKET => {
            // Segmented sends have a longer header and no inline data.
            let frame = Frames::units(frames.min_inline) + data;
            return 1 + frame.max(Frames::units(frames.max_tso_header) + cap.max_send_sge);
        }
        QpType::UD => 3,
        QpType::XRC_SEND => 2,
        _ => 1,
    };
    let of_key = if has_windows { umr::UNITS } else { 0 };
    // An atomic needs one segment and one element beyond the address.
    let data = if qp_type == QpType::UD { data } else { data.max(2) };
    (1 + address + data).max(of_key)
}

/// Returns a table of the second halves of control segments, indexed by the request flags in
/// [`CONTROL_FLAGS`].
pub(super) fn control_flags(sq_sig_all: bool) -> [u64; CONTROL_FLAGS as usize + 1] {
    core::array::from_fn(|bits| {
        let flags = SendFlags::from_bits_retain(bits as u32);
        let set = |flag, bit| if flags.contains(flag) { bit } else { 0 };
        let all = if sq_sig_all { control::CQ_UPDATE } else { 0 };
        let flags: u8 = all
            | set(SendFlags::FENCE, control::FENCE)
            | set(SendFlags::SIGNALED, control::CQ_UPDATE)
            | set(SendFlags::SOLICITED, control::SOLICITED);
        wqe::joined(u32::from(flags).to_be(), 0)
    })
}
