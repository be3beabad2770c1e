//! Access to on-demand paged memory, whose pages may be missing.
//!
//! The program may unmap, protect and remap the memory of an on-demand paged region at any time,
//! even between a check and the following access. An instruction that accesses a missing page kills
//! the process with SIGSEGV or SIGBUS. Therefore the kernel makes all accesses, through
//! `process_vm_readv(2)` and `process_vm_writev(2)` with the ID of the calling thread. The process
//! ID would name the main thread, which may have ended. These calls fault pages in like the
//! program's accesses, but fail with `EFAULT` instead of raising a signal. A failed write may have
//! changed the pages before the missing page, as a device's write may.
//!
//! | alternative | reason against it |
//! |---|---|
//! | `mincore`, `madvise` or `/proc/self/maps` first | the page may be gone before the access |
//! | a SIGSEGV handler | signal handlers belong to the program |
//! | a second mapping | only shared memory can be mapped twice, not anonymous private memory |
//!
//! An access costs a system call per packet, instead of a copy; [`update`] costs two. Accesses are
//! atomic only among the accesses of one device, serialised by its lock, not with respect to
//! processor atomics. This matches a device with `IBV_ATOMIC_HCA`.
//!
//! While a thread of the program resolves a fault (`userfaultfd`), the device is blocked, and so
//! are control calls made by that thread.
//!
//! # Safety
//! The kernel checks every address in the region. The other side of each copy is a slice supplied
//! by the caller.
//!
//! # References
//! `process_vm_readv(2)` (always permitted on the calling process, but rejected by some seccomp
//! filters: [`is_supported`]), `madvise(2)` (`MADV_POPULATE_READ`, Linux 5.14)
#![allow(unsafe_code)]

use roce::engine::Fault;
use verbs_core::Errno;
use verbs_core::fork::ForkLock;
use verbs_core::ring::page_size;

use crate::memory::mapped;

/// Returns whether the kernel lets this process call `process_vm_readv(2)` and
/// `process_vm_writev(2)`.
pub(crate) fn is_supported() -> bool {
    static SUPPORTED: ForkLock<Option<bool>> = ForkLock::new(None);
    SUPPORTED.get_or_init(|| {
        let (mut word, mut copy) = ([1_u8; 8], [0_u8; 8]);
        let at = word.as_mut_ptr().expose_provenance() as u64;
        write(at, &[2; 8]).is_ok() && read(at, &mut copy).is_ok() && copy == [2; 8]
    })
}

/// Returns whether the kernel can read the byte at an address in a mapped page for this process.
/// For a device's memory (a PCI BAR), the kernel fails without accessing it.
pub(crate) fn can_read(address: u64) -> bool {
    read(address, &mut [0]).is_ok()
}

/// Copies bytes at an address of paged memory into a buffer.
///
/// # Errors
/// [`Fault`] if a page cannot be read.
pub(crate) fn read(from: u64, into: &mut [u8]) -> Result<(), Fault> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = at(from, into.len())?;
    // SAFETY: `local` is a slice of the caller's, written by the kernel, which checks `remote` and
    // only reads it.
    let copied =
        unsafe { libc::process_vm_readv(libc::gettid(), &raw const local, 1, &raw const remote, 1, 0) };
    is_whole(copied, into.len())
}

/// Copies bytes from a buffer to an address of paged memory.
///
/// # Errors
/// [`Fault`] if a page cannot be written.
pub(crate) fn write(to: u64, from: &[u8]) -> Result<(), Fault> {
    let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    let remote = at(to, from.len())?;
    // SAFETY: `local` is a slice of the caller's, only read by the kernel. It writes `remote`,
    // which is registered for writing, and checks it.
    let copied =
        unsafe { libc::process_vm_writev(libc::gettid(), &raw const local, 1, &raw const remote, 1, 0) };
    is_whole(copied, from.len())
}

/// Replaces the 8 bytes at an aligned address with the result of `new`, if any, and returns their
/// previous value.
///
/// # Errors
/// [`Fault`] if the bytes are not aligned, or cannot be read or replaced.
pub(crate) fn update(address: u64, new: impl FnOnce(u64) -> Option<u64>) -> Result<u64, Fault> {
    if !address.is_multiple_of(8) {
        return Err(Fault);
    }
    let mut bytes = [0; 8];
    read(address, &mut bytes)?;
    let found = u64::from_ne_bytes(bytes);
    if let Some(new) = new(found) {
        write(address, &new.to_ne_bytes())?;
    }
    Ok(found)
}

/// Faults in the pages of a range, for writing if `writable`.
///
/// # Errors
/// `EFAULT` if any part cannot be accessed, for any reason.
pub(crate) fn prefetch(start: u64, length: u64, writable: bool) -> Result<(), Errno> {
    let page = page_size() as u64;
    let end = start.checked_add(length).ok_or(Errno::FAULT)?;
    let first = start & !(page - 1);
    let advice = if writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    let pages = core::ptr::without_provenance_mut(usize::try_from(first).map_err(|_| Errno::FAULT)?);
    // SAFETY: the call faults pages in like an access, or fails, and changes no byte.
    let populated = unsafe { libc::madvise(pages, (end - first) as usize, advice) };
    match populated {
        0 => Ok(()),
        // The kernel is older than 5.14, or the mapping belongs to a device or lacks the right.
        _ if Errno::last() == Errno::INVAL => {
            mapped::check(start, length, writable, |_, _| true).map(drop).map_err(|_| Errno::FAULT)
        }
        _ => Err(Errno::FAULT),
    }
}

/// Returns the `iovec` for `length` bytes at `address`.
fn at(address: u64, length: usize) -> Result<libc::iovec, Fault> {
    let address = usize::try_from(address).map_err(|_| Fault)?;
    Ok(libc::iovec { iov_base: core::ptr::with_exposed_provenance_mut(address), iov_len: length })
}

fn is_whole(copied: isize, length: usize) -> Result<(), Fault> {
    if usize::try_from(copied) == Ok(length) { Ok(()) } else { Err(Fault) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_written_and_updated_and_a_missing_page_is_a_fault() {
        assert!(is_supported());
        let mut words = [5_u64, 7];
        let start = words.as_mut_ptr().expose_provenance() as u64;
        write(start + 9, b"bytes").unwrap();
        let mut bytes = [0; 5];
        read(start + 9, &mut bytes).unwrap();
        assert_eq!(&bytes, b"bytes");
        assert_eq!(update(start, |found| Some(found + 1)), Ok(5));
        assert_eq!(update(start, |_| None), Ok(6));
        assert_eq!(update(start + 4, Some), Err(Fault));
        assert_eq!((words[0], words[1].to_ne_bytes()[1]), (6, b'b'));

        // No process has memory below `vm.mmap_min_addr`, or at the end of the address space.
        for missing in [0, 0x1000, u64::MAX - 7] {
            assert_eq!(read(missing, &mut bytes), Err(Fault));
            assert_eq!(write(missing, b"bytes"), Err(Fault));
            assert_eq!(update(missing & !7, Some), Err(Fault));
            assert_eq!(prefetch(missing, 5, false), Err(Errno::FAULT));
            assert_eq!(prefetch(missing, 5, true), Err(Errno::FAULT));
        }
        prefetch(start, 16, true).unwrap();
        // A constant, in read-only memory.
        let constant = b"constant".as_ptr().expose_provenance() as u64;
        read(constant, &mut bytes).unwrap();
        assert_eq!((write(constant, b"bytes"), &bytes), (Err(Fault), b"const"));
        prefetch(constant, 8, false).unwrap();
        assert_eq!(prefetch(constant, 8, true), Err(Errno::FAULT));
    }
}
