//! Functions that return the sysfs mount point and read a sysfs file.
//!
//! # Safety
//! The functions are exported under names reserved by this library's version script. They pass the
//! caller's strings and buffer to system calls.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_void};
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use verbs_core::discovery::Roots;
use verbs_core::fork::ForkLock;

/// Returns the mount point of sysfs without trailing slashes: `/sys`, or the environment variable
/// `SYSFS_PATH`.
///
/// The first call reads the variable. The variable is ignored if empty, and if the program runs
/// with more rights than its caller. rdma-core ignores it only in setuid programs. The device
/// search uses the same directory.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: ForkLock<Option<&CStr>> = ForkLock::new(None);
    PATH.get_or_init(|| Box::leak(c_path(&Roots::system().sysfs).into_boxed_c_str())).as_ptr()
}

/// Returns the first 256 bytes of a path, without trailing slashes.
fn c_path(path: &Path) -> CString {
    let bytes = path.as_os_str().as_bytes();
    let mut bytes = &bytes[..bytes.len().min(SYSFS_PATH_MAX)];
    while let Some(shorter) = bytes.strip_suffix(b"/") {
        bytes = shorter;
    }
    // Environment strings contain no NUL.
    CString::new(bytes).unwrap_or_default()
}

/// `IBV_SYSFS_PATH_MAX`.
const SYSFS_PATH_MAX: usize = 256;

/// Reads the file `dir/file` into a buffer with one system call and returns its length without the
/// trailing newline. A terminator replaces the newline, or follows the last byte.
///
/// Returns 0 for an empty file and leaves the buffer unchanged. Returns -1 with the errno from
/// `open(2)` or `read(2)`; -1 with `EINVAL` for a null name; and -1 if the contents fill the buffer
/// without a trailing newline, which leaves no space for a terminator.
///
/// # Safety
/// `dir` and `file` must be null or terminated strings, and `buf` must have space for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    if dir.is_null() || file.is_null() {
        Errno::EINVAL.set();
        return -1;
    }
    // SAFETY: the caller's strings are terminated.
    let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
    // SAFETY: the caller's buffer has this size.
    match unsafe { read(dir, file, buf.cast(), size) } {
        Ok(Some(length)) => c_int::try_from(length).unwrap_or(c_int::MAX),
        Ok(None) => -1,
        Err(errno) => {
            errno.set();
            -1
        }
    }
}

/// Reads a file into a buffer. Returns the length of the contents, or `None` if the buffer is too
/// short for a terminator.
///
/// # Errors
/// The errno from `open(2)` or `read(2)`.
///
/// # Safety
/// `buf` must have space for `size` bytes.
unsafe fn read(dir: &CStr, file: &CStr, buf: *mut u8, size: usize) -> Result<Option<usize>, Errno> {
    let path = [dir.to_bytes(), b"/", file.to_bytes_with_nul()].concat();
    // SAFETY: the path is terminated.
    let fd = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC) };
    let fd = Errno::result(fd)?;
    // SAFETY: the descriptor is new.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the buffer has this size; the kernel rejects unmapped addresses.
    let length = unsafe { libc::read(fd.as_raw_fd(), buf.cast::<c_void>(), size) };
    let length = Errno::result(length)?;
    let Some(last) = usize::try_from(length).unwrap_or(0).checked_sub(1) else { return Ok(Some(0)) };
    // SAFETY: the kernel has just written this byte. The next one is written only if it lies in the
    // buffer.
    unsafe {
        if buf.add(last).read() == b'\n' {
            buf.add(last).write(0);
            return Ok(Some(last));
        }
        if last + 1 == size {
            return Ok(None);
        }
        buf.add(last + 1).write(0);
    }
    Ok(Some(last + 1))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A directory with one file, removed when dropped.
    struct Directory(PathBuf);

    impl Directory {
        fn with(contents: &[u8]) -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("ibverbs-c-sysfs-{}-{count}", std::process::id()));
            fs::create_dir(&path).unwrap();
            fs::write(path.join("file"), contents).unwrap();
            Self(path)
        }

        /// Reads a file into a buffer of `size` bytes. Returns the result, the errno, and the
        /// buffer including the byte after it.
        fn read(&self, file: &str, size: usize) -> (c_int, Errno, Vec<u8>) {
            let dir = CString::new(self.0.as_os_str().as_bytes()).unwrap();
            let file = CString::new(file).unwrap();
            let mut buffer = vec![b'#'; size + 1];
            Errno::clear();
            // SAFETY: the strings are terminated; the buffer is one byte longer than stated.
            let result =
                unsafe { ibv_read_sysfs_file(dir.as_ptr(), file.as_ptr(), buffer.as_mut_ptr().cast(), size) };
            (result, Errno::last(), buffer)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn contents_end_in_a_terminator_where_their_newline_was_or_behind_them() {
        let none = Errno::from_raw(0);
        for (contents, size, length, buffer) in [
            (&b"4: ACTIVE\n"[..], 12, 9, &b"4: ACTIVE\0###"[..]),
            (b"4: ACTIVE\n", 10, 9, b"4: ACTIVE\0#"),
            (b"rxe0", 6, 4, b"rxe0\0##"),
            (b"rxe0", 5, 4, b"rxe0\0#"),
            (b"two\n\n", 8, 4, b"two\n\0####"),
            (b"\n", 4, 0, b"\0####"),
            (b"", 4, 0, b"#####"),
            (b"", 0, 0, b"#"),
            (b"rxe0", 0, 0, b"#"),
            // A newline in the middle is not removed.
            (b"1\n2", 3, -1, b"1\n2#"),
            (b"rxe0", 4, -1, b"rxe0#"),
            (b"longer", 4, -1, b"long#"),
            // The newline is the last byte that fits.
            (b"rxe\nmore", 4, 3, b"rxe\0#"),
        ] {
            let directory = Directory::with(contents);
            let read = directory.read("file", size);
            assert_eq!(read, (length, none, buffer.to_vec()), "{contents:?} into {size} bytes");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_leaves_its_errno() {
        let directory = Directory::with(b"x");
        assert_eq!(directory.read("other", 4), (-1, Errno::ENOENT, b"#####".to_vec()));
        assert_eq!(directory.read("../..", 4), (-1, Errno::EISDIR, b"#####".to_vec()));
        let name = c"file".as_ptr();
        // SAFETY: a null name and an empty buffer are allowed.
        unsafe {
            for (dir, file) in [(core::ptr::null(), name), (name, core::ptr::null())] {
                Errno::clear();
                assert_eq!(ibv_read_sysfs_file(dir, file, core::ptr::null_mut(), 0), -1);
                assert_eq!(Errno::last(), Errno::EINVAL);
            }
        }
    }

    #[test]
    fn the_mount_point_has_no_slash_at_its_end_and_stays_where_it_is() {
        for (path, expected) in
            [("/sys", "/sys"), ("/sys/", "/sys"), ("/tmp/a//", "/tmp/a"), ("relative", "relative"), ("/", "")]
        {
            assert_eq!(c_path(Path::new(path)).to_str(), Ok(expected));
        }
        let long = format!("/{}", "x".repeat(300));
        assert_eq!(c_path(Path::new(&long)).to_str(), Ok(&long[..256]));
        let path = ibv_get_sysfs_path();
        assert_eq!(path, ibv_get_sysfs_path());
        // SAFETY: the string is terminated and never freed.
        let path = unsafe { CStr::from_ptr(path) };
        assert_eq!(path, &*c_path(&Roots::system().sysfs));
    }
}
