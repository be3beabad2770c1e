//! Atomic ACK extended transport header: the result of an atomic operation.
//!
//! # References
//! IBTA 9.3.

header!(8, "AtomicAckETH");

impl<T: AsRef<[u8]>> Packet<T> {
    /// The value in the responder's memory before the operation.
    #[inline(always)]
    pub fn orig(&self) -> u64 {
        u64::from_be_bytes(self.get(0))
    }
}

impl<T: AsMut<[u8]>> Packet<T> {
    /// Sets [`orig`](Repr::orig).
    #[inline(always)]
    pub fn set_orig(&mut self, orig: u64) {
        self.put(0, orig.to_be_bytes());
    }
}

/// The decoded fields of an AtomicAckETH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// The value in the responder's memory before the operation.
    pub orig: u64,
}

impl Repr {
    /// Reads every field of `packet`.
    #[inline(always)]
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Self {
        Self { orig: packet.orig() }
    }

    /// Writes every field to `packet`; reserved bits become 0.
    #[inline(always)]
    pub fn emit<T: AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.set_orig(self.orig);
    }
}
