//! [`Mark`]: is this still the process that made the device?
//!
//! After `fork(2)` the child has a copy of everything but the threads: its socket is the parent's, and what it would send or
//! receive is the parent's traffic. So in the child nothing happens any more, and to find out costs no system call: a page
//! that the kernel wipes when it forks (`MADV_WIPEONFORK`, Linux 4.14) holds a mark.
//!
//! # Safety
//! The page is mapped by [`Mark::new`], holds one atomic that is written once before anybody shares it, and is unmapped when
//! the mark is dropped.
//!
//! # References
//! `madvise(2)`
#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use verbs_core::Errno;

/// A mark that does not survive a fork.
#[derive(Debug)]
pub(crate) struct Mark {
    page: NonNull<AtomicU32>,
}

// SAFETY: `page` blocked the auto impls. It points at an atomic that lives as long as `self`.
unsafe impl Send for Mark {}
// SAFETY: as above.
unsafe impl Sync for Mark {}

impl Mark {
    /// The mark of this process.
    ///
    /// # Errors
    /// What `mmap(2)` and `madvise(2)` say.
    pub(crate) fn new() -> Result<Self, Errno> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping, of one page at an address of the kernel's choice, touches nothing that exists.
        let page = unsafe {
            libc::mmap(core::ptr::null_mut(), LEN, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if page == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let mark = Self { page: NonNull::new(page.cast()).ok_or(Errno::NOMEM)? };
        // SAFETY: the page is this mark's own, and anonymous and private, as the advice wants it.
        if unsafe { libc::madvise(page, LEN, libc::MADV_WIPEONFORK) } != 0 {
            return Err(Errno::last());
        }
        mark.word().store(1, Ordering::Relaxed);
        Ok(mark)
    }

    /// Is this a child of the process that made the mark?
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 0
    }

    #[inline]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped, aligned, initialised by the kernel with zeros, and accessed as this atomic only.
        unsafe { self.page.as_ref() }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: the mapping is this mark's own, and nothing borrows from it any more.
        unsafe { libc::munmap(self.page.as_ptr().cast(), LEN) };
    }
}

/// The kernel rounds up to a page.
const LEN: usize = 4096;
