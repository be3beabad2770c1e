//! Opening and closing devices, and filling in the operation tables used by the inline functions in
//! verbs.h.
//!
//! Control operations in the tables are the same for every provider. Data path operations are
//! specific to the context's provider.
//!
//! # Safety
//! Device pointers come from a list, and contexts are open.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use verbs::Device;
use verbs_core::Errno;
use verbs_core::discovery::DevNum;
use verbs_core::provider::{Destroy as _, OpenedContext, Provider};

use crate::abi::c::{ibv_context, ibv_device, verbs_context};
use crate::abi::errno::{self, not_null, not_null_or_null};
use crate::handle::cmd_fd::{CmdFd, is_stand_in};
use crate::handle::context::{AnyProviderContext, Opened, ProviderContext, dispatch, verb};
use crate::verbs::device::{self, known};
use crate::verbs::mr::MrObject;
use crate::verbs::mw::MwObject;
use crate::verbs::qp::object::QpObject;
use crate::verbs::qp::post;
use crate::verbs::{counters, cq, cq_ex, dm, flow, mr, mw, pd, qp, query, srq, wq, xrcd};

impl<P: Provider> ProviderContext<P> {
    /// Fills in the operation tables.
    fn fill(&self, c: &mut verbs_context) {
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
        c.create_cq_ex = Some(cq_ex::create_cq_ex);
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
        // Programs built in 2013 look for the flow operations in the two placeholders. SAFETY: only
        // the function pointer type differs; the program casts it back before the call.
        unsafe {
            c.ABI_placeholder1 = core::mem::transmute::<
                Option<flow::CreateFlow>,
                Option<unsafe extern "C" fn()>,
            >(c.ibv_create_flow);
            c.ABI_placeholder2 = core::mem::transmute::<
                Option<flow::DestroyFlow>,
                Option<unsafe extern "C" fn()>,
            >(c.ibv_destroy_flow);
        }
    }

    /// Destroys the objects that give peers access. Their structs stay allocated, because the
    /// program leaked them.
    ///
    /// # Safety
    /// The program must no longer use the objects.
    unsafe fn end_left(&self) {
        const VERB: &str = "close_device";
        if !self.live.is_own() {
            return;
        }
        // An object that the device fails to destroy stays, because closing has no way to report
        // it. SAFETY: the objects are in memory, because each is removed from the sets before it is
        // freed. An object that has already been destroyed returns `EINVAL`.
        unsafe {
            for qp in self.live.qps.take() {
                let _ = QpObject::<P>::inner(qp.cast()).destroy_control();
            }
            for mw in self.live.mws.take() {
                let _ = MwObject::<P>::inner(mw).destroy(VERB, |mw| mw.destroy());
            }
            for mr in self.live.mrs.take() {
                let _ = MrObject::<P>::inner(mr).destroy(VERB, |mr| mr.destroy());
            }
        }
    }
}

/// Creates the context of an opened device.
///
/// # Safety
/// `device` must be in use. The context counts as a user of the device.
unsafe fn start(device: *mut ibv_device, opened: OpenedContext) -> *mut ibv_context {
    // As in rdma-core, programs may also issue kernel commands through the descriptor. SAFETY: the
    // program is a C program, and keeps the promises that C requires.
    let exported = unsafe { opened.export_device() };
    let cmd_fd = exported.map(CmdFd::new).or_else(|_| CmdFd::stand_in(opened.device())).ok();
    let queries = opened.device();
    let async_fd = match queries.async_fd() {
        Ok(fd) => fd.as_raw_fd(),
        Err(error) => return errno::fail_null(&error),
    };
    // SAFETY: zeroed integers and null pointers are valid.
    let mut c: verbs_context = unsafe { core::mem::zeroed() };
    c.sz = size_of::<verbs_context>();
    c.context.device = device;
    c.context.cmd_fd = cmd_fd.as_ref().map_or(-1, CmdFd::raw);
    c.context.async_fd = async_fd;
    c.context.num_comp_vectors = queries.num_comp_vectors() as c_int;
    c.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    c.context.abi_compat = usize::MAX as *mut c_void;
    let provided = AnyProviderContext::new(opened);
    dispatch!(&provided, fill(&mut c));
    // SAFETY: guaranteed by the caller.
    unsafe { device::hold(device) };
    Opened::boxed(c, provided, cmd_fd)
}

/// `ibv_open_device(3)`.
///
/// # Safety
/// `device` must be a device from a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    not_null_or_null!(device);
    // SAFETY: the device is live.
    let known = unsafe { known(device) };
    match (known.driver().open)(known.info()) {
        // SAFETY: the device is in use; the context becomes another user.
        Ok(opened) => unsafe { start(device, opened) },
        Err(error) => errno::fail_null(&error),
    }
}

/// `ibv_import_device(3)`. If the call succeeds, the context owns the descriptor.
///
/// # Safety
/// `cmd_fd` must be an open file owned by the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    let refuse = |errno, reason| errno::fail_null(&errno::refused("import_device", errno, reason));
    if cmd_fd < 0 {
        return refuse(Errno::INVAL, "the descriptor is negative");
    }
    // SAFETY: the file is open; the caller keeps it unless the call succeeds.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(cmd_fd) });
    let metadata = file.metadata();
    let keep = |file: File| _ = file.into_raw_fd();
    let dev = match metadata {
        Ok(metadata) if metadata.file_type().is_char_device() => DevNum::from_rdev(metadata.rdev()),
        _ => {
            let is_soft = is_stand_in(file.as_fd());
            keep(file);
            return match is_soft {
                true => refuse(Errno::OPNOTSUPP, "a soft device cannot be imported"),
                false => refuse(Errno::INVAL, "the descriptor is not an RDMA device's"),
            };
        }
    };
    let devices = match device::list() {
        Ok(devices) => devices,
        Err(error) => {
            keep(file);
            return errno::fail_null(&error);
        }
    };
    // SAFETY: `list` counted this call as a user of each.
    let of_file = |device: &&*mut ibv_device| unsafe { known(**device).info().dev() == Some(dev) };
    let context = match devices.iter().find(of_file) {
        None => {
            keep(file);
            refuse(Errno::NODEV, "no listed device has the file")
        }
        Some(&device) => {
            // SAFETY: as above.
            let known = unsafe { known(device) };
            match (known.driver().import, file.try_clone()) {
                (None, _) => {
                    keep(file);
                    refuse(Errno::OPNOTSUPP, "the provider imports no contexts")
                }
                (_, Err(io)) => {
                    keep(file);
                    refuse(Errno::from_io(&io), "the descriptor cannot be copied")
                }
                (Some(import), Ok(copy)) => match import(known.info(), copy.into()) {
                    // SAFETY: the device is in use. Dropping `file` is fine: the context has its
                    // own copy.
                    Ok(opened) => unsafe { start(device, opened) },
                    Err(error) => {
                        keep(file);
                        errno::fail_null(&error)
                    }
                },
            }
        }
    };
    // SAFETY: `list` counted each device once.
    devices.iter().for_each(|device| unsafe { device::release(*device) });
    context
}

/// `ibv_close_device(3)`.
///
/// # Safety
/// `context` must be open; neither it nor its objects may be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    not_null!(context);
    // SAFETY: the context is open, and counts as a user of its device.
    unsafe {
        let device = (*context).device;
        verb!(context, end_left());
        Opened::free(context);
        device::release(device);
    }
    0
}

/// Opens the device in the list that corresponds to a device from another part of the process.
///
/// # Errors
/// `ENODEV` if the list lacks the device; any error from listing or opening devices.
pub(crate) fn open_same(device: &Device) -> Result<*mut ibv_context, Errno> {
    let devices = device::list().map_err(|error| {
        errno::log(&error);
        error.errno
    })?;
    // SAFETY: `list` counted this call as a user of each.
    let found = devices.iter().find(|known| unsafe { device::is(**known, device) });
    let context = match found {
        // SAFETY: as above.
        Some(known) => match unsafe { ibv_open_device(*known) } {
            context if context.is_null() => Err(Errno::last()),
            context => Ok(context),
        },
        None => Err(Errno::NODEV),
    };
    // SAFETY: `list` counted each device once.
    devices.iter().for_each(|device| unsafe { device::release(*device) });
    context
}
