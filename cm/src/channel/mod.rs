//! The command channel to the kernel's connection manager, `/dev/infiniband/rdma_cm`.
//!
//! | type | what it is |
//! |---|---|
//! | [`Ucma`] | an open file's commands, and what its kernel turns out to support |
//! | [`Channel`] | the carrier of one command: the file, or a scripted kernel in tests |
//! | [`Command`] | a command: its number, its struct, and the memory that it points to |
//!
//! ```text
//!   cmd::create_id ──► Ucma ──► Channel::write ──► header │ struct ──► write()
//!                                                          └─ address of the reply, if any
//! ```
//!
//! The only way in is `write()`. A reply does not follow the command in the file; the kernel stores
//! it at an address inside the command, and stores less than asked for if it is older. Reading
//! events is a command, too.
//!
//! Invariant: commands are built in [`crate::cmd`], which leaves the fields of addresses zero. The
//! channel fills them in, from slices that it borrows for the time of the call.
//!
//! # References
//! `rdma/rdma_user_cm.h`; Linux `drivers/infiniband/core/ucma.c`

mod fd;
#[cfg(any(test, fuzzing))]
mod hostile;
mod open;
#[cfg(test)]
mod scripted;
mod ucma;

use core::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

#[cfg(any(test, fuzzing))]
pub use hostile::{Anomaly, Hostile, Uid};
#[cfg(test)]
pub(crate) use scripted::{Expect, Reply, Scripted, hex};
pub(crate) use ucma::Ucma;
#[cfg(any(test, fuzzing))]
pub(crate) use ucma::{MAX_ABI, MIN_ABI};

use verbs::Errno;

/// The carrier of commands to the kernel.
pub(crate) trait Channel: fmt::Debug + Send + Sync {
    /// Sends a command.
    ///
    /// # Errors
    /// Any errno that the kernel returns; `E2BIG` for a command that does not fit, `EIO` if the
    /// kernel took only part of it.
    fn write(&self, command: &mut Command<'_>) -> Result<(), Errno>;

    /// Returns the file, which is readable when there is an event.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns the number of the file, by which a command names another channel.
    fn number(&self) -> u32 {
        self.fd().as_raw_fd() as u32
    }
}

/// A command to the kernel.
#[derive(Debug)]
pub(crate) struct Command<'a> {
    /// `RDMA_USER_CM_CMD_*`.
    pub(crate) number: u32,
    /// The command's struct, with zero in the place of each address.
    pub(crate) body: &'a [u8],
    /// The room for the reply, and the offset in `body` where its address belongs.
    pub(crate) reply: Option<(usize, &'a mut [u8])>,
    /// Bytes that the kernel reads, and the offset in `body` where their address belongs.
    pub(crate) value: Option<(usize, &'a [u8])>,
}

impl<'a> Command<'a> {
    /// A command without a reply.
    pub(crate) const fn new(number: u32, body: &'a [u8]) -> Self {
        Self { number, body, reply: None, value: None }
    }

    /// A command whose reply goes to `bytes`. The address belongs at `offset` of the struct.
    pub(crate) const fn with_reply(number: u32, body: &'a [u8], offset: usize, bytes: &'a mut [u8]) -> Self {
        Self { number, body, reply: Some((offset, bytes)), value: None }
    }
}

#[cfg(test)]
mod tests;
