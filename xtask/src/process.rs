//! Programs that run beside this one, and the ports at which two of them find each other.

use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

/// The time between two looks at something that no event announces.
const PERIOD: Duration = Duration::from_millis(10);

/// Returns a command of a program that the kernel kills when the calling thread ends, for whatever
/// reason.
pub(crate) fn tied(program: &OsStr) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// A program that runs. Dropping it kills it.
pub(crate) struct Process {
    name: &'static str,
    child: Child,
}

impl Process {
    /// Starts a program that reads nothing, and whose output this one reads. Errors call it `name`.
    pub(crate) fn start(name: &'static str, command: &mut Command) -> Result<Process> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn();
        let child = child.with_context(|| format!("cannot run {}", command.get_program().display()))?;
        Ok(Process { name, child })
    }

    /// Returns its name in errors.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns its number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Takes the ends of its output.
    pub(crate) fn output(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        (self.child.stdout.take(), self.child.stderr.take())
    }

    /// Ends the program, and returns its output, which is less than a pipe holds.
    pub(crate) fn end(mut self) -> String {
        let (stdout, stderr) = self.output();
        drop(self);
        let mut bytes = Vec::new();
        // A program whose output cannot be read has not printed what is expected.
        let _ = stdout.map(|mut pipe| pipe.read_to_end(&mut bytes));
        let _ = stderr.map(|mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until something is true, which no event announces.
    pub(crate) fn wait_until(
        &mut self,
        deadline: Instant,
        verb: &str,
        is_true: impl Fn() -> bool,
    ) -> Result<()> {
        while !is_true() {
            if let Some(status) = self.child.try_wait()? {
                bail!("the {} ended early: {status}", self.name);
            }
            ensure!(Instant::now() < deadline, "the {} does not {verb}", self.name);
            thread::park_timeout(PERIOD);
        }
        Ok(())
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self, deadline: Instant) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(Instant::now() < deadline, "the {} did not end", self.name);
            thread::park_timeout(PERIOD);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail if it has ended, which is the normal case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a TCP port that is free now; a server binds it shortly after.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Returns whether a program listens on a TCP port.
pub(crate) fn is_listening(port: u16) -> bool {
    listens_in("/proc/net", port)
}

/// Returns whether a program listens on a TCP port in the network namespace of a process.
pub(crate) fn is_listening_beside(process: u32, port: u16) -> bool {
    listens_in(&format!("/proc/{process}/net"), port)
}

fn listens_in(tables: &str, port: u16) -> bool {
    let lists = |text: String| lists_listener(&text, port);
    ["tcp", "tcp6"].iter().any(|table| fs::read_to_string(format!("{tables}/{table}")).is_ok_and(lists))
}

/// Returns whether a program on soft devices listens for connections by address: it has a socket of
/// that name.
pub(crate) fn is_listening_by_address(port: u16) -> bool {
    let name = format!("@verbs-soft/cm/2/106/{port}/");
    fs::read_to_string("/proc/net/unix").is_ok_and(|sockets| sockets.contains(&name))
}

/// Returns whether a table such as /proc/net/tcp has a socket in state LISTEN (0A) on the port.
fn lists_listener(table: &str, port: u16) -> bool {
    table.lines().any(|line| {
        let mut fields = line.split_whitespace();
        let local = fields.nth(1).and_then(|address| address.rsplit(':').next());
        local == Some(&format!("{port:04X}")) && fields.nth(1) == Some("0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_listening_socket_on_the_port_counts() {
        let text = "  sl  local_address rem_address   st tx_queue\n\
                    0: 00000000:4853 00000000:0000 0A 00000000\n\
                    1: 0100007F:1F90 0100007F:4854 01 00000000\n";
        assert!(lists_listener(text, 0x4853));
        assert!(!lists_listener(text, 0x1f90));
        assert!(!lists_listener(text, 0x4854));
    }

    #[test]
    fn a_program_that_is_ended_leaves_its_output() {
        let says = "echo said; echo why >&2; exec sleep 600";
        let mut process = Process::start("server", Command::new("sh").args(["-c", says])).unwrap();
        let id = process.child.id();
        let is_asleep =
            || fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|comm| comm.trim() == "sleep");
        process.wait_until(Instant::now() + Duration::from_secs(60), "sleep", is_asleep).unwrap();
        assert_eq!(process.end(), "said\nwhy\n");
    }
}
