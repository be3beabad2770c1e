//! Polling, showing completions, checking what comes back.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use verbs::{Buf, Completion, Cq, CqId, Parcel, Provider, Wc};

use super::super::handle::{AnyCq, any};
use super::super::memory::{Looked, Outcome, Parked, What};
use super::super::tally::{Kind, Tally};
use super::super::world::Station;
use super::Actor;
use crate::runner::{CaseResult, Stop, fail};

impl Actor<'_> {
    /// Polls one of the thread's queues.
    pub(super) fn poll(&mut self) -> CaseResult {
        let Some(at) = self.place(self.pollers.len()) else { return Ok(()) };
        let mut poller = self.pollers.swap_remove(at);
        let (id, context) = (poller.id, poller.context);
        let result = any!(AnyCq, &mut poller.cq, cq => self.poll_queue(cq, id, context));
        self.pollers.push(poller);
        result
    }

    fn poll_queue<P: Provider>(&mut self, cq: &mut Cq<P>, id: CqId, context: usize) -> CaseResult {
        if self.rarely(60) {
            // Nothing is proof of anything any more: the buffers stay where they are.
            let mut wcs = [Wc::default(); 4];
            let count = cq.poll_into(&mut wcs);
            for wc in &wcs[..count] {
                self.tally.add(Kind::CqCopied);
                self.tally.add_status(wc.status);
            }
            return Ok(());
        }
        // A poll may end before the queue is empty.
        let limit = 1 + self.choices.below(24);
        let mut completions = cq.poll();
        for _ in 0..limit {
            let Some(completion) = completions.next() else { break };
            self.show(&completion, id, context)?;
        }
        Ok(())
    }

    /// Shows a completion to every queue pair of the thread. Only the one whose request it is of
    /// gives a buffer back.
    fn show<P: Provider>(&mut self, completion: &Completion<'_, P>, id: CqId, context: usize) -> CaseResult {
        self.tally.add(Kind::Completion);
        self.tally.add_status(completion.status());
        let wr_id = completion.wr_id();
        let len = self.stations.len();
        let from = self.choices.below(len.max(1) as u64) as usize;
        for at in (0..len).map(|at| (from + at) % len) {
            let station = &mut self.stations[at];
            let parcel = station.qp.reclaim(completion);
            match (parcel, station.parked.remove(&wr_id)) {
                (None, None) => {
                    self.tally.add(Kind::ShownOther);
                    if station.context != context {
                        self.tally.add(Kind::ShownForeign);
                    }
                }
                (None, Some(parked)) => {
                    return fail(format_args!(
                        "a completion did not give back its buffers: {completion:?} {parked:?}"
                    ));
                }
                (Some(parcel), None) if station.has_unknown => drop(parcel),
                (Some(parcel), None) => {
                    return fail(format_args!(
                        "a completion of something else gave back {parcel:?}: {completion:?}"
                    ));
                }
                (Some(parcel), Some(parked)) => {
                    if station.reclaims_again(completion) {
                        return fail(format_args!("a completion gave back buffers twice: {completion:?}"));
                    }
                    self.tally.add(Kind::ShownTwice);
                    self.tally.add(Kind::Reclaimed);
                    let is_recv = matches!(parked.what, What::Recv { .. });
                    if station.cqs[usize::from(is_recv)] != id {
                        return fail(format_args!("{completion:?} came out of a queue that is not its own"));
                    }
                    station.is_broken |= !completion.is_success();
                    let (status, byte_len) = (completion.status(), completion.byte_len());
                    let outcome = Outcome::Completed { status, opcode: completion.opcode(), byte_len };
                    let bufs = parcel.into_bufs();
                    let number = station.number;
                    accept(self.tally, &parked, &bufs, outcome)
                        .map_err(|stop| stop.of(format_args!("station {number}, {completion:?}")))?;
                    self.keep_all(parked, bufs)?;
                }
            }
        }
        Ok(())
    }

    /// Keeps the buffers of a request that has ended.
    pub(super) fn keep_all(&mut self, parked: Parked, bufs: Vec<Buf>) -> CaseResult {
        parked.into_held(bufs).into_iter().try_for_each(|held| self.keep(held))
    }

    /// Takes in what a queue pair gave up when it was reset.
    pub(super) fn accept_forgotten(&mut self, station: &mut Station, parcels: Vec<Parcel>) -> CaseResult {
        let parked = std::mem::take(&mut station.parked);
        if station.qp.reset_ends_requests() {
            return self.accept_dismantled(parked, std::mem::take(&mut station.has_unknown), parcels);
        }
        if !parcels.is_empty() {
            return fail(format_args!("a reset that does not end requests gave back {parcels:?}"));
        }
        station.kept.extend(parked);
        Ok(())
    }

    /// Takes in what a queue pair gave up when it was destroyed: all that was parked in it.
    pub(super) fn accept_dismantled(
        &mut self,
        mut parked: HashMap<u64, Parked>,
        has_unknown: bool,
        parcels: Vec<Parcel>,
    ) -> CaseResult {
        for parcel in parcels {
            let bufs = parcel.into_bufs();
            let wr_id = parked.iter().find(|(_, parked)| parked.is_of(&bufs)).map(|(wr_id, _)| *wr_id);
            match wr_id.and_then(|wr_id| parked.remove(&wr_id)) {
                Some(parked) => {
                    accept(self.tally, &parked, &bufs, Outcome::Forgotten)?;
                    self.keep_all(parked, bufs)?;
                }
                None if has_unknown => {}
                None => return fail(format_args!("{bufs:?} came back, which were not parked")),
            }
        }
        if parked.is_empty() {
            Ok(())
        } else {
            fail(format_args!("parked buffers did not come back with the end of their queue: {parked:?}"))
        }
    }
}

impl Station {
    fn reclaims_again<P: Provider>(&mut self, completion: &Completion<'_, P>) -> bool {
        self.qp.reclaim(completion).is_some()
    }
}

/// Checks what came back.
pub(super) fn accept(tally: &Tally, parked: &Parked, bufs: &[Buf], outcome: Outcome) -> CaseResult {
    let looked = parked.check(bufs, outcome).map_err(Stop::Failed)?;
    tally.add(match looked {
        Looked::Unchanged => Kind::CheckedSent,
        Looked::Message => Kind::CheckedMessage,
        Looked::Read => Kind::CheckedRead,
        Looked::Outside => Kind::CheckedOutside,
    });
    Ok(())
}
