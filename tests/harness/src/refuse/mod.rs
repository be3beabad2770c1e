//! Runs work under a filter that rejects newer kernel interfaces, to test the older ones.
//!
//! | file | content |
//! |---|---|
//! | [`filter`] | the filter, a classic BPF program: selects system calls for the supervisor |
//! | [`seccomp`] | the kernel's interface |
//!
//! The supervisor is the thread calling [`run`]. It decides on each selected call according to the
//! [`Mode`] and counts the calls. All threads and processes that the work starts are under the
//! filter as well.

pub mod filter;
pub mod seccomp;

use core::fmt;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::mpsc;
use std::thread;

use uverbs_abi::ib_user_ioctl_cmds::{UVERBS_METHOD_INVOKE_WRITE, UVERBS_OBJECT_DEVICE};
use uverbs_abi::ib_user_verbs::IB_USER_VERBS_CMD_POST_SEND;
use uverbs_abi::rdma_user_ioctl_cmds::IbUverbsIoctlHdr;
use zerocopy::{FromZeros as _, IntoBytes as _};

use seccomp::{Asked, Listener};

/// The commands to reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Every `RDMA_VERBS_IOCTL`, with ENOTTY: a kernel before 4.20, or a container's filter.
    Ioctl,
    /// Only the INVOKE_WRITE method, with EPROTONOSUPPORT: a kernel without the bridge to the write
    /// commands.
    InvokeWrite,
    /// RDMA netlink, with EPROTONOSUPPORT: a kernel that lacks it or denies it to programs.
    Netlink,
}

impl Mode {
    /// All modes of the filter.
    pub const ALL: [Self; 3] = [Self::Ioctl, Self::InvokeWrite, Self::Netlink];

    /// Returns the name that the command line uses for the mode.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ioctl => "ioctl",
            Self::InvokeWrite => "invoke-write",
            Self::Netlink => "netlink",
        }
    }

    /// Returns the mode with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// The supervisor's counts. `refuse` prints them as its last line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of rejected calls.
    pub refused: u64,
    /// The number of `RDMA_VERBS_IOCTL` calls that passed.
    pub passed: u64,
    /// The number of commands written to a uverbs device, by command number. Excludes rxe's
    /// doorbells (`POST_SEND`), which are a `write()` on every kernel.
    pub written: BTreeMap<u32, u64>,
    /// The number of doorbells rung with a `write()`.
    pub doorbells: u64,
}

impl Counts {
    /// Returns the number of commands, other than doorbells, written to a uverbs device.
    pub fn writes(&self) -> u64 {
        self.written.values().sum()
    }

    /// Parses the counts from the last line that `refuse` writes to standard error.
    pub fn parse(stderr: &str) -> Option<Self> {
        let line = stderr.lines().rev().find_map(|line| line.strip_prefix(PREFIX))?;
        let (numbers, commands) = line.split_once(" | ")?;
        let mut numbers = numbers.split(", ").map(|part| part.split_once(' '));
        let mut next = |name: &str| match numbers.next()? {
            Some((number, text)) if text == name => number.parse().ok(),
            _ => None,
        };
        let (refused, passed) = (next(REFUSED)?, next(PASSED)?);
        let (writes, doorbells): (u64, u64) = (next(WRITES)?, next(DOORBELLS)?);
        let mut written = BTreeMap::new();
        for entry in commands.split(' ').filter(|entry| !entry.is_empty()) {
            let (command, count) = entry.split_once('x')?;
            written.insert(command.parse().ok()?, count.parse().ok()?);
        }
        let counts = Self { refused, passed, written, doorbells };
        (counts.writes() == writes).then_some(counts)
    }
}

const PREFIX: &str = "refuse: ";
const REFUSED: &str = "calls refused";
const PASSED: &str = "ioctls passed";
const WRITES: &str = "write commands";
const DOORBELLS: &str = "doorbells";

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { refused, passed, doorbells, .. } = self;
        let writes = self.writes();
        write!(
            f,
            "{PREFIX}{refused} {REFUSED}, {passed} {PASSED}, {writes} {WRITES}, {doorbells} {DOORBELLS} |"
        )?;
        if self.written.is_empty() {
            // Completes the separator even if no list follows.
            f.write_str(" ")?;
        }
        self.written.iter().try_for_each(|(command, count)| write!(f, " {command}x{count}"))
    }
}

/// Runs `work` in a new thread under the filter and supervises until all its threads and processes
/// have ended.
///
/// # Errors
/// Fails if the kernel does not support the filter or supervision fails.
///
/// # Panics
/// Panics if `work` panics.
pub fn run<T: Send>(mode: Mode, work: impl FnOnce() -> T + Send) -> io::Result<(T, Counts)> {
    thread::scope(|scope| {
        let (send, receive) = mpsc::channel();
        let worker = scope.spawn(move || {
            let installed = seccomp::install(&filter::program());
            let go_on = installed.is_ok();
            // The supervisor receives it unless it panicked, which the scope reports.
            let _ = send.send(installed);
            go_on.then(work)
        });
        let listener = receive.recv().map_err(io::Error::other)??;
        let counts = supervise(mode, &listener);
        // If the supervisor failed, no call may keep waiting for it. Without a listener, calls
        // fail.
        drop(listener);
        let result = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let result = result.ok_or_else(|| io::Error::other("the filter was not installed"))?;
        Ok((result, counts?))
    })
}

/// Rejects, with ENOTTY, every `RDMA_VERBS_IOCTL` from the calling thread and from everything that
/// it starts from now on. Nothing counts the rejections, so a whole suite can run this way.
///
/// # Errors
/// Fails if the kernel does not support the filter, or if the filter does not reject the call.
pub fn every_ioctl() -> io::Result<()> {
    seccomp::install_for_good(&filter::without_ioctls())?;
    // The descriptor does not exist, but the filter acts before the kernel looks it up.
    match seccomp::verbs_ioctl_on_no_file() {
        libc::ENOTTY => Ok(()),
        errno => Err(io::Error::other(format!("an ioctl was not refused: errno {errno}"))),
    }
}

fn supervise(mode: Mode, listener: &Listener) -> io::Result<Counts> {
    let mut counts = Counts::default();
    while let Some(asked) = listener.next()? {
        let verdict = match asked.nr {
            libc::SYS_ioctl => judge_ioctl(mode, &asked),
            libc::SYS_socket if mode == Mode::Netlink => Verdict::Refuse(libc::EPROTONOSUPPORT),
            libc::SYS_socket => Verdict::PassOther,
            _ => judge_write(&asked),
        };
        // If the process has ended, the memory may have been read from another process.
        if !listener.is_valid(&asked) {
            continue;
        }
        match verdict {
            Verdict::Refuse(_) => counts.refused += 1,
            Verdict::PassIoctl => counts.passed += 1,
            Verdict::PassCommand(IB_USER_VERBS_CMD_POST_SEND) => counts.doorbells += 1,
            Verdict::PassCommand(command) => *counts.written.entry(command).or_default() += 1,
            Verdict::PassOther => {}
        }
        let errno = if let Verdict::Refuse(errno) = verdict { Some(errno) } else { None };
        listener.answer(&asked, errno)?;
    }
    Ok(counts)
}

enum Verdict {
    Refuse(i32),
    PassIoctl,
    PassCommand(u32),
    PassOther,
}

fn judge_ioctl(mode: Mode, asked: &Asked) -> Verdict {
    match mode {
        Mode::Ioctl => Verdict::Refuse(libc::ENOTTY),
        Mode::Netlink => Verdict::PassIoctl,
        Mode::InvokeWrite => {
            let mut header = IbUverbsIoctlHdr::new_zeroed();
            // If the memory cannot be read, the kernel rejects the call.
            let read = memory_of(asked.pid, asked.args[2], header.as_mut_bytes()).is_ok();
            let method = (header.object_id, header.method_id);
            if read && method == (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE) {
                Verdict::Refuse(libc::EPROTONOSUPPORT)
            } else {
                Verdict::PassIoctl
            }
        }
    }
}

fn judge_write(asked: &Asked) -> Verdict {
    let link = format!("/proc/{}/fd/{}", asked.pid, asked.args[0]);
    // Compares only the end of the path, because its start differs under another root.
    let is_uverbs = fs::read_link(link).is_ok_and(|path| {
        path.to_str()
            .is_some_and(|path| path.contains("/infiniband/uverbs") || path.contains("/dev/char/231:"))
    });
    let mut command = [0; 4];
    if !is_uverbs || memory_of(asked.pid, asked.args[1], &mut command).is_err() {
        return Verdict::PassOther;
    }
    // The upper bits are flags.
    Verdict::PassCommand(u32::from_ne_bytes(command) & 0xff)
}

fn memory_of(pid: u32, address: u64, buffer: &mut [u8]) -> io::Result<()> {
    File::open(format!("/proc/{pid}/mem"))?.read_exact_at(buffer, address)
}

#[cfg(test)]
mod tests;
