//! [`ForkMark`]: distinguishes a forked child from the process that created the device.
//!
//! After `fork(2)` the child has a copy of everything except the threads. Its socket is the
//! parent's, so the child must neither send nor receive: it would disturb the parent's traffic. The
//! mark is in a page that the kernel clears in the child (`MADV_WIPEONFORK`, Linux 4.14), so
//! checking it costs no system call.
//!
//! # Safety
//! [`ForkMark::new`] maps the page, which holds one atomic and is unmapped when the mark is
//! dropped. The atomic is written once, before another thread can reach it.
//!
//! # References
//! `madvise(2)`
#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use verbs_core::Errno;

/// A mark of the creating process, which the kernel clears in a forked child.
#[derive(Debug)]
pub struct ForkMark {
    page: NonNull<AtomicU32>,
}

// SAFETY: `page` blocked the auto impls. It points at an atomic that lives as long as `self`.
unsafe impl Send for ForkMark {}
// SAFETY: as above.
unsafe impl Sync for ForkMark {}

impl ForkMark {
    /// Creates a mark for this process.
    ///
    /// # Errors
    /// Any errno of `mmap(2)` and `madvise(2)`: notably `ENOMEM`, and `EINVAL` before Linux 4.14.
    pub fn new() -> Result<Self, Errno> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping, of one page at an address of the kernel's choice,
        // touches no existing memory.
        let page = unsafe {
            libc::mmap(core::ptr::null_mut(), LEN, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if page == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let mark = Self { page: NonNull::new(page.cast()).ok_or(Errno::NOMEM)? };
        // SAFETY: the page belongs to this mark alone, and is anonymous and private, as the advice
        // requires.
        if unsafe { libc::madvise(page, LEN, libc::MADV_WIPEONFORK) } != 0 {
            return Err(Errno::last());
        }
        mark.word().store(1, Ordering::Relaxed);
        Ok(mark)
    }

    /// Returns whether this process was forked from the mark's creator.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 0
    }

    #[inline]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped, aligned, initialised by the kernel with zeros, and accessed
        // only as this atomic.
        unsafe { self.page.as_ref() }
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this mark alone, and nothing borrows from it any more.
        unsafe { libc::munmap(self.page.as_ptr().cast(), LEN) };
    }
}

/// The length of the mapping, which the kernel rounds up to a page.
const LEN: usize = 4096;
