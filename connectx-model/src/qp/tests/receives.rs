//! Shared receive queues: linked lists, limits, and malformed lists.

use super::*;
use crate::layout::mkey::alloc_xrcd_out;
use crate::layout::srq::{
    create_rmp_in, create_rmp_out, create_xrc_srq_in, create_xrc_srq_out, rmpc, wq, xrc_srqc,
};
use crate::layout::wqe::{srq_next, xrc};

const SRQ_LIMIT_EVENT: u32 = 0x14;
const SRQ_BROKEN_EVENT: u32 = 0x12;
const LAST_WQE_EVENT: u32 = 0x13;

/// A shared receive queue with 8 entries of 64 bytes, as its driver sees it.
struct Shared {
    number: u32,
    buffer: u64,
    record: u64,
    head: u16,
    counter: u32,
}

const ENTRIES: u16 = 8;

impl Shared {
    fn new(bed: &mut Bed, buffer: u64, record: u64, number: u32) -> Self {
        for entry in 0..ENTRIES {
            let next = (entry + 1) % ENTRIES;
            bed.poke(0, buffer + u64::from(entry) * 64 + 2, &next.to_be_bytes());
        }
        Self { number, buffer, record, head: 0, counter: 0 }
    }

    /// Creates a receive memory pool (RMP).
    fn pool(bed: &mut Bed) -> Self {
        let (buffer, record) = (bed.hosts[0].alloc(1), bed.hosts[0].alloc(1));
        let mut input = input(0x90c, create_rmp_in::SIZE);
        let pd = bed.pds[0];
        let context = create_rmp_in::CTX.bytes_mut(&mut input);
        rmpc::STATE.set(context, 1u32);
        let queue = rmpc::WQ.bytes_mut(context);
        wq::PD.set(queue, pd);
        wq::DBR_ADDR.set(queue, record);
        wq::LOG_WQ_STRIDE.set(queue, 6u32);
        wq::LOG_WQ_SZ.set(queue, 3u32);
        input.extend(buffer.to_be_bytes());
        let number = create_rmp_out::RMPN.get32(&bed.ok(0, &input));
        Self::new(bed, buffer, record, number)
    }

    fn xrc(bed: &mut Bed, xrcd: u32, cq: &Cq, user_index: u32) -> Self {
        let (buffer, record) = (bed.hosts[0].alloc(1), bed.hosts[0].alloc(1));
        let mut input = input(0x705, create_xrc_srq_in::PAS);
        let pd = bed.pds[0];
        let context = create_xrc_srq_in::XRC_SRQ_CONTEXT_ENTRY.bytes_mut(&mut input);
        for (field, value) in [
            (xrc_srqc::LOG_XRC_SRQ_SIZE, 3),
            (xrc_srqc::LOG_RQ_STRIDE, 2),
            (xrc_srqc::XRCD, u64::from(xrcd)),
            (xrc_srqc::CQN, u64::from(cq.cqn)),
            (xrc_srqc::USER_INDEX, u64::from(user_index)),
            (xrc_srqc::PD, u64::from(pd)),
            (xrc_srqc::DB_RECORD_ADDR_L, record >> 2),
        ] {
            field.set(context, value);
        }
        input.extend(buffer.to_be_bytes());
        let number = create_xrc_srq_out::XRC_SRQN.get32(&bed.ok(0, &input));
        Self::new(bed, buffer, record, number)
    }

    /// Posts a receive in the first free entry of the linked list. Returns the entry's index.
    fn post(&mut self, bed: &Bed, memory: &Memory, offset: u64) -> u16 {
        let entry = self.head;
        let at = self.buffer + u64::from(entry) * 64;
        bed.poke(0, at + 16, &list(&[(memory.va + offset, 0x100, memory.key)], 3));
        self.head = srq_next::NEXT_WQE_INDEX.get(&bed.peek::<16>(0, at)) as u16;
        self.counter += 1;
        bed.poke(0, self.record, &(self.counter & 0xffff).to_be_bytes());
        entry
    }

    fn link(&self, bed: &Bed, from: u16, to: u16) {
        bed.poke(0, self.buffer + u64::from(from) * 64 + 2, &to.to_be_bytes());
    }
}

/// Returns a bed with four queue pairs, connected in pairs, that receive from one pool.
fn bed() -> (Bed, Cq, [Pair; 4], Shared, Memory) {
    let mut bed = Bed::ib();
    let cq = bed.cq(0, 6, 64);
    let shared = Shared::pool(&mut bed);
    let more: &'static [(Field, u32)] =
        Box::leak(Box::new([(qpc::RQ_TYPE, 1), (qpc::SRQN_RMPN_XRQN, shared.number)]));
    let shape = Shape { more, ..Shape::default() };
    let (a, b) = bed.connected([&cq, &cq], &shape);
    let (c, d) = bed.connected([&cq, &cq], &shape);
    let memory = bed.memory(0, 1);
    (bed, cq, [a, b, c, d], shared, memory)
}

fn sent(bed: &mut Bed, pair: &mut Pair) {
    let wqe = bed.begin(pair, opcode::SEND).set(ctrl::CE, 0).inline(b"shared").done();
    bed.post(pair, &wqe);
}

#[test]
fn receives_are_taken_in_the_order_of_the_links_by_whoever_needs_one() {
    let (mut bed, mut cq, [mut a, _, mut c, _], mut shared, memory) = bed();
    // The linked list is 0, 5, 2, 7, ...
    shared.link(&bed, 0, 5);
    shared.link(&bed, 5, 2);
    shared.link(&bed, 2, 7);
    let posted: Vec<u16> = (0..4).map(|n| shared.post(&bed, &memory, n * 0x100)).collect();
    assert_eq!(posted, [0, 5, 2, 7]);
    for turn in 0..4 {
        sent(&mut bed, if turn % 2 == 0 { &mut a } else { &mut c });
    }
    let entries: Vec<_> = std::iter::from_fn(|| bed.poll(&mut cq)).collect();
    assert_eq!(entries.iter().map(brief).collect::<Vec<_>>(), [(2, 0), (2, 5), (2, 2), (2, 7)]);
    assert_eq!(cqe::SRQN_USER_INDEX.get32(&entries[0]), USER_INDEX, "the queue pair's");
    assert_eq!(&bed.peek::<6>(0, memory.address + 0x200), b"shared");
}

#[test]
fn entries_that_completed_may_be_linked_again_in_any_order() {
    let (mut bed, mut cq, [mut a, ..], mut shared, memory) = bed();
    let mut tail = ENTRIES - 1;
    for _ in 0..5 {
        shared.post(&bed, &memory, 0);
    }
    for turn in 0..70_000u32 {
        sent(&mut bed, &mut a);
        let (_, entry) = brief(&bed.poll(&mut cq).unwrap());
        // Older providers append a freed entry after the last free one.
        shared.link(&bed, tail, entry as u16);
        tail = entry as u16;
        shared.post(&bed, &memory, 0);
        if turn == 10 {
            assert_eq!(bed.rules(), []);
        }
    }
}

#[test]
fn a_limit_is_reported_once() {
    let (mut bed, mut cq, [mut a, ..], mut shared, memory) = bed();
    for _ in 0..4 {
        shared.post(&bed, &memory, 0);
    }
    let mut arm = input(0x90d, crate::layout::srq::modify_rmp_in::SIZE);
    crate::layout::srq::modify_rmp_in::RMP_STATE.set(&mut arm, 1u32);
    crate::layout::srq::modify_rmp_in::RMPN.set(&mut arm, shared.number);
    crate::layout::srq::modify_rmp_in::LWM.set(&mut arm, 1u32);
    let queue = rmpc::WQ.offset + crate::layout::srq::modify_rmp_in::CTX.offset;
    rmpc::STATE.set(crate::layout::srq::modify_rmp_in::CTX.bytes_mut(&mut arm), 1u32);
    wq::LWM.set(&mut arm[queue..], 3u32);
    bed.ok(0, &arm);
    sent(&mut bed, &mut a);
    assert_eq!(bed.events(0), []);
    sent(&mut bed, &mut a);
    assert_eq!(bed.events(0), [SRQ_LIMIT_EVENT]);
    sent(&mut bed, &mut a);
    assert_eq!(bed.events(0), []);
    assert_eq!(bed.drain(&mut cq).len(), 3);
}

#[test]
fn a_queue_pair_in_error_leaves_the_shared_receives_to_others() {
    let (mut bed, mut cq, [_, b, mut c, _], mut shared, memory) = bed();
    shared.post(&bed, &memory, 0);
    bed.name(&b, 0x507);
    assert_eq!(bed.events(0), [LAST_WQE_EVENT]);
    assert_eq!(bed.drain(&mut cq), []);
    sent(&mut bed, &mut c);
    assert_eq!(bed.drain(&mut cq), [(2, 0)]);
}

#[test]
fn an_entry_that_changes_before_it_completes_is_reported() {
    // Bytes of the link, the element and the terminator count; unused bytes after the terminator do
    // not.
    let bytes = [(2, true), (3, true), (16, true), (31, true), (32, true), (47, true), (48, false)];
    for (byte, changed) in bytes {
        for entry in [1u16, 7, 8] {
            let (mut bed, mut cq, [mut a, _, mut c, _], mut shared, memory) = bed();
            // The linked list is a ring: entry 0 follows the last entry.
            for _ in 0..entry - 1 {
                shared.post(&bed, &memory, 0);
                sent(&mut bed, &mut a);
            }
            shared.post(&bed, &memory, 0);
            assert_eq!(shared.post(&bed, &memory, 0x100), entry % ENTRIES);
            sent(&mut bed, &mut c);
            let address = shared.buffer + u64::from(entry % ENTRIES) * 64 + byte;
            let [before] = bed.peek(0, address);
            bed.poke(0, address, &[!before]);
            assert_eq!(bed.rules(), []);
            sent(&mut bed, &mut a);
            let expected = if changed { vec![Rule::RecvChanged] } else { vec![] };
            assert_eq!(bed.rules(), expected, "byte {byte} of entry {entry}");
            assert_eq!(bed.drain(&mut cq).len(), usize::from(entry) + 1);
            assert_eq!(&bed.peek::<6>(0, memory.address + 0x100), b"shared", "as it was posted");
        }
    }
}

#[test]
fn an_element_of_length_0_in_a_shared_receive_takes_the_rest_of_a_message() {
    let (mut bed, mut cq, [mut a, ..], mut shared, memory) = bed();
    let (va, key) = (memory.va, memory.key);
    let entry = shared.post(&bed, &memory, 0);
    let elements = list(&[(va, 2, key), (va + 0x100, 0, key), (va + 0x200, 4, key)], 3);
    bed.poke(0, shared.buffer + u64::from(entry) * 64 + 16, &elements);
    sent(&mut bed, &mut a);
    assert_eq!(bed.rules(), [], "libmlx5 stores what the program gave");
    assert_eq!(bed.drain(&mut cq), [(2, 0)]);
    assert_eq!(bed.peek::<2>(0, memory.address), *b"sh");
    assert_eq!(bed.peek::<4>(0, memory.address + 0x100), *b"ared");
    assert_eq!(bed.peek::<4>(0, memory.address + 0x200), [0; 4]);
}

#[test]
fn links_that_make_no_sense_are_refused() {
    // A link beyond the end of the queue, a link from an entry to itself, and a cycle that is too
    // short.
    for (links, posts) in [(vec![(0, 8)], 2), (vec![(0, 0)], 2), (vec![(0, 1), (1, 0)], 3)] {
        let (mut bed, mut cq, [mut a, b, ..], mut shared, memory) = bed();
        for (from, to) in links {
            shared.link(&bed, from, to);
        }
        for _ in 1..posts {
            shared.post(&bed, &memory, 0);
        }
        bed.poke(0, shared.record, &u32::to_be_bytes(posts));
        sent(&mut bed, &mut a);
        assert_eq!(bed.rules(), [Rule::SrqLink]);
        assert_eq!(bed.events(0).first(), Some(&SRQ_BROKEN_EVENT));
        // Entries before the invalid link are used; later entries are not.
        bed.drain(&mut cq);
        bed.poke(0, shared.record, &u32::to_be_bytes(posts + 1));
        sent(&mut bed, &mut a);
        assert_eq!((bed.rules(), bed.state(&b)), (vec![], State::Rts));
    }
}

#[test]
fn an_entry_with_reserved_bits_or_a_checksum_is_reported() {
    for at in [0, 1, 4, 5, 15] {
        let (mut bed, mut cq, [mut a, ..], mut shared, memory) = bed();
        bed.poke(0, shared.buffer + at, &[0x80]);
        shared.post(&bed, &memory, 0);
        sent(&mut bed, &mut a);
        assert_eq!(bed.rules(), [Rule::SrqReserved], "byte {at}");
        assert_eq!(bed.drain(&mut cq), [(2, 0)]);
    }
}

#[test]
fn a_counter_that_runs_around_the_queue_is_refused() {
    for counter in [ENTRIES + 1, 0xffff] {
        let (mut bed, mut cq, [mut a, ..], mut shared, memory) = bed();
        for _ in 0..ENTRIES {
            shared.post(&bed, &memory, 0);
        }
        bed.poke(0, shared.record, &u32::from(counter).to_be_bytes());
        sent(&mut bed, &mut a);
        assert_eq!(bed.rules(), [Rule::RecvOverrun]);
        bed.drain(&mut cq);
    }
}

#[test]
fn receives_that_no_doorbell_record_announces_to_a_peer_that_asks_are_noted() {
    // Whether a receive was placed in the buffer, whether it was announced, and whether a peer
    // requested it; then the number of notes.
    for (placed, announced, asked, noted) in
        [(true, false, true, 1), (false, false, true, 0), (true, true, true, 0), (true, false, false, 0)]
    {
        for (command, then) in [(0x50a, 0x501), (0x501, 0)] {
            let mut bed = Bed::ib();
            let cq = bed.cq(0, 4, 64);
            let (mut one, mut two) = bed.connected([&cq, &cq], &Shape::default());
            if asked {
                let wqe = bed.begin(&one, opcode::SEND).set(ctrl::CE, 0).inline(b"x").done();
                bed.post(&mut one, &wqe);
            }
            if placed {
                bed.post_recv(&mut two, &[]);
            }
            if !announced {
                bed.poke(0, two.record, &[0; 4]);
            }
            bed.name(&two, command);
            assert_eq!(bed.fabric.take_notes().len(), noted, "{placed} {announced} {asked}");
            if then != 0 {
                bed.name(&two, then);
            }
            assert_eq!(bed.fabric.note_count(), noted as u64, "only once");
        }
    }
}

#[test]
fn bits_above_the_counter_of_a_shared_queue_are_complained_of() {
    let (mut bed, mut cq, [mut a, ..], mut shared, memory) = bed();
    shared.post(&bed, &memory, 0);
    bed.poke(0, shared.record, &[1]);
    sent(&mut bed, &mut a);
    let mut rules = bed.rules();
    rules.dedup();
    assert_eq!(rules, [Rule::DoorbellRecordBits], "at each reading");
    assert_eq!(bed.drain(&mut cq).len(), 1);
}

#[test]
fn a_request_names_the_shared_receive_queue_of_xrc() {
    let mut bed = Bed::ib();
    let mut send_cq = bed.cq(0, 4, 64);
    let mut recv_cq = bed.cq(0, 4, 64);
    let xrcd = alloc_xrcd_out::XRCD.get32(&bed.ok(0, &input(0x80e, 16)));
    let mut first = Shared::xrc(&mut bed, xrcd, &recv_cq, 0x111);
    let mut second = Shared::xrc(&mut bed, xrcd, &recv_cq, 0x222);
    let make = |bed: &mut Bed, more: Vec<(Field, u32)>, log_sq| {
        let shape = Shape { service: XRC, log_sq, more: Box::leak(more.into()), ..Shape::default() };
        bed.pair(&send_cq, &shape)
    };
    let common = [(qpc::XRCD, xrcd), (qpc::RQ_TYPE, 1), (qpc::SRQN_RMPN_XRQN, first.number)];
    let mut initiator = make(&mut bed, common.to_vec(), 4);
    let target = make(&mut bed, [&common[..], &[(qpc::NO_SQ, 1), (qpc::LOG_SQ_SIZE, 0)]].concat(), 0);
    bed.init(&initiator, XRC);
    bed.init(&target, XRC);
    bed.connect(&initiator, XRC, &target);
    bed.connect(&target, XRC, &initiator);
    let memory = bed.memory(0, 1);
    for (shared, user_index) in [(&mut second, 0x222), (&mut first, 0x111)] {
        shared.post(&bed, &memory, 0);
        let mut segment = [0; xrc::SIZE];
        xrc::SRQN.set(&mut segment, shared.number);
        let wqe = bed.begin(&initiator, opcode::SEND).raw(&segment).inline(b"extended").done();
        bed.post(&mut initiator, &wqe);
        let entry = bed.poll(&mut recv_cq).unwrap();
        assert_eq!((brief(&entry), cqe::SRQN_USER_INDEX.get32(&entry)), ((2, 0), user_index));
        assert_eq!(bed.poll(&mut send_cq).map(|entry| brief(&entry).0), Some(SUCCESS));
    }
    let mut segment = [0; xrc::SIZE];
    segment[0] = 1;
    let wqe = bed.begin(&initiator, opcode::SEND).raw(&segment).inline(b"x").done();
    bed.post(&mut initiator, &wqe);
    assert_eq!(bed.rules(), [Rule::WqeReserved]);
}
