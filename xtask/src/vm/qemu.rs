//! The QEMU process: its arguments, and the sockets that carry its console and its serial ports.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};

use super::accel::Accel;
use super::child;

/// The machine to start.
pub(crate) struct Machine<'a> {
    pub(crate) image: &'a Path,
    pub(crate) initramfs: &'a Path,
    pub(crate) accel: Accel,
    pub(crate) memory_mb: u32,
    pub(crate) cpus: u32,
    /// A directory shared as "job".
    pub(crate) job: &'a Path,
    /// Whether the console shows everything the kernel says rather than warnings and worse.
    pub(crate) verbose: bool,
    /// Where QEMU's own complaints go.
    pub(crate) log: File,
}

/// The host's ends of a running machine's streams. Each ends when QEMU does.
pub(crate) struct Streams {
    pub(crate) console: UnixStream,
    pub(crate) control: UnixStream,
    pub(crate) out: UnixStream,
    pub(crate) err: UnixStream,
    pub(crate) input: UnixStream,
}

/// A running QEMU; dropping it kills it.
pub(crate) struct Qemu(Child);

impl Qemu {
    /// Starts a machine.
    ///
    /// # Errors
    /// QEMU cannot be run.
    pub(crate) fn start(machine: Machine<'_>) -> Result<(Qemu, Streams)> {
        let pair = || UnixStream::pair().context("cannot make a socket pair");
        let (console, console_qemu) = pair()?;
        let (control, control_qemu) = pair()?;
        let (out, out_qemu) = pair()?;
        let (err, err_qemu) = pair()?;
        let (input, input_qemu) = pair()?;

        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(machine.accel.arguments())
            .args(["-m", &machine.memory_mb.to_string(), "-smp", &machine.cpus.to_string()])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            .arg("-kernel")
            .arg(machine.image)
            .arg("-initrd")
            .arg(machine.initramfs)
            .args(["-append", &command_line(machine.verbose)])
            .args(["-chardev", &chardev("console", &console_qemu), "-serial", "chardev:console"])
            .args(["-device", "virtio-serial-pci"]);
        for (name, socket) in
            [("control", &control_qemu), ("out", &out_qemu), ("err", &err_qemu), ("in", &input_qemu)]
        {
            command.args(["-chardev", &chardev(name, socket)]);
            command.args(["-device", &format!("virtserialport,chardev={name},name={name}")]);
        }
        command.arg("-virtfs").arg(share("hostroot", Path::new("/")));
        command.arg("-virtfs").arg(share("job", machine.job));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(machine.log);
        let inherit: Vec<BorrowedFd<'_>> =
            [&console_qemu, &control_qemu, &out_qemu, &err_qemu, &input_qemu].map(|s| s.as_fd()).into();
        let child = child::spawn(&mut command, &inherit).context("cannot run qemu-system-x86_64")?;
        Ok((Qemu(child), Streams { console, control, out, err, input }))
    }

    /// Ends it now.
    pub(crate) fn kill(&mut self) {
        // Fails only if it has ended and been waited for.
        let _ = self.0.kill();
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// As [`Child::wait`].
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

/// oops=panic and panic=-1 make every death of the kernel an end of QEMU. The lockup and stall detectors would blame the
/// guest for a busy host; what really hangs is found by the time limit.
fn command_line(verbose: bool) -> String {
    let level = if verbose { 7 } else { 5 };
    format!(
        "console=ttyS0 loglevel={level} panic=-1 oops=panic mitigations=off nowatchdog \
         rcupdate.rcu_cpu_stall_suppress=1 random.trust_cpu=on net.ifnames=0 audit=0"
    )
}

fn chardev(id: &str, socket: &UnixStream) -> String {
    format!("socket,id={id},fd={}", socket.as_raw_fd())
}

/// A directory seen read-only over 9p. Inode numbers of the host's several file systems are kept apart.
fn share(tag: &str, path: &Path) -> OsString {
    let mut option = OsString::from("local,path=");
    option.push(escape_commas(path.as_os_str()));
    option.push(format!(",mount_tag={tag},security_model=none,multidevs=remap,readonly=on"));
    option
}

/// QEMU's option syntax takes two commas for one.
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
    use super::*;

    #[test]
    fn a_comma_in_a_path_does_not_end_the_option() {
        let option = share("job", Path::new("/a,b/c"));
        assert!(option.to_string_lossy().starts_with("local,path=/a,,b/c,mount_tag=job,"));
    }

    #[test]
    fn warnings_reach_the_console_in_both_modes() {
        // KERN_WARNING is 4, and the console shows what is below its level.
        for verbose in [false, true] {
            let line = command_line(verbose);
            let level = line.split(' ').find_map(|w| w.strip_prefix("loglevel=")).unwrap();
            assert!(level.parse::<u32>().unwrap() > 4);
        }
    }
}
