//! The ConnectX model beside a guest: what the command line says of it, its process, and its verdict on the guest.
//!
//! ```text
//! connectx-model ── listens on function0, function1, connectx ──► QEMU connects to all of them ──► the guest's mlx5_core
//!       │ "ready"                                                                │
//!       └─ ends when QEMU has closed them: 0, or 1 if the guest broke rules ◄────┘
//! ```
//!
//! Sockets are named relative to the guest's own directory, in which the model and QEMU are started: a socket's path may
//! not be longer than 107 bytes, and a cache directory can be anywhere.
//!
//! Invariant: a guest that broke a rule has failed, whatever its command's status, unless that was asked for.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use super::child;
use super::supervise::Event;
use crate::cargo;

/// What the command line says of the model.
#[derive(clap::Args, Clone, Default, PartialEq, Eq, Debug)]
#[command(next_help_heading = "With --device mlx5")]
pub(crate) struct Options {
    /// The kind of port that the functions have [default: ib]
    #[arg(long, value_enum)]
    pub(crate) port: Option<Port>,

    /// How many functions there are, connected with each other [default: 1]
    #[arg(long, value_name = "1|2", value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) functions: Option<u8>,

    /// A script of faults that the model injects
    #[arg(long, value_name = "FILE")]
    pub(crate) faults: Option<PathBuf>,

    /// Where to write the trace of commands, work requests and completions
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// What to make of it when the guest breaks the device's rules [default: fail]
    #[arg(long, value_enum)]
    pub(crate) complaints: Option<Complaints>,

    /// The model's program; builds ours otherwise
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) model: Option<PathBuf>,
}

/// What `--port` accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub(crate) enum Port {
    /// InfiniBand
    #[default]
    Ib,
    /// Ethernet, with a netdev for each function: 10.9.9.1/24, and 10.9.9.2/24 in the network namespace "peer"
    Roce,
}

impl Port {
    /// How the command lines of this program, of the model and of the suites say it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Port::Ib => "ib",
            Port::Roce => "roce",
        }
    }
}

/// What `--complaints` accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub(crate) enum Complaints {
    /// It is a failure, whatever the command's status
    #[default]
    Fail,
    /// It is shown, for commands that break rules on purpose
    Allow,
}

impl Options {
    /// The kind of port.
    pub(crate) fn port(&self) -> Port {
        self.port.unwrap_or_default()
    }

    /// The number of functions.
    pub(crate) fn functions(&self) -> u8 {
        self.functions.unwrap_or(1)
    }

    /// Whether broken rules are a failure.
    pub(crate) fn is_strict(&self) -> bool {
        self.complaints.unwrap_or_default() == Complaints::Fail
    }

    /// Refuses what would have no effect, or fail only once the guest is under way.
    ///
    /// # Errors
    /// An option is given and there is no model, or there is no script of that name.
    pub(crate) fn check(&self, has_model: bool) -> Result<()> {
        let given = [
            ("--port", self.port.is_some()),
            ("--functions", self.functions.is_some()),
            ("--faults", self.faults.is_some()),
            ("--trace", self.trace.is_some()),
            ("--complaints", self.complaints.is_some()),
        ];
        if let Some((option, _)) = given.into_iter().find(|(_, given)| *given && !has_model) {
            bail!("{option} is for --device mlx5 only");
        }
        if let Some(script) = &self.faults {
            File::open(script).with_context(|| format!("--faults {}", script.display()))?;
        }
        Ok(())
    }

    /// The model's program, built if the command line names none.
    ///
    /// # Errors
    /// The build fails.
    pub(crate) fn program(&self) -> Result<PathBuf> {
        match &self.model {
            Some(program) => Ok(std::path::absolute(program)?),
            None => Ok(build()?.join("connectx-model")),
        }
    }
}

/// Builds the model, and returns the directory that it is in.
///
/// # Errors
/// The build fails; cargo has said why on stderr.
pub(crate) fn build() -> Result<PathBuf> {
    cargo::build(&["--quiet", "--package", "connectx-model", "--bin", "connectx-model"])
}

/// Where the model listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sockets {
    /// The names below are relative to it.
    pub(crate) directory: PathBuf,
    /// One for each function.
    pub(crate) functions: Vec<String>,
    /// Lines that inject faults.
    pub(crate) control: &'static str,
}

impl Sockets {
    /// Names for so many functions in a guest's own directory.
    pub(crate) fn new(directory: PathBuf, functions: u8) -> Sockets {
        let functions = (0..functions).map(|n| format!("function{n}")).collect();
        Sockets { directory, functions, control: "connectx" }
    }

    /// Removes what an earlier model left.
    fn clear(&self) {
        for name in self.functions.iter().map(String::as_str).chain([self.control, COMPLAINTS]) {
            // Mostly there is nothing. A socket that stays keeps the model from listening, which it tells.
            let _ = fs::remove_file(self.directory.join(name));
        }
    }
}

/// Files in the guest's directory.
const COMPLAINTS: &str = "complaints";
const TRACE: &str = "trace";
const LOG: &str = "model.log";

/// How long the model may take to listen: it does nothing else before.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long it may take to end after QEMU.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The model's process; dropping it kills it.
pub(super) struct Model {
    child: Child,
    /// Its stdout; disconnected at the end of it.
    said: Option<Receiver<String>>,
    directory: PathBuf,
}

impl Model {
    /// Starts a model, which listens when this returns.
    ///
    /// # Errors
    /// It cannot be run, ends, or does not get ready in time.
    pub(super) fn start(program: &Path, options: &Options, sockets: &Sockets) -> Result<Model> {
        sockets.clear();
        let mut command = Command::new(program);
        command.args(arguments(options, sockets)?);
        Model::spawn(command, &sockets.directory)
    }

    fn spawn(mut command: Command, directory: &Path) -> Result<Model> {
        command
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(directory.join(LOG))?);
        let mut child = child::spawn(&mut command, &[]).context("cannot run the ConnectX model")?;
        let stdout = child.stdout.take().context("no stdout")?;
        let (send, said) = mpsc::channel();
        thread::spawn(move || {
            // Read to its end even if nobody listens any more: the model must not block.
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        let mut model = Model { child, said: Some(said), directory: directory.to_owned() };
        model.wait_until_ready().map_err(|error| anyhow!("{error:#}{}", model.log()))?;
        Ok(model)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let said = self.said.as_ref().context("it was ready before")?;
        let deadline = Instant::now() + START_LIMIT;
        loop {
            match said.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line == "ready" => return Ok(()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!("the ConnectX model did not get ready within {} s", START_LIMIT.as_secs())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait()?;
                    bail!("the ConnectX model could not start ({status})")
                }
            }
        }
    }

    /// Reports the end of its output, and so of the model, as an event.
    pub(super) fn watch(&mut self, events: Sender<Event>) {
        if let Some(said) = self.said.take() {
            thread::spawn(move || {
                while said.recv().is_ok() {}
                let _ = events.send(Event::ModelEnded);
            });
        }
    }

    /// Waits for its end after QEMU's, and reads its verdict.
    pub(super) fn finish(mut self) -> Verdict {
        let status = self.wait();
        let complaints = fs::read_to_string(self.directory.join(COMPLAINTS)).unwrap_or_default();
        let complaints: Vec<String> = complaints.lines().map(str::to_owned).collect();
        let problem = match status {
            Ok(status) => problem(status, &complaints),
            Err(error) => Some(format!("{error:#}")),
        };
        Verdict { complaints, problem: problem.map(|text| format!("{text}{}", self.log())) }
    }

    fn wait(&mut self) -> Result<ExitStatus> {
        let deadline = Instant::now() + END_LIMIT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(Instant::now() < deadline, "it did not end within {} s of QEMU", END_LIMIT.as_secs());
            thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// The end of what it said on stderr, to follow a message.
    fn log(&self) -> String {
        let text = fs::read(self.directory.join(LOG)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(SHOWN)..].join("\n");
        if tail.is_empty() { tail } else { format!("; it said:\n{tail}") }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // Both fail if it has ended and been waited for, which is how it should be.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The model's command line.
fn arguments(options: &Options, sockets: &Sockets) -> Result<Vec<std::ffi::OsString>> {
    let mut arguments: Vec<std::ffi::OsString> = Vec::new();
    for function in &sockets.functions {
        arguments.extend(["--socket".into(), function.into()]);
    }
    let trace = match &options.trace {
        Some(path) => std::path::absolute(path)?,
        None => TRACE.into(),
    };
    arguments.extend(["--port".into(), options.port().name().into()]);
    arguments.extend(["--control".into(), sockets.control.into()]);
    arguments.extend(["--trace".into(), trace.into(), "--complaints".into(), COMPLAINTS.into()]);
    if let Some(script) = &options.faults {
        arguments.extend(["--script".into(), std::path::absolute(script)?.into()]);
    }
    Ok(arguments)
}

/// What is wrong with the model itself, if its end shows something.
fn problem(status: ExitStatus, complaints: &[String]) -> Option<String> {
    match status.code() {
        Some(0) if !complaints.is_empty() => Some("it complained and succeeded all the same".to_owned()),
        Some(0) => None,
        Some(1) if complaints.is_empty() => {
            Some("its status says that it complained, and of what is unknown".to_owned())
        }
        Some(1) => None,
        _ => Some(format!("it ended with {status}")),
    }
}

/// Lines shown of complaints and logs.
const SHOWN: usize = 40;

/// What a model says at its end.
#[derive(PartialEq, Eq, Debug, Default)]
pub(super) struct Verdict {
    /// The rules that the guest broke, a line each.
    pub(super) complaints: Vec<String>,
    /// Why nothing that it says can be trusted.
    pub(super) problem: Option<String>,
}

impl Verdict {
    /// Whether the run is a failure for it.
    pub(super) fn is_failure(&self, strict: bool) -> bool {
        self.problem.is_some() || (strict && !self.complaints.is_empty())
    }

    /// Lines to show, none if there is nothing to say.
    pub(super) fn text(&self) -> String {
        let mut lines = Vec::new();
        if !self.complaints.is_empty() {
            lines
                .push(format!("the ConnectX model complained {} times of the guest:", self.complaints.len()));
            lines.extend(self.complaints.iter().take(SHOWN).map(|line| format!("    {line}")));
            if let Some(more @ 1..) = self.complaints.len().checked_sub(SHOWN) {
                lines.push(format!("    and {more} more"));
            }
        }
        if let Some(problem) = &self.problem {
            lines.push(format!("the ConnectX model failed: {problem}"));
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn the_model_is_told_relative_sockets_and_absolute_files() {
        let sockets = Sockets::new(PathBuf::from("/run/1-0"), 2);
        let options = Options { port: Some(Port::Roce), trace: Some("a/trace".into()), ..Options::default() };
        let words = arguments(&options, &sockets).unwrap();
        let words: Vec<_> = words.iter().map(|w| w.to_string_lossy().into_owned()).collect();
        let start =
            ["--socket", "function0", "--socket", "function1", "--port", "roce", "--control", "connectx"];
        assert_eq!(words[..8], start);
        assert_eq!(words[8], "--trace");
        assert!(Path::new(&words[9]).is_absolute() && words[9].ends_with("/a/trace"), "{words:?}");
        assert_eq!(words[10..], ["--complaints", "complaints"]);
    }

    /// A model that is a shell script, in a directory of its own.
    fn scripted(name: &str, script: &str) -> (PathBuf, Result<Model>) {
        let directory = std::env::temp_dir().join(format!("xtask-model-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let model = Model::spawn(command, &directory);
        (directory, model)
    }

    #[test]
    fn a_models_complaints_are_read_at_its_end_which_is_an_event() {
        let script = "echo listening; echo ready; echo 'cq 5: overrun' >complaints; exit 1";
        let (directory, model) = scripted("complains", script);
        let mut model = model.unwrap();
        let (send, events) = mpsc::channel();
        model.watch(send);
        let event = events.recv_timeout(START_LIMIT);
        assert!(matches!(event, Ok(Event::ModelEnded)), "no event of the model's end: {:?}", event.is_ok());
        let verdict = model.finish();
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(verdict, Verdict { complaints: vec!["cq 5: overrun".to_owned()], problem: None });
    }

    #[test]
    fn a_model_that_dies_is_told_with_its_last_words() {
        let (directory, model) = scripted("dies", "echo no such port >&2; exit 2");
        fs::remove_dir_all(&directory).unwrap();
        let error = model.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("exit status: 2") && error.ends_with("no such port"), "{error}");
        let (directory, model) = scripted("crashes", "echo ready; echo oh no >&2; kill -9 $$");
        let verdict = model.unwrap().finish();
        fs::remove_dir_all(&directory).unwrap();
        let problem = verdict.problem.unwrap();
        assert!(problem.contains("signal: 9") && problem.ends_with("oh no"), "{problem}");
    }

    #[test]
    fn options_of_the_model_are_refused_for_other_devices_and_a_missing_script_for_any() {
        assert!(Options::default().check(false).is_ok());
        let given = Options { functions: Some(2), ..Options::default() };
        assert!(given.check(false).unwrap_err().to_string().starts_with("--functions "));
        assert!(given.check(true).is_ok());
        let missing = Options { faults: Some("/surely/not/there".into()), ..Options::default() };
        assert!(missing.check(true).unwrap_err().to_string().contains("/surely/not/there"));
    }

    #[test]
    fn broken_rules_fail_a_run_unless_allowed_and_a_broken_model_always() {
        let complaints = vec!["cq 5: overrun".to_owned()];
        let rules = Verdict { complaints, problem: None };
        assert!(rules.is_failure(true) && !rules.is_failure(false));
        assert!(rules.text().contains("complained 1 times") && rules.text().contains("cq 5: overrun"));
        let broken = Verdict { complaints: Vec::new(), problem: Some("it crashed".to_owned()) };
        assert!(broken.is_failure(true) && broken.is_failure(false));
        let fine = Verdict::default();
        assert!(!fine.is_failure(true) && fine.text().is_empty());
    }

    #[test]
    fn many_complaints_are_counted_rather_than_shown() {
        let text = Verdict { complaints: vec!["x".to_owned(); SHOWN + 2], problem: None }.text();
        assert!(text.ends_with("and 2 more"), "{text}");
        let text = Verdict { complaints: vec!["x".to_owned(); SHOWN], problem: None }.text();
        assert!(text.ends_with("    x"), "{text}");
    }

    #[test]
    fn a_status_that_does_not_fit_the_complaints_is_a_problem() {
        let exit = |code: i32| ExitStatus::from_raw(code << 8);
        let some = ["x".to_owned()];
        assert_eq!(problem(exit(0), &[]), None);
        assert_eq!(problem(exit(1), &some), None);
        assert!(problem(exit(0), &some).is_some());
        assert!(problem(exit(1), &[]).is_some());
        assert!(problem(exit(2), &[]).is_some());
        assert!(problem(ExitStatus::from_raw(11), &some).is_some());
    }
}
