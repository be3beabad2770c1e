//! [`Errno`]: the kernel's error numbers.

use core::fmt;

/// A kernel error number, as listed in `errno(3)`.
///
/// A newtype rather than an enum, so that numbers without a name here are kept unchanged.
///
/// # References
/// `errno(3)`
#[doc(alias = "errno")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Errno(u16);

impl Errno {
    /// Returns the error with this positive number, or [`Errno::IO`] for a number that the kernel
    /// never returns.
    pub const fn from_raw(raw: i32) -> Self {
        if raw > 0 && raw < 4096 { Self(raw as u16) } else { Self::IO }
    }

    /// Returns the positive number, like `errno` in C.
    pub const fn raw(self) -> i32 {
        self.0 as i32
    }

    /// Returns the error of the calling thread's last failed system call.
    pub fn last() -> Self {
        Self::from_io(&std::io::Error::last_os_error())
    }

    /// Returns the errno inside a [`std::io::Error`], or [`Errno::IO`] if the error has none.
    pub fn from_io(error: &std::io::Error) -> Self {
        error.raw_os_error().map_or(Self::IO, Self::from_raw)
    }

    /// Returns the symbolic name (`"EINVAL"`), or `None` for a number without a known name.
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(errno, ..)| *errno == self).map(|(_, name, _)| *name)
    }

    /// Returns the text that glibc's `strerror(3)` returns in the C locale.
    pub fn description(self) -> &'static str {
        NAMES.iter().find(|(errno, ..)| *errno == self).map_or("Unknown error", |(.., text)| text)
    }
}

macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $libc:ident, $text:literal;)*) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($libc), "`: ", $text, ".")] pub const $name: Self = Self(libc::$libc as u16);)*
        }

        const NAMES: &[(Errno, &str, &str)] = &[$((Errno::$name, stringify!($libc), $text)),*];
    };
}

errnos! {
    PERM = EPERM, "Operation not permitted";
    NOENT = ENOENT, "No such file or directory";
    INTR = EINTR, "Interrupted system call";
    IO = EIO, "Input/output error";
    NXIO = ENXIO, "No such device or address";
    TOOBIG = E2BIG, "Argument list too long";
    BADF = EBADF, "Bad file descriptor";
    AGAIN = EAGAIN, "Resource temporarily unavailable";
    NOMEM = ENOMEM, "Cannot allocate memory";
    ACCESS = EACCES, "Permission denied";
    FAULT = EFAULT, "Bad address";
    BUSY = EBUSY, "Device or resource busy";
    EXIST = EEXIST, "File exists";
    NODEV = ENODEV, "No such device";
    NOTDIR = ENOTDIR, "Not a directory";
    ISDIR = EISDIR, "Is a directory";
    INVAL = EINVAL, "Invalid argument";
    NFILE = ENFILE, "Too many open files in system";
    MFILE = EMFILE, "Too many open files";
    NOTTY = ENOTTY, "Inappropriate ioctl for device";
    NOSPC = ENOSPC, "No space left on device";
    RANGE = ERANGE, "Numerical result out of range";
    NOSYS = ENOSYS, "Function not implemented";
    NODATA = ENODATA, "No data available";
    NOLINK = ENOLINK, "Link has been severed";
    PROTO = EPROTO, "Protocol error";
    BADMSG = EBADMSG, "Bad message";
    OVERFLOW = EOVERFLOW, "Value too large for defined data type";
    PROTONOSUPPORT = EPROTONOSUPPORT, "Protocol not supported";
    USERS = EUSERS, "Too many users";
    OPNOTSUPP = EOPNOTSUPP, "Operation not supported";
    MSGSIZE = EMSGSIZE, "Message too long";
    AFNOSUPPORT = EAFNOSUPPORT, "Address family not supported by protocol";
    ADDRINUSE = EADDRINUSE, "Address already in use";
    ADDRNOTAVAIL = EADDRNOTAVAIL, "Cannot assign requested address";
    NETUNREACH = ENETUNREACH, "Network is unreachable";
    NOBUFS = ENOBUFS, "No buffer space available";
    CONNRESET = ECONNRESET, "Connection reset by peer";
    TIMEDOUT = ETIMEDOUT, "Connection timed out";
    CONNREFUSED = ECONNREFUSED, "Connection refused";
    HOSTUNREACH = EHOSTUNREACH, "No route to host";
    CANCELED = ECANCELED, "Operation canceled";
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Errno {}

impl From<nix::errno::Errno> for Errno {
    fn from(errno: nix::errno::Errno) -> Self {
        Self::from_raw(errno as i32)
    }
}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.raw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_a_name_survive() {
        let errno = Errno::from_raw(524);
        assert_eq!(errno.raw(), 524);
        assert_eq!(errno.to_string(), "errno 524");
        assert_eq!(errno.description(), "Unknown error");
    }

    #[test]
    fn what_no_kernel_returns_becomes_eio() {
        for raw in [0, -22, 4096, i32::MAX, i32::MIN] {
            assert_eq!(Errno::from_raw(raw), Errno::IO);
        }
    }

    #[test]
    fn names_are_those_of_c() {
        assert_eq!(Errno::INVAL.to_string(), "EINVAL");
        assert_eq!(Errno::from_raw(95), Errno::OPNOTSUPP);
    }
}
