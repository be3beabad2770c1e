//! [`SoftParam`]: the parameters of an event, converted from messages.

use ib_cm::cm::{Reply, Request};
use verbs::{AhAttr, GlobalRoute};

use crate::backend::Param;
use crate::types::{PeerParam, PeerUd};

/// The parameters of an event.
#[derive(Clone, Debug, Default)]
pub(super) struct SoftParam {
    pub(super) conn: PeerParam,
    pub(super) ud: PeerUd,
    pub(super) arg: u64,
}

impl SoftParam {
    /// Returns the parameters of a connection request. The program's data begin at `offset`.
    pub(super) fn from_request(request: &Request, offset: usize) -> Self {
        let conn = PeerParam {
            private_data: request.private_data.bytes()[offset..].to_vec(),
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            flow_control: request.flow_control,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            srq: request.srq,
            qp_num: request.remote_qpn,
        };
        Self { conn, ..Self::default() }
    }

    /// Returns the parameters of a reply.
    pub(super) fn from_reply(reply: &Reply) -> Self {
        let conn = PeerParam {
            private_data: reply.private_data.bytes().to_vec(),
            responder_resources: reply.responder_resources,
            initiator_depth: reply.initiator_depth,
            flow_control: reply.flow_control,
            retry_count: 0,
            rnr_retry_count: reply.rnr_retry_count,
            srq: reply.srq,
            qp_num: reply.remote_qpn,
        };
        Self { conn, ..Self::default() }
    }

    /// Returns the parameters of an event that carries only the peer's private data.
    pub(super) fn from_data(data: &[u8]) -> Self {
        let conn = PeerParam { private_data: data.to_vec(), ..PeerParam::default() };
        let ud = PeerUd { private_data: data.to_vec(), ..PeerUd::default() };
        Self { conn, ud, arg: 0 }
    }

    /// Returns the parameters of a datagram service.
    pub(super) fn from_service(data: &[u8], route: GlobalRoute, qp_num: u32, qkey: u32) -> Self {
        let ah_attr = AhAttr { grh: Some(route), port_num: 1, ..AhAttr::default() };
        let ud = PeerUd { private_data: data.to_vec(), ah_attr, qp_num, qkey };
        Self { ud, ..Self::default() }
    }
}

impl Param for SoftParam {
    fn conn(&self) -> PeerParam {
        self.conn.clone()
    }

    fn ud(&self) -> PeerUd {
        self.ud.clone()
    }

    fn arg(&self) -> u64 {
        self.arg
    }
}
