//! Simulated tag lists: the entries for operations and the effects of completions.

use verbs_core::provider::Completion as _;
use verbs_core::types::{CqWcFlags, QpState, Wc, WcFlags, WcOpcode, WcTmInfo};

use super::*;
use crate::paper::{PaperCqe, PaperQp, PaperShape};
use crate::queue::cq::{Queues, Receives};
use crate::wqe::tag::done;

const NUMBER: u32 = 0x77;
const NO_PACKET: u8 = 6;
const RECEIVED: u8 = 2;
const OPERATION: PaperCqe = PaperCqe {
    opcode: NO_PACKET,
    wqe_opcode: 0x28,
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

/// A tag list, the receives of its shared receive queue, and the completion queue for both.
struct Paper {
    list: TagList,
    receives: Arc<SrqRecord>,
    cq: PaperQp,
}

impl Paper {
    /// Returns a list for 3 tags and 16 operations.
    fn new() -> Self {
        // SAFETY: the queues stay on this thread.
        let (mut commands, mut cq) = unsafe {
            let shape = PaperShape { blocks: 64, ..PaperShape::default() };
            (PaperQp::new(shape), PaperQp::new(PaperShape::default()))
        };
        commands.move_to(QpState::RTS);
        let (sq, _) = commands.without_cq();
        let receives = SrqRecord::new(8);
        let list = TagList::new(3, sq, 0x123, &receives);
        let recv = Some(Receives::Tagged(Arc::clone(list.record())));
        cq.begin(NUMBER, Queues { recv, ..Queues::default() });
        cq.with_fields(CqWcFlags::TM_INFO);
        Self { list, receives, cq }
    }

    fn post(&mut self, wr: &mut OpsWr<'_>) -> Result<(), PostReason> {
        // SAFETY: a paper device accesses no memory.
        let posted = unsafe { self.list.post(wr) };
        self.list.ring();
        posted
    }

    fn add(&mut self, tag: u64, flags: OpsFlags) -> Result<u32, PostReason> {
        let sge = [Sge { addr: 0x1000 + tag, length: 64, lkey: 7 }];
        let op = TmOp::Add { recv_wr_id: 100 + tag, sge: &sge, tag, mask: !0, handle: u32::MAX };
        let mut wr = OpsWr { wr_id: tag, op, flags, unexpected_cnt: 5 };
        self.post(&mut wr)?;
        let TmOp::Add { handle, .. } = wr.op else { unreachable!() };
        Ok(handle)
    }

    fn del(&mut self, handle: u32, flags: OpsFlags) -> Result<(), PostReason> {
        self.post(&mut OpsWr { wr_id: 50, op: TmOp::Del { handle }, flags, unexpected_cnt: 0 })
    }

    fn sync(&mut self, unexpected_cnt: u32) {
        let flags = OpsFlags::SIGNALED | OpsFlags::TM_SYNC;
        self.post(&mut OpsWr { wr_id: 60, op: TmOp::Sync, flags, unexpected_cnt }).unwrap();
    }

    /// Returns the units of the send queue entry at a block.
    fn entry(&self, block: usize) -> [[u8; 16]; 4] {
        let resources = self.list.sq.resources();
        let memory = resources.memory().region();
        let start = self.list.sq.start_offset();
        // SAFETY: one thread.
        core::array::from_fn(|unit| unsafe { memory.read(start + block * 64 + unit * 16) })
    }

    /// Completes an operation. `count` is the device's count of unexpected messages.
    fn complete(&mut self, app_op: u8, success: bool, count: u16) {
        let mut first = [0; 16];
        first[0] = if success { 0x80 } else { 0 };
        first[4..6].copy_from_slice(&count.to_be_bytes());
        self.cq.write_tag(NUMBER, OPERATION, first, app_op, 0);
    }

    /// Completes a message that matched the tag at an index.
    fn arrive(&mut self, opcode: u8, app_op: u8, index: u16) {
        let mut first = [0; 16];
        first[4..8].copy_from_slice(&9_u32.to_be_bytes());
        first[8..].copy_from_slice(&0xabc_u64.to_be_bytes());
        let cqe = PaperCqe { opcode, byte_cnt: 40, wqe_opcode: 0, ..OPERATION };
        self.cq.write_tag(NUMBER, cqe, first, app_op, index);
    }

    /// Returns the `wr_id`, status, operation and flags of the next completion.
    fn next(&mut self) -> Option<(u64, WcStatus, WcOpcode, WcFlags)> {
        let completion = self.cq.lend()?;
        let mut wc = Wc::default();
        completion.write_to(&mut wc);
        assert_eq!((wc.wr_id, wc.status), (completion.wr_id(), completion.status()));
        if wc.status == WcStatus::SUCCESS {
            assert_eq!((wc.opcode, wc.wc_flags), (completion.opcode(), completion.wc_flags()));
            assert_eq!((wc.byte_len, wc.vendor_err), (completion.byte_len(), 0));
        }
        Some((wc.wr_id, completion.status(), completion.opcode(), completion.wc_flags()))
    }
}

const NONE: WcFlags = WcFlags::empty();
const SIGNALED: OpsFlags = OpsFlags::SIGNALED;
const OK: WcStatus = WcStatus::SUCCESS;

#[test]
fn an_addition_names_the_index_of_the_next_one() {
    let mut paper = Paper::new();
    assert_eq!(paper.add(3, SIGNALED | OpsFlags::TM_SYNC), Ok(0));
    assert_eq!(paper.add(4, OpsFlags::empty()), Ok(1));
    let [control, first, tag, data] = paper.entry(0);
    assert_eq!(control, [0, 0, 0, 0x28, 0, 1, 0x23, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(first, [0x10, 0xc0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(tag, [0, 0, 0, 0, 0, 0, 0, 3, 255, 255, 255, 255, 255, 255, 255, 255]);
    assert_eq!(data, [0, 0, 0, 64, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0x10, 3]);
    let [control, first, ..] = paper.entry(1);
    assert_eq!(control[..8], [0, 0, 1, 0x28, 0, 1, 0x23, 4]);
    assert_eq!(first, [0x10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "nothing is reported");
}

#[test]
fn removals_and_reports_have_no_memory() {
    let mut paper = Paper::new();
    paper.add(3, SIGNALED).unwrap();
    paper.del(0, SIGNALED).unwrap();
    paper.sync(0x1_0002);
    let [control, first, tag, _] = paper.entry(1);
    assert_eq!((control[7], &first[..8], tag), (3, &[0x20, 0x80, 0, 0, 0, 0, 0, 0][..], [0; 16]));
    let [control, first, ..] = paper.entry(2);
    assert_eq!((control[7], &first[..8]), (3, &[0, 0xc0, 0, 0, 0, 0, 0, 2][..]), "16 bits of the count");
}

#[test]
fn a_tag_without_bytes_has_a_terminator() {
    for sge in [&[][..], &[Sge { addr: 9, length: 0, lkey: 7 }]] {
        let mut paper = Paper::new();
        let op = TmOp::Add { recv_wr_id: 1, sge, tag: 1, mask: 0, handle: 0 };
        paper.post(&mut OpsWr { wr_id: 1, op, flags: SIGNALED, unexpected_cnt: 0 }).unwrap();
        assert_eq!(paper.entry(0)[3], [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn a_list_takes_as_many_tags_as_it_has_and_gives_them_again() {
    let mut paper = Paper::new();
    for tag in 0..3 {
        assert_eq!(paper.add(tag, OpsFlags::empty()), Ok(tag as u32));
    }
    assert_eq!(paper.add(9, OpsFlags::empty()), Err(PostReason::QueueFull));
    paper.arrive(RECEIVED, done::CONSUMED_MESSAGE, 1);
    let both = WcFlags::TM_MATCH | WcFlags::TM_DATA_VALID;
    assert_eq!(paper.next(), Some((101, OK, WcOpcode::TM_RECV, both)));
    // The device reserved index 3 for this `Add` at the third one; index 1 follows.
    assert_eq!(paper.add(9, OpsFlags::empty()), Ok(3));
    assert_eq!(paper.add(10, OpsFlags::empty()), Err(PostReason::QueueFull));
}

#[test]
fn an_index_is_free_after_all_its_completions() {
    let mut paper = Paper::new();
    paper.add(0, SIGNALED).unwrap();
    let is_free = |paper: &Paper| paper.list.record.indexes[0].is_free();
    paper.arrive(NO_PACKET, done::CONSUMED, 0);
    assert_eq!(paper.next(), Some((100, OK, WcOpcode::TM_RECV, WcFlags::TM_MATCH)));
    paper.arrive(RECEIVED, done::EXPECTED, 0);
    assert_eq!(paper.next(), Some((100, OK, WcOpcode::TM_RECV, WcFlags::TM_DATA_VALID)));
    assert!(!is_free(&paper), "the operation has not completed");
    paper.complete(done::APPEND, true, 0);
    assert_eq!(paper.next(), Some((0, OK, WcOpcode::TM_ADD, NONE)));
    assert!(is_free(&paper));
    // Completions that name the index now are ignored.
    for app_op in [done::CONSUMED, done::EXPECTED, done::CANCELED, done::APPEND, 0, 0xff] {
        paper.arrive(RECEIVED, app_op, 0);
        assert_eq!(paper.next(), None, "{app_op:#x}");
    }
    paper.arrive(RECEIVED, done::EXPECTED, 4);
    assert_eq!(paper.next(), None, "an index beyond the list");
}

#[test]
fn a_removal_that_succeeds_ends_the_wait_for_the_message() {
    let mut paper = Paper::new();
    for (tag, success, status) in [(0, true, OK), (1, false, WcStatus::TM_ERR)] {
        let handle = paper.add(tag, OpsFlags::empty()).unwrap();
        paper.del(handle, SIGNALED).unwrap();
        paper.complete(done::REMOVE, success, 0);
        assert_eq!(paper.next().map(|(wr_id, status, ..)| (wr_id, status)), Some((50, status)));
        assert_eq!(paper.list.record.indexes[handle as usize].is_free(), success);
    }
    assert_eq!(paper.del(0, SIGNALED), Err(PostReason::TagHandle { handle: 0 }));
    for handle in [4, 0x1_0001, u32::MAX] {
        assert_eq!(paper.del(handle, SIGNALED), Err(PostReason::TagHandle { handle }));
    }
}

#[test]
fn messages_that_fail_or_are_left_to_the_program_have_a_status_of_their_own() {
    for app_op in [done::CONSUMED_MESSAGE_SOFTWARE, done::CANCELED] {
        let mut paper = Paper::new();
        paper.add(0, OpsFlags::empty()).unwrap();
        paper.arrive(if app_op == done::CANCELED { NO_PACKET } else { RECEIVED }, app_op, 0);
        let (wr_id, status, ..) = paper.next().unwrap();
        assert_eq!((wr_id, status), (100, WcStatus::TM_RNDV_INCOMPLETE));
        assert!(paper.list.record.indexes[0].is_free());
    }
}

#[test]
fn the_flag_asks_for_the_count_when_the_device_has_another_one() {
    let mut paper = Paper::new();
    paper.sync(7);
    paper.complete(done::NOOP, true, 9);
    assert_eq!(paper.next(), Some((60, OK, WcOpcode::TM_SYNC, NONE)), "it has no tag");
    paper.add(0, SIGNALED).unwrap();
    paper.complete(done::APPEND, true, 7);
    assert_eq!(paper.next(), Some((0, OK, WcOpcode::TM_ADD, NONE)));
    paper.add(1, SIGNALED).unwrap();
    paper.complete(done::APPEND, true, 8);
    assert_eq!(paper.next(), Some((1, OK, WcOpcode::TM_ADD, WcFlags::TM_SYNC_REQ)));
}

#[test]
fn unexpected_messages_end_receives_and_ask_for_the_count_after_many() {
    let mut paper = Paper::new();
    let taken = |paper: &mut Paper, app_op| {
        paper.receives.put(2, 33);
        paper.receives.mark(2, 1 << 2);
        let cqe = PaperCqe { opcode: RECEIVED, wqe_counter: 2, ..OPERATION };
        paper.cq.write_tag(NUMBER, cqe, [0; 16], app_op, 0);
        paper.next().unwrap()
    };
    assert_eq!(taken(&mut paper, done::NO_TAG), (33, OK, WcOpcode::TM_NO_TAG, NONE));
    for _ in 0..MAX_UNREPORTED {
        assert_eq!(taken(&mut paper, done::UNEXPECTED), (33, OK, WcOpcode::TM_RECV, NONE));
    }
    assert_eq!(taken(&mut paper, done::UNEXPECTED).3, WcFlags::TM_SYNC_REQ);
    paper.sync(MAX_UNREPORTED);
    assert_eq!(taken(&mut paper, done::UNEXPECTED).3, NONE);
}

#[test]
fn only_a_completion_with_a_header_has_a_tag() {
    let mut paper = Paper::new();
    paper.add(0, SIGNALED).unwrap();
    paper.complete(done::APPEND, true, 3);
    assert_eq!(paper.cq.lend().unwrap().tm_info(), None);
    paper.arrive(NO_PACKET, done::CONSUMED, 0);
    assert_eq!(paper.cq.lend().unwrap().tm_info(), Some(WcTmInfo { tag: 0xabc, private: 9 }));
    paper.arrive(RECEIVED, done::EXPECTED, 0);
    assert_eq!(paper.cq.lend().unwrap().tm_info(), None);
    paper.cq.with_fields(CqWcFlags::empty());
    paper.add(1, SIGNALED).unwrap();
    paper.arrive(RECEIVED, done::CONSUMED_MESSAGE, 1);
    assert_eq!(paper.cq.lend().unwrap().tm_info(), None, "it was not asked for");
}

#[test]
fn operations_that_have_completed_make_room_for_others() {
    let mut paper = Paper::new();
    let room = (0..).find(|_| {
        let wr = &mut OpsWr { wr_id: 60, op: TmOp::Sync, flags: SIGNALED, unexpected_cnt: 0 };
        paper.post(wr) == Err(PostReason::QueueFull)
    });
    assert_eq!(room, Some(16));
    for _ in 0..3 {
        paper.complete(done::NOOP, true, 0);
        assert!(paper.next().is_some());
    }
    for _ in 0..3 {
        paper.sync(0);
    }
    let wr = &mut OpsWr { wr_id: 60, op: TmOp::Sync, flags: SIGNALED, unexpected_cnt: 0 };
    assert_eq!(paper.post(wr), Err(PostReason::QueueFull));
}

#[test]
fn a_list_whose_queue_pair_has_ended_takes_nothing() {
    let mut paper = Paper::new();
    paper.list.sq.resources().end();
    assert_eq!(paper.add(0, SIGNALED), Err(PostReason::NoTagMatching));
}
