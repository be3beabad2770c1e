//! Programs for aarch64 on soft devices, in the emulator: our tools, and Debian's on our libraries.
//!
//! | programs | on |
//! |---|---|
//! | ours | this project's crates |
//! | Debian's, of `ibverbs-utils` and `rdmacm-utils` | our `libibverbs.so.1` and `librdmacm.so.1` |
//!
//! C's own library has no soft devices, so that a program that shows one runs on ours.

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::DEBIAN;
use crate::process::{LIMIT, Process, free_port, is_listening, is_listening_by_address};
use crate::{apt, c_abi};

/// The programs of `programs.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Programs {
    alone: Vec<Alone>,
    pair: Vec<Pair>,
}

static PROGRAMS: LazyLock<Programs> =
    LazyLock::new(|| toml::from_str(include_str!("programs.toml")).expect("tables of programs"));

/// The place of a program.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Origin {
    Ours,
    Debian,
}

impl Origin {
    fn name(self) -> &'static str {
        match self {
            Origin::Ours => "our",
            Origin::Debian => "Debian's",
        }
    }
}

/// A program, its arguments, and a part of its output.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Alone {
    origin: Origin,
    run: String,
    prints: String,
}

/// Two processes of a program: arguments of both, of the server and of the client, and a part of
/// the output of each.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Pair {
    origin: Origin,
    run: String,
    server: String,
    client: String,
    prints: [String; 2],
    listens: Listens,
    /// Whether the server reports the end of its connection as an error.
    #[serde(default)]
    server_fails: bool,
}

/// The way in which the two find each other.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Listens {
    OverTcp,
    ByAddress,
}

/// Builds the programs, runs each case, and calls `each` with its name and its result.
pub(crate) fn check(mut each: impl FnMut(&str, Result<()>)) -> Result<()> {
    let places = Places::prepare()?;
    for Alone { origin, run, prints } in &PROGRAMS.alone {
        let said = places.start("program", *origin, run);
        let said = said.and_then(|program| program.finish(Instant::now() + LIMIT));
        let result = said.and_then(|said| {
            ensure!(said.contains(prints), "it does not print {prints:?}: {said}");
            Ok(())
        });
        each(&format!("{} {run}", origin.name()), result);
    }
    for pair in &PROGRAMS.pair {
        let program = pair.run.split(' ').next().unwrap_or_default();
        each(&format!("{} {program} in two processes", pair.origin.name()), pair.run(&places));
    }
    Ok(())
}

/// The folders of the programs and of the libraries.
struct Places {
    debian: PathBuf,
    ours: PathBuf,
    libraries: PathBuf,
}

impl Places {
    fn prepare() -> Result<Places> {
        let debian = DEBIAN.root()?;
        let ours = super::build(super::PROGRAMS)?;
        let libraries = c_abi::link_for_aarch64(&ours.join(c_abi::ARCHIVE))?;
        Ok(Places { debian, ours, libraries })
    }

    /// Starts a program in the emulator, with arguments behind spaces.
    fn start(&self, name: &'static str, origin: Origin, line: &str) -> Result<Process> {
        let mut words = line.split_whitespace();
        let program = words.next().context("no program")?;
        let path = match origin {
            Origin::Ours => self.ours.join(program),
            Origin::Debian => self.debian.join("usr/bin").join(program),
        };
        let mut command = Command::new(apt::find_program("qemu-aarch64-static").context("no emulator")?);
        command.arg("-L").arg(&self.debian);
        if origin == Origin::Debian {
            command.arg("-E").arg(format!("LD_LIBRARY_PATH={}", self.libraries.display()));
        }
        command.arg(&path).args(words).env("VERBS_SOFT", "auto").env("LC_ALL", "C");
        Process::start(name, &mut command)
    }
}

impl Pair {
    fn run(&self, places: &Places) -> Result<()> {
        let port = free_port()?;
        let start =
            |name, own: &str| places.start(name, self.origin, &format!("{} -p {port} {own}", self.run));
        let is_listening = match self.listens {
            Listens::OverTcp => is_listening,
            Listens::ByAddress => is_listening_by_address,
        };
        let mut server = start("server", &self.server)?;
        let deadline = Instant::now() + LIMIT;
        if let Err(error) = server.wait_until(deadline, "listen", || is_listening(port)) {
            return Err(error.context(server.end()));
        }
        let client = start("client", &self.client)?.finish(deadline)?;
        let server = if self.server_fails {
            server.wait(deadline)?;
            server.end()
        } else {
            server.finish(deadline)?
        };
        for (output, expected) in [server, client].iter().zip(&self.prints) {
            ensure!(output.contains(expected.as_str()), "no {expected:?} in {output:?}");
        }
        Ok(())
    }
}
