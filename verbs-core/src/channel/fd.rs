//! [`FdChannel`]: commands to the real kernel, through `/dev/infiniband/uverbsN`.
//!
//! # Safety
//! The kernel is given addresses and lengths. Each comes from a slice that the command borrows for the duration of the
//! call, so what is read is initialised and what is written belongs to the caller. Handles, numbers and file
//! descriptors are not followed as addresses. Registering memory for DMA is a promise of the caller of
//! [`crate::cmd::mr::reg_mr`], which is unsafe.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use uverbs_abi::ib_user_verbs::{IB_USER_VERBS_CMD_FLAG_EXTENDED, IbUverbsCmdHdr, IbUverbsExCmdHdr};
use uverbs_abi::rdma_user_ioctl_cmds::{
    IbUverbsAttr, IbUverbsIoctlHdr, RDMA_VERBS_IOCTL, UVERBS_ATTR_F_MANDATORY,
};
use zerocopy::IntoBytes;

use super::{Channel, Ioctl, Value, WriteCmd};
use crate::Errno;
use crate::discovery::DevNum;
use crate::ring::Region;

/// The most attributes that one command of this crate has.
const MAX_ATTRS: usize = 24;

/// The header and attributes as they lie in memory for the ioctl.
#[derive(Clone, Copy)]
#[repr(C)]
struct IoctlBuffer {
    header: IbUverbsIoctlHdr,
    attrs: [IbUverbsAttr; MAX_ATTRS],
}

/// The kernel's uverbs, through the device file.
#[derive(Debug)]
pub(crate) struct FdChannel {
    fd: Arc<OwnedFd>,
}

impl FdChannel {
    /// Opens the device file and makes sure that it is the device with the number `dev`.
    ///
    /// # Errors
    /// What `open` answers; `ENXIO` when the file is another device.
    pub(crate) fn open(path: &Path, dev: Option<DevNum>) -> Result<Self, Errno> {
        let file: File = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(path)
            .map_err(|e| Errno::from_io(&e))?;
        if let Some(dev) = dev {
            let metadata = file.metadata().map_err(|e| Errno::from_io(&e))?;
            if metadata.rdev() != libc::makedev(dev.major, dev.minor) {
                return Err(Errno::NXIO);
            }
        }
        Ok(Self { fd: Arc::new(file.into()) })
    }
}

impl Channel for FdChannel {
    fn ioctl(&self, command: &mut Ioctl<'_, '_>) -> Result<(), Errno> {
        let count = command.attrs.len();
        if count > MAX_ATTRS {
            return Err(Errno::TOOBIG);
        }
        let length = size_of::<IbUverbsIoctlHdr>() + count * size_of::<IbUverbsAttr>();
        let mut buffer = IoctlBuffer {
            header: IbUverbsIoctlHdr {
                length: length as u16,
                object_id: command.object_id,
                method_id: command.method_id,
                num_attrs: count as u16,
                driver_id: command.driver_id,
                ..IbUverbsIoctlHdr::default()
            },
            attrs: [IbUverbsAttr::default(); MAX_ATTRS],
        };
        for (raw, attr) in buffer.attrs.iter_mut().zip(command.attrs.iter_mut()) {
            raw.attr_id = attr.id;
            raw.flags = if attr.mandatory { UVERBS_ATTR_F_MANDATORY } else { 0 };
            match &mut attr.value {
                Value::In(bytes) => {
                    raw.len = u16::try_from(bytes.len()).map_err(|_| Errno::TOOBIG)?;
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
                Value::NewHandle(_) | Value::NewFd(_) => {}
            }
        }
        // SAFETY: the request's argument is a header and the `num_attrs` attributes behind it, `length` bytes, which
        // `buffer` holds. Every address in it belongs to a slice borrowed by `command`, with that slice's length; the
        // kernel reads `In` slices and writes `Out` slices and `buffer` only.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), RDMA_VERBS_IOCTL as _, &raw mut buffer) };
        if result < 0 {
            return Err(Errno::last());
        }
        for (raw, attr) in buffer.attrs.iter().zip(command.attrs.iter_mut()) {
            match &mut attr.value {
                Value::NewHandle(handle) => **handle = raw.data as u32,
                Value::NewFd(fd) => **fd = raw.data as i32,
                _ => {}
            }
        }
        Ok(())
    }

    fn write(&self, command: &mut WriteCmd<'_>) -> Result<(), Errno> {
        let mut reply = Buffer::new(command.core_out.len() + command.driver_out.len())?;
        let reply_bytes = command.core_out.len() + command.driver_out.len();
        let address =
            if reply_bytes == 0 { 0 } else { reply.bytes().as_mut_ptr().expose_provenance() as u64 };

        let mut request = Buffer::new(
            size_of::<IbUverbsCmdHdr>()
                + size_of::<IbUverbsExCmdHdr>()
                + command.core_in.len()
                + command.driver_in.len(),
        )?;
        let length = frame(command, address, request.bytes())?;

        // SAFETY: the kernel reads `length` initialised bytes of `request`, and writes at most the number of bytes that
        // the header announces, `reply_bytes`, at `address`, which `reply` holds. Other addresses in the bytes are the
        // promise of whoever made the command.
        let written = unsafe { libc::write(self.fd.as_raw_fd(), request.bytes().as_ptr().cast(), length) };
        if written < 0 {
            return Err(Errno::last());
        }
        if written.unsigned_abs() != length {
            return Err(Errno::IO);
        }
        let (core, driver) = reply.bytes()[..reply_bytes].split_at(command.core_out.len());
        command.core_out.copy_from_slice(core);
        command.driver_out.copy_from_slice(driver);
        Ok(())
    }

    fn map(&self, offset: u64, len: usize) -> Result<Region, Errno> {
        Region::map(self.fd.as_fd(), offset, len)
    }

    fn cmd_fd(&self) -> Option<Arc<OwnedFd>> {
        Some(Arc::clone(&self.fd))
    }
}

/// Up to 8 bytes of input travel in the attribute itself, longer input by address.
fn inline_or_address(bytes: &[u8]) -> u64 {
    if bytes.len() > 8 {
        return bytes.as_ptr().expose_provenance() as u64;
    }
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}

/// Lays a command out as `write()` takes it, and says how long it is.
///
/// ```text
///   plain:     command, in/4, out/4 │ core_in (the reply's address first) │ driver_in
///   extended:  command | EXTENDED, core_in/8, core_out/8 │ address, driver_in/8, driver_out/8, 0 │ core_in │ driver_in
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

/// Zeroed bytes, aligned to 8: on the stack for what commands usually need.
// The large variant is the usual one, and none is ever moved far.
#[allow(clippy::large_enum_variant)]
enum Buffer {
    Stack([u64; Self::STACK / 8]),
    Heap(Vec<u64>),
}

impl Buffer {
    const STACK: usize = 512;

    // Commands are short; the limit is what the headers' 16-bit word counts can say.
    #[allow(clippy::unnecessary_wraps)]
    fn new(len: usize) -> Result<Self, Errno> {
        if len <= Self::STACK {
            Ok(Self::Stack([0; Self::STACK / 8]))
        } else if len <= usize::from(u16::MAX) * 8 {
            Ok(Self::Heap(vec![0; len.div_ceil(8)]))
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
mod tests {
    use super::*;
    use crate::channel::Uhw;

    fn framed(command: &WriteCmd<'_>, address: u64) -> Vec<u8> {
        let mut out = vec![0; 256];
        let length = frame(command, address, &mut out).unwrap();
        out.truncate(length);
        out
    }

    #[test]
    fn a_plain_command_counts_everything_in_four_byte_words_and_starts_with_the_reply_address() {
        let core_in = [0_u64, 0x1122].map(u64::to_ne_bytes).concat();
        let (mut core_out, mut driver_out) = ([0; 8], [0; 16]);
        let command = WriteCmd::new(18, &core_in, &mut core_out, Uhw::reply(&mut driver_out));
        let bytes = framed(&command, 0xdead_beef);
        assert_eq!(bytes.len(), 8 + 16);
        assert_eq!(bytes[..4], 18_u32.to_ne_bytes());
        assert_eq!(bytes[4..6], 6_u16.to_ne_bytes(), "header included");
        assert_eq!(bytes[6..8], 6_u16.to_ne_bytes(), "the driver's reply included");
        assert_eq!(bytes[8..16], 0xdead_beef_u64.to_ne_bytes());
        assert_eq!(bytes[16..], 0x1122_u64.to_ne_bytes());
    }

    #[test]
    fn a_plain_command_without_a_reply_keeps_its_first_bytes() {
        let core_in = 7_u64.to_ne_bytes();
        let bytes = framed(&WriteCmd::new(4, &core_in, &mut [], Uhw::none()), 0);
        assert_eq!(bytes[4..8], [4, 0, 0, 0]);
        assert_eq!(bytes[8..], core_in);
    }

    #[test]
    fn an_extended_command_counts_in_eight_byte_words_and_leaves_the_headers_out() {
        let core_in = [0xaa; 24];
        let mut core_out = [0; 40];
        let bytes = framed(&WriteCmd::extended(1, &core_in, &mut core_out, Uhw::none()), 0x1000);
        assert_eq!(bytes[..4], (1 | IB_USER_VERBS_CMD_FLAG_EXTENDED).to_ne_bytes());
        assert_eq!(bytes[4..8], [3, 0, 5, 0]);
        assert_eq!(bytes[8..16], 0x1000_u64.to_ne_bytes());
        assert_eq!(bytes[16..24], [0; 8]);
        assert_eq!(bytes[24..], core_in);
    }

    #[test]
    fn lengths_that_the_header_cannot_say_are_refused() {
        let mut out = [0; 64];
        let odd = WriteCmd::new(1, &[0; 6], &mut [], Uhw::none());
        assert_eq!(frame(&odd, 0, &mut out).unwrap_err(), Errno::INVAL);
        let odd = WriteCmd::extended(1, &[0; 12], &mut [], Uhw::none());
        assert_eq!(frame(&odd, 0, &mut out).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn short_input_travels_in_the_attribute() {
        assert_eq!(inline_or_address(&[1, 2, 3]), u64::from_ne_bytes([1, 2, 3, 0, 0, 0, 0, 0]));
        let long = [9; 9];
        assert_eq!(inline_or_address(&long), long.as_ptr().addr() as u64);
    }

    #[test]
    fn a_file_that_is_another_device_is_refused() {
        let error =
            FdChannel::open(Path::new("/dev/null"), Some(DevNum { major: 231, minor: 192 })).unwrap_err();
        assert_eq!(error, Errno::NXIO);
        let channel = FdChannel::open(Path::new("/dev/null"), Some(DevNum { major: 1, minor: 3 })).unwrap();
        let mut attrs = [];
        let mut ioctl = Ioctl { object_id: 0, method_id: 0, driver_id: 0, attrs: &mut attrs };
        assert_eq!(channel.ioctl(&mut ioctl).unwrap_err(), Errno::NOTTY, "/dev/null has no verbs");
    }
}
