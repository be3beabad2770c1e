//! [`DeviceList`] and [`Device`]: the usable devices, their drivers, and the skipped devices with
//! the reason for each.
//!
//! | file | content |
//! |---|---|
//! | [`context`] | an open device: its queries; the parent of all its objects |
//! | [`event`] | the asynchronous events of a device |
//! | [`event_file`] | event files: reading records and waiting for them |
//! | [`pd`] | protection domains |
//! | [`td`] | thread domains and parent domains |
//! | [`ah`] | address handles |
//! | [`gid`] | the choice of a GID |
//! | [`fork`] | protection of registered memory from forks |

pub(crate) mod ah;
pub(crate) mod context;
pub(crate) mod event;
pub(crate) mod event_file;
pub(crate) mod fork;
pub(crate) mod gid;
pub(crate) mod pd;
pub(crate) mod td;

use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use verbs_core::discovery::{
    self, DevNum, DeviceInfo, Found, NetlinkError, NodeType, SkipReason, Skipped, Source, TransportType,
};
use verbs_core::fork::ForkRwLock;
use verbs_core::provider::{Driver, NamedProvider};
use verbs_core::types::Guid;
use verbs_core::{Cause, Errno, Error, Result, room};

use crate::device::context::Context;

/// Lists the RDMA devices of this machine that have a provider.
///
/// A machine without RDMA yields an empty list, not an error.
///
/// # Errors
/// - [`Cause::File`] with the errno from reading sysfs, if netlink could not list the devices.
/// - `ENOSYS` for an unknown uverbs ABI; the error states the kernel's version and the supported
///   one.
///
/// # References
/// `ibv_get_device_list(3)`
#[doc(alias = "ibv_get_device_list")]
pub fn devices() -> Result<DeviceList> {
    DeviceList::with_drivers(&[])
}

/// Returns a context that shares a device file opened and sent by another process or library
/// ([`Context::export_device`]). Import the other owner's objects by their handles
/// ([`Context::import_pd`]).
///
/// Takes ownership of the descriptor. The file is identified by its device number, so files of
/// other kinds are rejected.
///
/// # Errors
/// - `EOPNOTSUPP` if the provider or the kernel driver does not support sharing; rxe does not.
/// - `ENODEV` with [`Cause::Other`] for a file that belongs to no listed device.
/// - The errors of [`devices`]; any other errno the kernel returns.
///
/// # References
/// `ibv_import_device(3)`
#[doc(alias = "ibv_import_device")]
pub fn import_device(file: OwnedFd) -> Result<Context> {
    const VERB: &str = "import_device";
    let list = devices()?;
    let metadata =
        File::from(file.try_clone().map_err(|io| Error::new(VERB, "", Errno::from_io(&io)))?).metadata();
    let metadata = metadata.map_err(|io| Error::new(VERB, "", Errno::from_io(&io)))?;
    let dev = Some(DevNum::from_rdev(metadata.rdev()));
    let of_file = |device: &&Device| metadata.file_type().is_char_device() && device.info.dev() == dev;
    let device = list.iter().find(of_file).ok_or_else(|| {
        let present: Vec<_> =
            list.iter().filter(|device| device.info.dev().is_some()).map(Device::name).collect();
        let reason = match &present[..] {
            [] => "the file is that of no RDMA device: this machine has none".into(),
            present => format!("the file is that of none of the RDMA devices: {}", present.join(", ")),
        };
        Error::new(VERB, "", Errno::NODEV).because(Cause::Other { reason: reason.into() })
    })?;
    match device.driver.import {
        Some(import) => import(&device.info, file).map(Context::from_opened),
        None => Err(Error::new(VERB, device.name(), Errno::OPNOTSUPP)),
    }
}

/// Adds a provider to all device lists that this process creates from now on.
///
/// Providers passed to [`DeviceList::with_drivers`] come first, then registered providers in the
/// order of registration, then built-in providers.
pub fn register(driver: Driver) {
    // A forked child registers no provider if its parent was registering one at the fork.
    if let Ok(mut registered) = REGISTERED.write() {
        registered.push(driver);
    }
}

/// The usable devices and the skipped devices.
#[doc(alias = "ibv_get_device_list")]
#[doc(alias = "ibv_free_device_list")]
#[derive(Clone, Debug)]
pub struct DeviceList {
    devices: Vec<Device>,
    skipped: Vec<Skipped>,
    source: Source,
    netlink_error: Option<NetlinkError>,
}

impl DeviceList {
    /// Lists devices as [`devices`] does, but tries the providers in `drivers` before all others.
    ///
    /// # Errors
    /// Same as [`devices`].
    pub fn with_drivers(drivers: &[Driver]) -> Result<Self> {
        discovery::discover().map(|found| Self::from_found(found, drivers))
    }

    /// Returns a list of the devices that the caller has discovered, followed by the providers' own
    /// devices ([`Driver::devices`]).
    pub fn from_found(found: Found, drivers: &[Driver]) -> Self {
        let mut all = drivers.to_vec();
        if let Ok(registered) = REGISTERED.read() {
            all.extend_from_slice(&registered);
        }
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

    /// Adds a device unless the list already contains it: a driver that is both passed by the
    /// caller and built in supplies its devices twice.
    fn add_brought(&mut self, driver: Driver, brought: Result<DeviceInfo, Skipped>) {
        match brought {
            Ok(info) if self.devices.iter().any(|device| device.info == info) => {}
            Ok(info) => self.devices.push(Device { info, driver }),
            Err(skipped) if self.skipped.contains(&skipped) => {}
            Err(skipped) => self.skipped.push(skipped),
        }
    }

    /// Appends a device, such as one that a provider made for this program, unless the list already
    /// contains it.
    pub fn push(&mut self, device: Device) {
        self.add_brought(device.driver, Ok(device.info));
    }

    /// Returns the device with this name.
    ///
    /// # Errors
    /// `ENODEV` with [`Cause::NoDevice`], which lists the usable devices, and the skipped devices
    /// with the reasons.
    pub fn find(&self, name: &str) -> Result<Device> {
        self.iter().find(|device| device.name() == name).cloned().ok_or_else(|| self.no_device(name))
    }

    /// Returns the first device.
    ///
    /// # Errors
    /// `ENODEV` with [`Cause::NoDevice`] for an empty list, with the reasons why devices were
    /// skipped.
    pub fn first(&self) -> Result<Device> {
        self.devices.first().cloned().ok_or_else(|| self.no_device(""))
    }

    /// Returns the devices that were found but skipped, with the reasons.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// Returns the source of the list: netlink, sysfs, or both.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Returns the reason why netlink did not list the devices; `None` if netlink listed them.
    pub fn netlink_error(&self) -> Option<&NetlinkError> {
        self.netlink_error.as_ref()
    }

    /// Returns the number of usable devices in the list.
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// Returns whether the list has no usable device.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Iterates over the kernel's devices in the kernel's order, then over the providers' own
    /// devices.
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

/// A device that can be opened. It may have been removed since the list was made.
#[doc(alias = "ibv_device")]
#[derive(Clone)]
pub struct Device {
    info: DeviceInfo,
    driver: Driver,
}

impl Device {
    /// Wraps a device supplied by a provider.
    #[cfg(feature = "soft")]
    pub(crate) fn brought<P: NamedProvider>(info: DeviceInfo) -> Self {
        Self { info, driver: P::DRIVER }
    }

    /// Returns the device's name (`rxe0`).
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> &str {
        self.info.name()
    }

    /// Returns the device's node GUID.
    #[doc(alias = "ibv_get_device_guid")]
    pub fn guid(&self) -> Guid {
        self.info.node_guid()
    }

    /// Returns the kernel's index of the device; `None` where netlink did not report one.
    #[doc(alias = "ibv_get_device_index")]
    pub fn index(&self) -> Option<u32> {
        self.info.index()
    }

    /// Returns the device's node type.
    pub fn node_type(&self) -> NodeType {
        self.info.node_type()
    }

    /// Returns the device's transport protocol.
    pub fn transport_type(&self) -> TransportType {
        self.info.transport_type()
    }

    /// Returns everything that discovery found out about the device.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Returns the provider of the device.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Opens the device.
    ///
    /// # Errors
    /// - [`Cause::File`] if its file cannot be opened: `EACCES` without permission, `ENOENT` or
    ///   `ENXIO` if the file is missing or the device was removed since the list was made.
    /// - `ENODEV` with [`Cause::Forked`] in a forked child, for a soft device of the parent
    ///   process.
    /// - Any errno the kernel returns for the first commands, notably `ENOMEM` and `EMFILE`.
    ///
    /// # References
    /// `ibv_open_device(3)`
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context> {
        self.room()?;
        (self.driver.open)(&self.info).map(Context::from_opened)
    }

    /// Checks that memory is available for the small allocations of opening a device.
    ///
    /// # Errors
    /// `ENOMEM` with [`Cause::Allocation`].
    fn room(&self) -> Result<()> {
        room::check(room::CALL).map_err(|errno| {
            let cause = Cause::Allocation { bytes: room::CALL as u64 };
            Error::new("open_device", self.name(), errno).because(cause)
        })
    }

    /// Opens the device with its provider known at compile time. Its data path needs no indirect
    /// calls.
    ///
    /// # Errors
    /// `ENODEV` with [`Cause::NoDevice`] for a device of another provider, or with an ABI unknown
    /// to this provider; otherwise as [`open`](Self::open).
    #[doc(alias = "ibv_open_device")]
    pub fn open_as<P: NamedProvider>(&self) -> Result<Context<P>> {
        choose(&self.info, &[P::DRIVER]).map_err(|reason| {
            let why = match self.info.own() {
                None => Skipped { name: self.name().to_owned(), reason }.to_string(),
                // A device without a kernel driver belongs to the provider that supplied it.
                Some(_) => format!("{}: the provider {} brings it", self.name(), self.driver.name),
            };
            Error::new("open_device", self.name(), Errno::NODEV).because(Cause::NoDevice {
                name: format!("{} of the provider {}", self.name(), P::DRIVER.name).into(),
                present: Box::default(),
                skipped: why.into(),
                try_soft: false,
            })
        })?;
        self.room()?;
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

/// Returns the first driver that matches the device and supports its ABI.
///
/// # Errors
/// Returns the reason why no driver matches.
fn choose(info: &DeviceInfo, drivers: &[Driver]) -> Result<Driver, SkipReason> {
    let mut reason = SkipReason::NoProvider { driver_id: info.driver_id() };
    for driver in drivers {
        if !driver.has(info) {
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

/// The registered providers. Only [`register`] writes the list, so a forked child can use it unless
/// its parent was in that call at the fork.
static REGISTERED: ForkRwLock<Vec<Driver>> = ForkRwLock::new(Vec::new());

const BUILT_IN: &[Driver] = &[
    #[cfg(feature = "mlx5")]
    provider_mlx5::Mlx5::DRIVER,
    #[cfg(feature = "rxe")]
    provider_rxe::Rxe::DRIVER,
    #[cfg(feature = "soft")]
    provider_soft::Soft::DRIVER,
];
