//! Work queues: `WQ_CREATE`, `MODIFY_WQ`, `WQ_DESTROY`.

use std::os::fd::{AsRawFd, BorrowedFd};

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_CREATE_WQ_CQ_HANDLE, UVERBS_ATTR_CREATE_WQ_EVENT_FD, UVERBS_ATTR_CREATE_WQ_FLAGS,
    UVERBS_ATTR_CREATE_WQ_HANDLE, UVERBS_ATTR_CREATE_WQ_MAX_SGE, UVERBS_ATTR_CREATE_WQ_MAX_WR,
    UVERBS_ATTR_CREATE_WQ_PD_HANDLE, UVERBS_ATTR_CREATE_WQ_RESP_MAX_SGE, UVERBS_ATTR_CREATE_WQ_RESP_MAX_WR,
    UVERBS_ATTR_CREATE_WQ_RESP_WQ_NUM, UVERBS_ATTR_CREATE_WQ_TYPE, UVERBS_ATTR_CREATE_WQ_USER_HANDLE,
    UVERBS_ATTR_DESTROY_WQ_HANDLE, UVERBS_ATTR_DESTROY_WQ_RESP, UVERBS_METHOD_WQ_CREATE,
    UVERBS_METHOD_WQ_DESTROY, UVERBS_OBJECT_WQ,
};
use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_EX_CMD_CREATE_WQ, IB_USER_VERBS_EX_CMD_DESTROY_WQ, IB_USER_VERBS_EX_CMD_MODIFY_WQ,
    IbUverbsExCreateWq, IbUverbsExCreateWqResp, IbUverbsExDestroyWq, IbUverbsExDestroyWqResp,
    IbUverbsExModifyWq,
};
use zerocopy::IntoBytes;

use super::Destroy;
use crate::channel::{Attr, Uhw, Uverbs, WriteCmd};
use crate::error::Result;
use crate::types::event::EventsRead;
use crate::types::{WqAttr, WqInitAttr};

/// The kernel's description of a new work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WqInfo {
    /// The queue's handle.
    pub handle: u32,
    /// The queue's number on the device.
    pub wq_num: u32,
    /// The capacity in receives, at least the requested capacity.
    pub max_wr: u32,
    /// The maximum number of scatter/gather elements per receive, at least the requested number.
    pub max_sge: u32,
}

/// Creates a work queue with a completion queue for its completions and `event_fd` for its
/// asynchronous events.
///
/// # Errors
/// Any errno the kernel returns; notably `EOPNOTSUPP` from a device without work queues and
/// `EINVAL` for a size beyond the device's limits.
#[doc(alias = "ibv_create_wq")]
pub fn create_wq(
    uverbs: &Uverbs,
    pd_handle: u32,
    cq_handle: u32,
    attr: &WqInitAttr,
    event_fd: Option<BorrowedFd<'_>>,
    uhw: Uhw<'_>,
) -> Result<WqInfo> {
    const VERB: &str = "create_wq";
    let mut info = WqInfo { handle: 0, wq_num: 0, max_wr: 0, max_sge: 0 };
    let Uhw { input, output } = uhw;
    let done = {
        let mut attrs = Vec::with_capacity(14);
        attrs.push(Attr::new_handle(UVERBS_ATTR_CREATE_WQ_HANDLE, &mut info.handle));
        attrs.push(Attr::u64(UVERBS_ATTR_CREATE_WQ_USER_HANDLE, attr.user_handle));
        attrs.push(Attr::handle(UVERBS_ATTR_CREATE_WQ_PD_HANDLE, pd_handle));
        attrs.push(Attr::handle(UVERBS_ATTR_CREATE_WQ_CQ_HANDLE, cq_handle));
        attrs.push(Attr::u64(UVERBS_ATTR_CREATE_WQ_TYPE, attr.wq_type.0.into()));
        attrs.push(Attr::u32(UVERBS_ATTR_CREATE_WQ_MAX_WR, attr.max_wr));
        attrs.push(Attr::u32(UVERBS_ATTR_CREATE_WQ_MAX_SGE, attr.max_sge));
        if let Some(fd) = event_fd {
            attrs.push(Attr::fd(UVERBS_ATTR_CREATE_WQ_EVENT_FD, fd.as_raw_fd()));
        }
        attrs.push(Attr::u32(UVERBS_ATTR_CREATE_WQ_FLAGS, attr.create_flags.bits()));
        attrs.push(Attr::output(UVERBS_ATTR_CREATE_WQ_RESP_MAX_WR, info.max_wr.as_mut_bytes()));
        attrs.push(Attr::output(UVERBS_ATTR_CREATE_WQ_RESP_MAX_SGE, info.max_sge.as_mut_bytes()));
        attrs.push(Attr::output(UVERBS_ATTR_CREATE_WQ_RESP_WQ_NUM, info.wq_num.as_mut_bytes()));
        let uhw = Uhw { input, output: &mut *output };
        uverbs.try_ioctl_uhw(UVERBS_OBJECT_WQ, UVERBS_METHOD_WQ_CREATE, attrs, uhw)
    };
    if done.map_err(|errno| uverbs.error(VERB, errno))? {
        return Ok(info);
    }
    let mut reply = IbUverbsExCreateWqResp::default();
    let request = IbUverbsExCreateWq {
        comp_mask: 0,
        wq_type: attr.wq_type.0,
        user_handle: attr.user_handle,
        pd_handle,
        cq_handle,
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        create_flags: attr.create_flags.bits(),
        reserved: 0,
    };
    let command = WriteCmd::extended(
        IB_USER_VERBS_EX_CMD_CREATE_WQ,
        request.as_bytes(),
        reply.as_mut_bytes(),
        Uhw { input, output },
    );
    uverbs.write(command).map_err(|errno| uverbs.error(VERB, errno))?;
    let IbUverbsExCreateWqResp { wq_handle, max_wr, max_sge, wqn, .. } = reply;
    Ok(WqInfo { handle: wq_handle, wq_num: wqn, max_wr, max_sge })
}

/// Moves a work queue to another state, or changes its properties.
///
/// # Errors
/// Any errno the kernel returns; notably `EINVAL` for a nonexistent transition or if the queue is
/// not in the assumed state, and `EOPNOTSUPP` for a property that cannot change.
#[doc(alias = "ibv_modify_wq")]
pub fn modify_wq(uverbs: &Uverbs, handle: u32, attr: &WqAttr, uhw: Uhw<'_>) -> Result<()> {
    const ATTR_STATE: u32 = 1;
    const ATTR_CURR_STATE: u32 = 1 << 1;
    const ATTR_FLAGS: u32 = 1 << 2;
    let bit = |is_set, bit| if is_set { bit } else { 0 };
    let flags = attr.flags.unwrap_or_default();
    let request = IbUverbsExModifyWq {
        attr_mask: bit(attr.wq_state.is_some(), ATTR_STATE)
            | bit(attr.curr_wq_state.is_some(), ATTR_CURR_STATE)
            | bit(attr.flags.is_some(), ATTR_FLAGS),
        wq_handle: handle,
        wq_state: attr.wq_state.map_or(0, |state| state.0),
        curr_wq_state: attr.curr_wq_state.map_or(0, |state| state.0),
        flags: flags.flags.bits(),
        flags_mask: flags.mask.bits(),
    };
    let command = WriteCmd::extended(IB_USER_VERBS_EX_CMD_MODIFY_WQ, request.as_bytes(), &mut [], uhw);
    uverbs.write(command).map_err(|errno| uverbs.error("modify_wq", errno))
}

/// Destroys a work queue and returns the number of its events already read. Afterwards, the device
/// does not access the memory of its receives. The kernel discards the unread events.
///
/// # Errors
/// Any errno the kernel returns; notably `EBUSY` while a table contains it.
#[doc(alias = "ibv_destroy_wq")]
pub fn destroy_wq(uverbs: &Uverbs, handle: u32) -> Result<EventsRead> {
    let mut events_reported = 0_u32;
    let written = Destroy {
        verb: "destroy_wq",
        object_id: UVERBS_OBJECT_WQ,
        method_id: UVERBS_METHOD_WQ_DESTROY,
        handle_attr: UVERBS_ATTR_DESTROY_WQ_HANDLE,
        handle,
        reply: Some((UVERBS_ATTR_DESTROY_WQ_RESP, events_reported.as_mut_bytes())),
    }
    .run_for_reply(uverbs, || {
        let mut reply = IbUverbsExDestroyWqResp::default();
        let request = IbUverbsExDestroyWq { comp_mask: 0, wq_handle: handle };
        uverbs.write(WriteCmd::extended(
            IB_USER_VERBS_EX_CMD_DESTROY_WQ,
            request.as_bytes(),
            reply.as_mut_bytes(),
            Uhw::none(),
        ))?;
        Ok(reply.events_reported)
    })?;
    Ok(EventsRead { comp: 0, asynchronous: written.unwrap_or(events_reported) })
}
