//! [`Gsi`]: the general services interface (queue pair 1) whose management datagrams (MADs) are
//! passed by value.
//!
//! ```text
//!   a packet for number 1 ──► receive: checked ──────────────► Sink::mad
//!   Engine::send_mad ───────► Gsi: a bounded queue ──► transmit ──► a packet from number 1
//! ```
//!
//! No queue pair, memory region or completion queue is involved. The interface's packets are sent
//! in the class of requests, in rotation with the queue pairs ([`output`](super::output)). A MAD
//! without space is lost like any datagram; protocols that use MADs retransmit.
//!
//! If the caller's management software uses queue pairs instead, the caller creates a queue pair
//! with the number 1 ([`QpInit::well_known`](super::QpInit::well_known)).
//!
//! # References
//! IBTA 10.2.4 (the queue key of QP1), 10.9 (partitioning), 13.4.2 (format of MADs)

use alloc::collections::VecDeque;

use super::memory::{Sink, Space, Written, space_for};
use super::responder::same_partition;
use super::room;
use super::types::{
    Arrival, DropReason, GSI_QKEY, GSI_QPN, MAD_LEN, Mad, MadDestination, PostRefused, Qpn, ReceivedMad,
    Refused,
};
use crate::wire::bth::{self, DEFAULT_PKEY};
use crate::wire::{Headers, MASK_24, Opcode, Psn, deth};

/// The general services interface: a queue of outgoing MADs.
#[derive(Debug)]
pub(crate) struct Gsi {
    /// Queued MADs. While there are any, the scheduler lists queue pair number 1.
    waiting: VecDeque<(MadDestination, Mad)>,
    psn: Psn,
}

impl Gsi {
    /// Creates an interface with space for [`MAX_WAITING`] MADs.
    ///
    /// # Errors
    /// [`Refused::NoMemory`] if an allocation fails.
    pub(crate) fn new() -> Result<Self, Refused> {
        let mut waiting = VecDeque::new();
        room::reserve(&mut waiting, MAX_WAITING)?;
        Ok(Self { waiting, psn: Psn::new(0) })
    }

    /// Queues a MAD. Returns whether the queue was empty.
    ///
    /// # Errors
    /// [`PostRefused::QueueFull`] if [`MAX_WAITING`] MADs wait in the queue.
    pub(crate) fn push(&mut self, to: &MadDestination, mad: &Mad) -> Result<bool, PostRefused> {
        if self.waiting.len() >= MAX_WAITING {
            return Err(PostRefused::QueueFull);
        }
        let was_empty = self.waiting.is_empty();
        self.waiting.push_back((*to, *mad));
        Ok(was_empty)
    }

    /// Returns whether no MAD is waiting.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Writes the next MAD as a packet. If the space is too short, the MAD is dropped.
    pub(crate) fn transmit(&mut self, space: &mut (impl Space + ?Sized)) -> Option<Written> {
        let (to, mad) = self.waiting.pop_front()?;
        let bth =
            bth::Repr { pkey: to.pkey, ..bth::Repr::new(Opcode::UD_SEND_ONLY, to.qpn & MASK_24, self.psn) };
        let deth = Some(deth::Repr { qkey: GSI_QKEY, src_qp: GSI_QPN });
        let headers = Headers { deth, ..Headers::new(bth) };
        let len = headers.len() + MAD_LEN;
        let buf = space_for(space, &to.path, headers.bth.dest_qp);
        buf.get_mut(headers.len()..len)?.copy_from_slice(&mad);
        headers.emit(buf);
        self.psn = self.psn.next();
        Some(Written { len, qpn: Qpn(GSI_QPN) })
    }
}

/// Delivers a packet for queue pair 1, or drops it without a reply.
///
/// # Errors
/// Returns the reason why the packet was dropped.
pub(crate) fn receive(
    arrival: &Arrival,
    headers: &Headers,
    payload: &[u8],
    sink: &mut impl Sink,
) -> Result<(), DropReason> {
    let bth = &headers.bth;
    let (Opcode::UD_SEND_ONLY, Some(deth)) = (bth.opcode, headers.deth) else {
        return Err(DropReason::Other);
    };
    // The payload must be exactly one MAD.
    let mad: &Mad = payload.try_into().map_err(|_| DropReason::Other)?;
    // A MAD needs no padding.
    if bth.pad_cnt != 0 || !same_partition(DEFAULT_PKEY, bth.pkey) {
        return Err(DropReason::Other);
    }
    if deth.qkey != GSI_QKEY {
        return Err(DropReason::WrongQkey);
    }
    let received = ReceivedMad { arrival: *arrival, src_qpn: deth.src_qp, pkey: bth.pkey, mad: *mad };
    sink.mad(&received).map_err(|_| DropReason::MadsFull)
}

/// The maximum number of MADs waiting to be sent.
const MAX_WAITING: usize = 512;

#[cfg(test)]
mod tests;
