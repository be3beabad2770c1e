//! [`Tree`]: the sysfs files of soft devices.
//!
//! The kernel does not know soft devices, so `/sys/class/infiniband` lacks them. Programs that read
//! a device's files there, through paths from libibverbs, find the same files in a folder of this
//! process:
//!
//! ```text
//!   verbs-soft-XXXXXXXXXXXXXXXX/        in $XDG_RUNTIME_DIR, or in /dev/shm
//!     lock                              locked by the process
//!     class/infiniband/soft0            ─► devices/soft/soft0/infiniband/soft0
//!     class/infiniband_verbs/uverbs0    ─► devices/soft/soft0/infiniband_verbs/uverbs0
//!     devices/soft/soft0/               numa_node, vendor, ...
//! ```
//!
//! `verbs-run` presents the files of its user's devices to a program at `/sys`, in a mount
//! namespace ([`Tree::present`]). Processes in that namespace use these files if they have the
//! presented device ([`presented`]), and otherwise create a folder in `/sys/devices/soft`.
//!
//! The process removes its folder when it exits. If it is killed, the next process with a soft
//! device removes the folder, because the folder's lock is free. While a forked child still has the
//! lock's descriptor, its parent's folder is not removed.
//!
//! While packets arrive or leave, counter files are rewritten after a second. In presented files,
//! each process adds its own counts.
//!
//! # References
//! linux `Documentation/ABI/stable/sysfs-class-infiniband`

use std::fmt::Display;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::resource::{Resource, getrlimit};
use verbs_core::discovery::{DeviceInfo, OwnDevice, SOFT_ADDRESS};
use verbs_core::types::Guid;
use verbs_core::{Errno, environment};

use crate::device::Device;
use crate::device::counter_files::CounterFiles;
use crate::device::{exit, limits};
use crate::io::effective_user;

/// The sysfs files of soft devices: either the files that `verbs-run` presents at `/sys`, or files
/// in this process's folder. The process removes its folder when it exits.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    /// The number of the next `uverbs` device.
    next: u32,
    /// The file whose lock shows that the process is alive. `None` for presented files, which other
    /// users may read.
    lock: Option<File>,
}

/// The paths of a device's files for libibverbs.
#[derive(Clone, Debug)]
pub struct DevicePaths {
    /// The name of the character device, such as `uverbs0`. The device file exists where devices
    /// are presented.
    pub dev_name: String,
    /// The folder of the character device.
    pub dev_path: PathBuf,
    /// The folder of the device.
    pub ibdev_path: PathBuf,
}

impl Tree {
    /// Creates the folder of this process, and removes the folders of processes that have ended.
    ///
    /// # Errors
    /// The errno of creating a folder or file. `ENOENT` if neither possible place is safe. A safe
    /// place is owned by this user, or owned by root with the sticky bit set. `EFBIG` if the
    /// process may not write 4 KiB files.
    pub fn create() -> Result<Self, Errno> {
        let places = [
            Some(PathBuf::from(SYS).join(DEVICES)),
            environment::variable_os("XDG_RUNTIME_DIR").map(PathBuf::from),
            Some("/dev/shm".into()),
        ];
        let mut last = Errno::NOENT;
        if !has_file_sizes() {
            return Err(Errno::from_raw(libc::EFBIG));
        }
        for place in places.into_iter().flatten().filter(|place| is_safe(place)) {
            match Self::create_in(&place) {
                Ok(tree) => return Ok(tree),
                Err(error) => last = Errno::from_io(&error),
            }
        }
        Err(last)
    }

    fn create_in(place: &Path) -> io::Result<Self> {
        remove_ended(place);
        let number = |_| verbs_core::random::draw().map_err(io::Error::from);
        let (high, low) = (number(0)?, number(1)?);
        let root = place.join(format!("{PREFIX}{high:08x}{low:08x}"));
        folder(&root, OWN)?;
        let lock = File::create_new(root.join(LOCK))?;
        lock.lock()?;
        exit::remove(&root.join(LOCK));
        for class in ["class", IBDEV_CLASS, UVERBS_CLASS, "devices", DEVICES] {
            folder(&root.join(class), OWN)?;
        }
        Ok(Self { root, next: free_number(Path::new(SYS)), lock: Some(lock) })
    }

    /// Uses the folders below `sys`, such as `/sys`, for devices that are presented to other
    /// processes. The folders `class/infiniband`, `class/infiniband_verbs` and `devices/soft` must
    /// exist there.
    ///
    /// # Errors
    /// The errno of writing the `abi_version` file of uverbs, which is created if it is missing.
    pub fn present(sys: &Path) -> Result<Self, Errno> {
        let version = sys.join(UVERBS_CLASS).join("abi_version");
        if !version.exists() {
            fs::write(&version, format!("{UVERBS_ABI}\n")).map_err(|error| Errno::from_io(&error))?;
        }
        Ok(Self { root: sys.to_owned(), next: free_number(sys), lock: None })
    }

    /// Lets programs executed by this process inherit the lock. The folder remains while any of
    /// them has the lock's descriptor. The descriptor's number is 100 or more, if possible, because
    /// scripts use small numbers.
    ///
    /// # Errors
    /// Any errno of `fcntl(2)`.
    pub fn keep_for_children(&self) -> Result<(), Errno> {
        let Some(lock) = &self.lock else { return Ok(()) };
        if fcntl(lock, FcntlArg::F_DUPFD(INHERITED)).is_err() {
            fcntl(lock, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        Ok(())
    }

    /// Returns the folder that contains all files.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Adds a soft device of this process.
    ///
    /// # Errors
    /// The errno of creating a folder or file; `ENODEV` if `device` is not a soft device of this
    /// process.
    pub fn add(&mut self, device: &DeviceInfo) -> Result<DevicePaths, Errno> {
        let own = device.own().and_then(OwnDevice::downcast_ref::<Arc<Device>>).ok_or(Errno::NODEV)?;
        // If `/sys` presents a device of this name, its character device exists for this process
        // too.
        let presented = self.lock.as_ref().and_then(|_| presented_dev_name(Path::new(SYS), &own.name));
        let is_new = presented.is_none();
        let dev_name = presented.unwrap_or_else(|| format!("uverbs{}", self.next));
        let entry = self.write(own, &dev_name).map_err(|error| Errno::from_io(&error))?;
        self.next += u32::from(is_new);
        Ok(entry)
    }

    fn write(&self, device: &Device, dev_name: &str) -> io::Result<DevicePaths> {
        let name = &*device.name;
        let is_presented = self.lock.is_none();
        let mode = if is_presented { EVERYBODY } else { OWN };
        let parent = Folder::create(self.root.join(DEVICES).join(name), mode)?;
        parent.write_parent()?;
        let ibdev = parent.sub("infiniband")?.sub(name)?;
        ibdev.write_device(device)?;
        ibdev.link("device", "../..")?;
        let port = ibdev.sub("ports")?.sub(&limits::PORT.to_string())?;
        port.write_port(device)?;
        let counters = CounterFiles::create(&port.sub("counters")?.path, &port.sub("hw_counters")?.path)?;
        if !is_presented {
            device.publish_counters(counters);
        }
        let uverbs = parent.sub("infiniband_verbs")?.sub(dev_name)?;
        uverbs.file("ibdev", name)?;
        uverbs.file("abi_version", 1)?;
        if is_presented {
            // The character device is /dev/null.
            uverbs.file("dev", "1:3")?;
            uverbs.file(SOFT_ADDRESS, device.socket.address())?;
        } else {
            uverbs.file("dev", format_args!("231:{}", 192 + self.next))?;
        }
        uverbs.link("device", "../..")?;
        let class = |class: &str, name: &str, kind: &str| {
            let path = self.root.join(class).join(name);
            symlink(format!("../../devices/soft/{}/{kind}/{name}", device.name), &path)?;
            exit::remove(&path);
            Ok::<_, io::Error>(path)
        };
        Ok(DevicePaths {
            dev_name: dev_name.to_owned(),
            dev_path: class(UVERBS_CLASS, dev_name, "infiniband_verbs")?,
            ibdev_path: class(IBDEV_CLASS, name, "infiniband")?,
        })
    }
}

/// Returns the files of a device at `/sys`, if `verbs-run` presents this device to the process. Its
/// counters include the process's counters from then on.
pub fn presented(device: &DeviceInfo) -> Option<DevicePaths> {
    let own = device.own().and_then(OwnDevice::downcast_ref::<Arc<Device>>)?;
    let paths = presented_at(Path::new(SYS), &own.name, own.guid)?;
    let port = paths.ibdev_path.join("ports").join(limits::PORT.to_string());
    own.publish_counters(CounterFiles::shared(&port.join("counters"), &port.join("hw_counters")));
    Some(paths)
}

fn presented_at(sys: &Path, name: &str, guid: Guid) -> Option<DevicePaths> {
    let dev_name = presented_dev_name(sys, name)?;
    let ibdev_path = sys.join(IBDEV_CLASS).join(name);
    let found = fs::read_to_string(ibdev_path.join("node_guid")).ok()?;
    let dev_path = sys.join(UVERBS_CLASS).join(&dev_name);
    (found.trim() == groups(guid.0.to_be_bytes())).then_some(DevicePaths { dev_name, dev_path, ibdev_path })
}

/// Returns the name of the character device presented with an RDMA device.
fn presented_dev_name(sys: &Path, name: &str) -> Option<String> {
    let entries = sys.join(IBDEV_CLASS).join(name).join("device/infiniband_verbs").read_dir().ok()?;
    let mut presented = entries.flatten().filter(|entry| entry.path().join(SOFT_ADDRESS).exists());
    presented.next()?.file_name().into_string().ok()
}

/// A folder whose files are removed at exit.
struct Folder {
    path: PathBuf,
    mode: u32,
}

impl Folder {
    fn create(path: PathBuf, mode: u32) -> io::Result<Self> {
        folder(&path, mode)?;
        Ok(Self { path, mode })
    }

    fn sub(&self, name: &str) -> io::Result<Self> {
        Self::create(self.path.join(name), self.mode)
    }

    /// Writes a file that consists of one line.
    fn file(&self, name: &str, line: impl Display) -> io::Result<()> {
        let path = self.path.join(name);
        fs::write(&path, format!("{line}\n"))?;
        exit::remove(&path);
        Ok(())
    }

    fn link(&self, name: &str, to: &str) -> io::Result<()> {
        let path = self.path.join(name);
        symlink(to, &path)?;
        exit::remove(&path);
        Ok(())
    }

    /// Writes the files of the parent device, which stands for a network card.
    fn write_parent(&self) -> io::Result<()> {
        let cpus = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
        self.file("numa_node", numa_node())?;
        self.file("local_cpulist", cpus.trim())?;
        self.file("local_cpus", cpu_mask(&cpus))?;
        for (name, id) in
            [("vendor", 0xffff), ("device", 0), ("subsystem_vendor", 0xffff), ("subsystem_device", 0)]
        {
            self.file(name, format_args!("{id:#06x}"))?;
        }
        self.file("class", "0x020000")
    }

    fn write_device(&self, device: &Device) -> io::Result<()> {
        let attr = limits::device_attr(device.guid);
        let host = nix::unistd::gethostname().unwrap_or_default();
        self.file("node_type", "1: CA")?;
        self.file("node_guid", groups(attr.node_guid.0.to_be_bytes()))?;
        self.file("sys_image_guid", groups(attr.sys_image_guid.0.to_be_bytes()))?;
        self.file("node_desc", format_args!("{} {}", host.to_string_lossy(), device.name))?;
        self.file("fw_ver", &attr.fw_ver)?;
        self.file("hw_rev", attr.hw_ver)?;
        self.file("hca_type", "soft")?;
        self.file("board_id", "soft")
    }

    fn write_port(&self, device: &Device) -> io::Result<()> {
        let interface = device.socket.link().ok().flatten();
        let is_up = interface.as_ref().is_some_and(|interface| interface.is_up);
        let attr = limits::port_attr(device.mtu()?, is_up);
        let (state, phys_state) = if is_up { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
        self.file("state", state)?;
        self.file("phys_state", phys_state)?;
        self.file("link_layer", "Ethernet")?;
        self.file("rate", "2.5 Gb/sec (1X SDR)")?;
        self.file("lid", "0x0")?;
        self.file("sm_lid", "0x0")?;
        self.file("lid_mask_count", 0)?;
        self.file("sm_sl", 0)?;
        self.file("cap_mask", format_args!("{:#010x}", attr.port_cap_flags.bits()))?;
        self.sub("pkeys")?.file("0", format_args!("{:#06x}", limits::PKEY))?;
        let (gids, attrs) = (self.sub("gids")?, self.sub("gid_attrs")?);
        let (types, ndevs) = (attrs.sub("types")?, attrs.sub("ndevs")?);
        for index in 0..limits::GID_TABLE {
            let has_gid = index < limits::GIDS;
            let index = index.to_string();
            gids.file(&index, groups(if has_gid { device.gid } else { [0; 16] }))?;
            if has_gid {
                types.file(&index, "RoCE v2")?;
                interface.as_ref().map_or(Ok(()), |interface| ndevs.file(&index, &interface.name))?;
            }
        }
        Ok(())
    }
}

/// Returns whether only their owner can rename entries in a folder: this user owns the folder, or
/// the folder is like `/tmp`. If root runs a program through `su`, `XDG_RUNTIME_DIR` belongs to
/// another user.
fn is_safe(place: &Path) -> bool {
    let Ok(of) = place.symlink_metadata() else { return false };
    let is_own = of.uid() == effective_user() && of.mode() & 0o022 == 0;
    let is_sticky = of.uid() == 0 && of.mode() & 0o1000 != 0;
    place.is_absolute() && of.is_dir() && (is_own || is_sticky)
}

/// Returns whether the process may write files of [`LONGEST`] bytes. Otherwise, a write would kill
/// the process (`SIGXFSZ`).
fn has_file_sizes() -> bool {
    getrlimit(Resource::RLIMIT_FSIZE).is_ok_and(|(limit, _)| limit >= LONGEST)
}

/// Creates a folder owned by this user.
fn folder(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(path)?;
    exit::remove(path);
    Ok(())
}

/// Removes the folders of this user's processes that have ended.
fn remove_ended(place: &Path) {
    let Ok(entries) = place.read_dir() else { return };
    for entry in entries.flatten() {
        let is_tree = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let is_own = || entry.metadata().is_ok_and(|of| of.is_dir() && of.uid() == effective_user());
        if is_tree && is_own() && has_ended(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns whether the process owning a folder has ended. If the folder is new, its owner may not
/// have created or locked the lock file yet.
fn has_ended(root: &Path) -> bool {
    let age = root.metadata().and_then(|of| of.modified()).ok().and_then(|at| at.elapsed().ok());
    match File::open(root.join(LOCK)) {
        // The owning process may be about to lock the file.
        Ok(lock) => age.is_some_and(|age| age > UNLOCKED) && lock.try_lock().is_ok(),
        Err(_) => age.is_some_and(|age| age > NEW),
    }
}

/// Returns the first `uverbs` number above the numbers of the kernel's devices.
fn free_number(sys: &Path) -> u32 {
    let entries = fs::read_dir(sys.join(UVERBS_CLASS)).into_iter().flatten().flatten();
    let number = |name: &str| name.strip_prefix("uverbs")?.parse::<u32>().ok();
    let last = entries.filter_map(|entry| number(entry.file_name().to_str()?)).max();
    last.map_or(0, |last| last.saturating_add(1))
}

/// Formats bytes as groups of four hexadecimal digits.
fn groups<const LEN: usize>(bytes: [u8; LEN]) -> String {
    let groups = bytes.chunks(2).map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect());
    groups.collect::<Vec<String>>().join(":")
}

/// Returns the number of the machine's only memory node, or -1 if the machine has several nodes or
/// does not list them. UCCL fails if the number is -1.
fn numa_node() -> i32 {
    let online = fs::read_to_string("/sys/devices/system/node/online");
    if online.is_ok_and(|nodes| nodes.trim() == "0") { 0 } else { -1 }
}

/// Converts a list of processors, such as `0-3,8`, to a hexadecimal mask in groups of 32 bits.
fn cpu_mask(list: &str) -> String {
    let mut words = vec![0u32];
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else { continue };
        for cpu in first..=last.min(first + MAX_CPUS) {
            if words.len() <= cpu / 32 {
                words.resize(cpu / 32 + 1, 0);
            }
            words[cpu / 32] |= 1 << (cpu % 32);
        }
    }
    words.iter().rev().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(",")
}

/// The root of the presented files.
const SYS: &str = "/sys";

/// The folder for devices, and the folders for their classes, below the root.
const DEVICES: &str = "devices/soft";
const IBDEV_CLASS: &str = "class/infiniband";
const UVERBS_CLASS: &str = "class/infiniband_verbs";

/// The ABI version of uverbs.
const UVERBS_ABI: u32 = 6;

/// The modes of folders: accessible only to this user, or readable by all users.
const OWN: u32 = 0o700;
const EVERYBODY: u32 = 0o755;

/// The prefix of the names of the processes' folders.
const PREFIX: &str = "verbs-soft-";

/// The name of the locked file in the folder.
const LOCK: &str = "lock";

/// The lowest number for the inherited descriptor of the lock file.
const INHERITED: i32 = 100;

/// The length of the longest file, in bytes.
const LONGEST: u64 = 4096;

/// The maximum age of a lock file that its creator may not have locked yet.
const UNLOCKED: Duration = Duration::from_secs(2);

/// The maximum age of a folder whose creator may not have created the lock file yet.
const NEW: Duration = Duration::from_secs(60);

/// The maximum number of processors in one range of a processor list.
const MAX_CPUS: usize = 1 << 16;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs::FileTimes;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_folder_that_another_user_can_rename_is_not_used() {
        let place = std::env::temp_dir().join(format!("safe-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&place).unwrap();
        assert!(is_safe(&place) && is_safe(Path::new("/tmp")));
        let link = place.join("link");
        symlink(&place, &link).unwrap();
        assert!(!is_safe(&link) && !is_safe(Path::new("relative")) && !is_safe(&place.join("missing")));
        let open = place.join("open");
        DirBuilder::new().create(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(!is_safe(&open));
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn processors_are_bits_in_groups_of_32() {
        assert_eq!(cpu_mask("0-1\n"), "00000003");
        assert_eq!(cpu_mask("0,2-3,33"), "00000002,0000000d");
        assert_eq!(cpu_mask(""), "00000000");
    }

    #[test]
    fn identifiers_are_groups_of_four_digits() {
        assert_eq!(groups(0x0200_5efe_7f09_0909u64.to_be_bytes()), "0200:5efe:7f09:0909");
    }

    #[test]
    fn a_presented_device_is_recognised_by_its_guid_and_read_by_everybody() {
        let sys = std::env::temp_dir().join(format!("presented-{}", std::process::id()));
        for folder in [IBDEV_CLASS, UVERBS_CLASS, DEVICES] {
            fs::create_dir_all(sys.join(folder)).unwrap();
        }
        // The kernel's devices keep their numbers.
        fs::create_dir(sys.join(UVERBS_CLASS).join("uverbs3")).unwrap();
        let info = crate::SoftDevice::auto().unwrap();
        let mut tree = Tree::present(&sys).unwrap();
        let paths = tree.add(&info).unwrap();
        assert_eq!(paths.dev_name, "uverbs4");
        let found = presented_at(&sys, info.name(), info.node_guid()).unwrap();
        assert_eq!((found.ibdev_path, found.dev_path), (paths.ibdev_path, paths.dev_path.clone()));
        assert!(presented_at(&sys, info.name(), Guid(1)).is_none(), "another address");
        assert_eq!(presented_dev_name(&sys, info.name()).as_deref(), Some("uverbs4"));
        assert_eq!(presented_dev_name(&sys, "uverbs3"), None);
        assert_eq!(fs::read_to_string(sys.join(UVERBS_CLASS).join("abi_version")).unwrap(), "6\n");
        assert_eq!(fs::read_to_string(paths.dev_path.join("dev")).unwrap(), "1:3\n");
        assert_eq!(paths.dev_path.metadata().unwrap().mode() & 0o500, 0o500);
        fs::remove_dir_all(&sys).unwrap();
    }

    #[test]
    fn the_folder_of_a_process_that_has_ended_is_removed_and_no_other() {
        let place = std::env::temp_dir().join(format!("sysfs-{}", std::process::id()));
        fs::create_dir(&place).unwrap();
        let [live, dead, new] = ["live", "dead", "new"].map(|name| place.join(format!("{PREFIX}{name}")));
        for root in [&live, &dead, &new] {
            fs::create_dir_all(root.join("class")).unwrap();
        }
        let lock = File::create(live.join(LOCK)).unwrap();
        lock.lock().unwrap();
        File::create(dead.join(LOCK)).unwrap();
        let past = SystemTime::now() - 2 * UNLOCKED;
        File::open(&dead).unwrap().set_times(FileTimes::new().set_modified(past)).unwrap();
        fs::create_dir(place.join("of another program")).unwrap();
        remove_ended(&place);
        assert!(live.is_dir() && new.is_dir() && !dead.exists() && place.join("of another program").is_dir());
        fs::remove_dir_all(&place).unwrap();
    }
}
