//! Invalidate extended transport header: the responder's memory key that a send invalidates.
//!
//! # References
//! IBTA 9.3.

header!(4, "IETH");

impl<T: AsRef<[u8]>> Packet<T> {
    /// The memory key to invalidate.
    #[inline(always)]
    pub fn rkey(&self) -> u32 {
        u32::from_be_bytes(self.get(0))
    }
}

impl<T: AsMut<[u8]>> Packet<T> {
    /// Sets [`rkey`](Repr::rkey).
    #[inline(always)]
    pub fn set_rkey(&mut self, rkey: u32) {
        self.put(0, rkey.to_be_bytes());
    }
}

/// The decoded fields of an IETH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// The memory key to invalidate.
    pub rkey: u32,
}

impl Repr {
    /// Reads every field of `packet`.
    #[inline(always)]
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Self {
        Self { rkey: packet.rkey() }
    }

    /// Writes every field to `packet`; reserved bits become 0.
    #[inline(always)]
    pub fn emit<T: AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.set_rkey(self.rkey);
    }
}
