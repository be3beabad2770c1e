//! GIDs and partition keys from sysfs, in the test's own directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::gid::{sysfs_gid_entry, sysfs_pkey};
use crate::errno::Errno;
use crate::types::{Gid, GidEntry, GidType, LinkLayer};

const GID: &str = "fe80:0000:0000:0000:5054:00ff:fe12:3456";
const BYTES: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0x00, 0xff, 0xfe, 0x12, 0x34, 0x56];
const ZERO: &str = "0000:0000:0000:0000:0000:0000:0000:0000";

/// A device's sysfs directory, removed on drop.
struct Device(PathBuf);

impl Device {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("verbs-sysfs-{}-{count}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Adds a file to port 2.
    fn with(self, file: &str, content: &str) -> Self {
        let path = self.0.join("ports/2").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{content}\n")).unwrap();
        self
    }

    fn entry(&self, gid_index: u32, link_layer: LinkLayer) -> Result<Option<GidEntry>, Errno> {
        sysfs_gid_entry(&self.0, 2, gid_index, link_layer)
    }

    fn gid_type(&self, link_layer: LinkLayer) -> GidType {
        self.entry(5, link_layer).unwrap().unwrap().gid_type
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn an_entry_is_read_from_its_three_files() {
    let device = Device::new()
        .with("gids/4", ZERO)
        .with("gids/5", GID)
        .with("gid_attrs/types/5", "RoCE v2")
        .with("gid_attrs/ndevs/5", "lo");
    let lo = nix::net::if_::if_nametoindex("lo").unwrap();
    assert_ne!(lo, 0);
    let expected =
        GidEntry { gid: Gid(BYTES), gid_index: 5, port_num: 2, gid_type: GidType::ROCE_V2, ndev_ifindex: lo };
    assert_eq!(device.entry(5, LinkLayer::ETHERNET), Ok(Some(expected)));
}

#[test]
fn the_type_depends_on_the_text_and_on_the_link_layer() {
    let typed = |text| Device::new().with("gids/5", GID).with("gid_attrs/types/5", text);
    for (text, ethernet, infiniband) in [
        ("RoCE v2", GidType::ROCE_V2, GidType::ROCE_V2),
        ("IB/RoCE v1", GidType::ROCE_V1, GidType::IB),
        ("RoCE v3", GidType::ROCE_V1, GidType::IB),
    ] {
        assert_eq!(typed(text).gid_type(LinkLayer::ETHERNET), ethernet, "{text}");
        assert_eq!(typed(text).gid_type(LinkLayer::INFINIBAND), infiniband, "{text}");
    }
    // On an InfiniBand port the file cannot be read, and an old kernel lacks it.
    let untyped = Device::new().with("gids/5", GID);
    assert_eq!(untyped.gid_type(LinkLayer::ETHERNET), GidType::ROCE_V1);
    assert_eq!(untyped.gid_type(LinkLayer::INFINIBAND), GidType::IB);
}

#[test]
fn an_interface_that_is_not_there_has_no_index() {
    let device = Device::new().with("gids/5", GID);
    assert_eq!(device.entry(5, LinkLayer::ETHERNET).unwrap().unwrap().ndev_ifindex, 0);
    let device = device.with("gid_attrs/ndevs/5", "no-such-netdev");
    assert_eq!(device.entry(5, LinkLayer::ETHERNET).unwrap().unwrap().ndev_ifindex, 0);
}

#[test]
fn an_entry_is_empty_outside_the_table_or_nonsense() {
    let device = Device::new().with("gids/0", ZERO).with("gids/1", "fe80::1");
    assert_eq!(device.entry(0, LinkLayer::ETHERNET), Ok(None));
    assert_eq!(device.entry(1, LinkLayer::ETHERNET), Err(Errno::BADMSG));
    assert_eq!(device.entry(2, LinkLayer::ETHERNET), Err(Errno::NOENT));
    assert_eq!(sysfs_gid_entry(&device.0, 1, 0, LinkLayer::ETHERNET), Err(Errno::NOENT), "another port");
    assert_eq!(sysfs_gid_entry(Path::new("/nonexistent"), 2, 0, LinkLayer::ETHERNET), Err(Errno::NOENT));
}

#[test]
fn a_partition_key_is_hexadecimal() {
    let device = Device::new().with("pkeys/0", "0xffff").with("pkeys/1", "0x8001");
    let device = device.with("pkeys/2", "8001").with("pkeys/3", "0x10000").with("pkeys/4", "0x");
    assert_eq!((sysfs_pkey(&device.0, 2, 0), sysfs_pkey(&device.0, 2, 1)), (Ok(0xffff), Ok(0x8001)));
    for index in 2..5 {
        assert_eq!(sysfs_pkey(&device.0, 2, index), Err(Errno::BADMSG), "{index}");
    }
    assert_eq!(sysfs_pkey(&device.0, 2, 5), Err(Errno::NOENT));
}
