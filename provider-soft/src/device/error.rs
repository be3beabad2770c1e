//! Errors common to all objects: rejections by the engine and by checks, with the kernel's errnos.

use roce::engine::Refused;
use verbs_core::{Cause, Errno, Error, Result};

use crate::device::device_core::DeviceCore;
use crate::device::limits;
use crate::device::state::DeviceState;
use crate::sync::ring::NoMemory;

/// Destroys an object and returns the result of `destroy`. Does nothing in a forked child, because
/// the object belongs to the parent process.
///
/// # Errors
/// The engine's [error](refusal); notably `EBUSY` while another object uses this one.
pub(crate) fn destroyed<T: Default>(
    device: &DeviceState,
    verb: &'static str,
    destroy: impl FnOnce(&mut DeviceCore) -> Result<T, Refused>,
) -> Result<T> {
    if device.is_forked() {
        return Ok(T::default());
    }
    device.control(verb, |core, _| destroy(core).map_err(|refused| refusal(device, verb, refused)))
}

/// Converts the engine's rejection into an error with the kernel's errno.
pub(crate) fn refusal(device: &DeviceState, verb: &'static str, refused: Refused) -> Error {
    let (errno, cause) = match refused {
        Refused::NoRoom => (Errno::NOMEM, limits::all_in_use(verb)),
        Refused::NoMemory { bytes } => (Errno::NOMEM, Cause::Allocation { bytes }),
        Refused::NoNumbers => (Errno::IO, Cause::Unknown),
        Refused::Busy => (Errno::BUSY, Cause::Unknown),
        // Covers `NoSuchObject`, `Transition` and `Invalid`.
        _ => (Errno::INVAL, Cause::Unknown),
    };
    device.error(verb, errno).because(cause)
}

/// Returns the error for a failed allocation of `bytes` bytes.
pub(crate) fn allocation(device: &DeviceState, verb: &'static str, NoMemory { bytes }: NoMemory) -> Error {
    device.error(verb, Errno::NOMEM).because(Cause::Allocation { bytes })
}

/// Returns the error for an object of another device.
pub(crate) fn foreign(device: &DeviceState, verb: &'static str, what: &'static str) -> Error {
    device.error(verb, Errno::INVAL).because(Cause::Foreign { what })
}

/// Checks a port number.
///
/// # Errors
/// `EINVAL` with [`Cause::Limit`] unless `port_num` is the only port.
pub(crate) fn check_port(device: &DeviceState, verb: &'static str, port_num: u8) -> Result<()> {
    let port = limits::PORT.into();
    within(device, verb, "port_num", port_num.into(), port, port)
}

/// Checks a value against a limit.
///
/// # Errors
/// `EINVAL` with [`Cause::Limit`] for a value outside `min..=max`.
pub(crate) fn within(
    device: &DeviceState,
    verb: &'static str,
    name: &'static str,
    asked: u64,
    min: u64,
    max: u64,
) -> Result<(), Error> {
    if (min..=max).contains(&asked) {
        return Ok(());
    }
    Err(device.error(verb, Errno::INVAL).because(Cause::Limit { name, asked, min, max }))
}
