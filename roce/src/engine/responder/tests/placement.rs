//! Flushes and atomic writes from a peer: access rights, ranges, responses and duplicates.

use super::*;
use crate::engine::testing::ALL;
use crate::engine::{Access, Event, State};
use crate::wire::feth;

const RESPONSE: Opcode = Opcode::RC_RDMA_READ_RESPONSE_ONLY;
const GLOBAL: u8 = feth::PLT_GLOBAL_VISIBILITY;
const PERSISTENT: u8 = feth::PLT_PERSISTENCE;
const FLUSHES: Access = Access(Access::FLUSH_GLOBAL.0 | Access::FLUSH_PERSISTENT.0);

/// Returns a fixture with the access rights `qp` for its queue pair and `mr` for its memory, in
/// addition to the default rights.
fn allowing(qp: Access, mr: Access) -> Fixture {
    let access = Some(ALL | qp);
    let mut f = Fixture::with(Service::Rc, &AttrChange { access, ..AttrChange::default() });
    f.mr = f.host.register(4096, ALL | mr);
    f
}

impl Fixture {
    fn flush(&mut self, plt: u8, sel: u8, offset: u64, dmalen: u32) -> Headers {
        let mut headers = self.rdma(Opcode::RC_FLUSH, &[], offset, dmalen);
        headers.feth = Some(feth::Repr { plt, sel });
        headers
    }

    fn atomic_write(&mut self, offset: u64) -> Headers {
        self.rdma(Opcode::RC_ATOMIC_WRITE, &[9; 8], offset, 8)
    }

    /// Returns, for each flush, its first address, its length in bytes and whether it was
    /// persistent.
    fn flushed(&mut self) -> Vec<(u64, usize, bool)> {
        let flushed = self.host.engine.memory().flushed();
        flushed.iter().map(|flush| (flush.start, flush.bytes.len(), flush.persistent)).collect()
    }
}

fn done(psn: u32) -> (Opcode, u32, u8) {
    (RESPONSE, psn, Syndrome::ACK.0)
}

#[test]
fn a_flush_covers_its_range_or_the_whole_region_after_earlier_writes() {
    let mut f = allowing(FLUSHES, FLUSHES);
    let write = f.rdma(Opcode::RC_RDMA_WRITE_ONLY, &[7; 4], 10, 4);
    let (range, whole) = (f.flush(GLOBAL, 0, 8, 100), f.flush(GLOBAL | PERSISTENT, 1, 4000, 5000));
    let empty = f.flush(PERSISTENT, 0, 4096, 0);
    f.host.arrive(&write, &[7; 4]);
    for headers in [&range, &whole, &empty] {
        f.host.arrive(headers, &[]);
    }
    // The responder stores two requests, so it rejects the third until a response has been sent.
    assert_eq!(f.sent(), [done(0xff_ffff), done(0), nak(1, NakCode::INVALID_REQUEST)]);
    assert_eq!(f.flushed(), [(8, 100, false), (0, 4096, true)]);
    assert_eq!(f.host.engine.memory().flushed()[0].bytes[2..6], [7; 4]);
}

#[test]
fn an_empty_range_at_the_end_of_a_region_is_flushed() {
    let mut f = allowing(FLUSHES, FLUSHES);
    let empty = f.flush(PERSISTENT, 0, 4096, 0);
    f.host.arrive(&empty, &[]);
    assert_eq!((f.sent(), f.flushed()), (vec![done(0xff_fffe)], vec![(4096, 0, true)]));
}

#[test]
fn an_atomic_write_stores_its_bytes() {
    let mut f = allowing(Access::NONE, Access::NONE);
    let store = f.atomic_write(16);
    f.host.arrive(&store, &[9; 8]);
    assert_eq!((f.sent(), f.bytes(15, 10)), (vec![done(0xff_fffe)], vec![15, 9, 9, 9, 9, 9, 9, 9, 9, 24]));
}

#[test]
fn duplicates_are_answered_again_and_not_executed_again() {
    let mut f = allowing(FLUSHES, FLUSHES);
    let (flush, store) = (f.flush(GLOBAL, 0, 0, 8), f.atomic_write(0));
    for (headers, payload) in [(&flush, &[][..]), (&store, &[9; 8])] {
        f.host.arrive(headers, payload);
    }
    assert_eq!(f.sent(), [done(0xff_fffe), done(0xff_ffff)]);
    let buffer = f.mr.buffer;
    f.host.engine.memory().bytes_mut(buffer)[0] = 1;
    for (headers, payload) in [(&flush, &[][..]), (&store, &[9; 8])] {
        f.host.arrive(headers, payload);
    }
    assert_eq!(f.sent(), [done(0xff_fffe), done(0xff_ffff)]);
    assert_eq!((f.flushed().len(), f.bytes(0, 2)), (1, vec![1, 9]));
    // A duplicate with a different operation gets no response.
    let mut atomic = f.fetch_add(0, 1);
    atomic.bth.psn = flush.bth.psn;
    f.host.arrive(&atomic, &[]);
    assert!(f.sent().is_empty());
}

/// Checks that a request gets NAK `code`, that the queue pair fails and that nothing is executed.
#[track_caller]
fn refused(mut f: Fixture, make: impl FnOnce(&mut Fixture) -> (Headers, Vec<u8>), code: NakCode) {
    let before = f.bytes(0, 4096);
    let (headers, payload) = make(&mut f);
    f.host.arrive(&headers, &payload);
    assert_eq!(f.sent(), [nak(headers.bth.psn.value(), code)]);
    let event = if code == NakCode::REMOTE_ACCESS_ERROR {
        Event::QpAccessError(f.qpn)
    } else {
        Event::QpRequestError(f.qpn)
    };
    assert_eq!((f.host.state(f.qpn), f.host.events()), (State::Err, vec![event]));
    assert_eq!((f.flushed(), f.bytes(0, 4096)), (vec![], before));
}

#[test]
fn a_flush_needs_each_of_its_rights_of_queue_pair_and_region() {
    let access = NakCode::REMOTE_ACCESS_ERROR;
    for (asks, lacks) in [
        (GLOBAL, Access::FLUSH_GLOBAL),
        (PERSISTENT, Access::FLUSH_PERSISTENT),
        (GLOBAL | PERSISTENT, Access::FLUSH_GLOBAL),
        (GLOBAL | PERSISTENT, Access::FLUSH_PERSISTENT),
    ] {
        let rest = Access(FLUSHES.0 & !lacks.0);
        for sel in [0, 1] {
            refused(allowing(rest, FLUSHES), |f| (f.flush(asks, sel, 0, 8), vec![]), access);
            refused(allowing(FLUSHES, rest), |f| (f.flush(asks, sel, 0, 8), vec![]), access);
        }
    }
}

#[test]
fn a_flush_outside_its_region_or_by_a_wrong_key_is_refused() {
    let all = || allowing(FLUSHES, FLUSHES);
    let access = NakCode::REMOTE_ACCESS_ERROR;
    refused(all(), |f| (f.flush(GLOBAL, 0, 4090, 7), vec![]), access);
    refused(all(), |f| (f.flush(GLOBAL, 0, 4097, 0), vec![]), access);
    for sel in [0, 1] {
        let with_key = |f: &mut Fixture, change: u32| {
            let mut headers = f.flush(GLOBAL, sel, 0, 8);
            headers.reth = headers.reth.map(|reth| reth::Repr { rkey: reth.rkey ^ change, ..reth });
            (headers, vec![])
        };
        refused(all(), |f| with_key(f, 0x100), access);
        refused(all(), |f| with_key(f, 1), access);
        let of_other_domain = |f: &mut Fixture| {
            let other = f.host.engine.alloc_pd().unwrap();
            f.mr = f.host.register_in(other, 4096, ALL | FLUSHES);
            (f.flush(GLOBAL, sel, 0, 8), vec![])
        };
        refused(all(), of_other_domain, access);
    }
}

#[test]
fn a_flush_without_a_placement_type_or_with_an_unknown_selectivity_is_invalid() {
    let invalid = NakCode::INVALID_REQUEST;
    for (plt, sel) in [(0, 0), (4, 0), (GLOBAL, 2), (GLOBAL, 3)] {
        refused(allowing(FLUSHES, FLUSHES), |f| (f.flush(plt, sel, 0, 8), vec![]), invalid);
    }
}

#[test]
fn an_atomic_write_needs_the_right_to_write_and_eight_aligned_bytes() {
    let all = || allowing(Access::NONE, Access::NONE);
    let (access, invalid) = (NakCode::REMOTE_ACCESS_ERROR, NakCode::INVALID_REQUEST);
    let write_less = |f: &mut Fixture| {
        let access = Some(Access(ALL.0 & !Access::REMOTE_WRITE.0));
        f.host.modify(f.qpn, &AttrChange { access, ..AttrChange::default() });
        (f.atomic_write(0), vec![9; 8])
    };
    refused(all(), write_less, access);
    let readable = |f: &mut Fixture| {
        f.mr = f.host.register(4096, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC);
        (f.atomic_write(0), vec![9; 8])
    };
    refused(all(), readable, access);
    refused(all(), |f| (f.atomic_write(4096), vec![9; 8]), access);
    refused(all(), |f| (f.atomic_write(4), vec![9; 8]), invalid);
    for len in [0, 4, 12] {
        let shorter = |f: &mut Fixture| (f.rdma(Opcode::RC_ATOMIC_WRITE, &vec![9; len], 0, 8), vec![9; len]);
        refused(all(), shorter, invalid);
    }
    refused(all(), |f| (f.rdma(Opcode::RC_ATOMIC_WRITE, &[9; 8], 0, 16), vec![9; 8]), invalid);
}

#[test]
fn a_window_is_flushed_as_a_whole_and_no_further() {
    use crate::engine::{MwType, Payload, SendFlags, SendOp, SendWr};
    let mut f = allowing(FLUSHES, FLUSHES | Access::MW_BIND);
    let window = f.host.engine.alloc_mw(f.host.pd, MwType::Two).unwrap();
    let (lkey, addr) = (f.mr.key, f.mr.addr + 100);
    let access = Access::FLUSH_GLOBAL;
    let op = SendOp::Bind { window, new_rkey: window, lkey, addr, length: 50, access };
    let flags = SendFlags::default();
    let wr = SendWr { wr_id: 1, op, flags, payload: Payload::Sges(&[]), remote_srq: 0 };
    f.host.engine.post_send(f.qpn, &wr, f.host.now, &mut f.host.log).unwrap();
    assert!(f.sent().is_empty());
    f.mr.key = window;
    let (whole, beyond) = (f.flush(GLOBAL, 1, 0, 0), f.flush(GLOBAL, 0, 149, 2));
    f.host.arrive(&whole, &[]);
    assert_eq!((f.sent(), f.flushed()), (vec![done(0xff_fffe)], vec![(100, 50, false)]));
    f.host.arrive(&beyond, &[]);
    assert_eq!(f.sent(), [nak(0xff_ffff, NakCode::REMOTE_ACCESS_ERROR)]);
}
