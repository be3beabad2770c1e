//! Descriptors in replies: owned, or rejected because they cannot come from the kernel.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};

use super::*;
use crate::channel::{Channel, Expect, Ioctl, Reply, Scripted};
use crate::errno::Errno;
use crate::error::Cause;
use crate::ring::Region;

/// Returns a file like the kernel's event files: on an anonymous inode, with close-on-exec.
pub(crate) fn event_file(flags: i32) -> OwnedFd {
    // SAFETY: opens a descriptor, which has no other owner.
    unsafe {
        let fd = libc::eventfd(0, flags);
        assert!(fd >= 0);
        OwnedFd::from_raw_fd(fd)
    }
}

fn over(channel: impl Channel + 'static) -> Uverbs {
    // SAFETY: the channels below name descriptors given away by the test, or none that may be
    // owned.
    unsafe { Uverbs::new(Box::new(channel), 18, "rxe0") }
}

/// Opens a completion channel with a reply that names the descriptor `fd`.
fn reply(fd: RawFd) -> Result<OwnedFd> {
    create_comp_channel(&over(Scripted::new([Expect::anything(Reply::outputs([&fd.to_ne_bytes()]))])))
}

fn defect_of(result: Result<OwnedFd>) -> String {
    let error = result.unwrap_err();
    assert_eq!((error.errno, &*error.device), (Errno::PROTO, "rxe0"));
    let Cause::BadReply { what } = error.cause else { panic!("{error}") };
    what.to_owned()
}

/// A kernel that accepts every command and fills in no output, by ioctl or by `write()`.
#[derive(Debug)]
struct Silent {
    has_ioctl: bool,
    own: Option<std::sync::Arc<OwnedFd>>,
}

impl Channel for Silent {
    fn ioctl(&self, _: &mut Ioctl<'_, '_>) -> Result<(), Errno> {
        if self.has_ioctl { Ok(()) } else { Err(Errno::NOTTY) }
    }

    fn write(&self, _: &mut WriteCmd<'_>) -> Result<(), Errno> {
        Ok(())
    }

    unsafe fn map(&self, _: u64, _: usize) -> Result<Region, Errno> {
        Err(Errno::NODEV)
    }

    fn cmd_fd(&self) -> Option<std::sync::Arc<OwnedFd>> {
        self.own.clone()
    }
}

#[test]
fn a_reply_that_was_not_filled_in_names_no_descriptor() {
    for has_ioctl in [true, false] {
        let silent = || over(Silent { has_ioctl, own: None });
        assert_eq!(defect_of(create_comp_channel(&silent())), "a file descriptor that is negative");
        if has_ioctl {
            assert_eq!(defect_of(alloc_async_fd(&silent())), "a file descriptor that is negative");
        } else {
            let info = get_context(&silent(), Uhw::none()).map(|info| info.async_fd.unwrap());
            assert_eq!(defect_of(info), "a file descriptor that is negative");
        }
    }
}

#[test]
fn a_descriptor_on_an_anonymous_inode_with_close_on_exec_is_owned() {
    let fd = event_file(libc::EFD_CLOEXEC).into_raw_fd();
    assert_eq!(reply(fd).unwrap().as_raw_fd(), fd);
}

#[test]
fn a_number_that_is_no_descriptor_is_refused() {
    for (fd, what) in [
        (-1, "negative"),
        (-2, "negative"),
        (i32::MIN, "negative"),
        (0, "a standard stream"),
        (1, "a standard stream"),
        (2, "a standard stream"),
        (i32::MAX, "not open"),
    ] {
        let defect = defect_of(reply(fd));
        assert!(defect.ends_with(what), "{fd}: {defect}");
    }
}

#[test]
fn a_descriptor_that_the_kernel_does_not_make_so_is_refused_and_stays_open() {
    let (reader, writer) = std::io::pipe().unwrap();
    let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
    let files: [OwnedFd; 5] = [
        File::open("/dev/null").unwrap().into(),
        File::open("/proc/self/stat").unwrap().into(),
        reader.into(),
        writer.into(),
        socket.into(),
    ];
    for file in &files {
        assert_eq!(
            defect_of(reply(file.as_raw_fd())),
            "a file descriptor of a file, pipe, socket or device",
            "{file:?}"
        );
        assert!(file.try_clone().is_ok(), "{file:?} is open still");
    }
    let inherited = event_file(0);
    assert_eq!(defect_of(reply(inherited.as_raw_fd())), "a file descriptor without close-on-exec");
}

#[test]
fn a_descriptor_that_the_context_has_already_is_refused() {
    let scripted = Scripted::default();
    let uverbs = over(scripted.clone());
    let events = event_file(libc::EFD_CLOEXEC);
    uverbs.keeps(events.as_fd());
    scripted.expect([Expect::anything(Reply::outputs([&events.as_raw_fd().to_ne_bytes()]))]);
    assert_eq!(defect_of(create_comp_channel(&uverbs)), "a file descriptor that the context has already");

    // The device file itself, as if it were on an anonymous inode.
    let own = std::sync::Arc::new(event_file(libc::EFD_CLOEXEC));
    let uverbs = over(Silent { has_ioctl: true, own: Some(own.clone()) });
    assert_eq!(
        defect(&uverbs, own.as_raw_fd(), &[0]),
        Some("a file descriptor that the context has already")
    );
}
