//! Raw batches of requests without local memory: completed, aborted, dropped, unwound or leaked.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use verbs::{Ah, Provider, SendFlags, WrBatch, WrError};
use verbs_harness::runner::{CaseResult, fail};

use super::super::handle::WithWr;
use super::super::memory::message;
use super::super::tally::Kind;
use super::super::world::Station;
use super::Actor;
use super::poll::{NEVER, SAFE};
use super::post::Op;

/// A request of a raw batch: with inline bytes, without data, or of a kind that needs memory and is
/// rejected.
struct Job {
    op: Op,
    flags: SendFlags,
    wr_id: u64,
    data: Vec<u8>,
    /// Whether the bytes are in two pieces.
    is_split: bool,
}

/// The way a batch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Complete,
    Abort,
    Drop,
    Panic,
    /// Leaks the batch. Its requests stay in the queue and are posted by the next doorbell.
    Forget,
}

/// The payload of the panics.
struct Thrown;

/// The jobs and the data they borrow.
struct Run<'a> {
    jobs: Vec<Job>,
    end: End,
    ahs: &'a [(usize, usize, Ah)],
}

impl WithWr for Run<'_> {
    type Output = CaseResult<Option<Result<usize, WrError>>>;

    fn run<P: Provider>(self, mut batch: WrBatch<'_, P::Sq>) -> Self::Output {
        let count = self.jobs.len();
        for Job { op, flags, wr_id, data, is_split } in self.jobs {
            (batch.wr_id, batch.wr_flags) = (wr_id, flags);
            let to = |ah: usize| self.ahs.get(ah).map(|(_, _, ah)| ah.av());
            let wr = match op {
                Op::Send => batch.send(),
                Op::SendImm(imm_data) => batch.send_imm(imm_data),
                Op::UdSend { ah, qp_num, qkey } => match to(ah) {
                    Some(av) => batch.send().set_ud_addr(av, qp_num, qkey),
                    None => batch.send(),
                },
                Op::UdSendImm { ah, qp_num, qkey } => match to(ah) {
                    Some(av) => batch.send_imm(9).set_ud_addr(av, qp_num, qkey),
                    None => batch.send_imm(9),
                },
                Op::Write { addr, rkey } => batch.rdma_write(rkey, addr),
                Op::WriteImm { addr, rkey } => batch.rdma_write_imm(rkey, addr, 7),
                Op::Read { addr, rkey, .. } => batch.rdma_read(rkey, addr),
                Op::Cas { addr, rkey, values: [compare, swap] } => {
                    batch.atomic_cmp_swp(rkey, addr, compare, swap)
                }
                Op::Faa { addr, rkey, add } => batch.atomic_fetch_add(rkey, addr, add),
            };
            if data.is_empty() {
                wr.no_data();
            } else if is_split {
                let (head, tail) = data.split_at(data.len() / 2);
                wr.set_inline_data_list(&[head, tail]);
            } else {
                wr.set_inline_data(&data);
            }
        }
        if batch.len() > count {
            return fail(format_args!("a batch of {count} has {}", batch.len()));
        }
        match self.end {
            End::Complete => return Ok(Some(batch.complete())),
            End::Abort => batch.abort(),
            End::Drop => drop(batch),
            End::Forget => core::mem::forget(batch),
            End::Panic => {
                let unwound = catch_unwind(AssertUnwindSafe(|| {
                    let _batch = batch;
                    resume_unwind(Box::new(Thrown))
                }));
                if let Err(panic) = unwound
                    && !panic.is::<Thrown>()
                {
                    resume_unwind(panic);
                }
            }
        }
        Ok(None)
    }
}

impl Actor<'_> {
    /// Builds a raw batch of a few requests and ends it.
    pub(super) fn raw_batch(&mut self) -> CaseResult {
        let Some(mut station) = self.take_station(|one| one.qp.can_send()) else { return Ok(()) };
        let result = self.raw_batch_on(&mut station);
        self.stations.push(station);
        result
    }

    fn raw_batch_on(&mut self, station: &mut Station) -> CaseResult {
        let ends = [End::Complete, End::Complete, End::Abort, End::Drop, End::Panic, End::Forget];
        let end = self.choices.one_of(&ends);
        let is_posted = matches!(end, End::Complete | End::Forget);
        let longest = u64::from(station.qp.cap().max_inline_data);
        let is_odd = self.rarely(8);
        let mut jobs = Vec::new();
        for _ in 0..self.choices.below(5) {
            let most = if is_odd { longest + 8 } else { longest };
            let len = if self.rarely(3) { 0 } else { self.choices.below(most + 1) as usize };
            let (op, _) = self.operation(station, len);
            let needs_memory = matches!(op, Op::Read { .. } | Op::Cas { .. } | Op::Faa { .. });
            let op = if needs_memory && !is_odd { Op::Send } else { op };
            let data = message(station.number, self.choices.any(), len);
            // An unposted request never completes.
            let wr_id = match is_posted {
                true if is_odd && self.rarely(4) => SAFE | self.choices.any(),
                true => self.choices.any() >> 1,
                false => NEVER,
            };
            let flags = if is_posted { self.flags() } else { self.flags() | SendFlags::SIGNALED };
            jobs.push(Job { op, flags, wr_id, data, is_split: self.rarely(2) });
        }
        let count = jobs.len();
        let Some(completed) = station.qp.wr_start(Run { jobs, end, ahs: &self.ahs }) else { return Ok(()) };
        self.tally.add(match (end, completed?) {
            (_, Some(Ok(done))) if done != count => {
                return fail(format_args!("a raw batch of {count} posted {done}"));
            }
            (_, Some(Err(refused))) if refused.position > count => {
                return fail(format_args!("in a raw batch of {count}: {refused:?}"));
            }
            (_, Some(Ok(_))) => Kind::RawCompleted,
            (_, Some(Err(_))) => Kind::RawRefused,
            (End::Forget, None) => Kind::RawForgotten,
            (End::Panic, None) => Kind::RawUnwound,
            (_, None) => Kind::RawDropped,
        });
        Ok(())
    }
}
