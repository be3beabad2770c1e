//! Work queues and their tables, flow rules, flow actions and counters: the exact attributes and
//! bytes.

use std::os::fd::{AsFd, AsRawFd};

use super::{Command, Expect, Reply, Scripted, driver_attrs, on};
use crate::channel::{Attr, DriverAttrs, Uhw, Uverbs};
use crate::cmd::{counters, flow, qp, rwq, wq};
use crate::errno::Errno;
use crate::error::{Cause, Result};
use crate::types::{
    AesKey, CompCntrAttachOps, CompCntrCaps, CompCntrEntry, EspAttr, EspFlags, EspIvAlgo, EspKeymat,
    EspReplay, FlowActionEspAttr, FlowAttr, FlowAttrType, FlowEspFilter, FlowEthFilter, FlowFlags,
    FlowGreFilter, FlowIpv4ExtFilter, FlowIpv4Filter, FlowIpv6Filter, FlowMatch, FlowMplsFilter, FlowSpec,
    FlowTcpUdpFilter, FlowTunnelFilter, QpCap, QpCreateFlags, QpInitAttr, QpType, ReadCountersFlags, WqAttr,
    WqFlags, WqFlagsChange, WqInitAttr, WqState, WqType,
};

const WQ: WqInitAttr = WqInitAttr {
    wq_type: WqType::RQ,
    max_wr: 0x11,
    max_sge: 0x12,
    create_flags: WqFlags::SCATTER_FCS,
    user_handle: 0x13,
};

/// Commands with a write struct.
const WITH_WRITE: &[Command] = &[
    ("create_wq", |u| wq::create_wq(u, 1, 2, &WQ, None, Uhw::none()).map(drop)),
    ("modify_wq", |u| wq::modify_wq(u, 1, &WqAttr::default(), Uhw::none())),
    ("destroy_wq", |u| wq::destroy_wq(u, 1).map(drop)),
    ("destroy_rwq_ind_table", |u| rwq::destroy_rwq_ind_table(u, 1)),
    ("create_flow", |u| flow::create_flow(u, 1, &FlowAttr::new(1), Uhw::none()).map(drop)),
    ("destroy_flow", |u| flow::destroy_flow(u, 1)),
];

/// Commands that exist only as ioctls.
const IOCTLS: &[Command] = &[
    ("create_flow_action_esp", |u| {
        flow::create_flow_action_esp(u, &FlowActionEspAttr::default(), DriverAttrs::none()).map(drop)
    }),
    ("modify_flow_action_esp", |u| flow::modify_flow_action_esp(u, 1, &FlowActionEspAttr::default())),
    ("destroy_flow_action", |u| flow::destroy_flow_action(u, 1)),
    ("create_counters", |u| counters::create_counters(u).map(drop)),
    ("read_counters", read_two),
    ("destroy_counters", |u| counters::destroy_counters(u, 1)),
    ("query_comp_cntr_caps", |u| counters::query_comp_cntr_caps(u).map(drop)),
    ("create_comp_cntr", |u| counters::create_comp_cntr(u, DriverAttrs::none()).map(drop)),
    ("set_comp_cntr", |u| counters::set_comp_cntr(u, 1, CompCntrEntry::COMP, 2)),
    ("inc_comp_cntr", |u| counters::inc_comp_cntr(u, 1, CompCntrEntry::ERR, 2)),
    ("read_comp_cntr", |u| counters::read_comp_cntr(u, 1, CompCntrEntry::COMP).map(drop)),
    ("destroy_comp_cntr", |u| counters::destroy_comp_cntr(u, 1)),
    ("qp_attach_comp_cntr", |u| counters::qp_attach_comp_cntr(u, 1, 2, CompCntrAttachOps::SEND)),
];

fn read_two(uverbs: &Uverbs) -> Result<()> {
    counters::read_counters(uverbs, 1, &mut [0; 2], ReadCountersFlags::empty())
}

#[test]
fn every_errno_names_the_verb() {
    for (verb, command) in WITH_WRITE.iter().chain(IOCTLS) {
        for errno in [Errno::INVAL, Errno::IO, Errno::OPNOTSUPP, Errno::BUSY] {
            let scripted = Scripted::new([Expect::anything(Reply::Errno(errno))]);
            let error = command(&on(&scripted)).unwrap_err();
            assert_eq!((error.verb, error.errno), (*verb, errno));
        }
    }
}

#[test]
fn a_command_with_a_write_struct_goes_by_write_where_there_is_no_ioctl() {
    for (verb, command) in WITH_WRITE {
        let scripted =
            Scripted::new([Expect::anything(Reply::Errno(Errno::NOTTY)), Expect::anything(Reply::ok())]);
        command(&on(&scripted)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(scripted.remaining(), 0, "{verb} did not go by write()");
    }
}

#[test]
fn a_command_without_a_write_struct_is_not_supported_where_there_is_no_ioctl() {
    for (verb, command) in IOCTLS {
        for errno in [Errno::NOTTY, Errno::PROTONOSUPPORT] {
            let scripted = Scripted::new([Expect::anything(Reply::Errno(errno))]);
            let error = command(&on(&scripted)).unwrap_err();
            assert_eq!((error.verb, error.errno), (*verb, Errno::OPNOTSUPP));
            assert!(matches!(error.cause, Cause::KernelLacks { .. }), "{error}");
        }
    }
}

#[test]
fn replies_of_any_length_and_content_are_survived() {
    for (verb, command) in WITH_WRITE.iter().chain(IOCTLS) {
        for fill in [0x00, 0x7f, 0xff] {
            for len in 0..=24 {
                let reply = Reply::Outputs(vec![vec![fill; 24]; 4]).truncated(len);
                let scripted = Scripted::new([Expect::anything(reply)]);
                let _ = command(&on(&scripted));
                assert_eq!(scripted.remaining(), 0, "{verb}");
            }
        }
    }
}

#[test]
fn a_work_queue_is_created_by_each_way() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let (fd, number) = (Some(file.as_fd()), file.as_fd().as_raw_fd());
    let four = |n: u32| n.to_ne_bytes();
    let ioctl = format!(
        "ioctl 12.0: 0x0 new handle, 0x3 u64 0x13, 0x1 handle 5, 0x2 handle 6, 0x4 u64 0x0, 0x6 u32 0x11, \
         0x7 u32 0x12, 0x5 fd {number}, 0x8 u32 0x2, 0x9 out 4 bytes, 0xa out 4 bytes, 0xb out 4 bytes"
    );
    let write = "00000000 00000000 1300000000000000 05000000 06000000 11000000 12000000 02000000 00000000";
    let write = write.replace(' ', "");
    let reply = [0, 24, 1, 32, 3, 0x77].map(u32::to_ne_bytes).concat();
    let scripted = Scripted::new([
        Expect::command(&ioctl, Reply::outputs([&four(1), &four(32), &four(3), &four(0x77)])),
        Expect::anything(Reply::Errno(Errno::PROTONOSUPPORT)),
        Expect::command(
            &format!("ioctl 0.0: 0x2 u64 0x80000034, 0x0 in {write}, 0x1 out 24 bytes"),
            Reply::outputs([&reply]),
        ),
        Expect::anything(Reply::Errno(Errno::NOTTY)),
        Expect::command(&format!("write_ex 52: in {write}, out 24+0"), Reply::outputs([&reply])),
    ]);
    let uverbs = on(&scripted);
    let want = wq::WqInfo { handle: 1, wq_num: 0x77, max_wr: 32, max_sge: 3 };
    for _ in 0..3 {
        assert_eq!(wq::create_wq(&uverbs, 5, 6, &WQ, fd, Uhw::none()).unwrap(), want);
    }
}

#[test]
fn the_driver_of_a_work_queue_gets_its_part() {
    let mut output = [0; 8];
    let scripted = Scripted::new([Expect::command(
        "ioctl 12.0: 0x0 new handle, 0x3 u64 0x13, 0x1 handle 5, 0x2 handle 6, 0x4 u64 0x0, 0x6 u32 0x11, \
         0x7 u32 0x12, 0x8 u32 0x2, 0x9 out 4 bytes, 0xa out 4 bytes, 0xb out 4 bytes, \
         0x1000 in aabb, 0x1001 out 8 bytes",
        Reply::outputs([&[1], &[2], &[3], &[4], &[5; 8]]),
    )]);
    let uhw = Uhw { input: &[0xaa, 0xbb], output: &mut output };
    wq::create_wq(&on(&scripted), 5, 6, &WQ, None, uhw).unwrap();
    assert_eq!(output, [5; 8]);
}

#[test]
fn a_change_of_a_work_queue_names_what_it_changes() {
    let scripted = Scripted::new([
        Expect::command(
            "ioctl 0.0: 0x2 u64 0x80000035, 0x0 in 010000000900000001000000000000000000000000000000",
            Reply::ok(),
        ),
        Expect::command(
            "ioctl 0.0: 0x2 u64 0x80000035, 0x0 in 070000000900000002000000010000000100000003000000",
            Reply::ok(),
        ),
        Expect::anything(Reply::Errno(Errno::NOTTY)),
        Expect::command(
            "write_ex 53: in 000000000900000000000000000000000000000000000000, out 0+0",
            Reply::ok(),
        ),
    ]);
    let uverbs = on(&scripted);
    let attr = WqAttr { wq_state: Some(WqState::RDY), ..WqAttr::default() };
    wq::modify_wq(&uverbs, 9, &attr, Uhw::none()).unwrap();
    let flags = WqFlags::CVLAN_STRIPPING;
    let attr = WqAttr {
        wq_state: Some(WqState::ERR),
        curr_wq_state: Some(WqState::RDY),
        flags: Some(WqFlagsChange { flags, mask: flags | WqFlags::SCATTER_FCS }),
    };
    wq::modify_wq(&uverbs, 9, &attr, Uhw::none()).unwrap();
    wq::modify_wq(&uverbs, 9, &WqAttr::default(), Uhw::none()).unwrap();
}

#[test]
fn a_work_queue_is_destroyed_by_each_way() {
    let scripted = Scripted::new([
        Expect::command("ioctl 12.1: 0x1 out 4 bytes, 0x0 handle 9", Reply::ok()),
        Expect::anything(Reply::Errno(Errno::NOTTY)),
        Expect::command("write_ex 54: in 0000000009000000, out 16+0", Reply::ok()),
    ]);
    let uverbs = on(&scripted);
    wq::destroy_wq(&uverbs, 9).unwrap();
    wq::destroy_wq(&uverbs, 9).unwrap();
}

#[test]
fn a_table_of_work_queues_is_padded_to_whole_words() {
    let reply = [0, 16, 0x21, 0x22].map(u32::to_ne_bytes).concat();
    let scripted = Scripted::new([
        Expect::command(
            "ioctl 0.0: 0x2 u64 0x80000037, 0x0 in 00000000000000000700000000000000, 0x1 out 16 bytes",
            Reply::outputs([&reply]),
        ),
        Expect::anything(Reply::Errno(Errno::NOTTY)),
        Expect::command(
            "write_ex 55: in 00000000020000000700000008000000070000000a000000, out 16+0",
            Reply::outputs([&reply]),
        ),
    ]);
    let uverbs = on(&scripted);
    let want = rwq::RwqIndTableInfo { handle: 0x21, ind_tbl_num: 0x22 };
    assert_eq!(rwq::create_rwq_ind_table(&uverbs, &[7], Uhw::none()).unwrap(), want);
    assert_eq!(rwq::create_rwq_ind_table(&uverbs, &[7, 8, 7, 10], Uhw::none()).unwrap(), want);
}

#[test]
fn a_table_of_an_impossible_size_is_refused_without_a_command() {
    let uverbs = on(&Scripted::default());
    for (entries, text) in [(0, "0"), (3, "a power of 2"), (8193, "8192"), (16384, "8192")] {
        let error = rwq::create_rwq_ind_table(&uverbs, &vec![1; entries], Uhw::none()).unwrap_err();
        assert_eq!((error.verb, error.errno), ("create_rwq_ind_table", Errno::INVAL));
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[test]
fn a_table_whose_reply_is_too_short_is_refused() {
    let reply = [0, 8, 0x21, 0x22].map(u32::to_ne_bytes).concat();
    let scripted = Scripted::new([Expect::anything(Reply::outputs([&reply]))]);
    let error = rwq::create_rwq_ind_table(&on(&scripted), &[1, 2], Uhw::none()).unwrap_err();
    assert_eq!(error.errno, Errno::PROTO);
}

#[test]
fn a_table_of_work_queues_is_destroyed_by_each_way() {
    let scripted = Scripted::new([
        Expect::command("ioctl 11.0: 0x0 handle 9", Reply::ok()),
        Expect::anything(Reply::Errno(Errno::NOTTY)),
        Expect::command("write_ex 56: in 0000000009000000, out 0+0", Reply::ok()),
    ]);
    let uverbs = on(&scripted);
    rwq::destroy_rwq_ind_table(&uverbs, 9).unwrap();
    rwq::destroy_rwq_ind_table(&uverbs, 9).unwrap();
}

fn fields<T>(val: T, mask: T) -> FlowMatch<T> {
    FlowMatch { val, mask }
}

/// Creates a rule with one specification and expects `bytes` for the specification.
fn expect_spec(spec: FlowSpec, bytes: &str) {
    let bytes = bytes.replace(' ', "");
    let size = (bytes.len() / 2) as u16;
    assert_eq!(bytes.len() % 16, 0, "a specification is whole words");
    let size: String = size.to_ne_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let head = format!("00000000 05000000 00000000 {size} 0000 01 0000 01 00000000").replace(' ', "");
    let command = format!("ioctl 0.0: 0x2 u64 0x80000032, 0x0 in {head}{bytes}, 0x1 out 8 bytes");
    let scripted = Scripted::new([Expect::command(&command, Reply::outputs([&[0, 0, 0, 0, 3, 0, 0, 0]]))]);
    let attr = FlowAttr::new(1).with(spec);
    assert_eq!(flow::create_flow(&on(&scripted), 5, &attr, Uhw::none()).unwrap(), 3);
}

#[test]
fn each_header_of_a_flow_rule_has_its_bytes() {
    let eth = |n| FlowEthFilter { dst_mac: [n; 6], src_mac: [n + 1; 6], ether_type: 0x0800, vlan_tag: 5 };
    expect_spec(
        FlowSpec::Eth { fields: fields(eth(1), eth(3)), is_inner: false },
        "20000000 2800 0000 010101010101 020202020202 0800 0005 030303030303 040404040404 0800 0005",
    );
    let ipv4 = |n| FlowIpv4Filter { src_ip: [n, 2, 3, 4].into(), dst_ip: [5, 6, 7, 8].into() };
    expect_spec(
        FlowSpec::Ipv4 { fields: fields(ipv4(1), ipv4(9)), is_inner: false },
        "30000000 1800 0000 01020304 05060708 09020304 05060708",
    );
    let ipv4 = |n| FlowIpv4ExtFilter {
        src_ip: [n, 2, 3, 4].into(),
        dst_ip: [5, 6, 7, 8].into(),
        proto: 17,
        tos: 18,
        ttl: 19,
        flags: 20,
    };
    expect_spec(
        FlowSpec::Ipv4Ext { fields: fields(ipv4(1), ipv4(9)), is_inner: false },
        "30000000 2000 0000 01020304 05060708 11121314 09020304 05060708 11121314",
    );
    let ipv6 = |n| FlowIpv6Filter {
        src_ip: [n; 16].into(),
        dst_ip: [2; 16].into(),
        flow_label: 0x12345,
        next_hdr: 17,
        traffic_class: 18,
        hop_limit: 19,
    };
    let (src, dst) = ("01".repeat(16), "02".repeat(16));
    let half = |src: &str| format!("{src} {dst} 00012345 11121300");
    expect_spec(
        FlowSpec::Ipv6 { fields: fields(ipv6(1), ipv6(9)), is_inner: false },
        &format!("31000000 5800 0000 {} {}", half(&src), half(&"09".repeat(16))),
    );
    let esp = |spi| FlowEspFilter { spi, seq: 2 };
    expect_spec(
        FlowSpec::Esp { fields: fields(esp(1), esp(u32::MAX)), is_inner: false },
        "34000000 1800 0000 00000001 00000002 ffffffff 00000002",
    );
    let ports = |dst_port| FlowTcpUdpFilter { dst_port, src_port: 0x1314 };
    let (val, mask) = (ports(0x1112), ports(0xffff));
    expect_spec(
        FlowSpec::Tcp { fields: fields(val, mask), is_inner: false },
        "40000000 1000 0000 1112 1314 ffff 1314",
    );
    expect_spec(
        FlowSpec::Udp { fields: fields(val, mask), is_inner: false },
        "41000000 1000 0000 1112 1314 ffff 1314",
    );
    let label = |label| FlowMplsFilter { label };
    expect_spec(
        FlowSpec::Mpls { fields: fields(label(0x0102_0304), label(u32::MAX)), is_inner: false },
        "60000000 1000 0000 01020304 ffffffff",
    );
    let tunnel = |tunnel_id| FlowTunnelFilter { tunnel_id };
    expect_spec(
        FlowSpec::VxlanTunnel(fields(tunnel(0x0001_0203), tunnel(0x00ff_ffff))),
        "50000000 1000 0000 00010203 00ffffff",
    );
    let gre = |key| FlowGreFilter { c_ks_res0_ver: 0x2000, protocol: 0x6558, key };
    expect_spec(
        FlowSpec::Gre(fields(gre(1), gre(u32::MAX))),
        "51000000 1800 0000 2000 6558 00000001 2000 6558 ffffffff",
    );
}

#[test]
fn each_action_of_a_flow_rule_has_its_bytes() {
    expect_spec(FlowSpec::ActionTag(0x0012_3456), "00100000 1000 0000 56341200 00000000");
    expect_spec(FlowSpec::ActionDrop, "01100000 0800 0000");
    expect_spec(FlowSpec::ActionHandle(7), "02100000 1000 0000 07000000 00000000");
    expect_spec(FlowSpec::ActionCount(8), "03100000 1000 0000 08000000 00000000");
}

#[test]
fn a_header_inside_of_a_tunnel_has_the_inner_bit() {
    let none = fields(FlowTcpUdpFilter::default(), FlowTcpUdpFilter::default());
    expect_spec(FlowSpec::Udp { fields: none, is_inner: true }, "41010000 1000 0000 0000000000000000");
    let none = fields(FlowIpv4ExtFilter::default(), FlowIpv4ExtFilter::default());
    let zeros = "00".repeat(24);
    let bytes = format!("30010000 2000 0000 {zeros}");
    expect_spec(FlowSpec::Ipv4Ext { fields: none, is_inner: true }, &bytes);
}

#[test]
fn a_flow_rule_counts_its_specifications_and_their_bytes() {
    let attr = FlowAttr {
        attr_type: FlowAttrType::SNIFFER,
        priority: 0x0102,
        flags: FlowFlags::EGRESS,
        ..FlowAttr::new(2)
    };
    let attr = attr.with(FlowSpec::ActionDrop).with(FlowSpec::ActionTag(1));
    let bytes = "0000000005000000 03000000 1800 0201 02 0000 02 04000000 \
                 0110000008000000 00100000100000000100000000000000";
    let bytes = bytes.replace(' ', "");
    let scripted = Scripted::new([
        Expect::anything(Reply::Errno(Errno::NOTTY)),
        Expect::command(
            &format!("write_ex 50: in {bytes}+cc00000000000000, out 8+0"),
            Reply::outputs([&[0, 0, 0, 0, 4, 0, 0, 0]]),
        ),
    ]);
    let uhw = Uhw { input: &[0xcc, 0, 0, 0, 0, 0, 0, 0], output: &mut [] };
    assert_eq!(flow::create_flow(&on(&scripted), 5, &attr, uhw).unwrap(), 4);
}

#[test]
fn a_flow_rule_with_more_specifications_than_the_command_counts_is_refused() {
    let attr = FlowAttr { specs: vec![FlowSpec::ActionDrop; 256], ..FlowAttr::new(1) };
    let error = flow::create_flow(&on(&Scripted::default()), 5, &attr, Uhw::none()).unwrap_err();
    assert_eq!((error.verb, error.errno), ("create_flow", Errno::INVAL));
    assert!(matches!(error.cause, Cause::Limit { asked: 256, max: 255, .. }), "{error}");
}

#[test]
fn a_flow_rule_is_destroyed_by_each_way() {
    let scripted = Scripted::new([
        Expect::command("ioctl 9.0: 0x0 handle 9", Reply::ok()),
        Expect::anything(Reply::Errno(Errno::NOTTY)),
        Expect::command("write_ex 51: in 0000000009000000, out 0+0", Reply::ok()),
    ]);
    let uverbs = on(&scripted);
    flow::destroy_flow(&uverbs, 9).unwrap();
    flow::destroy_flow(&uverbs, 9).unwrap();
}

#[test]
fn an_esp_action_carries_what_its_attributes_name() {
    let attr = FlowActionEspAttr {
        esp_attr: Some(EspAttr {
            spi: 1,
            seq: 2,
            tfc_pad: 3,
            flags: EspFlags::TRANSPORT | EspFlags::ENCRYPT,
            hard_limit_pkts: 4,
        }),
        esn: Some(5),
        keymat: Some(EspKeymat {
            iv: 6,
            iv_algo: EspIvAlgo::SEQ,
            salt: 7,
            icv_len: 16,
            aes_key: AesKey::Bits128([0xab; 16]),
        }),
        replay: Some(EspReplay::Bitmap { size: 64 }),
        encap: None,
    };
    let keymat = "0600000000000000 00000000 07000000 10000000 10000000".replace(' ', "");
    let key = "ab".repeat(16) + &"00".repeat(16);
    let attrs = format!(
        "0x2 u32 0x5, 0x3 enum 0 in {keymat}{key}, 0x4 enum 1 in 40000000, \
         0x1 in 010000000200000003000000060000000400000000000000"
    );
    let scripted = Scripted::new([
        Expect::command(
            &format!("ioctl 13.0: 0x0 new handle, {attrs}, 0x1000 u64 0x1"),
            Reply::outputs([&[8]]),
        ),
        Expect::command(&format!("ioctl 13.2: 0x0 handle 8, {attrs}"), Reply::ok()),
        Expect::command("ioctl 13.2: 0x0 handle 8, 0x4 enum 0 in ", Reply::ok()),
        Expect::command("ioctl 13.1: 0x0 handle 8", Reply::ok()),
    ]);
    let uverbs = on(&scripted);
    // The mlx5 flags of Linux 5.10: the packet needs metadata.
    let driver = driver_attrs([Attr::u64(0x1000, 1)]);
    assert_eq!(flow::create_flow_action_esp(&uverbs, &attr, driver).unwrap(), 8);
    flow::modify_flow_action_esp(&uverbs, 8, &attr).unwrap();
    let off = FlowActionEspAttr { replay: Some(EspReplay::None), ..FlowActionEspAttr::default() };
    flow::modify_flow_action_esp(&uverbs, 8, &off).unwrap();
    flow::destroy_flow_action(&uverbs, 8).unwrap();
    assert!(!format!("{attr:?}").contains("171"), "the key is a secret: {attr:?}");
}

#[test]
fn counters_are_created_read_and_destroyed() {
    let values = [0x1111_2222_u64, 0x3333].map(u64::to_ne_bytes).concat();
    let scripted = Scripted::new([
        Expect::command("ioctl 15.0: 0x0 new handle", Reply::outputs([&[6]])),
        Expect::command("ioctl 15.2: 0x0 handle 6, 0x1 out 16 bytes, 0x2 u32 0x1", Reply::outputs([&values])),
        Expect::command("ioctl 15.1: 0x0 handle 6", Reply::ok()),
    ]);
    let uverbs = on(&scripted);
    assert_eq!(counters::create_counters(&uverbs).unwrap(), 6);
    let mut read = [0; 2];
    counters::read_counters(&uverbs, 6, &mut read, ReadCountersFlags::PREFER_CACHED).unwrap();
    assert_eq!(read, [0x1111_2222, 0x3333]);
    counters::destroy_counters(&uverbs, 6).unwrap();
}

#[test]
fn completion_counters_are_set_added_to_and_read() {
    let scripted = Scripted::new([
        Expect::command(
            "ioctl 0.8: 0x0 out 4 bytes, 0x1 out 8 bytes, 0x2 out 4 bytes",
            Reply::outputs([&[9, 0, 0, 0], &[0xff; 8], &[0x21, 0, 0, 0]]),
        ),
        Expect::command("ioctl 19.0: 0x0 new handle, 0x1000 in 0909, 0x1001 in 0a", Reply::outputs([&[6]])),
        Expect::command("ioctl 19.2: 0x0 handle 6, 0x1 u64 0x0, 0x2 u64 0x0, 0x3 u64 0x64", Reply::ok()),
        Expect::command("ioctl 19.2: 0x0 handle 6, 0x1 u64 0x1, 0x2 u64 0x1, 0x3 u64 0x5", Reply::ok()),
        Expect::command(
            "ioctl 19.3: 0x0 handle 6, 0x1 u64 0x1, 0x2 out 8 bytes",
            Reply::outputs([&7_u64.to_ne_bytes()]),
        ),
        Expect::command("ioctl 4.2: 0x0 handle 3, 0x1 handle 6, 0x2 u32 0x21", Reply::ok()),
        Expect::command("ioctl 19.1: 0x0 handle 6", Reply::ok()),
    ]);
    let uverbs = on(&scripted);
    let ops = CompCntrAttachOps::SEND | CompCntrAttachOps::REMOTE_RDMA_WRITE;
    let want = CompCntrCaps { max_value: u64::MAX, max_counters: 9, supported_qp_attach_ops: ops };
    assert_eq!(counters::query_comp_cntr_caps(&uverbs).unwrap(), want);
    let driver = driver_attrs([Attr::input(0x1000, &[9, 9]), Attr::input(0x1001, &[10])]);
    let handle = counters::create_comp_cntr(&uverbs, driver).unwrap();
    counters::set_comp_cntr(&uverbs, handle, CompCntrEntry::COMP, 100).unwrap();
    counters::inc_comp_cntr(&uverbs, handle, CompCntrEntry::ERR, 5).unwrap();
    assert_eq!(counters::read_comp_cntr(&uverbs, handle, CompCntrEntry::ERR).unwrap(), 7);
    counters::qp_attach_comp_cntr(&uverbs, 3, handle, ops).unwrap();
    counters::destroy_comp_cntr(&uverbs, handle).unwrap();
}

fn raw_packet() -> QpInitAttr {
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 2, max_send_sge: 3, max_recv_sge: 4, max_inline_data: 5 };
    QpInitAttr { qp_type: QpType::RAW_PACKET, cap, sq_sig_all: true, user_handle: 0x77 }
}

const PARENTS: qp::QpHandles =
    qp::QpHandles { pd: Some(1), send_cq: Some(2), recv_cq: Some(3), srq: Some(4), xrcd: None };

#[test]
fn the_properties_of_a_queue_pair_travel_by_each_way() {
    let extra = qp::QpExtra {
        create_flags: QpCreateFlags::SCATTER_FCS | QpCreateFlags::BLOCK_SELF_MCAST_LB,
        source_qpn: Some(0x99),
        rwq_ind_tbl: None,
    };
    let write = "7700000000000000 01000000 02000000 03000000 04000000 01000000 02000000 03000000 04000000 \
                 05000000 01080100 00000000 02050000 00000000 99000000";
    let write = write.replace(' ', "");
    let scripted = Scripted::new([
        Expect::command(
            "ioctl 4.0: 0x2 handle 1, 0x4 handle 2, 0x5 handle 3, 0x0 new handle, 0x9 u64 0x8, 0x7 u64 0x77, \
             0x8 in 0100000002000000030000000400000005000000, 0xa u32 0x1102, 0xb u32 0x99, 0x3 handle 4, \
             0xd out 20 bytes, 0xe out 4 bytes",
            Reply::outputs([&[6], &[0; 20], &[7, 0, 0, 0]]),
        ),
        Expect::anything(Reply::Errno(Errno::NOTTY)),
        Expect::command(&format!("write_ex 24: in {write}, out 40+0"), Reply::outputs([&[6, 0, 0, 0, 7]])),
    ]);
    let uverbs = on(&scripted);
    for _ in 0..2 {
        let info = qp::create_qp_ex(&uverbs, &PARENTS, &raw_packet(), &extra, None, Uhw::none()).unwrap();
        assert_eq!((info.handle, info.qp_num), (6, 7));
    }
}

#[test]
fn a_queue_pair_with_a_table_has_no_queue_for_receives() {
    let extra = qp::QpExtra { rwq_ind_tbl: Some(8), ..qp::QpExtra::default() };
    let write = "7700000000000000 01000000 00000000 00000000 00000000 00000000 00000000 03000000 00000000 \
                 05000000 00080000 01000000 00000000 08000000 00000000";
    let write = write.replace(' ', "");
    let scripted = Scripted::new([
        Expect::command(
            "ioctl 4.0: 0x2 handle 1, 0x6 handle 8, 0x4 handle 2, 0x0 new handle, 0x9 u64 0x8, 0x7 u64 0x77, \
             0x8 in 0100000000000000030000000000000005000000, 0xa u32 0x1000, \
             0xd out 20 bytes, 0xe out 4 bytes",
            Reply::ok(),
        ),
        Expect::anything(Reply::Errno(Errno::NOTTY)),
        Expect::command(&format!("write_ex 24: in {write}, out 40+0"), Reply::ok()),
    ]);
    let uverbs = on(&scripted);
    qp::create_qp_ex(&uverbs, &PARENTS, &raw_packet(), &extra, None, Uhw::none()).unwrap();
    let mut attr = QpInitAttr { sq_sig_all: false, ..raw_packet() };
    attr.cap.max_send_wr = 0;
    qp::create_qp_ex(&uverbs, &PARENTS, &attr, &extra, None, Uhw::none()).unwrap();
}
