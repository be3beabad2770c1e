//! The context and the protection domain that all ids on a device share.
//!
//! ```text
//!   first id or list ─► the context opens      ─► it stays open while the machine has the device
//!   first id         ─► the domain is allocated ─► freed with the last id and the last list
//! ```
//!
//! # Safety
//! The table's lock guards its entries, and the contexts in the table are open.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr::null_mut;
use verbs::Device;
use verbs_core::Errno;
use verbs_core::fork::{ForkGuard, ForkLock, current_generation};

use super::{NO_DEVICE, Result, logged, no_memory, object, refuse};
use crate::abi::c::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_device, ibv_pd, ibv_xrcd,
    ibv_xrcd_init_attr, verbs_context,
};
use crate::abi::errno;
use crate::handle::context::device_ops;
use crate::tables::{ibv_close_device, ibv_open_device, open_same};
use crate::verbs::device::{
    self, ibv_free_device_list, ibv_get_device_guid, ibv_get_device_index, ibv_get_device_list,
};
use crate::verbs::pd::{ibv_alloc_pd, ibv_dealloc_pd};
use crate::verbs::xrcd;

/// An opened device.
struct Entry {
    context: *mut ibv_context,
    /// The start of the context's memory, so that leak checkers see that the memory is in use.
    _start: *mut verbs_context,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
    limits: Limits,
    /// The generation of the process that opened the device. A forked child opens the device again,
    /// under the same name and GUID.
    generation: u32,
    /// The number of ids that use the device, and of [`rdma_get_devices`] lists that contain it.
    users: usize,
}

// SAFETY: the table's lock guards the pointers; any thread may use the objects they point to.
unsafe impl Send for Entry {}

static TABLE: ForkLock<Vec<Entry>> = ForkLock::new(Vec::new());

/// The maximum number of RDMA reads and atomics in flight on a connection, in each direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
}

/// The device of an id, counted as one of its users.
#[derive(Debug)]
pub(super) struct DeviceOfId {
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
    pub(super) limits: Limits,
}

/// Locks the table. In a child whose parent held the lock at the fork, the table starts empty, and
/// the devices are opened again.
fn table() -> ForkGuard<'static, Vec<Entry>> {
    TABLE.lock_or(Vec::new)
}

impl Entry {
    /// Takes ownership of a context.
    ///
    /// # Errors
    /// Any error from querying the device; in that case, the context is closed.
    ///
    /// # Safety
    /// `context` must be open.
    unsafe fn new(context: *mut ibv_context) -> Result<Self> {
        // SAFETY: guaranteed by the caller.
        let attr = unsafe { device_ops(context) }.query_device().map_err(logged);
        let attr = attr.inspect_err(|_| {
            // SAFETY: nothing was created in the context.
            unsafe { ibv_close_device(context) };
        })?;
        // As in rdma-core, the numbers are truncated to a byte.
        let limits = Limits {
            responder_resources: attr.max_qp_rd_atom as u8,
            initiator_depth: attr.max_qp_init_rd_atom as u8,
        };
        let start = context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast();
        let (pd, xrcd, generation) = (null_mut(), null_mut(), current_generation());
        Ok(Self { context, _start: start, pd, xrcd, limits, generation, users: 0 })
    }

    fn is_own(&self) -> bool {
        self.generation == current_generation()
    }

    fn device(&self) -> *mut ibv_device {
        // SAFETY: the context is open.
        unsafe { (*self.context).device }
    }
}

impl DeviceOfId {
    /// Finds the device of an id and opens it if the process has not done so.
    ///
    /// # Errors
    /// `ENODEV` if the device list lacks the device; any error from opening it or allocating a
    /// domain.
    pub(super) fn get(device: &Device) -> Result<Self> {
        let mut table = table();
        // SAFETY: the devices of open contexts are in use.
        let known =
            table.iter().position(|entry| entry.is_own() && unsafe { device::is(entry.device(), device) });
        let at = match known {
            Some(at) => at,
            None => {
                let context = open_same(device)?;
                // SAFETY: the context was just opened.
                table.push(unsafe { Entry::new(context) }?);
                table.len() - 1
            }
        };
        let entry = &mut table[at];
        if entry.pd.is_null() {
            // SAFETY: the context is open.
            entry.pd = object(unsafe { ibv_alloc_pd(entry.context) })?;
        }
        entry.users += 1;
        Ok(Self { context: entry.context, pd: entry.pd, limits: entry.limits })
    }

    /// Returns the XRC domain that the ids on the device share.
    ///
    /// # Errors
    /// Any error from opening the domain.
    pub(super) fn xrcd(&self) -> Result<*mut ibv_xrcd> {
        let mut table = table();
        let entry = table
            .iter_mut()
            .find(|entry| entry.context == self.context)
            .ok_or_else(|| refuse("create_qp", Errno::NODEV, NO_DEVICE))?;
        if entry.xrcd.is_null() {
            let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
            let mut attr = ibv_xrcd_init_attr { comp_mask, fd: -1, oflags: libc::O_CREAT };
            // SAFETY: the context is open.
            entry.xrcd = object(unsafe { xrcd::open_xrcd(entry.context, &raw mut attr) })?;
        }
        Ok(entry.xrcd)
    }
}

impl Drop for DeviceOfId {
    fn drop(&mut self) {
        release(self.context);
    }
}

/// Decrements the number of users of a device. Removing the last user frees the domains.
fn release(context: *mut ibv_context) {
    let mut table = table();
    let Some(entry) = table.iter_mut().find(|entry| entry.context == context) else { return };
    entry.users = entry.users.saturating_sub(1);
    if entry.users > 0 {
        return;
    }
    let (pd, xrcd) =
        (core::mem::replace(&mut entry.pd, null_mut()), core::mem::replace(&mut entry.xrcd, null_mut()));
    // As in rdma-core, a program that leaves objects in the domains leaks the domains, too. SAFETY:
    // the domains are live; their last user is gone.
    unsafe {
        if !pd.is_null() {
            ibv_dealloc_pd(pd);
        }
        if !xrcd.is_null() {
            xrcd::close_xrcd(xrcd);
        }
    }
}

/// `rdma_get_devices(3)`: returns the contexts that ids share, in the order of device indexes.
///
/// # Safety
/// `num_devices` must be null or point to an int.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let listed = list();
    let count = listed.as_ref().map_or(0, |(_, count)| *count);
    if !num_devices.is_null() {
        // SAFETY: the caller passes a pointer to an int.
        unsafe { *num_devices = count as c_int };
    }
    listed.map_or_else(
        |errno| {
            errno::set(errno.raw());
            null_mut()
        },
        |(array, _)| array,
    )
}

/// Opens all devices. Returns a null-terminated array of their contexts and its length.
///
/// # Errors
/// `ENODEV` without a device.
fn list() -> Result<(*mut *mut ibv_context, usize)> {
    let mut found = 0;
    // SAFETY: the number is a local variable; the list is freed below.
    let devices = object(unsafe { ibv_get_device_list(&raw mut found) }).map_err(|_| Errno::NODEV)?;
    // SAFETY: the list has that many devices.
    let of_list = unsafe { core::slice::from_raw_parts(devices, found as usize) };
    let mut sorted = of_list.to_vec();
    // SAFETY: the devices come from a list. As in rdma-core, devices without an index come first.
    sorted.sort_by_key(|device| unsafe {
        (ibv_get_device_index(*device), u64::from_be(ibv_get_device_guid(*device)))
    });
    let contexts = open_all(&sorted);
    // SAFETY: the list was just created. Open contexts keep their devices alive.
    unsafe { ibv_free_device_list(devices) };
    if found == 0 {
        return Err(refuse("get_devices", Errno::NODEV, "there is no device"));
    }
    let Some(array) = device::list_to_c(&contexts) else {
        contexts.into_iter().for_each(release);
        return Err(no_memory("get_devices"));
    };
    Ok((array, contexts.len()))
}

/// Returns the contexts of devices, each with one more user. A device that fails to open is
/// omitted. Contexts of unplugged devices are closed unless they are in use.
fn open_all(devices: &[*mut ibv_device]) -> Vec<*mut ibv_context> {
    let mut table = table();
    table.retain(|entry| {
        let is_kept = entry.users > 0 || devices.contains(&entry.device());
        if !is_kept {
            // SAFETY: the context is not used by any id or list.
            unsafe { ibv_close_device(entry.context) };
        }
        is_kept
    });
    let mut contexts = Vec::new();
    for device in devices {
        let is_it = |entry: &Entry| entry.is_own() && entry.device() == *device;
        let at = table.iter().position(is_it).or_else(|| {
            // SAFETY: the device comes from a list; the context was just opened.
            let opened = unsafe { object(ibv_open_device(*device)).and_then(|context| Entry::new(context)) };
            table.push(opened.ok()?);
            Some(table.len() - 1)
        });
        if let Some(at) = at {
            table[at].users += 1;
            contexts.push(table[at].context);
        }
    }
    contexts
}

/// `rdma_free_devices(3)`.
///
/// # Safety
/// `list` must come from [`rdma_get_devices`] and must not be used afterwards.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: guaranteed by the caller.
    unsafe { device::free_list(list, release) }
}
