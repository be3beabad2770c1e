//! Replacements for the C library's cancellation points that are not cancellation points
//! themselves.
//!
//! A C program may cancel a thread while a call in this library makes a system call. The call then
//! ends in the middle, without running destructors, and its locks stay locked. In rdma-core, few
//! calls are cancellation points: the data path makes no system calls, and commands use `ioctl(2)`,
//! which is not a cancellation point. In this library, any call may write to an eventfd, read a
//! clock's file or send a packet.
//!
//! The linker (`--wrap`) therefore redirects all calls of these C functions in the image to this
//! file, including calls from the crates below and from Rust's standard library.
//! `xtask/src/c_abi/points.toml` lists the names. Programs keep their own `write`, because the
//! image does not export one. A thread can be cancelled only in the waits, which call the C
//! library's functions under other names (`c-abi/src/handle/wait.rs`).
//!
//! # Safety
//! Each function behaves like the C library function of the same name, so the caller's guarantees
//! about the arguments hold here as well.
//!
//! # References
//! `pthreads(7)` (cancellation points), `syscall(2)`, `ld(1)` (`--wrap`)
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};
use core::ptr::{null, null_mut};

use libc::{
    addrinfo, epoll_event, ifaddrs, iovec, mode_t, msghdr, nfds_t, off_t, off64_t, pollfd, pthread_cond_t,
    pthread_mutex_t, pthread_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t, syscall, timespec,
};

/// Defines functions that make a system call directly. `syscall(2)` is not a cancellation point.
macro_rules! raw {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty = ($($part:expr),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            // SAFETY: guaranteed by the caller; the kernel uses these arguments only during this
            // call.
            unsafe { syscall($($part),*) as $result }
        }
    )*};
}

/// Defines functions that call the C library with cancellation disabled.
macro_rules! guarded {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> c_int = $real:ident;)*) => {
        unsafe extern "C" {
            $(fn $real($($arg: $type),*) -> c_int;)*
        }

        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
                let _guard = Disabled::new();
                // SAFETY: guaranteed by the caller.
                unsafe { $real($($arg),*) }
            }
        )*
    };
}

raw! {
    fn __wrap_accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int =
        (libc::SYS_accept4, fd, address, length, flags);
    fn __wrap_close(fd: c_int) -> c_int = (libc::SYS_close, fd);
    fn __wrap_connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int =
        (libc::SYS_connect, fd, address, length);
    fn __wrap_epoll_wait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int) -> c_int =
        (libc::SYS_epoll_pwait, epoll, events, count, timeout, null::<sigset_t>(), SIGSET);
    fn __wrap_fallocate(fd: c_int, mode: c_int, offset: off_t, length: off_t) -> c_int =
        (libc::SYS_fallocate, fd, mode, offset, length);
    fn __wrap_getrandom(buf: *mut c_void, length: size_t, flags: c_uint) -> ssize_t =
        (libc::SYS_getrandom, buf, length, flags);
    // In C, the mode is optional, and the kernel ignores it unless the flags require it.
    fn __wrap_open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int =
        (libc::SYS_openat, libc::AT_FDCWD, path, flags, mode);
    fn __wrap_open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int =
        (libc::SYS_openat, libc::AT_FDCWD, path, flags, mode);
    fn __wrap_openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int =
        (libc::SYS_openat, dir, path, flags, mode);
    fn __wrap_openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int =
        (libc::SYS_openat, dir, path, flags, mode);
    fn __wrap_pause() -> c_int =
        (libc::SYS_ppoll, null_mut::<pollfd>(), NONE, null::<timespec>(), null::<sigset_t>(), SIGSET);
    fn __wrap_pread64(fd: c_int, buf: *mut c_void, length: size_t, offset: off64_t) -> ssize_t =
        (libc::SYS_pread64, fd, buf, length, offset);
    fn __wrap_pwrite64(fd: c_int, buf: *const c_void, length: size_t, offset: off64_t) -> ssize_t =
        (libc::SYS_pwrite64, fd, buf, length, offset);
    fn __wrap_read(fd: c_int, buf: *mut c_void, length: size_t) -> ssize_t =
        (libc::SYS_read, fd, buf, length);
    fn __wrap_recv(fd: c_int, buf: *mut c_void, length: size_t, flags: c_int) -> ssize_t =
        (libc::SYS_recvfrom, fd, buf, length, flags, null_mut::<sockaddr>(), null_mut::<socklen_t>());
    fn __wrap_recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t =
        (libc::SYS_recvmsg, fd, message, flags);
    fn __wrap_send(fd: c_int, buf: *const c_void, length: size_t, flags: c_int) -> ssize_t =
        (libc::SYS_sendto, fd, buf, length, flags, null::<sockaddr>(), NONE);
    fn __wrap_sendto(
        fd: c_int, buf: *const c_void, length: size_t, flags: c_int, address: *const sockaddr, size: socklen_t
    ) -> ssize_t = (libc::SYS_sendto, fd, buf, length, flags, address, size);
    fn __wrap_write(fd: c_int, buf: *const c_void, length: size_t) -> ssize_t =
        (libc::SYS_write, fd, buf, length);
    fn __wrap_writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t =
        (libc::SYS_writev, fd, parts, count);
}

guarded! {
    fn __wrap_getaddrinfo(
        node: *const c_char, service: *const c_char, hints: *const addrinfo, found: *mut *mut addrinfo
    ) -> c_int = __real_getaddrinfo;
    fn __wrap_getifaddrs(found: *mut *mut ifaddrs) -> c_int = __real_getifaddrs;
    fn __wrap_pthread_cond_wait(cond: *mut pthread_cond_t, mutex: *mut pthread_mutex_t) -> c_int =
        __real_pthread_cond_wait;
    fn __wrap_pthread_join(thread: pthread_t, value: *mut *mut c_void) -> c_int = __real_pthread_join;
}

/// `ppoll(2)`. The kernel writes the remaining time into the argument; the C library leaves the
/// argument unchanged.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise: null, or a valid time.
    let mut timeout = unsafe { timeout.as_ref() }.copied();
    let timeout = timeout.as_mut().map_or(null_mut(), |timeout| timeout as *mut timespec);
    // SAFETY: guaranteed by the caller; the kernel uses these arguments only during this call.
    unsafe { syscall(libc::SYS_ppoll, fds, count, timeout, mask, SIGSET) as c_int }
}

/// `poll(2)`, implemented with `ppoll(2)`, because aarch64 has no `poll` system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_poll(fds: *mut pollfd, count: nfds_t, milliseconds: c_int) -> c_int {
    let timeout = u32::try_from(milliseconds).ok().map(|milliseconds| timespec {
        tv_sec: (milliseconds / 1000).into(),
        tv_nsec: (milliseconds % 1000 * 1_000_000).into(),
    });
    let timeout = timeout.as_ref().map_or(null(), |timeout| timeout as *const timespec);
    // SAFETY: guaranteed by the caller; the time outlives the call.
    unsafe { __wrap_ppoll(fds, count, timeout, null()) }
}

/// Zero: the length of an absent address, or the number of descriptors in an empty set.
const NONE: c_long = 0;
/// The size of the kernel's signal sets, in bytes.
const SIGSET: size_t = 8;

/// Keeps the calling thread from being cancelled until dropped.
struct Disabled {
    /// The previous cancellation state.
    before: c_int,
}

impl Disabled {
    fn new() -> Self {
        let mut before = 0;
        // SAFETY: the state is one of the two valid values; the pointer refers to a variable. With
        // these, the call cannot fail.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Self { before }
    }
}

impl Drop for Disabled {
    fn drop(&mut self) {
        // SAFETY: this was the thread's previous state; the other pointer may be null. Enabling
        // cancellation is not a cancellation point.
        unsafe { pthread_setcancelstate(self.before, null_mut()) };
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// The C library's value that disables cancellation; a cancellation request stays pending until
/// cancellation is enabled.
const PTHREAD_CANCEL_DISABLE: c_int = 1;
