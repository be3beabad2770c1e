//! Connections as most programs want them: an address in, a connected queue pair out.
//!
//! | file | what it is |
//! |---|---|
//! | [`connector`] | [`Connector`]: the side that connects |
//! | [`listener`] | [`Listener`]: the side that listens |
//! | [`binding`] | [`Binding`]: its address and devices before it listens |
//! | [`control`] | [`Control`]: a connection's events, and its end |
//! | [`resources`] | [`Resources`]: completion queues and a protection domain for one connection |
//! | [`names`] | [`ToAddresses`]: the addresses that a program names |
//! | [`failure`] | [`ConnectError`]: the step that failed, the peer's reject |
//! | [`active`], [`passive`], [`ending`] | the states of each of them, without I/O |
//! | [`wait`] | waiting for files with a deadline |
//!
//! ```text
//!   Connector ─► Active ──► calls on a CmId, a deadline
//!   Listener ──► Passive ─► requests that are set up, accepted, established, expired
//!   Control ───► Ending ──► the call of the end, its confirmation, a deadline
//!       ▲            ▲
//!   EventChannel   the clock
//! ```
//!
//! The states take events and the time, and return what to do, so that they are tested in simulated
//! time, and any driver can share them: here threads that block at an event channel.
//!
//! Invariant: no call waits without a deadline that the program chose, except those that say so,
//! and the lookup of a name, which has the deadline of the system's resolver.
//!
//! Invariant: what a peer does ends its own request at most. It makes no call of a [`Listener`]
//! fail, and the memory that its requests take is bounded.

mod active;
mod binding;
mod connector;
mod control;
mod ending;
mod failure;
mod listener;
mod names;
mod passive;
mod resources;
mod wait;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use verbs::state::{Errored, Rts};
use verbs::{Cause, Errno, Error, Qp, Result};

pub use binding::Binding;
pub use connector::Connector;
pub use control::Control;
pub use ending::End;
pub use failure::{ConnectError, ConnectStep};
pub use listener::{Incoming, Listener, ListenerInit};
pub use names::ToAddresses;
pub use resources::Resources;

use crate::types::PeerParam;

/// An established connection: a queue pair in RTS, what the program made with it, and the
/// connection manager's side of it.
///
/// Its parts are public, and may be taken apart: the queue pair for the thread that posts, the
/// completion queues for one that polls, the control for one that watches for the end. Dropping
/// all of them disconnects, without waiting for the peer.
#[derive(Debug)]
#[non_exhaustive]
pub struct Connection<T = Resources> {
    /// The queue pair. Before the control, because it ends before the connection.
    pub qp: Qp<Rts>,
    /// The result of the program's setup; without one, the [`Resources`] of the queue pair.
    pub resources: T,
    /// The parameters that the peer sent with its request or its reply, among them its private
    /// data.
    pub peer: PeerParam,
    /// The connection manager's side.
    pub control: Control,
}

/// A connection that this side has ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct Disconnected<T = Resources> {
    /// The end that came first.
    pub end: End,
    /// The queue pair, in the error state: what was posted completes as flushed.
    pub qp: Qp<Errored>,
    /// The result of the program's setup, with the completion queues that these completions are in.
    pub resources: T,
}

impl<T> Connection<T> {
    /// Returns the address and port of this side.
    ///
    /// # Errors
    /// As [`CmId::local_addr`](crate::CmId::local_addr).
    pub fn local_addr(&self) -> Result<Option<SocketAddr>> {
        Ok(self.control.id().local_addr()?.and_then(|address| address.ip()))
    }

    /// Returns the address and port of the peer.
    ///
    /// # Errors
    /// As [`CmId::peer_addr`](crate::CmId::peer_addr).
    pub fn peer_addr(&self) -> Result<Option<SocketAddr>> {
        Ok(self.control.id().peer_addr()?.and_then(|address| address.ip()))
    }

    /// Moves the queue pair to the error state, disconnects, and waits until the peer has confirmed
    /// it, at most for `timeout`.
    ///
    /// Requests that have not completed are lost: a program that has sent a last message waits for
    /// its completion first, with which the peer's device has it.
    ///
    /// # Errors
    /// As [`Qp::to_error`] and [`Control::disconnect`]. The connection ends all the same, because
    /// it is dropped.
    pub fn disconnect(self, timeout: Duration) -> Result<Disconnected<T>> {
        let Self { qp, resources, control, .. } = self;
        let qp = qp.to_error()?;
        let end = control.disconnect(timeout)?;
        Ok(Disconnected { end, qp, resources })
    }
}

/// Returns the addresses of a name.
///
/// # Errors
/// As [`ToAddresses::to_addresses`]; `ENOENT` for a name without addresses.
fn lookup(name: impl ToAddresses) -> Result<Vec<SocketAddr>> {
    let addresses = name.to_addresses()?;
    if addresses.is_empty() { Err(no_address()) } else { Ok(addresses) }
}

/// Returns the error for a source that no address of the destination can be reached from.
fn no_address_for(source: IpAddr) -> Error {
    let family = if source.is_ipv4() { "IPv4" } else { "IPv6" };
    let reason = format!("the destination has no {family} address, and the source {source} reaches no other");
    Error::new("getaddrinfo", "", Errno::NOENT).because(Cause::Other { reason: reason.into() })
}

fn no_address() -> Error {
    let reason = "the name has no address of the family".into();
    Error::new("getaddrinfo", "", Errno::NOENT).because(Cause::Other { reason })
}
