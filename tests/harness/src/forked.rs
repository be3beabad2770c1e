//! Runs a function in a child process with a deadline, by fork without exec, and sets environment
//! variables.
//!
//! In an emulated guest, executing a program as large as the suites takes longer than most cases.
//! The caller has a single thread, so the child can do everything that the caller could.
//!
//! # Safety
//! A child forked from a multi-threaded process may call almost nothing, because another thread may
//! have held any lock. No thread may read the environment while another changes it. Both functions
//! therefore first check that the process has one thread.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, PipeReader, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, exit};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stderr, dup2_stdin, dup2_stdout, fork, setpgid};

use crate::process::Finished;

/// Runs a function in a child, which leads a new process group and has no input. Kills the group
/// once the child ends or `limit` has passed. `run` returns the child's exit status.
///
/// # Errors
/// Fails if this process has several threads; any errno from creating a child. The inner error is
/// the output of a child killed at the limit.
pub fn run_group(run: impl FnOnce() -> u8, limit: Duration) -> io::Result<Result<Finished, Finished>> {
    let group = Group::start(run, limit)?;
    let mut groups = [group];
    wait_for_any(&mut groups)?;
    let [group] = groups;
    group.finish()
}

/// A function in a child, which leads a process group. Dropping it kills the group.
pub struct Group {
    child: Child,
    /// A descriptor that becomes readable when the child ends.
    ended: OwnedFd,
    output: Output,
    deadline: Instant,
    is_in_time: bool,
}

impl Group {
    /// Starts a function like [`run_group`].
    ///
    /// # Errors
    /// Fails if this process has several threads; any errno from creating a child.
    pub fn start(run: impl FnOnce() -> u8, limit: Duration) -> io::Result<Self> {
        alone()?;
        let deadline = Instant::now() + limit;
        let (stdout, child_stdout) = io::pipe()?;
        let (stderr, child_stderr) = io::pipe()?;
        let input = File::open("/dev/null")?;
        // SAFETY: this process has one thread, see the head of the file.
        let child = match unsafe { fork() }? {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                drop((stdout, stderr));
                let ready = setpgid(Pid::this(), Pid::from_raw(0))
                    .and_then(|()| dup2_stdin(&input))
                    .and_then(|()| dup2_stdout(&child_stdout))
                    .and_then(|()| dup2_stderr(&child_stderr));
                drop((input, child_stdout, child_stderr));
                exit(if ready.is_ok() { run().into() } else { NOT_READY })
            }
        };
        drop((child_stdout, child_stderr));
        let child = Child::new(child);
        let output = Output { pipes: [Some(stdout), Some(stderr)], read: [Vec::new(), Vec::new()] };
        Ok(Self { ended: child.ended()?, child, output, deadline, is_in_time: false })
    }

    /// Kills the group and returns its output, as the inner error if the child had not ended.
    ///
    /// # Errors
    /// Any errno from waiting for the child or from reading its output.
    pub fn finish(mut self) -> io::Result<Result<Finished, Finished>> {
        self.child.kill();
        let status = self.child.wait()?;
        self.output.read_rest()?;
        let [stdout, stderr] = self.output.read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let finished = Finished { status, stdout, stderr };
        Ok(if self.is_in_time { Ok(finished) } else { Err(finished) })
    }
}

/// Waits until any group's child has ended or its time limit has passed. Returns that group's
/// index. While waiting, reads the output of all groups.
///
/// # Errors
/// Any errno from waiting or reading.
///
/// # Panics
/// Panics if `groups` is empty.
pub fn wait_for_any(groups: &mut [Group]) -> io::Result<usize> {
    loop {
        let first = groups.iter().enumerate().min_by_key(|(_, group)| group.deadline);
        let (first, deadline) = first.map(|(index, group)| (index, group.deadline)).expect("a group");
        let sources = groups.iter().enumerate().flat_map(|(index, group)| {
            let output = group.output.sources().map(move |(pipe, fd)| ((index, Some(pipe)), fd));
            output.chain([((index, None), group.ended.as_fd())])
        });
        let Some(ready) = ready(sources, deadline)? else { return Ok(first) };
        for (index, pipe) in ready {
            match pipe {
                Some(pipe) => groups[index].output.read(pipe)?,
                None => {
                    groups[index].is_in_time = true;
                    return Ok(index);
                }
            }
        }
    }
}

/// Sets environment variables that libraries read later.
///
/// # Errors
/// Fails if this process has several threads.
pub fn set_variables(variables: &[(&str, &str)]) -> io::Result<()> {
    alone()?;
    for (name, value) in variables {
        // SAFETY: this process has one thread, so no other thread reads the environment.
        unsafe { std::env::set_var(name, value) };
    }
    Ok(())
}

/// Checks that this process has one thread.
fn alone() -> io::Result<()> {
    let of_emulator =
        std::env::var(EMULATOR_THREADS).ok().and_then(|number| number.parse().ok()).unwrap_or(0);
    match fs::read_dir("/proc/self/task")?.count().saturating_sub(of_emulator) {
        1 => Ok(()),
        threads => Err(io::Error::other(format!("a case's process has {threads} threads at its start"))),
    }
}

/// The variable with the number of threads that an emulator adds to each process. QEMU's user
/// emulation adds one thread and starts it again in a child.
pub const EMULATOR_THREADS: &str = "VERBS_EMULATOR_THREADS";

/// The exit status of a child that could not set up its descriptors.
const NOT_READY: i32 = 125;

/// A child that leads a process group. Dropping it kills the group.
struct Child {
    pid: Pid,
    is_reaped: Cell<bool>,
}

impl Child {
    fn new(pid: Pid) -> Self {
        // The child makes the same call. This call fails if the child has already executed another
        // program. It has no effect if the child has ended.
        let _ = setpgid(pid, pid);
        Self { pid, is_reaped: Cell::new(false) }
    }

    /// Returns a descriptor that becomes readable when the child ends.
    fn ended(&self) -> io::Result<OwnedFd> {
        // SAFETY: the call takes two numbers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid.as_raw(), 0) };
        let fd = i32::try_from(fd).ok().filter(|&fd| fd >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the call created the descriptor, and only this value has its number.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Kills the group. The child has not been reaped, so the group id cannot be reused.
    fn kill(&self) {
        // Fails if the whole group has ended.
        let _ = killpg(self.pid, Signal::SIGKILL);
    }

    fn wait(&self) -> io::Result<ExitStatus> {
        let status = loop {
            match waitpid(self.pid, None) {
                Err(Errno::EINTR) => {}
                Ok(WaitStatus::Exited(_, code)) => break code << 8,
                Ok(WaitStatus::Signaled(_, signal, _)) => break signal as i32,
                // `waitpid` reports stopped and continued children only on request.
                Ok(other) => return Err(io::Error::other(format!("{other:?}"))),
                Err(error) => return Err(error.into()),
            }
        };
        self.is_reaped.set(true);
        Ok(ExitStatus::from_raw(status))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.is_reaped.get() {
            self.kill();
            let _ = self.wait();
        }
    }
}

/// The number of pipes: standard output and standard error.
const PIPES: usize = 2;

/// The output of a child, from its two pipes.
struct Output {
    /// The pipes; `None` once a pipe has reached end of file.
    pipes: [Option<PipeReader>; PIPES],
    read: [Vec<u8>; PIPES],
}

impl Output {
    /// Returns the pipes not yet at end of file.
    fn sources(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        self.pipes.iter().enumerate().filter_map(|(which, pipe)| Some((which, pipe.as_ref()?.as_fd())))
    }

    /// Reads from a ready pipe.
    fn read(&mut self, which: usize) -> io::Result<()> {
        let mut chunk = [0; 16 * 1024];
        let count = self.pipes[which].as_mut().map_or(Ok(0), |pipe| pipe.read(&mut chunk))?;
        self.read[which].extend(&chunk[..count]);
        if count == 0 {
            self.pipes[which] = None;
        }
        Ok(())
    }

    /// Reads the remaining output after the group has ended. Waits only briefly, in case another
    /// process inherited the pipes and still runs.
    fn read_rest(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.pipes.iter().any(Option::is_some) {
            let Some(ready) = ready(self.sources(), deadline)? else { break };
            ready.into_iter().try_for_each(|which| self.read(which))?;
        }
        Ok(())
    }
}

/// Waits until descriptors are readable or at end of file. Returns their keys; `None` after the
/// deadline.
fn ready<'fd, K>(
    sources: impl Iterator<Item = (K, BorrowedFd<'fd>)>,
    deadline: Instant,
) -> io::Result<Option<Vec<K>>> {
    let (keys, mut fds): (Vec<K>, Vec<PollFd<'_>>) =
        sources.map(|(key, fd)| (key, PollFd::new(fd, PollFlags::POLLIN))).unzip();
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left.as_millis().min(i32::MAX as u128)).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, timeout) {
        Ok(0) => return Ok(None),
        Ok(_) => {}
        Err(Errno::EINTR) => return Ok(Some(Vec::new())),
        Err(error) => return Err(error.into()),
    }
    Ok(Some(keys.into_iter().zip(fds).filter_map(|(key, fd)| fd.any()?.then_some(key)).collect()))
}
