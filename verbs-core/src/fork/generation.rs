//! [`generation`]: a number that differs between a process and its forked children.
//!
//! A handler of `pthread_atfork(3)` changes the number in the child. Handlers registered earlier
//! run before it, and `_Fork(3)` runs none. Therefore the kernel also clears a page in each child
//! (`MADV_WIPEONFORK`, Linux 4.14), and [`watch`] changes the number if it finds the page cleared:
//!
//! ```text
//!   fork(3)   ─► earlier handlers ─► this handler ─► the child goes on
//!                └── watch() ──┴───────┴── the first of them changes the number
//!   _Fork(3)  ─► the child goes on ─► watch() changes the number
//! ```
//!
//! [`generation`] alone costs one load. It returns the parent's number until the change.
//!
//! # Safety
//! The page is mapped once and stays mapped. It holds one atomic. The handler uses only atomics.
//!
//! # References
//! `pthread_atfork(3)`, `_Fork(3)`, `madvise(2)`
#![allow(unsafe_code)]

use core::hint::spin_loop;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(1);

/// The word that the kernel clears in a child, or [`KEPT`] without kernel support. Null before the
/// first [`watch`].
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Replaces the page on kernels that cannot wipe it. There, only the handler notices forks.
static KEPT: AtomicU32 = AtomicU32::new(CURRENT);

/// The mark while the number belongs to this process.
const CURRENT: u32 = 1;
/// The mark while a thread in the child is changing the number.
const CHANGING: u32 = 2;

/// The length of the mapping, which the kernel rounds up to a page.
const LEN: usize = size_of::<AtomicU32>();

/// Returns a number that differs between a process and its forked children and is neither 0 nor
/// above `i32::MAX`. In a child, returns the child's number once it has called [`watch`] or
/// `fork(3)` has run all handlers.
#[inline(always)]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Calls [`watch`] and returns the [`generation`].
#[inline]
pub fn current_generation() -> u32 {
    watch();
    generation()
}

/// Ensures that forks change the [`generation`] in the child and detects a fork that has not
/// changed it yet. Must be called before the generation is stored in a lock.
#[inline]
pub fn watch() {
    if mark().is_none_or(|mark| mark.load(Ordering::Acquire) != CURRENT) {
        renew();
    }
}

#[inline]
fn mark() -> Option<&'static AtomicU32> {
    // SAFETY: the pointer is null, or points to a word that lives as long as the process.
    unsafe { MARK.load(Ordering::Acquire).as_ref() }
}

#[cold]
fn renew() {
    let Some(mark) = mark() else { return register() };
    loop {
        match mark.compare_exchange(0, CHANGING, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => {
                change();
                return mark.store(CURRENT, Ordering::Release);
            }
            Err(CURRENT) => return,
            // Another thread is changing the number, which takes a few instructions.
            Err(_) => spin_loop(),
        }
    }
}

/// Registers the handler and maps the page. If two threads call this at the same time, the second
/// handler finds the number changed.
fn register() {
    // If memory is short, the next call tries again. SAFETY: the function stays in this program as
    // long as this code does, and touches only atomics.
    if unsafe { libc::pthread_atfork(None, None, Some(forked)) } != 0 {
        return;
    }
    let page = map();
    let mark = page.map_or(&raw const KEPT as *mut AtomicU32, NonNull::as_ptr);
    let stored = MARK.compare_exchange(ptr::null_mut(), mark, Ordering::AcqRel, Ordering::Relaxed);
    if let (Some(page), Err(_)) = (page, stored) {
        // SAFETY: another thread has stored its page, so this one is unused.
        unsafe { libc::munmap(page.as_ptr().cast(), LEN) };
    }
}

/// Maps a page that the kernel clears in children, and writes this process's mark to it. Returns
/// `None` if the kernel cannot do this.
fn map() -> Option<NonNull<AtomicU32>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping at an address chosen by the kernel touches no existing
    // memory.
    let page = unsafe { libc::mmap(ptr::null_mut(), LEN, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page is anonymous and private, as the advice requires, and not yet shared with
    // other code.
    if unsafe { libc::madvise(page, LEN, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above.
        unsafe { libc::munmap(page, LEN) };
        return None;
    }
    let mark = NonNull::new(page.cast::<AtomicU32>())?;
    // SAFETY: the page is mapped, aligned and zeroed.
    unsafe { mark.as_ref() }.store(CURRENT, Ordering::Release);
    Some(mark)
}

/// Records a fork. Runs in the child, which has only one thread.
extern "C" fn forked() {
    match mark() {
        Some(mark) if !ptr::eq(mark, &raw const KEPT) => watch(),
        _ => change(),
    }
}

fn change() {
    let next = (GENERATION.load(Ordering::Relaxed) + 1) & i32::MAX.cast_unsigned();
    GENERATION.store(next.max(1), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the exit status of a child that exits with the result of `run`. The child is made by
    /// a bare `clone(2)`, so no handler has run.
    fn in_child(run: impl FnOnce() -> i32) -> i32 {
        let no: libc::c_ulong = 0;
        // SAFETY: the child has a copy of the memory and one thread. `run` touches atomics only, so
        // it needs no lock that another thread of the parent may have held.
        unsafe {
            let made = libc::syscall(libc::SYS_clone, libc::SIGCHLD as libc::c_ulong, no, no, no, no);
            if made == 0 {
                libc::_exit(run());
            }
            assert!(made > 0);
            let mut status = 0;
            assert_eq!(libc::waitpid(made as i32, &raw mut status, 0), made as i32);
            assert!(libc::WIFEXITED(status), "status {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }

    #[test]
    fn the_number_changes_once_in_a_child_whatever_looks_first() {
        watch();
        assert!(!ptr::eq(mark().unwrap(), &raw const KEPT), "the kernel clears no page");
        let of_parent = generation();
        let failed = in_child(|| {
            let before = generation();
            let own = current_generation();
            forked();
            i32::from(before != of_parent)
                | i32::from(own == of_parent) << 1
                | i32::from(current_generation() != own) << 2
        });
        assert_eq!(failed, 0);
        let failed = in_child(|| {
            forked();
            let own = generation();
            i32::from(own == of_parent) | i32::from(current_generation() != own) << 1
        });
        assert_eq!((failed, current_generation()), (0, of_parent));
    }
}
