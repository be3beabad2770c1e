//! Tests of the supervisor, with calls from this process and with a command.
//!
//! # Safety
//! The only ioctl is called on a file descriptor that does not exist, or on `/dev/null`, which
//! supports no ioctls. The kernel therefore never follows the address.
#![allow(unsafe_code)]

use std::fs;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::time::Duration;

use uverbs_abi::rdma_user_ioctl_cmds::RDMA_VERBS_IOCTL;

use super::*;
use crate::process;

/// Calls a method of the device object on `fd` and returns the errno.
fn ioctl(fd: i32, request: u32, method_id: u16) -> i32 {
    let header = IbUverbsIoctlHdr { method_id, ..IbUverbsIoctlHdr::new_zeroed() };
    // SAFETY: no file handles the ioctl; see the head of the file.
    let answer = unsafe { libc::ioctl(fd, request as libc::Ioctl, &raw const header) };
    assert_eq!(answer, -1);
    io::Error::last_os_error().raw_os_error().unwrap()
}

const NO_FD: i32 = -1;

/// Calls [`run`] with a deadline. `run` waits until no thread is under the filter, so a call left
/// undecided would hang the test.
fn supervised<T: Send + 'static>(
    mode: Mode,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<(T, Counts)> {
    const LIMIT: Duration = Duration::from_secs(60);
    process::within(LIMIT, "the end of all under the filter", move || run(mode, work))
}

#[test]
fn in_mode_ioctl_no_rdma_ioctl_reaches_the_kernel_and_others_do() {
    let (errnos, counts) = supervised(Mode::Ioctl, || {
        [ioctl(NO_FD, RDMA_VERBS_IOCTL, 0), ioctl(NO_FD, RDMA_VERBS_IOCTL, 3), ioctl(NO_FD, 1, 0)]
    })
    .unwrap();
    assert_eq!(errnos, [libc::ENOTTY, libc::ENOTTY, libc::EBADF]);
    assert_eq!(counts, Counts { refused: 2, ..Counts::default() });
}

#[test]
fn without_a_supervisor_every_rdma_ioctl_of_a_thread_and_its_children_is_refused() {
    assert_eq!(seccomp::verbs_ioctl_on_no_file(), libc::EBADF);
    let inside = thread::spawn(|| {
        every_ioctl().unwrap();
        [seccomp::verbs_ioctl_on_no_file(), ioctl(NO_FD, 1, 0)]
    });
    assert_eq!(inside.join().unwrap(), [libc::ENOTTY, libc::EBADF]);
    assert_eq!(seccomp::verbs_ioctl_on_no_file(), libc::EBADF);
}

#[test]
fn in_mode_invoke_write_that_method_alone_is_refused() {
    let null = File::open("/dev/null").unwrap();
    let (errnos, counts) = supervised(Mode::InvokeWrite, move || {
        [0, 3, 0].map(|method| ioctl(null.as_raw_fd(), RDMA_VERBS_IOCTL, method))
    })
    .unwrap();
    assert_eq!(errnos, [libc::EPROTONOSUPPORT, libc::ENOTTY, libc::EPROTONOSUPPORT]);
    assert_eq!(counts, Counts { refused: 2, passed: 1, ..Counts::default() });
}

#[test]
fn in_mode_netlink_no_rdma_socket_is_had_and_others_are() {
    use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
    // Passes no flags, because musl retries a failed `socket` call without them.
    let open =
        |protocol| socket(AddressFamily::Netlink, SockType::Raw, SockFlag::empty(), protocol).map(drop).err();
    let rdma = move || open(SockProtocol::NetlinkRDMA);
    let ((refused, route), counts) =
        supervised(Mode::Netlink, move || (rdma(), open(SockProtocol::NetlinkRoute))).unwrap();
    assert_eq!((refused, route), (Some(nix::errno::Errno::EPROTONOSUPPORT), None));
    assert_eq!(counts, Counts { refused: 1, ..Counts::default() });
    // In the other modes the kernel decides.
    let (same, counts) = supervised(Mode::Ioctl, rdma).unwrap();
    assert_eq!((same, counts), (rdma(), Counts::default()));
}

#[test]
fn writes_to_an_uverbs_device_are_counted_by_command_and_doorbells_apart() {
    let dir = std::env::temp_dir().join(format!("refuse-{}", std::process::id())).join("infiniband");
    fs::create_dir_all(&dir).unwrap();
    let path = dir.join("uverbs7");
    let command = |number: u32| [number.to_ne_bytes(), [0; 4]].concat();
    let uverbs = path.clone();
    let other = dir.join("other");
    let ((), counts) = supervised(Mode::Ioctl, move || {
        let mut uverbs = File::create(uverbs).unwrap();
        // The flag for extended commands is not part of the number.
        for number in [0, 24, 24 | 1 << 31, 28, 28, 28] {
            uverbs.write_all(&command(number)).unwrap();
        }
        File::create(other).unwrap().write_all(&command(9)).unwrap();
    })
    .unwrap();
    assert_eq!(fs::read(&path).unwrap().len(), 6 * 8, "what is counted must pass");
    fs::remove_dir_all(dir.parent().unwrap()).unwrap();
    let written = BTreeMap::from([(0, 1), (24, 2)]);
    assert_eq!(counts, Counts { written, doorbells: 3, ..Counts::default() });
}

#[test]
fn a_command_and_what_it_starts_are_under_the_filter_and_its_status_comes_back() {
    // The supervisor must also decide on the shell's writes.
    let (output, counts) = supervised(Mode::Ioctl, || {
        Command::new("sh").args(["-c", "sh -c 'echo a; echo b'; exit 7"]).output()
    })
    .unwrap();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"a\nb\n");
    assert_eq!(counts, Counts::default());
}

#[test]
fn a_command_that_cannot_be_started_is_told() {
    let (result, _) = supervised(Mode::Ioctl, || Command::new("/nonexistent/command").status()).unwrap();
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn counts_are_read_back_as_they_were_written() {
    let full = Counts { refused: 3, passed: 4, written: BTreeMap::from([(0, 1), (24, 12)]), doorbells: 9 };
    for counts in [full, Counts::default()] {
        let stderr = format!("the command's own words\n{counts}\n");
        assert_eq!(Counts::parse(&stderr), Some(counts));
    }
    for wrong in [
        "",
        "refuse: ",
        "refuse: 1 calls refused",
        "refuse: 0 calls refused, 0 ioctls passed, 1 write commands, 0 doorbells | ",
    ] {
        assert_eq!(Counts::parse(wrong), None, "{wrong}");
    }
}
