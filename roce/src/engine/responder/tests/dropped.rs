//! Packets that are dropped silently.

use super::*;
use crate::engine::testing::{HERE, Host, THERE, to};
use crate::engine::{Arrival, State};

/// Checks that a write with one mistake has no effect, and that the same write without the mistake
/// is executed.
#[track_caller]
fn dropped(name: &str, change: impl FnOnce(&mut Headers, &mut Arrival)) {
    let mut f = Fixture::new(Service::Rc);
    let right = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[99; 4], 0, 4);
    let (mut headers, mut arrival) = (right, Arrival { remote: THERE, local: HERE, ..Arrival::default() });
    change(&mut headers, &mut arrival);
    f.host.arrive_from(&arrival, &headers, &[99; 4]);
    assert!(f.sent().is_empty(), "{name}");
    assert_eq!((f.bytes(0, 4), f.host.events()), (vec![0, 1, 2, 3], vec![]), "{name}");
    f.host.arrive(&right, &[99; 4]);
    assert_eq!((f.sent(), f.bytes(0, 4)), (vec![ack(0xff_fffe)], vec![99; 4]), "{name}");
}

#[test]
fn packets_that_are_not_for_this_queue_pair() {
    dropped("another partition", |headers, _| headers.bth.pkey = 0xfffe);
    dropped("no partition", |headers, _| headers.bth.pkey = 0x8000);
    dropped("another service", |headers, _| headers.bth.opcode = Opcode::UC_RDMA_WRITE_ONLY);
    dropped("an unknown service", |headers, _| headers.bth.opcode = Opcode(0xff));
    dropped("another sender", |_, arrival| arrival.remote[15] = 9);
    dropped("another address", |_, arrival| arrival.local[15] = 9);
    dropped("another queue pair", |headers, _| headers.bth.dest_qp ^= 1);
}

#[test]
fn a_limited_member_hears_full_members_only() {
    use super::super::same_partition;
    assert!(same_partition(0xffff, 0x7fff) && same_partition(0x7fff, 0xffff));
    assert!(!same_partition(0x7fff, 0x7fff));
    assert!(!same_partition(0x8000, 0x8000));
}

#[test]
fn requests_before_and_after_the_time_for_them() {
    let write = |host: &mut Host, f: &mut Headers| host.arrive(f, &[99; 4]);
    let mut f = Fixture::new(Service::Rc);
    let mut headers = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[99; 4], 0, 4);
    for state in [State::Reset, State::Init] {
        f.host.modify(f.qpn, &AttrChange { state: Some(state), ..connected() });
        write(&mut f.host, &mut headers);
        assert!(f.sent().is_empty());
    }
    f.host.modify(f.qpn, &AttrChange { state: Some(State::Rtr), ..connected() });
    f.host.modify(f.qpn, &to(State::Err));
    write(&mut f.host, &mut headers);
    assert!(f.sent().is_empty());
    assert_eq!(f.bytes(0, 4), [0, 1, 2, 3]);
}

#[test]
fn requests_are_heard_while_the_send_queue_drains() {
    let mut f = Fixture::new(Service::Rc);
    f.host.modify(f.qpn, &to(State::Sqd));
    let headers = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[99; 4], 0, 4);
    f.host.arrive(&headers, &[99; 4]);
    assert_eq!(f.sent(), [ack(0xff_fffe)]);
}
