//! Errors on request: what a program sees of a device that fails, without a device or a peer that
//! does.

use crate::engine::memory::{Memory, Sink};
use crate::engine::types::{Qpn, Status, Time};
use crate::engine::{Engine, requester, responder};

impl<M: Memory> Engine<M> {
    /// Ends the oldest outstanding send as if it had failed with `status`: it completes so, the
    /// queue pair moves to the error state (SQE where it is unreliable), and what is behind it is
    /// flushed.
    ///
    /// False: nothing is outstanding, or `status` is no failure; nothing happens then.
    pub fn fail_oldest_send(
        &mut self,
        qpn: Qpn,
        status: Status,
        vendor_err: u32,
        now: Time,
        sink: &mut impl Sink,
    ) -> bool {
        status != Status::Success
            && self
                .objects
                .with(qpn.0, now, sink, |qp, env| requester::fail_next(qp, env, status, vendor_err))
                .unwrap_or(false)
    }

    /// Ends the receive whose message arrives, or else the oldest posted one, of a shared queue as
    /// well, as if it had failed with `status`: it completes so, a reliable peer is refused with
    /// what stands for it on the wire, the event that belongs to it is raised, and the queue pair
    /// moves to the error state. A message that was too long ([`Status::LocalLength`]) on an
    /// unreliable service ends its receive alone.
    ///
    /// The shared receive queues of XRC are named by requests: between messages, its queue pairs
    /// have no receive.
    ///
    /// False: there is none, or `status` is no failure; nothing happens then.
    pub fn fail_next_recv(
        &mut self,
        qpn: Qpn,
        status: Status,
        vendor_err: u32,
        now: Time,
        sink: &mut impl Sink,
    ) -> bool {
        status != Status::Success
            && self
                .objects
                .with(qpn.0, now, sink, |qp, env| responder::fail_next(qp, env, status, vendor_err))
                .unwrap_or(false)
    }
}

#[cfg(test)]
mod tests;
