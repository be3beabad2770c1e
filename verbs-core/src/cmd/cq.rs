//! Completion queues: `CQ_CREATE`, `CQ_DESTROY`, `RESIZE_CQ`, `MODIFY_CQ`, `REQ_NOTIFY_CQ`.

use std::os::fd::{AsRawFd, BorrowedFd};

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, UVERBS_ATTR_CREATE_CQ_CQE,
    UVERBS_ATTR_CREATE_CQ_EVENT_FD, UVERBS_ATTR_CREATE_CQ_FLAGS, UVERBS_ATTR_CREATE_CQ_HANDLE,
    UVERBS_ATTR_CREATE_CQ_RESP_CQE, UVERBS_ATTR_CREATE_CQ_USER_HANDLE, UVERBS_ATTR_DESTROY_CQ_HANDLE,
    UVERBS_ATTR_DESTROY_CQ_RESP, UVERBS_METHOD_CQ_CREATE, UVERBS_METHOD_CQ_DESTROY, UVERBS_OBJECT_CQ,
};
use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_CMD_CREATE_CQ, IB_USER_VERBS_CMD_DESTROY_CQ, IB_USER_VERBS_CMD_REQ_NOTIFY_CQ,
    IB_USER_VERBS_CMD_RESIZE_CQ, IB_USER_VERBS_EX_CMD_CREATE_CQ, IB_USER_VERBS_EX_CMD_MODIFY_CQ,
    IbUverbsCqModeration, IbUverbsCreateCq, IbUverbsCreateCqResp, IbUverbsDestroyCq, IbUverbsDestroyCqResp,
    IbUverbsExCreateCq, IbUverbsExCreateCqFlags, IbUverbsExCreateCqResp, IbUverbsExModifyCq,
    IbUverbsReqNotifyCq, IbUverbsResizeCq, IbUverbsResizeCqResp,
};
use zerocopy::IntoBytes;

use super::{Destroy, fd_number, write_only};
use crate::channel::{Attr, DriverAttrs, Uhw, Uverbs, WriteCmd};
use crate::errno::Errno;
use crate::error::{Cause, Result};
use crate::types::event::EventsRead;
use crate::types::{CqFlags, CqInitAttr, CqModeration, CqWcFlags};

/// The kernel's description of a new completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqInfo {
    /// The queue's handle.
    pub handle: u32,
    /// The queue's capacity in completions, at least the requested capacity.
    pub cqe: u32,
}

/// Creates a completion queue whose asynchronous events go to `event_fd`.
///
/// The flags defined by the kernel are sent in an ioctl attribute, or in the extended write struct
/// if the kernel lacks the ioctl.
///
/// # Errors
/// Any errno the kernel returns; notably `EINVAL` for an invalid size or completion vector, and
/// `EINVAL` or `EOPNOTSUPP` for an unsupported flag.
#[doc(alias = "ibv_create_cq")]
#[doc(alias = "ibv_create_cq_ex")]
pub fn create_cq(
    uverbs: &Uverbs,
    attr: &CqInitAttr<'_>,
    event_fd: Option<BorrowedFd<'_>>,
    uhw: Uhw<'_>,
) -> Result<CqInfo> {
    create_cq_with(uverbs, attr, event_fd, DriverAttrs::none(), uhw)
}

/// Creates a completion queue like [`create_cq`], with the driver's attributes. Such attributes can
/// be sent only by ioctl.
///
/// # Errors
/// The errors of [`create_cq`]; `EOPNOTSUPP` with [`Cause::KernelLacks`] if there are attributes
/// and the kernel lacks the ioctl.
pub fn create_cq_with(
    uverbs: &Uverbs,
    attr: &CqInitAttr<'_>,
    event_fd: Option<BorrowedFd<'_>>,
    driver: DriverAttrs<'_>,
    uhw: Uhw<'_>,
) -> Result<CqInfo> {
    const VERB: &str = "create_cq";
    let has_attrs = !driver.0.is_empty();
    let (mut handle, mut cqe) = (0_u32, 0_u32);
    let flags = kernel_flags(attr);
    let Uhw { input, output } = uhw;
    let done = {
        let mut attrs = Vec::with_capacity(10);
        attrs.push(Attr::new_handle(UVERBS_ATTR_CREATE_CQ_HANDLE, &mut handle));
        attrs.push(Attr::output(UVERBS_ATTR_CREATE_CQ_RESP_CQE, cqe.as_mut_bytes()));
        attrs.push(Attr::u32(UVERBS_ATTR_CREATE_CQ_CQE, attr.cqe));
        attrs.push(Attr::u64(UVERBS_ATTR_CREATE_CQ_USER_HANDLE, attr.user_handle));
        if let Some(channel) = attr.channel {
            attrs.push(Attr::fd(UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, channel.as_raw_fd()));
        }
        attrs.push(Attr::u32(UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, attr.comp_vector));
        if !flags.is_empty() {
            attrs.push(Attr::u32(UVERBS_ATTR_CREATE_CQ_FLAGS, flags.bits()));
        }
        if let Some(fd) = event_fd {
            attrs.push(Attr::fd(UVERBS_ATTR_CREATE_CQ_EVENT_FD, fd.as_raw_fd()).optional());
        }
        attrs.extend(driver.0);
        let uhw = Uhw { input, output: &mut *output };
        uverbs.try_ioctl_uhw(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE, attrs, uhw)
    };
    if done.map_err(|errno| uverbs.error(VERB, errno))? {
        return Ok(CqInfo { handle, cqe });
    }
    if has_attrs {
        let cause = Cause::KernelLacks { what: "completion queues with attributes of the driver" };
        return Err(uverbs.error(VERB, Errno::OPNOTSUPP).because(cause));
    }
    if !flags.is_empty() {
        let mut reply = IbUverbsExCreateCqResp::default();
        let request = IbUverbsExCreateCq {
            user_handle: attr.user_handle,
            cqe: attr.cqe,
            comp_vector: attr.comp_vector,
            comp_channel: fd_number(attr.channel),
            comp_mask: 0,
            flags: flags.bits(),
            reserved: 0,
        };
        let command = WriteCmd::extended(
            IB_USER_VERBS_EX_CMD_CREATE_CQ,
            request.as_bytes(),
            reply.as_mut_bytes(),
            Uhw { input, output },
        );
        uverbs.write(command).map_err(|errno| uverbs.error(VERB, errno))?;
        return Ok(CqInfo { handle: reply.base.cq_handle, cqe: reply.base.cqe });
    }
    let mut reply = IbUverbsCreateCqResp::default();
    let request = IbUverbsCreateCq {
        response: 0,
        user_handle: attr.user_handle,
        cqe: attr.cqe,
        comp_vector: attr.comp_vector,
        comp_channel: fd_number(attr.channel),
        reserved: 0,
    };
    let command = WriteCmd::new(
        IB_USER_VERBS_CMD_CREATE_CQ,
        request.as_bytes(),
        reply.as_mut_bytes(),
        Uhw { input, output },
    );
    uverbs.write(command).map_err(|errno| uverbs.error(VERB, errno))?;
    Ok(CqInfo { handle: reply.cq_handle, cqe: reply.cqe })
}

/// Returns the flags for the kernel, which does not need to know the number of polling threads.
/// Wall-clock times need the timestamp flag too, unless the driver's part of the command selects
/// another clock.
fn kernel_flags(attr: &CqInitAttr<'_>) -> IbUverbsExCreateCqFlags {
    let mut flags = IbUverbsExCreateCqFlags::empty();
    flags.set(
        IbUverbsExCreateCqFlags::IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION,
        attr.wc_flags.intersects(CqWcFlags::COMPLETION_TIMESTAMP | CqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK),
    );
    flags.set(
        IbUverbsExCreateCqFlags::IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN,
        attr.flags.contains(CqFlags::IGNORE_OVERRUN),
    );
    flags
}

/// Resizes a completion queue to at least `cqe` completions and returns its new capacity.
///
/// The kernel keeps the completions after the consumer index that this process has published. The
/// driver's reply, if any, describes the new queue.
///
/// # Errors
/// Any errno the kernel returns; notably `EINVAL` for a size beyond the device's limit or below the
/// number of completions in the queue, and `EOPNOTSUPP` if the driver does not resize queues.
#[doc(alias = "ibv_resize_cq")]
pub fn resize_cq(uverbs: &Uverbs, handle: u32, cqe: u32, uhw: Uhw<'_>) -> Result<u32> {
    let mut reply = IbUverbsResizeCqResp::default();
    let request = IbUverbsResizeCq { response: 0, cq_handle: handle, cqe };
    let command = WriteCmd::new(IB_USER_VERBS_CMD_RESIZE_CQ, request.as_bytes(), reply.as_mut_bytes(), uhw);
    uverbs.write(command).map_err(|errno| uverbs.error("resize_cq", errno))?;
    Ok(reply.cqe)
}

/// Changes the moderation of a completion queue's events.
///
/// # Errors
/// Any errno the kernel returns; notably `EOPNOTSUPP` if the driver does not moderate events.
#[doc(alias = "ibv_modify_cq")]
pub fn modify_cq(uverbs: &Uverbs, handle: u32, moderation: CqModeration) -> Result<()> {
    let CqModeration { cq_count, cq_period } = moderation;
    let request = IbUverbsExModifyCq {
        cq_handle: handle,
        attr_mask: MODERATE,
        attr: IbUverbsCqModeration { cq_count, cq_period },
        reserved: 0,
    };
    let command =
        WriteCmd::extended(IB_USER_VERBS_EX_CMD_MODIFY_CQ, request.as_bytes(), &mut [], Uhw::none());
    uverbs.write(command).map_err(|errno| uverbs.error("modify_cq", errno))
}

/// The kernel's `IB_CQ_MODERATE`, a bit in an attribute mask. No user-space header defines it.
const MODERATE: u32 = 1;

/// Destroys a completion queue and returns the number of its events already read. The kernel
/// discards unread events.
///
/// # Errors
/// Any errno the kernel returns; notably `EBUSY` while queue pairs use it.
#[doc(alias = "ibv_destroy_cq")]
pub fn destroy_cq(uverbs: &Uverbs, handle: u32) -> Result<EventsRead> {
    let mut reply = IbUverbsDestroyCqResp::default();
    let written = Destroy {
        verb: "destroy_cq",
        object_id: UVERBS_OBJECT_CQ,
        method_id: UVERBS_METHOD_CQ_DESTROY,
        handle_attr: UVERBS_ATTR_DESTROY_CQ_HANDLE,
        handle,
        reply: Some((UVERBS_ATTR_DESTROY_CQ_RESP, reply.as_mut_bytes())),
    }
    .run_for_reply(uverbs, || {
        let mut reply = IbUverbsDestroyCqResp::default();
        let request = IbUverbsDestroyCq { response: 0, cq_handle: handle, reserved: 0 };
        uverbs.write(WriteCmd::new(
            IB_USER_VERBS_CMD_DESTROY_CQ,
            request.as_bytes(),
            reply.as_mut_bytes(),
            Uhw::none(),
        ))?;
        Ok(reply)
    })?;
    let reply = written.unwrap_or(reply);
    Ok(EventsRead { comp: reply.comp_events_reported, asynchronous: reply.async_events_reported })
}

/// Requests one event for the next completion, or, with `solicited_only`, for the next solicited or
/// failed completion.
///
/// # Errors
/// Any errno the kernel returns; notably `EIO` after the device was unplugged.
#[doc(alias = "ibv_req_notify_cq")]
pub fn req_notify_cq(uverbs: &Uverbs, handle: u32, solicited_only: bool) -> Result<()> {
    let request = IbUverbsReqNotifyCq { cq_handle: handle, solicited_only: solicited_only.into() };
    write_only(uverbs, IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, request.as_bytes())
        .map_err(|errno| uverbs.error("req_notify_cq", errno))
}
