//! [`Cm`]: the state machine of one device. Calls, messages and time in; messages, events and the
//! next deadline out.
//!
//! | module | contents |
//! |---|---|
//! | `types`, `event`, `config` | values: parameters, events, limits |
//! | `listen` | listeners and their backlogs |
//! | `active` | the side that asks: `connect`, `ready_to_use` |
//! | `passive` | the side that is asked: `accept`, `established` |
//! | `reject` | both sides: `reject`, `send_mra`, `prepare_mra` |
//! | `release` | `disconnect`, `destroy`, `forget_request`, the timewait |
//! | `lost` | peers whose process has ended without a word |
//! | `sidr` | service id resolution, both sides |
//! | `input/` | one file for the messages of each phase |
//! | `timer` | messages sent again, attempts given up, timewaits that end |
//! | `output` | messages that leave, events |
//! | `table`, `connection` | connections by id, by numbers, by deadline; a connection's data |
//!
//! Invariant: the state machine reads no clock, and no message makes it panic or loop. [`Config`]
//! limits what strangers can make it store.
//!
//! # Lifecycle of a connection
//! ```text
//! asks      connect ──► ReqSent ──REP──► RepRcvd ──ready_to_use──► Established
//!                          │ MRA            │ mra                      ▲
//!                          ▼                ▼                          │
//!                      MraReqRcvd ─REP─►  MraRepSent ──ready_to_use────┤
//!                                                                      │
//! is asked  REQ ──────► ReqRcvd ──accept──► RepSent ──RTU, established─┤
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
//! | message that arrives again, state | answer |
//! |---|---|
//! | REQ, ReqRcvd | none: the caller is about to answer |
//! | REQ, MraReqSent | the MRA |
//! | REQ, RepSent or MraRepRcvd | the REP. Linux leaves this to the timer of the REP |
//! | REP, MraRepSent | the MRA |
//! | REP, Established | the RTU, which was lost |
//! | DREQ, DreqRcvd | none: the caller is about to answer |
//! | DREQ, Timewait | the DREP, which was lost |
//! | DREQ, no such connection | a DREP, so that the sender's release ends |
//!
//! # Differences from Linux
//! Messages, answers and timers are those of Linux' `ib_cm`, except:
//!
//! - Messages must come from the source address of the connection. Linux compares communication ids
//!   alone, and GUIDs with queue pair numbers.
//! - A side that gives up a request or reply sends a REJ with the reason timeout (IBTA 12.9.7,
//!   12.9.8), so that a peer whose messages were lost does not wait longer. Linux sends none.
//! - The DREQ of a destroyed connection is sent again until it is answered. Linux sends it once.
//! - A DREQ that crosses the own one is answered at once, and is the answer to it: both sides have
//!   asked for the end. Linux stops its own DREQ and waits for the program to disconnect again.
//! - A REQ with the queue pair of an established connection makes this side ask the peer before it
//!   releases the connection ([below](#a-peer-that-has-restarted)). Linux releases it.
//! - A REJ without the receiver's communication id ends only requests whose RTU has not arrived. On
//!   Linux it ends established connections too.
//! - Timeouts that peers ask for count as 65 s at most ([`Config::max_peer_timeout`]).
//! - A LAP is answered by an APR with the status "not supported". Linux drops it on RoCE.
//! - A REQ whose primary path does not begin at the source address is rejected. Linux sends its REP
//!   to the address in the path.
//! - A REQ whose path MTU has no meaning is rejected. Linux leaves that to the queue pair.
//!
//! # What is checked in a REQ
//! | field | rule |
//! |---|---|
//! | service id | it has a listener, or the REQ is rejected (reason 8) |
//! | transport service | RC, UC, or XRC, or it is rejected (9) |
//! | sender's GID in the primary path | the source address of the packet, or it is rejected (12) |
//! | path MTU | a code of 1 to 5, or it is rejected (26); the caller knows the port's MTU |
//! | communication id, queue pair, GUID | no connection has them (10 for the queue pair) |
//! | response timeout | counts as [`Config::max_peer_timeout`] at most |
//! | acknowledgement timeout | any code; a timewait lasts [`Config::max_peer_timeout`] at most |
//! | retries of packets, messages and RNR NAKs | any: their fields have no other values |
//! | reads and atomics, sequence number, all else | data for the caller, and its queue pair |
//!
//! # A peer that has restarted
//! A peer that has restarted may ask for a connection with a queue pair that it had before. Its old
//! connection, of which it knows nothing, must end, or the peer could never use the number again
//! (IBTA 12.9.8.3.1). But the same REQ is what a stranger can send who guesses the number (24
//! bits), and the GUID of a device may be public. So the REQ is rejected as stale, and the peer is
//! asked:
//!
//! ```text
//! stranger, or peer ──REQ, queue pair of a connection──► REJ stale, and to the peer:
//! peer ◄──DREQ with both communication ids, queue pair 0xffffff───
//! peer that knows the connection: the number is not its own, it drops the DREQ
//! peer that has restarted       ──DREP with both ids, and the transaction id──► Timewait
//! ```
//!
//! A receiver drops a DREQ with another queue pair, and answers one with unknown ids, as Linux and
//! this crate do. The DREP proves that its sender got the DREQ, so a stranger who sees no messages
//! cannot send it. A connection is asked about once a second at most. A restarted peer that repeats
//! its request with a new communication id, as it must after a REJ, is accepted from then on; each
//! repetition asks again, if the DREQ or the DREP was lost. A REP with the queue pair of a
//! connection has the same effect.
//!
//! # Strangers
//! A message changes a connection only if it comes from the address of the connection's peer and
//! names both communication ids. Each side draws its own: 32 bits each. A stranger who can neither
//! see the messages nor send under the peer's address has no effect on any connection; its own
//! requests occupy a listener's backlog, within the limits of [`Config`]: at most half of the
//! places, unless it forges addresses.
//!
//! A stranger who can send under the address of a peer but sees no messages can:
//!
//! - ask for connections in the peer's name, as often as the backlog allows. The answers go to the
//!   peer, which drops them;
//! - keep the peer from connecting with a queue pair, if it knows the GUID of the peer's device and
//!   guesses the number of the queue pair (24 bits) before the peer asks: the peer's request is
//!   rejected as stale while the forged one lasts. Numbers that the peer does not draw are easier
//!   to guess;
//! - make this side [ask the peer](#a-peer-that-has-restarted) once a second, with the same guess.
//!   It ends the connection of a peer that answers a DREQ for any queue pair, as no known one does;
//! - answer an own request in the peer's name, until the peer's answer arrives, if it guesses the
//!   own communication id (32 bits);
//! - give up a peer's request, until the peer's RTU arrives, if it knows the GUID of the peer's
//!   device and guesses the peer's communication id (32 bits);
//! - do anything else only by guessing 64 bits.
//!
//! A stranger who sees the messages can do all that the peer can.
//!
//! Each message from an unknown sender gets at most one answer, which is not longer than the
//! message, and causes one more message each second to the peer of a connection. A request that the
//! caller accepts is answered again for each retry that it allows, at most 15.

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

use self::connection::Connection;
use self::listen::Listeners;
use self::table::Table;
use crate::Random;
use crate::time::Time;

/// The communication manager of one device: all its connections, on both sides.
///
/// It has no clock and sends nothing by itself. After each call the caller fetches messages
/// ([`poll_transmit`](Cm::poll_transmit)), events ([`poll_event`](Cm::poll_event)) and the time at
/// which it wants to be called again ([`deadline`](Cm::deadline)).
#[derive(Debug)]
pub struct Cm {
    config: Config,
    random: Box<dyn Random>,
    table: Table,
    listeners: Listeners,
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
    counters: Counters,
}

impl Cm {
    /// Returns a communication manager without connections.
    pub fn new(config: Config, random: impl Random + 'static) -> Self {
        Self {
            config,
            random: Box::new(random),
            table: Table::default(),
            listeners: Listeners::default(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Returns the state of a connection or resolution; `None` if it has ended.
    pub fn state(&self, id: CmId) -> Option<State> {
        self.table.get(id).filter(|connection| !connection.orphan).map(|connection| connection.state)
    }

    /// Returns the addresses of the messages of a connection or resolution; `None` if it has ended.
    pub fn peer(&self, id: CmId) -> Option<Address> {
        self.table.get(id).filter(|connection| !connection.orphan).map(|connection| connection.peer)
    }

    /// Returns the attributes with which the own queue pair reaches the states RTR and RTS.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`]; [`Refused::State`] before the peer's queue pair is known, and after
    /// the connection.
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

    /// Returns the number of connections and resolutions, in all states, and of those whose release
    /// goes on after [`destroy`](Self::destroy).
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether there are no connections and resolutions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the numbers of messages since the beginning.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) has work.
    pub fn deadline(&self) -> Option<Time> {
        self.table.first_timer().map(|(deadline, _)| deadline)
    }

    fn connection(&self, id: CmId) -> Result<&Connection, Refused> {
        self.table.get(id).filter(|connection| !connection.orphan).ok_or(Refused::NoSuchId)
    }

    fn connection_mut(&mut self, id: CmId) -> Result<&mut Connection, Refused> {
        self.table.get_mut(id).filter(|connection| !connection.orphan).ok_or(Refused::NoSuchId)
    }

    /// Draws a communication id that no connection has.
    fn draw_local_id(&mut self) -> Option<u32> {
        // A source that draws used numbers so often has failed.
        for _ in 0..64 {
            let drawn = self.random.draw()?;
            // 0 stands for no id in messages.
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
