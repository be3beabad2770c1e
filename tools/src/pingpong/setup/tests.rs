//! Tests for features that a device lacks according to its attributes.

use verbs::{
    AtomicCap, CqModerationCaps, DeviceAttr, DeviceCapFlags, Guid, OdpCaps, PacketPacingCaps, PciAtomicCaps,
    RawPacketCaps, RssCaps, TmCaps, TsoCaps,
};

use super::*;

fn attr() -> DeviceAttrEx {
    DeviceAttrEx {
        orig_attr: DeviceAttr {
            fw_ver: String::new(),
            node_guid: Guid(1),
            sys_image_guid: Guid(1),
            max_mr_size: u64::MAX,
            page_size_cap: 4096,
            vendor_id: 0,
            vendor_part_id: 0,
            hw_ver: 0,
            max_qp: 1,
            max_qp_wr: 1,
            device_cap_flags: DeviceCapFlags::empty(),
            max_sge: 1,
            max_sge_rd: 1,
            max_cq: 1,
            max_cqe: 1,
            max_mr: 1,
            max_pd: 1,
            max_qp_rd_atom: 1,
            max_ee_rd_atom: 0,
            max_res_rd_atom: 1,
            max_qp_init_rd_atom: 1,
            max_ee_init_rd_atom: 0,
            atomic_cap: AtomicCap::NONE,
            max_ee: 0,
            max_rdd: 0,
            max_mw: 0,
            max_raw_ipv6_qp: 0,
            max_raw_ethy_qp: 0,
            max_mcast_grp: 0,
            max_mcast_qp_attach: 0,
            max_total_mcast_qp_attach: 0,
            max_ah: 0,
            max_fmr: 0,
            max_map_per_fmr: 0,
            max_srq: 0,
            max_srq_wr: 0,
            max_srq_sge: 0,
            max_pkeys: 1,
            local_ca_ack_delay: 0,
            phys_port_cnt: 1,
        },
        odp_caps: OdpCaps::default(),
        completion_timestamp_mask: 0,
        hca_core_clock: 0,
        device_cap_flags_ex: DeviceCapFlags::empty(),
        tso_caps: TsoCaps::default(),
        rss_caps: RssCaps::default(),
        max_wq_type_rq: 0,
        packet_pacing_caps: PacketPacingCaps::default(),
        raw_packet_caps: RawPacketCaps::empty(),
        tm_caps: TmCaps::default(),
        cq_mod_caps: CqModerationCaps::default(),
        max_dm_size: 0,
        pci_atomic_caps: PciAtomicCaps::default(),
        xrc_odp_caps: OdpTransportCaps::empty(),
        phys_port_cnt_ex: 0,
    }
}

fn line(attr: &DeviceAttrEx, options: &Options) -> Option<&'static str> {
    lacks(attr, options).map(|(line, _)| line)
}

#[test]
fn on_demand_paging_must_reach_sends_and_receives() {
    let odp = Options { odp: true, ..Options::default() };
    let implicit = Options { implicit_odp: true, ..odp.clone() };
    let incapable = Some("The device isn't ODP capable or does not support RC send and receive with ODP");
    let mut attr = attr();
    assert_eq!(line(&attr, &odp), incapable);
    attr.odp_caps.general_caps = OdpGeneralCaps::SUPPORT;
    attr.odp_caps.rc_odp_caps = OdpTransportCaps::SEND;
    assert_eq!(line(&attr, &odp), incapable);
    attr.odp_caps.rc_odp_caps |= OdpTransportCaps::RECV;
    assert_eq!(line(&attr, &odp), None);
    assert_eq!(line(&attr, &implicit), Some("The device doesn't support implicit ODP"));
    attr.odp_caps.general_caps |= OdpGeneralCaps::IMPLICIT;
    assert_eq!(line(&attr, &implicit), None);

    let of = |program| Options { odp: true, ..Options::for_program(program) };
    let (srq, xsrq) = (of(Program::Srq), of(Program::Xsrq));
    assert_eq!(line(&attr, &srq), Some(NO_ODP_OF_SRQ));
    attr.odp_caps.rc_odp_caps |= OdpTransportCaps::SRQ_RECV;
    assert_eq!((line(&attr, &srq), line(&attr, &xsrq)), (None, Some(NO_ODP_OF_XSRQ)));
    attr.xrc_odp_caps = OdpTransportCaps::SEND | OdpTransportCaps::SRQ_RECV;
    assert_eq!(line(&attr, &xsrq), None);
}

#[test]
fn timestamps_and_device_memory_are_refused_with_the_device_s_limit() {
    let timestamps = Options { timestamps: true, ..Options::default() };
    let memory = Options { device_memory: true, ..Options::default() };
    let mut attr = attr();
    assert_eq!(line(&attr, &timestamps), Some("The device isn't completion timestamp capable"));
    assert_eq!(line(&attr, &memory), Some("Device doesn't support dm allocation"));
    attr.max_dm_size = 4095;
    let (line, reason) = lacks(&attr, &memory).expect("too little");
    assert_eq!(line, "Device memory is insufficient");
    assert_eq!(reason, "its max_dm_size is 4095, the message has 4096 bytes");
    attr.max_dm_size = 4096;
    attr.completion_timestamp_mask = 0xffff;
    assert_eq!((lacks(&attr, &memory), lacks(&attr, &timestamps)), (None, None));
}

#[test]
fn a_device_must_have_each_feature_that_is_requested() {
    let both = Options { timestamps: true, device_memory: true, ..Options::default() };
    let mut attr = attr();
    attr.completion_timestamp_mask = u64::MAX;
    assert_eq!(line(&attr, &both), Some("Device doesn't support dm allocation"));
    attr.max_dm_size = 1 << 20;
    attr.completion_timestamp_mask = 0;
    assert_eq!(line(&attr, &both), Some("The device isn't completion timestamp capable"));
}

#[test]
fn a_length_that_c_takes_for_negative_is_refused() {
    let of_size = |size| map(&Options { size, ..Options::default() });
    assert!(of_size(0x8000_0000).is_err_and(|reason| reason.contains("2147483648 bytes")));
    assert!(of_size(4096).is_ok());
}
