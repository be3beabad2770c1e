//! XRC extended transport header: the shared receive queue that a request uses.
//!
//! # References
//! IBTA annex A14.

use super::MASK_24;

header!(4, "XRCETH");

impl<T: AsRef<[u8]>> Packet<T> {
    /// SRQ number, 24 bits.
    #[inline(always)]
    pub fn xrcsrq(&self) -> u32 {
        u32::from_be_bytes(self.get(0)) & MASK_24
    }
}

impl<T: AsMut<[u8]>> Packet<T> {
    /// Sets [`xrcsrq`](Repr::xrcsrq).
    #[inline(always)]
    pub fn set_xrcsrq(&mut self, xrcsrq: u32) {
        self.put(0, (xrcsrq & MASK_24).to_be_bytes());
    }
}

/// A decoded XRCETH: the number of the XRC shared receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// SRQ number, 24 bits.
    pub xrcsrq: u32,
}

impl Repr {
    /// Reads every field of `packet`.
    #[inline(always)]
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Self {
        Self { xrcsrq: packet.xrcsrq() }
    }

    /// Writes every field to `packet`; reserved bits become 0.
    #[inline(always)]
    pub fn emit<T: AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.set_xrcsrq(self.xrcsrq);
    }
}
