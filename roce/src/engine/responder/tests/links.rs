//! Requests from a peer on the same machine, whose packets are longer than the path MTU.

use super::*;
use crate::engine::testing::{ALL, HERE, THERE};
use crate::engine::{Arrival, Event, Urgency};
use crate::wire::packet::LINK_MTU;

const LEN: usize = LINK_MTU as usize;

/// Returns a fixture with memory for several packets of [`LINK_MTU`] bytes.
fn fixture() -> Fixture {
    let mut f = Fixture::new(Service::Rc);
    f.mr = f.host.register(4 * LEN, ALL);
    f
}

impl Fixture {
    fn arrive_on(&mut self, on_link: bool, headers: &Headers, payload: &[u8]) {
        let arrival = Arrival { remote: THERE, local: HERE, on_link, ..Arrival::default() };
        self.host.arrive_from(&arrival, headers, payload);
    }
}

#[test]
fn the_first_request_decides_the_length_of_packets() {
    let payload = data(LEN);
    for on_link in [true, false] {
        let mut f = fixture();
        let first = f.rdma(Opcode::RC_RDMA_WRITE_FIRST, &payload, 0, 2 * LINK_MTU);
        f.arrive_on(on_link, &first, &payload);
        // The peer changes its packet size in the middle of the message.
        let last = f.request(Opcode::RC_RDMA_WRITE_LAST, &payload);
        f.arrive_on(!on_link, &last, &payload);
        if on_link {
            assert_eq!(f.sent(), [ack(last.bth.psn.value())]);
            assert_eq!((f.bytes(0, LEN), f.bytes(LEN, LEN)), (payload.clone(), payload.clone()));
        } else {
            assert_eq!(f.sent(), [nak(first.bth.psn.value(), NakCode::INVALID_REQUEST)]);
            assert_eq!(f.host.events().last(), Some(&Event::QpRequestError(f.qpn)));
        }
    }
}

#[test]
fn a_packet_of_the_path_mtu_is_too_short_for_a_link() {
    let mut f = fixture();
    let first = f.rdma(Opcode::RC_RDMA_WRITE_FIRST, &data(256), 0, 512);
    f.arrive_on(true, &first, &data(256));
    assert_eq!(f.sent(), [nak(first.bth.psn.value(), NakCode::INVALID_REQUEST)]);
}

#[test]
fn a_read_is_answered_in_packets_of_the_link() {
    let mut f = fixture();
    let read = f.rdma(Opcode::RC_RDMA_READ_REQUEST, &[], 10, 2 * LINK_MTU + 1);
    f.arrive_on(true, &read, &[]);
    let mut space = vec![0; crate::wire::packet::MAX_LINK_PACKET_LEN];
    let mut lens = vec![];
    while let Some((headers, payload)) = f.host.transmit_in(Urgency::All, &mut space) {
        assert_eq!(headers.bth.psn, read.bth.psn + lens.len() as u32);
        lens.push(payload.len());
    }
    assert_eq!(lens, [LEN, LEN, 1]);
}
