//! [`Scripted`]: a scripted kernel for tests. It asserts the exact commands and returns prepared
//! replies and errnos.

use core::fmt::Write as _;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Channel, Ioctl, Value, WriteCmd};
use crate::errno::Errno;
use crate::ring::Region;

/// A scripted kernel: a list of expected commands, in order, and their replies.
///
/// For tests. Panics on any other command, and when dropped before every expected command has
/// arrived.
#[derive(Clone, Debug, Default)]
pub struct Scripted {
    state: Arc<Mutex<State>>,
    is_device: bool,
}

#[derive(Debug, Default)]
struct State {
    script: VecDeque<Expect>,
    seen: Vec<String>,
    maps: VecDeque<Map>,
}

/// An expected mapping: its offset, its length and its memory.
#[derive(Debug)]
struct Map {
    offset: u64,
    reply: Result<(usize, Region), Errno>,
}

/// One expected command.
#[derive(Clone, Debug)]
pub struct Expect {
    /// The command in the notation of [`Scripted`]'s failure messages; `None` accepts any command.
    command: Option<String>,
    reply: Reply,
}

/// A reply of the scripted kernel.
#[derive(Clone, Debug)]
pub enum Reply {
    /// An error number, with no output written.
    Errno(Errno),
    /// Success. The command's outputs receive these bytes, in order. If they are shorter than the
    /// output, the rest stays unchanged; if longer, they are truncated. Handles and file
    /// descriptors are 4-byte numbers.
    Outputs(Vec<Vec<u8>>),
}

impl Expect {
    /// Expects any command.
    pub const fn anything(reply: Reply) -> Self {
        Self { command: None, reply }
    }

    /// Expects a command with exactly this text.
    ///
    /// ```text
    ///   ioctl 3.0: 0x0 new handle, 0x1 u32 0x10, 0x6 out 4 bytes, 0x1001 out 16 bytes
    ///   write 3: in 0000000000000000, out 4+0
    ///   write_ex 1: in 0000000000000000, out 304+0
    /// ```
    /// The numbers after `ioctl` are the object and the method. A `?` after an attribute's id marks
    /// the attribute as optional.
    pub fn command(text: &str, reply: Reply) -> Self {
        Self { command: Some(text.to_owned()), reply }
    }
}

impl Reply {
    /// Creates a successful reply that writes no output.
    pub const fn ok() -> Self {
        Self::Outputs(Vec::new())
    }

    /// Creates a successful reply with these bytes for the only output.
    pub fn bytes(bytes: &[u8]) -> Self {
        Self::outputs([bytes])
    }

    /// Creates a successful reply with these bytes for the outputs, in order.
    pub fn outputs<const N: usize>(outputs: [&[u8]; N]) -> Self {
        Self::Outputs(outputs.iter().map(|bytes| bytes.to_vec()).collect())
    }

    /// Returns the same reply with every output truncated to `len` bytes, as from a kernel whose
    /// structs have fewer fields.
    #[must_use]
    pub fn truncated(mut self, len: usize) -> Self {
        if let Self::Outputs(outputs) = &mut self {
            outputs.iter_mut().for_each(|bytes| bytes.truncate(len));
        }
        self
    }
}

impl Scripted {
    /// Creates a kernel that expects these commands, in order.
    pub fn new(script: impl IntoIterator<Item = Expect>) -> Self {
        let scripted = Self::default();
        scripted.state().script.extend(script);
        scripted
    }

    /// Creates a kernel with a device whose state is queried after an `EIO`.
    pub fn of_device(script: impl IntoIterator<Item = Expect>) -> Self {
        Self { is_device: true, ..Self::new(script) }
    }

    /// Appends expected commands.
    pub fn expect(&self, script: impl IntoIterator<Item = Expect>) {
        self.state().script.extend(script);
    }

    /// Expects a mapping of `len` bytes at `offset` next. The mapping is `region`, which the test
    /// also holds.
    pub fn expect_map(&self, offset: u64, len: usize, region: Region) {
        self.state().maps.push_back(Map { offset, reply: Ok((len, region)) });
    }

    /// Expects a mapping at `offset` next and rejects it with `errno`.
    pub fn refuse_map(&self, offset: u64, errno: Errno) {
        self.state().maps.push_back(Map { offset, reply: Err(errno) });
    }

    /// Returns the received commands in the notation of [`Expect::command`], for inputs with
    /// addresses that the test cannot know in advance.
    pub fn seen(&self) -> Vec<String> {
        self.state().seen.clone()
    }

    /// Returns the number of expected commands still to come.
    pub fn remaining(&self) -> usize {
        self.state().script.len()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks a command and fills its outputs, for scripted kernels whose commands have another
    /// form.
    ///
    /// # Errors
    /// The errno from the script.
    ///
    /// # Panics
    /// If the command is not the next one expected.
    pub fn respond(&self, command: &str, outputs: &mut [Output<'_>]) -> Result<(), Errno> {
        let expect = {
            let mut state = self.state();
            state.seen.push(command.to_owned());
            state.script.pop_front()
        };
        let Some(Expect { command: wanted, reply }) = expect else {
            let seen = self.seen().join("\n  ");
            panic!("a command came after the last that was expected; all that came:\n  {seen}")
        };
        if let Some(wanted) = wanted {
            assert_eq!(command, wanted, "another command was expected");
        }
        match reply {
            Reply::Errno(errno) => Err(errno),
            Reply::Outputs(canned) => {
                for (output, bytes) in outputs.iter_mut().zip(&canned) {
                    output.fill(bytes);
                }
                Ok(())
            }
        }
    }
}

/// The destination of one part of a reply.
#[derive(Debug)]
pub enum Output<'a> {
    /// A buffer for bytes.
    Bytes(&'a mut [u8]),
    /// An object's handle.
    Handle(&'a mut u32),
    /// A file descriptor.
    Fd(&'a mut i32),
}

impl Output<'_> {
    fn fill(&mut self, bytes: &[u8]) {
        match self {
            Self::Bytes(out) => {
                let len = out.len().min(bytes.len());
                out[..len].copy_from_slice(&bytes[..len]);
            }
            Self::Handle(out) => **out = number(bytes),
            Self::Fd(out) => **out = number(bytes) as i32,
        }
    }
}

/// Reads a number of up to 4 bytes.
fn number(bytes: &[u8]) -> u32 {
    let mut word = [0; 4];
    let len = bytes.len().min(4);
    word[..len].copy_from_slice(&bytes[..len]);
    u32::from_ne_bytes(word)
}

/// Returns bytes in hexadecimal, as in the notation of commands.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Channel for Scripted {
    fn ioctl(&self, command: &mut Ioctl<'_, '_>) -> Result<(), Errno> {
        let mut text = format!("ioctl {}.{}:", command.object_id, command.method_id);
        let mut outputs = Vec::new();
        for (n, attr) in command.attrs.iter_mut().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            let optional = if attr.mandatory { "" } else { "?" };
            let _ = write!(text, "{comma} {:#x}{optional} ", attr.id);
            match &mut attr.value {
                Value::In(bytes) => text += &format!("in {}", hex(bytes)),
                Value::Enum(elem_id, bytes) => text += &format!("enum {elem_id} in {}", hex(bytes)),
                Value::Num(value, width) => text += &format!("u{} {value:#x}", *width * 8),
                Value::Out(bytes) => {
                    text += &format!("out {} bytes", bytes.len());
                    outputs.push(Output::Bytes(bytes));
                }
                Value::Handle(handle) => text += &format!("handle {handle}"),
                Value::NewHandle(handle) => {
                    text += "new handle";
                    outputs.push(Output::Handle(handle));
                }
                Value::Fd(fd) => text += &format!("fd {fd}"),
                Value::NewFd(fd) => {
                    text += "new fd";
                    outputs.push(Output::Fd(fd));
                }
            }
        }
        self.respond(&text, &mut outputs)
    }

    fn write(&self, command: &mut WriteCmd<'_>) -> Result<(), Errno> {
        let form = if command.extended { "write_ex" } else { "write" };
        let driver_in =
            if command.driver_in.is_empty() { String::new() } else { format!("+{}", hex(command.driver_in)) };
        let text = format!(
            "{form} {}: in {}{driver_in}, out {}+{}",
            command.command,
            hex(command.core_in),
            command.core_out.len(),
            command.driver_out.len()
        );
        self.respond(&text, &mut [Output::Bytes(command.core_out), Output::Bytes(command.driver_out)])
    }

    #[allow(unsafe_code)]
    unsafe fn map(&self, offset: u64, len: usize) -> Result<Region, Errno> {
        let expected = self.state().maps.pop_front();
        let Some(wanted) = expected else { return Err(Errno::INVAL) };
        assert_eq!(offset, wanted.offset, "another mapping was expected");
        let (wanted_len, region) = wanted.reply?;
        assert_eq!(len, wanted_len, "another mapping was expected");
        Ok(region)
    }

    fn cmd_fd(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    fn is_device(&self) -> bool {
        self.is_device
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
