//! [`QueueMemory`]: memory in this process that the device reads and writes as a queue, and
//! [`AllocatorMemory`], memory from a program's allocator.
//!
//! | memory | size | resource type for the allocator |
//! |---|---|---|
//! | a queue | whole pages | `MLX5DV_RES_TYPE_QP`, `_RWQ`, `_SRQ`, `_CQ` |
//! | the doorbell records of an object | 8 bytes | `MLX5DV_RES_TYPE_DBR` |
//!
//! Without an allocator, the environment selects the pages of a queue, as in libmlx5. The variables
//! are `MLX_QP_ALLOC_TYPE`, `MLX_RWQ_ALLOC_TYPE`, `MLX_SRQ_ALLOC_TYPE` and `MLX_CQ_ALLOC_TYPE`:
//!
//! | value | pages |
//! |---|---|
//! | `HUGE` | huge pages; without them, the queue is not created |
//! | `PREFER_HUGE`, `ALL` | huge pages where available, otherwise normal pages |
//! | `CONTIG` | contiguous pages, which kernels no longer support: the queue is not created |
//! | others | normal pages |
//!
//! # Safety
//! Memory goes back to its allocator once neither this process nor the device uses it. This is
//! never before the kernel has confirmed the destruction of the object. Without that confirmation,
//! the object's memory never goes back.
#![allow(unsafe_code)]

use core::fmt;
use core::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use uverbs_abi::ib_user_ioctl_verbs::RdmaDriverId;
use verbs_core::fork::Excluded;
use verbs_core::provider::{QueueAllocator, QueueMemory as Reply};
use verbs_core::ring::{Region, page_size};
use verbs_core::{Errno, environment, room};

/// A parent domain's allocator.
pub(crate) type Allocator = Arc<dyn QueueAllocator>;

/// The object that uses the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// The queues of a queue pair.
    Qp = 1,
    /// A work queue.
    Wq = 2,
    /// Doorbell records.
    Records = 3,
    /// A shared receive queue.
    Srq = 4,
    /// A completion queue.
    Cq = 5,
}

impl Resource {
    /// Returns the resource type to pass to the allocator.
    const fn resource_type(self) -> u64 {
        (RdmaDriverId::RDMA_DRIVER_MLX5.0 as u64) << 32 | self as u64
    }

    /// Returns the environment variable that selects the queue's pages, if any.
    const fn variable(self) -> Option<&'static str> {
        match self {
            Self::Qp => Some("MLX_QP_ALLOC_TYPE"),
            Self::Wq => Some("MLX_RWQ_ALLOC_TYPE"),
            Self::Srq => Some("MLX_SRQ_ALLOC_TYPE"),
            Self::Cq => Some("MLX_CQ_ALLOC_TYPE"),
            Self::Records => None,
        }
    }
}

/// The kind of pages for a queue's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    Usual,
    Huge,
    PreferHuge,
    Contiguous,
}

impl Pages {
    fn parse(value: Option<&str>) -> Self {
        match value.map(str::to_ascii_uppercase).as_deref() {
            Some("HUGE") => Self::Huge,
            Some("PREFER_HUGE" | "ALL") => Self::PreferHuge,
            Some("CONTIG") => Self::Contiguous,
            _ => Self::Usual,
        }
    }

    fn allocate(self, len: usize) -> Result<Region, Errno> {
        match self {
            Self::Usual => Region::anonymous(len),
            Self::Huge => Region::huge(len),
            Self::PreferHuge => Region::huge(len).or_else(|_| Region::anonymous(len)),
            Self::Contiguous => Err(Errno::NOMEM),
        }
    }
}

/// Memory from a program's allocator. Dropping this value frees the memory, unless the device uses
/// it.
pub(crate) struct AllocatorMemory {
    allocator: Allocator,
    memory: NonNull<u8>,
    kind: Resource,
    is_known: AtomicBool,
}

// SAFETY: `memory` blocked the auto impls. This value frees it and does not access it.
unsafe impl Send for AllocatorMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for AllocatorMemory {}

impl AllocatorMemory {
    /// Allocates `len` bytes from an allocator. Returns `None` if the allocator leaves the
    /// allocation to the provider.
    ///
    /// # Errors
    /// `ENOMEM` if the allocator has no memory.
    pub(crate) fn new(
        allocator: &Allocator,
        kind: Resource,
        len: usize,
        alignment: usize,
    ) -> Result<Option<(Region, Arc<Self>)>, Errno> {
        let memory = match allocator.alloc(len, alignment, kind.resource_type()) {
            Reply::Default => return Ok(None),
            Reply::Exhausted => return Err(Errno::NOMEM),
            Reply::Own(memory) => memory,
        };
        let allocator = Arc::clone(allocator);
        let lent = Arc::new(Self { allocator, memory, kind, is_known: AtomicBool::new(false) });
        // SAFETY: the allocator promises this many bytes, used by nothing else until they are
        // freed. The value kept by the region frees them.
        let region = unsafe { Region::lent(memory, len, Arc::clone(&lent) as _) };
        Ok(Some((region, lent)))
    }

    /// Records whether the device uses the memory.
    pub(crate) fn set_known(&self, is_known: bool) {
        self.is_known.store(is_known, Ordering::Release);
    }
}

impl Drop for AllocatorMemory {
    fn drop(&mut self) {
        if !self.is_known.load(Ordering::Acquire) {
            // SAFETY: the memory belongs to the allocator. Its last region is gone, and so are the
            // accesses of this process and of the device.
            unsafe { self.allocator.free(self.memory, self.kind.resource_type()) };
        }
    }
}

impl fmt::Debug for AllocatorMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllocatorMemory").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// A queue's memory. Like registered memory, it is excluded from forks.
#[derive(Debug)]
pub(crate) struct QueueMemory {
    _excluded: Excluded,
    region: Region,
    /// The program's memory, if an allocator provided it.
    lent: Option<Arc<AllocatorMemory>>,
}

impl QueueMemory {
    /// Allocates at least `len` bytes of zeroed memory, in separate pages, because the kernel pins
    /// whole pages.
    ///
    /// # Errors
    /// `ENOMEM`; any errno from excluding the pages from forks.
    pub(crate) fn new(len: usize) -> Result<Self, Errno> {
        Self::over(Region::anonymous(in_pages(len))?, None)
    }

    /// Allocates memory for an object's queues, from a parent domain's allocator or else in the
    /// pages the environment selects. Also checks that the process can allocate `records` more
    /// bytes, which the caller needs for the queue's records once the object exists.
    ///
    /// # Errors
    /// Same as [`new`](Self::new); `ENOMEM` if the allocator has no memory, or the process cannot
    /// allocate the records.
    pub(crate) fn for_object(
        allocator: Option<&Allocator>,
        kind: Resource,
        len: usize,
        records: usize,
    ) -> Result<Self, Errno> {
        let len = in_pages(len);
        let memory = Self::of_pages(allocator, kind, len)?;
        check_records(records)?;
        Ok(memory)
    }

    fn of_pages(allocator: Option<&Allocator>, kind: Resource, len: usize) -> Result<Self, Errno> {
        if let Some(allocator) = allocator
            && let Some((region, lent)) = AllocatorMemory::new(allocator, kind, len, page_size())?
        {
            return Self::over(region, Some(lent));
        }
        let value = kind.variable().and_then(environment::variable);
        let pages = if allocator.is_some() { Pages::Usual } else { Pages::parse(value.as_deref()) };
        Self::over(pages.allocate(len)?, None)
    }

    fn over(region: Region, lent: Option<Arc<AllocatorMemory>>) -> Result<Self, Errno> {
        let len = region.len();
        let excluded = Excluded::new(region.pointer(0, len).as_ptr(), len)?;
        Ok(Self { _excluded: excluded, region, lent })
    }

    /// Returns memory for a test, unknown to any device.
    pub(crate) const fn of_test(region: Region) -> Self {
        Self { _excluded: Excluded::NONE, region, lent: None }
    }

    /// Returns the memory region.
    pub(crate) const fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the memory's address, as passed in commands to the kernel.
    pub(crate) fn address(&self) -> u64 {
        self.region.pointer(0, self.region.len()).addr().get() as u64
    }

    /// Records whether the device uses the memory, which it does from the creation of the object
    /// until the kernel confirms the object's destruction.
    pub(crate) fn set_known(&self, is_known: bool) {
        if let Some(lent) = &self.lent {
            lent.set_known(is_known);
        }
    }
}

/// Checks that the process can allocate `len` bytes for records, in addition to the small
/// allocations of the current call.
///
/// # Errors
/// `ENOMEM` if memory is short.
pub(crate) fn check_records(len: usize) -> Result<(), Errno> {
    room::check(room::CALL.saturating_add(len))
}

/// Rounds a length up to whole pages.
fn in_pages(len: usize) -> usize {
    len.max(1).next_multiple_of(page_size())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::process::Command;
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::doorbell::dbrec::RecordPool;

    /// Runs the test `name` in another process and executes `body` only there, because the memory
    /// limit that `body` sets for its process would make other tests fail.
    pub(crate) fn in_a_process_of_its_own(name: &str, body: impl FnOnce()) {
        const MARK: &str = "MLX5_TEST_IS_SHORT_OF_MEMORY";
        if std::env::var_os(MARK).is_some() {
            others_sleep();
            return body();
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        // Only one test, because a parallel test would allocate memory.
        command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
        let output = command.env(MARK, "1").output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && stdout.contains("1 passed"), "{output:?}");
    }

    /// Waits until all other threads sleep. The test harness's thread allocates until it waits for
    /// the test. On a busy machine, this wait may start late.
    fn others_sleep() {
        let deadline = Instant::now() + Duration::from_secs(60);
        let own = std::fs::read_link("/proc/thread-self").unwrap();
        let sleeps = |task: std::io::Result<std::fs::DirEntry>| {
            let path = task.unwrap().path();
            let stat = std::fs::read_to_string(path.join("stat")).unwrap();
            path.file_name() == own.file_name()
                || stat.rsplit(") ").next().is_some_and(|state| state.starts_with('S'))
        };
        while !std::fs::read_dir("/proc/self/task").unwrap().all(sleeps) {
            assert!(Instant::now() < deadline, "a thread does not sleep");
            std::thread::yield_now();
        }
    }

    /// Calls a function while the process can allocate at most `spare` bytes.
    pub(crate) fn with_no_more_than<R>(spare: usize, call: impl FnOnce() -> R) -> R {
        let mut taken = Vec::<Vec<u8>>::with_capacity(100_000);
        let mut kept = Some(Vec::<u8>::with_capacity(spare));
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the calls read and write a struct of this function.
        let set = |limit: &libc::rlimit| unsafe { libc::setrlimit(libc::RLIMIT_AS, limit) };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) }, 0);
        assert_eq!(set(&libc::rlimit { rlim_cur: 0, ..limit }), 0);
        let mut size = 1 << 22;
        while size >= 64 && taken.len() < taken.capacity() {
            let mut piece = Vec::new();
            match piece.try_reserve_exact(size) {
                Ok(()) => taken.push(piece),
                Err(_) => size /= 2,
            }
        }
        kept.take();
        let result = call();
        taken.clear();
        assert_eq!(set(&limit), 0);
        result
    }

    /// An allocator that logs its calls and returns results set by a test.
    #[derive(Debug)]
    struct Heap {
        reply: fn() -> Reply,
        log: Mutex<Vec<(&'static str, usize, u64)>>,
    }

    fn layout() -> Layout {
        Layout::from_size_align(page_size(), page_size()).unwrap()
    }

    // SAFETY: each call gets a whole page from the heap and requests no more than a page.
    unsafe impl QueueAllocator for Heap {
        fn alloc(&self, size: usize, alignment: usize, resource_type: u64) -> Reply {
            assert!(size <= page_size() && alignment <= page_size());
            self.log.lock().unwrap().push(("alloc", size, resource_type));
            (self.reply)()
        }

        unsafe fn free(&self, memory: NonNull<u8>, resource_type: u64) {
            self.log.lock().unwrap().push(("free", 0, resource_type));
            // SAFETY: the memory comes from `alloc`.
            unsafe { dealloc(memory.as_ptr(), layout()) };
        }
    }

    /// Returns a reply with a page from the heap.
    fn page() -> Reply {
        // SAFETY: the layout has bytes.
        Reply::Own(NonNull::new(unsafe { alloc_zeroed(layout()) }).unwrap())
    }

    fn heap(reply: fn() -> Reply) -> (Arc<Heap>, Allocator) {
        let heap = Arc::new(Heap { reply, log: Mutex::default() });
        (Arc::clone(&heap), heap)
    }

    #[test]
    fn memory_of_an_allocator_goes_back_when_nothing_has_it() {
        let (heap, allocator) = heap(page);
        let memory = QueueMemory::for_object(Some(&allocator), Resource::Cq, 100, 0).unwrap();
        assert_eq!(memory.region().len(), page_size());
        let region = memory.region().clone();
        memory.set_known(true);
        memory.set_known(false);
        drop(memory);
        assert_eq!(heap.log.lock().unwrap()[..], [("alloc", page_size(), 1 << 32 | 5)]);
        drop(region);
        assert_eq!(heap.log.lock().unwrap()[1..], [("free", 0, 1 << 32 | 5)]);
    }

    #[test]
    fn memory_that_the_device_knows_does_not_go_back() {
        let (heap, allocator) = heap(page);
        let memory = QueueMemory::for_object(Some(&allocator), Resource::Qp, 1, 0).unwrap();
        memory.set_known(true);
        let address = memory.region().pointer(0, 1);
        drop(memory);
        assert_eq!(heap.log.lock().unwrap().len(), 1);
        // SAFETY: the memory comes from `alloc`, and no device has it.
        unsafe { allocator.free(address, Resource::Qp.resource_type()) };
    }

    #[test]
    fn an_allocator_may_leave_memory_to_the_provider_or_have_none() {
        let (_, default) = heap(|| Reply::Default);
        assert!(QueueMemory::for_object(Some(&default), Resource::Srq, 1, 0).unwrap().lent.is_none());
        let (_, exhausted) = heap(|| Reply::Exhausted);
        let none = QueueMemory::for_object(Some(&exhausted), Resource::Srq, 1, 0);
        assert_eq!(none.map(drop), Err(Errno::NOMEM));
    }

    #[test]
    fn memory_of_an_allocator_needs_none_of_the_process_and_records_do() {
        /// An allocator that reports success for any length, even beyond the address space.
        #[derive(Debug)]
        struct Vast;

        // SAFETY: the test accesses no byte.
        unsafe impl QueueAllocator for Vast {
            fn alloc(&self, _: usize, _: usize, _: u64) -> Reply {
                Reply::Own(NonNull::<u64>::dangling().cast())
            }

            unsafe fn free(&self, _: NonNull<u8>, _: u64) {}
        }

        let vast: Allocator = Arc::new(Vast);
        let made = |len, records| QueueMemory::for_object(Some(&vast), Resource::Qp, len, records);
        assert!(made(1 << 50, 4096).is_ok());
        assert_eq!(made(4096, 1 << 50).map(drop), Err(Errno::NOMEM));
    }

    #[test]
    fn records_in_memory_of_an_allocator_are_cleared() {
        let (_, allocator) = heap(|| {
            let Reply::Own(page) = page() else { panic!("no page") };
            // SAFETY: the page is new and has this length.
            unsafe { page.write_bytes(0xff, page_size()) };
            Reply::Own(page)
        });
        let slot = Arc::new(RecordPool::default()).take_for(Some(&allocator)).unwrap();
        // SAFETY: the records are two words, unknown to any device.
        assert_eq!(unsafe { slot.direct().cast::<[u32; 3]>().read() }, [0, 0, u32::MAX]);
    }

    #[test]
    fn the_pages_are_those_of_the_environment() {
        for (value, pages) in [
            (None, Pages::Usual),
            (Some("ANON"), Pages::Usual),
            (Some("huge"), Pages::Huge),
            (Some("PREFER_HUGE"), Pages::PreferHuge),
            (Some("ALL"), Pages::PreferHuge),
            (Some("CONTIG"), Pages::Contiguous),
            (Some("PREFER_CONTIG"), Pages::Usual),
        ] {
            assert_eq!(Pages::parse(value), pages, "{value:?}");
        }
        assert_eq!(Pages::Contiguous.allocate(1).map(drop), Err(Errno::NOMEM));
        assert!(Pages::PreferHuge.allocate(page_size()).is_ok());
    }
}
