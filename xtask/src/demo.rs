//! `cargo xtask demo`: a device, a ping-pong between two of our own programs that checks every
//! byte, a comparison of the unchecked ping-pong with bare UDP, and two programs that find each
//! other by address.
//!
//! It runs on the host's RDMA device if there is one, and otherwise on soft devices inside the
//! programs. With `--device rxe`, it runs `demo --device host` in a guest.

use std::cmp::Reverse;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use crate::bench::{ROUND_TRIP, number};
use crate::process::{self, LIMIT, Process, free_port, is_listening, pair};
use crate::{cargo, vm};

/// Shows a device, a verified ping-pong and a connection by address.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Device to use [default: the host's if it has one, else soft]
    #[arg(long, value_enum)]
    device: Option<Device>,

    /// The kernel for rxe's guest: 5.10, 6.1, 6.12, 7.2, or a directory
    #[arg(long, default_value = vm::kernel::DEFAULT, value_name = "KERNEL")]
    kernel: vm::kernel::Choice,

    /// Directory with the tools, and with the examples below it [default: build them]
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

/// The build of the demo's programs. To build quickly, its profile optimises little except the
/// message path.
#[rustfmt::skip]
const BUILD: &[&str] = &[
    "--quiet", "--profile", "demo", "-p", "rdma-tools", "--bin", "ibv_devinfo", "--bin", "ibv_rc_pingpong",
    "--example", "bare_udp", "-p", "rdma-cm", "--example", "server", "--example", "client",
];

/// The number of timed ping-pongs, each followed by a run of `bare_udp`.
const RUNS: usize = 5;

/// Runs `demo`.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let bin_dir = match &args.bin_dir {
        Some(dir) => dir.clone(),
        None => {
            println!(
                "demo: building ibv_devinfo, ibv_rc_pingpong, a server and a client: a minute, the first time"
            );
            cargo::build(BUILD)?
        }
    };
    let port = match args.device {
        Some(Device::Rxe) => {
            let words = ["demo", "--device", "host", "--bin-dir"].map(Into::into);
            let words = words.into_iter().chain([bin_dir.into_os_string()]).collect();
            return vm::run_this_program(&args.kernel, 300, words);
        }
        Some(Device::Host) => Port::of_host()?,
        Some(Device::Soft) => Port::soft(),
        None => Port::of_host().unwrap_or_else(|why| {
            println!("demo: {why}, using soft devices");
            Port::soft()
        }),
    };
    show_ping_pong(&bin_dir, &port)?;
    match port.address {
        Some(address) => show_connection(&bin_dir.join("examples"), &port, address)?,
        None => println!("\n{} has no IPv4 address: no connection by address is shown", port.device),
    }
    println!("{NEXT}");
    Ok(ExitCode::SUCCESS)
}

/// Port 1 of the programs' device.
struct Port {
    device: String,
    /// The GID index to pass, if the port needs one.
    gid_index: Option<usize>,
    /// The port's address for programs on this machine, if it has one.
    address: Option<Ipv4Addr>,
    is_soft: bool,
}

impl Port {
    /// Returns the port of a soft device. Each program has its own soft device and address.
    fn soft() -> Port {
        let address = Some(Ipv4Addr::LOCALHOST);
        Port { device: "soft0".into(), gid_index: Some(0), address, is_soft: true }
    }

    /// Returns the host's first device with an active port, with RoCE v2 over IPv4 if available.
    fn of_host() -> Result<Port> {
        let names = |dir: &str| -> Vec<String> {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
        };
        let mut devices = names("/sys/class/infiniband");
        let usable = names("/dev/infiniband").iter().any(|name| name.starts_with("uverbs"));
        ensure!(usable && !devices.is_empty(), "no RDMA device on this machine");
        devices.sort();
        for device in &devices {
            let port = Path::new("/sys/class/infiniband").join(device).join("ports/1");
            let read = |name: &str| fs::read_to_string(port.join(name)).unwrap_or_default();
            if !read("state").contains("ACTIVE") {
                continue;
            }
            let (mut gid_index, mut address) = (None, None);
            if read("link_layer").trim() != "InfiniBand" {
                let entry = |i| (read(&format!("gid_attrs/types/{i}")), read(&format!("gids/{i}")));
                let table: Vec<_> = (0..256).map(entry).collect();
                let index = pick_gid(&table).with_context(|| format!("{device} has no GID"))?;
                (gid_index, address) = (Some(index), address_of(&table[index].1));
            }
            return Ok(Port { device: device.clone(), gid_index, address, is_soft: false });
        }
        bail!("no active port on {}", devices.join(", "))
    }

    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments);
        if self.is_soft {
            command.env("VERBS_SOFT", "auto");
        }
        command
    }

    /// Shows a program's command line and returns the command.
    fn shown_command(&self, prompt: &str, program: &Path, arguments: &[&str]) -> Command {
        let prefix = if self.is_soft { "VERBS_SOFT=auto " } else { "" };
        let name = program.file_name().unwrap_or_default().display();
        let quoted = |word: &&str| if word.contains(' ') { format!("'{word}'") } else { (*word).to_owned() };
        let words: Vec<_> = arguments.iter().map(quoted).collect();
        println!("{prompt}$ {prefix}{name} {}", words.join(" "));
        self.command(program, arguments)
    }
}

fn show_ping_pong(bin_dir: &Path, port: &Port) -> Result<()> {
    println!();
    process::run(&mut port.shown_command("", &bin_dir.join("ibv_devinfo"), &["-d", &port.device]))?;

    println!();
    ping_pong(bin_dir, port, true)?;
    println!("\nverified: every byte of 2,000 messages, back and forth");
    show_times(bin_dir, port)
}

/// Shows the median round trip of a ping-pong and of bare UDP. They run in turn, so that the
/// machine's load affects both.
fn show_times(bin_dir: &Path, port: &Port) -> Result<()> {
    println!("\n{RUNS} more runs without --verify, in turns with a bare UDP socket:");
    let (bare_udp, mut device, mut udp) = (bin_dir.join("examples/bare_udp"), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        device.push(number(&ping_pong(bin_dir, port, false)?, ROUND_TRIP)?);
        udp.push(number(&process::output(&mut Command::new(&bare_udp))?, ROUND_TRIP)?);
    }
    for (name, times) in [(&*port.device, &mut device), ("bare UDP", &mut udp)] {
        times.sort_by(f64::total_cmp);
        let (least, median, most) = (times[0], times[RUNS / 2], times[RUNS - 1]);
        println!("{name:<10}{median:>8.2} µs a round trip of 4096 bytes ({least:.2} to {most:.2})");
    }
    println!("{:<10}{:>8.2}", "ratio", device[RUNS / 2] / udp[RUNS / 2]);
    Ok(())
}

/// Runs a ping-pong and returns the client's output. `is_shown` also selects verification.
fn ping_pong(bin_dir: &Path, port: &Port, is_shown: bool) -> Result<String> {
    let (tcp_port, program) = (free_port()?, bin_dir.join("ibv_rc_pingpong"));
    let (number, index) = (tcp_port.to_string(), port.gid_index.unwrap_or_default().to_string());
    let mut arguments = vec!["-d", &port.device, "-p", &number];
    arguments.extend(port.gid_index.iter().flat_map(|_| ["-g", &index]));
    let start = |name: &'static str, arguments: &[&str]| {
        if is_shown {
            let arguments = [arguments, &["--verify"]].concat();
            Process::shown(name, &mut port.shown_command(name, &program, &arguments))
        } else {
            Process::start(name, &mut port.command(&program, arguments))
        }
    };
    let server = start("server", &arguments)?;
    arguments.push("127.0.0.1");
    pair(server, |_| is_listening(tcp_port), || start("client", &arguments), LIMIT)
}

/// The commands to try after the demo.
const NEXT: &str = "
Next:
  cargo install --profile dist --path tools  all tools, in ~/.cargo/bin
  cargo run --release --example kv           a key-value store over RDMA reads and writes
  cargo xtask run-c --soft -- ib_write_bw    an unmodified C program on this project's libibverbs.so.1";

/// The message returned by the server.
const MESSAGE: &str = "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz";

/// Shows two programs that find each other by an address and a port.
fn show_connection(examples: &Path, port: &Port, address: Ipv4Addr) -> Result<()> {
    println!();
    // The server runs until it is killed.
    let server = Process::shown(
        "server",
        &mut port.shown_command("server", &examples.join("server"), &["0.0.0.0:0"]),
    )?;
    let deadline = Instant::now() + LIMIT;
    let listening = server.line(deadline)?;
    let number = listening.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
    let to = format!("{address}:{}", number.with_context(|| format!("no port in {listening:?}"))?);
    let mut client = port.shown_command("client", &examples.join("client"), &[&to, MESSAGE]);
    let returned = Process::shown("client", &mut client)?.finish(deadline)?;
    ensure!(returned.trim_end() == MESSAGE, "the client received {returned:?}, and had sent {MESSAGE:?}");
    println!("\nverified: the client found the server at {to}, and its message came back");
    Ok(())
}

/// Chooses a GID index from (type, GID) pairs as in sysfs: RoCE v2 over IPv4, else any RoCE v2,
/// else any.
fn pick_gid(table: &[(String, String)]) -> Option<usize> {
    let is_present = |gid: &str| gid.chars().any(|c| c.is_ascii_hexdigit() && c != '0');
    let rank = |index: &usize| {
        let (kind, gid) = &table[*index];
        let is_v2 = kind.trim() == "RoCE v2";
        (is_v2 && address_of(gid).is_some(), is_v2, Reverse(*index))
    };
    (0..table.len()).filter(|index| is_present(&table[*index].1)).max_by_key(rank)
}

/// Returns the IPv4 address mapped by a GID in sysfs.
fn address_of(gid: &str) -> Option<Ipv4Addr> {
    gid.trim().parse::<Ipv6Addr>().ok()?.to_ipv4_mapped()
}

#[test]
fn the_gid_is_roce_v2_over_ipv4_where_there_is_one() {
    const LINK_LOCAL: &str = "fe80:0000:0000:0000:c067:ccff:fe1c:1108";
    const IPV4: &str = "0000:0000:0000:0000:0000:ffff:0a09:0901";
    const EMPTY: &str = "0000:0000:0000:0000:0000:0000:0000:0000";
    let pick = |rows: &[(&str, &str)]| {
        let lines = rows.iter().map(|(kind, gid)| (format!("{kind}\n"), format!("{gid}\n")));
        pick_gid(&lines.collect::<Vec<_>>())
    };
    let all = [("IB/RoCE v1", LINK_LOCAL), ("RoCE v2", LINK_LOCAL), ("IB/RoCE v1", IPV4), ("RoCE v2", IPV4)];
    assert_eq!(pick(&all), Some(3));
    assert_eq!(pick(&all[..3]), Some(1));
    assert_eq!(pick(&all[..1]), Some(0));
    assert_eq!(pick(&[("RoCE v2", EMPTY), ("", ""), ("RoCE v2", LINK_LOCAL)]), Some(2));
    assert_eq!(pick(&[("RoCE v2", EMPTY)]), None);
    assert_eq!(address_of(&format!("{IPV4}\n")), Some(Ipv4Addr::new(10, 9, 9, 1)));
    assert_eq!((address_of(LINK_LOCAL), address_of("")), (None, None));
}
