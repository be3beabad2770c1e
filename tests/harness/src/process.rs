//! Commands with a deadline, and servers.
//!
//! Output is read while the command runs, so that a full pipe blocks no program. If the command is
//! killed, its output is kept, followed by a description of where its threads wait.

use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

/// A command that ended or was killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The exit status.
    pub status: ExitStatus,
    /// Its complete standard output.
    pub stdout: String,
    /// Its complete standard error.
    pub stderr: String,
}

/// Returns a command that runs under a wrapper, such as `ip netns exec` or `nice`, in the command's
/// environment.
pub fn under(mut wrapper: Command, command: &Command) -> Command {
    wrapper.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapper.env(name, value),
            None => wrapper.env_remove(name),
        };
    }
    wrapper
}

/// Runs a command to its end, or kills it after `limit`.
///
/// # Errors
/// Any errno from starting the command. The inner error is the output of a command killed at the
/// limit.
pub fn run(command: &mut Command, limit: Duration) -> io::Result<Result<Finished, Finished>> {
    Running::start(command)?.finish(limit)
}

/// Like [`run`], but without input and in a new process group, which is killed as a whole when the
/// command ends.
///
/// # Errors
/// The same errors as [`run`].
pub fn run_group(command: &mut Command, limit: Duration) -> io::Result<Result<Finished, Finished>> {
    let mut running = Running::start(command.stdin(Stdio::null()).process_group(0))?;
    running.is_group = true;
    running.finish(limit)
}

/// A running command. Dropping it kills the command.
#[derive(Debug)]
pub struct Running {
    child: Child,
    is_group: bool,
    /// The part of the command's standard output that [`wait_for_output`](Self::wait_for_output)
    /// has already read.
    seen: Vec<u8>,
    stdout: Receiver<Vec<u8>>,
    stderr: Receiver<Vec<u8>>,
    ended: Receiver<()>,
}

impl Running {
    /// Starts a command. It inherits this process's input, because an empty root has no `/dev/null`
    /// to open.
    ///
    /// # Errors
    /// Any errno from starting the command.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdout = read_all(child.stdout.take());
        let stderr = read_all(child.stderr.take());
        let pid = pid_of(&child);
        let (send, ended) = mpsc::channel();
        thread::spawn(move || {
            // Leaves the dead process in place, so that its id is not reused until it is reaped
            // below.
            let _ = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
            let _ = send.send(());
        });
        Ok(Self { child, is_group: false, seen: Vec::new(), stdout, stderr, ended })
    }

    /// Returns the command's process id.
    pub fn pid(&self) -> Pid {
        pid_of(&self.child)
    }

    /// Returns whether the command has ended.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Returns whether the command succeeded; `None` if it has not ended.
    pub fn status(&mut self) -> Option<bool> {
        self.child.try_wait().ok().flatten().map(|status| status.success())
    }

    /// Waits until the accumulated output satisfies `enough`. Returns false if `limit` passes or
    /// the command ends first.
    pub fn wait_for_output(&mut self, limit: Duration, enough: impl Fn(&str) -> bool) -> bool {
        let deadline = Instant::now() + limit;
        while !enough(&String::from_utf8_lossy(&self.seen)) {
            match self.stdout.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(chunk) => self.seen.extend(chunk),
                Err(_) => return false,
            }
        }
        true
    }

    /// Waits until the command ends, or kills it after `limit`.
    ///
    /// # Errors
    /// Any errno from waiting. The inner error is the output of a command killed at the limit.
    pub fn finish(mut self, limit: Duration) -> io::Result<Result<Finished, Finished>> {
        let in_time = !matches!(self.ended.recv_timeout(limit), Err(RecvTimeoutError::Timeout));
        let waits = if in_time { String::new() } else { waits_of(self.pid()) };
        self.kill();
        let status = self.child.wait()?;
        let stdout = text(std::mem::take(&mut self.seen), &self.stdout);
        let finished = Finished { status, stdout, stderr: text(Vec::new(), &self.stderr) + &waits };
        Ok(if in_time { Ok(finished) } else { Err(finished) })
    }

    /// Kills the command. Does nothing if it has ended.
    pub fn kill(&self) {
        let pid = self.pid();
        // Fails if the process has ended.
        let _ = if self.is_group { killpg(pid, Signal::SIGKILL) } else { kill(pid, Signal::SIGKILL) };
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

/// Describes where each thread of a process waits: its state, the kernel function, the system call
/// with its arguments and the stack if the kernel shows it.
fn waits_of(pid: Pid) -> String {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .map(|thread| {
            let read = |name: &str| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            let stat = read("stat");
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?');
            let (comm, wchan, syscall) = (read("comm"), read("wchan"), read("syscall"));
            let stack = read("stack").replace('\n', " ");
            let name = thread.file_name();
            let (name, comm, syscall) = (name.display(), comm.trim(), syscall.trim());
            format!("\nthread {name} {comm}: {state}, in {wchan}, system call {syscall}, stack {stack}")
        })
        .collect()
}

/// Reads a pipe to its end in a thread.
fn read_all(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut chunk = vec![0; 64 * 1024];
        let Some(mut pipe) = pipe else { return };
        while let Ok(count @ 1..) = pipe.read(&mut chunk) {
            if send.send(chunk[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    receive
}

/// Returns the output of a pipe whose writer has ended, after the bytes already read. Waits only
/// briefly, in case another process inherited the pipe and still runs.
fn text(mut bytes: Vec<u8>, pipe: &Receiver<Vec<u8>>) -> String {
    const LAST_WORDS: Duration = Duration::from_secs(5);
    while let Ok(chunk) = pipe.recv_timeout(LAST_WORDS) {
        bytes.extend(chunk);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs a closure, which may block, in a new thread and returns its result.
///
/// # Panics
/// Panics if the closure panics or runs longer than `limit`. In the latter case, its thread keeps
/// running.
#[track_caller]
pub fn within<T: Send + 'static>(limit: Duration, what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, done) = mpsc::channel();
    let thread = thread::spawn(move || send.send(run()));
    match done.recv_timeout(limit) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => panic!("{what}: not within {limit:?}"),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(_) => unreachable!("only a panic sends nothing"),
        },
    }
}

/// Waits until `ready` returns true. Returns whether it does so before `limit` passes.
pub fn wait_until(limit: Duration, mut ready: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !ready() {
        if Instant::now() > deadline {
            return false;
        }
        // Polls slowly, because an emulated processor is busy with the awaited work.
        thread::park_timeout(Duration::from_millis(2));
    }
    true
}

/// Waits until a TCP port has a listener, without connecting, because some servers accept only one
/// client.
pub fn wait_for_listener(port: u16, limit: Duration, alive: impl FnMut() -> bool) -> bool {
    listens_in("/proc/net", port, limit, alive)
}

/// Like [`wait_for_listener`], but in the network namespace of a process.
pub fn wait_for_listener_of(pid: Pid, port: u16, limit: Duration, alive: impl FnMut() -> bool) -> bool {
    listens_in(&format!("/proc/{pid}/net"), port, limit, alive)
}

fn listens_in(tables: &str, port: u16, limit: Duration, mut alive: impl FnMut() -> bool) -> bool {
    let listens = || {
        ["tcp", "tcp6"].iter().any(|table| {
            std::fs::read_to_string(format!("{tables}/{table}")).is_ok_and(|table| has_listener(&table, port))
        })
    };
    wait_until(limit, || listens() || !alive()) && listens()
}

/// Returns whether a table such as `/proc/net/tcp` shows a listener on the port.
fn has_listener(table: &str, port: u16) -> bool {
    const TCP_LISTEN: &str = "0A";
    table.lines().skip(1).any(|line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let local = columns.next().and_then(|address| address.rsplit_once(':'));
        let is_port = local.is_some_and(|(_, number)| u16::from_str_radix(number, 16) == Ok(port));
        is_port && columns.nth(1) == Some(TCP_LISTEN)
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_status_come_back() {
        let finished = run(&mut sh("echo out; echo err >&2; exit 3"), LONG).unwrap().unwrap();
        assert_eq!(finished.status.code(), Some(3));
        assert_eq!((&*finished.stdout, &*finished.stderr), ("out\n", "err\n"));
    }

    #[test]
    fn more_output_than_a_pipe_holds_stops_nobody() {
        let finished = run(&mut sh("head -c 1000000 /dev/zero"), LONG).unwrap().unwrap();
        assert_eq!(finished.stdout.len(), 1_000_000);
    }

    #[test]
    fn a_command_that_outlives_its_limit_is_killed_and_what_it_said_is_kept() {
        let mut running = Running::start(sh("echo started; exec sleep 1000").process_group(0)).unwrap();
        running.is_group = true;
        let first = running.stdout.recv_timeout(LONG).unwrap();
        assert_eq!(first, b"started\n");
        let killed = running.finish(Duration::from_millis(1)).unwrap().unwrap_err();
        assert_eq!(killed.status.code(), None);
        let state = |letter: &str| killed.stderr.contains(&format!("sleep: {letter}, in "));
        assert!(state("S") || state("R"), "{killed:?}");
    }

    #[test]
    fn what_blocks_for_too_long_and_what_panics_is_told() {
        assert_eq!(within(LONG, "a number", || 7), 7);
        let told = |run: fn()| {
            let panic = std::panic::catch_unwind(|| within(Duration::from_millis(1), "the end", run));
            panic.unwrap_err().downcast_ref::<String>().cloned().unwrap_or_default()
        };
        assert_eq!(
            told(|| loop {
                thread::park();
            }),
            "the end: not within 1ms"
        );
        let own = std::panic::catch_unwind(|| within(LONG, "the end", || assert_eq!(1, 2, "its own")));
        assert!(own.unwrap_err().downcast_ref::<String>().is_some_and(|text| text.contains("its own")));
    }

    #[test]
    fn output_that_was_waited_for_is_part_of_the_whole() {
        let mut running = Running::start(&mut sh("echo one; echo two; echo three")).unwrap();
        assert!(running.wait_for_output(LONG, |text| text.contains("one")));
        let finished = running.finish(LONG).unwrap().unwrap();
        assert_eq!(finished.stdout, "one\ntwo\nthree\n");
        let mut other = Running::start(&mut sh("echo one")).unwrap();
        assert!(!other.wait_for_output(LONG, |text| text.contains("two")), "its end ends the wait");
    }

    #[test]
    fn a_group_is_killed_with_those_who_outlive_its_leader() {
        let finished = run_group(&mut sh("sleep 1000 & echo $!"), LONG).unwrap().unwrap();
        let pid = Pid::from_raw(finished.stdout.trim().parse().unwrap());
        let is_gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            // A dead process that is not yet reaped counts as gone, because reaping it is not the
            // test's task.
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        assert!(wait_until(LONG, is_gone));
    }

    #[test]
    fn listeners_are_found_by_port_and_state() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
                     0: 0100007F:4853 00000000:0000 0A 00000000:00000000\n   \
                     1: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 0:0\n   \
                     2: 0100007F:0050 0100007F:4853 01 00000000:00000000\n";
        assert!(has_listener(table, 0x4853) && has_listener(table, 8080));
        assert!(!has_listener(table, 0x50) && !has_listener(table, 1) && !has_listener("", 0x4853));
    }

    #[test]
    fn a_listener_is_seen_without_taking_its_connection() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(wait_for_listener(port, LONG, || true));
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(listener);
        // A process that another test forked holds the socket until it executes its program.
        let is_dead = || !wait_for_listener(port, LONG, || false);
        assert!(wait_until(LONG, is_dead), "a server that died is not waited for");
    }
}
