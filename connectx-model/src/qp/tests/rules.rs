//! Tests that a provider's violations are rejected with a complaint. Each rule of the data path is
//! broken once.

use super::sends::bed;
use super::*;

/// Posts an invalid request on a new pair of queue pairs. Returns the broken rules and the
/// resulting completions.
fn broken(
    service: u32,
    make: impl FnOnce(&Bed, &Pair, &Pair, &Memory) -> Vec<u8>,
) -> (Vec<Rule>, Vec<(u32, u32)>) {
    let (mut bed, mut cq, mut one, two, memory) = bed(service);
    let wqe = make(&bed, &one, &two, &memory);
    bed.put(&mut one, &wqe);
    bed.ring(&mut one);
    let entries = std::iter::from_fn(|| bed.poll(&mut cq)).map(|entry| error(&entry));
    let sends: Vec<_> = entries.filter(|(opcode, _)| *opcode == SEND_ERROR).collect();
    assert_ne!(bed.state(&one), State::Rts, "it goes on");
    (bed.rules(), sends)
}

/// The syndromes of error completions.
const LOCAL_PROTECTION: u32 = 0x04;
const REMOTE_OPERATION: u32 = 0x14;

fn refused(rule: Rule) -> (Vec<Rule>, Vec<(u32, u32)>) {
    (vec![rule], vec![(SEND_ERROR, 0x02)])
}

#[test]
fn an_operation_that_there_is_not_is_refused() {
    assert_eq!(broken(RC, |bed, one, _, _| bed.begin(one, 0x2f).done()), refused(Rule::WqeOpcode));
}

#[test]
fn reserved_bits_are_refused_wherever_they_are() {
    let places: [(usize, u8); 5] = [(0, 1), (7, 0x40), (9, 1), (11, 0x10), (11, 1)];
    for (at, bits) in places {
        let made = broken(RC, |bed, one, _, _| {
            let mut wqe = bed.send(one, b"x");
            wqe[at] |= bits;
            wqe
        });
        assert_eq!(made, refused(Rule::WqeReserved), "byte {at}");
    }
    let behind_a_key = broken(RC, |bed, one, _, memory| {
        let mut wqe = bed.begin(one, opcode::WRITE).remote(memory.va, memory.key).done();
        wqe[31] = 1;
        wqe
    });
    assert_eq!(behind_a_key, refused(Rule::WqeReserved));
}

#[test]
fn a_completion_mode_that_drivers_do_not_use_is_refused() {
    for mode in [1, 3] {
        let made = broken(RC, |bed, one, _, _| bed.begin(one, opcode::SEND).set(ctrl::CE, mode).done());
        assert_eq!(made, refused(Rule::WqeCompletionMode), "mode {mode}");
    }
}

#[test]
fn bits_above_the_counters_of_a_doorbell_record_are_complained_of() {
    let (mut bed, mut cq, mut one, mut two, memory) = bed(RC);
    bed.post_recv(&mut two, &[(memory.va, 64, memory.key)]);
    bed.poke(0, two.record, &[0, 1]);
    let wqe = bed.begin(&one, opcode::SEND).set(ctrl::CE, 0).inline(b"x").done();
    bed.post(&mut one, &wqe);
    assert_eq!(bed.rules(), [Rule::DoorbellRecordBits], "receives");
    assert_eq!(bed.drain(&mut cq), [(2, 0)], "the counter counts");
    bed.poke(0, two.record, &[0, 0]);
    let wqe = bed.begin(&one, opcode::WRITE).set(ctrl::CE, 0).remote(memory.va, memory.key).done();
    bed.put(&mut one, &wqe);
    let (record, head) = (one.record + 4, u32::from(one.head));
    bed.poke(0, record, &(1 << 16 | head).to_be_bytes());
    let uar = bed.hosts[0].uar;
    let register = bed.register(&one);
    bed.store(0, uar, register, &wqe[..8]);
    one.half ^= 1;
    assert_eq!(bed.rules(), [Rule::DoorbellRecordBits], "sends");
    bed.poke(0, record, &head.to_be_bytes());
    bed.poke(0, cq.record, &(1 << 24 | cq.consumer).to_be_bytes());
    let wqe = bed.begin(&one, opcode::WRITE).remote(memory.va, memory.key).done();
    bed.post(&mut one, &wqe);
    assert_eq!(bed.rules(), [Rule::DoorbellRecordBits], "completions");
}

#[test]
fn a_doorbell_record_that_is_not_0_when_a_queue_pair_starts_is_complained_of() {
    for (half, expected) in
        [(0, vec![Rule::DoorbellRecordStart]), (4, vec![Rule::DoorbellRecordStart]), (8, vec![])]
    {
        let (mut bed, _, one, ..) = bed(RC);
        bed.name(&one, 0x50a);
        bed.poke(0, one.record + half, &1u32.to_be_bytes());
        let mut request = input(0x502, rst2init_qp_in::SIZE);
        rst2init_qp_in::QPN.set(&mut request, one.qpn);
        rst2init_qp_in::QPC.bytes_mut(&mut request).copy_from_slice(&Bed::init_context(RC));
        bed.command(0, &request);
        assert_eq!(bed.rules(), expected, "byte {half}");
        assert_eq!(bed.state(&one), State::Init);
    }
}

#[test]
fn a_fence_that_there_is_not_is_refused() {
    let made = broken(RC, |bed, one, _, _| bed.begin(one, opcode::SEND).set(ctrl::FM, 5).done());
    assert_eq!(made, refused(Rule::WqeFence));
}

#[test]
fn fences_that_there_are_pass() {
    let (mut bed, mut cq, mut one, _, memory) = bed(RC);
    for fence in 0..=4 {
        let wqe = bed.begin(&one, opcode::WRITE).set(ctrl::FM, fence).remote(memory.va, memory.key).done();
        bed.post(&mut one, &wqe);
    }
    assert_eq!(bed.drain(&mut cq).len(), 5);
}

#[test]
fn a_place_in_the_queue_that_is_not_its_own_is_refused() {
    let (mut bed, mut cq, mut one, _, _) = bed(RC);
    let first = bed.begin(&one, opcode::SEND).set(ctrl::WQE_INDEX, 5).inline(b"x").done();
    bed.put(&mut one, &first);
    let second = bed.send(&one, b"y");
    bed.post(&mut one, &second);
    assert_eq!(bed.rules(), [Rule::WqeIndex]);
    let entries: Vec<_> =
        std::iter::from_fn(|| bed.poll(&mut cq)).map(|entry| (brief(&entry), error(&entry))).collect();
    assert_eq!(entries, [((13, 0), (13, 0x02)), ((13, 1), (13, 0x05))]);
}

#[test]
fn a_number_that_is_not_the_queue_pairs_is_refused() {
    let (mut bed, mut cq, mut one, two, _) = bed(RC);
    let first = bed.begin(&one, opcode::SEND).set(ctrl::QPN, two.qpn).inline(b"x").done();
    bed.put(&mut one, &first);
    let second = bed.send(&one, b"y");
    bed.post(&mut one, &second);
    assert_eq!(bed.rules(), [Rule::WqeQpn]);
    assert_eq!(bed.poll(&mut cq).map(|entry| error(&entry)), Some((13, 0x02)));
}

#[test]
fn lengths_that_cannot_be_are_refused() {
    // A request of no units, segments that do not fit, and an element of length 0.
    let (mut bed, mut cq, mut one, _, memory) = bed(RC);
    let mut wqe = bed.send(&one, b"x");
    wqe[7] = 0;
    bed.put(&mut one, &wqe);
    bed.update_record(&one);
    let second = bed.send(&one, b"y");
    bed.post(&mut one, &second);
    assert_eq!(bed.rules(), [Rule::WqeSize]);
    assert_eq!(bed.poll(&mut cq).map(|entry| error(&entry)), Some((13, 0x02)));
    assert_eq!(bed.state(&one), State::Err);
    let short = broken(RC, |bed, one, _, _| bed.begin(one, opcode::WRITE).done());
    assert_eq!(short, refused(Rule::WqeSize));
    let empty =
        broken(RC, |bed, one, _, _| bed.begin(one, opcode::SEND).element(memory.va, 0, memory.key).done());
    assert_eq!(empty, refused(Rule::WqeSize));
}

#[test]
fn inline_data_with_another_length_than_declared_is_rejected() {
    let long = broken(RC, |bed, one, _, _| {
        let mut wqe = bed.send(one, b"x");
        wqe[19] = 13;
        wqe
    });
    assert_eq!(long, refused(Rule::WqeInline));
    let strange = broken(RC, |bed, one, _, _| {
        let mut wqe = bed.send(one, b"x");
        wqe[17] = 1;
        wqe
    });
    assert_eq!(strange, refused(Rule::WqeInline));
    let mixed = broken(RC, |bed, one, _, memory| {
        bed.begin(one, opcode::SEND).element(memory.va, 8, memory.key).inline(b"x").done()
    });
    assert_eq!(mixed, refused(Rule::WqeInline));
}

#[test]
fn an_atomic_result_of_other_than_8_bytes_is_refused() {
    let made = broken(RC, |bed, one, _, memory| {
        let wqe = bed.begin(one, opcode::FETCH_ADD).remote(memory.va, memory.key).operands(1, 0);
        wqe.element(memory.va, 16, memory.key).done()
    });
    assert_eq!(made, refused(Rule::WqeAtomic));
}

#[test]
fn an_address_vector_that_is_not_extended_or_has_reserved_bits_is_refused() {
    // In order: the compact form, two reserved dwords, force loopback, a MAC address, a hop limit
    // without GRH.
    for (at, bits) in [(8, 0x80), (4, 1), (0x10, 1), (0xd, 0x80), (0x14, 1), (0x1b, 1)] {
        let made = broken(UD, |bed, one, two, _| {
            let mut vector = bed.vector(two);
            vector[at] ^= bits;
            bed.begin(one, opcode::SEND).raw(&vector).done()
        });
        assert_eq!(made, refused(Rule::WqeAddressVector), "byte {at:#x}");
    }
}

#[test]
fn a_checksum_is_there_where_it_was_asked_for_and_right() {
    let made = broken(RC, |bed, one, _, _| bed.begin(one, opcode::SEND).set(ctrl::SIGNATURE, 1).done());
    assert_eq!(made, refused(Rule::WqeSignature));
    let mut bed = Bed::ib();
    let mut cq = bed.cq(0, 4, 64);
    let shape = Shape { more: &[(qpc::WQ_SIGNATURE, 1)], ..Shape::default() };
    let (mut one, _) = bed.connected([&cq, &cq], &shape);
    let memory = bed.memory(0, 1);
    for right in [true, false] {
        let mut wqe = bed.begin(&one, opcode::WRITE).remote(memory.va, memory.key).inline(b"summed").done();
        let sum = wqe.iter().fold(0, |sum, byte| sum ^ byte);
        wqe[8] = !sum ^ u8::from(!right);
        bed.post(&mut one, &wqe);
        let ended = bed.poll(&mut cq).map(|entry| error(&entry).0);
        assert_eq!(ended, Some(if right { SUCCESS } else { SEND_ERROR }));
    }
    assert_eq!(bed.rules(), [Rule::WqeSignature]);
}

#[test]
fn a_receive_has_a_correct_checksum_where_the_queue_pair_asked_for_one() {
    let mut bed = Bed::ib();
    let mut cq = bed.cq(0, 4, 64);
    let shape = Shape { more: &[(qpc::WQ_SIGNATURE, 1)], ..Shape::default() };
    let (mut one, mut two) = bed.connected([&cq, &cq], &shape);
    let memory = bed.memory(0, 1);
    let sum = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum ^ byte);
    for (wrong, rules) in [(0, vec![]), (0x10, vec![Rule::RecvSignature])] {
        let mut receive = [vec![0; 16], list(&[(memory.va, 0x100, memory.key)], 3)].concat();
        receive[4] =
            !sum(&receive[..32]) ^ sum(&two.qpn.to_be_bytes()) ^ sum(&two.recv_head.to_be_bytes()) ^ wrong;
        bed.poke(0, two.buffer + u64::from(two.recv_head) * two.stride, &receive);
        two.recv_head += 1;
        bed.poke(0, two.record, &u32::from(two.recv_head).to_be_bytes());
        let mut wqe = bed.send(&one, b"signed");
        wqe[8] = !sum(&wqe);
        bed.post(&mut one, &wqe);
        assert_eq!(bed.rules(), rules);
        assert_eq!(bed.drain(&mut cq).len(), 2, "it is only reported");
    }
    assert_eq!(&bed.peek::<6>(0, memory.address), b"signed");
}

#[test]
fn more_than_the_queue_holds_is_refused() {
    let (mut bed, mut cq, mut one, _, _) = bed(RC);
    for _ in 0..17 {
        let wqe = bed.send(&one, b"x");
        bed.put(&mut one, &wqe);
    }
    bed.ring(&mut one);
    assert_eq!(bed.rules(), [Rule::WqeOverrun]);
    assert_eq!(bed.state(&one), State::Err);
    // A doorbell record that jumps to an arbitrary value breaks the same rule.
    one.head = 0xfff0;
    let wqe = bed.send(&one, b"x");
    bed.post(&mut one, &wqe);
    assert!(bed.rules().contains(&Rule::WqeOverrun));
    bed.drain(&mut cq);
}

#[test]
fn sends_before_rts_are_refused() {
    let mut bed = Bed::ib();
    let mut cq = bed.cq(0, 4, 64);
    let mut one = bed.pair(&cq, &Shape::default());
    for state in [State::Reset, State::Init] {
        assert_eq!(bed.state(&one), state);
        let wqe = bed.send(&one, b"x");
        bed.post(&mut one, &wqe);
        assert_eq!(bed.rules(), [Rule::WqeState]);
        if state == State::Reset {
            bed.poke(0, one.record, &[0; 8]);
            bed.init(&one, RC);
        }
        one.head = 0;
    }
    assert_eq!(bed.drain(&mut cq), []);
}

#[test]
fn a_doorbell_before_its_record_is_complained_of() {
    let (mut bed, mut cq, mut one, _, memory) = bed(RC);
    let wqe = bed.begin(&one, opcode::WRITE).remote(memory.va, memory.key).done();
    bed.put(&mut one, &wqe);
    let (uar, register) = (bed.hosts[0].uar, bed.register(&one));
    bed.store(0, uar, register, &one.last[..8]);
    assert_eq!(bed.rules(), [Rule::DoorbellRecordFirst]);
    assert_eq!(bed.drain(&mut cq), [], "it rings nothing");
    one.half ^= 1;
    bed.ring(&mut one);
    assert_eq!(bed.drain(&mut cq), [(SUCCESS, 0)]);
}

#[test]
fn a_doorbell_that_tells_nothing_new_is_complained_of() {
    let (mut bed, mut cq, mut one, _, memory) = bed(RC);
    let wqe = bed.begin(&one, opcode::WRITE).remote(memory.va, memory.key).done();
    bed.post(&mut one, &wqe);
    bed.ring(&mut one);
    assert_eq!(bed.rules(), [Rule::DoorbellStale]);
    assert_eq!(bed.drain(&mut cq), [(SUCCESS, 0)]);
}

#[test]
fn a_doorbell_carries_the_last_work_request() {
    let (mut bed, mut cq, mut one, _, memory) = bed(RC);
    let first = bed.begin(&one, opcode::WRITE).remote(memory.va, memory.key).done();
    bed.put(&mut one, &first);
    let second = bed.begin(&one, opcode::WRITE).remote(memory.va, memory.key).done();
    bed.put(&mut one, &second);
    one.last = first;
    bed.ring(&mut one);
    assert_eq!(bed.rules(), [Rule::DoorbellOrder]);
    assert_eq!(bed.drain(&mut cq), [], "it rings nothing");
    one.last = second;
    bed.ring(&mut one);
    assert_eq!(bed.drain(&mut cq), [(SUCCESS, 0), (SUCCESS, 1)]);
}

#[test]
fn a_doorbell_has_the_first_bytes_of_its_work_request() {
    // In order: the modifier, the opcode of another request, the opcode of a NOP, and another
    // length with the same number of blocks.
    for (byte, bits) in [(0, 1), (3, 1), (3, opcode::WRITE), (7, 1)] {
        for first in [false, true] {
            let (mut bed, mut cq, mut one, _, memory) = bed(RC);
            let wqe = bed.begin(&one, opcode::WRITE).remote(memory.va, memory.key).done();
            if !first {
                bed.put(&mut one, &wqe);
            }
            let wqe = bed.begin(&one, opcode::WRITE).remote(memory.va, memory.key).done();
            bed.put(&mut one, &wqe);
            one.last[byte] ^= bits;
            bed.ring(&mut one);
            // The doorbell of a NOP may be the start of a BlueFlame block.
            bed.fabric.functions[0].release(None);
            assert_eq!(bed.rules(), [Rule::DoorbellOrder], "byte {byte}");
            assert_eq!(bed.drain(&mut cq), [], "it rings nothing");
            one.last = wqe;
            bed.ring(&mut one);
            assert_eq!(bed.drain(&mut cq).len(), 2 - usize::from(first));
        }
    }
}

#[test]
fn doorbells_of_missing_objects_or_of_other_uars_are_rejected() {
    let (mut bed, mut cq, mut one, _, _) = bed(RC);
    let mut wqe = bed.send(&one, b"x");
    bed.put(&mut one, &wqe);
    bed.update_record(&one);
    let (uar, register) = (bed.hosts[0].uar, bed.register(&one));
    let other = crate::layout::hca::alloc_uar_out::UAR.get32(&bed.ok(0, &input(0x802, 16)));
    bed.store(0, other, register, &wqe[..8]);
    assert_eq!(bed.rules(), [Rule::DoorbellUar]);
    bed.store(0, other + 1, register, &wqe[..8]);
    assert_eq!(bed.rules(), [Rule::DoorbellUar]);
    ctrl::QPN.set(&mut wqe, 0x00aa_aaaau32);
    bed.store(0, uar, register, &wqe[..8]);
    assert_eq!(bed.rules(), [Rule::DoorbellObject]);
    assert_eq!(bed.drain(&mut cq), []);
}

#[test]
fn a_receive_list_without_a_right_terminator_is_one_that_no_message_goes_into() {
    // An element of zeros, a terminator with a length, and a bit above the length.
    let mut signed = element(0, 0, 0x100);
    signed[0] |= 0x80;
    for bytes in [[0; 16], element(0, 5, 0x100), signed] {
        let (mut bed, mut cq, mut one, mut two, memory) = bed(RC);
        for _ in 0..2 {
            let wqe = bed.send(&one, b"x");
            bed.post(&mut one, &wqe);
        }
        assert_eq!((bed.rules(), bed.drain(&mut cq).len()), (vec![], 4));
        let slot = u64::from(two.recv_head) % 4 * two.stride;
        bed.post_recv(&mut two, &[(memory.va + 0x1000, 16, memory.key)]);
        bed.poke(0, two.buffer + slot + 16, &bytes);
        let wqe = bed.send(&one, b"x");
        bed.post(&mut one, &wqe);
        assert_eq!(bed.rules(), [Rule::RecvTerminator]);
        let ended = std::iter::from_fn(|| bed.poll(&mut cq)).map(|entry| error(&entry));
        assert_eq!(
            ended.collect::<Vec<_>>(),
            [(RECV_ERROR, LOCAL_PROTECTION), (SEND_ERROR, REMOTE_OPERATION)]
        );
        assert_eq!(bed.peek::<1>(0, memory.address + 0x1000), [0], "the message went nowhere");
    }
}

#[test]
fn an_element_of_length_0_in_a_receive_takes_the_rest_of_a_message_and_is_complained_of() {
    // Memory with space for the rest of the message, and memory that ends too early.
    for (room, kinds) in [(0x100, [2, SUCCESS]), (4, [RECV_ERROR, SEND_ERROR])] {
        let (mut bed, mut cq, mut one, mut two, memory) = bed(RC);
        for _ in 0..2 {
            let wqe = bed.send(&one, b"x");
            bed.post(&mut one, &wqe);
        }
        assert_eq!(bed.drain(&mut cq).len(), 4);
        // The registered memory has 4 pages.
        let (offset, key) = (4 * PAGE - room, memory.key);
        let rest = memory.va + offset;
        bed.post_recv(&mut two, &[(memory.va, 4, key), (rest, 0, key), (memory.va + 0x200, 8, key)]);
        let wqe = bed.send(&one, b"all that is left");
        bed.post(&mut one, &wqe);
        assert_eq!(bed.rules(), [Rule::RecvLength]);
        let ended: Vec<_> = bed.drain(&mut cq).into_iter().map(|(opcode, _)| opcode).collect();
        assert_eq!(ended, kinds, "{room} bytes");
        assert_eq!(bed.peek::<4>(0, memory.address), *b"all ");
        if room > 4 {
            assert_eq!(bed.peek::<12>(0, memory.address + offset), *b"that is left");
        }
        assert_eq!(bed.peek::<8>(0, memory.address + 0x200), [0; 8], "the element behind it");
    }
}

#[test]
fn more_receives_than_the_queue_holds_are_refused() {
    let (mut bed, mut cq, mut one, two, _) = bed(RC);
    bed.poke(0, two.record, &5u32.to_be_bytes());
    let wqe = bed.send(&one, b"x");
    bed.post(&mut one, &wqe);
    assert_eq!(bed.rules(), [Rule::RecvOverrun]);
    assert_eq!(bed.state(&two), State::Err);
    bed.drain(&mut cq);
}

#[test]
fn a_queue_that_broke_a_rule_is_not_followed_until_it_is_reset() {
    let (mut bed, mut cq, mut one, _, _) = bed(RC);
    one.head = 20;
    let wqe = bed.send(&one, b"x");
    bed.post(&mut one, &wqe);
    bed.rules();
    for _ in 0..3 {
        let wqe = bed.send(&one, b"x");
        bed.post(&mut one, &wqe);
        bed.rules();
    }
    assert_eq!(bed.drain(&mut cq), []);
}
