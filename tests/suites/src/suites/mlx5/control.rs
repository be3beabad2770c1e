//! [`Control`]: the ConnectX model's control channel, a virtio port of the guest. The guest writes
//! a line, for example to inject a fault. The model returns lines; the last one begins with `ok` or
//! `error`.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use verbs_harness::runner::{CaseResult, fail, skip};

/// Path of the channel in the guest.
pub const PATH: &str = "/dev/connectx";

/// Deadline for a reply: the model is fast, but an emulated guest is slow to receive it.
const LIMIT: Duration = Duration::from_secs(30);

/// The channel, which one process at a time can open.
pub struct Control {
    port: BufReader<File>,
}

impl Control {
    /// Opens the channel.
    ///
    /// # Errors
    /// A skip if the channel does not exist, because the device is not the model; a failure if it
    /// cannot be opened, for example because another process has it open.
    pub fn open() -> CaseResult<Self> {
        if !Path::new(PATH).exists() {
            return skip("no control channel: the device is not the ConnectX model");
        }
        Ok(Self { port: BufReader::new(File::options().read(true).write(true).open(PATH)?) })
    }

    /// Writes a line and returns the lines of the reply before its `ok`.
    ///
    /// # Errors
    /// Fails if the model does not reply in time, or replies with an error.
    pub fn say(&mut self, line: &str) -> CaseResult<Vec<String>> {
        self.port.get_mut().write_all(format!("{line}\n").as_bytes())?;
        let mut lines = Vec::new();
        loop {
            let answer = self.line(line)?;
            match read_answer(&answer) {
                Answer::More => lines.push(answer),
                Answer::Done => return Ok(lines),
                Answer::Refused => return fail(format_args!("the model answers {answer:?} to {line:?}")),
            }
        }
    }

    fn line(&mut self, to: &str) -> CaseResult<String> {
        let limit = PollTimeout::try_from(LIMIT).unwrap_or(PollTimeout::MAX);
        let mut line = String::new();
        while !line.ends_with('\n') {
            let is_there = !self.port.buffer().is_empty()
                || poll(&mut [PollFd::new(self.port.get_ref().as_fd(), PollFlags::POLLIN)], limit)? > 0;
            if !is_there {
                return fail(format_args!("no answer to {to:?} within {LIMIT:?}"));
            }
            if self.port.read_line(&mut line)? == 0 {
                return fail(format_args!("the model closed the channel without an answer to {to:?}"));
            }
        }
        Ok(line.trim_end().to_owned())
    }

    /// Opens the channel for one line.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`say`](Self::say).
    pub fn tell(line: &str) -> CaseResult<Vec<String>> {
        Self::open()?.say(line)
    }

    /// Returns the model's complaints since the last call.
    ///
    /// # Errors
    /// As [`tell`](Self::tell).
    pub fn complaints() -> CaseResult<Vec<String>> {
        Self::tell("complaints take")
    }
}

/// Kinds of lines in a reply.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    More,
    Done,
    Refused,
}

fn read_answer(line: &str) -> Answer {
    match line.split(' ').next() {
        Some("ok") => Answer::Done,
        Some("error" | "error:") => Answer::Refused,
        _ => Answer::More,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_with_ok_or_error() {
        assert_eq!(read_answer("ok"), Answer::Done);
        assert_eq!(read_answer("ok 3 functions"), Answer::Done);
        assert_eq!(read_answer("error: dance?"), Answer::Refused);
        assert_eq!(read_answer("error dance?"), Answer::Refused);
        assert_eq!(read_answer("okay"), Answer::More);
        assert_eq!(read_answer("qp 0x12 rc"), Answer::More);
    }
}
