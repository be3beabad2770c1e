//! `cargo xtask demo`: a device, a ping-pong between two of our own programs that checks every
//! byte, and two programs that find each other by address.
//!
//! It runs on the host: on its RDMA device if there is one, else on soft devices, which live in the
//! programs themselves. With `--device rxe` it runs in a guest, as `demo --device host` there.

use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::process::{Process, free_port, is_listening};
use crate::{cargo, vm};

/// Shows a device, a verified ping-pong and a connection by address.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Device to use [default: the host's if it has one, else soft]
    #[arg(long, value_enum)]
    device: Option<Device>,

    /// The kernel of rxe's guest: 5.10, 6.1, 6.12, 7.2, or a directory
    #[arg(long, default_value = vm::kernel::DEFAULT, value_name = "KERNEL")]
    kernel: vm::kernel::Choice,

    /// Directory of the tools, and of the examples below it [default: build them]
    #[arg(long, value_name = "DIR", hide = true)]
    bin_dir: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Device {
    /// The host's first device with an active port
    Host,
    /// RoCE v2 over UDP on loopback, in the programs themselves
    Soft,
    /// The kernel's Soft-RoCE, in a guest
    Rxe,
}

/// Runs `demo`.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let bin_dir = match &args.bin_dir {
        Some(dir) => dir.clone(),
        None => {
            println!("demo: building ibv_devinfo, ibv_rc_pingpong, and a server and a client");
            cargo::build(&[&["--quiet", "--bins", "--examples"], PACKAGES].concat())?
        }
    };
    let port = match args.device {
        Some(Device::Rxe) => return in_a_guest(args, bin_dir),
        Some(Device::Host) => Port::of_host()?,
        Some(Device::Soft) => Port::soft(),
        None => Port::of_host().unwrap_or_else(|why| {
            println!("demo: {why}, using soft devices");
            Port::soft()
        }),
    };
    show(&bin_dir, &port)?;
    Ok(ExitCode::SUCCESS)
}

/// The packages of the tools and of the examples.
const PACKAGES: &[&str] = &["--package", "rdma-tools", "--package", "rdma-cm"];

fn in_a_guest(args: &Args, bin_dir: PathBuf) -> Result<ExitCode> {
    let command = [GUEST_XTASK, "demo", "--device", "host", "--bin-dir"].map(Into::into);
    vm::run(&vm::Args {
        device: vm::Device::Rxe,
        timeout: 120,
        ..vm::Args::new(args.kernel.clone(), command.into_iter().chain([bin_dir.into_os_string()]).collect())
    })
}

/// The path of this program in a guest.
const GUEST_XTASK: &str = "/run/vm/xtask";

/// Returns the names of the host's RDMA devices, if programs can open them.
fn host_devices() -> Vec<String> {
    let usable = fs::read_dir("/dev/infiniband").is_ok_and(|mut entries| {
        entries.any(|e| e.is_ok_and(|e| e.file_name().to_string_lossy().starts_with("uverbs")))
    });
    let Ok(entries) = fs::read_dir("/sys/class/infiniband") else { return Vec::new() };
    let mut names: Vec<_> =
        entries.flatten().filter_map(|e| e.file_name().into_string().ok()).filter(|_| usable).collect();
    names.sort();
    names
}

/// The time limit of each program. Under emulation the ping-pong takes a second.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Port 1 of the device that the ping-pong uses.
pub(crate) struct Port {
    device: String,
    /// The GID index to pass, where the port needs one.
    gid_index: Option<u32>,
    /// The address at which programs of this machine reach the port; `None` where it has none.
    address: Option<Ipv4Addr>,
    /// The environment variable that adds the device to the programs' list.
    pub(crate) env: Option<(&'static str, &'static str)>,
}

impl Port {
    /// A soft device in each program, with an address of its own.
    pub(crate) fn soft() -> Port {
        Port {
            device: "soft0".into(),
            gid_index: Some(0),
            address: Some(Ipv4Addr::LOCALHOST),
            env: Some(("VERBS_SOFT", "auto")),
        }
    }

    /// The host's first device with an active port, with RoCE v2 over IPv4 where available.
    fn of_host() -> Result<Port> {
        let devices = host_devices();
        for device in &devices {
            let port = Path::new("/sys/class/infiniband").join(device).join("ports/1");
            let read = |name: &str| fs::read_to_string(port.join(name)).unwrap_or_default();
            if !read("state").contains("ACTIVE") {
                continue;
            }
            let gid_index = if read("link_layer").trim() == "InfiniBand" {
                None
            } else {
                let of = |i| (read(&format!("gid_attrs/types/{i}")), read(&format!("gids/{i}")));
                let table: Vec<_> = (0..256).map(of).collect();
                Some(pick_gid(&table).with_context(|| format!("{device} has no GID"))?)
            };
            let address = gid_index.and_then(|index| address_of(&read(&format!("gids/{index}"))));
            return Ok(Port { device: device.clone(), gid_index, address, env: None });
        }
        match &devices[..] {
            [] => bail!("no RDMA device on this machine"),
            devices => bail!("no active port on {}", devices.join(", ")),
        }
    }

    /// Returns the environment variable as a prefix for a command line that is shown.
    fn prefix(&self) -> String {
        self.env.map(|(name, value)| format!("{name}={value} ")).unwrap_or_default()
    }
}

fn show(bin_dir: &Path, port: &Port) -> Result<()> {
    show_ping_pong(bin_dir, port)?;
    match port.address {
        Some(address) => show_connection(&bin_dir.join("examples"), port, address),
        None => {
            println!("\n{} has no IPv4 address: no connection by address is shown", port.device);
            Ok(())
        }
    }
}

fn show_ping_pong(bin_dir: &Path, port: &Port) -> Result<()> {
    let (devinfo, pingpong) = (bin_dir.join("ibv_devinfo"), bin_dir.join("ibv_rc_pingpong"));
    let prefix = port.prefix();
    println!("\n$ {prefix}ibv_devinfo -d {}", port.device);
    let status = Command::new(&devinfo)
        .args(["-d", &port.device])
        .envs(port.env)
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot run {}", devinfo.display()))?;
    ensure!(status.success(), "ibv_devinfo failed: {status}");

    let tcp_port = free_port()?;
    let mut arguments: Vec<String> =
        ["-d", &port.device, "-p", &tcp_port.to_string(), "--verify"].map(Into::into).into();
    if let Some(index) = port.gid_index {
        arguments.extend(["-g".to_owned(), index.to_string()]);
    }
    println!("\nserver$ {prefix}ibv_rc_pingpong {}", arguments.join(" "));
    let mut server = Program::start("server", &pingpong, &arguments, port)?;
    server.wait_until("listen", || is_listening(tcp_port))?;
    arguments.push("127.0.0.1".into());
    println!("client$ {prefix}ibv_rc_pingpong {}\n", arguments.join(" "));
    let client = Program::start("client", &pingpong, &arguments, port)?;
    let deadline = Instant::now() + LIMIT;
    client.finish(deadline)?;
    server.finish(deadline)?;
    println!("\nverified: every byte of the 2,000 messages that went back and forth");
    Ok(())
}

/// The message that the server returns.
const MESSAGE: &str = "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz";

/// Shows two programs that find each other by an address and a port.
fn show_connection(examples: &Path, port: &Port, address: Ipv4Addr) -> Result<()> {
    let prefix = port.prefix();
    println!("\nserver$ {prefix}server 0.0.0.0:0");
    let server = Program::start("server", &examples.join("server"), &["0.0.0.0:0".to_owned()], port)?;
    let deadline = Instant::now() + LIMIT;
    let listening = server.line(deadline)?;
    let listening_port = listening.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
    let to = format!("{address}:{}", listening_port.with_context(|| format!("no port in {listening:?}"))?);
    println!("client$ {prefix}client {to} '{MESSAGE}'\n");
    let client = Program::start("client", &examples.join("client"), &[to.clone(), MESSAGE.to_owned()], port)?;
    let returned = client.line(deadline)?;
    client.finish(deadline)?;
    // It serves until it is killed.
    drop(server);
    ensure!(returned == MESSAGE, "the client received {returned:?}, and had sent {MESSAGE:?}");
    println!("\nverified: the client found the server at {to}, and its message came back");
    Ok(())
}

/// Chooses a GID index among (type, GID) as in sysfs: RoCE v2 over IPv4, then any RoCE v2, then
/// any.
fn pick_gid(table: &[(String, String)]) -> Option<u32> {
    let present = |gid: &str| gid.chars().any(|c| c.is_ascii_hexdigit() && c != '0');
    let v2 = |kind: &str| kind.trim() == "RoCE v2";
    let ipv4 = |gid: &str| gid.starts_with("0000:0000:0000:0000:0000:ffff:");
    let find = |accept: &dyn Fn(&str, &str) -> bool| {
        table.iter().position(|(kind, gid)| present(gid) && accept(kind, gid))
    };
    find(&|kind, gid| v2(kind) && ipv4(gid))
        .or_else(|| find(&|kind, _| v2(kind)))
        .or_else(|| find(&|_, _| true))
        .and_then(|index| u32::try_from(index).ok())
}

/// Returns the IPv4 address that a GID of sysfs is the mapped form of.
fn address_of(gid: &str) -> Option<Ipv4Addr> {
    gid.trim().parse::<Ipv6Addr>().ok()?.to_ipv4_mapped()
}

/// A running program whose output is shown line by line, prefixed with its name.
pub(crate) struct Program {
    process: Process,
    output: Vec<thread::JoinHandle<bool>>,
    /// The lines that it prints on stdout.
    lines: mpsc::Receiver<String>,
}

impl Program {
    /// Starts a program with the port's environment.
    pub(crate) fn start(
        name: &'static str,
        path: &Path,
        arguments: &[String],
        port: &Port,
    ) -> Result<Program> {
        let mut process = Process::start(name, Command::new(path).args(arguments).envs(port.env))?;
        let (stdout, stderr) = process.output();
        let (sender, lines) = mpsc::channel();
        let mut output = Vec::new();
        output.extend(stdout.map(|pipe| show_lines(name, pipe, Some(sender))));
        output.extend(stderr.map(|pipe| show_lines(name, pipe, None)));
        Ok(Program { process, output, lines })
    }

    /// Returns the next line of its stdout.
    fn line(&self, deadline: Instant) -> Result<String> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.lines.recv_timeout(left).with_context(|| format!("the {} printed no line", self.process.name()))
    }

    /// Waits until something is true, which no event announces.
    pub(crate) fn wait_until(&mut self, verb: &str, is_true: impl Fn() -> bool) -> Result<()> {
        self.process.wait_until(Instant::now() + LIMIT, verb, is_true)
    }

    /// Waits for the end of the program.
    pub(crate) fn finish(mut self, deadline: Instant) -> Result<()> {
        let (name, status) = (self.process.name(), self.process.wait(deadline)?);
        // A thread that panicked has checked nothing.
        let valid = self.output.drain(..).all(|thread| thread.join().unwrap_or(false));
        ensure!(status.success(), "the {name} failed: {status}");
        ensure!(valid, "the {name} received bytes that differ from those sent");
        Ok(())
    }
}

/// Shows a program's output, and sends its lines. The thread returns whether no line reports wrong
/// data: rdma-core's program prints such a line and exits with 0 nevertheless.
fn show_lines(
    name: &'static str,
    pipe: impl Read + Send + 'static,
    lines: Option<mpsc::Sender<String>>,
) -> thread::JoinHandle<bool> {
    thread::spawn(move || {
        let mut valid = true;
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            println!("{name} | {line}");
            valid &= !line.contains("invalid data");
            if let Some(lines) = &lines {
                // It fails once the program is not waited for any more.
                let _ = lines.send(line);
            }
        }
        valid
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[(&str, &str)]) -> Vec<(String, String)> {
        rows.iter().map(|(kind, gid)| (format!("{kind}\n"), format!("{gid}\n"))).collect()
    }

    const LINK_LOCAL: &str = "fe80:0000:0000:0000:c067:ccff:fe1c:1108";
    const IPV4: &str = "0000:0000:0000:0000:0000:ffff:0a09:0901";
    const EMPTY: &str = "0000:0000:0000:0000:0000:0000:0000:0000";

    #[test]
    fn the_gid_is_roce_v2_over_ipv4_where_there_is_one() {
        let v1_and_v2 =
            [("IB/RoCE v1", LINK_LOCAL), ("RoCE v2", LINK_LOCAL), ("IB/RoCE v1", IPV4), ("RoCE v2", IPV4)];
        assert_eq!(pick_gid(&table(&v1_and_v2)), Some(3));
        assert_eq!(pick_gid(&table(&v1_and_v2[..3])), Some(1));
        assert_eq!(pick_gid(&table(&v1_and_v2[..1])), Some(0));
        assert_eq!(pick_gid(&table(&[("RoCE v2", EMPTY), ("", ""), ("RoCE v2", LINK_LOCAL)])), Some(2));
        assert_eq!(pick_gid(&table(&[("RoCE v2", EMPTY)])), None);
    }

    #[test]
    fn an_address_is_that_of_a_mapped_gid() {
        assert_eq!(address_of(&format!("{IPV4}\n")), Some(Ipv4Addr::new(10, 9, 9, 1)));
        assert_eq!((address_of(LINK_LOCAL), address_of(EMPTY), address_of("")), (None, None, None));
    }
}
