//! The three objects of a queue pair: they may be dropped in any order, and `modify` rejects queues
//! of another provider.

use verbs_core::channel::{Expect, Reply};
use verbs_core::provider::{
    Destroy, ErasedQp, ErasedRecvQueue, ErasedSendQueue, QpOps, QpParts, RecvQueue, SendQueue,
};
use verbs_core::types::{PostReason, QpAttr, QpAttrMask, QpState, QpType, RecvWr, SendOp, SendWr};
use verbs_core::{Cause, Errno};

use super::{Fixture, plain, sge};
use provider_rxe::paper::{PaperDevice, PaperQp};

const DESTROY_QP: &str = "ioctl 4.1: 0x1 out 4 bytes, 0x0 handle 4";

fn send_one(sq: &mut impl SendQueue) {
    // SAFETY: a paper device accesses no memory named by work requests.
    unsafe { sq.post_send(&[plain(SendOp::Send, &[sge(1)])]) }.unwrap();
}

fn recv_one(rq: &mut impl RecvQueue) {
    // SAFETY: a paper device accesses no memory named by work requests.
    unsafe { rq.post_recv(&[RecvWr { wr_id: 1, sge: &[sge(1)] }]) }.unwrap();
}

/// Destroys a queue pair, expecting one command.
fn destroy(device: &PaperDevice, qp: impl Destroy) {
    device.script.expect([Expect::command(DESTROY_QP, Reply::ok())]);
    assert!(qp.destroy().is_ok());
    assert_eq!(device.script.remaining(), 0);
}

#[test]
fn queues_outlive_the_context_the_completion_queue_and_each_other() {
    let Fixture { device, cq, qp: PaperQp { parts, sq: kernel_sq, rq: kernel_rq, .. } } =
        Fixture::of_type(QpType::RC);
    drop(device);
    drop(cq);
    let QpParts { qp, mut sq, mut rq } = parts;
    send_one(&mut sq);
    drop(sq);
    recv_one(&mut rq);
    drop(rq);
    drop(qp);
    assert_eq!((kernel_sq.count(), kernel_rq.count()), (1, 1));
}

#[test]
fn queues_may_be_dropped_before_their_queue_pair() {
    for send_first in [true, false] {
        let Fixture { device, qp: PaperQp { parts, sq: kernel_sq, rq: kernel_rq, .. }, .. } =
            Fixture::of_type(QpType::RC);
        let QpParts { qp, mut sq, mut rq } = parts;
        send_one(&mut sq);
        recv_one(&mut rq);
        // An unexpected command would panic: dropping a queue sends none.
        if send_first {
            drop(sq);
            recv_one(&mut rq);
            drop(rq);
        } else {
            drop(rq);
            send_one(&mut sq);
            drop(sq);
        }
        let sends = if send_first { 1 } else { 2 };
        assert_eq!((kernel_sq.count(), kernel_rq.count()), (sends, 3 - sends), "they stay posted");
        device.script.expect([PaperDevice::state_reply(QpState::RTS)]);
        assert_eq!(qp.query(QpAttrMask::STATE).unwrap().0.qp_state, QpState::RTS);
        assert_eq!(qp.state(), QpState::RTS);
        destroy(&device, qp);
    }
}

#[test]
fn queues_outlive_their_queue_pair() {
    for erased in [false, true] {
        let Fixture { device, qp: PaperQp { parts, sq: kernel_sq, rq: kernel_rq, .. }, .. } =
            Fixture::of_type(QpType::RC);
        let QpParts { qp, mut sq, mut rq } = parts;
        // The request is queued before the destruction and rung after it. Only the destroy command
        // is expected.
        // SAFETY: a paper device accesses no memory named by work requests.
        unsafe { sq.post_one(&plain(SendOp::Send, &[sge(1)])) }.unwrap();
        if erased {
            let (mut sq, mut rq) = (ErasedSendQueue::new(sq), ErasedRecvQueue::new(rq));
            destroy(&device, ErasedQp::new(qp));
            post_to_what_is_left(&mut sq, &mut rq);
        } else {
            destroy(&device, qp);
            post_to_what_is_left(&mut sq, &mut rq);
        }
        assert_eq!((kernel_sq.count(), kernel_rq.count()), (15, 1), "its memory is still mapped");
    }
}

fn post_to_what_is_left(sq: &mut impl SendQueue, rq: &mut impl RecvQueue) {
    assert_eq!(sq.rollback(usize::MAX), 1);
    (0..15).for_each(|_| send_one(sq));
    // SAFETY: a paper device accesses no memory named by work requests.
    let error = unsafe { sq.post_send(&[plain(SendOp::Send, &[])]) }.unwrap_err();
    assert_eq!(error.reason, PostReason::QueueFull, "no kernel takes anything out any more");
    recv_one(rq);
}

#[test]
fn a_queue_pair_that_could_not_be_destroyed_keeps_its_queues() {
    let Fixture { device, qp: mut paper, .. } = Fixture::of_type(QpType::RC);
    device.script.expect([Expect::command(DESTROY_QP, Reply::Errno(Errno::BUSY))]);
    let QpParts { qp, sq, rq } = paper.parts;
    let (qp, error) = qp.destroy().unwrap_err();
    assert_eq!(error.errno, Errno::BUSY);
    paper.parts = QpParts { qp, sq, rq };
    send_one(&mut paper.parts.sq);
    device.move_to(&mut paper, QpState::RESET);
    assert_eq!((paper.sq.count(), paper.parts.qp.state()), (0, QpState::RESET));
}

#[test]
fn the_queues_and_the_queue_pair_go_to_three_threads() {
    let Fixture { device, qp: PaperQp { parts, sq: kernel_sq, rq: kernel_rq, .. }, .. } =
        Fixture::of_type(QpType::RC);
    let QpParts { qp, mut sq, mut rq } = parts;
    let sending = std::thread::spawn(move || (0..5).for_each(|_| send_one(&mut sq)));
    let receiving = std::thread::spawn(move || (0..7).for_each(|_| recv_one(&mut rq)));
    let looking = std::thread::spawn(move || (qp.state(), qp));
    let (state, qp) = looking.join().unwrap();
    sending.join().unwrap();
    receiving.join().unwrap();
    assert_eq!((state, kernel_sq.count(), kernel_rq.count()), (QpState::RTS, 5, 7));
    destroy(&device, qp);
}

/// A queue of another provider, which rejects all requests.
#[derive(Debug)]
struct Stranger;

impl SendQueue for Stranger {
    unsafe fn post_one(&mut self, _wr: &SendWr<'_>) -> Result<(), PostReason> {
        Err(PostReason::InvalidState)
    }
    fn ring(&mut self) -> Result<(), Errno> {
        Ok(())
    }
    fn rollback(&mut self, _count: usize) -> usize {
        0
    }
}

impl RecvQueue for Stranger {
    unsafe fn post_one(&mut self, _wr: &RecvWr<'_>) -> Result<(), PostReason> {
        Err(PostReason::InvalidState)
    }
    fn ring(&mut self) {}
}

#[test]
fn an_erased_queue_pair_is_not_modified_with_queues_of_another_provider() {
    let Fixture { device, qp: PaperQp { parts, sq: kernel, .. }, .. } = Fixture::of_type(QpType::RC);
    let mut qp = ErasedQp::new(parts.qp);
    let (mut sq, mut rq) = (ErasedSendQueue::new(parts.sq), ErasedRecvQueue::new(parts.rq));
    let (mut strange_sq, mut strange_rq) = (ErasedSendQueue::new(Stranger), ErasedRecvQueue::new(Stranger));
    let attr = QpAttr { qp_state: QpState::ERR, ..QpAttr::default() };
    // The script expects no command: none is sent to the kernel.
    for (sq, rq) in [
        (&mut strange_sq, &mut rq),
        (&mut sq, &mut strange_rq),
        (&mut ErasedSendQueue::new(Stranger), &mut ErasedRecvQueue::new(Stranger)),
    ] {
        let error = qp.modify(sq, rq, &attr, QpAttrMask::STATE).unwrap_err();
        assert_eq!((error.verb, error.errno), ("modify_qp", Errno::INVAL));
        assert!(matches!(error.cause, Cause::Foreign { .. }), "{error}");
        assert_eq!(qp.state(), QpState::RTS);
    }
    device.script.expect([Expect::anything(Reply::ok())]);
    qp.modify(&mut sq, &mut rq, &attr, QpAttrMask::STATE).unwrap();
    assert_eq!(qp.state(), QpState::ERR);
    send_one(&mut sq);
    assert_eq!(kernel.count(), 1);
}
