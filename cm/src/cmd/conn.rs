//! Connections: `LISTEN`, `CONNECT`, `ACCEPT`, `REJECT`, `DISCONNECT`, `NOTIFY`, `INIT_QP_ATTR`.

use core::mem::offset_of;

use uverbs_abi::ib_user_verbs::IbUverbsQpAttr;
use uverbs_abi::rdma_user_cm::{
    RDMA_USER_CM_CMD_ACCEPT, RDMA_USER_CM_CMD_CONNECT, RDMA_USER_CM_CMD_DISCONNECT,
    RDMA_USER_CM_CMD_INIT_QP_ATTR, RDMA_USER_CM_CMD_LISTEN, RDMA_USER_CM_CMD_NOTIFY, RDMA_USER_CM_CMD_REJECT,
    RdmaUcmAccept, RdmaUcmConnParam, RdmaUcmConnect, RdmaUcmDisconnect, RdmaUcmEce, RdmaUcmInitQpAttr,
    RdmaUcmListen, RdmaUcmNotify, RdmaUcmReject,
};
use verbs::{AsyncEventType, Cause, Ece, Errno, Error, QpAttr, QpAttrMask, QpState, Result};
use zerocopy::IntoBytes;

use crate::channel::{Command, Ucma};
use crate::types::{ConnParam, convert};

/// Listens for connection requests. At most `backlog` requests may be pending. 0 or a value above
/// the kernel's maximum (`net.rdma_ucm.max_backlog`, 1024) selects that maximum.
///
/// # Errors
/// `EADDRINUSE` for a port used by another id; any other errno the kernel returns.
#[doc(alias = "rdma_listen")]
pub(crate) fn listen(ucma: &Ucma, id: u32, backlog: u32) -> Result<()> {
    let request = RdmaUcmListen { id, backlog };
    ucma.write("listen", Command::new(RDMA_USER_CM_CMD_LISTEN, request.as_bytes()))
}

/// Sends a connection request. The result is an event.
///
/// # Errors
/// `EINVAL` for an id without a resolved route or for private data beyond the limit; any other
/// errno the kernel returns.
#[doc(alias = "rdma_connect")]
pub(crate) fn connect(ucma: &Ucma, id: u32, param: &ConnParam<'_>, ece: Ece) -> Result<()> {
    let conn_param = conn_param("connect", param)?;
    let request = RdmaUcmConnect { conn_param, id, reserved: 0, ece: ece_to_kernel(ece) };
    ucma.write("connect", Command::new(RDMA_USER_CM_CMD_CONNECT, request.as_bytes()))
}

/// Accepts a connection request; later events of its id carry `uid`. Without parameters, sends the
/// connecting side's final message instead and ignores `uid`.
///
/// # Errors
/// `EINVAL` for an id in another state or for private data beyond the limit; any other errno the
/// kernel returns.
#[doc(alias = "rdma_accept")]
#[doc(alias = "rdma_establish")]
pub(crate) fn accept(ucma: &Ucma, id: u32, uid: u64, param: Option<&ConnParam<'_>>, ece: Ece) -> Result<()> {
    let verb = if param.is_some() { "accept" } else { "establish" };
    let conn_param = param.map(|param| conn_param(verb, param)).transpose()?.unwrap_or_default();
    let request = RdmaUcmAccept { uid, conn_param, id, reserved: 0, ece: ece_to_kernel(ece) };
    ucma.write(verb, Command::new(RDMA_USER_CM_CMD_ACCEPT, request.as_bytes()))
}

/// Rejects a connection request. Kernels accept two reasons: 0 (which stands for
/// `CONSUMER_DEFINED`) and 35 (`VENDOR_OPTION_NOT_SUPPORTED`).
///
/// # Errors
/// `EINVAL` for another reason, an id in another state or private data beyond the limit; any other
/// errno the kernel returns.
#[doc(alias = "rdma_reject")]
#[doc(alias = "rdma_reject_ece")]
pub(crate) fn reject(ucma: &Ucma, id: u32, data: &[u8], reason: u8) -> Result<()> {
    const VERB: &str = "reject";
    let (private_data, private_data_len) = private_data(VERB, data)?;
    let request = RdmaUcmReject { id, private_data_len, reason, reserved: [0; 2], private_data };
    ucma.write(VERB, Command::new(RDMA_USER_CM_CMD_REJECT, request.as_bytes()))
}

/// Ends a connection, or confirms the peer's disconnect. The result is an event.
///
/// # Errors
/// `EINVAL` for an id without a connection; any other errno the kernel returns.
#[doc(alias = "rdma_disconnect")]
pub(crate) fn disconnect(ucma: &Ucma, id: u32) -> Result<()> {
    let request = RdmaUcmDisconnect { id };
    ucma.write("disconnect", Command::new(RDMA_USER_CM_CMD_DISCONNECT, request.as_bytes()))
}

/// Passes an event of a queue pair to the connection manager.
///
/// # Errors
/// `EINVAL` for an id without a device, or for another kind of event; any other errno the kernel
/// returns.
#[doc(alias = "rdma_notify")]
pub(crate) fn notify(ucma: &Ucma, id: u32, event: AsyncEventType) -> Result<()> {
    let request = RdmaUcmNotify { id, event: event.0 };
    ucma.write("notify", Command::new(RDMA_USER_CM_CMD_NOTIFY, request.as_bytes()))
}

/// Returns the attributes for moving a connection's queue pair to a state. Their mask lacks the
/// kernel-only bits.
///
/// # Errors
/// `EINVAL` for an id without a device or a state that the connection does not permit yet; any
/// other errno the kernel returns.
#[doc(alias = "rdma_init_qp_attr")]
pub(crate) fn init_qp_attr(ucma: &Ucma, id: u32, state: QpState) -> Result<(QpAttr, QpAttrMask)> {
    let request = RdmaUcmInitQpAttr { response: 0, id, qp_state: state.0.into() };
    let mut reply = IbUverbsQpAttr::default();
    let command = Command::with_reply(
        RDMA_USER_CM_CMD_INIT_QP_ATTR,
        request.as_bytes(),
        offset_of!(RdmaUcmInitQpAttr, response),
        reply.as_mut_bytes(),
    );
    ucma.write("init_qp_attr", command)?;
    Ok(convert::qp_attr(&reply))
}

fn conn_param(verb: &'static str, param: &ConnParam<'_>) -> Result<RdmaUcmConnParam> {
    let (private_data, private_data_len) = private_data(verb, param.private_data)?;
    Ok(RdmaUcmConnParam {
        qp_num: param.qp_num,
        qkey: 0,
        private_data,
        private_data_len,
        srq: param.srq.into(),
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control.into(),
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        valid: 1,
    })
}

/// Returns a command's private data field and the length of its contents.
///
/// # Errors
/// `EINVAL` with [`Cause::Limit`] for more than 255 bytes, the maximum of the command's length
/// field.
fn private_data(verb: &'static str, data: &[u8]) -> Result<([u8; 256], u8)> {
    let len = u8::try_from(data.len()).map_err(|_| {
        let (asked, max) = (data.len() as u64, u8::MAX.into());
        let cause = Cause::Limit { name: "length of private_data", asked, min: 0, max };
        Error::new(verb, "", Errno::INVAL).because(cause)
    })?;
    let mut room = [0; 256];
    room[..data.len()].copy_from_slice(data);
    Ok((room, len))
}

const fn ece_to_kernel(ece: Ece) -> RdmaUcmEce {
    RdmaUcmEce { vendor_id: ece.vendor_id, attr_mod: ece.options }
}
