//! [`Lot`]: the table of buffers that are parked in one queue of a queue pair.
//!
//! Parking is how safe code posts: the buffer moves into the table, its address goes to the device, and only the
//! completion of that very work request gets it out again.
//!
//! # Why this is sound
//! The claim: while a device may write the bytes of a [`Buf`], no safe code holds that `Buf`. Numbers in brackets are those
//! of the contract of [`Provider`](verbs_core::provider::Provider), under Safety.
//!
//! 1. *In.* A `Buf` is the only way to its bytes (see [`crate::buffer`]), and posting takes it by value. It is in the table
//!    before the provider is called, and leaves it again only for `accepted: 0`, which means that nothing was queued
//!    [1]. If the provider panics, it stays. Inline data is not parked: it is read during the call [2].
//! 2. *Out by completion.* [`reclaim`](Lot::reclaim) wants a [`Completion`](crate::Completion), which only polling makes,
//!    and a provider lends one only when the request has ended [5]. It has to come from the very completion queue that this
//!    queue reports to, which lends only its own [7]: what another queue says, of this device or of one whose kernel a test
//!    plays, is nothing that this device has said.
//!    *The* request: its number was never given to another in the life of the process, and comes back as it was posted
//!    [6]. So neither a second look at the same completion, nor a completion that a destroyed queue pair left behind in the
//!    queue (queue pair numbers are given again, and so would be slots with a generation that starts anew) can name a
//!    buffer that was parked later. Nothing here needs that a request completes once.
//!    Raw posting, which is unsafe, promises not to use the numbers of this table: those with the top bit set.
//! 3. *Out by the end of the queue.* A queue pair gives its buffers back only after `destroy`, or `modify` to RESET where the
//!    provider says that this ends requests, returned `Ok`; its requests have ended then [9, 14]. After another RESET they are
//!    kept until it is destroyed. After an `Err` the table stays as it was. Where the object cannot be destroyed, or the
//!    provider panics, [`Live`](crate::live::Live) leaks all of it.
//! 4. *Not at all.* `mem::forget` of the queue pair, or of what holds it, forgets the table with it, and memory that is
//!    forgotten is never given to anyone else [15]. A buffer holds its allocation and its registration, and these their
//!    protection domain, so nothing below it goes away earlier either.
//! 5. *Only its own bytes.* A scatter/gather element is inside of its buffer, with the key of the allocation's own
//!    registration, and the device stays inside of the element [3, 10]. The queue pair is of the same protection domain:
//!    on another device the same key could mean memory of somebody else's.
//! 6. *Not through the back door.* The registration has no remote rights, and so is closed to peers [11]. An RDMA operation
//!    names remote memory by a key that its owner exposed ([`Exposed`](crate::Exposed)), which has no references, also
//!    when the owner is this process. It comes back as a `Buf` only after deregistering [12].

use core::fmt;
use core::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use verbs_core::provider::Provider;
use verbs_core::types::{PostError, PostReason, SendFlags, SendOp, Sge};

use crate::cq::Shared;
use crate::pd::PdId;
use crate::{Buf, Completion};

/// What was parked in one work request, and came back.
#[derive(Debug)]
pub struct Parcel(Bufs);

#[derive(Debug)]
enum Bufs {
    One(Buf),
    Many(Vec<Buf>),
}

impl Parcel {
    /// The first buffer; `None` when the request had none.
    pub fn into_buf(self) -> Option<Buf> {
        match self.0 {
            Bufs::One(buf) => Some(buf),
            Bufs::Many(bufs) => bufs.into_iter().next(),
        }
    }

    /// All of them, in their order.
    pub fn into_bufs(self) -> Vec<Buf> {
        match self.0 {
            Bufs::One(buf) => vec![buf],
            Bufs::Many(bufs) => bufs,
        }
    }
}

/// A buffer that could not be parked.
#[derive(Debug)]
pub struct ParkError<B> {
    /// What was to be parked. `None` after [`PostReason::Doorbell`]: then it is parked all the same, and comes back with
    /// its completion.
    pub returned: Option<B>,
    /// Why.
    pub reason: ParkReason,
}

/// Why a buffer could not be parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParkReason {
    /// The queue did not accept the work request.
    Post(PostReason),
    /// The range is outside of the buffer, or longer than a scatter/gather element can be.
    OutOfRange,
    /// The buffer is registered in another protection domain.
    ForeignBuf,
    /// Every slot holds a buffer that was not reclaimed: completions were polled and not shown to `reclaim`.
    Unreclaimed,
    /// Numbers with the top bit set are those of parked requests.
    ReservedWrId,
}

impl fmt::Display for ParkReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Post(reason) => reason.fmt(f),
            Self::OutOfRange => f.write_str("the range is outside of the buffer, or longer than 4 GiB"),
            Self::ForeignBuf => f.write_str("the buffer is registered in another protection domain"),
            Self::Unreclaimed => {
                f.write_str("every slot of the queue holds a buffer: reclaim what has completed")
            }
            Self::ReservedWrId => f.write_str("a wr_id with the top bit set belongs to parked requests"),
        }
    }
}

impl std::error::Error for ParkReason {}

impl<B> fmt::Display for ParkError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<B: fmt::Debug> std::error::Error for ParkError<B> {}

/// The table of one queue. See the module for the argument.
#[derive(Debug)]
pub(crate) struct Lot {
    /// A power of two of slots, or none before the first request; a number's slot is its lowest bits.
    slots: Vec<Option<(u64, Parcel)>>,
    capacity: usize,
    taken: usize,
    /// The next number, and the end of the block that it is from.
    next: u64,
    end: u64,
    kind: u64,
    pd: PdId,
    /// Where its completions are found.
    cq: Arc<Shared>,
    scratch: Vec<Sge>,
}

impl Lot {
    pub(crate) fn sends(pd: PdId, cq: Arc<Shared>, max_send_wr: u32) -> Self {
        Self::new(pd, cq, max_send_wr, 0)
    }

    pub(crate) fn recvs(pd: PdId, cq: Arc<Shared>, max_recv_wr: u32) -> Self {
        Self::new(pd, cq, max_recv_wr, RECV)
    }

    fn new(pd: PdId, cq: Arc<Shared>, max_wr: u32, kind: u64) -> Self {
        let capacity = (max_wr as usize).max(1).next_power_of_two();
        Self { slots: Vec::new(), capacity, taken: 0, next: 0, end: 0, kind, pd, cq, scratch: Vec::new() }
    }

    /// Parks a range of a buffer under a new number, and posts it.
    #[inline]
    pub(crate) fn park(
        &mut self,
        buf: Buf,
        range: impl RangeBounds<usize>,
        post: impl FnOnce(u64, &[Sge]) -> Result<(), PostError>,
    ) -> Result<u64, ParkError<Buf>> {
        if buf.pd() != self.pd {
            return Err(ParkError { returned: Some(buf), reason: ParkReason::ForeignBuf });
        }
        let Some(sge) = buf.sge(range) else {
            return Err(ParkError { returned: Some(buf), reason: ParkReason::OutOfRange });
        };
        self.insert_and(Parcel(Bufs::One(buf)), |id| post(id, &[sge]))
            .map_err(|(parcel, reason)| ParkError { returned: parcel.and_then(Parcel::into_buf), reason })
    }

    /// Parks any number of buffers under one number, and posts them.
    pub(crate) fn park_all(
        &mut self,
        bufs: Vec<Buf>,
        post: impl FnOnce(u64, &[Sge]) -> Result<(), PostError>,
    ) -> Result<u64, ParkError<Vec<Buf>>> {
        let mut sges = core::mem::take(&mut self.scratch);
        sges.clear();
        for buf in &bufs {
            let reason = match buf.sge(..) {
                _ if buf.pd() != self.pd => ParkReason::ForeignBuf,
                None => ParkReason::OutOfRange,
                Some(sge) => {
                    sges.push(sge);
                    continue;
                }
            };
            return Err(ParkError { returned: Some(bufs), reason });
        }
        let parked = self.insert_and(Parcel(Bufs::Many(bufs)), |id| post(id, &sges));
        self.scratch = sges;
        parked.map_err(|(parcel, reason)| ParkError { returned: parcel.map(Parcel::into_bufs), reason })
    }

    /// Takes out what was parked in a request that has completed; `None` for a completion of something else.
    #[inline]
    pub(crate) fn reclaim<P: Provider>(&mut self, completion: &Completion<'_, P>) -> Option<Parcel> {
        if completion.is_from(&self.cq) { self.remove(completion.wr_id()) } else { None }
    }

    /// Takes out what was parked under a number.
    #[inline]
    fn remove(&mut self, id: u64) -> Option<Parcel> {
        let mask = self.slots.len().wrapping_sub(1);
        let slot = self.slots.get_mut(id as usize & mask)?;
        if !matches!(slot, Some((parked, _)) if *parked == id) {
            return None;
        }
        self.taken -= 1;
        slot.take().map(|(_, parcel)| parcel)
    }

    /// Takes everything out: the caller has seen the end of the queue.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Parcel> + '_ {
        self.taken = 0;
        self.slots.drain(..).filter_map(|slot| slot.map(|(_, parcel)| parcel))
    }

    #[inline]
    fn insert_and(
        &mut self,
        parcel: Parcel,
        post: impl FnOnce(u64) -> Result<(), PostError>,
    ) -> Result<u64, (Option<Parcel>, ParkReason)> {
        let Some((id, slot)) = self.free_slot() else { return Err((Some(parcel), ParkReason::Unreclaimed)) };
        *slot = Some((id, parcel));
        self.taken += 1;
        match post(id) {
            Ok(()) => Ok(id),
            // It is in the queue, although the device was not told.
            Err(PostError { accepted: 1.., reason }) => Err((None, ParkReason::Post(reason))),
            Err(PostError { accepted: 0, reason }) => Err((self.remove(id), ParkReason::Post(reason))),
        }
    }

    /// A number that was never used before, and its slot, which is free. Skips the numbers of taken slots; where requests
    /// complete in the order in which they were posted there are none.
    #[inline]
    fn free_slot(&mut self) -> Option<(u64, &mut Option<(u64, Parcel)>)> {
        if self.slots.is_empty() {
            self.slots.resize_with(self.capacity, || None);
        }
        if self.taken == self.slots.len() {
            return None;
        }
        let mask = self.slots.len() - 1;
        loop {
            if self.next == self.end {
                self.next = NEXT_BLOCK.fetch_add(BLOCK, Ordering::Relaxed);
                self.end = self.next + BLOCK;
            }
            let id = PARKED | self.kind | self.next;
            self.next += 1;
            let slot = id as usize & mask;
            if self.slots[slot].is_none() {
                return Some((id, &mut self.slots[slot]));
            }
        }
    }
}

/// Is this the number of a parked request?
#[inline]
pub(crate) const fn is_parked(wr_id: u64) -> bool {
    wr_id & PARKED != 0
}

/// Is this parked request a receive?
#[inline]
pub(crate) const fn is_recv(wr_id: u64) -> bool {
    wr_id & RECV != 0
}

/// May this operation carry data inline? What writes local memory may not: its scatter/gather elements are not data.
pub(crate) const fn takes_inline(op: &SendOp<'_>) -> bool {
    matches!(
        op,
        SendOp::Send
            | SendOp::SendWithImm { .. }
            | SendOp::UdSend { .. }
            | SendOp::UdSendWithImm { .. }
            | SendOp::RdmaWrite { .. }
            | SendOp::RdmaWriteWithImm { .. }
    )
}

/// Is this an operation that touches no local memory but that of its scatter/gather elements?
pub(crate) const fn is_parkable(op: &SendOp<'_>, flags: SendFlags) -> bool {
    let reads_back = matches!(
        op,
        SendOp::RdmaRead { .. } | SendOp::AtomicCmpAndSwp { .. } | SendOp::AtomicFetchAndAdd { .. }
    );
    takes_inline(op) || reads_back && !flags.contains(SendFlags::INLINE)
}

/// The numbers of parked requests.
const PARKED: u64 = 1 << 63;
/// Those of receives among them.
const RECV: u64 = 1 << 62;
/// How many numbers a table takes at a time.
const BLOCK: u64 = 1 << 16;
/// The next numbers that no table has. 2⁶² of them last for a century at a billion requests a second.
static NEXT_BLOCK: AtomicU64 = AtomicU64::new(0);
