//! The verbs devices behind ids: found from the connection manager's report, opened once for all
//! ids of the process.
//!
//! ```text
//!   QUERY ─► node GUID, index ─► the device list ─► Device
//!                                                   └─► Context, shared while an id has it
//! ```
//!
//! As in librdmacm, a device is identified by its index, or by its GUID if the kernel or netlink
//! reports no index. A soft device has no index. A device created by the program appears in no list
//! and is found among the process's devices. A device is closed when the last id and the last
//! handle are dropped; librdmacm keeps devices open until the process ends.

#[cfg(not(feature = "soft"))]
mod no_soft;

use std::sync::{Arc, Weak};

#[cfg(not(feature = "soft"))]
pub(crate) use no_soft::{Port, verbs_device};
#[cfg(feature = "soft")]
pub(crate) use provider_soft::cm::Port;

use verbs::{Cause, Context, Device, Errno, Error, Result, devices};
use verbs_core::fork::{ForkLock, current_generation};

use crate::cmd::query::DeviceKey;

/// An open device, with the limits for connections.
#[derive(Debug)]
pub(crate) struct OpenDevice {
    pub(crate) context: Context,
    pub(crate) limits: Limits,
    /// The generation of the process that opened the device. A forked child's soft device has the
    /// same GUID, but the child cannot use its parent's context.
    process: u32,
}

/// The maximum numbers of RDMA reads and atomics on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The maximum number of the peer's reads and atomics that a queue pair executes at a time.
    pub(crate) responder_resources: u8,
    /// The maximum number of reads and atomics that a queue pair may have outstanding.
    pub(crate) initiator_depth: u8,
}

impl Limits {
    /// Returns the limits of a device.
    ///
    /// # Errors
    /// Same as [`Context::query_device`].
    pub(crate) fn from_context(context: &Context) -> Result<Self> {
        let attr = context.query_device()?;
        let depth = |depth: u32| u8::try_from(depth).unwrap_or(u8::MAX);
        Ok(Self {
            responder_resources: depth(attr.max_qp_rd_atom),
            initiator_depth: depth(attr.max_qp_init_rd_atom),
        })
    }
}

/// Returns the verbs device of a soft device's port.
#[cfg(feature = "soft")]
pub(crate) fn verbs_device(port: &Port) -> Device {
    verbs::soft::device_of(port.device())
}

/// Finds the device of an id.
///
/// # Errors
/// `ENODEV` with [`Cause::NoDevice`] if no provider supports the device; the errors of [`devices`].
pub(crate) fn find(key: DeviceKey) -> Result<Device> {
    // A soft device created by the program appears in no list.
    if key.index.is_none()
        && let Some(port) = Port::all().into_iter().find(|port| port.node_guid() == key.guid)
    {
        return Ok(verbs_device(&port));
    }
    let list = devices()?;
    let found = list.iter().find(|device| is_it(key, device.index(), device.guid())).cloned();
    found.ok_or_else(|| {
        let present: Vec<_> = list.iter().map(Device::name).collect();
        let skipped: Vec<_> = list.skipped().iter().map(ToString::to_string).collect();
        Error::new("open_device", "", Errno::NODEV).because(Cause::NoDevice {
            name: format!("of the connection (node GUID {})", key.guid).into(),
            present: present.join(", ").into(),
            skipped: skipped.join("; ").into(),
            try_soft: false,
        })
    })
}

/// Returns the keys of all kernel devices.
///
/// # Errors
/// Same as [`devices`].
pub(crate) fn keys_of_kernel() -> Result<Vec<DeviceKey>> {
    let ports = Port::all();
    let is_soft = |device: &&Device| ports.iter().any(|port| port.node_guid() == device.guid());
    let key = |device: &Device| DeviceKey { guid: device.guid(), index: device.index() };
    let list = devices()?;
    Ok(list.iter().filter(|device| !is_soft(device)).map(key).collect())
}

/// Returns whether a device of the list matches the connection manager's report.
fn is_it(key: DeviceKey, index: Option<u32>, guid: verbs::Guid) -> bool {
    let same_index = key.index.is_none() || index.is_none() || key.index == index;
    guid == key.guid && same_index
}

/// Opens a device, or returns the open device that other ids use.
///
/// # Errors
/// Same as [`Device::open`] and [`Context::query_device`].
pub(crate) fn open(key: DeviceKey, device: &Device) -> Result<Arc<OpenDevice>> {
    static OPEN: ForkLock<Vec<(DeviceKey, Weak<OpenDevice>)>> = ForkLock::new(Vec::new());
    // The list stays locked while the device opens, so that two threads do not open it twice.
    let mut open = OPEN.lock_or(Vec::new);
    open.retain(|(_, device)| device.strong_count() > 0);
    let process = current_generation();
    let known = open.iter().filter(|(known, _)| is_it(key, known.index, known.guid));
    if let Some(shared) =
        known.filter_map(|(_, device)| device.upgrade()).find(|device| device.process == process)
    {
        return Ok(shared);
    }
    let context = device.open()?;
    let limits = Limits::from_context(&context)?;
    let opened = Arc::new(OpenDevice { context, limits, process });
    open.push((key, Arc::downgrade(&opened)));
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use verbs::Guid;

    use super::*;

    #[test]
    fn a_device_is_matched_by_its_guid_and_by_its_index_where_both_sides_have_one() {
        let key = |index| DeviceKey { guid: Guid(7), index };
        assert!(is_it(key(Some(3)), Some(3), Guid(7)));
        assert!(!is_it(key(Some(3)), Some(4), Guid(7)));
        assert!(!is_it(key(Some(3)), Some(3), Guid(8)));
        assert!(is_it(key(None), Some(4), Guid(7)) && is_it(key(Some(3)), None, Guid(7)));
    }

    #[test]
    fn a_device_that_no_list_has_is_named_by_its_guid() {
        let error = find(DeviceKey { guid: Guid(0x5054_00ff_fe12_3456), index: Some(4000) }).unwrap_err();
        assert_eq!(error.errno, Errno::NODEV);
        assert!(error.to_string().contains("5054:00ff:fe12:3456"), "{error}");
    }
}
