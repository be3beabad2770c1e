//! [`Uars`]: the stores into doorbell registers that affect later ones.

use std::collections::BTreeMap;

use roce::engine::Time;

/// Past stores into the UAR pages that affect later ones.
#[derive(Debug, Default)]
pub(crate) struct Uars {
    /// By page: half of a doorbell, 4 of its 8 bytes, and its offset.
    pub(crate) half_stores: BTreeMap<u32, (u64, [u8; 4])>,
    /// By page and register.
    pub(crate) registers: BTreeMap<(u32, u64), Register>,
}

/// A doorbell register.
#[derive(Debug)]
pub(crate) struct Register {
    /// The half of the last store.
    pub(crate) half: u64,
    /// Bytes stored in that half so far.
    pub(crate) stored: Vec<u8>,
    /// Length of a complete BlueFlame store.
    pub(crate) whole: usize,
    /// The fetched work request; empty if none was fetched.
    pub(crate) fetched: Vec<u8>,
    /// Whether the doorbell announced work requests before that one.
    pub(crate) several: bool,
    /// The latest time to ring a held NOP; `None` once it has rung.
    pub(crate) held_until: Option<Time>,
    /// Whether the rest of the block is ignored, because the NOP rang before the block was complete
    /// or the store was rejected.
    pub(crate) let_go: bool,
    /// The doorbell record at the time of the store; it may have advanced before the ring.
    pub(crate) head: Option<u16>,
}

/// The work requests announced by a doorbell.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    /// The last one as read from the queue; empty if it is unreadable or in an Ethernet queue.
    pub(crate) last: Vec<u8>,
    /// Whether there were others before it.
    pub(crate) several: bool,
}
