//! The fast path: sends, writes and reads with one SGE, or with inline data that ends in the first
//! block. Such a request takes one block and does not wrap.
//!
//! # Safety
//! As in [`queue`](super::queue): a WQE is stored in one block, and the ring has space for it.
#![allow(unsafe_code)]

use core::ptr::NonNull;

use verbs_core::types::{SendFlags, SendOp, SendWr, Sge};

use super::limits::{CONTROL_FLAGS, Lengths};
use super::queue::Sq;
use crate::queue::record::Kind;
use crate::wqe::{self, UNIT, opcode};

/// The operation of a request on the fast path: its opcode, its immediate data, and its remote
/// address and key, if any.
type Plain = (u8, u32, Option<(u64, u32)>);

/// The position of a request: its first block, in the upper half of `next`, and the number of
/// requests before it.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) next: u32,
    pub(super) head: u32,
}

impl Place {
    /// Returns the position after a request of this many blocks.
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
    /// Returns the position of the next request.
    #[inline(always)]
    pub(super) const fn place(&self) -> Place {
        Place { next: self.next, head: self.head }
    }

    /// Advances the queue to a position.
    #[inline(always)]
    pub(super) const fn move_to(&mut self, Place { next, head }: Place) {
        (self.next, self.head) = (next, head);
    }

    /// Queues the sends and writes at the start of a list, as many as fit, and returns their
    /// number.
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
            // SAFETY: an element before the end of the `count` elements. The caller makes the same
            // promise; the WQE fits.
            if unsafe { self.put_wqe::<false, true>(place, &*next) }.is_none() {
                break;
            }
            place = place.behind(1);
            // SAFETY: at most one past the last element.
            next = unsafe { next.add(1) };
        }
        self.move_to(place);
        place.head.wrapping_sub(first.head) as usize
    }

    /// Stores the WQE for a request at a position if the fast path supports the operation. Returns
    /// the WQE's block, or `None`.
    ///
    /// With `ALL`, the function contains a copy of [`put_block`](Self::put_block) per operation,
    /// and a caller with a known operation keeps only one copy. Otherwise it contains sends and
    /// writes only: the compiler then uses comparisons instead of a jump table, and fewer
    /// registers.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_one`](verbs_core::provider::SendQueue::post_one); the WQE fits
    /// into the queue.
    #[inline(always)]
    pub(super) unsafe fn put_wqe<const ALL: bool, const IN_LIST: bool>(
        &self,
        place: Place,
        wr: &SendWr<'_>,
    ) -> Option<NonNull<u8>> {
        use opcode::{RDMA_READ, RDMA_WRITE, RDMA_WRITE_IMM, SEND, SEND_IMM};
        let limits = &self.limits;
        if !ALL {
            // SAFETY: the caller makes the same promise.
            let put = |lengths, plain| unsafe { self.put_block::<IN_LIST>(place, wr, lengths, plain) };
            return match wr.op {
                SendOp::RdmaWrite { remote_addr, rkey } => {
                    put(&limits.write, (RDMA_WRITE, 0, Some((remote_addr, rkey))))
                }
                SendOp::Send => put(&limits.send, (SEND, 0, None)),
                _ => None,
            };
        }
        // SAFETY: the caller makes the same promise.
        unsafe {
            match wr.op {
                SendOp::RdmaWrite { remote_addr, rkey } => {
                    let remote = Some((remote_addr, rkey));
                    self.put_block::<IN_LIST>(place, wr, &limits.write, (RDMA_WRITE, 0, remote))
                }
                SendOp::Send => self.put_block::<IN_LIST>(place, wr, &limits.send, (SEND, 0, None)),
                SendOp::SendWithImm { imm_data } => {
                    self.put_block::<IN_LIST>(place, wr, &limits.send_imm, (SEND_IMM, imm_data, None))
                }
                SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data } => {
                    let remote = Some((remote_addr, rkey));
                    let plain = (RDMA_WRITE_IMM, imm_data, remote);
                    self.put_block::<IN_LIST>(place, wr, &limits.write_imm, plain)
                }
                SendOp::RdmaRead { remote_addr, rkey } => {
                    let remote = Some((remote_addr, rkey));
                    self.put_block::<IN_LIST>(place, wr, &limits.read, (RDMA_READ, 0, remote))
                }
                _ => None,
            }
        }
    }

    /// Stores the WQE for a request with this operation in the block at a position, if the request
    /// has one SGE or short inline data. Returns the block, or `None`.
    ///
    /// A function that posts a list tests only once whether data is inline (`IN_LIST`); other
    /// functions test once for the length and again for the segments. This saves two instructions,
    /// but needs more registers, which a function that posts a single request would have to save.
    ///
    /// # Safety
    /// Same as [`put_wqe`](Self::put_wqe).
    #[inline(always)]
    unsafe fn put_block<const IN_LIST: bool>(
        &self,
        place: Place,
        wr: &SendWr<'_>,
        lengths: &Lengths,
        plain: Plain,
    ) -> Option<NonNull<u8>> {
        /// Stores the segments for a request with one SGE, or with inline data that ends in the
        /// first block, and returns the block.
        ///
        /// # Safety
        /// Same as `put_block`; the request was checked.
        #[inline(always)]
        unsafe fn store(
            sq: &Sq,
            place: Place,
            wr: &SendWr<'_>,
            sge: &Sge,
            is_inline: bool,
            (opcode, imm, remote): Plain,
        ) -> NonNull<u8> {
            let block = sq.block_at(place.next);
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
                sq.put_control(wr, place, block, (opcode, imm, units as u32 + data_units, kind));
            }
            block
        }

        const INLINE: u32 = SendFlags::INLINE.bits();
        let [sge] = wr.sge else { return None };
        let flags = wr.flags.bits();
        // Empty elements take the slow path, too.
        let fits = |max: u32| sge.length.wrapping_sub(1) < max;
        // SAFETY: the caller's promise; the request was checked.
        unsafe {
            if !IN_LIST {
                if flags > CONTROL_FLAGS || !fits(lengths[flags as usize]) {
                    return None;
                }
                Some(store(self, place, wr, sge, flags & INLINE != 0, plain))
            } else if flags < INLINE {
                fits(lengths[0]).then(|| store(self, place, wr, sge, false, plain))
            } else {
                let is_taken = flags <= CONTROL_FLAGS && fits(lengths[INLINE as usize]);
                is_taken.then(|| store(self, place, wr, sge, true, plain))
            }
        }
    }

    /// Stores a request's control segment and records the request. This is the last step for every
    /// WQE: the segments after the control segment have been stored.
    ///
    /// # Safety
    /// The request was checked, it fits into the queue, and its segments are complete; `at` is the
    /// block at that position.
    #[inline(always)]
    pub(super) unsafe fn put_control(
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
