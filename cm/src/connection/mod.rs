//! High-level connections: an address goes in, a connected queue pair comes out.
//!
//! | file | content |
//! |---|---|
//! | [`connector`] | [`Connector`]: the connecting side |
//! | [`listener`] | [`Listener`]: the listening side |
//! | [`binding`] | [`Binding`]: a server's address and devices before it listens |
//! | [`control`] | [`Control`]: a connection's events and its end |
//! | [`resources`] | [`Resources`]: completion queues and a protection domain for one connection |
//! | [`names`] | [`ToAddresses`]: conversion of names to addresses |
//! | [`failure`] | [`ConnectError`]: the step that failed, the peer's reject |
//! | [`active`], [`passive`], [`ending`] | the state machines of the types above, without I/O |
//! | [`wait`] | waiting for files with a deadline |
//!
//! ```text
//!   Connector ─► Active ──► calls on a CmId, a deadline
//!   Listener ──► Passive ─► requests that are set up, accepted, established, expired
//!   Control ───► Ending ──► the disconnect call, its confirmation, a deadline
//!       ▲            ▲
//!   EventChannel   the clock
//! ```
//!
//! The inputs of the state machines are events and the time; their outputs are actions. Tests run
//! them in simulated time. Other drivers could use them as well; the drivers here are threads
//! blocking on an event channel.
//!
//! Invariant: no call waits without a deadline set by the program, except where documented. The
//! lookup of a name has the deadline of the system's resolver.
//!
//! Invariant: a peer can end at most its own request. It cannot make a call of a [`Listener`] fail.
//! The memory for its requests is bounded.

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

/// An established connection: a queue pair in RTS, the result of the program's setup, and the
/// connection manager's side.
///
/// Its public parts can go to different threads: the queue pair to the poster, the completion
/// queues to the poller, the control to a thread that watches for the end. Dropping all of them
/// disconnects without waiting for the peer.
#[derive(Debug)]
#[non_exhaustive]
pub struct Connection<T = Resources> {
    /// The queue pair. Declared before the control, so that it is dropped before the connection
    /// ends.
    pub qp: Qp<Rts>,
    /// The result of the program's setup, or by default the [`Resources`] of the queue pair.
    pub resources: T,
    /// The parameters of the peer's request or reply, including its private data.
    pub peer: PeerParam,
    /// The connection manager's side of the connection.
    pub control: Control,
}

/// A connection that this side has disconnected.
#[derive(Debug)]
#[non_exhaustive]
pub struct Disconnected<T = Resources> {
    /// The reason why the connection ended: the first end that was detected.
    pub end: End,
    /// The queue pair in the error state: posted requests complete as flushed.
    pub qp: Qp<Errored>,
    /// The result of the program's setup, including the completion queues with the flushed
    /// completions.
    pub resources: T,
}

impl<T> Connection<T> {
    /// Returns the address and port of this side.
    ///
    /// # Errors
    /// Same as [`CmId::local_addr`](crate::CmId::local_addr).
    pub fn local_addr(&self) -> Result<Option<SocketAddr>> {
        Ok(self.control.id().local_addr()?.and_then(|address| address.ip()))
    }

    /// Returns the address and port of the peer.
    ///
    /// # Errors
    /// Same as [`CmId::peer_addr`](crate::CmId::peer_addr).
    pub fn peer_addr(&self) -> Result<Option<SocketAddr>> {
        Ok(self.control.id().peer_addr()?.and_then(|address| address.ip()))
    }

    /// Moves the queue pair to the error state, disconnects and waits for the peer's confirmation,
    /// at most `timeout`.
    ///
    /// Requests that have not completed are lost. Wait for the completion of the last message
    /// first; it shows that the peer's device has the message.
    ///
    /// # Errors
    /// The errors of [`Qp::to_error`] and [`Control::disconnect`]. The connection ends in any case,
    /// because it is dropped.
    pub fn disconnect(self, timeout: Duration) -> Result<Disconnected<T>> {
        let Self { qp, resources, control, .. } = self;
        let qp = qp.to_error()?;
        let end = control.disconnect(timeout)?;
        Ok(Disconnected { end, qp, resources })
    }
}

/// Resolves a name to addresses.
///
/// # Errors
/// The errors of [`ToAddresses::to_addresses`]; `ENOENT` for a name without addresses.
fn lookup(name: impl ToAddresses) -> Result<Vec<SocketAddr>> {
    let addresses = name.to_addresses()?;
    if addresses.is_empty() { Err(no_address()) } else { Ok(addresses) }
}

/// Returns the error for a source that reaches none of the destination's addresses.
fn no_address_for(source: IpAddr) -> Error {
    let family = if source.is_ipv4() { "IPv4" } else { "IPv6" };
    let reason = format!("the destination has no {family} address, and the source {source} reaches no other");
    Error::new("getaddrinfo", "", Errno::NOENT).because(Cause::Other { reason: reason.into() })
}

fn no_address() -> Error {
    let reason = "the name has no address of the family".into();
    Error::new("getaddrinfo", "", Errno::NOENT).because(Cause::Other { reason })
}
