//! Requests off the fast path: datagrams, atomics, operations on keys, and lists and inline data of
//! any length. Their entries may wrap at the end of the queue.
//!
//! # Safety
//! As for the [fast path](super): the blocks of an entry are free, and the checks limit the
//! segments to these blocks. The caller of `post_one` guarantees that the memory of inline data is
//! readable.
#![allow(unsafe_code)]

use verbs_core::checks::ATOMIC_LENGTH;
use verbs_core::types::{Av, OpKind, PostReason, QpType, SendFlags, SendOp, SendWr, Sge, UdAddr};

use super::frame::{Frame, L2_HEADER};
use super::queue::Sq;
use super::umr::{Change, SEGMENTS};
use crate::device::AV_TAG;
use crate::queue::record::Kind;
use crate::wqe::{self, AV_LEN, Cursor, UNIT, Words, opcode, pair};

/// The bit of `dqp_dct` that marks an address vector with all fields.
const EXTENDED: u32 = 1 << 31;

impl Sq {
    /// Posts any request after checking it, or returns the reason for rejecting it. Used for
    /// requests the fast path does not take.
    ///
    /// Not inlined, because saving its registers would cost the fast path more than the call costs
    /// here.
    ///
    /// # Safety
    /// Same as [`SendQueue::post_one`](verbs_core::provider::SendQueue::post_one).
    #[inline(never)]
    pub(super) unsafe fn post_any(&mut self, wr: &SendWr<'_>) -> Result<(), PostReason> {
        let length = self.checks.check(wr)?;
        let list = wr.sge.iter().copied();
        let put = |sq: &mut Self, opcode, imm, segments: &[Words]| {
            // SAFETY: the caller's promise; the request has passed the checks.
            unsafe { sq.put_segments(wr, (opcode, imm), segments.iter().copied(), list, length) }
        };
        match &wr.op {
            SendOp::BindMw { mw_type, rkey, new_rkey, bind_info } => {
                let (mw_type, new_rkey) = (*mw_type, *new_rkey);
                let change = Change { mw_type, new_rkey, bind: bind_info, qp_num: self.qp_num };
                put(self, opcode::UMR, *rkey, change.segments(&mut [[0; 2]; SEGMENTS])?)
            }
            SendOp::LocalInv { invalidate_rkey } => {
                let change = Change::invalidation(self.qp_num);
                put(self, opcode::UMR, *invalidate_rkey, change.segments(&mut [[0; 2]; SEGMENTS])?)
            }
            SendOp::UdSend { to } => put(self, opcode::SEND, 0, &datagram(to)?),
            SendOp::UdSendWithImm { to, imm_data } => put(self, opcode::SEND_IMM, *imm_data, &datagram(to)?),
            SendOp::Send | SendOp::Tso { .. } if self.checks.qp_type() == QpType::RAW_PACKET => {
                let mut header = [0; L2_HEADER as usize];
                // SAFETY: the caller's promise; the request has passed the checks.
                unsafe {
                    let frame = Frame::new(&self.frames, wr, length, &mut header)?;
                    let opcode = frame.opcode;
                    self.put_segments(wr, (opcode, 0), frame.ethernet(), frame.data(), frame.length)
                }
            }
            op => {
                let qp_type = self.checks.qp_type();
                let (opcode, imm, segments) =
                    connected(op).map_err(|op| PostReason::UnsupportedOp { op, qp_type })?;
                put(self, opcode, imm, segments.as_slice())
            }
        }
    }

    /// Puts a request of any size into the queue: a WQE with a control segment, these segments, and
    /// then the data, a list of `length` bytes. Used by [`post_any`](Self::post_any). The WQE has
    /// the fence the previous request requires.
    ///
    /// # Safety
    /// Same as [`post_any`](Self::post_any), for a request that has passed the checks, which limit
    /// its segments and data to [`Shape::blocks_of_request`](super::Shape::blocks_of_request).
    unsafe fn put_segments(
        &mut self,
        wr: &SendWr<'_>,
        (opcode, imm): (u8, u32),
        segments: impl Iterator<Item = Words>,
        data: impl Iterator<Item = Sge>,
        length: u32,
    ) -> Result<(), PostReason> {
        if !self.has_room() {
            return Err(PostReason::QueueFull);
        }
        // An empty list has no inline data, as in libmlx5. Such a request is not stored into the
        // register if the program prefers doorbells.
        let is_inline = wr.flags.contains(SendFlags::INLINE) && !wr.sge.is_empty();
        let kind = match wr.op {
            SendOp::BindMw { .. } => Kind::BIND,
            SendOp::LocalInv { .. } => Kind::INVALIDATE,
            _ => Kind::of_data(opcode, is_inline),
        };
        let place = self.place();
        let at = self.block_at(place.next);
        // SAFETY: the WQE starts at a block of the queue, and its blocks are free (`has_room`); the
        // caller promises that inline memory is readable.
        let ds = unsafe {
            let mut cursor = Cursor::new(at.add(UNIT), self.start, self.end(), 1);
            for words in segments {
                cursor.put(words);
            }
            if is_inline {
                cursor.put_inline(data, length);
            } else {
                cursor.put_list(data);
            }
            self.put_control(wr, place, at, (opcode, imm, cursor.ds, kind));
            cursor.ds
        };
        self.move_to(place.behind(ds.div_ceil(4)));
        self.last = Some((self.next_block(), at));
        // A fence the program requests is stronger.
        if self.fence != 0 && !wr.flags.contains(SendFlags::FENCE) {
            // SAFETY: the flags of the control segment just stored, which the device does not read
            // before the doorbell.
            unsafe { *at.add(wqe::FM_CE_SE).as_ptr() |= self.fence };
        }
        self.fence = kind.fence_behind();
        if self.fence != 0 {
            // The next request must take the slow path.
            self.limit = self.head;
        }
        Ok(())
    }
}

/// The segments between the control segment and the data, for a request on a connected queue pair.
#[derive(Default)]
struct Segments {
    words: [Words; 3],
    count: usize,
}

impl Segments {
    fn push(&mut self, words: Words) {
        self.words[self.count] = words;
        self.count += 1;
    }

    fn as_slice(&self) -> &[Words] {
        &self.words[..self.count]
    }
}

/// Returns the opcode, the immediate data and the segments for an operation on a connected queue
/// pair. The segments begin with an XRC segment if the operation names a shared receive queue.
///
/// # Errors
/// Returns the operation's kind if the device does not support it.
fn connected(op: &SendOp<'_>) -> Result<(u8, u32, Segments), OpKind> {
    let mut segments = Segments::default();
    let op = match *op {
        SendOp::Xrc { remote_srqn, op } => {
            segments.push([pair(remote_srqn, 0), 0]);
            op
        }
        ref op => op,
    };
    let (opcode, imm) = match *op {
        SendOp::Send => (opcode::SEND, 0),
        SendOp::SendWithImm { imm_data } => (opcode::SEND_IMM, imm_data),
        SendOp::SendWithInv { invalidate_rkey } => (opcode::SEND_INVAL, invalidate_rkey),
        SendOp::RdmaWrite { remote_addr, rkey } => {
            segments.push(wqe::remote(remote_addr, rkey));
            (opcode::RDMA_WRITE, 0)
        }
        SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data } => {
            segments.push(wqe::remote(remote_addr, rkey));
            (opcode::RDMA_WRITE_IMM, imm_data)
        }
        SendOp::RdmaRead { remote_addr, rkey } => {
            segments.push(wqe::remote(remote_addr, rkey));
            (opcode::RDMA_READ, 0)
        }
        SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare, swap } => {
            segments.push(wqe::remote(remote_addr, rkey));
            segments.push([swap, compare]);
            (opcode::ATOMIC_CS, 0)
        }
        SendOp::AtomicFetchAndAdd { remote_addr, rkey, add } => {
            segments.push(wqe::remote(remote_addr, rkey));
            segments.push([add, 0]);
            (opcode::ATOMIC_FA, 0)
        }
        _ => return Err(op.kind()),
    };
    Ok((opcode, imm, segments))
}

/// Returns the segments for a datagram's destination.
fn datagram(to: &UdAddr<'_>) -> Result<[Words; 3], PostReason> {
    let av = av(to.av).ok_or(PostReason::ForeignAv)?;
    let word = |at: usize| u64::from_be_bytes(core::array::from_fn(|byte| av[at + byte]));
    let dqp = pair(to.remote_qpn | EXTENDED, 0);
    Ok([[pair(to.remote_qkey, 0), word(8) | dqp], [word(16), word(24)], [word(32), word(40)]])
}

/// Returns the bytes of a path that this provider created.
fn av(av: &Av) -> Option<&[u8; AV_LEN]> {
    av.bytes(AV_TAG)?.try_into().ok()
}

/// An atomic has an 8-byte list, and the device writes 8 bytes.
const _: () = assert!(ATOMIC_LENGTH == 8 && size_of::<Sge>() == UNIT);
