//! RDMA extended transport header: the responder's memory that a write or read accesses.
//!
//! ```text
//!  0        8       12       16
//!  +--------+-------+--------+
//!  |   va   | rkey  | dmalen |
//!  +--------+-------+--------+
//! ```
//!
//! # References
//! IBTA 9.3.

header!(16, "RETH");

impl<T: AsRef<[u8]>> Packet<T> {
    /// Virtual address.
    #[inline(always)]
    pub fn va(&self) -> u64 {
        u64::from_be_bytes(self.get(0))
    }

    /// Remote key.
    #[inline(always)]
    pub fn rkey(&self) -> u32 {
        u32::from_be_bytes(self.get(8))
    }

    /// The length of the whole message, not of this packet, in bytes.
    #[inline(always)]
    pub fn dmalen(&self) -> u32 {
        u32::from_be_bytes(self.get(12))
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

    /// Sets [`dmalen`](Repr::dmalen).
    #[inline(always)]
    pub fn set_dmalen(&mut self, dmalen: u32) {
        self.put(12, dmalen.to_be_bytes());
    }
}

/// The decoded fields of a RETH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// Virtual address.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// The length of the whole message, not of this packet, in bytes.
    pub dmalen: u32,
}

impl Repr {
    /// Reads every field of `packet`.
    #[inline(always)]
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Self {
        Self { va: packet.va(), rkey: packet.rkey(), dmalen: packet.dmalen() }
    }

    /// Writes every field to `packet`; reserved bits become 0.
    #[inline(always)]
    pub fn emit<T: AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.set_va(self.va);
        packet.set_rkey(self.rkey);
        packet.set_dmalen(self.dmalen);
    }
}
