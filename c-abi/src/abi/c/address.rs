//! GIDs, global routes, address handles and their attributes, and rates.

use core::ffi::c_uint;

use super::macros::c_types;
use super::{ibv_context, ibv_pd};

c_types! {
    /// A global identifier: 16 bytes in network order.
    pub union ibv_gid {
        raw: [u8; 16],
        global: ibv_gid_global,
    }

    /// The two halves of an [`ibv_gid`], big-endian.
    pub struct ibv_gid_global = "ibv_gid.global" {
        subnet_prefix: u64,
        interface_id: u64,
    }

    /// The type of a GID table entry.
    pub enum ibv_gid_type: c_uint {
        IBV_GID_TYPE_IB = 0,
        IBV_GID_TYPE_ROCE_V1 = 1,
        IBV_GID_TYPE_ROCE_V2 = 2,
    }

    /// An entry of the GID table (`ibv_query_gid_ex(3)`).
    pub struct ibv_gid_entry {
        gid: ibv_gid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }

    /// The global part of a path.
    pub struct ibv_global_route {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }

    /// The global route header that precedes a datagram; integers are big-endian.
    pub struct ibv_grh {
        version_tclass_flow: u32,
        paylen: u16,
        next_hdr: u8,
        hop_limit: u8,
        sgid: ibv_gid,
        dgid: ibv_gid,
    }

    /// The attributes of an address handle (`ibv_create_ah(3)`).
    pub struct ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    /// An address handle.
    pub struct ibv_ah {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        handle: u32,
    }

    /// A static rate (`ibv_rate_to_mult(3)`).
    pub enum ibv_rate: c_uint {
        IBV_RATE_MAX = 0,
        IBV_RATE_2_5_GBPS = 2,
        IBV_RATE_5_GBPS = 5,
        IBV_RATE_10_GBPS = 3,
        IBV_RATE_20_GBPS = 6,
        IBV_RATE_30_GBPS = 4,
        IBV_RATE_40_GBPS = 7,
        IBV_RATE_60_GBPS = 8,
        IBV_RATE_80_GBPS = 9,
        IBV_RATE_120_GBPS = 10,
        IBV_RATE_14_GBPS = 11,
        IBV_RATE_56_GBPS = 12,
        IBV_RATE_112_GBPS = 13,
        IBV_RATE_168_GBPS = 14,
        IBV_RATE_25_GBPS = 15,
        IBV_RATE_100_GBPS = 16,
        IBV_RATE_200_GBPS = 17,
        IBV_RATE_300_GBPS = 18,
        IBV_RATE_28_GBPS = 19,
        IBV_RATE_50_GBPS = 20,
        IBV_RATE_400_GBPS = 21,
        IBV_RATE_600_GBPS = 22,
        IBV_RATE_800_GBPS = 23,
        IBV_RATE_1200_GBPS = 24,
    }

    pub consts define: u32 {
        IB_ROCE_UDP_ENCAP_VALID_PORT_MIN = 0xc000,
        IB_ROCE_UDP_ENCAP_VALID_PORT_MAX = 0xffff,
        IB_GRH_FLOWLABEL_MASK = 0xf_ffff,
    }
}
