//! Base transport header, the first header of every packet.
//!
//! ```text
//!      0        1                 2       4          5                  8           9
//!      +--------+-+-+------+------+-------+-+-+------+------------------+-+---------+--------+
//!      | opcode |S|M| pad  | TVer | P_Key |F|B| rsv6 | destination QP   |A|  rsv7   |  PSN   |
//!      +--------+-+-+------+------+-------+-+-+------+------------------+-+---------+--------+
//! bits     8     1 1   2      4      16    1 1   6           24          1     7        24
//! ```
//! S solicited event, M migration request, F FECN, B BECN, A acknowledge request. Routers may
//! change byte 4 (F, B, rsv6), so the invariant CRC excludes it.
//!
//! # References
//! IBTA 9.2, annex A17 (FECN and BECN in RoCEv2).

use super::{MASK_24, Opcode, Psn};

header!(12, "BTH");

/// The partition key for full members of the default partition. In practice, RoCE uses no other
/// partition key.
pub const DEFAULT_PKEY: u16 = 0xffff;

const SE: u8 = 1 << 7;
const M: u8 = 1 << 6;
const FECN: u8 = 1 << 7;
const BECN: u8 = 1 << 6;
const A: u8 = 1 << 7;

impl<T: AsRef<[u8]>> Packet<T> {
    /// Transport service and operation.
    #[inline(always)]
    pub fn opcode(&self) -> Opcode {
        Opcode(self.get::<1>(0)[0])
    }

    /// Solicited event: the responder's completion wakes programs that wait only for solicited
    /// completions.
    #[inline(always)]
    pub fn se(&self) -> bool {
        self.get::<1>(1)[0] & SE != 0
    }

    /// Migration request: set while the path migration state is MIGRATED, which is always the case
    /// without an alternate path.
    #[inline(always)]
    pub fn mig_req(&self) -> bool {
        self.get::<1>(1)[0] & M != 0
    }

    /// The number of pad bytes between payload and ICRC, 0 to 3.
    #[inline(always)]
    pub fn pad_cnt(&self) -> u8 {
        self.get::<1>(1)[0] >> 4 & 3
    }

    /// The transport header version; only 0 exists.
    #[inline(always)]
    pub fn tver(&self) -> u8 {
        self.get::<1>(1)[0] & 0x0f
    }

    /// Partition key.
    #[inline(always)]
    pub fn pkey(&self) -> u16 {
        u16::from_be_bytes(self.get(2))
    }

    /// Forward explicit congestion notification: this packet encountered congestion.
    #[inline(always)]
    pub fn fecn(&self) -> bool {
        self.get::<1>(4)[0] & FECN != 0
    }

    /// Backward explicit congestion notification: a packet in the other direction encountered
    /// congestion.
    #[inline(always)]
    pub fn becn(&self) -> bool {
        self.get::<1>(4)[0] & BECN != 0
    }

    /// Destination QP number, 24 bits.
    #[inline(always)]
    pub fn dest_qp(&self) -> u32 {
        u32::from_be_bytes(self.get(4)) & MASK_24
    }

    /// Acknowledge request: the responder acknowledges this packet without waiting for more.
    #[inline(always)]
    pub fn ack_req(&self) -> bool {
        self.get::<1>(8)[0] & A != 0
    }

    /// Packet sequence number.
    #[inline(always)]
    pub fn psn(&self) -> Psn {
        Psn::new(u32::from_be_bytes(self.get(8)))
    }
}

/// The decoded fields of a BTH. The version is always 0; reserved bits are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Transport service and operation.
    pub opcode: Opcode,
    /// Solicited event.
    pub se: bool,
    /// Migration request.
    pub mig_req: bool,
    /// The number of pad bytes, 0 to 3: [`pad_for`](super::packet::pad_for) of the payload.
    pub pad_cnt: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification.
    pub becn: bool,
    /// Destination QP number, 24 bits.
    pub dest_qp: u32,
    /// Acknowledge request.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Repr {
    /// Returns the BTH of a packet in the default partition on a migrated path, without pad, flags
    /// or acknowledge request.
    #[inline(always)]
    pub const fn new(opcode: Opcode, dest_qp: u32, psn: Psn) -> Self {
        Self {
            opcode,
            se: false,
            mig_req: true,
            pad_cnt: 0,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qp,
            ack_req: false,
            psn,
        }
    }

    /// Reads every field of `packet`.
    #[inline(always)]
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Self {
        Self {
            opcode: packet.opcode(),
            se: packet.se(),
            mig_req: packet.mig_req(),
            pad_cnt: packet.pad_cnt(),
            pkey: packet.pkey(),
            fecn: packet.fecn(),
            becn: packet.becn(),
            dest_qp: packet.dest_qp(),
            ack_req: packet.ack_req(),
            psn: packet.psn(),
        }
    }

    /// Writes every field to `packet`; reserved bits and the version become 0.
    #[inline(always)]
    pub fn emit<T: AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        let bit = |set: bool, mask: u8| if set { mask } else { 0 };
        let flags = bit(self.se, SE) | bit(self.mig_req, M) | (self.pad_cnt & 3) << 4;
        let [pkey_hi, pkey_lo] = self.pkey.to_be_bytes();
        packet.put(0, [self.opcode.0, flags, pkey_hi, pkey_lo]);
        let congestion = u32::from(bit(self.fecn, FECN) | bit(self.becn, BECN)) << 24;
        packet.put(4, (congestion | self.dest_qp & MASK_24).to_be_bytes());
        packet.put(8, (u32::from(bit(self.ack_req, A)) << 24 | self.psn.value()).to_be_bytes());
    }
}
