use verbs_core::provider::{Completion as _, RecvQueue as _, SendQueue as _};
use verbs_core::types::{AccessFlags, QpState, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc, WcFlags};

use super::super::cqe::cqe_opcode;
use super::*;
use crate::device::regions::RegionInfo;
use crate::paper::{PD, PaperCqe, PaperQp, PaperShape, PaperSrq};

const KEY: u32 = 7;

/// Returns `count` bytes for a reply.
fn bytes(count: usize) -> Vec<u8> {
    (1..=count as u8).collect()
}

fn ready(shape: PaperShape) -> PaperQp {
    // SAFETY: the test has one thread.
    to_rts(unsafe { PaperQp::new(shape) })
}

fn to_rts(mut qp: PaperQp) -> PaperQp {
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        qp.move_to(state);
    }
    qp
}

/// Memory in a program, registered with [`KEY`] under an address other than its own.
struct Memory(Box<[AtomicU8]>);

const IOVA: u64 = 0x5000;

impl Memory {
    fn new(qp: &PaperQp, access: AccessFlags) -> Self {
        let memory = Self((0..256).map(|_| AtomicU8::new(0)).collect());
        let addr = memory.0.as_ptr().expose_provenance();
        qp.regions.add(KEY, RegionInfo::new(PD, Some(addr), 256, IOVA, access));
        memory
    }

    fn writable(qp: &PaperQp) -> Self {
        Self::new(qp, AccessFlags::LOCAL_WRITE)
    }

    fn part(&self, from: usize, count: usize) -> Vec<u8> {
        self.0[from..from + count].iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }
}

fn sge(offset: u64, length: u32) -> Sge {
    Sge { addr: IOVA + offset, length, lkey: KEY }
}

fn recv(qp: &mut PaperQp, wr_id: u64, sge: &[Sge]) {
    // SAFETY: the memory lives as long as the test.
    unsafe { qp.rq.post_recv(&[RecvWr { wr_id, sge }]) }.unwrap();
}

fn fetch(qp: &mut PaperQp, wr_id: u64, op: SendOp<'_>, sge: &[Sge]) {
    // SAFETY: as above.
    unsafe { qp.sq.post_send(&[SendWr { wr_id, op, sge, flags: SendFlags::SIGNALED }]) }.unwrap();
}

fn one(qp: &mut PaperQp) -> Wc {
    let mut wc = [Wc::default()];
    assert_eq!(qp.poll(&mut wc), 1);
    wc[0]
}

const READ: SendOp<'static> = SendOp::RdmaRead { remote_addr: 0, rkey: 1 };

fn received(wqe_counter: u16, len: usize, format: u8) -> PaperCqe {
    let opcode = cqe_opcode::RESP_SEND;
    PaperCqe { opcode, wqe_counter, byte_cnt: len as u32, format, ..PaperCqe::default() }
}

#[test]
fn a_receives_data_is_copied_to_its_elements() {
    for (cqe_size, format, len) in
        [(64, 4, 0), (64, 4, 1), (64, 4, 32), (128, 4, 20), (128, 8, 33), (128, 8, 64)]
    {
        let mut qp = ready(PaperShape { cqe_size, ..PaperShape::default() });
        let memory = Memory::writable(&qp);
        for turn in 0..20_u16 {
            recv(&mut qp, turn.into(), &[sge(0, 10), sge(100, 0), sge(50, 54)]);
            qp.write_with(received(turn, len, format), &bytes(len));
            let wc = one(&mut qp);
            assert_eq!((wc.wr_id, wc.status, wc.byte_len), (turn.into(), WcStatus::SUCCESS, len as u32));
            // These fields contained data.
            assert_eq!((wc.wc_flags, wc.src_qp, wc.slid, wc.sl), (WcFlags::empty(), 0, 0, 0));
            let expected = bytes(len);
            let (first, rest) = expected.split_at(len.min(10));
            assert_eq!(memory.part(0, first.len()), first);
            assert_eq!(memory.part(50, rest.len() + 1), [rest, &[0]].concat());
            memory.0.iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
        }
    }
}

#[test]
fn an_answer_is_copied_across_the_end_of_the_send_queue() {
    let add = SendOp::AtomicFetchAndAdd { remote_addr: 0, rkey: 1, add: 1 };
    for (op, wqe_opcode, len) in [(READ, opcode::RDMA_READ, 60), (add, opcode::ATOMIC_FA, 8)] {
        let mut qp = ready(PaperShape { cqe_size: 128, ..PaperShape::default() });
        let memory = Memory::writable(&qp);
        let list: Vec<Sge> = (0..10).map(|n| sge(n * 10, 6)).collect();
        let list = if len == 8 { &[sge(3, 8)][..] } else { &list };
        let mut block = 0;
        for turn in 0..40 {
            fetch(&mut qp, turn, op, list);
            let cqe =
                PaperCqe { wqe_opcode, wqe_counter: block, byte_cnt: len, format: 8, ..PaperCqe::default() };
            qp.write_with(cqe, &bytes(len as usize));
            let wc = one(&mut qp);
            assert_eq!((wc.wr_id, wc.status, wc.byte_len), (turn, WcStatus::SUCCESS, len));
            if len == 8 {
                assert_eq!(memory.part(3, 8), bytes(8));
            } else {
                let copied: Vec<u8> = (0..10).flat_map(|n| memory.part(n * 10, 6)).collect();
                assert_eq!(copied, bytes(60));
            }
            memory.0.iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
            block += if len == 8 { 1 } else { 3 };
        }
    }
}

#[test]
fn data_that_has_no_place_is_an_error_and_stays_where_it_is() {
    let writable = AccessFlags::LOCAL_WRITE;
    let other = Sge { lkey: KEY + 1, ..sge(0, 8) };
    for (access, list, status) in [
        (writable, &[sge(0, 7)][..], WcStatus::LOC_LEN_ERR),
        (writable, &[], WcStatus::LOC_LEN_ERR),
        (writable, &[sge(250, 8)], WcStatus::LOC_PROT_ERR),
        (writable, &[other], WcStatus::LOC_PROT_ERR),
        (AccessFlags::empty(), &[sge(0, 8)], WcStatus::LOC_PROT_ERR),
        (writable, &[sge(0, 8), other], WcStatus::SUCCESS),
    ] {
        let mut qp = ready(PaperShape::default());
        let _memory = Memory::new(&qp, access);
        recv(&mut qp, 1, list);
        qp.write_with(received(0, 8, 4), &bytes(8));
        let wc = one(&mut qp);
        assert_eq!((wc.wr_id, wc.status, wc.vendor_err), (1, status, 0), "{list:?}");
    }
}

#[test]
fn the_null_region_takes_data_and_forgets_it() {
    let mut qp = ready(PaperShape::default());
    qp.regions = Arc::new(Regions::new(Some(0x700)));
    qp.move_to(QpState::RESET);
    let mut qp = to_rts(qp);
    let memory = Memory::writable(&qp);
    recv(&mut qp, 1, &[Sge { addr: 0, length: 5, lkey: 0x700 }, sge(0, 8)]);
    qp.write_with(received(0, 8, 4), &bytes(8));
    assert_eq!(one(&mut qp).status, WcStatus::SUCCESS);
    assert_eq!(memory.part(0, 4), [6, 7, 8, 0]);
}

#[test]
fn a_completion_that_names_no_request_with_such_data_copies_nothing() {
    let mut qp = ready(PaperShape::default());
    let memory = Memory::writable(&qp);
    for wr_id in 0..2 {
        recv(&mut qp, wr_id, &[sge(0, 64)]);
        fetch(&mut qp, wr_id, if wr_id == 0 { READ } else { SendOp::Send }, &[sge(0, 64)]);
    }
    let sent = |wqe_opcode, wqe_counter| PaperCqe {
        wqe_opcode,
        wqe_counter,
        byte_cnt: 8,
        format: 4,
        ..PaperCqe::default()
    };
    for (name, cqe) in [
        ("another receive is the next", received(1, 8, 4)),
        ("more than the fields hold", received(1, 33, 4)),
        ("the other half of a short entry", received(1, 8, 8)),
        ("two formats", received(1, 8, 12)),
        ("a send", sent(opcode::SEND, 1)),
        ("another operation", sent(opcode::ATOMIC_FA, 0)),
        ("another request", sent(opcode::RDMA_READ, 16)),
        ("a write with immediate data", PaperCqe { opcode: cqe_opcode::RESP_WR_IMM, ..received(0, 8, 4) }),
    ] {
        qp.write_with(cqe, &bytes(8));
        assert_eq!(one(&mut qp).status, WcStatus::GENERAL_ERR, "{name}");
        assert_eq!(memory.part(0, 8), [0; 8], "{name}");
    }
}

#[test]
fn nothing_is_copied_for_a_queue_pair_that_has_ended() {
    for is_reset in [true, false] {
        let mut qp = ready(PaperShape::default());
        let memory = Memory::writable(&qp);
        recv(&mut qp, 1, &[sge(0, 64)]);
        qp.write_with(received(0, 8, 4), &bytes(8));
        if is_reset {
            qp.move_to(QpState::RESET);
        } else {
            qp.destroy();
        }
        assert!(qp.lend().is_none());
        assert_eq!(memory.part(0, 8), [0; 8]);
    }
}

#[test]
fn nothing_is_copied_for_a_queue_pair_that_ends_meanwhile() {
    let mut qp = ready(PaperShape::default());
    let memory = Memory::writable(&qp);
    recv(&mut qp, 1, &[sge(0, 64)]);
    qp.write_with(received(0, 8, 4), &bytes(8));
    let (poller, queues) = qp.poller();
    poller.apply_changes(0);
    // SAFETY: the entry is used before the poller returns it.
    let cqe = unsafe { poller.ring.entry(0).unwrap().lent() };
    qp.move_to(QpState::RESET);
    let (poller, _) = qp.poller();
    assert!(poller.scattered(&queues, cqe, 0).is_none(), "the poller has not applied these changes");
    assert_eq!(memory.part(0, 8), [0; 8]);
}

#[test]
fn nothing_is_copied_after_the_last_poll() {
    let mut qp = ready(PaperShape::default());
    let memory = Memory::writable(&qp);
    recv(&mut qp, 1, &[sge(0, 64)]);
    qp.write_with(received(0, 8, 4), &bytes(8));
    let _queues = qp.without_cq();
    assert_eq!(memory.part(0, 8), [0; 8]);
}

#[test]
fn receives_of_a_shared_queue_have_their_data() {
    let mut srq = PaperSrq::new(8, 4);
    // SAFETY: the test has one thread.
    let mut qp = to_rts(unsafe { PaperQp::of_srq(PaperShape::default(), &srq) });
    let memory = Memory::writable(&qp);
    for turn in 0..30 {
        for (half, offset) in [0, 100].into_iter().enumerate() {
            let wr = RecvWr { wr_id: turn * 2 + half as u64, sge: &[sge(offset, 2), sge(offset + 10, 8)] };
            // SAFETY: the memory lives as long as the test.
            unsafe { srq.queue.post_recv(&[wr]) }.unwrap();
        }
        let entries = [(); 2].map(|()| srq.device.take().unwrap());
        // The second receive is served first.
        for (half, offset) in [(1, 100), (0, 0)] {
            srq.device.complete(entries[half]);
            qp.write_with(received(entries[half], 6, 4), &bytes(6));
            assert_eq!(qp.lend().unwrap().wr_id(), turn * 2 + half as u64);
            assert_eq!(memory.part(offset, 2), [1, 2]);
            assert_eq!(memory.part(offset + 10, 5), [3, 4, 5, 6, 0]);
        }
        memory.0.iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
    }
    for entry in 0..8 {
        qp.write_with(received(entry, 6, 4), &bytes(6));
        assert!(qp.lend().is_none(), "the entry has no receive");
    }
    assert_eq!(memory.part(0, 256), [0; 256]);
}
