//! [`FdChannel`]: commands to the real kernel, through `/dev/infiniband/uverbsN`.
//!
//! # Safety
//! The kernel receives addresses and lengths. Each comes from a slice that the command borrows for
//! the duration of the call, so the kernel reads only initialised bytes and writes only the
//! caller's. Handles, numbers and file descriptors are not used as addresses. Opening the file
//! proved it to be uverbs, which reads these bytes as commands ([`super::open`]). The caller of
//! [`crate::cmd::mr::reg_mr`], which is unsafe, guarantees that the memory may be registered.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use uverbs_abi::ib_user_verbs::{IB_USER_VERBS_CMD_FLAG_EXTENDED, IbUverbsCmdHdr, IbUverbsExCmdHdr};
use uverbs_abi::rdma_user_ioctl_cmds::{
    IbUverbsAttr, IbUverbsAttrAttrData, IbUverbsAttrEnumData, IbUverbsIoctlHdr, RDMA_VERBS_IOCTL,
    UVERBS_ATTR_F_MANDATORY,
};
use zerocopy::IntoBytes;

use super::{Channel, Ioctl, Value, WriteCmd};
use crate::discovery::DeviceInfo;
use crate::errno::Errno;
use crate::error::Result;
use crate::ring::Region;
use crate::room;

/// The maximum number of attributes in any command that this crate sends.
const MAX_ATTRS: usize = 24;

/// The number of attributes sufficient for most commands, such as event requests. A short buffer
/// takes fewer instructions to clear.
const FEW_ATTRS: usize = 4;

/// The value of a file descriptor attribute before the kernel fills it in: -1. The kernel ignores
/// this input.
const NO_FD: u64 = u64::MAX;

/// The header and attributes of a command, as the ioctl expects them in memory.
#[derive(Clone, Copy)]
#[repr(C)]
struct IoctlBuffer<const N: usize> {
    header: IbUverbsIoctlHdr,
    attrs: [IbUverbsAttr; N],
}

/// A channel to the kernel's uverbs, through the device file.
#[derive(Debug)]
pub(crate) struct FdChannel {
    fd: Arc<OwnedFd>,
}

impl FdChannel {
    /// Opens the device's file after proving that it is a uverbs file, with sysfs and the device
    /// number.
    ///
    /// # Errors
    /// [`Cause::File`](crate::Cause::File) with the path and a hint;
    /// [`Cause::KernelLacks`](crate::Cause::KernelLacks) for a provider's own device.
    pub(crate) fn open(device: &DeviceInfo) -> Result<Self> {
        Ok(Self { fd: Arc::new(super::open::open(device)?) })
    }

    /// Sends a command with at most `N` attributes.
    fn send<const N: usize>(&self, command: &mut Ioctl<'_, '_>) -> Result<(), Errno> {
        let mut buffer = IoctlBuffer::<N>::new();
        buffer.lay_out(command)?;
        // SAFETY: the request's argument is a header and the `num_attrs` attributes behind it,
        // `length` bytes in total, all in `buffer`. Every address in it belongs to a slice borrowed
        // by `command`, with that slice's length. The kernel reads `In` slices and writes `Out`
        // slices and `buffer` only.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), RDMA_VERBS_IOCTL as _, &raw mut buffer) };
        if result < 0 {
            return Err(Errno::last());
        }
        buffer.read_back(command);
        Ok(())
    }

    /// Takes ownership of a device's open file after checking the file's device number with sysfs.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub(crate) fn import(device: &DeviceInfo, file: OwnedFd) -> Result<Self> {
        Ok(Self { fd: Arc::new(super::open::import(device, file)?) })
    }
}

impl Channel for FdChannel {
    fn ioctl(&self, command: &mut Ioctl<'_, '_>) -> Result<(), Errno> {
        if command.attrs.len() <= FEW_ATTRS {
            self.send::<FEW_ATTRS>(command)
        } else {
            self.send::<MAX_ATTRS>(command)
        }
    }

    fn write(&self, command: &mut WriteCmd<'_>) -> Result<(), Errno> {
        let core_bytes = command.core_out.len();
        let reply_bytes = core_bytes + command.driver_out.len();
        let mut reply = Buffer::new(reply_bytes)?;
        // The kernel may fill the outputs partially; the other bytes keep the caller's values.
        reply.bytes()[..core_bytes].copy_from_slice(command.core_out);
        reply.bytes()[core_bytes..reply_bytes].copy_from_slice(command.driver_out);
        let address =
            if reply_bytes == 0 { 0 } else { reply.bytes().as_mut_ptr().expose_provenance() as u64 };

        let mut request = Buffer::new(
            size_of::<IbUverbsCmdHdr>()
                + size_of::<IbUverbsExCmdHdr>()
                + command.core_in.len()
                + command.driver_in.len(),
        )?;
        let length = frame(command, address, request.bytes())?;

        // SAFETY: the kernel reads `length` initialised bytes of `request`, and writes at most
        // `reply_bytes` bytes, as announced in the header, to `reply` at `address`. The function
        // that built the command is responsible for other addresses in the bytes.
        let written = unsafe { libc::write(self.fd.as_raw_fd(), request.bytes().as_ptr().cast(), length) };
        if written < 0 {
            return Err(Errno::last());
        }
        if written.unsigned_abs() != length {
            return Err(Errno::IO);
        }
        let (core, driver) = reply.bytes()[..reply_bytes].split_at(core_bytes);
        command.core_out.copy_from_slice(core);
        command.driver_out.copy_from_slice(driver);
        Ok(())
    }

    unsafe fn map(&self, offset: u64, len: usize) -> Result<Region, Errno> {
        // SAFETY: the caller upholds the same contract.
        unsafe { Region::map(self.fd.as_fd(), offset, len) }
    }

    unsafe fn map_read_only(&self, offset: u64, len: usize) -> Result<Region, Errno> {
        // SAFETY: the caller upholds the same contract.
        unsafe { Region::map_read_only(self.fd.as_fd(), offset, len) }
    }

    fn cmd_fd(&self) -> Option<Arc<OwnedFd>> {
        Some(Arc::clone(&self.fd))
    }

    fn is_device(&self) -> bool {
        true
    }
}

impl<const N: usize> IoctlBuffer<N> {
    /// Returns a buffer of zeros.
    #[inline]
    fn new() -> Self {
        Self { header: IbUverbsIoctlHdr::default(), attrs: [IbUverbsAttr::default(); N] }
    }

    /// Lays a command out for the ioctl. This happens in place, because returning a buffer would
    /// copy it.
    ///
    /// # Errors
    /// `E2BIG` for more than `N` attributes, or for an attribute with more than 65535 bytes.
    #[inline]
    fn lay_out(&mut self, command: &mut Ioctl<'_, '_>) -> Result<(), Errno> {
        let count = command.attrs.len();
        if count > N {
            return Err(Errno::TOOBIG);
        }
        let length = size_of::<IbUverbsIoctlHdr>() + count * size_of::<IbUverbsAttr>();
        self.header.length = length as u16;
        self.header.object_id = command.object_id;
        self.header.method_id = command.method_id;
        self.header.num_attrs = count as u16;
        self.header.driver_id = command.driver_id;
        for (raw, attr) in self.attrs.iter_mut().zip(command.attrs.iter_mut()) {
            raw.attr_id = attr.id;
            raw.flags = if attr.mandatory { UVERBS_ATTR_F_MANDATORY } else { 0 };
            match &mut attr.value {
                Value::In(bytes) => {
                    raw.len = u16::try_from(bytes.len()).map_err(|_| Errno::TOOBIG)?;
                    raw.data = inline_or_address(bytes);
                }
                Value::Enum(elem_id, bytes) => {
                    raw.len = u16::try_from(bytes.len()).map_err(|_| Errno::TOOBIG)?;
                    let elem = IbUverbsAttrEnumData { elem_id: *elem_id, reserved: 0 };
                    raw.attr_data = IbUverbsAttrAttrData::from_enum_data(elem);
                    raw.data = inline_or_address(bytes);
                }
                Value::Num(value, width) => {
                    raw.len = *width;
                    raw.data = *value;
                }
                Value::Out(bytes) => {
                    raw.len = u16::try_from(bytes.len()).map_err(|_| Errno::TOOBIG)?;
                    raw.data = bytes.as_mut_ptr().expose_provenance() as u64;
                }
                Value::Handle(handle) => raw.data = u64::from(*handle),
                Value::Fd(fd) => raw.data = i64::from(*fd) as u64,
                // The value if the kernel does not fill in the descriptor. It must not be a valid
                // descriptor.
                Value::NewFd(_) => raw.data = NO_FD,
                Value::NewHandle(_) => {}
            }
        }
        Ok(())
    }

    /// Copies back to the command the handles and descriptors that the kernel wrote to the
    /// attributes.
    fn read_back(&self, command: &mut Ioctl<'_, '_>) {
        for (raw, attr) in self.attrs.iter().zip(command.attrs.iter_mut()) {
            match &mut attr.value {
                Value::NewHandle(handle) => **handle = raw.data as u32,
                Value::NewFd(fd) => **fd = raw.data as i32,
                _ => {}
            }
        }
    }
}

/// Returns the attribute's data: the input bytes themselves if at most 8, otherwise their address.
fn inline_or_address(bytes: &[u8]) -> u64 {
    if bytes.len() > 8 {
        return bytes.as_ptr().expose_provenance() as u64;
    }
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}

/// Lays a command out for `write()` and returns its length in bytes.
///
/// ```text
///   plain:     command, in/4, out/4 │ core_in (the reply's address first) │ driver_in
///   extended:  command | EXTENDED, core_in/8, core_out/8 │ address, driver_in/8, driver_out/8, 0
///              │ core_in │ driver_in
/// ```
fn frame(command: &WriteCmd<'_>, address: u64, out: &mut [u8]) -> Result<usize, Errno> {
    let words = |bytes: usize, unit: usize| -> Result<u16, Errno> {
        if !bytes.is_multiple_of(unit) {
            return Err(Errno::INVAL);
        }
        u16::try_from(bytes / unit).map_err(|_| Errno::TOOBIG)
    };
    let mut length = 0;
    let mut put = |bytes: &[u8]| {
        out[length..length + bytes.len()].copy_from_slice(bytes);
        length += bytes.len();
    };
    if command.extended {
        put(IbUverbsCmdHdr {
            command: command.command | IB_USER_VERBS_CMD_FLAG_EXTENDED,
            in_words: words(command.core_in.len(), 8)?,
            out_words: words(command.core_out.len(), 8)?,
        }
        .as_bytes());
        put(IbUverbsExCmdHdr {
            response: address,
            provider_in_words: words(command.driver_in.len(), 8)?,
            provider_out_words: words(command.driver_out.len(), 8)?,
            cmd_hdr_reserved: 0,
        }
        .as_bytes());
        put(command.core_in);
    } else {
        let total = size_of::<IbUverbsCmdHdr>() + command.core_in.len() + command.driver_in.len();
        put(IbUverbsCmdHdr {
            command: command.command,
            in_words: words(total, 4)?,
            out_words: words(command.core_out.len() + command.driver_out.len(), 4)?,
        }
        .as_bytes());
        match command.core_in.split_at_checked(8) {
            Some((_, rest)) if address != 0 => {
                put(&address.to_ne_bytes());
                put(rest);
            }
            _ => put(command.core_in),
        }
    }
    put(command.driver_in);
    Ok(length)
}

/// A zeroed buffer, aligned to 8 bytes. It is on the stack unless the command is unusually large.
// The large variant is the common case, and values are not moved between functions.
#[allow(clippy::large_enum_variant)]
enum Buffer {
    Stack([u64; Self::STACK / 8]),
    Heap(Vec<u64>),
}

impl Buffer {
    const STACK: usize = 512;

    // Commands are short. The headers limit them by their 16-bit word counts.
    fn new(len: usize) -> Result<Self, Errno> {
        if len <= Self::STACK {
            Ok(Self::Stack([0; Self::STACK / 8]))
        } else if len <= usize::from(u16::MAX) * 8 {
            room::copies(0, len.div_ceil(8)).map(Self::Heap)
        } else {
            Err(Errno::TOOBIG)
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Stack(words) => words.as_mut_bytes(),
            Self::Heap(words) => words.as_mut_bytes(),
        }
    }
}

#[cfg(test)]
mod tests;
