//! The ways to notify the device of new requests: [`Record`]s in memory and a [`BlueFlame`]
//! register.
//!
//! ```text
//!   requests ──► to_device ──► record ──► mmio_wc_start ──► register ──► flush_wc ──► other half
//! ```
//!
//! docs/barriers.md describes the ordering of each step, with the instructions for each
//! architecture.
//!
//! A register has two halves of `size` bytes, used alternately, because the processor may still
//! hold stores to one half while the next doorbell goes to the other. A half takes either the first
//! 8 bytes of the last request, or a whole request that fits into the half.
//!
//! # Safety
//! A record or a register points into a [`Region`] that it keeps alive. The callers of `new`
//! guarantee that no other code accesses it. The callers of the ringing functions guarantee that
//! the requests behind the doorbell are complete.
//!
//! # References
//! rdma-core `providers/mlx5/qp.c` (`post_send_db`), `util/mmio.h` (`mmio_memcpy_x64`)
#![allow(unsafe_code)]

pub(crate) mod dbrec;
pub(crate) mod registers;
pub(crate) mod uar;

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use verbs_core::ring::{Region, barrier};

use crate::wqe::BLOCK;

/// A big-endian word in memory that holds a queue's counter for the device to read.
#[derive(Clone)]
pub(crate) struct Record {
    word: NonNull<u32>,
    _region: Region,
}

// SAFETY: `word` blocked the auto impls. It points into `_region`, which is `Send + Sync` and lives
// as long; it is accessed as an atomic.
unsafe impl Send for Record {}
// SAFETY: as for `Send`.
unsafe impl Sync for Record {}

impl Record {
    /// Returns the record at byte `offset` of a region.
    ///
    /// # Safety
    /// As long as the record lives, this process accesses the word only through records, and the
    /// record's owner stores only the counters of its queue.
    ///
    /// # Panics
    /// If the word does not lie within the region, or is not aligned.
    pub(crate) unsafe fn new(region: &Region, offset: usize) -> Self {
        let word = region.pointer(offset, size_of::<u32>());
        assert!(word.addr().get().is_multiple_of(align_of::<u32>()), "a record at {offset} is not aligned");
        Self { word: word.cast(), _region: region.clone() }
    }

    #[inline(always)]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: aligned and within the region (`new`), which lives as long; all accesses of this
        // process are atomic.
        unsafe { AtomicU32::from_ptr(self.word.as_ptr()) }
    }

    /// Stores a counter, after all reads by this thread: the device may write into the memory the
    /// counter hands over. The caller has used [`barrier::to_device`] to order the writes that the
    /// counter announces; this barrier does not order reads.
    #[inline(always)]
    pub(crate) fn store(&self, counter: u32) {
        self.word().store(counter.to_be(), Ordering::Release);
    }

    /// Returns the counter.
    #[inline(always)]
    pub(crate) fn load(&self) -> u32 {
        u32::from_be(self.word().load(Ordering::Acquire))
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record({})", self.load())
    }
}

/// A doorbell register for sends: dedicated to one queue, or shared between queues and used only
/// for doorbells.
pub(crate) struct BlueFlame {
    /// The address of the half to use next. The register is aligned to its own size.
    half: NonNull<u8>,
    /// The size of a half, in bytes: a power of two that is at least 8; 0 for a register without
    /// halves.
    size: usize,
    /// The size of the longest request that fits into a half, in units of 16 bytes; 0 if the
    /// register takes only doorbells.
    pub(crate) max_units: u32,
    _region: Region,
}

// SAFETY: `half` blocked the auto impls. It points into `_region`, which is `Send + Sync` and lives
// as long; it is written only through `&mut`.
unsafe impl Send for BlueFlame {}
// SAFETY: as for `Send`.
unsafe impl Sync for BlueFlame {}

impl BlueFlame {
    /// Returns the register at byte `offset` of a page of registers, with halves of `size` bytes,
    /// or without halves if `size` is 0. `takes_requests` indicates whether whole requests may be
    /// stored into the register.
    ///
    /// # Safety
    /// While this value lives, its owner rings only for requests in its own queue. No other code in
    /// this process accesses the register, except other values of this type if the register takes
    /// no requests.
    ///
    /// # Panics
    /// If the register does not lie within the region, is not aligned to its size, or the size of a
    /// half is not a power of two of at least 8 bytes.
    pub(crate) unsafe fn new(region: &Region, offset: usize, size: usize, takes_requests: bool) -> Self {
        let is_size = size == 0 || size.is_power_of_two() && size >= size_of::<u64>();
        assert!(is_size, "halves of {size} bytes");
        let len = (2 * size).max(size_of::<u64>());
        let half = region.pointer(offset, len);
        assert!(half.addr().get().is_multiple_of(len), "a register at {offset} is not aligned");
        let units = if takes_requests && size >= BLOCK { size / crate::wqe::UNIT } else { 0 };
        Self { half, size, max_units: units as u32, _region: region.clone() }
    }

    /// Rings the register with the first 8 bytes of a request, given as a number.
    #[inline(always)]
    pub(crate) fn ring(&mut self, head: u64) {
        barrier::mmio_wc_start();
        // SAFETY: aligned and within the region; a shared register is accessed only by such stores.
        unsafe { store(self.half.cast(), head) };
        self.done();
    }

    /// Rings with a whole one-block request.
    ///
    /// # Safety
    /// Same as [`ring_request`](Self::ring_request).
    #[inline(always)]
    pub(crate) unsafe fn ring_block(&mut self, at: NonNull<u8>) {
        barrier::mmio_wc_start();
        // SAFETY: the caller's promise.
        unsafe { copy_block(at, self.half) };
        self.done();
    }

    /// Rings with a whole request of `units` units. Its blocks begin at `at` and wrap from the
    /// queue's `end` to its `start`.
    ///
    /// # Safety
    /// `at` is a block of the queue, the request has at most [`max_units`](Self::max_units), and
    /// nothing writes to it.
    #[inline(always)]
    pub(crate) unsafe fn ring_request(
        &mut self,
        at: NonNull<u8>,
        start: NonNull<u8>,
        end: NonNull<u8>,
        units: u32,
    ) {
        barrier::mmio_wc_start();
        // SAFETY: the caller's promise: a request has at least one block.
        unsafe {
            copy_block(at, self.half);
            if units > 4 {
                self.copy_rest(at, start, end, units);
            }
        }
        self.done();
    }

    /// Copies a request's blocks, except the first, into the current half.
    ///
    /// # Safety
    /// Same as [`ring_request`](Self::ring_request).
    #[inline(never)]
    unsafe fn copy_rest(&self, at: NonNull<u8>, start: NonNull<u8>, end: NonNull<u8>, units: u32) {
        let (mut from, mut to) = (at, self.half);
        for _ in 1..units.div_ceil(4) {
            // SAFETY: `from` stays below the queue's end, and `to` within the half, which has room
            // for `max_units`.
            unsafe {
                from = from.add(BLOCK);
                from = if from == end { start } else { from };
                to = to.add(BLOCK);
                copy_block(from, to);
            }
        }
    }

    #[inline(always)]
    fn done(&mut self) {
        barrier::flush_wc();
        // The address of the other half differs in one bit, because the register is aligned.
        self.half = self.half.map_addr(|half| {
            // SAFETY: the first half starts at a nonzero multiple of both sizes (`new`), so neither
            // half starts at 0.
            unsafe { core::num::NonZero::new_unchecked(half.get() ^ self.size) }
        });
    }
}

/// Stores a number into a register with a single store.
///
/// # Safety
/// The register is mapped and aligned. During the call, other threads access it only through such
/// stores.
#[inline(always)]
unsafe fn store(register: NonNull<u64>, value: u64) {
    // SAFETY: the caller's promise.
    let register = unsafe { AtomicU64::from_ptr(register.as_ptr()) };
    register.store(value.to_be(), Ordering::Relaxed);
}

/// The register for requesting completion queue events, shared by the whole context.
pub(crate) struct ArmRegister {
    register: NonNull<u64>,
    _region: Region,
}

// SAFETY: `register` blocked the auto impls. It points into `_region`, which is `Send + Sync` and
// lives as long; it is rung by single atomic stores.
unsafe impl Send for ArmRegister {}
// SAFETY: as for `Send`.
unsafe impl Sync for ArmRegister {}

impl ArmRegister {
    /// Returns the register at byte `offset` of a page of registers.
    ///
    /// # Safety
    /// While this value lives, this process accesses the register only through values of this type.
    ///
    /// # Panics
    /// If the register does not lie within the region, or is not aligned to 8 bytes.
    pub(crate) unsafe fn new(region: &Region, offset: usize) -> Self {
        let register = region.pointer(offset, size_of::<u64>());
        let is_aligned = register.addr().get().is_multiple_of(align_of::<u64>());
        assert!(is_aligned, "a register at {offset} is not aligned");
        Self { register: register.cast(), _region: region.clone() }
    }

    /// Requests an event with the doorbell record's word and the completion queue's number. The
    /// record must already hold the word.
    pub(crate) fn ring(&self, word: u32, cqn: u32) {
        barrier::mmio_wc_start();
        // SAFETY: mapped and aligned (`new`); this process accesses it only by such stores.
        unsafe { store(self.register, crate::wqe::pair(word, cqn)) };
        barrier::flush_wc();
    }
}

impl fmt::Debug for ArmRegister {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArmRegister").finish_non_exhaustive()
    }
}

/// Copies a block into a register, in ascending order, as the device requires.
///
/// # Safety
/// `from` is a block of a queue; `to` is a block of a register owned by the caller.
#[inline(always)]
unsafe fn copy_block(from: NonNull<u8>, to: NonNull<u8>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: 64 bytes are readable and writable by the caller's promise; SSE2 is part of x86-64.
    // The processor may execute each store as one of 16 bytes, and write combining joins the four.
    unsafe {
        core::arch::asm!(
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            from = in(reg) from.as_ptr(),
            to = in(reg) to.as_ptr(),
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
    // Stores of 8 bytes rarely become one packet on newer processors, whose write combining depends
    // on the instructions. A single 64-byte store does. The kernel's test of write combining also
    // uses one.
    #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
    // SAFETY: 64 bytes are readable and writable by the caller's promise; the target has NEON.
    unsafe {
        core::arch::asm!(
            "ld1 {{v0.16b, v1.16b, v2.16b, v3.16b}}, [{from}]",
            "st1 {{v0.16b, v1.16b, v2.16b, v3.16b}}, [{to}]",
            from = in(reg) from.as_ptr(),
            to = in(reg) to.as_ptr(),
            out("v0") _,
            out("v1") _,
            out("v2") _,
            out("v3") _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_feature = "neon"))))]
    for at in 0..BLOCK / size_of::<u64>() {
        // SAFETY: as above.
        unsafe { to.cast::<u64>().add(at).write_volatile(from.cast::<u64>().add(at).read()) };
    }
}

impl fmt::Debug for BlueFlame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlueFlame")
            .field("size", &self.size)
            .field("half", &self.half)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use core::ptr;

    use super::*;

    /// Copies a block to an address with `room` writable bytes before unwritable memory, in a child
    /// process that is killed by the attempt. Returns the contents of those bytes afterwards; they
    /// were 0xee before.
    fn stored(block: &[u8; BLOCK], room: usize) -> Vec<u8> {
        const PAGE: usize = 4096;
        // SAFETY: a new mapping of two pages shared by both processes. The child only stores into
        // it and calls nothing except `setrlimit` and `_exit`.
        unsafe {
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
            let start = libc::mmap(ptr::null_mut(), 2 * PAGE, access, kind, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            let end = start.byte_add(PAGE);
            assert_eq!(libc::mprotect(end, PAGE, libc::PROT_NONE), 0);
            let to = end.byte_sub(room).cast::<u8>();
            to.write_bytes(0xee, room);
            let child = libc::fork();
            assert!(child >= 0, "fork failed");
            if child == 0 {
                // The child is killed on purpose and leaves no core dump.
                let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
                copy_block(NonNull::from(block).cast(), NonNull::new_unchecked(to));
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert_eq!(status == 0, room == BLOCK, "{room} bytes");
            let stored = core::slice::from_raw_parts(to, room).to_vec();
            assert_eq!(libc::munmap(start, 2 * PAGE), 0);
            stored
        }
    }

    #[test]
    fn a_block_is_stored_from_its_first_bytes_to_its_last() {
        let block = core::array::from_fn(|n| n as u8);
        // A store before the limit can only have happened before all stores beyond the limit.
        for room in [16, 32, 48, BLOCK] {
            assert_eq!(stored(&block, room), block[..room], "{room} bytes");
        }
    }
}
