//! `cargo xtask demo`: a device, a ping-pong between two of our own programs that checks every
//! byte, and two programs that find each other by address.
//!
//! It runs on the host: on its RDMA device if there is one, else on soft devices, which live in the
//! programs themselves. With `--device rxe` it runs in a guest, as `demo --device host` there.

use std::cmp::Reverse;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use crate::process::{self, LIMIT, Process, free_port, is_listening, pair};
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
            cargo::build(&["--quiet", "--bins", "--examples", "-p", "rdma-tools", "-p", "rdma-cm"])?
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
    Ok(ExitCode::SUCCESS)
}

/// Port 1 of the device that the programs use.
struct Port {
    device: String,
    /// The GID index to pass, where the port needs one.
    gid_index: Option<usize>,
    /// The address at which programs of this machine reach the port; `None` where it has none.
    address: Option<Ipv4Addr>,
    is_soft: bool,
}

impl Port {
    /// A soft device in each program, with an address of its own.
    fn soft() -> Port {
        let address = Some(Ipv4Addr::LOCALHOST);
        Port { device: "soft0".into(), gid_index: Some(0), address, is_soft: true }
    }

    /// The host's first device with an active port, with RoCE v2 over IPv4 where available.
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

    /// Shows the command line of a program, and returns the command.
    fn command(&self, prompt: &str, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments);
        let mut prefix = "";
        if self.is_soft {
            command.env("VERBS_SOFT", "auto");
            prefix = "VERBS_SOFT=auto ";
        }
        let name = program.file_name().unwrap_or_default().display();
        let quoted = |word: &&str| if word.contains(' ') { format!("'{word}'") } else { (*word).to_owned() };
        let words: Vec<_> = arguments.iter().map(quoted).collect();
        println!("{prompt}$ {prefix}{name} {}", words.join(" "));
        command
    }
}

fn show_ping_pong(bin_dir: &Path, port: &Port) -> Result<()> {
    println!();
    process::run(&mut port.command("", &bin_dir.join("ibv_devinfo"), &["-d", &port.device]))?;

    println!();
    let (tcp_port, pingpong) = (free_port()?, bin_dir.join("ibv_rc_pingpong"));
    let (number, index) = (tcp_port.to_string(), port.gid_index.unwrap_or_default().to_string());
    let mut arguments = vec!["-d", &port.device, "-p", &number, "--verify"];
    arguments.extend(port.gid_index.iter().flat_map(|_| ["-g", &index]));
    let server = Process::shown("server", &mut port.command("server", &pingpong, &arguments))?;
    arguments.push("127.0.0.1");
    let client = || Process::shown("client", &mut port.command("client", &pingpong, &arguments));
    pair(server, |_| is_listening(tcp_port), client, LIMIT)?;
    println!("\nverified: every byte of the 2,000 messages that went back and forth");
    Ok(())
}

/// The message that the server returns.
const MESSAGE: &str = "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz";

/// Shows two programs that find each other by an address and a port.
fn show_connection(examples: &Path, port: &Port, address: Ipv4Addr) -> Result<()> {
    println!();
    // It serves until it is killed.
    let server =
        Process::shown("server", &mut port.command("server", &examples.join("server"), &["0.0.0.0:0"]))?;
    let deadline = Instant::now() + LIMIT;
    let listening = server.line(deadline)?;
    let number = listening.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
    let to = format!("{address}:{}", number.with_context(|| format!("no port in {listening:?}"))?);
    let mut client = port.command("client", &examples.join("client"), &[&to, MESSAGE]);
    let returned = Process::shown("client", &mut client)?.finish(deadline)?;
    ensure!(returned.trim_end() == MESSAGE, "the client received {returned:?}, and had sent {MESSAGE:?}");
    println!("\nverified: the client found the server at {to}, and its message came back");
    Ok(())
}

/// Chooses a GID index among (type, GID) as in sysfs: RoCE v2 over IPv4, then any RoCE v2, then
/// any.
fn pick_gid(table: &[(String, String)]) -> Option<usize> {
    let is_present = |gid: &str| gid.chars().any(|c| c.is_ascii_hexdigit() && c != '0');
    let rank = |index: &usize| {
        let (kind, gid) = &table[*index];
        let is_v2 = kind.trim() == "RoCE v2";
        (is_v2 && address_of(gid).is_some(), is_v2, Reverse(*index))
    };
    (0..table.len()).filter(|index| is_present(&table[*index].1)).max_by_key(rank)
}

/// Returns the IPv4 address that a GID of sysfs is the mapped form of.
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
