//! Compares the output with rdma-core 44 for rxe on four kernels (`testdata`). Invented devices
//! have the features that rxe lacks.

use verbs::{
    AtomicCap, CqModerationCaps, DeviceAttr, DeviceAttrEx, DeviceCapFlags, Gid, GidEntry, GidType, Guid,
    LinkLayer, Mtu, OdpCaps, OdpGeneralCaps, OdpTransportCaps, PacketPacingCaps, PciAtomicCaps, PortAttr,
    PortCapFlags, PortCapFlags2, PortFlags, PortState, RawPacketCaps, RssCaps, TmCapFlags, TmCaps,
    TransportType, TsoCaps,
};

use super::text::{DeviceText, GidText, PortDetails, PortText};
use super::*;

/// Returns the attributes of rxe on Linux 6.1.
fn rxe() -> DeviceAttrEx {
    let guid = Guid(0x5831_56ff_fe57_db7b);
    let cap_flags = DeviceCapFlags::from_bits_retain(0x0122_3c76);
    DeviceAttrEx {
        orig_attr: DeviceAttr {
            fw_ver: "0.0.0".into(),
            node_guid: guid,
            sys_image_guid: guid,
            max_mr_size: u64::MAX,
            page_size_cap: 0xffff_f000,
            vendor_id: 0xff_ffff,
            vendor_part_id: 0,
            hw_ver: 0,
            max_qp: 1_048_560,
            max_qp_wr: 1_048_576,
            device_cap_flags: cap_flags,
            max_sge: 32,
            max_sge_rd: 32,
            max_cq: 1_048_576,
            max_cqe: 32767,
            max_mr: 524_287,
            max_pd: 1_048_576,
            max_qp_rd_atom: 128,
            max_ee_rd_atom: 0,
            max_res_rd_atom: 258_048,
            max_qp_init_rd_atom: 128,
            max_ee_init_rd_atom: 0,
            atomic_cap: AtomicCap::HCA,
            max_ee: 0,
            max_rdd: 0,
            max_mw: 524_287,
            max_raw_ipv6_qp: 0,
            max_raw_ethy_qp: 0,
            max_mcast_grp: 8192,
            max_mcast_qp_attach: 56,
            max_total_mcast_qp_attach: 458_752,
            max_ah: 32767,
            max_fmr: 0,
            max_map_per_fmr: 0,
            max_srq: 917_503,
            max_srq_wr: 1_048_576,
            max_srq_sge: 27,
            max_pkeys: 64,
            local_ca_ack_delay: 15,
            phys_port_cnt: 1,
        },
        odp_caps: OdpCaps::default(),
        completion_timestamp_mask: 0,
        hca_core_clock: 0,
        device_cap_flags_ex: cap_flags,
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

fn rxe_port() -> PortAttr {
    PortAttr {
        state: PortState::ACTIVE,
        max_mtu: Mtu::MTU_4096,
        active_mtu: Mtu::MTU_1024,
        gid_tbl_len: 1024,
        port_cap_flags: PortCapFlags::CM_SUP,
        max_msg_sz: 0x80_0000,
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
        active_width: verbs::PortWidth(1),
        active_speed: verbs::PortSpeed(8),
        phys_state: 5,
        link_layer: LinkLayer::ETHERNET,
        flags: PortFlags::empty(),
        port_cap_flags2: PortCapFlags2::empty(),
        active_speed_ex: verbs::PortSpeed(0),
    }
}

fn gid(gid_index: u32, words: [u16; 8], gid_type: GidType) -> GidEntry {
    let gid = Gid::from(std::net::Ipv6Addr::from(words));
    GidEntry { gid, gid_index, port_num: 1, gid_type, ndev_ifindex: 2 }
}

/// Returns the complete output for a device with one port.
fn printed(attr: &DeviceAttrEx, port: &PortAttr, gids: &[GidEntry], verbose: bool) -> String {
    let transport = TransportType::IB;
    let device = DeviceText { name: "rxe0", transport, board_id: None, attr, verbose, num_comp_vectors: 2 };
    let verbose = verbose.then_some(PortDetails { transport, effective_speed: None });
    let mut all = format!("{device}{}", PortText { port_num: 1, attr: port, verbose });
    for entry in gids {
        all += &GidText { entry, link_layer: port.link_layer }.to_string();
    }
    all + "\n"
}

/// Returns the GIDs derived from a port's MAC address and IPv4 address.
fn rxe_gids(guid: Guid) -> [GidEntry; 2] {
    let [.., a, b, c, d] = [48, 32, 16, 0].map(|shift| (guid.0 >> shift) as u16);
    [
        gid(0, [0xfe80, 0, 0, 0, a, b, c, d], GidType::ROCE_V2),
        gid(1, [0, 0, 0, 0, 0, 0xffff, 0x0a09, 0x0901], GidType::ROCE_V2),
    ]
}

#[test]
fn without_verbose_a_device_prints_as_c_printed_it() {
    let expected = include_str!("testdata/6.1.txt");
    assert_eq!(printed(&rxe(), &rxe_port(), &[], false), expected);
}

#[test]
fn rxe_of_linux_6_1_prints_as_c_printed_it() {
    let attr = rxe();
    let gids = rxe_gids(attr.orig_attr.node_guid);
    assert_eq!(printed(&attr, &rxe_port(), &gids, true), include_str!("testdata/6.1-verbose.txt"));
}

#[test]
fn rxe_of_linux_5_10_prints_as_c_printed_it() {
    let mut attr = rxe();
    let orig = &mut attr.orig_attr;
    orig.node_guid = Guid(0xd88d_c6ff_fe2c_cd9c);
    orig.sys_image_guid = orig.node_guid;
    orig.device_cap_flags = DeviceCapFlags::from_bits_retain(0x0020_3c76);
    (orig.max_qp, orig.max_qp_wr, orig.max_cq, orig.max_mr) = (65536, 16384, 16384, 262_144);
    (orig.max_pd, orig.max_mw, orig.max_ah, orig.max_pkeys) = (32764, 0, 100, 1);
    (orig.max_srq, orig.max_srq_wr) = (960, 16384);
    attr.device_cap_flags_ex = DeviceCapFlags::from_bits_retain(0x20_0020_3c76);
    let gids = rxe_gids(attr.orig_attr.node_guid);
    assert_eq!(printed(&attr, &rxe_port(), &gids, true), include_str!("testdata/5.10-verbose.txt"));
}

/// Returns the attributes of rxe and of its port on Linux 6.12.
fn rxe_6_12(guid: Guid) -> (DeviceAttrEx, PortAttr) {
    let mut attr = rxe();
    attr.orig_attr.node_guid = guid;
    attr.orig_attr.sys_image_guid = guid;
    attr.device_cap_flags_ex = DeviceCapFlags::from_bits_retain(0x1c0_0122_3c76);
    (attr, PortAttr { max_msg_sz: 1 << 31, ..rxe_port() })
}

#[test]
fn rxe_of_linux_6_12_prints_as_c_printed_it() {
    let (attr, port) = rxe_6_12(Guid(0xfcdd_46ff_feb5_cb13));
    let gids = rxe_gids(attr.orig_attr.node_guid);
    assert_eq!(printed(&attr, &port, &gids, true), include_str!("testdata/6.12-verbose.txt"));
}

#[test]
fn rxe_of_linux_7_2_prints_as_c_printed_it_with_the_names_that_came_since() {
    let (mut attr, port) = rxe_6_12(Guid(0xbce4_49ff_fe61_076e));
    attr.odp_caps = OdpCaps {
        general_caps: OdpGeneralCaps::SUPPORT,
        rc_odp_caps: OdpTransportCaps::from_bits_retain(0xff),
        uc_odp_caps: OdpTransportCaps::empty(),
        ud_odp_caps: OdpTransportCaps::SEND | OdpTransportCaps::RECV | OdpTransportCaps::SRQ_RECV,
    };
    let gids = rxe_gids(attr.orig_attr.node_guid);
    let recorded = include_str!("testdata/7.2-verbose.txt");
    let named = recorded.replace(
        "\t\t\t\t\tUnknown flags: 0xC0\n",
        "\t\t\t\t\tSUPPORT_FLUSH\n\t\t\t\t\tSUPPORT_ATOMIC_WRITE\n",
    );
    assert_ne!(recorded, named);
    assert_eq!(printed(&attr, &port, &gids, true), named);
}

/// Returns the attributes of a device with every feature that rxe lacks.
fn rich() -> DeviceAttrEx {
    let mut attr = rxe();
    attr.orig_attr.max_fmr = 3;
    attr.orig_attr.max_map_per_fmr = 4;
    attr.orig_attr.max_srq = 0;
    attr.orig_attr.vendor_part_id = 4123;
    attr.orig_attr.hw_ver = 0xab;
    attr.orig_attr.fw_ver = String::new();
    attr.orig_attr.atomic_cap = AtomicCap(9);
    attr.orig_attr.max_cq = u32::MAX;
    attr.orig_attr.device_cap_flags = DeviceCapFlags::from_bits_retain(0x8000_0001);
    attr.odp_caps.general_caps = OdpGeneralCaps::from_bits_retain(0b111);
    attr.odp_caps.uc_odp_caps = OdpTransportCaps::from_bits_retain(1 << 31);
    attr.xrc_odp_caps = OdpTransportCaps::ATOMIC;
    attr.completion_timestamp_mask = 0x7fff_ffff_ffff_ffff;
    attr.hca_core_clock = 1_000_000;
    attr.raw_packet_caps = RawPacketCaps::from_bits_retain(0b1_1111);
    attr.device_cap_flags_ex = DeviceCapFlags::RAW_SCATTER_FCS
        | DeviceCapFlags::PCI_WRITE_END_PADDING
        | DeviceCapFlags::CC_DMA_BOUNCE;
    attr.tso_caps = TsoCaps { max_tso: 262_144, supported_qpts: 0x110 };
    attr.rss_caps = RssCaps {
        supported_qpts: 0x104,
        max_rwq_indirection_tables: 1_048_576,
        max_rwq_indirection_table_size: 2048,
        rx_hash_fields_mask: 0x8000_01ff,
        rx_hash_function: 1,
    };
    attr.max_wq_type_rq = 8_388_608;
    attr.packet_pacing_caps =
        PacketPacingCaps { qp_rate_limit_min: 1, qp_rate_limit_max: 100_000_000, supported_qpts: 0x314 };
    attr.tm_caps = TmCaps {
        max_rndv_hdr_size: 64,
        max_num_tags: 127,
        flags: TmCapFlags::RC,
        max_ops: 32768,
        max_sge: 1,
    };
    attr.cq_mod_caps = CqModerationCaps { max_cq_count: 65535, max_cq_period: 4095 };
    attr.max_dm_size = 131_072;
    attr
}

#[track_caller]
fn assert_has(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in\n{text}");
}

#[test]
fn what_rxe_lacks_is_printed_where_a_device_has_it() {
    let transport = TransportType::UNSPECIFIED;
    let attr = rich();
    let device = DeviceText {
        name: "mlx5_0",
        transport,
        board_id: Some("MT_0000000008"),
        attr: &attr,
        verbose: true,
        num_comp_vectors: 16,
    };
    let text = device.to_string();
    for part in [
        "hca_id:\tmlx5_0\n\ttransport:\t\t\tunspecified (4)\n\tnode_guid:",
        "\tvendor_part_id:\t\t\t4123\n\thw_ver:\t\t\t\t0xAB\n\tboard_id:\t\t\tMT_0000000008\n\tphys_port_cnt:",
        "\tdevice_cap_flags:\t\t0x80000001\n\t\t\t\t\tRESIZE_MAX_WR\n\t\t\t\t\tUnknown flags: 0x80000000\n\tmax_sge:",
        "\tmax_cq:\t\t\t\t-1\n",
        "\tatomic_cap:\t\t\tinvalid atomic capability (9)\n",
        "\tmax_fmr:\t\t\t3\n\tmax_map_per_fmr:\t\t4\n\tmax_srq:\t\t\t0\n\tmax_pkeys:",
        "\tgeneral_odp_caps:\n\t\t\t\t\tODP_SUPPORT\n\t\t\t\t\tODP_SUPPORT_IMPLICIT\n\t\t\t\t\tUnknown flags: 0x4\n\trc_odp_caps:\n",
        "\tuc_odp_caps:\n\t\t\t\t\tUnknown flags: 0x80000000\n",
        "\txrc_odp_caps:\n\t\t\t\t\tSUPPORT_ATOMIC\n\tcompletion timestamp_mask:\t\t\t0x7fffffffffffffff\n\thca_core_clock:\t\t\t1000000kHZ\n",
        "\traw packet caps:\n\t\t\t\t\tC-VLAN stripping offload\n\t\t\t\t\tScatter FCS offload\n\t\t\t\t\tIP csum offload\n\t\t\t\t\tDelay drop\n\tdevice_cap_flags_ex:\t\t0x21400000000\n\t\t\t\t\tRAW_SCATTER_FCS\n\t\t\t\t\tPCI_WRITE_END_PADDING\n\t\t\t\t\tCC_DMA_BOUNCE\n\ttso_caps:\n\t\tmax_tso:\t\t\t262144\n\t\tsupported_qp:\n\t\t\t\t\tSUPPORT_RAW_PACKET\n\t\t\t\t\tSUPPORT_UD\n\trss_caps:\n",
        "\t\trx_hash_function:\t\t\t\t0x1\n\t\trx_hash_fields_mask:\t\t\t\t0x800001FF\n\t\tsupported_qp:\n\t\t\t\t\tSUPPORT_RAW_PACKET\n\t\t\t\t\tUnknown flags: 0x4\n\tmax_wq_type_rq:\t\t\t8388608\n",
        "\t\tqp_rate_limit_min:\t1kbps\n\t\tqp_rate_limit_max:\t100000000kbps\n\t\tsupported_qp:\n\t\t\t\t\tSUPPORT_RAW_PACKET\n\t\t\t\t\tSUPPORT_UD\n\t\t\t\t\tSUPPORT_RC\n\t\t\t\t\tUnknown flags: 0x200\n\tmax_rndv_hdr_size:\t\t64\n\tmax_num_tags:\t\t\t127\n\tmax_ops:\t\t\t32768\n\tmax_sge:\t\t\t1\n\tflags:\n\t\t\t\t\tIBV_TM_CAP_RC\n\n\tcq moderation caps:\n\t\tmax_cq_count:\t65535\n\t\tmax_cq_period:\t4095 us\n\n\tmaximum available device memory:\t131072Bytes\n\n\tnum_comp_vectors:\t\t16\n",
    ] {
        assert_has(&text, part);
    }
}

#[test]
fn a_port_prints_the_newer_speed_field_and_the_effective_speed_where_they_are() {
    let attr = PortAttr {
        state: PortState(77),
        max_mtu: Mtu(9),
        lmc: 7,
        active_width: verbs::PortWidth(2),
        active_speed: verbs::PortSpeed(128),
        active_speed_ex: verbs::PortSpeed(256),
        max_vl_num: 5,
        phys_state: 4,
        port_cap_flags2: PortCapFlags2::from_bits_retain(0x3f),
        link_layer: LinkLayer::INFINIBAND,
        ..rxe_port()
    };
    let details = PortDetails { transport: TransportType::IB, effective_speed: Some(8005) };
    let text = PortText { port_num: 2, attr: &attr, verbose: Some(details) }.to_string();
    for part in [
        "\t\tport:\t2\n\t\t\tstate:\t\t\tinvalid state (77)\n\t\t\tmax_mtu:\t\tinvalid MTU (9)\n",
        "\t\t\tport_lmc:\t\t0x07\n\t\t\tlink_layer:\t\tInfiniBand\n",
        "\t\t\tport_cap_flags2:\t0x003f\n\t\t\tmax_vl_num:\t\t15 (5)\n",
        "\t\t\tactive_width:\t\t4X (2)\n\t\t\tactive_speed:\t\t200.0 Gbps (256)\n\t\t\teffective_speed:\t800.5 Gbps\n\t\t\tphys_state:\t\tPORT_CONFIGURATION TRAINNING (4)\n",
    ] {
        assert_has(&text, part);
    }
    let iwarp = PortDetails { transport: TransportType::IWARP, effective_speed: None };
    let text = PortText { port_num: 1, attr: &attr, verbose: Some(iwarp) }.to_string();
    assert!(!text.contains("phys_state") && !text.contains("effective_speed"), "{text}");
}

#[test]
fn gids_print_by_type_and_link_layer() {
    let text = |entry: &GidEntry, link_layer| GidText { entry, link_layer }.to_string();
    let words = [0xfe80, 0, 0, 0, 0x0002, 0xc903, 0x0010, 0x2031];
    let ib = gid(0, words, GidType::IB);
    let groups = "fe80:0000:0000:0000:0002:c903:0010:2031";
    assert_eq!(text(&ib, LinkLayer::INFINIBAND), format!("\t\t\tGID[  0]:\t\t{groups}\n"));
    assert_eq!(
        text(&gid(12, words, GidType::ROCE_V1), LinkLayer::ETHERNET),
        format!("\t\t\tGID[ 12]:\t\t{groups}, RoCE v1\n")
    );
    assert_eq!(
        text(&gid(1023, words, GidType::ROCE_V2), LinkLayer::ETHERNET),
        "\t\t\tGID[1023]:\t\tfe80::2:c903:10:2031, RoCE v2\n"
    );
    // A type that rdma-core does not know, and an entry with an empty lower half.
    assert_eq!(text(&gid(3, words, GidType(7)), LinkLayer::ETHERNET), "");
    assert_eq!(text(&gid(3, [0xfe80, 0, 0, 0, 0, 0, 0, 0], GidType::ROCE_V2), LinkLayer::ETHERNET), "");
}

#[test]
fn json_says_the_same_as_the_text() {
    let attr = rich();
    let transport = TransportType::IB;
    let verbose = true;
    let device =
        DeviceText { name: "rxe\"0", transport, board_id: None, attr: &attr, verbose, num_comp_vectors: 2 };
    let value = Value::from(json::device(&device));
    assert_eq!(value["hca_id"], "rxe\"0");
    assert_eq!(value["max_mr_size"], u64::MAX);
    assert_eq!(value["device_cap_flags"], object!(["RESIZE_MAX_WR", "0x80000000"]));
    assert_eq!(value["odp_caps"]["xrc"], object!(["SUPPORT_ATOMIC"]));
    assert_eq!(value["packet_pacing_caps"]["supported_qp"][3], "0x200");
    assert!(value["board_id"].is_null());

    let short = DeviceText { verbose: false, ..device };
    assert!(json::device(&short).get("max_qp").is_none());

    let attr = rxe_port();
    let details = PortDetails { transport, effective_speed: Some(105) };
    let port = Value::from(json::port(&PortText { port_num: 1, attr: &attr, verbose: Some(details) }));
    assert_eq!((&port["state"], &port["active_mtu"]), (&object!("PORT_ACTIVE"), &object!(1024)));
    assert_eq!((&port["active_width"], &port["active_speed"]), (&object!(1), &object!(10.0)));
    assert_eq!(port["effective_speed"], 10.5);

    let [link_local, ipv4] = rxe_gids(rxe().orig_attr.node_guid).map(|entry| json::gid(&entry));
    assert_eq!(link_local.map(|gid| gid["gid"].clone()), Some("fe80::5831:56ff:fe57:db7b".into()));
    assert_eq!(ipv4.map(|gid| gid["type"].clone()), Some("RoCE v2".into()));
}
