//! Atomic extended transport header: compare and swap, fetch and add.
//!
//! ```text
//!  0        8       12         20        28
//!  +--------+-------+----------+---------+
//!  |   va   | rkey  | swap_add | compare |
//!  +--------+-------+----------+---------+
//! ```
//!
//! # References
//! IBTA 9.3 (layout), 9.4.5 (atomic operations).

header!(28, "AtomicETH");

impl<T: AsRef<[u8]>> Packet<T> {
    /// The virtual address, a multiple of 8 in a valid request.
    #[inline(always)]
    pub fn va(&self) -> u64 {
        u64::from_be_bytes(self.get(0))
    }

    /// Remote key.
    #[inline(always)]
    pub fn rkey(&self) -> u32 {
        u32::from_be_bytes(self.get(8))
    }

    /// The value to store (compare and swap) or to add (fetch and add).
    #[inline(always)]
    pub fn swap_add(&self) -> u64 {
        u64::from_be_bytes(self.get(12))
    }

    /// The value to compare with; unused in fetch and add.
    #[inline(always)]
    pub fn compare(&self) -> u64 {
        u64::from_be_bytes(self.get(20))
    }
}

impl<T: AsMut<[u8]>> Packet<T> {
    /// Sets [`va`](Repr::va).
    #[inline(always)]
    pub fn set_va(&mut self, va: u64) {
        self.put(0, va.to_be_bytes());
    }

    /// Sets [`rkey`](Repr::rkey).
    #[inline(always)]
    pub fn set_rkey(&mut self, rkey: u32) {
        self.put(8, rkey.to_be_bytes());
    }

    /// Sets [`swap_add`](Repr::swap_add).
    #[inline(always)]
    pub fn set_swap_add(&mut self, swap_add: u64) {
        self.put(12, swap_add.to_be_bytes());
    }

    /// Sets [`compare`](Repr::compare).
    #[inline(always)]
    pub fn set_compare(&mut self, compare: u64) {
        self.put(20, compare.to_be_bytes());
    }
}

/// The decoded fields of an AtomicETH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// The virtual address, a multiple of 8 in a valid request.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// The value to store (compare and swap) or to add (fetch and add).
    pub swap_add: u64,
    /// The value to compare with; unused in fetch and add.
    pub compare: u64,
}

impl Repr {
    /// Reads every field of `packet`.
    #[inline(always)]
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Self {
        Self { va: packet.va(), rkey: packet.rkey(), swap_add: packet.swap_add(), compare: packet.compare() }
    }

    /// Writes every field to `packet`; reserved bits become 0.
    #[inline(always)]
    pub fn emit<T: AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.set_va(self.va);
        packet.set_rkey(self.rkey);
        packet.set_swap_add(self.swap_add);
        packet.set_compare(self.compare);
    }
}
