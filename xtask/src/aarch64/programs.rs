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
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::DEBIAN;
use crate::process::{Process, free_port, is_listening, is_listening_by_address};
use crate::{apt, c_abi};

/// The place of a program.
#[derive(Clone, Copy, PartialEq, Eq)]
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
type Alone = (Origin, &'static str, &'static [&'static str], &'static str);

const ALONE: &[Alone] = &[
    (Origin::Ours, "ibv_devices", &[], "soft0"),
    (Origin::Ours, "ibv_devinfo", &["-v", "-d", "soft0"], "PORT_ACTIVE (4)"),
    (Origin::Debian, "ibv_devices", &[], "soft0"),
    (Origin::Debian, "ibv_devinfo", &["-v", "-d", "soft0"], "PORT_ACTIVE (4)"),
];

/// Two processes of a program: arguments of both and of the client, and a part of the output of
/// each.
struct Pair {
    origin: Origin,
    program: &'static str,
    both: &'static [&'static str],
    server: &'static [&'static str],
    client: &'static [&'static str],
    prints: [&'static str; 2],
    listens: fn(u16) -> bool,
    /// Whether the server exits with 0: rping's reports the end of its connection as an error.
    succeeds: bool,
}

const PING_PONG: Pair = Pair {
    origin: Origin::Debian,
    program: "ibv_rc_pingpong",
    both: &["-d", "soft0", "-g", "0", "-n", "500", "-c"],
    server: &[],
    client: &["127.0.0.1"],
    prints: ["500 iters in", "500 iters in"],
    listens: is_listening,
    succeeds: true,
};

const RPING: Pair = Pair {
    origin: Origin::Debian,
    program: "rping",
    both: &["-C", "10", "-v", "-V", "-a", "127.0.0.1"],
    server: &["-s"],
    client: &["-c"],
    prints: ["server ping data: rdma-ping-9: ", "ping data: rdma-ping-9: "],
    listens: is_listening_by_address,
    succeeds: false,
};

const UCMATOSE: Pair = Pair {
    origin: Origin::Ours,
    program: "ucmatose",
    both: &["-C", "10", "-S", "1000"],
    server: &["-b", "127.0.0.1"],
    client: &["-s", "127.0.0.1"],
    prints: ["return status 0", "return status 0"],
    listens: is_listening_by_address,
    succeeds: true,
};

const PAIRS: &[Pair] = &[
    Pair { origin: Origin::Ours, program: "ibv_srq_pingpong", ..PING_PONG },
    Pair { origin: Origin::Ours, program: "ibv_uc_pingpong", ..PING_PONG },
    UCMATOSE,
    Pair { origin: Origin::Ours, both: &["-d", "soft0", "-g", "0", "-n", "500", "--verify"], ..PING_PONG },
    Pair { origin: Origin::Ours, ..RPING },
    PING_PONG,
    RPING,
];

/// The time limit of each case. None takes more than a few seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// Builds the programs, runs each case, and calls `each` with its name and its result.
pub(crate) fn check(mut each: impl FnMut(&str, Result<()>)) -> Result<()> {
    let places = Places::prepare()?;
    for (origin, program, arguments, expected) in ALONE {
        let said = places.start("program", *origin, program, arguments);
        let said = said.and_then(|program| program.finish(Instant::now() + LIMIT));
        let result = said.and_then(|said| {
            ensure!(said.contains(expected), "it does not print {expected:?}: {said}");
            Ok(())
        });
        each(format!("{} {program} {}", origin.name(), arguments.join(" ")).trim_end(), result);
    }
    for pair in PAIRS {
        each(&format!("{} {} in two processes", pair.origin.name(), pair.program), pair.run(&places));
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
        let debian = DEBIAN.root(&|line| println!("{line}"))?;
        let ours = super::build(super::PROGRAMS)?;
        let libraries = c_abi::link_for_aarch64(&ours.join(c_abi::ARCHIVE))?;
        Ok(Places { debian, ours, libraries })
    }

    /// Starts a program in the emulator.
    fn start(
        &self,
        name: &'static str,
        origin: Origin,
        program: &str,
        arguments: &[&str],
    ) -> Result<Process> {
        let path = match origin {
            Origin::Ours => self.ours.join(program),
            Origin::Debian => self.debian.join("usr/bin").join(program),
        };
        let mut command = Command::new(apt::find_program("qemu-aarch64-static").context("no emulator")?);
        command.arg("-L").arg(&self.debian);
        if origin == Origin::Debian {
            command.arg("-E").arg(format!("LD_LIBRARY_PATH={}", self.libraries.display()));
        }
        command.arg(&path).args(arguments).env("VERBS_SOFT", "auto").env("LC_ALL", "C");
        Process::start(name, &mut command)
    }
}

impl Pair {
    fn run(&self, places: &Places) -> Result<()> {
        let port = free_port()?;
        let number = port.to_string();
        let start = |name, own: &[&str]| {
            places.start(name, self.origin, self.program, &[self.both, &["-p", &number], own].concat())
        };
        let mut server = start("server", self.server)?;
        let deadline = Instant::now() + LIMIT;
        if let Err(error) = server.wait_until(deadline, "listen", || (self.listens)(port)) {
            return Err(error.context(server.end()));
        }
        let client = start("client", self.client)?.finish(deadline)?;
        let server = if self.succeeds {
            server.finish(deadline)?
        } else {
            server.wait(deadline)?;
            server.end()
        };
        for (output, expected) in [server, client].iter().zip(self.prints) {
            ensure!(output.contains(expected), "no {expected:?} in {output:?}");
        }
        Ok(())
    }
}
