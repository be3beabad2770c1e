mod runs;

use std::sync::Arc;

use verbs_core::provider::{Completion as _, RecvQueue as _, SendQueue as _};
use verbs_core::types::{
    PostReason, QpState, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc, WcFlags, WcOpcode, WcStatus,
};

use super::cqe::cqe_opcode;
use super::shared_cq::widen;
use super::{Queues, Receives, vendor_err_text};
use crate::paper::{PaperCqe, PaperQp, PaperShape, PaperSrq, QP_NUM, USER_INDEX};
use crate::queue::record::{Kind, RecvRecord, SendRecord};

fn to_rts(qp: &mut PaperQp) {
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        qp.move_to(state);
    }
}

fn ready(shape: PaperShape) -> PaperQp {
    // SAFETY: the test has one thread.
    let mut qp = unsafe { PaperQp::new(shape) };
    to_rts(&mut qp);
    qp
}

fn send(qp: &mut PaperQp, wr_id: u64) {
    let sge = [Sge { addr: 1, length: 1, lkey: 1 }];
    let wr = SendWr { wr_id, op: SendOp::Send, sge: &sge, flags: SendFlags::SIGNALED };
    // SAFETY: a paper device accesses no memory.
    unsafe { qp.sq.post_send(&[wr]) }.unwrap();
}

/// Posts an operation on one 8-byte element.
fn post(qp: &mut PaperQp, wr_id: u64, op: SendOp<'_>) {
    let sge = [Sge { addr: 8, length: 8, lkey: 1 }];
    // SAFETY: a paper device accesses no memory.
    unsafe { qp.sq.post_send(&[SendWr { wr_id, op, sge: &sge, flags: SendFlags::SIGNALED }]) }.unwrap();
}

fn recv(qp: &mut PaperQp, wr_id: u64) {
    let sge = [Sge { addr: 1, length: 1, lkey: 1 }];
    // SAFETY: a paper device accesses no memory.
    unsafe { qp.rq.post_recv(&[RecvWr { wr_id, sge: &sge }]) }.unwrap();
}

fn all(qp: &mut PaperQp) -> Vec<Wc> {
    let mut wcs = [Wc::default(); 32];
    let count = qp.poll(&mut wcs);
    wcs[..count].to_vec()
}

fn numbers(qp: &mut PaperQp) -> Vec<u64> {
    all(qp).iter().map(|wc| wc.wr_id).collect()
}

const SENT: PaperCqe = PaperCqe {
    opcode: cqe_opcode::REQ,
    wqe_opcode: 0x0a,
    wqe_counter: 0,
    byte_cnt: 0,
    imm_inval_pkey: 0,
    flags_rqpn: 0,
    slid: 0,
    ml_path: 0,
    syndromes: [0; 2],
    format: 0,
    timestamp: 0,
    vlan_info: 0,
    frame: [0; 2],
};

#[test]
fn each_operation_has_its_name_and_its_length() {
    let (remote_addr, rkey) = (0, 1);
    let swap = SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 1, swap: 2 };
    let add = SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 };
    for (wqe_opcode, opcode, byte_len) in [
        (0x0a, WcOpcode::SEND, 0),
        (0x0b, WcOpcode::SEND, 0),
        (0x01, WcOpcode::SEND, 0),
        (0x08, WcOpcode::RDMA_WRITE, 0),
        (0x09, WcOpcode::RDMA_WRITE, 0),
        (0x10, WcOpcode::RDMA_READ, 77),
        (0x11, WcOpcode::COMP_SWAP, 8),
        (0x12, WcOpcode::FETCH_ADD, 8),
        (0x0e, WcOpcode::TSO, 0),
    ] {
        let mut qp = ready(PaperShape::default());
        let op = match wqe_opcode {
            0x10 => SendOp::RdmaRead { remote_addr, rkey },
            0x11 => swap,
            0x12 => add,
            _ => SendOp::Send,
        };
        post(&mut qp, 5, op);
        qp.write(PaperCqe { wqe_opcode, byte_cnt: 77, ..SENT });
        let expected = Wc { wr_id: 5, opcode, byte_len, qp_num: QP_NUM, ..Wc::default() };
        assert_eq!(all(&mut qp), [expected], "{wqe_opcode:#x}");
    }
}

#[test]
fn operations_on_keys_are_told_apart_by_their_requests() {
    let mut qp = ready(PaperShape::default());
    let wr = SendWr {
        wr_id: 3,
        op: SendOp::LocalInv { invalidate_rkey: 1 },
        sge: &[],
        flags: SendFlags::SIGNALED,
    };
    // SAFETY: a paper device accesses no memory.
    unsafe { qp.sq.post_send(&[wr]) }.unwrap();
    qp.write(PaperCqe { wqe_opcode: 0x25, ..SENT });
    assert_eq!(all(&mut qp)[0].opcode, WcOpcode::LOCAL_INV);
}

#[test]
fn a_receive_has_every_field() {
    for (opcode, wc_opcode, wc_flags, imm_data) in [
        (cqe_opcode::RESP_SEND, WcOpcode::RECV, WcFlags::GRH, 0),
        (cqe_opcode::RESP_SEND_IMM, WcOpcode::RECV, WcFlags::GRH | WcFlags::WITH_IMM, 0x0102_0304),
        (cqe_opcode::RESP_SEND_INV, WcOpcode::RECV, WcFlags::GRH | WcFlags::WITH_INV, 0x0102_0304),
        (
            cqe_opcode::RESP_WR_IMM,
            WcOpcode::RECV_RDMA_WITH_IMM,
            WcFlags::GRH | WcFlags::WITH_IMM,
            0x0102_0304,
        ),
    ] {
        let mut qp = ready(PaperShape::default());
        recv(&mut qp, 9);
        qp.write(PaperCqe {
            opcode,
            byte_cnt: 1234,
            imm_inval_pkey: 0x0102_0304,
            flags_rqpn: 0x2da0_0042,
            slid: 0x77,
            ml_path: 0x83,
            ..PaperCqe::default()
        });
        let expected = Wc {
            wr_id: 9,
            opcode: wc_opcode,
            byte_len: 1234,
            imm_data,
            qp_num: QP_NUM,
            src_qp: 0xa0_0042,
            wc_flags,
            pkey_index: 0x0304,
            slid: 0x77,
            sl: 13,
            dlid_path_bits: 3,
            ..Wc::default()
        };
        assert_eq!(all(&mut qp), [expected], "{opcode}");
    }
}

#[test]
fn every_reader_agrees_with_the_copy() {
    let mut qp = ready(PaperShape { blocks: 64, ..PaperShape::default() });
    for (at, opcode) in [0, 1, 2, 3, 4, 13, 14].into_iter().enumerate() {
        post(&mut qp, 100 + at as u64, SendOp::RdmaRead { remote_addr: 0, rkey: 1 });
        recv(&mut qp, 200 + at as u64);
        let wqe_counter = at as u16;
        qp.write(PaperCqe {
            opcode,
            wqe_opcode: 0x10,
            wqe_counter,
            byte_cnt: 5,
            imm_inval_pkey: 6,
            flags_rqpn: 0x3fa0_0008,
            slid: 9,
            ml_path: 0x8a,
            syndromes: [0x51, 0x13],
            format: 0,
            timestamp: 11,
            vlan_info: 12,
            frame: [6, 8],
        });
        let completion = qp.lend().unwrap();
        let mut copy = Wc::default();
        completion.write_to(&mut copy);
        let read = Wc {
            wr_id: completion.wr_id(),
            status: completion.status(),
            opcode: completion.opcode(),
            vendor_err: completion.vendor_err(),
            byte_len: completion.byte_len(),
            imm_data: completion.imm_data(),
            qp_num: completion.qp_num(),
            src_qp: completion.src_qp(),
            wc_flags: completion.wc_flags(),
            pkey_index: completion.pkey_index(),
            slid: completion.slid(),
            sl: completion.sl(),
            dlid_path_bits: completion.dlid_path_bits(),
        };
        assert_eq!(copy, read, "{opcode}");
    }
}

#[test]
fn a_frame_with_right_checksums_says_so() {
    let mut qp = ready(PaperShape::default());
    let requests = RecvRecord::new(8);
    qp.begin(1, Queues { recv: Some(Receives::Own(requests)), recv_kind: Kind::FRAME, ..Queues::default() });
    let right = WcFlags::IP_CSUM_OK;
    for (frame, wc_flags) in [
        ([0b110, 0b1000], right),
        ([0b111, 0b1011], right),
        ([0b010, 0b1000], WcFlags::empty()),
        ([0b100, 0b1000], WcFlags::empty()),
        ([0b110, 0b0100], WcFlags::empty()),
        ([0b110, 0b0000], WcFlags::empty()),
    ] {
        qp.write_of(1, PaperCqe { opcode: cqe_opcode::RESP_SEND, frame, ..SENT });
        assert_eq!(all(&mut qp)[0].wc_flags, wc_flags, "{frame:?}");
    }
    // For other queue pairs, these bits mean nothing.
    recv(&mut qp, 1);
    qp.write(PaperCqe { opcode: cqe_opcode::RESP_SEND, frame: [0b110, 0b1000], ..SENT });
    assert_eq!(all(&mut qp)[0].wc_flags, WcFlags::empty());
}

#[test]
fn each_syndrome_has_its_status() {
    for (syndrome, status) in [
        (0x01, WcStatus::LOC_LEN_ERR),
        (0x02, WcStatus::LOC_QP_OP_ERR),
        (0x04, WcStatus::LOC_PROT_ERR),
        (0x05, WcStatus::WR_FLUSH_ERR),
        (0x06, WcStatus::MW_BIND_ERR),
        (0x10, WcStatus::BAD_RESP_ERR),
        (0x11, WcStatus::LOC_ACCESS_ERR),
        (0x12, WcStatus::REM_INV_REQ_ERR),
        (0x13, WcStatus::REM_ACCESS_ERR),
        (0x14, WcStatus::REM_OP_ERR),
        (0x15, WcStatus::RETRY_EXC_ERR),
        (0x16, WcStatus::RNR_RETRY_EXC_ERR),
        (0x22, WcStatus::REM_ABORT_ERR),
        (0x99, WcStatus::GENERAL_ERR),
    ] {
        let mut qp = ready(PaperShape::default());
        send(&mut qp, 1);
        recv(&mut qp, 2);
        for opcode in [cqe_opcode::REQ_ERR, cqe_opcode::RESP_ERR] {
            qp.write(PaperCqe { opcode, syndromes: [0xfe, syndrome], ..PaperCqe::default() });
        }
        let failed: Vec<_> =
            all(&mut qp).iter().map(|wc| (wc.wr_id, wc.opcode, wc.status, wc.vendor_err)).collect();
        let expected = [(1, WcOpcode::SEND, status, 0xfe), (2, WcOpcode::RECV, status, 0xfe)];
        assert_eq!(failed, expected);
    }
}

#[test]
fn the_vendors_syndrome_of_a_page_fault_has_a_text_and_others_have_none() {
    let mut qp = ready(PaperShape::default());
    recv(&mut qp, 2);
    qp.write(PaperCqe { opcode: cqe_opcode::RESP_ERR, syndromes: [0x93, 0x14], ..PaperCqe::default() });
    let wc = all(&mut qp)[0];
    assert_eq!(wc.status, WcStatus::REM_OP_ERR);
    assert!(vendor_err_text(wc.vendor_err).is_some_and(|text| text.contains("page fault")));
    assert_eq!([0, 0x81, 0x193, u32::MAX].map(vendor_err_text), [None; 4]);
}

#[test]
fn a_receive_of_a_shared_queue_whose_memory_was_absent_ends_and_can_be_posted_again() {
    let mut srq = PaperSrq::new(2, 2);
    let shape = PaperShape::default();
    // SAFETY: the test has one thread.
    let mut qp = unsafe { PaperQp::of_srq(shape, &srq) };
    for state in [QpState::INIT, QpState::RTR] {
        qp.move_to(state);
    }
    let post = |srq: &mut PaperSrq| {
        // SAFETY: a paper device accesses no memory named by work requests.
        unsafe { srq.queue.post_recv(&[RecvWr { wr_id: 7, sge: &[] }]) }
    };
    for (opcode, syndromes, status) in [
        (cqe_opcode::RESP_ERR, [0x93, 0x22], WcStatus::REM_ABORT_ERR),
        (cqe_opcode::RESP_SEND, [0, 0], WcStatus::SUCCESS),
    ] {
        post(&mut srq).unwrap();
        assert_eq!(post(&mut srq).unwrap_err().reason, PostReason::QueueFull);
        let wqe_counter = srq.device.take().unwrap();
        srq.device.complete(wqe_counter);
        qp.write(PaperCqe { opcode, wqe_counter, syndromes, ..PaperCqe::default() });
        let ended: Vec<_> = all(&mut qp).iter().map(|wc| (wc.wr_id, wc.status, wc.vendor_err)).collect();
        assert_eq!(ended, [(7, status, syndromes[0].into())]);
    }
}

#[test]
fn a_queue_goes_round_with_entries_of_both_sizes() {
    for cqe_size in [64, 128] {
        let mut qp = ready(PaperShape { cqe_size, cqes: 4, ..PaperShape::default() });
        for round in 0..50_u64 {
            assert_eq!(numbers(&mut qp), [0_u64; 0]);
            for n in 0..1 + round % 4 {
                send(&mut qp, round * 10 + n);
            }
            let first = qp.records()[1] - 1 - (round % 4) as u32;
            for n in 0..1 + (round % 4) as u32 {
                qp.write(PaperCqe { wqe_counter: (first + n) as u16, ..SENT });
            }
            let expected: Vec<u64> = (0..1 + round % 4).map(|n| round * 10 + n).collect();
            assert_eq!(numbers(&mut qp), expected);
        }
    }
}

#[test]
fn entries_return_to_the_device_when_they_were_polled() {
    let mut qp = ready(PaperShape::default());
    for wr_id in 0..3 {
        send(&mut qp, wr_id);
        qp.write(PaperCqe { wqe_counter: wr_id as u16, ..SENT });
    }
    qp.lend();
    assert_eq!(qp.records()[2], 0, "it is lent");
    qp.lend();
    assert_eq!(qp.records()[2], 1);
    qp.end_poll();
    assert_eq!(qp.records()[2], 2);
    qp.lend();
    assert!(qp.lend().is_none());
    assert_eq!(qp.records()[2], 3);
}

#[test]
fn entries_return_where_the_index_wraps_at_32_bits_too() {
    let mut qp = ready(PaperShape { cqes: 4, ..PaperShape::default() });
    qp.skip_to(u32::MAX - 1);
    for expected in [0xff_ffff, 0, 1] {
        send(&mut qp, 5);
        qp.write(PaperCqe { wqe_counter: qp.records()[1] as u16 - 1, ..SENT });
        assert_eq!(numbers(&mut qp), [5]);
        assert_eq!(qp.records()[2], expected);
    }
}

#[test]
fn completions_from_before_a_reset_are_skipped_and_those_behind_it_are_not() {
    for polled_before in 0..4 {
        let mut qp = ready(PaperShape::default());
        for wr_id in 0..4 {
            send(&mut qp, wr_id);
            recv(&mut qp, 100 + wr_id);
            qp.write(PaperCqe { wqe_counter: wr_id as u16, ..SENT });
        }
        for wr_id in 0..polled_before {
            assert_eq!(qp.lend().map(|one| one.wr_id()), Some(wr_id));
        }
        qp.move_to(QpState::RESET);
        to_rts(&mut qp);
        assert_eq!(qp.records()[..2], [0, 0], "the device expects records of 0");
        send(&mut qp, 50);
        recv(&mut qp, 60);
        qp.write(SENT);
        qp.write(PaperCqe { opcode: cqe_opcode::RESP_SEND, ..PaperCqe::default() });
        assert_eq!(numbers(&mut qp), [50, 60], "{polled_before}");
        send(&mut qp, 51);
        qp.write(PaperCqe { wqe_counter: 1, ..SENT });
        assert_eq!(numbers(&mut qp), [51]);
    }
}

#[test]
fn a_queue_pair_that_is_reset_again_and_again_never_returns_an_old_number() {
    let mut qp = ready(PaperShape { cqes: 64, ..PaperShape::default() });
    for life in 0..10_u64 {
        for n in 0..4 {
            send(&mut qp, life * 10 + n);
            qp.write(PaperCqe { wqe_counter: n as u16, ..SENT });
        }
        if life < 9 {
            qp.move_to(QpState::RESET);
            to_rts(&mut qp);
        }
    }
    assert_eq!(numbers(&mut qp), [90, 91, 92, 93]);
}

#[test]
fn completions_of_a_destroyed_queue_pair_are_skipped_and_its_records_are_released() {
    let mut qp = ready(PaperShape::default());
    let record = Arc::clone(qp.sq.requests());
    send(&mut qp, 1);
    qp.write(SENT);
    assert_eq!(numbers(&mut qp), [1]);
    for wqe_counter in 1..4 {
        send(&mut qp, wqe_counter);
        qp.write(PaperCqe { wqe_counter: wqe_counter as u16, ..SENT });
    }
    qp.destroy();
    // Another queue pair's completions follow.
    let (send_record, recv_record) = (SendRecord::new(1), RecvRecord::new(1));
    send_record.put(0, 77, 1, Kind::PLAIN);
    recv_record.put(0, 78);
    qp.begin(USER_INDEX + 1, Queues { send: Some(send_record), recv: None, ..Queues::default() });
    qp.begin(
        USER_INDEX + 300,
        Queues { send: None, recv: Some(Receives::Own(recv_record)), ..Queues::default() },
    );
    qp.write_of(USER_INDEX + 1, SENT);
    qp.write_of(USER_INDEX + 300, PaperCqe { opcode: cqe_opcode::RESP_SEND, ..PaperCqe::default() });
    assert_eq!(numbers(&mut qp), [77, 78]);
    // One reference for the queue itself, one for the test.
    assert_eq!(Arc::strong_count(&record), 2);
}

#[test]
fn what_a_broken_device_writes_is_skipped() {
    let mut qp = ready(PaperShape::default());
    let sends_only = Queues { send: Some(SendRecord::new(1)), recv: None, ..Queues::default() };
    let recvs_only =
        Queues { send: None, recv: Some(Receives::Own(RecvRecord::new(1))), ..Queues::default() };
    qp.begin(1, sends_only);
    qp.begin(2, recvs_only);
    for (user_index, opcode) in [
        (0xff_ffff, cqe_opcode::REQ),
        (0xffff_ffff, cqe_opcode::REQ),
        (1, cqe_opcode::RESP_SEND),
        (1, cqe_opcode::RESP_ERR),
        (2, cqe_opcode::REQ),
        (2, cqe_opcode::REQ),
        (2, cqe_opcode::REQ_ERR),
        (USER_INDEX, 5),
        (USER_INDEX, 9),
        (USER_INDEX, 12),
    ] {
        qp.write_of(user_index, PaperCqe { opcode, wqe_counter: 0xffff, ..PaperCqe::default() });
    }
    assert_eq!(numbers(&mut qp), [0_u64; 0]);
    // A position without a request yields a `wr_id` that no request has.
    qp.write(PaperCqe { wqe_counter: 0xfff3, ..SENT });
    assert_eq!(numbers(&mut qp), [0]);
}

#[test]
fn data_in_an_entry_that_nobody_asked_for_is_an_error() {
    for opcode in [cqe_opcode::REQ, cqe_opcode::RESP_SEND] {
        for format in [4, 8, 12] {
            let mut qp = ready(PaperShape::default());
            let queues = Queues {
                send: Some(Arc::clone(qp.sq.requests())),
                recv: Some(Receives::Own(Arc::clone(qp.rq.requests()))),
                ..Queues::default()
            };
            qp.begin(USER_INDEX, queues);
            send(&mut qp, 1);
            recv(&mut qp, 1);
            qp.write(PaperCqe { opcode, format, ..SENT });
            let wcs = all(&mut qp);
            assert_eq!((wcs[0].wr_id, wcs[0].status), (1, WcStatus::GENERAL_ERR), "{opcode}, {format}");
        }
    }
}

#[test]
fn a_number_that_is_used_again_at_once_has_no_completions_of_the_former_queue_pair() {
    let mut qp = ready(PaperShape::default());
    for wr_id in 0..3 {
        send(&mut qp, wr_id);
        qp.write(PaperCqe { wqe_counter: wr_id as u16, ..SENT });
    }
    qp.destroy();
    let record = SendRecord::new(4);
    record.put(0, 77, 1, Kind::PLAIN);
    qp.begin(USER_INDEX, Queues { send: Some(record), recv: None, ..Queues::default() });
    qp.write(SENT);
    assert_eq!(numbers(&mut qp), [77]);
}

#[test]
fn a_send_of_a_queue_pair_whose_sends_complete_elsewhere_is_skipped() {
    let mut qp = ready(PaperShape::default());
    let recv = Some(Receives::Own(RecvRecord::new(1)));
    qp.begin(1, Queues { send: None, recv, ..Queues::default() });
    // A receive makes it the poller's current queue pair.
    for _ in 0..2 {
        qp.write_of(1, PaperCqe { opcode: cqe_opcode::RESP_SEND, ..PaperCqe::default() });
        assert_eq!(qp.lend().map(|completion| completion.wr_id()), Some(0));
        qp.write_of(1, SENT);
        assert!(qp.lend().is_none());
    }
}

#[test]
fn a_queue_that_is_polled_empty_releases_the_queue_pairs_that_ended() {
    let mut qp = ready(PaperShape::default());
    let record = SendRecord::new(4);
    qp.begin(1, Queues { send: Some(Arc::clone(&record)), recv: None, ..Queues::default() });
    assert_eq!(numbers(&mut qp), [0_u64; 0]);
    qp.end(1);
    assert_eq!(Arc::strong_count(&record), 2);
    assert_eq!(numbers(&mut qp), [0_u64; 0]);
    assert_eq!(Arc::strong_count(&record), 1);
    qp.begin(2, Queues { send: Some(Arc::clone(&record)), recv: None, ..Queues::default() });
    assert_eq!(numbers(&mut qp), [0_u64; 0]);
    qp.end(2);
    assert!(qp.lend().is_none());
    assert_eq!(Arc::strong_count(&record), 1, "also where completions are lent");
}

#[test]
fn places_wrap_at_24_bits_and_lives_end_there() {
    let mut qp = ready(PaperShape { cqes: 4, ..PaperShape::default() });
    qp.skip_to(0xff_fffe);
    for life in 0..4_u64 {
        for n in 0..3 {
            send(&mut qp, life * 10 + n);
            qp.write(PaperCqe { wqe_counter: n as u16, ..SENT });
        }
        assert_eq!(qp.lend().map(|one| one.wr_id()), Some(life * 10), "{life}");
        qp.move_to(QpState::RESET);
        to_rts(&mut qp);
        assert_eq!(numbers(&mut qp), [0_u64; 0], "{life}");
        let index = 0xff_fffe + 3 * (life as u32 + 1);
        assert_eq!(qp.records()[2], index & 0xff_ffff, "the record has 24 bits");
    }
}

#[test]
fn the_record_has_24_bits_where_completions_are_polled_alone() {
    let mut qp = ready(PaperShape { cqes: 4, ..PaperShape::default() });
    qp.skip_to(0xff_fffe);
    let mut wc = [Wc::default()];
    for n in 0..4_u32 {
        send(&mut qp, n.into());
        qp.write(PaperCqe { wqe_counter: n as u16, ..SENT });
        assert_eq!((qp.poll(&mut wc), wc[0].wr_id), (1, n.into()));
        assert_eq!(qp.records()[2], (0xff_ffff + n) & 0xff_ffff);
    }
}

#[test]
fn the_number_of_a_queue_pair_has_24_bits_and_all_of_them_count() {
    let mut qp = ready(PaperShape::default());
    send(&mut qp, 5);
    let others = [0x100, 0x200, 0x1_0000].map(|beyond| {
        let record = SendRecord::new(1);
        record.put(0, u64::from(beyond), 1, Kind::PLAIN);
        qp.begin(USER_INDEX + beyond, Queues { send: Some(record), ..Queues::default() });
        USER_INDEX + beyond
    });
    // The upper 8 bits are reserved.
    for user_index in [others[0], USER_INDEX, others[1], others[2] | 0x7700_0000] {
        qp.write_of(user_index, SENT);
    }
    assert_eq!(numbers(&mut qp), [0x100, 5, 0x200, 0x1_0000]);
}

#[test]
fn a_place_of_24_bits_is_found_near_one_of_32() {
    for (until, near, expected) in [
        (5, 3, 5),
        (3, 5, 3),
        (1, 0x00ff_fffe, 0x0100_0001),
        (0xff_fffe, 0x0100_0001, 0x00ff_fffe),
        (2, u32::MAX, 2),
        (0xff_ffff, 1, u32::MAX),
    ] {
        assert_eq!(widen(until, near), expected, "{until:#x} near {near:#x}");
    }
}

#[test]
fn a_resize_keeps_the_completions_and_their_order() {
    for (cqes, new_cqes) in [(8, 32), (32, 8), (8, 16)] {
        for polled in 0..12_u64 {
            let mut qp = ready(PaperShape { entries: 64, cqes, ..PaperShape::default() });
            let mut next = 0;
            let mut complete = |qp: &mut PaperQp, count: u64| {
                for _ in 0..count {
                    recv(qp, next);
                    qp.write(PaperCqe { opcode: 2, wqe_counter: next as u16, ..PaperCqe::default() });
                    next += 1;
                }
            };
            for wr_id in 0..polled {
                complete(&mut qp, 1);
                assert_eq!(numbers(&mut qp), [wr_id]);
            }
            complete(&mut qp, 5);
            assert!(qp.resize(new_cqes, false), "{cqes} to {new_cqes} behind {polled}");
            // The poller may run before the device's next completion, or after it.
            let mut got = if polled % 2 == 0 { numbers(&mut qp) } else { Vec::new() };
            complete(&mut qp, 2);
            got.extend(numbers(&mut qp));
            let expected: Vec<u64> = (polled..polled + 7).collect();
            assert_eq!(got, expected, "{cqes} to {new_cqes} behind {polled}");
            complete(&mut qp, 3);
            assert_eq!(numbers(&mut qp), [polled + 7, polled + 8, polled + 9]);
            assert_eq!(u64::from(qp.records()[2]), polled + 11);
        }
    }
}

#[test]
fn a_resize_keeps_ended_lives_ended() {
    let mut qp = ready(PaperShape { entries: 64, cqes: 8, ..PaperShape::default() });
    for wr_id in 0..3 {
        recv(&mut qp, wr_id);
        qp.write(PaperCqe { opcode: 2, wqe_counter: wr_id as u16, ..PaperCqe::default() });
    }
    // The poller has seen the first end, but not the second.
    qp.move_to(QpState::RESET);
    qp.move_to(QpState::INIT);
    assert_eq!(numbers(&mut qp), [0; 0]);
    recv(&mut qp, 3);
    qp.write(PaperCqe { opcode: 2, wqe_counter: 0, ..PaperCqe::default() });
    qp.move_to(QpState::RESET);
    qp.move_to(QpState::INIT);
    assert!(qp.resize(16, false));
    recv(&mut qp, 4);
    qp.write(PaperCqe { opcode: 2, wqe_counter: 0, ..PaperCqe::default() });
    assert_eq!(numbers(&mut qp), [4]);
}

#[test]
fn a_resize_moves_the_end_of_a_life_that_the_poller_is_about_to_pass() {
    let mut qp = ready(PaperShape { entries: 64, cqes: 8, ..PaperShape::default() });
    let record = RecvRecord::new(1);
    record.put(0, 77);
    qp.begin(1, Queues { recv: Some(Receives::Own(record)), ..Queues::default() });
    let received = PaperCqe { opcode: 2, ..PaperCqe::default() };
    for wr_id in 0..2 {
        recv(&mut qp, wr_id);
        qp.write(PaperCqe { wqe_counter: wr_id as u16, ..received });
        if wr_id == 0 {
            qp.write_of(1, received);
        }
    }
    qp.move_to(QpState::RESET);
    to_rts(&mut qp);
    assert_eq!(qp.lend().map(|one| one.wr_id()), Some(77));
    assert!(qp.resize(16, false));
    recv(&mut qp, 5);
    qp.write(received);
    assert_eq!(numbers(&mut qp), [5]);
}

#[test]
fn a_device_that_does_not_end_the_old_ring_is_told_apart() {
    let mut qp = ready(PaperShape::default());
    recv(&mut qp, 7);
    qp.write(PaperCqe { opcode: 2, ..PaperCqe::default() });
    assert!(!qp.resize(32, true));
    assert_eq!(numbers(&mut qp), [7]);
}

#[test]
fn optional_fields_are_there_for_queues_that_were_created_with_them() {
    use verbs_core::types::CqWcFlags;
    let cqe =
        PaperCqe { opcode: 2, timestamp: 0x1234_5678_9abc_def0, vlan_info: 0xa005, ..PaperCqe::default() };
    for fields in
        [CqWcFlags::empty(), CqWcFlags::COMPLETION_TIMESTAMP | CqWcFlags::CVLAN | CqWcFlags::FLOW_TAG]
    {
        let mut qp = ready(PaperShape::default());
        qp.with_fields(fields);
        recv(&mut qp, 1);
        qp.write(cqe);
        let completion = qp.lend().unwrap();
        let got = (completion.completion_ts(), completion.cvlan(), completion.flow_tag());
        let all = (Some(cqe.timestamp), Some(0xa005), Some(QP_NUM));
        assert_eq!(got, if fields.is_empty() { (None, None, None) } else { all });
        assert_eq!(completion.completion_wallclock_ns(), None);
    }
}

#[test]
fn a_queue_that_nobody_polls_has_no_pending_changes_of_queue_pairs_that_have_come_and_gone() {
    let mut qp = ready(PaperShape::default());
    let changes = |qp: &mut PaperQp| qp.poller().0.shared().with_changes(<[_]>::len);
    let before = changes(&mut qp);
    let (_, queues) = qp.poller();
    for user_index in [USER_INDEX + 1, USER_INDEX + 2].into_iter().cycle().take(100) {
        qp.begin(user_index, queues.clone());
        qp.reset(user_index, queues.clone());
        qp.end(user_index);
    }
    assert_eq!(changes(&mut qp), before);
    // For a queue pair seen by the poller, the last end counts.
    send(&mut qp, 1);
    qp.write(SENT);
    assert_eq!(numbers(&mut qp), [1]);
    for _ in 0..100 {
        qp.reset(USER_INDEX, queues.clone());
    }
    assert_eq!(changes(&mut qp), Ok(1));
    send(&mut qp, 2);
    qp.write(PaperCqe { wqe_counter: 1, ..SENT });
    assert_eq!(numbers(&mut qp), [2]);
}

#[test]
fn pending_changes_of_a_queue_pair_with_a_completion_in_the_queue_are_kept() {
    let mut qp = ready(PaperShape::default());
    let (_, queues) = qp.poller();
    send(&mut qp, 1);
    qp.write(SENT);
    qp.reset(USER_INDEX, queues.clone());
    send(&mut qp, 2);
    qp.write(PaperCqe { wqe_counter: 1, ..SENT });
    assert_eq!(numbers(&mut qp), [2], "the first was of the former life");
}
