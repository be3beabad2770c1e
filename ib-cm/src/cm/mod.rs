//! [`Cm`]: the communication manager of one device, a state machine. Inputs are calls, messages and
//! time; outputs are messages, events and the next deadline.
//!
//! | module | contents |
//! |---|---|
//! | `types`, `event`, `config` | values: parameters, events, limits |
//! | `listen` | listeners and their backlogs |
//! | `active` | the requesting side: `connect`, `ready_to_use` |
//! | `passive` | the accepting side: `accept`, `established` |
//! | `reject` | both sides: `reject`, `send_mra`, `prepare_mra` |
//! | `release` | `disconnect`, `destroy`, `forget_request`, the timewait |
//! | `lost` | peers whose process has ended without a message |
//! | `sidr` | service id resolution, both sides |
//! | `input/` | one file for the messages of each phase |
//! | `timer` | repeated messages, attempts given up, end of the timewait |
//! | `output` | outgoing messages, events |
//! | `table`, `connection` | indexes by id, by the peer's ids, by deadline; a connection's data |
//!
//! Invariant: the state machine reads no clock, and no message makes it panic or loop. [`Config`]
//! limits how much state unknown peers can create.
//!
//! # Lifecycle of a connection
//! ```text
//! active    connect ──► ReqSent ──REP──► RepRcvd ──ready_to_use──► Established
//!                          │ MRA            │ mra                      ▲
//!                          ▼                ▼                          │
//!                      MraReqRcvd ─REP─►  MraRepSent ──ready_to_use────┤
//!                                                                      │
//! passive   REQ ──────► ReqRcvd ──accept──► RepSent ──RTU, established─┤
//!                          │ mra              │ MRA                    │
//!                          ▼                  ▼                        │
//!                      MraReqSent ─accept─► MraRepRcvd ──RTU───────────┘
//!
//! release   Established ──disconnect──► DreqSent ──DREP, DREQ, time──► Timewait ──time──► Idle
//!               └──────DREQ──────────► DreqRcvd ──disconnect────────────▲
//!
//! refused   an attempt ──reject, REJ, time──► Idle; after both queue pairs may have sent: Timewait
//! ```
//!
//! | repeated message, state | response |
//! |---|---|
//! | REQ, ReqRcvd | none: the caller is about to respond |
//! | REQ, MraReqSent | the MRA |
//! | REQ, RepSent or MraRepRcvd | the REP. Linux waits for the REP's own timer |
//! | REP, MraRepSent | the MRA |
//! | REP, Established | the RTU, which was lost |
//! | DREQ, DreqRcvd | none: the caller is about to respond |
//! | DREQ, Timewait | the DREP, which was lost |
//! | DREQ, ReqSent or MraReqRcvd | none: the REP may still arrive |
//! | DREQ, no such connection | a DREP, so that the sender can finish the release |
//!
//! # Differences from Linux
//! Messages, responses and timers match Linux's `ib_cm`, except:
//!
//! - Messages must come from the source address of the connection. Linux only compares
//!   communication ids, or GUIDs with queue pair numbers.
//! - A side that gives up a request or reply sends a REJ with the reason timeout (IBTA 12.9.7,
//!   12.9.8). A peer whose messages were lost then stops waiting. Linux sends no REJ.
//! - The DREQ of a destroyed connection is repeated until the peer responds. Linux sends it once.
//! - A DREQ crossing the local DREQ gets an immediate response and counts as the local DREQ's
//!   response, because both sides want the connection to end. Linux stops repeating its DREQ and
//!   waits for the program to disconnect again.
//! - A DREQ that overtakes the REP is ignored. The peer repeats it. Linux responds, so the
//!   connection ends on the peer's side alone.
//! - A REQ with the queue pair of an established connection makes this side ask the peer before
//!   releasing that connection ([below](#a-peer-that-has-restarted)). Linux releases it at once.
//! - A REJ without the receiver's communication id ends a request only until the RTU arrives. On
//!   Linux it also ends established connections.
//! - Timeouts requested by peers count as 65.5 s at most by default ([`Config::max_peer_timeout`]).
//! - The response to a LAP is an APR with the status "not supported". Linux drops the LAP on RoCE.
//! - A REQ whose primary path does not start at the source address is rejected. Linux sends its REP
//!   to the address in the path.
//! - A REQ with an undefined path MTU is rejected. Linux leaves the check to the queue pair.
//!
//! # What is checked in a REQ
//! | field | rule |
//! |---|---|
//! | service id | without a listener, the REQ is rejected (reason 8) |
//! | transport service | anything except RC, UC and XRC is rejected (9) |
//! | sender's GID in the primary path | anything except the source address is rejected (12) |
//! | path MTU | a code outside 1 to 5 is rejected (26); the caller checks the port's MTU |
//! | communication id, queue pair, GUID | must not belong to a connection (10 for the queue pair) |
//! | response timeout | counts as [`Config::max_peer_timeout`] at most |
//! | acknowledgement timeout | any code; a timewait lasts [`Config::max_peer_timeout`] at most |
//! | retries of packets, messages and RNR NAKs | any value that fits the field |
//! | reads and atomics, sequence number, all else | data for the caller and its queue pair |
//!
//! # A peer that has restarted
//! A restarted peer may request a connection with a queue pair it had before. The old connection,
//! which the peer no longer knows, must end. Otherwise the peer could never use the queue pair
//! again (IBTA 12.9.8.3.1). But an attacker who guesses the queue pair number (24 bits) can send
//! the same REQ, because the GUID of a device may be public. So the REQ is rejected as stale, and
//! this side checks with the peer:
//!
//! ```text
//! attacker, or peer ──REQ, queue pair of a connection──► REJ stale, and to the peer:
//! peer ◄──DREQ with both communication ids, queue pair 0xffffff───
//! peer that has the connection: the number is not its own, it drops the DREQ
//! peer that has restarted       ──DREP with both ids, and the transaction id──► Timewait
//! ```
//!
//! Like Linux, this crate drops a received DREQ with a wrong queue pair and responds to a DREQ with
//! unknown ids. The DREP proves that its sender received the DREQ, so an attacker who sees no
//! messages cannot send it. Each connection is checked at most once a second. After a REJ, a
//! restarted peer must repeat its request with a new communication id. Once the connection is
//! released, such a request is accepted. Until then each repetition causes another check, in case
//! the DREQ or the DREP was lost. A REP with the queue pair of a connection has the same effect.
//!
//! # Attackers
//! A message changes a connection only if it comes from the address of the connection's peer and
//! names both communication ids. Each side draws its own 32-bit id. An attacker who can neither see
//! the messages nor send under the peer's address has no effect on any connection. Its requests
//! occupy a listener's backlog within the limits of [`Config`]: at most half of the slots, unless
//! the attacker forges addresses.
//!
//! An attacker who can send under the address of a peer but sees no messages can:
//!
//! - request connections in the peer's name, as often as the backlog allows. The responses go to
//!   the peer, which drops them;
//! - keep the peer from connecting with a queue pair. The attacker must know the GUID of the peer's
//!   device and guess the queue pair number (24 bits) before the peer's request. While the forged
//!   request lasts, the peer's own request is rejected as stale. Numbers not drawn at random are
//!   easier to guess;
//! - make this side [check with the peer](#a-peer-that-has-restarted) once a second, with the same
//!   guess. This ends the connection only if the peer responds to a DREQ for any queue pair; no
//!   known peer does;
//! - respond to a local request in the peer's name, until the peer's response arrives, with a guess
//!   of the local communication id (32 bits);
//! - cancel a peer's request until the peer's RTU arrives, with the GUID of the peer's device and a
//!   guess of the peer's communication id (32 bits);
//! - do anything else only by guessing 64 bits.
//!
//! An attacker who sees the messages can do everything the peer can.
//!
//! Each message from an unknown sender gets at most one response, no longer than the message. Such
//! a message causes at most one more message per second to the peer of a connection. An accepted
//! request gets one more response for each of its allowed retries, at most 15.

mod active;
mod config;
mod connection;
mod event;
mod input;
mod listen;
mod lost;
mod output;
mod passive;
mod reject;
mod release;
mod sidr;
mod table;
#[cfg(test)]
mod tests;
mod timer;
mod types;

pub use config::Config;
pub use event::{Event, Rejected, Reply, Request, SidrReply, SidrRequest};
pub use output::Transmit;
pub use types::{
    AcceptParams, Address, CmId, ConnectParams, Counters, ListenId, Path, QpAttr, Refused, RejectParams,
    SidrParams, SidrReplyParams, State, Transport,
};

use std::collections::VecDeque;

use self::connection::{Connection, RemoteKey};
use self::listen::Listeners;
use self::table::Table;
use crate::Random;
use crate::time::Time;

/// The communication manager of one device: all its connections, on both sides.
///
/// It has no clock and performs no I/O. After each call, the caller fetches the messages
/// ([`poll_transmit`](Cm::poll_transmit)), the events ([`poll_event`](Cm::poll_event)) and the time
/// at which the next timer expires ([`deadline`](Cm::deadline)).
#[derive(Debug)]
pub struct Cm {
    config: Config,
    random: Box<dyn Random>,
    table: Table,
    listeners: Listeners,
    /// Keys of the most recent requests whose REJ arrived before the request itself, at most
    /// [`GIVEN_UP`].
    given_up: VecDeque<RemoteKey>,
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
    counters: Counters,
}

/// The maximum number of keys kept for requests overtaken by their REJ. Such a request is dropped
/// when it arrives.
const GIVEN_UP: usize = 16;

impl Cm {
    /// Returns a communication manager without connections.
    pub fn new(config: Config, random: impl Random + 'static) -> Self {
        Self {
            config,
            random: Box::new(random),
            table: Table::default(),
            listeners: Listeners::default(),
            given_up: VecDeque::with_capacity(GIVEN_UP),
            transmits: VecDeque::with_capacity(output::EVENTS_OF_A_CALL),
            events: VecDeque::with_capacity(output::EVENTS_OF_A_CALL),
            counters: Counters::default(),
        }
    }

    /// Returns the state of a connection or resolution; `None` if it has ended.
    pub fn state(&self, id: CmId) -> Option<State> {
        self.table.get(id).filter(|connection| !connection.orphan).map(|connection| connection.state)
    }

    /// Returns the addresses of messages for a connection or resolution; `None` if it has ended.
    pub fn peer(&self, id: CmId) -> Option<Address> {
        self.table.get(id).filter(|connection| !connection.orphan).map(|connection| connection.peer)
    }

    /// Returns the attributes for the local queue pair's transitions to RTR and RTS.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`]; [`Refused::State`] if the peer's queue pair is not known yet or the
    /// connection is being released.
    pub fn qp_attr(&self, id: CmId) -> Result<QpAttr, Refused> {
        use State::{Established, MraRepRcvd, MraRepSent, MraReqSent, RepRcvd, RepSent, ReqRcvd};
        let connection = self.connection(id)?;
        match connection.state {
            ReqRcvd | MraReqSent | RepRcvd | MraRepSent | RepSent | MraRepRcvd | Established => {}
            other => return Err(Refused::State(other)),
        }
        let pair = &connection.queue_pair;
        Ok(QpAttr {
            path: pair.path,
            pkey_index: connection.peer.pkey_index,
            path_mtu: pair.path_mtu,
            dest_qpn: pair.remote_qpn,
            rq_psn: pair.rq_psn,
            sq_psn: pair.sq_psn,
            max_dest_rd_atomic: pair.responder_resources,
            max_rd_atomic: pair.initiator_depth,
            timeout: pair.ack_timeout,
            retry_cnt: pair.retry_count,
            rnr_retry: pair.rnr_retry_count,
        })
    }

    /// Returns the number of connections and resolutions in all states, including those still being
    /// released after [`destroy`](Self::destroy).
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether no connection or resolution exists.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the message counts since the manager was created.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) must next be called;
    /// `None` if no timer runs.
    pub fn deadline(&self) -> Option<Time> {
        self.table.first_timer().map(|(deadline, _)| deadline)
    }

    fn connection(&self, id: CmId) -> Result<&Connection, Refused> {
        self.table.get(id).filter(|connection| !connection.orphan).ok_or(Refused::NoSuchId)
    }

    fn connection_mut(&mut self, id: CmId) -> Result<&mut Connection, Refused> {
        self.table.get_mut(id).filter(|connection| !connection.orphan).ok_or(Refused::NoSuchId)
    }

    /// Draws an unused communication id.
    fn draw_local_id(&mut self) -> Option<u32> {
        // If this many ids in succession are in use, the random source has failed.
        for _ in 0..64 {
            let drawn = match (self.random.draw()?, self.config.id_prefix) {
                (drawn, 0) => drawn,
                (drawn, prefix) => u32::from(prefix) << 24 | drawn >> 8,
            };
            // In messages, 0 stands for the absence of an id.
            if drawn != 0 && !self.table.has_local_id(drawn) {
                return Some(drawn);
            }
        }
        None
    }

    /// Draws a transaction id.
    fn draw_tid(&mut self) -> Option<u64> {
        Some(u64::from(self.random.draw()?) << 32 | u64::from(self.random.draw()?))
    }
}
