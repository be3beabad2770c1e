//! [`Scripted`]: a scripted kernel for tests. It asserts the exact commands and returns prepared
//! replies and errnos.

use core::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use verbs::Errno;
use verbs_core::channel::{Expect, Output, hex};

use super::{Channel, Command, Ucma};

/// A scripted kernel: the script of verbs-core, with commands of the connection manager.
///
/// A command's text consists of its number, its struct in hexadecimal with zero for each address,
/// the size of its reply and the value it points to.
///
/// ```text
///   1: in 00000000000000000500000000000000, out 4
///   14: in …, value 01000000
/// ```
#[derive(Clone, Debug)]
pub(crate) struct Scripted {
    script: verbs_core::channel::Scripted,
    /// The file and its other end; writing to the other end makes the file readable.
    file: Arc<(UnixStream, UnixStream)>,
}

impl Scripted {
    /// Creates a kernel that expects these commands in this order.
    pub(crate) fn new(script: impl IntoIterator<Item = Expect>) -> Self {
        let file = Arc::new(UnixStream::pair().unwrap());
        Self { script: verbs_core::channel::Scripted::new(script), file }
    }

    /// Returns this kernel's connection manager, with or without support for InfiniBand addresses.
    pub(crate) fn ucma(&self, takes_ib: bool) -> Arc<Ucma> {
        let ucma = Ucma::new(self.clone(), super::MAX_ABI).unwrap();
        ucma.takes_ib.set(takes_ib).unwrap();
        Arc::new(ucma)
    }

    /// Makes the file readable, as an event does.
    pub(crate) fn wake(&self) {
        (&self.file.1).write_all(&[0]).unwrap();
    }

    /// Appends expected commands.
    pub(crate) fn expect(&self, script: impl IntoIterator<Item = Expect>) {
        self.script.expect(script);
    }

    /// Returns the commands that were received, in order.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.script.seen()
    }

    /// Returns the number of expected commands not yet received.
    pub(crate) fn remaining(&self) -> usize {
        self.script.remaining()
    }
}

impl Channel for Scripted {
    fn write(&self, command: &mut Command<'_>) -> Result<(), Errno> {
        let mut text = format!("{}: in {}", command.number, hex(command.body));
        for offset in command.reply.iter().map(|(at, _)| *at).chain(command.value.map(|(at, _)| at)) {
            let address = command.body.get(offset..offset + 8);
            assert_eq!(address, Some(&[0; 8][..]), "no address belongs at {offset} of {text}");
        }
        if let Some((_, bytes)) = &command.reply {
            let _ = write!(text, ", out {}", bytes.len());
        }
        if let Some((_, bytes)) = command.value {
            let _ = write!(text, ", value {}", hex(bytes));
        }
        let mut outputs = Vec::from_iter(command.reply.as_mut().map(|(_, bytes)| Output::Bytes(bytes)));
        self.script.respond(&text, &mut outputs)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.file.0.as_fd()
    }

    fn number(&self) -> u32 {
        33
    }
}

impl Default for Scripted {
    fn default() -> Self {
        Self::new([])
    }
}
