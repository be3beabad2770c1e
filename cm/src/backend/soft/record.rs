//! The record of an id: its state, its addresses, its options.
//!
//! ```text
//!   Idle ─► AddrBound ─► Listen
//!      │       │  ▲
//!      │       ▼  │ ADDR_ERROR
//!      └──► AddrQuery ─► AddrResolved ─► RouteResolved ─► Connect ─► Disconnect
//!                                         a request's id begins here ┘
//! ```
//!
//! The removal of a device moves each of its ids to Removed, whatever their state. A call in the
//! wrong state returns `EINVAL`, or `ENXIO` in Removed. The states match Linux's `cma.c`;
//! [`ib_cm::cm::Cm`] has the state of the handshake. Routes need no intermediate state, nor do
//! addresses found at once.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ib_cm::cm::{Address as CmAddress, CmId, Path};
use ib_cm::wire::{Mtu, PortSpace as WireSpace, ServiceId};
use verbs::{Gid, QpType};

use super::backlog::Backlog;
use super::queue::Queue;
use crate::types::PortSpace;

/// The state of an id, as in `cma.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdState {
    Idle,
    AddrBound,
    AddrQuery,
    AddrResolved,
    RouteResolved,
    Connect,
    Disconnect,
    Listen,
    Removed,
}

/// The record of an id.
#[derive(Debug)]
pub(super) struct Id {
    pub(super) state: IdState,
    pub(super) queue: Arc<Queue>,
    /// The cookie of the id's events; 0 for an unread request.
    pub(super) cookie: u64,
    /// Whether the id is a pending request. Its events are dropped: if the peer or the device is
    /// gone, accepting the request fails.
    pub(super) is_silent: bool,
    pub(super) space: PortSpace,
    pub(super) qp_type: QpType,
    pub(super) options: Options,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    /// The number of the device's adapter, once the id has a device.
    pub(super) adapter: Option<u64>,
    /// The GID of the peer's device.
    pub(super) remote: Gid,
    /// The upper 8 bits of the peer's queue pair number, once known: the slot of the peer's
    /// process, if the address is shared.
    pub(super) remote_slot: u8,
    /// Whether the peer is on this machine.
    pub(super) is_local: bool,
    /// The number of the watch on the process that has the peer's device.
    pub(super) watch: Option<u64>,
    /// The id of the connection or service lookup, kept after its end.
    pub(super) connection: Option<CmId>,
    pub(super) listener: Option<Listener>,
    /// The first packet sequence number that the queue pair receives.
    pub(super) starting_psn: u32,
    /// The number of reads and atomics that the peer may have outstanding, for this side's request.
    pub(super) responder_resources: u8,
    /// The path MTU, followed by the packet life time, as received in a request.
    pub(super) path_mtu: Mtu,
    pub(super) packet_life_time: u8,
    /// The cookies of group memberships, by membership id.
    pub(super) groups: BTreeMap<u32, u64>,
}

/// The options that a program has set for an id.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) tos: u8,
    pub(super) reuse: bool,
    pub(super) af_only: Option<bool>,
    pub(super) ack_timeout: Option<u8>,
}

/// The data of a listening id.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) backlog: Backlog,
    pub(super) service: ServiceId,
    pub(super) adapters: Vec<u64>,
    pub(super) names: Vec<(SocketAddr, u64)>,
}

impl Id {
    /// Returns an id without an address.
    pub(super) fn new(
        queue: &Arc<Queue>,
        cookie: u64,
        space: PortSpace,
        qp_type: QpType,
        starting_psn: u32,
    ) -> Self {
        Self {
            state: IdState::Idle,
            queue: Arc::clone(queue),
            cookie,
            is_silent: cookie == 0,
            space,
            qp_type,
            options: Options::default(),
            local: None,
            peer: None,
            adapter: None,
            remote: Gid::ZERO,
            remote_slot: 0,
            is_local: false,
            watch: None,
            connection: None,
            listener: None,
            starting_psn,
            responder_resources: 0,
            path_mtu: Mtu::B1024,
            packet_life_time: PACKET_LIFE_TIME,
            groups: BTreeMap::new(),
        }
    }

    /// Returns the path to the peer.
    pub(super) fn path(&self, local: Gid) -> Path {
        Path {
            local: local.0,
            remote: self.remote.0,
            traffic_class: self.options.tos,
            hop_limit: HOP_LIMIT,
            packet_life_time: self.packet_life_time(),
            ..Path::default()
        }
    }

    /// Returns the packet life time, a 5-bit code: half of the acknowledgement time-out, if the
    /// program has set one.
    pub(super) fn packet_life_time(&self) -> u8 {
        match self.options.ack_timeout {
            Some(timeout) if timeout > 0 => timeout - 1,
            _ => self.packet_life_time,
        }
    }

    /// Returns the addresses for messages to the peer.
    pub(super) fn messages(&self, local: Gid) -> CmAddress {
        CmAddress { traffic_class: self.options.tos, ..CmAddress::gsi(local.0, self.remote.0) }
    }

    /// Returns whether the id listens on an unspecified address and therefore on all devices.
    pub(super) fn listens_on_all(&self) -> bool {
        self.listener.is_some() && self.local.is_some_and(|local| local.ip().is_unspecified())
    }

    /// Returns whether the address covers only its own family.
    pub(super) fn af_only(&self, ip: IpAddr) -> bool {
        self.options.af_only.unwrap_or_else(|| ip.is_ipv4() || is_v6_only())
    }
}

/// Returns the service id for a port.
pub(super) const fn service(space: PortSpace, port: u16) -> ServiceId {
    ServiceId::ip(WireSpace(space.0), port)
}

/// Returns whether IPv6 sockets exclude IPv4 by default on this system.
fn is_v6_only() -> bool {
    std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only").is_ok_and(|text| text.trim() == "1")
}

/// The packet life time on RoCE (`CMA_IBOE_PACKET_LIFETIME`), a 5-bit code.
const PACKET_LIFE_TIME: u8 = 16;

/// The maximum number of routers on a path.
pub(super) const HOP_LIMIT: u8 = 64;
