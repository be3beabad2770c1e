//! Ethernet queues of two functions on plain memory, used as by a netdev's driver. This file tests
//! rings and frames. Other files test commands (`refused` and, one rule at a time,
//! `commands_refused`), loopback (`loopback`), limits on frames (`room`) and rates (`pacing`).

mod commands_refused;
mod loopback;
mod pacing;
mod refused;
mod room;

use super::*;
use crate::bus::PlainBus;
use crate::complaint::Rule;
use crate::config::{Config, UAR_SIZE};
use crate::layout::cqe::{cqe, error_cqe};
use crate::layout::eth::{rqc, rqtc, sqc, tirc, tisc};
use crate::layout::srq::wq;
use crate::layout::wqe::{ctrl, data, eth};
use crate::layout::{Field, Part, Table, cq, eth as commands, mkey, steering};
use crate::pci::uar::BLUE_FLAME;
use crate::state::eth::Ethernet;
use crate::testing;
use crate::trace::Trace;

// These records come after the addresses that the harness uses.
const RECORDS: u64 = 0x100_0000;
const SEND_CQ: u64 = 0x100_2000;
const RECEIVE_CQ: u64 = 0x100_3000;
const SQ: u64 = 0x100_4000;
const RQ: u64 = 0x100_5000;
const BUFFERS: u64 = 0x101_0000;
const PAYLOAD: u64 = 0x103_0000;
/// Number of entries in each ring, log2.
const LOG_SIZE: u32 = 3;
/// Size of a receive buffer, in bytes.
const ROOM: u32 = 1000;

/// A command input, built with the table of the input's structure.
struct Input(Vec<u8>);

impl Input {
    fn new(opcode: u16, table: &Table) -> Self {
        let mut input = vec![0; table.size];
        input[..2].copy_from_slice(&opcode.to_be_bytes());
        Self(input)
    }

    fn set(mut self, field: Field, value: impl Into<u64>) -> Self {
        field.set(&mut self.0, value);
        self
    }

    fn part(mut self, part: Part, set: impl FnOnce(&mut [u8])) -> Self {
        set(part.bytes_mut(&mut self.0));
        self
    }

    fn list(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

struct Host {
    function: Function<PlainBus>,
    bus: PlainBus,
    uar: u32,
    pd: u32,
    key: u32,
    domain: u32,
    send_cq: u32,
    receive_cq: u32,
    sqn: u32,
    rqn: u32,
    tirn: u32,
    table: u32,
    sent: u16,
    seen: [u32; 2],
}

/// Returns the object number that a command's output contains.
fn number(output: &[u8]) -> u32 {
    crate::layout::dword(output, 8) & 0xff_ffff
}

impl Host {
    /// Returns a host whose function has a ready send queue, and a ready receive queue to which all
    /// frames go. No receive is posted.
    fn new(index: usize) -> Self {
        let mut plain = testing::Host::new();
        let config = Config { index, port: PortKind::Roce, scatter_to_cqe: false };
        let mut function = Function::new(config, plain.bus.clone(), Trace::off());
        plain.boot(&mut function);
        let mut host = Self {
            function,
            bus: plain.bus.clone(),
            uar: plain.uar,
            pd: 0,
            key: 0,
            domain: 0,
            send_cq: 0,
            receive_cq: 0,
            sqn: 0,
            rqn: 0,
            tirn: 0,
            table: 0,
            sent: 0,
            seen: [0; 2],
        };
        host.pd = host.make(Input::new(0x800, &mkey::alloc_pd_in::TABLE));
        host.domain = host.make(Input::new(0x816, &mkey::alloc_transport_domain_in::TABLE));
        host.key = host.make_key();
        let eqn = plain.completions.map_or(0, |queue| queue.eqn);
        host.send_cq = host.make_cq(eqn, SEND_CQ, RECORDS);
        host.receive_cq = host.make_cq(eqn, RECEIVE_CQ, RECORDS + 8);
        let domain = host.domain;
        let tis = Input::new(0x912, &commands::create_tis_in::TABLE)
            .part(commands::create_tis_in::CTX, |context| tisc::TRANSPORT_DOMAIN.set(context, domain));
        let tisn = host.make(tis);
        host.sqn = host.make(host.create_sq(tisn));
        host.rqn = host.make(host.create_rq());
        host.ready();
        host.steer();
        host
    }

    /// Executes a command that must succeed. Returns the object number in the output.
    fn make(&mut self, input: Input) -> u32 {
        let output = self.function.dispatch(&input.0, 0x110);
        assert_eq!(output[0], 0, "{:?}", self.function.take_complaints());
        number(&output)
    }

    /// Executes a command that must fail. Returns the rule that the command breaks.
    fn refused(&mut self, input: Input) -> Rule {
        let output = self.function.dispatch(&input.0, 0x110);
        assert_ne!(output[0], 0);
        self.complaint()
    }

    fn complaint(&mut self) -> Rule {
        let complaints = self.function.take_complaints();
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        complaints[0].rule
    }

    fn make_key(&mut self) -> u32 {
        let pd = self.pd;
        let input = Input::new(0x200, &mkey::create_mkey_in::TABLE).part(
            mkey::create_mkey_in::MEMORY_KEY_MKEY_ENTRY,
            |context| {
                mkey::mkc::LW.set(context, 1u32);
                mkey::mkc::LR.set(context, 1u32);
                mkey::mkc::PD.set(context, pd);
                mkey::mkc::LENGTH64.set(context, 1u32);
                mkey::mkc::QPN.set(context, 0xff_ffffu32);
                mkey::mkc::MKEY_7_0.set(context, 0x42u32);
            },
        );
        self.make(input) << 8 | 0x42
    }

    fn make_cq(&mut self, eqn: u32, page: u64, record: u64) -> u32 {
        let uar = self.uar;
        let input = Input::new(0x400, &cq::create_cq_in::TABLE)
            .part(cq::create_cq_in::CQ_CONTEXT, |context| {
                cq::cqc::LOG_CQ_SIZE.set(context, 6u32);
                cq::cqc::UAR_PAGE.set(context, uar);
                cq::cqc::C_EQN_OR_APU_ELEMENT.set(context, eqn);
                cq::cqc::DBR_ADDR.set(context, record);
            })
            .list(&page.to_be_bytes());
        self.make(input)
    }

    fn create_sq(&self, tisn: u32) -> Input {
        let (cqn, uar, pd) = (self.send_cq, self.uar, self.pd);
        Input::new(0x904, &commands::create_sq_in::TABLE)
            .part(commands::create_sq_in::CTX, |context| {
                sqc::CQN.set(context, cqn);
                sqc::FLUSH_IN_ERROR_EN.set(context, 1u32);
                sqc::TIS_LST_SZ.set(context, u32::from(tisn != 0));
                sqc::TIS_NUM_0.set(context, tisn);
                ring(sqc::WQ.bytes_mut(context), 6, pd, uar, RECORDS + 16);
            })
            .list(&SQ.to_be_bytes())
    }

    /// Returns a CREATE_RQ input for a receive queue whose entries have up to four elements.
    fn create_rq(&self) -> Input {
        let (cqn, pd) = (self.receive_cq, self.pd);
        Input::new(0x908, &commands::create_rq_in::TABLE)
            .part(commands::create_rq_in::CTX, |context| {
                rqc::CQN.set(context, cqn);
                rqc::FLUSH_IN_ERROR_EN.set(context, 1u32);
                ring(rqc::WQ.bytes_mut(context), 6, pd, 0, RECORDS + 24);
            })
            .list(&RQ.to_be_bytes())
    }

    fn modify_sq(&self, from: u32, to: u32) -> Input {
        Input::new(0x905, &commands::modify_sq_in::TABLE)
            .set(commands::modify_sq_in::SQN, self.sqn)
            .set(commands::modify_sq_in::SQ_STATE, from)
            .part(commands::modify_sq_in::CTX, |context| sqc::STATE.set(context, to))
    }

    fn modify_rq(&self, from: u32, to: u32) -> Input {
        Input::new(0x909, &commands::modify_rq_in::TABLE)
            .set(commands::modify_rq_in::RQN, self.rqn)
            .set(commands::modify_rq_in::RQ_STATE, from)
            .part(commands::modify_rq_in::CTX, |context| rqc::STATE.set(context, to))
    }

    fn ready(&mut self) {
        self.make(self.modify_sq(0, 1));
        self.make(self.modify_rq(0, 1));
    }

    /// Creates a table of receive queues (RQT), a TIR for the table, and a flow table that directs
    /// all frames to the TIR.
    fn steer(&mut self) {
        let (rqn, domain) = (self.rqn, self.domain);
        let rqt = Input::new(0x916, &commands::create_rqt_in::TABLE)
            .part(commands::create_rqt_in::RQT_CONTEXT, |context| {
                rqtc::RQT_MAX_SIZE.set(context, 4u32);
                rqtc::RQT_ACTUAL_SIZE.set(context, 1u32);
            })
            .list(&rqn.to_be_bytes());
        let rqtn = self.make(rqt);
        self.tirn = self.make(Input::new(0x900, &commands::create_tir_in::TABLE).part(
            commands::create_tir_in::CTX,
            |context| {
                tirc::DISP_TYPE.set(context, 1u32);
                tirc::INDIRECT_TABLE.set(context, rqtn);
                tirc::TRANSPORT_DOMAIN.set(context, domain);
                tirc::RX_HASH_FN.set(context, 2u32);
            },
        ));
        self.table = self.make(
            Input::new(0x930, &steering::create_flow_table_in::TABLE)
                .set(steering::create_flow_table_in::LOG_SIZE, 4u32),
        );
        let group = self.make(
            Input::new(0x933, &steering::create_flow_group_in::TABLE)
                .set(steering::create_flow_group_in::TABLE_ID, self.table)
                .set(steering::create_flow_group_in::END_FLOW_INDEX, 3u32),
        );
        let to = 2 << 24 | self.tirn;
        self.make(
            Input::new(0x936, &steering::set_fte_in::TABLE)
                .set(steering::set_fte_in::TABLE_ID, self.table)
                .part(steering::set_fte_in::FLOW_CONTEXT, |context| {
                    steering::flow_context::GROUP_ID.set(context, group);
                    steering::flow_context::FLOW_TAG.set(context, 0x77u32);
                    steering::flow_context::ACTION.set(context, 4u32);
                    steering::flow_context::DESTINATION_LIST_SIZE.set(context, 1u32);
                })
                .list(&to.to_be_bytes())
                .list(&[0; 4]),
        );
        self.make(
            Input::new(0x92f, &steering::set_flow_table_root_in::TABLE)
                .set(steering::set_flow_table_root_in::TABLE_ID, self.table),
        );
    }

    /// Posts `count` receives. The buffer of receive n is at [`BUFFERS`] + n * 0x1000.
    fn post_receives(&mut self, count: u16) {
        for n in 0..count {
            let entry = RQ + u64::from(n) * 64;
            self.element(entry, ROOM | 0x8000_0000, self.key, BUFFERS + u64::from(n) * 0x1000);
            self.element(entry + 16, 0, 0x100, 0);
        }
        self.bus.write(RECORDS + 24, &u32::from(count).to_be_bytes()).unwrap();
    }

    fn element(&self, at: u64, length: u32, key: u32, address: u64) {
        self.bus.write(at, &length.to_be_bytes()).unwrap();
        self.bus.write(at + 4, &key.to_be_bytes()).unwrap();
        self.bus.write(at + 8, &address.to_be_bytes()).unwrap();
    }

    /// Returns a work request that sends this frame: 18 bytes inline, the rest through a pointer.
    fn send(&self, frame: &[u8]) -> Vec<u8> {
        self.bus.write(PAYLOAD, &frame[18..]).unwrap();
        let mut request = vec![0; 64];
        ctrl::OPCODE.set(&mut request, 0x0au32);
        ctrl::DS.set(&mut request, 4u32);
        ctrl::CE.set(&mut request, 2u32);
        eth::INLINE_HEADER_SIZE.set(&mut request[16..32], 18u32);
        request[30..48].copy_from_slice(&frame[..18]);
        data::BYTE_COUNT.set(&mut request[48..], frame.len() as u64 - 18);
        data::LKEY.set(&mut request[48..], self.key);
        data::ADDRESS.set(&mut request[48..], PAYLOAD);
        request
    }

    /// Places a work request in the send queue, with the right index and queue number. Returns the
    /// doorbell for it.
    fn place(&mut self, mut request: Vec<u8>) -> [u8; 8] {
        ctrl::WQE_INDEX.set(&mut request, self.sent);
        ctrl::QPN.set(&mut request, self.sqn);
        self.bus.write(SQ + u64::from(self.sent % (1 << LOG_SIZE)) * 64, &request).unwrap();
        self.sent += request.len().div_ceil(64) as u16;
        *request.first_chunk().unwrap()
    }

    fn record(&mut self) {
        self.bus.write(RECORDS + 20, &u32::from(self.sent).to_be_bytes()).unwrap();
    }

    fn post(&mut self, request: Vec<u8>) {
        let doorbell = self.place(request);
        self.record();
        assert!(self.function.ring_eth(self.uar, doorbell, None).is_some());
    }

    /// Returns the next completion of the send queue (`which` 0) or of the receive queue (1).
    fn completion(&mut self, which: usize) -> Option<[u8; 64]> {
        let page = [SEND_CQ, RECEIVE_CQ][which];
        let (index, lap) = (self.seen[which] % 64, self.seen[which] / 64 % 2);
        let mut entry = [0; 64];
        self.bus.read(page + u64::from(index) * 64, &mut entry).unwrap();
        let cq = [self.send_cq, self.receive_cq][which];
        let there = self.function.core.cqs[&cq].producer != self.seen[which];
        there.then(|| {
            assert_eq!(cqe::OWNER.get32(&entry), lap);
            self.seen[which] += 1;
            entry
        })
    }

    fn buffer(&self, n: u64, length: usize) -> Vec<u8> {
        self.bytes(BUFFERS + n * 0x1000, length)
    }

    fn bytes(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.bus.read(address, &mut bytes).unwrap();
        bytes
    }
}

fn ring(queue: &mut [u8], log_stride: u32, pd: u32, uar: u32, record: u64) {
    wq::WQ_TYPE.set(queue, 1u32);
    wq::LOG_WQ_STRIDE.set(queue, log_stride);
    wq::LOG_WQ_SZ.set(queue, LOG_SIZE);
    wq::PD.set(queue, pd);
    wq::UAR_PAGE.set(queue, uar);
    wq::DBR_ADDR.set(queue, record);
}

/// Returns a frame of `length` bytes, addressed to `to`, with an unknown EtherType.
fn frame(to: [u8; 6], length: usize) -> Vec<u8> {
    let mut frame = to.to_vec();
    frame.extend([2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
    frame.extend((0..length.saturating_sub(14)).map(|n| n as u8));
    frame
}

/// Carries all frames from one host to another. Returns the number of frames.
fn wire(from: &mut Host, to: &mut Host) -> usize {
    let frames: Vec<_> = std::iter::from_fn(|| from.function.next_frame()).collect();
    frames.iter().for_each(|frame| to.function.frame_in(frame));
    frames.len()
}

const PEER: [u8; 6] = [2, 0, 0, 0, 0, 1];

#[test]
fn a_frame_arrives_in_the_other_functions_receive_with_completions_on_both_sides() {
    let (mut one, mut two) = (Host::new(0), Host::new(1));
    two.post_receives(2);
    let sent = frame(PEER, 300);
    one.post(one.send(&sent));
    let done = one.completion(0).unwrap();
    assert_eq!((cqe::OPCODE.get32(&done), cqe::WQE_COUNTER.get32(&done)), (0, 0));
    assert_eq!((cqe::QPN.get32(&done), cqe::WQE_OPCODE.get32(&done)), (one.sqn, 0x0a));
    assert_eq!(wire(&mut one, &mut two), 1);
    let got = two.completion(1).unwrap();
    assert_eq!((cqe::OPCODE.get32(&got), cqe::BYTE_CNT.get32(&got)), (2, 300));
    assert_eq!((cqe::WQE_COUNTER.get32(&got), cqe::QPN.get32(&got)), (0, 0x77), "the entry's tag");
    assert_eq!(two.buffer(0, 300), sent);
    assert!(one.function.take_complaints().is_empty() && two.function.take_complaints().is_empty());
    assert!(one.completion(0).is_none() && two.completion(1).is_none());
}

#[test]
fn broadcast_and_multicast_arrive_and_are_counted_as_such() {
    let (mut one, mut two) = (Host::new(0), Host::new(1));
    two.post_receives(3);
    for to in [[0xff; 6], [0x33, 0x33, 0, 0, 0, 1], PEER] {
        one.post(one.send(&frame(to, 100)));
    }
    assert_eq!(wire(&mut one, &mut two), 3);
    let counters = two.function.core.eth.counters;
    assert_eq!(counters.received, one.function.core.eth.counters.sent);
    let received = counters.received;
    assert_eq!([received.broadcast, received.multicast, received.unicast], [(1, 100); 3]);
}

#[test]
fn a_short_frame_is_padded_to_the_least_that_ethernet_has() {
    let (mut one, mut two) = (Host::new(0), Host::new(1));
    two.post_receives(1);
    one.post(one.send(&frame(PEER, 20)));
    wire(&mut one, &mut two);
    assert_eq!(cqe::BYTE_CNT.get32(&two.completion(1).unwrap()), 60);
    assert_eq!(two.buffer(0, 60)[20..], [0; 40]);
}

#[test]
fn without_a_receive_or_a_ready_queue_or_a_way_there_a_frame_is_lost_and_nothing_else() {
    let (mut one, mut two) = (Host::new(0), Host::new(1));
    let sent = frame(PEER, 100);
    one.post(one.send(&sent));
    wire(&mut one, &mut two);
    assert_eq!(two.function.core.eth.counters.out_of_buffer, 1);
    two.post_receives(1);
    two.make(two.modify_rq(1, 0));
    two.function.frame_in(&sent);
    assert_eq!(two.function.core.eth.counters.out_of_buffer, 2);
    two.make(two.modify_rq(0, 1));
    two.function.core.eth.steering.roots.clear();
    two.function.frame_in(&sent);
    assert_eq!(two.function.core.eth.counters.unwanted, 1);
    assert!(two.completion(1).is_none() && two.function.take_complaints().is_empty());
}

#[test]
fn a_frame_longer_than_the_port_takes_is_lost_and_one_longer_than_its_receive_completes_with_an_error() {
    let mut two = Host::new(1);
    two.post_receives(2);
    let longest = two.function.core.port.longest_frame() - 4;
    two.function.frame_in(&frame(PEER, longest + 1));
    assert_eq!((two.completion(1), two.function.core.eth.counters.unwanted), (None, 1));
    two.function.frame_in(&frame(PEER, longest));
    let error = two.completion(1).unwrap();
    assert_eq!((error_cqe::OPCODE.get32(&error), error_cqe::SYNDROME.get32(&error)), (14, 1));
    two.function.frame_in(&frame(PEER, ROOM as usize));
    assert_eq!(cqe::BYTE_CNT.get32(&two.completion(1).unwrap()), ROOM, "the queue goes on");
}

#[test]
fn a_frame_goes_over_the_elements_of_a_receive_up_to_the_terminator() {
    let mut two = Host::new(1);
    two.post_receives(3);
    two.element(RQ, 40, two.key, BUFFERS);
    two.element(RQ + 16, 100, two.key, BUFFERS + 0x100);
    two.element(RQ + 32, 0, 0x100, 0);
    let got = frame(PEER, 120);
    two.function.frame_in(&got);
    assert_eq!(cqe::BYTE_CNT.get32(&two.completion(1).unwrap()), 120);
    assert_eq!([two.buffer(0, 40), two.bytes(BUFFERS + 0x100, 80)].concat(), got);
}

#[test]
fn an_element_of_length_0_that_is_no_terminator_fails_the_receive_queue() {
    for (key, rule) in [(0, Rule::RecvTerminator), (1, Rule::RecvLength)] {
        let mut two = Host::new(1);
        two.post_receives(1);
        two.element(RQ, 40, two.key, BUFFERS);
        two.element(RQ + 16, 0, key * two.key, 0);
        two.function.frame_in(&frame(PEER, 120));
        assert_eq!(two.complaint(), rule);
    }
}

#[test]
fn a_doorbell_for_several_sends_carries_none_of_them_through_blue_flame() {
    for sends in 1..=2u16 {
        let mut one = Host::new(0);
        let request = one.send(&frame(PEER, 100));
        for _ in 1..sends {
            one.place(request.clone());
        }
        one.place(one.send(&frame(PEER, 100)));
        one.record();
        let at = SQ + u64::from(sends - 1) * 64;
        let mut pushed = [0; 64];
        one.bus.read(at, &mut pushed).unwrap();
        let register = u64::from(one.uar) * UAR_SIZE + BLUE_FLAME;
        one.function.uar_write(register, &pushed);
        assert_eq!(std::iter::from_fn(|| one.function.next_frame()).count(), usize::from(sends));
        let rules: Vec<_> = one.function.take_complaints().iter().map(|complaint| complaint.rule).collect();
        assert_eq!(rules, if sends == 1 { vec![] } else { vec![Rule::BlueFlameSingle] });
    }
}

#[test]
fn a_wrong_key_takes_the_receive_queue_to_error_and_flushes_it() {
    let mut two = Host::new(1);
    two.post_receives(3);
    two.element(RQ, ROOM, two.key ^ 1, BUFFERS);
    two.function.frame_in(&frame(PEER, 100));
    assert_eq!(two.complaint(), Rule::RecvKey);
    let syndromes = [(); 3].map(|()| error_cqe::SYNDROME.get32(&two.completion(1).unwrap()));
    assert_eq!(syndromes, [4, 5, 5]);
    two.function.frame_in(&frame(PEER, 100));
    assert!(two.completion(1).is_none());
}

#[test]
fn more_receives_than_the_ring_holds_are_refused() {
    let mut two = Host::new(1);
    two.bus.write(RECORDS + 24, &9u32.to_be_bytes()).unwrap();
    two.function.frame_in(&frame(PEER, 100));
    assert_eq!(two.complaint(), Rule::RecvOverrun);
}

#[test]
fn checksums_and_headers_of_a_received_frame_are_reported_and_its_tag_is_removed() {
    let (mut one, mut two) = (Host::new(0), Host::new(1));
    two.post_receives(2);
    let mut datagram = frame(PEER, 14);
    datagram[12..14].copy_from_slice(&[8, 0]);
    datagram.extend([0x45, 0, 0, 128, 0, 1, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    datagram.extend([0x10, 0, 0x20, 0, 0, 108, 0, 0]);
    datagram.resize(14 + 128, 0xab);
    let mut request = one.send(&datagram);
    // The device computes both checksums and inserts a tag for VLAN 5, which takes the place of the
    // inline header.
    let (pointer, whole) = (request.split_off(48), datagram.clone());
    one.bus.write(PAYLOAD, &whole).unwrap();
    request[32..].fill(0);
    request[16..32].fill(0);
    eth::L3_CSUM.set(&mut request[16..], 1u32);
    eth::L4_CSUM.set(&mut request[16..], 1u32);
    eth::INSERT_VLAN.set(&mut request[16..], 1u32);
    request[30..32].copy_from_slice(&[0, 5]);
    request.splice(32.., pointer);
    data::BYTE_COUNT.set(&mut request[32..], whole.len() as u64);
    ctrl::DS.set(&mut request, 3u32);
    request.resize(64, 0);
    one.post(request);
    assert_eq!(wire(&mut one, &mut two), 1);
    let got = two.completion(1).unwrap();
    assert_eq!(cqe::BYTE_CNT.get32(&got), whole.len() as u32);
    assert_eq!((cqe::L3_OK.get32(&got), cqe::L4_OK.get32(&got)), (1, 1));
    // The completion reports IPv4, UDP, and a VLAN tag that was removed from the frame.
    assert_eq!((cqe::HDR_TYPE.get32(&got), cqe::VLAN_INFO.get32(&got)), (2 << 2 | 2 << 4 | 1, 5));
    let bytes = two.buffer(0, whole.len());
    assert_eq!(bytes[..24], whole[..24]);
    assert_eq!(cqe::CHECK_SUM.get32(&got), u32::from(frame::sum(&bytes[14..], 0)));
}

#[test]
fn a_large_send_leaves_as_segments() {
    let mut one = Host::new(0);
    let mut header = frame(PEER, 14);
    header[12..14].copy_from_slice(&[8, 0]);
    header.extend([0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    header.extend([0x10, 0, 0x20, 0, 0, 0, 0, 0]);
    let mut request = vec![0; 30];
    ctrl::OPCODE.set(&mut request, 0x0eu32);
    eth::MSS.set(&mut request[16..], 500u32);
    request[28..30].copy_from_slice(&(header.len() as u16).to_be_bytes());
    request.extend(&header);
    request.resize(80, 0);
    let mut pointer = [0; 16];
    data::BYTE_COUNT.set(&mut pointer, 1200u32);
    data::LKEY.set(&mut pointer, one.key);
    data::ADDRESS.set(&mut pointer, PAYLOAD);
    request.extend(pointer);
    ctrl::DS.set(&mut request, 6u32);
    ctrl::CE.set(&mut request, 2u32);
    request.resize(128, 0);
    one.post(request);
    let lengths: Vec<_> = std::iter::from_fn(|| one.function.next_frame()).map(|frame| frame.len()).collect();
    assert_eq!(lengths, [542, 542, 242]);
    assert_eq!(cqe::WQE_OPCODE.get32(&one.completion(0).unwrap()), 0x0e);
}

/// Posts a send changed by `change`. Returns the broken rule and the syndrome in the completion.
/// Checks that the next send is flushed.
fn broken(change: impl FnOnce(&mut Vec<u8>, &Host)) -> (Rule, u32) {
    let mut one = Host::new(0);
    let mut request = one.send(&frame(PEER, 100));
    change(&mut request, &one);
    one.place(request);
    let doorbell = one.place(one.send(&frame(PEER, 100)));
    one.record();
    one.function.ring_eth(one.uar, doorbell, None);
    assert!(one.function.next_frame().is_none());
    let first = one.completion(0).unwrap();
    let second = one.completion(0).unwrap();
    assert_eq!((error_cqe::OPCODE.get32(&first), error_cqe::SYNDROME.get32(&second)), (13, 5));
    (one.complaint(), error_cqe::SYNDROME.get32(&first))
}

#[test]
fn a_send_that_breaks_a_rule_completes_with_an_error_and_those_behind_it_are_flushed() {
    assert_eq!(broken(|request, _| ctrl::OPCODE.set(request, 0x29u32)), (Rule::WqeOpcode, 2));
    assert_eq!(broken(|request, _| ctrl::OPMOD.set(request, 1u32)), (Rule::WqeOpcode, 2));
    for mode in [1u32, 3] {
        assert_eq!(broken(|request, _| ctrl::CE.set(request, mode)), (Rule::WqeCompletionMode, 2));
    }
    let key = |request: &mut Vec<u8>, host: &Host| data::LKEY.set(&mut request[48..], host.key ^ 1);
    assert_eq!(broken(key), (Rule::WqeKey, 4));
    let no_length = |request: &mut Vec<u8>, _: &Host| data::BYTE_COUNT.set(&mut request[48..], 0u32);
    assert_eq!(broken(no_length), (Rule::WqeSize, 2));
    assert_eq!(broken(|request, _| eth::MSS.set(&mut request[16..], 9u32)), (Rule::WqeReserved, 2));
    assert_eq!(broken(|request, _| eth::L4_INNER_CSUM.set(&mut request[16..], 1u32)), (Rule::WqeReserved, 2));
    assert_eq!(broken(|request, _| request[16] = 1), (Rule::WqeReserved, 2), "offsets of software parsing");
    let header = |request: &mut Vec<u8>, _: &Host| eth::INLINE_HEADER_SIZE.set(&mut request[16..], 100u32);
    assert_eq!(broken(header), (Rule::WqeSize, 2));
    let inline = |request: &mut Vec<u8>, _: &Host| request[48..52].copy_from_slice(&[0x80, 0, 0, 13]);
    assert_eq!(broken(inline), (Rule::WqeInline, 2));
}

#[test]
fn a_request_with_another_index_or_queue_number_is_rejected() {
    let spoil = |at: usize, with: u8| {
        let mut one = Host::new(0);
        let doorbell = one.place(one.send(&frame(PEER, 100)));
        one.record();
        let mut byte = [0];
        one.bus.read(SQ + at as u64, &mut byte).unwrap();
        one.bus.write(SQ + at as u64, &[byte[0] ^ with]).unwrap();
        one.function.ring_eth(one.uar, doorbell, None);
        assert_eq!(error_cqe::SYNDROME.get32(&one.completion(0).unwrap()), 5);
        one.complaint()
    };
    assert_eq!(spoil(2, 1), Rule::WqeIndex);
    assert_eq!(spoil(6, 1), Rule::WqeQpn);
    assert_eq!(spoil(7, 0x10), Rule::WqeSize, "20 units are two blocks");
    assert_eq!(spoil(7, 4), Rule::WqeSize, "none");
    assert_eq!(spoil(11, 0x10), Rule::WqeReserved);
}

#[test]
fn a_doorbell_has_something_new_to_tell_of_its_own_queue_and_the_last_of_its_requests() {
    let mut one = Host::new(0);
    let doorbell = one.place(one.send(&frame(PEER, 100)));
    one.function.ring_eth(one.uar, doorbell, None);
    assert_eq!(one.complaint(), Rule::DoorbellRecordFirst);
    one.record();
    one.function.ring_eth(one.uar + 1, doorbell, None);
    assert_eq!(one.complaint(), Rule::DoorbellUar);
    one.function.ring_eth(one.uar, doorbell, None);
    one.function.ring_eth(one.uar, doorbell, None);
    assert_eq!(one.complaint(), Rule::DoorbellStale);
    one.place(one.send(&frame(PEER, 100)));
    one.record();
    one.function.ring_eth(one.uar, doorbell, None);
    assert_eq!(one.complaint(), Rule::DoorbellOrder);
    one.sent += 9;
    one.record();
    one.function.ring_eth(one.uar, doorbell, None);
    assert_eq!(one.complaint(), Rule::WqeOverrun);
    assert_eq!(
        one.function.ring_eth(one.uar, [0, 0, 0, 0, 0, 1, 0, 1], None),
        None,
        "no send queue's number"
    );
}

#[test]
fn a_no_operation_through_blue_flame_may_ask_for_a_completion_that_the_queue_does_not_show() {
    let mut one = Host::new(0);
    let nop = |complete: u32| {
        let mut request = vec![0; 64];
        ctrl::DS.set(&mut request, 1u32);
        ctrl::CE.set(&mut request, complete);
        request
    };
    let mut push = |complete, spoil: u8| {
        let doorbell = one.place(nop(0));
        one.record();
        let mut pushed = nop(complete);
        pushed[..8].copy_from_slice(&doorbell);
        pushed[12] ^= spoil;
        one.function.ring_eth(one.uar, doorbell, Some(&pushed));
        (one.completion(0).map(|entry| cqe::WQE_COUNTER.get32(&entry)), one.function.take_complaints().len())
    };
    assert_eq!(push(2, 0), (Some(0), 0), "what was pushed is what counts");
    assert_eq!(push(0, 0), (None, 0));
    assert_eq!(push(2, 1), (None, 1), "anything else is to be the same");
}

#[test]
fn numbers_of_queues_are_none_that_the_engine_gives_whatever_becomes_of_its_queue_pairs() {
    use roce::engine::{Pd, QpInit, Service};
    let mut one = Host::new(0);
    let pd = Pd(one.pd);
    let init = QpInit::new(Service::Ud, pd, roce::engine::CqId(1), roce::engine::CqId(1));
    let max_qp = one.function.engine.config().max_qp;
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..2000 {
        let qpn = one.function.engine.create_qp(&init).unwrap();
        seen.insert(qpn.0);
        one.function.engine.destroy_qp(qpn).unwrap();
    }
    let mut eth = Ethernet::default();
    while let Some(number) = eth.queue_number(max_qp)
        && number < 1 << 16
    {
        assert!(!seen.contains(&number), "{number:#x}");
    }
}

#[test]
fn random_rings_and_frames_break_nothing() {
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u32
    };
    for _ in 0..200 {
        let mut one = Host::new(0);
        for at in (0..512).step_by(4) {
            one.bus.write(SQ + at, &random().to_be_bytes()).unwrap();
            one.bus.write(RQ + at, &random().to_be_bytes()).unwrap();
        }
        // The index is that of the first request, so that the checks after the index check run too.
        let head = [0, 0, 0, if random() & 1 == 0 { 0x0a } else { 0x0e }];
        one.bus.write(SQ, &head).unwrap();
        one.bus.write(SQ + 4, &((one.sqn << 8) | (random() % 30)).to_be_bytes()).unwrap();
        one.bus.write(SQ + 8, &[0; 4]).unwrap();
        one.bus.write(SQ + 16, &[0; 4]).unwrap();
        one.bus.write(RECORDS + 20, &(random() % 12).to_be_bytes()).unwrap();
        one.bus.write(RECORDS + 24, &(random() % 12).to_be_bytes()).unwrap();
        one.function.ring_eth(one.uar, (u64::from(one.sqn) << 8).to_be_bytes(), None);
        let bytes: Vec<u8> = (0..random() % 200).map(|_| random() as u8).collect();
        one.function.frame_in(&bytes);
        one.function.frame_in(&[&frame(PEER, 14)[..12], &[8, 0], &bytes].concat());
        while one.function.next_frame().is_some() {}
    }
}
