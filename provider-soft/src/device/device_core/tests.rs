//! Packets that a device sends while its clock stands still, and while the kernel's send queue is
//! long.

use std::cell::Cell;

use roce::engine::{
    Access, Arrival, AttrChange, CqId, Gid, MemoryAttr, Path, QpCap, QpInit, SendFlags, SendOp, Service,
    State,
};
use roce::wire::{self, Headers, ICRC_LEN, Psn, bth, reth};

use super::*;
use crate::io::{Counters, HOLD};
use crate::memory::region::Region;

/// The number of bytes that the peer reads in one request.
const READ: usize = 4 << 20;
/// The credit charged for a packet in addition to its length, in bytes.
const PACKET_COST: u64 = 768;
/// The credit charged for the largest packet, in bytes.
const PACKET: u64 = 4096 + 64 + PACKET_COST;
const NOW: Time = Time(1_000_000_000);

/// A device with a pending read of [`READ`] bytes from a hostile peer, and a second queue pair
/// connected to another peer.
struct Victim {
    socket: Socket,
    core: DeviceCore,
    key: u32,
    other: Qpn,
}

impl Victim {
    fn new() -> Self {
        let socket = Socket::auto_alone().expect("a free address");
        // The largest window, however large a buffer the host allows.
        let mut core = DeviceCore::new(&socket, limits::config(usize::MAX, 0, false), None, Instant::now());
        let pd = core.engine.alloc_pd().unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let attr = MemoryAttr { pd, iova: 0, length: READ as u64, access };
        let key = core.engine.reg_mr(&attr, Region::leaked(READ)).unwrap();
        let cap = QpCap { max_send_wr: 4, max_send_sge: 1, max_inline_data: 8, ..QpCap::default() };
        let mut connect = |remote: Gid| {
            let init = QpInit { cap, ..QpInit::new(Service::Rc, pd, CqId(0), CqId(0)) };
            let qpn = core.engine.create_qp(&init).unwrap();
            for state in [State::Init, State::Rtr, State::Rts] {
                let change = AttrChange {
                    state: Some(state),
                    path: Some(Path { local: socket.gid(), remote, ..Path::default() }),
                    dest_qpn: Some(0x77),
                    path_mtu: Some(4096),
                    pkey: Some(0xffff),
                    access: Some(access),
                    sq_psn: Some(0),
                    rq_psn: Some(0),
                    max_rd_atomic: Some(16),
                    max_dest_rd_atomic: Some(16),
                    ..AttrChange::default()
                };
                core.engine.modify_qp(qpn, &change, NOW, &mut core.sink).unwrap();
            }
            qpn
        };
        let (hostile, other) = (connect(remote(1)), connect(remote(2)));
        let mut victim = Self { socket, core, key, other };
        victim.arrive(remote(1), hostile, wire::Opcode::RC_RDMA_READ_REQUEST, READ as u32);
        victim
    }

    fn arrive(&mut self, from: Gid, to: Qpn, opcode: wire::Opcode, dmalen: u32) {
        let mut bth = bth::Repr::new(opcode, to.0, Psn::new(0));
        (bth.ack_req, bth.pkey) = (true, 0xffff);
        let reth = Some(reth::Repr { va: 0, rkey: self.key, dmalen });
        let headers = Headers { reth, ..Headers::new(bth) };
        let mut packet = vec![0; headers.len()];
        headers.emit(&mut packet);
        packet.extend([0; ICRC_LEN]);
        let arrival = Arrival { remote: from, local: self.socket.gid(), ..Arrival::default() };
        self.core.engine.handle(NOW, &arrival, &packet, &mut self.core.sink);
    }

    /// Posts a write without data.
    fn post(&mut self) {
        let op = SendOp::Write { addr: 0, rkey: 1, imm: None };
        let wr = SendWr {
            wr_id: 1,
            op,
            flags: SendFlags::default(),
            payload: Payload::Inline(&[]),
            remote_srq: 0,
        };
        self.core.engine.post_send(self.other, &wr, NOW, &mut self.core.sink).unwrap();
    }

    /// Sends all packets allowed at this time, in as many turns as needed. Returns the counters
    /// since the device was created.
    fn transmit(&mut self, now: Time, unsent: impl Fn(&Socket) -> u64) -> Counters {
        for _ in 0..100 {
            self.core.transmit_with(&self.socket, now, Acks::Now, |_, socket| unsent(socket));
            self.core.spent = Spent::default();
            if !self.core.has_work_left() {
                assert!(!self.core.blocked, "the link takes what is sent");
                return self.socket.counters();
            }
        }
        panic!("turns end with work left, again and again: {:?}", self.socket.counters());
    }

    fn window(&self) -> u64 {
        self.core.engine.config().window_bytes.into()
    }
}

/// Returns an address at which there is no device.
fn remote(last: u8) -> Gid {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, last]
}

/// Returns the credit charged for the sent packets, in bytes.
fn cost(counters: &Counters) -> u64 {
    counters.sent_bytes + counters.sent * (PACKET_COST - ICRC_LEN as u64)
}

#[test]
fn responses_wait_for_credit_once_a_window_has_left() {
    let mut victim = Victim::new();
    let first = victim.transmit(NOW, |_| 0);
    let window = victim.window();
    assert!((window - PACKET..=window + PACKET).contains(&cost(&first)), "{first:?}");
    assert_eq!((first.responses_rested, first.responses_held), (1, 0));
    // Credit for 15 packets, at 8000 bytes per microsecond.
    let until = victim.core.next_wakeup(NOW).expect("the rest is not forgotten");
    assert!(NOW < until && until.0 - NOW.0 <= 16 * PACKET * 1000 / 8000, "{until:?}");
    assert_eq!(victim.transmit(NOW, |_| 0).sent, first.sent, "time stands still");
    let second = victim.transmit(until, |_| 0);
    assert!((13..=16).contains(&(second.sent - first.sent)), "{second:?}");
}

#[test]
fn responses_wait_while_the_send_queue_holds_a_window_and_nothing_else_does() {
    let mut victim = Victim::new();
    let (window, asked) = (victim.window(), Cell::new(0));
    let full = |_: &Socket| {
        asked.set(asked.get() + 1);
        window
    };
    let first = victim.transmit(NOW, full);
    // Late enough to have earned a window of credit.
    let later = NOW + 1_000_000;
    asked.set(0);
    victim.core.expire(later);
    let held = victim.transmit(later, full);
    // The packet that fills the window by count leaves before the queue is measured.
    assert_eq!((held.sent, held.responses_held), (first.sent + 1, first.responses_held + 1));
    assert_eq!(victim.core.next_wakeup(later), Some(later + HOLD));

    victim.post();
    assert_eq!(victim.transmit(later, full).sent, held.sent + 1, "a request leaves");
    victim.arrive(remote(2), victim.other, wire::Opcode::RC_RDMA_WRITE_ONLY, 0);
    assert_eq!(victim.transmit(later, full).sent, held.sent + 2, "an acknowledgement leaves");
    assert_eq!(asked.get(), 1, "it is asked once while responses are held");

    let drained = victim.transmit(later + HOLD, |_| 0);
    assert!(drained.sent > held.sent + 100, "{drained:?}");
}

#[test]
fn no_more_responses_join_the_send_queue_than_there_is_room_for() {
    let mut victim = Victim::new();
    let (window, room) = (victim.window(), 20 * PACKET);
    let first = victim.transmit(NOW, |_| 0);
    let later = NOW + 1_000_000;
    let queued = Cell::new(window - room);
    let second = victim.transmit(later, |_| queued.replace(window));
    assert!((room..=room + 2 * PACKET).contains(&(cost(&second) - cost(&first))), "{second:?}");
}

#[test]
fn the_send_queue_is_not_measured_where_no_response_waits() {
    let mut victim = Victim::new();
    while victim.core.engine.has_responses() {
        let now = NOW + victim.socket.counters().sent_bytes;
        victim.core.expire(now);
        victim.transmit(now, |_| 0);
    }
    victim.core.backlog.add(usize::MAX >> 1);
    let before = victim.socket.counters().sent;
    victim.post();
    let after = victim.transmit(NOW + (1 << 30), |_| unreachable!("no response waits"));
    assert_eq!(after.sent, before + 1);
}
