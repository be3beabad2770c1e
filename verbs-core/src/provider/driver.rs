//! [`Driver`]: the registration of a provider, which determines its devices.

use core::fmt;
use std::os::fd::OwnedFd;

use super::{ContextOps, Erased, Provider};
use crate::Result;
use crate::discovery::{DeviceInfo, Skipped};

/// A context that a driver opened: [erased](super::erase), and static again after a downcast.
pub type OpenedContext = Box<dyn ContextOps<Erased>>;

/// A provider's registration, as constant data that a program names.
///
/// Drivers are tried in order: first those passed to the call, then those that the process
/// registered, then those built in by feature.
#[derive(Clone, Copy)]
pub struct Driver {
    /// The provider's name (`rxe`).
    pub name: &'static str,
    /// The number of its kernel driver (`enum rdma_driver_id`), or a number that no kernel driver
    /// has.
    pub driver_id: u32,
    /// The oldest provider ABI that it supports.
    pub min_abi: u32,
    /// The newest provider ABI that it supports.
    pub max_abi: u32,
    /// Returns whether a device is the provider's, where the kernel did not report its driver id.
    pub matches: fn(&DeviceInfo) -> bool,
    /// Returns the devices that the provider brings without a kernel driver, and those that the
    /// configuration requests but that cannot be made. `Vec::new` for a provider of kernel devices.
    ///
    /// Every device list calls it, so it returns the same devices each time ([`DeviceInfo::own`] is
    /// equal), and none that the configuration does not request.
    pub devices: fn() -> Vec<Result<DeviceInfo, Skipped>>,
    /// Opens a device. For a device that the provider brings, each call returns another context of
    /// the same device.
    pub open: fn(&DeviceInfo) -> Result<OpenedContext>,
    /// Shares the context of a device's file that another owner opened; `None` if the provider
    /// cannot.
    pub import: Option<fn(&DeviceInfo, OwnedFd) -> Result<OpenedContext>>,
}

impl Driver {
    /// Returns whether a device is the provider's, whatever its ABI.
    pub fn has(&self, device: &DeviceInfo) -> bool {
        match device.driver_id() {
            Some(id) => id.0 == self.driver_id,
            None => (self.matches)(device),
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Driver({}, driver id {}, ABI {}..={})",
            self.name, self.driver_id, self.min_abi, self.max_abi
        )
    }
}

/// A provider that a program can name: its devices open without erasure.
pub trait NamedProvider: Provider<Context: Sized> {
    /// Its registration.
    const DRIVER: Driver;

    /// Opens a device.
    ///
    /// # Errors
    /// `ENODEV` for a device of another provider; any errno that opening its file or the kernel
    /// returns.
    fn open(device: &DeviceInfo) -> Result<Self::Context>;
}
