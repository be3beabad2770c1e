//! [`Peer`], [`EventPeer`]: the other process, and the exchange of lines, bytes or events with it.

use std::env;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::parent_id;
use std::process::{Child, Command, Stdio};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::Result;

/// The other process. It ends when it is killed, or if it makes no progress.
pub(crate) struct Peer(Child);

impl Peer {
    /// Starts this program again with the arguments `peer ARGUMENTS`.
    pub(crate) fn start(arguments: &[&str]) -> Result<Self> {
        Self::start_with(arguments, Stdio::piped(), Stdio::piped())
    }

    /// Starts this program again with these files as its input and output.
    fn start_with(arguments: &[&str], stdin: Stdio, stdout: Stdio) -> Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.arg("peer").args(arguments).stdin(stdin).stdout(stdout);
        Ok(Self(command.spawn()?))
    }

    /// Sends a line to the process and reads one line.
    pub(crate) fn exchange(&mut self, line: &str) -> Result<String> {
        let (Some(to), Some(from)) = (&mut self.0.stdin, &mut self.0.stdout) else {
            return Err("no pipes".into());
        };
        exchange(to, from, line)
    }

    /// Sends a byte to the process and waits for one byte.
    pub(crate) fn exchange_byte(&mut self) -> Result<()> {
        let (Some(to), Some(from)) = (&mut self.0.stdin, &mut self.0.stdout) else {
            return Err("no pipes".into());
        };
        to.write_all(&[1])?;
        Ok(from.read_exact(&mut [0])?)
    }
}

/// A process that waits on an eventfd, and the eventfds for exchanging events with it.
pub(crate) struct EventPeer {
    to: EventFd,
    from: EventFd,
    _peer: Peer,
}

impl EventPeer {
    pub(crate) fn start() -> Result<Self> {
        let event = || EventFd::from_flags(EfdFlags::EFD_CLOEXEC);
        let (to, from) = (event()?, event()?);
        let (stdin, stdout) = (to.as_fd().try_clone_to_owned()?, from.as_fd().try_clone_to_owned()?);
        let peer = Peer::start_with(&["eventfds"], stdin.into(), stdout.into())?;
        Ok(Self { to, from, _peer: peer })
    }

    /// Sends an event to the process and waits for one event.
    pub(crate) fn exchange(&self) -> Result<()> {
        self.to.write(1)?;
        self.from.read()?;
        Ok(())
    }
}

/// Runs the other process's side of [`EventPeer::exchange`] until the parent kills it.
pub(crate) fn return_events() -> Result<()> {
    let (from, to) = (std::io::stdin(), std::io::stdout());
    let mut count = [0; 8];
    loop {
        nix::unistd::read(from.as_fd(), &mut count)?;
        nix::unistd::write(&to, &count)?;
    }
}

/// Keeps a processor busy, until the parent kills this process or the parent ends.
pub(crate) fn spin() {
    let parent = parent_id();
    while parent_id() == parent {
        for _ in 0..1 << 20 {
            std::hint::spin_loop();
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the other process's side of [`Peer::exchange`].
pub(crate) fn exchange_with_parent(line: &str) -> Result<String> {
    exchange(&mut std::io::stdout(), &mut std::io::stdin(), line)
}

/// Reads the first line of the parent's next [`Peer::exchange`].
pub(crate) fn read_line() -> Result<String> {
    line_from(&mut std::io::stdin())
}

/// Runs the other process's side of [`Peer::exchange_byte`] until the parent kills it.
pub(crate) fn return_bytes() -> Result<()> {
    let (mut from, mut to) = (std::io::stdin().lock(), std::io::stdout().lock());
    loop {
        from.read_exact(&mut [0])?;
        to.write_all(&[1])?;
        to.flush()?;
    }
}

fn exchange(to: &mut impl Write, from: &mut impl Read, line: &str) -> Result<String> {
    writeln!(to, "{line}")?;
    to.flush()?;
    line_from(from)
}

fn line_from(from: &mut impl Read) -> Result<String> {
    // Reads no byte beyond the line, because the rest belongs to the next call.
    let mut answer = Vec::new();
    loop {
        let mut byte = [0];
        from.read_exact(&mut byte)?;
        match byte {
            [b'\n'] => return Ok(String::from_utf8(answer)?),
            [other] => answer.push(other),
        }
    }
}
