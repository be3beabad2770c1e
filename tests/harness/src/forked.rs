//! Runs a function in a child process, with a deadline, by fork without exec; sets environment
//! variables for it.
//!
//! In an emulated guest, exec of a program as large as the suites' takes longer than most cases.
//! The caller has a single thread, so the child can do everything that the caller could.
//!
//! # Safety
//! A child of a multi-threaded process may call almost nothing, because another thread may have
//! held any lock. No thread may read the environment while another changes it. Both functions
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
/// when the child ends or `limit` has passed. The function returns the child's exit status.
///
/// # Errors
/// Several threads in this process; any errno of creating a child. The inner error is the output of
/// a child killed at the limit.
pub fn run_group(run: impl FnOnce() -> u8, limit: Duration) -> io::Result<Result<Finished, Finished>> {
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
    let mut output = Output { pipes: [Some(stdout), Some(stderr)], read: [Vec::new(), Vec::new()] };
    let in_time = output.read_until_end_of(child.ended()?.as_fd(), deadline)?;
    child.kill();
    let status = child.wait()?;
    output.read_rest()?;
    let [stdout, stderr] = output.read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let finished = Finished { status, stdout, stderr };
    Ok(if in_time { Ok(finished) } else { Err(finished) })
}

/// Sets environment variables, to be read later by libraries.
///
/// # Errors
/// Several threads in this process.
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

/// Variable with the number of threads added to each process by an emulator. QEMU's user emulation
/// adds one and starts it again in a child.
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
        // The child makes the same call. This one fails if the child has already executed another
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

    /// Kills the group. The child has not been reaped, so the group's number cannot be reused.
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
                // Not requested: `waitpid` reports stopping and continuing only on demand.
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

/// Standard output and standard error.
const PIPES: usize = 2;

/// The output of a child, from its two pipes.
struct Output {
    /// `None` after the end of the pipe.
    pipes: [Option<PipeReader>; PIPES],
    read: [Vec<u8>; PIPES],
}

impl Output {
    /// Reads until the child has ended. Returns whether it ended before the deadline.
    fn read_until_end_of(&mut self, ended: BorrowedFd<'_>, deadline: Instant) -> io::Result<bool> {
        loop {
            let Some(is_ready) = self.read_ready(Some(ended), deadline)? else { return Ok(false) };
            if is_ready {
                return Ok(true);
            }
        }
    }

    /// Reads the remaining output after the end of the group. The wait is short, in case another
    /// process inherited the pipes and still runs.
    fn read_rest(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.pipes.iter().any(Option::is_some) && self.read_ready(None, deadline)?.is_some() {}
        Ok(())
    }

    /// Waits until a pipe has bytes, and reads them, or until `ended` is ready. Returns whether
    /// `ended` is ready; `None` after the deadline.
    fn read_ready(&mut self, ended: Option<BorrowedFd<'_>>, deadline: Instant) -> io::Result<Option<bool>> {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout =
            PollTimeout::try_from(left.as_millis().min(i32::MAX as u128)).unwrap_or(PollTimeout::MAX);
        let pipes = self.pipes.iter().map(|pipe| pipe.as_ref().map(PipeReader::as_fd));
        let (which, mut fds): (Vec<usize>, Vec<PollFd<'_>>) = pipes
            .chain([ended])
            .enumerate()
            .filter_map(|(which, fd)| Some((which, PollFd::new(fd?, PollFlags::POLLIN))))
            .unzip();
        let count = match poll(&mut fds, timeout) {
            Err(Errno::EINTR) => return Ok(Some(false)),
            count => count?,
        };
        if count == 0 {
            return Ok(None);
        }
        let ready: Vec<usize> =
            which.into_iter().zip(fds).filter_map(|(which, fd)| fd.any()?.then_some(which)).collect();
        for &which in ready.iter().filter(|&&which| which < PIPES) {
            let mut chunk = [0; 16 * 1024];
            let count = self.pipes[which].as_mut().map_or(Ok(0), |pipe| pipe.read(&mut chunk))?;
            self.read[which].extend(&chunk[..count]);
            if count == 0 {
                self.pipes[which] = None;
            }
        }
        Ok(Some(ready.contains(&PIPES)))
    }
}
