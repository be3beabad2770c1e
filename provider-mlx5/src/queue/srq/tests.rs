use std::collections::{BTreeSet, VecDeque};
use std::sync::Mutex;
use std::thread;

use verbs_core::provider::{Completion as _, SendQueue as _};
use verbs_core::types::{QpState, SendFlags, SendOp, SendWr, Sge, Wc, WcOpcode, WcStatus};

use super::*;
use crate::paper::{Dice, PaperCqe, PaperQp, PaperShape, PaperSrq, PaperSrqDevice, USER_INDEX};
use crate::queue::cq::{Queues, Receives};

/// Queues a receive whose element contains its `wr_id`.
fn put(queue: &mut SrqQueue, wr_id: u64) -> Result<(), PostReason> {
    let sge = [Sge { addr: wr_id, length: 1, lkey: 7 }];
    // SAFETY: a paper device accesses no memory.
    unsafe { queue.post_one(&RecvWr { wr_id, sge: &sge }) }
}

fn post(queue: &mut SrqQueue, wr_id: u64) -> Result<(), PostReason> {
    let posted = put(queue, wr_id);
    queue.ring();
    posted
}

/// Returns the `wr_id` in the element of an entry.
fn named(device: &PaperSrqDevice, entry: u16) -> u64 {
    u64::from_be_bytes(device.entry(entry)[UNIT + 8..2 * UNIT].try_into().unwrap())
}

/// Takes all published receives and returns their entries.
fn taken(srq: &mut PaperSrq) -> Vec<u16> {
    core::iter::from_fn(|| srq.device.take()).collect()
}

/// Completes a receive and returns its `wr_id`.
fn complete(srq: &mut PaperSrq, entry: u16) -> Option<u64> {
    srq.device.complete(entry);
    srq.requests().complete(entry)
}

/// Posts receives until the queue is full and returns their number.
fn fill(srq: &mut PaperSrq) -> usize {
    (0..).find(|&wr_id| post(&mut srq.queue, wr_id) == Err(PostReason::QueueFull)).unwrap() as usize
}

#[test]
fn an_entry_has_its_link_its_list_and_a_terminator_if_the_list_is_shorter() {
    let element = |n: u8| [&[0, 0, 0, n, 0, 0, 0, 7][..], &u64::from(n).to_be_bytes()].concat();
    let terminator = [&[0; 6][..], &[1, 0], &[0; 8]].concat();
    for (units, lengths, stored) in [
        (2, &[][..], &[][..]),
        (2, &[1], &[1]),
        (2, &[0], &[]),
        (4, &[], &[]),
        (4, &[1], &[1]),
        (4, &[1, 0, 2], &[1, 2]),
        (4, &[0, 0, 0], &[]),
        (4, &[1, 2, 3], &[1, 2, 3]),
    ] {
        let mut srq = PaperSrq::new(4, units);
        let sges: Vec<Sge> =
            lengths.iter().map(|&n: &u8| Sge { addr: n.into(), length: n.into(), lkey: 7 }).collect();
        // SAFETY: a paper device accesses no memory.
        unsafe { srq.queue.post_recv(&[RecvWr { wr_id: 1, sge: &sges }]) }.unwrap();
        assert_eq!(taken(&mut srq), [0]);
        let mut expected = [&[0, 0, 0, 1][..], &[0; 12]].concat();
        expected.extend(stored.iter().flat_map(|&n| element(n)));
        if stored.len() < units as usize - 1 {
            expected.extend(&terminator);
        }
        assert_eq!(srq.device.entry(0)[..expected.len()], expected, "{units}, {lengths:?}");
    }
}

#[test]
fn a_list_that_is_too_long_is_refused_and_leaves_the_queue_as_it_was() {
    let mut srq = PaperSrq::new(4, 4);
    let sge = [Sge { addr: 1, length: 1, lkey: 1 }; 4];
    // SAFETY: a paper device accesses no memory.
    let refused = unsafe { srq.queue.post_recv(&[RecvWr { wr_id: 1, sge: &sge }]) }.unwrap_err();
    assert_eq!(refused.reason, PostReason::TooManySge { given: 4, max: 3 });
    assert_eq!(taken(&mut srq), [0_u16; 0]);
    assert_eq!(fill(&mut srq), 3);
}

#[test]
fn receives_are_the_devices_when_the_doorbell_record_covers_them() {
    let mut srq = PaperSrq::new(8, 2);
    for wr_id in 0..3 {
        put(&mut srq.queue, wr_id).unwrap();
    }
    assert_eq!(taken(&mut srq), [0_u16; 0]);
    srq.queue.ring();
    assert_eq!(taken(&mut srq), [0, 1, 2]);
}

#[test]
fn a_queue_takes_one_receive_less_than_it_has_entries() {
    for entries in [1, 2, 4, 64, 128, 1024] {
        let mut srq = PaperSrq::new(entries, 2);
        for round in 0..3 {
            assert_eq!(fill(&mut srq), entries as usize - 1, "{entries}, {round}");
            for entry in taken(&mut srq) {
                assert!(complete(&mut srq, entry).is_some());
            }
        }
    }
}

#[test]
fn receives_that_one_doorbell_announces_complete_in_any_order() {
    for entries in [8, 64, 256] {
        let (mut srq, mut dice) = (PaperSrq::new(entries, 2), Dice(entries));
        let (mut wr_id, mut full, mut outstanding) = (0, 0, Vec::new());
        for _ in 0..500 {
            let first = wr_id;
            for _ in 0..dice.below(entries as usize) {
                if put(&mut srq.queue, wr_id) == Err(PostReason::QueueFull) {
                    assert_eq!(outstanding.len() as u64 + wr_id - first, u64::from(entries) - 1);
                    full += 1;
                    break;
                }
                wr_id += 1;
            }
            srq.queue.ring();
            outstanding.extend(taken(&mut srq).into_iter().zip(first..));
            for _ in 0..dice.below(outstanding.len() + 1) {
                let (entry, wr_id) = outstanding.swap_remove(dice.below(outstanding.len()));
                assert_eq!(complete(&mut srq, entry), Some(wr_id));
            }
        }
        assert!(full > 50, "{entries}: {full}");
    }
}

/// libmlx5's order of linking entries: one entry if the next one is free, otherwise the next run of
/// free entries.
struct Libmlx5 {
    head: usize,
    tail: usize,
    links: Vec<usize>,
    free: Vec<bool>,
}

impl Libmlx5 {
    fn new(entries: usize) -> Self {
        Self {
            head: 0,
            tail: entries - 1,
            links: (0..entries).map(|entry| entry + 1).collect(),
            free: vec![false; entries],
        }
    }

    fn post(&mut self) -> Option<u16> {
        if self.head == self.tail {
            let next = (self.tail + 1) % self.free.len();
            let (first, count) = if self.free[next] { (next, 1) } else { self.run()? };
            self.links[self.tail] = first;
            self.tail = first + count - 1;
            for entry in first..=self.tail {
                self.free[entry] = false;
                if entry < self.tail {
                    self.links[entry] = entry + 1;
                }
            }
        }
        let posted = self.head;
        self.head = self.links[posted];
        Some(posted as u16)
    }

    fn run(&self) -> Option<(usize, usize)> {
        [self.head + 1..self.free.len(), 0..self.head].into_iter().find_map(|mut entries| {
            let end = entries.end;
            let first = entries.find(|&entry| self.free[entry])?;
            Some((first, (first..end).take_while(|&entry| self.free[entry]).count()))
        })
    }
}

#[test]
fn entries_are_linked_in_the_order_of_libmlx5() {
    for entries in [2, 8, 64, 128, 512] {
        let (mut srq, mut libmlx5) = (PaperSrq::new(entries, 2), Libmlx5::new(entries as usize));
        let (mut dice, mut outstanding) = (Dice(entries), Vec::new());
        for wr_id in 0..20_000 {
            if dice.below(100) < 55 {
                let posted = post(&mut srq.queue, wr_id).ok().and_then(|()| srq.device.take());
                assert_eq!(posted, libmlx5.post(), "{entries}, {wr_id}");
                outstanding.extend(posted.map(|entry| (entry, wr_id)));
            } else if !outstanding.is_empty() {
                let (entry, wr_id) = outstanding.swap_remove(dice.below(outstanding.len()));
                assert_eq!(named(&srq.device, entry), wr_id);
                assert_eq!(complete(&mut srq, entry), Some(wr_id));
                libmlx5.free[usize::from(entry)] = true;
            }
        }
    }
}

#[test]
fn the_counter_wraps_while_receives_end_out_of_order() {
    let mut srq = PaperSrq::new(16, 2);
    let mut outstanding = VecDeque::new();
    for wr_id in 0..70_000_u64 {
        if outstanding.len() == 15 {
            assert_eq!(post(&mut srq.queue, wr_id), Err(PostReason::QueueFull));
            let (entry, wr_id) = outstanding.remove([0, 7, 14, 3][wr_id as usize % 4]).unwrap();
            assert_eq!(complete(&mut srq, entry), Some(wr_id));
        }
        post(&mut srq.queue, wr_id).unwrap();
        let entry = srq.device.take().unwrap();
        assert_eq!(srq.device.take(), None, "{wr_id}");
        outstanding.push_back((entry, wr_id));
    }
}

#[test]
fn a_receive_that_a_device_completes_twice_ends_once_and_its_entry_is_posted_once() {
    // The number of receives posted between the two completions: none, and enough for the entry to
    // be linked already.
    for posted_between in [0, 1, 2] {
        let mut srq = PaperSrq::new(4, 2);
        assert_eq!(fill(&mut srq), 3);
        assert_eq!(taken(&mut srq), [0, 1, 2]);
        for entry in [0, 1, 2] {
            assert_eq!(complete(&mut srq, entry), Some(entry.into()));
        }
        for wr_id in 0..posted_between {
            post(&mut srq.queue, 10 + wr_id).unwrap();
        }
        assert_eq!(srq.requests().complete(2), None, "{posted_between}");
        assert_eq!(fill(&mut srq) as u64, 3 - posted_between);
        assert_eq!(taken(&mut srq), [3, 0, 1], "{posted_between}");
    }
}

fn ready(srq: &PaperSrq) -> PaperQp {
    // SAFETY: the test has one thread.
    let mut qp = unsafe { PaperQp::of_srq(PaperShape::default(), srq) };
    to_rts(&mut qp);
    qp
}

fn to_rts(qp: &mut PaperQp) {
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        qp.move_to(state);
    }
}

/// Takes the next receive on behalf of a user index and writes its completion.
fn receive_of(srq: &mut PaperSrq, qp: &mut PaperQp, user_index: u32) {
    let entry = srq.device.take().unwrap();
    srq.device.complete(entry);
    qp.write_of(user_index, PaperCqe { opcode: 2, wqe_counter: entry, ..PaperCqe::default() });
}

fn receive(srq: &mut PaperSrq, qp: &mut PaperQp) {
    receive_of(srq, qp, USER_INDEX);
}

fn all(qp: &mut PaperQp) -> Vec<Wc> {
    let mut wcs = [Wc::default(); 32];
    let count = qp.poll(&mut wcs);
    wcs[..count].to_vec()
}

fn numbers(qp: &mut PaperQp) -> Vec<u64> {
    all(qp).iter().map(|wc| wc.wr_id).collect()
}

#[test]
fn a_queue_pair_completes_the_receives_that_it_took_beside_its_sends() {
    let mut srq = PaperSrq::new(4, 2);
    let mut qp = ready(&srq);
    for wr_id in 0..1000 {
        post(&mut srq.queue, wr_id).unwrap();
        let sge = [Sge { addr: 1, length: 1, lkey: 1 }];
        let wr = SendWr { wr_id: 5000 + wr_id, op: SendOp::Send, sge: &sge, flags: SendFlags::SIGNALED };
        let block = qp.records()[1] as u16;
        // SAFETY: a paper device accesses no memory.
        unsafe { qp.sq.post_send(&[wr]) }.unwrap();
        receive(&mut srq, &mut qp);
        qp.write(PaperCqe { opcode: 0, wqe_opcode: 0x0a, wqe_counter: block, ..PaperCqe::default() });
        let wcs: Vec<_> = all(&mut qp).iter().map(|wc| (wc.wr_id, wc.opcode)).collect();
        assert_eq!(wcs, [(wr_id, WcOpcode::RECV), (5000 + wr_id, WcOpcode::SEND)]);
    }
}

#[test]
fn a_receive_that_failed_frees_its_entry_too() {
    let mut srq = PaperSrq::new(2, 2);
    let mut qp = ready(&srq);
    for wr_id in 0..10 {
        post(&mut srq.queue, wr_id).unwrap();
        let entry = srq.device.take().unwrap();
        srq.device.complete(entry);
        let syndromes = [0xfe, 0x05];
        qp.write(PaperCqe { opcode: 14, wqe_counter: entry, syndromes, ..PaperCqe::default() });
        let wcs = all(&mut qp);
        assert_eq!((wcs[0].wr_id, wcs[0].status), (wr_id, WcStatus::WR_FLUSH_ERR));
    }
}

#[test]
fn completions_that_a_queue_pair_leaves_behind_free_their_entries() {
    for is_destroyed in [false, true] {
        for polled_before in 0..3 {
            let mut srq = PaperSrq::new(8, 2);
            let mut qp = ready(&srq);
            assert_eq!(fill(&mut srq), 7);
            for _ in 0..3 {
                receive(&mut srq, &mut qp);
            }
            for wr_id in 0..polled_before {
                assert_eq!(qp.lend().map(|one| one.wr_id()), Some(wr_id));
            }
            if is_destroyed {
                qp.destroy();
            } else {
                qp.move_to(QpState::RESET);
            }
            assert_eq!(numbers(&mut qp), [0_u64; 0]);
            assert_eq!(fill(&mut srq), 3, "{is_destroyed}, {polled_before}");
            if !is_destroyed {
                to_rts(&mut qp);
                receive(&mut srq, &mut qp);
                assert_eq!(numbers(&mut qp), [3]);
            }
        }
    }
}

#[test]
fn a_receive_that_failed_and_is_left_behind_frees_its_entry() {
    let mut srq = PaperSrq::new(8, 2);
    let mut qp = ready(&srq);
    assert_eq!(fill(&mut srq), 7);
    let entry = srq.device.take().unwrap();
    srq.device.complete(entry);
    qp.write(PaperCqe { opcode: 14, wqe_counter: entry, syndromes: [0, 5], ..PaperCqe::default() });
    qp.destroy();
    assert_eq!(numbers(&mut qp), [0_u64; 0]);
    assert_eq!(fill(&mut srq), 1);
}

#[test]
fn queue_pairs_with_one_number_leave_completions_of_several_queues_behind() {
    let mut srqs = [(); 2].map(|()| PaperSrq::new(4, 2));
    let mut qp = ready(&srqs[0]);
    for srq in &mut srqs {
        assert_eq!(fill(srq), 3);
    }
    // Both lives have completions for the entries 0 and 1; a third life has none.
    for srq in &mut srqs {
        qp.begin(
            USER_INDEX,
            Queues {
                send: None,
                recv: Some(Receives::Shared(Arc::clone(srq.requests()))),
                ..Queues::default()
            },
        );
        for _ in 0..2 {
            receive(srq, &mut qp);
        }
        qp.destroy();
    }
    receive(&mut srqs[1], &mut qp);
    assert_eq!(numbers(&mut qp), [0_u64; 0]);
    for srq in &mut srqs {
        assert_eq!(fill(srq), 2);
        // The poller's references are gone.
        assert!(Arc::strong_count(srq.requests()) <= 3);
    }
}

#[test]
fn receives_of_the_kind_xrc_have_the_number_of_their_queue() {
    const XRC: u32 = 0x345;
    let mut srq = PaperSrq::new(8, 2);
    // SAFETY: the test has one thread.
    let mut cq = unsafe { PaperQp::new(PaperShape::default()) };
    let receives = Receives::Shared(Arc::clone(srq.requests()));
    cq.begin(XRC, Queues { send: None, recv: Some(receives), ..Queues::default() });
    for wr_id in 0..100 {
        post(&mut srq.queue, wr_id).unwrap();
        receive_of(&mut srq, &mut cq, XRC);
        assert_eq!(numbers(&mut cq), [wr_id]);
    }
    // The user index does not belong to a send queue.
    cq.write_of(XRC, PaperCqe { opcode: 0, ..PaperCqe::default() });
    assert_eq!(numbers(&mut cq), [0_u64; 0]);
    // The queue is destroyed, and another queue immediately gets its user index.
    for wr_id in 0..3 {
        post(&mut srq.queue, wr_id).unwrap();
        receive_of(&mut srq, &mut cq, XRC);
    }
    cq.end(XRC);
    let mut other = PaperSrq::new(8, 2);
    let receives = Receives::Shared(Arc::clone(other.requests()));
    cq.begin(XRC, Queues { send: None, recv: Some(receives), ..Queues::default() });
    post(&mut other.queue, 77).unwrap();
    receive_of(&mut other, &mut cq, XRC);
    assert_eq!(numbers(&mut cq), [77]);
    assert_eq!(Arc::strong_count(srq.requests()), 2, "the queue's and the test's");
}

#[test]
fn a_completion_queue_that_is_dropped_frees_the_entries_of_what_completed() {
    let mut srq = PaperSrq::new(8, 2);
    let mut qp = ready(&srq);
    assert_eq!(fill(&mut srq), 7);
    for _ in 0..5 {
        receive(&mut srq, &mut qp);
    }
    assert_eq!(qp.lend().map(|one| one.wr_id()), Some(0));
    qp.destroy();
    drop(qp);
    assert_eq!(fill(&mut srq), 5);
}

#[test]
fn two_pollers_complete_while_a_thread_posts() {
    // Other architectures are mostly emulated, by `cargo xtask aarch64`.
    const COUNT: u64 = match (cfg!(miri), cfg!(target_arch = "x86_64")) {
        (true, _) => 200,
        (false, true) => 100_000,
        (false, false) => 10_000,
    };
    let PaperSrq { mut queue, device, .. } = PaperSrq::new(16, 2);
    let requests = Arc::clone(queue.requests());
    let device = Mutex::new((device, 0));
    let poller = |dice: u32| {
        let (mut dice, mut own, mut ended) = (Dice(dice), Vec::new(), Vec::new());
        loop {
            let (is_end, completed) = {
                let mut device = device.lock().unwrap();
                let (device, count) = &mut *device;
                if let Some(entry) = device.take() {
                    *count += 1;
                    own.push((entry, named(device, entry)));
                }
                let is_end = *count == COUNT;
                let completes = own.len() > 5 || is_end && !own.is_empty();
                let completed = completes.then(|| own.swap_remove(dice.below(own.len())));
                if let Some((entry, _)) = completed {
                    device.complete(entry);
                }
                (is_end, completed)
            };
            match completed {
                Some((entry, wr_id)) => {
                    assert_eq!(requests.complete(entry), Some(wr_id));
                    ended.push(wr_id);
                }
                None if is_end => return ended,
                None => thread::yield_now(),
            }
        }
    };
    let ended: Vec<u64> = thread::scope(|scope| {
        let pollers = [1, 2].map(|dice| scope.spawn(move || poller(dice)));
        for wr_id in 0..COUNT {
            while put(&mut queue, wr_id) == Err(PostReason::QueueFull) {
                queue.ring();
                thread::yield_now();
            }
            if wr_id % 3 == 0 || wr_id == COUNT - 1 {
                queue.ring();
            }
        }
        pollers.into_iter().flat_map(|poller| poller.join().unwrap()).collect()
    });
    assert_eq!(ended.len() as u64, COUNT);
    assert_eq!(ended.into_iter().collect::<BTreeSet<_>>(), (0..COUNT).collect());
}

#[test]
fn the_entries_without_a_receive_are_linked_for_direct_access() {
    let chain = |srq: &PaperSrq, head: u32, tail: u32| {
        let link = |at: u32| u16::from_be_bytes(srq.device.entry(at as u16)[2..4].try_into().unwrap());
        let mut at = head;
        let mut chain = vec![at];
        while at != tail {
            at = link(at).into();
            chain.push(at);
        }
        chain
    };
    let mut srq = PaperSrq::new(8, 2);
    assert_eq!(srq.queue.link_free(), (0, 7));
    assert_eq!(chain(&srq, 0, 7), [0, 1, 2, 3, 4, 5, 6, 7]);
    for wr_id in 0..6 {
        post(&mut srq.queue, wr_id).unwrap();
    }
    let entries = taken(&mut srq);
    for entry in [4, 1, 2] {
        complete(&mut srq, entry);
    }
    assert_eq!(entries, [0, 1, 2, 3, 4, 5]);
    post(&mut srq.queue, 6).unwrap();
    // The head has left the first run of entries and continues in the next free one.
    let (head, tail) = srq.queue.link_free();
    let free = chain(&srq, head, tail);
    assert!(free.iter().all(|entry| [7, 1, 2].contains(entry)), "{free:?}");
    assert_eq!(free[0], 7);
}
