//! [`Driver`]: how a provider says which devices are its own.

use core::fmt;

use super::{ContextOps, Erased, Provider};
use crate::Result;
use crate::discovery::{DeviceInfo, Skipped};

/// A context that a driver opened: [erased](super::erase), and on request static again.
pub type OpenedContext = Box<dyn ContextOps<Erased>>;

/// A provider's registration: constant data, found by being named.
///
/// Drivers are tried in order: those given in the call, those that the process registered, those
/// built in by feature.
#[derive(Clone, Copy)]
pub struct Driver {
    /// The provider's name (`rxe`).
    pub name: &'static str,
    /// The kernel driver it speaks to (`enum rdma_driver_id`), or a number that no kernel driver
    /// has.
    pub driver_id: u32,
    /// The oldest provider ABI it speaks.
    pub min_abi: u32,
    /// The newest provider ABI it speaks.
    pub max_abi: u32,
    /// Returns whether a device is the provider's, where the kernel did not report its driver id.
    pub matches: fn(&DeviceInfo) -> bool,
    /// The devices that the provider brings by itself, with no kernel driver behind them, and those
    /// that it was asked for and could not have. `Vec::new` for a provider of the kernel's devices.
    ///
    /// Every device list asks, so this answers the same devices each time ([`DeviceInfo::own`] is
    /// equal), and brings none that nobody asked for.
    pub devices: fn() -> Vec<Result<DeviceInfo, Skipped>>,
    /// Opens a device. Opening one that was brought gives another context of the same device each
    /// time.
    pub open: fn(&DeviceInfo) -> Result<OpenedContext>,
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
