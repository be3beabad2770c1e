//! [`Region`]: memory shared with the kernel or a device.
//!
//! # Safety
//! The kernel or a device may write a region at any moment, so no Rust reference to it is ever
//! created. It is read and written by value, with volatile accesses at checked offsets. The bytes
//! stay mapped as long as the region lives.
//!
//! The bytes of a queue contain addresses and completions, so an access at the wrong time or place
//! can corrupt other memory. Every access is therefore unsafe: [`Region::read`] and
//! [`Region::write`] for single accesses, [`Region::index`] and
//! [`Doorbell::new`](super::Doorbell::new) for all accesses through their results.
#![allow(unsafe_code)]

use core::any::Any;
use core::fmt;
use core::mem::{align_of, size_of};
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

#[cfg(loom)]
use loom::sync::atomic::AtomicU32;
use memmap2::{MmapOptions, MmapRaw};
use zerocopy::{FromBytes, IntoBytes};

use super::SharedIndex;
use crate::errno::Errno;

/// Memory shared with the kernel or a device: a mapping, or plain memory in tests that play the
/// other side.
///
/// A clone refers to the same bytes, which are unmapped when the last clone is dropped.
#[derive(Clone)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    _backing: Backing,
    /// The model checker's atomics. Each replaces the bytes at an offset that has an index.
    #[cfg(loom)]
    modelled: Arc<std::sync::Mutex<std::collections::BTreeMap<usize, Arc<AtomicU32>>>>,
}

#[derive(Clone)]
enum Backing {
    Mapped { _map: Arc<MmapRaw> },
    Plain { _memory: Arc<PlainMemory> },
    Lent { _owner: Arc<dyn Any + Send + Sync> },
}

/// Plain memory, owned as a raw allocation, because a `Box` would imply exclusive access.
struct PlainMemory {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the raw pointer blocked the auto impls. It is an owned allocation, accessed only by
// `Drop`.
unsafe impl Send for PlainMemory {}
// SAFETY: as for `Send`; `&PlainMemory` gives no access.
unsafe impl Sync for PlainMemory {}

impl Drop for PlainMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `Region::plain` and freed only here.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

// SAFETY: `base` and the raw allocation blocked the auto impls. No safe function of a region
// accesses its bytes. The callers of the unsafe functions guarantee that no other thread accesses
// the same bytes, or that all of them use atomics (`Region::index`). Any thread may drop the last
// clone, which releases the mapping.
unsafe impl Send for Region {}
// SAFETY: as for `Send`; `&Region` gives no other access.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `len` bytes of a device file, starting at `offset`, shared, for reading and writing.
    ///
    /// # Safety
    /// - The kernel or the device must have offered these bytes to this process: they are a queue
    ///   or registers, not memory that a Rust reference covers or that safe code can access in
    ///   another way.
    /// - The caller must control which code gets the region or a clone of it. No other code in this
    ///   process may access the mapped bytes.
    ///
    /// # Errors
    /// Any errno `mmap(2)` returns; `EINVAL` for a length of zero.
    pub unsafe fn map(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, Errno> {
        use std::os::fd::AsRawFd;
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let map = MmapOptions::new()
            .offset(offset)
            .len(len)
            .map_raw(fd.as_raw_fd())
            .map_err(|e| Errno::from_io(&e))?;
        let base = NonNull::new(map.as_mut_ptr()).ok_or(Errno::NOMEM)?;
        Ok(Self::over(base, len, Backing::Mapped { _map: Arc::new(map) }))
    }

    /// Maps `len` bytes of a device file, starting at `offset`, shared and read-only. Writing to
    /// them kills the process.
    ///
    /// # Safety
    /// Same as [`map`](Self::map).
    ///
    /// # Errors
    /// The errors of [`map`](Self::map).
    pub unsafe fn map_read_only(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, Errno> {
        use std::os::fd::AsRawFd;
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let map = MmapOptions::new()
            .offset(offset)
            .len(len)
            .map_raw_read_only(fd.as_raw_fd())
            .map_err(|e| Errno::from_io(&e))?;
        let base = NonNull::new(map.as_mut_ptr()).ok_or(Errno::NOMEM)?;
        Ok(Self::over(base, len, Backing::Mapped { _map: Arc::new(map) }))
    }

    /// Allocates `len` zeroed, page-aligned bytes, present and writable, for a queue that a device
    /// reads by DMA.
    ///
    /// # Errors
    /// Any errno `mmap(2)` returns, notably `ENOMEM`; `EINVAL` for a length of zero.
    pub fn anonymous(len: usize) -> Result<Self, Errno> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let map = MmapOptions::new().len(len).populate().map_anon().map_err(|e| Errno::from_io(&e))?;
        let map = MmapRaw::from(map);
        let base = NonNull::new(map.as_mut_ptr()).ok_or(Errno::NOMEM)?;
        Ok(Self::over(base, len, Backing::Mapped { _map: Arc::new(map) }))
    }

    /// Allocates memory like [`anonymous`](Self::anonymous), in huge pages of the default size.
    /// `len` is rounded up to 2 MiB.
    ///
    /// # Errors
    /// The errors of [`anonymous`](Self::anonymous): `ENOMEM` if the system has no huge pages
    /// reserved.
    pub fn huge(len: usize) -> Result<Self, Errno> {
        const HUGE: usize = 2 << 20;
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let len = len.checked_next_multiple_of(HUGE).ok_or(Errno::NOMEM)?;
        let mut options = MmapOptions::new();
        let map = options.len(len).populate().huge(Some(21)).map_anon();
        let map = MmapRaw::from(map.map_err(|e| Errno::from_io(&e))?);
        let base = NonNull::new(map.as_mut_ptr()).ok_or(Errno::NOMEM)?;
        Ok(Self::over(base, len, Backing::Mapped { _map: Arc::new(map) }))
    }

    /// Returns a region over memory that belongs to `owner`, for a queue.
    ///
    /// # Safety
    /// As long as `owner` lives, the `len` bytes at `base` must be readable, writable and
    /// initialised. Only code that holds the region or a clone of it may access them.
    pub unsafe fn lent(base: NonNull<u8>, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self::over(base, len, Backing::Lent { _owner: owner })
    }

    /// Allocates at least `len` zeroed bytes of plain memory, aligned to a page, for tests without
    /// a device.
    ///
    /// # Panics
    /// If `len` exceeds the address space.
    pub fn plain(len: usize) -> Self {
        let len = len.next_multiple_of(size_of::<u128>()).max(size_of::<u128>());
        let layout = Layout::from_size_align(len, page_size()).expect("a length in memory");
        // SAFETY: the length is not 0.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        Self::over(base, len, Backing::Plain { _memory: Arc::new(PlainMemory { base, layout }) })
    }

    fn over(base: NonNull<u8>, len: usize, backing: Backing) -> Self {
        Self {
            base,
            len,
            _backing: backing,
            #[cfg(loom)]
            modelled: Arc::default(),
        }
    }

    /// Returns the length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns `false`, because a region has at least one byte.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads a value at the byte offset `offset`.
    ///
    /// # Safety
    /// No other thread of this process may write the bytes during the call: that would be a data
    /// race. The device or the kernel may write them; in that case, the value is unspecified.
    ///
    /// # Panics
    /// If the value does not lie within the region or is not aligned. Offsets must come from the
    /// program, not from the device.
    #[inline]
    pub unsafe fn read<T: FromBytes>(&self, offset: usize) -> T {
        let pointer = self.checked::<T>(offset);
        // SAFETY: `checked` proved that `T` lies within the mapping and is aligned; every bit
        // pattern is a `T`; the caller vouches for this process's other threads.
        unsafe { pointer.read_volatile() }
    }

    /// Writes a value at the byte offset `offset`.
    ///
    /// # Safety
    /// No other thread of this process may read or write the bytes during the call, and no
    /// reference to them may exist.
    ///
    /// # Panics
    /// Same as [`read`](Self::read).
    #[inline]
    pub unsafe fn write<T: IntoBytes>(&self, offset: usize, value: T) {
        let pointer = self.checked::<T>(offset);
        // SAFETY: `checked` proved that `T` lies within the mapping and is aligned; `T` has no
        // padding to leak; the caller vouches for this process's other threads.
        unsafe { pointer.write_volatile(value) }
    }

    /// Reads like [`read`](Self::read), in single-threaded tests.
    #[cfg(test)]
    pub(crate) fn peek<T: FromBytes>(&self, offset: usize) -> T {
        // SAFETY: no other thread runs.
        unsafe { self.read(offset) }
    }

    /// Writes like [`write`](Self::write), in single-threaded tests.
    #[cfg(test)]
    pub(crate) fn poke<T: IntoBytes>(&self, offset: usize, value: T) {
        // SAFETY: no other thread runs.
        unsafe { self.write(offset, value) }
    }

    /// Creates an index for the four bytes at `offset`.
    ///
    /// # Safety
    /// As long as the index lives:
    /// - this process must access the four bytes only through indices at this offset, not with
    ///   [`write`](Self::write) or a [`pointer`](Self::pointer);
    /// - the code that holds the index must publish a slot only after filling it with valid
    ///   addresses (or after reading the bytes that the other end may overwrite), because the other
    ///   end follows the addresses in published slots.
    ///
    /// # Panics
    /// Same as [`read`](Self::read).
    pub unsafe fn index(&self, offset: usize) -> SharedIndex {
        let pointer = self.checked::<u32>(offset);
        #[cfg(not(loom))]
        return SharedIndex::new(self.clone(), pointer);
        #[cfg(loom)]
        {
            let _ = pointer;
            let mut modelled = self.modelled.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let word = modelled.entry(offset).or_insert_with(|| Arc::new(AtomicU32::new(0)));
            SharedIndex::new(self.clone(), Arc::clone(word))
        }
    }

    /// Returns the address of the bytes from `offset` to `offset + len`, for providers that write
    /// their entries with their own code.
    ///
    /// Accessing memory through the pointer is unsafe. The bytes stay mapped as long as a clone of
    /// the region lives.
    ///
    /// # Panics
    /// If the range does not lie within the region.
    pub fn pointer(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "{len} bytes at {offset} of a region of {}",
            self.len
        );
        // SAFETY: `offset` is at most the mapping's length, so the result is in bounds or one past
        // the end.
        unsafe { self.base.add(offset) }
    }

    fn checked<T>(&self, offset: usize) -> NonNull<T> {
        let pointer = self.pointer(offset, size_of::<T>());
        assert!(pointer.addr().get().is_multiple_of(align_of::<T>()), "offset {offset} is not aligned");
        pointer.cast()
    }
}

/// Returns the system's page size in bytes.
pub fn page_size() -> usize {
    // SAFETY: the call takes and returns only numbers.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_by_every_clone() {
        let region = Region::plain(64);
        let clone = region.clone();
        region.poke(8, 0x0102_0304_0506_0708_u64);
        drop(region);
        assert_eq!(clone.peek::<u64>(8), 0x0102_0304_0506_0708);
        assert_eq!(clone.peek::<u32>(16), 0);
    }

    #[test]
    fn anonymous_memory_is_zeroed_and_begins_at_a_page() {
        let region = Region::anonymous(8192).unwrap();
        assert!(region.pointer(0, 8192).addr().get().is_multiple_of(4096));
        assert_eq!((region.peek::<u64>(0), region.peek::<u64>(8184)), (0, 0));
        region.poke(8184, 7_u64);
        assert_eq!(region.peek::<u64>(8184), 7);
        assert_eq!(Region::anonymous(0).unwrap_err(), Errno::INVAL);
    }

    #[test]
    #[should_panic(expected = "of a region of")]
    fn a_value_across_the_end_is_refused() {
        Region::plain(16).peek::<u64>(12);
    }

    #[test]
    #[should_panic(expected = "not aligned")]
    fn a_value_that_is_not_aligned_is_refused() {
        Region::plain(16).poke(2, 1_u32);
    }

    #[test]
    #[should_panic(expected = "of a region of")]
    fn an_offset_that_overflows_is_refused() {
        Region::plain(16).peek::<u64>(usize::MAX - 3);
    }

    #[test]
    fn mapping_something_that_is_no_device_reports_the_errno() {
        use std::os::fd::AsFd;
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        // SAFETY: a socket has no bytes to map.
        let map = |len| unsafe { Region::map(socket.as_fd(), 0, len) };
        assert_eq!(map(4096).unwrap_err(), Errno::NODEV);
        assert_eq!(map(0).unwrap_err(), Errno::INVAL);
    }
}
