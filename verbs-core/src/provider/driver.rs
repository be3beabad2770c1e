//! [`Driver`]: the registration of a provider. It determines which devices belong to the provider.

use core::fmt;
use std::os::fd::OwnedFd;

use super::{ContextOps, Erased, Provider};
use crate::discovery::{DeviceInfo, SkipReason, Skipped};
use crate::errno::Errno;
use crate::error::{Cause, Error, Result};

/// A context opened by a driver: [erased](super::erase), until a downcast restores its static type.
pub type OpenedContext = Box<dyn ContextOps<Erased>>;

/// A provider's registration, as constant data that a program can name.
///
/// Drivers are tried in order: first those passed to the call, then those registered by the
/// process, then those built in by feature.
///
/// # Versions of the kernel's ABI
///
/// The library, the provider and the kernel may differ in age, notably in containers:
///
/// - A version within `min_abi..=max_abi`: the device can be opened.
/// - Another version: the list skips the device, and opening or importing it fails with `ENODEV`
///   and an error that names the version and the range.
/// - A reply with more bytes than the provider expects: the additional bytes are ignored.
/// - A reply with fewer bytes: the missing bytes read as zero.
/// - Bits and numbers unknown to the provider are data: they are kept where the API exposes them.
///
/// uverbs is supported in versions 3 to 6, and `rdma_cm` in versions 3 and 4; other versions fail
/// with `ENOSYS` and an error that names the version.
#[derive(Clone, Copy)]
pub struct Driver {
    /// The provider's name (`rxe`).
    pub name: &'static str,
    /// The id of the provider's kernel driver (`enum rdma_driver_id`), or an id that no kernel
    /// driver uses.
    pub driver_id: u32,
    /// The oldest supported version of the kernel driver's ABI.
    pub min_abi: u32,
    /// The newest supported version of the kernel driver's ABI.
    pub max_abi: u32,
    /// Returns whether a device belongs to the provider; used if the kernel did not report the
    /// driver id.
    pub matches: fn(&DeviceInfo) -> bool,
    /// Returns the provider's own devices, which have no kernel driver, and the requested devices
    /// that cannot be created. Providers of kernel devices use `Vec::new`.
    ///
    /// This function is called for every device list, so it must return the same devices each time
    /// (with equal [`DeviceInfo::own`]), and only devices requested by the configuration.
    pub devices: fn() -> Vec<Result<DeviceInfo, Skipped>>,
    /// Opens a device. For a provider's own device, each call returns a new context of the same
    /// device.
    pub open: fn(&DeviceInfo) -> Result<OpenedContext>,
    /// Shares the context of a device file that another owner opened; `None` if the provider cannot
    /// share contexts.
    pub import: Option<fn(&DeviceInfo, OwnedFd) -> Result<OpenedContext>>,
}

impl Driver {
    /// Checks that the provider supports the ABI version of a device's kernel driver.
    ///
    /// # Errors
    /// `ENODEV`, with a sentence that names the version and the provider's range.
    pub fn check_abi(&self, verb: &'static str, device: &DeviceInfo) -> Result<()> {
        let (abi, provider, min, max) = (device.abi_version(), self.name, self.min_abi, self.max_abi);
        if (min..=max).contains(&abi) {
            return Ok(());
        }
        let reason = SkipReason::AbiOutOfRange { abi, provider, min, max };
        let why = Skipped { name: device.name().to_owned(), reason }.to_string();
        Err(Error::new(verb, device.name(), Errno::NODEV).because(Cause::Other { reason: why.into() }))
    }

    /// Returns whether a device belongs to the provider, regardless of its ABI version.
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

/// A provider that a program can name. The type's devices open without erasure.
pub trait NamedProvider: Provider<Context: Sized> {
    /// The provider's registration.
    const DRIVER: Driver;

    /// Opens a device.
    ///
    /// # Errors
    /// `ENODEV` for a device of another provider, or with an unsupported ABI
    /// ([`Driver::check_abi`]); any errno from opening its file or from the kernel.
    fn open(device: &DeviceInfo) -> Result<Self::Context>;
}
