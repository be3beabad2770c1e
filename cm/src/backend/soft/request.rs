//! [`Request`]: this side's request, before the path to the peer is known.

use std::net::{IpAddr, SocketAddr};

use ib_cm::cm::{ConnectParams, SidrParams, Transport};
use ib_cm::wire::ip::Addresses;
use ib_cm::wire::{ip, req, sidr_req};
use verbs::{Ece, Errno, Gid, QpType};

use super::adapter::ece_to_wire;
use super::record::{Id, service};
use crate::types::ConnParam;

type Result<T> = core::result::Result<T, Errno>;

/// A request, before the path to the peer is known.
#[derive(Debug)]
pub(super) enum Request {
    /// A request for a connection.
    Connection(ConnectParams),
    /// A request for a datagram service.
    Service(SidrParams),
}

impl Request {
    /// Returns the request of an id whose route is resolved.
    ///
    /// # Errors
    /// `EINVAL` for private data that are too long.
    pub(super) fn new(id: &Id, param: &ConnParam<'_>, ece: Ece) -> Result<Self> {
        let (local, peer) = (id.local.ok_or(Errno::INVAL)?, id.peer.ok_or(Errno::INVAL)?);
        let private_data = [&header(local, peer)?.emit(), param.private_data].concat();
        let service_id = service(id.space, peer.port());
        if id.qp_type == QpType::UD {
            let private_data = sidr_req::Data::new(&private_data).map_err(|_| Errno::INVAL)?;
            let params = SidrParams::new(id.messages(Gid::ZERO), service_id);
            return Ok(Self::Service(SidrParams { private_data, ..params }));
        }
        Ok(Self::Connection(ConnectParams {
            service_id,
            transport: transport(id.qp_type)?,
            qp_num: param.qp_num,
            starting_psn: id.starting_psn,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control,
            retry_count: param.retry_count.min(7),
            rnr_retry_count: param.rnr_retry_count.min(7),
            srq: param.srq,
            ece: ece_to_wire(ece),
            private_data: req::Data::new(&private_data).map_err(|_| Errno::INVAL)?,
            ..ConnectParams::default()
        }))
    }
}

/// Returns the RDMA IP CM header of a request.
fn header(local: SocketAddr, peer: SocketAddr) -> Result<ip::Repr> {
    let addresses = match (local.ip(), peer.ip()) {
        (IpAddr::V4(source), IpAddr::V4(target)) => Addresses::V4 { source, target },
        (IpAddr::V6(source), IpAddr::V6(target)) => Addresses::V6 { source, target },
        _ => return Err(Errno::INVAL),
    };
    Ok(ip::Repr { source_port: local.port(), addresses })
}

/// Returns the transport for a queue pair type.
///
/// # Errors
/// `EINVAL` for a type without connections.
fn transport(qp_type: QpType) -> Result<Transport> {
    match qp_type {
        QpType::RC => Ok(Transport::Rc),
        QpType::UC => Ok(Transport::Uc),
        QpType::XRC_SEND => Ok(Transport::Xrc),
        _ => Err(Errno::INVAL),
    }
}
