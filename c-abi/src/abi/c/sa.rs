//! The path record of rdma-core's `infiniband/sa.h`, whose conversions are declared in
//! `marshall.h`.

use core::ffi::c_int;

use super::ibv_gid;
use super::macros::c_types;

c_types! {
    /// A path record of the subnet administrator. Multi-byte fields are big-endian, except
    /// `raw_traffic` and `reversible`.
    pub struct ibv_sa_path_rec {
        dgid: ibv_gid,
        sgid: ibv_gid,
        dlid: u16,
        slid: u16,
        raw_traffic: c_int,
        flow_label: u32,
        hop_limit: u8,
        traffic_class: u8,
        reversible: c_int,
        numb_path: u8,
        pkey: u16,
        sl: u8,
        mtu_selector: u8,
        mtu: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }
}
