//! The tools, ours and rdma-core's, and a ping-pong between any two of them.

use core::fmt;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::port;
use crate::process::{self, Finished, Running};
use crate::refuse::{Counts, Mode};
use crate::runner::{CaseResult, Stop, fail, skip};

/// A time limit far beyond a tool's run time, even in an emulated guest on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The name of the guest's device.
pub const DEVICE: &str = "rxe0";

/// The names of our versions of rdma-core's programs, in alphabetical order.
///
/// The tests of rdma-tools compare this list with `src/bin/` and the documents. `verbs-tests`
/// compares the suites with it. Because the list is here, the suites need not compile rdma-tools.
pub const PROGRAMS: &[&str] = &[
    "cmtime",
    "ibv_asyncwatch",
    "ibv_devices",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "ibv_srq_pingpong",
    "ibv_uc_pingpong",
    "ibv_ud_pingpong",
    "ibv_xsrq_pingpong",
    "mckey",
    "rdma_client",
    "rdma_server",
    "rdma_xclient",
    "rdma_xserver",
    "rping",
    "ucmatose",
    "udaddy",
];

/// The project that a tool comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Maker {
    /// This project.
    Ours,
    /// rdma-core, as Debian packages it.
    Theirs,
    /// rdma-core's program on this project's `libibverbs.so.1`.
    Linked,
    /// This project, with the tool as a statically linked program in `/`.
    Static,
}

/// The environment variable that names the folder with rdma-core's newest programs.
const RDMA_CORE: &str = "VERBS_RDMA_CORE_DIR";

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours => "ours",
            Self::Theirs => "theirs",
            Self::Linked => "linked",
            Self::Static => "static",
        })
    }
}

impl Maker {
    /// Returns this maker's tool. It starts under its plain name, so that its messages do not
    /// contain its path.
    ///
    /// # Errors
    /// If the tool is missing, fails for our tools and skips the case for others.
    pub fn tool(&self, name: &str) -> CaseResult<Command> {
        let path = match self {
            Self::Ours => bin_dir()?.join(name),
            Self::Theirs | Self::Linked => Path::new("/usr/bin").join(name),
            Self::Static => Path::new("/").join(name),
        };
        match self {
            _ if path.exists() => {}
            Self::Theirs | Self::Linked => {
                return skip(
                    "rdma-core's tools are not installed (packages ibverbs-utils, ibverbs-providers)",
                );
            }
            _ => return fail(format_args!("{} is not built", path.display())),
        }
        let mut command = Command::new(path);
        command.arg0(name).env("LC_ALL", "C");
        self.prepare(&mut command)?;
        Ok(command)
    }

    /// Like [`tool`](Self::tool), but from Debian's newest rdma-core, for programs that have
    /// changed. The tool runs with that release's C library.
    ///
    /// # Errors
    /// The same errors as [`tool`](Self::tool). Skips the case if rdma-core's program was not
    /// downloaded.
    pub fn newest_tool(&self, name: &str) -> CaseResult<Command> {
        if *self != Self::Theirs {
            return self.tool(name);
        }
        let Some(root) = std::env::var_os(RDMA_CORE).map(PathBuf::from) else {
            return skip(format_args!("rdma-core's newest programs are not there ({RDMA_CORE})"));
        };
        let libraries = root.join("usr/lib/x86_64-linux-gnu");
        let mut paths = libraries.clone().into_os_string();
        paths.push(":");
        // Adds the providers, because libibverbs would first look in the system's directory.
        paths.push(libraries.join("libibverbs"));
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command
            .arg("--library-path")
            .arg(paths)
            .arg("--argv0")
            .arg(name)
            .arg(root.join("usr/bin").join(name));
        command.env("LC_ALL", "C");
        Ok(command)
    }

    /// Sets up the environment so that a Debian program finds this maker's `libibverbs.so.1`.
    ///
    /// # Errors
    /// Skips the case if `VERBS_C_ABI_DIR` is not set.
    pub fn prepare(&self, command: &mut Command) -> CaseResult {
        if *self == Self::Linked || *self == Self::Theirs && is_linked() {
            command.env("LD_LIBRARY_PATH", linked_dir()?);
        }
        Ok(())
    }
}

static LINKED: AtomicBool = AtomicBool::new(false);

/// Makes the [`Maker::Theirs`] programs that this process starts from now on use this project's
/// `libibverbs.so.1`.
///
/// # Errors
/// Skips the case if `VERBS_C_ABI_DIR` is not set.
pub fn link_theirs() -> CaseResult {
    linked_dir()?;
    LINKED.store(true, Ordering::Relaxed);
    Ok(())
}

/// Returns whether [`link_theirs`] was called.
pub fn is_linked() -> bool {
    LINKED.load(Ordering::Relaxed)
}

/// The environment variable that names the directory with this project's `libibverbs.so.1`.
const LINKED_DIR: &str = "VERBS_C_ABI_DIR";

/// Returns the directory of this project's `libibverbs.so.1`.
///
/// # Errors
/// Skips the case if `VERBS_C_ABI_DIR` is not set.
pub fn linked_dir() -> CaseResult<PathBuf> {
    match std::env::var_os(LINKED_DIR) {
        Some(dir) => Ok(dir.into()),
        None => skip(format_args!(
            "{LINKED_DIR} names no directory with our libibverbs.so.1 (cargo xtask c-abi --out DIR)"
        )),
    }
}

/// Returns the directory of this project's binaries.
///
/// # Errors
/// Any errno from finding this program's path.
pub fn bin_dir() -> CaseResult<PathBuf> {
    if let Some(dir) = std::env::var_os("VERBS_BIN_DIR") {
        return Ok(dir.into());
    }
    let program = std::env::current_exe()?;
    Ok(program.parent().map(Path::to_owned).unwrap_or_default())
}

/// Runs a tool to its end.
///
/// # Errors
/// Fails if the tool cannot start or exceeds the time limit.
pub fn run(command: &mut Command) -> CaseResult<Finished> {
    match process::run(command, LIMIT)? {
        Ok(finished) => Ok(finished),
        Err(killed) => fail(format_args!("{command:?} was not done after {LIMIT:?}: {}", killed.stderr)),
    }
}

/// Wraps a command in [`refuse`](crate::refuse).
///
/// # Errors
/// Fails if `refuse` is not built.
pub fn refused(mode: Mode, command: &Command) -> CaseResult<Command> {
    let mut refuse = Maker::Ours.tool("refuse")?;
    refuse.args([mode.name(), "--"]);
    Ok(process::under(refuse, command))
}

/// Returns the index of the GID for the guest's IPv4 address.
///
/// # Errors
/// Fails if the GID is missing.
pub fn gid_index() -> CaseResult<u32> {
    const GID: &str = "0000:0000:0000:0000:0000:ffff:0a09:0901";
    let gid =
        |index: &u32| std::fs::read_to_string(format!("/sys/class/infiniband/{DEVICE}/ports/1/gids/{index}"));
    let found = (0..16).find(|index| gid(index).is_ok_and(|gid| gid.trim_end() == GID));
    found.ok_or_else(|| Stop::Failed(format!("{DEVICE} has no GID {GID}")))
}

/// The message that a program prints before it continues without prefetching, which its library
/// cannot do (`EOPNOTSUPP`).
const NO_PREFETCH: &str = "Couldn't prefetch MR(95). Continue anyway\n";

/// A ping-pong with two ends.
#[derive(Clone, Debug)]
pub struct PingPong {
    /// The program: `ibv_rc_pingpong`, `ibv_srq_pingpong`, `ibv_uc_pingpong` or `ibv_ud_pingpong`.
    pub tool: &'static str,
    /// The maker of the server.
    pub server: Maker,
    /// The maker of the client.
    pub client: Maker,
    /// The number of rounds.
    pub iters: u32,
    /// Message size, in bytes.
    pub size: u32,
    /// More flags for both ends.
    pub flags: &'static [&'static str],
    /// The commands to reject on both ends.
    pub refuse: Option<Mode>,
}

impl PingPong {
    /// Our tool on both ends, with the default options but fewer rounds.
    pub const OURS: Self = Self {
        tool: "ibv_rc_pingpong",
        server: Maker::Ours,
        client: Maker::Ours,
        iters: 100,
        size: 4096,
        flags: &[],
        refuse: None,
    };

    /// Runs the ping-pong to its end, checks the output of both ends and returns the counts of
    /// rejected commands.
    ///
    /// # Errors
    /// Fails if an end fails, exceeds the time limit, or prints unexpected output.
    pub fn run(&self) -> CaseResult<[Option<Counts>; 2]> {
        let port = port::free()?;
        let mut server = Running::start(&mut self.command(&self.server, port)?)?;
        if !process::wait_for_listener(port, LIMIT, || !server.has_ended()) {
            return fail(format_args!(
                "the server does not listen: {}",
                told(server.finish(Duration::ZERO)?)
            ));
        }
        let client = Running::start(self.command(&self.client, port)?.arg("127.0.0.1"))?;
        let client = client.finish(LIMIT)?;
        // Once the client has ended, the server must end soon.
        let server = server.finish(LIMIT)?;
        let (server, client) = match (server, client) {
            (Ok(server), Ok(client)) => (server, client),
            (server, client) => {
                return fail(format_args!("server: {}; client: {}", told(server), told(client)));
            }
        };
        let ends = [("server", &self.server, &server), ("client", &self.client, &client)];
        let reports = ends.map(|(role, maker, end)| {
            self.check(maker, end)
                .map_err(|why| Stop::Failed(format!("{role}: {why}: {}", told(Ok(end.clone())))))
        });
        let [server_report, client_report] = reports;
        let (server_report, client_report) = (server_report?, client_report?);
        for (one, other) in [(&server_report, &client_report), (&client_report, &server_report)] {
            if one.local != other.remote {
                return fail(format_args!(
                    "an end is at {:?} and the other was told {:?}",
                    one.local, other.remote
                ));
            }
        }
        Ok([server_report.counts, client_report.counts])
    }

    fn command(&self, maker: &Maker, port: u16) -> CaseResult<Command> {
        let mut command = maker.tool(self.tool)?;
        command
            .args(["-d", DEVICE, "-p", &port.to_string(), "-g", &gid_index()?.to_string()])
            .args(["-n", &self.iters.to_string(), "-s", &self.size.to_string()])
            .args(self.flags);
        match self.refuse {
            Some(mode) => refused(mode, &command),
            None => Ok(command),
        }
    }

    /// Parses the output of one end.
    fn check(&self, maker: &Maker, end: &Finished) -> Result<Report, String> {
        if !end.status.success() {
            return Err(end.status.to_string());
        }
        let counts = Counts::parse(&end.stderr);
        match (&counts, self.refuse) {
            (None, Some(_)) => return Err("what was refused is not told".to_owned()),
            // The rxe provider in Debian's rdma-core has no advise_mr.
            (None, None) if maker == &Maker::Theirs && end.stderr == NO_PREFETCH => {}
            (None, None) if !end.stderr.is_empty() => return Err("it complained".to_owned()),
            (Some(counts), Some(_)) if end.stderr.trim_end() != counts.to_string().trim_end() => {
                return Err("it complained".to_owned());
            }
            _ => {}
        }
        let lines: Vec<&str> = end.stdout.lines().collect();
        let [addresses @ .., bytes, iters] = &lines[..] else {
            return Err(format!("{} lines", lines.len()));
        };
        let qps = self.qps();
        if addresses.len() != 2 * qps {
            return Err(format!("{} lines rather than {}", lines.len(), 2 * qps + 2));
        }
        let (local, remote) = addresses.split_at(qps);
        let addresses = |lines: &[&str], what: &str| -> Result<Vec<String>, String> {
            let address = |line: &&str| {
                // The datagram programs print a colon in the local address but not in the remote
                // address.
                let address = line.strip_prefix(what).map(|rest| rest.replace(": GID", ", GID"));
                address.ok_or_else(|| format!("no {what:?} in {line:?}"))
            };
            lines.iter().map(address).collect()
        };
        let total = u64::from(self.iters) * u64::from(self.size) * 2;
        for (line, start, middle, unit) in [
            (bytes, format!("{total} bytes in "), " seconds = ", " Mbit/sec"),
            (iters, format!("{} iters in ", self.iters), " seconds = ", " usec/iter"),
        ] {
            let numbers = line
                .strip_prefix(&start)
                .and_then(|rest| rest.strip_suffix(unit))
                .and_then(|rest| rest.split_once(middle))
                .map(|(seconds, rate)| (seconds.parse::<f64>(), rate.parse::<f64>()));
            if !matches!(numbers, Some((Ok(_), Ok(_)))) {
                return Err(format!("{line:?} is not `{start}S{middle}R{unit}`"));
            }
        }
        Ok(Report {
            local: addresses(local, "  local address:  ")?,
            remote: addresses(remote, "  remote address: ")?,
            counts,
        })
    }

    /// Returns the number of queue pairs that each end has.
    fn qps(&self) -> usize {
        let given = self.flags.iter().skip_while(|flag| **flag != "-q").nth(1);
        match given.map(|number| number.parse()) {
            Some(number) => number.unwrap_or(0),
            None if self.tool == "ibv_srq_pingpong" => 16,
            None => 1,
        }
    }
}

/// The parsed output of one end.
struct Report {
    local: Vec<String>,
    remote: Vec<String>,
    counts: Option<Counts>,
}

fn told(end: Result<Finished, Finished>) -> String {
    let (how, Finished { status, stdout, stderr }) = match end {
        Ok(finished) => ("ended with", finished),
        Err(killed) => ("had to be killed", killed),
    };
    format!("{how} {status}, out {stdout:?}, err {stderr:?}")
}
