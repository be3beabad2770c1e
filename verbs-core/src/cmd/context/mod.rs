//! The context itself, its asynchronous events, and completion channels: `GET_CONTEXT`,
//! `QUERY_CONTEXT`, `ASYNC_EVENT_ALLOC`, `CREATE_COMP_CHANNEL`.
//!
//! # Safety
//! The kernel replies to these commands with the number of a file descriptor just opened for this
//! process. No other code has the number yet, so it can be owned. The reply is initialised with -1,
//! so it names no descriptor if the kernel does not fill it in. `own_fd` checks the descriptor
//! before it owns it.
#![allow(unsafe_code)]

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT,
    UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT,
    UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, UVERBS_METHOD_ASYNC_EVENT_ALLOC, UVERBS_METHOD_GET_CONTEXT,
    UVERBS_METHOD_QUERY_CONTEXT, UVERBS_OBJECT_ASYNC_EVENT, UVERBS_OBJECT_DEVICE,
};
use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, IB_USER_VERBS_CMD_GET_CONTEXT, IbUverbsCreateCompChannel,
    IbUverbsCreateCompChannelResp, IbUverbsGetContext, IbUverbsGetContextResp,
};
use zerocopy::IntoBytes;

use crate::channel::{Attr, DriverAttrs, Uhw, Uverbs, WriteCmd};
use crate::error::Result;

/// The kernel's description of a new context.
#[derive(Debug)]
pub struct ContextInfo {
    /// The number of completion vectors.
    pub num_comp_vectors: u32,
    /// `IB_UVERBS_CORE_SUPPORT_*`; 0 on older kernels.
    pub core_support: u64,
    /// The file descriptor for asynchronous events; `Some` only if the older form of the command
    /// opened it.
    pub async_fd: Option<OwnedFd>,
}

/// Creates a context on the open file.
///
/// # Errors
/// Any errno the kernel returns; notably `EINVAL` for a file that already has a context.
/// [`Cause::BadReply`](crate::Cause::BadReply) if the reply names a descriptor that the kernel
/// cannot have just opened.
#[doc(alias = "UVERBS_METHOD_GET_CONTEXT")]
pub fn get_context(uverbs: &Uverbs, uhw: Uhw<'_>) -> Result<ContextInfo> {
    const VERB: &str = "open_device";
    let (mut vectors, mut support) = (0_u32, 0_u64);
    let Uhw { input, output } = uhw;
    let done = {
        let mut attrs = Vec::with_capacity(4);
        attrs.push(Attr::output(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, vectors.as_mut_bytes()));
        attrs.push(Attr::output(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, support.as_mut_bytes()));
        let uhw = Uhw { input, output: &mut *output };
        uverbs.try_ioctl_uhw(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT, attrs, uhw)
    };
    if done.map_err(|errno| uverbs.error(VERB, errno))? {
        return Ok(ContextInfo { num_comp_vectors: vectors, core_support: support, async_fd: None });
    }
    let mut reply = IbUverbsGetContextResp { async_fd: u32::MAX, ..Default::default() };
    let request = IbUverbsGetContext::default();
    let command = WriteCmd::new(
        IB_USER_VERBS_CMD_GET_CONTEXT,
        request.as_bytes(),
        reply.as_mut_bytes(),
        Uhw { input, output },
    );
    uverbs.write(command).map_err(|errno| uverbs.error(VERB, errno))?;
    let async_fd = own_fd(uverbs, VERB, reply.async_fd as i32)?;
    Ok(ContextInfo { num_comp_vectors: reply.num_comp_vectors, core_support: 0, async_fd: Some(async_fd) })
}

/// Queries the existing context of an open file, created by another owner of the same file.
/// `driver` contains the attributes that the driver defines, such as
/// `MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX`.
///
/// # Errors
/// `EOPNOTSUPP` if the driver does not share contexts (as with rxe), or with
/// [`Cause::KernelLacks`](crate::Cause::KernelLacks) on kernels before 5.9; `EINVAL` if the file
/// has no context; any other errno the kernel returns.
#[doc(alias = "ibv_import_device")]
#[doc(alias = "UVERBS_METHOD_QUERY_CONTEXT")]
pub fn query_context(uverbs: &Uverbs, driver: DriverAttrs<'_>) -> Result<ContextInfo> {
    let (mut num_comp_vectors, mut core_support) = (0_u32, 0_u64);
    let mut attrs = vec![
        Attr::output(UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, num_comp_vectors.as_mut_bytes()),
        Attr::output(UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, core_support.as_mut_bytes()),
    ];
    attrs.extend(driver.0);
    let (object, method) = (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT);
    uverbs.ioctl_only("import_device", "import of devices", object, method, &mut attrs)?;
    Ok(ContextInfo { num_comp_vectors, core_support, async_fd: None })
}

/// Opens a file descriptor for the context's asynchronous events. The context's first such
/// descriptor becomes the default for new objects.
///
/// # Errors
/// `EOPNOTSUPP` on kernels that open the descriptor together with the context; otherwise any errno
/// the kernel returns, notably `EMFILE`. [`Cause::BadReply`](crate::Cause::BadReply) if the reply
/// names a descriptor that the kernel cannot have just opened.
#[doc(alias = "UVERBS_METHOD_ASYNC_EVENT_ALLOC")]
pub fn alloc_async_fd(uverbs: &Uverbs) -> Result<OwnedFd> {
    const VERB: &str = "alloc_async_fd";
    let mut fd = -1;
    let mut attrs = [Attr::new_fd(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, &mut fd)];
    let (object, method) = (UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC);
    uverbs.ioctl_only(VERB, "file descriptors for asynchronous events", object, method, &mut attrs)?;
    own_fd(uverbs, VERB, fd)
}

/// Opens a completion channel.
///
/// # Errors
/// Any errno the kernel returns; notably `EMFILE` if the process has no free descriptor.
/// [`Cause::BadReply`](crate::Cause::BadReply) if the reply names a descriptor that the kernel
/// cannot have just opened.
#[doc(alias = "ibv_create_comp_channel")]
pub fn create_comp_channel(uverbs: &Uverbs) -> Result<OwnedFd> {
    const VERB: &str = "create_comp_channel";
    let mut reply = IbUverbsCreateCompChannelResp { fd: u32::MAX };
    let request = IbUverbsCreateCompChannel::default();
    let command = WriteCmd::new(
        IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL,
        request.as_bytes(),
        reply.as_mut_bytes(),
        Uhw::none(),
    );
    uverbs.write(command).map_err(|errno| uverbs.error(VERB, errno))?;
    own_fd(uverbs, VERB, reply.fd as i32)
}

/// Takes ownership of a dma-buf descriptor that the kernel has just opened.
pub(super) fn own_dmabuf(uverbs: &Uverbs, verb: &'static str, fd: RawFd) -> Result<OwnedFd> {
    own(uverbs, verb, fd, &[0, libc::S_IFREG])
}

fn own_fd(uverbs: &Uverbs, verb: &'static str, fd: RawFd) -> Result<OwnedFd> {
    own(uverbs, verb, fd, &[0])
}

fn own(uverbs: &Uverbs, verb: &'static str, fd: RawFd, types: &[libc::mode_t]) -> Result<OwnedFd> {
    if let Some(what) = defect(uverbs, fd, types) {
        return Err(uverbs.bad_reply(verb, what));
    }
    // SAFETY: the reply of the command that just succeeded names the descriptor. A reply comes from
    // the kernel, or from a channel guaranteed by the caller of `Uverbs::new`. The kernel opened it
    // for this process in that command, so this is the only copy of its number. `defect` checked
    // that it looks like the kernel's descriptors.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the reason why a number cannot be a descriptor that the kernel has just opened for this
/// process.
///
/// The kernel (`alloc_begin_fd_uobject` in `drivers/infiniband/core/rdma_core.c`) opens such
/// descriptors with close-on-exec, on an anonymous inode, which has no file type. The inode of a
/// dma-buf is reported as a regular file since Linux 6.17. `types` are the file types that the
/// kernel may report here.
fn defect(uverbs: &Uverbs, fd: RawFd, types: &[libc::mode_t]) -> Option<&'static str> {
    if fd < 0 {
        return Some("a file descriptor that is negative");
    }
    // The standard library always uses these numbers, so they have owners even while closed.
    if fd <= libc::STDERR_FILENO {
        return Some("a file descriptor that is a standard stream");
    }
    if uverbs.is_kept(fd) {
        return Some("a file descriptor that the context has already");
    }
    // SAFETY: reads the flags of a descriptor, or fails for an invalid number.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    if flags < 0 {
        return Some("a file descriptor that is not open");
    }
    if flags & libc::FD_CLOEXEC == 0 {
        return Some("a file descriptor without close-on-exec");
    }
    let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: writes a `stat` into memory of that size, or fails.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return Some("a file descriptor that is not open");
    }
    // SAFETY: `fstat` succeeded, so it filled the struct.
    let mode = unsafe { stat.assume_init() }.st_mode;
    (!types.contains(&(mode & libc::S_IFMT))).then_some("a file descriptor of a file, pipe, socket or device")
}

#[cfg(test)]
pub(crate) mod tests;
