//! Requests off the fast path: datagrams, atomics, operations on keys, lists of any length, inline
//! data of any length. Their entries may wrap at the end of the queue.
//!
//! # Safety
//! As for the [fast path](super): the blocks of an entry are free, and the checks limit the
//! segments to these blocks. The caller of `post_one` promises the memory of inline data.
#![allow(unsafe_code)]

use verbs_core::checks::ATOMIC_LENGTH;
use verbs_core::types::{Av, MwBindInfo, MwType, PostReason, QpType, SendFlags, SendOp, SendWr, Sge, UdAddr};

use super::Sq;
use super::plain::plain;
use super::umr::Change;
use crate::device::AV_TAG;
use crate::queue::record::Kind;
use crate::wqe::{self, Cursor, UNIT, Words, opcode, pair};

/// `dqp_dct` of an address vector with all its fields.
const EXTENDED: u32 = 1 << 31;

/// The size of a datagram's address vector.
pub(crate) const AV_LEN: usize = 48;

impl Sq {
    /// Posts any request, or returns the reason for rejecting it.
    ///
    /// Out of line, because its registers would cost the fast path more than the call costs here.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_one`](verbs_core::provider::SendQueue::post_one).
    #[inline(never)]
    pub(super) unsafe fn post_any(&mut self, wr: &SendWr<'_>) -> Result<(), PostReason> {
        let length = self.checks.check(wr)?;
        match &wr.op {
            // SAFETY: the caller's promise; the request has passed the checks.
            SendOp::LocalInv { .. } | SendOp::BindMw { .. } => unsafe { self.post_change(wr) },
            SendOp::UdSend { to } => {
                let av = self.datagram(to)?;
                // SAFETY: as above.
                unsafe { self.post_segments(wr, opcode::SEND, 0, &av, length) }
            }
            SendOp::UdSendWithImm { to, imm_data } => {
                let av = self.datagram(to)?;
                // SAFETY: as above.
                unsafe { self.post_segments(wr, opcode::SEND_IMM, *imm_data, &av, length) }
            }
            SendOp::Send | SendOp::Tso { .. } if self.checks.qp_type() == QpType::RAW_PACKET => {
                // SAFETY: as above.
                unsafe { self.post_frame(wr, length) }
            }
            SendOp::Xrc { remote_srqn, op } => {
                let srq = [pair(*remote_srqn, 0), 0];
                // SAFETY: as above.
                unsafe { self.post_connected(wr, op, Some(srq), length) }
            }
            // SAFETY: as above.
            op => unsafe { self.post_connected(wr, op, None, length) },
        }
    }

    /// Posts an operation of a connected queue pair, after an XRC segment if any.
    ///
    /// # Safety
    /// Same as [`post_any`](Self::post_any), for a request that has passed the checks.
    unsafe fn post_connected(
        &mut self,
        wr: &SendWr<'_>,
        op: &SendOp<'_>,
        xrc: Option<Words>,
        length: u32,
    ) -> Result<(), PostReason> {
        let mut segments = [[0; 2]; 3];
        let mut count = 0;
        let mut push = |words: Words| {
            segments[count] = words;
            count += 1;
        };
        if let Some(words) = xrc {
            push(words);
        }
        let mut atomic = |remote_addr: u64, rkey: u32, words: Words| {
            push(wqe::remote(remote_addr, rkey));
            push(words);
        };
        let (opcode, imm) = match *op {
            SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare, swap } => {
                atomic(remote_addr, rkey, [swap, compare]);
                (opcode::ATOMIC_CS, 0)
            }
            SendOp::AtomicFetchAndAdd { remote_addr, rkey, add } => {
                atomic(remote_addr, rkey, [add, 0]);
                (opcode::ATOMIC_FA, 0)
            }
            SendOp::SendWithInv { invalidate_rkey } => (opcode::SEND_INVAL, invalidate_rkey),
            ref op => {
                let Some((opcode, imm, remote)) = plain(op) else {
                    return Err(PostReason::UnsupportedOp { op: op.kind(), qp_type: self.checks.qp_type() });
                };
                if let Some((remote_addr, rkey)) = remote {
                    push(wqe::remote(remote_addr, rkey));
                }
                (opcode, imm)
            }
        };
        let segments = &segments[..count];
        // SAFETY: the caller's promise.
        unsafe { self.post_segments(wr, opcode, imm, segments, length) }
    }

    /// Posts a request with these segments after its control segment, followed by its data.
    ///
    /// # Safety
    /// Same as [`post_any`](Self::post_any), for a request that has passed the checks.
    unsafe fn post_segments(
        &mut self,
        wr: &SendWr<'_>,
        opcode: u8,
        imm: u32,
        segments: &[Words],
        length: u32,
    ) -> Result<(), PostReason> {
        if !self.has_room() {
            return Err(PostReason::QueueFull);
        }
        // An empty list has no inline data, as in libmlx5. Such a request stays out of the register
        // if the program prefers doorbells.
        let is_inline = wr.flags.contains(SendFlags::INLINE) && !wr.sge.is_empty();
        let mut cursor = self.behind_control();
        // SAFETY: a request that has passed the checks takes at most `Shape::blocks_of_request`
        // blocks, which are free (`has_room`); the caller promises that inline memory is readable.
        unsafe {
            for words in segments {
                cursor.put(*words);
            }
            if is_inline {
                cursor.put_inline(wr.sge.iter().copied(), length);
            } else {
                cursor.put_list(wr.sge.iter().copied());
            }
            self.finish_any(wr, opcode, imm, cursor.ds, Kind::of_data(opcode, is_inline));
        }
        Ok(())
    }

    /// Posts an operation on a key.
    ///
    /// # Safety
    /// Same as [`post_any`](Self::post_any), for a request that has passed the checks.
    unsafe fn post_change(&mut self, wr: &SendWr<'_>) -> Result<(), PostReason> {
        let (rkey, change, kind) = match wr.op {
            SendOp::BindMw { mw_type, rkey, new_rkey, bind_info } => {
                let change = Change { mw_type, new_rkey, bind: bind_info, qp_num: self.qp_num };
                (rkey, change, Kind::BIND)
            }
            SendOp::LocalInv { invalidate_rkey } => {
                const NOTHING: &MwBindInfo = &MwBindInfo {
                    lkey: 0,
                    addr: 0,
                    length: 0,
                    mw_access_flags: verbs_core::types::AccessFlags::empty(),
                };
                let change =
                    Change { mw_type: MwType::TYPE_2, new_rkey: 0, bind: NOTHING, qp_num: self.qp_num };
                (invalidate_rkey, change, Kind::INVALIDATE)
            }
            _ => return Err(PostReason::UnsupportedOp { op: wr.op.kind(), qp_type: self.checks.qp_type() }),
        };
        change.check()?;
        if !self.has_room() {
            return Err(PostReason::QueueFull);
        }
        let mut cursor = self.behind_control();
        // SAFETY: a queue with windows has room for these entries in each request
        // (`Shape::blocks_of_request`), and the blocks are free (`has_room`).
        unsafe {
            change.put(&mut cursor);
            self.finish_any(wr, opcode::UMR, rkey, cursor.ds, kind);
        }
        Ok(())
    }

    /// Returns the place after the control segment of the next entry.
    pub(super) fn behind_control(&self) -> Cursor {
        let block = self.block_at(self.next);
        // SAFETY: inside a block of the queue, after its first unit.
        unsafe { Cursor::new(block.add(UNIT), self.start, self.end(), 1) }
    }

    /// Finishes a request of any size, with the fence required by the previous one.
    ///
    /// # Safety
    /// Same as [`finish`](Self::finish).
    pub(super) unsafe fn finish_any(&mut self, wr: &SendWr<'_>, opcode: u8, imm: u32, ds: u32, kind: Kind) {
        let place = self.place();
        let at = self.block_at(place.next);
        // SAFETY: the caller's promise is the same.
        unsafe { self.finish(wr, place, at, (opcode, imm, ds, kind)) };
        self.move_to(place.behind(ds.div_ceil(4)));
        self.last = Some((self.next_block(), at));
        // The program's fence is stronger.
        if self.fence != 0 && !wr.flags.contains(SendFlags::FENCE) {
            // SAFETY: the flags of the control segment just stored, which the device does not read
            // before the doorbell.
            unsafe { *at.add(wqe::FM_CE_SE).as_ptr() |= self.fence };
        }
        self.fence = kind.fence_behind();
        if self.fence != 0 {
            // The next request is off the fast path.
            self.limit = self.head;
        }
    }

    /// Returns the segment of a datagram's destination.
    fn datagram(&self, to: &UdAddr<'_>) -> Result<[Words; 3], PostReason> {
        let av = av(to.av).ok_or(PostReason::ForeignAv)?;
        let word = |at: usize| u64::from_be_bytes(core::array::from_fn(|byte| av[at + byte]));
        let dqp = pair(to.remote_qpn | EXTENDED, 0);
        Ok([[pair(to.remote_qkey, 0), word(8) | dqp], [word(16), word(24)], [word(32), word(40)]])
    }
}

/// Returns the bytes of a path created by this provider.
fn av(av: &Av) -> Option<&[u8; AV_LEN]> {
    av.bytes(AV_TAG)?.try_into().ok()
}

/// An atomic has a list of 8 bytes, and the device writes 8.
const _: () = assert!(ATOMIC_LENGTH == 8 && size_of::<Sge>() == UNIT);
