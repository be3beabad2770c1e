//! The device's limits and reported attributes.

use roce::engine::Config;
use verbs_core::Cause;
use verbs_core::types::{
    AtomicCap, CqModerationCaps, DeviceAttr, DeviceAttrEx, DeviceCapFlags, Guid, LinkLayer, Mtu, OdpCaps,
    OdpGeneralCaps, OdpTransportCaps, PacketPacingCaps, PciAtomicCaps, PortAttr, PortCapFlags, PortCapFlags2,
    PortFlags, PortSpeed, PortState, PortWidth, QpCap, RawPacketCaps, RssCaps, TmCaps, TsoCaps,
};

use crate::device::wqe::inline_len;
use crate::memory::paged;

/// The maximum number of queue pairs, at most the number of slots in the pending set.
pub(crate) const MAX_QP: u32 = 16_000;
/// The maximum number of work requests in one queue.
pub(crate) const MAX_QP_WR: u32 = 1 << 14;
/// The maximum number of scatter/gather elements in a work request.
pub(crate) const MAX_SGE: u32 = 32;
/// The maximum number of inline bytes in a send.
pub(crate) const MAX_INLINE_DATA: u32 = 512;
/// The maximum number of completion queues.
pub(crate) const MAX_CQ: u32 = 1 << 16;
/// The maximum number of entries in a completion queue.
pub(crate) const MAX_CQE: u32 = 1 << 20;
/// The maximum number of memory regions and windows together.
pub(crate) const MAX_MR: u32 = 1 << 16;
/// The maximum number of protection domains.
pub(crate) const MAX_PD: u32 = 1 << 14;
/// The maximum number of RDMA reads and atomics in flight per queue pair, in each direction.
pub(crate) const MAX_RD_ATOMIC: u32 = 128;
/// The maximum number of multicast groups with members. Each group has a socket.
pub(crate) const MAX_MCAST_GRP: u32 = 64;
/// The maximum number of queue pairs in one multicast group.
pub(crate) const MAX_MCAST_QP_ATTACH: u32 = 256;
/// The maximum number of shared receive queues.
pub(crate) const MAX_SRQ: u32 = 1 << 14;
/// The maximum number of receives in one shared receive queue.
pub(crate) const MAX_SRQ_WR: u32 = 1 << 14;
/// The maximum number of elements in a receive of a shared receive queue: as many as the engine
/// copies.
pub(crate) const MAX_SRQ_SGE: u32 = 32;
/// The total size of device memory, in bytes; the same as on a ConnectX-5.
pub(crate) const MAX_DM_SIZE: u64 = 256 << 10;
/// The binary logarithm of the largest alignment of device memory, in bytes.
pub(crate) const MAX_DM_LOG_ALIGN: u32 = MAX_DM_SIZE.ilog2();
/// The number of completion vectors: one thread handles all events.
pub(crate) const COMP_VECTORS: u32 = 1;
/// The number of entries in the GID table.
pub(crate) const GID_TABLE: u32 = 8;
/// The number of GID table entries that hold the address, starting at index 0. Programs expect the
/// address at index 1, where rxe has its IPv4 address, or at 3, where network cards have RoCE v2
/// over IPv4.
pub(crate) const GIDS: u32 = 4;
/// The only partition key: the default partition, full member.
pub(crate) const PKEY: u16 = 0xffff;
/// The only port.
pub(crate) const PORT: u8 = 1;
/// The maximum length of a message, in bytes.
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;
/// The maximum number of elements in a work request's list, including the elements that hold inline
/// data.
pub(crate) const MAX_LIST: usize = {
    let inline = inline_len(MAX_INLINE_DATA);
    if inline > MAX_SGE as usize { inline } else { MAX_SGE as usize }
};

/// The rate of read responses to one peer, in bytes per microsecond: twice the rate of a
/// loopback stream, so credit never delays responses to a peer that accepts them.
const RESPONSE_RATE: u32 = 8000;

/// Returns the engine's configuration for a socket with a receive buffer of `rcvbuf` bytes. `slot`
/// is the process's slot at the address, or 0 if the address is not shared.
pub(crate) fn config(rcvbuf: usize, slot: u8, strict_ports: bool) -> Config {
    // The peer's buffer is the limit; it is probably as large as this one. The kernel charges 8 KiB
    // for a 4 KiB packet.
    let window_bytes = u32::try_from(rcvbuf / 4).unwrap_or(u32::MAX).clamp(64 << 10, 512 << 10);
    Config {
        max_qp: MAX_QP,
        max_keys: MAX_MR,
        max_srq: MAX_SRQ,
        max_pd: MAX_PD,
        max_groups: MAX_MCAST_GRP,
        max_group_members: MAX_MCAST_QP_ATTACH,
        window_bytes,
        response_rate: RESPONSE_RATE,
        qpn_prefix: slot,
        strict_ports,
        ..Config::default()
    }
}

/// Returns the first exceeded limit of a queue pair: its name, the requested value and the limit.
pub(crate) fn exceeded(cap: &QpCap) -> Option<(&'static str, u32, u32)> {
    let limits = [
        ("max_send_wr", cap.max_send_wr, MAX_QP_WR),
        ("max_recv_wr", cap.max_recv_wr, MAX_QP_WR),
        ("max_send_sge", cap.max_send_sge, MAX_SGE),
        ("max_recv_sge", cap.max_recv_sge, MAX_SGE),
        ("max_inline_data", cap.max_inline_data, MAX_INLINE_DATA),
    ];
    limits.into_iter().find(|(_, asked, max)| asked > max)
}

/// Returns the cause of the error if a verb fails because the device cannot hold another object of
/// this kind.
pub(crate) fn all_in_use(verb: &str) -> Cause {
    let (what, max) = match verb {
        "create_qp" => ("queue pairs", MAX_QP),
        "create_cq" => ("completion queues", MAX_CQ),
        "create_srq" => ("shared receive queues", MAX_SRQ),
        "alloc_pd" => ("protection domains", MAX_PD),
        "open_xrcd" => ("protection domains, of which each XRC domain has one", MAX_PD),
        "reg_mr" | "rereg_mr" | "reg_dm_mr" | "alloc_null_mr" | "alloc_mw" => {
            ("memory regions and windows", MAX_MR)
        }
        _ => return Cause::Unknown,
    };
    Cause::AllInUse { what, max: max.into() }
}

/// Returns the attributes of the device with a GUID.
pub(crate) fn device_attr(guid: Guid) -> DeviceAttr {
    DeviceAttr {
        fw_ver: env!("CARGO_PKG_VERSION").into(),
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: isize::MAX as u64,
        page_size_cap: 0xffff_f000,
        // The same value as in rxe, because there is no OUI.
        vendor_id: 0xff_ffff,
        vendor_part_id: 0,
        hw_ver: 0,
        max_qp: MAX_QP,
        max_qp_wr: MAX_QP_WR,
        device_cap_flags: CAPS,
        max_sge: MAX_SGE,
        max_sge_rd: MAX_SGE,
        max_cq: MAX_CQ,
        max_cqe: MAX_CQE,
        max_mr: MAX_MR,
        max_pd: MAX_PD,
        max_qp_rd_atom: MAX_RD_ATOMIC,
        max_ee_rd_atom: 0,
        max_res_rd_atom: MAX_RD_ATOMIC * MAX_QP,
        max_qp_init_rd_atom: MAX_RD_ATOMIC,
        max_ee_init_rd_atom: 0,
        // The processor's own atomics, except in on-demand paged memory.
        atomic_cap: AtomicCap::GLOB,
        max_ee: 0,
        max_rdd: 0,
        max_mw: MAX_MR,
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: MAX_MCAST_GRP,
        max_mcast_qp_attach: MAX_MCAST_QP_ATTACH,
        max_total_mcast_qp_attach: MAX_MCAST_GRP * MAX_MCAST_QP_ATTACH,
        // Address handles are values in the program's memory.
        max_ah: i32::MAX as u32,
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: MAX_SRQ,
        max_srq_wr: MAX_SRQ_WR,
        max_srq_sge: MAX_SRQ_SGE,
        max_pkeys: 1,
        local_ca_ack_delay: ACK_DELAY,
        phys_port_cnt: PORT,
    }
}

/// The frequency of the device's clock, in kHz. The clock counts nanoseconds.
const CLOCK_KHZ: u64 = 1_000_000;

/// Returns [`device_attr`] with the extended attributes.
pub(crate) fn device_attr_ex(guid: Guid) -> DeviceAttrEx {
    let (odp_caps, xrc_odp_caps) =
        if paged::is_supported() { (ODP_CAPS, RC_ODP) } else { Default::default() };
    DeviceAttrEx {
        orig_attr: device_attr(guid),
        odp_caps,
        completion_timestamp_mask: u64::MAX,
        hca_core_clock: CLOCK_KHZ,
        device_cap_flags_ex: CAPS.union(CAPS_EX),
        tso_caps: TsoCaps::default(),
        rss_caps: RssCaps::default(),
        max_wq_type_rq: 0,
        packet_pacing_caps: PacketPacingCaps::default(),
        raw_packet_caps: RawPacketCaps::default(),
        tm_caps: TmCaps::default(),
        cq_mod_caps: CqModerationCaps { max_cq_count: u16::MAX, max_cq_period: u16::MAX },
        max_dm_size: MAX_DM_SIZE,
        pci_atomic_caps: PciAtomicCaps::default(),
        xrc_odp_caps,
        phys_port_cnt_ex: PORT.into(),
    }
}

/// Returns a port's `qkey_viol_cntr` for the number of datagrams dropped for their queue key. The
/// attribute has 16 bits and saturates, as in rxe.
pub(crate) fn qkey_viol_cntr(dropped: u64) -> u32 {
    dropped.min(u16::MAX.into()) as u32
}

/// Returns the maximum datagram length, in bytes, of a port whose interface has this MTU.
pub(crate) fn datagram_mtu(mtu: Option<u32>) -> u32 {
    active_mtu(mtu.unwrap_or(0)).bytes().unwrap_or(256)
}

/// Returns the attributes of a port whose interface carries IP packets of `mtu` bytes. `None` means
/// that the interface is gone.
pub(crate) fn port_attr(mtu: Option<u32>, is_active: bool) -> PortAttr {
    let (state, phys_state) =
        if is_active { (PortState::ACTIVE, LINK_UP) } else { (PortState::DOWN, DISABLED) };
    PortAttr {
        state,
        max_mtu: Mtu::MTU_4096,
        active_mtu: active_mtu(mtu.unwrap_or(0)),
        gid_tbl_len: GID_TABLE,
        port_cap_flags: PortCapFlags::CM_SUP | PortCapFlags::IP_BASED_GIDS,
        max_msg_sz: MAX_MESSAGE as u32,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        pkey_tbl_len: 1,
        lid: 0,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width: PortWidth::WIDTH_1X,
        active_speed: PortSpeed::SDR,
        phys_state,
        link_layer: LinkLayer::ETHERNET,
        flags: PortFlags::GRH_REQUIRED,
        port_cap_flags2: PortCapFlags2::empty(),
        active_speed_ex: PortSpeed::SDR,
    }
}

/// Returns the largest path MTU whose packets fit into IP packets of `mtu` bytes.
fn active_mtu(mtu: u32) -> Mtu {
    let payload = mtu.saturating_sub(HEADERS);
    let fitting = [Mtu::MTU_4096, Mtu::MTU_2048, Mtu::MTU_1024, Mtu::MTU_512].into_iter();
    fitting.into_iter().find(|mtu| mtu.bytes().is_some_and(|bytes| bytes <= payload)).unwrap_or(Mtu::MTU_256)
}

/// The total length of an IPv6 header (or an IPv4 header with options), a UDP header and the
/// longest RoCE headers, in bytes; the same sum as in rxe.
const HEADERS: u32 = 80;

const CAPS: DeviceCapFlags = DeviceCapFlags::CURR_QP_STATE_MOD
    .union(DeviceCapFlags::SYS_IMAGE_GUID)
    .union(DeviceCapFlags::RC_RNR_NAK_GEN)
    .union(DeviceCapFlags::MEM_WINDOW)
    .union(DeviceCapFlags::MEM_WINDOW_TYPE_2B)
    .union(DeviceCapFlags::SRQ_RESIZE)
    .union(DeviceCapFlags::XRC)
    .union(DeviceCapFlags::N_NOTIFY_CQ);

/// Capabilities reported only by the extended query. Flushes to persistence are missing, because
/// memory is not durable.
const CAPS_EX: DeviceCapFlags = DeviceCapFlags::FLUSH_GLOBAL.union(DeviceCapFlags::ATOMIC_WRITE);

/// The operations that the engine supports in on-demand paged memory: all except atomic writes.
const ODP_CAPS: OdpCaps = OdpCaps {
    general_caps: OdpGeneralCaps::SUPPORT.union(OdpGeneralCaps::IMPLICIT),
    rc_odp_caps: RC_ODP,
    uc_odp_caps: UD_ODP.union(OdpTransportCaps::WRITE),
    ud_odp_caps: UD_ODP,
};
const RC_ODP: OdpTransportCaps = UD_ODP
    .union(OdpTransportCaps::WRITE)
    .union(OdpTransportCaps::READ)
    .union(OdpTransportCaps::ATOMIC)
    .union(OdpTransportCaps::FLUSH);
const UD_ODP: OdpTransportCaps =
    OdpTransportCaps::SEND.union(OdpTransportCaps::RECV).union(OdpTransportCaps::SRQ_RECV);

/// The acknowledgement delay as a 5-bit code: 4.096 µs × 2¹¹ = 8.4 ms. A packet waits at most 8 ms
/// until the worker looks at the device.
pub(crate) const ACK_DELAY: u8 = 11;

// Port states as encoded by the specification (IBTA volume 1, 14.2.5.6).
const LINK_UP: u8 = 5;
const DISABLED: u8 = 3;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_path_mtu_leaves_room_for_headers() {
        for (mtu, expected) in
            [(65536, 4096), (4500, 4096), (4100, 2048), (1500, 1024), (1280, 1024), (576, 256), (0, 256)]
        {
            assert_eq!(active_mtu(mtu).bytes(), Some(expected), "{mtu}");
        }
    }

    #[test]
    fn the_first_exceeded_limit_is_named() {
        let cap = QpCap { max_send_sge: 33, max_inline_data: 513, ..QpCap::default() };
        assert_eq!(exceeded(&cap), Some(("max_send_sge", 33, 32)));
        let most = QpCap {
            max_send_wr: MAX_QP_WR,
            max_recv_wr: MAX_QP_WR,
            max_send_sge: MAX_SGE,
            max_recv_sge: MAX_SGE,
            max_inline_data: MAX_INLINE_DATA,
        };
        assert_eq!(exceeded(&most), None);
    }
}
