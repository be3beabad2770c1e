//! [`DeviceList`] and [`Device`]: the devices that can be opened, those that cannot and why, and
//! their drivers.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use verbs_core::discovery::{
    self, DeviceInfo, Found, NetlinkError, NodeType, SkipReason, Skipped, Source, TransportType,
};
use verbs_core::provider::{Driver, NamedProvider};
use verbs_core::types::Guid;
use verbs_core::{Cause, Errno, Error, Result};

use crate::Context;

/// The RDMA devices of this machine that a provider drives.
///
/// A machine without RDMA gives an empty list, not an error.
///
/// # Errors
/// Any errno of reading sysfs, where netlink could not list the devices; [`Cause::KernelLacks`] for
/// a uverbs ABI that this library does not know.
///
/// # References
/// `ibv_get_device_list(3)`
#[doc(alias = "ibv_get_device_list")]
pub fn devices() -> Result<DeviceList> {
    DeviceList::with_drivers(&[])
}

/// Adds a provider for this process: it takes part in all lists made from now on.
///
/// Providers named in the call ([`DeviceList::with_drivers`]) come first, then those registered
/// here in their order, then those built in by feature.
pub fn register(driver: Driver) {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).push(driver);
}

/// The devices that can be opened, and those that cannot.
#[derive(Clone, Debug)]
pub struct DeviceList {
    devices: Vec<Device>,
    skipped: Vec<Skipped>,
    source: Source,
    netlink_error: Option<NetlinkError>,
}

impl DeviceList {
    /// As [`devices`], with providers that come before all others.
    ///
    /// # Errors
    /// As [`devices`].
    pub fn with_drivers(drivers: &[Driver]) -> Result<Self> {
        discovery::discover().map(|found| Self::from_found(found, drivers))
    }

    /// As [`with_drivers`](Self::with_drivers), for devices that were found in another way. The
    /// devices that providers bring by themselves ([`Driver::devices`]) follow.
    pub fn from_found(found: Found, drivers: &[Driver]) -> Self {
        let mut all = drivers.to_vec();
        all.extend_from_slice(&REGISTERED.lock().unwrap_or_else(PoisonError::into_inner));
        all.extend_from_slice(BUILT_IN);
        let mut list = Self {
            devices: Vec::new(),
            skipped: found.skipped,
            source: found.source,
            netlink_error: found.netlink_error,
        };
        for info in found.devices {
            match choose(&info, &all) {
                Ok(driver) => list.devices.push(Device { info, driver }),
                Err(reason) => list.skipped.push(Skipped { name: info.name().to_owned(), reason }),
            }
        }
        for driver in all {
            for brought in (driver.devices)() {
                list.add_brought(driver, brought);
            }
        }
        list
    }

    /// A driver that was given twice, in the call and built in, brings its devices once.
    fn add_brought(&mut self, driver: Driver, brought: Result<DeviceInfo, Skipped>) {
        match brought {
            Ok(info) if self.devices.iter().any(|device| device.info == info) => {}
            Ok(info) => self.devices.push(Device { info, driver }),
            Err(skipped) if self.skipped.contains(&skipped) => {}
            Err(skipped) => self.skipped.push(skipped),
        }
    }

    /// Adds a device to the end, such as one that a provider made for this program. A device that
    /// is in the list already is not added again.
    pub fn push(&mut self, device: Device) {
        self.add_brought(device.driver, Ok(device.info));
    }

    /// The device with this name.
    ///
    /// # Errors
    /// [`Cause::NoDevice`] with the names of the devices that can be opened, and the reasons why
    /// others were left out.
    pub fn find(&self, name: &str) -> Result<Device> {
        self.iter().find(|device| device.name() == name).cloned().ok_or_else(|| self.no_device(name))
    }

    /// The first device.
    ///
    /// # Errors
    /// [`Cause::NoDevice`] with the reasons why devices were left out.
    pub fn first(&self) -> Result<Device> {
        self.devices.first().cloned().ok_or_else(|| self.no_device(""))
    }

    /// The devices that were found and left out, with reasons.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// The source of the list.
    pub fn source(&self) -> Source {
        self.source
    }

    /// The reason why netlink did not list the devices, if it did not.
    pub fn netlink_error(&self) -> Option<&NetlinkError> {
        self.netlink_error.as_ref()
    }

    /// The number of devices that can be opened.
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// Returns whether no device can be opened.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// The devices: the kernel's in its order, then those that providers bring.
    pub fn iter(&self) -> std::slice::Iter<'_, Device> {
        self.devices.iter()
    }

    fn no_device(&self, name: &str) -> Error {
        let present: Vec<_> = self.iter().map(Device::name).collect();
        let skipped: Vec<_> = self.skipped.iter().map(Skipped::to_string).collect();
        Error::new("open_device", "", Errno::NODEV).because(Cause::NoDevice {
            name: name.into(),
            present: present.join(", ").into(),
            skipped: skipped.join("; ").into(),
            try_soft: self.devices.is_empty() && cfg!(feature = "soft"),
        })
    }
}

impl IntoIterator for DeviceList {
    type Item = Device;
    type IntoIter = std::vec::IntoIter<Device>;

    fn into_iter(self) -> Self::IntoIter {
        self.devices.into_iter()
    }
}

impl<'a> IntoIterator for &'a DeviceList {
    type Item = &'a Device;
    type IntoIter = std::slice::Iter<'a, Device>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// A device that can be opened. It is not open yet, and may have gone since it was found.
#[doc(alias = "ibv_device")]
#[derive(Clone)]
pub struct Device {
    info: DeviceInfo,
    driver: Driver,
}

impl Device {
    /// A device that a provider brought.
    #[cfg(feature = "soft")]
    pub(crate) fn brought<P: NamedProvider>(info: DeviceInfo) -> Self {
        Self { info, driver: P::DRIVER }
    }

    /// Its name (`rxe0`).
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> &str {
        self.info.name()
    }

    /// Its node's identifier.
    #[doc(alias = "ibv_get_device_guid")]
    pub fn guid(&self) -> Guid {
        self.info.node_guid()
    }

    /// The kernel's index for it, where netlink reported it.
    #[doc(alias = "ibv_get_device_index")]
    pub fn index(&self) -> Option<u32> {
        self.info.index()
    }

    /// The kind of node.
    pub fn node_type(&self) -> NodeType {
        self.info.node_type()
    }

    /// The transport protocol.
    pub fn transport_type(&self) -> TransportType {
        self.info.transport_type()
    }

    /// Everything that discovery found out about it.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The provider that drives it.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`Cause::File`] where its file cannot be opened (`EACCES` without the right, `ENOENT`
    /// without the file); `ENODEV` for a device that has gone; any errno that the kernel returns
    /// for its first commands.
    ///
    /// # References
    /// `ibv_open_device(3)`
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context> {
        (self.driver.open)(&self.info).map(Context::from_opened)
    }

    /// Opens it with its provider named: its objects need no indirect calls.
    ///
    /// # Errors
    /// [`Cause::NoDevice`] for a device of another provider, or with an ABI that this one does not
    /// know; others as [`open`](Self::open).
    pub fn open_as<P: NamedProvider>(&self) -> Result<Context<P>> {
        choose(&self.info, &[P::DRIVER]).map_err(|reason| {
            let why = match self.info.own() {
                None => Skipped { name: self.name().to_owned(), reason }.to_string(),
                // A device without a kernel driver belongs to the provider that brought it.
                Some(_) => format!("{}: the provider {} brings it", self.name(), self.driver.name),
            };
            Error::new("open_device", self.name(), Errno::NODEV).because(Cause::NoDevice {
                name: format!("{} of the provider {}", self.name(), P::DRIVER.name).into(),
                present: Box::default(),
                skipped: why.into(),
                try_soft: false,
            })
        })?;
        P::open(&self.info).map(Context::from_raw)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name())
            .field("driver", &self.driver.name)
            .finish_non_exhaustive()
    }
}

/// The first driver that the device belongs to and that knows its ABI, or the reason why there is
/// none.
fn choose(info: &DeviceInfo, drivers: &[Driver]) -> Result<Driver, SkipReason> {
    let mut reason = SkipReason::NoProvider { driver_id: info.driver_id() };
    for driver in drivers {
        let is_its_own = match info.driver_id() {
            Some(id) => id.0 == driver.driver_id,
            None => (driver.matches)(info),
        };
        if !is_its_own {
            continue;
        }
        if (driver.min_abi..=driver.max_abi).contains(&info.abi_version()) {
            return Ok(*driver);
        }
        if let SkipReason::NoProvider { .. } = reason {
            reason = SkipReason::AbiOutOfRange {
                abi: info.abi_version(),
                provider: driver.name,
                min: driver.min_abi,
                max: driver.max_abi,
            };
        }
    }
    Err(reason)
}

static REGISTERED: Mutex<Vec<Driver>> = Mutex::new(Vec::new());

const BUILT_IN: &[Driver] = &[
    #[cfg(feature = "rxe")]
    provider_rxe::Rxe::DRIVER,
    #[cfg(feature = "soft")]
    provider_soft::Soft::DRIVER,
];
