//! Multicast groups. A soft device joins a group at the IP layer when a queue pair is attached to
//! the group, so a membership here is only the group's address.
//!
//! # References
//! linux `rdma_join_multicast`, `cma_iboe_set_mgid`

use std::net::IpAddr;

use verbs::{Errno, GlobalRoute, QpType};

use super::key::Key;
use super::param::SoftParam;
use super::record::{HOP_LIMIT, IdState};
use super::state::{Garbage, State};
use crate::types::{Address, EventType, PortSpace};

type Result<T> = core::result::Result<T, Errno>;

impl State {
    /// Joins a group and returns the id of the membership.
    ///
    /// # Errors
    /// `EINVAL` for an id without a device, for a service other than datagrams, or for a unicast
    /// address; `EAFNOSUPPORT` for a non-IP address; `ENETUNREACH` for a group whose packets do not
    /// reach the device ([`group_obstacle`](Self::group_obstacle)).
    pub(super) fn join(&mut self, key: Key, cookie: u64, address: &Address) -> Result<u32> {
        let ip = address.ip().ok_or(Errno::AFNOSUPPORT)?.ip();
        let membership = self.draw_number() as u32;
        let id = self.id(key)?;
        let is_ready = matches!(id.state, IdState::AddrBound | IdState::AddrResolved);
        if !is_ready || id.adapter.is_none() || id.qp_type != QpType::UD || !ip.is_multicast() {
            return Err(Errno::INVAL);
        }
        id.queue.reserve()?;
        if self.group_obstacle(key, ip).is_some() {
            return Err(Errno::NETUNREACH);
        }
        let id = self.id(key)?;
        id.groups.insert(membership, cookie);
        let route = GlobalRoute {
            dgid: ip.into(),
            hop_limit: HOP_LIMIT,
            traffic_class: id.options.tos,
            ..GlobalRoute::default()
        };
        let param = SoftParam::from_service(&[], route, GROUP_QPN, PortSpace::UDP_QKEY);
        self.report_member(key, cookie, EventType::MULTICAST_JOIN, param);
        Ok(membership)
    }

    /// Returns the reason why a group's packets do not reach an id's device; `None` if they do.
    pub(super) fn group_obstacle(&self, key: Key, group: IpAddr) -> Option<String> {
        let number = self.ids.get(&key)?.adapter?;
        self.adapters.get(&number)?.port.group_obstacle(group)
    }

    /// Leaves a group. Discards the membership's unread events.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the id does not have this membership.
    pub(super) fn leave(&mut self, key: Key, membership: u32) -> Result<()> {
        let id = self.id(key)?;
        let cookie = id.groups.remove(&membership).ok_or(Errno::ADDRNOTAVAIL)?;
        let requests = id.queue.discard(|entry| entry.cookie == cookie);
        self.garbage.push_back(Garbage::Requests(requests));
        Ok(())
    }
}

/// The destination queue pair number of multicast packets.
const GROUP_QPN: u32 = 0xff_ffff;
