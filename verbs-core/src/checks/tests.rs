//! Rejected work requests and the reasons. The shortcuts accept nothing that the full checks
//! reject.

use super::*;
use crate::types::{AccessFlags, Av, MwBindInfo, MwType, UdAddr};

const CAP: QpCap =
    QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 16 };
const ONE: [Sge; 1] = [Sge { addr: 0x1000, length: 8, lkey: 1 }];
const WR: SendWr<'_> = SendWr { wr_id: 1, op: SendOp::Send, sge: &ONE, flags: SendFlags::empty() };
const READ: SendOp<'_> = SendOp::RdmaRead { remote_addr: 0, rkey: 0 };
const ADD: SendOp<'_> = SendOp::AtomicFetchAndAdd { remote_addr: 8, rkey: 0, add: 1 };

fn at(qp_type: QpType, state: QpState) -> SendChecks {
    let mut checks = SendChecks::new(qp_type, &CAP).with_windows();
    checks.moved_to(state);
    checks
}

/// Returns the result of the full check and asserts that the shortcut does not accept more.
fn check(checks: &SendChecks, wr: &SendWr<'_>) -> Result<u32, PostReason> {
    let checked = checks.check(wr);
    if checks.is_plain(wr) || checks.is_plain_inline(wr) {
        assert_eq!(checked, Ok(wr.sge[0].length), "{wr:?}");
    }
    checked
}

fn operations_of_all_kinds(av: &Av) -> [SendOp<'_>; 10] {
    let to = UdAddr { av, remote_qpn: 1, remote_qkey: 1 };
    [
        SendOp::Send,
        SendOp::SendWithImm { imm_data: 1 },
        SendOp::UdSend { to },
        SendOp::UdSendWithImm { to, imm_data: 1 },
        SendOp::RdmaWrite { remote_addr: 0, rkey: 0 },
        SendOp::RdmaWriteWithImm { remote_addr: 0, rkey: 0, imm_data: 1 },
        READ,
        SendOp::AtomicCmpAndSwp { remote_addr: 8, rkey: 0, compare: 0, swap: 1 },
        ADD,
        SendOp::SendWithInv { invalidate_rkey: 1 },
    ]
}

#[test]
fn an_operation_that_the_type_lacks_is_refused_with_both_names_in_every_state() {
    let av = Av::new(1, &[]);
    for (qp_type, has) in [
        (QpType::RC, [true, true, false, false, true, true, true, true, true, true]),
        (QpType::UC, [true, true, false, false, true, true, false, false, false, false]),
        (QpType::UD, [false, false, true, true, false, false, false, false, false, false]),
        (QpType::RAW_PACKET, [true, false, false, false, false, false, false, false, false, false]),
    ] {
        for (op, has) in operations_of_all_kinds(&av).into_iter().zip(has) {
            for state in [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS, QpState::ERR] {
                let is_open = matches!(state, QpState::RTS | QpState::ERR);
                let expected = match (has, is_open) {
                    (false, _) => Err(PostReason::UnsupportedOp { op: op.kind(), qp_type }),
                    (true, false) => Err(PostReason::InvalidState),
                    (true, true) => Ok(8),
                };
                assert_eq!(check(&at(qp_type, state), &SendWr { op, ..WR }), expected, "{qp_type} {state}");
            }
        }
    }
}

#[test]
fn only_a_device_that_has_them_takes_checksums_and_segmentation() {
    let tso = SendWr { op: SendOp::Tso { hdr: &[0; 54], mss: 1000 }, ..WR };
    let csum = SendWr { flags: SendFlags::IP_CSUM, ..WR };
    let inline = SendWr { flags: SendFlags::IP_CSUM | SendFlags::INLINE, ..WR };
    let raw = at(QpType::RAW_PACKET, QpState::RTS);
    let (op, qp_type) = (OpKind::TSO, QpType::RAW_PACKET);
    assert_eq!(check(&raw, &tso), Err(PostReason::UnsupportedOp { op, qp_type }));
    let (op, flags) = (OpKind::SEND, SendFlags::IP_CSUM);
    assert_eq!(check(&raw, &csum), Err(PostReason::UnsupportedFlags { op, flags }));

    let mut raw = SendChecks::new(qp_type, &CAP).with_ip_csum().with_tso();
    raw.moved_to(QpState::RTS);
    assert!(!raw.is_plain(&WR) && !raw.is_plain_inline(&SendWr { flags: SendFlags::INLINE, ..WR }));
    let long = [Sge { length: 17, ..ONE[0] }];
    for (wr, expected) in [
        (tso, Ok(8)),
        (csum, Ok(8)),
        (inline, Ok(8)),
        (SendWr { sge: &long, ..csum }, Ok(17)),
        (SendWr { sge: &long, ..inline }, Err(PostReason::InlineTooLong { given: 17, max: 16 })),
    ] {
        assert_eq!(check(&raw, &wr), expected, "{wr:?}");
    }
    // No device segments inline data.
    let (op, flags) = (OpKind::TSO, SendFlags::INLINE);
    let refused = check(&raw, &SendWr { flags, ..tso });
    assert_eq!(refused, Err(PostReason::UnsupportedFlags { op, flags }));
}

#[test]
fn each_rule_of_a_send_has_its_reason() {
    let rc = at(QpType::RC, QpState::RTS);
    let three = [ONE[0]; 3];
    let huge = [Sge { length: 1 << 30, ..ONE[0] }, Sge { length: (1 << 30) + 1, ..ONE[0] }];
    let most = [Sge { length: 1 << 31, ..ONE[0] }];
    let long = [Sge { length: 17, ..ONE[0] }];
    let inline = SendFlags::INLINE;
    let odd = SendOp::AtomicFetchAndAdd { remote_addr: 12, rkey: 0, add: 1 };
    for (wr, expected) in [
        (SendWr { sge: &three, ..WR }, Err(PostReason::TooManySge { given: 3, max: 2 })),
        (SendWr { sge: &huge, ..WR }, Err(PostReason::MessageTooLong { given: (1 << 31) + 1 })),
        (SendWr { sge: &most, ..WR }, Ok(1 << 31)),
        (SendWr { sge: &[], ..WR }, Ok(0)),
        (SendWr { sge: &long, flags: inline, ..WR }, Err(PostReason::InlineTooLong { given: 17, max: 16 })),
        (SendWr { flags: inline, ..WR }, Ok(8)),
        (
            SendWr { op: READ, flags: inline, ..WR },
            Err(PostReason::UnsupportedFlags { op: OpKind::RDMA_READ, flags: inline }),
        ),
        (
            SendWr { flags: SendFlags::IP_CSUM | inline, ..WR },
            Err(PostReason::UnsupportedFlags { op: OpKind::SEND, flags: SendFlags::IP_CSUM }),
        ),
        (SendWr { op: ADD, sge: &long, ..WR }, Err(PostReason::AtomicLength { given: 17 })),
        (SendWr { op: odd, ..WR }, Err(PostReason::AtomicMisaligned { remote_addr: 12 })),
        (SendWr { op: ADD, ..WR }, Ok(8)),
    ] {
        assert_eq!(check(&rc, &wr), expected, "{wr:?}");
    }
}

#[test]
fn operations_on_keys_belong_to_connected_queue_pairs_and_take_no_list() {
    let info = MwBindInfo { lkey: 1, addr: 0, length: 8, mw_access_flags: AccessFlags::REMOTE_READ };
    let bind = SendOp::BindMw { mw_type: MwType::TYPE_2, rkey: 1, new_rkey: 2, bind_info: &info };
    let invalidate = SendOp::LocalInv { invalidate_rkey: 1 };
    for (qp_type, op, has) in [
        (QpType::RC, bind, true),
        (QpType::UC, bind, true),
        (QpType::UD, bind, false),
        (QpType::RC, invalidate, true),
        (QpType::UC, invalidate, false),
        (QpType::UD, invalidate, false),
    ] {
        let checks = at(qp_type, QpState::RTS);
        let refused = Err(PostReason::UnsupportedOp { op: op.kind(), qp_type });
        let wr = SendWr { op, sge: &[], ..WR };
        assert_eq!(check(&checks, &wr), if has { Ok(0) } else { refused }, "{qp_type} {op:?}");
        if has {
            let listed = check(&checks, &SendWr { op, ..WR });
            assert_eq!(listed, Err(PostReason::TooManySge { given: 1, max: 0 }), "{qp_type} {op:?}");
            let inline = check(&checks, &SendWr { flags: SendFlags::INLINE, ..wr });
            let flags = SendFlags::INLINE;
            assert_eq!(inline, Err(PostReason::UnsupportedFlags { op: op.kind(), flags }));
            let fenced = check(&checks, &SendWr { flags: SendFlags::FENCE | SendFlags::SIGNALED, ..wr });
            assert_eq!(fenced, Ok(0));
        }
    }
}

#[test]
fn flushes_and_atomic_writes_are_for_devices_that_have_them() {
    let flush = SendOp::Flush {
        remote_addr: 3,
        rkey: 1,
        length: 5,
        placement: FlushPlacement::GLOBAL,
        selectivity: FlushSelectivity::RANGE,
    };
    let store = SendOp::AtomicWrite { remote_addr: 8, rkey: 1, data: [1; 8] };
    for (qp_type, flushes, writes) in [
        (QpType::RC, false, false),
        (QpType::RC, true, false),
        (QpType::RC, false, true),
        (QpType::RC, true, true),
        (QpType::UC, true, true),
        (QpType::UD, true, true),
    ] {
        let mut checks = SendChecks::new(qp_type, &CAP).with_placement(flushes, writes).with_windows();
        checks.moved_to(QpState::RTS);
        let has = |has, op: SendOp<'_>, length| {
            let missing = PostReason::UnsupportedOp { op: op.kind(), qp_type };
            if has && qp_type == QpType::RC { Ok(length) } else { Err(missing) }
        };
        for (op, expected) in [(flush, has(flushes, flush, 5)), (store, has(writes, store, 8))] {
            assert_eq!(
                check(&checks, &SendWr { op, sge: &[], ..WR }),
                expected,
                "{qp_type} {flushes} {writes}"
            );
        }
    }
}

#[test]
fn some_devices_change_keys_through_every_connected_type() {
    let info = MwBindInfo::default();
    let bind = SendOp::BindMw { mw_type: MwType::TYPE_1, rkey: 1, new_rkey: 2, bind_info: &info };
    let local = SendOp::LocalInv { invalidate_rkey: 1 };
    let remote = SendOp::SendWithInv { invalidate_rkey: 1 };
    let [xrc_bind, xrc_local, xrc_remote] =
        [&bind, &local, &remote].map(|op| SendOp::Xrc { remote_srqn: 1, op });
    let ops = [bind, local, remote, xrc_bind, xrc_local, xrc_remote];
    for (qp_type, usual, more) in [
        (QpType::RC, [true, true, true, false, false, false], [true, true, true, false, false, false]),
        (QpType::UC, [true, false, false, false, false, false], [true, true, false, false, false, false]),
        (QpType::XRC_SEND, [false; 6], [true, true, false, false, false, true]),
        (QpType::UD, [false; 6], [false; 6]),
        (QpType::XRC_RECV, [false; 6], [false; 6]),
    ] {
        let checks = SendChecks::new(qp_type, &CAP);
        for (mut checks, has) in [
            (checks.with_windows(), usual),
            (checks.with_windows_of_every_type(), more),
            (checks, [false; 6]),
        ] {
            checks.moved_to(QpState::RTS);
            let has = if checks.optional & WINDOWS == 0 { [false; 6] } else { has };
            let taken = ops.map(|op| check(&checks, &SendWr { op, sge: &[], ..WR }).is_ok());
            assert_eq!(taken, has, "{qp_type} {}", checks.windows_of_every_type);
        }
    }
}

#[test]
fn a_window_gives_the_rights_of_peers_and_no_others() {
    let rc = at(QpType::RC, QpState::RTS);
    let bound = |mw_access_flags| {
        let info = MwBindInfo { mw_access_flags, ..MwBindInfo::default() };
        let op = SendOp::BindMw { mw_type: MwType::TYPE_2, rkey: 1, new_rkey: 2, bind_info: &info };
        check(&rc, &SendWr { op, sge: &[], ..WR })
    };
    assert_eq!(bound(AccessFlags::WINDOW_RIGHTS), Ok(0));
    assert_eq!(bound(AccessFlags::empty()), Ok(0));
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
    let refused = bound(access | AccessFlags::REMOTE_READ).unwrap_err();
    assert_eq!(refused, PostReason::WindowAccess { access });
    assert_eq!(
        refused.to_string(),
        "a memory window gives peers the rights REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC, ZERO_BASED, \
         not LOCAL_WRITE, MW_BIND"
    );
}

#[test]
fn each_rule_of_a_flush_and_an_atomic_write_has_its_reason() {
    let mut rc = SendChecks::new(QpType::RC, &CAP).with_placement(true, true);
    rc.moved_to(QpState::RTS);
    let flush = |placement, selectivity| SendOp::Flush {
        remote_addr: 3,
        rkey: 1,
        length: u32::MAX,
        placement,
        selectivity,
    };
    let (global, whole) = (FlushPlacement::GLOBAL, FlushSelectivity::MR);
    let store = |remote_addr| SendOp::AtomicWrite { remote_addr, rkey: 1, data: [1; 8] };
    let inline = SendFlags::INLINE;
    let kind = |placement, selectivity| Err(PostReason::FlushKind { placement, selectivity });
    let (none, unknown) = (FlushPlacement::empty(), FlushPlacement::from_bits_retain(5));
    for (op, sge, flags, expected) in [
        (flush(global, whole), &[][..], SendFlags::FENCE, Ok(u32::MAX)),
        (flush(none, whole), &[], WR.flags, kind(none, whole)),
        (flush(unknown, whole), &[], WR.flags, kind(unknown, whole)),
        (flush(global, FlushSelectivity(2)), &[], WR.flags, kind(global, FlushSelectivity(2))),
        (flush(global, whole), &ONE, WR.flags, Err(PostReason::TooManySge { given: 1, max: 0 })),
        (
            flush(global, whole),
            &[],
            inline,
            Err(PostReason::UnsupportedFlags { op: OpKind::FLUSH, flags: inline }),
        ),
        (store(8), &[], SendFlags::SIGNALED, Ok(8)),
        (store(9), &[], WR.flags, Err(PostReason::AtomicMisaligned { remote_addr: 9 })),
        (store(8), &ONE, WR.flags, Err(PostReason::TooManySge { given: 1, max: 0 })),
        (
            store(8),
            &[],
            inline,
            Err(PostReason::UnsupportedFlags { op: OpKind::ATOMIC_WRITE, flags: inline }),
        ),
    ] {
        assert_eq!(check(&rc, &SendWr { wr_id: 1, op, sge, flags }), expected, "{op:?}");
    }
}

#[test]
fn a_datagram_is_not_longer_than_the_mtu() {
    let av = Av::new(1, &[]);
    let op = SendOp::UdSend { to: UdAddr { av: &av, remote_qpn: 1, remote_qkey: 1 } };
    let mut checks = SendChecks::new(QpType::UD, &CAP).with_max_datagram(1024);
    checks.moved_to(QpState::RTS);
    let of = |length| [Sge { length, ..ONE[0] }];
    assert_eq!(check(&checks, &SendWr { op, sge: &of(1024), ..WR }), Ok(1024));
    let refused = check(&checks, &SendWr { op, sge: &of(1025), ..WR });
    assert_eq!(refused, Err(PostReason::DatagramTooLong { given: 1025, max: 1024 }));
}

#[test]
fn a_queue_without_elements_takes_no_list() {
    let mut checks = SendChecks::new(QpType::RC, &QpCap { max_send_sge: 0, ..CAP });
    checks.moved_to(QpState::RTS);
    assert_eq!(check(&checks, &WR), Err(PostReason::TooManySge { given: 1, max: 0 }));
    assert_eq!(check(&checks, &SendWr { sge: &[], ..WR }), Ok(0));
}

#[test]
fn receives_are_refused_in_reset_and_where_their_list_is_too_long() {
    let mut checks = RecvChecks::new(&CAP);
    let wr = |sge| RecvWr { wr_id: 1, sge };
    assert_eq!(checks.check(&wr(&ONE)), Err(PostReason::InvalidState));
    assert!(!checks.is_plain(&wr(&ONE)));
    checks.moved_to(QpState::INIT);
    assert_eq!(checks.check(&wr(&ONE)), Ok(8));
    assert!(checks.is_plain(&wr(&ONE)));
    let three = [ONE[0]; 3];
    assert_eq!(checks.check(&wr(&three)), Err(PostReason::TooManySge { given: 3, max: 2 }));
    let huge = [Sge { length: u32::MAX, ..ONE[0] }];
    assert_eq!(checks.check(&wr(&huge)), Err(PostReason::MessageTooLong { given: u32::MAX.into() }));
    assert!(!checks.is_plain(&wr(&huge)) && !checks.is_plain(&wr(&[])));
    checks.moved_to(QpState::RESET);
    assert_eq!(checks.check(&wr(&ONE)), Err(PostReason::InvalidState));
}

#[test]
fn inline_data_takes_the_short_way_if_it_is_short_and_read_only() {
    let checks = at(QpType::RC, QpState::RTS);
    let flags = SendFlags::INLINE | SendFlags::SIGNALED;
    let wr = |op, sge, flags| SendWr { op, sge, flags, ..WR };
    let longest = [Sge { length: CAP.max_inline_data, ..ONE[0] }];
    let too_long = [Sge { length: CAP.max_inline_data + 1, ..ONE[0] }];
    assert!(checks.is_plain_inline(&wr(SendOp::Send, &longest, flags)));
    for other in [
        wr(SendOp::Send, &too_long, flags),
        wr(SendOp::Send, &[], flags),
        wr(SendOp::Send, &longest, SendFlags::SIGNALED),
        wr(SendOp::Send, &longest, flags | SendFlags::IP_CSUM),
        wr(READ, &longest, flags),
        wr(SendOp::SendWithInv { invalidate_rkey: 1 }, &longest, flags),
    ] {
        assert!(!checks.is_plain_inline(&other), "{other:?}");
    }
    assert!(!at(QpType::RC, QpState::RTR).is_plain_inline(&wr(SendOp::Send, &longest, flags)));
}

#[test]
fn the_limits_of_common_requests_are_those_of_the_short_ways() {
    let av = Av::new(1, &[]);
    for qp_type in [QpType::RC, QpType::UC, QpType::UD, QpType::XRC_SEND, QpType::RAW_PACKET] {
        for state in [QpState::RESET, QpState::RTR, QpState::RTS, QpState::ERR] {
            let checks = at(qp_type, state);
            for op in operations_of_all_kinds(&av) {
                let limits = checks.plain_limits(op.kind());
                for length in [1, 16, 17, MAX_MESSAGE as u32, MAX_MESSAGE as u32 + 1] {
                    let sge = [Sge { length, ..ONE[0] }];
                    let wr = |flags| SendWr { op, sge: &sge, flags, ..WR };
                    let (listed, inline) = (wr(SendFlags::FENCE), wr(SendFlags::INLINE));
                    assert_eq!(length <= limits.max_length, checks.is_plain(&listed), "{listed:?}");
                    assert_eq!(length <= limits.max_inline, checks.is_plain_inline(&inline), "{inline:?}");
                }
            }
        }
    }
}

#[test]
fn faults_that_no_provider_of_c_looks_for_are_left_to_the_device() {
    let huge = [Sge { addr: 0, length: u32::MAX, lkey: 1 }];
    let long = SendWr { sge: &huge, ..WR };
    let read = SendWr { op: READ, ..WR };
    let left = |checks: &SendChecks, wr: &SendWr<'_>| {
        let reason = checks.check(wr).unwrap_err();
        assert_eq!(SendChecks { leaves_faults: false, ..*checks }.left_to_device(wr, reason), Err(reason));
        checks.left_to_device(wr, reason)
    };
    let leaving = |qp_type, state| {
        let mut checks = at(qp_type, state);
        checks.leave_faults_to_device();
        checks
    };
    let uc = leaving(QpType::UC, QpState::RTS);
    assert_eq!(left(&uc, &long), Ok(DeviceFault::Length(u32::MAX.into())));
    assert_eq!(left(&uc, &read), Ok(DeviceFault::Operation));
    let to = UdAddr { av: &Av::new(1, &[]), remote_qpn: 1, remote_qkey: 1 };
    let datagram = SendWr { op: SendOp::UdSend { to }, ..WR };
    let ud = leaving(QpType::UD, QpState::RTS).with_max_datagram(7);
    assert_eq!(left(&ud, &datagram), Ok(DeviceFault::Length(8)));
    // A request stays rejected if the kernel or a call rejects it for another reason.
    assert_eq!(left(&leaving(QpType::UC, QpState::RTR), &read), Err(PostReason::InvalidState));
    let three = [ONE[0]; 3];
    let reason = PostReason::TooManySge { given: 3, max: 2 };
    assert_eq!(left(&uc, &SendWr { sge: &three, ..read }), Err(reason));
    let inline = SendWr { flags: SendFlags::INLINE, ..long };
    let reason = PostReason::InlineTooLong { given: u32::MAX.into(), max: 16 };
    assert_eq!(left(&uc, &inline), Err(reason));
    let (op, bind_info) = (OpKind::BIND_MW, MwBindInfo::default());
    let bind = SendWr {
        op: SendOp::BindMw { mw_type: MwType::TYPE_2, rkey: 1, new_rkey: 2, bind_info: &bind_info },
        sge: &[],
        ..WR
    };
    let reason = PostReason::UnsupportedOp { op, qp_type: QpType::UD };
    assert_eq!(left(&ud, &bind), Err(reason));
    let windowless = SendChecks { optional: 0, ..leaving(QpType::RC, QpState::RTS) };
    let invalidate = SendWr { op: SendOp::LocalInv { invalidate_rkey: 1 }, sge: &[], ..WR };
    let mut windowless = windowless;
    windowless.moved_to(QpState::RTS);
    let reason = PostReason::UnsupportedOp { op: OpKind::LOCAL_INV, qp_type: QpType::RC };
    assert_eq!(left(&windowless, &invalidate), Err(reason));
    // The kernel completes unknown opcodes with an error.
    let op = SendOp::AtomicWrite { remote_addr: 8, rkey: 1, data: [0; 8] };
    assert_eq!(left(&windowless, &SendWr { op, sge: &[], ..WR }), Ok(DeviceFault::Operation));
    let target = leaving(QpType::XRC_RECV, QpState::RTS);
    assert!(left(&target, &WR).is_err(), "it has no send queue");
}
