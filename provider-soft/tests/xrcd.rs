//! The file of an XRC domain, after the program has closed and deleted it.
#![allow(missing_docs)]

mod common;

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use common::open;
use verbs::{Errno, XrcdInit};

/// Returns whether a descriptor of this process names the inode.
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

    // File systems such as ext4 give a free inode to the next file.
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
