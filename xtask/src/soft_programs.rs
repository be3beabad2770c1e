//! Programs that run on soft devices, alone and in two processes, as `soft_programs.toml` lists
//! them: in an emulator ([`crate::aarch64`]) and in an empty root ([`crate::musl`]).

use std::process::Command;
use std::sync::LazyLock;
use std::time::Instant;

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::process::{LIMIT, Process, free_port, is_listening, is_listening_by_address};

/// The origin of a program.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Origin {
    Ours,
    Debian,
}

/// A program and its arguments.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Program {
    origin: Origin,
    /// Whether the program also runs in an empty root.
    #[serde(default)]
    in_empty_root: bool,
    run: String,
    /// A text that the program's output, or both processes' outputs, must contain.
    prints: String,
    pair: Option<Pair>,
}

/// Additional command-line arguments for each of the two processes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Pair {
    server: String,
    client: String,
    listens: Listens,
    /// Whether the server may report the end of its connection as an error.
    #[serde(default)]
    server_may_fail: bool,
}

/// The way that the two processes find each other.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Listens {
    OverTcp,
    ByAddress,
}

/// Returns all programs.
fn all() -> impl Iterator<Item = &'static Program> {
    #[derive(Deserialize)]
    struct List {
        program: Vec<Program>,
    }
    static LIST: LazyLock<List> =
        LazyLock::new(|| toml::from_str(include_str!("soft_programs.toml")).expect("a table of programs"));
    LIST.program.iter()
}

/// Returns the programs from an origin.
pub(crate) fn with_origin(origin: Origin) -> impl Iterator<Item = &'static Program> {
    all().filter(move |program| program.origin == origin)
}

/// Returns the programs that run in an empty root.
pub(crate) fn in_empty_root() -> impl Iterator<Item = &'static Program> {
    all().filter(|program| program.in_empty_root)
}

/// Runs programs; `command` returns the command for a program's name. Calls `each` with each
/// program's name and result.
pub(crate) fn check(
    programs: impl Iterator<Item = &'static Program>,
    command: impl Fn(&str) -> Result<Command>,
    each: &mut dyn FnMut(&str, Result<()>),
) {
    for program in programs {
        let whose = if program.origin == Origin::Ours { "our" } else { "Debian's" };
        let processes = if program.pair.is_some() { " in two processes" } else { "" };
        each(&format!("{whose} {}{processes}", program.run), program.check(&command));
    }
}

/// Prints a program's result and returns whether it succeeded.
pub(crate) fn show(name: &str, result: Result<()>) -> bool {
    match &result {
        Ok(()) => println!("ok {name}"),
        Err(why) => println!("FAIL {name}: {why:#}"),
    }
    result.is_ok()
}

impl Program {
    pub(crate) fn name(&self) -> &str {
        self.run.split(' ').next().unwrap_or_default()
    }

    fn check(&self, command: impl Fn(&str) -> Result<Command>) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        let start = |name, arguments: &str| {
            let line = format!("{} {arguments}", self.run);
            let mut command = command(self.name())?;
            command.args(line.split_whitespace().skip(1));
            Process::start(name, command.env("VERBS_SOFT", "auto").env("LC_ALL", "C"))
        };
        let outputs = match &self.pair {
            None => vec![start("program", "")?.finish(deadline)?],
            Some(pair) => pair.outputs(start, deadline)?.into(),
        };
        for output in outputs {
            ensure!(output.contains(&self.prints), "no {:?} in {output:?}", self.prints);
        }
        Ok(())
    }
}

impl Pair {
    fn outputs(
        &self,
        start: impl Fn(&'static str, &str) -> Result<Process>,
        deadline: Instant,
    ) -> Result<[String; 2]> {
        let port = free_port()?;
        let is_listening = match self.listens {
            Listens::OverTcp => is_listening,
            Listens::ByAddress => is_listening_by_address,
        };
        let mut server = start("server", &format!("-p {port} {}", self.server))?;
        if let Err(error) = server.wait_until(deadline, "listen", || is_listening(port)) {
            return Err(error.context(server.end()));
        }
        let client = start("client", &format!("-p {port} {}", self.client))?.finish(deadline)?;
        if !self.server_may_fail {
            return Ok([server.finish(deadline)?, client]);
        }
        server.wait(deadline)?;
        Ok([server.end(), client])
    }
}
