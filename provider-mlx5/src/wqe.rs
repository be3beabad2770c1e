//! Work queue entries in the device's format: 16-byte segments of big-endian words.
//!
//! ```text
//!   send     control │ [XRC] │ [remote address │ [atomic]] or [datagram] │ data or inline
//!   frame    control │ Ethernet, with the frame's header │ data or inline
//!   receive  data │ data │ ... │ terminator, if the list is shorter than the entry
//!   tag      control │ tag (two units) │ data or terminator, if a tag is added
//!   shared   link │ data │ data │ ... │ terminator, as above
//! ```
//!
//! A send queue counts *basic blocks* of 64 bytes. An entry starts at a block and wraps at the end
//! of the queue, between segments or inside inline data. Its size, `ds`, counts 16-byte units.
//!
//! # Safety
//! The functions store into units of a queue that their callers have reserved. The device does not
//! read these units before the doorbell record covers the entry.
//!
//! # References
//! rdma-core `providers/mlx5/wqe.h`, `mlx5dv.h`; Linux `include/linux/mlx5/qp.h`
#![allow(unsafe_code)]

use core::ptr::NonNull;

use verbs_core::types::Sge;

/// The size of a send queue's basic block, in bytes.
pub(crate) const BLOCK: usize = 64;

/// The unit of an entry's size, in bytes.
pub(crate) const UNIT: usize = 16;

/// The size of a datagram's address vector in an entry, in bytes.
pub(crate) const AV_LEN: usize = 48;

/// The values of `opcode` in a control segment.
pub(crate) mod opcode {
    pub(crate) const SEND_INVAL: u8 = 0x01;
    pub(crate) const RDMA_WRITE: u8 = 0x08;
    pub(crate) const RDMA_WRITE_IMM: u8 = 0x09;
    pub(crate) const SEND: u8 = 0x0a;
    pub(crate) const SEND_IMM: u8 = 0x0b;
    pub(crate) const TSO: u8 = 0x0e;
    pub(crate) const RDMA_READ: u8 = 0x10;
    pub(crate) const ATOMIC_CS: u8 = 0x11;
    pub(crate) const ATOMIC_FA: u8 = 0x12;
    pub(crate) const UMR: u8 = 0x25;
    pub(crate) const TAG_MATCHING: u8 = 0x28;
}

/// Constants of the two-unit segment that changes a tag list, and of tag matching completions.
pub(crate) mod tag {
    use super::{Words, pair};

    /// The operations in the segment's `opcode`.
    pub(crate) const NOOP: u8 = 0;
    pub(crate) const APPEND: u8 = 1;
    pub(crate) const REMOVE: u8 = 2;

    /// The bit of `flags` for a valid count of unexpected messages.
    const COUNT_IS_VALID: u8 = 1 << 6;
    /// The bit of `flags` that requests a completion.
    const COMPLETES: u8 = 1 << 7;

    /// The value of `app` in a tag matching completion.
    pub(crate) const APP: u8 = 1;

    /// The values of `app_op` in tag matching completions.
    pub(crate) mod done {
        /// A message matched; its data follows.
        pub(crate) const CONSUMED: u8 = 0x1;
        /// The data of a message has arrived.
        pub(crate) const EXPECTED: u8 = 0x2;
        pub(crate) const UNEXPECTED: u8 = 0x3;
        pub(crate) const NO_TAG: u8 = 0x4;
        pub(crate) const APPEND: u8 = 0x5;
        pub(crate) const REMOVE: u8 = 0x6;
        pub(crate) const NOOP: u8 = 0x7;
        /// Same as `CONSUMED`, for a rendezvous the program executes.
        pub(crate) const CONSUMED_SOFTWARE: u8 = 0x9;
        /// A message matched, and its data has arrived.
        pub(crate) const CONSUMED_MESSAGE: u8 = 0xa;
        /// A rendezvous request matched and is in memory; the program executes it.
        pub(crate) const CONSUMED_MESSAGE_SOFTWARE: u8 = 0xb;
        /// A message matched, and its data will not arrive.
        pub(crate) const CANCELED: u8 = 0xc;
    }

    /// The options of a tag list operation.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Operation {
        pub(crate) is_signaled: bool,
        /// The number of unexpected messages the program has handled, to be reported to the device.
        pub(crate) handled: Option<u16>,
    }

    /// Returns the segment for a tag list operation.
    pub(crate) fn segment(opcode: u8, operation: Operation, index: u16, tag: u64, mask: u64) -> [Words; 2] {
        let Operation { is_signaled, handled } = operation;
        let completes = if is_signaled { COMPLETES } else { 0 };
        let flags = completes | if handled.is_some() { COUNT_IS_VALID } else { 0 };
        let first = (opcode as u32) << 28 | (flags as u32) << 16 | index as u32;
        [[pair(first, handled.unwrap_or(0).into()), 0], [tag, mask]]
    }
}

/// The offset of `fm_ce_se` in a control segment.
pub(crate) const FM_CE_SE: usize = 11;

/// The bits of `fm_ce_se` in a control segment.
pub(crate) mod control {
    /// Raise a solicited event at the receiver.
    pub(crate) const SOLICITED: u8 = 0x02;
    /// Generate a completion even on success.
    pub(crate) const CQ_UPDATE: u8 = 0x08;
    /// Wait for the preceding local operations.
    pub(crate) const INITIATOR_SMALL_FENCE: u8 = 0x20;
    /// Wait for the preceding reads and atomics.
    pub(crate) const FENCE: u8 = 0x80;
}

/// The bit of `byte_count` in a data segment that holds inline data.
pub(crate) const INLINE: u32 = 1 << 31;

/// The `lkey` in the data segment that ends a receive list.
pub(crate) const INVALID_LKEY: u32 = 0x100;

/// A 16-byte unit as two numbers, each stored big-endian.
pub(crate) type Words = [u64; 2];

/// Joins two 32-bit numbers; `first` is stored first.
#[inline(always)]
pub(crate) const fn pair(first: u32, second: u32) -> u64 {
    ((first as u64) << 32) | second as u64
}

/// Stores a control segment from words in device format: the block and the operation, the queue
/// pair's number and the size, the flags, and the immediate data. The first 8 bytes are also the
/// value of the doorbell.
///
/// # Safety
/// Same as [`store`].
#[inline(always)]
pub(crate) unsafe fn store_control(at: NonNull<u8>, index_opcode: u32, qpn_ds: u32, flags_imm: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        at.cast::<[u32; 2]>().write([index_opcode, qpn_ds]);
        at.add(8).cast::<u64>().write(flags_imm);
    }
}

/// Joins two words that are adjacent in memory.
#[inline(always)]
pub(crate) const fn joined(first: u32, second: u32) -> u64 {
    if cfg!(target_endian = "little") { pair(second, first) } else { pair(first, second) }
}

/// Returns the first 8 bytes of an entry, as a number.
///
/// # Safety
/// This thread has stored a whole entry at `at`.
#[inline(always)]
pub(crate) unsafe fn head(at: NonNull<u8>) -> u64 {
    // SAFETY: the caller's promise.
    u64::from_be(unsafe { at.cast::<u64>().read() })
}

/// Returns the number of units in an entry.
///
/// # Safety
/// Same as [`head`].
#[inline(always)]
pub(crate) unsafe fn size(at: NonNull<u8>) -> u32 {
    // The last of the 8 bytes has 6 bits of size.
    // SAFETY: the caller's promise.
    u32::from(unsafe { at.add(7).read() } & 0x3f)
}

/// Returns a remote address segment.
#[inline(always)]
pub(crate) const fn remote(remote_addr: u64, rkey: u32) -> Words {
    [remote_addr, pair(rkey, 0)]
}

/// Returns a data segment.
#[inline(always)]
pub(crate) const fn data(sge: &Sge) -> Words {
    [pair(sge.length, sge.lkey), sge.addr]
}

/// The data segment at the end of a list shorter than its entry.
pub(crate) const TERMINATOR: Words = [pair(0, INVALID_LKEY), 0];

/// Returns the segment that links to the next entry of a shared receive queue.
#[inline(always)]
pub(crate) const fn link(next: u32) -> Words {
    [pair(next & 0xffff, 0), 0]
}

/// Stores one unit.
///
/// # Safety
/// The 16 bytes at `at` are writable and aligned to 8. Nothing else accesses them during the call.
#[inline(always)]
pub(crate) unsafe fn store(at: NonNull<u8>, words: Words) {
    // SAFETY: the caller's promise.
    unsafe { at.cast::<Words>().write([words[0].to_be(), words[1].to_be()]) }
}

/// Stores 1 to 44 bytes of inline data with their header. Returns the number of units.
///
/// # Safety
/// The units are writable, and nothing else accesses them during the call; `length` bytes are
/// readable at `from`.
#[inline(always)]
pub(crate) unsafe fn store_inline(at: NonNull<u8>, from: *const u8, length: u32) -> u32 {
    let header = |length: u32| (INLINE | length).to_be();
    // SAFETY: the caller's promise.
    unsafe {
        let to = at.add(size_of::<u32>());
        // The most common length: everything except the data is constant.
        if length == 8 {
            at.cast::<u32>().write(header(8));
            copy_at::<u64>(from, to, 0);
            return inline_units(8);
        }
        at.cast::<u32>().write(header(length));
        copy_short(from, to, length as usize);
    }
    inline_units(length)
}

/// Copies 1 to 48 bytes inline, in chunks of fixed size, without calling `memcpy`. The chunks
/// overlap if their sizes do not add up to the length.
///
/// # Safety
/// `length` bytes are readable at `from` and writable at `to`; the two ranges do not overlap.
#[inline(always)]
unsafe fn copy_short(from: *const u8, to: NonNull<u8>, length: usize) {
    debug_assert!((1..=48).contains(&length), "{length} bytes");
    // SAFETY: each copy lies inside the `length` bytes, by the comparison before it.
    unsafe {
        if length >= 16 {
            copy_at::<u128>(from, to, 0);
            if length > 32 {
                copy_at::<u128>(from, to, 16);
            }
            copy_at::<u128>(from, to, length - 16);
        } else if length > 8 {
            copy_at::<u64>(from, to, 0);
            copy_at::<u64>(from, to, length - 8);
        } else if length >= 4 {
            copy_at::<u32>(from, to, 0);
            copy_at::<u32>(from, to, length - 4);
        } else {
            if length > 1 {
                copy_at::<u16>(from, to, 0);
            }
            copy_at::<u8>(from, to, length - 1);
        }
    }
}

/// Copies a number from byte `offset` of `from` to byte `offset` of `to`.
///
/// # Safety
/// The bytes of the number are readable and writable there, and the two ranges do not overlap.
#[inline(always)]
unsafe fn copy_at<T>(from: *const u8, to: NonNull<u8>, offset: usize) {
    // SAFETY: the caller's promise.
    unsafe { to.add(offset).cast::<T>().write_unaligned(from.add(offset).cast::<T>().read_unaligned()) };
}

/// Returns the number of units for `length` bytes of inline data.
#[inline(always)]
pub(crate) const fn inline_units(length: u32) -> u32 {
    // A shift, because division with rounding up takes more instructions.
    if length == 0 { 0 } else { (length + 4 + (UNIT as u32 - 1)) >> UNIT.trailing_zeros() }
}

/// The position of an entry's next segment in a send queue. At the end of the queue, it continues
/// at the start.
///
/// # Safety
/// `start..end` is the queue's memory, whose length is a multiple of [`BLOCK`]; `at` lies inside,
/// at a multiple of [`UNIT`]. The storing functions are unsafe: their callers have made sure that
/// the units belong to the entry.
pub(crate) struct Cursor {
    at: NonNull<u8>,
    start: NonNull<u8>,
    end: NonNull<u8>,
    /// The number of units stored, including the control segment.
    pub(crate) ds: u32,
}

impl Cursor {
    /// Returns a cursor at a unit of a queue.
    ///
    /// # Safety
    /// As stated in the type's documentation.
    pub(crate) const unsafe fn new(at: NonNull<u8>, start: NonNull<u8>, end: NonNull<u8>, ds: u32) -> Self {
        Self { at, start, end, ds }
    }

    #[inline(always)]
    fn wrap(&mut self) {
        if self.at == self.end {
            self.at = self.start;
        }
    }

    /// Stores one unit.
    ///
    /// # Safety
    /// The unit belongs to the entry, which the device does not read yet.
    #[inline(always)]
    pub(crate) unsafe fn put(&mut self, words: Words) {
        self.wrap();
        // SAFETY: `at` is below `end`, at a multiple of 16 bytes; the caller owns the unit.
        unsafe {
            store(self.at, words);
            self.at = self.at.add(UNIT);
        }
        self.ds += 1;
    }

    /// Stores a data segment per element of a list, except for empty elements.
    ///
    /// # Safety
    /// Same as [`put`](Self::put), for one unit per element.
    #[inline]
    pub(crate) unsafe fn put_list(&mut self, list: impl Iterator<Item = Sge>) {
        for sge in list {
            if sge.length > 0 {
                // SAFETY: the caller's promise.
                unsafe { self.put(data(&sge)) }
            }
        }
    }

    /// Stores the bytes of a list's elements as inline data, `length` bytes in total.
    ///
    /// # Safety
    /// Same as [`put`](Self::put), for the number of units that [`inline_units`] returns. The
    /// elements must refer to readable memory of this process, `length` bytes in total.
    pub(crate) unsafe fn put_inline(&mut self, list: impl Iterator<Item = Sge>, length: u32) {
        if length == 0 {
            return;
        }
        self.wrap();
        // SAFETY: `at` is the first byte of a unit belonging to the entry.
        unsafe { self.at.cast::<u32>().write((length | INLINE).to_be()) };
        // SAFETY: inside the same unit.
        let mut to = unsafe { self.at.add(size_of::<u32>()) };
        for sge in list {
            let mut from = core::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
            let mut left = sge.length as usize;
            while left > 0 {
                if to == self.end {
                    to = self.start;
                }
                // SAFETY: both lie in the queue's memory.
                let room = unsafe { self.end.offset_from_unsigned(to) };
                let count = left.min(room);
                // SAFETY: `count` bytes are readable by the caller's promise and lie before the end
                // of the queue in units of the entry. A list of the program does not overlap a
                // queue that only this provider can reach.
                unsafe {
                    core::ptr::copy_nonoverlapping(from, to.as_ptr(), count);
                    (from, to) = (from.add(count), to.add(count));
                }
                left -= count;
            }
        }
        let units = inline_units(length);
        self.ds += units;
        self.skip(units);
    }

    /// Moves past units that were stored.
    fn skip(&mut self, units: u32) {
        // SAFETY: both lie in the queue's memory.
        let (at, len) =
            unsafe { (self.at.offset_from_unsigned(self.start), self.end.offset_from_unsigned(self.start)) };
        let behind = (at + units as usize * UNIT) % len;
        // SAFETY: below the queue's length.
        self.at = unsafe { self.start.add(behind) };
    }
}
