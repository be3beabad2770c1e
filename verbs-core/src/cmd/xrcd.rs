//! XRC domains: `OPEN_XRCD`, `XRCD_DESTROY`.

use std::os::fd::BorrowedFd;

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_DESTROY_XRCD_HANDLE, UVERBS_METHOD_XRCD_DESTROY, UVERBS_OBJECT_XRCD,
};
use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_CMD_CLOSE_XRCD, IB_USER_VERBS_CMD_OPEN_XRCD, IbUverbsCloseXrcd, IbUverbsOpenXrcd,
    IbUverbsOpenXrcdResp,
};
use zerocopy::IntoBytes;

use super::{Destroy, fd_number, write_only};
use crate::channel::{Uhw, Uverbs, WriteCmd};
use crate::error::Result;

/// Opens the XRC domain of a file's inode or, without a file, creates a new domain. `oflags` may
/// contain `O_CREAT` and `O_EXCL`.
///
/// # Errors
/// Any errno the kernel returns; notably `EOPNOTSUPP` for a device without XRC, `EAGAIN` if the
/// file has no domain and `oflags` lacks `O_CREAT`, and `EINVAL` if the file has a domain and
/// `oflags` contains `O_EXCL`.
#[doc(alias = "ibv_open_xrcd")]
pub fn open_xrcd(uverbs: &Uverbs, file: Option<BorrowedFd<'_>>, oflags: i32) -> Result<u32> {
    let mut reply = IbUverbsOpenXrcdResp::default();
    let request =
        IbUverbsOpenXrcd { response: 0, fd: fd_number(file).cast_unsigned(), oflags: oflags.cast_unsigned() };
    let command =
        WriteCmd::new(IB_USER_VERBS_CMD_OPEN_XRCD, request.as_bytes(), reply.as_mut_bytes(), Uhw::none());
    uverbs.write(command).map_err(|errno| uverbs.error("open_xrcd", errno))?;
    Ok(reply.xrcd_handle)
}

/// Closes an XRC domain. A domain shared through a file is destroyed after its last user closes it.
///
/// # Errors
/// Any errno the kernel returns; notably `EBUSY` while objects of this context use it.
#[doc(alias = "ibv_close_xrcd")]
pub fn close_xrcd(uverbs: &Uverbs, handle: u32) -> Result<()> {
    Destroy {
        verb: "close_xrcd",
        object_id: UVERBS_OBJECT_XRCD,
        method_id: UVERBS_METHOD_XRCD_DESTROY,
        handle_attr: UVERBS_ATTR_DESTROY_XRCD_HANDLE,
        handle,
        reply: None,
    }
    .run(uverbs, || {
        let request = IbUverbsCloseXrcd { xrcd_handle: handle };
        write_only(uverbs, IB_USER_VERBS_CMD_CLOSE_XRCD, request.as_bytes())
    })
}
