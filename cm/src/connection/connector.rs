//! [`Connector`]: the connecting side.
//!
//! ```text
//!   names ─► addresses ─► Active ─► for each: a new id, options, resolve_addr, resolve_route,
//!                                   the setup, connect ─► Connection
//! ```

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use verbs::state::{Init, Rts};
use verbs::{Cause, Errno, Error, Qp, Result};

use super::active::{Action, Active, Timeouts};
use super::failure::{ConnectError, ConnectStep};
use super::{Connection, Control, Resources, ToAddresses};
use crate::EventChannel;
use crate::event::Event;
use crate::id::CmId;
use crate::types::{ConnParam, PortSpace};

/// The connecting side, with its options:
/// `Connector { tos: Some(104), ..Connector::default() }`.
///
/// ```
/// use std::time::Duration;
///
/// use rdmacm::{ConnParam, Connector, Listener};
/// use verbs::{SendFlags, SendOp};
///
/// # fn main() -> verbs::Result<()> {
/// # let device = verbs::soft::auto()?;
/// # let host = device.open()?.find_gid(1)?.gid.to_ipv6().to_canonical();
/// # let listener = Listener::bind((host, 0))?;
/// # let server = listener.local_addr();
/// # let accepted = std::thread::spawn(move || listener.accept());
/// let param = ConnParam { private_data: b"version 1", ..ConnParam::default() };
/// let mut peer = Connector { param, ..Connector::default() }.connect(server)?;
/// # let mut other = accepted.join().expect("it has accepted")?;
/// # other.qp.post_recv_buf(other.resources.pd.alloc_buf(64)?, ..)?;
/// let message = peer.resources.pd.alloc_buf(64)?;
/// peer.qp.post_send_buf(SendOp::Send, SendFlags::empty(), message, ..)?;
/// peer.resources.next_send(Duration::from_secs(5))?.ok()?;
/// # drop(other);
/// peer.disconnect(Duration::from_secs(5))?;
/// # Ok(())
/// # }
/// ```
///
/// # References
/// `rdma_resolve_addr(3)`, `rdma_resolve_route(3)`, `rdma_connect(3)`
#[derive(Clone, Debug)]
pub struct Connector<'a> {
    /// The parameters of the connection: private data, depths, retries.
    pub param: ConnParam<'a>,
    /// The address to connect from; port 0 stands for any port. `None` lets the routing table
    /// choose the address.
    pub source: Option<SocketAddr>,
    /// Whether the source port may be shared with another id. Both ids must permit it.
    pub reuse_addr: bool,
    /// The type of service of the connection's packets ([`CmId::set_tos`]).
    pub tos: Option<u8>,
    /// The acknowledgement time-out, a 5-bit code ([`CmId::set_ack_timeout`]).
    pub ack_timeout: Option<u8>,
    /// The time after which the peer repeats a message that found no receive here, as a 5-bit code;
    /// [`ConnParam::MIN_RNR_TIMER`] (0.64 ms) by default. The timer of [`param`](Self::param) takes
    /// precedence.
    pub min_rnr_timer: Option<u8>,
    /// The time limit for resolving the address, and again for resolving the route; 2 s by default.
    pub resolve_timeout: Duration,
    /// The time limit between the connection request and the peer's reply; 30 s by default. The
    /// peer's program may take time to accept.
    pub connect_timeout: Duration,
    /// The time limit for all steps and all addresses together; `None` leaves only the limits of
    /// the steps. A name lookup counts towards the limit but is not interrupted: it lasts as long
    /// as the system's resolver waits for its servers (`resolv.conf(5)`).
    pub timeout: Option<Duration>,
}

impl Default for Connector<'_> {
    fn default() -> Self {
        Self {
            param: ConnParam::default(),
            source: None,
            reuse_addr: false,
            tos: None,
            ack_timeout: None,
            min_rnr_timer: None,
            resolve_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(30),
            timeout: None,
        }
    }
}

impl Connector<'_> {
    /// Connects to an address with an RC queue pair of the default capacity ([`Resources::CAP`]).
    /// The addresses of a name are tried in order, as in
    /// [`TcpStream::connect`](std::net::TcpStream::connect).
    ///
    /// Waits until the peer accepts, within the limits of the options.
    ///
    /// # Errors
    /// Returns the error for the last attempted address:
    ///
    /// - `ETIMEDOUT` for a step that did not finish in time. The error message and
    ///   [`step`](ConnectError::step) name the step.
    /// - `ECONNREFUSED` for a reject, with its reason in words: no program listens, or the peer's
    ///   program rejected. [`rejection`](ConnectError::rejection) has the peer's private data.
    /// - `ENETUNREACH`, `EHOSTUNREACH` and `ENODEV` for an address without a route, or without a
    ///   device that reaches it.
    /// - `EAFNOSUPPORT` if the listener's soft devices have addresses of another family.
    /// - `ENOENT` for an unknown name or a failed lookup, with the system's reason in the error
    ///   message.
    /// - The errors of [`EventChannel::new`], [`Resources::create`] and [`CmId::connect`].
    #[doc(alias = "rdma_create_ep")]
    pub fn connect(&self, to: impl ToAddresses) -> Result<Connection, ConnectError> {
        self.connect_with(to, |id| Resources::create(id, Resources::CAP))
    }

    /// Connects to an address with a queue pair created by the program.
    ///
    /// `setup` runs once the device is known, for each address with a resolved route. It creates
    /// the queue pair with [`CmId::create_qp`] and posts the first receives. It returns the queue
    /// pair and the data for the connection to keep.
    ///
    /// ```no_run
    /// use rdmacm::Connector;
    /// use verbs::{CqInit, QpInit, QpType};
    ///
    /// # fn main() -> verbs::Result<()> {
    /// let peer = Connector::default().connect_with("server.example:7471", |id| {
    ///     let context = id.context()?;
    ///     let (pd, cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(1024))?);
    ///     let mut qp = id.create_qp(&pd, &QpInit::new(QpType::RC, &cq))?;
    ///     qp.post_recv_buf(pd.alloc_buf(4096)?, ..)?;
    ///     Ok((qp, (pd, cq)))
    /// })?;
    /// let (pd, cq) = peer.resources;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`connect`](Self::connect); the errors of `setup`, after which no other
    /// address is tried.
    pub fn connect_with<T>(
        &self,
        to: impl ToAddresses,
        mut setup: impl FnMut(&CmId) -> Result<(Qp<Init>, T)>,
    ) -> Result<Connection<T>, ConnectError> {
        let failed = |step, error| ConnectError::new(None, step, error, None);
        let started = Instant::now();
        let addresses = self.lookup(to).map_err(|error| failed(ConnectStep::Lookup, error))?;
        let channel = EventChannel::new().map_err(|error| failed(ConnectStep::ResolveAddr, error))?;
        let timeouts =
            Timeouts { resolve: self.resolve_timeout, connect: self.connect_timeout, total: self.timeout };
        let mut active = Active::new(addresses, timeouts, started);
        let mut attempt = None;
        loop {
            let called = match (active.poll(Instant::now()), &mut attempt) {
                (Action::ResolveAddr(to, timeout), attempt) => {
                    // The previous attempt's id is dropped first, along with its queue pair and
                    // port.
                    *attempt = None;
                    self.resolve_addr(&channel, to, timeout).map(|id| *attempt = Some(Attempt::new(id)))
                }
                (Action::ResolveRoute(timeout), Some(attempt)) => attempt.id.resolve_route(timeout),
                (Action::SetUp, Some(attempt)) => {
                    let (qp, resources) = setup(&attempt.id).map_err(|error| {
                        ConnectError::new(active.address(), ConnectStep::CreateQp, error, None)
                    })?;
                    (attempt.qp, attempt.resources) = (Some(qp), Some(resources));
                    Ok(())
                }
                (Action::Connect, Some(Attempt { qp: qp @ Some(_), id, .. })) => {
                    qp.take().map_or(Ok(()), |qp| id.connect(qp, &self.param))
                }
                (Action::Wait(deadline), attempt) => match next_event(&channel, deadline) {
                    Ok(Some(event))
                        if attempt.as_ref().is_some_and(|attempt| attempt.id.key() == event.id) =>
                    {
                        active.event(event);
                        Ok(())
                    }
                    Ok(_) => Ok(()),
                    Err(error) => Err(error),
                },
                (Action::Connected(peer), attempt) => {
                    let (id, qp, resources) =
                        attempt.take().and_then(Attempt::connected).ok_or_else(|| {
                            failed(
                                ConnectStep::Connect,
                                internal("an established connection without a queue pair"),
                            )
                        })?;
                    return Ok(Connection { qp, resources, peer, control: Control::new(id, channel) });
                }
                (Action::Failed(error), _) => return Err(error.with_kernel(channel.kernel_error())),
                (Action::ResolveRoute(_) | Action::SetUp | Action::Connect, _) => {
                    Err(internal("a step of an attempt without an id"))
                }
            };
            if let Err(error) = called {
                active.call_failed(error);
            }
        }
    }

    /// Returns the addresses of a name that match the source's family.
    fn lookup(&self, to: impl ToAddresses) -> Result<Vec<SocketAddr>> {
        let addresses = super::lookup(to)?;
        let is_reached =
            |address: &SocketAddr| self.source.is_none_or(|source| source.is_ipv4() == address.is_ipv4());
        let addresses: Vec<_> = addresses.into_iter().filter(is_reached).collect();
        match self.source {
            Some(source) if addresses.is_empty() => Err(super::no_address_for(source.ip())),
            _ => Ok(addresses),
        }
    }

    /// Creates the id of an attempt and starts resolving the address.
    fn resolve_addr(&self, channel: &EventChannel, to: SocketAddr, timeout: Duration) -> Result<CmId> {
        let id = channel.create_id(PortSpace::TCP)?;
        if self.reuse_addr {
            id.set_reuse_addr(true)?;
        }
        if let Some(tos) = self.tos {
            id.set_tos(tos)?;
        }
        if let Some(ack_timeout) = self.ack_timeout {
            id.set_ack_timeout(ack_timeout)?;
        }
        if let Some(timer) = self.min_rnr_timer {
            id.set_min_rnr_timer(timer)?;
        }
        id.resolve_addr(self.source.map(Into::into), to, timeout)?;
        Ok(id)
    }
}

/// An attempt to connect to one address.
struct Attempt<T> {
    /// The queue pair from the program's setup, until the id takes the queue pair.
    qp: Option<Qp<Init>>,
    id: CmId,
    /// The data that the program's setup returned with the queue pair.
    resources: Option<T>,
}

impl<T> Attempt<T> {
    fn new(id: CmId) -> Self {
        Self { qp: None, id, resources: None }
    }

    /// Returns the id, the queue pair and the resources of an established connection.
    fn connected(self) -> Option<(CmId, Qp<Rts>, T)> {
        let qp = self.id.take_qp()?;
        Some((self.id, qp, self.resources?))
    }
}

/// Returns the next event of the channel; `None` after the deadline.
fn next_event(channel: &EventChannel, deadline: Option<Instant>) -> Result<Option<Event>> {
    match deadline {
        Some(deadline) => channel.next_event_within(deadline.saturating_duration_since(Instant::now())),
        None => channel.next_event().map(Some),
    }
}

/// Returns the error for an inconsistency between the state machine and its driver.
fn internal(reason: &str) -> Error {
    Error::new("connect", "", Errno::IO).because(Cause::Other { reason: reason.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_of_the_other_family_is_named_instead_of_the_destination_alone() {
        let source = Some("[2001:db8::5]:0".parse().unwrap());
        let error = Connector { source, ..Connector::default() }.connect("192.0.2.1:7471").unwrap_err();
        assert_eq!(error.step, ConnectStep::Lookup);
        let text = "getaddrinfo: the destination has no IPv6 address, and the source 2001:db8::5 reaches no other \
                    (ENOENT)";
        assert_eq!(error.to_string(), text);
    }
}
