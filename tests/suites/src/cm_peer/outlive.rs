//! The end of a connection whose peer is killed.
//!
//! When a process dies, its kernel ends its connections, and the survivor gets the event at once. A
//! soft device dies with its process; a survivor with a soft device on the same machine detects
//! that. Other survivors notice the silence: a message of the connection manager stays unanswered
//! for a minute, or a sent message is never acknowledged, after which they disconnect. A survivor
//! that waits without sending gets no event.

use core::fmt;
use core::str::FromStr;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};
use rdmacm::{CmId, ConnParam, Event, EventChannel, EventKind, PortSpace};
use verbs::Qp;
use verbs::state::Rts;
use verbs_harness::runner::{CaseResult, Stop, fail};

use super::{Connects, Listens, Plan, Step};
use crate::cm_fabric::{Client, Parts};

/// The step in which a side is killed.
pub const STEP: Step = Step { name: "outlive", listens, connects };

/// Far beyond the time after which the protocol gives up: 16 times 4.3 s by the protocol, up to 108
/// s on a busy machine.
const PATIENCE: Duration = Duration::from_secs(200);

/// The state of a connection in which a side is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The listening side, before it gets a request.
    Listening,
    /// The listening side, after reading a request.
    Requested,
    /// The listening side, after accepting.
    Accepted,
    /// The connecting side, after its request was read.
    Requesting,
    /// Either side, while the survivor uses the connection.
    Established,
    /// Either side, while the connection is idle.
    Idle,
    /// Either side, after the survivor has disconnected.
    Disconnecting,
}

impl State {
    /// All states.
    pub const ALL: [Self; 7] = [
        Self::Listening,
        Self::Requested,
        Self::Accepted,
        Self::Requesting,
        Self::Established,
        Self::Idle,
        Self::Disconnecting,
    ];

    /// Returns the state's name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Listening => "listening",
            Self::Requested => "requested",
            Self::Accepted => "accepted",
            Self::Requesting => "requesting",
            Self::Established => "established",
            Self::Idle => "idle",
            Self::Disconnecting => "disconnecting",
        }
    }

    /// Returns whether the listening side, or the other one, is ever in this state.
    pub const fn is_of(self, listens: bool) -> bool {
        match self {
            Self::Listening | Self::Requested | Self::Accepted => listens,
            Self::Requesting => !listens,
            Self::Established | Self::Idle | Self::Disconnecting => true,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for State {
    type Err = Stop;

    fn from_str(text: &str) -> CaseResult<Self> {
        match Self::ALL.into_iter().find(|state| state.name() == text) {
            Some(state) => Ok(state),
            None => fail(format_args!("{text} is no state")),
        }
    }
}

impl Plan {
    /// Kills this process if it is to die in this state.
    fn reach(&self, state: State) {
        if self.dies == Some(state) {
            // The signal cannot be caught.
            let _ = raise(Signal::SIGKILL);
        }
    }
}

fn listens(side: &mut Listens) -> CaseResult {
    let Listens { tcp, plan, link, .. } = side;
    // The other side has resolved the address.
    link.meet("resolved")?;
    plan.reach(State::Listening);
    let (id, _) = tcp.request()?;
    plan.reach(State::Requested);
    if plan.outlives == Some(State::Requesting) {
        link.tell("requested")?;
        // Returns at the end of the other process.
        let ended = link.hear();
        assert!(ended.is_err(), "{ended:?} instead of the peer's end");
    }
    let parts = Parts::of(&id)?;
    let accepted = parts.qp(&id).and_then(|qp| Ok(id.accept(qp, &ConnParam::default())?));
    match accepted {
        // The kernel has withdrawn the dead process's request and reports no event for an id that
        // was not accepted.
        Err(Stop::Failed(why)) if plan.outlives == Some(State::Requesting) => {
            println!("ended after 0.0 s: {why}");
            return Ok(());
        }
        accepted => accepted?,
    }
    plan.reach(State::Accepted);
    let mut survivor = Survivor { channel: &tcp.channel, id: &id, parts, qp: None, is_sending: false };
    survivor.run(plan)
}

fn connects(side: &mut Connects) -> CaseResult {
    let Connects { tcp, plan, link, .. } = side;
    let Client { channel, id } = Client::from(plan.source, *tcp, PortSpace::TCP)?;
    let parts = Parts::of(&id)?;
    link.meet("resolved")?;
    if plan.outlives == Some(State::Listening) {
        let ended = link.hear();
        assert!(ended.is_err(), "{ended:?} instead of the peer's end");
    }
    // rxe takes 7 retries for unlimited retries.
    id.connect(parts.qp(&id)?, &ConnParam { retry_count: 3, ..ConnParam::default() })?;
    if plan.dies == Some(State::Requesting) {
        link.hear()?;
        plan.reach(State::Requesting);
    }
    let mut survivor = Survivor { channel: &channel, id: &id, parts, qp: None, is_sending: false };
    survivor.run(plan)
}

/// An id connected or connecting.
struct Survivor<'a> {
    channel: &'a EventChannel,
    id: &'a CmId,
    parts: Parts,
    qp: Option<Qp<Rts>>,
    is_sending: bool,
}

impl Survivor<'_> {
    /// Waits for the end of the connection and prints its cause.
    fn run(&mut self, plan: &Plan) -> CaseResult {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            let event = self.channel.next_event_within(Duration::from_millis(100))?;
            if let Some(event) = event
                && let Some(words) = self.on_event(event, plan)?
            {
                println!("ended after {:.1} s: {words}", started.elapsed().as_secs_f64());
                return Ok(());
            }
            if plan.outlives != Some(State::Idle) {
                self.use_connection()?;
            }
        }
        fail(format_args!("nothing ended the connection within {PATIENCE:?}"))
    }

    /// Returns the description of the end, if the event is one.
    fn on_event(&mut self, event: Event, plan: &Plan) -> CaseResult<Option<String>> {
        match event.kind {
            EventKind::Established(_) => {
                self.qp = self.id.take_qp();
                plan.reach(State::Established);
                plan.reach(State::Idle);
                if plan.outlives == Some(State::Disconnecting) {
                    self.id.disconnect()?;
                }
                Ok(None)
            }
            EventKind::Disconnected => {
                plan.reach(State::Disconnecting);
                Ok(Some("disconnected".to_owned()))
            }
            EventKind::Rejected(_) | EventKind::Unreachable | EventKind::ConnectError => match event.ok() {
                Err(error) => Ok(Some(error.to_string())),
                Ok(event) => fail(format_args!("{event:?} is no error")),
            },
            other => fail(format_args!("{other:?}")),
        }
    }

    /// Sends a message if none is in flight. A failed send ends the connection.
    fn use_connection(&mut self) -> CaseResult {
        let Some(qp) = &mut self.qp else { return Ok(()) };
        if !self.is_sending {
            self.parts.send(qp, b"still there?")?;
            self.is_sending = true;
        }
        while let Some(completed) = self.parts.cq.poll_one() {
            if completed.opcode.is_recv() && completed.wc.ok().is_ok() {
                self.parts.post_recv(qp, crate::cm_fabric::MESSAGE)?;
                continue;
            }
            if let Err(error) = completed.wc.ok() {
                println!("a message failed: {error}");
                self.qp = None;
                return Ok(self.id.disconnect()?);
            }
            self.is_sending = false;
        }
        Ok(())
    }
}
