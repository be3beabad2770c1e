//! Simulated errors: a program sees a device or peer fail, although neither has failed.

use crate::engine::memory::{Memory, Sink};
use crate::engine::types::{Qpn, Status, Time};
use crate::engine::{Engine, requester, responder};

impl<M: Memory> Engine<M> {
    /// Fails the oldest outstanding send with `status`. The send completes in error, the queue pair
    /// moves to the error state (SQE for unreliable services) and later sends are flushed.
    ///
    /// Returns false and does nothing if no send is outstanding or `status` is not a failure.
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

    /// Fails a receive with `status`: the receive whose message is arriving or, if there is none,
    /// the oldest posted receive, even in a shared queue. The receive completes in error. On a
    /// reliable service, the peer gets the matching NAK, the matching event is raised and the queue
    /// pair moves to the error state. On an unreliable service, [`Status::LocalLength`] only ends
    /// the receive.
    ///
    /// XRC requests name their shared receive queue, so XRC targets have no next receive between
    /// messages.
    ///
    /// Returns false and does nothing if there is no such receive or `status` is not a failure.
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
