//! [`Opened`]: an open device, and the operation tables that programs use without a symbol.
//!
//! Control operations go through [`Verbs`], a trait object for the context's provider. Data path
//! operations are functions of the provider, stored in the public tables.
//!
//! # Safety
//! A pointer to an `ibv_context` of this library is a pointer into its [`Opened`], which lives
//! until `ibv_close_device`.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use core::ptr::NonNull;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use provider_mlx5::Mlx5;
use provider_rxe::Rxe;
use provider_soft::Soft;
use verbs_core::fork::ForkLock;
use verbs_core::provider::{ContextOps as _, DeviceOps, Erased, OpenedContext, Provider};
use verbs_core::{Errno, Error};

use crate::abi::c::{ibv_context, ibv_device, verbs_context};
use crate::abi::errno;
use crate::handle::left::Left;
use crate::verbs::qp::post;
use crate::verbs::{ah, counters, cq, device, dm, flow, mr, mw, pd, qp, query, srq, wq, xrcd};

/// The control operations of a context, for its provider.
pub(crate) trait Verbs:
    ah::AhVerbs
    + counters::CountersVerbs
    + cq::CqVerbs
    + dm::DmVerbs
    + flow::FlowVerbs
    + mr::MrVerbs
    + mw::MwVerbs
    + pd::PdVerbs
    + qp::QpVerbs
    + query::QueryVerbs
    + srq::SrqVerbs
    + wq::WqVerbs
    + xrcd::XrcdVerbs
{
    /// Returns the device, for queries.
    fn device(&self) -> &dyn DeviceOps;

    /// Returns the context of a ConnectX device.
    fn mlx5(&self) -> Option<&provider_mlx5::Context>;

    /// Revokes the access of peers through the objects that the program did not destroy.
    ///
    /// # Safety
    /// The program no longer uses the objects.
    unsafe fn end_left(&self);
}

/// A provider's open device.
pub(crate) struct Provided<P: Provider> {
    /// The owner, which points to the provider's context.
    opened: OpenedContext,
    context: NonNull<P::Context>,
    pub(crate) left: Left<P>,
}

impl<P: Provider> Provided<P> {
    pub(crate) fn context(&self) -> &P::Context {
        // SAFETY: the owner is part of this value and never moves its context.
        unsafe { self.context.as_ref() }
    }
}

impl<P: Provider> Verbs for Provided<P> {
    fn device(&self) -> &dyn DeviceOps {
        self.context().device()
    }

    fn mlx5(&self) -> Option<&provider_mlx5::Context> {
        self.opened.downcast_ref::<Mlx5>()
    }

    unsafe fn end_left(&self) {
        // SAFETY: the caller's promise is the same.
        unsafe { self.left.end() }
    }
}

/// An open device.
#[repr(C)]
pub(crate) struct Opened {
    c: verbs_context,
    verbs: Box<dyn Verbs>,
    _cmd_fd: Option<CmdFd>,
}

/// Returns the [`Opened`] that contains a context.
///
/// # Safety
/// `context` is open.
unsafe fn opened<'a>(context: *mut ibv_context) -> &'a Opened {
    // SAFETY: the context lies in an `Opened`, whose first field contains it.
    unsafe { &*context.byte_sub(offset_of!(verbs_context, context)).cast::<Opened>() }
}

/// Returns the operations of a context.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe fn verbs<'a>(context: *mut ibv_context) -> &'a dyn Verbs {
    // SAFETY: the caller passes an open context.
    unsafe { &*opened(context).verbs }
}

/// Returns the device of a context, for queries.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe fn device_ops<'a>(context: *mut ibv_context) -> &'a dyn DeviceOps {
    // SAFETY: the caller passes an open context.
    unsafe { verbs(context) }.device()
}

/// Returns a descriptor that represents a device without a file: programs duplicate
/// `ibv_context.cmd_fd` before they query the device's capabilities.
///
/// # Errors
/// Any errno from opening the device's events.
fn stand_in(device: &dyn DeviceOps) -> Result<CmdFd, Error> {
    let error = |errno| Error::new("open_device", device.device_name(), errno);
    let file = device.async_fd()?.try_clone_to_owned().map_err(|io| error(Errno::from_io(&io)))?;
    let identity = identity(file.as_fd()).map_err(error)?;
    STAND_INS.lock_or(Vec::new).push(identity);
    Ok(CmdFd { file, stands_for: Some(identity) })
}

/// The descriptor shown as `ibv_context.cmd_fd`.
struct CmdFd {
    file: OwnedFd,
    /// The entry of [`STAND_INS`], for a device without a file.
    stands_for: Option<(u64, u64)>,
}

impl Drop for CmdFd {
    fn drop(&mut self) {
        if let Some(identity) = self.stands_for {
            let mut stand_ins = STAND_INS.lock_or(Vec::new);
            if let Some(index) = stand_ins.iter().position(|other| *other == identity) {
                stand_ins.swap_remove(index);
            }
        }
    }
}

/// The files that represent devices without a file.
static STAND_INS: ForkLock<Vec<(u64, u64)>> = ForkLock::new(Vec::new());

/// Returns the device and inode numbers of a file.
fn identity(file: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    let stat = nix::sys::stat::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Returns whether a file represents a device without a file.
pub(crate) fn is_stand_in(file: BorrowedFd<'_>) -> bool {
    let stand_ins = STAND_INS.lock_or(Vec::new);
    identity(file).is_ok_and(|identity| stand_ins.contains(&identity))
}

/// Creates the context of an opened device.
///
/// # Safety
/// `device` is in use. The context becomes another user of it.
pub(crate) unsafe fn start(device: *mut ibv_device, opened: OpenedContext) -> *mut ibv_context {
    // As in C, programs may also issue kernel commands through the descriptor. SAFETY: the program
    // is a C program and keeps the promises of one.
    let exported = unsafe { opened.export_device() };
    let exported = exported.map(|file| CmdFd { file, stands_for: None });
    let cmd_fd = exported.or_else(|_| stand_in(opened.device())).ok();
    let context = if let Some(soft) = opened.downcast_ref::<Soft>() {
        let soft = NonNull::from(soft);
        new::<Soft>(opened, soft, device, cmd_fd)
    } else if let Some(mlx5) = opened.downcast_ref::<Mlx5>() {
        let mlx5 = NonNull::from(mlx5);
        new::<Mlx5>(opened, mlx5, device, cmd_fd)
    } else if let Some(rxe) = opened.downcast_ref::<Rxe>() {
        let rxe = NonNull::from(rxe);
        new::<Rxe>(opened, rxe, device, cmd_fd)
    } else {
        let erased = NonNull::from(&*opened);
        new::<Erased>(opened, erased, device, cmd_fd)
    };
    if !context.is_null() {
        // SAFETY: the caller's promise.
        unsafe { device::hold(device) };
    }
    context
}

fn new<P: Provider>(
    owner: OpenedContext,
    context: NonNull<P::Context>,
    device: *mut ibv_device,
    cmd_fd: Option<CmdFd>,
) -> *mut ibv_context {
    let provided = Provided::<P> { opened: owner, context, left: Left::new() };
    let queries = provided.context().device();
    let async_fd = match queries.async_fd() {
        Ok(fd) => fd.as_raw_fd(),
        Err(error) => return errno::fail_null(&error),
    };
    // SAFETY: zeroed integers and null pointers are valid.
    let mut c: verbs_context = unsafe { core::mem::zeroed() };
    c.sz = size_of::<verbs_context>();
    c.context.device = device;
    c.context.cmd_fd = cmd_fd.as_ref().map_or(-1, |fd| fd.file.as_raw_fd());
    c.context.async_fd = async_fd;
    c.context.num_comp_vectors = queries.num_comp_vectors() as c_int;
    c.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    c.context.abi_compat = usize::MAX as *mut c_void;
    fill::<P>(&mut c);
    let opened = Box::into_raw(Box::new(Opened { c, verbs: Box::new(provided), _cmd_fd: cmd_fd }));
    // SAFETY: the box was just created.
    unsafe { &raw mut (*opened).c.context }
}

/// Fills the operation tables.
fn fill<P: Provider>(c: &mut verbs_context) {
    let ops = &mut c.context.ops;
    ops._compat_query_device = Some(query::ibv_query_device);
    ops._compat_query_port = Some(query::ibv_query_port);
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.bind_mw = Some(mw::bind_mw);
    ops.dealloc_mw = Some(mw::dealloc_mw);
    ops.poll_cq = Some(cq::poll::<P>);
    ops.req_notify_cq = Some(cq::req_notify::<P>);
    ops.post_srq_recv = Some(srq::post_recv::<P>);
    ops.post_send = Some(post::send::<P>);
    ops.post_recv = Some(post::recv::<P>);

    c.query_port = Some(query::query_port);
    c.query_device_ex = Some(query::query_device_ex);
    c.query_rt_values = Some(query::query_rt_values);
    c.alloc_td = Some(pd::alloc_td);
    c.dealloc_td = Some(pd::dealloc_td);
    c.alloc_parent_domain = Some(pd::alloc_parent_domain);
    c.alloc_buf = Some(mr::ibv_alloc_buf);
    c.free_buf = Some(mr::ibv_free_buf);
    c.alloc_null_mr = Some(mr::alloc_null_mr);
    c.advise_mr = Some(mr::advise_mr);
    c.reg_mr_ex = Some(mr::ibv_reg_mr_ex);
    c.alloc_dm = Some(dm::alloc_dm);
    c.free_dm = Some(dm::free_dm);
    c.reg_dm_mr = Some(dm::reg_dm_mr);
    c.dm_export_dmabuf_fd = Some(dm::ibv_dm_export_dmabuf_fd);
    c.alloc_dmah = Some(dm::ibv_alloc_dmah);
    c.dealloc_dmah = Some(dm::ibv_dealloc_dmah);
    c.create_cq_ex = Some(cq::create_cq_ex);
    c.modify_cq = Some(cq::modify_cq);
    c.create_qp_ex = Some(qp::create_qp_ex);
    c.open_qp = Some(qp::open_qp);
    c.modify_qp_rate_limit = Some(qp::modify_qp_rate_limit);
    c.create_srq_ex = Some(srq::create_srq_ex);
    c.get_srq_num = Some(srq::get_srq_num);
    c.post_srq_ops = Some(srq::post_srq_ops::<P>);
    c.open_xrcd = Some(xrcd::open_xrcd);
    c.close_xrcd = Some(xrcd::close_xrcd);
    c.create_wq = Some(wq::create_wq);
    c.modify_wq = Some(wq::modify_wq);
    c.destroy_wq = Some(wq::destroy_wq);
    c.create_rwq_ind_table = Some(wq::create_rwq_ind_table);
    c.destroy_rwq_ind_table = Some(wq::destroy_rwq_ind_table);
    c.ibv_create_flow = Some(flow::create_flow);
    c.ibv_destroy_flow = Some(flow::destroy_flow);
    c.create_flow_action_esp = Some(flow::create_flow_action_esp);
    c.modify_flow_action_esp = Some(flow::modify_flow_action_esp);
    c.destroy_flow_action = Some(flow::destroy_flow_action);
    c.create_counters = Some(counters::create_counters);
    c.destroy_counters = Some(counters::destroy_counters);
    c.attach_counters_point_flow = Some(counters::attach_counters_point_flow);
    c.read_counters = Some(counters::read_counters);
    // Programs built in 2013 look for the flow operations in the two placeholders. SAFETY: only the
    // function pointer type differs; the program casts it back before the call.
    unsafe {
        c.ABI_placeholder1 = core::mem::transmute::<Option<flow::CreateFlow>, Option<unsafe extern "C" fn()>>(
            c.ibv_create_flow,
        );
        c.ABI_placeholder2 = core::mem::transmute::<Option<flow::DestroyFlow>, Option<unsafe extern "C" fn()>>(
            c.ibv_destroy_flow,
        );
    }
}

/// `ibv_close_device(3)`.
///
/// # Safety
/// `context` is open; neither it nor its objects are used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    if context.is_null() {
        return errno::refuse(Errno::INVAL);
    }
    // SAFETY: `start` created the box; the context counts as a user of its device.
    unsafe {
        let device = (*context).device;
        verbs(context).end_left();
        drop(Box::from_raw(context.byte_sub(offset_of!(verbs_context, context)).cast::<Opened>()));
        device::release(device);
    }
    0
}

const _: () = assert!(offset_of!(Opened, c) == 0);
