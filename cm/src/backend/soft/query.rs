//! Queries: addresses, paths, queue pair attributes.
//!
//! # References
//! linux `ucma_query_addr`, `cma_resolve_iboe_route`, `rdma_init_qp_attr`, `ib_cm_init_qp_attr`

use ib_cm::cm::State as CmState;
use provider_soft::cm::Port;
use verbs::{AccessFlags, AhAttr, Errno, Gid, GlobalRoute, Mtu, QpAttr, QpAttrMask, QpState, QpType, Rate};

use super::key::Key;
use super::record::{HOP_LIMIT, Id, IdState};
use super::state::State;
use crate::cmd::query::{Addresses, DeviceKey, Gids};
use crate::types::{ConnParam, PathRecord, PortSpace};

type Result<T> = core::result::Result<T, Errno>;

impl State {
    pub(super) fn addresses(&mut self, key: Key) -> Result<Addresses> {
        let (id, port) = self.id_and_port(key)?;
        let (local, peer) = (id.local.map(Into::into), id.peer.map(Into::into));
        Ok(match port {
            Some(port) => Addresses {
                local,
                peer,
                device: Some(DeviceKey { guid: port.node_guid(), index: None }),
                port_num: Port::NUMBER,
                pkey: Port::PKEY,
            },
            None => Addresses { local, peer, ..Addresses::default() },
        })
    }

    pub(super) fn gids(&mut self, key: Key) -> Result<Gids> {
        let (id, port) = self.id_and_port(key)?;
        Ok(Gids { local: port.map_or(Gid::ZERO, Port::gid), peer: id.remote })
    }

    pub(super) fn paths(&mut self, key: Key) -> Result<Vec<PathRecord>> {
        let (id, port) = self.id_and_port(key)?;
        let has_route = matches!(id.state, IdState::RouteResolved | IdState::Connect | IdState::Disconnect);
        let port = port.filter(|_| has_route);
        let path = port.map(|port| PathRecord {
            dgid: id.remote,
            sgid: port.gid(),
            dlid: 0,
            slid: 0,
            flow_label: 0,
            hop_limit: HOP_LIMIT,
            traffic_class: id.options.tos,
            reversible: true,
            pkey: Port::PKEY,
            sl: 0,
            mtu: Mtu(id.path_mtu.0),
            rate: Rate(0),
            packet_life_time: id.packet_life_time(),
            preference: 0,
        });
        Ok(path.into_iter().collect())
    }

    /// Returns the attributes for moving an id's queue pair to a state.
    ///
    /// # Errors
    /// `EINVAL` for an id without a device or a state that the connection does not permit.
    pub(super) fn init_qp_attr(&mut self, key: Key, qp_state: QpState) -> Result<(QpAttr, QpAttrMask)> {
        let id = self.known(key)?;
        let number = id.adapter.ok_or(Errno::INVAL)?;
        let adapter = self.adapters.get(&number).ok_or(Errno::INVAL)?;
        let common = QpAttr { qp_state, pkey_index: 0, port_num: Port::NUMBER, ..QpAttr::default() };
        let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT;
        if id.qp_type == QpType::UD {
            return Ok((QpAttr { qkey: PortSpace::UDP_QKEY, ..common }, mask | QpAttrMask::QKEY));
        }
        let Some(connection) = id.connection else {
            if qp_state != QpState::INIT {
                return Err(Errno::INVAL);
            }
            // This is the case before the request or while its listener is being located.
            let qp_access_flags = match id.state {
                IdState::Connect => access(id.responder_resources),
                _ => common.qp_access_flags,
            };
            return Ok((QpAttr { qp_access_flags, ..common }, mask | QpAttrMask::ACCESS_FLAGS));
        };
        let state = adapter.cm.state(connection).ok_or(Errno::INVAL)?;
        let is_waiting = matches!(state, CmState::ReqSent | CmState::MraReqRcvd);
        if qp_state == QpState::INIT && is_waiting {
            let qp_access_flags = access(id.responder_resources);
            return Ok((QpAttr { qp_access_flags, ..common }, mask | QpAttrMask::ACCESS_FLAGS));
        }
        let known = adapter.cm.qp_attr(connection).map_err(|_| Errno::INVAL)?;
        let is_rc = matches!(id.qp_type, QpType::RC);
        match qp_state {
            QpState::INIT => {
                let qp_access_flags = access(known.max_dest_rd_atomic);
                Ok((QpAttr { qp_access_flags, ..common }, mask | QpAttrMask::ACCESS_FLAGS))
            }
            QpState::RTR => {
                let grh = GlobalRoute {
                    dgid: Gid(known.path.remote),
                    flow_label: known.path.flow_label,
                    sgid_index: Port::GID_INDEX,
                    hop_limit: known.path.hop_limit,
                    traffic_class: known.path.traffic_class,
                };
                let attr = QpAttr {
                    qp_state,
                    ah_attr: AhAttr {
                        grh: Some(grh),
                        sl: known.path.sl,
                        port_num: Port::NUMBER,
                        ..AhAttr::default()
                    },
                    path_mtu: Mtu(known.path_mtu.0),
                    dest_qp_num: known.dest_qpn,
                    rq_psn: id.starting_psn,
                    max_dest_rd_atomic: known.max_dest_rd_atomic,
                    min_rnr_timer: ConnParam::MIN_RNR_TIMER,
                    ..QpAttr::default()
                };
                let mask = QpAttrMask::STATE
                    | QpAttrMask::AV
                    | QpAttrMask::PATH_MTU
                    | QpAttrMask::DEST_QPN
                    | QpAttrMask::RQ_PSN;
                let of_rc = QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER;
                let has_responder = is_rc || id.qp_type == QpType::XRC_RECV;
                Ok((attr, if has_responder { mask | of_rc } else { mask }))
            }
            QpState::RTS => {
                let attr = QpAttr {
                    qp_state,
                    sq_psn: known.sq_psn,
                    retry_cnt: known.retry_cnt,
                    rnr_retry: known.rnr_retry,
                    max_rd_atomic: known.max_rd_atomic,
                    timeout: id.options.ack_timeout.unwrap_or(known.timeout),
                    ..QpAttr::default()
                };
                let mask = QpAttrMask::STATE | QpAttrMask::SQ_PSN;
                let of_initiator =
                    QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY | QpAttrMask::MAX_QP_RD_ATOMIC;
                Ok((
                    attr,
                    match id.qp_type {
                        QpType::RC | QpType::XRC_SEND => mask | of_initiator | QpAttrMask::TIMEOUT,
                        QpType::XRC_RECV => mask | QpAttrMask::TIMEOUT,
                        _ => mask,
                    },
                ))
            }
            _ => Err(Errno::INVAL),
        }
    }

    fn id_and_port(&self, key: Key) -> Result<(&Id, Option<&Port>)> {
        let id = self.known(key)?;
        let adapter = id.adapter.and_then(|number| self.adapters.get(&number));
        Ok((id, adapter.map(|adapter| &adapter.port)))
    }
}

/// Returns the peer's access rights. The peer may read if this side responds to reads.
fn access(responder_resources: u8) -> AccessFlags {
    if responder_resources == 0 {
        AccessFlags::REMOTE_WRITE
    } else {
        AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC
    }
}
