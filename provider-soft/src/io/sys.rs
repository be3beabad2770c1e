//! System calls on a datagram socket and on a process, one function each.
//!
//! # Safety
//! The kernel reads and writes only through the addresses passed to a call, for the matching
//! lengths, and only until the call returns. Every address here comes from a Rust reference that is
//! valid until the call returns, with the length of its referent. Memory written by the kernel
//! comes from a `&mut` and consists of bytes, where every value is valid. Header structs are
//! created and dropped within each function.
//!
//! Data path calls are made by number. In a program with threads, the C library's functions of
//! these names are cancellation points, which makes checking an empty socket 10 % more expensive.
//! The rustix crate supports neither `recvmmsg(2)` nor the ancillary data sent and received here.
#![allow(unsafe_code)]

use std::mem::{offset_of, size_of_val, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_void, iovec, mmsghdr, msghdr, socklen_t};
use verbs_core::Errno;

use super::address::Name;
use super::control::Control;

/// The maximum number of messages in one call.
pub(super) const BATCH: usize = 32;

/// A datagram to send.
pub(super) struct Message<'a> {
    pub(super) to: &'a Name,
    pub(super) control: &'a Control,
    pub(super) payload: &'a [u8],
}

/// Space for a received datagram, its source and its ancillary data.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) from: Name,
    pub(super) control: Control,
    pub(super) payload: Box<[u8]>,
    pub(super) len: usize,
    /// Whether the datagram was longer than `payload` and was truncated.
    pub(super) cut_off: bool,
}

impl Slot {
    pub(super) fn new(size: usize) -> Self {
        Self {
            from: Name::EMPTY,
            control: Control::EMPTY,
            payload: vec![0; size].into_boxed_slice(),
            len: 0,
            cut_off: false,
        }
    }
}

/// `geteuid(2)`: returns the effective user ID of this process.
pub(crate) fn effective_user() -> libc::uid_t {
    // SAFETY: the call takes no argument and always succeeds.
    unsafe { libc::geteuid() }
}

/// `pidfd_open(2)`: returns a descriptor of a process. It is readable once the process has ended,
/// and is closed by `exec`.
pub(crate) fn process(pid: libc::pid_t) -> Result<OwnedFd, Errno> {
    // SAFETY: no addresses.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(Errno::last)?;
    // SAFETY: a returned descriptor has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `socket(2)`: returns a datagram socket, non-blocking and closed by `exec`.
pub(super) fn datagram_socket(family: c_int) -> Result<OwnedFd, Errno> {
    // SAFETY: no addresses; a returned descriptor has no other owner.
    unsafe {
        let fd = libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0);
        if fd < 0 { Err(Errno::last()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// `bind(2)` to a name.
pub(super) fn bind(fd: BorrowedFd<'_>, name: &Name) -> Result<(), Errno> {
    let bytes = name.as_bytes();
    // SAFETY: the kernel reads `bytes.len()` bytes of `bytes`.
    check(unsafe { libc::bind(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len() as socklen_t) })
}

/// `connect(2)` to a name.
pub(super) fn connect(fd: BorrowedFd<'_>, name: &Name) -> Result<(), Errno> {
    let bytes = name.as_bytes();
    // SAFETY: the kernel reads `bytes.len()` bytes of `bytes`.
    check(unsafe { libc::connect(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len() as socklen_t) })
}

/// `accept4(2)`: returns a connection, non-blocking and closed by `exec`.
pub(crate) fn accept(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let (name, len) = (std::ptr::null_mut(), std::ptr::null_mut());
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the kernel writes no name; a returned descriptor has no other owner.
    unsafe {
        let fd = libc::accept4(fd.as_raw_fd(), name, len, flags);
        if fd < 0 { Err(Errno::last()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// `getsockname(2)`: returns the socket's local name.
pub(super) fn local_name(fd: BorrowedFd<'_>) -> Result<Name, Errno> {
    let mut name = Name::EMPTY;
    let mut len = Name::MAX as socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `name`, which has this many, and then `len`.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), name.as_mut_bytes().as_mut_ptr().cast(), &mut len) })?;
    name.set_len(len as usize);
    Ok(name)
}

/// `setsockopt(2)` for a numeric option.
pub(super) fn set_option(fd: BorrowedFd<'_>, level: c_int, option: c_int, value: c_int) -> Result<(), Errno> {
    set_bytes(fd, level, option, &value.to_ne_bytes())
}

/// `setsockopt(2)` for an option whose value is a struct, passed as bytes.
pub(super) fn set_bytes(fd: BorrowedFd<'_>, level: c_int, option: c_int, bytes: &[u8]) -> Result<(), Errno> {
    let address = bytes.as_ptr().cast::<c_void>();
    // SAFETY: the kernel reads `bytes.len()` bytes of `bytes`.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, address, bytes.len() as socklen_t) })
}

/// `getsockopt(2)` for a numeric option.
pub(super) fn option(fd: BorrowedFd<'_>, level: c_int, option: c_int) -> Result<c_int, Errno> {
    let mut value: c_int = 0;
    let mut len = size_of_val(&value) as socklen_t;
    let address = (&raw mut value).cast::<c_void>();
    // SAFETY: the kernel writes at most `len` bytes, the size of `value`, and then `len`.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, address, &mut len) })?;
    Ok(value)
}

/// `ioctl(2)` with `SIOCOUTQ`: returns the number of bytes in the socket's send queue that the
/// interface has not yet taken, as counted by the kernel. Returns 0 if the kernel does not report
/// it.
pub(super) fn unsent(fd: BorrowedFd<'_>) -> u64 {
    let mut bytes: c_int = 0;
    // The C library defines this number only under the terminal name `TIOCOUTQ`.
    // SAFETY: the kernel writes one `c_int` to `bytes`.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    check(result).ok().and_then(|_| u64::try_from(bytes).ok()).unwrap_or(0)
}

/// `ioctl(2)` with `SIOCGIFMTU`: returns the MTU of an interface in the socket's network namespace.
/// A label after the interface name is ignored.
pub(super) fn mtu(fd: BorrowedFd<'_>, name: &str) -> Result<c_int, Errno> {
    // SAFETY: zeros are a valid value of every field.
    let mut request: libc::ifreq = unsafe { zeroed() };
    // The last byte remains 0.
    let Some(place) = request.ifr_name.get_mut(..name.len()).filter(|_| name.len() < libc::IFNAMSIZ) else {
        return Err(Errno::NODEV);
    };
    for (place, byte) in place.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    // SAFETY: the kernel reads and writes one `ifreq`, the type of `request`.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFMTU as libc::Ioctl, &raw mut request) })?;
    // SAFETY: the kernel has written the MTU; before, the bytes were zeros.
    Ok(unsafe { request.ifr_ifru.ifru_mtu })
}

/// `sendto(2)`, or `sendmsg(2)` if there is ancillary data.
#[inline]
pub(super) fn send(fd: BorrowedFd<'_>, message: &Message<'_>) -> Result<(), Errno> {
    let sent = if message.control.as_bytes().is_empty() {
        let (name, payload) = (message.to.as_bytes(), message.payload);
        // A connected socket already has its destination.
        let address = if name.is_empty() { std::ptr::null() } else { name.as_ptr() };
        // SAFETY: the kernel reads `payload` and `name`, each for its own length, or no name.
        unsafe {
            libc::syscall(
                libc::SYS_sendto,
                fd.as_raw_fd(),
                payload.as_ptr(),
                payload.len(),
                0,
                address,
                name.len() as socklen_t,
            )
        }
    } else {
        let mut iov = source(message.payload);
        let header = outgoing(message, &mut iov);
        // SAFETY: `header` leads to `message`'s bytes and to `iov`. All of them outlive the call,
        // and the kernel only reads them.
        unsafe { libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), &raw const header, 0) }
    };
    if sent < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// `sendmmsg(2)` with the first [`BATCH`] messages. Returns the number sent, at least 1.
///
/// # Errors
/// The errno for the first message.
pub(super) fn send_many<'a>(
    fd: BorrowedFd<'_>,
    messages: impl Iterator<Item = Message<'a>>,
) -> Result<usize, Errno> {
    // SAFETY: zeros are valid for both: numbers, and pointers to nothing with lengths of 0.
    let (mut iovs, mut headers): ([iovec; BATCH], [mmsghdr; BATCH]) = unsafe { (zeroed(), zeroed()) };
    let mut count: libc::c_uint = 0;
    for ((message, iov), header) in messages.zip(&mut iovs).zip(&mut headers) {
        *iov = source(message.payload);
        header.msg_hdr = outgoing(&message, iov);
        count += 1;
    }
    // SAFETY: the first `count` headers lead to bytes borrowed for 'a, which outlives this call,
    // and to `iovs`; the kernel reads those and writes only `msg_len` of the headers, which are
    // ours.
    let sent = unsafe { libc::syscall(libc::SYS_sendmmsg, fd.as_raw_fd(), headers.as_mut_ptr(), count, 0) };
    if sent < 0 { Err(Errno::last()) } else { Ok(sent as usize) }
}

/// `recvmsg(2)` into one slot.
#[inline]
pub(super) fn receive(fd: BorrowedFd<'_>, slot: &mut Slot) -> Result<(), Errno> {
    let mut iov = sink(&mut slot.payload);
    let mut header = incoming(slot, &mut iov);
    // SAFETY: `header` leads to `slot`'s bytes and to `iov`, both borrowed mutably until here, so
    // no other code uses them during the call; the kernel stays within the lengths beside the
    // addresses.
    let len =
        unsafe { libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
    if len < 0 {
        return Err(Errno::last());
    }
    slot.arrived(len as usize, &header);
    Ok(())
}

/// `recvfrom(2)` into one slot, without ancillary data. Cheaper than [`receive`]. The slot must be
/// longer than any datagram, because the call does not report truncation.
#[inline]
pub(super) fn receive_plain(fd: BorrowedFd<'_>, slot: &mut Slot) -> Result<(), Errno> {
    let (from, payload) = (slot.from.as_mut_bytes(), &mut slot.payload);
    let mut from_len = from.len() as socklen_t;
    // SAFETY: the kernel writes to `payload` and `from`, each within its own length, and then
    // `from_len`. They are borrowed mutably, so no other code uses them during the call.
    let len = unsafe {
        libc::syscall(
            libc::SYS_recvfrom,
            fd.as_raw_fd(),
            payload.as_mut_ptr(),
            payload.len(),
            libc::MSG_DONTWAIT,
            from.as_mut_ptr(),
            &raw mut from_len,
        )
    };
    if len < 0 {
        return Err(Errno::last());
    }
    (slot.len, slot.cut_off) = ((len as usize).min(slot.payload.len()), false);
    slot.from.set_len(from_len as usize);
    slot.control.set_len(0);
    Ok(())
}

/// `recvmmsg(2)` into the first [`BATCH`] slots. Returns the number filled, at least 1.
pub(super) fn receive_many(fd: BorrowedFd<'_>, slots: &mut [Slot]) -> Result<usize, Errno> {
    // SAFETY: zeros are valid for both: numbers, and pointers to nothing with lengths of 0.
    let (mut iovs, mut headers): ([iovec; BATCH], [mmsghdr; BATCH]) = unsafe { (zeroed(), zeroed()) };
    let mut count: libc::c_uint = 0;
    for ((slot, iov), header) in slots.iter_mut().zip(&mut iovs).zip(&mut headers) {
        *iov = sink(&mut slot.payload);
        header.msg_hdr = incoming(slot, iov);
        count += 1;
    }
    // SAFETY: each of the first `count` headers leads to the bytes of a different slot and to
    // `iovs`; no other code uses them during the call; the kernel stays within the lengths beside
    // the addresses.
    let got = unsafe {
        libc::syscall(
            libc::SYS_recvmmsg,
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            count,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut::<libc::timespec>(),
        )
    };
    if got < 0 {
        return Err(Errno::last());
    }
    for (slot, header) in slots.iter_mut().zip(&headers).take(got as usize) {
        slot.arrived(header.msg_len as usize, &header.msg_hdr);
    }
    Ok(got as usize)
}

/// `recvfrom(2)` with an empty buffer, without waiting: discards a datagram.
pub(super) fn discard(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the kernel writes nothing, because there are 0 bytes for it.
    let got = unsafe {
        libc::syscall(
            libc::SYS_recvfrom,
            fd.as_raw_fd(),
            std::ptr::null_mut::<c_void>(),
            0_usize,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut::<libc::sockaddr>(),
            std::ptr::null_mut::<socklen_t>(),
        )
    };
    if got < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// The maximum number of descriptors in one message.
pub(super) const FILES: usize = 3;

/// Ancillary data with descriptors (`SCM_RIGHTS`): a header as in [`Control`], then descriptor
/// numbers.
#[repr(C, align(8))]
struct Rights {
    len: usize,
    level: c_int,
    kind: c_int,
    files: [c_int; FILES + 1],
}

impl Rights {
    const HEADER: usize = size_of::<usize>() + 2 * size_of::<c_int>();
}

/// `sendmsg(2)` with bytes and at most [`FILES`] descriptors on a Unix socket, without waiting.
pub(crate) fn send_files(fd: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let files = &files[..files.len().min(FILES)];
    let mut rights = Rights {
        len: Rights::HEADER + size_of_val(files),
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        files: [0; FILES + 1],
    };
    for (place, file) in rights.files.iter_mut().zip(files) {
        *place = file.as_raw_fd();
    }
    let mut iov = source(bytes);
    // SAFETY: as in `outgoing`.
    let mut header: msghdr = unsafe { zeroed() };
    header.msg_iov = &mut iov;
    header.msg_iovlen = 1;
    if !files.is_empty() {
        header.msg_control = (&raw mut rights).cast();
        header.msg_controllen = rights.len as _;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `header` leads to `bytes`, to `iov` and to `rights.len` bytes of `rights`. All of
    // them outlive the call, and the kernel only reads them.
    let sent = unsafe { libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), &raw const header, flags) };
    if sent < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// `recvmsg(2)` for bytes and at most [`FILES`] descriptors from a Unix socket, without waiting.
/// `flags` may be `MSG_PEEK`. Returns the number of bytes and the descriptors, or `None` at the end
/// of the connection or for an empty message.
pub(crate) fn receive_files(
    fd: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: c_int,
) -> Result<Option<(usize, Vec<OwnedFd>)>, Errno> {
    let mut rights = Rights { len: 0, level: 0, kind: 0, files: [-1; FILES + 1] };
    let mut iov = sink(bytes);
    // SAFETY: as in `outgoing`.
    let mut header: msghdr = unsafe { zeroed() };
    header.msg_iov = &mut iov;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut rights).cast();
    header.msg_controllen = size_of_val(&rights) as _;
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: `header` leads to `bytes`, `iov` and `rights`, which nothing else uses during the
    // call; the kernel stays within the lengths beside the addresses, and every value is valid.
    let got = unsafe { libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), &raw mut header, flags) };
    if got < 0 {
        return Err(Errno::last());
    }
    #[allow(clippy::unnecessary_cast)]
    let len = rights.len.min(header.msg_controllen as usize);
    let is_rights = rights.level == libc::SOL_SOCKET && rights.kind == libc::SCM_RIGHTS;
    let count = if is_rights { len.saturating_sub(Rights::HEADER) / size_of::<c_int>() } else { 0 };
    let files = rights.files.iter().take(count).filter(|file| **file >= 0);
    // SAFETY: the kernel has opened these descriptors for this call, so they have no other owner.
    let files = files.map(|file| unsafe { OwnedFd::from_raw_fd(*file) }).collect();
    // An empty message, which looks like the end, may have brought descriptors. They are closed.
    Ok((got > 0).then_some((got as usize, files)))
}

/// `setsockopt(2)` with a classic BPF program: `SO_ATTACH_REUSEPORT_CBPF` for a group of sockets,
/// `SO_ATTACH_FILTER` for one socket.
pub(super) fn set_filter(
    fd: BorrowedFd<'_>,
    option: c_int,
    program: &[libc::sock_filter],
) -> Result<(), Errno> {
    /// `sock_fprog` with explicit padding, because implicit padding would be uninitialised.
    #[repr(C)]
    struct Program {
        len: u16,
        padding: [u16; 3],
        filter: *const libc::sock_filter,
    }
    const _: () = assert!(size_of::<Program>() == size_of::<libc::sock_fprog>());
    const _: () = assert!(offset_of!(Program, filter) == offset_of!(libc::sock_fprog, filter));
    let program = Program { len: program.len() as u16, padding: [0; 3], filter: program.as_ptr() };
    let address = (&raw const program).cast::<c_void>();
    let len = size_of_val(&program) as socklen_t;
    // SAFETY: the kernel reads `len` bytes of `program`, which has the layout of `sock_fprog`, and,
    // through it, the `program.len` instructions of the filter, which are borrowed here.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, address, len) })
}

/// `socketpair(2)`: returns two connected Unix streams, closed by `exec`.
pub(super) fn stream_pair() -> Result<[OwnedFd; 2], Errno> {
    let mut fds: [c_int; 2] = [-1; 2];
    // SAFETY: the kernel writes two numbers to `fds`.
    check(unsafe {
        libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr())
    })?;
    // SAFETY: returned descriptors have no other owner.
    Ok(fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
}

impl Slot {
    fn arrived(&mut self, len: usize, header: &msghdr) {
        self.len = len.min(self.payload.len());
        self.cut_off = header.msg_flags & libc::MSG_TRUNC != 0;
        self.from.set_len(header.msg_namelen as usize);
        // The field's type is `usize` in one C library and `socklen_t` in another.
        #[allow(clippy::unnecessary_cast)]
        self.control.set_len(header.msg_controllen as usize);
    }
}

/// Describes memory for the kernel to read.
fn source(payload: &[u8]) -> iovec {
    iovec { iov_base: payload.as_ptr().cast_mut().cast(), iov_len: payload.len() }
}

/// Describes memory for the kernel to write.
fn sink(payload: &mut [u8]) -> iovec {
    iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() }
}

fn outgoing(message: &Message<'_>, iov: &mut iovec) -> msghdr {
    let (name, control) = (message.to.as_bytes(), message.control.as_bytes());
    // SAFETY: zeros are valid: numbers, and pointers to nothing with lengths of 0. (Not a literal,
    // because musl's struct has padding.)
    let mut header: msghdr = unsafe { zeroed() };
    if !name.is_empty() {
        header.msg_name = name.as_ptr().cast_mut().cast();
        header.msg_namelen = name.len() as socklen_t;
    }
    header.msg_iov = iov;
    header.msg_iovlen = 1;
    if !control.is_empty() {
        header.msg_control = control.as_ptr().cast_mut().cast();
        header.msg_controllen = control.len() as _;
    }
    header
}

fn incoming(slot: &mut Slot, iov: &mut iovec) -> msghdr {
    // SAFETY: as in `outgoing`.
    let mut header: msghdr = unsafe { zeroed() };
    header.msg_name = slot.from.as_mut_bytes().as_mut_ptr().cast();
    header.msg_namelen = Name::MAX as socklen_t;
    header.msg_iov = iov;
    header.msg_iovlen = 1;
    header.msg_control = slot.control.as_mut_bytes().as_mut_ptr().cast();
    header.msg_controllen = Control::MAX as _;
    header
}

fn check(result: c_int) -> Result<(), Errno> {
    if result < 0 { Err(Errno::last()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancillary_data_is_laid_out_as_the_c_library_does() {
        // SAFETY: these only compute a number, in spite of their signatures.
        let (space, len) = unsafe { (libc::CMSG_SPACE(2) as usize, libc::CMSG_LEN(2) as usize) };
        let mut control = Control::EMPTY;
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &[1, 2]);
        assert_eq!(control.as_bytes().len(), space);
        assert_eq!(control.as_bytes()[..size_of::<usize>()], len.to_ne_bytes());
        assert_eq!(control.as_bytes()[len - 2..len], [1, 2]);
    }
}
