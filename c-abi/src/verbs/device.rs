//! The device list.
//!
//! Devices are identified by pointer: librdmacm sorts and compares the pointers of two lists. A
//! process-wide table therefore holds one [`Known`] per device, which counts the lists and open
//! contexts that use it. An unplugged device is removed from the table once its count is zero.
//!
//! # Safety
//! Device pointers come from [`ibv_get_device_list`] and are used only until the list is freed and
//! the contexts are closed. The table frees no device before that.
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int};
use core::ptr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use provider_soft::sysfs::{self, DevicePaths, Tree};
use verbs::{Device, DeviceList};
use verbs_core::discovery::DeviceInfo;
use verbs_core::fork::{ForkGuard, ForkLock};
use verbs_core::{Errno, Error};

use crate::abi::c::ibv_device;
use crate::abi::{errno, reserve};

/// A device in the table.
#[repr(C)]
pub(crate) struct Known {
    c: ibv_device,
    /// The number of lists and open contexts that use the device.
    users: usize,
    device: Device,
}

/// A pointer to a device owned by the table.
struct Entry(*mut Known);

// SAFETY: the table's lock guards the mutable fields of a device.
unsafe impl Send for Entry {}

static TABLE: ForkLock<Vec<Entry>> = ForkLock::new(Vec::new());

/// Locks the table. In a child whose parent held the lock at the fork, the table starts empty; the
/// devices in the parent's lists stay allocated.
fn table() -> ForkGuard<'static, Vec<Entry>> {
    TABLE.lock_or(Vec::new)
}

/// Copies text into a C array, truncated to fit.
fn copy_text(to: &mut [c_char], text: &[u8]) {
    let len = text.len().min(to.len() - 1);
    for (to, byte) in to.iter_mut().zip(&text[..len]) {
        *to = *byte as c_char;
    }
}

/// Returns the library's device behind a pointer from a list.
///
/// # Safety
/// `device` must belong to a list that has not been freed, or to an open context.
pub(crate) unsafe fn known<'a>(device: *mut ibv_device) -> &'a Device {
    // SAFETY: the device is in use, so the table keeps it; this field never changes.
    unsafe { &(*device.cast::<Known>()).device }
}

impl Known {
    /// Boxes a device. As a separate function, it keeps the 1 KiB struct off the caller's stack.
    #[inline(never)]
    fn new(device: Device) -> *mut Self {
        let info = device.info();
        // SAFETY: zeroed integers, arrays and null pointers are valid.
        let mut c: ibv_device = unsafe { core::mem::zeroed() };
        c.node_type = info.node_type().0 as _;
        c.transport_type = info.transport_type().0 as _;
        copy_text(&mut c.name, info.name().as_bytes());
        let own = info.own().map(|_| own_paths(info));
        let (dev_name, dev_path, ibdev_path) = match &own {
            None => (info.dev_name(), &*Path::new(CLASS).join(info.dev_name()), info.ibdev_path()),
            Some(Some(own)) => (&*own.dev_name, &*own.dev_path, &*own.ibdev_path),
            Some(None) => (info.name(), Path::new(""), Path::new("")),
        };
        copy_text(&mut c.dev_name, dev_name.as_bytes());
        copy_text(&mut c.dev_path, dev_path.as_os_str().as_bytes());
        copy_text(&mut c.ibdev_path, ibdev_path.as_os_str().as_bytes());
        Box::into_raw(Box::new(Self { c, users: 0, device }))
    }
}

/// Returns the files of a soft device, either presented by `verbs-run` or located in this process's
/// folder. Returns `None` if the files cannot be created; the device works without them.
fn own_paths(info: &DeviceInfo) -> Option<DevicePaths> {
    if let Some(presented) = sysfs::presented(info) {
        return Some(presented);
    }
    static TREE: ForkLock<Option<(u32, Tree)>> = ForkLock::new(None);
    let mut tree = TREE.lock_or(|| None);
    let process = std::process::id();
    if tree.as_ref().is_none_or(|(owner, _)| *owner != process) {
        // A forked child leaves its parent's folder unchanged.
        core::mem::forget(tree.take());
        match Tree::create() {
            Ok(new) => *tree = Some((process, new)),
            Err(errno) => errno::log(&format_args!("no folder for the files of {}: {errno}", info.name())),
        }
    }
    let (_, tree) = tree.as_mut()?;
    let paths = tree.add(info);
    if let Err(errno) = &paths {
        errno::log(&format_args!("the files of {} in {}: {errno}", info.name(), tree.root().display()));
    }
    paths.ok()
}

/// Returns whether a device in the table equals a device from another part of the process.
///
/// # Safety
/// `known` must belong to a list that has not been freed, or to an open context.
pub(crate) unsafe fn is(known: *mut ibv_device, device: &Device) -> bool {
    // SAFETY: guaranteed by the caller.
    let known = unsafe { self::known(known) };
    // Soft devices of the same name are equal, even if another part of the process has other values
    // for them.
    (known.name(), known.guid(), known.index()) == (device.name(), device.guid(), device.index())
}

/// Returns the name of a device's driver.
///
/// # Safety
/// `device` must belong to a list that has not been freed, or to an open context.
pub(crate) unsafe fn driver_name(device: *mut ibv_device) -> &'static str {
    // SAFETY: guaranteed by the caller.
    unsafe { known(device) }.driver().name
}

/// Increments the number of users of a device.
///
/// # Safety
/// `device` must be in use.
pub(crate) unsafe fn hold(device: *mut ibv_device) {
    let _table = table();
    // SAFETY: the device is in use; the lock guards the count.
    unsafe { (*device.cast::<Known>()).users += 1 }
}

/// Decrements the number of users of a device. A device without users stays in the table until the
/// next [`list`] call.
///
/// # Safety
/// `device` must be in use; each user must be removed only once.
pub(crate) unsafe fn release(device: *mut ibv_device) {
    let _table = table();
    // SAFETY: as above.
    unsafe { (*device.cast::<Known>()).users -= 1 }
}

/// The sysfs directory of uverbs devices.
const CLASS: &str = "/sys/class/infiniband_verbs";

/// Lists the devices and adds a user to each.
///
/// # Errors
/// `ENOMEM` when memory is short; `ENOSYS` if the kernel lacks RDMA; any error from the search.
pub(crate) fn list() -> Result<Vec<*mut ibv_device>, Error> {
    if !reserve::has_room() {
        return Err(errno::short_of_memory("get_device_list"));
    }
    let found = DeviceList::with_drivers(&[])?;
    for skipped in found.skipped() {
        errno::log(skipped);
    }
    // A C program sees only the errno. An explicitly requested device that failed says more than a
    // kernel without devices.
    if let Some(missing) = found.skipped().iter().find(|skipped| skipped.reason.was_asked_for())
        && found.is_empty()
    {
        let reason = "a device that a variable names is missing";
        return Err(errno::refused("get_device_list", missing.reason.errno(), reason));
    }
    // rdma-core returns this errno for a kernel without RDMA; programs distinguish it from an empty
    // list.
    if found.is_empty() && !Path::new(CLASS).exists() {
        let reason = "the kernel has no RDMA devices, and VERBS_SOFT names none";
        return Err(errno::refused("get_device_list", Errno::NOSYS, reason));
    }
    let mut table = table();
    let mut listed = Vec::with_capacity(found.len());
    for device in found {
        // SAFETY: devices in the table are live.
        let same = |entry: &&Entry| unsafe { (*entry.0).device.info() == device.info() };
        let known = match table.iter().find(same) {
            Some(entry) => entry.0,
            None => {
                let known = Known::new(device);
                table.push(Entry(known));
                known
            }
        };
        // SAFETY: as above.
        unsafe { (*known).users += 1 };
        listed.push(known.cast());
    }
    table.retain(|entry| {
        // SAFETY: devices in the table are live. If a device has no users, no list contains its
        // pointer.
        let is_used = unsafe { (*entry.0).users > 0 };
        if !is_used {
            // SAFETY: as above; the entry is removed from the table.
            drop(unsafe { Box::from_raw(entry.0) });
        }
        is_used
    });
    Ok(listed)
}

/// `ibv_get_device_list(3)`.
///
/// # Safety
/// `num_devices` must be null or point to an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    if !num_devices.is_null() {
        // SAFETY: the caller passes a pointer to an int.
        unsafe { *num_devices = 0 };
    }
    let devices = match list() {
        Ok(devices) => devices,
        Err(error) => return errno::fail_null(&error),
    };
    let Some(array) = list_to_c(&devices) else {
        // SAFETY: `list` counted each device.
        devices.iter().for_each(|device| unsafe { release(*device) });
        return errno::fail_null(&errno::short_of_memory("get_device_list"));
    };
    if !num_devices.is_null() {
        // SAFETY: the caller passes a pointer to an int.
        unsafe { *num_devices = devices.len() as c_int };
    }
    array
}

/// `ibv_free_device_list(3)`.
///
/// # Safety
/// `list` must come from [`ibv_get_device_list`] and must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: guaranteed by the caller; each device of the list was counted.
    unsafe { free_list(list, |device| release(device)) }
}

/// Copies pointers into a null-terminated C list. Returns `None` if out of memory.
pub(crate) fn list_to_c<T>(items: &[*mut T]) -> Option<*mut *mut T> {
    // SAFETY: `calloc` returns zeroed memory of that many pointers, or null.
    let array: *mut *mut T = unsafe { libc::calloc(items.len() + 1, size_of::<*mut T>()) }.cast();
    if array.is_null() {
        return None;
    }
    // SAFETY: the array has space for them and for the terminating null.
    unsafe { ptr::copy_nonoverlapping(items.as_ptr(), array, items.len()) };
    Some(array)
}

/// Releases each item of a C list and frees the list. Does nothing for null.
///
/// # Safety
/// `list` must be null, or come from [`list_to_c`]; it must not be used afterwards.
pub(crate) unsafe fn free_list<T>(list: *mut *mut T, release: impl Fn(*mut T)) {
    if list.is_null() {
        return;
    }
    let mut at = list;
    // SAFETY: guaranteed by the caller; a null terminates the list.
    unsafe {
        while !(*at).is_null() {
            release(*at);
            at = at.add(1);
        }
        libc::free(list.cast());
    }
}

/// `ibv_get_device_name(3)`.
///
/// # Safety
/// `device` must be a device from a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    if device.is_null() {
        return errno::fail_null::<c_char>(&errno::null("get_device_name", "device"));
    }
    // SAFETY: the device is live.
    unsafe { (&raw const (*device).name).cast() }
}

/// `ibv_get_device_guid(3)`: returns the GUID in network byte order.
///
/// # Safety
/// `device` must be a device from a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    if device.is_null() {
        errno::fail(&errno::null("get_device_guid", "device"));
        return 0;
    }
    // SAFETY: the device is live.
    unsafe { known(device) }.guid().0.to_be()
}

/// `ibv_get_device_index(3)`: returns -1 if the device has no kernel index.
///
/// # Safety
/// `device` must be a device from a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    errno::not_null_or_minus_one!(device);
    // SAFETY: the device is live.
    unsafe { known(device) }.index().map_or(-1, |index| index as c_int)
}

/// `ibv_register_driver`: a libibverbs 1.0 function for C providers. As in rdma-core, it does
/// nothing.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_register_driver() {}
