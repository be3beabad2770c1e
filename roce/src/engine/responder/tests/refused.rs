//! Rejected requests: the NAK to the peer, the program's completion and event, the queue pair's
//! state.

use super::*;
use crate::engine::testing::{ALL, to};
use crate::engine::{Access, Event, PostRefused, RecvWr, Sge, State, Status};

/// Checks the consequences of a rejected packet: a NAK, an event, the error state and flushed
/// receives.
#[track_caller]
fn refused(name: &str, make: impl FnOnce(&mut Fixture) -> (Headers, Vec<u8>), code: NakCode) {
    let mut f = Fixture::new(Service::Rc);
    f.post(1, 0, 4096);
    f.post(2, 0, 4096);
    let before = f.bytes(0, 4096);
    let (headers, payload) = make(&mut f);
    f.sent();
    f.host.arrive(&headers, &payload);
    assert_eq!(f.sent(), [nak(headers.bth.psn.value(), code)], "{name}");
    let event = if code == NakCode::REMOTE_ACCESS_ERROR {
        Event::QpAccessError(f.qpn)
    } else {
        Event::QpRequestError(f.qpn)
    };
    assert_eq!((f.host.state(f.qpn), f.host.events()), (State::Err, vec![event]), "{name}");
    let flushed: Vec<_> = f.host.completions().iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(flushed, [(1, Status::Flushed), (2, Status::Flushed)], "{name}");
    assert_eq!(f.host.log.retired_recvs, 2, "{name}");
    assert_eq!(f.bytes(0, 4096), before, "{name}");
    // The queue pair no longer accepts packets.
    f.arrive(Opcode::RC_SEND_ONLY, &[1; 4]);
    assert!(f.sent().is_empty() && f.host.completions().is_empty(), "{name}");
}

#[test]
fn writes_beyond_their_rights() {
    let write = |change: fn(&mut Fixture, &mut reth::Repr)| {
        move |f: &mut Fixture| {
            let mut headers = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[1; 4], 0, 4);
            let mut reth = headers.reth.unwrap();
            change(f, &mut reth);
            headers.reth = Some(reth);
            (headers, vec![1; 4])
        }
    };
    let access = NakCode::REMOTE_ACCESS_ERROR;
    refused("unknown key", write(|_, reth| reth.rkey ^= 0x100), access);
    refused("another variant of the key", write(|_, reth| reth.rkey ^= 1), access);
    refused("before the region", write(|_, reth| reth.va -= 1), access);
    refused("behind the region", write(|_, reth| reth.va += 4093), access);
    refused("around the end of the address space", write(|_, reth| reth.va = u64::MAX - 1), access);
    refused(
        "no remote write",
        write(|f, reth| reth.rkey = f.host.register(64, Access::LOCAL_WRITE | Access::REMOTE_READ).key),
        access,
    );
    refused(
        "another protection domain",
        write(|f, reth| {
            let other = f.host.engine.alloc_pd().unwrap();
            reth.rkey = f.host.register_in(other, 64, ALL).key;
        }),
        access,
    );
}

#[test]
fn what_the_queue_pair_does_not_allow() {
    for (right, request) in [
        (Access::REMOTE_WRITE, Opcode::RC_RDMA_WRITE_ONLY),
        (Access::REMOTE_READ, Opcode::RC_RDMA_READ_REQUEST),
        (Access::REMOTE_ATOMIC, Opcode::RC_FETCH_ADD),
    ] {
        let without = |f: &mut Fixture| {
            f.host.modify(
                f.qpn,
                &AttrChange { access: Some(Access(ALL.0 & !right.0)), ..AttrChange::default() },
            );
            let payload = if request == Opcode::RC_RDMA_WRITE_ONLY { vec![1; 4] } else { vec![] };
            let mut headers = f.rdma(request, &payload, 0, 4);
            headers.atomic_eth = f.fetch_add(0, 1).atomic_eth;
            (headers, payload)
        };
        refused("not allowed", without, NakCode::REMOTE_ACCESS_ERROR);
    }
}

#[test]
fn atomics_that_are_not_aligned_and_reads_that_are_too_long() {
    let invalid = NakCode::INVALID_REQUEST;
    refused("misaligned", |f| (f.fetch_add(4, 1), vec![]), invalid);
    refused(
        "more than 2^31 bytes",
        |f| {
            let mut read = f.read(0, 4);
            read.reth = read.reth.map(|reth| reth::Repr { dmalen: (1 << 31) + 1, ..reth });
            (read, vec![])
        },
        invalid,
    );
    refused("read behind the region", |f| (f.read(4000, 97), vec![]), NakCode::REMOTE_ACCESS_ERROR);
    refused("atomic behind the region", |f| (f.fetch_add(4096, 97), vec![]), NakCode::REMOTE_ACCESS_ERROR);
    refused("a read with payload", |f| (f.read(0, 4), vec![1; 4]), invalid);
}

#[test]
fn packets_out_of_their_message() {
    let invalid = NakCode::INVALID_REQUEST;
    for opcode in [Opcode::RC_SEND_MIDDLE, Opcode::RC_SEND_LAST, Opcode::RC_RDMA_WRITE_LAST] {
        refused("no message has begun", |f| (f.request(opcode, &[1; 256]), vec![1; 256]), invalid);
    }
    for opcode in [
        Opcode::RC_SEND_ONLY,
        Opcode::RC_SEND_MIDDLE,
        Opcode::RC_RDMA_READ_REQUEST,
        Opcode::RC_RDMA_WRITE_FIRST,
    ] {
        let interrupted = |f: &mut Fixture| {
            let payload = f.bytes(0, 256);
            let first = f.rdma(Opcode::RC_RDMA_WRITE_FIRST, &payload, 0, 1000);
            f.host.arrive(&first, &payload);
            let payload = if opcode.has_payload() { payload } else { vec![] };
            (f.rdma(opcode, &payload, 0, 1000), payload)
        };
        refused("a write is not over", interrupted, invalid);
    }
    for opcode in [Opcode(0x15), Opcode(0x1f), Opcode::RC_FLUSH, Opcode::RC_ATOMIC_WRITE] {
        refused("not supported", |f| (f.request(opcode, &[]), vec![]), invalid);
    }
}

#[test]
fn packets_of_a_wrong_length() {
    let invalid = NakCode::INVALID_REQUEST;
    for (opcode, dmalen, len) in [
        (Opcode::RC_RDMA_WRITE_ONLY, 257, 257),
        (Opcode::RC_RDMA_WRITE_ONLY, 4, 5),
        (Opcode::RC_RDMA_WRITE_ONLY, 4, 3),
        (Opcode::RC_RDMA_WRITE_ONLY, 0, 1),
        (Opcode::RC_RDMA_WRITE_FIRST, 1000, 255),
        (Opcode::RC_RDMA_WRITE_FIRST, 1000, 257),
        (Opcode::RC_RDMA_WRITE_FIRST, 256, 256),
        (Opcode::RC_RDMA_WRITE_FIRST, 100, 256),
    ] {
        let make = |f: &mut Fixture| {
            let payload = f.bytes(0, len);
            (f.rdma(opcode, &payload, 0, dmalen), payload)
        };
        refused(&format!("{opcode} of {len} bytes, announced {dmalen}"), make, invalid);
    }
    for (opcode, len) in [
        (Opcode::RC_RDMA_WRITE_LAST, 0),
        (Opcode::RC_RDMA_WRITE_LAST, 100),
        (Opcode::RC_RDMA_WRITE_MIDDLE, 256),
    ] {
        let make = |f: &mut Fixture| {
            let payload = f.bytes(0, 256);
            let first = f.rdma(Opcode::RC_RDMA_WRITE_FIRST, &payload, 0, 300);
            f.host.arrive(&first, &payload);
            (f.request(opcode, &payload[..len]), payload[..len].to_vec())
        };
        refused(&format!("{opcode} of {len} bytes, 44 are left"), make, invalid);
    }
    let make = |f: &mut Fixture| {
        let mut headers = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[0; 4], 0, 4);
        headers.bth.pad_cnt = 2;
        (headers, vec![0, 1, 2, 3])
    };
    refused("a pad where none belongs", make, invalid);
}

/// Checks the consequences of a message that its receive cannot hold, because it is too long or the
/// memory is not writable.
#[track_caller]
fn receive_fails(sge: impl FnOnce(&mut Fixture) -> Sge, status: Status, code: NakCode) {
    let mut f = Fixture::new(Service::Rc);
    let sge = sge(&mut f);
    f.host.post_recv(f.qpn, 1, &[sge]);
    f.post(2, 0, 4096);
    f.arrive(Opcode::RC_SEND_FIRST, &[1; 256]);
    f.arrive(Opcode::RC_SEND_LAST, &[1; 100]);
    let done: Vec<_> =
        f.host.completions().iter().map(|done| (done.wr_id, done.status, done.solicited)).collect();
    assert_eq!(done, [(1, status, true), (2, Status::Flushed, true)]);
    assert_eq!(f.host.log.retired_recvs, 2);
    assert_eq!(f.sent().pop().map(|(_, _, syndrome)| syndrome), Some(Syndrome::nak(code).0));
    assert_eq!((f.host.state(f.qpn), f.host.events()), (State::Err, vec![]));
}

#[test]
fn messages_that_the_receive_cannot_take() {
    receive_fails(|f| f.mr.sge(0, 355), Status::LocalLength, NakCode::INVALID_REQUEST);
    receive_fails(|f| f.mr.sge(0, 10), Status::LocalLength, NakCode::INVALID_REQUEST);
    let operational = NakCode::REMOTE_OPERATIONAL_ERROR;
    receive_fails(|f| f.mr.sge(4000, 400), Status::LocalProtection, operational);
    receive_fails(|f| Sge { lkey: f.mr.key ^ 1, ..f.mr.sge(0, 400) }, Status::LocalProtection, operational);
    receive_fails(|f| f.host.register(400, Access::NONE).sge(0, 400), Status::LocalProtection, operational);
}

#[test]
fn a_receive_in_use_ends_with_what_was_wrong() {
    let mut f = Fixture::new(Service::Rc);
    f.post(1, 0, 4096);
    f.arrive(Opcode::RC_SEND_FIRST, &[1; 256]);
    f.arrive(Opcode::RC_SEND_FIRST, &[1; 256]);
    let done = f.host.completions();
    assert_eq!((done.len(), done[0].status), (1, Status::RemoteInvalidRequest));
    assert_eq!(f.sent(), [nak(0xff_ffff, NakCode::INVALID_REQUEST)]);
}

#[test]
fn a_key_that_cannot_be_invalidated_fails_the_receive_and_no_nak_leaves() {
    for ack_req in [false, true] {
        let mut f = Fixture::new(Service::Rc);
        f.post(1, 0, 64);
        f.post(2, 0, 64);
        let mut headers = f.request(Opcode::RC_SEND_ONLY_WITH_INVALIDATE, &[1; 4]);
        headers.ieth = Some(crate::wire::ieth::Repr { rkey: f.mr.key });
        headers.bth.ack_req = ack_req;
        f.host.arrive(&headers, &[1; 4]);
        let done: Vec<_> = f.host.completions().iter().map(|done| (done.wr_id, done.status)).collect();
        assert_eq!(done, [(1, Status::RemoteInvalidRequest), (2, Status::Flushed)]);
        assert_eq!((f.host.state(f.qpn), f.host.events()), (State::Err, vec![]));
        let asked = if ack_req { vec![ack(headers.bth.psn.value())] } else { vec![] };
        assert_eq!(f.sent(), asked);
    }
}

#[test]
fn an_immediate_whose_write_is_refused_ends_its_receive_with_a_local_access_error() {
    let mut f = Fixture::new(Service::Rc);
    f.post(1, 0, 64);
    f.post(2, 0, 64);
    let mut write = f.rdma(Opcode::RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, &[1; 4], 0, 4);
    write.reth = write.reth.map(|reth| reth::Repr { rkey: !reth.rkey, ..reth });
    f.host.arrive(&write, &[1; 4]);
    let done: Vec<_> = f.host.completions().iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(done, [(1, Status::LocalAccess), (2, Status::Flushed)]);
    assert_eq!((f.host.state(f.qpn), f.host.events()), (State::Err, vec![Event::QpAccessError(f.qpn)]));
    assert_eq!(f.sent(), [nak(write.bth.psn.value(), NakCode::REMOTE_ACCESS_ERROR)]);
}

#[test]
fn a_write_that_loses_its_key_is_refused_where_it_is() {
    let mut f = Fixture::new(Service::Rc);
    let first = f.rdma(Opcode::RC_RDMA_WRITE_FIRST, &[1; 256], 0, 512);
    f.host.arrive(&first, &[1; 256]);
    f.host.engine.dereg_mr(f.mr.key).unwrap();
    f.arrive(Opcode::RC_RDMA_WRITE_LAST, &[1; 256]);
    assert_eq!(f.sent(), [nak(0xff_ffff, NakCode::REMOTE_ACCESS_ERROR)]);
}

#[test]
fn a_completion_queue_without_room_fails_the_queue_pair() {
    let mut f = Fixture::new(Service::Rc);
    f.post(1, 0, 64);
    f.host.log.full = true;
    f.arrive(Opcode::RC_SEND_ONLY, &[1; 4]);
    assert_eq!(f.host.state(f.qpn), State::Err);
    let events = f.host.events();
    assert!(events.contains(&Event::CqError(crate::engine::testing::RECV_CQ)));
    assert!(events.contains(&Event::QpFatal(f.qpn)));
}

#[test]
fn receives_are_posted_where_the_state_allows() {
    let mut f = Fixture::new(Service::Rc);
    let wr = RecvWr { wr_id: 9, sges: &[] };
    let Fixture { host, qpn, .. } = &mut f;
    host.modify(*qpn, &to(State::Err));
    assert_eq!(host.engine.post_recv(*qpn, &wr, host.now, &mut host.log), Ok(()));
    assert_eq!((host.completions()[0].status, host.log.retired_recvs), (Status::Flushed, 1));
    host.modify(*qpn, &to(State::Reset));
    assert_eq!(host.engine.post_recv(*qpn, &wr, host.now, &mut host.log), Err(PostRefused::InvalidState));
    host.modify(*qpn, &to(State::Init));
    assert_eq!(host.engine.post_recv(*qpn, &wr, host.now, &mut host.log), Ok(()));
    let three = RecvWr { wr_id: 9, sges: &[Sge::default(); 3] };
    assert_eq!(host.engine.post_recv(*qpn, &three, host.now, &mut host.log), Err(PostRefused::TooManySge));
    assert!(host.completions().is_empty());
}

#[test]
fn a_reset_forgets_everything() {
    let mut f = Fixture::new(Service::Rc);
    f.post(1, 0, 4096);
    f.arrive(Opcode::RC_SEND_FIRST, &[1; 256]);
    f.host.modify(f.qpn, &to(State::Reset));
    f.host.modify(f.qpn, &AttrChange { state: Some(State::Init), ..connected() });
    f.host.modify(f.qpn, &to(State::Rtr));
    f.psn = Psn::new(0xff_fffe);
    f.post(2, 0, 4096);
    f.arrive(Opcode::RC_SEND_ONLY, &[1; 4]);
    let done = f.host.completions();
    assert_eq!((done.len(), done[0].wr_id, done[0].status, done[0].byte_len), (1, 2, Status::Success, 4));
    let (reply, _) = f.host.sent()[0];
    assert_eq!(reply.aeth.unwrap().msn, 1);
}

#[test]
fn what_has_ended_before_the_queue_pair_failed_is_acknowledged() {
    let fails: [fn(&mut Fixture); 2] = [
        // The completion queue is full when the next message arrives.
        |f| {
            f.host.log.full = true;
            f.arrive(Opcode::RC_SEND_ONLY, &[1; 4]);
        },
        |f| f.host.modify(f.qpn, &to(State::Err)),
    ];
    for fail in fails {
        let mut f = Fixture::new(Service::Rc);
        f.post(1, 0, 4096);
        f.post(2, 0, 4096);
        f.arrive(Opcode::RC_SEND_ONLY, &[1; 4]);
        let done = f.host.completions();
        assert_eq!((done[0].wr_id, done[0].status), (1, Status::Success));
        fail(&mut f);
        assert_eq!(f.host.state(f.qpn), State::Err);
        let sent = f.host.sent();
        let (psn, aeth) = (sent[0].0.bth.psn, sent[0].0.aeth.unwrap());
        assert_eq!((sent.len(), psn.value(), aeth.syndrome, aeth.msn), (1, 0xff_fffe, Syndrome::ACK, 1));
    }
}

#[test]
fn an_acknowledgement_that_would_stand_for_a_read_leaves_no_more_when_the_queue_pair_fails() {
    let mut f = Fixture::new(Service::Rc);
    f.post(1, 0, 4096);
    let read = f.read(0, 4);
    f.host.arrive(&read, &[]);
    f.arrive(Opcode::RC_SEND_ONLY, &[1; 4]);
    f.host.modify(f.qpn, &to(State::Err));
    assert_eq!(f.sent(), []);
}
