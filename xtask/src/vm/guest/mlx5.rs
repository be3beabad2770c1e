//! mlx5_0, and mlx5_1 if there are two functions: gives netdevs their addresses, and waits until
//! all functions are usable.
//!
//! With RoCE ports, the second function's netdev is in the network namespace `peer`. Within one
//! namespace, the kernel would send packets for its own other address through loopback and never
//! through the device.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::super::job::{CONNECTX_PORT, CONNECTX_SLOT, Port};
use super::{NO_ADDRESS_DETECTION, shell, wait_for, wait_for_port};

/// The time limit for devices to appear. The driver is loaded and binds to existing devices at
/// once. A long wait would only delay the message that a function was rejected.
const BINDING: Duration = Duration::from_secs(10);

/// The network namespace with the second function's netdev.
const PEER: &str = "peer";

/// Waits until every function is usable: its node, an active port and the GID for its address.
pub(super) fn set_up(port: Port, functions: u8, deadline: Instant) -> Result<()> {
    let control = wait_for_port(CONNECTX_PORT, deadline)?;
    std::os::unix::fs::symlink(control, "/dev/connectx").context("/dev/connectx")?;
    let functions: Vec<Function> = (0..functions).map(Function::new).collect();
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

/// A PCI function and its number.
struct Function {
    number: u8,
    /// The function's directory below /sys.
    device: PathBuf,
}

impl Function {
    fn new(number: u8) -> Function {
        let slot = CONNECTX_SLOT + number;
        Function { number, device: PathBuf::from(format!("/sys/bus/pci/devices/0000:00:{slot:02x}.0")) }
    }

    /// Returns the last byte of the function's address, 10.9.9.N.
    fn host(&self) -> u8 {
        self.number + 1
    }

    /// Returns the name of the only device that the function's driver created in the given class,
    /// such as `net` or `infiniband`.
    fn child(&self, class: &str) -> Result<String> {
        let Ok(mut entries) = fs::read_dir(self.device.join(class)) else {
            ensure!(self.device.exists(), "there is no {}", self.device.display());
            ensure!(self.device.join("driver").exists(), "mlx5_core has rejected {}", self.device.display());
            bail!("the driver of function {} has made no {class} device", self.number);
        };
        let entry = entries.next().with_context(|| format!("nothing in {class}"))??;
        Ok(entry.file_name().to_string_lossy().into_owned())
    }

    /// Brings up the PCI function's netdev and adds its IP address. Except for function 0, first
    /// moves the netdev to the peer's network namespace.
    fn give_address(&self, deadline: Instant) -> Result<()> {
        let netdev = wait_for(deadline, || self.child("net"))?;
        let up = |ip: &str| {
            format!("{ip} link set {netdev} up && {ip} addr add 10.9.9.{}/24 dev {netdev}", self.host())
        };
        if self.number == 0 {
            return shell(&up("ip"));
        }
        shell(&format!("ip netns add {PEER} && ip link set {netdev} netns {PEER}"))?;
        shell(&format!("ip netns exec {PEER} sh -c '{NO_ADDRESS_DETECTION}'"))?;
        shell(&format!("ip -n {PEER} link set lo up && {}", up(&format!("ip -n {PEER}"))))
    }

    fn is_usable(&self, link: Port) -> Result<()> {
        let name = self.child("infiniband")?;
        let node = Path::new("/dev/infiniband").join(self.child("infiniband_verbs")?);
        ensure!(node.exists(), "there is no {} for {name}", node.display());
        let port = self.device.join("infiniband").join(&name).join("ports/1");
        let read = |file: &str| fs::read_to_string(port.join(file)).unwrap_or_default().trim_end().to_owned();
        let state = read("state");
        ensure!(state.contains("ACTIVE"), "port 1 of {name} is {state:?} and not active");
        let gid = format!("0000:0000:0000:0000:0000:ffff:0a09:09{:02x}", self.host());
        let is_gid =
            |i| read(&format!("gids/{i}")) == gid && read(&format!("gid_attrs/types/{i}")) == "RoCE v2";
        ensure!(link == Port::Ib || (0..256).any(is_gid), "{name} has no RoCE v2 GID {gid}");
        Ok(())
    }
}
