//! Queue pairs: `QP_CREATE`, `OPEN_QP`, `MODIFY_QP`, `QUERY_QP`, `QP_DESTROY`.

use std::os::fd::{AsRawFd, BorrowedFd};

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_CREATE_QP_CAP, UVERBS_ATTR_CREATE_QP_EVENT_FD, UVERBS_ATTR_CREATE_QP_FLAGS,
    UVERBS_ATTR_CREATE_QP_HANDLE, UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE, UVERBS_ATTR_CREATE_QP_PD_HANDLE,
    UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, UVERBS_ATTR_CREATE_QP_RESP_CAP, UVERBS_ATTR_CREATE_QP_RESP_QP_NUM,
    UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, UVERBS_ATTR_CREATE_QP_SOURCE_QPN, UVERBS_ATTR_CREATE_QP_SRQ_HANDLE,
    UVERBS_ATTR_CREATE_QP_TYPE, UVERBS_ATTR_CREATE_QP_USER_HANDLE, UVERBS_ATTR_CREATE_QP_XRCD_HANDLE,
    UVERBS_ATTR_DESTROY_QP_HANDLE, UVERBS_ATTR_DESTROY_QP_RESP, UVERBS_METHOD_QP_CREATE,
    UVERBS_METHOD_QP_DESTROY, UVERBS_OBJECT_QP,
};
use uverbs_abi::ib_user_ioctl_verbs::{IbUverbsQpCap, IbUverbsQpCreateFlags};
use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_CMD_CREATE_QP, IB_USER_VERBS_CMD_DESTROY_QP, IB_USER_VERBS_CMD_MODIFY_QP,
    IB_USER_VERBS_CMD_OPEN_QP, IB_USER_VERBS_CMD_QUERY_QP, IB_USER_VERBS_EX_CMD_CREATE_QP,
    IB_USER_VERBS_EX_CMD_MODIFY_QP, IbUverbsCreateQp, IbUverbsCreateQpMask, IbUverbsCreateQpResp,
    IbUverbsDestroyQp, IbUverbsDestroyQpResp, IbUverbsExCreateQp, IbUverbsExCreateQpResp, IbUverbsExModifyQp,
    IbUverbsExModifyQpResp, IbUverbsModifyQp, IbUverbsOpenQp, IbUverbsQpDest, IbUverbsQueryQp,
    IbUverbsQueryQpResp,
};
use zerocopy::IntoBytes;

use super::{Destroy, ah_attr_from_dest, ah_attr_to_kernel, write_only};
use crate::channel::{Attr, Uhw, Uverbs, WriteCmd};
use crate::errno::Errno;
use crate::error::{Cause, Result};
use crate::explain;
use crate::types::event::EventsRead;
use crate::types::{
    AccessFlags, AhAttr, MigState, Mtu, QpAttr, QpAttrMask, QpCap, QpCreateFlags, QpInitAttr, QpInitInfo,
    QpState, QpType,
};

/// Returns the queue pair capacity in one of the kernel's structs.
macro_rules! cap_of {
    ($from:expr) => {
        QpCap {
            max_send_wr: $from.max_send_wr,
            max_recv_wr: $from.max_recv_wr,
            max_send_sge: $from.max_send_sge,
            max_recv_sge: $from.max_recv_sge,
            max_inline_data: $from.max_inline_data,
        }
    };
}

/// Builds a write struct for a new queue pair: the members common to both forms, then the members
/// of one form.
macro_rules! create_request {
    ($request:ident, $parents:expr, $attr:expr, $cap:expr, { $($member:ident: $value:expr),+ }) => {
        $request {
            user_handle: $attr.user_handle,
            // The structs have no separate field for the XRC domain.
            pd_handle: $parents.pd.or($parents.xrcd).unwrap_or(0),
            send_cq_handle: $parents.send_cq.unwrap_or(0),
            recv_cq_handle: $parents.recv_cq.unwrap_or(0),
            srq_handle: $parents.srq.unwrap_or(0),
            max_send_wr: $cap.max_send_wr,
            max_recv_wr: $cap.max_recv_wr,
            max_send_sge: $cap.max_send_sge,
            max_recv_sge: $cap.max_recv_sge,
            max_inline_data: $cap.max_inline_data,
            sq_sig_all: $attr.sq_sig_all.into(),
            qp_type: $attr.qp_type.0,
            is_srq: $parents.srq.is_some().into(),
            reserved: 0,
            $($member: $value),+
        }
    };
}

/// The handles of the objects needed to create a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpHandles {
    /// The handle of the protection domain; every type except [`QpType::XRC_RECV`] needs it.
    pub pd: Option<u32>,
    /// The handle of the completion queue for sends.
    pub send_cq: Option<u32>,
    /// The handle of the completion queue for receives.
    pub recv_cq: Option<u32>,
    /// The handle of the shared receive queue.
    pub srq: Option<u32>,
    /// The handle of the XRC domain, for a queue pair of the type [`QpType::XRC_RECV`].
    pub xrcd: Option<u32>,
}

impl QpHandles {
    /// Returns the handles that the kernel accepts for a queue pair type.
    ///
    /// # References
    /// Linux `drivers/infiniband/core/uverbs_std_types_qp.c`
    const fn of_type(self, qp_type: QpType) -> Self {
        match qp_type {
            QpType::XRC_RECV => Self { pd: None, send_cq: None, recv_cq: None, srq: None, xrcd: self.xrcd },
            QpType::XRC_SEND => {
                Self { pd: self.pd, send_cq: self.send_cq, recv_cq: None, srq: None, xrcd: None }
            }
            _ => Self { xrcd: None, ..self },
        }
    }
}

/// The kernel's description of a new queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInfo {
    /// The queue pair's handle.
    pub handle: u32,
    /// The queue pair number that peers use.
    pub qp_num: u32,
    /// The queue pair's capacity, at least the requested capacity.
    pub cap: QpCap,
}

/// Creates a queue pair whose asynchronous events go to `event_fd`.
///
/// The kernel receives only the parents that the type requires: for an XRC target, its XRC domain;
/// for an XRC initiator, no receive queue and no receive capacity; for all other types, no XRC
/// domain.
///
/// # Errors
/// Any errno the kernel returns; notably `EINVAL` for a capacity beyond the device's limits,
/// `EOPNOTSUPP` for a type the device does not support, and `EPERM` for a raw packet queue pair
/// without `CAP_NET_RAW`.
#[doc(alias = "ibv_create_qp")]
pub fn create_qp(
    uverbs: &Uverbs,
    parents: &QpHandles,
    attr: &QpInitAttr,
    event_fd: Option<BorrowedFd<'_>>,
    uhw: Uhw<'_>,
) -> Result<QpInfo> {
    create_qp_ex(uverbs, parents, attr, &QpExtra::default(), event_fd, uhw)
}

/// Properties of a new queue pair that [`create_qp`] does not cover but the kernel's core handles.
/// All other properties are handled by the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpExtra {
    /// The properties of the queue pair.
    pub create_flags: QpCreateFlags,
    /// The source queue pair number in sent packets, if it is not the queue pair's own number.
    pub source_qpn: Option<u32>,
    /// The handle of the table of work queues that replaces the receive queue.
    pub rwq_ind_tbl: Option<u32>,
}

/// Creates a queue pair like [`create_qp`], with properties that only some devices support.
///
/// With a table of work queues, the kernel receives no receive completion queue, no shared receive
/// queue and no receive capacity, and a send completion queue only if there is a send capacity.
///
/// # Errors
/// The errors of [`create_qp`]; notably `EOPNOTSUPP` for properties the device does not support.
#[doc(alias = "ibv_create_qp_ex")]
pub fn create_qp_ex(
    uverbs: &Uverbs,
    parents: &QpHandles,
    attr: &QpInitAttr,
    extra: &QpExtra,
    event_fd: Option<BorrowedFd<'_>>,
    uhw: Uhw<'_>,
) -> Result<QpInfo> {
    const VERB: &str = "create_qp";
    let mut parents = parents.of_type(attr.qp_type);
    if extra.rwq_ind_tbl.is_some() {
        let send_cq = parents.send_cq.filter(|_| attr.cap.max_send_wr > 0);
        parents = QpHandles { send_cq, recv_cq: None, srq: None, ..parents };
    }
    let receives = attr.qp_type != QpType::XRC_SEND && extra.rwq_ind_tbl.is_none();
    let cap = IbUverbsQpCap {
        max_send_wr: attr.cap.max_send_wr,
        max_recv_wr: if receives { attr.cap.max_recv_wr } else { 0 },
        max_send_sge: attr.cap.max_send_sge,
        max_recv_sge: if receives { attr.cap.max_recv_sge } else { 0 },
        max_inline_data: attr.cap.max_inline_data,
    };
    let (mut handle, mut qp_num, mut got) = (0_u32, 0_u32, IbUverbsQpCap::default());
    let Uhw { input, output } = uhw;
    let done = {
        let mut attrs = Vec::with_capacity(17);
        let objects = [
            (UVERBS_ATTR_CREATE_QP_XRCD_HANDLE, parents.xrcd),
            (UVERBS_ATTR_CREATE_QP_PD_HANDLE, parents.pd),
            (UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE, extra.rwq_ind_tbl),
            (UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, parents.send_cq),
            (UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, parents.recv_cq),
        ];
        attrs.extend(objects.into_iter().filter_map(|(id, object)| Some(Attr::handle(id, object?))));
        attrs.push(Attr::new_handle(UVERBS_ATTR_CREATE_QP_HANDLE, &mut handle));
        attrs.push(Attr::u64(UVERBS_ATTR_CREATE_QP_TYPE, attr.qp_type.0.into()));
        attrs.push(Attr::u64(UVERBS_ATTR_CREATE_QP_USER_HANDLE, attr.user_handle));
        attrs.push(Attr::input(UVERBS_ATTR_CREATE_QP_CAP, cap.as_bytes()));
        if let Some(fd) = event_fd {
            attrs.push(Attr::fd(UVERBS_ATTR_CREATE_QP_EVENT_FD, fd.as_raw_fd()));
        }
        let sig_all = IbUverbsQpCreateFlags::IB_UVERBS_QP_CREATE_SQ_SIG_ALL.bits();
        let flags = extra.create_flags.bits() | if attr.sq_sig_all { sig_all } else { 0 };
        if flags != 0 {
            attrs.push(Attr::u32(UVERBS_ATTR_CREATE_QP_FLAGS, flags));
        }
        if let Some(source_qpn) = extra.source_qpn {
            attrs.push(Attr::u32(UVERBS_ATTR_CREATE_QP_SOURCE_QPN, source_qpn));
        }
        if let Some(srq) = parents.srq {
            attrs.push(Attr::handle(UVERBS_ATTR_CREATE_QP_SRQ_HANDLE, srq));
        }
        attrs.push(Attr::output(UVERBS_ATTR_CREATE_QP_RESP_CAP, got.as_mut_bytes()));
        attrs.push(Attr::output(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, qp_num.as_mut_bytes()));
        let uhw = Uhw { input, output: &mut *output };
        uverbs.try_ioctl_uhw(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE, attrs, uhw)
    };
    if done.map_err(|errno| uverbs.error(VERB, errno))? {
        return Ok(QpInfo { handle, qp_num, cap: cap_of!(got) });
    }
    if *extra != QpExtra::default() {
        return write_qp_ex(uverbs, &parents, attr, &cap, extra, Uhw { input, output })
            .map_err(|errno| uverbs.error(VERB, errno));
    }
    let mut reply = IbUverbsCreateQpResp::default();
    let request = create_request!(IbUverbsCreateQp, parents, attr, cap, { response: 0 });
    let command = WriteCmd::new(
        IB_USER_VERBS_CMD_CREATE_QP,
        request.as_bytes(),
        reply.as_mut_bytes(),
        Uhw { input, output },
    );
    uverbs.write(command).map_err(|errno| uverbs.error(VERB, errno))?;
    Ok(from_reply(&reply))
}

/// Creates a queue pair through the extended write struct, which can express everything that the
/// ioctl can.
fn write_qp_ex(
    uverbs: &Uverbs,
    parents: &QpHandles,
    attr: &QpInitAttr,
    cap: &IbUverbsQpCap,
    extra: &QpExtra,
    uhw: Uhw<'_>,
) -> Result<QpInfo, Errno> {
    /// `IBV_QP_CREATE_SOURCE_QPN`: a separate attribute in the ioctl.
    const SOURCE_QPN: u32 = 1 << 10;
    let mask = IbUverbsCreateQpMask::IB_UVERBS_CREATE_QP_MASK_IND_TABLE.bits();
    let mut reply = IbUverbsExCreateQpResp::default();
    let request = create_request!(IbUverbsExCreateQp, parents, attr, cap, {
        comp_mask: if extra.rwq_ind_tbl.is_some() { mask } else { 0 },
        create_flags: extra.create_flags.bits() | if extra.source_qpn.is_some() { SOURCE_QPN } else { 0 },
        rwq_ind_tbl_handle: extra.rwq_ind_tbl.unwrap_or(0),
        source_qpn: extra.source_qpn.unwrap_or(0)
    });
    let (core_in, core_out) = (request.as_bytes(), reply.as_mut_bytes());
    uverbs.write(WriteCmd::extended(IB_USER_VERBS_EX_CMD_CREATE_QP, core_in, core_out, uhw))?;
    Ok(from_reply(&reply.base))
}

/// Opens the XRC target with this number in an XRC domain. Another context may have created the
/// target. The target's asynchronous events reach this context too.
///
/// # Errors
/// Any errno the kernel returns; notably `EINVAL` for a number that belongs to no XRC target of the
/// domain.
#[doc(alias = "ibv_open_qp")]
pub fn open_qp(
    uverbs: &Uverbs,
    xrcd_handle: u32,
    qp_num: u32,
    user_handle: u64,
    uhw: Uhw<'_>,
) -> Result<QpInfo> {
    let mut reply = IbUverbsCreateQpResp::default();
    let request = IbUverbsOpenQp {
        response: 0,
        user_handle,
        pd_handle: xrcd_handle,
        qpn: qp_num,
        qp_type: QpType::XRC_RECV.0,
        reserved: [0; 7],
    };
    let command = WriteCmd::new(IB_USER_VERBS_CMD_OPEN_QP, request.as_bytes(), reply.as_mut_bytes(), uhw);
    uverbs.write(command).map_err(|errno| uverbs.error("open_qp", errno))?;
    Ok(from_reply(&reply))
}

fn from_reply(reply: &IbUverbsCreateQpResp) -> QpInfo {
    QpInfo { handle: reply.qp_handle, qp_num: reply.qpn, cap: cap_of!(reply) }
}

/// Moves a queue pair to another state, or changes its attributes.
///
/// # Errors
/// `EINVAL` with [`Cause::Limit`] for GID indexes beyond 255, which do not fit the command, and
/// with [`Cause::Mtu`] for an invalid path MTU: rxe accepts it, and its packets are then longer
/// than any MTU. Any errno the kernel returns; [`crate::transition`] explains most `EINVAL` errors.
/// If a value, such as a packet sequence number, has more bits than its field, the kernel driver
/// truncates or rejects it ([`crate::explain::numbers_fit`]).
#[doc(alias = "ibv_modify_qp")]
pub fn modify_qp(uverbs: &Uverbs, handle: u32, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
    const VERB: &str = "modify_qp";
    if mask.contains(QpAttrMask::RATE_LIMIT) {
        return modify_qp_ex(uverbs, handle, attr, mask, Uhw::none());
    }
    let base = modify_to_kernel(handle, attr, mask)
        .map_err(|cause| uverbs.error(VERB, Errno::INVAL).because(cause))?;
    write_only(uverbs, IB_USER_VERBS_CMD_MODIFY_QP, base.as_bytes())
        .map_err(|errno| uverbs.error(VERB, errno))
}

/// Modifies a queue pair like [`modify_qp`], through the extended command. That command can hold a
/// rate limit and has a driver part in both directions (rate limit bursts, ECE options).
///
/// # Errors
/// The errors of [`modify_qp`]; `EOPNOTSUPP` for an attribute unknown to the kernel or the driver.
#[doc(alias = "ibv_modify_qp")]
#[doc(alias = "ibv_modify_qp_rate_limit")]
pub fn modify_qp_ex(
    uverbs: &Uverbs,
    handle: u32,
    attr: &QpAttr,
    mask: QpAttrMask,
    uhw: Uhw<'_>,
) -> Result<()> {
    const VERB: &str = "modify_qp";
    let base = modify_to_kernel(handle, attr, mask)
        .map_err(|cause| uverbs.error(VERB, Errno::INVAL).because(cause))?;
    let rate_limit = if mask.contains(QpAttrMask::RATE_LIMIT) { attr.rate_limit } else { 0 };
    let request = IbUverbsExModifyQp { base, rate_limit, reserved: 0 };
    let mut reply = IbUverbsExModifyQpResp::default();
    let command =
        WriteCmd::extended(IB_USER_VERBS_EX_CMD_MODIFY_QP, request.as_bytes(), reply.as_mut_bytes(), uhw);
    uverbs.write(command).map_err(|errno| uverbs.error(VERB, errno))
}

/// Queries a queue pair's attributes. The kernel may return more attributes than `mask` names.
///
/// # Errors
/// `EOPNOTSUPP` for [`QpAttrMask::RATE_LIMIT`], which cannot be queried; otherwise any errno the
/// kernel returns, notably `EIO` after the device was unplugged.
#[doc(alias = "ibv_query_qp")]
pub fn query_qp(uverbs: &Uverbs, handle: u32, mask: QpAttrMask) -> Result<(QpAttr, QpInitInfo)> {
    const VERB: &str = "query_qp";
    if mask.bits() >= QpAttrMask::RATE_LIMIT.bits() {
        return Err(uverbs.error(VERB, Errno::OPNOTSUPP));
    }
    let mut reply = IbUverbsQueryQpResp::default();
    let request = IbUverbsQueryQp { response: 0, qp_handle: handle, attr_mask: mask.bits() };
    let command =
        WriteCmd::new(IB_USER_VERBS_CMD_QUERY_QP, request.as_bytes(), reply.as_mut_bytes(), Uhw::none());
    uverbs.write(command).map_err(|errno| uverbs.error(VERB, errno))?;
    Ok(query_from_kernel(&reply))
}

/// Destroys a queue pair and returns the number of its events already read. Afterwards, the device
/// does not access the memory of its work requests. The kernel discards the unread events.
///
/// # Errors
/// Any errno the kernel returns; notably `EBUSY` while the queue pair is attached to multicast
/// groups.
#[doc(alias = "ibv_destroy_qp")]
pub fn destroy_qp(uverbs: &Uverbs, handle: u32) -> Result<EventsRead> {
    let mut reply = IbUverbsDestroyQpResp::default();
    let written = Destroy {
        verb: "destroy_qp",
        object_id: UVERBS_OBJECT_QP,
        method_id: UVERBS_METHOD_QP_DESTROY,
        handle_attr: UVERBS_ATTR_DESTROY_QP_HANDLE,
        handle,
        reply: Some((UVERBS_ATTR_DESTROY_QP_RESP, reply.as_mut_bytes())),
    }
    .run_for_reply(uverbs, || {
        let mut reply = IbUverbsDestroyQpResp::default();
        let request = IbUverbsDestroyQp { response: 0, qp_handle: handle, reserved: 0 };
        uverbs.write(WriteCmd::new(
            IB_USER_VERBS_CMD_DESTROY_QP,
            request.as_bytes(),
            reply.as_mut_bytes(),
            Uhw::none(),
        ))?;
        Ok(reply)
    })?;
    let reply = written.unwrap_or(reply);
    Ok(EventsRead { comp: 0, asynchronous: reply.events_reported })
}

/// Builds the command from the attributes named in the mask; all others are zero.
///
/// # Errors
/// [`Cause::Limit`] for a value that does not fit the command; [`Cause::Mtu`] for an invalid path
/// MTU.
fn modify_to_kernel(handle: u32, attr: &QpAttr, mask: QpAttrMask) -> Result<IbUverbsModifyQp, Cause> {
    explain::path_mtu(attr, mask)?;
    let mut cmd = IbUverbsModifyQp { qp_handle: handle, attr_mask: mask.bits(), ..Default::default() };
    macro_rules! copy {
        ($($bit:ident: $($field:ident = $value:expr),+;)*) => {
            $(if mask.contains(QpAttrMask::$bit) { $(cmd.$field = $value;)+ })*
        };
    }
    copy! {
        STATE: qp_state = attr.qp_state.0;
        CUR_STATE: cur_qp_state = attr.cur_qp_state.0;
        EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify = attr.en_sqd_async_notify.into();
        ACCESS_FLAGS: qp_access_flags = attr.qp_access_flags.bits();
        PKEY_INDEX: pkey_index = attr.pkey_index;
        PORT: port_num = attr.port_num;
        QKEY: qkey = attr.qkey;
        AV: dest = dest_to_kernel(&attr.ah_attr)?;
        PATH_MTU: path_mtu = attr.path_mtu.0;
        TIMEOUT: timeout = attr.timeout;
        RETRY_CNT: retry_cnt = attr.retry_cnt;
        RNR_RETRY: rnr_retry = attr.rnr_retry;
        RQ_PSN: rq_psn = attr.rq_psn;
        MAX_QP_RD_ATOMIC: max_rd_atomic = attr.max_rd_atomic;
        ALT_PATH:
            alt_dest = dest_to_kernel(&attr.alt_ah_attr)?,
            alt_pkey_index = attr.alt_pkey_index,
            alt_port_num = attr.alt_port_num,
            alt_timeout = attr.alt_timeout;
        MIN_RNR_TIMER: min_rnr_timer = attr.min_rnr_timer;
        SQ_PSN: sq_psn = attr.sq_psn;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic = attr.max_dest_rd_atomic;
        PATH_MIG_STATE: path_mig_state = attr.path_mig_state.0;
        DEST_QPN: dest_qp_num = attr.dest_qp_num;
    }
    Ok(cmd)
}

fn dest_to_kernel(attr: &AhAttr) -> Result<IbUverbsQpDest, Cause> {
    let attr = ah_attr_to_kernel(attr)?;
    Ok(IbUverbsQpDest {
        dgid: attr.grh.dgid,
        flow_label: attr.grh.flow_label,
        dlid: attr.dlid,
        reserved: 0,
        sgid_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global,
        port_num: attr.port_num,
    })
}

fn query_from_kernel(reply: &IbUverbsQueryQpResp) -> (QpAttr, QpInitInfo) {
    let cap = cap_of!(reply);
    let attr = QpAttr {
        qp_state: QpState(reply.qp_state),
        cur_qp_state: QpState(reply.cur_qp_state),
        path_mtu: Mtu(reply.path_mtu),
        path_mig_state: MigState(reply.path_mig_state),
        qkey: reply.qkey,
        rq_psn: reply.rq_psn,
        sq_psn: reply.sq_psn,
        dest_qp_num: reply.dest_qp_num,
        qp_access_flags: AccessFlags::from_bits_retain(reply.qp_access_flags),
        cap,
        ah_attr: ah_attr_from_dest(&reply.dest),
        alt_ah_attr: ah_attr_from_dest(&reply.alt_dest),
        pkey_index: reply.pkey_index,
        alt_pkey_index: reply.alt_pkey_index,
        en_sqd_async_notify: false,
        sq_draining: reply.sq_draining != 0,
        max_rd_atomic: reply.max_rd_atomic,
        max_dest_rd_atomic: reply.max_dest_rd_atomic,
        min_rnr_timer: reply.min_rnr_timer,
        port_num: reply.port_num,
        timeout: reply.timeout,
        retry_cnt: reply.retry_cnt,
        rnr_retry: reply.rnr_retry,
        alt_port_num: reply.alt_port_num,
        alt_timeout: reply.alt_timeout,
        rate_limit: 0,
    };
    (attr, QpInitInfo { cap, sq_sig_all: reply.sq_sig_all != 0 })
}
