//! The guest's side: process 1 after the initramfs, which sets up the device, runs one command and
//! powers off.
//!
//! It communicates with the host over virtio serial ports, which carry bytes unchanged: `out` and
//! `err` for the command's output, `in` for its input, and `control` for these lines:
//!
//! | line | direction | meaning |
//! |---|---|---|
//! | `hello` | to host | process 1 runs |
//! | `ready` | to host | the command starts now |
//! | `alive` | to host | sent every few seconds: the guest still schedules processes |
//! | `exit N`, `signal N` | to host | the command has ended; its output is complete |
//! | `failed TEXT` | to host | the guest could not be set up |
//! | `kill` | to guest | time is up: show blocked tasks, kill every process |
//!
//! [`rxe`] and [`mlx5`] set up the device.

mod mlx5;
mod rxe;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::resource::{Resource, rlim_t, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::Pid;

use super::job::{Device, Job};
use crate::process::output;

/// The first argument that makes this program the guest's process 1.
pub(crate) const SUBCOMMAND: &str = "guest-init";

/// The interval between two `alive` lines.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(3);

/// The time limit for setting up the guest.
const SETUP: Duration = Duration::from_secs(60);

/// Runs as process 1. Never returns: the guest powers off.
pub(crate) fn main() -> ! {
    // Process 1 must not end: the kernel would panic, and the cause would be lost in its trace.
    let result = std::panic::catch_unwind(run).unwrap_or_else(|_| Err(anyhow!("guest-init panicked")));
    if let Err(error) = result {
        eprintln!("guest-init: {error:#}");
    }
    loop {
        // Returns only on failure, and there is nothing else that process 1 could do.
        let _ = reboot(RebootMode::RB_POWER_OFF);
        thread::park_timeout(Duration::from_secs(1));
    }
}

fn run() -> Result<()> {
    let deadline = Instant::now() + SETUP;
    let control = open_port("control", deadline)?;
    // From here on, a failure may have other causes than the emulator: no second boot.
    send(&control, "hello");
    let result = std::panic::catch_unwind(|| run_job(&control, deadline));
    let result = result.unwrap_or_else(|_| Err(anyhow!("guest-init panicked")));
    if let Err(error) = &result {
        send(&control, &format!("failed {}", format!("{error:#}").replace('\n', " | ")));
    }
    result
}

/// Sends a line over the control port. A single write keeps it apart from other threads' lines.
fn send(mut control: &File, line: &str) {
    // If this fails, the host is gone.
    let _ = control.write_all(format!("{line}\n").as_bytes());
}

fn run_job(control: &File, deadline: Instant) -> Result<()> {
    let job: Job = serde_json::from_slice(&fs::read("/run/vm/job").context("no job")?)?;
    let out = open_port("out", deadline)?;
    let err = open_port("err", deadline)?;
    let input = if job.interactive { Some(open_port("in", deadline)?) } else { None };
    let modules = Path::new(&job.modules);
    if modules.is_dir() {
        fs::create_dir_all("/lib/modules")?;
        mount(Some(modules), "/lib/modules", None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .with_context(|| format!("cannot bind {} to /lib/modules", modules.display()))?;
    }
    shell(&format!("ip link set lo up && {NO_ADDRESS_DETECTION}"))?;
    match job.device {
        Device::None => {}
        Device::Rxe => rxe::set_up(deadline)?,
        Device::Mlx5 => mlx5::set_up(job.port, job.functions, deadline)?,
    }
    keep_driver_of(job.device)?;
    setrlimit(Resource::RLIMIT_MEMLOCK, rlim_t::MAX, rlim_t::MAX).context("RLIMIT_MEMLOCK")?;
    setrlimit(Resource::RLIMIT_NOFILE, 65536, 65536).context("RLIMIT_NOFILE")?;

    let (heartbeat, listen) = (control.try_clone()?, control.try_clone()?);
    thread::spawn(move || {
        loop {
            thread::park_timeout(HEARTBEAT);
            send(&heartbeat, "alive");
        }
    });
    thread::spawn(move || obey(listen));
    send(control, "ready");
    send(control, &run_command(&job, input, out, err));
    Ok(())
}

/// Moves other devices' drivers out of rdma-core's driver list. libibverbs loads the whole list,
/// which takes half of a short program's time in an emulated guest (0.3 of 0.6 s). A guest without
/// rdma-core has no list.
fn keep_driver_of(device: Device) -> Result<()> {
    let driver = match device {
        Device::None => return Ok(()),
        Device::Rxe => "rxe.driver",
        Device::Mlx5 => "mlx5.driver",
    };
    shell(&format!(
        "cd /etc/libibverbs.d 2>/dev/null || exit 0; mkdir ../libibverbs.others; \
         for file in *; do [ $file = {driver} ] || mv $file ../libibverbs.others; done"
    ))
}

/// Executes the host's lines from the control port until the host hangs up.
fn obey(control: File) {
    for line in BufReader::new(control).lines().map_while(Result::ok) {
        if line == "kill" {
            // A report about a hang needs the blocked tasks and their stacks, which go to the
            // console. Level 8 shows all of them.
            let _ = fs::write("/proc/sysrq-trigger", "8");
            let _ = fs::write("/proc/sysrq-trigger", "w");
            let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
        }
    }
}

/// Opens the virtio serial port called `name`.
fn open_port(name: &str, deadline: Instant) -> Result<File> {
    let path = wait_for_port(name, deadline)?;
    let file = File::options().read(true).write(true).open(&path);
    file.with_context(|| format!("cannot open {}", path.display()))
}

/// Returns the device node of the virtio serial port called `name`. Ports appear some time after
/// their driver was loaded. Their names appear after their nodes.
fn wait_for_port(name: &str, deadline: Instant) -> Result<PathBuf> {
    let has_name = |port: &Path| fs::read_to_string(port.join("name")).is_ok_and(|n| n.trim_end() == name);
    wait_for(deadline, || {
        let mut ports = fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten();
        let port = ports.find(|port| has_name(&port.path()));
        port.map(|port| Path::new("/dev").join(port.file_name()))
            .filter(|node| node.exists())
            .with_context(|| format!("there is no virtio port {name}"))
    })
}

/// Calls `usable` until it succeeds or the deadline passes. The kernel has no single way of
/// announcing these states.
fn wait_for<T>(deadline: Instant, mut usable: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match usable() {
            Err(_) if Instant::now() < deadline => thread::park_timeout(Duration::from_millis(5)),
            result => return result,
        }
    }
}

/// Switches off duplicate address detection, which would delay link-local GIDs by a second. No
/// other host is on the link. A kernel without IPv6 has neither setting.
const NO_ADDRESS_DETECTION: &str = "for c in all default; do for k in accept_dad dad_transmits; do \
     echo 0 >/proc/sys/net/ipv6/conf/$c/$k; done; done 2>/dev/null; :";

fn shell(script: &str) -> Result<()> {
    output(Command::new("sh").args(["-c", script]).env("PATH", SYSTEM_PATH)).map(drop)
}

const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs the command to its end and returns the control line that reports its end.
fn run_command(job: &Job, input: Option<File>, out: File, err: File) -> String {
    let mut command = Command::new(&job.argv[0]);
    command.args(&job.argv[1..]).env_clear().current_dir(&job.cwd);
    command.envs(job.env.iter().map(|(name, value)| (name, value)));
    // Uses pipes rather than the ports themselves. A port can be opened only once, so `>
    // /dev/stderr` would fail.
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let status = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
            let name = Path::new(&job.argv[0]).display();
            let _ = writeln!(&err, "vm: cannot run {name} in {}: {error}", job.cwd.display());
            return format!("exit {status}");
        }
    };
    if let (Some(port), Some(stdin)) = (input, child.stdin.take()) {
        // This thread ends with the guest if the host's input never ends.
        thread::spawn(move || pump(port, File::from(OwnedFd::from(stdin))));
    }
    let (done, drained) = mpsc::channel();
    let stdout = child.stdout.take().map(OwnedFd::from);
    let stderr = child.stderr.take().map(OwnedFd::from);
    for (from, port) in [(stdout, out), (stderr, err)] {
        let done = done.clone();
        thread::spawn(move || {
            if let Some(from) = from {
                pump(File::from(from), port);
            }
            let _ = done.send(());
        });
    }
    let ended = reap_until(Pid::from_raw(child.id().cast_signed()));
    // Kills processes left behind by the command, because they would keep the pipes open.
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    wait_for_pumps(&drained);
    ended
}

/// Reaps processes until `pid` ends, because process 1 inherits orphans. Returns its control line.
fn reap_until(pid: Pid) -> String {
    loop {
        match wait() {
            Ok(WaitStatus::Exited(who, status)) if who == pid => return format!("exit {status}"),
            Ok(WaitStatus::Signaled(who, signal, _)) if who == pid => {
                return format!("signal {}", signal as i32);
            }
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return format!("failed wait: {error}"),
        }
    }
}

/// The number of unfinished writes by pumps.
static WRITING: AtomicUsize = AtomicUsize::new(0);

/// Copies bytes until either side ends.
fn pump(mut from: File, mut to: File) {
    let mut buffer = vec![0; 32 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        WRITING.fetch_add(1, Ordering::Relaxed);
        let result = to.write_all(&buffer[..count]);
        WRITING.fetch_sub(1, Ordering::Relaxed);
        if result.is_err() {
            return;
        }
    }
}

/// Waits until both outputs have ended, for as long as the host takes to read them. The wait also
/// ends if a process that cannot be killed keeps its pipe open but empty.
fn wait_for_pumps(drained: &Receiver<()>) {
    const QUIET: Duration = Duration::from_secs(5);
    let mut open = 2;
    while open > 0 {
        match drained.recv_timeout(QUIET) {
            Ok(()) => open -= 1,
            Err(RecvTimeoutError::Timeout) if WRITING.load(Ordering::Relaxed) > 0 => {}
            Err(_) => {
                eprintln!("guest-init: output is still held open {QUIET:?} after the command ended");
                return;
            }
        }
    }
}
