//! [`SoftDevice`] and [`SoftBuilder`], which create devices, and the provider registration of
//! [`Soft`].
//!
//! A device exists only on request. A program calls [`SoftDevice::bind`], [`SoftDevice::auto`] or a
//! [`SoftBuilder`], or a user sets the environment variable `VERBS_SOFT`. Other variables select
//! settings.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::net::if_::if_nametoindex;
use roce::wire::UDP_PORT;
use verbs_core::discovery::{DeviceInfo, OwnDevice, SkipReason, Skipped};
use verbs_core::fork::ForkLock;
use verbs_core::provider::{Driver, NamedProvider, OpenedContext, erase};
use verbs_core::types::Guid;
use verbs_core::{Errno, Error, Result, environment};

use crate::device::Device;
use crate::device::fork::ForkMark;
use crate::device::settings::Settings;
use crate::io::{Capture, Faults, InvalidFaults, Socket};
use crate::memory::checked::CheckedMemory;
use crate::objects::context::Context;
use crate::objects::soft::{DRIVER_ID, Soft};
use crate::shm::place::{Folder, Place};

/// A device in userspace, with one IP address and UDP port 4791.
///
/// Devices requested by `VERBS_SOFT` join every device list. A device created here is opened with
/// [`Soft::open`](NamedProvider::open); `verbs::soft::{bind, auto}` create and open a device in one
/// call. A process has at most one device per address. The device lives as long as its
/// [`DeviceInfo`], any clone of that, or any object created from it. Processes of one user share an
/// address. Opening a `DeviceInfo` twice gives two contexts of one device.
#[derive(Debug)]
pub enum SoftDevice {}

impl SoftDevice {
    /// Creates a device on an address of this machine.
    ///
    /// # Errors
    /// [`Cause::LeftOut`](verbs_core::Cause::LeftOut) with [`SkipReason::Address`]:
    /// - `EADDRINUSE`: this process already has a device on the address, or the port is taken by a
    ///   process of another user, by an [`auto`](Self::auto) device, or by the kernel's rdma_rxe.
    /// - `EADDRNOTAVAIL`: the address does not belong to this machine.
    /// - `ETIMEDOUT`: no process that shares the address replies within 5 s.
    /// - `EUSERS`: 253 processes share the address.
    /// - any other errno of creating sockets, notably `EMFILE`.
    pub fn bind(address: IpAddr) -> Result<DeviceInfo> {
        Self::builder().bind(address)
    }

    /// Creates a device reachable only from this machine and network namespace. All such devices in
    /// the namespace can reach each other.
    ///
    /// The device gets a host address: one on the interface with the default route if possible, and
    /// IPv4 rather than IPv6. Processes of one user share this address. If the machine has no such
    /// address or another user has the port there, the device gets an address in 127.0.0.0/8, which
    /// processes of that user share. Each further device of a process has a separate address in
    /// 127.0.0.0/8; on a machine with only IPv6, the second device has ::1.
    ///
    /// # Errors
    /// The errors of [`bind`](Self::bind): `EADDRINUSE` if the port is taken on every address of
    /// 127.0.0.0/8, for example by the kernel's rdma_rxe.
    pub fn auto() -> Result<DeviceInfo> {
        Self::builder().auto()
    }

    /// Returns a builder for a device with non-default settings.
    pub fn builder() -> SoftBuilder {
        SoftBuilder::default()
    }

    /// Creates the devices that another process would get from this `VERBS_SOFT` value, to describe
    /// them to that process ([`sysfs`](crate::sysfs)). They have the same names if they are the
    /// first devices of this process.
    pub fn of_request(list: &str) -> Vec<Result<DeviceInfo, Skipped>> {
        asked_for(list, &Ok(SoftBuilder::default()))
    }
}

/// The settings of a new device.
///
/// # Examples
/// ```
/// let device = provider_soft::SoftDevice::builder().strict_ports(true).auto()?;
/// # Ok::<(), verbs_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct SoftBuilder {
    settings: Settings,
    shared_memory: SharedMemory,
    scope_id: u32,
    capture: Option<PathBuf>,
}

/// The set of devices that exchange packets with this device through memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum SharedMemory {
    Off,
    /// Devices in the same network namespace.
    #[default]
    Namespace,
    /// Devices with the same folder.
    Folder(PathBuf),
}

impl SoftBuilder {
    /// Sets whether each connected queue pair accepts packets from only one UDP source port of its
    /// peer. The default is off.
    ///
    /// RoCEv2 permits any source port. In this mode a queue pair records the port of the first
    /// packet accepted after it was connected: the expected request, or the response to a request
    /// it sent. It drops packets from other ports, counted by
    /// [`Counters::unexpected_port`](crate::Counters::unexpected_port). After a reset or a new
    /// path, it records the port again. A sender that can forge the peer's address must then also
    /// guess its port.
    ///
    /// Peers with one source port per queue pair, such as this provider, rxe and mlx5, keep
    /// working. A peer whose port changes during a connection is no longer accepted; the connection
    /// ends when its retries run out. A port changes when an address translator loses its state, a
    /// driver switches to another port, or a network card spreads a queue pair over several paths.
    ///
    /// Datagram queue pairs have no peer and accept packets from every port.
    pub fn strict_ports(mut self, strict: bool) -> Self {
        self.settings.strict_ports = strict;
        self
    }

    /// Sets which registered memory is accessed by the kernel, because its pages may disappear. The
    /// default is file-backed memory.
    pub fn checked_memory(mut self, checked: CheckedMemory) -> Self {
        self.settings.checked_memory = checked;
        self
    }

    /// Sets whether packets to and from other devices of this user on this machine travel through
    /// shared memory instead of UDP sockets. The default is on.
    ///
    /// Both devices must have the setting, and belong to processes of one network namespace
    /// ([`shared_memory_folder`](Self::shared_memory_folder) is for containers). Otherwise their
    /// packets use UDP. [`Counters::shm_sent`](crate::Counters::shm_sent) counts the packets that
    /// travel through memory; tcpdump and netem see only UDP packets.
    pub fn shared_memory(mut self, enabled: bool) -> Self {
        self.shared_memory = if enabled { SharedMemory::Namespace } else { SharedMemory::Off };
        self
    }

    /// Sets a folder through which devices of this user find each other to exchange packets through
    /// shared memory. By default they must be in the same network namespace.
    ///
    /// Containers that share the folder exchange packets across network namespaces, even without a
    /// route between them. Only programs that connect by IP address need a route. Both devices must
    /// have the same folder, and different addresses. The folder must belong to this user or root,
    /// and no other user may be able to write to it unless it has the sticky bit. It contains a
    /// socket for each device.
    pub fn shared_memory_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.shared_memory = SharedMemory::Folder(folder.into());
        self
    }

    /// Injects faults into sent packets. The default is no faults.
    pub fn faults(mut self, faults: Faults) -> Self {
        self.settings.faults = Some(Box::new(faults));
        self
    }

    /// Writes copies of all sent and received packets to a pcap file for Wireshark and tcpdump, as
    /// RoCE v2 with the direction of each packet. Packets are not captured by default.
    ///
    /// Packets are appended to an existing capture; other devices and processes may write to the
    /// file at the same time. A new file is readable only by its user. The capture ends when the
    /// file cannot grow.
    pub fn capture(mut self, file: impl Into<PathBuf>) -> Self {
        self.capture = Some(file.into());
        self
    }

    /// Selects the interface of a link-local IPv6 address by its index, because several interfaces
    /// may have the same address. The default, 0, is the first interface with the address.
    pub fn scope_id(mut self, index: u32) -> Self {
        self.scope_id = index;
        self
    }

    /// Creates a device on an address of this machine.
    ///
    /// # Errors
    /// - The errors of [`SoftDevice::bind`]; `EADDRNOTAVAIL` if the interface of
    ///   [`scope_id`](Self::scope_id) does not have the address.
    /// - [`SkipReason::Folder`] if the folder of
    ///   [`shared_memory_folder`](Self::shared_memory_folder) cannot be used: `EPERM` if other
    ///   users can change it.
    /// - [`SkipReason::Capture`] if the file of [`capture`](Self::capture) cannot be written:
    ///   `EEXIST` if it has other contents.
    pub fn bind(self, address: IpAddr) -> Result<DeviceInfo> {
        self.on_address(&own_name(), address).map_err(|skipped| skipped.into_error("bind"))
    }

    /// Creates a device reachable only from this machine, as [`SoftDevice::auto`] does.
    ///
    /// # Errors
    /// The errors of [`SoftDevice::auto`], and the folder and capture errors of
    /// [`bind`](Self::bind).
    pub fn auto(self) -> Result<DeviceInfo> {
        self.on_any(&own_name()).map_err(|skipped| skipped.into_error("bind"))
    }

    /// Returns the settings requested by the environment.
    ///
    /// # Errors
    /// [`SkipReason::Request`] for an unknown value: a misspelled value must not silently turn a
    /// protection off.
    #[inline(never)]
    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, SkipReason> {
        let text = |name| variable(name).map(|value| value.to_string_lossy().trim().to_owned());
        let flag = |variable, default| match text(variable).as_deref() {
            None | Some("") => Ok(default),
            Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(other) => Err(SkipReason::Request { variable, asked: other.into(), expected: "0 or 1" }),
        };
        let strict_ports = flag(STRICT_PORTS, false)?;
        let shared_memory = match variable(SHM) {
            Some(folder) if Path::new(&folder).is_absolute() => SharedMemory::Folder(folder.into()),
            _ => match text(SHM).as_deref() {
                None | Some("" | "1") => SharedMemory::Namespace,
                Some("0") => SharedMemory::Off,
                Some(other) => {
                    let (asked, expected) = (other.into(), "0, 1 or the absolute path of a folder");
                    return Err(SkipReason::Request { variable: SHM, asked, expected });
                }
            },
        };
        let checked_memory = match text(CHECKED_MEMORY).as_deref() {
            None | Some("" | "files") => CheckedMemory::Files,
            Some("none") => CheckedMemory::None,
            Some("all") => CheckedMemory::All,
            Some(other) => {
                let (asked, expected) = (other.into(), "none, files or all");
                return Err(SkipReason::Request { variable: CHECKED_MEMORY, asked, expected });
            }
        };
        let faults = match text(FAULTS).filter(|text| !text.is_empty()).map(|text| text.parse()) {
            None => None,
            Some(Ok(faults)) => Some(Box::new(faults)),
            Some(Err(InvalidFaults { element: asked })) => {
                let expected = InvalidFaults::EXPECTED;
                return Err(SkipReason::Request { variable: FAULTS, asked, expected });
            }
        };
        let capture = variable(PCAP).filter(|path| !path.is_empty()).map(PathBuf::from);
        Ok(Self {
            settings: Settings { strict_ports, checked_memory, faults },
            shared_memory,
            scope_id: 0,
            capture,
        })
    }

    fn on_address(self, name: &str, address: IpAddr) -> Result<DeviceInfo, Skipped> {
        let _binding = BINDING.lock_or(|| ());
        let refused = |errno| left_out(name, address, errno);
        let socket = boxed(|| Socket::bind(address, self.scope_id)).map_err(refused)?;
        let place = (socket.address(), socket.scope());
        if Device::live().iter().any(|device| (device.socket.address(), device.socket.scope()) == place) {
            return Err(refused(Errno::ADDRINUSE));
        }
        self.on(name, socket, false)
    }

    fn on_any(self, name: &str) -> Result<DeviceInfo, Skipped> {
        let _binding = BINDING.lock_or(|| ());
        let own: Vec<_> = Device::live().iter().map(|device| device.socket.address()).collect();
        let socket = boxed(|| Socket::auto(&own));
        let socket = socket.map_err(|errno| left_out(name, [127, 0, 0, 0].into(), errno))?;
        self.on(name, socket, true)
    }

    fn on(self, name: &str, mut socket: Box<Socket>, is_auto: bool) -> Result<DeviceInfo, Skipped> {
        if let Some(path) = self.capture {
            match Capture::open(&path) {
                Ok(capture) => socket.set_capture(capture),
                Err(errno) => {
                    return Err(Skipped { name: name.into(), reason: SkipReason::Capture { path, errno } });
                }
            }
        }
        let place = match self.shared_memory {
            SharedMemory::Off => None,
            SharedMemory::Namespace => Some(Place::Namespace),
            SharedMemory::Folder(path) => match Folder::open(&path) {
                Ok(folder) => Some(Place::Folder(Box::new(folder))),
                Err(errno) => {
                    return Err(Skipped { name: name.into(), reason: SkipReason::Folder { path, errno } });
                }
            },
        };
        let address = socket.address();
        // Devices with equal addresses on two interfaces have different GUIDs.
        let guid = Guid(guid_of(address).0 ^ u64::from(self.scope_id) << 32);
        let device = Device::new(name, socket, guid, self.settings, place, is_auto)
            .map_err(|errno| left_out(name, address, errno))?;
        Ok(DeviceInfo::brought(name, DRIVER_ID, guid, OwnDevice::new(device)))
    }
}

/// Creates a socket in a box. On the stack, each function that creates a device would hold another
/// copy, and threads with 16 KiB of stack list devices.
#[inline(never)]
fn boxed(socket: impl FnOnce() -> Result<Socket, Errno>) -> Result<Box<Socket>, Errno> {
    socket().map(Box::new)
}

impl NamedProvider for Soft {
    const DRIVER: Driver = Driver {
        name: "soft",
        driver_id: DRIVER_ID,
        min_abi: 0,
        max_abi: 0,
        matches: |device| device.driver_id().is_some_and(|id| id.0 == DRIVER_ID),
        devices: from_environment,
        open: open_erased,
        import: None,
    };

    fn open(device: &DeviceInfo) -> Result<Context> {
        let own = device.own().and_then(OwnDevice::downcast_ref::<Arc<Device>>);
        let device = own.ok_or_else(|| Error::new("open_device", device.name(), Errno::NODEV))?;
        Context::open(device)
    }
}

fn open_erased(device: &DeviceInfo) -> Result<OpenedContext> {
    Soft::open(device).map(erase::<Soft>)
}

/// Creates the devices requested by `VERBS_SOFT`, once in each process. A forked child cannot use
/// its parent's devices and creates its own, which share the parent's addresses.
pub(crate) fn from_environment() -> Vec<Result<DeviceInfo, Skipped>> {
    requested(<[_]>::to_vec)
}

/// Calls `each` with the devices requested by `VERBS_SOFT`.
pub(crate) fn requested<T>(each: impl FnOnce(&[Result<DeviceInfo, Skipped>]) -> T) -> T {
    static REQUESTED: ForkLock<Option<RequestedDevices>> = ForkLock::new(None);
    let mut asked = REQUESTED.lock_or(|| None);
    if let Some(asked) = asked.as_ref().filter(|asked| asked.is_of_this_process()) {
        return each(&asked.made);
    }
    NEXT.store(0, Ordering::Relaxed);
    let made = match environment::variable_os(VARIABLE) {
        Some(asked) => {
            let builder = SoftBuilder::from_variables(environment::variable_os);
            asked_for(&asked.to_string_lossy(), &builder)
        }
        None => Vec::new(),
    };
    let (process, mark) = (std::process::id(), ForkMark::new().ok());
    each(&asked.insert(RequestedDevices { process, mark, made }).made)
}

/// The devices that a process created for `VERBS_SOFT`.
struct RequestedDevices {
    process: u32,
    /// Detects a fork without a system call. `None` if the kernel does not support the mark.
    mark: Option<ForkMark>,
    made: Vec<Result<DeviceInfo, Skipped>>,
}

impl RequestedDevices {
    fn is_of_this_process(&self) -> bool {
        match &self.mark {
            Some(mark) => !mark.is_gone(),
            None => self.process == std::process::id(),
        }
    }
}

fn asked_for(asked: &str, builder: &Result<SoftBuilder, SkipReason>) -> Vec<Result<DeviceInfo, Skipped>> {
    let elements = asked.split(',').map(str::trim).filter(|element| !element.is_empty());
    elements
        .map(|element| {
            let name = next_name();
            let builder = match builder {
                Ok(builder) => builder.clone(),
                Err(reason) => return Err(Skipped { name, reason: reason.clone() }),
            };
            if element == "auto" {
                return builder.on_any(&name);
            }
            match address_and_scope(element) {
                Some((address, scope_id)) => builder.scope_id(scope_id).on_address(&name, address),
                None => {
                    let reason =
                        SkipReason::Request { variable: VARIABLE, asked: element.into(), expected: EXPECTED };
                    Err(Skipped { name, reason })
                }
            }
        })
        .collect()
}

/// Parses an address, with a zone if it is link-local. Returns the address and the index of the
/// zone's interface, or 0 without a zone.
fn address_and_scope(text: &str) -> Option<(IpAddr, u32)> {
    let Some((address, zone)) = text.split_once('%') else { return Some((text.parse().ok()?, 0)) };
    let address: Ipv6Addr = address.parse().ok().filter(Ipv6Addr::is_unicast_link_local)?;
    let index = if_nametoindex(zone).ok().or_else(|| zone.parse().ok())?;
    (index != 0).then_some((address.into(), index))
}

fn left_out(name: &str, address: IpAddr, errno: Errno) -> Skipped {
    Skipped { name: name.into(), reason: SkipReason::Address { address, port: UDP_PORT, errno } }
}

/// Returns a name for a device created by the program. The devices requested by the environment are
/// created first, so they get the first names.
fn own_name() -> String {
    let _ = from_environment();
    next_name()
}

/// Returns the next device name: `soft0`, `soft1`, ...
fn next_name() -> String {
    format!("soft{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns a locally administered EUI-64 derived from an address. It cannot collide with a vendor's
/// EUI-64.
fn guid_of(address: IpAddr) -> Guid {
    match address {
        // ISATAP derives interface identifiers from IPv4 addresses in this way.
        IpAddr::V4(v4) => Guid(0x0200_5efe_0000_0000 | u64::from(v4.to_bits())),
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            let folded = (bits >> 64) as u64 ^ bits as u64;
            Guid(folded & !(3 << 56) | 2 << 56)
        }
    }
}

/// Held from binding an address until the device is in the list of live devices.
static BINDING: ForkLock<()> = ForkLock::new(());

/// The number in the next device's name.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The environment variable that requests soft devices.
const VARIABLE: &str = "VERBS_SOFT";

/// The environment variable that requests [`SoftBuilder::strict_ports`] for the devices that
/// `VERBS_SOFT` requests.
const STRICT_PORTS: &str = "VERBS_SOFT_STRICT_PORTS";

/// The environment variable that requests [`SoftBuilder::checked_memory`] for the devices that
/// `VERBS_SOFT` requests.
const CHECKED_MEMORY: &str = "VERBS_SOFT_CHECKED_MEMORY";

/// The environment variable that requests [`SoftBuilder::shared_memory`], or with a path
/// [`SoftBuilder::shared_memory_folder`], for the devices that `VERBS_SOFT` requests.
const SHM: &str = "VERBS_SOFT_SHM";

/// The environment variable that requests [`SoftBuilder::faults`] for the devices that `VERBS_SOFT`
/// requests.
const FAULTS: &str = "VERBS_SOFT_FAULTS";

/// The environment variable that requests [`SoftBuilder::capture`] for the devices that
/// `VERBS_SOFT` requests.
const PCAP: &str = "VERBS_SOFT_PCAP";

const EXPECTED: &str = "auto, or IP addresses separated by commas, link-local ones also with an interface of this machine, as in \
                        fe80::1%eth0";

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_administered_locally_and_follow_the_address() {
        assert_eq!(guid_of([10, 0, 0, 1].into()), Guid(0x0200_5efe_0a00_0001));
        let [a, b] = ["fe80::1", "fd00::2"].map(|text| guid_of(text.parse().unwrap()));
        assert_ne!(a, b);
        for guid in [a, b] {
            assert_eq!(guid.0 >> 56 & 3, 2);
        }
    }

    #[test]
    fn a_device_that_cannot_be_made_is_left_out_with_a_reason() {
        let usual = Ok(SoftBuilder::default());
        let made = asked_for("auto, nonsense,192.0.2.1", &usual);
        assert!(made[0].is_ok(), "{made:?}");
        let reasons: Vec<String> =
            made[1..].iter().map(|made| made.as_ref().unwrap_err().to_string()).collect();
        assert!(reasons[0].contains("VERBS_SOFT asks for \"nonsense\""), "{reasons:?}");
        for zone in ["fe80::1%no-such-interface", "fe80::1%0", "fe80::1%", "192.0.2.1%lo", "fd00::1%1"] {
            assert_eq!(address_and_scope(zone), None, "{zone}");
        }
        let link_local: IpAddr = "fe80::1".parse().unwrap();
        assert_eq!(address_and_scope("fe80::1%lo"), address_and_scope("fe80::1%1"));
        assert_eq!(address_and_scope("fe80::1%7"), Some((link_local, 7)));
        assert_eq!(address_and_scope("fe80::1"), Some((link_local, 0)));
        assert!(reasons[1].contains("192.0.2.1 is not an address of this machine"), "{reasons:?}");
        assert!(asked_for("", &usual).is_empty());
    }

    /// Returns the settings requested by one variable.
    fn with(variable: &str, value: Option<&str>) -> Result<SoftBuilder, SkipReason> {
        SoftBuilder::from_variables(|name| (name == variable).then(|| value.map(OsString::from))?)
    }

    #[test]
    fn an_invalid_fault_makes_no_device() {
        assert_eq!(with(FAULTS, Some("")).unwrap().settings.faults, None);
        let faults = "loss=1%,seed=7";
        assert_eq!(
            with(FAULTS, Some(faults)).unwrap().settings.faults,
            Some(Box::new(faults.parse().unwrap()))
        );
        let made = asked_for("auto", &with(FAULTS, Some("seed=7,loss=1")));
        let reason = made[0].as_ref().unwrap_err().to_string();
        assert!(reason.contains("VERBS_SOFT_FAULTS asks for \"loss=1\""), "{reason}");
    }

    #[test]
    fn a_capture_that_cannot_be_written_makes_no_device() {
        assert_eq!(with(PCAP, Some("")).unwrap().capture, None);
        let made = asked_for("auto", &with(PCAP, Some("/dev/null/packets")));
        let reason = made[0].as_ref().unwrap_err().to_string();
        assert!(reason.contains("/dev/null/packets") && reason.contains("ENOTDIR"), "{reason}");
    }

    #[test]
    fn strict_ports_are_on_or_off_and_a_misspelled_value_makes_no_device() {
        for (value, strict) in [(None, false), (Some(""), false), (Some("0"), false), (Some(" 1 "), true)] {
            let made = with(STRICT_PORTS, value);
            assert_eq!(made.map(|builder| builder.settings.strict_ports), Ok(strict));
        }
        let made = asked_for("auto,127.0.0.1", &with(STRICT_PORTS, Some("yes")));
        assert_eq!(made.len(), 2);
        for made in made {
            let reason = made.unwrap_err().to_string();
            assert!(reason.contains("VERBS_SOFT_STRICT_PORTS asks for \"yes\""), "{reason}");
        }
    }

    #[test]
    fn shared_memory_is_on_unless_it_is_turned_off() {
        use SharedMemory::{Folder, Namespace, Off};
        for (value, chosen) in [
            (None, Namespace),
            (Some(""), Namespace),
            (Some("1"), Namespace),
            (Some(" 0"), Off),
            (Some("/run/verbs"), Folder("/run/verbs".into())),
        ] {
            assert_eq!(with(SHM, value).map(|builder| builder.shared_memory), Ok(chosen));
        }
        let reason = asked_for("auto", &with(SHM, Some("off")))[0].as_ref().unwrap_err().to_string();
        assert!(reason.contains("VERBS_SOFT_SHM asks for \"off\""), "{reason}");
        let reason = asked_for("auto", &with(SHM, Some("/nowhere")))[0].as_ref().unwrap_err().to_string();
        assert!(reason.contains("/nowhere") && reason.contains("ENOENT"), "{reason}");
    }

    #[test]
    fn checked_memory_has_three_names_and_a_misspelled_value_makes_no_device() {
        use CheckedMemory::{All, Files, None as Unchecked};
        for (value, checked) in [
            (None, Files),
            (Some(""), Files),
            (Some("files"), Files),
            (Some(" all "), All),
            (Some("none"), Unchecked),
        ] {
            let made = with(CHECKED_MEMORY, value);
            assert_eq!(made.map(|builder| builder.settings.checked_memory), Ok(checked));
        }
        let made = asked_for("auto", &with(CHECKED_MEMORY, Some("1")));
        let reason = made[0].as_ref().unwrap_err().to_string();
        assert!(reason.contains("VERBS_SOFT_CHECKED_MEMORY asks for \"1\""), "{reason}");
    }
}
