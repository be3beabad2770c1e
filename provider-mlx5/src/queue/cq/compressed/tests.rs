//! A queue with compressed completions, compared with an uncompressed queue that gets the same
//! completions.

use std::sync::Arc;

use uverbs_abi::ib_user_verbs::IbUverbsExQueryDeviceResp;
use uverbs_abi::mlx5_abi::{Mlx5IbCqeCompCaps, Mlx5IbQueryDeviceResp};
use verbs_core::Errno;
use verbs_core::channel::{Expect, Reply, Scripted};
use verbs_core::provider::{Completion as _, RecvQueue as _, SendQueue as _};
use verbs_core::types::{
    CqInitAttr, CqWcFlags, QpState, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc, WcStatus,
};
use zerocopy::IntoBytes as _;

use super::*;
use crate::device::Device;
use crate::objects::cq::Cq;
use crate::paper::{Dice, PaperCqe, PaperQp, PaperShape, PaperSrq, USER_INDEX};
use crate::queue::cq::Receives;
use crate::queue::record::RecvRecord;
use crate::wqe::opcode;

const FORMS: [CqeCompression; 3] = [CqeCompression::Hash, CqeCompression::Csum, CqeCompression::CsumStridx];

/// The number of entries in each completion queue.
const CQES: u32 = 32;

const SHAPE: PaperShape = PaperShape {
    qp_type: verbs_core::types::QpType::RC,
    blocks: 256,
    blocks_of_request: 4,
    max_inline: 200,
    max_send_sge: 10,
    min_inline: 18,
    max_tso_header: 0,
    prefers_blue_flame: true,
    entries: 64,
    max_recv_sge: 3,
    cqes: CQES,
    cqe_size: 64,
    compression: Some(CqeCompression::Hash),
};

fn ready(shape: PaperShape) -> PaperQp {
    // SAFETY: the test has one thread.
    let mut qp = unsafe { PaperQp::new(shape) };
    to_rts(&mut qp);
    qp
}

fn to_rts(qp: &mut PaperQp) {
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        qp.move_to(state);
    }
}

fn send(qp: &mut PaperQp, wr_id: u64, op: SendOp<'_>) {
    let sge = [Sge { addr: 8, length: 8, lkey: 1 }];
    // SAFETY: a paper device accesses no memory.
    unsafe { qp.sq.post_send(&[SendWr { wr_id, op, sge: &sge, flags: SendFlags::SIGNALED }]) }.unwrap();
}

fn recv(qp: &mut PaperQp, wr_id: u64) {
    let sge = [Sge { addr: 1, length: 1, lkey: 1 }];
    // SAFETY: a paper device accesses no memory.
    unsafe { qp.rq.post_recv(&[RecvWr { wr_id, sge: &sge }]) }.unwrap();
}

/// Returns the mini entry for a completion: for a send, or for a receive with its 4 specific bytes.
fn mini(cqe: &PaperCqe, received: [u8; 4]) -> [u8; 8] {
    let mut mini = [0; 8];
    mini[..4].copy_from_slice(&received);
    if cqe.opcode == cqe_opcode::REQ {
        mini[..2].copy_from_slice(&cqe.wqe_counter.to_be_bytes());
        (mini[2], mini[3]) = (cqe.wqe_opcode, 0);
    }
    mini[4..].copy_from_slice(&cqe.byte_cnt.to_be_bytes());
    mini
}

/// Two queue pairs with the same requests, one with compressed completions.
struct Twin {
    plain: PaperQp,
    zipped: PaperQp,
    sends: u16,
    receives: u16,
    next: u64,
}

/// A way to poll: copying up to this many completions, or borrowing a single completion.
#[derive(Clone, Copy, Debug)]
enum Way {
    Copies(usize),
    Lends,
}

const WAYS: [Way; 5] = [Way::Copies(1), Way::Copies(2), Way::Copies(5), Way::Copies(32), Way::Lends];

impl Twin {
    fn new(shape: PaperShape) -> Self {
        let plain = ready(PaperShape { compression: None, ..shape });
        Self { plain, zipped: ready(shape), sends: 0, receives: 0, next: 1 }
    }

    /// Posts a request and returns its completion.
    fn request(&mut self, is_send: bool) -> PaperCqe {
        let wr_id = self.next;
        self.next += 1;
        let (remote_addr, rkey) = (0, 1);
        let (op, wqe_opcode, byte_cnt) = match wr_id % 3 {
            0 => (SendOp::Send, opcode::SEND, 0),
            1 => (SendOp::RdmaWrite { remote_addr, rkey }, opcode::RDMA_WRITE, 0),
            _ => (SendOp::RdmaRead { remote_addr, rkey }, opcode::RDMA_READ, wr_id as u32),
        };
        for qp in [&mut self.plain, &mut self.zipped] {
            if is_send { send(qp, wr_id, op) } else { recv(qp, wr_id) }
        }
        let counter = if is_send { &mut self.sends } else { &mut self.receives };
        let wqe_counter = *counter;
        *counter = counter.wrapping_add(1);
        if is_send {
            PaperCqe { wqe_opcode, wqe_counter, byte_cnt, ..PaperCqe::default() }
        } else {
            PaperCqe { opcode: cqe_opcode::RESP_SEND, wqe_counter, byte_cnt: wr_id as u32, ..RECEIVED }
        }
    }

    /// Completes `count` similar requests, in a block if there is more than one.
    fn complete(&mut self, is_send: bool, count: usize) {
        let cqes: Vec<PaperCqe> = (0..count).map(|_| self.request(is_send)).collect();
        let minis: Vec<[u8; 8]> = cqes.iter().map(|cqe| mini(cqe, [9; 4])).collect();
        match &cqes[..] {
            [only] => self.zipped.write(*only),
            cqes => self.zipped.write_block(USER_INDEX, cqes[0], &minis),
        }
        cqes.into_iter().for_each(|cqe| self.plain.write(cqe));
    }

    /// Completes a request with an error.
    fn fail(&mut self, is_send: bool) {
        let cqe = self.request(is_send);
        let opcode = if is_send { cqe_opcode::REQ_ERR } else { cqe_opcode::RESP_ERR };
        let failed = PaperCqe { opcode, syndromes: [1, 5], ..cqe };
        self.plain.write(failed);
        self.zipped.write(failed);
    }

    /// Polls both queues and returns the number of completions, which must be equal.
    fn poll(&mut self, way: Way) -> usize {
        let [expected, got] = [&mut self.plain, &mut self.zipped].map(|qp| match way {
            Way::Copies(count) => {
                let mut wcs = vec![Wc::default(); count];
                let count = qp.poll(&mut wcs);
                wcs.truncate(count);
                wcs
            }
            Way::Lends => {
                let mut wc = Wc::default();
                let lent = qp.lend().map(|completion| completion.write_to(&mut wc));
                lent.map(|()| wc).into_iter().collect()
            }
        });
        assert_eq!(got, expected, "{way:?}");
        got.len()
    }

    fn drain(&mut self, way: Way) -> usize {
        core::iter::from_fn(|| Some(self.poll(way)).filter(|count| *count > 0)).sum()
    }

    /// Returns the polled entries to the device, and compares the doorbell records and the rings.
    fn compare(&mut self) {
        self.plain.end_poll();
        self.zipped.end_poll();
        assert_eq!(self.plain.records(), self.zipped.records());
        for index in 0..CQES {
            let [expected, got] = [&self.plain, &self.zipped].map(|qp| qp.cqe(index));
            assert_eq!(got[24..], expected[24..], "entry {index}");
        }
    }

    fn both(&mut self, mut change: impl FnMut(&mut PaperQp)) {
        change(&mut self.plain);
        change(&mut self.zipped);
    }
}

const RECEIVED: PaperCqe = PaperCqe {
    opcode: cqe_opcode::RESP_SEND,
    wqe_opcode: 0,
    wqe_counter: 0,
    byte_cnt: 0,
    imm_inval_pkey: 0x77,
    flags_rqpn: 0x1200_0034,
    slid: 5,
    ml_path: 6,
    syndromes: [0; 2],
    format: 0,
    timestamp: 0,
    vlan_info: 0,
    frame: [0; 2],
};

#[test]
fn blocks_of_every_length_are_the_completions_that_they_stand_for() {
    for (cqe_size, form) in [64, 128, 64].into_iter().zip(FORMS) {
        for start in [0, 1, 15, 16, 23, 24, 31, 37, 62] {
            for count in 1..=17 {
                let way = WAYS[count % WAYS.len()];
                for is_send in [false, true] {
                    let mut twin = Twin::new(PaperShape { cqe_size, compression: Some(form), ..SHAPE });
                    for _ in 0..start {
                        twin.complete(!is_send, 1);
                        assert_eq!(twin.poll(Way::Copies(1)), 1);
                    }
                    for _ in 0..3 {
                        twin.complete(is_send, count);
                        assert_eq!(twin.drain(way), count, "{start}, {count}, {way:?}");
                    }
                    twin.compare();
                }
            }
        }
    }
}

#[test]
fn blocks_among_other_completions_are_polled_in_order() {
    for (seed, form) in (1..).zip(FORMS) {
        let mut dice = Dice(seed);
        let mut twin = Twin::new(PaperShape { compression: Some(form), ..SHAPE });
        let mut unread = 0;
        for _ in 0..3_000 {
            let room = CQES as usize - unread;
            match dice.below(6) {
                0..=2 if room > 0 => {
                    let count = 1 + dice.below(room.min(17));
                    twin.complete(dice.below(2) == 0, count);
                    unread += count;
                }
                3 if room > 0 => {
                    twin.fail(dice.below(2) == 0);
                    unread += 1;
                }
                4 => {
                    unread -= twin.drain(WAYS[dice.below(WAYS.len())]);
                    assert_eq!(unread, 0);
                    twin.compare();
                }
                _ => unread -= twin.poll(WAYS[dice.below(WAYS.len())]),
            }
        }
    }
}

#[test]
fn a_block_may_fill_the_queue() {
    let mut twin = Twin::new(SHAPE);
    for start in [0, 7] {
        for _ in 0..start {
            twin.complete(true, 1);
            twin.poll(Way::Copies(1));
        }
        twin.complete(false, CQES as usize);
        assert_eq!(twin.drain(Way::Copies(5)), CQES as usize);
        twin.compare();
    }
}

#[test]
fn entries_of_a_block_return_to_the_device_one_by_one() {
    let mut twin = Twin::new(SHAPE);
    twin.complete(false, 6);
    for returned in 1..=6 {
        twin.poll(Way::Copies(1));
        assert_eq!(twin.zipped.records()[2], returned);
    }
}

#[test]
fn a_block_from_before_a_reset_is_skipped_and_one_behind_it_is_not() {
    for rounds in [0, 20, 40] {
        for (before, polled) in [(2, 0), (9, 0), (9, 1), (9, 8), (9, 9), (17, 3)] {
            let mut twin = Twin::new(SHAPE);
            for _ in 0..rounds {
                twin.complete(true, 1);
                twin.poll(Way::Copies(1));
            }
            twin.complete(false, 3);
            twin.drain(Way::Lends);
            twin.complete(true, before);
            for _ in 0..polled {
                twin.poll(Way::Lends);
            }
            twin.both(|qp| {
                qp.move_to(QpState::RESET);
                to_rts(qp);
            });
            (twin.sends, twin.receives) = (0, 0);
            twin.complete(true, 5);
            twin.complete(false, 4);
            assert_eq!(twin.drain(Way::Copies(32)), 9, "{rounds}, {before}, {polled}");
            twin.compare();
        }
    }
}

#[test]
fn a_ring_full_of_blocks_that_are_skipped_is_passed_at_once() {
    let mut twin = Twin::new(SHAPE);
    for _ in 0..15 {
        twin.complete(false, 2);
    }
    twin.both(|qp| qp.destroy());
    let record = RecvRecord::new(2);
    record.put(0, 77);
    record.put(1, 78);
    let queues = Queues { recv: Some(Receives::Own(record)), ..Queues::default() };
    twin.zipped.begin(1, queues);
    let cqe = PaperCqe { byte_cnt: 3, ..RECEIVED };
    twin.zipped.write_block(1, cqe, &[mini(&cqe, [0; 4]); 2]);
    let mut wcs = [Wc::default(); 32];
    assert_eq!(twin.zipped.poll(&mut wcs), 2);
    assert_eq!((wcs[0].wr_id, wcs[1].wr_id), (77, 78));
}

#[test]
fn a_block_of_a_queue_pair_that_nobody_knows_is_skipped() {
    let mut twin = Twin::new(SHAPE);
    let minis = [mini(&RECEIVED, [0; 4]); 11];
    twin.zipped.write_block(0xff_ffff, RECEIVED, &minis);
    (0..11).for_each(|_| twin.plain.write_of(0xff_ffff, RECEIVED));
    twin.complete(false, 3);
    assert_eq!(twin.drain(Way::Copies(32)), 3);
    // Queues of a known queue pair whose sends complete elsewhere.
    let queues = || Queues { recv: Some(Receives::Own(RecvRecord::new(1))), ..Queues::default() };
    twin.both(|qp| qp.begin(1, queues()));
    let sent = PaperCqe { wqe_counter: 0xffff, ..PaperCqe::default() };
    twin.zipped.write_block(1, sent, &[mini(&sent, [0; 4]); 3]);
    (0..3).for_each(|_| twin.plain.write_of(1, sent));
    twin.complete(true, 4);
    assert_eq!(twin.drain(Way::Lends), 4);
}

#[test]
fn a_resize_keeps_the_completions_of_blocks_and_their_order() {
    for new_cqes in [16, 64] {
        for polled in 0..7 {
            let mut twin = Twin::new(SHAPE);
            twin.complete(false, 25);
            assert_eq!(twin.drain(Way::Copies(32)), 25);
            // This block wraps around the end of the old ring.
            twin.complete(false, 5);
            twin.complete(true, 1);
            twin.complete(true, 6);
            for _ in 0..polled {
                twin.poll(Way::Copies(1));
            }
            assert_eq!(twin.zipped.poller().0.unread(), 12 - polled, "{polled}");
            twin.both(|qp| assert!(qp.resize(new_cqes, false)));
            twin.complete(false, 3);
            assert_eq!(twin.drain(Way::Copies(4)), 15 - polled as usize, "{polled}");
            // Completions in the new ring are compressed too.
            twin.complete(true, 9);
            assert_eq!(twin.drain(Way::Lends), 9);
        }
    }
}

#[test]
fn a_title_that_no_device_writes_is_an_error_of_one_completion() {
    for byte_cnt in [0, 1, CQES + 1, u32::MAX] {
        for cqe in [PaperCqe::default(), RECEIVED] {
            let mut qp = ready(SHAPE);
            send(&mut qp, 1, SendOp::Send);
            recv(&mut qp, 1);
            recv(&mut qp, 2);
            qp.write(PaperCqe { format: 12, byte_cnt, ..cqe });
            qp.write(PaperCqe { wqe_counter: u16::from(cqe.opcode != 0), ..RECEIVED });
            let mut wcs = [Wc::default(); 4];
            assert_eq!(qp.poll(&mut wcs), 2, "{byte_cnt}");
            assert_eq!((wcs[0].wr_id, wcs[0].status), (1, WcStatus::GENERAL_ERR));
            assert_eq!(wcs[1].status, WcStatus::SUCCESS);
        }
    }
}

#[test]
fn completions_of_a_block_have_the_time_of_its_title() {
    let mut qp = ready(SHAPE);
    qp.with_fields(CqWcFlags::COMPLETION_TIMESTAMP);
    (0..3).for_each(|wr_id| recv(&mut qp, wr_id));
    let title = PaperCqe { timestamp: 0x0102_0304_0506_0708, ..RECEIVED };
    qp.write_block(USER_INDEX, title, &[mini(&title, [0; 4]); 3]);
    for wr_id in 0..3 {
        let completion = qp.lend().unwrap();
        assert_eq!((completion.wr_id(), completion.completion_ts()), (wr_id, Some(title.timestamp)));
    }
}

#[test]
fn a_receive_has_the_field_that_the_form_names() {
    for (form, field) in FORMS.into_iter().zip([12..16, 20..22, 20..22]) {
        let mut qp = ready(PaperShape { compression: Some(form), ..SHAPE });
        (0..2).for_each(|wr_id| recv(&mut qp, wr_id));
        qp.write_block(USER_INDEX, RECEIVED, &[mini(&RECEIVED, [1, 2, 3, 4]), mini(&RECEIVED, [5, 6, 7, 8])]);
        assert!(qp.lend().is_some());
        let [first, second] = [0, 1].map(|index| qp.cqe(index));
        assert_eq!(first[field.clone()], [1, 2, 3, 4][..field.len()], "{form:?}");
        assert_eq!(second[field.clone()], [5, 6, 7, 8][..field.len()], "{form:?}");
        let others = |entry: &[u8]| [&entry[..field.start], &entry[field.end..60]].concat();
        assert_eq!(others(&first), others(&second));
    }
}

/// Returns a queue pair with a block of receives from a shared receive queue.
fn of_shared(count: usize) -> (PaperSrq, PaperQp) {
    let mut srq = PaperSrq::new(16, 2);
    for wr_id in 0..count as u64 {
        let sge = [Sge { addr: 1, length: 1, lkey: 7 }];
        // SAFETY: a paper device accesses no memory.
        unsafe { srq.queue.post_recv(&[RecvWr { wr_id, sge: &sge }]) }.unwrap();
    }
    // SAFETY: the test has one thread.
    let mut qp = unsafe { PaperQp::of_srq(SHAPE, &srq) };
    to_rts(&mut qp);
    for entry in 0..count as u16 {
        assert_eq!(srq.device.take(), Some(entry));
        srq.device.complete(entry);
    }
    qp.write_block(USER_INDEX, RECEIVED, &vec![mini(&RECEIVED, [0; 4]); count]);
    (srq, qp)
}

#[test]
fn a_block_that_is_skipped_frees_the_receives_of_a_shared_queue() {
    let (srq, mut qp) = of_shared(10);
    qp.destroy();
    assert!(qp.lend().is_none());
    assert!((0..10).all(|entry| srq.requests().complete(entry).is_none()));
}

#[test]
fn a_completion_queue_that_ends_frees_the_receives_of_a_shared_queue_in_its_blocks() {
    let (srq, mut qp) = of_shared(10);
    assert_eq!(qp.lend().map(|completion| completion.wr_id()), Some(0));
    drop(qp.without_cq());
    assert!((0..10).all(|entry| srq.requests().complete(entry).is_none()));
}

/// Returns a device that offers these compression formats and replies to its query.
fn offering(max_num: u32, supported_format: u32) -> (Arc<Device>, Scripted) {
    let (device, script) = crate::device::tests::device();
    let mut common = IbUverbsExQueryDeviceResp::default();
    common.response_length = size_of_val(&common) as u32;
    let cqe_comp_caps = Mlx5IbCqeCompCaps { max_num, supported_format };
    let own = Mlx5IbQueryDeviceResp { cqe_comp_caps, ..Default::default() };
    script.expect([Expect::anything(Reply::outputs([common.as_bytes(), own.as_bytes()]))]);
    (device, script)
}

#[test]
fn a_form_that_the_device_does_not_offer_is_refused() {
    for (max_num, offered) in [(0, 7), (4, 5), (4, 3), (4, 6)] {
        let (device, _script) = offering(max_num, offered);
        for form in FORMS {
            let asked = CqeCompression::of_queue(&device, Some(form), None, CqWcFlags::empty(), 64);
            if max_num > 0 && offered & form.bits() != 0 {
                assert_eq!(asked.unwrap(), Some(form));
            } else {
                assert_eq!(asked.unwrap_err().errno, Errno::OPNOTSUPP);
                let error = Cq::create(&device, None, &CqInitAttr::new(4), None, Some(form)).unwrap_err();
                assert_eq!(error.errno, Errno::OPNOTSUPP);
            }
        }
    }
}

#[test]
fn the_variable_asks_for_compression_where_it_changes_nothing_that_the_program_sees() {
    let time = CqWcFlags::COMPLETION_TIMESTAMP;
    let wall_clock = CqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK;
    let vlan = CqWcFlags::CVLAN;
    for (offered, value, fields, stride, is_on) in [
        (7, Some("1"), CqWcFlags::STANDARD, 64, true),
        (7, Some("1"), vlan, 64, true),
        (7, Some("0"), vlan, 64, false),
        (7, None, vlan, 64, false),
        (7, Some("1"), vlan | time, 64, false),
        (7, Some("1"), wall_clock, 64, false),
        (7, Some("1"), vlan, 128, false),
        (6, Some("1"), vlan, 64, false),
    ] {
        let needs_query = offered == 6 || is_on;
        let (device, _script) =
            if needs_query { offering(4, offered) } else { crate::device::tests::device() };
        let variable = value.map(str::to_owned);
        let form = CqeCompression::of_queue(&device, None, variable, fields, stride).unwrap();
        assert_eq!(form, is_on.then_some(CqeCompression::Hash), "{value:?} {fields:?} {stride}");
    }
}
