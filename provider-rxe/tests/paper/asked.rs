//! Queries about a queue pair: its attributes, maximum inline data and multicast groups.

use std::os::fd::AsRawFd;

use uverbs_abi::ib_user_verbs::{IbUverbsQueryDeviceResp, IbUverbsQueryQpResp};
use verbs_core::channel::{Expect, Reply};
use verbs_core::provider::{ContextOps, Destroy, QpOps, QpParents};
use verbs_core::types::{Gid, QpAttrMask, QpCap, QpInitAttr, QpState, QpType};
use verbs_core::{Cause, Errno};
use zerocopy::IntoBytes;

use super::Fixture;

/// `QUERY_QP` of the paper device's queue pair, as an ioctl carrying the write command.
const QUERY: &str = "ioctl 0.0: 0x2 u64 0x19, 0x0 in 00000000000000000400000001001000, 0x1 out 128 bytes";

#[test]
fn a_query_tells_what_the_kernel_says_of_this_queue_pair() {
    let fixture = Fixture::of_type(QpType::RC);
    let reply = IbUverbsQueryQpResp {
        qp_state: QpState::SQE.0,
        cur_qp_state: QpState::ERR.0,
        rq_psn: 0x12_3456,
        sq_psn: 0x65_4321,
        dest_qp_num: 0x77,
        max_send_wr: 3,
        max_inline_data: 64,
        sq_sig_all: 1,
        ..Default::default()
    };
    let query = || fixture.qp.parts.qp.query(QpAttrMask::STATE | QpAttrMask::DEST_QPN);
    fixture.device.script.expect([Expect::command(QUERY, Reply::outputs([reply.as_bytes()]))]);
    let (attr, info) = query().unwrap();
    assert_eq!((attr.qp_state, attr.cur_qp_state), (QpState::SQE, QpState::ERR));
    assert_eq!((attr.rq_psn, attr.sq_psn, attr.dest_qp_num), (0x12_3456, 0x65_4321, 0x77));
    assert_eq!((info.cap.max_send_wr, info.cap.max_inline_data, info.sq_sig_all), (3, 64, true));
    assert_eq!(fixture.qp.parts.qp.state(), QpState::RTS, "the state to which it was last moved");

    fixture.device.script.expect([Expect::command(QUERY, Reply::Errno(Errno::NOMEM))]);
    let error = query().unwrap_err();
    assert_eq!((error.verb, error.errno), ("query_qp", Errno::NOMEM));
}

#[test]
fn the_probe_for_inline_data_is_of_the_same_type_and_carries_no_handle_of_the_program() {
    let device = crate::device();
    let cq = device.create_cq(16);
    let fd = device.context.device().async_fd().unwrap().as_raw_fd();
    let asked = |caps: [u32; 5], user_handle: u64| {
        let caps: String =
            caps.iter().flat_map(|n| n.to_ne_bytes()).map(|byte| format!("{byte:02x}")).collect();
        format!(
            "ioctl 4.0: 0x2 handle 2, 0x4 handle 3, 0x5 handle 3, 0x0 new handle, 0x9 u64 0x3, \
             0x7 u64 {user_handle:#x}, 0x8 in {caps}, 0xc fd {fd}, 0xa u32 0x1000, 0xd out 20 bytes, \
             0xe out 4 bytes, 0x1001 out 32 bytes"
        )
    };
    let told = IbUverbsQueryDeviceResp { max_qp_wr: 16384, max_sge: 32, ..Default::default() };
    let told = || Expect::anything(Reply::outputs([told.as_bytes()]));
    let possible = [1_u32, 1, 32, 1, 512];
    let made = Reply::outputs([&4_u32.to_ne_bytes(), possible.as_bytes(), &17_u32.to_ne_bytes()]);
    device.script.expect([
        Expect::command(&asked([1, 2, 3, 4, 513], 0x1234_5678_9abc), Reply::Errno(Errno::INVAL)),
        told(),
        told(),
        Expect::command(&asked([1, 1, 32, 1, 0], 0), made),
        Expect::command("ioctl 4.1: 0x1 out 4 bytes, 0x0 handle 4", Reply::ok()),
    ]);
    let cap =
        QpCap { max_send_wr: 1, max_recv_wr: 2, max_send_sge: 3, max_recv_sge: 4, max_inline_data: 513 };
    let attr = QpInitAttr { qp_type: QpType::UC, cap, sq_sig_all: true, user_handle: 0x1234_5678_9abc };
    let error =
        device.context.create_qp(&QpParents::new(&device.pd, &cq.handle, &cq.handle), &attr).unwrap_err();
    assert_eq!(error.cause, Cause::Limit { name: "max_inline_data", asked: 513, min: 0, max: 512 });
    assert_eq!(device.script.remaining(), 0);
}

/// The group 239.1.2.3.
const GROUP: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3]);

/// Expects `ATTACH_MCAST` or `DETACH_MCAST` for the paper device's queue pair.
fn of_group(command: u32, reply: Reply) -> Expect {
    let fields = "00000000000000000000ffffef010203".to_owned() + "04000000" + "00000000";
    Expect::command(&format!("ioctl 0.0: 0x2 u64 {command:#x}, 0x0 in {fields}"), reply)
}

#[test]
fn a_queue_pair_leaves_its_groups_before_it_is_destroyed() {
    let mut fixture = Fixture::of_type(QpType::UD);
    let (attach, detach) = (30, 31);
    // The kernel would refuse to destroy a queue pair in a group. Attaching twice counts as once.
    fixture.device.script.expect([
        of_group(attach, Reply::ok()),
        of_group(attach, Reply::ok()),
        of_group(detach, Reply::ok()),
        of_group(attach, Reply::ok()),
    ]);
    let qp = &mut fixture.qp.parts.qp;
    qp.attach_mcast(&GROUP, 0).unwrap();
    qp.attach_mcast(&GROUP, 0).unwrap();
    qp.detach_mcast(&GROUP, 0).unwrap();
    let error = qp.detach_mcast(&GROUP, 0).unwrap_err();
    assert_eq!((error.errno, error.cause), (Errno::INVAL, Cause::NotAttached { gid: GROUP }));
    qp.attach_mcast(&GROUP, 0).unwrap();
    fixture.device.script.expect([of_group(detach, Reply::ok()), Expect::anything(Reply::ok())]);
    fixture.qp.parts.qp.destroy().unwrap();
    assert_eq!(fixture.device.script.remaining(), 0);
}

#[test]
fn a_group_that_the_kernel_refuses_is_explained() {
    let unicast = Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 1));
    for (qp_type, gid, cause) in [
        (
            QpType::RC,
            GROUP,
            Cause::CallOfType { qp_type: QpType::RC, needs: "only UD queue pairs join multicast groups" },
        ),
        (QpType::UD, unicast, Cause::NotMulticast { gid: unicast }),
        (QpType::UD, GROUP, Cause::Unknown),
    ] {
        let mut fixture = Fixture::of_type(qp_type);
        fixture.device.script.expect([Expect::anything(Reply::Errno(Errno::INVAL))]);
        let error = fixture.qp.parts.qp.attach_mcast(&gid, 0).unwrap_err();
        assert_eq!((error.verb, error.errno, error.cause), ("attach_mcast", Errno::INVAL, cause));
    }
}
