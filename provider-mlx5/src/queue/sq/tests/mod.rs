//! Entries byte by byte, as in libmlx5; `doorbell` also tests how the device is notified.

mod doorbell;

use verbs_core::provider::{FastPath, SendQueue as _, WrBatch};
use verbs_core::types::{
    AccessFlags, Av, MwBindInfo, MwType, PostReason, QpState, QpType, SendFlags, SendOp, SendWr, Sge, UdAddr,
    Wc, WcOpcode,
};

use crate::device::AV_TAG;
use crate::paper::{PaperCqe, PaperQp, PaperShape, QP_NUM};
use crate::wqe::UNIT;
use crate::wqe::opcode::SEND;

fn ready(shape: PaperShape) -> PaperQp {
    // SAFETY: the test has one thread.
    let mut qp = unsafe { PaperQp::new(shape) };
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        qp.move_to(state);
    }
    qp
}

/// Advances the queue by `blocks` blocks, with no unfinished request.
fn skip(qp: &mut PaperQp, blocks: u32) {
    for _ in 0..blocks {
        post(qp, &[SendWr { wr_id: 0, op: SendOp::Send, sge: &[], flags: SendFlags::SIGNALED }]);
        let wqe_counter = qp.records()[1] as u16 - 1;
        qp.write(PaperCqe { wqe_opcode: 0xa, wqe_counter, ..PaperCqe::default() });
        assert!(qp.lend().is_some());
    }
}

fn post(qp: &mut PaperQp, wrs: &[SendWr<'_>]) {
    // SAFETY: a paper device accesses no memory, and inline data is borrowed.
    unsafe { qp.sq.post_send(wrs) }.unwrap();
}

fn inline(data: &[u8]) -> Sge {
    Sge { addr: data.as_ptr().expose_provenance() as u64, length: data.len() as u32, lkey: 0 }
}

/// Parses hexadecimal bytes, with spaces anywhere.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

const SGE: Sge = Sge { addr: 0x1122_3344_5566_7788, length: 0x99, lkey: 0xaabb_ccdd };
const DATA: &str = "00000099 aabbccdd 1122334455667788";
const REMOTE: &str = "0102030405060708 0a0b0c0d 00000000";

fn op_of(kind: &str) -> SendOp<'static> {
    let (remote_addr, rkey, imm_data) = (0x0102_0304_0506_0708, 0x0a0b_0c0d, 0xdead_beef);
    match kind {
        "send" => SendOp::Send,
        "send imm" => SendOp::SendWithImm { imm_data },
        "send inv" => SendOp::SendWithInv { invalidate_rkey: imm_data },
        "write" => SendOp::RdmaWrite { remote_addr, rkey },
        "write imm" => SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data },
        "read" => SendOp::RdmaRead { remote_addr, rkey },
        "swap" => SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 2, swap: 1 },
        "add" => SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 },
        _ => panic!("{kind}"),
    }
}

#[test]
fn operations_of_rc_are_the_bytes_of_the_manual() {
    let eight = Sge { length: 8, ..SGE };
    for (kind, flags, sge, expected) in [
        ("send", 0, SGE, format!("0000000a 00abcd02 00000000 00000000 {DATA}")),
        ("send", 2, SGE, format!("0000000a 00abcd02 00000008 00000000 {DATA}")),
        ("send imm", 4, SGE, format!("0000000b 00abcd02 00000002 deadbeef {DATA}")),
        ("send inv", 1, SGE, format!("00000001 00abcd02 00000080 deadbeef {DATA}")),
        ("write", 2, SGE, format!("00000008 00abcd03 00000008 00000000 {REMOTE} {DATA}")),
        ("write imm", 6, SGE, format!("00000009 00abcd03 0000000a deadbeef {REMOTE} {DATA}")),
        ("read", 3, SGE, format!("00000010 00abcd03 00000088 00000000 {REMOTE} {DATA}")),
        (
            "swap",
            2,
            eight,
            format!(
                "00000011 00abcd04 00000008 00000000 {REMOTE} 0000000000000001 0000000000000002 \
                 00000008 aabbccdd 1122334455667788"
            ),
        ),
        (
            "add",
            2,
            eight,
            format!(
                "00000012 00abcd04 00000008 00000000 {REMOTE} 0000000000000001 0000000000000000 \
                 00000008 aabbccdd 1122334455667788"
            ),
        ),
        // An empty element is not stored.
        ("write", 0, Sge { length: 0, ..SGE }, format!("00000008 00abcd02 00000000 00000000 {REMOTE}")),
        ("send", 0, Sge { length: 0, ..SGE }, "0000000a 00abcd01 00000000 00000000".to_owned()),
    ] {
        let mut qp = ready(PaperShape::default());
        let flags = SendFlags::from_bits_retain(flags);
        post(&mut qp, &[SendWr { wr_id: 1, op: op_of(kind), sge: &[sge], flags }]);
        let expected = hex(&expected);
        assert_eq!(qp.blocks(0, 1)[..expected.len()], expected, "{kind} {flags:?}");
        assert_eq!(qp.records()[1], 1, "{kind}: one block is announced");
        let len = if expected.len() > 16 { expected.len() } else { 8 };
        assert_eq!(qp.take_register(0, len), expected[..len], "{kind}: the register");
    }
    assert_eq!(QP_NUM, 0xabcd);
}

#[test]
fn inline_data_is_one_segment_of_all_pieces_and_wraps() {
    let bytes: Vec<u8> = (0..200).collect();
    for len in [1, 8, 12, 27, 28, 29, 44, 60, 61, 124, 200] {
        for first in 0..16 {
            let mut qp = ready(PaperShape::default());
            skip(&mut qp, first);
            let cut = len / 3;
            let list = [inline(&bytes[..cut]), inline(&bytes[cut..len])];
            let list = if cut == 0 { &list[1..] } else { &list[..] };
            let flags = SendFlags::INLINE;
            post(&mut qp, &[SendWr { wr_id: 1, op: op_of("write"), sge: list, flags }]);
            let ds = 2 + (len + 4).div_ceil(16);
            let mut expected = hex(&format!("0000{first:02x}08 00abcd{ds:02x} 00000000 00000000 {REMOTE}"));
            expected.extend((len as u32 | 1 << 31).to_be_bytes());
            expected.extend(&bytes[..len]);
            let blocks = ds.div_ceil(4) as u32;
            let stored = qp.blocks(first, blocks);
            assert_eq!(stored[..expected.len()], expected, "{len} bytes at {first}");
            assert_eq!(qp.records()[1], first + blocks);
            // A request of up to half a register is copied there, in blocks.
            let half = first as usize & 1;
            let register = qp.take_register(half, expected.len());
            assert_eq!(register, expected, "{len} bytes at {first}: the register");
        }
    }
}

#[test]
fn lists_wrap_and_leave_out_what_is_empty() {
    for first in 0..16 {
        let mut qp = ready(PaperShape::default());
        skip(&mut qp, first);
        let list: Vec<Sge> = (0..10).map(|n| Sge { addr: n, length: u32::from(n != 4), lkey: 3 }).collect();
        post(&mut qp, &[SendWr { wr_id: 1, op: SendOp::Send, sge: &list, flags: SendFlags::empty() }]);
        let mut expected = hex(&format!("0000{first:02x}0a 00abcd0a 00000000 00000000"));
        for n in (0..10_u64).filter(|n| *n != 4) {
            expected.extend(hex(&format!("00000001 00000003 {n:016x}")));
        }
        assert_eq!(qp.blocks(first, 3)[..expected.len()], expected, "at {first}");
    }
}

#[test]
fn a_datagram_has_its_path_and_wraps_behind_it() {
    let path: [u8; 48] = core::array::from_fn(|at| if at < 12 { 0 } else { at as u8 });
    let av = Av::new(AV_TAG, &path);
    let to = UdAddr { av: &av, remote_qpn: 0x1234, remote_qkey: 0x8765_4321 };
    for first in 0..16 {
        let mut qp = ready(PaperShape { qp_type: QpType::UD, blocks_of_request: 5, ..PaperShape::default() });
        for _ in 0..first {
            let wr = SendWr { wr_id: 0, op: SendOp::UdSend { to }, sge: &[], flags: SendFlags::SIGNALED };
            post(&mut qp, &[wr]);
            qp.write(PaperCqe {
                wqe_opcode: 0xa,
                wqe_counter: qp.records()[1] as u16 - 1,
                ..PaperCqe::default()
            });
            assert!(qp.lend().is_some());
        }
        let op = SendOp::UdSendWithImm { to, imm_data: 7 };
        post(&mut qp, &[SendWr { wr_id: 1, op, sge: &[SGE], flags: SendFlags::empty() }]);
        let mut expected = hex(&format!("0000{first:02x}0b 00abcd05 00000000 00000007"));
        expected.extend(hex("87654321 00000000 80001234"));
        expected.extend(&path[12..]);
        expected.extend(hex(DATA));
        assert_eq!(qp.blocks(first, 2)[..expected.len()], expected, "at {first}");
    }
    let foreign = Av::new(AV_TAG + 1, &path);
    let to = UdAddr { av: &foreign, ..to };
    let mut qp = ready(PaperShape { qp_type: QpType::UD, blocks_of_request: 5, ..PaperShape::default() });
    let wr = SendWr { wr_id: 1, op: SendOp::UdSend { to }, sge: &[SGE], flags: SendFlags::empty() };
    // SAFETY: a paper device accesses no memory.
    assert_eq!(unsafe { qp.sq.post_one(&wr) }, Err(PostReason::ForeignAv));
}

#[test]
fn a_bind_and_an_invalidation_name_the_fields_that_they_change() {
    let bind_info = MwBindInfo {
        lkey: 0x55,
        addr: 0x7000,
        length: 0x2000,
        mw_access_flags: AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE,
    };
    let mut qp = ready(PaperShape { blocks: 16, ..PaperShape::default() });
    let bind =
        SendOp::BindMw { mw_type: MwType::TYPE_2, rkey: 0x1101, new_rkey: 0x1102, bind_info: &bind_info };
    let invalidate = SendOp::LocalInv { invalidate_rkey: 0x1102 };
    let wr = |op| SendWr { wr_id: 1, op, sge: &[], flags: SendFlags::SIGNALED };
    post(&mut qp, &[wr(bind), wr(invalidate), wr(SendOp::Send), wr(SendOp::Send)]);
    let expected = hex(&format!(
        "00000025 00abcd0c 00000008 00001101 \
         b0000000 00040000 00000000203c6041 {zero32} \
         00003000 00abcd02 0000000000000000 0000000000007000 0000000000002000 {zero32} \
         00002000 00000055 0000000000007000 {zero32} {zero16}",
        zero32 = "00".repeat(32),
        zero16 = "00".repeat(16),
    ));
    assert_eq!(qp.blocks(0, 3), expected);
    let expected = hex(&format!(
        "00000325 00abcd08 00000028 00001102 98000000 00000000 0000000020006000 {zero32} \
         40000000 ffffff00 {zero56}",
        zero32 = "00".repeat(32),
        zero56 = "00".repeat(56),
    ));
    assert_eq!(qp.blocks(3, 2), expected);
    // The request after an operation on a key is fenced, the next one is not.
    assert_eq!(qp.blocks(5, 1)[..16], hex("0000050a 00abcd01 00000028 00000000"));
    assert_eq!(qp.blocks(6, 1)[..16], hex("0000060a 00abcd01 00000008 00000000"));
}

#[test]
fn unreliable_connections_and_xrc_initiators_change_keys_as_reliable_ones_do() {
    let bind_info =
        MwBindInfo { lkey: 0x55, addr: 0x7000, length: 0x2000, mw_access_flags: AccessFlags::REMOTE_WRITE };
    let bind =
        SendOp::BindMw { mw_type: MwType::TYPE_2, rkey: 0x1101, new_rkey: 0x1102, bind_info: &bind_info };
    let invalidate = SendOp::LocalInv { invalidate_rkey: 0x1102 };
    let wr = |op| SendWr { wr_id: 1, op, sge: &[], flags: SendFlags::SIGNALED };
    let [rc, uc, xrc] = [QpType::RC, QpType::UC, QpType::XRC_SEND].map(|qp_type| {
        let mut qp = ready(PaperShape { blocks: 16, qp_type, ..PaperShape::default() });
        post(&mut qp, &[wr(bind), wr(invalidate)]);
        if qp_type == QpType::XRC_SEND {
            let op = &SendOp::SendWithInv { invalidate_rkey: 0x1102 };
            post(&mut qp, &[wr(SendOp::Xrc { remote_srqn: 0x77, op })]);
            // The fence of the invalidation, the key, and the shared receive queue.
            let expected = hex("00000501 00abcd02 00000028 00001102 00000077 00000000 00000000 00000000");
            assert_eq!(qp.blocks(5, 1)[..32], expected);
        }
        qp.blocks(0, 5)
    });
    assert_eq!(uc, rc);
    assert_eq!(xrc, rc, "no shared receive queue is named");
}

#[test]
fn a_window_of_type_1_belongs_to_no_queue_pair() {
    let bind_info =
        MwBindInfo { lkey: 0x55, addr: 0x7000, length: 0x2000, mw_access_flags: AccessFlags::REMOTE_WRITE };
    let mut qp = ready(PaperShape { blocks: 16, ..PaperShape::default() });
    let nothing = MwBindInfo { length: 0, ..bind_info };
    let op =
        |bind_info| SendOp::BindMw { mw_type: MwType::TYPE_1, rkey: 0x1101, new_rkey: 0x1102, bind_info };
    let wr = |op| SendWr { wr_id: 1, op, sge: &[], flags: SendFlags::FENCE };
    post(&mut qp, &[wr(op(&bind_info)), wr(op(&nothing))]);
    let expected = hex(&format!(
        "00000025 00abcd0c 00000080 00001101 \
         90000000 00040000 00000000203c2041 {zero32} \
         00002000 ffffff02 0000000000000000 0000000000007000 0000000000002000 {zero32} \
         00002000 00000055 0000000000007000 {zero32} {zero16}",
        zero32 = "00".repeat(32),
        zero16 = "00".repeat(16),
    ));
    assert_eq!(qp.blocks(0, 3), expected);
    let expected = hex(&format!(
        "00000325 00abcd08 00000080 00001101 90000000 00000000 0000000020002000 {zero32} \
         40000000 ffffff02 {zero56}",
        zero32 = "00".repeat(32),
        zero56 = "00".repeat(56),
    ));
    assert_eq!(qp.blocks(3, 2), expected);
}

#[test]
fn a_request_of_the_short_path_is_fenced_behind_a_key_too() {
    let mut qp = ready(PaperShape::default());
    let wr = |op, sge| SendWr { wr_id: 1, op, sge, flags: SendFlags::empty() };
    let invalidate = SendOp::LocalInv { invalidate_rkey: 5 };
    for request in [wr(invalidate, &[]), wr(SendOp::Send, &[SGE]), wr(SendOp::Send, &[SGE])] {
        post(&mut qp, &[request]);
    }
    assert_eq!(qp.blocks(2, 1)[..12], hex("0000020a 00abcd02 00000020"));
    assert_eq!(qp.blocks(3, 1)[..12], hex("0000030a 00abcd02 00000000"));
    // A request that replaces a rolled-back one is fenced, too.
    let mut qp = ready(PaperShape::default());
    for request in [wr(invalidate, &[]), wr(SendOp::Send, &[SGE])] {
        // SAFETY: a paper device accesses no memory.
        unsafe { qp.sq.post_one(&request) }.unwrap();
    }
    assert_eq!(qp.sq.rollback(1), 1);
    post(&mut qp, &[wr(SendOp::Send, &[SGE])]);
    assert_eq!(qp.blocks(2, 1)[..12], hex("0000020a 00abcd02 00000020"));
}

#[test]
fn a_reset_leaves_no_fence_behind() {
    let mut qp = ready(PaperShape::default());
    let wr = |op| SendWr { wr_id: 1, op, sge: &[], flags: SendFlags::empty() };
    post(&mut qp, &[wr(SendOp::LocalInv { invalidate_rkey: 5 })]);
    for state in [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS] {
        qp.move_to(state);
    }
    post(&mut qp, &[wr(SendOp::Send)]);
    assert_eq!(qp.blocks(0, 1)[..12], hex("0000000a 00abcd01 00000000"));
}

#[test]
fn the_long_path_stores_what_the_short_one_stores() {
    let empty = Sge { length: 0, ..SGE };
    for kind in ["send", "send imm", "write", "write imm", "read"] {
        let stored = [&[SGE][..], &[SGE, empty]].map(|sge| {
            let mut qp = ready(PaperShape::default());
            post(&mut qp, &[SendWr { wr_id: 1, op: op_of(kind), sge, flags: SendFlags::SIGNALED }]);
            qp.blocks(0, 1)
        });
        assert_eq!(stored[0], stored[1], "{kind}");
    }
}

#[test]
fn a_list_stores_what_its_requests_store_alone() {
    let (bytes, empty) = ([7; 60], Sge { length: 0, ..SGE });
    for (kind, flags, sge) in [
        ("send", 2, SGE),
        ("write", 1, SGE),
        ("send", 0, empty),
        ("write", 2, empty),
        ("send", 8, inline(&bytes[..8])),
        ("write", 10, inline(&bytes[..28])),
        ("write", 10, inline(&bytes)),
        ("send", 8, inline(&[])),
    ] {
        let (op, flags) = (op_of(kind), SendFlags::from_bits_retain(flags));
        let list = [1, 2].map(|wr_id| SendWr { wr_id, op, sge: core::slice::from_ref(&sge), flags });
        let (mut alone, mut listed) = (ready(PaperShape::default()), ready(PaperShape::default()));
        list.iter().for_each(|wr| post(&mut alone, core::slice::from_ref(wr)));
        post(&mut listed, &list);
        assert_eq!(listed.blocks(0, 4), alone.blocks(0, 4), "{kind} {flags:?} {}", sge.length);
        assert_eq!(listed.records(), alone.records(), "{kind} {flags:?} {}", sge.length);
    }
}

#[test]
fn a_list_ends_at_a_message_that_is_too_long() {
    let long = Sge { length: (1 << 31) + 1, ..SGE };
    for kind in ["send", "write"] {
        let mut qp = ready(PaperShape::default());
        let wr = |sge| SendWr { wr_id: 1, op: op_of(kind), sge, flags: SendFlags::empty() };
        // SAFETY: a paper device accesses no memory.
        let refused = unsafe { qp.sq.post_send(&[wr(&[SGE]), wr(&[long]), wr(&[SGE])]) }.unwrap_err();
        assert_eq!(refused.accepted, 1, "{kind}");
        assert!(matches!(refused.reason, PostReason::MessageTooLong { .. }), "{kind}: {refused}");
        assert_eq!(qp.records()[1], 1, "{kind}: what stands before it was posted");
    }
}

#[test]
fn inline_data_of_one_piece_may_end_in_another_block() {
    let bytes: Vec<u8> = (1..=64).collect();
    for (kind, before) in [("send", hex("0a00abcd")), ("write", hex("0800abcd"))] {
        for (len, first) in (1..=64).flat_map(|len| [(len, 0), (len, 15)]) {
            let mut qp = ready(PaperShape::default());
            skip(&mut qp, first);
            let untouched = qp.blocks(first + 2, 1);
            let sge = [inline(&bytes[..len])];
            post(&mut qp, &[SendWr { wr_id: 1, op: op_of(kind), sge: &sge, flags: SendFlags::INLINE }]);
            let at = if kind == "send" { 16 } else { 32 };
            let stored = qp.blocks(first, 2);
            assert_eq!(stored[3..7], before);
            assert_eq!(stored[at..at + 4], (len as u32 | 1 << 31).to_be_bytes());
            assert_eq!(stored[at + 4..at + 4 + len], bytes[..len], "{len} bytes of a {kind} at {first}");
            assert_eq!(usize::from(stored[7]), at / 16 + (len + 4).div_ceil(16), "{len} bytes of a {kind}");
            assert_eq!(qp.blocks(first + 2, 1), untouched);
        }
    }
}

#[test]
fn inline_data_is_refused_where_a_request_cannot_have_it() {
    let bytes = [7; 8];
    let sge = [inline(&bytes)];
    let mut qp = ready(PaperShape::default());
    let read = SendWr { wr_id: 1, op: op_of("read"), sge: &sge, flags: SendFlags::INLINE };
    // SAFETY: a paper device accesses no memory, and inline data is borrowed.
    assert!(unsafe { qp.sq.post_one(&read) }.is_err());
    let mut qp = ready(PaperShape { max_inline: 4, ..PaperShape::default() });
    // SAFETY: as above.
    let refused = unsafe { qp.sq.post_one(&SendWr { op: SendOp::Send, ..read }) };
    assert_eq!(refused, Err(PostReason::InlineTooLong { given: 8, max: 4 }));
}

#[test]
fn inline_data_of_no_bytes_is_no_segment() {
    let path = [0; 48];
    let av = Av::new(AV_TAG, &path);
    let to = UdAddr { av: &av, remote_qpn: 1, remote_qkey: 1 };
    for sge in [&[] as &[Sge], &[inline(&[])]] {
        let mut qp = ready(PaperShape { qp_type: QpType::UD, blocks_of_request: 5, ..PaperShape::default() });
        post(&mut qp, &[SendWr { wr_id: 1, op: SendOp::UdSend { to }, sge, flags: SendFlags::INLINE }]);
        assert_eq!(qp.blocks(0, 1)[..8], hex("0000000a 00abcd04"));
        assert_eq!(qp.blocks(1, 1), [0; 64], "the next block is no part of the entry");
    }
}

#[test]
fn the_programs_fence_replaces_that_of_a_key() {
    let mut qp = ready(PaperShape::default());
    let wr = |op, flags| SendWr { wr_id: 1, op, sge: &[], flags };
    let invalidate = SendOp::LocalInv { invalidate_rkey: 5 };
    post(&mut qp, &[wr(invalidate, SendFlags::empty()), wr(SendOp::Send, SendFlags::FENCE)]);
    assert_eq!(qp.blocks(2, 1)[8..12], hex("00000080"));
}

#[test]
fn a_batch_that_is_taken_back_leaves_its_fence_and_its_blocks() {
    let mut qp = ready(PaperShape::default());
    let bytes = [7; 100];
    let invalidate = SendOp::LocalInv { invalidate_rkey: 5 };
    let long = [inline(&bytes)];
    let wr = |op, sge, flags| SendWr { wr_id: 1, op, sge, flags };
    for (before, blocks, fence) in [(0, 0, "00"), (1, 2, "20"), (2, 4, "00")] {
        qp.move_to(QpState::RESET);
        for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
            qp.move_to(state);
        }
        let requests = [
            wr(invalidate, &[], SendFlags::empty()),
            wr(SendOp::Send, &long, SendFlags::INLINE),
            wr(invalidate, &[], SendFlags::empty()),
        ];
        for request in &requests {
            // SAFETY: a paper device accesses no memory, and inline data is borrowed.
            unsafe { qp.sq.post_one(request) }.unwrap();
        }
        assert_eq!(qp.sq.rollback(3 - before), 3 - before);
        assert_eq!(qp.records()[1], 0, "nothing is announced before the doorbell");
        post(&mut qp, &[wr(SendOp::Send, &[], SendFlags::empty())]);
        assert_eq!(qp.blocks(blocks, 1)[..12], hex(&format!("0000{blocks:02x}0a 00abcd01 000000{fence}")));
        assert_eq!(qp.records()[1], blocks + 1);
        assert_eq!(qp.sq.rollback(9), 0, "what was announced stays");
    }
}

#[test]
fn a_request_that_is_taken_back_behind_a_doorbell_leaves_its_fence() {
    let mut qp = ready(PaperShape::default());
    let wr = |op| SendWr { wr_id: 1, op, sge: &[], flags: SendFlags::empty() };
    post(&mut qp, &[wr(SendOp::LocalInv { invalidate_rkey: 5 })]);
    // SAFETY: a paper device accesses no memory.
    unsafe { qp.sq.post_one(&wr(SendOp::Send)) }.unwrap();
    assert_eq!(qp.sq.rollback(1), 1);
    post(&mut qp, &[wr(SendOp::Send), wr(SendOp::Send)]);
    assert_eq!(qp.blocks(2, 1)[..12], hex("0000020a 00abcd01 00000020"));
    assert_eq!(qp.blocks(3, 1)[..12], hex("0000030a 00abcd01 00000000"));
}

#[test]
fn an_operation_on_a_key_wraps_between_its_segments() {
    let bind_info = MwBindInfo {
        lkey: 0x55,
        addr: 0x7000,
        length: 1 << 31,
        mw_access_flags: AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC | AccessFlags::ZERO_BASED,
    };
    let expected = |first: u32| {
        hex(&format!(
            "0000{first:02x}25 00abcd0c 00000000 00001101 \
             b0000000 00040000 00000000203c6041 {zero32} \
             00005000 00abcd02 0000000000000000 0000000000000000 0000000080000000 {zero32} \
             80000000 00000055 0000000000007000 {zero32} {zero16}",
            zero32 = "00".repeat(32),
            zero16 = "00".repeat(16),
        ))
    };
    for first in 0..16 {
        let mut qp = ready(PaperShape::default());
        skip(&mut qp, first);
        let op =
            SendOp::BindMw { mw_type: MwType::TYPE_2, rkey: 0x1101, new_rkey: 0x1102, bind_info: &bind_info };
        post(&mut qp, &[SendWr { wr_id: 1, op, sge: &[], flags: SendFlags::empty() }]);
        assert_eq!(qp.blocks(first, 3), expected(first), "at {first}");
    }
    let mut qp = ready(PaperShape::default());
    let too_long = MwBindInfo { length: (1 << 31) + 1, ..bind_info };
    let op = SendOp::BindMw { mw_type: MwType::TYPE_2, rkey: 0x1101, new_rkey: 0x1102, bind_info: &too_long };
    let wr = SendWr { wr_id: 1, op, sge: &[], flags: SendFlags::empty() };
    // SAFETY: a paper device accesses no memory.
    let refused = unsafe { qp.sq.post_one(&wr) };
    assert_eq!(refused, Err(PostReason::MessageTooLong { given: (1 << 31) + 1 }));
}

#[test]
fn an_xrc_initiator_names_the_shared_queue_first() {
    let mut qp = ready(PaperShape { qp_type: QpType::XRC_SEND, ..PaperShape::default() });
    for (block, kind, expected) in [
        (
            0,
            "write",
            format!(
                "00000008 00abcd04 00000000 00000000 00000077 {zero12} {REMOTE} {DATA}",
                zero12 = "00".repeat(12)
            ),
        ),
        (
            1,
            "send",
            format!("0000010a 00abcd03 00000000 00000000 00000077 {zero12} {DATA}", zero12 = "00".repeat(12)),
        ),
    ] {
        let op = op_of(kind);
        let op = SendOp::Xrc { remote_srqn: 0x77, op: &op };
        post(&mut qp, &[SendWr { wr_id: 1, op, sge: &[SGE], flags: SendFlags::empty() }]);
        let expected = hex(&expected);
        assert_eq!(qp.blocks(block, 1)[..expected.len()], expected, "{kind}");
    }
}

#[test]
fn every_request_is_signalled_where_the_queue_pair_asks_for_it() {
    for (sq_sig_all, expected) in [(false, 0x82_u64), (true, 0x8a)] {
        let flags = SendFlags::FENCE | SendFlags::SOLICITED;
        let half = super::queue::control_flags(sq_sig_all)[flags.bits() as usize].to_ne_bytes();
        assert_eq!(half, (expected << 32).to_be_bytes());
    }
}

#[test]
fn a_doorbell_for_one_request_carries_it_and_one_for_more_names_the_last() {
    let mut qp = ready(PaperShape::default());
    let wr = SendWr { wr_id: 1, op: SendOp::Send, sge: &[SGE], flags: SendFlags::empty() };
    post(&mut qp, &[wr, wr]);
    let (second, register) = (qp.blocks(1, 1), qp.take_register(0, 64));
    assert_eq!((&register[..8], &register[8..]), (&second[..8], &[0; 56][..]));
    post(&mut qp, &[wr]);
    assert_eq!(qp.take_register(1, 64), qp.blocks(2, 1), "the halves alternate");
    // Without data, nothing is carried.
    post(&mut qp, &[SendWr { sge: &[], flags: SendFlags::SIGNALED, ..wr }]);
    let register = qp.take_register(0, 64);
    assert_eq!((&register[..8], &register[8..]), (&qp.blocks(3, 1)[..8], &[0; 56][..]));
    post(&mut qp, &[]);
    assert_eq!(qp.take_register(1, 8), [0; 8], "an empty batch rings nothing");
}

#[test]
fn a_full_queue_refuses_until_a_completion_was_polled() {
    let mut qp = ready(PaperShape::default());
    let wr = |wr_id| SendWr { wr_id, op: SendOp::Send, sge: &[SGE], flags: SendFlags::SIGNALED };
    let mut batch = WrBatch::start(&mut qp.sq);
    for wr_id in 0..5 {
        batch.wr_id = wr_id;
        batch.send().no_data();
    }
    let refused = batch.complete().unwrap_err();
    assert_eq!((refused.position, refused.reason), (4, PostReason::QueueFull));
    for wr_id in 0..4 {
        post(&mut qp, &[wr(wr_id)]);
    }
    // SAFETY: a paper device accesses no memory.
    assert_eq!(unsafe { qp.sq.post_one(&wr(4)) }, Err(PostReason::QueueFull));
    qp.write(PaperCqe { wqe_opcode: 0xa, wqe_counter: 1, ..PaperCqe::default() });
    // SAFETY: as above.
    assert_eq!(unsafe { qp.sq.post_one(&wr(4)) }, Err(PostReason::QueueFull), "not polled yet");
    assert_eq!(qp.lend().map(|completion| format!("{completion:?}").contains("wr_id: 1")), Some(true));
    post(&mut qp, &[wr(4), wr(5)]);
    // SAFETY: as above.
    assert_eq!(unsafe { qp.sq.post_one(&wr(6)) }, Err(PostReason::QueueFull));
}

#[test]
fn a_full_queue_refuses_operations_on_keys_too() {
    let mut qp = ready(PaperShape::default());
    let wr = |op| SendWr { wr_id: 1, op, sge: &[SGE], flags: SendFlags::empty() };
    for _ in 0..4 {
        post(&mut qp, &[wr(SendOp::Send)]);
    }
    let invalidation = SendWr { sge: &[], ..wr(SendOp::LocalInv { invalidate_rkey: 5 }) };
    // SAFETY: a paper device accesses no memory.
    assert_eq!(unsafe { qp.sq.post_one(&invalidation) }, Err(PostReason::QueueFull));
}

#[test]
fn the_counter_wraps_at_16_bits() {
    let mut qp = ready(PaperShape::default());
    let wr = |wr_id| SendWr { wr_id, op: SendOp::Send, sge: &[SGE], flags: SendFlags::SIGNALED };
    for wr_id in 0..70_000_u64 {
        post(&mut qp, &[wr(wr_id)]);
        assert_eq!(qp.records()[1], (wr_id as u32 + 1) & 0xffff);
        qp.write(PaperCqe { wqe_opcode: 0xa, wqe_counter: wr_id as u16, ..PaperCqe::default() });
        let mut wc = [Wc::default()];
        assert_eq!((qp.poll(&mut wc), wc[0].wr_id), (1, wr_id));
    }
}

#[test]
fn a_request_of_the_programs_own_gets_its_number_and_wraps() {
    let mut control = [0; UNIT];
    (control[3], control[6], control[7], control[11]) = (SEND, 0xcd, 5, 8);
    let request = [control, [1; UNIT], [2; UNIT], [3; UNIT], [4; UNIT]];
    // SAFETY: a paper device accesses no memory.
    let post = |qp: &mut PaperQp, request: &[[u8; UNIT]]| unsafe { qp.sq.post_raw(7, request) };
    // SAFETY: the test has one thread.
    let mut closed = unsafe { PaperQp::new(PaperShape::default()) };
    assert_eq!(post(&mut closed, &request), Err(PostReason::InvalidState));
    let mut qp = ready(PaperShape::default());
    let too_long = |given| Err(PostReason::TooManySge { given, max: 16 });
    assert_eq!(post(&mut qp, &request[..4]), too_long(4), "another length than it tells");
    assert_eq!(post(&mut qp, &[]), too_long(0));
    assert_eq!(post(&mut qp, &[[17; UNIT]; 17]), too_long(17));
    skip(&mut qp, 13);
    for (place, next) in [(13, 14), (15, 0), (17, 2)] {
        post(&mut qp, &request).unwrap();
        let stored = [&[0, 0, place, SEND][..], &control[4..]].concat();
        let first = u32::from(place) % 16;
        assert_eq!(qp.blocks(first, 1), [&stored[..], &[1; UNIT], &[2; UNIT], &[3; UNIT]].concat());
        assert_eq!(qp.blocks(next, 1)[..UNIT], [4; UNIT]);
    }
    post(&mut qp, &request).unwrap();
    assert_eq!(post(&mut qp, &request), Err(PostReason::QueueFull));
    assert_eq!(qp.sq.rollback(2), 2);
    qp.sq.ring().unwrap();
    assert_eq!(qp.records()[1], 17);
    qp.write(PaperCqe { wqe_opcode: SEND, wqe_counter: 15, ..PaperCqe::default() });
    let mut wc = [Wc::default()];
    assert_eq!((qp.poll(&mut wc), wc[0].wr_id, wc[0].opcode), (1, 7, WcOpcode::DRIVER2));
}
