//! The data path of the Ethernet queues on a RoCE port. Their state is in
//! [`state::eth`](crate::state::eth).
//!
//! | module | contents |
//! |---|---|
//! | `queue` | creates the ring of a send or receive queue |
//! | `sq` | send queues: from work requests to frames |
//! | `rq` | receive queues: from frames to completions |
//!
//! ```text
//!   SQ ──► step_frames ──► the other function's frame_in ──► steering ──► TIR ──► RQ
//!              └───────── local loopback ──────────────────────┘           └──► RQT ──► RQ
//! ```
//! A send queue also exists on an InfiniBand port, where drivers use it to probe write combining.
//! It sends nothing there.
//!
//! # Local loopback
//! A frame to a group address leaves the port and is also looped back. A frame to one of the port's
//! addresses is looped back and does not leave the port. The port's context can disable either kind
//! of loopback. A TIR does not receive frames sent in the same transport domain. So a driver with
//! one domain for all its queues never receives its own frames, while processes with separate
//! domains receive each other's frames. Two bits of a TIR, one per kind of destination address, let
//! the TIR receive frames from its own domain. They are called `self_lb_block`, but Linux sets them
//! where frames must come back (the loopback test in `en_selftest.c`, `ipoib.c`, queue pairs with
//! `TIR_ALLOW_SELF_LB`) and clears them elsewhere.
//!
//! Invariant: the numbers of send and receive queues differ from all queue pair numbers in the
//! transport engine, because a doorbell identifies its queue only by this number.

pub(crate) mod queue;
pub(crate) mod rq;
pub(crate) mod sq;

use crate::bus::Bus;
use crate::frame;
use crate::function::Function;
use crate::port::PortKind;
use crate::state::eth::{FRAME_COST, Outgoing};

/// The cost of continuing a waiting send queue, in frames.
const BURST_STEPS: usize = 1 << 10;

impl<B: Bus> Function<B> {
    /// Takes the next outgoing frame and loops it back if necessary. Without such a frame,
    /// continues a waiting send queue. Returns the cost of this step, in frames, and the frame if
    /// it leaves the port. Returns `None` if nothing is left to send.
    pub(crate) fn step_frames(&mut self) -> Option<(usize, Option<Vec<u8>>)> {
        let eth = &mut self.core.eth;
        let Some(Outgoing { frame, domain }) = eth.outgoing.pop_front() else {
            let sqn = eth.take_waiting(self.core.now)?;
            self.resume_eth_sends(sqn);
            return Some((BURST_STEPS, None));
        };
        eth.outgoing_bytes = eth.outgoing_bytes.saturating_sub(frame.len() + FRAME_COST);
        let leaves = !self.core.port.loops_back(&frame);
        if !leaves {
            self.deliver(&frame, Some(domain));
        }
        Some((1, (leaves || frame::is_group(&frame)).then_some(frame)))
    }

    /// Returns the next frame that leaves the port.
    #[cfg(test)]
    pub(crate) fn next_frame(&mut self) -> Option<Vec<u8>> {
        std::iter::from_fn(|| self.step_frames()).find_map(|(_, frame)| frame)
    }

    /// Handles a frame from the wire.
    pub(crate) fn frame_in(&mut self, frame: &[u8]) {
        self.deliver(frame, None);
    }

    /// Receives a frame from the wire, or a looped-back frame from the transport domain `from`.
    fn deliver(&mut self, frame: &[u8], from: Option<u32>) {
        let port = &self.core.port;
        if port.kind != PortKind::Roce || !port.up {
            return;
        }
        let eth = &mut self.core.eth;
        eth.counters.received.count(frame);
        let reached = if frame.len() + 4 > self.core.port.longest_frame() {
            Vec::new()
        } else {
            eth.steering.walk(frame)
        };
        if reached.is_empty() {
            eth.counters.unwanted += 1;
        }
        for to in reached {
            let eth = &mut self.core.eth;
            if let Some(domain) = from
                && eth.tirs.get(&to.tirn).is_some_and(|tir| !tir.accepts(domain, frame))
            {
                continue;
            }
            match eth.receiver(to.tirn, frame) {
                Some(rqn) => self.receive_frame(rqn, to.tag, frame),
                None => eth.counters.unwanted += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests;
