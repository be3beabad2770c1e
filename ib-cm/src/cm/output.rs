//! Outgoing messages and events. Both queues are bounded. Messages beyond the limit are dropped, as
//! a network might do. Requests from unknown peers are dropped while the event queue is full. All
//! other events belong to connections, and each connection has only a few.
//!
//! Both queues initially have memory for the output of one call and grow while memory is available.
//! A message is dropped if its memory cannot be allocated. No event is lost if the caller fetches
//! all events after each call.

use std::collections::VecDeque;

use super::Cm;
use super::config::Config;
use super::event::Event;
use super::types::{Address, CmId, Counters};
use crate::time::Time;
use crate::wire::{Mad, Message};

/// A message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transmit {
    /// The destination, and the local address to send from.
    pub to: Address,
    /// The message: the payload of a datagram sent from the local queue pair 1.
    pub mad: Mad,
}

/// The maximum number of events that one call adds. Only [`Cm::handle_timeout`] may add more.
pub(super) const EVENTS_OF_A_CALL: usize = 4;

/// Queues a message, if the queue has space and memory is available.
fn transmit(queue: &mut VecDeque<Transmit>, config: &Config, counters: &mut Counters, message: Transmit) {
    if queue.len() < config.max_transmits && queue.try_reserve(1).is_ok() {
        queue.push_back(message);
        counters.sent += 1;
    } else {
        counters.unsent += 1;
    }
}

impl Cm {
    /// Removes and returns the next message to send; `None` if the queue is empty.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// Removes and returns the next event; `None` if the queue is empty.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns whether the event queue has memory for the events of another call. If not, the
    /// caller must fetch the waiting events first; otherwise [`input`](Self::input) or
    /// [`peer_ended`](Self::peer_ended) may lose events.
    pub fn has_room(&mut self) -> bool {
        self.events.try_reserve(EVENTS_OF_A_CALL).is_ok()
    }

    /// Queues a message to an address.
    pub(super) fn transmit(&mut self, to: Address, mad: Mad) {
        transmit(&mut self.transmits, &self.config, &mut self.counters, Transmit { to, mad });
    }

    /// Queues one more copy of each unanswered message of a destroyed connection.
    pub(super) fn transmit_orphans(&mut self) {
        for (to, mad) in self.table.orphans() {
            self.counters.retries += 1;
            transmit(&mut self.transmits, &self.config, &mut self.counters, Transmit { to, mad });
        }
    }

    /// Queues a message to a connection's peer. The message is sent once and needs no response.
    pub(super) fn send(&mut self, id: CmId, message: impl Into<Message>) {
        if let Some(connection) = self.table.get(id) {
            let (to, mad) = (connection.peer, message.into().emit(connection.tid, 0));
            self.transmit(to, mad);
        }
    }

    /// Queues a response and keeps it, to be repeated if the peer's message arrives again.
    pub(super) fn send_response(&mut self, id: CmId, message: impl Into<Message>) {
        if let Some(connection) = self.table.get_mut(id) {
            let (to, mad) = (connection.peer, message.into().emit(connection.tid, 0));
            connection.response = Some(mad);
            self.transmit(to, mad);
        }
    }

    /// Queues a message that is repeated until [`response_received`](Self::response_received) is
    /// called.
    pub(super) fn send_until_response(&mut self, now: Time, id: CmId, mad: Mad) {
        if let Some(connection) = self.table.get_mut(id) {
            connection.sent = Some(mad);
            connection.extended = None;
            connection.retries_left = connection.max_retries;
            let (to, deadline) = (connection.peer, now + connection.timeout);
            self.table.set_deadline(id, Some(deadline));
            self.transmit(to, mad);
        }
    }

    /// Stops repeating the message that waits for a response, because the peer has responded.
    pub(super) fn response_received(&mut self, id: CmId) {
        if let Some(connection) = self.table.get_mut(id) {
            connection.sent = None;
            connection.extended = None;
        }
        self.table.set_deadline(id, None);
    }

    /// Queues an event for a connection in the table.
    pub(super) fn report(&mut self, event: Event) {
        if self.table.get(event.id()).is_some_and(|connection| !connection.orphan)
            && self.events.try_reserve(1).is_ok()
        {
            self.events.push_back(event);
        }
    }

    /// Removes a connection from the table and from its listener's backlog.
    pub(super) fn end(&mut self, id: CmId) {
        self.settle(id);
        self.table.remove(id);
    }

    /// Ends a connection and reports its last event.
    pub(super) fn end_with(&mut self, event: Event) {
        self.report(event);
        self.end(event.id());
    }
}
