//! `include/uapi/rdma/ib_user_sa.h`: the subnet administrator's path and service records, as
//! returned by the rdma_cm.

use crate::endian::{Be16, Be32, Be64};
use crate::macros::header;

header! {
    "rdma/ib_user_sa.h";

    /// Uses of a path record, [`IbPathRecData::flags`].
    pub consts anonymous: u32 {
        IB_PATH_GMP = 1,
        IB_PATH_PRIMARY = 2,
        IB_PATH_ALTERNATE = 4,
        IB_PATH_OUTBOUND = 8,
        IB_PATH_INBOUND = 16,
        IB_PATH_INBOUND_REVERSE = 32,
        /// The path may be used in both directions.
        IB_PATH_BIDIRECTIONAL = IB_PATH_OUTBOUND | IB_PATH_INBOUND_REVERSE,
    }

    /// A path record in wire format, with its usage flags.
    pub struct IbPathRecData = ib_path_rec_data {
        /// `IB_PATH_*` bits.
        pub flags: u32,
        /// Reserved, zero.
        pub reserved: u32,
        /// The 64-byte record in wire format, big-endian.
        pub path_rec: [u32; 16],
    }

    /// A path record, unpacked.
    pub struct IbUserPathRec = ib_user_path_rec {
        /// Destination GID.
        pub dgid: [u8; 16],
        /// Source GID.
        pub sgid: [u8; 16],
        /// Destination LID.
        pub dlid: Be16,
        /// Source LID.
        pub slid: Be16,
        /// Nonzero for raw packets.
        pub raw_traffic: u32,
        /// IPv6 flow label, 20 bits.
        pub flow_label: Be32,
        /// Nonzero if the path works in both directions.
        pub reversible: u32,
        /// IBTA MTU code.
        pub mtu: u32,
        /// P_Key.
        pub pkey: Be16,
        /// Hop limit, IPv4 TTL.
        pub hop_limit: u8,
        /// Traffic class, IPv4 TOS.
        pub traffic_class: u8,
        /// Number of paths requested.
        pub numb_path: u8,
        /// Service level.
        pub sl: u8,
        /// Comparison for `mtu`: greater than, less than, exactly, or largest available.
        pub mtu_selector: u8,
        /// Comparison for `rate`: greater than, less than, exactly, or largest available.
        pub rate_selector: u8,
        /// IBTA rate code.
        pub rate: u8,
        /// Comparison for `packet_life_time`: greater than, less than, exactly, or smallest
        /// available.
        pub packet_life_time_selector: u8,
        /// Packet lifetime: 4.096 µs times 2 to the power of this value.
        pub packet_life_time: u8,
        /// Preference among several paths; 0 comes first.
        pub preference: u8,
    }

    /// A service record, as on the wire.
    pub struct IbUserServiceRec = ib_user_service_rec {
        /// Service id.
        pub id: Be64,
        /// GID of the port offering the service.
        pub gid: [u8; 16],
        /// P_Key for reaching the service.
        pub pkey: Be16,
        /// Reserved, zero.
        pub reserved: [u8; 2],
        /// Validity of the record, in seconds.
        pub lease: Be32,
        /// Service key.
        pub key: [u8; 16],
        /// Name of the service, padded with NULs.
        pub name: [u8; 64],
        /// Service-specific data.
        pub data_8: [u8; 16],
        /// Service-specific data.
        pub data_16: [Be16; 8],
        /// Service-specific data.
        pub data_32: [Be32; 4],
        /// Service-specific data.
        pub data_64: [Be64; 2],
    }
}
