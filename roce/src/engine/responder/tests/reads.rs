//! Reads and atomics: their specific responses, in order, and the responses to duplicates.

use super::*;
use crate::engine::testing::ALL;
use crate::engine::{Event, State, Urgency};

fn responses(f: &mut Fixture) -> Vec<(Opcode, u32, Vec<u8>)> {
    f.host
        .sent()
        .into_iter()
        .map(|(headers, payload)| (headers.bth.opcode, headers.bth.psn.value(), payload))
        .collect()
}

#[test]
fn a_read_is_answered_in_packets_of_the_path_mtu() {
    let mut f = Fixture::new(Service::Rc);
    let read = f.read(10, 515);
    f.host.arrive(&read, &[]);
    let memory = f.bytes(10, 515);
    assert_eq!(
        responses(&mut f),
        [
            (Opcode::RC_RDMA_READ_RESPONSE_FIRST, 0xff_fffe, memory[..256].to_vec()),
            (Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, 0xff_ffff, memory[256..512].to_vec()),
            (Opcode::RC_RDMA_READ_RESPONSE_LAST, 0, memory[512..].to_vec()),
        ]
    );
    // The read has used three sequence numbers.
    let write = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[1; 4], 0, 4);
    assert_eq!(write.bth.psn, Psn::new(1));
    f.host.arrive(&write, &[1; 4]);
    assert_eq!(f.sent(), [ack(1)]);
}

#[test]
fn small_and_empty_reads_are_answered_with_one_packet() {
    let mut f = Fixture::new(Service::Rc);
    for (length, expected) in [(256, f.bytes(0, 256)), (3, vec![0, 1, 2]), (0, vec![])] {
        let mut read = f.read(0, length);
        if length == 0 {
            read.reth = Some(reth::Repr { va: 1, rkey: 1, dmalen: 0 });
        }
        f.host.arrive(&read, &[]);
        assert_eq!(responses(&mut f), [(Opcode::RC_RDMA_READ_RESPONSE_ONLY, read.bth.psn.value(), expected)]);
    }
}

#[test]
fn an_acknowledgement_never_overtakes_a_read() {
    let mut f = Fixture::new(Service::Rc);
    let read = f.read(0, 300);
    f.host.arrive(&read, &[]);
    let write = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[1; 4], 2000, 4);
    f.host.arrive(&write, &[1; 4]);
    let missing = f.psn;
    f.psn = f.psn.next();
    let early = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[1; 4], 2000, 4);
    f.host.arrive(&early, &[1; 4]);
    let sent = f.sent();
    assert_eq!(
        sent,
        [
            (Opcode::RC_RDMA_READ_RESPONSE_FIRST, 0xff_fffe, Syndrome::ACK.0),
            (Opcode::RC_RDMA_READ_RESPONSE_LAST, 0xff_ffff, Syndrome::ACK.0),
            nak(missing.value(), NakCode::PSN_SEQUENCE_ERROR),
        ]
    );
}

#[test]
fn what_came_behind_a_read_is_acknowledged_behind_its_response() {
    let mut f = Fixture::new(Service::Rc);
    let read = f.read(0, 300);
    f.host.arrive(&read, &[]);
    let write = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[1; 4], 2000, 4);
    f.host.arrive(&write, &[1; 4]);
    assert_eq!(f.sent()[2..], [ack(0)]);
}

#[test]
fn a_response_stands_for_the_acknowledgement_of_what_came_before() {
    let mut f = Fixture::new(Service::Rc);
    let write = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[1; 4], 2000, 4);
    f.host.arrive(&write, &[1; 4]);
    let read = f.read(0, 4);
    f.host.arrive(&read, &[]);
    let (response, _) = f.host.transmit(Urgency::Now).unwrap();
    assert_eq!(response.bth.opcode, Opcode::RC_RDMA_READ_RESPONSE_ONLY);
    assert_eq!(response.aeth.unwrap().msn, 2);
    assert!(f.host.transmit(Urgency::All).is_none());
}

#[test]
fn a_duplicate_write_before_reads_does_not_acknowledge_them() {
    let mut f = Fixture::new(Service::Rc);
    let write = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[1; 4], 2000, 4);
    f.host.arrive(&write, &[1; 4]);
    let read = f.read(0, 300);
    f.host.arrive(&read, &[]);
    let add = f.fetch_add(16, 5);
    f.host.arrive(&add, &[]);
    assert_eq!(f.sent().len(), 3);
    f.host.arrive(&write, &[1; 4]);
    let sent = f.host.sent();
    let (headers, _) = &sent[0];
    assert_eq!((sent.len(), headers.bth.opcode, headers.bth.psn), (1, Opcode::RC_ACKNOWLEDGE, write.bth.psn));
    assert_eq!(headers.aeth.unwrap().msn, 1);
    // After a further write, the acknowledgement names that write. The peer then treats missing
    // responses to earlier requests as lost.
    let behind = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[1; 4], 2000, 4);
    f.host.arrive(&behind, &[1; 4]);
    f.host.arrive(&write, &[1; 4]);
    assert_eq!(f.sent(), [ack(behind.bth.psn.value())]);
}

#[test]
fn the_end_of_a_read_can_be_asked_for_again() {
    let mut f = Fixture::new(Service::Rc);
    let read = f.read(0, 700);
    f.host.arrive(&read, &[]);
    assert_eq!(f.sent().len(), 3);
    let mut again = read;
    again.bth.psn = read.bth.psn.next();
    again.reth = Some(reth::Repr { va: f.mr.addr + 256, rkey: f.mr.key, dmalen: 700 - 256 });
    f.host.arrive(&again, &[]);
    let memory = f.bytes(256, 444);
    assert_eq!(
        responses(&mut f),
        [
            (Opcode::RC_RDMA_READ_RESPONSE_FIRST, 0xff_ffff, memory[..256].to_vec()),
            (Opcode::RC_RDMA_READ_RESPONSE_LAST, 0, memory[256..].to_vec()),
        ]
    );
}

#[test]
fn a_duplicate_read_that_asks_for_more_is_dropped() {
    let mut f = Fixture::new(Service::Rc);
    let read = f.read(512, 300);
    f.host.arrive(&read, &[]);
    f.sent();
    let reth = read.reth.unwrap();
    for other in [
        reth::Repr { va: reth.va - 1, ..reth },
        reth::Repr { va: reth.va + 1, ..reth },
        reth::Repr { va: u64::MAX, ..reth },
        reth::Repr { dmalen: reth.dmalen + 1, ..reth },
        reth::Repr { rkey: reth.rkey ^ 1, ..reth },
    ] {
        f.host.arrive(&Headers { reth: Some(other), ..read }, &[]);
        assert!(f.sent().is_empty(), "{other:?}");
    }
    let mut late = read;
    late.bth.psn = read.bth.psn.next();
    f.host.arrive(&late, &[]);
    assert!(f.sent().is_empty());
    f.host.arrive(&read, &[]);
    assert_eq!(f.sent().len(), 2);
}

#[test]
fn a_duplicate_read_of_nothing_repeats_a_read_of_nothing_alone() {
    let mut f = Fixture::new(Service::Rc);
    let nothing = f.read(0, 0);
    f.host.arrive(&nothing, &[]);
    let read = f.read(0, 700);
    f.host.arrive(&read, &[]);
    assert_eq!(f.sent().len(), 4);
    for n in 0..3 {
        let mut forged = read;
        forged.bth.psn = read.bth.psn + n;
        forged.reth = Some(reth::Repr { va: 0, rkey: 0, dmalen: 0 });
        f.host.arrive(&forged, &[]);
        assert!(f.sent().is_empty(), "packet {n}");
    }
    let mut longer = nothing;
    longer.reth = read.reth;
    f.host.arrive(&longer, &[]);
    assert!(f.sent().is_empty());
    f.host.arrive(&nothing, &[]);
    assert_eq!(f.sent().len(), 1);
}

#[test]
fn a_response_under_way_is_cut_by_no_duplicate() {
    let part = |skip: u32, va: u64, dmalen: u32, key: u32| (skip, reth::Repr { va, rkey: key, dmalen });
    for n in 0..8 {
        let mut f = Fixture::new(Service::Rc);
        let (key, base) = (f.mr.key, f.mr.addr);
        let (skip, reth) = [
            part(2, 0, 0, 0),
            part(1, base + 256, 0, key),
            part(2, base + 512, 488, key),
            part(3, base + 768, 232, key),
            part(0, base, 256, key),
            part(0, base, 999, key),
            part(1, base + 256, 256, key),
            part(1, base + 255, 745, key),
        ][n];
        let read = f.read(0, 1000);
        f.host.arrive(&read, &[]);
        let (first, _) = f.host.transmit(Urgency::Now).unwrap();
        assert_eq!(first.bth.opcode, Opcode::RC_RDMA_READ_RESPONSE_FIRST);
        let mut again = read;
        (again.bth.psn, again.reth) = (read.bth.psn + skip, Some(reth));
        f.host.arrive(&again, &[]);
        let memory = f.bytes(0, 1000);
        let (middle, last) = (Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, Opcode::RC_RDMA_READ_RESPONSE_LAST);
        let number = |n: u32| (read.bth.psn + n).value();
        assert_eq!(
            responses(&mut f),
            [
                (middle, number(1), memory[256..512].to_vec()),
                (middle, number(2), memory[512..768].to_vec()),
                (last, number(3), memory[768..].to_vec()),
            ],
            "{skip} {reth:?}"
        );
    }
}

#[test]
fn a_response_under_way_begins_again_where_its_rest_is_asked_for_again() {
    for skip in 0..3 {
        let mut f = Fixture::new(Service::Rc);
        let read = f.read(0, 1000);
        f.host.arrive(&read, &[]);
        f.host.transmit(Urgency::Now).unwrap();
        f.host.transmit(Urgency::Now).unwrap();
        let offset = 256 * skip;
        let mut again = read;
        again.bth.psn = read.bth.psn + skip;
        let va = f.mr.addr + u64::from(offset);
        again.reth = Some(reth::Repr { va, rkey: f.mr.key, dmalen: 1000 - offset });
        f.host.arrive(&again, &[]);
        let memory = f.bytes(0, 1000);
        let sent = responses(&mut f);
        assert_eq!(sent.len(), 4 - skip as usize, "from packet {skip}");
        assert_eq!((sent[0].0, sent[0].1), (Opcode::RC_RDMA_READ_RESPONSE_FIRST, again.bth.psn.value()));
        let bytes: Vec<u8> = sent.into_iter().flat_map(|(_, _, bytes)| bytes).collect();
        assert_eq!(bytes, memory[offset as usize..]);
    }
}

#[test]
fn a_read_that_is_forgotten_is_not_repeated() {
    let mut f = Fixture::new(Service::Rc);
    let old = f.read(0, 4);
    f.host.arrive(&old, &[]);
    f.sent();
    for _ in 0..2 {
        let read = f.read(0, 4);
        f.host.arrive(&read, &[]);
        f.sent();
    }
    f.host.arrive(&old, &[]);
    assert!(f.sent().is_empty());
}

#[test]
fn an_atomic_happens_once_and_its_result_is_told_again() {
    let mut f = Fixture::new(Service::Rc);
    let before = u64::from_ne_bytes(f.bytes(16, 8).try_into().unwrap());
    let add = f.fetch_add(16, 5);
    for _ in 0..3 {
        f.host.arrive(&add, &[]);
        let sent = f.host.sent();
        let (headers, _) = &sent[0];
        assert_eq!((sent.len(), headers.bth.opcode), (1, Opcode::RC_ATOMIC_ACKNOWLEDGE));
        assert_eq!(headers.atomic_ack_eth.unwrap().orig, before);
    }
    assert_eq!(f.bytes(16, 8), (before + 5).to_ne_bytes());

    let mut swap = f.fetch_add(16, 1);
    swap.bth.opcode = Opcode::RC_COMPARE_SWAP;
    let eth = swap.atomic_eth.unwrap();
    swap.atomic_eth = Some(atomic_eth::Repr { swap_add: 77, compare: before + 5, ..eth });
    f.host.arrive(&swap, &[]);
    assert_eq!(f.host.sent()[0].0.atomic_ack_eth.unwrap().orig, before + 5);
    assert_eq!(f.bytes(16, 8), 77u64.to_ne_bytes());
}

#[test]
fn more_reads_than_agreed_are_refused() {
    let mut f = Fixture::new(Service::Rc);
    for _ in 0..3 {
        let read = f.read(0, 4);
        f.host.arrive(&read, &[]);
    }
    assert_eq!(f.host.state(f.qpn), State::Err);
    assert_eq!(f.host.events(), [Event::QpRequestError(f.qpn)]);
    // The responses to requests accepted earlier are sent first.
    let ok = Syndrome::ACK.0;
    assert_eq!(
        f.sent(),
        [
            (Opcode::RC_RDMA_READ_RESPONSE_ONLY, 0xff_fffe, ok),
            (Opcode::RC_RDMA_READ_RESPONSE_ONLY, 0xff_ffff, ok),
            nak(0, NakCode::INVALID_REQUEST)
        ]
    );
}

#[test]
fn a_key_that_is_taken_back_ends_a_read_in_the_middle() {
    let mut f = Fixture::new(Service::Rc);
    let other = f.host.register(4096, ALL);
    f.mr = other;
    for _ in 0..2 {
        let read = f.read(0, 1000);
        f.host.arrive(&read, &[]);
    }
    assert!(f.host.transmit(Urgency::Now).is_some());
    f.host.engine.dereg_mr(other.key).unwrap();
    assert_eq!(f.sent(), [nak(0xff_ffff, NakCode::REMOTE_ACCESS_ERROR)]);
    assert_eq!((f.host.state(f.qpn), f.host.events()), (State::Err, vec![Event::QpAccessError(f.qpn)]));
}

#[test]
fn memory_that_is_gone_ends_a_read() {
    let mut f = Fixture::new(Service::Rc);
    let read = f.read(0, 1000);
    f.host.arrive(&read, &[]);
    let buffer = f.mr.buffer;
    f.host.engine.memory().lose(buffer);
    assert_eq!(f.sent(), [nak(0xff_fffe, NakCode::REMOTE_OPERATIONAL_ERROR)]);
    assert_eq!(f.host.state(f.qpn), State::Err);
}

#[test]
fn nothing_is_read_for_the_peer_once_the_program_gave_up() {
    let mut f = Fixture::new(Service::Rc);
    let read = f.read(0, 1000);
    f.host.arrive(&read, &[]);
    f.host.modify(f.qpn, &crate::engine::testing::to(State::Err));
    assert!(f.sent().is_empty());
}
