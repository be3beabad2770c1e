//! [`PathRecord`]: a path through an InfiniBand fabric, or a RoCE device's emulation of one.
//!
//! ```text
//!   0 service id 8 │ 8 dgid 16 │ 24 sgid 16 │ 40 dlid 2 │ 42 slid 2 │ 44 flow label, hop limit 4
//!   48 traffic class │ 49 reversible 1 bit │ 50 pkey 2 │ 52 sl, 4 bits │ 54 mtu │ 55 rate
//!   56 packet life time │ 57 preference │ 58 zero 6
//! ```
//! The MTU, the rate and the packet life time have 6 bits each, below a selector of 2 bits.
//!
//! # References
//! IBTA volume 1, section 15.2.5.16 (PathRecord); `rdma/ib_user_sa.h`

use uverbs_abi::ib_user_sa::{
    IB_PATH_BIDIRECTIONAL, IB_PATH_GMP, IB_PATH_PRIMARY, IbPathRecData, IbUserPathRec,
};
use verbs::{Gid, Mtu, Rate};
use zerocopy::{FromBytes, IntoBytes};

/// A path through an InfiniBand fabric. A RoCE device has path records as well, but uses only the
/// GIDs, the MTU, the rate, the traffic class, the hop limit and the flow label.
///
/// # References
/// IBTA volume 1, section 15.2.5.16 (PathRecord)
#[doc(alias = "ibv_sa_path_rec")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRecord {
    /// The destination GID.
    pub dgid: Gid,
    /// The source GID.
    pub sgid: Gid,
    /// The destination's local id.
    pub dlid: u16,
    /// The source's local id.
    pub slid: u16,
    /// The flow label, 20 bits.
    pub flow_label: u32,
    /// The maximum number of routers that a packet may traverse.
    pub hop_limit: u8,
    /// The traffic class; on RoCE, the TOS/DSCP field of the IP header.
    pub traffic_class: u8,
    /// Whether the path also works in reverse.
    pub reversible: bool,
    /// The partition key.
    pub pkey: u16,
    /// The service level, 0 to 15.
    pub sl: u8,
    /// The maximum payload of a packet.
    pub mtu: Mtu,
    /// The static rate of the path.
    pub rate: Rate,
    /// The maximum life time of a packet, a 6-bit code n: 4.096 µs × 2ⁿ.
    pub packet_life_time: u8,
    /// The preference among several paths; 0 is the first choice.
    pub preference: u8,
}

/// The selector that requires an exact match of a value.
const EXACTLY: u8 = 2;

impl PathRecord {
    /// The flags for the path uses that the kernel accepts for a connection.
    pub(crate) const FLAGS: u32 = IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL;

    /// Parses a path from the format of the kernel's commands.
    pub(crate) fn from_wire(data: &IbPathRecData) -> Self {
        Self::from_bytes(&<[u8; 64]>::read_from_bytes(data.path_rec.as_bytes()).unwrap_or([0; 64]))
    }

    /// Parses a path in the format of the subnet administrator.
    pub fn from_bytes(bytes: &[u8; 64]) -> Self {
        let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let gid = |at: usize| {
            let mut gid = Gid::ZERO;
            gid.0.copy_from_slice(&bytes[at..at + 16]);
            gid
        };
        let flow = u32::from_be_bytes([bytes[44], bytes[45], bytes[46], bytes[47]]);
        Self {
            dgid: gid(8),
            sgid: gid(24),
            dlid: word(40),
            slid: word(42),
            flow_label: (flow >> 8) & 0xf_ffff,
            hop_limit: flow as u8,
            traffic_class: bytes[48],
            reversible: bytes[49] & 0x80 != 0,
            pkey: word(50),
            sl: bytes[53] & 0xf,
            mtu: Mtu(bytes[54] & 0x3f),
            rate: Rate(bytes[55] & 0x3f),
            packet_life_time: bytes[56] & 0x3f,
            preference: bytes[57],
        }
    }

    /// Returns the wire format, with the flags for the uses that the kernel accepts.
    pub(crate) fn to_wire(self) -> IbPathRecData {
        let mut bytes = [0; 64];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(8, &self.dgid.0);
        put(24, &self.sgid.0);
        put(40, &self.dlid.to_be_bytes());
        put(42, &self.slid.to_be_bytes());
        let flow = (self.flow_label & 0xf_ffff) << 8 | u32::from(self.hop_limit);
        put(44, &flow.to_be_bytes());
        // The number of paths is 1.
        put(48, &[self.traffic_class, u8::from(self.reversible) << 7 | 1]);
        put(50, &self.pkey.to_be_bytes());
        let exactly = |value: u8| EXACTLY << 6 | value & 0x3f;
        put(53, &[self.sl & 0xf, exactly(self.mtu.0), exactly(self.rate.0), exactly(self.packet_life_time)]);
        put(57, &[self.preference]);
        let path_rec = <[u32; 16]>::read_from_bytes(&bytes).unwrap_or_default();
        IbPathRecData { flags: Self::FLAGS, reserved: 0, path_rec }
    }
}

impl From<&IbUserPathRec> for PathRecord {
    fn from(record: &IbUserPathRec) -> Self {
        Self {
            dgid: Gid(record.dgid),
            sgid: Gid(record.sgid),
            dlid: record.dlid.to_native(),
            slid: record.slid.to_native(),
            flow_label: record.flow_label.to_native(),
            hop_limit: record.hop_limit,
            traffic_class: record.traffic_class,
            reversible: record.reversible != 0,
            pkey: record.pkey.to_native(),
            sl: record.sl,
            // All known MTUs fit in one byte. Larger values become 255, which is unknown too.
            mtu: Mtu(u8::try_from(record.mtu).unwrap_or(u8::MAX)),
            rate: Rate(record.rate),
            packet_life_time: record.packet_life_time,
            preference: record.preference,
        }
    }
}

#[cfg(test)]
mod tests {
    use uverbs_abi::{Be16, Be32};

    use super::*;

    fn path() -> PathRecord {
        PathRecord {
            dgid: Gid([1; 16]),
            sgid: Gid([2; 16]),
            dlid: 0x304,
            slid: 0x506,
            flow_label: 0xa_bcde,
            hop_limit: 64,
            traffic_class: 104,
            reversible: true,
            pkey: 0xffff,
            sl: 3,
            mtu: Mtu::MTU_4096,
            rate: Rate(0x21),
            packet_life_time: 0x22,
            preference: 1,
        }
    }

    #[test]
    fn a_path_survives_the_way_to_the_kernel_and_back() {
        let wire = path().to_wire();
        assert_eq!(PathRecord::from_wire(&wire), path());
        assert_eq!(wire.flags, 1 | 2 | 8 | 32);
        let bytes = wire.path_rec.as_bytes();
        assert_eq!(
            bytes[40..58],
            [3, 4, 5, 6, 0x0a, 0xbc, 0xde, 64, 104, 0x81, 0xff, 0xff, 0, 3, 0x85, 0xa1, 0xa2, 1]
        );
    }

    #[test]
    fn the_unpacked_form_says_the_same() {
        let record = IbUserPathRec {
            dgid: [1; 16],
            sgid: [2; 16],
            dlid: Be16::from_native(0x304),
            slid: Be16::from_native(0x506),
            flow_label: Be32::from_native(0xa_bcde),
            reversible: 1,
            mtu: 5,
            pkey: Be16::from_native(0xffff),
            hop_limit: 64,
            traffic_class: 104,
            sl: 3,
            rate: 0x21,
            packet_life_time: 0x22,
            preference: 1,
            ..IbUserPathRec::default()
        };
        assert_eq!(PathRecord::from(&record), path());
        let absurd = IbUserPathRec { mtu: 0x105, ..record };
        assert_eq!(PathRecord::from(&absurd).mtu.bytes(), None);
    }
}
