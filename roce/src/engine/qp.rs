//! [`Qp`]: a queue pair, its states, and what its halves share.

use super::control::World;
use super::memory::{Memory, Sink};
use super::queue::{RecvQueue, SendQueue};
use super::requester::Requester;
use super::responder::Responder;
use super::types::{
    Arrival, Attr, AttrChange, Completion, CqId, Event, InlineCompletion, Network, Pd, Qpn, Refused, Service,
    SrqId, State, Time, XrcDomain,
};
use super::{requester, responder};

/// A queue pair.
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
    /// The special number that it has as well.
    pub(crate) well_known: Option<u32>,
    /// Where its datagrams say that they come from.
    pub(crate) source: u32,
    pub(crate) inline_completion: InlineCompletion,
    pub(crate) attr: Attr,
    /// Posted sends, from the oldest that has not ended.
    pub(crate) sq: SendQueue,
    /// Posted receives; without slots where there is a shared receive queue.
    pub(crate) rq: RecvQueue,
    pub(crate) req: Requester,
    pub(crate) resp: Responder,
    /// It stands in the queue of those with a request to send.
    pub(crate) in_ready: bool,
    /// It stands in the queue of those with a refusal to send.
    pub(crate) in_refusals: bool,
    /// It stands in the queue of those with an acknowledgement to send.
    pub(crate) in_acks: bool,
    /// It waits for room in the engine's window.
    pub(crate) in_blocked: bool,
    /// The peer's number among those that are answered, from RTR on.
    pub(crate) peer: Option<u32>,
    /// It stands among those of its peer with an answer to send.
    pub(crate) in_answers: bool,
    /// The UDP port that the peer sends from, once it is learned (strict ports).
    pub(crate) peer_port: Option<u16>,
    /// A packet of the peer arrived since RTR.
    pub(crate) established: bool,
}

impl Qp {
    /// When something must happen even if no packet arrives.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.req.deadline()
    }

    /// Moves to the error state, and flushes both queues: sends first, each in its order.
    ///
    /// Nothing happens in RESET, INIT's sends, or when it is there already.
    pub(crate) fn fail<M: Memory, S: Sink>(&mut self, world: &mut World<'_, M, S>) {
        if matches!(self.state, State::Reset | State::Err) {
            return;
        }
        self.state = State::Err;
        self.flush(world);
    }

    /// Ends everything that is posted with [`Status::Flushed`](super::types::Status::Flushed).
    pub(crate) fn flush<M: Memory, S: Sink>(&mut self, world: &mut World<'_, M, S>) {
        requester::flush(self, world);
        responder::flush(self, world);
    }

    /// Changes attributes, then the state.
    pub(crate) fn modify<M: Memory, S: Sink>(
        &mut self,
        world: &mut World<'_, M, S>,
        change: &AttrChange,
    ) -> Result<(), Refused> {
        let (from, to) = (self.state, change.state.unwrap_or(self.state));
        if !exists(from, to) {
            return Err(Refused::Transition { from, to });
        }
        if to == State::Reset {
            requester::reset(self, world);
            responder::reset(self, world);
            self.attr = Attr::default();
            self.peer_port = None;
            self.established = false;
            self.state = to;
            return Ok(());
        }
        self.apply(change);
        if to == State::Err {
            self.fail(world);
            return Ok(());
        }
        self.state = to;
        match (from, to) {
            (State::Rts, State::Sqd) => requester::drain(self, world),
            (State::Sqd | State::Sqe, State::Rts) => requester::resume(self, world),
            _ => {}
        }
        Ok(())
    }

    fn apply(&mut self, change: &AttrChange) {
        macro_rules! take {
            ($($field:ident),*) => {$( if let Some(value) = change.$field { self.attr.$field = value; } )*};
        }
        take!(
            path,
            dest_qpn,
            path_mtu,
            pkey,
            qkey,
            access,
            sq_psn,
            rq_psn,
            timeout,
            retry_cnt,
            rnr_retry,
            min_rnr_timer,
            max_rd_atomic,
            max_dest_rd_atomic,
            sq_drained_event
        );
        if change.path.is_some() {
            self.peer_port = None;
        }
        if change.max_dest_rd_atomic.is_some() {
            responder::set_depth(self);
        }
        if let Some(psn) = change.sq_psn {
            requester::set_psn(self, psn);
        }
        if let Some(psn) = change.rq_psn {
            responder::set_psn(self, psn);
        }
    }

    /// The attributes as they are now: sequence numbers move.
    pub(crate) fn present_attr(&self) -> Attr {
        Attr { sq_psn: requester::next_psn(self), rq_psn: responder::expected_psn(self), ..self.attr }
    }

    /// Whether a packet comes from another UDP port than the one its peer was heard from.
    pub(crate) fn is_from_elsewhere(&self, arrival: &Arrival) -> bool {
        self.peer_port.is_some_and(|port| port != arrival.src_port)
    }

    /// How far the peer has taken it: changes with each packet that is neither stale nor ahead nor refused.
    pub(crate) fn progress(&self) -> (u32, u32) {
        (responder::progress(self), requester::oldest_psn(self))
    }

    /// Completes on one of its queues. A queue that is full is an error of that queue, and fatal to this one.
    ///
    /// `self` may be in the middle of anything: the move to the error state follows when the caller is done, through
    /// [`World::cq_overrun`].
    pub(crate) fn complete<M: Memory, S: Sink>(
        &self,
        world: &mut World<'_, M, S>,
        cq: CqId,
        completion: &Completion,
    ) {
        if world.sink.complete(cq, completion).is_err() {
            overrun(world, cq);
        }
    }

    /// As [`complete`](Self::complete), with the bytes that were not written to its elements.
    pub(crate) fn complete_with<M: Memory, S: Sink>(
        &self,
        world: &mut World<'_, M, S>,
        cq: CqId,
        completion: &Completion,
        data: &[u8],
    ) {
        if world.sink.complete_with_data(cq, completion, data).is_err() {
            overrun(world, cq);
        }
    }

    /// Does a packet come from its peer, along the path between them (connected services)?
    ///
    /// # References
    /// IBTA 9.6.1: others are dropped
    #[inline]
    pub(crate) fn hears(&self, arrival: &Arrival) -> bool {
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

fn overrun<M: Memory, S: Sink>(world: &mut World<'_, M, S>, cq: CqId) {
    world.sink.event(Event::CqError(cq));
    world.cq_overrun = true;
}

/// IBTA figure 124. Anything may be reset or given up.
fn exists(from: State, to: State) -> bool {
    use State::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    matches!(
        (from, to),
        (_, Reset | Err)
            | (Reset | Init, Init)
            | (Init, Rtr)
            | (Rtr | Rts | Sqd | Sqe, Rts)
            | (Rts | Sqd, Sqd)
    )
}
