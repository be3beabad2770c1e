//! Failures of work requests and queues, and the completions and events that report them.

use std::time::{Duration, Instant};

use crate::common::{
    Arena, End, Remote, Shape, eventually, gid, open, pair, pair_on, post_recv, post_send, recv, send, wait,
    wait_ok, wait_status,
};
use verbs::{
    AccessFlags, AsyncEventType, Cause, CqInit, Element, Errno, OpKind, PostReason, QpAttr, QpAttrMask,
    QpCap, QpState, QpType, RecvWr, RtsAttr, SendFlags, SendOp, SendWr, WcStatus,
};

/// Attributes that make a request fail after a few milliseconds.
const QUICK: RtsAttr = RtsAttr { sq_psn: None, timeout: 8, retry_cnt: 2, rnr_retry: 1, max_rd_atomic: 1 };

#[test]
fn an_address_without_a_device_is_a_retry_error_and_flushes_the_rest() {
    let shape = Shape { rts: QUICK, ..Shape::default() };
    let context = open();
    let unused = {
        // The address of a device that is dropped at the end of this block.
        let gone = open();
        gid(&gone)
    };
    let mut end = End::new(&context, &shape).connect(&shape, unused, Remote { qp_num: 77, psn: 0 });
    let arena = Arena::new(&end.pd, 64);
    recv(&mut end.qp, 9, &[arena.sge(0..8)]);
    send(&mut end.qp, 1, SendOp::Send, &[arena.sge(0..8)]);
    send(&mut end.qp, 2, SendOp::Send, &[arena.sge(0..8)]);
    wait_status(&mut end.cq, 1, WcStatus::RETRY_EXC_ERR);
    wait_status(&mut end.cq, 2, WcStatus::WR_FLUSH_ERR);
    wait_status(&mut end.cq, 9, WcStatus::WR_FLUSH_ERR);
    assert_eq!(end.qp.state().unwrap(), QpState::ERR);
    // Later work requests are flushed as well.
    send(&mut end.qp, 3, SendOp::Send, &[arena.sge(0..8)]);
    wait_status(&mut end.cq, 3, WcStatus::WR_FLUSH_ERR);
    recv(&mut end.qp, 4, &[arena.sge(0..8)]);
    wait_status(&mut end.cq, 4, WcStatus::WR_FLUSH_ERR);
}

#[test]
fn without_a_receive_the_retries_run_out() {
    let (mut a, _b) = pair(&Shape { rts: QUICK, ..Shape::default() });
    let arena = Arena::new(&a.pd, 64);
    send(&mut a.qp, 1, SendOp::Send, &[arena.sge(0..8)]);
    wait_status(&mut a.cq, 1, WcStatus::RNR_RETRY_EXC_ERR);
}

#[test]
fn keys_and_rights_that_do_not_fit_are_refused_by_the_peer() {
    for kind in 0..4 {
        let (mut a, b) = pair(&Shape::default());
        let (local, remote) = (Arena::new(&a.pd, 64), Arena::new(&b.pd, 64));
        let read_only = Arena::with_access(&b.pd, 64, AccessFlags::REMOTE_READ);
        let (remote_addr, rkey) = (remote.addr(), remote.rkey());
        let op = match kind {
            0 => SendOp::RdmaWrite { remote_addr, rkey: !rkey },
            1 => SendOp::RdmaWrite { remote_addr: remote_addr + 57, rkey },
            2 => SendOp::RdmaRead { remote_addr: remote_addr - 1, rkey },
            _ => SendOp::RdmaWrite { remote_addr: read_only.addr(), rkey: read_only.rkey() },
        };
        local.write(0, &[0xff; 64]);
        send(&mut a.qp, 1, op, &[local.sge(0..8)]);
        wait_status(&mut a.cq, 1, WcStatus::REM_ACCESS_ERR);
        assert_eq!((remote.read(0..64), read_only.read(0..64)), (vec![0; 64], vec![0; 64]), "kind {kind}");
    }
}

#[test]
fn a_deregistered_region_is_no_longer_reachable() {
    let (mut a, b) = pair(&Shape::default());
    let (local, remote) = (Arena::new(&a.pd, 64), Arena::new(&b.pd, 64));
    let op = SendOp::RdmaWrite { remote_addr: remote.addr(), rkey: remote.rkey() };
    send(&mut a.qp, 1, op, &[local.sge(0..8)]);
    wait_ok(&mut a.cq, 1);
    let Arena { mr, .. } = remote;
    mr.close().unwrap();
    send(&mut a.qp, 2, op, &[local.sge(0..8)]);
    wait_status(&mut a.cq, 2, WcStatus::REM_ACCESS_ERR);
}

#[test]
fn a_wrong_local_key_is_a_protection_error() {
    let (mut a, mut b) = pair(&Shape::default());
    let arena = Arena::new(&a.pd, 64);
    let into = Arena::new(&b.pd, 64);
    recv(&mut b.qp, 2, &[into.sge(0..64)]);
    let bad = verbs::Sge { lkey: !arena.mr.lkey(), ..arena.sge(0..8) };
    send(&mut a.qp, 1, SendOp::Send, &[bad]);
    wait_status(&mut a.cq, 1, WcStatus::LOC_PROT_ERR);
}

#[test]
fn a_message_that_does_not_fit_fails_on_both_sides() {
    for len in [9, 5000] {
        let (mut a, mut b) = pair(&Shape::default());
        let (from, into) = (Arena::new(&a.pd, 5000), Arena::new(&b.pd, 64));
        recv(&mut b.qp, 2, &[into.sge(0..8)]);
        send(&mut a.qp, 1, SendOp::Send, &[from.sge(0..len)]);
        wait_status(&mut a.cq, 1, WcStatus::REM_INV_REQ_ERR);
        wait_status(&mut b.cq, 2, WcStatus::LOC_LEN_ERR);
        assert_eq!(into.read(8..64), [0; 56]);
    }
}

#[test]
fn a_peer_that_is_destroyed_with_traffic_in_flight_is_a_retry_error() {
    const UNMATCHED: u64 = 4;
    // With `rnr_retry` 7, the requester retries a request for which there is no receive until the
    // peer is gone.
    let rts = RtsAttr { max_rd_atomic: 4, rnr_retry: 7, ..QUICK };
    let (mut a, b) = pair(&Shape { rts, ..Shape::default() });
    let (local, remote) = (Arena::new(&a.pd, 1 << 16), Arena::new(&b.pd, 1 << 16));
    let write = SendOp::RdmaWrite { remote_addr: remote.addr(), rkey: remote.rkey() };
    for n in 0..8 {
        // The peer cannot acknowledge this send or a later request, because it has posted no
        // receive. Requests are therefore in flight when the peer is destroyed, even if this thread
        // is descheduled for long.
        let op = if n == UNMATCHED { SendOp::Send } else { write };
        send(&mut a.qp, n, op, &[local.sge(0..1 << 16)]);
    }
    b.qp.close().unwrap();
    let wcs = wait(&mut a.cq, 8);
    let ended = wcs.iter().position(|wc| wc.status != WcStatus::SUCCESS).expect("the peer is gone");
    assert!(ended <= UNMATCHED as usize, "{wcs:?}");
    assert_eq!(wcs[ended].status, WcStatus::RETRY_EXC_ERR);
    assert!(wcs[ended + 1..].iter().all(|wc| wc.status == WcStatus::WR_FLUSH_ERR), "{wcs:?}");
    assert!(wcs.iter().map(|wc| wc.wr_id).eq(0..8), "in order");
}

#[test]
fn a_peer_that_is_destroyed_right_after_its_last_receive_has_acknowledged_it() {
    // The timeout is much longer than either thread is descheduled on a busy machine, because a
    // sender that gives up before its peer has run would prove nothing. Without the
    // acknowledgement, the sender still gives up.
    let rts = RtsAttr { timeout: 16, retry_cnt: 2, ..RtsAttr::default() };
    let shape = Shape { rts, ..Shape::default() };
    let (a_context, b_context) = (open(), open());
    for n in 0..20 {
        let (mut a, mut b) = pair_on(&a_context, &b_context, &shape);
        let (from, into) = (Arena::new(&a.pd, 8), Arena::new(&b.pd, 8));
        recv(&mut b.qp, n, &[into.sge(0..8)]);
        // Polls until the worker leaves packets to the poller.
        let polling = Instant::now();
        while polling.elapsed() < Duration::from_millis(5) {
            assert!(b.cq.poll().next().is_none());
        }
        send(&mut a.qp, n, SendOp::Send, &[from.sge(0..8)]);
        wait_ok(&mut b.cq, n);
        b.qp.close().unwrap();
        wait_ok(&mut a.cq, n);
    }
}

#[test]
fn a_queue_pair_is_destroyed_or_reset_with_traffic_in_flight_and_is_forgotten() {
    let device = open();
    let (mut a, mut b) = pair_on(&device, &device, &Shape::default());
    let (arena, remote) = (Arena::new(&a.pd, 1 << 16), Arena::new(&b.pd, 1 << 16));
    for n in 0..8 {
        recv(&mut a.qp, n, &[arena.sge(0..8)]);
        let op = SendOp::RdmaWrite { remote_addr: remote.addr(), rkey: remote.rkey() };
        send(&mut a.qp, n, op, &[arena.sge(0..1 << 16)]);
        recv(&mut b.qp, n, &[remote.sge(0..8)]);
    }
    let qp = a.qp.to_reset().unwrap();
    b.qp.close().unwrap();
    // Earlier completions may still be in the queue, but no more are added.
    let before = a.cq.poll_into(&mut [verbs::Wc::default(); 64]);
    assert!(before <= 8);
    assert_eq!(a.cq.poll_into(&mut [verbs::Wc::default(); 64]), 0);
    // The queue pair works again, from the start of its rings.
    let mut c = End::new(&device, &Shape::default());
    let mut qp = crate::common::connect(qp, &Shape::default(), gid(&device), Remote::from_qp(&c.qp));
    let mut c_qp = crate::common::connect(c.qp, &Shape::default(), gid(&device), Remote::from_qp(&qp));
    let into = Arena::new(&c.pd, 8);
    for n in 0..100 {
        recv(&mut c_qp, n, &[into.sge(0..8)]);
        send(&mut qp, n, SendOp::Send, &[arena.sge(0..8)]);
        wait_ok(&mut a.cq, n);
        wait_ok(&mut c.cq, n);
    }
}

#[test]
fn a_request_that_does_not_fit_into_a_queue_is_refused_with_the_reason() {
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 3, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
    // The peer is gone and retries have no limit, so nothing completes.
    let rts = RtsAttr { timeout: 0, ..RtsAttr::default() };
    let (mut a, b) = pair(&Shape { cap, rts, ..Shape::default() });
    b.qp.close().unwrap();
    let arena = Arena::new(&a.pd, 64);
    let one = [arena.sge(0..8)];
    let wr = SendWr { wr_id: 1, op: SendOp::Send, sge: &one, flags: SendFlags::SIGNALED };
    let error = post_send(&mut a.qp, &[wr; 6]).unwrap_err();
    assert_eq!((error.accepted, error.reason), (4, PostReason::QueueFull));
    let error = post_recv(&mut a.qp, &[RecvWr { wr_id: 2, sge: &one }; 6]).unwrap_err();
    assert_eq!((error.accepted, error.reason), (3, PostReason::QueueFull));
    let mut qp = a.qp.to_error().unwrap();
    let wcs = wait(&mut a.cq, 7);
    assert!(wcs.iter().all(|wc| wc.status == WcStatus::WR_FLUSH_ERR), "{wcs:?}");

    let (remote_addr, rkey) = (arena.addr(), arena.rkey());
    let (two, four) = ([one[0]; 2], [arena.sge(0..4)]);
    let huge = [verbs::Sge { length: u32::MAX, ..one[0] }];
    let long = [arena.sge(0..17)];
    for (op, sge, flags, reason) in [
        (SendOp::Send, &two[..], SendFlags::empty(), PostReason::TooManySge { given: 2, max: 1 }),
        (SendOp::Send, &long, SendFlags::INLINE, PostReason::InlineTooLong { given: 17, max: 16 }),
        (SendOp::Send, &huge, SendFlags::empty(), PostReason::MessageTooLong { given: u32::MAX.into() }),
        (
            SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 },
            &four,
            SendFlags::empty(),
            PostReason::AtomicLength { given: 4 },
        ),
        (
            SendOp::AtomicFetchAndAdd { remote_addr: remote_addr + 4, rkey, add: 1 },
            &one,
            SendFlags::empty(),
            PostReason::AtomicMisaligned { remote_addr: remote_addr + 4 },
        ),
        (
            SendOp::RdmaRead { remote_addr, rkey },
            &one,
            SendFlags::INLINE,
            PostReason::UnsupportedFlags { op: OpKind::RDMA_READ, flags: SendFlags::INLINE },
        ),
        (
            SendOp::Send,
            &one,
            SendFlags::IP_CSUM,
            PostReason::UnsupportedFlags { op: OpKind::SEND, flags: SendFlags::IP_CSUM },
        ),
    ] {
        let error = post_send(&mut qp, &[SendWr { wr_id: 1, op, sge, flags }]).unwrap_err();
        assert_eq!((error.accepted, error.reason), (0, reason));
    }
}

#[test]
fn limits_are_named() {
    let context = open();
    let (pd, cq, device) = (
        context.alloc_pd().unwrap(),
        context.create_cq(&CqInit::new(4)).unwrap(),
        context.query_device().unwrap(),
    );
    assert!(matches!(
        context.create_cq(&CqInit::new(device.max_cqe + 1)).unwrap_err().cause,
        Cause::Limit { name: "cqe", .. }
    ));
    let cap = QpCap { max_send_sge: device.max_sge + 1, ..Shape::default().cap };
    let init = verbs::QpInit { cap, ..verbs::QpInit::new(QpType::RC, &cq) };
    let error = pd.create_qp(&init).unwrap_err();
    assert!(error.to_string().contains("max_send_sge 33 exceeds the device's 32 (EINVAL)"), "{error}");
    let init = verbs::QpInit { cap: Shape::default().cap, ..init };
    let qp = pd.create_qp(&init).unwrap();
    let error = qp.modify_to::<verbs::state::Rts>(&QpAttr::default(), QpAttrMask::empty()).unwrap_err().error;
    assert!(matches!(error.cause, Cause::IllegalTransition { .. }), "{error}");
    assert!(matches!(context.query_port(2).unwrap_err().cause, Cause::Limit { name: "port_num", .. }));
    let raw = verbs::QpInit { qp_type: QpType::RAW_PACKET, ..init };
    assert_eq!(pd.create_qp(&raw).unwrap_err().errno, Errno::OPNOTSUPP);
}

#[test]
fn a_completion_queue_that_overflows_raises_an_event_and_breaks_its_queue_pair() {
    let cap = QpCap { max_recv_wr: 32, ..Shape::default().cap };
    let (mut a, mut b) = pair(&Shape { cqe: 4, cap, ..Shape::default() });
    let events = b.context.async_events().unwrap();
    let (from, into) = (Arena::new(&a.pd, 8), Arena::new(&b.pd, 8));
    // Many more receives than fit into the completion queue. Flushed requests do not fit either,
    // but raise no further events.
    for n in 0..32 {
        recv(&mut b.qp, n, &[into.sge(0..8)]);
    }
    for n in 0..5 {
        send(&mut a.qp, n, SendOp::Send, &[from.sge(0..8)]);
        // The fifth send may succeed or fail. The overflowing queue belongs to `b`, which no thread
        // polls.
        wait(&mut a.cq, 1);
    }
    let mut seen = Vec::new();
    eventually("both events", || {
        seen.extend(events.next_event().unwrap());
        seen.len() == 2
    });
    let told: Vec<_> = seen.iter().map(|event| (event.element, event.event_type)).collect();
    assert_eq!(
        told,
        [
            (Element::Cq(b.cq.id()), AsyncEventType::CQ_ERR),
            (Element::Qp(b.qp.id()), AsyncEventType::QP_FATAL)
        ]
    );
    assert_eq!(b.qp.state().unwrap(), QpState::ERR);
    assert_eq!(events.next_event().unwrap(), None, "nothing more is told");
}
