//! [`Console`]: standard output and standard error, in order.
//!
//! Output is collected. It is written before an error message, before the program waits, and when
//! the program ends. A listing therefore needs one system call, and a terminal shows everything in
//! order.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;

use verbs::{DeviceList, Errno, Source};

use crate::getopt::Misuse;

/// A failure that the program has already reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

/// A program's standard output and standard error.
#[derive(Debug)]
pub struct Console {
    program: OsString,
    out: Vec<u8>,
    captured: Option<Captured>,
}

/// The text captured in place of standard output and standard error.
#[derive(Debug, Default)]
struct Captured {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Console {
    /// Creates a program's console. `program` is `argv[0]`, the prefix of error messages.
    pub fn new(program: OsString) -> Self {
        Self { program, out: Vec::new(), captured: None }
    }

    /// Creates a console that captures its output, for tests.
    pub fn captured(program: &str) -> Self {
        Self { program: program.into(), out: Vec::new(), captured: Some(Captured::default()) }
    }

    /// Returns and clears the captured standard output.
    pub fn said(&mut self) -> String {
        self.flush();
        self.captured.as_ref().map(|captured| lossy(&captured.stdout)).unwrap_or_default()
    }

    /// Returns the captured standard error.
    pub fn complaints(&self) -> String {
        self.captured.as_ref().map(|captured| lossy(&captured.stderr)).unwrap_or_default()
    }

    /// Returns the program's name.
    pub fn program(&self) -> &OsStr {
        &self.program
    }

    /// Prints to standard output at the next [`flush`](Self::flush).
    pub fn say(&mut self, text: impl fmt::Display) {
        // Neither writing to a vector nor these `Display` impls fail.
        let _ = write!(self.out, "{text}");
    }

    /// Writes the collected text.
    ///
    /// If standard output no longer has a reader, ends the process with the same status as the C
    /// programs in a shell. Also ends the process after reporting any other write error.
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

    /// Prints a line to standard error, like the C program.
    pub fn complain(&mut self, line: impl fmt::Display) {
        self.complain_bytes(line.to_string().as_bytes());
    }

    /// Prints the reason for a failure to standard error. The C programs print none.
    pub fn reason(&mut self, reason: impl fmt::Display) {
        let mut line = self.program.as_bytes().to_vec();
        line.extend_from_slice(format!(": {reason}").as_bytes());
        self.complain_bytes(&line);
    }

    /// Same as [`reason`](Self::reason), for `return Err(console.because(...))`.
    pub fn because(&mut self, reason: impl fmt::Display) -> Failed {
        self.reason(reason);
        Failed
    }

    /// Prints an error in the command line to standard error.
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
        // If standard error is closed, the failure cannot be reported.
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

/// Returns the devices of this machine, or `None` after reporting why they cannot be listed.
pub fn list_devices(console: &mut Console) -> Option<DeviceList> {
    list_devices_or(console, |console, errno| {
        console.complain(format_args!("Failed to get IB devices list: {}", errno.description()));
    })
}

/// Same as [`list_devices`], for a program with a different error message.
pub fn list_devices_or(console: &mut Console, failed: impl Fn(&mut Console, Errno)) -> Option<DeviceList> {
    match verbs::devices() {
        Ok(list) if list.source() != Source::None || !list.is_empty() => Some(list),
        Ok(list) => {
            let missing = list.skipped().iter().find(|skipped| skipped.reason.was_asked_for());
            failed(console, missing.map_or(Errno::NOSYS, |missing| missing.reason.errno()));
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

/// Reports unavailable devices that the user requested by name or address, with the reasons. As in
/// C, other devices that discovery omits are reported only if a program finds no device.
pub fn complain_of_missing(console: &mut Console, list: &DeviceList) {
    for skipped in list.skipped().iter().filter(|skipped| skipped.reason.was_asked_for()) {
        console.reason(skipped);
    }
}

/// Reports that no device was found and lists the omitted devices.
pub fn complain_of_no_devices(console: &mut Console, list: &DeviceList) {
    console.complain("No IB devices found");
    for skipped in list.skipped() {
        console.reason(skipped);
    }
}

/// Returns an operating system error like `perror(3)`, without the number that Rust appends.
pub fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    let number = error.raw_os_error().map(|raw| format!(" (os error {raw})")).unwrap_or_default();
    text.strip_suffix(&number).unwrap_or(&text).to_owned()
}

/// Returns the text of `strerror(3)`, which shows an unknown errno as a number. For example, some
/// calls on Linux fail with 524 (`ENOTSUPP`).
pub fn strerror(errno: Errno) -> String {
    describe(&io::Error::from_raw_os_error(errno.raw()))
}

/// The reason why the device list is empty.
pub(crate) const NO_RDMA: &str = "this kernel has no RDMA loaded: modprobe ib_uverbs and the device's driver, or set VERBS_SOFT=auto \
                       for a device over UDP that needs neither";

/// The exit status that a shell reports for a program killed by SIGPIPE: 128 + 13.
const KILLED_BY_SIGPIPE: i32 = 141;
