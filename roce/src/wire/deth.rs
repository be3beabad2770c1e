//! Datagram extended transport header: the sender's QP number and the queue key.
//!
//! # References
//! IBTA 9.3.

use super::MASK_24;

header!(8, "DETH");

impl<T: AsRef<[u8]>> Packet<T> {
    /// The queue key. It must equal the receiver's queue key.
    #[inline(always)]
    pub fn qkey(&self) -> u32 {
        u32::from_be_bytes(self.get(0))
    }

    /// Sender's QP number, 24 bits.
    #[inline(always)]
    pub fn src_qp(&self) -> u32 {
        u32::from_be_bytes(self.get(4)) & MASK_24
    }
}

impl<T: AsMut<[u8]>> Packet<T> {
    /// Sets [`qkey`](Repr::qkey).
    #[inline(always)]
    pub fn set_qkey(&mut self, qkey: u32) {
        self.put(0, qkey.to_be_bytes());
    }

    /// Sets [`src_qp`](Repr::src_qp).
    #[inline(always)]
    pub fn set_src_qp(&mut self, src_qp: u32) {
        self.put(4, (src_qp & MASK_24).to_be_bytes());
    }
}

/// The decoded fields of a DETH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// The queue key. It must equal the receiver's queue key.
    pub qkey: u32,
    /// Sender's QP number, 24 bits.
    pub src_qp: u32,
}

impl Repr {
    /// Reads every field of `packet`.
    #[inline(always)]
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Self {
        Self { qkey: packet.qkey(), src_qp: packet.src_qp() }
    }

    /// Writes every field to `packet`; reserved bits become 0.
    #[inline(always)]
    pub fn emit<T: AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.set_qkey(self.qkey);
        packet.set_src_qp(self.src_qp);
    }
}
