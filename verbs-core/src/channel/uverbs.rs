//! [`Uverbs`]: a context's commands, and a record of the methods that the kernel lacks.
//!
//! # Safety
//! The constructors are unsafe, because a `Uverbs` is the right to command a context. Replies from
//! the device's file come from the kernel, as proven by [`FdChannel::open`]; for another channel,
//! the caller of [`Uverbs::new`] guarantees this.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU16, Ordering};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT,
    UVERBS_ATTR_WRITE_CMD, UVERBS_METHOD_INVOKE_WRITE, UVERBS_OBJECT_DEVICE,
};
use uverbs_abi::ib_user_verbs::IB_USER_VERBS_CMD_FLAG_EXTENDED;

use super::{Attr, Channel, FdChannel, Ioctl, Uhw, Value, WriteCmd, diagnosis};
use crate::discovery::DeviceInfo;
use crate::errno::Errno;
use crate::error::{Cause, Error, Result};
use crate::ring::Region;

/// The number of object ids in the core's namespace whose supported methods are remembered.
const OBJECTS: usize = 32;
const METHODS: u16 = 16;

/// A context's commands: ioctl first, then INVOKE_WRITE, then `write()`.
///
/// # The right to command
/// A reference to a `Uverbs` is the right to command the context. Code that holds a reference, such
/// as a provider, must meet these requirements:
///
/// - It destroys, changes and arms only objects that it created itself, and only on behalf of their
///   owner. It deregisters a memory region, moves a queue pair or destroys a completion queue if
///   the owner requests it, and never otherwise.
/// - Work requests that it posts to mapped queues access memory only as the provider's contract
///   ([`Provider`](crate::provider::Provider)) allows.
/// - It passes the reference on only to code that meets the same requirements. Safe code in another
///   crate does not meet them.
#[derive(Debug)]
pub struct Uverbs {
    channel: Box<dyn Channel>,
    driver_id: u32,
    device_name: Box<str>,
    /// Whether a call has shown that the kernel has no verbs ioctl (`ENOTTY`).
    no_ioctl: AtomicBool,
    /// The methods that calls have shown to be missing from the kernel (`EPROTONOSUPPORT`), one bit
    /// each.
    no_method: [AtomicU16; OBJECTS],
    /// The descriptor that the context keeps for asynchronous events, or -1.
    event_fd: AtomicI32,
}

impl Uverbs {
    /// Creates the `Uverbs` of a context over the caller's own channel, for tests that play the
    /// kernel.
    ///
    /// # Safety
    /// - The channel must reply like the kernel, as far as safe code relies on it. A file
    ///   descriptor in a reply must have no other owner. Only the kernel's side may write memory
    ///   that the channel maps. A completion must appear there only after its work request has
    ///   ended. A destroyed object must no longer access memory.
    /// - The caller must meet the requirements listed at [`Uverbs`].
    pub unsafe fn new(channel: Box<dyn Channel>, driver_id: u32, device_name: &str) -> Self {
        Self {
            channel,
            driver_id,
            device_name: device_name.into(),
            no_ioctl: AtomicBool::new(false),
            no_method: [const { AtomicU16::new(0) }; OBJECTS],
            event_fd: AtomicI32::new(-1),
        }
    }

    /// Opens a device's file. Each open file is a separate context.
    ///
    /// # Safety
    /// The caller must meet the requirements listed at [`Uverbs`] and interpret replies in the
    /// format of the driver `driver_id`.
    ///
    /// # Errors
    /// [`Cause::File`] with the path and a hint; notably `ENODEV` for a device that is gone and
    /// `EACCES` if permission is missing. [`Cause::KernelLacks`] for a provider's own device.
    pub unsafe fn open(device: &DeviceInfo, driver_id: u32) -> Result<Self> {
        let channel = FdChannel::open(device)?;
        // SAFETY: `FdChannel::open` proved by number and sysfs that the file is uverbs, so replies
        // are the kernel's; the caller guarantees the rest.
        Ok(unsafe { Self::new(Box::new(channel), driver_id, device.name()) })
    }

    /// Takes ownership of an open descriptor of a device's file that already has a context.
    ///
    /// # Safety
    /// Same as [`open`](Self::open).
    ///
    /// # Errors
    /// [`Cause::File`] for a file of another device; [`Cause::KernelLacks`] for a provider's own
    /// device.
    pub unsafe fn import(device: &DeviceInfo, file: OwnedFd, driver_id: u32) -> Result<Self> {
        let channel = FdChannel::import(device, file)?;
        // SAFETY: as in `open`: `FdChannel::import` made the same checks of the open file.
        Ok(unsafe { Self::new(Box::new(channel), driver_id, device.name()) })
    }

    /// Returns the device's name.
    pub fn device_name(&self) -> &str {
        &self.device_name
    }

    /// Returns the device file, for a provider whose doorbell is a system call.
    pub fn cmd_fd(&self) -> Option<Arc<OwnedFd>> {
        self.channel.cmd_fd()
    }

    /// Maps `len` bytes offered by the kernel at an offset of the device file.
    ///
    /// # Safety
    /// Same as [`Region::map`]; the kernel must have offered these bytes in its reply to a command
    /// that created one of the caller's objects.
    ///
    /// # Errors
    /// Any errno `mmap` returns.
    pub unsafe fn map(&self, verb: &'static str, offset: u64, len: usize) -> Result<Region> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.channel.map(offset, len) }.map_err(|errno| self.error(verb, errno))
    }

    /// Maps `len` bytes offered by the kernel, read-only.
    ///
    /// # Safety
    /// Same as [`map`](Self::map).
    ///
    /// # Errors
    /// The errors of [`map`](Self::map).
    pub unsafe fn map_read_only(&self, verb: &'static str, offset: u64, len: usize) -> Result<Region> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.channel.map_read_only(offset, len) }.map_err(|errno| self.error(verb, errno))
    }

    /// Records the descriptor that the context keeps, so that no reply can claim it again.
    pub(crate) fn keeps(&self, fd: BorrowedFd<'_>) {
        self.event_fd.store(fd.as_raw_fd(), Ordering::Relaxed);
    }

    /// Returns whether the context keeps this descriptor for the context's lifetime.
    pub(crate) fn is_kept(&self, fd: RawFd) -> bool {
        self.event_fd.load(Ordering::Relaxed) == fd
            || self.channel.cmd_fd().is_some_and(|own| own.as_raw_fd() == fd)
    }

    /// Creates an error for a verb on this device. After an `EIO` or another errno that drivers
    /// return for a failed device, the device's state is queried and becomes the cause.
    pub fn error(&self, verb: &'static str, errno: Errno) -> Error {
        let error = Error::new(verb, &self.device_name, errno);
        if diagnosis::concerns(errno) && self.channel.is_device() {
            return error.because(diagnosis::cause(self, errno));
        }
        error
    }

    /// Creates the error for a verb that received a malformed reply from the kernel.
    pub fn bad_reply(&self, verb: &'static str, what: &'static str) -> Error {
        self.error(verb, Errno::PROTO).because(Cause::BadReply { what })
    }

    /// Creates the error (`EOPNOTSUPP`) for a verb that needs `what`, which this kernel lacks.
    pub(crate) fn lacks(&self, verb: &'static str, what: &'static str) -> Error {
        self.error(verb, Errno::OPNOTSUPP).because(Cause::KernelLacks { what })
    }

    /// Calls a method that has no write struct.
    ///
    /// # Errors
    /// `EOPNOTSUPP` with [`Cause::KernelLacks`] and `what` if the kernel lacks the method;
    /// otherwise any errno the kernel returns.
    pub(crate) fn ioctl_only(
        &self,
        verb: &'static str,
        what: &'static str,
        object_id: u16,
        method_id: u16,
        attrs: &mut [Attr<'_>],
    ) -> Result<()> {
        match self.try_ioctl(object_id, method_id, attrs) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.lacks(verb, what)),
            Err(errno) => Err(self.error(verb, errno)),
        }
    }

    /// Calls a method in the driver's namespace, for that driver's provider.
    ///
    /// # Safety
    /// The method must belong to the driver, and each attribute must have the type that the method
    /// defines for it. A number that the kernel interprets as an address must name memory that the
    /// kernel may access as the method does.
    ///
    /// # Errors
    /// `EOPNOTSUPP` with [`Cause::KernelLacks`] and `what` if the kernel lacks the method;
    /// otherwise any errno the kernel returns.
    pub unsafe fn driver_ioctl(
        &self,
        verb: &'static str,
        what: &'static str,
        object_id: u16,
        method_id: u16,
        attrs: &mut [Attr<'_>],
    ) -> Result<()> {
        self.ioctl_only(verb, what, object_id, method_id, attrs)
    }

    /// Calls a method by ioctl. Returns `false`, with no side effect, if the kernel lacks the
    /// method.
    pub(crate) fn try_ioctl(
        &self,
        object_id: u16,
        method_id: u16,
        attrs: &mut [Attr<'_>],
    ) -> Result<bool, Errno> {
        let known = self.no_method.get(usize::from(object_id)).filter(|_| method_id < METHODS);
        let bit = 1_u16.checked_shl(method_id.into()).unwrap_or(0);
        if self.no_ioctl.load(Ordering::Relaxed)
            || known.is_some_and(|bits| bits.load(Ordering::Relaxed) & bit != 0)
        {
            return Ok(false);
        }
        let mut ioctl = Ioctl { object_id, method_id, driver_id: self.driver_id, attrs };
        match self.channel.ioctl(&mut ioctl) {
            Ok(()) => Ok(true),
            Err(Errno::NOTTY) => {
                self.no_ioctl.store(true, Ordering::Relaxed);
                Ok(false)
            }
            Err(Errno::PROTONOSUPPORT) => {
                if let Some(bits) = known {
                    bits.fetch_or(bit, Ordering::Relaxed);
                }
                Ok(false)
            }
            Err(errno) => Err(errno),
        }
    }

    /// Calls a method by ioctl like [`try_ioctl`](Self::try_ioctl), with the driver's part.
    pub(crate) fn try_ioctl_uhw<'a>(
        &self,
        object_id: u16,
        method_id: u16,
        mut attrs: Vec<Attr<'a>>,
        uhw: Uhw<'a>,
    ) -> Result<bool, Errno> {
        if !uhw.input.is_empty() {
            attrs.push(Attr::input(UVERBS_ATTR_UHW_IN, uhw.input));
        }
        if !uhw.output.is_empty() {
            attrs.push(Attr::output(UVERBS_ATTR_UHW_OUT, uhw.output));
        }
        self.try_ioctl(object_id, method_id, &mut attrs)
    }

    /// Sends a command that has a write struct, by INVOKE_WRITE if the kernel has that method and
    /// by `write()` otherwise.
    pub(crate) fn write(&self, mut command: WriteCmd<'_>) -> Result<(), Errno> {
        let number = command.command | if command.extended { IB_USER_VERBS_CMD_FLAG_EXTENDED } else { 0 };
        let mut attrs: [Attr<'_>; 5] =
            [const { Attr { id: 0, mandatory: true, value: Value::Num(0, 8) } }; 5];
        let mut count = 0;
        let mut put = |attr| {
            attrs[count] = attr;
            count += 1;
        };
        put(Attr::u64(UVERBS_ATTR_WRITE_CMD, number.into()));
        if !command.core_in.is_empty() {
            put(Attr::input(UVERBS_ATTR_CORE_IN, command.core_in));
        }
        if !command.core_out.is_empty() {
            put(Attr::output(UVERBS_ATTR_CORE_OUT, command.core_out));
        }
        if !command.driver_in.is_empty() {
            put(Attr::input(UVERBS_ATTR_UHW_IN, command.driver_in));
        }
        if !command.driver_out.is_empty() {
            put(Attr::output(UVERBS_ATTR_UHW_OUT, command.driver_out));
        }
        if self.try_ioctl(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE, &mut attrs[..count])? {
            return Ok(());
        }
        self.channel.write(&mut command)
    }
}
