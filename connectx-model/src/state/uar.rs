//! [`Uars`]: stores to doorbell registers that affect later stores.

use std::collections::BTreeMap;

use roce::engine::Time;

/// Past stores to the UAR pages that affect later stores.
#[derive(Debug, Default)]
pub(crate) struct Uars {
    /// By page: the offset of the first half of a doorbell and its 4 bytes.
    pub(crate) half_stores: BTreeMap<u32, (u64, [u8; 4])>,
    /// The registers by page and number.
    pub(crate) registers: BTreeMap<(u32, u64), Register>,
}

/// A doorbell register.
#[derive(Debug)]
pub(crate) struct Register {
    /// The half the last store went to.
    pub(crate) half: u64,
    /// The bytes stored in that half so far.
    pub(crate) stored: Vec<u8>,
    /// Length of a complete BlueFlame store.
    pub(crate) whole: usize,
    /// The fetched work request; empty if none was fetched.
    pub(crate) fetched: Vec<u8>,
    /// Whether the doorbell also announced earlier work requests.
    pub(crate) several: bool,
    /// The latest time when a held NOP rings; `None` once it has rung.
    pub(crate) held_until: Option<Time>,
    /// Whether the rest of the block is ignored, because the NOP rang before the block was complete
    /// or the store was rejected.
    pub(crate) let_go: bool,
    /// The doorbell record's value at the time of the store. The record may have advanced before
    /// the NOP rings.
    pub(crate) head: Option<u16>,
}

/// The work requests a doorbell announced.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    /// The last work request, as read from the queue; empty if it is unreadable or in an Ethernet
    /// queue.
    pub(crate) last: Vec<u8>,
    /// Whether there were other work requests before the last one.
    pub(crate) several: bool,
}
