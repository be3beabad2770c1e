//! [`Excluded`]: registered memory, protected from `fork(2)`.
//!
//! Before Linux 5.12, a page shared with a forked child is copied when the parent writes to it. The
//! parent then uses the copy, and the device uses the original. After [`init`], pages with
//! registered memory are excluded from forks (`MADV_DONTFORK`) while any region covers them, so the
//! child does not have them. Regions are counted per process, regardless of the API that registered
//! them.
//!
//! ```text
//! pages         │  0  │  1  │  2  │  3  │
//! region A            ├─────┼─────┤          exclude A:  counts 1 1
//! region B                  ├─────┼─────┤    exclude B:  counts 1 2 1, DONTFORK for page 3 only
//!                                            release A:  counts 1 1,   DOFORK for page 1 only
//! ```
//!
//! # Safety
//! `madvise` with `MADV_DONTFORK` or `MADV_DOFORK` changes the memory of forked children, but no
//! byte or mapping of this process. `madvise` is called only for registered pages, which stay
//! mapped until they are released.
//!
//! # References
//! `ibv_fork_init(3)`, `ibv_is_fork_initialized(3)`, `madvise(2)`
#![allow(unsafe_code)]

use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU8, Ordering};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;

pub use self::generation::{current_generation, generation, watch};
pub use self::lock::{ForkGuard, ForkLock, Lost};
pub use self::rw_lock::{ForkReadGuard, ForkRwLock, ForkWriteGuard};
use crate::errno::Errno;
use crate::error::Result;
use crate::ring::page_size;
use crate::types::ForkStatus;
use crate::{discovery, environment};

mod generation;
mod lock;
mod rw_lock;

/// Protects registered memory from forks if the kernel does not. The environment variables
/// `RDMAV_FORK_SAFE` and `IBV_FORK_SAFE` do the same. `RDMAV_HUGEPAGES_SAFE` extends the protection
/// to memory in huge pages, whose size is read from `/proc/self/smaps` for each region.
///
/// # Errors
/// `EINVAL` if memory was already registered without protection; `ENOSYS` if the kernel cannot
/// exclude pages.
///
/// # References
/// `ibv_fork_init(3)`
#[doc(alias = "ibv_fork_init")]
pub fn init() -> Result<(), Errno> {
    if kernel_copies() { Ok(()) } else { state().enable(&Kernel) }
}

/// Returns whether registered memory is protected from forks.
///
/// # References
/// `ibv_is_fork_initialized(3)`
#[doc(alias = "ibv_is_fork_initialized")]
pub fn status() -> ForkStatus {
    if kernel_copies() {
        return ForkStatus::Unneeded;
    }
    match state().mode {
        Mode::On => ForkStatus::Enabled,
        Mode::Off | Mode::TooLate => ForkStatus::Disabled,
    }
}

/// Pages that are excluded from forks while this value lives.
#[derive(Debug)]
pub struct Excluded(Option<Range<usize>>);

impl Excluded {
    /// Excludes no pages.
    pub const NONE: Self = Self(None);

    /// Excludes the pages of `length` bytes at `addr` if the protection is on. The bytes must stay
    /// mapped until the value is dropped.
    ///
    /// # Errors
    /// The errno from `madvise(2)`; in that case, no page is excluded.
    pub fn new(addr: *mut u8, length: usize) -> Result<Self, Errno> {
        if length == 0 || addr.is_null() || kernel_copies() {
            return Ok(Self::NONE);
        }
        let mut state = state();
        match state.mode {
            Mode::On => {
                let pages = pages(addr.addr(), length, page_size_at(addr.addr()));
                state.pages.exclude(&pages, &Kernel)?;
                Ok(Self(Some(pages)))
            }
            Mode::Off | Mode::TooLate => {
                state.mode = Mode::TooLate;
                Ok(Self::NONE)
            }
        }
    }

    /// Includes the pages in forks again, unless another region covers them.
    ///
    /// # Errors
    /// The errno from `madvise(2)` for any page; that page stays excluded.
    pub fn release(mut self) -> Result<(), Errno> {
        self.take()
    }

    /// Keeps the pages excluded until [`release_range`] is called for the same bytes.
    pub fn keep(mut self) {
        self.0 = None;
    }

    fn take(&mut self) -> Result<(), Errno> {
        match self.0.take() {
            Some(pages) => state().pages.release(&pages, &Kernel),
            None => Ok(()),
        }
    }
}

impl Drop for Excluded {
    fn drop(&mut self) {
        // A page that stays excluded harms only a child that touches it.
        let _ = self.take();
    }
}

/// Includes pages that were excluded and [kept](Excluded::keep) in forks again, unless another
/// region covers them.
///
/// # Errors
/// The errno from `madvise(2)` for any page; that page stays excluded.
pub fn release_range(addr: *mut u8, length: usize) -> Result<(), Errno> {
    if length == 0 || addr.is_null() || kernel_copies() {
        return Ok(());
    }
    let mut state = state();
    if state.mode != Mode::On {
        return Ok(());
    }
    state.pages.release(&pages(addr.addr(), length, page_size_at(addr.addr())), &Kernel)
}

/// Advice to the kernel about pages.
trait Advise {
    /// Excludes the pages from forks, or includes them again.
    ///
    /// # Errors
    /// The errno from `madvise(2)`.
    fn advise(&self, pages: Range<usize>, exclude: bool) -> Result<(), Errno>;
}

/// The kernel that runs this process.
struct Kernel;

impl Advise for Kernel {
    fn advise(&self, pages: Range<usize>, exclude: bool) -> Result<(), Errno> {
        let advice = if exclude { libc::MADV_DONTFORK } else { libc::MADV_DOFORK };
        let start = std::ptr::with_exposed_provenance_mut(pages.start);
        // SAFETY: either advice changes the memory of a forked child and nothing in this process.
        match unsafe { libc::madvise(start, pages.len(), advice) } {
            0 => Ok(()),
            _ => Err(Errno::last()),
        }
    }
}

/// The number of regions that cover each page. Each key is the first address of a run of pages with
/// equal counts; the run ends at the next key. Runs with a count of 0 after the last region have no
/// key.
#[derive(Debug, Default)]
struct Pages(BTreeMap<usize, usize>);

impl Pages {
    /// Counts one more region and excludes the pages that no region covered before.
    ///
    /// # Errors
    /// The errno of the first advice that fails; earlier advice is undone.
    fn exclude(&mut self, pages: &Range<usize>, kernel: &impl Advise) -> Result<(), Errno> {
        let runs = self.cut(pages);
        for (at, (run, count)) in runs.iter().enumerate() {
            if *count == 0
                && let Err(errno) = kernel.advise(run.clone(), true)
            {
                for (run, _) in runs[..at].iter().filter(|(_, count)| *count == 0) {
                    let _ = kernel.advise(run.clone(), false);
                }
                self.join(pages);
                return Err(errno);
            }
        }
        for (run, count) in runs {
            self.0.insert(run.start, count + 1);
        }
        self.join(pages);
        Ok(())
    }

    /// Counts one region fewer. Pages that no region covers any more are included in forks again.
    ///
    /// # Errors
    /// The errno of advice that fails; all other pages are included again.
    fn release(&mut self, pages: &Range<usize>, kernel: &impl Advise) -> Result<(), Errno> {
        let mut result = Ok(());
        for (run, count) in self.cut(pages) {
            self.0.insert(run.start, count.saturating_sub(1));
            if count == 1 {
                result = result.and(kernel.advise(run, false));
            }
        }
        self.join(pages);
        result
    }

    /// Splits runs at the boundaries of `pages` and returns the runs in `pages` with their counts.
    fn cut(&mut self, pages: &Range<usize>) -> Vec<(Range<usize>, usize)> {
        for at in [pages.start, pages.end] {
            let count = self.0.range(..=at).next_back().map_or(0, |(_, count)| *count);
            self.0.entry(at).or_insert(count);
        }
        let starts: Vec<_> = self.0.range(pages.clone()).map(|(start, count)| (*start, *count)).collect();
        let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([pages.end]);
        starts.iter().zip(ends).map(|((start, count), end)| (*start..end, *count)).collect()
    }

    /// Removes each key in `pages`, or at the end of `pages`, with the same count as the previous
    /// run.
    fn join(&mut self, pages: &Range<usize>) {
        let starts: Vec<_> = self.0.range(pages.start..=pages.end).map(|(start, _)| *start).collect();
        for start in starts {
            let before = self.0.range(..start).next_back().map_or(0, |(_, count)| *count);
            if self.0.get(&start) == Some(&before) {
                self.0.remove(&start);
            }
        }
    }
}

/// The protection mode of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Mode {
    /// The protection is off, and no region is registered.
    Off = 1,
    /// The protection is off, and regions are registered.
    TooLate,
    /// The protection is on.
    On,
}

impl Mode {
    fn from_number(number: u8) -> Option<Self> {
        [Self::Off, Self::TooLate, Self::On].into_iter().find(|mode| *mode as u8 == number)
    }
}

#[derive(Debug)]
struct State {
    mode: Mode,
    pages: Pages,
}

impl State {
    /// Turns the protection on.
    ///
    /// # Errors
    /// `EINVAL` if memory was already registered, `ENOSYS` if the kernel cannot exclude a page.
    fn enable(&mut self, kernel: &impl Advise) -> Result<(), Errno> {
        match self.mode {
            Mode::On => return Ok(()),
            Mode::TooLate => return Err(Errno::INVAL),
            Mode::Off => {}
        }
        // Tries the advice on a separate page.
        let page = memmap2::MmapMut::map_anon(page_size()).map_err(|error| Errno::from_io(&error))?;
        let start = page.as_ptr().expose_provenance();
        let pages = start..start + page.len();
        let tried = kernel.advise(pages.clone(), true).and_then(|()| kernel.advise(pages, false));
        tried.map_err(|_| Errno::NOSYS)?;
        self.mode = Mode::On;
        Ok(())
    }
}

/// The mode when the state's lock was last released; 0 before that. A child whose parent held the
/// lock at the fork can read the mode only here.
static MODE: AtomicU8 = AtomicU8::new(0);

/// The state of this process, locked.
struct Locked(ForkGuard<'static, Option<State>>);

/// Returns the state of this process. The first call reads the environment. A child whose parent
/// held the lock at the fork starts with the parent's mode and without regions.
fn state() -> Locked {
    static STATE: ForkLock<Option<State>> = ForkLock::new(None);
    let mut locked = STATE.lock_or(|| None);
    if locked.is_none() {
        let known = Mode::from_number(MODE.load(Ordering::Relaxed));
        let mut state = State { mode: known.unwrap_or(Mode::Off), pages: Pages::default() };
        if known.is_none()
            && ["RDMAV_FORK_SAFE", "IBV_FORK_SAFE"]
                .into_iter()
                .any(|name| environment::variable_os(name).is_some())
        {
            // `status` reports a missing protection, as in C.
            let _ = state.enable(&Kernel);
        }
        *locked = Some(state);
    }
    Locked(locked)
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Runs before the field drops, which releases the lock.
        MODE.store(self.mode as u8, Ordering::Relaxed);
    }
}

impl Deref for Locked {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_ref().expect("`state` has made it")
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("`state` has made it")
    }
}

/// Returns whether the kernel copies registered pages for a child.
fn kernel_copies() -> bool {
    static COPIES: ForkLock<Option<bool>> = ForkLock::new(None);
    let known = *COPIES.lock_or(|| None);
    // A kernel without RDMA may load its modules later.
    known.unwrap_or_else(|| discovery::copies_on_fork().is_some_and(|copies| COPIES.get_or_init(|| copies)))
}

/// Returns the address range of the pages that contain these bytes.
fn pages(addr: usize, length: usize, page_size: usize) -> Range<usize> {
    let mask = page_size - 1;
    addr & !mask..addr.saturating_add(length).saturating_add(mask) & !mask
}

/// Returns the page size at an address: the ordinary page size, unless the environment enables
/// support for huge pages.
fn page_size_at(addr: usize) -> usize {
    static HUGE: ForkLock<Option<bool>> = ForkLock::new(None);
    let ordinary = page_size();
    if !HUGE.get_or_init(|| environment::variable_os("RDMAV_HUGEPAGES_SAFE").is_some()) {
        return ordinary;
    }
    File::open("/proc/thread-self/smaps")
        .ok()
        .and_then(|smaps| page_size_in(BufReader::new(smaps), addr))
        .unwrap_or(ordinary)
}

/// Reads the page size of the mapping around an address from text in the format of
/// `/proc/self/smaps`.
fn page_size_in(smaps: impl BufRead, addr: usize) -> Option<usize> {
    let mut inside = false;
    for line in smaps.split(b'\n') {
        let line = line.ok()?;
        let text = String::from_utf8_lossy(&line);
        let mut fields = text.split_ascii_whitespace();
        let first = fields.next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let number = |text| usize::from_str_radix(text, 16).ok();
            if let (Some(start), Some(end)) = (number(start), number(end)) {
                inside = (start..end).contains(&addr);
            }
        } else if inside && first == "KernelPageSize:" {
            let size = fields.next()?.parse::<usize>().ok()?.checked_mul(1024)?;
            return size.is_power_of_two().then_some(size);
        }
    }
    None
}

#[cfg(test)]
mod tests;
