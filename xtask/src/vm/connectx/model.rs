//! The model's process: its command line, its start and its end.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::super::job::{CONNECTX_PORT, socket};
use super::options::Options;
use super::verdict::{SHOWN, Verdict};
use crate::arch::name_of;
use crate::process::{self, Process};

/// The names of files in the guest's directory.
const COMPLAINTS: &str = "complaints";
const TRACE: &str = "trace";
const LOG: &str = "model.log";

/// The time limit for the model's start, during which it only opens its sockets.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The time limit for the model to end after QEMU has ended.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The model's process. Dropping this value kills it.
pub(in crate::vm) struct Model {
    process: Process,
    directory: PathBuf,
    /// The thread that collects the model's output after its start.
    output: JoinHandle<String>,
}

impl Model {
    /// Starts a model and returns once it is listening. When the model closes its output, which it
    /// does when it ends, `ended` is called on another thread.
    pub(in crate::vm) fn start(
        program: &Path,
        options: &Options,
        directory: &Path,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<Model> {
        let sockets: Vec<_> =
            (0..options.functions()).map(socket).chain([CONNECTX_PORT.to_owned()]).collect();
        // Removes an earlier model's files. If a socket stays, the model reports that.
        for name in sockets.iter().map(String::as_str).chain([COMPLAINTS]) {
            let _ = fs::remove_file(directory.join(name));
        }
        let mut command = process::tied(program.as_os_str());
        command.args(arguments(options)?);
        Model::spawn(command, directory, START_LIMIT, ended)
    }

    fn spawn(
        mut command: Command,
        directory: &Path,
        limit: Duration,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<Model> {
        let deadline = Instant::now() + limit;
        let mut process = Process::start("ConnectX model", command.current_dir(directory))?;
        let mut log = String::new();
        while !log.ends_with("ready\n") {
            match process.line(deadline) {
                Ok(line) => log += &format!("{line}\n"),
                Err(error) if Instant::now() >= deadline => bail!("{error:#}{}", tail(&log)),
                Err(_) => {
                    bail!("the ConnectX model could not start ({}){}", process.wait(deadline)?, tail(&log))
                }
            }
        }
        let lines = process.take_lines();
        let output = thread::spawn(move || {
            let output = lines.iter().map(|line| line + "\n").collect();
            ended();
            output
        });
        Ok(Model { process, directory: directory.to_owned(), output })
    }

    /// Waits until the model exits, after QEMU has ended, and reads its verdict.
    pub(in crate::vm) fn finish(mut self) -> Verdict {
        let status = self.process.wait(Instant::now() + END_LIMIT);
        self.process.kill();
        let log = self.output.join().unwrap_or_default();
        // Adds the log, whose end the message below contains, to a failed guest's files.
        let _ = fs::write(self.directory.join(LOG), &log);
        let file = fs::read_to_string(self.directory.join(COMPLAINTS)).unwrap_or_default();
        let mut verdict = Verdict::new(&file, status);
        verdict.problem = verdict.problem.map(|text| text + &tail(&log));
        verdict
    }
}

/// Returns the last lines of an output in a form for appending to a message.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let tail = lines[lines.len().saturating_sub(SHOWN)..].join("\n");
    if tail.is_empty() { tail } else { format!("; the end of its output:\n{tail}") }
}

/// Returns the model's command line.
fn arguments(options: &Options) -> Result<Vec<OsString>> {
    let trace = options.trace.as_ref().map_or_else(|| Ok(TRACE.into()), std::path::absolute)?;
    let mut arguments: Vec<OsString> = Vec::new();
    for function in 0..options.functions() {
        arguments.extend(["--socket".into(), socket(function).into()]);
    }
    arguments.extend(["--port".into(), name_of(options.port()).into()]);
    arguments.extend(["--control".into(), CONNECTX_PORT.into()]);
    arguments.extend(["--trace".into(), trace.into(), "--complaints".into(), COMPLAINTS.into()]);
    if let Some(script) = &options.faults {
        arguments.extend(["--script".into(), std::path::absolute(script)?.into()]);
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Starts a shell script as the model, in a separate directory.
    fn scripted(name: &str, script: &str, limit: Duration) -> (PathBuf, Result<Model>, mpsc::Receiver<()>) {
        let directory = std::env::temp_dir().join(format!("xtask-model-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let (send, ends) = mpsc::channel();
        let model = Model::spawn(command, &directory, limit, move || send.send(()).unwrap());
        (directory, model, ends)
    }

    #[test]
    fn a_models_complaints_are_read_at_its_end_which_is_reported() {
        let script = "echo listening; echo ready; echo 'cq 5: overrun' >complaints; exit 1";
        let (directory, model, ends) = scripted("complains", script, START_LIMIT);
        assert_eq!(ends.recv_timeout(START_LIMIT), Ok(()), "the model's end was not reported");
        let verdict = model.unwrap().finish();
        fs::remove_dir_all(&directory).unwrap();
        let complaints = vec!["cq 5: overrun".to_owned()];
        assert_eq!(verdict, Verdict { complaints, ..Verdict::default() });
    }

    #[test]
    fn a_model_that_dies_or_never_starts_is_reported_with_its_output() {
        let failure = |name, script, limit| {
            let (directory, model, _ends) = scripted(name, script, limit);
            let error = model.map(Model::finish).map(|verdict| verdict.problem.unwrap_or_default());
            fs::remove_dir_all(&directory).unwrap();
            error.unwrap_or_else(|error| error.to_string())
        };
        let error = failure("dies", "echo no such port >&2; exit 2", START_LIMIT);
        assert!(error.contains("exit status: 2") && error.ends_with("no such port"), "{error}");
        let error = failure("crashes", "echo ready; echo oh no >&2; kill -9 $$", START_LIMIT);
        assert!(error.contains("signal: 9") && error.ends_with("oh no"), "{error}");
        let error = failure("hangs", "exec sleep 600", Duration::from_millis(10));
        assert!(error.contains("printed no line"), "{error}");
    }
}
