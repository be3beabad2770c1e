//! Completions that carry the bytes of a response.

use super::*;
use crate::engine::{InlineCompletion, QpInit};

const ONLY: Opcode = Opcode::RC_RDMA_READ_RESPONSE_ONLY;

/// Returns a fixture whose completions of sends carry up to 32 bytes of response data.
fn fixture() -> Fixture {
    let mut host = Host::new();
    let inline_completion = InlineCompletion { requester: 32, responder: 0 };
    let init = QpInit { inline_completion, ..host.init(Service::Rc) };
    let (qpn, mr) = (host.qp(&init, &connected()), host.register(1 << 10, ALL));
    Fixture { host, qpn, mr, wr_id: 0 }
}

/// Returns the bytes carried by the `n`th completion, counted from 1.
fn came_with(f: &Fixture, n: usize) -> Option<&[u8]> {
    f.host.log.data.iter().find(|(at, _)| *at == n).map(|(_, data)| &data[..])
}

#[test]
fn what_was_read_comes_with_the_completion_and_nothing_is_written() {
    let mut f = fixture();
    let (read, add) = (f.post(READ, 32), f.post(ADD, 8));
    f.leaves();
    f.respond(ONLY, 0, &[0xaa; 32]);
    f.atomic_ack(1, 0x1122_3344_5566_7788);
    assert_eq!(came_with(&f, 1), Some(&[0xaa; 32][..]));
    assert_eq!(came_with(&f, 2), Some(&0x1122_3344_5566_7788u64.to_ne_bytes()[..]));
    assert_eq!(f.ended(), [(read, Status::Success), (add, Status::Success)]);
    let mr = f.mr;
    assert!(f.host.bytes(&mr).iter().take(32).copied().eq(0..32));
}

#[test]
fn keys_of_elements_that_nothing_is_written_to_are_not_looked_at() {
    let mut f = fixture();
    let sge = Sge { lkey: !f.mr.key, ..f.mr.sge(0, 8) };
    let (read, add) = (f.post_sges(READ, &[sge]), f.post_sges(ADD, &[sge]));
    f.leaves();
    f.respond(ONLY, 0, &[1; 8]);
    f.atomic_ack(1, 5);
    assert_eq!(f.ended(), [(read, Status::Success), (add, Status::Success)]);
    let long = Sge { length: 33, ..sge };
    let refused = f.post_sges(READ, &[long]);
    f.leaves();
    assert_eq!(f.ended(), [(refused, Status::LocalProtection)]);
}

#[test]
fn what_is_longer_or_unsignalled_is_written() {
    let mut f = fixture();
    f.post(READ, 33);
    f.post_flags(READ, 8, SendFlags::default());
    f.leaves();
    f.respond(ONLY, 0, &[1; 33]);
    f.respond(ONLY, 1, &[2; 8]);
    assert!(f.host.log.data.is_empty());
    let mr = f.mr;
    assert_eq!((f.host.bytes(&mr)[7], f.host.bytes(&mr)[8], f.host.bytes(&mr)[32]), (2, 1, 1));
}

#[test]
fn a_read_of_several_packets_is_written() {
    let mut host = Host::new();
    let inline_completion = InlineCompletion { requester: 4096, responder: 0 };
    let init = QpInit { inline_completion, ..host.init(Service::Rc) };
    let (qpn, mr) = (host.qp(&init, &connected()), host.register(1 << 10, ALL));
    let mut f = Fixture { host, qpn, mr, wr_id: 0 };
    let read = f.post(READ, 257);
    f.leaves();
    f.respond(Opcode::RC_RDMA_READ_RESPONSE_FIRST, 0, &[3; 256]);
    f.respond(Opcode::RC_RDMA_READ_RESPONSE_LAST, 1, &[4; 1]);
    assert_eq!(f.ended(), [(read, Status::Success)]);
    assert!(f.host.log.data.is_empty());
    assert_eq!((f.host.bytes(&mr)[255], f.host.bytes(&mr)[256]), (3, 4));
}

#[test]
fn a_queue_without_room_for_the_bytes_fails_the_queue_pair() {
    let mut f = fixture();
    f.post(READ, 8);
    f.leaves();
    f.host.log.full = true;
    f.respond(ONLY, 0, &[1; 8]);
    assert_eq!(f.state(), State::Err);
}
