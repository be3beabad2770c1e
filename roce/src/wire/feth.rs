//! Flush extended transport header: the scope of a flush and the memory that it covers.
//!
//! ```text
//!  31                          6   5 4   3   0
//!  +-----------------------------+-----+-----+
//!  |          reserved           | sel | plt |
//!  +-----------------------------+-----+-----+
//! ```
//!
//! # References
//! IBTA annex A19 (memory placement extensions).

header!(4, "FETH");

/// Bit of [`Repr::plt`]: makes data visible to the responder's whole host.
pub const PLT_GLOBAL_VISIBILITY: u8 = 1 << 0;
/// Bit of [`Repr::plt`]: makes data persistent across a power loss.
pub const PLT_PERSISTENCE: u8 = 1 << 1;
/// Value of [`Repr::sel`]: flushes the address range in the RETH.
pub const SEL_RANGE: u8 = 0;
/// Value of [`Repr::sel`]: flushes the whole memory region.
pub const SEL_MEMORY_REGION: u8 = 1;

impl<T: AsRef<[u8]>> Packet<T> {
    /// Placement type, 4 bits.
    #[inline(always)]
    pub fn plt(&self) -> u8 {
        self.get::<1>(3)[0] & 0x0f
    }

    /// Selectivity level, 2 bits.
    #[inline(always)]
    pub fn sel(&self) -> u8 {
        self.get::<1>(3)[0] >> 4 & 0x03
    }
}

/// The decoded fields of a FETH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// Placement type, 4 bits: [`PLT_GLOBAL_VISIBILITY`] and [`PLT_PERSISTENCE`].
    pub plt: u8,
    /// Selectivity level, 2 bits: [`SEL_RANGE`] or [`SEL_MEMORY_REGION`].
    pub sel: u8,
}

impl Repr {
    /// Returns whether the header has at least one placement type and a defined selectivity level.
    /// Reserved placement bits are ignored.
    #[inline]
    pub const fn is_valid(&self) -> bool {
        self.plt & (PLT_GLOBAL_VISIBILITY | PLT_PERSISTENCE) != 0 && self.sel <= SEL_MEMORY_REGION
    }

    /// Reads every field of `packet`.
    #[inline(always)]
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Self {
        Self { plt: packet.plt(), sel: packet.sel() }
    }

    /// Writes every field to `packet`; reserved bits become 0.
    #[inline(always)]
    pub fn emit<T: AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.put(0, [0, 0, 0, (self.sel & 0x03) << 4 | self.plt & 0x0f]);
    }
}
