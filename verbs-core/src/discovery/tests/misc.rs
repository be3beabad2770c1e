//! The connection manager's file, which belongs to no device.

use super::*;

fn wire(attrs: &[Vec<u8>]) -> Canned {
    Canned::new(&[&[message(GET_CHARDEV, 0, &attrs.concat())]])
}

/// Returns the connection manager's sysfs files.
fn files() -> Files {
    let files = Files::none();
    files.write("sys/class/misc/rdma_cm/dev", "10:125\n");
    files.write("sys/class/misc/rdma_cm/abi_version", "4\n");
    files
}

fn of_sysfs() -> Misc {
    Misc { dev: DevNum { major: 10, minor: 125 }, name: "rdma_cm".into(), abi_version: 4 }
}

#[test]
fn netlink_names_the_connection_managers_file() {
    let found = misc_at(&Files::none().roots, Some(&mut wire(&chardev_attrs(b"rdma_cm", 77))), "rdma_cm");
    let dev = DevNum { major: 231, minor: 77 };
    assert_eq!(found, Ok(Misc { dev, name: "rdma_cm".into(), abi_version: 2 }));
}

#[test]
fn sysfs_names_it_where_netlink_refuses_or_says_too_little() {
    let files = files();
    let mut refusing = Canned::new(&[&[refusal(Errno::INVAL)]]);
    assert_eq!(misc_at(&files.roots, Some(&mut refusing), "rdma_cm"), Ok(of_sysfs()));
    assert_eq!(misc_at(&files.roots, None, "rdma_cm"), Ok(of_sysfs()));
    for missing in 1..4 {
        let mut attrs = chardev_attrs(b"rdma_cm", 77);
        attrs.remove(missing);
        assert_eq!(misc_at(&files.roots, Some(&mut wire(&attrs)), "rdma_cm"), Ok(of_sysfs()), "{missing}");
    }
    // The name is a path.
    let attrs = chardev_attrs(b"../mem", 77);
    assert_eq!(misc_at(&files.roots, Some(&mut wire(&attrs)), "rdma_cm"), Ok(of_sysfs()));
}

#[test]
fn a_kernel_without_a_connection_manager_has_no_such_file() {
    let files = files();
    assert_eq!(misc_at(&files.roots, None, "rdma_xy"), Err(Errno::NOENT));
    assert_eq!(misc_at(&files.roots, None, "../misc/rdma_cm"), Err(Errno::NOENT));
    files.write("sys/class/misc/rdma_cm/dev", "10:125:3\n");
    assert_eq!(misc_at(&files.roots, None, "rdma_cm"), Err(Errno::NOENT));
}

#[test]
fn a_file_of_sysfs_that_cannot_be_opened_is_not_reported_as_missing() {
    let files = Files::none();
    files.write("sys/class/misc/plain", "");
    // The path leads through a regular file. This errno depends on neither permissions nor limits.
    assert_eq!(misc_at(&files.roots, None, "plain"), Err(Errno::NOTDIR));
}
