//! The command channel to the kernel's connection manager, `/dev/infiniband/rdma_cm`.
//!
//! | type | purpose |
//! |---|---|
//! | [`Ucma`] | the commands of an open file, and the features of its kernel |
//! | [`Channel`] | carries one command: to the file, or to a scripted kernel in tests |
//! | [`Command`] | a command: its number, its struct, and the memory that the struct points to |
//!
//! ```text
//!   cmd::create_id ──► Ucma ──► Channel::write ──► header │ struct ──► write()
//!                                                          └─ address of the reply, if any
//! ```
//!
//! All commands go through `write()`, including those that read events. The file returns no
//! replies: the kernel stores each reply at an address given in the command. An older kernel stores
//! less than requested.
//!
//! Invariant: [`crate::cmd`] builds commands with zero in address fields. The channel fills these
//! in from slices that it borrows for the duration of the call.
//!
//! # References
//! `rdma/rdma_user_cm.h`; Linux `drivers/infiniband/core/ucma.c`

mod fd;
mod open;
#[cfg(test)]
mod scripted;
mod ucma;

use core::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

#[cfg(test)]
pub(crate) use scripted::Scripted;
pub(crate) use ucma::Ucma;
#[cfg(any(test, fuzzing))]
pub(crate) use ucma::{MAX_ABI, MIN_ABI};

use verbs::Errno;
#[cfg(test)]
pub(crate) use verbs_core::channel::{Expect, Reply, hex};

/// Carries commands to the kernel.
pub(crate) trait Channel: fmt::Debug + Send + Sync {
    /// Sends a command.
    ///
    /// # Errors
    /// Any errno the kernel returns; `E2BIG` for a command that does not fit, `EIO` for a partial
    /// write.
    fn write(&self, command: &mut Command<'_>) -> Result<(), Errno>;

    /// Returns the file, which is readable while there is an event.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns the file descriptor, which names this channel in commands to other channels.
    fn number(&self) -> u32 {
        self.fd().as_raw_fd() as u32
    }
}

/// A command to the kernel.
#[derive(Debug)]
pub(crate) struct Command<'a> {
    /// The command's number, `RDMA_USER_CM_CMD_*`.
    pub(crate) number: u32,
    /// The command's struct, with zero in each address field.
    pub(crate) body: &'a [u8],
    /// The offset of the reply address in `body`, and the buffer for the reply.
    pub(crate) reply: Option<(usize, &'a mut [u8])>,
    /// The offset of the value address in `body`, and the bytes that the kernel reads.
    pub(crate) value: Option<(usize, &'a [u8])>,
}

impl<'a> Command<'a> {
    /// Returns a command without a reply.
    pub(crate) const fn new(number: u32, body: &'a [u8]) -> Self {
        Self { number, body, reply: None, value: None }
    }

    /// Returns a command whose reply is written to `bytes`. `offset` is the offset of the reply
    /// address in `body`.
    pub(crate) const fn with_reply(number: u32, body: &'a [u8], offset: usize, bytes: &'a mut [u8]) -> Self {
        Self { number, body, reply: Some((offset, bytes)), value: None }
    }
}

#[cfg(test)]
mod tests;
