//! Every command against a kernel that rejects the command, reports less than it should, or reports
//! every field.

mod cq_calls;
mod events;
mod memory;
mod objects;
mod qp_attr;
mod shared;
mod sysfs;
mod windows;

use uverbs_abi::ib_user_ioctl_verbs::{IbUverbsGidEntry, IbUverbsQueryPortRespEx};
use uverbs_abi::ib_user_verbs::{
    IbUverbsExQueryDeviceResp, IbUverbsQpDest, IbUverbsQueryDeviceResp, IbUverbsQueryQpResp,
};
use zerocopy::{FromZeros, IntoBytes};

use super::{ah, context, cq, device, gid, mcast, mr, mw, pd, qp, srq, xrcd};
use crate::channel::{Attr, DriverAttrs, Expect, Reply, Scripted, Uhw, Uverbs};
use crate::errno::Errno;
use crate::error::Result;
use crate::types::{
    AccessFlags, AhAttr, CqFlags, CqInitAttr, CqModeration, CqWcFlags, DeviceCapFlags, Gid, GidType,
    GlobalRoute, LinkLayer, Mtu, MwType, PortCapFlags2, PortFlags, PortState, QpAttr, QpAttrMask, QpCap,
    QpInitAttr, QpState, QpType, Rate, RawPacketCaps, RssCaps, SrqAttr, SrqAttrMask, TmCapFlags, TmCaps,
};

#[allow(unsafe_code)]
fn on(scripted: &Scripted) -> Uverbs {
    // SAFETY: the script's descriptors belong to the test, and no memory is at stake in its queues.
    unsafe { Uverbs::new(Box::new(scripted.clone()), 18, "rxe0") }
}

#[allow(unsafe_code)]
fn driver_attrs<'a, const N: usize>(attrs: [Attr<'a>; N]) -> DriverAttrs<'a> {
    // SAFETY: a scripted kernel writes no memory except the outputs, and the ids in the tests are
    // drivers' ids.
    unsafe { DriverAttrs::new(attrs) }
}

fn cq_attr() -> CqInitAttr<'static> {
    CqInitAttr { comp_vector: 1, user_handle: 0x1_0000_0002, ..CqInitAttr::new(16) }
}

fn flagged_cq_attr() -> CqInitAttr<'static> {
    CqInitAttr { flags: CqFlags::all(), wc_flags: CqWcFlags::COMPLETION_TIMESTAMP, ..cq_attr() }
}

fn qp_attr() -> QpInitAttr {
    QpInitAttr {
        qp_type: QpType::RC,
        cap: QpCap { max_send_wr: 1, max_recv_wr: 2, max_send_sge: 3, max_recv_sge: 4, max_inline_data: 5 },
        sq_sig_all: true,
        user_handle: 0x77,
    }
}

const QP_PARENTS: qp::QpHandles =
    qp::QpHandles { pd: Some(1), send_cq: Some(2), recv_cq: Some(3), srq: None, xrcd: None };

fn ah_attr() -> AhAttr {
    let grh =
        GlobalRoute { dgid: Gid([9; 16]), flow_label: 1, sgid_index: 2, hop_limit: 3, traffic_class: 4 };
    AhAttr { grh: Some(grh), dlid: 5, sl: 6, src_path_bits: 7, static_rate: Rate::GBPS_60, port_num: 1 }
}

#[allow(unsafe_code)]
fn reg_mr(uverbs: &Uverbs) -> Result<mr::MrInfo> {
    // SAFETY: a scripted kernel does not access the memory.
    unsafe { mr::reg_mr(uverbs, 1, core::ptr::null_mut(), 4096, 0, AccessFlags::LOCAL_WRITE) }
}

/// The IPv4 group 239.1.2.3.
const GROUP: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3]);

type Command = (&'static str, fn(&Uverbs) -> Result<()>);

/// Every command, with its result ignored. Commands whose reply contains a file descriptor are
/// listed separately below.
const COMMANDS: &[Command] = &[
    ("query_device", |u| device::query_device(u, |v| v.to_string()).map(drop)),
    ("query_device_ex", |u| device::query_device_ex(u, |v| v.to_string(), Uhw::none()).map(drop)),
    ("query_port", |u| device::query_port(u, 1).map(drop)),
    ("query_gid_table", |u| gid::query_gid_table(u).map(drop)),
    ("query_gid", |u| match gid::query_gid_entry(u, 1, 0) {
        Ok(_) | Err(None) => Ok(()),
        Err(Some(error)) => Err(error),
    }),
    ("alloc_pd", |u| pd::alloc_pd(u, Uhw::none()).map(drop)),
    ("dealloc_pd", |u| pd::dealloc_pd(u, 1)),
    ("reg_mr", |u| reg_mr(u).map(drop)),
    ("dereg_mr", |u| mr::dereg_mr(u, 1)),
    ("alloc_mw", |u| mw::alloc_mw(u, 1, MwType::TYPE_1, Uhw::none()).map(drop)),
    ("dealloc_mw", |u| mw::dealloc_mw(u, 1)),
    ("create_cq", |u| cq::create_cq(u, &cq_attr(), None, Uhw::none()).map(drop)),
    ("create_cq", |u| cq::create_cq(u, &flagged_cq_attr(), None, Uhw::none()).map(drop)),
    ("destroy_cq", |u| cq::destroy_cq(u, 1).map(drop)),
    ("resize_cq", |u| cq::resize_cq(u, 1, 2, Uhw::none()).map(drop)),
    ("modify_cq", |u| cq::modify_cq(u, 1, CqModeration::default())),
    ("req_notify_cq", |u| cq::req_notify_cq(u, 1, false)),
    ("create_qp", |u| qp::create_qp(u, &QP_PARENTS, &qp_attr(), None, Uhw::none()).map(drop)),
    ("modify_qp", |u| qp::modify_qp(u, 1, &QpAttr::default(), QpAttrMask::STATE)),
    ("modify_qp", |u| qp::modify_qp_ex(u, 1, &QpAttr::default(), QpAttrMask::STATE, Uhw::none())),
    ("query_qp", |u| qp::query_qp(u, 1, QpAttrMask::STATE).map(drop)),
    ("destroy_qp", |u| qp::destroy_qp(u, 1).map(drop)),
    ("attach_mcast", |u| mcast::attach_mcast(u, 1, &GROUP, 0)),
    ("detach_mcast", |u| mcast::detach_mcast(u, 1, &GROUP, 0)),
    ("open_qp", |u| qp::open_qp(u, 1, 2, 3, Uhw::none()).map(drop)),
    ("create_srq", |u| srq::create_srq(u, &shared::XRC, &shared::attr(), None, Uhw::none()).map(drop)),
    ("modify_srq", |u| srq::modify_srq(u, 1, &SrqAttr::default(), SrqAttrMask::LIMIT, Uhw::none())),
    ("query_srq", |u| srq::query_srq(u, 1).map(drop)),
    ("destroy_srq", |u| srq::destroy_srq(u, 1).map(drop)),
    ("open_xrcd", |u| xrcd::open_xrcd(u, None, 0).map(drop)),
    ("close_xrcd", |u| xrcd::close_xrcd(u, 1)),
    ("create_ah", |u| ah::create_ah(u, 1, 0, &ah_attr(), Uhw::none()).map(drop)),
    ("destroy_ah", |u| ah::destroy_ah(u, 1)),
];

#[test]
fn every_errno_of_every_command_names_the_verb() {
    for (verb, command) in COMMANDS {
        for errno in [Errno::INVAL, Errno::IO, Errno::NODEV, Errno::FAULT, Errno::from_raw(4095)] {
            let scripted = Scripted::new([Expect::anything(Reply::Errno(errno))]);
            let error = command(&on(&scripted)).unwrap_err();
            assert_eq!((error.verb, error.errno), (*verb, errno));
        }
    }
}

#[test]
fn every_command_has_a_second_way_but_for_those_that_say_so() {
    for (verb, command) in COMMANDS {
        let scripted = Scripted::new([Expect::anything(Reply::Errno(Errno::NOTTY))]);
        if !verb.starts_with("query_gid") {
            scripted.expect([Expect::anything(Reply::ok())]);
        }
        command(&on(&scripted)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(scripted.remaining(), 0, "{verb} did not go by write()");
    }
}

/// A reply truncated at any length, with any content, results in a value or an error, never in a
/// panic or an endless loop.
#[test]
fn every_reply_truncated_at_every_length_is_survived() {
    for (verb, command) in COMMANDS {
        for fill in [0x00, 0x01, 0x7f, 0xff] {
            for len in 0..=320 {
                for fallback in [false, true] {
                    let reply = Reply::Outputs(vec![vec![fill; 320]; 4]).truncated(len);
                    let scripted = Scripted::default();
                    if fallback && !verb.starts_with("query_gid") {
                        scripted.expect([Expect::anything(Reply::Errno(Errno::NOTTY))]);
                    }
                    scripted.expect([Expect::anything(reply)]);
                    let _ = command(&on(&scripted));
                    assert_eq!(scripted.remaining(), 0, "{verb}");
                }
            }
        }
    }
}

#[test]
fn a_file_descriptor_that_the_kernel_did_not_tell_is_an_error() {
    let minus_one = u32::MAX.to_ne_bytes();
    for reply in [Reply::ok(), Reply::outputs([&minus_one])] {
        let scripted = Scripted::new([Expect::anything(reply.clone())]);
        let error = context::create_comp_channel(&on(&scripted)).unwrap_err();
        assert_eq!(error.errno, Errno::PROTO);
        let scripted = Scripted::new([Expect::anything(reply.clone())]);
        let error = context::alloc_async_fd(&on(&scripted)).unwrap_err();
        assert_eq!(error.errno, Errno::PROTO);
        let scripted = Scripted::new([Expect::anything(Reply::Errno(Errno::NOTTY)), Expect::anything(reply)]);
        let error = context::get_context(&on(&scripted), Uhw::none()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "open_device on rxe0: the kernel's reply is malformed: a file descriptor that is negative (EPROTO)"
        );
    }
}

#[test]
fn a_kernel_without_asynchronous_file_descriptors_is_named_as_such() {
    let scripted = Scripted::new([Expect::anything(Reply::Errno(Errno::PROTONOSUPPORT))]);
    let error = context::alloc_async_fd(&on(&scripted)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "alloc_async_fd on rxe0: this kernel, or its driver, has no file descriptors for asynchronous events (EOPNOTSUPP)"
    );
}

#[test]
fn get_context_by_ioctl_leaves_the_asynchronous_events_for_later() {
    let scripted = Scripted::new([Expect::command(
        "ioctl 0.3: 0x0 out 4 bytes, 0x1 out 8 bytes",
        Reply::outputs([&4_u32.to_ne_bytes(), &1_u64.to_ne_bytes()]),
    )]);
    let info = context::get_context(&on(&scripted), Uhw::none()).unwrap();
    assert_eq!((info.num_comp_vectors, info.core_support), (4, 1));
    assert!(info.async_fd.is_none());
}

#[test]
fn create_cq_sends_what_it_was_asked_for_on_both_ways() {
    let ioctl = "ioctl 3.0: 0x0 new handle, 0x6 out 4 bytes, 0x1 u32 0x10, 0x2 u64 0x100000002, 0x4 u32 0x1, \
                 0x1001 out 16 bytes";
    let write = "write 18: in 0000000000000000020000000100000010000000\
                 01000000ffffffff00000000, out 8+16";
    let (nine, room) = (9_u32.to_ne_bytes(), 31_u32.to_ne_bytes());
    let scripted = Scripted::new([
        Expect::command(ioctl, Reply::outputs([&nine, &room, &[1; 16]])),
        Expect::command(ioctl, Reply::Errno(Errno::PROTONOSUPPORT)),
        Expect::anything(Reply::Errno(Errno::PROTONOSUPPORT)),
        Expect::command(write, Reply::outputs([&[nine, room].concat(), &[2; 16]])),
    ]);
    let uverbs = on(&scripted);
    for fill in [1, 2] {
        let mut mminfo = [0; 16];
        let info = cq::create_cq(&uverbs, &cq_attr(), None, Uhw::reply(&mut mminfo)).unwrap();
        assert_eq!(info, cq::CqInfo { handle: 9, cqe: 31 });
        assert_eq!(mminfo, [fill; 16]);
    }
}

#[test]
fn create_qp_sends_what_it_was_asked_for_on_both_ways() {
    let ioctl = "ioctl 4.0: 0x2 handle 1, 0x4 handle 2, 0x5 handle 3, 0x0 new handle, 0x9 u64 0x2, 0x7 u64 0x77, \
                 0x8 in 0100000002000000030000000400000005000000, 0xa u32 0x1000, 0xd out 20 bytes, 0xe out 4 bytes";
    let caps: Vec<u8> = [10_u32, 20, 30, 40, 50].iter().flat_map(|n| n.to_ne_bytes()).collect();
    let resp: Vec<u8> = [6_u32, 17, 10, 20, 30, 40, 50, 0].iter().flat_map(|n| n.to_ne_bytes()).collect();
    let scripted = Scripted::new([
        Expect::command(ioctl, Reply::outputs([&6_u32.to_ne_bytes(), &caps, &17_u32.to_ne_bytes()])),
        Expect::anything(Reply::Errno(Errno::NOTTY)),
        Expect::anything(Reply::outputs([&resp])),
    ]);
    let uverbs = on(&scripted);
    let expected = qp::QpInfo {
        handle: 6,
        qp_num: 17,
        cap: QpCap {
            max_send_wr: 10,
            max_recv_wr: 20,
            max_send_sge: 30,
            max_recv_sge: 40,
            max_inline_data: 50,
        },
    };
    assert_eq!(qp::create_qp(&uverbs, &QP_PARENTS, &qp_attr(), None, Uhw::none()).unwrap(), expected);
    assert_eq!(qp::create_qp(&uverbs, &QP_PARENTS, &qp_attr(), None, Uhw::none()).unwrap(), expected);
}

#[test]
fn modify_qp_sends_only_what_the_mask_names() {
    let attr = QpAttr {
        qp_state: QpState::RTR,
        qkey: 0xdead_beef,
        dest_qp_num: 0x11,
        path_mtu: Mtu::MTU_1024,
        ah_attr: ah_attr(),
        ..QpAttr::default()
    };
    let scripted = Scripted::new([Expect::anything(Reply::Errno(Errno::NOTTY))]);
    let mut expected = vec!["00".repeat(64)];
    expected.push("05000000".into()); // qp_handle
    expected.push("01001000".into()); // attr_mask: STATE | DEST_QPN
    expected.push("00".repeat(12)); // qkey, rq_psn, sq_psn
    expected.push("11000000".into()); // dest_qp_num
    expected.push("00".repeat(8)); // access, pkey indices
    expected.push("02".into()); // qp_state
    expected.push("00".repeat(15));
    scripted.expect([Expect::command(&format!("write 26: in {}, out 0+0", expected.concat()), Reply::ok())]);
    qp::modify_qp(&on(&scripted), 5, &attr, QpAttrMask::STATE | QpAttrMask::DEST_QPN).unwrap();
}

#[test]
fn numbers_that_the_kernel_would_cut_off_never_reach_it() {
    let far = AhAttr { grh: Some(GlobalRoute { sgid_index: 300, ..GlobalRoute::default() }), ..ah_attr() };
    let attr = QpAttr { path_mtu: Mtu(6), ah_attr: far, alt_ah_attr: far, ..QpAttr::default() };
    let scripted = Scripted::new([]);
    let uverbs = on(&scripted);
    for (mask, text) in [
        (QpAttrMask::AV, "sgid_index 300 does not fit into 8 bits: the most is 255"),
        (QpAttrMask::ALT_PATH, "sgid_index 300 does not fit into 8 bits: the most is 255"),
        (
            QpAttrMask::PATH_MTU,
            "there is no MTU with the code 6: 1 to 5 stand for 256, 512, 1024, 2048 and 4096 bytes",
        ),
    ] {
        let error = qp::modify_qp(&uverbs, 5, &attr, mask).unwrap_err();
        assert_eq!(error.to_string(), format!("modify_qp on rxe0: {text} (EINVAL)"));
    }
    let error = ah::create_ah(&uverbs, 1, 0, &far, Uhw::none()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "create_ah on rxe0: sgid_index 300 does not fit into 8 bits: the most is 255 (EINVAL)"
    );
}

#[test]
fn of_numbers_with_more_bits_than_their_fields_the_driver_decides() {
    let attr = QpAttr {
        rq_psn: 0xff00_0001,
        sq_psn: 0xfe00_0002,
        dest_qp_num: 0xfd00_0003,
        timeout: 32,
        retry_cnt: 8,
        rnr_retry: 9,
        min_rnr_timer: 33,
        ..QpAttr::default()
    };
    let mask = QpAttrMask::RQ_PSN
        | QpAttrMask::SQ_PSN
        | QpAttrMask::DEST_QPN
        | QpAttrMask::TIMEOUT
        | QpAttrMask::RETRY_CNT
        | QpAttrMask::RNR_RETRY
        | QpAttrMask::MIN_RNR_TIMER;
    let mask_bytes: String = mask.bits().to_le_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut expected = vec!["00".repeat(64)];
    expected.push("05000000".into()); // qp_handle
    expected.push(mask_bytes); // attr_mask
    expected.push("00000000010000ff020000fe030000fd".into()); // qkey, rq_psn, sq_psn, dest_qp_num
    expected.push("00".repeat(15)); // access, pkey indices, states, MTU, reads
    expected.push("21".into()); // min_rnr_timer
    expected.push("00200809".into()); // port_num, timeout, retry_cnt, rnr_retry
    expected.push("00".repeat(4));
    let write = format!("write 26: in {}, out 0+0", expected.concat());
    let scripted =
        Scripted::new([Expect::anything(Reply::Errno(Errno::NOTTY)), Expect::command(&write, Reply::ok())]);
    qp::modify_qp(&on(&scripted), 5, &attr, mask).unwrap();
}

#[test]
fn a_queried_queue_pair_reads_as_it_was_sent() {
    let reply = IbUverbsQueryQpResp {
        dest: IbUverbsQpDest { dgid: [9; 16], is_global: 1, dlid: 5, sgid_index: 2, ..Default::default() },
        qp_state: 3,
        cur_qp_state: 200,
        sq_sig_all: 1,
        max_inline_data: 64,
        ..Default::default()
    };
    let scripted = Scripted::new([Expect::anything(Reply::outputs([reply.as_bytes()]))]);
    let (attr, init) = qp::query_qp(&on(&scripted), 5, QpAttrMask::STATE).unwrap();
    assert_eq!(attr.qp_state, QpState::RTS);
    assert_eq!(attr.cur_qp_state, QpState(200), "an unknown state is kept");
    assert_eq!(attr.ah_attr.grh.map(|grh| (grh.dgid, grh.sgid_index)), Some((Gid([9; 16]), 2)));
    assert_eq!(attr.alt_ah_attr.grh, None);
    assert!(init.sq_sig_all);
    assert_eq!(init.cap.max_inline_data, 64);
}

#[test]
fn what_an_older_kernel_does_not_tell_is_zero_even_when_its_bytes_are_not() {
    let mut reply = IbUverbsExQueryDeviceResp::new_zeroed();
    reply.as_mut_bytes().fill(0xff);
    let told = core::mem::offset_of!(IbUverbsExQueryDeviceResp, timestamp_mask);
    reply.response_length = told as u32;
    let scripted = Scripted::new([Expect::anything(Reply::outputs([reply.as_bytes()]))]);
    let attr = device::query_device_ex(&on(&scripted), |_| String::new(), Uhw::none()).unwrap();
    assert_eq!(attr.odp_caps.general_caps.bits(), u64::MAX);
    assert_eq!((attr.completion_timestamp_mask, attr.max_dm_size), (0, 0));
    assert_eq!(attr.tm_caps, Default::default());
}

#[test]
fn a_device_is_reported_with_each_field_of_the_reply_and_the_drivers_part() {
    let mut reply = IbUverbsExQueryDeviceResp::new_zeroed();
    reply.response_length = size_of_val(&reply) as u32;
    reply.base.max_qp = 1;
    reply.base.phys_port_cnt = 2;
    reply.odp_caps.general_caps = 3;
    reply.odp_caps.per_transport_caps.rc_odp_caps = 4;
    reply.odp_caps.per_transport_caps.uc_odp_caps = 5;
    reply.odp_caps.per_transport_caps.ud_odp_caps = 6;
    reply.timestamp_mask = 7;
    reply.hca_core_clock = 8;
    reply.device_cap_flags_ex = 1 << 40;
    reply.rss_caps.supported_qpts = 1 << 8;
    reply.rss_caps.max_rwq_indirection_tables = 9;
    reply.rss_caps.max_rwq_indirection_table_size = 10;
    reply.max_wq_type_rq = 11;
    reply.raw_packet_caps = 1 << 2;
    reply.tm_caps.max_rndv_hdr_size = 12;
    reply.tm_caps.max_num_tags = 13;
    reply.tm_caps.flags = 1;
    reply.tm_caps.max_ops = 14;
    reply.tm_caps.max_sge = 15;
    reply.cq_moderation_caps.max_cq_moderation_count = 16;
    reply.cq_moderation_caps.max_cq_moderation_period = 17;
    reply.max_dm_size = 18;
    reply.xrc_odp_caps = 19;
    let scripted = Scripted::new([
        Expect::anything(Reply::Errno(Errno::NOTTY)),
        Expect::command(
            "write_ex 1: in 0000000000000000, out 304+8",
            Reply::outputs([reply.as_bytes(), &[20; 8]]),
        ),
    ]);
    let mut driver = [0; 8];
    let uhw = Uhw::reply(&mut driver);
    let attr = device::query_device_ex(&on(&scripted), |_| String::new(), uhw).unwrap();
    assert_eq!(driver, [20; 8]);
    assert_eq!((attr.orig_attr.max_qp, attr.phys_port_cnt_ex), (1, 2));
    let odp = attr.odp_caps;
    let transports = [odp.rc_odp_caps, odp.uc_odp_caps, odp.ud_odp_caps, attr.xrc_odp_caps];
    assert_eq!((odp.general_caps.bits(), transports.map(|caps| caps.bits())), (3, [4, 5, 6, 19]));
    assert_eq!((attr.completion_timestamp_mask, attr.hca_core_clock), (7, 8));
    assert_eq!(attr.device_cap_flags_ex, DeviceCapFlags::ATOMIC_WRITE);
    let rss = RssCaps {
        supported_qpts: 1 << 8,
        max_rwq_indirection_tables: 9,
        max_rwq_indirection_table_size: 10,
        ..RssCaps::default()
    };
    assert_eq!((attr.rss_caps, attr.max_wq_type_rq), (rss, 11));
    assert_eq!(attr.raw_packet_caps, RawPacketCaps::IP_CSUM);
    let tm =
        TmCaps { max_rndv_hdr_size: 12, max_num_tags: 13, flags: TmCapFlags::RC, max_ops: 14, max_sge: 15 };
    assert_eq!(attr.tm_caps, tm);
    assert_eq!((attr.cq_mod_caps.max_cq_count, attr.cq_mod_caps.max_cq_period), (16, 17));
    assert_eq!(attr.max_dm_size, 18);
}

#[test]
fn query_device_ex_falls_back_to_the_plain_query() {
    for errno in [Errno::OPNOTSUPP, Errno::NOSYS] {
        let base = IbUverbsQueryDeviceResp { max_qp: 77, phys_port_cnt: 2, ..Default::default() };
        let scripted = Scripted::new([
            Expect::anything(Reply::Errno(errno)),
            Expect::anything(Reply::outputs([base.as_bytes()])),
        ]);
        let attr = device::query_device_ex(&on(&scripted), |_| String::new(), Uhw::none()).unwrap();
        assert_eq!((attr.orig_attr.max_qp, attr.phys_port_cnt_ex), (77, 2));
    }
}

#[test]
fn query_port_tells_the_newer_fields_only_where_the_kernel_does() {
    let mut reply = IbUverbsQueryPortRespEx::default();
    reply.legacy_resp.state = 4;
    reply.legacy_resp.link_layer = 2;
    reply.legacy_resp.flags = 1;
    reply.port_cap_flags2 = 3;
    reply.active_speed_ex = 256;
    let scripted = Scripted::new([
        Expect::command("ioctl 0.2: 0x0 u64 0x1, 0x1 out 48 bytes", Reply::outputs([reply.as_bytes()])),
        Expect::anything(Reply::Errno(Errno::NOTTY)),
        Expect::command(
            "write 2: in 00000000000000000100000000000000, out 40+0",
            Reply::outputs([reply.as_bytes()]),
        ),
    ]);
    let uverbs = on(&scripted);
    let port = device::query_port(&uverbs, 1).unwrap();
    assert_eq!((port.state, port.link_layer), (PortState::ACTIVE, LinkLayer::ETHERNET));
    let flags2 = PortCapFlags2::SET_NODE_DESC_SUP | PortCapFlags2::INFO_EXT_SUP;
    assert_eq!((port.flags, port.port_cap_flags2), (PortFlags::GRH_REQUIRED, flags2));
    assert_eq!(port.active_speed_ex.0, 256);
    let port = device::query_port(&uverbs, 1).unwrap();
    assert_eq!((port.state, port.flags), (PortState::ACTIVE, PortFlags::GRH_REQUIRED));
    assert_eq!((port.port_cap_flags2, port.active_speed_ex.0), (PortCapFlags2::empty(), 0));
}

#[test]
fn a_gid_table_longer_than_its_room_is_refused() {
    let count = |n: u64| Reply::outputs([&[], &n.to_ne_bytes()]);
    for (told, ok) in [(0, true), (2047, true), (2048, false), (u64::MAX, false)] {
        let scripted = Scripted::new([Expect::anything(count(told))]);
        assert_eq!(gid::query_gid_table(&on(&scripted)).is_ok(), ok, "{told}");
    }
}

#[test]
fn a_gid_entry_is_read_empty_or_missing() {
    let entry = IbUverbsGidEntry { gid: [1, 2], gid_type: 2, netdev_ifindex: 3, ..Default::default() };
    let scripted = Scripted::new([
        Expect::command(
            "ioctl 0.6: 0x0 u64 0x1, 0x1 u64 0x5, 0x2 u32 0x0, 0x3 out 32 bytes",
            Reply::outputs([entry.as_bytes()]),
        ),
        Expect::anything(Reply::Errno(Errno::NODATA)),
        Expect::anything(Reply::Errno(Errno::PROTONOSUPPORT)),
    ]);
    let uverbs = on(&scripted);
    let read = gid::query_gid_entry(&uverbs, 1, 5).unwrap().unwrap();
    assert_eq!((read.gid_type, read.ndev_ifindex), (GidType::ROCE_V2, 3));
    assert_eq!(gid::query_gid_entry(&uverbs, 1, 5), Ok(None));
    assert_eq!(gid::query_gid_entry(&uverbs, 1, 5), Err(None));
}

#[test]
fn a_group_is_joined_and_left_by_its_address_and_local_id() {
    let fields = "00000000000000000000ffffef010203".to_owned() + "05000000" + "01c0" + "0000";
    let scripted = Scripted::new([
        Expect::anything(Reply::Errno(Errno::NOTTY)),
        Expect::command(&format!("write 30: in {fields}, out 0+0"), Reply::ok()),
        Expect::command(&format!("write 31: in {fields}, out 0+0"), Reply::ok()),
    ]);
    let uverbs = on(&scripted);
    mcast::attach_mcast(&uverbs, 5, &GROUP, 0xc001).unwrap();
    mcast::detach_mcast(&uverbs, 5, &GROUP, 0xc001).unwrap();
}

#[test]
fn the_speed_of_a_port_is_read_or_missing() {
    const ASKED: &str = "ioctl 0.7: 0x0 u64 0x2, 0x1 out 8 bytes";
    let scripted = Scripted::new([
        Expect::command(ASKED, Reply::outputs([&8005_u64.to_ne_bytes()])),
        Expect::command(ASKED, Reply::Errno(Errno::INVAL)),
        Expect::command(ASKED, Reply::Errno(Errno::OPNOTSUPP)),
        Expect::command(ASKED, Reply::Errno(Errno::PROTONOSUPPORT)),
    ]);
    let uverbs = on(&scripted);
    assert_eq!(device::query_port_speed(&uverbs, 2), Ok(Some(8005)));
    let error = device::query_port_speed(&uverbs, 2).unwrap_err();
    assert_eq!((error.verb, error.errno), ("query_port_speed", Errno::INVAL));
    for why in ["the driver has none", "the kernel has none", "nothing is sent any more"] {
        assert_eq!(device::query_port_speed(&uverbs, 2), Ok(None), "{why}");
    }
}
