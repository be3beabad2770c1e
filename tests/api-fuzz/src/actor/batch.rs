//! Batches that end by ring, abort, drop or `mem::forget`.
#![forbid(unsafe_code)]

use verbs::{Ah, Memory, Provider, SendBatch, SendFlags};
use verbs_harness::runner::{CaseResult, fail};

use super::super::handle::{AnyRange, NotPosted, Posting, WithBatch};
use super::super::memory::Posted;
use super::super::tally::Kind;
use super::super::world::Station;
use super::Actor;
use super::post::{Op, into_any};

/// A request to post in a batch.
struct Job {
    op: Op,
    flags: SendFlags,
    is_signaled: bool,
    memory: Memory,
    range: AnyRange,
    is_odd: bool,
    posted: Posted,
}

/// The way a batch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Ring,
    Abort,
    Drop,
    /// Leaks the batch. Its requests stay in the queue and are posted by the next doorbell.
    Forget,
}

/// The outcome of a batch.
struct Done {
    posts: Vec<(Asked, Posting)>,
    returned: Vec<Memory>,
    /// The number of requests that `ring` reported; `None` without a successful doorbell.
    rang: Option<usize>,
}

/// The program's record of a request in a batch.
struct Asked {
    is_signaled: bool,
    is_odd: bool,
    posted: Posted,
}

/// The jobs and the data they borrow.
struct Run<'a> {
    jobs: Vec<Job>,
    inline: Option<u64>,
    end: End,
    ahs: &'a [(usize, usize, Ah)],
}

impl WithBatch for Run<'_> {
    type Output = CaseResult<Done>;

    fn run<P: Provider>(self, mut batch: SendBatch<'_, P>) -> CaseResult<Done> {
        let mut posts = Vec::new();
        for Job { op, flags, is_signaled, memory, range, is_odd, posted } in self.jobs {
            let op = op.with(self.ahs);
            let result = if is_signaled {
                batch.post(op, flags, memory, range)
            } else {
                batch.post_unsignaled(op, flags, memory, range)
            };
            posts.push((Asked { is_signaled, is_odd, posted }, into_any(result.map_err(NotPosted::from))));
        }
        let mut count = posts.iter().filter(|(_, result)| result.is_ok()).count();
        if let Some(wr_id) = self.inline {
            let posted = batch.post_inline(wr_id, verbs::SendOp::Send, SendFlags::empty(), b"");
            count += usize::from(posted.is_ok());
        }
        if batch.len() != count || batch.is_empty() != (count == 0) {
            return fail(format_args!("a batch of {count} has {}", batch.len()));
        }
        let (mut returned, mut rang) = (Vec::new(), None);
        match self.end {
            End::Ring => rang = batch.ring().ok(),
            End::Abort => returned = batch.abort(),
            End::Drop => drop(batch),
            End::Forget => std::mem::forget(batch),
        }
        if rang.is_some_and(|rang| rang != count) {
            return fail(format_args!("a batch of {count} rang for {rang:?}"));
        }
        Ok(Done { posts, returned, rang })
    }
}

impl Actor<'_> {
    /// Builds a batch of a few requests and ends it.
    pub(super) fn batch(&mut self) -> CaseResult {
        let Some(mut station) = self.take_station(|one| one.qp.can_send()) else { return Ok(()) };
        let result = self.batch_on(&mut station);
        self.stations.push(station);
        result
    }

    fn batch_on(&mut self, station: &mut Station) -> CaseResult {
        let mut jobs = Vec::new();
        for _ in 0..self.choices.below(5) {
            let Some(held) = self.take_held(station.context)? else { continue };
            let (op, range) = self.operation(station, held.len());
            let is_odd = super::super::memory::resolve(range, held.len()).is_none();
            let (memory, posted) = self.prepare(station, held, &op, range)?;
            let flags = self.flags();
            let is_signaled = self.rarely(2);
            jobs.push(Job { op, flags, is_signaled, memory, range, is_odd, posted });
        }
        let end = self.choices.one_of(&[End::Ring, End::Ring, End::Ring, End::Abort, End::Drop, End::Forget]);
        let inline = (self.rarely(4)).then(|| self.choices.any() >> 1);
        let run = Run { jobs, inline, end, ahs: &self.ahs };
        let Some(done) = station.qp.batch(run) else { return Ok(()) };
        let Done { posts, returned, rang } = done?;
        let mut returned = returned.into_iter();
        let kind = match end {
            End::Ring if rang.is_some() => Kind::BatchRung,
            // Despite the error, the queue holds the requests.
            End::Ring => Kind::RefusedOther,
            End::Abort => Kind::BatchAborted,
            End::Drop => Kind::BatchDropped,
            End::Forget => Kind::BatchForgotten,
        };
        self.tally.add(kind);
        for (Asked { is_signaled, is_odd, posted }, result) in posts {
            match (end, &result) {
                (End::Ring | End::Forget, _) | (_, Err(_)) => {
                    let number = result.as_ref().ok().copied();
                    self.posted(station, Kind::BatchPosted, result, posted, is_odd, station.context)?;
                    if !is_signaled {
                        station.unsignaled = number.or(station.unsignaled);
                    }
                }
                // The request was never sent: its memory returns in order or is released.
                (End::Drop, Ok(_)) => {}
                (End::Abort, Ok(wr_id)) => {
                    let Some(memory) = returned.next().map(|memory| vec![memory]) else {
                        return fail(format_args!("{wr_id:#x} did not come back from an aborted batch"));
                    };
                    if !posted.is_of(&memory) {
                        return fail(format_args!("{memory:?} came back from an aborted batch"));
                    }
                    self.keep_unposted(posted, memory)?;
                }
            }
        }
        match returned.next() {
            None => Ok(()),
            Some(memory) => fail(format_args!("{memory:?} came back from an aborted batch as well")),
        }
    }
}
