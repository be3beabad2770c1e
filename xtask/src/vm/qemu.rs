//! The QEMU process: its arguments and the sockets for its serial ports.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::accel::Accel;
use super::job::{CONNECTX_PORT, CONNECTX_SLOT, Device, socket};
use super::{Args, Boot};
use crate::arch::Arch;
use crate::process::Process;

/// The machine to start.
pub(crate) struct Machine<'a> {
    pub(crate) args: &'a Args,
    pub(crate) boot: &'a Boot,
    /// The guest's directory. The guest mounts its folder `job`; a model listens in it.
    pub(crate) directory: &'a Path,
}

/// The names of the files in the guest's directory with the console and with QEMU's messages.
pub(crate) const CONSOLE: &str = "console.log";
pub(crate) const LOG: &str = "qemu.log";

/// The host's ends of a running machine's streams. Each ends when QEMU does.
pub(crate) struct Streams {
    pub(crate) control: UnixStream,
    pub(crate) out: UnixStream,
    pub(crate) err: UnixStream,
    pub(crate) input: UnixStream,
}

/// The names of the streams' serial ports, in order.
const PORTS: [&str; 4] = ["control", "out", "err", "in"];

/// Starts a machine.
pub(crate) fn start(machine: &Machine<'_>) -> Result<(Process, Streams)> {
    let pair = || UnixStream::pair().context("cannot make a socket pair");
    let pairs = [pair()?, pair()?, pair()?, pair()?];
    for (_, end) in &pairs {
        // QEMU inherits its ends of the sockets under the same numbers.
        fcntl(end, FcntlArg::F_SETFD(FdFlag::empty()))?;
    }
    let mut command = machine.boot.release.command();
    command.args(arguments(machine, pairs.each_ref().map(|(_, end)| end.as_raw_fd())));
    let log = File::create(machine.directory.join(LOG))?;
    command.current_dir(machine.directory).stdout(Stdio::null()).stderr(log);
    let qemu = Process::silent("QEMU", &mut command)?;
    let [control, out, err, input] = pairs.map(|(end, _)| end);
    Ok((qemu, Streams { control, out, err, input }))
}

/// Returns QEMU's arguments. QEMU inherits the serial ports as descriptors.
fn arguments(machine: &Machine<'_>, ports: [RawFd; 4]) -> Vec<OsString> {
    let Machine { args, boot, .. } = machine;
    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
    add(&boot.accel.arguments(args.arch));
    add(&["-m", &args.memory.to_string(), "-smp", &args.cpus.to_string()]);
    add(&["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    // A ConnectX needs PCI Express and memory for the model to map.
    let has_model = args.device == Device::Mlx5;
    let memory = if has_model { ",memory-backend=memory" } else { "" };
    match args.arch {
        Arch::X86_64 if has_model => add(&["-machine", &format!("q35{memory}")]),
        Arch::X86_64 => {}
        Arch::Aarch64 => add(&["-machine", &format!("virt,gic-version=3{memory}")]),
    }
    add(&["-append", &command_line(machine)]);
    add(&["-serial", "chardev:console"]);
    add(&["-device", "virtio-serial-pci"]);
    for (name, fd) in PORTS.into_iter().zip(ports) {
        add(&["-chardev", &format!("socket,id={name},fd={fd}"), "-device", &serial_port(name)]);
    }
    if has_model {
        let memory = format!("memory-backend-memfd,id=memory,size={}M,share=on", args.memory);
        add(&["-object", &memory]);
        for function in 0..args.connectx.functions() {
            add(&["-device", &function_device(function)]);
        }
        let control = format!("socket,id={CONNECTX_PORT},path={CONNECTX_PORT}");
        add(&["-chardev", &control, "-device", &serial_port(CONNECTX_PORT)]);
    }
    // With --console, the console has all messages, not only warnings, and goes to our stderr too.
    let console = if args.console {
        format!("file,id=console,append=on,path=/proc/{}/fd/2,logfile={CONSOLE}", std::process::id())
    } else {
        format!("file,id=console,path={CONSOLE}")
    };
    add(&["-chardev", &console]);
    for (option, value) in [
        ("-kernel", boot.image.clone().into()),
        ("-initrd", boot.initramfs.clone().into()),
        ("-virtfs", share("hostroot", Path::new("/"))),
        ("-virtfs", share("job", &machine.directory.join("job"))),
    ] {
        arguments.extend([option.into(), value]);
    }
    if let Some(debian) = &boot.debian {
        arguments.extend(["-virtfs".into(), share("debian", debian)]);
    }
    arguments
}

/// Returns the device option for a model function. The name of the socket contains no character
/// that JSON would escape.
///
/// Without posted writes, a store waits for the model, so the guest is still blocked when the model
/// reads a doorbell record.
fn function_device(function: u8) -> String {
    let (slot, socket) = (CONNECTX_SLOT + function, socket(function));
    let socket = format!(r#"{{"type":"unix","path":"{socket}"}}"#);
    format!(
        r#"{{"driver":"vfio-user-pci","addr":"{slot:02x}.0","x-no-posted-writes":true,"socket":{socket}}}"#
    )
}

fn serial_port(name: &str) -> String {
    format!("virtserialport,chardev={name},name={name}")
}

/// Returns the kernel's command line. oops=panic and panic=-1 make QEMU end when the kernel dies.
/// The lockup and stall detectors are off, because they would report a busy host as a failure of
/// the guest. The time limit finds real hangs. With five levels of page tables, mlx5 would register
/// all memory with a list of 1 GiB.
///
/// QEMU's processors share a time stamp counter, but Linux does not trust that with several
/// processors. Without `tsc=reliable`, each reading of a clock is a system call and an emulated
/// access to the HPET. The tests need neither security modules nor cleared memory. Together, these
/// options halve the time of the conformance suite on the ConnectX model.
fn command_line(machine: &Machine<'_>) -> String {
    let Machine { args, boot, .. } = machine;
    let level = if args.console { 7 } else { 5 };
    let of_arch = match (args.arch, boot.accel) {
        // Under KVM, the host's processors report whether their counters agree.
        (Arch::X86_64, Accel::Kvm) => "console=ttyS0 no_timer_check no5lvl",
        (Arch::X86_64, Accel::Auto | Accel::Tcg) => "console=ttyS0 no_timer_check no5lvl tsc=reliable",
        (Arch::Aarch64, _) => "console=ttyAMA0",
    };
    let debian = if boot.debian.is_some() { " xtask.debian" } else { "" };
    format!(
        "{of_arch} loglevel={level} panic=-1 oops=panic mitigations=off nowatchdog \
         rcupdate.rcu_cpu_stall_suppress=1 random.trust_cpu=on net.ifnames=0 audit=0 \
         lsm= init_on_alloc=0{debian}"
    )
}

/// Returns the option for a directory that the guest mounts read-only over 9p. It keeps apart the
/// inode numbers of the host's different file systems.
fn share(tag: &str, path: &Path) -> OsString {
    let mut option = OsString::from("local,path=");
    option.push(escape_commas(path.as_os_str()));
    option.push(format!(",mount_tag={tag},security_model=none,multidevs=remap,readonly=on"));
    option
}

/// Doubles each comma, as QEMU's option syntax requires.
fn escape_commas(text: &OsStr) -> OsString {
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    OsString::from_vec(text.as_bytes().split(|byte| *byte == b',').collect::<Vec<_>>().join(&b",,"[..]))
}

#[test]
fn a_comma_in_a_path_does_not_end_the_option() {
    let option = share("job", Path::new("/a,b/c"));
    assert!(option.to_string_lossy().starts_with("local,path=/a,,b/c,mount_tag=job,"));
}
