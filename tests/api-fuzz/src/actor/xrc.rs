//! XRC: requests that name a shared receive queue in their target's domain. Domains, queues,
//! initiators and targets are destroyed in any order. Every receive returns exactly once, with a
//! message sent to its queue or unused.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::time::{Duration, Instant};

use verbs::state::{Rtr, Rts};
use verbs::{
    Buf, Cq, CqInit, Errno, InitAttr, Mtu, Pd, PostBufReason, PostReason, Qp, QpInit, QpType, RemoteAccess,
    RtsAttr, SendFlags, SendOp, Srq, SrqInit, WcStatus, Xrcd, XrcdInit,
};
use verbs_harness::pattern::{check, filled};
use verbs_harness::runner::{CaseResult, Stop, fail};

use super::super::tally::Kind;
use super::super::world::{PORT, rtr_attr};
use super::connect::all_access;
use super::srq::{reclaim_all, take};
use super::{Actor, windows};

const NONE: SendFlags = SendFlags::empty();
const LEN: usize = 200;

/// The number of receives that a shared queue can hold.
const DEPTH: u32 = 6;

/// A time limit that no message exceeds, even on a busy machine, under a sanitizer or in an
/// emulated guest.
const PATIENCE: Duration = Duration::from_secs(60);

/// The kinds of calls that a device without XRC cannot reach.
const KINDS: [Kind; 9] = [
    Kind::XrcPost,
    Kind::XrcSend,
    Kind::XrcReceived,
    Kind::XrcAccess,
    Kind::XrcNoQueue,
    Kind::XrcOpened,
    Kind::XrcInUse,
    Kind::XrcDismantle,
    Kind::XrcDrop,
];

/// A domain with its objects and the initiators that send to its targets.
struct Domain {
    /// The initiators' protection domain, in their context.
    from: Pd,
    /// The shared queues' protection domain, in their context.
    pd: Pd,
    xrcd: Xrcd,
    queues: Vec<Queue>,
    pairs: Vec<Pair>,
}

/// A shared receive queue and the program's records.
struct Queue {
    srq: Srq,
    cq: Cq,
    number: u32,
    /// The addresses of the outstanding receives.
    posted: HashSet<u64>,
    /// The seeds of messages still to arrive.
    sent: Vec<u64>,
}

/// An initiator with its completion queue and its target.
struct Pair {
    initiator: Qp<Rts>,
    cq: Cq,
    target: Qp<Rtr>,
}

impl Actor<'_> {
    /// Sends to shared receive queues by number and destroys all objects in a random order.
    pub(super) fn domains(&mut self) -> CaseResult {
        let contexts = self.world.contexts.len() as u64;
        let (from, to) = (self.choices.below(contexts) as usize, self.choices.below(contexts) as usize);
        let xrcd = match self.world.contexts[to].open_xrcd(&XrcdInit::default()) {
            Ok(xrcd) => xrcd,
            Err(error) if error.errno == Errno::OPNOTSUPP => {
                KINDS.into_iter().for_each(|kind| self.tally.add(kind));
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let [from_pd, pd] = [from, to].map(|context| self.world.pds[context].clone());
        let mut domain = Domain { from: from_pd, pd, xrcd, queues: Vec::new(), pairs: Vec::new() };
        for _ in 0..1 + self.choices.below(2) {
            domain.add_queue(&self.world.contexts[to])?;
        }
        for _ in 0..1 + self.choices.below(2) {
            let pair = self.make_pair(&domain, [from, to])?;
            domain.pairs.push(pair);
        }
        for _ in 0..self.choices.below(24) {
            let queue = self.choices.below(domain.queues.len() as u64) as usize;
            let Some(pair) = self.place(domain.pairs.len()) else { break };
            let has_room = domain.queues[queue].sent.len() < domain.queues[queue].posted.len();
            match self.choices.below(10) {
                0..3 => domain.queues[queue].post(&domain.pd, self)?,
                3..6 if has_room => {
                    let (seed, is_inline) = (self.choices.any(), self.choices.below(3) == 0);
                    domain.send(pair, queue, seed, is_inline)?;
                    self.tally.add(Kind::XrcSend);
                }
                6 => {
                    domain.access(pair, queue, self.choices.any())?;
                    self.tally.add(Kind::XrcAccess);
                }
                7 => {
                    // Opens another handle of the target, which replaces the first one or is
                    // closed.
                    let opened = domain.xrcd.open_target(domain.pairs[pair].target.qp_num())?;
                    self.tally.add(Kind::XrcOpened);
                    if self.rarely(2) {
                        domain.pairs[pair].target = opened;
                    } else {
                        opened.close()?;
                    }
                }
                8 if self.rarely(2) => {
                    if domain.xrcd.clone().close().is_ok() {
                        return fail("an XRC domain closed below its queues");
                    }
                    self.tally.add(Kind::XrcInUse);
                }
                9 if self.rarely(3) => {
                    let pair = domain.pairs.swap_remove(pair);
                    domain.name_no_queue(pair)?;
                    self.tally.add(Kind::XrcNoQueue);
                }
                _ => {
                    while !domain.queues[queue].sent.is_empty() {
                        domain.queues[queue].receive()?;
                        self.tally.add(Kind::XrcReceived);
                    }
                }
            }
        }
        self.end_domain(domain)
    }

    /// Returns an initiator in one context and a target in the domain, connected to each other.
    fn make_pair(&mut self, domain: &Domain, [from, to]: [usize; 2]) -> CaseResult<Pair> {
        let cq = self.world.contexts[from].create_cq(&CqInit::new(32))?;
        let initiator = domain.from.create_qp(&QpInit::new(QpType::XRC_SEND, &cq))?;
        let target = domain.xrcd.create_target()?;
        let init = InitAttr { port_num: PORT, pkey_index: 0, access: all_access(), qkey: 0 };
        let mtu = self.choices.one_of(&[Mtu::MTU_256, Mtu::MTU_1024]);
        let [to_target, to_initiator] = [
            rtr_attr(self.world.path(from, to), target.qp_num(), target.psn(), mtu, [4, 1]),
            rtr_attr(self.world.path(to, from), initiator.qp_num(), initiator.psn(), mtu, [4, 1]),
        ];
        let rts = RtsAttr { sq_psn: None, timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 4 };
        let initiator = initiator.to_init(&init)?.to_rtr(&to_target)?.to_rts(&rts)?;
        let target = target.to_init(&init)?.to_rtr(&to_initiator)?;
        Ok(Pair { initiator, cq, target })
    }

    /// Destroys all objects. Dismantled queues must return each receive exactly once.
    fn end_domain(&mut self, domain: Domain) -> CaseResult {
        let Domain { xrcd, queues, pairs, .. } = domain;
        match self.choices.below(4) {
            0 => {
                // The domain lives until all of its objects are gone.
                drop(xrcd);
                for Pair { initiator, target, .. } in pairs {
                    if self.rarely(2) {
                        drop((target, initiator));
                    } else {
                        drop((initiator, target));
                    }
                }
                drop(queues);
                self.tally.add(Kind::XrcDrop);
                return Ok(());
            }
            1 if self.world.may_forget() => {
                for Queue { srq, .. } in queues {
                    core::mem::forget(srq);
                }
                for Pair { target, .. } in pairs {
                    if self.rarely(2) {
                        core::mem::forget(target);
                    }
                }
                self.tally.add(Kind::XrcDrop);
                return Ok(());
            }
            // The queues end while initiators can still name them.
            2 => self.end_queues(queues)?,
            _ => {
                drop(pairs);
                self.end_queues(queues)?;
                xrcd.close()?;
            }
        }
        Ok(())
    }

    fn end_queues(&self, queues: Vec<Queue>) -> CaseResult {
        for Queue { srq, mut cq, mut posted, .. } in queues {
            reclaim_all(srq, &mut cq, &mut posted)?;
            if !posted.is_empty() {
                return fail(format_args!("{} receives of a domain were lost", posted.len()));
            }
            self.tally.add(Kind::XrcDismantle);
        }
        Ok(())
    }
}

impl Domain {
    fn add_queue(&mut self, context: &verbs::Context) -> CaseResult {
        let cq = context.create_cq(&CqInit::new(64))?;
        let srq = self.xrcd.create_srq(&self.pd, &cq, &SrqInit::new(DEPTH))?;
        let number = srq.srq_num().ok_or_else(|| Stop::Failed("an XRC queue without a number".into()))?;
        self.queues.push(Queue { srq, cq, number, posted: HashSet::new(), sent: Vec::new() });
        Ok(())
    }

    /// Sends a message to a shared queue, which must have a receive posted.
    fn send(&mut self, pair: usize, queue: usize, seed: u64, is_inline: bool) -> CaseResult {
        let (pair, queue) = (&mut self.pairs[pair], &mut self.queues[queue]);
        let op = SendOp::Xrc { remote_srqn: queue.number, op: &SendOp::Send };
        if is_inline {
            let bytes = filled(seed, 16);
            // A queue pair without space for inline data rejects it.
            if pair.initiator.post_send_inline(1, op, SendFlags::SIGNALED, &bytes).is_err() {
                return Ok(());
            }
            let completed = windows::next(&mut pair.cq)?;
            if completed.status != WcStatus::SUCCESS {
                return fail(format_args!("an inline send ends with {}", completed.status));
            }
        } else {
            pair.initiator.post_send_buf(op, NONE, message(&self.from, seed)?, ..)?;
            holds(&windows::next(&mut pair.cq)?.ok()?.into_buf()?, seed)?;
        }
        queue.sent.push(seed);
        Ok(())
    }

    /// Writes memory in the domain of a shared queue and reads it back.
    fn access(&mut self, pair: usize, queue: usize, seed: u64) -> CaseResult {
        let (pair, remote_srqn) = (&mut self.pairs[pair], self.queues[queue].number);
        let access = RemoteAccess::WRITE | RemoteAccess::READ;
        let exposed = self.pd.expose(self.pd.alloc_buf(LEN)?, access)?;
        let remote = exposed.remote();
        let op = SendOp::Xrc { remote_srqn, op: &remote.write() };
        pair.initiator.post_send_buf(op, NONE, message(&self.from, seed)?, ..)?;
        let buf = windows::next(&mut pair.cq)?.ok()?.into_buf()?;
        holds(&buf, seed)?;
        let op = SendOp::Xrc { remote_srqn, op: &remote.read() };
        pair.initiator.post_send_buf(op, NONE, self.from.alloc_buf(LEN)?, ..)?;
        holds(&windows::next(&mut pair.cq)?.ok()?.into_buf()?, seed)?;
        holds(&exposed.unexpose()?, seed)
    }

    /// Sends to a shared queue in another domain, which breaks the initiator's connection.
    fn name_no_queue(&self, pair: Pair) -> CaseResult {
        let Pair { mut initiator, mut cq, target } = pair;
        let other = self.pd.context().open_xrcd(&XrcdInit::default())?;
        let own = self.pd.context().create_cq(&CqInit::new(4))?;
        let srq = other.create_srq(&self.pd, &own, &SrqInit::new(1))?;
        let remote_srqn = srq.srq_num().unwrap_or(0);
        let (seed, op) = (u64::from(remote_srqn), SendOp::Xrc { remote_srqn, op: &SendOp::Send });
        initiator.post_send_buf(op, NONE, message(&self.from, seed)?, ..)?;
        let completed = windows::next(&mut cq)?;
        if completed.status != WcStatus::REM_INV_REQ_ERR {
            return fail(format_args!(
                "a request to a queue of another domain ends with {}",
                completed.status
            ));
        }
        holds(&completed.into_buf()?, seed)?;
        drop((initiator, target));
        Ok(())
    }
}

impl Queue {
    /// Posts a receive if the queue has space.
    fn post(&mut self, pd: &Pd, actor: &Actor<'_>) -> CaseResult {
        let buf = pd.alloc_buf(LEN)?;
        let addr = buf.addr();
        match self.srq.post_recv_buf(buf, ..) {
            Ok(_) => {
                self.posted.insert(addr);
                actor.tally.add(Kind::XrcPost);
            }
            Err(refused)
                if refused.reason == PostBufReason::Post(PostReason::QueueFull)
                    && refused.returned.is_some() => {}
            Err(refused) => return fail(format_args!("a receive of a domain: {refused}")),
        }
        Ok(())
    }

    /// Waits for a message and compares it with the sent messages.
    fn receive(&mut self) -> CaseResult {
        let deadline = Instant::now() + PATIENCE;
        let completed = loop {
            match self.cq.poll_one() {
                Some(completed) => break completed.ok()?,
                None if Instant::now() > deadline => return fail("a message of a domain does not arrive"),
                None => std::thread::yield_now(),
            }
        };
        let len = completed.received();
        let buf = completed.into_buf()?;
        take(&mut self.posted, &buf)?;
        let Some(at) = self.sent.iter().position(|seed| check(*seed, &buf[..len]).is_ok()) else {
            return fail(format_args!("a message of {len} bytes that was not sent to its queue"));
        };
        self.sent.swap_remove(at);
        Ok(())
    }
}

/// Returns a buffer with the bytes of a seed.
fn message(pd: &Pd, seed: u64) -> CaseResult<Buf> {
    let mut buf = pd.alloc_buf(LEN)?;
    buf.copy_from_slice(&filled(seed, LEN));
    Ok(buf)
}

/// Checks that memory holds the bytes of a seed.
fn holds(bytes: &[u8], seed: u64) -> CaseResult {
    check(seed, bytes).map_err(|what| Stop::Failed(format!("memory of a request by XRC: {what}")))
}
