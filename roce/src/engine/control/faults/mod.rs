//! Errors on request: they show a program the failure of a device or a peer, without either of them
//! failing.

use crate::engine::memory::{Memory, Sink};
use crate::engine::types::{Qpn, Status, Time};
use crate::engine::{Engine, requester, responder};

impl<M: Memory> Engine<M> {
    /// Fails the oldest outstanding send with `status`: it completes in error, the queue pair moves
    /// to the error state (to SQE if it is unreliable), and later sends are flushed.
    ///
    /// Returns false, and does nothing, if no send is outstanding or `status` is no failure.
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

    /// Fails the receive of the message that is arriving, or else the oldest posted one (of a
    /// shared queue, too) with `status`: it completes in error, a reliable peer gets the NAK that
    /// belongs to the status, the event that belongs to it is raised, and the queue pair moves to
    /// the error state. [`Status::LocalLength`] on an unreliable service ends the receive alone.
    ///
    /// XRC requests name their shared receive queue: between messages, XRC queue pairs have no
    /// receive.
    ///
    /// Returns false, and does nothing, if there is no receive or `status` is no failure.
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
