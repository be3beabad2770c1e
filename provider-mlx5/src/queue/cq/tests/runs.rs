//! Tests that copying many completions out at once gives the same result as lending them one by
//! one.

use std::collections::VecDeque;
use std::sync::Arc;

use verbs_core::provider::Completion as _;
use verbs_core::types::Wc;

use crate::paper::{Dice, PaperCqe, PaperQp, PaperShape};
use crate::queue::cq::cqe::cqe_opcode;
use crate::queue::cq::{Queues, Receives};
use crate::queue::record::{Kind, RecvRecord, SendRecord, SrqRecord, bit};

const SLOTS: u32 = 32;
const ENTRIES: u32 = 16;
const SOLICITED: u8 = 2;

/// A queue pair whose requests the test itself records.
struct Pair {
    number: u32,
    send: Arc<SendRecord>,
    recv: Arc<RecvRecord>,
    /// The shared receive queue, if used in place of `recv`.
    srq: Option<Arc<SrqRecord>>,
    sent: u32,
    received: u32,
}

impl Pair {
    fn new(number: u32, srq: Option<Arc<SrqRecord>>) -> Self {
        let (send, recv) = (SendRecord::new(SLOTS), RecvRecord::new(SLOTS));
        Self { number, send, recv, srq, sent: 0, received: 0 }
    }

    fn queues(&self, recv_kind: Kind) -> Queues {
        let recv = match &self.srq {
            Some(srq) => Receives::Shared(Arc::clone(srq)),
            None => Receives::Own(Arc::clone(&self.recv)),
        };
        Queues { send: Some(Arc::clone(&self.send)), recv: Some(recv), recv_kind, lists: None }
    }
}

/// A completion queue, the queue pairs that complete to it, and their shared receive queue.
struct World {
    qp: PaperQp,
    pairs: Vec<Pair>,
    srq: Arc<SrqRecord>,
    wr_id: u64,
}

/// An event on a queue pair.
#[derive(Clone, Copy, Debug)]
enum Step {
    Sent { kind: Kind, wqe_opcode: u8, opcode: u8, format: u8, unsignaled: u32 },
    Received { opcode: u8, format: u8, imm: u32, flags_rqpn: u32 },
    Reset,
}

impl World {
    fn new(cqe_size: usize) -> Self {
        let shape = PaperShape { cqes: ENTRIES, cqe_size, ..PaperShape::default() };
        // SAFETY: the test has one thread.
        let qp = unsafe { PaperQp::new(shape) };
        let srq = SrqRecord::new(SLOTS);
        let pairs = vec![
            Pair::new(7, None),
            Pair::new(8, None),
            Pair::new(9, Some(Arc::clone(&srq))),
            Pair::new(10, Some(Arc::clone(&srq))),
        ];
        for pair in &pairs {
            qp.begin(pair.number, pair.queues(Kind::RECEIVE));
        }
        Self { qp, pairs, srq, wr_id: 100 }
    }

    fn step(&mut self, of: usize, step: Step) {
        let pair = &mut self.pairs[of];
        match step {
            Step::Sent { kind, wqe_opcode, opcode, format, unsignaled } => {
                for _ in 0..=unsignaled {
                    self.wr_id += 1;
                    pair.send.put(pair.sent, self.wr_id, pair.sent + 1, kind);
                    pair.sent += 1;
                }
                let wqe_counter = (pair.sent - 1) as u16;
                let cqe = PaperCqe { opcode, wqe_opcode, wqe_counter, format, ..PaperCqe::default() };
                self.qp.write_of(pair.number, PaperCqe { byte_cnt: 99, ..cqe });
            }
            Step::Received { opcode, format, imm, flags_rqpn } => {
                self.wr_id += 1;
                let entry = match &pair.srq {
                    Some(srq) => {
                        // The first free entry.
                        let free = srq.free_behind(SLOTS - 1).expect("an entry is free");
                        srq.put(*free.start(), self.wr_id);
                        srq.mark(*free.start(), bit(*free.start()));
                        *free.start()
                    }
                    None => {
                        pair.recv.put(pair.received, self.wr_id);
                        pair.received += 1;
                        pair.received - 1
                    }
                };
                let (wqe_counter, byte_cnt, slid) = (entry as u16, self.wr_id as u32, 3);
                let cqe = PaperCqe { opcode, wqe_counter, byte_cnt, slid, format, ..PaperCqe::default() };
                let cqe = PaperCqe { imm_inval_pkey: imm, flags_rqpn, ml_path: 5, frame: [6, 8], ..cqe };
                self.qp.write_of(pair.number, cqe);
            }
            Step::Reset => {
                *pair = Pair::new(pair.number, pair.srq.take());
                let recv_kind = if self.wr_id.is_multiple_of(2) { Kind::FRAME } else { Kind::RECEIVE };
                self.qp.reset(pair.number, pair.queues(recv_kind));
            }
        }
    }

    fn tails(&self) -> Vec<(u32, u32)> {
        self.pairs.iter().map(|pair| (pair.send.tail(), pair.recv.tail())).collect()
    }

    /// Returns the entries in use in the shared receive queue.
    fn taken(&self) -> Vec<u32> {
        let is_free = |entry: &u32| {
            let before = if *entry == 0 { SLOTS - 1 } else { entry - 1 };
            self.srq.free_behind(before).is_some_and(|free| *free.start() == *entry)
        };
        (0..SLOTS).filter(|entry| !is_free(entry)).collect()
    }
}

fn random_step(dice: &mut Dice) -> Step {
    let format = if dice.below(20) == 0 { 4 } else { 0 };
    match dice.below(20) {
        0 => Step::Reset,
        1 => Step::Sent {
            kind: Kind::PLAIN,
            wqe_opcode: 8,
            opcode: cqe_opcode::REQ_ERR,
            format: 0,
            unsignaled: 0,
        },
        2 => Step::Received { opcode: cqe_opcode::RESP_ERR, format: 0, imm: 0, flags_rqpn: 0 },
        3..=11 => {
            let (kind, wqe_opcode) = [
                (Kind::PLAIN, 8),
                (Kind::PLAIN, 8),
                (Kind::INLINE, 10),
                (Kind::FETCH, 0x10),
                (Kind::FETCH, 0x12),
                (Kind::INVALIDATE, 0x25),
                (Kind::RAW, 10),
            ][dice.below(7)];
            let unsignaled = dice.below(3) as u32;
            Step::Sent { kind, wqe_opcode, opcode: cqe_opcode::REQ, format, unsignaled }
        }
        _ => Step::Received {
            opcode: dice.below(4) as u8 + cqe_opcode::RESP_WR_IMM,
            format: format | if dice.below(3) == 0 { SOLICITED } else { 0 },
            imm: dice.below(1 << 31) as u32,
            flags_rqpn: dice.below(1 << 31) as u32,
        },
    }
}

#[test]
fn copies_of_any_number_are_the_completions_that_are_lent() {
    const STEPS: u32 = if cfg!(miri) { 300 } else { 10_000 };
    for (seed, cqe_size) in [(1, 64), (2, 128)] {
        let mut dice = Dice(seed);
        let (mut lends, mut copies) = (World::new(cqe_size), World::new(cqe_size));
        let mut waiting = 0;
        let mut of = 0;
        for _ in 0..STEPS {
            // Mostly the same queue pair, to form runs.
            of = if dice.below(4) == 0 { dice.below(4) } else { of };
            let step = random_step(&mut dice);
            waiting += u64::from(!matches!(step, Step::Reset));
            lends.step(of, step);
            copies.step(of, step);
            // A send queue has space for the completions of two rounds.
            if waiting < 10 && dice.below(6) != 0 {
                continue;
            }
            let mut lent = VecDeque::new();
            while let Some(completion) = lends.qp.lend() {
                let mut wc = Wc::default();
                completion.write_to(&mut wc);
                lent.push_back(wc);
            }
            lends.qp.end_poll();
            loop {
                let mut wcs = [Wc::default(); 16];
                let most = if dice.below(2) == 0 { 2 } else { 15 };
                let asked = dice.below(most) + 1;
                let before = copies.qp.records()[2];
                let count = copies.qp.poll(&mut wcs[..asked]);
                // Skipped completions are returned as well.
                let returned = copies.qp.records()[2].wrapping_sub(before) & 0xff_ffff;
                assert!(returned as usize >= count, "{returned} of {count}");
                let expected: Vec<Wc> = lent.drain(..asked.min(lent.len())).collect();
                assert_eq!(wcs[..count], expected, "{asked} of {waiting}");
                if count == 0 {
                    break;
                }
            }
            assert_eq!(copies.tails(), lends.tails());
            assert_eq!(copies.taken(), lends.taken());
            assert_eq!(copies.qp.records()[2], lends.qp.records()[2]);
            waiting = 0;
        }
    }
}
