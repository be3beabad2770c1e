//! Child processes: their output, their time limits and ports for pairs of programs.
//!
//! The crate `duct` waits with deadlines, and `process-wrap` ends groups of processes. Neither can
//! wait for a line of output or a listening port, or make the kernel kill a program together with
//! this one ([`tied`]).

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use procfs::net::TcpState;

/// The interval between checks of a condition that no event announces.
const PERIOD: Duration = Duration::from_millis(10);

/// The time limit for a short program. A ping-pong takes a second under emulation, and a minute on
/// a busy host.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Runs a program without input to its end and returns its standard output.
///
/// # Errors
/// The program cannot be run, or fails. The error contains its output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let (line, status) = (line(command), output.status);
    ensure!(status.success(), "{line} failed ({status}):\n{stdout}{stderr}");
    Ok(stdout)
}

/// Runs a program without input to its end and shows its output.
///
/// # Errors
/// The program cannot be run, or fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status();
    let status = status.with_context(|| format!("cannot run {}", command.get_program().display()))?;
    ensure!(status.success(), "{} failed: {status}", line(command));
    Ok(())
}

/// Returns the beginning of a command line, to keep a hundred package names out of errors.
fn line(command: &Command) -> String {
    let program = command.get_program();
    let words = std::iter::once(program).chain(command.get_args().take(12)).map(OsStr::to_string_lossy);
    words.collect::<Vec<_>>().join(" ")
}

/// Returns a command for a program that the kernel kills when the calling thread ends, for whatever
/// reason.
pub(crate) fn tied(program: &OsStr) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Starts a program without input and returns it with the lines from its stdout and stderr.
pub(crate) fn spawn(command: &mut Command) -> Result<(Child, impl Iterator<Item = String> + use<>)> {
    let (output, end) = std::io::pipe()?;
    let child = command.stdin(Stdio::null()).stdout(end.try_clone()?).stderr(end).spawn();
    // The command's own ends of the pipe would keep it open.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = child.with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
    Ok((child, lines.map(|line| String::from_utf8_lossy(&line).into_owned())))
}

/// A running program. Dropping this value kills it.
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    /// Starts a program without input and collects its output. Errors call it `name`.
    pub(crate) fn start(name: &'static str, command: &mut Command) -> Result<Process> {
        Process::with_each_line(name, command, |_| ())
    }

    /// Like [`start`](Self::start), but also shows each line of the output, after the name.
    pub(crate) fn shown(name: &'static str, command: &mut Command) -> Result<Process> {
        Process::with_each_line(name, command, move |line| println!("{name} | {line}"))
    }

    fn with_each_line(
        name: &'static str,
        command: &mut Command,
        see: impl Fn(&str) + Send + 'static,
    ) -> Result<Process> {
        let (child, output) = spawn(command)?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in output {
                see(&line);
                // Fails once the receiver is gone. Reading continues, because the program must not
                // block.
                let _ = sender.send(line);
            }
        });
        Ok(Process { name, child, lines })
    }

    /// Starts a program whose output goes where `command` directs it.
    pub(crate) fn silent(name: &'static str, command: &mut Command) -> Result<Process> {
        let child = command.stdin(Stdio::null()).spawn();
        let child = child.with_context(|| format!("cannot run {}", command.get_program().display()))?;
        Ok(Process { name, child, lines: mpsc::channel().1 })
    }

    /// Returns the program's next output line.
    pub(crate) fn line(&self, deadline: Instant) -> Result<String> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.lines.recv_timeout(left).with_context(|| format!("the {} printed no line", self.name))
    }

    /// Removes and returns the receiver for the remaining lines. The channel closes when the
    /// program's output ends.
    pub(crate) fn take_lines(&mut self) -> Receiver<String> {
        std::mem::replace(&mut self.lines, mpsc::channel().1)
    }

    /// Kills the program.
    pub(crate) fn kill(&mut self) {
        // Both fail if the program has ended, which is the normal case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills the program and returns the unread lines.
    pub(crate) fn end(mut self) -> String {
        self.kill();
        self.lines.iter().map(|line| line + "\n").collect()
    }

    /// Waits until a condition that no event announces is true.
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

    /// Waits until the program ends.
    pub(crate) fn wait(&mut self, deadline: Instant) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(Instant::now() < deadline, "the {} did not end in time", self.name);
            thread::park_timeout(PERIOD);
        }
    }

    /// Waits until the program has ended successfully and returns its output. rdma-core's programs
    /// report wrong data in a line, yet exit with 0.
    pub(crate) fn finish(mut self, deadline: Instant) -> Result<String> {
        let (name, status) = (self.name, self.wait(deadline)?);
        let said = self.end();
        ensure!(status.success(), "the {name} failed: {status}\n{said}");
        ensure!(!said.contains("invalid data"), "the {name} received bytes that differ from those sent");
        Ok(said)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a client once its server is listening; `is_listening` gets the server's process id. Returns
/// the client's output after both have ended successfully.
pub(crate) fn pair(
    mut server: Process,
    is_listening: impl Fn(u32) -> bool,
    client: impl FnOnce() -> Result<Process>,
    limit: Duration,
) -> Result<String> {
    let (deadline, id) = (Instant::now() + limit, server.child.id());
    let said = server.wait_until(deadline, "listen", || is_listening(id));
    match said.and_then(|()| client()?.finish(deadline)) {
        Ok(said) => server.finish(deadline).map(|_| said),
        // The server often knows more about a failure than the client.
        Err(error) => Err(anyhow!("{error:#}\nthe server printed:\n{}", server.end())),
    }
}

/// Returns a TCP port that is free now, for a server to bind shortly after.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Returns whether a program listens on a TCP port.
pub(crate) fn is_listening(port: u16) -> bool {
    is_listening_beside(std::process::id(), port)
}

/// Returns whether a program listens on a TCP port in the network namespace of a process.
pub(crate) fn is_listening_beside(process: u32, port: u16) -> bool {
    let Ok(process) = procfs::process::Process::new(process.cast_signed()) else { return false };
    // A kernel without IPv6 has no second table.
    let mut sockets = [process.tcp(), process.tcp6()].into_iter().flatten().flatten();
    sockets.any(|socket| socket.state == TcpState::Listen && socket.local_address.port() == port)
}

/// Returns whether a program on soft devices listens for connections by address. The name of a
/// socket shows this.
pub(crate) fn is_listening_by_address(port: u16) -> bool {
    let name = format!("@verbs-soft/cm/2/106/{port}/");
    fs::read_to_string("/proc/net/unix").is_ok_and(|sockets| sockets.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_listening_socket_on_the_port_counts() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let server = listener.local_addr().unwrap();
        let client = std::net::TcpStream::connect(server).unwrap();
        assert!(is_listening(server.port()));
        assert!(!is_listening(client.local_addr().unwrap().port()));
    }

    #[test]
    fn a_client_that_fails_is_reported_with_the_words_of_its_server() {
        let sh = |name, script| Process::start(name, Command::new("sh").args(["-c", script]));
        let server = sh("server", "echo said; echo why >&2; exec sleep 600").unwrap();
        // The kernel shows the program's name only once the shell has printed both lines.
        let is_asleep =
            |id| fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|comm| comm == "sleep\n");
        let error = pair(server, is_asleep, || sh("client", "exit 3"), LIMIT).unwrap_err().to_string();
        assert!(error.starts_with("the client failed: exit status: 3"), "{error}");
        assert!(error.ends_with("the server printed:\nsaid\nwhy\n"), "{error}");
    }
}
