//! Tests of XRC domains: with a file that the program has closed and deleted, and with several
//! handles to one domain.
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::common::open;
use provider_soft::{Soft, SoftDevice};
use verbs::{Errno, XrcdInit};
use verbs_core::provider::{ContextOps as _, Destroy as _, NamedProvider as _, SrqParents};
use verbs_core::types::{CqInitAttr, SrqInitAttr, SrqType, TmCap};

/// Returns whether a descriptor of this process refers to `inode`, a device and inode number.
fn is_open(inode: (u64, u64)) -> bool {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap();
    descriptors
        .flatten()
        .filter_map(|entry| fs::metadata(entry.path()).ok())
        .any(|file| inode == (file.dev(), file.ino()))
}

#[test]
fn a_new_file_does_not_share_the_domain_of_a_deleted_one() {
    let context = open();
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = |number| directory.join(format!("xrcd-{}-{number}", std::process::id()));
    let file = File::create_new(path(0)).unwrap();
    let metadata = file.metadata().unwrap();
    let inode = (metadata.dev(), metadata.ino());
    let init = XrcdInit { file: Some(file.as_fd()), create: true, exclusive: true };
    let domain = context.open_xrcd(&init).unwrap();
    drop(file);
    fs::remove_file(path(0)).unwrap();
    assert!(is_open(inode), "the domain does not keep its file");

    // File systems such as ext4 reuse a free inode for the next file.
    for number in 1..=16 {
        let file = File::create_new(path(number)).unwrap();
        let init = XrcdInit { file: Some(file.as_fd()), create: false, exclusive: false };
        let found = context.open_xrcd(&init).map(drop);
        fs::remove_file(path(number)).unwrap();
        assert_eq!(found.unwrap_err().errno, Errno::AGAIN, "file {number} has a domain");
    }
    domain.close().unwrap();
    assert!(!is_open(inode), "the closed domain keeps its file");
}

/// Tests that a handle cannot be closed before its queues. The kernel also counts the queues of
/// each handle (`uverbs_free_xrcd`).
#[test]
fn a_queue_keeps_the_handle_that_it_was_made_with() {
    let context = Soft::open(&SoftDevice::auto().unwrap()).unwrap();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("xrcd-{}-handles", std::process::id()));
    let file = File::create_new(&path).unwrap();
    fs::remove_file(path).unwrap();
    let open = || context.open_xrcd(Some(file.as_fd()), libc::O_CREAT).unwrap();
    let (first, second) = (open(), open());
    let pd = context.alloc_pd().unwrap();
    let (cq, name) = context.create_cq(None, &CqInitAttr::new(1)).unwrap();
    let attr = SrqInitAttr {
        srq_type: SrqType::XRC,
        max_wr: 1,
        max_sge: 1,
        srq_limit: 0,
        tm: TmCap::default(),
        user_handle: 0,
    };
    let parents = SrqParents { pd: &pd, xrcd: Some(&first), cq: Some(&name) };
    let srq = context.create_srq(&parents, &attr).unwrap().srq;
    let (first, error) = first.destroy().unwrap_err();
    assert_eq!(error.errno, Errno::BUSY);
    second.destroy().map_err(|(_, error)| error).unwrap();
    let (first, error) = first.destroy().unwrap_err();
    assert_eq!(error.errno, Errno::BUSY, "the last handle");
    srq.destroy().map_err(|(_, error)| error).unwrap();
    first.destroy().map_err(|(_, error)| error).unwrap();
    cq.destroy().map_err(|(_, error)| error).unwrap();
}
