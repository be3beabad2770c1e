//! The command channel to the kernel's uverbs, and a record of the methods that the kernel lacks.
//!
//! | type | contents |
//! |---|---|
//! | [`Uverbs`] | a context's commands: ioctl, INVOKE_WRITE or `write()`, learned per method |
//! | [`Channel`] | the transport of one command: a file descriptor, or a scripted kernel in tests |
//! | [`Ioctl`], [`Attr`] | a command in ioctl form |
//! | [`WriteCmd`] | a command in `write()` form |
//! | [`Uhw`], [`DriverAttrs`] | the driver's part of a command |
//!
//! ```text
//!   cmd::create_cq ──► Uverbs ──┬─ ioctl CQ_CREATE ─────────────► done, or not supported: learned
//!                               └─ write struct ─┬─ INVOKE_WRITE ► done, or not supported: learned
//!                                                └─ write() ─────► done
//!   not supported: ENOTTY or EPROTONOSUPPORT
//! ```
//!
//! # The right to command
//! A `&Uverbs` is the right to command a context: to create, change and destroy its objects by
//! handle, and to map its queues. Destroying a handle without its owner's knowledge, or writing a
//! work request into a mapped queue, lets the device write where safe code has a reference.
//!
//! Invariant: safe code gets a `&Uverbs` only from a [`Kernel`](crate::kernel::Kernel), which it
//! cannot make. [`Uverbs::open`], [`Uverbs::new`],
//! [`KernelContext::uverbs`](crate::kernel::KernelContext::uverbs) and
//! [`Kernel::new`](crate::kernel::Kernel::new) are unsafe, and their callers must meet the
//! requirements listed at [`Uverbs`]. The functions of [`crate::cmd`] are safe because only code
//! with that right can call them. Writes to a device file that the program opened itself are out of
//! scope, like `/proc/self/mem`.
//!
//! Invariant: safe code cannot build commands, because they contain addresses of memory for the
//! kernel to write. This crate builds them, with two exceptions: methods of one driver, which its
//! provider builds under a safety requirement ([`Uverbs::driver_ioctl`]), and a provider's
//! doorbell, which gets the file by the same right ([`Uverbs::cmd_fd`]). Replies come from the
//! kernel: either from a file proven by sysfs to be uverbs, or from a channel guaranteed by the
//! caller of [`Uverbs::new`]. A descriptor in a reply is checked before it is owned
//! ([`crate::cmd::context`]).
//!
//! # References
//! `rdma/rdma_user_ioctl_cmds.h`, `rdma/ib_user_verbs.h`; Linux
//! `drivers/infiniband/core/uverbs_ioctl.c`, `uverbs_main.c`

mod diagnosis;
mod fd;
pub mod node;
mod open;
pub(crate) mod queries;
mod scripted;
mod uverbs;

use core::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

// For tests, including tests of providers in other crates. A feature would build this library and
// the libraries above it a second time, which takes 39 s of CPU time, and the tests would not run
// the code that programs get.
#[doc(hidden)]
pub use scripted::{Expect, Output, Reply, Scripted, hex};
pub use uverbs::Uverbs;

pub(crate) use fd::FdChannel;

use crate::errno::Errno;
use crate::ring::Region;

/// A transport for commands to the kernel, used only on the control path.
pub trait Channel: fmt::Debug + Send + Sync {
    /// Sends a command through `RDMA_VERBS_IOCTL`.
    ///
    /// # Errors
    /// Any errno the kernel returns; in that case, no output has been written. Notably `ENOTTY` if
    /// the kernel has no verbs ioctl, `EPROTONOSUPPORT` for an unsupported method, and `E2BIG` for
    /// an oversized command.
    fn ioctl(&self, command: &mut Ioctl<'_, '_>) -> Result<(), Errno>;

    /// Sends a command through `write()`.
    ///
    /// # Errors
    /// Any errno the kernel returns. `EINVAL` for a length that is not a whole number of words,
    /// `E2BIG` for an oversized command, `EIO` if the kernel accepted only part of the command.
    fn write(&self, command: &mut WriteCmd<'_>) -> Result<(), Errno>;

    /// Maps a queue or a page of registers that the kernel offers at an offset of the device file.
    ///
    /// # Safety
    /// Same as [`Region::map`].
    ///
    /// # Errors
    /// Any errno `mmap` returns.
    #[allow(unsafe_code)]
    unsafe fn map(&self, offset: u64, len: usize) -> Result<Region, Errno>;

    /// Maps a page that the kernel offers read-only, like [`map`](Self::map).
    ///
    /// # Safety
    /// Same as [`Region::map_read_only`].
    ///
    /// # Errors
    /// The errors of [`map`](Self::map).
    #[allow(unsafe_code)]
    unsafe fn map_read_only(&self, offset: u64, len: usize) -> Result<Region, Errno> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.map(offset, len) }
    }

    /// Returns the file descriptor, for a provider whose doorbell is a system call; `None` if a
    /// test scripts the kernel.
    fn cmd_fd(&self) -> Option<Arc<OwnedFd>>;

    /// Returns whether the commands go to a device that may fail. If so, the device's state is
    /// queried after an `EIO`.
    fn is_device(&self) -> bool {
        false
    }
}

/// A command in ioctl form: an object's method and its attributes.
#[derive(Debug)]
pub struct Ioctl<'a, 'b> {
    /// `UVERBS_OBJECT_*`.
    pub object_id: u16,
    /// `UVERBS_METHOD_*`.
    pub method_id: u16,
    /// `RDMA_DRIVER_*` of the device; the meaning of driver attributes depends on it.
    pub driver_id: u32,
    /// The attributes, in sending order.
    pub attrs: &'b mut [Attr<'a>],
}

/// One attribute of an ioctl.
pub struct Attr<'a> {
    /// `UVERBS_ATTR_*`.
    pub id: u16,
    /// Whether the kernel must reject the command if the attribute is unknown to it.
    pub mandatory: bool,
    /// The attribute's value.
    pub value: Value<'a>,
}

/// The value of an attribute.
pub enum Value<'a> {
    /// Bytes for the kernel; up to 8 of them are stored in the attribute itself.
    In(&'a [u8]),
    /// A member of an enumeration, and bytes for the kernel. The member determines the meaning of
    /// the bytes, which may be empty.
    Enum(u8, &'a [u8]),
    /// A number for the kernel, stored in the attribute itself: its value and its width in bytes.
    Num(u64, u16),
    /// Bytes from the kernel. Bytes not written by the kernel keep their value.
    Out(&'a mut [u8]),
    /// The handle of an object.
    Handle(u32),
    /// The handle of an object created by the command.
    NewHandle(&'a mut u32),
    /// A file descriptor.
    Fd(i32),
    /// A file descriptor created by the command.
    NewFd(&'a mut i32),
}

impl<'a> Attr<'a> {
    const fn new(id: u16, value: Value<'a>) -> Self {
        Self { id, mandatory: true, value }
    }

    /// Creates an attribute with bytes for the kernel.
    pub const fn input(id: u16, bytes: &'a [u8]) -> Self {
        Self::new(id, Value::In(bytes))
    }

    /// Creates an attribute with bytes for the kernel, for `UVERBS_ATTR_ENUM_IN`; `elem_id`
    /// determines their meaning. `bytes` is empty for a member without data.
    pub const fn enumerated(id: u16, elem_id: u8, bytes: &'a [u8]) -> Self {
        Self::new(id, Value::Enum(elem_id, bytes))
    }

    /// Creates an attribute with an 8-bit number for the kernel.
    pub const fn u8(id: u16, value: u8) -> Self {
        Self::new(id, Value::Num(value as u64, 1))
    }

    /// Creates an attribute with a 32-bit number for the kernel.
    pub const fn u32(id: u16, value: u32) -> Self {
        Self::new(id, Value::Num(value as u64, 4))
    }

    /// Creates an attribute with a 64-bit number for the kernel; used for `UVERBS_ATTR_CONST_IN` as
    /// well.
    pub const fn u64(id: u16, value: u64) -> Self {
        Self::new(id, Value::Num(value, 8))
    }

    /// Creates an attribute for bytes from the kernel.
    pub const fn output(id: u16, bytes: &'a mut [u8]) -> Self {
        Self::new(id, Value::Out(bytes))
    }

    /// Creates an attribute with the handle of an object.
    pub const fn handle(id: u16, handle: u32) -> Self {
        Self::new(id, Value::Handle(handle))
    }

    /// Creates an attribute for the handle of an object that the command creates.
    pub const fn new_handle(id: u16, handle: &'a mut u32) -> Self {
        Self::new(id, Value::NewHandle(handle))
    }

    /// Creates an attribute with a file descriptor.
    pub const fn fd(id: u16, fd: i32) -> Self {
        Self::new(id, Value::Fd(fd))
    }

    /// Creates an attribute for a file descriptor that the command creates.
    pub const fn new_fd(id: u16, fd: &'a mut i32) -> Self {
        Self::new(id, Value::NewFd(fd))
    }

    /// Marks the attribute as optional: a kernel that does not support the attribute ignores it.
    #[must_use]
    pub const fn optional(mut self) -> Self {
        self.mandatory = false;
        self
    }
}

impl fmt::Debug for Attr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}{} ", self.id, if self.mandatory { "" } else { "?" })?;
        match &self.value {
            Value::In(bytes) => write!(f, "in {bytes:02x?}"),
            Value::Enum(elem_id, bytes) => write!(f, "enum {elem_id} {bytes:02x?}"),
            Value::Num(value, width) => write!(f, "u{} {value:#x}", width * 8),
            Value::Out(bytes) => write!(f, "out {} bytes", bytes.len()),
            Value::Handle(handle) => write!(f, "handle {handle}"),
            Value::NewHandle(_) => f.write_str("new handle"),
            Value::Fd(fd) => write!(f, "fd {fd}"),
            Value::NewFd(_) => f.write_str("new fd"),
        }
    }
}

/// The driver's part of a command and its reply: bytes that only the provider and the kernel driver
/// interpret.
///
/// Passing input is unsafe, because the input may contain addresses of memory for the kernel to
/// write.
#[derive(Debug, Default)]
pub struct Uhw<'a> {
    pub(crate) input: &'a [u8],
    pub(crate) output: &'a mut [u8],
}

impl<'a> Uhw<'a> {
    /// Creates an empty driver part, without input or space for a reply.
    pub fn none() -> Self {
        Self::default()
    }

    /// Creates a driver part whose reply is written to `output`. The length of `output` must be a
    /// multiple of 8 bytes.
    pub fn reply(output: &'a mut [u8]) -> Self {
        Self { input: &[], output }
    }

    /// Adds input for the driver. The length of `input` must be a multiple of 8 bytes.
    ///
    /// # Safety
    /// As interpreted by the driver, the bytes must let it write no memory of this process except
    /// memory that the caller provides to it for the duration of the command.
    #[must_use]
    #[allow(unsafe_code)]
    pub const unsafe fn with_input(self, input: &'a [u8]) -> Self {
        Self { input, output: self.output }
    }
}

/// The attributes that a driver adds to a method.
///
/// Methods whose definition in the kernel has `UVERBS_ATTR_UHW` take [`Uhw`]; a few of them also
/// take driver attributes, after the two ids of `UVERBS_ATTR_UHW`. In all other methods, the ids
/// from `UVERBS_ID_DRIVER_NS` on belong to the driver, including the two used by `UVERBS_ATTR_UHW`.
///
/// Passing attributes is unsafe for the same reason as input in [`Uhw`].
#[derive(Debug, Default)]
pub struct DriverAttrs<'a>(pub(crate) Vec<Attr<'a>>);

impl<'a> DriverAttrs<'a> {
    /// Creates an empty list of attributes.
    pub const fn none() -> Self {
        Self(Vec::new())
    }

    /// Wraps attributes, which are sent in this order, after the core's attributes.
    ///
    /// # Safety
    /// - Each id must belong to the driver: [`UVERBS_ID_DRIVER_NS`] or larger.
    /// - As interpreted by the driver, the values must let it write no memory of this process
    ///   except memory that the caller provides to it for the duration of the command.
    ///
    /// [`UVERBS_ID_DRIVER_NS`]: uverbs_abi::ib_user_ioctl_cmds::UVERBS_ID_DRIVER_NS
    #[allow(unsafe_code)]
    pub unsafe fn new(attrs: impl Into<Vec<Attr<'a>>>) -> Self {
        Self(attrs.into())
    }
}

/// A command in `write()` form: a struct from `rdma/ib_user_verbs.h` and the driver's part.
///
/// The command is sent through the INVOKE_WRITE method if the kernel has that method.
#[derive(Debug)]
pub struct WriteCmd<'a> {
    /// `IB_USER_VERBS_CMD_*`.
    pub command: u32,
    /// Whether the command has the extended form, with lengths in 8-byte words.
    pub extended: bool,
    /// The core's part of the command, a struct. If a plain command has a reply, leave the first 8
    /// bytes zero: they are for the address of the reply.
    pub core_in: &'a [u8],
    /// The driver's part of the command.
    pub driver_in: &'a [u8],
    /// The core's part of the reply.
    pub core_out: &'a mut [u8],
    /// The driver's part of the reply.
    pub driver_out: &'a mut [u8],
}

impl<'a> WriteCmd<'a> {
    /// Creates a plain command.
    pub fn new(command: u32, core_in: &'a [u8], core_out: &'a mut [u8], uhw: Uhw<'a>) -> Self {
        Self { command, extended: false, core_in, driver_in: uhw.input, core_out, driver_out: uhw.output }
    }

    /// Creates an extended command.
    pub fn extended(command: u32, core_in: &'a [u8], core_out: &'a mut [u8], uhw: Uhw<'a>) -> Self {
        Self { extended: true, ..Self::new(command, core_in, core_out, uhw) }
    }
}

#[cfg(test)]
mod tests;
