//! Immediate data: four bytes for the receiver's completion.
//!
//! # References
//! IBTA 9.3.

header!(4, "ImmDt");

impl<T: AsRef<[u8]>> Packet<T> {
    /// The immediate data. The wire carries this value in big-endian form.
    #[inline(always)]
    pub fn imm_data(&self) -> u32 {
        u32::from_be_bytes(self.get(0))
    }
}

impl<T: AsMut<[u8]>> Packet<T> {
    /// Sets [`imm_data`](Repr::imm_data).
    #[inline(always)]
    pub fn set_imm_data(&mut self, imm_data: u32) {
        self.put(0, imm_data.to_be_bytes());
    }
}

/// The decoded field of an ImmDt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// The immediate data. The wire carries this value in big-endian form.
    pub imm_data: u32,
}

impl Repr {
    /// Reads every field of `packet`.
    #[inline(always)]
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Self {
        Self { imm_data: packet.imm_data() }
    }

    /// Writes every field to `packet`; reserved bits become 0.
    #[inline(always)]
    pub fn emit<T: AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.set_imm_data(self.imm_data);
    }
}
