//! [`FdChannel`]: commands to the real kernel, through `/dev/infiniband/rdma_cm`.
//!
//! # Safety
//! The kernel receives two addresses: one of the reply and one of an option's value. Each comes
//! from a slice that the command borrows for the duration of the call, together with its length.
//! The kernel therefore reads only initialised bytes and writes only into the caller's buffer.
//! Opening the file proved that it is the connection manager's ([`super::open`]), which interprets
//! no other bytes of a command as addresses.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use uverbs_abi::rdma_user_cm::RdmaUcmCmdHdr;
use verbs::Errno;
use zerocopy::IntoBytes;

use super::{Channel, Command};

/// The length of the largest command with its header, in bytes. The longest command resolves an
/// address.
const MAX_COMMAND: usize = 512;

/// The kernel's connection manager, accessed through its file.
#[derive(Debug)]
pub(super) struct FdChannel {
    fd: OwnedFd,
}

impl FdChannel {
    /// Takes ownership of a file opened by [`super::open`].
    pub(super) const fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl Channel for FdChannel {
    fn write(&self, command: &mut Command<'_>) -> Result<(), Errno> {
        let mut request = [0; MAX_COMMAND];
        let length = frame(command, &mut request)?;
        // SAFETY: the kernel reads `length` initialised bytes of `request`. They contain at most
        // two addresses. At the reply's address it writes at most `out` bytes, the length of the
        // slice that `command` borrows mutably. At the value's address it reads at most the length
        // of the value's slice, because a command with a value states that length.
        let written = unsafe { libc::write(self.fd.as_raw_fd(), request.as_ptr().cast(), length) };
        if written < 0 {
            return Err(Errno::last());
        }
        if written.unsigned_abs() == length { Ok(()) } else { Err(Errno::IO) }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Encodes a command for `write()` and returns its length in bytes.
///
/// ```text
///   command 4 │ length of the struct 2 │ room for the reply 2 │ struct
/// ```
///
/// # Errors
/// `E2BIG` if a struct or a reply does not fit; `EINVAL` for an address outside the struct.
fn frame(command: &mut Command<'_>, out: &mut [u8; MAX_COMMAND]) -> Result<usize, Errno> {
    const HEADER: usize = size_of::<RdmaUcmCmdHdr>();
    let length = HEADER + command.body.len();
    let room = command.reply.as_ref().map_or(0, |(_, bytes)| bytes.len());
    let header = RdmaUcmCmdHdr {
        cmd: command.number,
        r#in: u16::try_from(command.body.len()).map_err(|_| Errno::TOOBIG)?,
        out: u16::try_from(room).map_err(|_| Errno::TOOBIG)?,
    };
    out[..HEADER].copy_from_slice(header.as_bytes());
    let body = out.get_mut(HEADER..length).ok_or(Errno::TOOBIG)?;
    body.copy_from_slice(command.body);
    let mut put = |offset: usize, address: usize| -> Result<(), Errno> {
        let field = body.get_mut(offset..offset + 8).ok_or(Errno::INVAL)?;
        field.copy_from_slice(&(address as u64).to_ne_bytes());
        Ok(())
    };
    if let Some((offset, bytes)) = &mut command.reply {
        put(*offset, bytes.as_mut_ptr().expose_provenance())?;
    }
    if let Some((offset, bytes)) = command.value {
        put(offset, bytes.as_ptr().expose_provenance())?;
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_its_lengths_and_addresses_in_their_places() {
        let (mut reply, value, mut out) = ([0_u8; 12], [1_u8; 3], [0xee; MAX_COMMAND]);
        let address = reply.as_ptr().expose_provenance();
        let body = [0x11; 24];
        let mut command =
            Command { value: Some((16, &value)), ..Command::with_reply(7, &body, 8, &mut reply) };
        assert_eq!(frame(&mut command, &mut out), Ok(32));
        assert_eq!(out[..8], [7, 0, 0, 0, 24, 0, 12, 0]);
        assert_eq!(out[8..16], [0x11; 8]);
        assert_eq!(out[16..24], (address as u64).to_ne_bytes());
        assert_eq!(out[24..32], (value.as_ptr().addr() as u64).to_ne_bytes());
        assert_eq!(out[32], 0xee);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut out = [0; MAX_COMMAND];
        assert_eq!(frame(&mut Command::new(0, &[0; MAX_COMMAND - 7]), &mut out), Err(Errno::TOOBIG));
        assert_eq!(frame(&mut Command::new(0, &[0; MAX_COMMAND - 8]), &mut out), Ok(MAX_COMMAND));
        let mut reply = vec![0; 65536];
        let mut command = Command::with_reply(0, &[0; 8], 0, &mut reply);
        assert_eq!(frame(&mut command, &mut out), Err(Errno::TOOBIG));
        let mut command = Command::with_reply(0, &[0; 8], 1, &mut reply[..4]);
        assert_eq!(frame(&mut command, &mut out), Err(Errno::INVAL));
    }

    #[test]
    fn a_file_that_takes_commands_in_silence_leaves_the_reply_as_it_was() {
        let null = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
        let channel = FdChannel::new(null.into());
        let mut reply = [0xff; 4];
        channel.write(&mut Command::with_reply(0, &[0; 24], 8, &mut reply)).unwrap();
        assert_eq!(reply, [0xff; 4]);
    }
}
