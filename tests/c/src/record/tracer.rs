//! The tracer: runs a command under `ptrace(2)` and records its calls to uverbs.
//!
//! It relies on no library in the command. The kernel stops the command at the entry and at the
//! exit of each system call. The tracer reads the arguments and the memory they point to from the
//! stopped process.
//!
//! # Safety
//! The child calls `ptrace(PTRACE_TRACEME)`, a system call without addresses, between fork and
//! exec. The tracer calls `ptrace(PTRACE_GET_SYSCALL_INFO)`, which writes one structure.
//!
//! # References
//! `ptrace(2)`, `process_vm_readv(2)`
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, IoSliceMut, Read as _, Seek as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, killpg};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use uverbs_abi::ib_user_verbs::IbUverbsCmdHdr;
use uverbs_abi::rdma_user_ioctl_cmds::{IbUverbsAttr, IbUverbsIoctlHdr, RDMA_VERBS_IOCTL};
use verbs_harness::process::Finished;
use zerocopy::{FromBytes as _, FromZeros as _, IntoBytes as _};

use super::{Call, Ioctl, Map, RawAttr, Recorded, Write};

/// Runs a command to its end, or kills it after `limit`, and records its calls to uverbs.
///
/// # Errors
/// Any errno from starting or tracing the command. The inner error is the output of a command
/// killed at the limit.
pub fn run(command: &mut Command, limit: Duration) -> io::Result<Result<Recorded, Finished>> {
    let mut outputs = [output()?, output()?];
    let [stdout, stderr] = [outputs[0].try_clone()?, outputs[1].try_clone()?];
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).process_group(0);
    // SAFETY: the closure makes one system call and neither allocates nor takes a lock.
    let child = unsafe { command.pre_exec(|| Ok(ptrace::traceme()?)) }.spawn()?;
    let pid = Pid::from_raw(child.id().cast_signed());
    // Kills the command at the limit while this thread waits for it. Only this thread may be the
    // tracer.
    let (end, ended) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        let is_late = ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
        if is_late {
            // Fails if the command has just ended.
            let _ = killpg(pid, Signal::SIGKILL);
        }
        is_late
    });
    let followed = Tracer::default().follow(pid);
    drop(end);
    if followed.is_err() {
        // Fails if the command has ended.
        let _ = killpg(pid, Signal::SIGKILL);
    }
    let is_late = watchdog.join().unwrap_or(false);
    let (status, calls) = followed?;
    let [stdout, stderr] = [text(&mut outputs[0])?, text(&mut outputs[1])?];
    let finished = Finished { status, stdout, stderr };
    Ok(if is_late { Err(finished) } else { Ok(Recorded { finished, calls }) })
}

/// The calls recorded from a process and its children.
#[derive(Default)]
struct Tracer {
    calls: Vec<Call>,
    /// The unfinished call of each thread.
    pending: HashMap<Pid, Call>,
}

impl Tracer {
    fn follow(mut self, leader: Pid) -> io::Result<(ExitStatus, Vec<Call>)> {
        let group = Pid::from_raw(-leader.as_raw());
        let mut is_attached = false;
        let mut status = None;
        loop {
            let stopped = match waitpid(group, Some(WaitPidFlag::__WALL)) {
                Ok(stopped) => stopped,
                Err(Errno::EINTR) => continue,
                // All threads and children have ended.
                Err(Errno::ECHILD) => break,
                Err(errno) => return Err(errno.into()),
            };
            let (pid, signal) = match stopped {
                WaitStatus::Stopped(pid, Signal::SIGTRAP) if !is_attached => {
                    is_attached = true;
                    let options = Options::PTRACE_O_TRACESYSGOOD
                        | Options::PTRACE_O_TRACECLONE
                        | Options::PTRACE_O_TRACEEXEC
                        | Options::PTRACE_O_EXITKILL;
                    ptrace::setoptions(pid, options)?;
                    (pid, None)
                }
                WaitStatus::PtraceSyscall(pid) => {
                    self.at_call(pid)?;
                    (pid, None)
                }
                // A new thread's first stop.
                WaitStatus::Stopped(pid, Signal::SIGSTOP) | WaitStatus::PtraceEvent(pid, ..) => (pid, None),
                WaitStatus::Stopped(pid, signal) => (pid, Some(signal)),
                WaitStatus::Exited(pid, code) => {
                    if pid == leader {
                        status = Some(ExitStatus::from_raw(code << 8));
                    }
                    continue;
                }
                WaitStatus::Signaled(pid, signal, _) => {
                    if pid == leader {
                        status = Some(ExitStatus::from_raw(signal as i32));
                    }
                    continue;
                }
                _ => continue,
            };
            match ptrace::syscall(pid, signal) {
                // The thread was killed while it was stopped.
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let status = status.ok_or_else(|| io::Error::other("the command's end was not seen"))?;
        Ok((status, self.calls))
    }

    /// Handles a stop at the entry or the exit of a system call.
    fn at_call(&mut self, pid: Pid) -> io::Result<()> {
        let info = match SyscallInfo::from_thread(pid) {
            Ok(info) => info,
            Err(Errno::ESRCH) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        match info.op {
            SyscallInfo::ENTRY => {
                let [number, args @ .., _] = info.data;
                if let Some(call) = entered(pid, number, args) {
                    self.pending.insert(pid, call);
                }
            }
            SyscallInfo::EXIT => {
                if let Some(call) = self.pending.remove(&pid) {
                    self.calls.push(left(pid, call, info.data[0].cast_signed()));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The kernel's `struct ptrace_syscall_info`, which the headers of some C libraries lack.
#[derive(zerocopy::FromBytes)]
#[repr(C)]
struct SyscallInfo {
    op: u8,
    /// The architecture, the instruction pointer and the stack pointer.
    _rest: [u8; 23],
    /// The union: at an entry, the call's number and arguments; at an exit, its result.
    data: [u64; 8],
}

impl SyscallInfo {
    const ENTRY: u8 = 1;
    const EXIT: u8 = 2;

    /// Returns the reason why a thread has stopped.
    fn from_thread(pid: Pid) -> Result<Self, Errno> {
        /// `PTRACE_GET_SYSCALL_INFO`
        const REQUEST: libc::c_long = 0x420e;
        let mut info = Self::new_zeroed();
        // SAFETY: the kernel writes at most `size_of::<Self>()` bytes to `info`.
        let length = unsafe {
            libc::syscall(
                libc::SYS_ptrace,
                REQUEST,
                libc::c_long::from(pid.as_raw()),
                size_of::<Self>(),
                &raw mut info,
            )
        };
        Errno::result(length).map(|_| info)
    }
}

/// Returns the call to record, if any, at its entry.
fn entered(pid: Pid, number: u64, args: [u64; 6]) -> Option<Call> {
    let file = args[0] as i32;
    match number.cast_signed() {
        libc::SYS_ioctl if args[1] as u32 == RDMA_VERBS_IOCTL => {
            let mut header = IbUverbsIoctlHdr::new_zeroed();
            read(pid, args[2], header.as_mut_bytes())?;
            let mut attrs = attrs(pid, args[2], header.num_attrs);
            // The input in memory, or the space for the output.
            for attr in &mut attrs {
                attr.input = bytes(pid, attr.head.data, attr.head.len.into());
            }
            Some(Call::Ioctl(Ioctl { at: args[2], header, attrs, result: 0 }))
        }
        libc::SYS_write if file == -1 => {
            let text = bytes(pid, args[1], args[2] as usize);
            let step = String::from_utf8(text).ok()?.strip_prefix("step ")?.to_owned();
            Some(Call::Step(step))
        }
        libc::SYS_write if is_uverbs(pid, file) => {
            let bytes = bytes(pid, args[1], args[2] as usize);
            let (header, _) = IbUverbsCmdHdrBytes::read_from_prefix(&bytes).ok()?;
            let command = u32::from_ne_bytes(header.command);
            Some(Call::Write(Write { command, bytes, result: 0 }))
        }
        libc::SYS_mmap if args[4] as i32 >= 0 && is_uverbs(pid, args[4] as i32) => Some(Call::Map(Map {
            length: args[1],
            protection: args[2],
            flags: args[3],
            offset: args[5],
            result: 0,
        })),
        _ => None,
    }
}

/// The first member of an [`IbUverbsCmdHdr`], a type that only the kernel reads.
#[derive(zerocopy::FromBytes)]
#[repr(C)]
struct IbUverbsCmdHdrBytes {
    command: [u8; 4],
    _rest: [u8; size_of::<IbUverbsCmdHdr>() - 4],
}

/// Returns the call with its result and its output.
fn left(pid: Pid, mut call: Call, ended: i64) -> Call {
    match &mut call {
        Call::Step(_) => {}
        Call::Write(write) => write.result = ended,
        Call::Map(map) => map.result = ended,
        Call::Ioctl(ioctl) => {
            ioctl.result = ended;
            let after = attrs(pid, ioctl.at, ioctl.header.num_attrs);
            for (attr, after) in ioctl.attrs.iter_mut().zip(after) {
                attr.output = bytes(pid, after.head.data, after.head.len.into());
                attr.after = after.head;
            }
        }
    }
    call
}

/// Returns the attributes after the header of an ioctl.
fn attrs(pid: Pid, at: u64, count: u16) -> Vec<RawAttr> {
    let size = size_of::<IbUverbsAttr>();
    let all = bytes(pid, at + size_of::<IbUverbsIoctlHdr>() as u64, usize::from(count) * size);
    let heads = all.chunks_exact(size).filter_map(|bytes| IbUverbsAttr::read_from_bytes(bytes).ok());
    heads.map(|head| RawAttr { head, after: head, input: Vec::new(), output: Vec::new() }).collect()
}

/// Returns bytes from a process's memory; empty if they cannot be read, as when inline data is not
/// an address.
fn bytes(pid: Pid, at: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    match read(pid, at, &mut bytes) {
        Some(()) => bytes,
        None => Vec::new(),
    }
}

fn read(pid: Pid, at: u64, to: &mut [u8]) -> Option<()> {
    let len = to.len();
    let base = usize::try_from(at).ok()?;
    let read = process_vm_readv(pid, &mut [IoSliceMut::new(to)], &[RemoteIoVec { base, len }]);
    (read == Ok(len)).then_some(())
}

fn is_uverbs(pid: Pid, file: i32) -> bool {
    let link = fs::read_link(format!("/proc/{pid}/fd/{file}"));
    link.is_ok_and(|path| path.to_str().is_some_and(|path| path.contains("/infiniband/uverbs")))
}

fn output() -> io::Result<File> {
    Ok(memfd_create("output", MFdFlags::MFD_CLOEXEC)?.into())
}

fn text(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_commands_output_and_status_come_back_and_its_children_are_left_alone() {
        let recorded = run(&mut sh("echo out; (echo err >&2); exit 3"), LONG).unwrap().unwrap();
        assert_eq!(recorded.finished.status.code(), Some(3));
        assert_eq!((&*recorded.finished.stdout, &*recorded.finished.stderr), ("out\n", "err\n"));
        assert!(recorded.calls.is_empty());
    }

    #[test]
    fn a_command_that_outlives_its_limit_is_killed() {
        let killed = run(&mut sh("exec sleep 1000"), Duration::from_millis(50)).unwrap().unwrap_err();
        assert_eq!(killed.status.signal(), Some(Signal::SIGKILL as i32));
    }

    /// Makes the calls that the next test records, in a child process.
    #[test]
    #[ignore = "a process for the test below"]
    fn calls_to_record() {
        let step = b"step open";
        // SAFETY: file descriptor -1 does not exist, so the kernel follows no address of the second
        // call.
        let results = unsafe {
            let attr = IbUverbsAttr { attr_id: 2, len: 12, data: step.as_ptr() as u64, ..Default::default() };
            let header = IbUverbsIoctlHdr { object_id: 3, num_attrs: 1, ..Default::default() };
            let call = [header.as_bytes(), attr.as_bytes()].concat();
            [
                libc::write(-1, step.as_ptr().cast(), step.len()),
                libc::ioctl(-1, RDMA_VERBS_IOCTL as libc::Ioctl, call.as_ptr()) as isize,
            ]
        };
        assert_eq!(results, [-1, -1]);
    }

    #[test]
    fn steps_and_ioctls_are_recorded_with_what_they_point_to() {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "record::tracer::tests::calls_to_record", "--ignored"]);
        let recorded = run(&mut program, LONG).unwrap().unwrap();
        assert!(recorded.finished.status.success(), "{:?}", recorded.finished);
        let [Call::Step(step), Call::Ioctl(ioctl)] = &*recorded.calls else { panic!("{:?}", recorded.calls) };
        assert_eq!((&**step, ioctl.header.object_id), ("open", 3));
        assert_eq!(ioctl.result, -i64::from(libc::EBADF));
        assert_eq!(ioctl.attrs[0].head.attr_id, 2);
        assert!(ioctl.attrs[0].input.starts_with(b"step open"));
    }

    #[test]
    fn a_command_that_a_signal_ends_is_told_from_one_that_exits() {
        let recorded = run(&mut sh("kill -USR1 $$"), LONG).unwrap().unwrap();
        assert_eq!(recorded.finished.status.signal(), Some(Signal::SIGUSR1 as i32));
    }
}
