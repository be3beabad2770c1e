//! Random sequences: every posted request comes out unchanged and in order; no other byte changes.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;
use uverbs_abi::ib_user_verbs::IbUverbsWc;
use uverbs_abi::rdma_user_rxe::{RxeCreateCqResp, RxeSendWqe, RxeSge};
use verbs_core::channel::{Expect, Reply};
use verbs_core::provider::{Completion, ContextOps, CqOps, SendQueue};
use verbs_core::types::{PostReason, QpType, SendFlags, SendOp, SendWr, Sge, Wc};
use zerocopy::{FromBytes, IntoBytes};

use super::Fixture;
use provider_rxe::paper::{PaperDevice, PaperQueue};

#[derive(Clone, Debug)]
enum Step {
    /// Post work requests: the kind, the number of SGEs and the length of each.
    Post(Vec<(u8, usize, u32)>),
    /// Queue work requests until one is rejected, then roll them back.
    Abort(Vec<(u8, usize, u32)>),
    /// The kernel takes up to this many requests.
    Take(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wr = (0_u8..7, 0_usize..6, prop_oneof![Just(8_u32), 0_u32..0x9000_0000]);
    let batch = vec(wr, 0..6);
    let step = prop_oneof![
        batch.clone().prop_map(Step::Post),
        batch.prop_map(Step::Abort),
        (0_u32..20).prop_map(Step::Take)
    ];
    vec(step, 1..60)
}

fn operation(kind: u8) -> (SendOp<'static>, u32) {
    let (remote_addr, rkey) = (0x4000, 5);
    match kind {
        0 => (SendOp::Send, 2),
        1 => (SendOp::SendWithImm { imm_data: 1 }, 3),
        2 => (SendOp::RdmaWrite { remote_addr, rkey }, 0),
        3 => (SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: 2 }, 1),
        4 => (SendOp::RdmaRead { remote_addr, rkey }, 4),
        5 => (SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 1, swap: 2 }, 5),
        _ => (SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 }, 6),
    }
}

/// Returns the fault of a work request, derived from the documentation rather than from the code.
fn verdict(kind: u8, sges: &[Sge], queued: usize) -> Option<PostReason> {
    let length: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
    if sges.len() > 4 {
        Some(PostReason::TooManySge { given: sges.len(), max: 4 })
    } else if length > 1 << 31 {
        Some(PostReason::MessageTooLong { given: length })
    } else if kind >= 5 && length != 8 {
        Some(PostReason::AtomicLength { given: length })
    } else if queued == 15 {
        Some(PostReason::QueueFull)
    } else {
        None
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_send_queue_behaves_as_a_queue(steps in steps()) {
        let mut fixture = Fixture::of_type(QpType::RC);
        let mut model: VecDeque<(u64, u32, Vec<Sge>)> = VecDeque::new();
        let mut next_id = 0;
        for step in steps {
            match step {
                Step::Post(ref batch) | Step::Abort(ref batch) => {
                    let lists: Vec<Vec<Sge>> = batch
                        .iter()
                        .map(|&(_, count, length)| vec![Sge { addr: next_id, length, lkey: count as u32 }; count])
                        .collect();
                    let wrs: Vec<SendWr<'_>> = batch
                        .iter()
                        .zip(&lists)
                        .enumerate()
                        .map(|(n, (&(kind, ..), sge))| SendWr {
                            wr_id: next_id + n as u64,
                            op: operation(kind).0,
                            sge,
                            flags: SendFlags::SIGNALED,
                        })
                        .collect();
                    let before = model.len();
                    let mut expected = Ok(());
                    for ((&(kind, ..), list), wr) in batch.iter().zip(&lists).zip(&wrs) {
                        if let Some(reason) = verdict(kind, list, model.len()) {
                            expected = Err(reason);
                            break;
                        }
                        model.push_back((wr.wr_id, operation(kind).1, list.clone()));
                    }
                    next_id += batch.len() as u64;
                    if matches!(step, Step::Post(_)) {
                        prop_assert_eq!(fixture.send(&wrs).map_err(|error| error.reason), expected);
                    } else {
                        let sq = &mut fixture.qp.parts.sq;
                        // SAFETY: a paper device accesses no memory named by work requests.
                        let refused = wrs.iter().find_map(|wr| unsafe { sq.post_one(wr) }.err());
                        prop_assert_eq!(refused, expected.err());
                        prop_assert_eq!(sq.rollback(model.len() - before), model.len() - before);
                        model.truncate(before);
                    }
                }
                Step::Take(count) => {
                    for _ in 0..count {
                        let taken = fixture.qp.sq.take::<RxeSendWqe>();
                        let Some((wr_id, opcode, list)) = model.pop_front() else {
                            prop_assert!(taken.is_none());
                            break;
                        };
                        let (wqe, rest) = taken.unwrap();
                        prop_assert_eq!((wqe.wr.wr_id, wqe.wr.opcode), (wr_id, opcode));
                        prop_assert_eq!(wqe.dma.num_sge as usize, list.len());
                        for (n, sge) in list.iter().enumerate() {
                            let there = RxeSge::read_from_bytes(&rest[n * 16..n * 16 + 16]).unwrap();
                            prop_assert_eq!((there.addr, there.length, there.lkey), (sge.addr, sge.length, sge.lkey));
                        }
                    }
                }
            }
            prop_assert_eq!(fixture.qp.sq.count() as usize, model.len());
        }
    }

    #[test]
    fn a_completion_queue_behaves_as_a_queue(steps in vec((0_u32..20, 0_usize..20, any::<bool>()), 1..60)) {
        let mut cq = crate::device().create_cq(16);
        let (mut put, mut got) = (0_u64, 0_u64);
        let mut wcs = [Wc::default(); 20];
        for (arrive, ask, lend) in steps {
            for _ in 0..arrive {
                if cq.queue.put(IbUverbsWc { wr_id: put, ..Default::default() }) {
                    put += 1;
                }
            }
            if lend {
                for _ in 0..ask {
                    let Some(completion) = cq.cq.next() else { break };
                    prop_assert_eq!(completion.wr_id(), got);
                    got += 1;
                }
                cq.cq.end_poll();
            } else {
                let count = cq.cq.poll(&mut wcs[..ask]);
                for wc in &wcs[..count] {
                    prop_assert_eq!(wc.wr_id, got);
                    got += 1;
                }
            }
            prop_assert_eq!(u64::from(cq.queue.count()), put - got);
        }
    }

    #[test]
    fn a_header_of_noise_is_refused_or_stays_within_what_is_mapped(
        log2_stride in prop_oneof![0_u32..20, any::<u32>()],
        mask in prop_oneof![(0_u32..12).prop_map(|log2| (1 << log2) - 1), any::<u32>()],
        size in 0_usize..8192,
        indices in vec((any::<u32>(), any::<u32>()), 1..20),
    ) {
        let device = crate::device();
        // Only a part of the memory is mapped; the rest must never be returned as a completion.
        let queue = PaperQueue::new(256, 64);
        queue.poke(0, log2_stride);
        queue.poke(4, mask);
        let inside = IbUverbsWc { wr_id: 0x600d, ..Default::default() };
        let mut at = 384;
        while at + 64 <= queue.size() {
            let wr_id = if at + 48 <= size { inside.wr_id } else { 0xbad };
            queue.poke(at, IbUverbsWc { wr_id, ..inside });
            at += 64;
        }
        let mut reply = RxeCreateCqResp { mi: PaperDevice::mminfo(1, &queue) };
        reply.mi.size = size as u32;
        device.script.expect([PaperDevice::cq_reply(15, reply.as_bytes())]);
        let fits = size >= 384
            && log2_stride < 32
            && 1_u64 << log2_stride >= 48
            && (u64::from(mask) + 1).is_power_of_two()
            && (u64::from(mask) + 1) << log2_stride <= (size - 384) as u64;
        if size >= 384 {
            device.expect_map_of(1, size, &queue);
        }
        if !fits {
            device.script.expect([Expect::anything(Reply::ok())]);
        }
        let created = device.context.create_cq(None, &PaperDevice::cq_attr());
        prop_assert_eq!(created.is_ok(), fits);
        if let Ok((mut cq, _)) = created {
            let mut wcs = [Wc::default(); 32];
            for (producer, consumer) in indices {
                queue.set_indices(producer, consumer);
                let count = cq.poll(&mut wcs);
                for wc in &wcs[..count] {
                    prop_assert_ne!(wc.wr_id, 0xbad);
                }
                if let Some(completion) = cq.next() {
                    prop_assert_ne!(completion.wr_id(), 0xbad);
                }
            }
        }
    }
}
