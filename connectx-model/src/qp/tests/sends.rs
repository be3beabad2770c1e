//! Tests each operation, from its work request to the completions on both sides.

use super::*;
use crate::layout::hca::{query_special_contexts_in, query_special_contexts_out};

/// Returns a test bed with a completion queue, two connected queue pairs, and the memory where the
/// second queue pair has posted receives.
pub(super) fn bed(service: u32) -> (Bed, Cq, Pair, Pair, Memory) {
    let mut bed = Bed::ib();
    let cq = bed.cq(0, 6, 64);
    let (one, mut two) = bed.connected([&cq, &cq], &Shape { service, ..Shape::default() });
    let memory = bed.memory(0, 4);
    for n in 0..2 {
        bed.post_recv(&mut two, &[(memory.va + n * 0x800, 0x800, memory.key)]);
    }
    (bed, cq, one, two, memory)
}

const QUERY_SPECIAL_CONTEXTS: u16 = 0x203;

const WRITE_IMM: u32 = 1;
const SEND: u32 = 2;
const SEND_IMM: u32 = 3;
const SEND_INVALIDATE: u32 = 4;

#[test]
fn a_send_arrives_and_both_sides_complete() {
    for service in [RC, UC] {
        let (mut bed, mut cq, mut one, two, memory) = bed(service);
        let wqe = bed.send(&one, b"four score");
        bed.post(&mut one, &wqe);
        let mut entries: Vec<_> = std::iter::from_fn(|| bed.poll(&mut cq)).collect();
        entries.sort_by_key(|entry| brief(entry).0);
        let [sent, received] = entries[..] else { panic!("{entries:?}") };
        assert_eq!(brief(&sent), (SUCCESS, 0));
        assert_eq!(cqe::WQE_OPCODE.get(&sent), u64::from(opcode::SEND));
        assert_eq!(cqe::QPN.get32(&sent), one.qpn);
        assert_eq!(cqe::SRQN_USER_INDEX.get32(&sent), USER_INDEX);
        assert_eq!(brief(&received), (SEND, 0));
        assert_eq!((cqe::BYTE_CNT.get32(&received), cqe::QPN.get32(&received)), (10, two.qpn));
        assert_eq!(&bed.peek::<10>(0, memory.address), b"four score");
    }
}

#[test]
fn elements_are_gathered_and_receives_scattered() {
    let (mut bed, mut cq, mut one, mut two, memory) = bed(RC);
    bed.post_recv(&mut two, &[(memory.va + 0x3000, 3, memory.key), (memory.va + 0x3100, 100, memory.key)]);
    bed.poke(0, memory.address + 0x2ffc, b"abcdefgh");
    // Two messages use the first two receives.
    for _ in 0..2 {
        let wqe = bed.begin(&one, opcode::SEND).set(ctrl::CE, 0).done();
        bed.post(&mut one, &wqe);
    }
    let wqe = bed.begin(&one, opcode::SEND).element(memory.va + 0x2ffc, 8, memory.key);
    let wqe = wqe.element(memory.va + 0x2ffe, 2, memory.key).done();
    bed.post(&mut one, &wqe);
    assert_eq!(bed.drain(&mut cq), [(SEND, 0), (SEND, 1), (SEND, 2), (SUCCESS, 2)]);
    assert_eq!(&bed.peek::<3>(0, memory.address + 0x3000), b"abc");
    assert_eq!(&bed.peek::<7>(0, memory.address + 0x3100), b"defghcd");
}

#[test]
fn the_dump_fill_key_reads_as_zeros_and_discards_writes_also_of_peers() {
    let (mut bed, mut cq, mut one, mut two, memory) = bed(RC);
    let query = input(QUERY_SPECIAL_CONTEXTS, query_special_contexts_in::SIZE);
    let key = query_special_contexts_out::DUMP_FILL_MKEY.get32(&bed.ok(0, &query));
    assert_ne!(key, 0);
    assert_eq!(query_special_contexts_out::DUMP_FILL_MKEY.get32(&bed.ok(0, &query)), key, "always the same");
    // The message in the first receive consists of zeros.
    bed.poke(0, memory.address, b"abcdefgh");
    let wqe = bed.begin(&one, opcode::SEND).set(ctrl::CE, 0).element(u64::MAX - 16, 4, key).done();
    bed.post(&mut one, &wqe);
    assert_eq!(bed.drain(&mut cq), [(SEND, 0)]);
    assert_eq!(&bed.peek::<8>(0, memory.address), b"\0\0\0\0efgh");
    // The second receive is for the next message. The third discards the middle of its message.
    let wqe = bed.begin(&one, opcode::SEND).set(ctrl::CE, 0).done();
    bed.post(&mut one, &wqe);
    let (first, last) = ((memory.va + 0x1000, 2, memory.key), (memory.va + 0x1002, 9, memory.key));
    bed.post_recv(&mut two, &[first, (7, 3, key), last]);
    let wqe = bed.begin(&one, opcode::SEND).inline(b"abcdefgh").done();
    bed.post(&mut one, &wqe);
    assert_eq!(bed.drain(&mut cq), [(SEND, 1), (SEND, 2), (SUCCESS, 2)]);
    assert_eq!(&bed.peek::<6>(0, memory.address + 0x1000), b"abfgh\0");
    let wqe = bed.begin(&one, opcode::WRITE).set(ctrl::CE, 0).remote(0, key).inline(b"x").done();
    bed.post(&mut one, &wqe);
    let wqe = bed.begin(&one, opcode::READ).remote(5, key).element(memory.va + 0x1000, 4, memory.key).done();
    bed.post(&mut one, &wqe);
    assert_eq!(bed.drain(&mut cq), [(SUCCESS, 4)]);
    assert_eq!(&bed.peek::<6>(0, memory.address + 0x1000), b"\0\0\0\0h\0");
}

#[test]
fn immediate_data_and_a_key_to_take_back_come_as_they_were_posted() {
    let (mut bed, mut cq, mut one, _, _) = bed(RC);
    let wqe =
        bed.begin(&one, opcode::SEND_IMM).set(ctrl::IMM, 0xdead_beef).set(ctrl::SE, 1).inline(b"x").done();
    bed.post(&mut one, &wqe);
    let received = bed.poll(&mut cq).unwrap();
    assert_eq!(brief(&received).0, SEND_IMM);
    assert_eq!((cqe::IMM_INVAL_PKEY.get(&received), cqe::SE.get(&received)), (0xdead_beef, 1));
    bed.poll(&mut cq).unwrap();
    // If the key cannot be invalidated, the receive fails.
    let wqe = bed.begin(&one, opcode::SEND_INVAL).set(ctrl::IMM, 0x1700).inline(b"x").done();
    bed.post(&mut one, &wqe);
    let received = bed.poll(&mut cq).unwrap();
    assert_eq!(error(&received), (RECV_ERROR, 0x12));
}

#[test]
fn a_send_with_invalidation_reports_the_key() {
    let (mut bed, mut cq, mut one, _, _) = bed(RC);
    let key = umr::fast_key(&mut bed, 4);
    let lend = umr::lend(&bed, &one, key, 0x1000, 0x2000);
    bed.post(&mut one, &lend);
    assert_eq!(bed.drain(&mut cq), [(SUCCESS, 0)]);
    let wqe = bed.begin(&one, opcode::SEND_INVAL).set(ctrl::IMM, key).inline(b"x").done();
    bed.post(&mut one, &wqe);
    let received = bed.poll(&mut cq).unwrap();
    assert_eq!((brief(&received).0, cqe::IMM_INVAL_PKEY.get32(&received)), (SEND_INVALIDATE, key));
    assert_eq!(bed.fabric.functions[0].engine.mr_is_valid(key >> 8), Some(false));
}

#[test]
fn a_write_takes_a_receive_only_for_immediate_data() {
    for service in [RC, UC] {
        let (mut bed, mut cq, mut one, _, memory) = bed(service);
        let wqe =
            bed.begin(&one, opcode::WRITE).remote(memory.va + 0x3ffb, memory.key).inline(b"plain").done();
        bed.post(&mut one, &wqe);
        assert_eq!(bed.drain(&mut cq), [(SUCCESS, 0)]);
        assert_eq!(&bed.peek::<5>(0, memory.address + 0x3ffb), b"plain");
        let wqe = bed.begin(&one, opcode::WRITE_IMM).set(ctrl::IMM, 77);
        let wqe = wqe.remote(memory.va + 0x3000, memory.key).inline(b"told").done();
        bed.post(&mut one, &wqe);
        let mut entries: Vec<_> = std::iter::from_fn(|| bed.poll(&mut cq)).collect();
        entries.sort_by_key(|entry| brief(entry).0);
        assert_eq!(entries.iter().map(brief).collect::<Vec<_>>(), [(SUCCESS, 1), (WRITE_IMM, 0)]);
        assert_eq!((cqe::IMM_INVAL_PKEY.get(&entries[1]), cqe::BYTE_CNT.get(&entries[1])), (77, 4));
    }
}

#[test]
fn a_read_brings_bytes_of_the_peer() {
    let (mut bed, mut cq, mut one, _, memory) = bed(RC);
    bed.poke(0, memory.address + 0x1ff0, b"far away across pages");
    let wqe = bed.begin(&one, opcode::READ).remote(memory.va + 0x1ff0, memory.key);
    let wqe =
        wqe.element(memory.va + 0x3000, 4, memory.key).element(memory.va + 0x3800, 17, memory.key).done();
    bed.post(&mut one, &wqe);
    let entry = bed.poll(&mut cq).unwrap();
    assert_eq!((brief(&entry), cqe::BYTE_CNT.get(&entry)), ((SUCCESS, 0), 21));
    assert_eq!(cqe::WQE_OPCODE.get(&entry), u64::from(opcode::READ));
    assert_eq!(&bed.peek::<4>(0, memory.address + 0x3000), b"far ");
    assert_eq!(&bed.peek::<17>(0, memory.address + 0x3800), b"away across pages");
}

#[test]
fn atomics_use_the_hosts_byte_order_and_return_the_previous_value() {
    let (mut bed, mut cq, mut one, _, memory) = bed(RC);
    bed.poke(0, memory.address + 0x2008, &40u64.to_ne_bytes());
    let result = memory.va + 0x3000;
    let add = bed.begin(&one, opcode::FETCH_ADD).remote(memory.va + 0x2008, memory.key);
    // A fetch-and-add ignores the compare operand.
    let add = add.operands(2, 0x5555).element(result, 8, memory.key).done();
    bed.post(&mut one, &add);
    let swap = bed.begin(&one, opcode::COMPARE_SWAP).remote(memory.va + 0x2008, memory.key);
    let swap = swap.operands(99, 42).element(result + 8, 8, memory.key).done();
    bed.post(&mut one, &swap);
    let entry = bed.poll(&mut cq).unwrap();
    assert_eq!((brief(&entry), cqe::BYTE_CNT.get(&entry)), ((SUCCESS, 0), 8));
    assert_eq!(bed.drain(&mut cq), [(SUCCESS, 1)]);
    assert_eq!(u64::from_ne_bytes(bed.peek(0, memory.address + 0x3000)), 40);
    assert_eq!(u64::from_ne_bytes(bed.peek(0, memory.address + 0x3008)), 42);
    assert_eq!(u64::from_ne_bytes(bed.peek(0, memory.address + 0x2008)), 99);
}

#[test]
fn a_datagram_reports_its_sender() {
    let (mut bed, mut cq, mut one, mut two, memory) = bed(UD);
    let wqe = bed.begin(&one, opcode::SEND_IMM).set(ctrl::IMM, 5).raw(&bed.vector(&two));
    let wqe = wqe.element(memory.va + 0x2000, 100, memory.key).done();
    bed.post(&mut one, &wqe);
    let mut entries: Vec<_> = std::iter::from_fn(|| bed.poll(&mut cq)).collect();
    entries.sort_by_key(|entry| brief(entry).0);
    assert_eq!(entries.iter().map(brief).collect::<Vec<_>>(), [(SUCCESS, 0), (SEND_IMM, 0)]);
    let received = &entries[1];
    assert_eq!((cqe::RQPN.get32(received), cqe::SLID.get(received), cqe::GRH.get(received)), (one.qpn, 1, 0));
    assert_eq!((cqe::BYTE_CNT.get(received), cqe::QPN.get32(received)), (140, two.qpn));
    // The queue key is wrong, so the receiver drops the datagram.
    let mut vector = bed.vector(&two);
    datagram::Q_KEY.set(&mut vector, QKEY + 1);
    let wqe = bed.begin(&one, opcode::SEND).raw(&vector).done();
    bed.post(&mut one, &wqe);
    assert_eq!(bed.drain(&mut cq), [(SUCCESS, 2)]);
    bed.post_recv(&mut two, &[]);
}

#[test]
fn an_unsignalled_send_completes_with_a_later_one() {
    let (mut bed, mut cq, mut one, _, _) = bed(RC);
    let quiet = bed.begin(&one, opcode::SEND).set(ctrl::CE, 0).inline(b"1").done();
    bed.put(&mut one, &quiet);
    let loud = bed.send(&one, b"2");
    bed.post(&mut one, &loud);
    let entries = bed.drain(&mut cq);
    assert_eq!(entries, [(SEND, 0), (SEND, 1), (SUCCESS, 1)]);
}

#[test]
fn a_nop_completes_in_its_turn() {
    let (mut bed, mut cq, mut one, _, _) = bed(RC);
    let first = bed.send(&one, b"1");
    bed.put(&mut one, &first);
    let nop = bed.nop(&one);
    bed.put(&mut one, &nop);
    let last = bed.send(&one, b"2");
    bed.post(&mut one, &last);
    assert_eq!(bed.drain(&mut cq), [(SEND, 0), (SUCCESS, 0), (SUCCESS, 1), (SEND, 1), (SUCCESS, 2)]);
}

#[test]
fn small_payload_comes_in_the_completion_where_it_was_asked_for() {
    let mut bed = Bed::with(PortKind::Ib, 1, true);
    for (entry_size, shape) in [
        (64, Shape { more: &[(qpc::CS_REQ, 0x11), (qpc::CS_RES, 1)], ..Shape::default() }),
        (128, Shape { more: &[(qpc::CS_REQ, 0x22), (qpc::CS_RES, 2)], ..Shape::default() }),
    ] {
        let mut cq = bed.cq(0, 6, entry_size);
        let (mut one, mut two) = bed.connected([&cq, &cq], &shape);
        let memory = bed.memory(0, 1);
        let most = if entry_size == 64 { 32 } else { 64 };
        let bytes: Vec<u8> = (0..most + 1).collect();
        for len in [most as usize, most as usize + 1] {
            bed.post_recv(&mut two, &[(memory.va, 0x100, memory.key)]);
            bed.poke(0, memory.address, &[0xee; 0x100]);
            let wqe = bed.send(&one, &bytes[..len]);
            bed.post(&mut one, &wqe);
            let slot = u64::from(cq.consumer);
            let entry = bed.poll(&mut cq).unwrap();
            let in_entry = len <= most as usize;
            assert_eq!((brief(&entry).0, cqe::BYTE_CNT.get(&entry)), (SEND, len as u64));
            let format = if !in_entry { 0 } else { u64::from(most / 32) };
            assert_eq!(cqe::FORMAT.get(&entry), format);
            if in_entry {
                let begin = cq.buffer + slot * entry_size;
                assert_eq!(bed.peek::<32>(0, begin)[..], bytes[..32]);
                assert_eq!(bed.peek::<1>(0, memory.address), [0xee]);
            } else {
                assert_eq!(bed.peek::<32>(0, memory.address)[..], bytes[..32]);
            }
            bed.poll(&mut cq).unwrap();
        }
        bed.poke(0, memory.address, &7u64.to_ne_bytes());
        let add = bed.begin(&one, opcode::FETCH_ADD).remote(memory.va, memory.key).operands(1, 0);
        let add = add.element(memory.va + 8, 8, memory.key).done();
        bed.post(&mut one, &add);
        let entry = bed.poll(&mut cq).unwrap();
        assert_eq!(cqe::FORMAT.get(&entry), 1);
        assert_eq!(entry[..8], 7u64.to_ne_bytes());
    }
}

#[test]
fn inline_data_goes_in_front_of_the_elements_behind_it() {
    for service in [RC, UC] {
        for len in [0, 1, 12, 13, 40] {
            let (mut bed, mut cq, mut one, _, memory) = bed(service);
            let inline: Vec<u8> = (0..len).map(|n| n as u8 + 100).collect();
            // The elements extend beyond the first packet.
            let from = memory.address + 0x2000;
            let bytes: Vec<u8> = (0..0x700).map(|n| n as u8).collect();
            bed.poke(0, from, &bytes);
            let wqe = bed.begin(&one, opcode::SEND).inline(&inline);
            let wqe = wqe.element(memory.va + 0x2000, 0x100, memory.key);
            let wqe = wqe.element(memory.va + 0x2100, 0x600, memory.key).done();
            bed.post(&mut one, &wqe);
            let mut ended = bed.drain(&mut cq);
            ended.sort_unstable();
            assert_eq!(ended, [(SUCCESS, 0), (SEND, 0)], "{len} bytes");
            let got: [u8; 0x728] = bed.peek(0, memory.address);
            assert_eq!(got[..len + 0x700], [inline, bytes].concat(), "{len} bytes");
        }
    }
}

#[test]
fn inline_data_in_front_of_elements_is_kept_until_the_send_ends() {
    let mut bed = Bed::ib();
    let mut cq = bed.cq(0, 6, 64);
    let (mut one, mut two) = bed.connected([&cq, &cq], &Shape::default());
    let memory = bed.memory(0, 1);
    bed.poke(0, memory.address + 0x100, b"elements");
    for n in 0..4u8 {
        let wqe = bed.begin(&one, opcode::SEND).inline(&[b'0' + n; 3]);
        let wqe = wqe.element(memory.va + 0x100, 8, memory.key).done();
        bed.post(&mut one, &wqe);
    }
    // The peer has not posted a receive yet.
    assert_eq!(bed.drain(&mut cq), []);
    for n in 0..4 {
        bed.post_recv(&mut two, &[(memory.va + n * 0x10, 0x10, memory.key)]);
    }
    bed.pass(100_000_000);
    assert_eq!(bed.drain(&mut cq).len(), 8);
    let got: [u8; 0x40] = bed.peek(0, memory.address);
    for (n, message) in got.chunks(0x10).enumerate() {
        assert_eq!(message[..11], [&[b'0' + n as u8; 3], &b"elements"[..]].concat());
    }
}

#[test]
fn reads_and_atomics_have_no_inline_data_in_front_of_their_element() {
    for operation in [opcode::READ, opcode::FETCH_ADD] {
        let (mut bed, mut cq, mut one, _, memory) = bed(RC);
        let mut wqe = bed.begin(&one, operation).remote(memory.va, memory.key);
        if operation == opcode::FETCH_ADD {
            wqe = wqe.operands(1, 0);
        }
        let wqe = wqe.inline(b"x").element(memory.va, 8, memory.key).done();
        bed.post(&mut one, &wqe);
        assert_eq!(bed.poll(&mut cq).map(|entry| error(&entry)), Some((SEND_ERROR, 0x02)));
    }
}
