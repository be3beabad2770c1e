//! [`Uars`]: the stores to doorbell registers that affect later stores.

use std::collections::BTreeMap;

use roce::engine::Time;

/// The past stores to UAR pages that affect later stores.
#[derive(Debug, Default)]
pub(crate) struct Uars {
    /// For each page with half a doorbell: the offset of the half and its 4 bytes.
    pub(crate) half_stores: BTreeMap<u32, (u64, [u8; 4])>,
    /// The doorbell registers, by UAR page and register number.
    pub(crate) registers: BTreeMap<(u32, u64), Register>,
}

/// The state of a doorbell register.
#[derive(Debug)]
pub(crate) struct Register {
    /// The half of the register to which the last store went.
    pub(crate) half: u64,
    /// The bytes stored in that half since its start was last written.
    pub(crate) stored: Vec<u8>,
    /// Length of a complete BlueFlame store of the work request, in bytes.
    pub(crate) whole: usize,
    /// The work request as fetched from the queue; empty if none was fetched.
    pub(crate) fetched: Vec<u8>,
    /// Whether the doorbell also announced earlier work requests.
    pub(crate) several: bool,
    /// The latest time at which a held NOP must ring; `None` once it has rung.
    pub(crate) held_until: Option<Time>,
    /// Whether the rest of the block is ignored, because the NOP rang before the block was complete
    /// or the store was rejected.
    pub(crate) let_go: bool,
    /// The doorbell record's value at the time of the store. The record may advance before the NOP
    /// rings.
    pub(crate) head: Option<u16>,
}

/// The work requests that a doorbell announced.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    /// The last work request, as read from the queue; empty if it is unreadable or in an Ethernet
    /// queue.
    pub(crate) last: Vec<u8>,
    /// Whether other work requests precede the last one.
    pub(crate) several: bool,
}
