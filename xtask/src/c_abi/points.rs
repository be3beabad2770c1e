//! The cancellation points of the C library: functions in which `pthread_cancel(3)` may end the
//! calling thread.
//!
//! The image's calls of [`RAW`] and [`GUARDED`] functions are linked to the replacements in
//! `c-abi/image/src/cancellation.rs`. It may call no other of [`POINTS`], except [`WAITS`].

/// Functions whose replacement makes the system call itself.
pub(super) const RAW: &[&str] = &[
    "accept4",
    "close",
    "connect",
    "epoll_wait",
    "getrandom",
    "open",
    "open64",
    "openat",
    "openat64",
    "pause",
    "poll",
    "ppoll",
    "pread64",
    "pwrite64",
    "read",
    "recv",
    "recvmsg",
    "send",
    "sendto",
    "write",
    "writev",
];

/// Functions whose replacement calls them with cancellation disabled.
pub(super) const GUARDED: &[&str] = &["getaddrinfo", "getifaddrs", "pthread_cond_wait", "pthread_join"];

/// The functions in which a thread that waits for an event may be cancelled: the C library's
/// alternative names for `poll` and `read`.
pub(super) const WAITS: &[&str] = &["__poll", "__read"];

/// All cancellation points, except those of `<stdio.h>` and of System V, which no Rust code calls.
/// `fcntl` is one only with `F_SETLKW`, which this library does not use.
///
/// # References
/// `pthreads(7)`
pub(super) const POINTS: &str = "\
    __accept __close __connect __nanosleep __open __open64 __poll __poll_chk __ppoll_chk __pread64 \
    __pread64_chk __pwrite64 __read __read_chk __recv __recv_chk __select __send __sigsuspend __wait \
    __waitpid __write accept accept4 aio_suspend clock_nanosleep close cnd_timedwait cnd_wait \
    connect copy_file_range creat creat64 epoll_pwait epoll_pwait2 epoll_wait eventfd_read \
    eventfd_write fallocate fallocate64 fdatasync fsync getaddrinfo gethostbyaddr_r gethostbyname \
    gethostbyname2_r gethostbyname_r getifaddrs getnameinfo getrandom if_nameindex lockf lockf64 \
    mq_receive mq_send mq_timedreceive mq_timedsend msgrcv msgsnd msync nanosleep open open64 openat \
    openat64 pause poll posix_fallocate posix_fallocate64 ppoll pread pread64 preadv preadv2 \
    preadv64 preadv64v2 pselect pthread_clockjoin_np pthread_cond_clockwait pthread_cond_timedwait \
    pthread_cond_wait pthread_join pthread_testcancel pthread_timedjoin_np pwrite pwrite64 pwritev \
    pwritev2 pwritev64 pwritev64v2 read readv recv recvfrom recvmmsg recvmsg select sem_clockwait \
    sem_timedwait sem_wait send sendmmsg sendmsg sendto sigpause sigsuspend sigtimedwait sigwait \
    sigwaitinfo sleep splice sync_file_range syslog system tcdrain tee thrd_join thrd_sleep usleep \
    vmsplice wait wait3 wait4 waitid waitpid write writev";
