//! Converts protocol events to events of ids.
//!
//! | protocol event | id in CONNECT | event of the id |
//! |---|---|---|
//! | Request, SidrRequest | the listener's | `CONNECT_REQUEST` with a new id in CONNECT |
//! | Reply | | `CONNECT_RESPONSE` |
//! | Established | | `ESTABLISHED` |
//! | Rejected | | `REJECTED`, with the reason as its status |
//! | Unreachable | | `UNREACHABLE`, `ETIMEDOUT` |
//! | Disconnecting, Disconnected | becomes DISCONNECT | `DISCONNECTED` |
//! | TimewaitExit | in DISCONNECT | `TIMEWAIT_EXIT` |
//! | SidrReply | | `ESTABLISHED`, or `UNREACHABLE` with the status |
//!
//! An event for an id in another state is skipped, because the end of the connection was already
//! reported. Events for pending requests are skipped, too.
//!
//! # References
//! linux `cma_ib_handler`, `cma_ib_req_handler`, `cma_sidr_rep_handler`

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ib_cm::cm::{CmId, Event, RejectParams, Request, SidrReply, SidrReplyParams, SidrRequest, Transport};
use ib_cm::wire::{Reason, ServiceId, ip, mra, sidr_rep};
use verbs::{Ece, Errno, Gid, GlobalRoute, QpType};

use super::SoftId;
use super::adapter::ece_from_wire;
use super::backlog::{BacklogSlot, Room};
use super::key::Key;
use super::manager::manager;
use super::origin::Origin;
use super::param::SoftParam;
use super::queue::{Entry, Queue, Unread};
use super::record::{HOP_LIMIT, IdState};
use super::state::{Garbage, State};
use crate::types::EventType;

impl State {
    /// Handles an event of an adapter's communication manager.
    pub(super) fn on_event(&mut self, number: u64, event: &Event) {
        match event {
            Event::Request(request) => return self.on_request(number, request),
            Event::SidrRequest(request) => return self.on_sidr_request(number, request),
            _ => {}
        }
        let Some(adapter) = self.adapters.get_mut(&number) else { return };
        let connection = event.id();
        let key = if event.is_last() {
            adapter.connections.remove(&connection)
        } else {
            adapter.connections.get(&connection).copied()
        };
        let Some(key) = key else { return };
        if matches!(event, Event::Reply(_)) {
            // The MRA is sent if the reply is repeated before the program responds, as in Linux.
            let _ = adapter.cm.prepare_mra(connection, MRA_TIMEOUT, mra::Data::default());
        }
        if let Event::Reply(reply) = event {
            self.watch_replying(key, reply.remote_qpn);
        }
        let Some(id) = self.ids.get_mut(&key) else { return };
        let wanted = match event {
            Event::TimewaitExit { .. } => IdState::Disconnect,
            _ => IdState::Connect,
        };
        if id.state != wanted {
            return;
        }
        let timed_out = -Errno::TIMEDOUT.raw();
        let (kind, status, param, ece) = match event {
            Event::Reply(reply) => {
                let (param, ece) = (SoftParam::from_reply(reply), ece_from_wire(reply.ece));
                (EventType::CONNECT_RESPONSE, 0, param, ece)
            }
            Event::Established { .. } => (EventType::ESTABLISHED, 0, SoftParam::default(), Ece::default()),
            Event::Rejected(rejected) => {
                let param = SoftParam::from_data(rejected.private_data.as_ref());
                (EventType::REJECTED, rejected.reason.0.into(), param, Ece::default())
            }
            Event::Unreachable { .. } => {
                (EventType::UNREACHABLE, timed_out, SoftParam::default(), Ece::default())
            }
            Event::Disconnecting { .. } | Event::Disconnected { .. } => {
                id.state = IdState::Disconnect;
                let is_silent = matches!(event, Event::Disconnected { private_data: None, .. });
                let status = if is_silent { timed_out } else { 0 };
                (EventType::DISCONNECTED, status, SoftParam::default(), Ece::default())
            }
            Event::TimewaitExit { .. } => (EventType::TIMEWAIT_EXIT, 0, SoftParam::default(), Ece::default()),
            Event::SidrReply(reply) => service_found(reply, id.remote, id.options.tos),
            // MRAs are ignored: the peer only needs more time. Requests are handled above.
            _ => return,
        };
        self.report(key, kind, status, param, ece);
    }

    /// Watches the process of a peer on this machine once the peer's queue pair is known.
    fn watch_replying(&mut self, key: Key, remote_qpn: u32) {
        let Some(id) = self.ids.get_mut(&key) else { return };
        id.remote_slot = slot_of(remote_qpn);
        if id.is_local && id.watch.is_none() && self.watch_peer(key) {
            self.end_with_peer(key);
        }
    }

    fn on_request(&mut self, number: u64, request: &Request) {
        let now = self.now();
        if let Some(adapter) = self.adapters.get_mut(&number)
            && !adapter.carries(request.path_mtu)
        {
            let params = RejectParams { reason: Reason::INVALID_MTU, ..RejectParams::default() };
            let _ = adapter.cm.reject(now, request.id, &params);
            return;
        }
        let taken = self.take_request(
            number,
            request.id,
            (request.service_id, slot_of(request.remote_qpn)),
            request.private_data.as_ref(),
            |qp_type| match request.transport {
                Transport::Rc => qp_type == QpType::RC,
                Transport::Uc => qp_type == QpType::UC,
                // The listening side has the XRC target.
                Transport::Xrc => matches!(qp_type, QpType::XRC_SEND | QpType::XRC_RECV),
            },
        );
        let Some(adapter) = self.adapters.get_mut(&number) else { return };
        let (listener, key, slot) = match taken {
            Ok(taken) => taken,
            Err(Refusal::NoRoom) => {
                let _ = adapter.cm.forget_request(request.id);
                return;
            }
            Err(Refusal::Rejected(reason)) => {
                let params = RejectParams { reason, ..RejectParams::default() };
                let _ = adapter.cm.reject(now, request.id, &params);
                return;
            }
        };
        // The MRA is sent if the request is repeated before the program responds, as in Linux.
        let _ = adapter.cm.prepare_mra(request.id, MRA_TIMEOUT, mra::Data::default());
        if let Some(id) = self.ids.get_mut(&key) {
            id.options.tos = request.path.traffic_class;
            id.path_mtu = request.path_mtu;
            id.packet_life_time = request.path.packet_life_time;
            id.responder_resources = request.responder_resources;
        }
        let param = SoftParam::from_request(request, ip::LEN);
        self.report_request(listener, key, slot, param, ece_from_wire(request.ece));
    }

    fn on_sidr_request(&mut self, number: u64, request: &SidrRequest) {
        let data = request.private_data.as_ref();
        let taken = self
            .take_request(number, request.id, (request.service_id, 0), data, |qp_type| qp_type == QpType::UD);
        match taken {
            Ok((listener, key, slot)) => {
                let param = SoftParam::from_data(&data[ip::LEN..]);
                self.report_request(listener, key, slot, param, Ece::default());
            }
            Err(untaken) => {
                let Some(adapter) = self.adapters.get_mut(&number) else { return };
                let status = match untaken {
                    Refusal::Rejected(Reason::INVALID_SERVICE_ID) => sidr_rep::Status::UNSUPPORTED,
                    _ => sidr_rep::Status::REJECTED,
                };
                let params = SidrReplyParams { status, ..SidrReplyParams::default() };
                let _ = adapter.cm.sidr_reply(request.id, &params);
            }
        }
    }

    /// Creates an id for a request to a listener.
    ///
    /// # Errors
    /// Returns the reason why the id cannot be created.
    fn take_request(
        &mut self,
        number: u64,
        connection: CmId,
        (service, remote_slot): (ServiceId, u8),
        data: &[u8],
        is_type: impl Fn(QpType) -> bool,
    ) -> Result<(Key, Key, BacklogSlot), Refusal> {
        let header = ip::Repr::parse(data).map_err(|_| Reason::INVALID_SERVICE_ID)?;
        let adapter = self.adapters.get(&number).ok_or(Reason::NO_RESOURCES)?;
        let gid = adapter.port.gid();
        let remote = adapter.cm.peer(connection).map_or(gid, |peer| Gid(peer.remote));
        let origin = Origin {
            device: adapter.port.address(),
            packet: remote.to_ipv6().to_canonical(),
            source: header.source(),
            target: header.target(),
        };
        // The check fails without a free descriptor, but may work when the request is repeated.
        if !self.is_genuine(origin).map_err(|_| Refusal::NoRoom)? {
            return Err(Reason::INVALID_SERVICE_ID.into());
        }
        let services = self.adapters.get(&number).map(|adapter| &adapter.services);
        let keys = services.and_then(|of| of.get(&service)).map_or(&[][..], |(_, keys)| keys);
        let listener = self.listener_of(keys, header.target()).ok_or(Reason::INVALID_SERVICE_ID)?;
        let of = self.ids.get(&listener).ok_or(Reason::INVALID_SERVICE_ID)?;
        let (space, qp_type, options) = (of.space, of.qp_type, of.options);
        if !is_type(qp_type) {
            return Err(Reason::INVALID_TRANSPORT_TYPE.into());
        }
        let backlog = of.listener.as_ref().ok_or(Reason::INVALID_SERVICE_ID)?.backlog.clone();
        let queue = Arc::clone(&of.queue);
        match backlog.room(remote) {
            Room::Free => {}
            Room::Instead(oldest) => self.forget_unread(&queue, oldest),
            Room::None => return Err(Refusal::NoRoom),
        }
        let key = self.create(&queue, 0, space, qp_type).map_err(|_| Reason::NO_RESOURCES)?;
        let slot = backlog.take(remote, key);
        self.attach(key, number);
        if let Some(id) = self.ids.get_mut(&key) {
            id.state = IdState::Connect;
            id.options = options;
            id.local = Some(SocketAddr::new(header.target(), service.0 as u16));
            id.peer = Some(SocketAddr::new(header.source(), header.source_port));
            (id.remote, id.remote_slot) = (remote, remote_slot);
            id.connection = Some(connection);
        }
        if let Some(adapter) = self.adapters.get_mut(&number) {
            adapter.connections.insert(connection, key);
        }
        if self.is_of_this_machine(&origin) && self.watch_peer(key) {
            self.end_with_peer(key);
        }
        Ok((listener, key, slot))
    }

    /// Drops an unread request without a reply. A request that the program has already read is
    /// kept, because it has left the backlog.
    fn forget_unread(&mut self, queue: &Queue, request: Key) {
        let is_it = |entry: &Entry| entry.request.as_ref().is_some_and(|unread| unread.key == request);
        for Unread { id, slot, .. } in queue.discard(is_it) {
            // The slot is freed at once, because the next request may need it.
            drop(slot);
            self.forget(request);
            self.garbage.push_back(Garbage::Request(id));
        }
    }

    /// Drops a request without a reply, so that its peer sends it again.
    pub(super) fn forget(&mut self, key: Key) {
        let Some(id) = self.ids.get_mut(&key) else { return };
        if let Some(adapter) = id.adapter.and_then(|number| self.adapters.get_mut(&number))
            && let Some(connection) = id.connection
            && adapter.cm.forget_request(connection).is_ok()
        {
            adapter.connections.remove(&connection);
            id.connection = None;
        }
    }

    /// Returns the listener on an address or, if there is none, a listener on an unspecified
    /// address.
    fn listener_of(&self, keys: &[Key], target: IpAddr) -> Option<Key> {
        let local = |key: &Key| {
            let id = self.ids.get(key)?;
            id.local.map(|local| (local.ip(), id.af_only(local.ip())))
        };
        let is_exact = |key: &&Key| local(key).is_some_and(|(ip, _)| ip == target);
        let is_any = |key: &&Key| {
            local(key).is_some_and(|(ip, af_only)| {
                ip.is_unspecified() && (ip.is_ipv4() == target.is_ipv4() || ip.is_ipv6() && !af_only)
            })
        };
        keys.iter().find(is_exact).or_else(|| keys.iter().find(is_any)).copied()
    }

    /// Queues the event of a connection request to a listener.
    fn report_request(&mut self, listener: Key, key: Key, slot: BacklogSlot, param: SoftParam, ece: Ece) {
        // This code runs inside the manager, so the manager exists.
        let (Some(id), Ok(manager)) = (self.ids.get(&listener), manager("get_cm_event")) else { return };
        let request = Some(Unread { key, id: Box::new(SoftId { manager, key, kernel_error: None }), slot });
        let (queue, cookie) = (Arc::clone(&id.queue), id.cookie);
        let event = EventType::CONNECT_REQUEST;
        self.push(queue, Entry { owner: listener, cookie, event, status: 0, param, ece, request });
    }
}

/// The reason why no id is created for a request.
enum Refusal {
    /// The backlog is full, or descriptors have run out. Linux lets the peer send the request again
    /// (`cm_destroy_id`), except for datagrams.
    NoRoom,
    /// The request is rejected.
    Rejected(Reason),
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self::Rejected(reason)
    }
}

/// Returns the slot of the process that owns a queue pair, if processes share the address.
fn slot_of(qpn: u32) -> u8 {
    (qpn >> 16) as u8
}

/// Returns the event for the outcome of a service lookup.
fn service_found(reply: &SidrReply, remote: Gid, tos: u8) -> (EventType, i32, SoftParam, Ece) {
    let data = reply.private_data.as_ref();
    let ece = ece_from_wire(reply.ece);
    if reply.status != sidr_rep::Status::VALID {
        return (EventType::UNREACHABLE, reply.status.0.into(), SoftParam::from_data(data), ece);
    }
    let route =
        GlobalRoute { dgid: remote, hop_limit: HOP_LIMIT, traffic_class: tos, ..GlobalRoute::default() };
    (EventType::ESTABLISHED, 0, SoftParam::from_service(data, route, reply.qpn, reply.qkey), ece)
}

/// The program's response time announced in MRA messages (`CMA_IBOE_MRA_SETTING`), as a 5-bit code:
/// 4.096 µs × 2²⁴, which Linux and `ib_cm` count as 65.5 s.
const MRA_TIMEOUT: u8 = 24;
