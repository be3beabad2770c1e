//! The requests accepted in each state of a queue pair and the effect of RESET and ERR on its
//! queues.

use uverbs_abi::rdma_user_rxe::{RxeRecvWqe, RxeSendWqe};
use verbs_core::channel::{Expect, Reply};
use verbs_core::provider::{CqOps, QpOps, SendQueue};
use verbs_core::types::{
    Av, Mtu, PostReason, QpAttr, QpAttrMask, QpInitAttr, QpState, QpType, RecvWr, SendFlags, SendOp, SendWr,
    UdAddr, Wc, WcStatus,
};
use verbs_core::{Cause, Errno, transition};

use super::{Fixture, plain, sge};
use provider_rxe::paper::PaperDevice;

#[test]
fn receives_are_taken_from_init_on_and_sends_from_rts_on() {
    for qp_type in [QpType::RC, QpType::UC, QpType::UD] {
        let mut fixture = Fixture::of_type(qp_type);
        let av = Av::new(14, &9_u32.to_ne_bytes());
        let to = UdAddr { av: &av, remote_qpn: 1, remote_qkey: 1 };
        let one = [sge(1)];
        let op = if qp_type == QpType::UD { SendOp::UdSend { to } } else { SendOp::Send };
        let path = [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS, QpState::ERR, QpState::RESET];
        for state in path {
            // Makes one transition at a time, because `move_to` would make all.
            match state {
                QpState::RTR | QpState::RTS => step(&mut fixture, state),
                _ => fixture.device.move_to(&mut fixture.qp, state),
            }
            let send = fixture.send(&[plain(op, &one)]).map_err(|error| error.reason);
            let recv = fixture.recv(&[RecvWr { wr_id: 1, sge: &one }]).map_err(|error| error.reason);
            let takes = |yes| if yes { Ok(()) } else { Err(PostReason::InvalidState) };
            assert_eq!(
                send,
                takes(matches!(state, QpState::RTS | QpState::ERR)),
                "{qp_type} send in {state}"
            );
            assert_eq!(recv, takes(state != QpState::RESET), "{qp_type} recv in {state}");
        }
    }
}

fn step(fixture: &mut Fixture, to: QpState) {
    let from = fixture.qp.parts.qp.state();
    let required = transition::lookup(fixture.qp.parts.qp.qp_type(), from, to).unwrap().required;
    fixture.device.script.expect([Expect::anything(Reply::ok())]);
    let attr = QpAttr { qp_state: to, path_mtu: Mtu::MTU_1024, ..QpAttr::default() };
    fixture.qp.modify(&attr, required | QpAttrMask::STATE).unwrap();
}

#[test]
fn an_operation_of_another_type_is_unsupported_whatever_the_state() {
    let mut fixture = Fixture::of_type(QpType::UC);
    let read = SendOp::RdmaRead { remote_addr: 0, rkey: 0 };
    let unsupported = PostReason::UnsupportedOp { op: read.kind(), qp_type: QpType::UC };
    assert_eq!(fixture.send(&[plain(read, &[])]).unwrap_err().reason, unsupported);
    fixture.device.move_to(&mut fixture.qp, QpState::RESET);
    assert_eq!(fixture.send(&[plain(read, &[])]).unwrap_err().reason, unsupported);
    assert_eq!(fixture.send(&[plain(SendOp::Send, &[])]).unwrap_err().reason, PostReason::InvalidState);
}

#[test]
fn after_a_reset_both_ends_agree_again() {
    let mut fixture = Fixture::of_type(QpType::RC);
    let one = [sge(1)];
    for cycle in 0..20_u64 {
        let posted = cycle % 15 + 1;
        for n in 0..posted {
            fixture.send(&[SendWr { wr_id: n, ..plain(SendOp::Send, &one) }]).unwrap();
            fixture.recv(&[RecvWr { wr_id: n, sge: &one }]).unwrap();
        }
        // Queued but not published: dropped with the rest.
        // SAFETY: a paper device accesses no memory named by work requests.
        let _ = unsafe { fixture.qp.parts.sq.post_one(&plain(SendOp::Send, &one)) };
        if cycle % 2 == 0 {
            fixture.device.move_to(&mut fixture.qp, QpState::ERR);
        }
        fixture.device.move_to(&mut fixture.qp, QpState::RESET);
        fixture.device.move_to(&mut fixture.qp, QpState::RTS);
        assert_eq!((fixture.qp.sq.count(), fixture.qp.rq.count()), (0, 0));
        for n in 0..15 {
            fixture.send(&[SendWr { wr_id: 100 + n, ..plain(SendOp::Send, &one) }]).unwrap();
            fixture.recv(&[RecvWr { wr_id: 200 + n, sge: &one }]).unwrap();
        }
        assert_eq!(fixture.send(&[plain(SendOp::Send, &one)]).unwrap_err().reason, PostReason::QueueFull);
        for n in 0..15 {
            assert_eq!(fixture.qp.sq.take::<RxeSendWqe>().unwrap().0.wr.wr_id, 100 + n);
            assert_eq!(fixture.qp.rq.take::<RxeRecvWqe>().unwrap().0.wr_id, 200 + n);
        }
    }
}

#[test]
fn in_err_everything_is_flushed_in_order() {
    let mut fixture = Fixture::of_type(QpType::RC);
    let one = [sge(1)];
    for n in 0..7 {
        let flags = if n % 2 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
        fixture.send(&[SendWr { wr_id: n, flags, ..plain(SendOp::Send, &one) }]).unwrap();
        fixture.recv(&[RecvWr { wr_id: 100 + n, sge: &one }]).unwrap();
    }
    fixture.device.move_to(&mut fixture.qp, QpState::ERR);
    fixture.qp.flush(&mut fixture.cq);
    let mut wcs = [Wc::default(); 32];
    let count = fixture.cq.cq.poll(&mut wcs);
    assert_eq!(count, 14, "unsignaled ones too");
    assert!(wcs[..count].iter().all(|wc| wc.status == WcStatus::WR_FLUSH_ERR));
    let ids: Vec<u64> = wcs[..count].iter().map(|wc| wc.wr_id).collect();
    let expected: Vec<u64> = (0..7).chain(100..107).collect();
    assert_eq!(ids, expected);
}

#[test]
fn only_what_is_signaled_completes_unless_all_are() {
    for sig_all in [false, true] {
        let mut fixture = Fixture::new(QpInitAttr { sq_sig_all: sig_all, ..PaperDevice::rc() });
        let one = [sge(1)];
        for n in 0..6 {
            let flags = if n % 3 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
            fixture.send(&[SendWr { wr_id: n, flags, ..plain(SendOp::Send, &one) }]).unwrap();
        }
        fixture.qp.complete_sends(&mut fixture.cq);
        let mut wcs = [Wc::default(); 8];
        assert_eq!(fixture.cq.cq.poll(&mut wcs), if sig_all { 6 } else { 2 });
    }
}

#[test]
fn an_impossible_transition_is_explained_after_the_kernel_refused_it() {
    let mut fixture = Fixture::of_type(QpType::RC);
    let to = |qp_state| QpAttr { qp_state, path_mtu: Mtu::MTU_1024, ..QpAttr::default() };
    let refused = |state| [Expect::anything(Reply::Errno(Errno::INVAL)), PaperDevice::state_reply(state)];
    fixture.device.script.expect(refused(QpState::RTS));
    let error = fixture.qp.modify(&to(QpState::INIT), QpAttrMask::STATE).unwrap_err();
    assert_eq!(error.to_string(), "modify_qp on rxe0: an RC queue pair cannot go from RTS to INIT (EINVAL)");
    fixture.device.move_to(&mut fixture.qp, QpState::RESET);
    fixture.device.script.expect(refused(QpState::RESET));
    let error = fixture
        .qp
        .modify(&to(QpState::INIT), QpAttrMask::STATE | QpAttrMask::QKEY | QpAttrMask::PORT)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "modify_qp on rxe0: RC RESET to INIT misses ACCESS_FLAGS, PKEY_INDEX and does not take QKEY (EINVAL)"
    );
    assert_eq!(fixture.qp.parts.qp.state(), QpState::RESET);
}

#[test]
fn the_kernel_decides_about_masks_without_a_state() {
    for (qp_type, mask) in [
        (QpType::RC, QpAttrMask::QKEY),
        (QpType::RC, QpAttrMask::AV),
        (QpType::RC, QpAttrMask::TIMEOUT),
        (QpType::UC, QpAttrMask::MIN_RNR_TIMER),
        (QpType::UD, QpAttrMask::PATH_MIG_STATE),
    ] {
        let mut fixture = Fixture::of_type(qp_type);
        fixture.device.script.expect([Expect::anything(Reply::ok())]);
        fixture.qp.modify(&QpAttr::default(), mask).unwrap();
        assert_eq!(fixture.device.script.remaining(), 0, "{qp_type:?} {mask:?}");
    }
}

#[test]
fn a_running_queue_pair_keeps_its_table_for_reads() {
    let mut fixture = Fixture::of_type(QpType::RC);
    // The script expects no command, so any command would panic.
    let error = fixture.qp.modify(&QpAttr::default(), QpAttrMask::MAX_DEST_RD_ATOMIC).unwrap_err();
    assert_eq!(error.errno, Errno::INVAL);
}

#[test]
fn a_refused_transition_is_explained_by_the_state_that_the_device_moved_to() {
    let mut fixture = Fixture::of_type(QpType::RC);
    fixture
        .device
        .script
        .expect([Expect::anything(Reply::Errno(Errno::INVAL)), PaperDevice::state_reply(QpState::ERR)]);
    let attr = QpAttr { qp_state: QpState::SQD, ..QpAttr::default() };
    let error = fixture.qp.modify(&attr, QpAttrMask::STATE).unwrap_err();
    let expected = Cause::IllegalTransition { qp_type: QpType::RC, from: QpState::ERR, to: QpState::SQD };
    assert_eq!(error.cause, expected);
    assert_eq!(fixture.qp.parts.qp.state(), QpState::RTS, "the state to which it was last moved");
}

#[test]
fn a_transition_that_failed_changes_nothing() {
    let mut fixture = Fixture::of_type(QpType::RC);
    fixture.device.script.expect([Expect::anything(Reply::Errno(Errno::NOMEM))]);
    let attr = QpAttr { qp_state: QpState::RESET, ..QpAttr::default() };
    let error = fixture.qp.modify(&attr, QpAttrMask::STATE).unwrap_err();
    assert_eq!((error.errno, fixture.qp.parts.qp.state()), (Errno::NOMEM, QpState::RTS));
    fixture.send(&[plain(SendOp::Send, &[])]).unwrap();
}

fn reset() -> QpAttr {
    QpAttr { qp_state: QpState::RESET, ..QpAttr::default() }
}

/// Returns the RESET command in the script's notation.
fn reset_command() -> String {
    let (handle, mask) = (PaperDevice::QP_HANDLE.to_ne_bytes(), QpAttrMask::STATE.bits().to_ne_bytes());
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let head = "00".repeat(64) + &hex(&handle) + &hex(&mask);
    format!("ioctl 0.0: 0x2 u64 0x1a, 0x0 in {head}{}", "00".repeat(112 - 72))
}

#[test]
fn a_reset_that_an_error_overtook_is_asked_for_again() {
    let mut fixture = Fixture::of_type(QpType::RC);
    fixture.send(&[plain(SendOp::Send, &[])]).unwrap();
    fixture.qp.drain();
    fixture.device.script.expect([
        Expect::command(&reset_command(), Reply::ok()),
        PaperDevice::state_reply(QpState::ERR),
        Expect::command(&reset_command(), Reply::ok()),
        PaperDevice::state_reply(QpState::RESET),
    ]);
    fixture.qp.modify(&reset(), QpAttrMask::STATE).unwrap();
    assert_eq!(fixture.qp.parts.qp.state(), QpState::RESET);
    assert_eq!(fixture.device.script.remaining(), 0);
}

#[test]
fn a_reset_that_cannot_be_confirmed_is_none() {
    let ok = || Expect::anything(Reply::ok());
    let err = || PaperDevice::state_reply(QpState::ERR);
    for (script, errno) in [
        (vec![ok(), err(), ok(), err(), ok(), err(), ok()], Errno::BUSY),
        (vec![ok(), Expect::anything(Reply::Errno(Errno::IO))], Errno::IO),
        (vec![ok(), err(), Expect::anything(Reply::Errno(Errno::NOMEM))], Errno::NOMEM),
    ] {
        let mut fixture = Fixture::of_type(QpType::RC);
        fixture.send(&[plain(SendOp::Send, &[])]).unwrap();
        fixture.device.script.expect(script);
        let error = fixture.qp.modify(&reset(), QpAttrMask::STATE).unwrap_err();
        assert_eq!((error.verb == "modify_qp" || error.verb == "query_qp", error.errno), (true, errno));
        assert_eq!(fixture.qp.parts.qp.state(), QpState::RTS, "its requests count as posted");
        assert_eq!(fixture.device.script.remaining(), 0);
    }
}
