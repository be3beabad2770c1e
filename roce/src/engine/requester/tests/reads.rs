//! Reads and atomics: the requests sent and the responses accepted.

use super::*;

const FIRST_OF: Opcode = Opcode::RC_RDMA_READ_RESPONSE_FIRST;
const MIDDLE: Opcode = Opcode::RC_RDMA_READ_RESPONSE_MIDDLE;
const LAST: Opcode = Opcode::RC_RDMA_READ_RESPONSE_LAST;
const ONLY: Opcode = Opcode::RC_RDMA_READ_RESPONSE_ONLY;

#[test]
fn a_read_takes_as_many_sequence_numbers_as_its_response_has_packets() {
    let mut f = Fixture::new(Service::Rc);
    let (read, write) = (f.post(READ, 600), f.post(WRITE, 8));
    assert_eq!(f.leaves(), [(Opcode::RC_RDMA_READ_REQUEST, 0), (Opcode::RC_RDMA_WRITE_ONLY, 3)]);
    f.respond(FIRST_OF, 0, &[1; 256]);
    f.respond(MIDDLE, 1, &[2; 256]);
    assert_eq!(f.ended(), []);
    f.respond(LAST, 2, &[3; 88]);
    assert_eq!(f.ended(), [(read, Status::Success)]);
    f.ack(3);
    assert_eq!(f.ended(), [(write, Status::Success)]);
    let mr = f.mr;
    let bytes = f.host.bytes(&mr);
    assert_eq!((bytes[0], bytes[256], bytes[599], bytes[600]), (1, 2, 3, (600 % 251) as u8));
}

#[test]
fn an_empty_read_has_an_empty_response() {
    let mut f = Fixture::new(Service::Rc);
    let read = f.post(READ, 0);
    f.leaves();
    f.respond(ONLY, 0, &[]);
    assert_eq!(f.ended(), [(read, Status::Success)]);
}

#[test]
fn a_long_read_is_asked_for_in_pieces_that_fit_the_window() {
    let mut f = Fixture::with(Service::Rc, &AttrChange { path_mtu: Some(4096), ..AttrChange::default() });
    f.post(READ, 1 << 20);
    let sent = f.host.sent();
    // A quarter of the 128 KiB window holds 6 packets that cost 4864 bytes each. Two requests may
    // be outstanding.
    let asked: Vec<_> = sent
        .iter()
        .map(|(headers, _)| (nth(headers), headers.reth.unwrap().va, headers.reth.unwrap().dmalen))
        .collect();
    assert_eq!(asked, [(0, 0x5000, 6 * 4096), (6, 0x5000 + 6 * 4096, 6 * 4096)]);
    for n in 0..6 {
        f.respond([FIRST_OF, MIDDLE, MIDDLE, MIDDLE, MIDDLE, LAST][n as usize], n, &[7; 4096]);
    }
    assert_eq!(f.leaves(), [(Opcode::RC_RDMA_READ_REQUEST, 12)]);
}

#[test]
fn no_more_reads_and_atomics_are_outstanding_than_the_peer_takes() {
    let mut f = Fixture::new(Service::Rc);
    f.post_all(3, READ);
    assert_eq!(f.leaves().len(), 2);
    f.respond(ONLY, 0, &[0; 8]);
    assert_eq!(f.leaves(), [(Opcode::RC_RDMA_READ_REQUEST, 2)]);
}

#[test]
fn a_peer_that_takes_none_is_an_error() {
    let mut f = Fixture::with(Service::Rc, &AttrChange { max_rd_atomic: Some(0), ..AttrChange::default() });
    let wr = f.post(READ, 8);
    assert_eq!((f.leaves(), f.ended()), (Vec::new(), [(wr, Status::LocalQpOperation)].into()));
}

#[test]
fn a_fence_waits_for_reads_and_not_for_writes() {
    let fence = SendFlags { signaled: true, fence: true, ..SendFlags::default() };
    let mut f = Fixture::new(Service::Rc);
    f.post(WRITE, 8);
    f.post_flags(WRITE, 8, fence);
    assert_eq!(f.leaves().len(), 2);
    let mut f = Fixture::new(Service::Rc);
    f.post(READ, 8);
    f.post_flags(WRITE, 8, fence);
    assert_eq!(f.leaves().len(), 1);
    f.respond(ONLY, 0, &[0; 8]);
    assert_eq!(f.leaves(), [(Opcode::RC_RDMA_WRITE_ONLY, 1)]);
}

#[test]
fn a_response_acknowledges_what_was_sent_before_its_request() {
    let mut f = Fixture::new(Service::Rc);
    let (write, read) = (f.post(WRITE, 8), f.post(READ, 8));
    f.leaves();
    f.respond(ONLY, 1, &[0; 8]);
    assert_eq!(f.ended(), [(write, Status::Success), (read, Status::Success)]);
}

#[test]
fn responses_of_the_wrong_kind_or_length_are_bad() {
    let cases = [(ONLY, 256), (LAST, 256), (MIDDLE, 256), (FIRST_OF, 255), (FIRST_OF, 0)];
    for (opcode, length) in cases {
        let mut f = Fixture::new(Service::Rc);
        let read = f.post(READ, 600);
        f.leaves();
        f.respond(opcode, 0, &[0; 256][..length]);
        assert_eq!(f.ended(), [(read, Status::BadResponse)], "{opcode} of {length}");
        assert_eq!(f.state(), State::Err);
    }
}

#[test]
fn data_that_nobody_asked_for_is_bad() {
    let mut f = Fixture::new(Service::Rc);
    let write = f.post(WRITE, 8);
    f.leaves();
    f.respond(ONLY, 0, &[0; 8]);
    assert_eq!(f.ended(), [(write, Status::BadResponse)]);
    let mut f = Fixture::new(Service::Rc);
    let read = f.post(READ, 8);
    f.leaves();
    f.atomic_ack(0, 1);
    assert_eq!(f.ended(), [(read, Status::BadResponse)]);
}

#[test]
fn a_missing_response_is_asked_for_again_from_there() {
    let mut f = Fixture::new(Service::Rc);
    let read = f.post(READ, 1024);
    f.leaves();
    f.respond(FIRST_OF, 0, &[1; 256]);
    f.respond(MIDDLE, 2, &[3; 256]);
    let sent = f.host.sent();
    let reth = sent[0].0.reth.unwrap();
    assert_eq!((sent.len(), nth(&sent[0].0), reth.va, reth.dmalen), (1, 1, 0x5000 + 256, 768));
    // The repeated response begins with the missing packet, in the middle of the read.
    f.respond(FIRST_OF, 1, &[2; 256]);
    f.respond(MIDDLE, 2, &[3; 256]);
    f.respond(LAST, 3, &[4; 256]);
    assert_eq!(f.ended(), [(read, Status::Success)]);
}

#[test]
fn an_acknowledgement_behind_a_read_says_that_its_response_was_lost() {
    let mut f = Fixture::new(Service::Rc);
    let (read, write) = (f.post(READ, 8), f.post(WRITE, 8));
    f.leaves();
    f.ack(1);
    assert_eq!(f.ended(), []);
    assert_eq!(f.leaves(), [(Opcode::RC_RDMA_READ_REQUEST, 0), (Opcode::RC_RDMA_WRITE_ONLY, 1)]);
    // An acknowledgement still in flight indicates the same loss and changes nothing.
    f.ack(1);
    assert_eq!(f.leaves(), []);
    f.respond(ONLY, 0, &[0; 8]);
    f.ack(1);
    assert_eq!(f.ended(), [(read, Status::Success), (write, Status::Success)]);
}

#[test]
fn an_atomic_puts_what_was_found_into_local_memory() {
    let mut f = Fixture::new(Service::Rc);
    let add = f.post(ADD, 8);
    let sent = f.host.sent();
    assert_eq!(sent[0].0.bth.opcode, Opcode::RC_FETCH_ADD);
    assert_eq!(sent[0].0.atomic_eth.unwrap().swap_add, 1);
    f.atomic_ack(0, 0x0102_0304_0506_0708);
    assert_eq!(f.ended(), [(add, Status::Success)]);
    let mr = f.mr;
    assert_eq!(f.host.bytes(&mr)[..8], 0x0102_0304_0506_0708u64.to_ne_bytes());
}

#[test]
fn what_arrives_after_going_back_moves_where_the_response_begins() {
    let mut f = Fixture::new(Service::Rc);
    let read = f.post(READ, 1024);
    f.leaves();
    f.respond(FIRST_OF, 0, &[1; 256]);
    // The missing packet arrives before the request can be repeated.
    f.respond(MIDDLE, 2, &[3; 256]);
    f.respond(MIDDLE, 1, &[2; 256]);
    assert_eq!(f.leaves(), [(Opcode::RC_RDMA_READ_REQUEST, 2)]);
    f.respond(FIRST_OF, 2, &[3; 256]);
    f.respond(LAST, 3, &[4; 256]);
    assert_eq!(f.ended(), [(read, Status::Success)]);
}
