//! [`Control`]: a client of the control socket, which injects faults line by line.
//!
//! The client sends a line of the fault language and receives a reply of one or more lines. The
//! last line of the reply begins with `ok` or `error`.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use roce::engine::Time;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::device::Device;

/// A client of the control socket.
#[derive(Debug)]
pub(super) struct Control {
    stream: UnixStream,
    line: Vec<u8>,
    out: Vec<u8>,
}

/// The error if the client has disconnected or has sent invalid UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gone;

impl Control {
    /// Returns a client of the control socket. The stream must be non-blocking.
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, line: Vec::new(), out: Vec::new() }
    }

    /// Returns the socket to poll.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Returns whether the connection waits for space in the socket rather than for a line.
    pub(super) fn is_full(&self) -> bool {
        !self.out.is_empty()
    }

    /// Sends pending replies, or reads and executes lines.
    ///
    /// # Errors
    /// [`Gone`] if the client must be dropped.
    pub(super) fn step(&mut self, device: &mut impl Device, now: Time) -> Result<(), Gone> {
        if !self.is_full() {
            let mut bytes = [0; 1024];
            let count = match recv(&self.stream, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Gone),
                Ok((count, _)) => count,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(_) => return Err(Gone),
            };
            self.line.extend(bytes.get(..count).unwrap_or_default());
            while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.line.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                if !line.trim().is_empty() {
                    let response = device.control(line.trim(), now);
                    self.out.extend(response.trim_end().bytes().chain([b'\n']));
                }
            }
            if self.line.len() > LONGEST {
                return Err(Gone);
            }
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Gone> {
        while !self.out.is_empty() {
            match send(&self.stream, &self.out, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => drop(self.out.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(_) => return Err(Gone),
            }
        }
        Ok(())
    }
}

/// Maximum length of a line, in bytes.
const LONGEST: usize = 4096;
