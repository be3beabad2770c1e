//! The model's process: its command line, its start, its end.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::options::Options;
use super::verdict::{SHOWN, Verdict};
use crate::process;

/// The sockets on which the model listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sockets {
    /// The directory that the names below are relative to.
    pub(crate) directory: PathBuf,
    /// One for each function.
    pub(crate) functions: Vec<String>,
    /// The socket for lines that inject faults.
    pub(crate) control: &'static str,
}

impl Sockets {
    /// Returns names for the sockets of `functions` functions in a guest's own directory.
    pub(crate) fn new(directory: PathBuf, functions: u8) -> Sockets {
        let functions = (0..functions).map(|n| format!("function{n}")).collect();
        Sockets { directory, functions, control: "connectx" }
    }

    /// Removes the files of an earlier model.
    fn clear(&self) {
        for name in self.functions.iter().map(String::as_str).chain([self.control, COMPLAINTS]) {
            // Usually there is none. If a socket stays, the model cannot listen and reports it.
            let _ = fs::remove_file(self.directory.join(name));
        }
    }
}

/// Files in the guest's directory.
const COMPLAINTS: &str = "complaints";
const TRACE: &str = "trace";
const LOG: &str = "model.log";

/// The limit on its end after QEMU's.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The model's process; dropping it kills it.
pub(in crate::vm) struct Model {
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
    directory: PathBuf,
}

impl Model {
    /// Starts a model, which is listening when this returns.
    pub(in crate::vm) fn start(program: &Path, options: &Options, sockets: &Sockets) -> Result<Model> {
        sockets.clear();
        let mut command = process::tied(program.as_os_str());
        command.args(arguments(options, sockets)?);
        Model::spawn(command, &sockets.directory)
    }

    fn spawn(mut command: Command, directory: &Path) -> Result<Model> {
        command
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(directory.join(LOG))?);
        let mut child = command.spawn().context("cannot run the ConnectX model")?;
        let stdout = child.stdout.take().map(BufReader::new);
        let mut model = Model { child, stdout, directory: directory.to_owned() };
        // It only opens its sockets before.
        let lines = model.stdout.as_mut().context("no stdout")?.lines();
        if !lines.map_while(Result::ok).any(|line| line == "ready") {
            let status = model.child.wait()?;
            bail!("the ConnectX model could not start ({status}){}", model.log());
        }
        Ok(model)
    }

    /// Calls `ended` on a thread of its own when the model closes its output, which it does at its
    /// end.
    pub(in crate::vm) fn on_end(&mut self, ended: impl FnOnce() + Send + 'static) {
        if let Some(mut stdout) = self.stdout.take() {
            thread::spawn(move || {
                // Read to the end, because the model must not block.
                let _ = io::copy(&mut stdout, &mut io::sink());
                ended();
            });
        }
    }

    /// Waits for its end after QEMU's, and reads its verdict.
    pub(in crate::vm) fn finish(mut self) -> Verdict {
        let status = self.wait();
        let file = fs::read_to_string(self.directory.join(COMPLAINTS)).unwrap_or_default();
        let mut verdict = Verdict::new(&file, status);
        verdict.problem = verdict.problem.map(|text| format!("{text}{}", self.log()));
        verdict
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

    /// Returns the last lines of its stderr, to append to a message.
    fn log(&self) -> String {
        let text = fs::read(self.directory.join(LOG)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(SHOWN)..].join("\n");
        if tail.is_empty() { tail } else { format!("; the end of its stderr:\n{tail}") }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // Both fail if it has ended and been waited for, which is the normal case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the model's command line.
fn arguments(options: &Options, sockets: &Sockets) -> Result<Vec<OsString>> {
    let mut arguments: Vec<OsString> = Vec::new();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a shell script as the model, in a directory of its own.
    fn scripted(name: &str, script: &str) -> (PathBuf, Result<Model>) {
        let directory = std::env::temp_dir().join(format!("xtask-model-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let model = Model::spawn(command, &directory);
        (directory, model)
    }

    #[test]
    fn a_models_complaints_are_read_at_its_end_which_is_reported() {
        let script = "echo listening; echo ready; echo 'cq 5: overrun' >complaints; exit 1";
        let (directory, model) = scripted("complains", script);
        let mut model = model.unwrap();
        let (send, ends) = std::sync::mpsc::channel();
        model.on_end(move || send.send(()).unwrap());
        assert_eq!(ends.recv_timeout(Duration::from_secs(20)), Ok(()), "the model's end was not reported");
        let verdict = model.finish();
        fs::remove_dir_all(&directory).unwrap();
        let complaints = vec!["cq 5: overrun".to_owned()];
        assert_eq!(verdict, Verdict { complaints, ..Verdict::default() });
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
}
