//! The QEMU process: its arguments, and the sockets that carry its serial ports.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::accel::Accel;
use super::connectx;
use super::qemu_release::Release;
use crate::arch::Arch;

/// The machine to start.
pub(crate) struct Machine<'a> {
    pub(crate) arch: Arch,
    pub(crate) release: &'a Release,
    pub(crate) image: &'a Path,
    pub(crate) initramfs: &'a Path,
    pub(crate) accel: Accel,
    pub(crate) memory_mb: u32,
    pub(crate) cpus: u32,
    /// A directory, shared as "job".
    pub(crate) job: &'a Path,
    /// Programs of the guest's architecture, shared as "debian".
    pub(crate) debian: Option<&'a Path>,
    /// The ConnectX model's sockets, if the machine has its functions.
    pub(crate) connectx: Option<&'a connectx::Sockets>,
    /// Whether the console has all kernel messages instead of warnings and worse, and is copied to
    /// our stderr.
    pub(crate) verbose: bool,
    /// The file for the console.
    pub(crate) console: &'a Path,
    /// The file for QEMU's own messages.
    pub(crate) log: File,
}

/// The host's ends of a running machine's streams. Each ends when QEMU does.
pub(crate) struct Streams {
    pub(crate) control: UnixStream,
    pub(crate) out: UnixStream,
    pub(crate) err: UnixStream,
    pub(crate) input: UnixStream,
}

/// A running QEMU; dropping it kills it.
pub(crate) struct Qemu(Child);

impl Qemu {
    /// Starts a machine.
    pub(crate) fn start(machine: Machine<'_>) -> Result<(Qemu, Streams)> {
        let pair = || UnixStream::pair().context("cannot make a socket pair");
        let (control, control_qemu) = pair()?;
        let (out, out_qemu) = pair()?;
        let (err, err_qemu) = pair()?;
        let (input, input_qemu) = pair()?;

        let mut command = machine.release.command();
        command.args(arguments(
            &machine,
            &[
                ("control", control_qemu.as_raw_fd()),
                ("out", out_qemu.as_raw_fd()),
                ("err", err_qemu.as_raw_fd()),
                ("in", input_qemu.as_raw_fd()),
            ],
        ));
        if let Some(sockets) = machine.connectx {
            command.current_dir(&sockets.directory);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(machine.log);
        // QEMU inherits its ends under their numbers.
        for end in [&control_qemu, &out_qemu, &err_qemu, &input_qemu] {
            fcntl(end, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        let child = command.spawn().context("cannot run QEMU")?;
        Ok((Qemu(child), Streams { control, out, err, input }))
    }

    /// Kills QEMU.
    pub(crate) fn kill(&mut self) {
        // Fails only if it has ended and been waited for.
        let _ = self.0.kill();
    }

    /// Waits for QEMU's end.
    pub(crate) fn wait(&mut self) -> io::Result<std::process::ExitStatus> {
        self.0.wait()
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.kill();
        let _ = self.wait();
    }
}

/// QEMU's arguments. The serial ports are descriptors that it inherits.
fn arguments(machine: &Machine<'_>, ports: &[(&str, RawFd)]) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
    add(&machine.accel.arguments(machine.arch));
    add(&["-m", &machine.memory_mb.to_string(), "-smp", &machine.cpus.to_string()]);
    add(&["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    let board = match (machine.arch, machine.connectx) {
        (Arch::X86_64, None) => None,
        (Arch::X86_64, Some(_)) => Some("q35"),
        (Arch::Aarch64, _) => Some("virt,gic-version=3"),
    };
    // PCI Express, and memory that the model can map.
    let memory = if machine.connectx.is_some() { ",memory-backend=memory" } else { "" };
    if let Some(board) = board {
        add(&["-machine", &format!("{board}{memory}")]);
    }
    add(&["-append", &command_line(machine)]);
    add(&["-serial", "chardev:console"]);
    add(&["-device", "virtio-serial-pci"]);
    for (name, fd) in ports {
        add(&["-chardev", &chardev(name, *fd), "-device", &serial_port(name)]);
    }
    if let Some(sockets) = machine.connectx {
        let memory = format!("memory-backend-memfd,id=memory,size={}M,share=on", machine.memory_mb);
        add(&["-object", &memory]);
        for (function, socket) in (0u8..).zip(&sockets.functions) {
            add(&["-device", &function_device(function, socket)]);
        }
        let control = format!("socket,id={CONNECTX_PORT},path={}", sockets.control);
        add(&["-chardev", &control, "-device", &serial_port(CONNECTX_PORT)]);
    }
    let mut console = OsString::from(if machine.verbose {
        format!("file,id=console,append=on,path=/proc/{}/fd/2,logfile=", std::process::id())
    } else {
        "file,id=console,path=".to_owned()
    });
    console.push(escape_commas(machine.console.as_os_str()));
    for (option, value) in [
        ("-chardev", console),
        ("-kernel", machine.image.into()),
        ("-initrd", machine.initramfs.into()),
        ("-virtfs", share("hostroot", Path::new("/"))),
        ("-virtfs", share("job", machine.job)),
    ] {
        arguments.extend([option.into(), value]);
    }
    if let Some(debian) = machine.debian {
        arguments.extend(["-virtfs".into(), share("debian", debian)]);
    }
    arguments
}

/// The serial port through which a guest injects faults into its ConnectX.
pub(crate) const CONNECTX_PORT: &str = "connectx";

/// The PCI slot of a ConnectX's first function. The next function takes the next slot, so that the
/// kernel finds them in this order.
pub(crate) const CONNECTX_SLOT: u8 = 0x10;

/// Returns the device option for a function of the model. The socket's name needs no JSON escapes.
///
/// Stores that are not posted wait for the model: when it reads a doorbell record, the guest has
/// not continued yet.
fn function_device(function: u8, socket: &str) -> String {
    let slot = CONNECTX_SLOT + function;
    format!(
        concat!(
            r#"{{"driver":"vfio-user-pci","addr":"{:02x}.0","x-no-posted-writes":true,"#,
            r#""socket":{{"type":"unix","path":"{}"}}}}"#
        ),
        slot, socket
    )
}

fn serial_port(name: &str) -> String {
    format!("virtserialport,chardev={name},name={name}")
}

/// Returns the kernel's command line. oops=panic and panic=-1 make QEMU end when the kernel dies.
/// The lockup and stall detectors are off, because they would report a busy host as a failure of
/// the guest; the time limit finds real hangs. With five levels of page tables, mlx5 would register
/// all memory with a list of 1 GiB.
///
/// QEMU's processors have the same time stamp counter, which Linux does not believe of several:
/// without `tsc=reliable`, each look at a clock is a system call and an emulated access to the
/// HPET. Security modules and cleared memory have no part in the tests. Together, these options
/// halve the time of the conformance suite on the ConnectX model.
fn command_line(machine: &Machine<'_>) -> String {
    let level = if machine.verbose { 7 } else { 5 };
    let of_arch = match (machine.arch, machine.accel) {
        // The host's processors say themselves whether their counters agree.
        (Arch::X86_64, Accel::Kvm) => "console=ttyS0 no_timer_check no5lvl",
        (Arch::X86_64, Accel::Auto | Accel::Tcg) => "console=ttyS0 no_timer_check no5lvl tsc=reliable",
        (Arch::Aarch64, _) => "console=ttyAMA0",
    };
    let debian = if machine.debian.is_some() { " xtask.debian" } else { "" };
    format!(
        "{of_arch} loglevel={level} panic=-1 oops=panic mitigations=off nowatchdog \
         rcupdate.rcu_cpu_stall_suppress=1 random.trust_cpu=on net.ifnames=0 audit=0 \
         lsm= init_on_alloc=0{debian}"
    )
}

fn chardev(id: &str, fd: RawFd) -> String {
    format!("socket,id={id},fd={fd}")
}

/// Returns the option for a directory that the guest mounts read-only over 9p. Inode numbers of the
/// host's several file systems are kept apart.
fn share(tag: &str, path: &Path) -> OsString {
    let mut option = OsString::from("local,path=");
    option.push(escape_commas(path.as_os_str()));
    option.push(format!(",mount_tag={tag},security_model=none,multidevs=remap,readonly=on"));
    option
}

/// Doubles each comma, as QEMU's option syntax requires.
fn escape_commas(text: &OsStr) -> OsString {
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    let mut out = Vec::new();
    for byte in text.as_bytes() {
        out.push(*byte);
        if *byte == b',' {
            out.push(b',');
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_comma_in_a_path_does_not_end_the_option() {
        let option = share("job", Path::new("/a,b/c"));
        assert!(option.to_string_lossy().starts_with("local,path=/a,,b/c,mount_tag=job,"));
    }

    fn words(connectx: &connectx::Sockets) -> Vec<String> {
        let machine = Machine {
            arch: Arch::X86_64,
            release: &Release::of_this_machine(Arch::X86_64),
            image: Path::new("/k"),
            initramfs: Path::new("/i"),
            accel: Accel::Tcg,
            memory_mb: 1024,
            cpus: 2,
            job: Path::new("/job"),
            debian: None,
            connectx: Some(connectx),
            verbose: false,
            console: Path::new("/c"),
            log: File::open("/dev/null").unwrap(),
        };
        let words = arguments(&machine, &[("control", 4), ("out", 5)]);
        words.into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn a_connectx_takes_pci_express_shared_memory_of_the_guests_size_and_a_slot_for_each_function() {
        let words = words(&connectx::Sockets::new(PathBuf::from("/run/1"), 2));
        assert!(words.contains(&"q35,memory-backend=memory".to_owned()));
        assert!(words.contains(&"memory-backend-memfd,id=memory,size=1024M,share=on".to_owned()));
        let functions: Vec<_> = words.iter().filter(|w| w.contains("vfio-user-pci")).collect();
        assert_eq!(
            functions,
            [
                concat!(
                    r#"{"driver":"vfio-user-pci","addr":"10.0","x-no-posted-writes":true,"#,
                    r#""socket":{"type":"unix","path":"function0"}}"#
                ),
                concat!(
                    r#"{"driver":"vfio-user-pci","addr":"11.0","x-no-posted-writes":true,"#,
                    r#""socket":{"type":"unix","path":"function1"}}"#
                )
            ]
        );
        assert!(words.contains(&"virtserialport,chardev=connectx,name=connectx".to_owned()));
    }
}
