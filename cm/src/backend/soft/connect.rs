//! Connecting, accepting, rejecting, disconnecting.
//!
//! # References
//! linux `rdma_connect_locked`, `rdma_accept`, `rdma_reject`, `rdma_disconnect`, `rdma_notify`

use ib_cm::cm::{AcceptParams, CmId, ConnectParams, Refused, RejectParams, SidrParams, SidrReplyParams};
use ib_cm::time::{MILLISECOND, Time};
use ib_cm::wire::{Reason, dreq, rej, rep, rtu, sidr_rep};
use provider_soft::cm::{Found, Route};
use verbs::{AsyncEventType, Ece, Errno, QpType};

use super::adapter::{Adapter, ece_to_wire};
use super::key::Key;
use super::param::SoftParam;
use super::record::IdState;
use super::request::Request;
use super::state::{Continuation, Query, State};
use crate::types::{ConnParam, EventType, PortSpace};

type Result<T> = core::result::Result<T, Errno>;

impl State {
    /// Requests a connection or looks up a datagram service, by the id's port space.
    pub(super) fn connect(&mut self, key: Key, param: &ConnParam<'_>, ece: Ece) -> Result<()> {
        let id = self.id(key)?;
        if id.state != IdState::RouteResolved {
            return Err(Errno::INVAL);
        }
        id.queue.reserve()?;
        let request = Request::new(id, param, ece)?;
        id.responder_resources = param.responder_resources;
        if !id.is_local {
            return self.request(key, &request);
        }
        let deadline = self.now() + REPLY_MS * MILLISECOND;
        self.seek(key, Box::new(request), deadline)
    }

    /// Sends a request to the listener at the id's destination, or waits for the reply that locates
    /// the listener.
    fn seek(&mut self, key: Key, request: Box<Request>, deadline: Time) -> Result<()> {
        let id = self.id(key)?;
        let (space, peer) = (id.space.0, id.peer.ok_or(Errno::INVAL)?);
        let (number, remote) = (id.adapter.ok_or(Errno::INVAL)?, id.remote.to_ipv6().into());
        let source = self.adapters.get(&number).ok_or(Errno::INVAL)?.port.address();
        // The watch starts before the search for the listener, so that it notices a process ending
        // after the search.
        let has_ended = self.watch_peer(key);
        let query = match self.listeners.find(space, source, peer, remote)? {
            Found::Same if has_ended => return self.refuse(key),
            Found::Same => {
                self.request(key, &request)?;
                self.look_later(key);
                return Ok(());
            }
            Found::Moved(route) => return self.request_at(key, &route, &request),
            Found::Pending(lookup) => Query::Own(lookup),
            Found::Shared(id) => Query::Shared(id),
            Found::Unreached(errno) => {
                self.id(key)?.state = IdState::Connect;
                self.report_outcome(key, EventType::CONNECT_ERROR, Err(errno));
                return Ok(());
            }
            Found::NoListener => return self.refuse(key),
        };
        self.start_lookup(key, query, deadline, Continuation::Request(request))?;
        self.id(key)?.state = IdState::Connect;
        Ok(())
    }

    /// Resumes a request that was waiting for another id's lookup.
    pub(super) fn seek_again(&mut self, key: Key, request: Box<Request>, deadline: Time) {
        if let Err(errno) = self.seek(key, request, deadline) {
            self.report_outcome(key, EventType::CONNECT_ERROR, Err(errno));
        }
    }

    /// Continues a request after its listener was queried for its devices.
    pub(super) fn found(&mut self, key: Key, request: &Request, outcome: Result<Route>, has_devices: bool) {
        let requested = match outcome {
            Err(Errno::TIMEDOUT) => Err(Errno::TIMEDOUT),
            _ if !has_devices => self.refuse(key),
            Ok(route) => self.request_at(key, &route, request),
            Err(errno) => Err(errno),
        };
        match requested {
            Ok(()) => {}
            Err(Errno::TIMEDOUT) => {
                self.report_outcome(key, EventType::UNREACHABLE, Err(Errno::TIMEDOUT));
            }
            Err(errno) => self.report_outcome(key, EventType::CONNECT_ERROR, Err(errno)),
        }
    }

    /// Sends a request to another device, whose listener may have closed in the meantime.
    fn request_at(&mut self, key: Key, route: &Route, request: &Request) -> Result<()> {
        self.move_to(key, route)?;
        let has_ended = self.watch_peer(key);
        let id = self.id(key)?;
        let (space, peer) = (id.space.0, id.peer.ok_or(Errno::INVAL)?);
        match self.listeners.find(space, route.port.address(), peer, route.destination)? {
            Found::NoListener => self.refuse(key),
            Found::Same if has_ended => self.refuse(key),
            _ => {
                self.request(key, request)?;
                self.look_later(key);
                Ok(())
            }
        }
    }

    /// Sets the device in `route` as the peer's device.
    fn move_to(&mut self, key: Key, route: &Route) -> Result<()> {
        let mtu = route.path_mtu()?;
        let id = self.id(key)?;
        let before = core::mem::replace(&mut id.remote, route.destination.into());
        let has_moved = before != id.remote;
        id.path_mtu = ib_cm::wire::Mtu(mtu.0);
        let watch = if has_moved { id.watch.take() } else { None };
        self.unwatch(watch);
        Ok(())
    }

    /// Sends a request to the peer's device.
    fn request(&mut self, key: Key, request: &Request) -> Result<()> {
        let now = self.now();
        let id = self.ids.get_mut(&key).ok_or(Errno::INVAL)?;
        let adapter = id.adapter.and_then(|number| self.adapters.get_mut(&number)).ok_or(Errno::INVAL)?;
        let gid = adapter.port.gid();
        let connection = match *request {
            Request::Service(params) => {
                adapter.cm.sidr_request(now, &SidrParams { to: id.messages(gid), ..params })
            }
            Request::Connection(params) => {
                let params = ConnectParams { path: id.path(gid), path_mtu: id.path_mtu, ..params };
                adapter.cm.connect(now, &params)
            }
        };
        let connection = connection.map_err(errno)?;
        id.connection = Some(connection);
        id.state = IdState::Connect;
        adapter.connections.insert(connection, key);
        Ok(())
    }

    /// Rejects this side's request to an address of this machine that has no listener, as Linux
    /// does.
    fn refuse(&mut self, key: Key) -> Result<()> {
        let id = self.id(key)?;
        id.state = IdState::Connect;
        let (event, status, length) = if id.qp_type == QpType::UD {
            let status = sidr_rep::Status::UNSUPPORTED.0.into();
            (EventType::UNREACHABLE, status, sidr_rep::Data::LEN)
        } else {
            (EventType::REJECTED, Reason::INVALID_SERVICE_ID.0.into(), rej::Data::LEN)
        };
        self.report(key, event, status, SoftParam::from_data(&vec![0; length]), Ece::default());
        Ok(())
    }

    /// Accepts a request. If that fails, rejects it, as Linux does.
    pub(super) fn accept(&mut self, key: Key, param: &ConnParam<'_>, ece: Ece) -> Result<()> {
        let now = self.now();
        let id = self.id(key)?;
        if id.state != IdState::Connect {
            return Err(Errno::INVAL);
        }
        let (starting_psn, is_ud) = (id.starting_psn, id.qp_type == QpType::UD);
        let (adapter, connection) = self.connection(key)?;
        let accepted = if is_ud {
            sidr_rep::Data::new(param.private_data).map_err(|_| Errno::INVAL).and_then(|private_data| {
                let params = SidrReplyParams {
                    status: sidr_rep::Status::VALID,
                    qp_num: param.qp_num,
                    qkey: PortSpace::UDP_QKEY,
                    ece: ece_to_wire(ece),
                    private_data,
                    ..SidrReplyParams::default()
                };
                adapter.cm.sidr_reply(connection, &params).map_err(errno)
            })
        } else {
            rep::Data::new(param.private_data).map_err(|_| Errno::INVAL).and_then(|private_data| {
                let params = AcceptParams {
                    qp_num: param.qp_num,
                    starting_psn,
                    responder_resources: param.responder_resources,
                    initiator_depth: param.initiator_depth,
                    failover_accepted: 0,
                    flow_control: param.flow_control,
                    rnr_retry_count: param.rnr_retry_count.min(7),
                    srq: param.srq,
                    ece: ece_to_wire(ece),
                    private_data,
                };
                adapter.cm.accept(now, connection, &params).map_err(errno)
            })
        };
        if accepted.is_err() {
            give_up(adapter, now, connection, is_ud);
        }
        accepted
    }

    /// Confirms to the peer that this side's queue pair is in RTS, after the peer's reply.
    pub(super) fn establish(&mut self, key: Key) -> Result<()> {
        let now = self.now();
        let id = self.id(key)?;
        if id.state != IdState::Connect || id.qp_type == QpType::UD {
            return Err(Errno::INVAL);
        }
        let (adapter, connection) = self.connection(key)?;
        let established = adapter.cm.ready_to_use(connection, rtu::Data::default()).map_err(errno);
        if established.is_err() {
            give_up(adapter, now, connection, false);
        }
        established
    }

    /// Rejects the peer's request or reply.
    pub(super) fn reject(&mut self, key: Key, data: &[u8], reason: u8) -> Result<()> {
        let reason = match u16::from(reason) {
            0 | 28 => Reason::CONSUMER_DEFINED,
            35 => Reason::VENDOR_OPTION_NOT_SUPPORTED,
            _ => return Err(Errno::INVAL),
        };
        let now = self.now();
        let is_ud = self.id(key)?.qp_type == QpType::UD;
        let (adapter, connection) = self.connection(key)?;
        if is_ud {
            let private_data = sidr_rep::Data::new(data).map_err(|_| Errno::INVAL)?;
            let status = sidr_rep::Status::REJECTED;
            let params = SidrReplyParams { status, private_data, ..SidrReplyParams::default() };
            adapter.cm.sidr_reply(connection, &params).map_err(errno)
        } else {
            let private_data = rej::Data::new(data).map_err(|_| Errno::INVAL)?;
            let params = RejectParams { reason, private_data, ..RejectParams::default() };
            adapter.cm.reject(now, connection, &params).map_err(errno)
        }
    }

    /// Disconnects, or confirms the peer's disconnect. Like Linux, returns no error if the
    /// connection has already ended or the request was not sent yet.
    pub(super) fn disconnect(&mut self, key: Key) -> Result<()> {
        let now = self.now();
        let id = self.id(key)?;
        if id.state == IdState::Connect && id.connection.is_none() {
            self.cancel_lookup(key);
            return Ok(());
        }
        let (adapter, connection) = self.connection(key)?;
        let _ = adapter.cm.disconnect(now, connection, dreq::Data::default());
        Ok(())
    }

    /// Treats a message on the connection as the peer's final handshake message.
    pub(super) fn notify(&mut self, key: Key, event: AsyncEventType) -> Result<()> {
        let (adapter, connection) = self.connection(key)?;
        match event {
            AsyncEventType::COMM_EST => adapter.cm.established(connection).map_err(|refused| match refused {
                Refused::State(ib_cm::cm::State::Established) => Errno::from_raw(libc::EISCONN),
                other => errno(other),
            }),
            _ => Err(Errno::INVAL),
        }
    }

    /// Returns the connection of an id. The connection may have ended.
    ///
    /// # Errors
    /// `EINVAL` for an id that never had a connection.
    pub(super) fn connection(&mut self, key: Key) -> Result<(&mut Adapter, CmId)> {
        let id = self.id(key)?;
        let connection = id.connection.ok_or(Errno::INVAL)?;
        let number = id.adapter.ok_or(Errno::INVAL)?;
        let adapter = self.adapters.get_mut(&number).ok_or(Errno::INVAL)?;
        Ok((adapter, connection))
    }
}

/// The time that a listener has to reply to a query before the request is sent, in milliseconds. A
/// listener replies at once unless its process is stopped. An unanswered request is given up after
/// a similar time.
const REPLY_MS: u64 = 60_000;

/// Rejects a request that could not be accepted. A connection in a later state is kept.
fn give_up(adapter: &mut Adapter, now: Time, connection: CmId, is_ud: bool) {
    let _ = if is_ud {
        let status = sidr_rep::Status::REJECTED;
        adapter.cm.sidr_reply(connection, &SidrReplyParams { status, ..SidrReplyParams::default() })
    } else {
        adapter.cm.reject(now, connection, &RejectParams::default())
    };
}

/// Returns the errno for an error of the communication manager.
fn errno(refused: Refused) -> Errno {
    match refused {
        Refused::NoRoom => Errno::NOMEM,
        Refused::NoNumbers => Errno::IO,
        Refused::Listening => Errno::ADDRINUSE,
        // `NoSuchId`, `State` and `Invalid`.
        _ => Errno::INVAL,
    }
}
