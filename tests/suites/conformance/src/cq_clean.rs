//! Completions in a queue when their queue pair is destroyed or reset, among completions of another
//! queue pair.

use verbs::state::Rts;
use verbs::{CompChannel, Context, Cq, CqInit, Provider, Qp, QpType, RecvWr, SendFlags, SendOp, SendWr, Wc};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    Arena, PATIENCE, Remote, Shape, connect, create_qp, is_empty, is_mlx5, pattern, post_recv, post_send,
    signalled, wait,
};
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        a_destroyed_queue_pair_takes_its_completions_along,
        a_reset_queue_pair_takes_its_completions_along,
    )
}

/// Two queue pairs, each connected to itself, that share a completion queue.
struct Two<P: Provider> {
    pd: verbs::Pd<P>,
    channel: CompChannel,
    cq: Cq<P>,
    /// The queue pair that ends and the queue pair that stays.
    qps: [Qp<Rts, P>; 2],
    arena: Arena<P>,
}

/// The length of a message, in bytes.
const LEN: usize = 24;

impl<P: Provider> Two<P> {
    fn new(context: &Context<P>) -> CaseResult<Self> {
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(32) })?;
        let make = || {
            let qp = create_qp(&pd, &cq, &Shape::for_type(QpType::RC))?;
            let own = Remote::from_qp(&qp);
            connect(context, qp, &Shape::default(), own)
        };
        let qps = [make()?, make()?];
        let arena = Arena::new(&pd, 2 * LEN)?;
        arena.write(0, &pattern(5, LEN));
        Ok(Self { pd, channel, cq, qps, arena })
    }

    /// Completes a request of a queue pair and waits until the completion is in the queue, without
    /// polling it. The request is a write, or a receive whose matching send completes silently.
    fn complete(&mut self, which: usize, wr_id: u64, received: bool) -> CaseResult {
        let (qp, arena) = (&mut self.qps[which], &self.arena);
        let sge = [arena.sge(0..LEN)];
        self.cq.req_notify(false)?;
        if received {
            post_recv(qp, &[RecvWr { wr_id, sge: &[arena.sge(LEN..2 * LEN)] }])?;
            let flags = SendFlags::empty();
            post_send(qp, &[SendWr { wr_id: 99, op: SendOp::Send, sge: &sge, flags }])?;
        } else {
            let op = SendOp::RdmaWrite { remote_addr: arena.addr() + LEN as u64, rkey: arena.rkey() };
            post_send(qp, &[signalled(wr_id, op, &sge)])?;
        }
        match self.channel.wait(Some(PATIENCE))? {
            Some(_) => Ok(()),
            None => fail(format_args!("no completion of {wr_id} after {PATIENCE:?}")),
        }
    }

    /// Interleaves the completions of both queue pairs: 1, 3, 5 and 7 belong to the first queue
    /// pair, 2, 4, 6 and 8 to the second.
    fn interleave(&mut self) -> CaseResult {
        for wr_id in 1..=8 {
            self.complete((wr_id as usize + 1) % 2, wr_id, (wr_id - 1) % 4 > 1)?;
        }
        Ok(())
    }
}

/// Polls this many completions, into an array or one by one.
fn poll<P: Provider>(cq: &mut Cq<P>, count: usize, as_array: bool) -> CaseResult<Vec<Wc>> {
    if !as_array {
        return wait(cq, count);
    }
    let deadline = std::time::Instant::now() + PATIENCE;
    let (mut wcs, mut at) = (vec![Wc::default(); count], 0);
    while at < count {
        at += cq.poll_into(&mut wcs[at..]);
        if std::time::Instant::now() > deadline {
            return fail(format_args!("{at} of {count} completions"));
        }
    }
    Ok(wcs)
}

/// Polls the completions of these requests in order. Returns whether the device also kept the
/// completions of the queue pair that ended: 1, 3, 5 and 7.
///
/// `Qp::dismantle` allows this on devices whose completions carry the `wr_id`. A ConnectX
/// completion refers to a slot in the queue pair, so the provider must skip such a completion.
fn expect<P: Provider>(cq: &mut Cq<P>, others: &[u64], as_array: bool) -> CaseResult<bool> {
    let mut left = Vec::new();
    for wr_id in others {
        let mut wc = poll(cq, 1, as_array)?[0];
        while !is_mlx5()? && wc.wr_id != *wr_id && [1, 3, 5, 7].contains(&wc.wr_id) {
            left.push(wc.wr_id);
            wc = poll(cq, 1, as_array)?[0];
        }
        assert_eq!((wc.wr_id, wc.status), (*wr_id, verbs::WcStatus::SUCCESS), "{wc:?}");
    }
    assert!(is_empty(cq), "a completion behind the last one");
    assert!(left.is_empty() || left == [1, 3, 5, 7], "all of them or none, in their order: {left:?}");
    Ok(!left.is_empty())
}

/// Skips a case whose other checks have passed if the device kept the completions.
fn verdict(kept: bool) -> CaseResult {
    if kept { skip("the device keeps the completions of a queue pair that has ended") } else { Ok(()) }
}

fn a_destroyed_queue_pair_takes_its_completions_along<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut kept = false;
    for as_array in [false, true] {
        let mut two = Two::new(context)?;
        two.interleave()?;
        let [gone, stays] = two.qps;
        gone.close()?;
        kept |= expect(&mut two.cq, &[2, 4, 6, 8], as_array)?;
        // The completion queue serves a new queue pair together with the remaining one.
        let new = create_qp(&two.pd, &two.cq, &Shape::default())?;
        let own = Remote::from_qp(&new);
        two = Two { qps: [connect(context, new, &Shape::default(), own)?, stays], ..two };
        two.interleave()?;
        let ids: Vec<_> = poll(&mut two.cq, 8, as_array)?.iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7, 8]);
    }
    verdict(kept)
}

fn a_reset_queue_pair_takes_its_completions_along<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut kept = false;
    for as_array in [false, true] {
        let mut two = Two::new(context)?;
        two.interleave()?;
        let [reset, stays] = two.qps;
        let reset = reset.to_reset()?;
        let own = Remote::from_qp(&reset);
        two = Two { qps: [connect(context, reset, &Shape::default(), own)?, stays], ..two };
        // Its queues restart while the completion queue still holds completions from before the
        // reset.
        two.complete(0, 11, false)?;
        two.complete(1, 12, true)?;
        two.complete(0, 13, true)?;
        kept |= expect(&mut two.cq, &[2, 4, 6, 8, 11, 12, 13], as_array)?;
    }
    verdict(kept)
}
