//! [`Qp`]: the data of a queue pair, namely its attributes, its queues and the state of its two
//! halves.
//!
//! | module | contents |
//! |---|---|
//! | `send_state` | [`SendState`]: the requester's sequence numbers, timers and window |
//! | `recv_state` | [`RecvState`]: the responder's sequence numbers and the message in progress |
//! | `current` | [`CurrentRecv`]: the receive for the message in progress |
//! | `responses` | [`Responses`]: responses to send and sent responses that are kept |
//!
//! This module sends no packets, generates no completions and calls no program code. The modules
//! above do: `completion`, `requester`, `responder`, `datagram` and `modify`.

mod current;
mod recv_state;
mod responses;
mod send_state;

pub(crate) use current::{CurrentRecv, MAX_MESSAGE, TakenRecv};
pub(crate) use recv_state::{Message, RecvState, Write};
pub(crate) use responses::{Due, Resource, ResourceOp, ResponseClass, Responses, packets};
pub(crate) use send_state::SendState;

use super::queue::{RecvQueue, SendQueue, Wqe};
use super::types::{
    Arrival, Attr, CqId, InlineCompletion, Network, Pd, Qpn, Service, SrqId, State, Time, XrcDomain,
};
use crate::wire::packet::LINK_MTU;

/// A queue pair: its attributes, queues and protocol state.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: Qpn,
    pub(crate) service: Service,
    pub(crate) state: State,
    pub(crate) pd: Pd,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    pub(crate) srq: Option<SrqId>,
    pub(crate) xrc_domain: Option<XrcDomain>,
    pub(crate) sq_sig_all: bool,
    /// The special number (0 or 1) that also addresses this queue pair.
    pub(crate) well_known: Option<u32>,
    /// The source queue pair number in the datagrams it sends.
    pub(crate) source: u32,
    pub(crate) inline_completion: InlineCompletion,
    pub(crate) attr: Attr,
    /// Posted sends, starting with the oldest unfinished send.
    pub(crate) sq: SendQueue,
    /// Posted receives. It has no slots if the queue pair uses a shared receive queue.
    pub(crate) rq: RecvQueue,
    pub(crate) req: SendState,
    pub(crate) resp: RecvState,
    /// Whether the scheduler lists this queue pair as having a request to send.
    pub(crate) in_ready: bool,
    /// Whether the scheduler lists this queue pair as having a NAK to send.
    pub(crate) in_naks: bool,
    /// Whether the scheduler lists this queue pair as having an acknowledgement to send.
    pub(crate) in_acks: bool,
    /// Whether the scheduler lists this queue pair as waiting for space in the window.
    pub(crate) in_blocked: bool,
    /// The peer's index in [`ResponseQueue`](super::response_queue::ResponseQueue), from RTR on.
    pub(crate) peer: Option<u32>,
    /// Whether this queue pair is in its peer's list of queue pairs with a response to send.
    pub(crate) in_response_queue: bool,
    /// The peer's UDP source port, if known; used only with strict ports.
    pub(crate) peer_port: Option<u16>,
    /// Whether a packet from the peer has arrived since RTR.
    pub(crate) established: bool,
    /// The time of the queue pair's entry in [`Timers`](super::timers::Timers), if any.
    pub(crate) timer: Option<Time>,
    /// The number of multicast groups that the queue pair has joined.
    pub(crate) groups: u32,
    /// Whether the queue pair has ever bound a memory window.
    pub(crate) has_bound: bool,
}

impl Qp {
    /// Returns the time at which the next timer expires.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.req.deadline()
    }

    /// Returns whether the peer acknowledges this queue pair's requests. Datagrams and unreliable
    /// connections are not acknowledged.
    pub(crate) fn is_reliable(&self) -> bool {
        matches!(self.service, Service::Rc | Service::XrcInitiator)
    }

    /// Returns whether the queue pair processes received requests in its current state.
    ///
    /// # References
    /// IBTA 10.3.1: requests are dropped in RESET, INIT and the error state
    #[inline]
    pub(crate) fn hears_requests(&self) -> bool {
        matches!(self.state, State::Rtr | State::Rts | State::Sqd | State::Sqe)
    }

    /// Returns the maximum payload, in bytes, of the packets that the requester sends.
    ///
    /// In verbs, a datagram queue pair has no path MTU attribute; the largest possible MTU applies
    /// instead.
    #[inline]
    pub(crate) fn send_mtu(&self) -> u32 {
        match self.attr.path_mtu {
            _ if self.attr.path.on_link => LINK_MTU,
            mtu @ 1..=4096 => mtu,
            _ if self.service == Service::Ud => 4096,
            _ => 1024,
        }
    }

    /// Returns the path MTU that the responder expects, clamped to valid values (256 to 4096
    /// bytes), or [`LINK_MTU`] if the peer uses it.
    #[inline]
    pub(crate) fn recv_mtu(&self) -> u32 {
        if self.resp.on_link == Some(true) {
            return LINK_MTU;
        }
        self.attr.path_mtu.clamp(256, 4096)
    }

    /// Returns whether the completion of this work request carries the response's bytes. The
    /// response consists of `packets` packets.
    #[inline]
    pub(crate) fn completes_inline(&self, wqe: &Wqe, packets: u32) -> bool {
        (1..=self.inline_completion.requester).contains(&wqe.length)
            && wqe.flags.signaled
            && wqe.wants_data()
            && packets == 1
    }

    /// Returns whether all started work requests have ended.
    pub(crate) fn is_drained(&self) -> bool {
        self.sq.tail() == self.req.fresh
    }

    /// Returns the current attributes, including the current sequence numbers.
    pub(crate) fn present_attr(&self) -> Attr {
        Attr { sq_psn: self.req.max.value(), rq_psn: self.resp.expected.value(), ..self.attr }
    }

    /// Returns whether a packet's UDP source port differs from the peer's known port.
    pub(crate) fn is_from_elsewhere(&self, arrival: &Arrival) -> bool {
        matches!((self.peer_port, arrival.src_port), (Some(its), Some(port)) if its != port)
    }

    /// Returns two values that change with each accepted packet, but not with a stale, early or
    /// rejected packet.
    ///
    /// On the unreliable service, the expected sequence number follows every packet, even a dropped
    /// one. For that service, the first value instead counts the packets that had an effect.
    pub(crate) fn progress(&self) -> (u32, u32) {
        let executed =
            if self.service == Service::Uc { self.resp.effective } else { self.resp.expected.value() };
        (executed, self.req.una.value())
    }

    /// Returns whether a packet comes from the peer, along the path of this queue pair (connected
    /// services).
    ///
    /// # References
    /// IBTA 9.6.1: packets from elsewhere are dropped
    #[inline]
    pub(crate) fn is_from_peer(&self, arrival: &Arrival) -> bool {
        let path = &self.attr.path;
        if path.network != arrival.network {
            return false;
        }
        if path.network == Network::Local {
            return path.dlid == arrival.slid && path.slid == arrival.dlid;
        }
        path.remote == arrival.remote && path.local == arrival.local
    }
}
