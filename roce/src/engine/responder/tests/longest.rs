//! The longest message: 2³¹ bytes and no more.

use super::*;
use crate::engine::MemoryAttr;
use crate::engine::testing::ALL;
use crate::sim::VecRegion;

const LONGEST: u32 = 1 << 31;

/// Returns a queue pair and a registration of 2³² bytes. Only the first 4096 bytes exist; no packet
/// of these tests accesses other bytes.
fn large() -> Fixture {
    let mut f = Fixture::new(Service::Rc);
    let length = 1 << 32;
    let attr = MemoryAttr { pd: f.host.pd, iova: f.mr.addr, length, access: ALL };
    let region = VecRegion { buffer: f.mr.buffer, start: 0, length };
    f.mr.key = f.host.engine.reg_mr(&attr, region).unwrap();
    f
}

#[test]
fn a_write_of_2_to_the_31_bytes_is_the_longest_that_begins() {
    let mut f = large();
    let first = f.rdma(Opcode::RC_RDMA_WRITE_FIRST, &[0xee; 256], 0, LONGEST);
    f.host.arrive(&first, &[0xee; 256]);
    assert_eq!(f.sent(), []);
    assert_eq!(f.bytes(0, 257), [&[0xee; 256][..], &[5]].concat());

    let mut f = large();
    let first = f.rdma(Opcode::RC_RDMA_WRITE_FIRST, &[0xee; 256], 0, LONGEST + 1);
    f.host.arrive(&first, &[0xee; 256]);
    assert_eq!(f.sent(), [nak(0xff_fffe, NakCode::INVALID_REQUEST)]);
    assert_eq!(f.bytes(0, 1), [0]);
}

#[test]
fn a_read_of_2_to_the_31_bytes_is_the_longest_that_is_answered() {
    let mut f = large();
    let read = f.read(0, LONGEST);
    f.host.arrive(&read, &[]);
    let (first, payload) = f.host.transmit(crate::engine::Urgency::All).unwrap();
    assert_eq!(first.bth.opcode, Opcode::RC_RDMA_READ_RESPONSE_FIRST);
    assert_eq!(payload, f.bytes(0, 256));

    let mut f = large();
    let read = f.read(0, LONGEST + 1);
    f.host.arrive(&read, &[]);
    assert_eq!(f.sent(), [nak(0xff_fffe, NakCode::INVALID_REQUEST)]);
}
