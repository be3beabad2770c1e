//! Flushes and atomic writes: the requests sent and the responses accepted.

use super::*;
use crate::wire::{feth, reth};

const ONLY: Opcode = Opcode::RC_RDMA_READ_RESPONSE_ONLY;
const GLOBAL: feth::Repr = feth::Repr { plt: feth::PLT_GLOBAL_VISIBILITY, sel: feth::SEL_RANGE };
const FLUSH: SendOp = SendOp::Flush { addr: 0x5001, rkey: 0x55, length: 3000, feth: GLOBAL };
const STORE: SendOp = SendOp::AtomicWrite { addr: 0x5008, rkey: 0x55, data: *b"8 bytes!" };

impl Fixture {
    fn place(&mut self, op: SendOp) -> u64 {
        self.post_sges(op, &[])
    }
}

#[test]
fn each_request_carries_its_operands() {
    let mut f = Fixture::new(Service::Rc);
    f.place(FLUSH);
    f.place(STORE);
    let sent = f.host.sent();
    let [(flush, nothing), (store, data)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((flush.bth.opcode, flush.feth), (Opcode::RC_FLUSH, Some(GLOBAL)));
    assert_eq!(flush.reth, Some(reth::Repr { va: 0x5001, rkey: 0x55, dmalen: 3000 }));
    assert!(nothing.is_empty() && flush.bth.ack_req);
    assert_eq!((store.bth.opcode, store.feth), (Opcode::RC_ATOMIC_WRITE, None));
    assert_eq!(store.reth, Some(reth::Repr { va: 0x5008, rkey: 0x55, dmalen: 8 }));
    assert_eq!((&data[..], nth(store)), (&b"8 bytes!"[..], 1));
}

#[test]
fn an_empty_read_response_ends_each() {
    let mut f = Fixture::new(Service::Rc);
    let (flush, store) = (f.place(FLUSH), f.place(STORE));
    f.leaves();
    f.respond(ONLY, 0, &[]);
    assert_eq!(f.ended(), [(flush, Status::Success)]);
    f.respond(ONLY, 1, &[]);
    assert_eq!(f.ended(), [(store, Status::Success)]);
}

#[test]
fn a_plain_acknowledgement_ends_none_and_makes_it_leave_again() {
    for op in [FLUSH, STORE] {
        let mut f = Fixture::new(Service::Rc);
        let (placed, write) = (f.place(op), f.post(WRITE, 8));
        let first = f.leaves();
        f.ack(1);
        assert_eq!(f.ended(), []);
        assert_eq!(f.leaves(), first, "the response is missing");
        f.respond(ONLY, 0, &[]);
        f.ack(1);
        assert_eq!(f.ended(), [(placed, Status::Success), (write, Status::Success)]);
    }
}

#[test]
fn a_response_with_data_or_of_another_operation_is_bad() {
    for op in [FLUSH, STORE] {
        let mut f = Fixture::new(Service::Rc);
        let placed = f.place(op);
        f.leaves();
        f.respond(ONLY, 0, &[0; 8]);
        assert_eq!(f.ended(), [(placed, Status::BadResponse)]);
        let mut f = Fixture::new(Service::Rc);
        let placed = f.place(op);
        f.leaves();
        f.atomic_ack(0, 1);
        assert_eq!(f.ended(), [(placed, Status::BadResponse)]);
    }
}

#[test]
fn they_count_with_reads_and_a_fence_waits_for_them() {
    let mut f = Fixture::new(Service::Rc);
    f.place(FLUSH);
    f.post(READ, 8);
    f.place(STORE);
    assert_eq!(f.leaves().len(), 2, "two may be outstanding");
    f.respond(ONLY, 0, &[]);
    assert_eq!(f.leaves(), [(Opcode::RC_ATOMIC_WRITE, 2)]);
    f.respond(ONLY, 1, &[0; 8]);
    f.post_flags(WRITE, 8, SendFlags { fence: true, ..SendFlags::default() });
    assert_eq!(f.leaves(), [], "the atomic write is outstanding");
    f.respond(ONLY, 2, &[]);
    assert_eq!(f.leaves(), [(Opcode::RC_RDMA_WRITE_ONLY, 3)]);
}

#[test]
fn a_queue_pair_without_outstanding_reads_sends_none() {
    for op in [FLUSH, STORE] {
        let none = AttrChange { max_rd_atomic: Some(0), ..AttrChange::default() };
        let mut f = Fixture::with(Service::Rc, &none);
        let placed = f.place(op);
        assert_eq!(f.leaves(), []);
        assert_eq!(f.ended(), [(placed, Status::LocalQpOperation)]);
    }
}

#[test]
fn each_wrong_request_is_refused_with_its_reason() {
    let mut f = Fixture::new(Service::Rc);
    let local = [f.mr.sge(0, 8)];
    let kind = |plt, sel| SendOp::Flush { addr: 0, rkey: 0, length: 8, feth: feth::Repr { plt, sel } };
    let odd = SendOp::AtomicWrite { addr: 0x5004, rkey: 0x55, data: [0; 8] };
    let inline = Payload::Inline(&[1; 8]);
    for (op, payload, reason) in [
        (FLUSH, Payload::Sges(&local), PostRefused::AtomicLength),
        (STORE, Payload::Sges(&local), PostRefused::AtomicLength),
        (STORE, inline, PostRefused::UnsupportedOp),
        (odd, Payload::Sges(&[]), PostRefused::AtomicMisaligned),
        (kind(0, 0), Payload::Sges(&[]), PostRefused::FlushKind),
        (kind(4, 0), Payload::Sges(&[]), PostRefused::FlushKind),
        (kind(1, 2), Payload::Sges(&[]), PostRefused::FlushKind),
    ] {
        let wr = SendWr { wr_id: 1, op, flags: SendFlags::default(), payload, remote_srq: 0 };
        assert_eq!(f.try_post(&wr), Err(reason), "{op:?}");
    }
    for service in [Service::Uc, Service::Ud] {
        let mut f = Fixture::new(service);
        for op in [FLUSH, STORE] {
            let payload = Payload::Sges(&[]);
            let wr = SendWr { wr_id: 1, op, flags: SendFlags::default(), payload, remote_srq: 0 };
            assert_eq!(f.try_post(&wr), Err(PostRefused::UnsupportedOp), "{service:?}");
        }
    }
    assert_eq!(f.leaves(), []);
}
