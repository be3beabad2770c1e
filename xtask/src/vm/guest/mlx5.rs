//! mlx5_0, and mlx5_1 if there are two functions: loads the driver, gives netdevs their addresses,
//! and waits until all of them are usable.
//!
//! With a RoCE port the second function's netdev is in the network namespace `peer`: within one
//! namespace the kernel would send packets for its own other address through loopback, and never
//! through the device.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};

use super::super::connectx::Port;
use super::super::qemu::{CONNECTX_PORT, CONNECTX_SLOT};
use super::{SYSTEM_PATH, ip, wait_for, wait_for_port, without_address_detection};

/// The directory in which the initramfs left the driver's modules.
const MODULES: &str = "/run/device";

/// The time in which devices must appear once their driver is loaded.
const BINDING: Duration = Duration::from_secs(10);

/// The network namespace of the second function's netdev.
const PEER: &str = "peer";

/// Loads the driver, and waits until every function is usable: node, active port, and the GID of
/// its address.
pub(super) fn set_up(port: Port, functions: u8, deadline: Instant) -> Result<()> {
    let control = wait_for_port(CONNECTX_PORT, deadline)?;
    std::os::unix::fs::symlink(control, "/dev/connectx").context("/dev/connectx")?;
    without_address_detection();
    load_modules()?;
    let functions: Vec<Function> = (0..functions).map(Function::new).collect();
    // Drivers bind to existing devices before they have finished loading; a long wait would only
    // delay the message that a function was rejected.
    let soon = deadline.min(Instant::now() + BINDING);
    for function in &functions {
        wait_for(soon, || function.child("infiniband"))?;
    }
    if port == Port::Roce {
        for function in &functions {
            function.give_address(deadline)?;
        }
    }
    for function in &functions {
        wait_for(deadline, || function.is_usable(port))?;
    }
    Ok(())
}

/// Loads the modules in the order of their files' names.
fn load_modules() -> Result<()> {
    let mut modules: Vec<PathBuf> =
        fs::read_dir(MODULES).context(MODULES)?.flatten().map(|entry| entry.path()).collect();
    modules.sort();
    for path in modules {
        let file = File::open(&path)?;
        match finit_module(&file, c"", ModuleInitFlags::empty()) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => bail!("cannot load {}: {error}", path.display()),
        }
    }
    Ok(())
}

/// A function, by its number.
struct Function {
    number: u8,
    /// Its directory below /sys.
    device: PathBuf,
}

impl Function {
    fn new(number: u8) -> Function {
        let slot = CONNECTX_SLOT + number;
        Function { number, device: PathBuf::from(format!("/sys/bus/pci/devices/0000:00:{slot:02x}.0")) }
    }

    /// The last byte of its address, 10.9.9.N.
    fn host(&self) -> u8 {
        self.number + 1
    }

    /// Returns the name of the only device of a class that its driver made, such as `net` or
    /// `infiniband`.
    fn child(&self, class: &str) -> Result<String> {
        let Ok(mut entries) = fs::read_dir(self.device.join(class)) else {
            ensure!(self.device.exists(), "there is no {}", self.device.display());
            ensure!(self.device.join("driver").exists(), "mlx5_core has rejected {}", self.device.display());
            bail!("the driver of function {} has made no {class} device", self.number);
        };
        let entry = entries.next().with_context(|| format!("nothing in {class}"))??;
        Ok(entry.file_name().to_string_lossy().into_owned())
    }

    /// Sets up its netdev: here, or in the peer's network namespace.
    fn give_address(&self, deadline: Instant) -> Result<()> {
        let netdev = wait_for(deadline, || self.child("net"))?;
        let up = format!("link set {netdev} up\naddr add 10.9.9.{}/24 dev {netdev}\n", self.host());
        if self.number == 0 {
            return ip(&[], &up);
        }
        ip(&[], &format!("netns add {PEER}\nlink set {netdev} netns {PEER}\n"))?;
        // Without duplicate address detection, which would delay the link-local GID by a second. A
        // kernel without IPv6 has neither.
        let script = "for c in all default; do for k in accept_dad dad_transmits; do \
                      echo 0 >/proc/sys/net/ipv6/conf/$c/$k; done; done 2>/dev/null";
        Command::new("ip")
            .args(["netns", "exec", PEER, "sh", "-c", script])
            .env("PATH", SYSTEM_PATH)
            .stdin(Stdio::null())
            .status()
            .context("cannot run ip (package iproute2)")?;
        ip(&["-n", PEER], &format!("link set lo up\n{up}"))
    }

    fn is_usable(&self, link: Port) -> Result<()> {
        let name = self.child("infiniband")?;
        let node = Path::new("/dev/infiniband").join(self.child("infiniband_verbs")?);
        ensure!(node.exists(), "there is no {} for {name}", node.display());
        let port = self.device.join("infiniband").join(&name).join("ports/1");
        let state = fs::read_to_string(port.join("state")).unwrap_or_default();
        ensure!(state.contains("ACTIVE"), "port 1 of {name} is {:?} and not active", state.trim_end());
        if link == Port::Roce {
            let gid = gid_of_address(self.host());
            ensure!(has_gid(&port, &gid), "{name} has no RoCE v2 GID {gid}");
        }
        Ok(())
    }
}

/// Returns the GID of 10.9.9.`host`.
fn gid_of_address(host: u8) -> String {
    format!("0000:0000:0000:0000:0000:ffff:0a09:09{host:02x}")
}

fn has_gid(port: &Path, gid: &str) -> bool {
    let Ok(entries) = fs::read_dir(port.join("gids")) else { return false };
    entries.flatten().any(|entry| {
        let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        read(entry.path()).trim_end() == gid
            && read(port.join("gid_attrs/types").join(entry.file_name())).trim_end() == "RoCE v2"
    })
}
