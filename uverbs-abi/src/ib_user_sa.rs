//! `include/uapi/rdma/ib_user_sa.h`: path and service records of the subnet administrator, as the rdma_cm
//! hands them out.

use crate::endian::{Be16, Be32, Be64};
use crate::macros::header;

header! {
    "rdma/ib_user_sa.h";

    /// What a path record is good for, [`IbPathRecData::flags`].
    pub consts anonymous: u32 {
        IB_PATH_GMP = 1,
        IB_PATH_PRIMARY = 2,
        IB_PATH_ALTERNATE = 4,
        IB_PATH_OUTBOUND = 8,
        IB_PATH_INBOUND = 16,
        IB_PATH_INBOUND_REVERSE = 32,
        /// Both directions.
        IB_PATH_BIDIRECTIONAL = IB_PATH_OUTBOUND | IB_PATH_INBOUND_REVERSE,
    }

    /// A path record as on the wire, and what it is for.
    pub struct IbPathRecData = ib_path_rec_data {
        pub flags: u32,
        /// Zero.
        pub reserved: u32,
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
        pub raw_traffic: u32,
        /// IPv6 flow label, 20 bits.
        pub flow_label: Be32,
        pub reversible: u32,
        pub mtu: u32,
        pub pkey: Be16,
        /// Hop limit, IPv4 TTL.
        pub hop_limit: u8,
        /// Traffic class, IPv4 TOS.
        pub traffic_class: u8,
        pub numb_path: u8,
        /// Service level.
        pub sl: u8,
        pub mtu_selector: u8,
        pub rate_selector: u8,
        pub rate: u8,
        pub packet_life_time_selector: u8,
        pub packet_life_time: u8,
        pub preference: u8,
    }

    /// A service record, as on the wire.
    pub struct IbUserServiceRec = ib_user_service_rec {
        pub id: Be64,
        pub gid: [u8; 16],
        pub pkey: Be16,
        /// Zero.
        pub reserved: [u8; 2],
        pub lease: Be32,
        pub key: [u8; 16],
        pub name: [u8; 64],
        pub data_8: [u8; 16],
        pub data_16: [Be16; 8],
        pub data_32: [Be32; 4],
        pub data_64: [Be64; 2],
    }
}
