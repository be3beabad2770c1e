//! Shared receive queues. Every receive returns exactly once, with a message or unused.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::time::{Duration, Instant};

use verbs::state::Rts;
use verbs::{
    Buf, ConnectAttr, Cq, CqInit, Errno, Memory, Pd, PostBufReason, PostReason, Qp, QpInit, QpType,
    SendFlags, SendOp, Srq, SrqAttr, SrqAttrMask, SrqInit, WcStatus,
};
use verbs_harness::pattern::{check, filled};
use verbs_harness::runner::{CaseResult, Stop, fail};

use super::super::tally::Kind;
use super::super::world::PORT;
use super::Actor;

const NONE: SendFlags = SendFlags::empty();
const LEN: usize = 200;

/// The number of receives that a shared receive queue can hold.
const DEPTH: u32 = 8;

/// A time limit that no message exceeds, even on a busy machine, under a sanitizer or in an
/// emulated guest.
const PATIENCE: Duration = Duration::from_secs(60);

/// Connected queue pairs, their shared receive queue and the program's records.
struct Shared {
    pd: Pd,
    srq: Srq,
    senders: Vec<Qp<Rts>>,
    receivers: Vec<Qp<Rts>>,
    send_cq: Cq,
    recv_cq: Cq,
    /// The addresses of the outstanding receives.
    posted: HashSet<u64>,
    /// The seeds of messages still to arrive.
    sent: Vec<u64>,
}

impl Actor<'_> {
    /// Exchanges messages through a shared receive queue and destroys all objects in one of several
    /// orders.
    pub(super) fn shared_receives(&mut self) -> CaseResult {
        let context = self.choices.below(self.world.contexts.len() as u64) as usize;
        let mut shared = self.make_shared(context)?;
        for _ in 0..self.choices.below(24) {
            match self.choices.below(8) {
                0..3 => self.post_shared(&mut shared)?,
                3..6 if shared.sent.len() < shared.posted.len() => {
                    let (from, seed) = (self.choices.below(shared.senders.len() as u64), self.choices.any());
                    shared.send(from as usize, seed)?;
                }
                6 => {
                    shared.srq.arm(1 + self.choices.below(3) as u32)?;
                    self.tally.add(Kind::SrqArm);
                }
                7 if self.rarely(4) => {
                    let max_wr = shared.srq.query()?.max_wr + 8;
                    let is_fixed = self.world.contexts[0].provider_name() == "mlx5";
                    let attr = SrqAttr { max_wr, ..SrqAttr::default() };
                    match shared.srq.modify(&attr, SrqAttrMask::MAX_WR) {
                        // ConnectX cannot resize a shared receive queue.
                        Err(error) if error.errno == Errno::INVAL && is_fixed => {}
                        changed => changed?,
                    }
                    self.tally.add(Kind::SrqResize);
                }
                _ => {
                    for _ in 0..shared.sent.len() {
                        shared.receive()?;
                        self.tally.add(Kind::SrqReceived);
                    }
                }
            }
        }
        self.end_shared(shared)
    }

    fn make_shared(&mut self, context: usize) -> CaseResult<Shared> {
        let (pd, context) = (self.world.pds[context].clone(), &self.world.contexts[context]);
        let port = context.port(PORT)?;
        let srq = pd.create_srq(&SrqInit::new(DEPTH))?;
        let (send_cq, recv_cq) =
            (context.create_cq(&CqInit::new(256))?, context.create_cq(&CqInit::new(256))?);
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for _ in 0..1 + self.choices.below(3) {
            let sender = pd.create_qp(&QpInit::new(QpType::RC, &send_cq))?;
            let init = QpInit { srq: Some(srq.handle()), ..QpInit::new(QpType::RC, &recv_cq) };
            let receiver = pd.create_qp(&init)?;
            let (to_sender, to_receiver) = (sender.endpoint(&port), receiver.endpoint(&port));
            senders.push(sender.connect(&port, &to_receiver, &ConnectAttr::default())?);
            receivers.push(receiver.connect(&port, &to_sender, &ConnectAttr::default())?);
        }
        let (posted, sent) = (HashSet::new(), Vec::new());
        Ok(Shared { pd, srq, senders, receivers, send_cq, recv_cq, posted, sent })
    }

    /// Posts one to four receives. Those that the shared receive queue has no space for must be
    /// rejected.
    fn post_shared(&mut self, shared: &mut Shared) -> CaseResult {
        let room = || -> CaseResult<Buf> { Ok(shared.pd.alloc_buf(LEN)?) };
        let count = if self.choices.below(2) == 0 { 1 } else { 2 + self.choices.below(3) };
        let bufs = (0..count).map(|_| room()).collect::<CaseResult<Vec<_>>>()?;
        let is_full = |reason: &PostBufReason| *reason == PostBufReason::Post(PostReason::QueueFull);
        for buf in bufs {
            let addr = buf.addr();
            match shared.srq.post_recv_buf(buf, ..) {
                Ok(_) => {
                    shared.posted.insert(addr);
                    self.tally.add(Kind::SrqPost);
                }
                Err(refused) if is_full(&refused.reason) && refused.returned.is_some() => {
                    self.tally.add(Kind::SrqFull);
                }
                Err(refused) => return fail(format_args!("a shared receive: {refused}")),
            }
        }
        Ok(())
    }

    /// Destroys all objects and checks that each receive is returned exactly once.
    fn end_shared(&mut self, shared: Shared) -> CaseResult {
        let Shared { srq, senders, receivers, mut recv_cq, mut posted, .. } = shared;
        match self.choices.below(4) {
            0 => {
                // The queue lives until its queue pairs are gone. It then drops its receives.
                drop(srq);
                drop((receivers, senders));
                self.tally.add(Kind::SrqDrop);
                return Ok(());
            }
            1 if self.world.may_forget() => {
                core::mem::forget(srq);
                drop((receivers, senders));
                self.tally.add(Kind::SrqForget);
                return Ok(());
            }
            2 => {
                let refused = match srq.dismantle() {
                    Ok(_) => return fail("a shared receive queue ended below its queue pairs"),
                    Err(refused) => refused,
                };
                self.tally.add(Kind::SrqInUse);
                drop((receivers, senders));
                reclaim_all(refused.handle, &mut recv_cq, &mut posted)?;
            }
            _ => {
                for receiver in receivers {
                    drop(receiver.to_error()?);
                }
                drop(senders);
                reclaim_all(srq, &mut recv_cq, &mut posted)?;
            }
        }
        self.tally.add(Kind::SrqDismantle);
        if posted.is_empty() { Ok(()) } else { fail(format_args!("{} receives were lost", posted.len())) }
    }
}

/// Reclaims the completed receives and, because the queue pairs are gone, those still in the queue.
pub(super) fn reclaim_all(srq: Srq, cq: &mut Cq, posted: &mut HashSet<u64>) -> CaseResult {
    while let Some(completed) = cq.poll_one() {
        if let Ok(buf) = completed.into_buf() {
            take(posted, &buf)?;
        }
    }
    for memory in srq.dismantle()? {
        match memory {
            Memory::Buf(buf) => take(posted, &buf)?,
            other => return fail(format_args!("{other:?} came out of a shared receive queue")),
        }
    }
    Ok(())
}

/// Records the return of a receive.
pub(super) fn take(posted: &mut HashSet<u64>, buf: &Buf) -> CaseResult {
    if posted.remove(&buf.addr()) {
        Ok(())
    } else {
        fail(format_args!("{buf:?} came back, and was not posted"))
    }
}

impl Shared {
    fn send(&mut self, from: usize, seed: u64) -> CaseResult {
        let mut buf = self.pd.alloc_buf(LEN)?;
        buf.copy_from_slice(&filled(seed, LEN));
        self.senders[from].post_send_buf(SendOp::Send, NONE, buf, ..)?;
        self.sent.push(seed);
        // Also polls for the send's completion, so that the send queue never fills up.
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(completed) = self.send_cq.poll_one() {
                return if completed.status == WcStatus::SUCCESS { Ok(()) } else { fail("a send failed") };
            }
            std::thread::yield_now();
        }
        fail("a send does not end")
    }

    /// Waits for a message and compares it with the sent messages.
    fn receive(&mut self) -> CaseResult {
        let deadline = Instant::now() + PATIENCE;
        let completed = loop {
            match self.recv_cq.poll_one() {
                Some(completed) => break completed.ok()?,
                None if Instant::now() > deadline => return fail("a message does not arrive"),
                None => std::thread::yield_now(),
            }
        };
        let len = completed.received();
        let buf = completed.into_buf()?;
        take(&mut self.posted, &buf)?;
        let Some(at) = self.sent.iter().position(|seed| check(*seed, &buf[..len]).is_ok()) else {
            return Err(Stop::Failed(format!("a message of {len} bytes that was not sent")));
        };
        self.sent.swap_remove(at);
        Ok(())
    }
}
