//! Shared receive queues: `SRQ_CREATE`, `MODIFY_SRQ`, `QUERY_SRQ`, `SRQ_DESTROY`.

use std::os::fd::{AsRawFd, BorrowedFd};

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE, UVERBS_ATTR_CREATE_SRQ_EVENT_FD, UVERBS_ATTR_CREATE_SRQ_HANDLE,
    UVERBS_ATTR_CREATE_SRQ_LIMIT, UVERBS_ATTR_CREATE_SRQ_MAX_NUM_TAGS, UVERBS_ATTR_CREATE_SRQ_MAX_SGE,
    UVERBS_ATTR_CREATE_SRQ_MAX_WR, UVERBS_ATTR_CREATE_SRQ_PD_HANDLE, UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE,
    UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, UVERBS_ATTR_CREATE_SRQ_TYPE,
    UVERBS_ATTR_CREATE_SRQ_USER_HANDLE, UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE, UVERBS_ATTR_DESTROY_SRQ_HANDLE,
    UVERBS_ATTR_DESTROY_SRQ_RESP, UVERBS_METHOD_SRQ_CREATE, UVERBS_METHOD_SRQ_DESTROY, UVERBS_OBJECT_SRQ,
};
use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_CMD_CREATE_SRQ, IB_USER_VERBS_CMD_CREATE_XSRQ, IB_USER_VERBS_CMD_DESTROY_SRQ,
    IB_USER_VERBS_CMD_MODIFY_SRQ, IB_USER_VERBS_CMD_QUERY_SRQ, IbUverbsCreateSrq, IbUverbsCreateSrqResp,
    IbUverbsCreateXsrq, IbUverbsDestroySrq, IbUverbsDestroySrqResp, IbUverbsModifySrq, IbUverbsQuerySrq,
    IbUverbsQuerySrqResp,
};
use zerocopy::IntoBytes;

use super::Destroy;
use crate::channel::{Attr, Uhw, Uverbs, WriteCmd};
use crate::errno::Errno;
use crate::error::Result;
use crate::types::event::EventsRead;
use crate::types::{SrqAttr, SrqAttrMask, SrqInitAttr, SrqType};

/// The handles of the objects needed to create a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqHandles {
    /// The handle of the protection domain.
    pub pd: u32,
    /// The handle of the XRC domain, for the kind [`SrqType::XRC`].
    pub xrcd: Option<u32>,
    /// The handle of the completion queue, for the kinds [`SrqType::XRC`] and [`SrqType::TM`].
    pub cq: Option<u32>,
}

/// The kernel's description of a new shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInfo {
    /// The queue's handle.
    pub handle: u32,
    /// The queue number that XRC initiators use; meaningless for other kinds.
    pub srq_num: u32,
    /// The capacity in receives, at least the requested capacity.
    pub max_wr: u32,
    /// The maximum number of scatter/gather elements per receive, at least the requested number.
    pub max_sge: u32,
}

/// Creates a shared receive queue whose asynchronous events go to `event_fd`.
///
/// # Errors
/// `EINVAL` for a queue of the kind [`SrqType::XRC`] without an XRC domain or completion queue, and
/// for a queue of the kind [`SrqType::TM`] without a completion queue. Any errno the kernel
/// returns; notably `EINVAL` for a size beyond the device's limits, and `EOPNOTSUPP` for a kind the
/// device does not support.
#[doc(alias = "ibv_create_srq")]
#[doc(alias = "ibv_create_srq_ex")]
pub fn create_srq(
    uverbs: &Uverbs,
    parents: &SrqHandles,
    attr: &SrqInitAttr,
    event_fd: Option<BorrowedFd<'_>>,
    uhw: Uhw<'_>,
) -> Result<SrqInfo> {
    const VERB: &str = "create_srq";
    let is_complete = match attr.srq_type {
        SrqType::XRC => parents.xrcd.is_some() && parents.cq.is_some(),
        SrqType::TM => parents.cq.is_some(),
        _ => true,
    };
    if !is_complete {
        return Err(uverbs.error(VERB, Errno::INVAL));
    }
    let (mut handle, mut max_wr, mut max_sge, mut srq_num) = (0_u32, 0_u32, 0_u32, 0_u32);
    let Uhw { input, output } = uhw;
    let done = {
        let mut attrs = Vec::with_capacity(15);
        if attr.srq_type == SrqType::XRC
            && let Some(xrcd) = parents.xrcd
        {
            attrs.push(Attr::handle(UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE, xrcd));
        }
        if let Some(cq) = parents.cq {
            attrs.push(Attr::handle(UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE, cq));
        }
        if attr.srq_type == SrqType::XRC {
            attrs.push(Attr::output(UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, srq_num.as_mut_bytes()));
        }
        if attr.srq_type == SrqType::TM {
            attrs.push(Attr::u32(UVERBS_ATTR_CREATE_SRQ_MAX_NUM_TAGS, attr.tm.max_num_tags));
        }
        attrs.push(Attr::new_handle(UVERBS_ATTR_CREATE_SRQ_HANDLE, &mut handle));
        attrs.push(Attr::u64(UVERBS_ATTR_CREATE_SRQ_TYPE, attr.srq_type.0.into()));
        attrs.push(Attr::u64(UVERBS_ATTR_CREATE_SRQ_USER_HANDLE, attr.user_handle));
        attrs.push(Attr::handle(UVERBS_ATTR_CREATE_SRQ_PD_HANDLE, parents.pd));
        attrs.push(Attr::u32(UVERBS_ATTR_CREATE_SRQ_MAX_WR, attr.max_wr));
        attrs.push(Attr::u32(UVERBS_ATTR_CREATE_SRQ_MAX_SGE, attr.max_sge));
        attrs.push(Attr::u32(UVERBS_ATTR_CREATE_SRQ_LIMIT, attr.srq_limit));
        if let Some(fd) = event_fd {
            attrs.push(Attr::fd(UVERBS_ATTR_CREATE_SRQ_EVENT_FD, fd.as_raw_fd()));
        }
        attrs.push(Attr::output(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, max_wr.as_mut_bytes()));
        attrs.push(Attr::output(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, max_sge.as_mut_bytes()));
        let uhw = Uhw { input, output: &mut *output };
        uverbs.try_ioctl_uhw(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE, attrs, uhw)
    };
    if done.map_err(|errno| uverbs.error(VERB, errno))? {
        return Ok(SrqInfo { handle, srq_num, max_wr, max_sge });
    }
    let mut reply = IbUverbsCreateSrqResp::default();
    let uhw = Uhw { input, output };
    let result = if attr.srq_type == SrqType::BASIC {
        let request = IbUverbsCreateSrq {
            response: 0,
            user_handle: attr.user_handle,
            pd_handle: parents.pd,
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            srq_limit: attr.srq_limit,
        };
        uverbs.write(WriteCmd::new(
            IB_USER_VERBS_CMD_CREATE_SRQ,
            request.as_bytes(),
            reply.as_mut_bytes(),
            uhw,
        ))
    } else {
        let request = IbUverbsCreateXsrq {
            response: 0,
            user_handle: attr.user_handle,
            srq_type: attr.srq_type.0,
            pd_handle: parents.pd,
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            srq_limit: attr.srq_limit,
            max_num_tags: attr.tm.max_num_tags,
            xrcd_handle: parents.xrcd.unwrap_or(0),
            cq_handle: parents.cq.unwrap_or(0),
        };
        uverbs.write(WriteCmd::new(
            IB_USER_VERBS_CMD_CREATE_XSRQ,
            request.as_bytes(),
            reply.as_mut_bytes(),
            uhw,
        ))
    };
    result.map_err(|errno| uverbs.error(VERB, errno))?;
    let IbUverbsCreateSrqResp { srq_handle, max_wr, max_sge, srqn } = reply;
    Ok(SrqInfo { handle: srq_handle, srq_num: srqn, max_wr, max_sge })
}

/// Changes the size or the limit of a shared receive queue. `uhw` contains the driver's input.
///
/// # Errors
/// Any errno the kernel returns; notably `EINVAL` for a value beyond the limits of the queue or the
/// device.
#[doc(alias = "ibv_modify_srq")]
pub fn modify_srq(
    uverbs: &Uverbs,
    handle: u32,
    attr: &SrqAttr,
    mask: SrqAttrMask,
    uhw: Uhw<'_>,
) -> Result<()> {
    let request = IbUverbsModifySrq {
        srq_handle: handle,
        attr_mask: mask.bits(),
        max_wr: if mask.contains(SrqAttrMask::MAX_WR) { attr.max_wr } else { 0 },
        srq_limit: if mask.contains(SrqAttrMask::LIMIT) { attr.srq_limit } else { 0 },
    };
    let command = WriteCmd::new(IB_USER_VERBS_CMD_MODIFY_SRQ, request.as_bytes(), &mut [], uhw);
    uverbs.write(command).map_err(|errno| uverbs.error("modify_srq", errno))
}

/// Queries the attributes of a shared receive queue.
///
/// # Errors
/// Any errno the kernel returns; notably `EIO` after the device was unplugged.
#[doc(alias = "ibv_query_srq")]
pub fn query_srq(uverbs: &Uverbs, handle: u32) -> Result<SrqAttr> {
    let mut reply = IbUverbsQuerySrqResp::default();
    let request = IbUverbsQuerySrq { response: 0, srq_handle: handle, reserved: 0 };
    let command =
        WriteCmd::new(IB_USER_VERBS_CMD_QUERY_SRQ, request.as_bytes(), reply.as_mut_bytes(), Uhw::none());
    uverbs.write(command).map_err(|errno| uverbs.error("query_srq", errno))?;
    Ok(SrqAttr { max_wr: reply.max_wr, max_sge: reply.max_sge, srq_limit: reply.srq_limit })
}

/// Destroys a shared receive queue and returns the number of its events already read. Afterwards,
/// the device does not access the memory of its receives. The kernel discards the unread events.
///
/// # Errors
/// Any errno the kernel returns; notably `EBUSY` while queue pairs use it.
#[doc(alias = "ibv_destroy_srq")]
pub fn destroy_srq(uverbs: &Uverbs, handle: u32) -> Result<EventsRead> {
    let mut reply = IbUverbsDestroySrqResp::default();
    let written = Destroy {
        verb: "destroy_srq",
        object_id: UVERBS_OBJECT_SRQ,
        method_id: UVERBS_METHOD_SRQ_DESTROY,
        handle_attr: UVERBS_ATTR_DESTROY_SRQ_HANDLE,
        handle,
        reply: Some((UVERBS_ATTR_DESTROY_SRQ_RESP, reply.as_mut_bytes())),
    }
    .run_for_reply(uverbs, || {
        let mut reply = IbUverbsDestroySrqResp::default();
        let request = IbUverbsDestroySrq { response: 0, srq_handle: handle, reserved: 0 };
        uverbs.write(WriteCmd::new(
            IB_USER_VERBS_CMD_DESTROY_SRQ,
            request.as_bytes(),
            reply.as_mut_bytes(),
            Uhw::none(),
        ))?;
        Ok(reply)
    })?;
    let reply = written.unwrap_or(reply);
    Ok(EventsRead { comp: 0, asynchronous: reply.events_reported })
}
