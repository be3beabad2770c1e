//! UC: the responder sends no acknowledgements and drops messages with missing packets.

use super::*;
use crate::engine::{Access, State, Status};

#[test]
fn messages_arrive_and_nothing_is_acknowledged() {
    let mut f = Fixture::new(Service::Uc);
    f.post(1, 0, 512);
    f.arrive(Opcode::UC_SEND_FIRST, &[1; 256]);
    f.arrive(Opcode::UC_SEND_LAST_WITH_IMMEDIATE, &[2; 5]);
    let done = f.host.completions();
    assert_eq!((done[0].status, done[0].byte_len, done[0].imm), (Status::Success, 261, Some(0xabcd)));
    let write = f.rdma(Opcode::UC_RDMA_WRITE_ONLY, &[9; 4], 1000, 4);
    f.host.arrive(&write, &[9; 4]);
    assert_eq!(f.bytes(1000, 4), [9; 4]);
    assert!(f.sent().is_empty());
}

#[test]
fn a_message_with_a_hole_is_dropped_and_its_receive_serves_the_next() {
    let mut f = Fixture::new(Service::Uc);
    f.post(1, 0, 1024);
    f.arrive(Opcode::UC_SEND_FIRST, &[1; 256]);
    f.psn = f.psn.next();
    f.arrive(Opcode::UC_SEND_MIDDLE, &[1; 256]);
    f.arrive(Opcode::UC_SEND_LAST, &[1; 256]);
    assert!(f.host.completions().is_empty());
    f.arrive(Opcode::UC_SEND_ONLY, &[3; 4]);
    let done = f.host.completions();
    assert_eq!((done.len(), done[0].wr_id, done[0].byte_len, f.host.log.retired_recvs), (1, 1, 4, 1));
    assert_eq!(f.bytes(0, 5), [3, 3, 3, 3, 1]);
}

#[test]
fn a_message_that_begins_ends_the_one_before() {
    let mut f = Fixture::new(Service::Uc);
    f.post(1, 0, 1024);
    f.arrive(Opcode::UC_SEND_FIRST, &[1; 256]);
    f.arrive(Opcode::UC_SEND_FIRST, &[2; 256]);
    f.arrive(Opcode::UC_SEND_LAST, &[3; 4]);
    let done = f.host.completions();
    assert_eq!((done.len(), done[0].wr_id, done[0].byte_len), (1, 1, 260));
}

#[test]
fn what_nobody_can_take_is_dropped() {
    let mut f = Fixture::new(Service::Uc);
    f.arrive(Opcode::UC_SEND_FIRST, &[1; 256]);
    f.post(1, 0, 100);
    f.arrive(Opcode::UC_SEND_LAST, &[1; 4]);
    f.arrive(Opcode::UC_SEND_ONLY, &[1; 101]);
    let mut write = f.rdma(Opcode::UC_RDMA_WRITE_ONLY, &[9; 4], 1000, 4);
    write.reth = write.reth.map(|reth| reth::Repr { rkey: !reth.rkey, ..reth });
    f.host.arrive(&write, &[9; 4]);
    assert!(f.host.completions().is_empty() && f.sent().is_empty() && f.host.events().is_empty());
    assert_eq!(f.host.state(f.qpn), State::Rts);
    f.arrive(Opcode::UC_SEND_ONLY, &[1; 100]);
    assert_eq!(f.host.completions()[0].status, Status::Success);
}

#[test]
fn a_receive_that_may_not_be_written_fails_the_queue_pair() {
    let mut f = Fixture::new(Service::Uc);
    let read_only = f.host.register(64, Access::NONE);
    f.host.post_recv(f.qpn, 1, &[read_only.sge(0, 64)]);
    f.arrive(Opcode::UC_SEND_ONLY, &[1; 4]);
    assert_eq!(f.host.completions()[0].status, Status::LocalProtection);
    assert_eq!(f.host.state(f.qpn), State::Err);
    assert!(f.sent().is_empty());
}

#[test]
fn a_message_with_a_wrong_packet_is_dropped_to_its_end() {
    let mut f = Fixture::new(Service::Uc);
    f.post(1, 0, 1024);
    f.arrive(Opcode::UC_SEND_FIRST, &[1; 256]);
    f.arrive(Opcode::UC_SEND_MIDDLE, &[1; 100]);
    f.arrive(Opcode::UC_SEND_LAST, &[1; 4]);
    assert!(f.host.completions().is_empty());
    assert_eq!(f.host.state(f.qpn), State::Rts);
}
