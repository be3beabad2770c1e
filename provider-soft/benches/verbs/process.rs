//! The other process and the exchange of two lines with it.

use std::env;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use crate::Result;

/// The other process. It ends when it is killed or makes no progress.
pub(crate) struct Peer(Child);

impl Peer {
    /// Starts this program again, as `peer ARGUMENTS`.
    pub(crate) fn start(arguments: &[&str]) -> Result<Self> {
        let child = Command::new(env::current_exe()?)
            .arg("peer")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Self(child))
    }

    /// Sends the process a line and reads one.
    pub(crate) fn exchange(&mut self, line: &str) -> Result<String> {
        let (Some(to), Some(from)) = (&mut self.0.stdin, &mut self.0.stdout) else {
            return Err("no pipes".into());
        };
        exchange(to, from, line)
    }

    /// Sends the process a byte and waits for one.
    pub(crate) fn exchange_byte(&mut self) -> Result<()> {
        let (Some(to), Some(from)) = (&mut self.0.stdin, &mut self.0.stdout) else {
            return Err("no pipes".into());
        };
        to.write_all(&[1])?;
        Ok(from.read_exact(&mut [0])?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The other process' end of [`Peer::exchange`].
pub(crate) fn exchange_with_parent(line: &str) -> Result<String> {
    exchange(&mut std::io::stdout(), &mut std::io::stdin(), line)
}

/// The other process' end of [`Peer::exchange_byte`], until the parent ends it.
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
    // Not a byte beyond the line, because the rest belongs to the next call.
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
