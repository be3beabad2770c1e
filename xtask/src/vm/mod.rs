//! `cargo xtask vm`: runs one command in a guest, as if it ran on the host.
//!
//! ```text
//! kernel  ── finds or downloads a kernel        image     ── unpacks it to boot faster
//! initramfs ── busybox, modules, init.sh
//! accel   ── KVM or emulation                   job       ── the guest's command and device
//! qemu    ── the process                        qemu_release ── the QEMU to use
//! connectx ── the model of an mlx5 device       guest     ── process 1 in the guest
//! supervise ── follows the guest to its end     console ── finds kernel failures
//! run_dir ── the guest's files
//! ```
//!
//! The guest sees the host's root read-only under a tmpfs: programs run at their own paths, and the
//! files that they write disappear with the guest. The command's stdout and stderr arrive unchanged
//! and separate; the kernel's console is kept out of both and shown only after a failure.
//!
//! Invariant: a guest whose kernel dies or hangs before process 1 has sent anything, and whose
//! console does not name the drivers under test, is booted again, with a message. After that,
//! nothing is tried twice.
//!
//! Invariant: whether or not the command succeeds, the run fails if the kernel panicked, oopsed or
//! warned about the infiniband drivers, or if the guest broke the rules of the device model.

mod accel;
pub(crate) mod connectx;
pub(crate) mod console;
pub(crate) mod guest;
mod image;
mod initramfs;
mod job;
pub(crate) mod kernel;
mod qemu;
mod qemu_release;
mod run_dir;
mod supervise;

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser as _;

pub(crate) use self::accel::Accel;
pub(crate) use self::job::Device;
use self::job::Job;
use self::kernel::Kernel;
use self::qemu::Machine;
use self::qemu_release::Release;
use self::run_dir::RunDir;
use self::supervise::Ended;
use crate::arch::Arch;
use crate::progress::{self, say};
use crate::{aarch64, apt};

/// The exit status if the command did not end in time.
pub(crate) const STATUS_TIMEOUT: u8 = 124;
/// The exit status if the VM failed or could not start, so that the command's result is unknown or
/// does not count.
pub(crate) const STATUS_VM_FAILED: u8 = 125;

/// The exit statuses of `vm`, which --help shows.
const STATUSES: &str = "\
Exit status:
  the command's own; 128+N if signal N ended it; 126 or 127 if it cannot be run or found
  124  the command did not end within --timeout
  125  there is no VM or it failed: it did not boot, it hung, or its kernel panicked, oopsed, or reported a BUG or
       WARNING from the infiniband drivers, whatever the command's own status; the console is shown.
       With --device mlx5 also: no QEMU is new enough, or the guest broke the device's rules";

/// Boots a guest with an RDMA device and runs one command in it.
#[derive(clap::Parser)]
#[command(after_help = STATUSES)]
pub(crate) struct Args {
    /// Kernel: 5.10, 6.1, 6.12, 7.2, 7.2-16k (aarch64 with 16 KiB pages), or a directory with an
    /// unpacked kernel package
    #[arg(long, default_value = kernel::DEFAULT, value_name = "KERNEL")]
    pub(crate) kernel: kernel::Choice,

    /// Architecture of the guest; `cargo xtask aarch64` builds programs for aarch64, and Debian's
    /// programs are there
    #[arg(long, value_enum, default_value_t = Arch::X86_64)]
    pub(crate) arch: Arch,

    /// RDMA device that exists when the command starts
    #[arg(long, value_enum, default_value_t = Device::Rxe)]
    pub(crate) device: Device,

    /// Time limit for the command in seconds; 0 for no limit
    #[arg(long, default_value_t = 600, value_name = "SECS")]
    pub(crate) timeout: u64,

    /// The guest's memory
    #[arg(long, default_value_t = 2048, value_name = "MB")]
    pub(crate) memory: u32,

    /// The guest's processors
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub(crate) cpus: u32,

    /// Set a variable for the command, or pass on the caller's variable
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,

    /// Connect the command's stdin, which is otherwise /dev/null
    #[arg(long)]
    pub(crate) interactive: bool,

    /// Also show the kernel's whole console on stderr
    #[arg(long)]
    pub(crate) console: bool,

    /// Accelerator of the guest's processors
    #[arg(long, value_enum, default_value_t = Accel::Auto)]
    pub(crate) accel: Accel,

    /// Print only the command's output, and the reason if the VM failed
    #[arg(long, short)]
    pub(crate) quiet: bool,

    /// The command and its arguments, run as root in the caller's directory
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,

    // Last, because its heading applies to everything after it.
    #[command(flatten)]
    pub(crate) connectx: connectx::Options,
}

/// Returns whether a console names drivers under test, whose fault another boot would hide.
fn names_drivers(console: &str) -> bool {
    ["infiniband", "rdma", "rxe", "mlx5"].iter().any(|name| console.contains(name))
}

/// The maximum number of boots for a guest that fails to boot.
const BOOTS: u32 = 3;

/// The time limit for a boot that shows whether guests start under KVM.
const KVM_LIMIT: Duration = Duration::from_secs(20);

/// The files and settings for booting a guest.
pub(crate) struct Boot {
    release: Release,
    kernel: Kernel,
    image: PathBuf,
    initramfs: PathBuf,
    /// The folder of programs for the guest's architecture, if it differs from the host's.
    debian: Option<PathBuf>,
    accel: Accel,
}

impl Boot {
    /// Finds or makes everything for booting a guest with this device. The host packages must
    /// be installed.
    pub(crate) fn prepare(choice: &kernel::Choice, arch: Arch, device: Device, accel: Accel) -> Result<Boot> {
        let is_native = arch == Arch::X86_64;
        ensure!(is_native || accel != Accel::Kvm, "a guest of aarch64 is emulated: KVM cannot run it");
        let release = Release::find(arch, device)?;
        let kernel = Kernel::find(choice, arch)?;
        let debian = if is_native { None } else { Some(aarch64::DEBIAN.root()?) };
        let initramfs = initramfs::find_or_build(&kernel, device, debian.as_deref())?;
        let image = if is_native { image::find_or_unpack(&kernel)? } else { kernel.image.clone() };
        Ok(Boot { release, kernel, image, initramfs, debian, accel: accel.resolve(arch, device)? })
    }
}

/// Ensures that QEMU is available for a device.
pub(crate) fn ensure_qemu(device: Device) -> Result<()> {
    Release::find(Arch::X86_64, device).map(drop)
}

/// Runs this program in a guest with an rxe device, with the arguments `words`, for at most
/// `timeout` seconds.
pub(crate) fn run_this_program(
    kernel: &kernel::Choice,
    timeout: u64,
    words: Vec<OsString>,
) -> Result<ExitCode> {
    let (kernel, timeout) = (kernel.to_string(), timeout.to_string());
    let options =
        ["vm", "--kernel", &kernel, "--timeout", &timeout, "--", "/run/vm/xtask"].map(OsString::from);
    run(&Args::try_parse_from(options.into_iter().chain(words))?)
}

/// Runs `vm`.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.quiet {
        progress::hide();
    }
    args.connectx.check(args.device)?;
    apt::ensure_tools(&[apt::Tools::Vm])?;
    let mut boot = Boot::prepare(&args.kernel, args.arch, args.device, args.accel)?;

    let mut run_dir = RunDir::new()?;
    let model_program = (args.device == Device::Mlx5).then(|| args.connectx.program()).transpose()?;
    let share = run_dir.path.join("job");
    fs::create_dir(&share)?;
    fs::write(share.join("job"), serde_json::to_vec(&job(args, &boot.kernel)?)?)?;
    let program = match args.arch {
        Arch::X86_64 => "/proc/self/exe".into(),
        Arch::Aarch64 => aarch64::build(aarch64::XTASK)?.join("xtask"),
    };
    // Copies the program, because the original may be rebuilt while the guest runs.
    fs::copy(program, share.join("xtask")).context("cannot copy this program for the guest")?;

    let (mut started, mut boots) = (Instant::now(), 0);
    let (ended, console, verdict) = loop {
        say(&format!("booting Linux {} ({})", boot.kernel.version, boot.accel.name()));
        let (send, events) = mpsc::channel();
        let model = model_program.as_ref().map(|program| {
            let send = send.clone();
            connectx::Model::start(program, &args.connectx, &run_dir.path, move || {
                // Fails only once the guest is no longer followed.
                let _ = send.send(supervise::Event::ModelEnded);
            })
        });
        let model = model.transpose()?;
        let machine = Machine { args, boot: &boot, directory: &run_dir.path };
        let (mut qemu, streams) = qemu::start(&machine)?;
        supervise::pump_streams(&streams, args.interactive, &send)?;
        drop(send);
        let is_trial = boot.accel == Accel::Kvm && args.accel == Accel::Auto;
        let boot_limit = if is_trial { KVM_LIMIT } else { supervise::BOOT_LIMIT };
        let limits = (boot_limit, (args.timeout != 0).then(|| Duration::from_secs(args.timeout)));
        let ended = supervise::to_the_end(&mut qemu, &streams.control, &events, limits);
        let verdict = model.map(connectx::Model::finish).unwrap_or_default();
        let console = fs::read(run_dir.path.join(qemu::CONSOLE)).unwrap_or_default();
        let console = String::from_utf8_lossy(&console).into_owned();
        boots += 1;
        // Process 1 has not sent anything; no driver is named. Under emulation, about one boot in
        // fifty was observed to die this way: a processor executes a breakpoint in code that the
        // kernel has finished patching (7.2 with QEMU 7.2, "Oops: int3"). One boot in some hundred
        // hung after a second.
        match ended {
            Ended::NeverUp(reason)
                if boots < BOOTS
                    && (is_trial || boot.accel != Accel::Kvm)
                    && !args.interactive
                    && !names_drivers(&console) =>
            {
                let end = console::tail(&console);
                eprintln!("vm: {reason}, before anything had run; the end of the console:\n{end}");
                if is_trial {
                    accel::kvm_has_failed()?;
                    boot.accel = Accel::Tcg;
                }
                eprintln!("vm: booting again ({} of {BOOTS})", boots + 1);
                started = Instant::now();
            }
            ended => break (ended, console, verdict),
        }
    };
    let status = report(ended, &console, &verdict, args.connectx.is_strict(), &mut run_dir);
    say(&format!("exit status {status} after {:.1} s", started.elapsed().as_secs_f64()));
    Ok(ExitCode::from(status))
}

/// Returns the guest's command, its environment and its device.
fn job(args: &Args, kernel: &Kernel) -> Result<Job> {
    Ok(Job {
        argv: args.command.clone(),
        env: environment(&args.env),
        cwd: std::env::current_dir().context("no current directory")?.into(),
        modules: kernel.modules.clone().into(),
        device: args.device,
        port: args.connectx.port(),
        functions: args.connectx.functions(),
        interactive: args.interactive,
    })
}

/// Determines the exit status and shows the details of a failure.
fn report(
    ended: Ended,
    console: &str,
    verdict: &connectx::Verdict,
    strict: bool,
    run_dir: &mut RunDir,
) -> u8 {
    let (kernel_failure, known_warnings) = console::failure(console);
    let is_broken = kernel_failure.is_some() || verdict.is_failure(strict);
    let (status, reason) = match ended {
        Ended::Failed(reason) | Ended::NeverUp(reason) => (STATUS_VM_FAILED, Some(reason)),
        Ended::Status(status) => (if is_broken { STATUS_VM_FAILED } else { status }, None),
        Ended::TimedOut => {
            let status = if is_broken { STATUS_VM_FAILED } else { STATUS_TIMEOUT };
            (status, Some("the command did not end in time".to_owned()))
        }
    };
    if known_warnings > 0 {
        eprintln!("vm: {known_warnings} known warnings of the guest's kernel, announced by its tests");
    }
    // Shown even with --quiet: otherwise, the status could be mistaken for the command's own.
    let text = verdict.text();
    if !text.is_empty() {
        eprintln!("vm: {text}");
    }
    if !is_broken && reason.is_none() {
        return status;
    }
    if let Some(failure) = &kernel_failure {
        eprintln!("vm: the guest's kernel failed: {}\n{}", failure.headline, failure.report);
    }
    if let Some(reason) = reason {
        eprintln!("vm: {reason}");
        if kernel_failure.is_none() {
            eprintln!("vm: the end of the console:\n{}", console::tail(console));
            let qemu = fs::read_to_string(run_dir.path.join(qemu::LOG)).unwrap_or_default();
            if status == STATUS_VM_FAILED && !qemu.trim().is_empty() {
                eprintln!("vm: QEMU said:\n{}", qemu.trim_end());
            }
        }
    }
    if let Err(error) = run_dir.keep() {
        eprintln!("vm: the trace is not cut: {error:#}");
    }
    say(&format!("the console and other files are in {}", run_dir.path.display()));
    status
}

/// Returns the command's environment: variables for finding other programs and variables chosen by
/// the caller.
fn environment(chosen: &[String]) -> Vec<(OsString, OsString)> {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    let fixed = [("HOME", "/root"), ("USER", "root"), ("LANG", "C.UTF-8")];
    let mut env: Vec<(OsString, OsString)> = vec![("PATH".into(), path)];
    env.extend(fixed.map(|(name, value)| (name.into(), value.into())));
    let names = ["RUST_BACKTRACE", "RUST_LOG"].into_iter().chain(chosen.iter().map(String::as_str));
    env.extend(names.filter_map(|variable| match variable.split_once('=') {
        Some((name, value)) => Some((name.into(), value.into())),
        None => std::env::var_os(variable).map(|value| (variable.into(), value)),
    }));
    env
}

#[test]
fn chosen_variables_are_set_or_passed_on_and_unknown_ones_are_left_out() {
    let env = environment(&["A=b=c".into(), "PATH".into(), "XTASK_SURELY_UNSET".into()]);
    assert!(env.contains(&("A".into(), "b=c".into())));
    assert_eq!(env.iter().filter(|(name, _)| name == "PATH").count(), 2);
    assert!(!env.iter().any(|(name, _)| name == "XTASK_SURELY_UNSET"));
}
