//! The fast path: sends, writes and reads with one SGE, or with inline data that ends in the first
//! block. Such a request takes one block and does not wrap.
//!
//! | function | puts in |
//! |---|---|
//! | `post_plain` | one request, whose operation the compiler often knows |
//! | `put_one` | a send or a write |
//! | `put_batch` | the sends and writes at the start of a list, unknown to the compiler |
//!
//! A list with other requests, or longer than the room in the queue, continues in `post_rest`, out
//! of line.
//!
//! # Safety
//! As in the parent module: an entry is stored in one block, for which there is room.
#![allow(unsafe_code)]

use core::ptr::NonNull;

use verbs_core::checks::{PlainLimits, SendChecks};
use verbs_core::types::{OpKind, SendFlags, SendOp, SendWr, Sge};

use super::Sq;
use crate::queue::record::Kind;
use crate::wqe::{self, BLOCK, UNIT, opcode};

/// The maximum lengths of requests on the fast path in bytes, by the flags of a request.
type Lengths = [u32; CONTROL_FLAGS as usize + 1];

/// The flags of a request that affect its control segment or its maximum length.
pub(super) const CONTROL_FLAGS: u32 = 0xf;

/// The maximum lengths of requests on the fast path, by their operation.
pub(super) struct Limits {
    write: Lengths,
    write_imm: Lengths,
    send: Lengths,
    send_imm: Lengths,
    read: Lengths,
}

impl Limits {
    pub(super) fn new(checks: &SendChecks) -> Self {
        let limits = |op, units| {
            let PlainLimits { max_length, max_inline } = checks.plain_limits(op);
            let max_inline = max_inline.min(Self::room(units));
            let is_inline = |flags: usize| flags & SendFlags::INLINE.bits() as usize != 0;
            core::array::from_fn(|flags| if is_inline(flags) { max_inline } else { max_length })
        };
        Self {
            write: limits(OpKind::RDMA_WRITE, 2),
            write_imm: limits(OpKind::RDMA_WRITE_WITH_IMM, 2),
            send: limits(OpKind::SEND, 1),
            send_imm: limits(OpKind::SEND_WITH_IMM, 1),
            read: limits(OpKind::RDMA_READ, 2),
        }
    }

    /// Returns the maximum number of bytes of inline data after this many units, if the data ends
    /// in the first block.
    const fn room(units: usize) -> u32 {
        (BLOCK - units * UNIT - size_of::<u32>()) as u32
    }
}

/// The operation of a common request: its opcode, its immediate data, and its remote address and
/// key.
type Plain = (u8, u32, Option<(u64, u32)>);

/// Returns the parts of a common operation; `None` for the others.
#[inline(always)]
pub(super) const fn plain(op: &SendOp<'_>) -> Option<Plain> {
    use opcode::{RDMA_READ, RDMA_WRITE, RDMA_WRITE_IMM, SEND, SEND_IMM};
    match *op {
        SendOp::Send => Some((SEND, 0, None)),
        SendOp::SendWithImm { imm_data } => Some((SEND_IMM, imm_data, None)),
        SendOp::RdmaWrite { remote_addr, rkey } => Some((RDMA_WRITE, 0, Some((remote_addr, rkey)))),
        SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data } => {
            Some((RDMA_WRITE_IMM, imm_data, Some((remote_addr, rkey))))
        }
        SendOp::RdmaRead { remote_addr, rkey } => Some((RDMA_READ, 0, Some((remote_addr, rkey)))),
        _ => None,
    }
}

/// The place of a request: its first block, in the upper half of `next`, and the number of requests
/// before it.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) next: u32,
    pub(super) head: u32,
}

impl Place {
    /// Returns the place after a request of this many blocks.
    #[inline(always)]
    pub(super) const fn behind(self, blocks: u32) -> Self {
        Self { next: self.next.wrapping_add(blocks << 16), head: self.head.wrapping_add(1) }
    }

    /// Returns the first word of a control segment in device format: 8 zero bits, the block, and
    /// the operation.
    #[inline(always)]
    const fn word(self, opcode: u8) -> u32 {
        self.next.wrapping_add((opcode as u32) << 8).rotate_right(8).to_be()
    }
}

impl Sq {
    /// Returns the place of the next request.
    #[inline(always)]
    pub(super) const fn place(&self) -> Place {
        Place { next: self.next, head: self.head }
    }

    /// Moves to a place.
    #[inline(always)]
    pub(super) const fn move_to(&mut self, Place { next, head }: Place) {
        (self.next, self.head) = (next, head);
    }

    /// Posts a common request by the fast path and returns whether it did.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_one`](verbs_core::provider::SendQueue::post_one).
    #[inline(always)]
    pub(super) unsafe fn post_plain(&mut self, wr: &SendWr<'_>) -> bool {
        use opcode::{RDMA_READ, RDMA_WRITE, RDMA_WRITE_IMM, SEND, SEND_IMM};
        if self.head == self.limit {
            return false;
        }
        let (place, limits) = (self.place(), &self.limits);
        // A copy for each operation, so that the entry's shape is known at compile time. SAFETY:
        // the caller's promise is the same; there is room.
        let put = unsafe {
            match wr.op {
                SendOp::RdmaWrite { remote_addr, rkey } => {
                    self.put(place, wr, &limits.write, (RDMA_WRITE, 0, Some((remote_addr, rkey))))
                }
                SendOp::Send => self.put(place, wr, &limits.send, (SEND, 0, None)),
                SendOp::SendWithImm { imm_data } => {
                    self.put(place, wr, &limits.send_imm, (SEND_IMM, imm_data, None))
                }
                SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data } => {
                    let remote = Some((remote_addr, rkey));
                    self.put(place, wr, &limits.write_imm, (RDMA_WRITE_IMM, imm_data, remote))
                }
                SendOp::RdmaRead { remote_addr, rkey } => {
                    self.put(place, wr, &limits.read, (RDMA_READ, 0, Some((remote_addr, rkey))))
                }
                _ => None,
            }
        };
        if put.is_none() {
            return false;
        }
        self.lone_limit = place.head;
        self.move_to(place.behind(1));
        true
    }

    /// Posts a send or a write by the fast path and returns whether it did. Other requests call
    /// [`post_other`](Self::post_other), so this function needs few registers.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_one`](verbs_core::provider::SendQueue::post_one).
    #[inline(always)]
    pub(super) unsafe fn post_common(&mut self, wr: &SendWr<'_>) -> bool {
        let place = self.place();
        if place.head == self.limit {
            return false;
        }
        // SAFETY: the caller's promise is the same; there is room.
        if unsafe { self.put_common::<true>(place, wr) }.is_none() {
            return false;
        }
        self.lone_limit = place.head;
        self.move_to(place.behind(1));
        true
    }

    /// Posts a request like [`post_plain`](Self::post_plain), out of line.
    ///
    /// # Safety
    /// Same as [`post_plain`](Self::post_plain).
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn post_other(&mut self, wr: &SendWr<'_>) -> bool {
        // SAFETY: the caller's promise is the same.
        unsafe { self.post_plain(wr) }
    }

    /// Puts in a send or a write with its own doorbell. Returns its block if it did.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_send`](verbs_core::provider::SendQueue::post_send).
    #[inline(always)]
    pub(super) unsafe fn put_one(&mut self, wr: &SendWr<'_>) -> Option<NonNull<u8>> {
        let place = self.place();
        if place.head.wrapping_sub(self.lone_limit).cast_signed() >= 0 {
            return None;
        }
        // SAFETY: the caller's promise is the same; there is room.
        let at = unsafe { self.put_common::<false>(place, wr) }?;
        self.move_to(place.behind(1));
        Some(at)
    }

    /// Puts in the sends and writes at the start of a list, as far as there is room, and returns
    /// their number.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_send`](verbs_core::provider::SendQueue::post_send).
    #[inline(always)]
    pub(super) unsafe fn put_batch(&mut self, wrs: &[SendWr<'_>]) -> usize {
        let room = self.limit.wrapping_sub(self.head) as usize;
        let count = wrs.len().min(room);
        let first = self.place();
        let (mut place, end) = (first, first.head.wrapping_add(count as u32));
        let mut next = wrs.as_ptr();
        while place.head != end {
            // SAFETY: an element before the end of the `count` elements. The caller's promise is
            // the same; there is room.
            if unsafe { self.put_common::<true>(place, &*next) }.is_none() {
                break;
            }
            place = place.behind(1);
            // SAFETY: at most one past the last element.
            next = unsafe { next.add(1) };
        }
        self.move_to(place);
        place.head.wrapping_sub(first.head) as usize
    }

    /// Stores a send or a write at a place. Returns its block if it did.
    ///
    /// With two operations, the compiler uses comparisons instead of a jump table.
    ///
    /// # Safety
    /// Same as [`put`](Self::put).
    #[inline(always)]
    unsafe fn put_common<const IN_LIST: bool>(&self, place: Place, wr: &SendWr<'_>) -> Option<NonNull<u8>> {
        let limits = &self.limits;
        // SAFETY: the caller's promise.
        let put = |lengths, plain| unsafe {
            if IN_LIST {
                self.put_in_list(place, wr, lengths, plain)
            } else {
                self.put(place, wr, lengths, plain)
            }
        };
        match wr.op {
            SendOp::RdmaWrite { remote_addr, rkey } => {
                put(&limits.write, (opcode::RDMA_WRITE, 0, Some((remote_addr, rkey))))
            }
            SendOp::Send => put(&limits.send, (opcode::SEND, 0, None)),
            _ => None,
        }
    }

    /// Stores a common request at a place, if it has one SGE or short inline data. Returns its
    /// block if it did.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_one`](verbs_core::provider::SendQueue::post_one); there is room.
    #[inline(always)]
    unsafe fn put(
        &self,
        place: Place,
        wr: &SendWr<'_>,
        lengths: &Lengths,
        plain: Plain,
    ) -> Option<NonNull<u8>> {
        let [sge] = wr.sge else { return None };
        let flags = wr.flags.bits();
        if flags > CONTROL_FLAGS {
            return None;
        }
        let (length, max) = (sge.length, lengths[flags as usize]);
        // Empty elements take the other path, too.
        if length.wrapping_sub(1) >= max {
            return None;
        }
        let is_inline = flags & SendFlags::INLINE.bits() != 0;
        // SAFETY: the caller's promise; the request was checked.
        Some(unsafe { self.store(place, wr, sge, is_inline, plain) })
    }

    /// Stores the same as [`put`](Self::put), but tests only once whether data is inline; `put`
    /// tests it for the length and again for the entry. This saves two instructions, but needs more
    /// registers, which a function that posts a single request would have to save.
    ///
    /// # Safety
    /// Same as [`put`](Self::put).
    #[inline(always)]
    unsafe fn put_in_list(
        &self,
        place: Place,
        wr: &SendWr<'_>,
        lengths: &Lengths,
        plain: Plain,
    ) -> Option<NonNull<u8>> {
        const INLINE: u32 = SendFlags::INLINE.bits();
        let [sge] = wr.sge else { return None };
        let flags = wr.flags.bits();
        let fits = |max: u32| sge.length.wrapping_sub(1) < max;
        // SAFETY: as in `put`.
        unsafe {
            if flags < INLINE {
                fits(lengths[0]).then(|| self.store(place, wr, sge, false, plain))
            } else {
                let is_taken = flags <= CONTROL_FLAGS && fits(lengths[INLINE as usize]);
                is_taken.then(|| self.store(place, wr, sge, true, plain))
            }
        }
    }

    /// Stores the entry of a request with one SGE, or with inline data that ends in the first
    /// block, and returns the block.
    ///
    /// # Safety
    /// Same as [`put`](Self::put); the request was checked.
    #[inline(always)]
    unsafe fn store(
        &self,
        place: Place,
        wr: &SendWr<'_>,
        sge: &Sge,
        is_inline: bool,
        (opcode, imm, remote): Plain,
    ) -> NonNull<u8> {
        let block = self.block_at(place.next);
        let units = if remote.is_some() { 2 } else { 1 };
        // SAFETY: the segments lie in the block, which no unfinished request uses; the caller
        // promises that inline memory is readable.
        unsafe {
            if let Some((remote_addr, rkey)) = remote {
                wqe::store(block.add(UNIT), wqe::remote(remote_addr, rkey));
            }
            let at = block.add(units * UNIT);
            let (data_units, kind) = if is_inline {
                let from = core::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
                (wqe::store_inline(at, from, sge.length), Kind::of_data(opcode, true))
            } else {
                wqe::store(at, wqe::data(sge));
                (1, Kind::of_data(opcode, false))
            };
            self.finish(wr, place, block, (opcode, imm, units as u32 + data_units, kind));
        }
        block
    }

    /// Stores a request's control segment and records the request. The segments after it have been
    /// stored.
    ///
    /// # Safety
    /// The request was checked, there is room for it, and its segments are complete; `at` is the
    /// block of the place.
    #[inline(always)]
    pub(super) unsafe fn finish(
        &self,
        wr: &SendWr<'_>,
        place: Place,
        at: NonNull<u8>,
        (opcode, imm, ds, kind): (u8, u32, u32, Kind),
    ) {
        let flags_imm = self.flags[(wr.flags.bits() & CONTROL_FLAGS) as usize] | wqe::joined(0, imm.to_be());
        // SAFETY: the caller has made sure that the block belongs to this request. The record has a
        // slot for each block (`new`) and lives as long as the queue.
        unsafe {
            wqe::store_control(at, place.word(opcode), self.qpn_word | ds.to_be(), flags_imm);
            self.slot(place.next).as_ref().put(wr.wr_id, place.head.wrapping_add(1), kind);
        }
    }
}
