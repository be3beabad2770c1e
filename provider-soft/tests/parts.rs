//! Tests of a queue pair's three objects, through the provider contract alone: rolled-back requests
//! are never sent, and the objects can be dropped in any order.
//!
//! # Safety
//! Work requests are posted raw. None names memory: messages are identified by their immediate
//! data.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use provider_soft::{Soft, SoftDevice};
use verbs_core::provider::{
    ContextOps, CqOps, Destroy, Erased, NamedProvider, Provider, QpOps, QpParents, QpParts, RecvQueue,
    SendQueue, erase,
};
use verbs_core::types::{
    AhAttr, CqInitAttr, Gid, GlobalRoute, Mtu, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType,
    RecvWr, SendFlags, SendOp, SendWr, Wc, WcFlags, WcStatus,
};
use verbs_core::{Errno, transition};

/// The time limit of a step, far longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);
const PORT: u8 = 1;
/// The number of receives posted to each queue pair.
const RECEIVES: u32 = 8;

/// A device and a completion queue shared by all its queue pairs.
struct Fixture<'a, P: Provider> {
    context: &'a P::Context,
    pd: P::Pd,
    cq: P::Cq,
    cq_handle: P::CqHandle,
    gid: Gid,
}

impl<'a, P: Provider> Fixture<'a, P> {
    fn new(context: &'a P::Context) -> Self {
        let attr = CqInitAttr::new(64);
        let (cq, cq_handle) = context.create_cq(None, &attr).unwrap();
        let gid = context.device().query_gid_entry(PORT, 0).unwrap().unwrap().gid;
        Self { context, pd: context.alloc_pd().unwrap(), cq, cq_handle, gid }
    }

    fn create_qp(&self) -> QpParts<P> {
        let cap = QpCap { max_send_wr: 8, max_recv_wr: RECEIVES, ..QpCap::default() };
        let attr = QpInitAttr { qp_type: QpType::RC, cap, sq_sig_all: true, user_handle: 0 };
        self.context.create_qp(&QpParents::new(&self.pd, &self.cq_handle, &self.cq_handle), &attr).unwrap()
    }

    /// Connects a queue pair to another queue pair of this device, moves it to RTS, and posts its
    /// receives.
    fn connect(&self, parts: &mut QpParts<P>, dest_qp_num: u32) {
        let grh = GlobalRoute { dgid: self.gid, hop_limit: 64, ..GlobalRoute::default() };
        let attr = QpAttr {
            port_num: PORT,
            ah_attr: AhAttr { grh: Some(grh), port_num: PORT, ..AhAttr::default() },
            path_mtu: Mtu::MTU_1024,
            dest_qp_num,
            min_rnr_timer: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        let QpParts { qp, sq, rq } = parts;
        for to in [QpState::INIT, QpState::RTR, QpState::RTS] {
            let required = transition::lookup(QpType::RC, qp.state(), to).unwrap().required;
            qp.modify(sq, rq, &QpAttr { qp_state: to, ..attr }, required | QpAttrMask::STATE).unwrap();
        }
        (0..RECEIVES).for_each(|_| receive(rq));
    }

    fn connected(&self) -> [QpParts<P>; 2] {
        let [mut a, mut b] = [self.create_qp(), self.create_qp()];
        let (a_num, b_num) = (a.qp.qp_num(), b.qp.qp_num());
        self.connect(&mut a, b_num);
        self.connect(&mut b, a_num);
        [a, b]
    }

    /// Polls until `count` messages have been sent and `count` messages received. Returns the
    /// `wr_id`s of the sends and the immediate data of the receives.
    fn pass(&mut self, count: usize) -> [Vec<u64>; 2] {
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        let mut wcs = [Wc::default(); 16];
        let start = Instant::now();
        while sent.len() < count || received.len() < count {
            assert!(start.elapsed() < PATIENCE, "sent {sent:?}, received {received:?} of {count}");
            let polled = self.cq.poll(&mut wcs);
            for wc in &wcs[..polled] {
                assert_eq!(wc.status, WcStatus::SUCCESS);
                if wc.wc_flags.contains(WcFlags::WITH_IMM) {
                    received.push(wc.imm_data.into());
                } else {
                    sent.push(wc.wr_id);
                }
            }
        }
        [sent, received]
    }
}

/// Returns a message whose immediate data is its number.
fn message(n: u32) -> SendWr<'static> {
    let op = SendOp::SendWithImm { imm_data: n };
    SendWr { wr_id: n.into(), op, sge: &[], flags: SendFlags::SIGNALED }
}

fn put(sq: &mut impl SendQueue, n: u32) {
    // SAFETY: the request names no memory.
    unsafe { sq.post_one(&message(n)) }.unwrap();
}

fn post(sq: &mut impl SendQueue, n: u32) {
    // SAFETY: the request names no memory.
    unsafe { sq.post_send(&[message(n)]) }.unwrap();
}

fn receive(rq: &mut impl RecvQueue) {
    // SAFETY: the request names no memory.
    unsafe { rq.post_recv(&[RecvWr { wr_id: 0, sge: &[] }]) }.unwrap();
}

/// Defines each test twice: with the provider's own types and with erased types.
macro_rules! each_form {
    ($($name:ident)*) => {
        mod own {
            $(#[test]
            fn $name() {
                super::$name::<super::Soft>(&super::open());
            })*
        }
        mod erased {
            $(#[test]
            fn $name() {
                super::$name::<super::Erased>(&*super::erase::<super::Soft>(super::open()));
            })*
        }
    };
}

each_form! {
    what_was_rolled_back_is_never_sent
    what_was_put_in_before_the_last_requests_is_sent_after_their_rollback
    queues_may_be_dropped_before_their_queue_pair
    what_is_posted_after_the_queue_pair_was_destroyed_is_never_sent
}

fn open() -> provider_soft::Context {
    Soft::open(&SoftDevice::auto().unwrap()).unwrap()
}

fn what_was_rolled_back_is_never_sent<P: Provider>(context: &P::Context) {
    let mut fixture = Fixture::<P>::new(context);
    let [mut a, mut b] = fixture.connected();
    // Wraps around the ring, which has 8 slots.
    for round in 0..10 {
        let n = round * 10;
        post(&mut a.sq, n);
        put(&mut a.sq, 1000);
        put(&mut a.sq, 1001);
        assert_eq!(a.sq.rollback(usize::MAX), 2);
        assert_eq!(a.sq.rollback(usize::MAX), 0);
        a.sq.ring().unwrap();
        put(&mut a.sq, 1002);
        assert_eq!(a.sq.rollback(usize::MAX), 1);
        post(&mut a.sq, n + 1);
        let expected = [u64::from(n), u64::from(n) + 1];
        assert_eq!(fixture.pass(2), [expected.to_vec(), expected.to_vec()]);
        (0..2).for_each(|_| receive(&mut b.rq));
    }
}

fn what_was_put_in_before_the_last_requests_is_sent_after_their_rollback<P: Provider>(context: &P::Context) {
    let mut fixture = Fixture::<P>::new(context);
    let [mut a, mut b] = fixture.connected();
    // Wraps around the ring, which has 8 slots.
    for round in 0..10 {
        let n = round * 10;
        put(&mut a.sq, n);
        put(&mut a.sq, 1000);
        put(&mut a.sq, 1001);
        assert_eq!((a.sq.rollback(0), a.sq.rollback(2)), (0, 2));
        post(&mut a.sq, n + 1);
        assert_eq!(a.sq.rollback(1), 0);
        let expected = [u64::from(n), u64::from(n) + 1];
        assert_eq!(fixture.pass(2), [expected.to_vec(), expected.to_vec()]);
        (0..2).for_each(|_| receive(&mut b.rq));
    }
}

fn queues_may_be_dropped_before_their_queue_pair<P: Provider>(context: &P::Context) {
    let mut fixture = Fixture::<P>::new(context);
    let [a, b] = fixture.connected();
    let QpParts { qp, mut sq, rq } = a;
    post(&mut sq, 1);
    post(&mut sq, 2);
    drop(sq);
    drop(rq);
    assert_eq!(fixture.pass(2), [vec![1, 2], vec![1, 2]], "what was posted is executed");
    let QpParts { qp: other, sq: mut back, rq: _rq } = b;
    post(&mut back, 3);
    assert_eq!(fixture.pass(1), [vec![3], vec![3]], "its receives are there");
    assert!(qp.destroy().is_ok() && other.destroy().is_ok());
}

fn what_is_posted_after_the_queue_pair_was_destroyed_is_never_sent<P: Provider>(context: &P::Context) {
    let mut fixture = Fixture::<P>::new(context);
    let [a, b] = fixture.connected();
    let QpParts { qp, sq: mut dead_sq, rq: mut dead_rq } = a;
    put(&mut dead_sq, 1000);
    assert!(qp.destroy().is_ok());
    dead_sq.ring().unwrap();
    assert!(b.qp.destroy().is_ok());
    // New queue pairs, which reuse the slots of the destroyed ones in the device.
    let [mut c, _d] = fixture.connected();
    for n in 0..5 {
        post(&mut dead_sq, 1001);
        put(&mut dead_sq, 1002);
        assert_eq!(dead_sq.rollback(usize::MAX), 1);
        dead_rq.ring();
        post(&mut c.sq, n);
        assert_eq!(fixture.pass(1), [vec![n.into()], vec![n.into()]]);
    }
    assert_eq!(fixture.cq.poll(&mut [Wc::default(); 16]), 0);
}

#[test]
fn a_child_after_fork_cannot_ring_for_requests_of_its_parent() {
    let context = open();
    let mut fixture = Fixture::<Soft>::new(&context);
    let [mut a, mut b] = fixture.connected();
    put(&mut a.sq, 7);
    // SAFETY: the child makes these calls and exits without returning to the test harness.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            b.rq.ring();
            let rung = a.sq.ring();
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(i32::from(rung != Err(Errno::NODEV))) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
    }
    assert_eq!(a.sq.rollback(usize::MAX), 1, "the parent has not rung");
    post(&mut a.sq, 8);
    assert_eq!(fixture.pass(1), [vec![8], vec![8]]);
}
