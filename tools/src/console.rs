//! [`Console`]: standard output and standard error, in order.
//!
//! Output is gathered and written in one go: before a complaint, before the program waits, and at its end. So a listing
//! costs one system call, and on a terminal everything appears in the order in which it was said.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;

use verbs::{DeviceList, Errno, Source};

use crate::getopt::Misuse;

/// Something failed, and the program has said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

/// Where a program talks.
#[derive(Debug)]
pub struct Console {
    program: OsString,
    out: Vec<u8>,
    captured: Option<Captured>,
}

/// What was said, to be looked at rather than written.
#[derive(Debug, Default)]
struct Captured {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Console {
    /// The console of a program with this name: `argv[0]`, which complaints begin with.
    pub fn new(program: OsString) -> Self {
        Self { program, out: Vec::new(), captured: None }
    }

    /// A console that keeps what is said to itself, for tests.
    pub fn captured(program: &str) -> Self {
        Self { program: program.into(), out: Vec::new(), captured: Some(Captured::default()) }
    }

    /// What was said on the standard output of a captured console.
    pub fn said(&mut self) -> String {
        self.flush();
        self.captured.as_ref().map(|captured| lossy(&captured.stdout)).unwrap_or_default()
    }

    /// What was said on the standard error of a captured console.
    pub fn complaints(&self) -> String {
        self.captured.as_ref().map(|captured| lossy(&captured.stderr)).unwrap_or_default()
    }

    /// The program's name.
    pub fn program(&self) -> &OsStr {
        &self.program
    }

    /// Says something on standard output, after the next [`flush`](Self::flush).
    pub fn say(&mut self, text: impl fmt::Display) {
        // A vector takes all that is written to it, and what is written here does not fail to be displayed.
        let _ = write!(self.out, "{text}");
    }

    /// Writes what was said so far.
    ///
    /// Ends the process when nobody reads it any more, with the status that a shell gives C's programs then; says what
    /// happened, and ends it too, when it cannot be written for another reason.
    pub fn flush(&mut self) {
        if self.out.is_empty() {
            return;
        }
        if let Some(captured) = &mut self.captured {
            captured.stdout.append(&mut self.out);
            return;
        }
        let mut stdout = io::stdout().lock();
        let written = stdout.write_all(&self.out).and_then(|()| stdout.flush());
        self.out.clear();
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(KILLED_BY_SIGPIPE),
            Err(error) => {
                self.reason(format_args!("cannot write to standard output: {}", describe(&error)));
                std::process::exit(1);
            }
        }
    }

    /// Says a line on standard error, as C's program does.
    pub fn complain(&mut self, line: impl fmt::Display) {
        self.complain_bytes(line.to_string().as_bytes());
    }

    /// Says on standard error why that was, which C's program does not tell.
    pub fn reason(&mut self, reason: impl fmt::Display) {
        let mut line = self.program.as_bytes().to_vec();
        line.extend_from_slice(format!(": {reason}").as_bytes());
        self.complain_bytes(&line);
    }

    /// As [`reason`](Self::reason), for `return Err(console.because(...))`.
    pub fn because(&mut self, reason: impl fmt::Display) -> Failed {
        self.reason(reason);
        Failed
    }

    /// Says what is wrong with the command line, on standard error.
    pub fn misuse(&mut self, misuse: &Misuse) {
        self.complain_bytes(&misuse.0);
    }

    fn complain_bytes(&mut self, line: &[u8]) {
        self.flush();
        let mut line = line.to_vec();
        line.push(b'\n');
        if let Some(captured) = &mut self.captured {
            captured.stderr.append(&mut line);
            return;
        }
        // Who closed standard error does not want to know.
        let _ = io::stderr().write_all(&line);
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.flush();
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The devices of this machine, or `None` after saying that, and why, they cannot be listed.
pub fn list_devices(console: &mut Console) -> Option<DeviceList> {
    let failed = |console: &mut Console, errno: Errno| {
        console.complain(format_args!("Failed to get IB devices list: {}", errno.description()));
    };
    match verbs::devices() {
        Ok(list) if list.source() != Source::None || !list.is_empty() => Some(list),
        Ok(list) => {
            failed(console, Errno::NOSYS);
            complain_of_missing(console, &list);
            if list.skipped().is_empty() {
                console.reason(NO_RDMA);
            }
            None
        }
        Err(error) => {
            failed(console, error.errno);
            console.reason(error);
            None
        }
    }
}

/// Says which devices somebody asked for by name or address that cannot be had, and why. What discovery left out nobody
/// asked for, and as in C is said only where a program finds no device.
pub fn complain_of_missing(console: &mut Console, list: &DeviceList) {
    for skipped in list.skipped().iter().filter(|skipped| skipped.reason.was_asked_for()) {
        console.reason(skipped);
    }
}

/// Says that there is no device, and which were left out.
pub fn complain_of_no_devices(console: &mut Console, list: &DeviceList) {
    console.complain("No IB devices found");
    for skipped in list.skipped() {
        console.reason(skipped);
    }
}

/// An error of the operating system as `perror(3)` words it, without the number that Rust adds.
pub fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    let number = error.raw_os_error().map(|raw| format!(" (os error {raw})")).unwrap_or_default();
    text.strip_suffix(&number).unwrap_or(&text).to_owned()
}

/// Why there is nothing to list.
const NO_RDMA: &str = "this kernel has no RDMA loaded: modprobe ib_uverbs and the device's driver, or set VERBS_SOFT=auto \
                       for a device over UDP that needs neither";

/// 128 + SIGPIPE.
const KILLED_BY_SIGPIPE: i32 = 141;
