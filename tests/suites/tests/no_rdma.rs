//! A machine without RDMA: an empty device list is not an error; the reason is reported.
//!
//! The guest runs the same checks on the tools.

use std::path::{Path, PathBuf};

use verbs::{Cause, DeviceList, Errno, Source};
use verbs_core::discovery::{self, Roots};

fn assert_none(list: &DeviceList) {
    assert!(list.is_empty() && list.skipped().is_empty(), "{list:?}");
    assert_eq!(list.source(), Source::None);
    assert!(list.source().to_string().contains("no RDMA"), "{}", list.source());
    for error in [list.first().unwrap_err(), list.find("mlx5_0").unwrap_err()] {
        assert_eq!(error.errno, Errno::NODEV);
        assert!(matches!(error.cause, Cause::NoDevice { .. }), "{error:?}");
        assert!(error.to_string().contains("there is no RDMA device"), "{error}");
    }
}

#[test]
#[allow(unsafe_code)]
fn without_netlink_and_sysfs_the_list_is_empty() {
    let nowhere = PathBuf::from("/nonexistent/root");
    let roots = Roots { sysfs: nowhere.clone(), dev: nowhere };
    // SAFETY: there is no device at these roots.
    let found = unsafe { discovery::discover_at(&roots, Err(Errno::PROTONOSUPPORT)) }.unwrap();
    assert_none(&DeviceList::from_found(found, &[]));
}

#[test]
fn a_machine_without_rdma_is_told_from_one_with() {
    let list = verbs::devices().unwrap();
    if Path::new("/sys/class/infiniband_verbs").exists() {
        assert_ne!(list.source(), Source::None);
    } else {
        assert_none(&list);
    }
}
