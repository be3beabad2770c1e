//! [`Event`]: the events reported by an event channel.

use core::fmt;

use verbs::{Cause, Ece, Errno, Error, Result};

use crate::id::{CmId, GroupKey, IdKey};
use crate::types::{EventType, Peer, PeerParam, PeerUd, RejectReason};

/// An event of an id.
///
/// An event names its id by a [key](IdKey) instead of a reference, because the id may be gone when
/// the event is handled. Events need no acknowledgement, so dropping an id never waits for an
/// acknowledgement.
///
/// # References
/// `rdma_get_cm_event(3)`
#[doc(alias = "rdma_cm_event")]
#[doc(alias = "rdma_ack_cm_event")]
#[derive(Debug)]
#[non_exhaustive]
pub struct Event {
    /// The key of the id; for a connection request, the key of the listener.
    pub id: IdKey,
    /// The kind of event, with its data.
    pub kind: EventKind,
    /// The outcome that the event reports.
    pub status: Status,
    /// The peer's ECE options; vendor 0 means none.
    #[doc(alias = "rdma_get_remote_ece")]
    pub ece: Ece,
    /// The peer's parameters, for a kind without a [`Peer`]: the private data of a datagram service
    /// that is [`Unreachable`](EventKind::Unreachable), or iWARP's data about a failed connection.
    /// `None` if all parameters are zero. [`Disconnected`](EventKind::Disconnected) has no
    /// parameters over InfiniBand and RoCE, because the kernel does not pass on the private data of
    /// a DREQ.
    pub param: Option<Box<Peer>>,
}

/// The kind of an event.
#[derive(Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// The peer's address was resolved: the id has a device and can create a queue pair.
    AddrResolved,
    /// The peer's address was not resolved.
    AddrError,
    /// The route was resolved: the id can connect.
    RouteResolved,
    /// The route was not resolved.
    RouteError,
    /// A peer requests a connection to a listener. Dropping the request rejects it.
    ConnectRequest(ConnectRequest),
    /// The peer accepted. The program must move the queue pair to RTS, then call
    /// [`establish`](CmId::establish).
    ConnectResponse(PeerParam),
    /// The connection failed after the peer had accepted it, or its device failed.
    ConnectError,
    /// The peer did not reply, or a datagram service rejected the request.
    Unreachable,
    /// The peer, or its connection manager, rejected the connection.
    Rejected(Rejection),
    /// The connection is established: [`take_qp`](CmId::take_qp) returns its queue pair. For a
    /// datagram service, the peer's address is known.
    Established(Peer),
    /// Either side has ended the connection.
    Disconnected,
    /// The device was removed. The id is no longer usable; drop it and all objects of the device.
    DeviceRemoval,
    /// The id has joined a group. A queue pair receives the group's messages once it is
    /// [attached](verbs::Qp::attach_mcast).
    MulticastJoin {
        /// The key of the group membership.
        group: GroupKey,
        /// The group's address: its GID is the destination of the path.
        ud: PeerUd,
    },
    /// The id could not join a group, or has lost its membership.
    MulticastError {
        /// The key of the group membership.
        group: GroupKey,
    },
    /// The hardware address of the id's network interface has changed. The program should
    /// reconnect.
    AddrChange,
    /// The queue pair of a closed connection may be reused, because none of its packets can arrive
    /// any more.
    TimewaitExit,
    /// A service was resolved; [`services`](CmId::services) returns its records.
    AddrinfoResolved,
    /// A service was not resolved.
    AddrinfoError,
    /// An event written by the program ([`write_event`](CmId::write_event)). Contains the event's
    /// value.
    User(u64),
    /// An event written by a library for internal use. Contains the event's value.
    Internal(u64),
    /// An event of an unknown type.
    Unknown(EventType),
}

/// A connection request to a listener. Dropping the request, or its id, rejects the request.
///
/// The id reports no events until the request is accepted. If the peer gives up or the device
/// disappears before that, accepting fails with `EINVAL`, or with `ENXIO` if a soft device is gone.
#[derive(Debug)]
#[non_exhaustive]
pub struct ConnectRequest {
    /// The id of the connection, on the listener's event channel. The program calls
    /// [`accept`](CmId::accept) or [`reject`](CmId::reject) on it.
    pub id: CmId,
    /// The parameters that the peer sent with the request.
    pub peer: Peer,
}

/// A peer's reject.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejection {
    /// The reason; `None` from transports without reasons (iWARP).
    pub reason: Option<RejectReason>,
    /// Bytes from the peer's program; see [`PeerParam::private_data`].
    pub private_data: Vec<u8>,
}

/// The outcome of an event: 0, a negative errno, or a protocol reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Status(pub i32);

impl Status {
    /// Returns the errno, if the status is an errno.
    pub const fn errno(self) -> Option<Errno> {
        if self.0 < 0 { Some(Errno::from_raw(self.0.wrapping_neg())) } else { None }
    }

    /// Returns the status in words, for an error message that ends with the errno's name.
    fn words(self) -> String {
        self.errno().map_or_else(|| self.0.to_string(), |errno| errno.description().to_string())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errno() {
            Some(errno) => write!(f, "{} ({errno})", errno.description()),
            None => self.0.fmt(f),
        }
    }
}

impl Event {
    /// Returns the type of the event, as numbered by the kernel.
    pub const fn event_type(&self) -> EventType {
        match self.kind {
            EventKind::AddrResolved => EventType::ADDR_RESOLVED,
            EventKind::AddrError => EventType::ADDR_ERROR,
            EventKind::RouteResolved => EventType::ROUTE_RESOLVED,
            EventKind::RouteError => EventType::ROUTE_ERROR,
            EventKind::ConnectRequest(_) => EventType::CONNECT_REQUEST,
            EventKind::ConnectResponse(_) => EventType::CONNECT_RESPONSE,
            EventKind::ConnectError => EventType::CONNECT_ERROR,
            EventKind::Unreachable => EventType::UNREACHABLE,
            EventKind::Rejected(_) => EventType::REJECTED,
            EventKind::Established(_) => EventType::ESTABLISHED,
            EventKind::Disconnected => EventType::DISCONNECTED,
            EventKind::DeviceRemoval => EventType::DEVICE_REMOVAL,
            EventKind::MulticastJoin { .. } => EventType::MULTICAST_JOIN,
            EventKind::MulticastError { .. } => EventType::MULTICAST_ERROR,
            EventKind::AddrChange => EventType::ADDR_CHANGE,
            EventKind::TimewaitExit => EventType::TIMEWAIT_EXIT,
            EventKind::AddrinfoResolved => EventType::ADDRINFO_RESOLVED,
            EventKind::AddrinfoError => EventType::ADDRINFO_ERROR,
            EventKind::User(_) => EventType::USER,
            EventKind::Internal(_) => EventType::INTERNAL,
            EventKind::Unknown(event) => event,
        }
    }

    /// Returns the event, or the error it reports.
    ///
    /// # Errors
    /// Returns the errno in the status, with the reason in words, for these kinds:
    /// [`AddrError`](EventKind::AddrError), [`RouteError`](EventKind::RouteError),
    /// [`ConnectError`](EventKind::ConnectError), [`Unreachable`](EventKind::Unreachable),
    /// [`Rejected`](EventKind::Rejected) (`ECONNREFUSED`),
    /// [`DeviceRemoval`](EventKind::DeviceRemoval) (`ENODEV`),
    /// [`MulticastError`](EventKind::MulticastError) and
    /// [`AddrinfoError`](EventKind::AddrinfoError).
    pub fn ok(self) -> Result<Self> {
        let (verb, errno, reason) = match &self.kind {
            EventKind::AddrError => ("resolve_addr", Errno::IO, self.of_address()),
            EventKind::RouteError => {
                ("resolve_route", Errno::IO, format!("no route: {}", self.status.words()))
            }
            EventKind::ConnectError => {
                ("connect", Errno::IO, format!("the connection failed: {}", self.of_failure()))
            }
            EventKind::Unreachable => ("connect", Errno::HOSTUNREACH, self.of_silence()),
            EventKind::Rejected(rejection) => ("connect", Errno::CONNREFUSED, rejection.to_string()),
            EventKind::DeviceRemoval => ("connect", Errno::NODEV, "the device was removed".into()),
            EventKind::MulticastError { .. } => (
                "join_multicast",
                Errno::IO,
                format!("the group was not joined, or is lost: {}", self.status.words()),
            ),
            EventKind::AddrinfoError => (
                "resolve_addrinfo",
                Errno::NOENT,
                format!("the service was not found: {}", self.status.words()),
            ),
            _ => return Ok(self),
        };
        let errno = self.status.errno().unwrap_or(errno);
        Err(Error::new(verb, "", errno).because(Cause::Other { reason: reason.into() }))
    }

    /// Returns the reason why an address was not resolved.
    fn of_address(&self) -> String {
        match self.status.errno() {
            Some(Errno::NODEV) => "the interface that routes to the address has no RDMA device: \
                                   `rdma link` lists those that have one of the kernel, `ibv_devices` \
                                   soft ones as well"
                .into(),
            Some(Errno::TIMEDOUT) => {
                "no host answered for the address in time (ARP or neighbour discovery; of this \
                 machine: the program that listens is stopped)"
                    .into()
            }
            Some(Errno::HOSTUNREACH | Errno::NETUNREACH) => "no route leads to the address".into(),
            Some(Errno::AFNOSUPPORT) => OTHER_FAMILY.into(),
            _ => format!("the address was not resolved: {}", self.status.words()),
        }
    }

    /// Returns the reason why a connection failed.
    fn of_failure(&self) -> String {
        match self.status.errno() {
            Some(Errno::AFNOSUPPORT) => OTHER_FAMILY.into(),
            Some(Errno::NODEV) => "no device of this process reaches the listener's devices".into(),
            _ => self.status.words(),
        }
    }

    /// Returns the reason why a peer is unreachable.
    fn of_silence(&self) -> String {
        // For datagram services, the status comes from the peer's reply (IBTA volume 1, table 119).
        match self.status.0 {
            1 => "the peer does not support datagram services, or no program listens on the port".into(),
            2 => "the peer's program rejected the request".into(),
            3 => "the peer has no queue pair for the service".into(),
            4 => "the service is at another address".into(),
            5 => "the peer has another version of the protocol".into(),
            _ => "the peer did not reply".into(),
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            Some(reason) => write!(f, "{reason} (reject reason {})", reason.0),
            None => f.write_str("the peer rejected the connection"),
        }
    }
}

/// The reason why this process's devices do not reach a listener on this machine.
const OTHER_FAMILY: &str = "a program listens, with soft devices of another address family (IPv4 or IPv6) than \
                            those of this process: VERBS_SOFT takes addresses of both";

#[cfg(test)]
mod tests {
    use verbs_core::slots::SlotId;

    use super::*;

    fn event(kind: EventKind, status: i32) -> Event {
        Event { id: IdKey(SlotId(7)), kind, status: Status(status), ece: Ece::default(), param: None }
    }

    fn rejected(reason: u16) -> EventKind {
        EventKind::Rejected(Rejection { reason: Some(RejectReason(reason)), private_data: Vec::new() })
    }

    #[test]
    fn a_failure_becomes_an_error_in_words() {
        for (kind, status, text) in [
            (
                rejected(8),
                8,
                "connect: no program listens on this address and port (reject reason 8) (ECONNREFUSED)",
            ),
            (rejected(999), 999, "connect: unknown (999) (reject reason 999) (ECONNREFUSED)"),
            (
                EventKind::AddrError,
                -110,
                "resolve_addr: no host answered for the address in time (ARP or neighbour discovery; of this machine: \
                 the program that listens is stopped) (ETIMEDOUT)",
            ),
            (EventKind::Unreachable, -110, "connect: the peer did not reply (ETIMEDOUT)"),
            (
                EventKind::AddrError,
                -97,
                "resolve_addr: a program listens, with soft devices of another address family (IPv4 or IPv6) than \
                 those of this process: VERBS_SOFT takes addresses of both (EAFNOSUPPORT)",
            ),
            (
                EventKind::ConnectError,
                -19,
                "connect: the connection failed: no device of this process reaches the listener's devices (ENODEV)",
            ),
            (EventKind::Unreachable, 2, "connect: the peer's program rejected the request (EHOSTUNREACH)"),
            (EventKind::RouteError, -22, "resolve_route: no route: Invalid argument (EINVAL)"),
        ] {
            assert_eq!(event(kind, status).ok().unwrap_err().to_string(), text);
        }
        let interface = event(EventKind::AddrError, -19).ok().unwrap_err().to_string();
        assert!(interface.contains("has no RDMA device"), "{interface}");
    }

    #[test]
    fn an_event_without_failure_stays_an_event() {
        for kind in [EventKind::AddrResolved, EventKind::TimewaitExit, EventKind::Unknown(EventType(77))] {
            let event = event(kind, 0).ok().unwrap();
            assert_eq!(event.id, IdKey(SlotId(7)));
        }
        assert_eq!(event(EventKind::Unknown(EventType(77)), 3).event_type(), EventType(77));
    }

    #[test]
    fn a_status_is_an_errno_only_if_it_is_negative() {
        assert_eq!(Status(-110).errno(), Some(Errno::TIMEDOUT));
        assert_eq!((Status(0).errno(), Status(28).errno()), (None, None));
        assert_eq!(Status(i32::MIN).errno(), Some(Errno::IO));
        assert_eq!(
            (Status(28).to_string(), Status(-22).to_string()),
            ("28".into(), "Invalid argument (EINVAL)".into())
        );
    }
}
