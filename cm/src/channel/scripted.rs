//! [`Scripted`]: a scripted kernel for tests. It asserts the exact commands and returns prepared
//! replies and errnos.

use core::fmt::Write as _;
use std::collections::VecDeque;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use verbs::Errno;

use super::{Channel, Command, Ucma};

/// A scripted kernel: the expected commands in order, with their replies. It panics on any other
/// command. It also panics if dropped before every expected command has arrived.
#[derive(Clone, Debug)]
pub(crate) struct Scripted {
    state: Arc<Mutex<State>>,
    /// The file and its other end; writing to the other end makes the file readable.
    file: Arc<(UnixStream, UnixStream)>,
}

#[derive(Debug, Default)]
struct State {
    script: VecDeque<Expect>,
    seen: Vec<String>,
}

/// The next expected command.
#[derive(Clone, Debug)]
pub(crate) struct Expect {
    /// The command in the notation of the failure messages; `None` accepts any.
    command: Option<String>,
    reply: Reply,
}

/// A reply of the scripted kernel.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// An error number, with nothing written.
    Errno(Errno),
    /// Success. The reply's buffer gets these bytes: if they are fewer, the rest stays unchanged;
    /// excess bytes are cut off.
    Bytes(Vec<u8>),
}

impl Expect {
    /// Accepts any command.
    pub(crate) fn anything(reply: Reply) -> Self {
        Self { command: None, reply }
    }

    /// Expects a command with exactly this text: its number, its struct in hexadecimal with zero
    /// for each address, the size of its reply, the value it points to.
    ///
    /// ```text
    ///   1: in 00000000000000000500000000000000, out 4
    ///   14: in …, value 01000000
    /// ```
    pub(crate) fn command(text: &str, reply: Reply) -> Self {
        Self { command: Some(text.to_owned()), reply }
    }
}

impl Reply {
    /// Success, with nothing written.
    pub(crate) const fn ok() -> Self {
        Self::Bytes(Vec::new())
    }

    /// Success, with these bytes.
    pub(crate) fn bytes(bytes: &[u8]) -> Self {
        Self::Bytes(bytes.to_vec())
    }
}

impl Scripted {
    /// Creates a kernel that expects these commands in this order.
    pub(crate) fn new(script: impl IntoIterator<Item = Expect>) -> Self {
        let file = Arc::new(UnixStream::pair().unwrap());
        let scripted = Self { state: Arc::default(), file };
        scripted.expect(script);
        scripted
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
        self.state().script.extend(script);
    }

    /// Returns the commands received so far.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.state().seen.clone()
    }

    /// Returns the number of expected commands not yet received.
    pub(crate) fn remaining(&self) -> usize {
        self.state().script.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns bytes in hexadecimal, as in the notation of commands.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
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
        let expect = {
            let mut state = self.state();
            state.seen.push(text.clone());
            state.script.pop_front()
        };
        let Some(Expect { command: wanted, reply }) = expect else {
            let seen = self.seen().join("\n  ");
            panic!("a command came after the last that was expected; all that came:\n  {seen}")
        };
        if let Some(wanted) = wanted {
            assert_eq!(text, wanted, "another command was expected");
        }
        match (reply, &mut command.reply) {
            (Reply::Errno(errno), _) => return Err(errno),
            (Reply::Bytes(bytes), Some((_, room))) => {
                let len = room.len().min(bytes.len());
                room[..len].copy_from_slice(&bytes[..len]);
            }
            (Reply::Bytes(_), None) => {}
        }
        Ok(())
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

impl Drop for State {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(
                self.script.is_empty(),
                "these commands were expected and never came: {:#?}",
                self.script
            );
        }
    }
}
