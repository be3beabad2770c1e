//! Tests that files other than the device's are rejected, with a sysfs made by the test.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::discovery::{DeviceParts, NodeType, OwnDevice};
use crate::types::Guid;

const UVERBS: DevNum = DevNum { major: 231, minor: 192 };
const NULL: DevNum = DevNum { major: 1, minor: 3 };

/// A new directory, removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("verbs-open-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Adds a device's entry in `/sys/dev/char`, with its class and the name of its RDMA device.
    fn entry(&self, dev: DevNum, class: &str, ibdev: Option<&str>) {
        let entry = self.0.join(dev.to_string());
        fs::create_dir(&entry).unwrap();
        symlink(format!("../../../class/{class}"), entry.join("subsystem")).unwrap();
        if let Some(name) = ibdev {
            fs::write(entry.join("ibdev"), format!("{name}\n")).unwrap();
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Calls `vouch` on a test's directory as if its file system were sysfs.
fn vouched(directory: &Path, dev: DevNum, name: &str) -> Result<(), Obstacle> {
    let found = nix::sys::statfs::statfs(&std::env::temp_dir()).unwrap();
    vouch(directory, found.filesystem_type(), dev, name)
}

/// Returns a device with the path and number of another file.
#[allow(unsafe_code)]
fn forged(path: &str, dev: DevNum) -> DeviceInfo {
    let parts = DeviceParts {
        name: "rxe0".into(),
        dev_name: "uverbs0".into(),
        dev,
        node_type: NodeType::CA,
        node_guid: Guid(1),
        index: None,
        driver_id: None,
        abi_version: 1,
        phys_port_cnt: Some(1),
        ibdev_path: "/sys/class/infiniband/rxe0".into(),
        cdev_path: path.into(),
    };
    // SAFETY: opening this device is rejected.
    unsafe { DeviceInfo::from_parts(parts) }
}

#[test]
fn a_number_of_another_class_is_refused_before_anything_is_opened() {
    let error = open(&forged("/dev/null", NULL)).unwrap_err();
    assert_eq!(error.errno, Errno::NXIO);
    assert_eq!(
        error.to_string(),
        "open_device on rxe0: /sys/dev/char/1:3/subsystem: the device number is not that of an RDMA device: list \
         the devices again (ENXIO)"
    );
}

#[test]
fn a_device_that_a_provider_brings_has_no_file() {
    let device = DeviceInfo::brought("soft0", 14, Guid(1), OwnDevice::new(0_u8));
    let error = open(&device).unwrap_err();
    assert_eq!((error.errno, &*error.device), (Errno::NODEV, "soft0"));
    assert!(error.to_string().contains("a device that a provider brings"), "{error}");
}

#[test]
fn sysfs_vouches_for_a_uverbs_device_of_the_right_name_alone() {
    let sysfs = Directory::new();
    sysfs.entry(UVERBS, "infiniband_verbs", Some("rxe0"));
    assert_eq!(vouched(&sysfs.0, UVERBS, "rxe0"), Ok(()));
    // Prefixes and extensions of the name.
    for name in ["rxe", "rxe00", "rxe1", ""] {
        let obstacle = vouched(&sysfs.0, UVERBS, name).unwrap_err();
        assert_eq!(
            (obstacle.errno, obstacle.path),
            (Errno::NODEV, sysfs.0.join("231:192/ibdev")),
            "{name:?}"
        );
        assert!(obstacle.hint.contains("renamed"), "{}", obstacle.hint);
    }
}

#[test]
fn sysfs_vouches_for_no_other_class_and_no_number_that_it_does_not_have() {
    let sysfs = Directory::new();
    let issm = DevNum { major: 231, minor: 64 };
    sysfs.entry(issm, "infiniband_mad", Some("rxe0"));
    let obstacle = vouched(&sysfs.0, issm, "rxe0").unwrap_err();
    assert_eq!((obstacle.errno, obstacle.path), (Errno::NXIO, sysfs.0.join("231:64/subsystem")));
    let gone = vouched(&sysfs.0, UVERBS, "rxe0").unwrap_err();
    assert_eq!((gone.errno, gone.hint), (Errno::NODEV, "the device is gone"));
    // The device disappears during the check.
    sysfs.entry(UVERBS, "infiniband_verbs", None);
    let gone = vouched(&sysfs.0, UVERBS, "rxe0").unwrap_err();
    assert_eq!((gone.errno, gone.hint), (Errno::NOENT, "the device is gone"));
}

#[test]
fn a_directory_a_device_or_a_file_that_is_not_of_sysfs_vouches_for_nothing() {
    let forged = Directory::new();
    forged.entry(UVERBS, "infiniband_verbs", Some("rxe0"));
    let refused = |obstacle: Obstacle, path: PathBuf| {
        let hint = "not sysfs: mount sysfs at /sys";
        assert_eq!(obstacle, Obstacle { path, errno: Errno::NODEV, hint });
    };
    refused(vouch(&forged.0, SYSFS_MAGIC, UVERBS, "rxe0").unwrap_err(), forged.0.clone());

    // The device's directory, and then the file, belong to another file system with the right
    // contents.
    let elsewhere = DevNum { major: 231, minor: 193 };
    symlink("/proc/self", forged.0.join(elsewhere.to_string())).unwrap();
    let entry = forged.0.join(elsewhere.to_string());
    refused(vouched(&forged.0, elsewhere, "rxe0").unwrap_err(), entry);
    let other = DevNum { major: 231, minor: 194 };
    forged.entry(other, "infiniband_verbs", None);
    let ibdev = forged.0.join(other.to_string()).join("ibdev");
    symlink("/proc/sys/kernel/ostype", &ibdev).unwrap();
    refused(vouched(&forged.0, other, "Linux").unwrap_err(), ibdev);
}

#[test]
fn without_sysfs_the_hint_is_to_mount_it() {
    let sysfs = Directory::new();
    let obstacle = vouched(&sysfs.0.join("nowhere"), UVERBS, "rxe0").unwrap_err();
    assert!(obstacle.hint.contains("mount it at /sys"), "{}", obstacle.hint);
    assert_eq!(obstacle.path, sysfs.0.join("nowhere"));
}

#[test]
fn each_refusal_to_open_has_its_own_advice() {
    let contains = |errno, words: &[&str]| {
        let hint = hint(errno);
        assert!(words.iter().all(|word| hint.contains(word)), "{errno}: {hint}");
    };
    contains(Errno::ACCESS, &["root", "read and write access"]);
    contains(Errno::PERM, &["device cgroup", "network namespace"]);
    contains(Errno::NOENT, &["ib_uverbs", "container"]);
    contains(Errno::NXIO, &["stale node"]);
    contains(Errno::NODEV, &["gone"]);
    contains(Errno::IO, &["gone"]);
    contains(Errno::MFILE, &["ulimit -n"]);
    contains(Errno::from_raw(libc::EFBIG), &["cannot be opened"]);
}
