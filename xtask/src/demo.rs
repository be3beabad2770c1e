//! `cargo xtask demo`: a device, and a ping-pong between two of our own programs whose every byte is checked.
//!
//! It runs on this machine if that has an RDMA device, else in a guest: there the same code runs as `demo --here`.

use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{cargo, vm};

/// Shows a device and a verified ping-pong.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The guest's device, if this machine has none
    #[arg(long, value_enum, default_value_t = vm::Device::Rxe)]
    device: vm::Device,

    /// The guest's kernel: 5.10, 6.1, 6.12, 7.2, or a directory
    #[arg(long, default_value = vm::kernel::DEFAULT, value_name = "KERNEL")]
    kernel: vm::kernel::Choice,

    /// Use a guest even if this machine has a device
    #[arg(long)]
    vm: bool,

    /// Where ibv_devinfo and ibv_rc_pingpong are; builds ours otherwise
    #[arg(long, value_name = "DIR", hide = true)]
    bin_dir: Option<PathBuf>,

    /// Run here, whatever there is: how the guest runs it
    #[arg(long, hide = true, requires = "bin_dir", conflicts_with = "vm")]
    here: bool,
}

/// Runs `demo`.
///
/// # Errors
/// The programs cannot be built, there is no device and no VM, or the ping-pong is not verified.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let bin_dir = match &args.bin_dir {
        Some(dir) => dir.clone(),
        None => {
            println!("demo: building ibv_devinfo and ibv_rc_pingpong");
            cargo::build(&["--quiet", "--package", "rdma-tools", "--bins"])?
        }
    };
    if args.here || (!args.vm && !host_devices().is_empty()) {
        show(&bin_dir)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !args.vm {
        println!("demo: no RDMA device on this machine, using a guest");
    }
    let command = [GUEST_XTASK, "demo", "--here", "--bin-dir"].map(Into::into);
    vm::run(&vm::Args {
        device: args.device,
        timeout: 120,
        ..vm::Args::new(args.kernel.clone(), command.into_iter().chain([bin_dir.into_os_string()]).collect())
    })
}

/// This program, as a guest sees it.
const GUEST_XTASK: &str = "/run/vm/xtask";

/// Names of RDMA devices that this machine's programs can open.
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

/// How long each program may take; under emulation the ping-pong takes a second.
const LIMIT: Duration = Duration::from_secs(60);

fn show(bin_dir: &Path) -> Result<()> {
    let (devinfo, pingpong) = (bin_dir.join("ibv_devinfo"), bin_dir.join("ibv_rc_pingpong"));
    let (device, gid_index) = usable_port()?;
    println!("\n$ ibv_devinfo -d {device}");
    let status = Command::new(&devinfo)
        .args(["-d", &device])
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot run {}", devinfo.display()))?;
    ensure!(status.success(), "ibv_devinfo failed: {status}");

    // A port that is free now; the server takes it in a moment.
    let tcp_port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let mut arguments = vec!["-d".to_owned(), device, "-p".into(), tcp_port.to_string(), "--verify".into()];
    if let Some(index) = gid_index {
        arguments.extend(["-g".to_owned(), index.to_string()]);
    }
    println!("\nserver$ ibv_rc_pingpong {}", arguments.join(" "));
    let mut server = Program::start("server", &pingpong, &arguments)?;
    server.wait_until_it_listens(tcp_port)?;
    arguments.push("127.0.0.1".into());
    println!("client$ ibv_rc_pingpong {}\n", arguments.join(" "));
    let client = Program::start("client", &pingpong, &arguments)?;
    let deadline = Instant::now() + LIMIT;
    client.finish(deadline)?;
    server.finish(deadline)?;
    println!("\nverified: every byte of the 2,000 messages that went back and forth");
    Ok(())
}

/// The first device with an active port 1, and the GID index to use there: RoCE v2 over IPv4 where there is one.
fn usable_port() -> Result<(String, Option<u32>)> {
    let devices = host_devices();
    for device in &devices {
        let port = Path::new("/sys/class/infiniband").join(device).join("ports/1");
        let read = |name: &str| fs::read_to_string(port.join(name)).unwrap_or_default();
        if !read("state").contains("ACTIVE") {
            continue;
        }
        if read("link_layer").trim() == "InfiniBand" {
            return Ok((device.clone(), None));
        }
        let table: Vec<_> =
            (0..256).map(|i| (read(&format!("gid_attrs/types/{i}")), read(&format!("gids/{i}")))).collect();
        return Ok((device.clone(), Some(pick_gid(&table).with_context(|| format!("{device} has no GID"))?)));
    }
    bail!("no active port on {}", if devices.is_empty() { "any device".into() } else { devices.join(", ") })
}

/// Chooses among (type, GID) as sysfs shows them: RoCE v2 over IPv4, then any RoCE v2, then any.
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

/// A running program whose output is shown line by line under its name.
struct Program {
    name: &'static str,
    child: Child,
    output: Vec<thread::JoinHandle<bool>>,
}

impl Program {
    fn start(name: &'static str, path: &Path, arguments: &[String]) -> Result<Program> {
        let mut child = Command::new(path)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", path.display()))?;
        let mut output = Vec::new();
        output.extend(child.stdout.take().map(|pipe| show_lines(name, pipe)));
        output.extend(child.stderr.take().map(|pipe| show_lines(name, pipe)));
        Ok(Program { name, child, output })
    }

    fn wait_until_it_listens(&mut self, port: u16) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while !is_listening(port) {
            if let Some(status) = self.child.try_wait()? {
                bail!("the {} ended early: {status}", self.name);
            }
            ensure!(Instant::now() < deadline, "the {} does not listen on port {port}", self.name);
            thread::park_timeout(Duration::from_millis(10));
        }
        Ok(())
    }

    fn finish(mut self, deadline: Instant) -> Result<()> {
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            ensure!(Instant::now() < deadline, "the {} did not end", self.name);
            thread::park_timeout(Duration::from_millis(10));
        };
        // A thread that panicked has checked nothing.
        let valid = self.output.drain(..).all(|thread| thread.join().unwrap_or(false));
        ensure!(status.success(), "the {} failed: {status}", self.name);
        ensure!(valid, "the {} received other bytes than were sent", self.name);
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail if it has ended, which is how it should be.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Shows what a program says. The thread's result is whether no line complains about the data: rdma-core's program
/// prints that and succeeds all the same.
fn show_lines(name: &'static str, pipe: impl Read + Send + 'static) -> thread::JoinHandle<bool> {
    thread::spawn(move || {
        let mut valid = true;
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            println!("{name} | {line}");
            valid &= !line.contains("invalid data");
        }
        valid
    })
}

pub(crate) fn is_listening(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .any(|table| fs::read_to_string(table).is_ok_and(|text| lists_listener(&text, port)))
}

/// Whether a table as /proc/net/tcp has a socket in state LISTEN (0A) on the port.
fn lists_listener(table: &str, port: u16) -> bool {
    table.lines().any(|line| {
        let mut fields = line.split_whitespace();
        let local = fields.nth(1).and_then(|address| address.rsplit(':').next());
        local == Some(&format!("{port:04X}")) && fields.nth(1) == Some("0A")
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
    fn only_a_listening_socket_on_the_port_counts() {
        let text = "  sl  local_address rem_address   st tx_queue\n\
                    0: 00000000:4853 00000000:0000 0A 00000000\n\
                    1: 0100007F:1F90 0100007F:4854 01 00000000\n";
        assert!(lists_listener(text, 0x4853));
        assert!(!lists_listener(text, 0x1f90));
        assert!(!lists_listener(text, 0x4854));
    }
}
