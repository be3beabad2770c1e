//! Receive work requests: their bytes and rejections.

use core::mem::offset_of;

use uverbs_abi::rdma_user_rxe::RxeRecvWqe;
use verbs_core::provider::RecvQueue;
use verbs_core::types::{PostReason, QpType, RecvWr, Sge};

use super::{Expected, Fixture, sge, snapshot};
use provider_rxe::paper::PaperDevice;

const LIST: usize = size_of::<RxeRecvWqe>();

fn entry(wr: &RecvWr<'_>) -> Vec<u8> {
    let length: u32 = wr.sge.iter().map(|sge| sge.length).sum();
    let mut expected = Expected::stale(128)
        .put(0, wr.wr_id)
        .put(8, [0_u32; 2])
        .put(offset_of!(RxeRecvWqe, dma), [length, length, 0, wr.sge.len() as u32, 0, 0]);
    for (n, sge) in wr.sge.iter().enumerate() {
        expected = expected.put(LIST + n * 16, sge.addr).put(LIST + n * 16 + 8, [sge.length, sge.lkey]);
    }
    expected.0
}

fn refused(fixture: &mut Fixture, wr: RecvWr<'_>) -> PostReason {
    let before = snapshot(&fixture.qp.rq);
    let error = fixture.recv(&[wr]).unwrap_err();
    assert_eq!(error.accepted, 0);
    assert_eq!(snapshot(&fixture.qp.rq), before, "{wr:?} is rejected but wrote something");
    error.reason
}

#[test]
fn every_count_of_sges_up_to_the_limit_becomes_an_entry() {
    for qp_type in [QpType::RC, QpType::UC, QpType::UD] {
        let mut fixture = Fixture::of_type(qp_type);
        let all: Vec<Sge> = (0..4).map(sge).collect();
        for count in 0..=4 {
            let wr = RecvWr { wr_id: 0x99 + count as u64, sge: &all[..count] };
            let index = fixture.qp.rq.indices().0;
            fixture.recv(&[wr]).unwrap();
            assert_eq!(fixture.qp.rq.slot(index), entry(&wr), "{count}");
            fixture.qp.rq.drain();
        }
    }
}

#[test]
fn too_much_is_refused_before_anything_is_written() {
    let mut fixture = Fixture::of_type(QpType::RC);
    let five: Vec<Sge> = (0..5).map(sge).collect();
    let wr = RecvWr { wr_id: 1, sge: &five };
    assert_eq!(refused(&mut fixture, wr), PostReason::TooManySge { given: 5, max: 4 });
    let long = [Sge { length: 0x8000_0001, ..sge(1) }];
    let wr = RecvWr { wr_id: 1, sge: &long };
    assert_eq!(refused(&mut fixture, wr), PostReason::MessageTooLong { given: 0x8000_0001 });
    let long = [Sge { length: 0x8000_0000, ..sge(1) }, Sge { length: 1, ..sge(1) }];
    let wr = RecvWr { wr_id: 1, sge: &long };
    assert_eq!(refused(&mut fixture, wr), PostReason::MessageTooLong { given: 0x8000_0001 });
}

#[test]
fn a_queue_without_sges_takes_only_empty_receives() {
    let mut attr = PaperDevice::rc();
    attr.cap.max_recv_sge = 0;
    let mut fixture = Fixture::new(attr);
    let one = [sge(1)];
    let refusal = refused(&mut fixture, RecvWr { wr_id: 1, sge: &one });
    assert_eq!(refusal, PostReason::TooManySge { given: 1, max: 0 });
    fixture.recv(&[RecvWr { wr_id: 1, sge: &[] }]).unwrap();
}

#[test]
fn a_full_queue_is_refused_until_the_kernel_takes_one_wherever_it_starts() {
    for start in 0..16 {
        let mut fixture = Fixture::of_type(QpType::RC);
        let one = [sge(1)];
        for _ in 0..start {
            fixture.recv(&[RecvWr { wr_id: 0, sge: &one }]).unwrap();
            fixture.qp.rq.drain();
        }
        let wrs: Vec<RecvWr<'_>> = (0..20).map(|wr_id| RecvWr { wr_id, sge: &one }).collect();
        let error = fixture.recv(&wrs).unwrap_err();
        assert_eq!((error.accepted, error.reason), (15, PostReason::QueueFull));
        assert_eq!(refused(&mut fixture, RecvWr { wr_id: 0, sge: &[] }), PostReason::QueueFull);
        for n in 0..15 {
            assert_eq!(fixture.qp.rq.take::<RxeRecvWqe>().unwrap().0.wr_id, n);
            fixture.recv(&[RecvWr { wr_id: n + 15, sge: &one }]).unwrap();
        }
        for n in 15..30 {
            assert_eq!(fixture.qp.rq.take::<RxeRecvWqe>().unwrap().0.wr_id, n);
        }
        assert!(fixture.qp.rq.take::<RxeRecvWqe>().is_none());
    }
}

#[test]
fn a_batch_is_accepted_up_to_the_first_bad_one() {
    let mut fixture = Fixture::of_type(QpType::RC);
    let (one, two): ([Sge; 1], Vec<Sge>) = ([sge(1)], (0..2).map(sge).collect());
    let five: Vec<Sge> = (0..5).map(sge).collect();
    let (good, other) = (RecvWr { wr_id: 1, sge: &one }, RecvWr { wr_id: 2, sge: &two });
    let bad = RecvWr { wr_id: 3, sge: &five };
    for (batch, accepted) in
        [(&[bad, good][..], 0), (&[good, bad, good], 1), (&[good, other, good, other, bad], 4)]
    {
        let error = fixture.recv(batch).unwrap_err();
        assert_eq!((error.accepted, error.reason), (accepted, PostReason::TooManySge { given: 5, max: 4 }));
        assert_eq!(fixture.qp.rq.count() as usize, accepted);
        fixture.qp.rq.drain();
    }
}

#[test]
fn nothing_is_seen_before_the_queue_is_rung() {
    let mut fixture = Fixture::of_type(QpType::RC);
    let one = [sge(1)];
    // SAFETY: a paper device accesses no memory named by work requests.
    unsafe { fixture.qp.parts.rq.post_one(&RecvWr { wr_id: 1, sge: &one }) }.unwrap();
    assert_eq!(fixture.qp.rq.count(), 0);
    fixture.qp.parts.rq.ring();
    assert_eq!(fixture.qp.rq.count(), 1);
}
