//! All ways to poll, with checks of the returned memory.
#![forbid(unsafe_code)]

use verbs::{Completed, Cq, Memory, Provider, Returned, Wc, WcStatus};
use verbs_harness::runner::{CaseResult, Stop, fail};

use super::super::handle::{AnyCq, any};
use super::super::memory::{Looked, Mine, Outcome, Posted, What, take_chain};
use super::super::tally::{Kind, Tally};
use super::super::world::{InFlight, Number, Poller, Station, Stray};
use super::Actor;

/// The top bit of each `wr_id` that the library assigns.
pub(super) const SAFE: u64 = 1 << 63;

/// The `wr_id` of requests built but never posted.
pub(super) const NEVER: u64 = 0x3bad_0dea_dbee_f5ed;

/// The number of copied completions that a poller keeps, separately for used and for unused ones.
const REMEMBERED: usize = 32;

impl Actor<'_> {
    /// Polls one of the thread's queues.
    pub(super) fn poll(&mut self) -> CaseResult {
        let Some(at) = self.place(self.pollers.len()) else { return Ok(()) };
        let mut poller = self.pollers.swap_remove(at);
        let result = self.poll_queue(&mut poller);
        self.pollers.push(poller);
        result?;
        if self.left.is_empty() {
            return Ok(());
        }
        // The thread that polled earlier holds the memory.
        self.collect()?;
        for number in std::mem::take(&mut self.left) {
            let owner = self.stations.iter().find(|one| one.posted.contains_key(&number));
            if owner.is_some_and(|station| !station.has_unknown) {
                return fail(format_args!(
                    "an unsignalled request did not come back with the next signalled one: {number:?}"
                ));
            }
        }
        Ok(())
    }

    fn poll_queue(&mut self, poller: &mut Poller) -> CaseResult {
        let Poller { cq, id, context, polled, spent } = poller;
        let key = Number { context: *context, cq: *id, wr_id: 0 };
        // The poll may end before the queue is empty.
        let limit = 1 + self.choices.below(24);
        match self.choices.below(12) {
            0..5 => any!(AnyCq, cq, cq => self.poll_lent(cq, key, polled, limit))?,
            5..9 => any!(AnyCq, cq, cq => self.poll_owned(cq, key, limit))?,
            _ => {
                let mut wcs = [Wc::default(); 4];
                let count = any!(AnyCq, cq, cq => cq.poll_into(&mut wcs));
                for wc in &wcs[..count] {
                    self.tally.add(Kind::CqCopied);
                    self.tally.add_status(wc.status);
                    polled.push(*wc);
                }
            }
        }
        while polled.len() > REMEMBERED || !polled.is_empty() && !self.rarely(3) {
            let Some(at) = self.place(polled.len()) else { break };
            let wc = polled.swap_remove(at);
            let returned = cq.reclaim(&wc);
            if cq.reclaim(&wc).is_some() {
                return fail(format_args!("a copied completion returned memory twice: {wc:?}"));
            }
            self.tally.add(Kind::ReclaimedCopy);
            spent.push(wc);
            self.take_back(Number { wr_id: wc.wr_id, ..key }, wc.into(), returned)?;
        }
        if spent.len() > REMEMBERED {
            spent.drain(..REMEMBERED / 2);
        }
        self.reclaim_oddly(poller)
    }

    fn poll_lent<P: Provider>(
        &mut self,
        cq: &mut Cq<P>,
        key: Number,
        polled: &mut Vec<Wc>,
        limit: u64,
    ) -> CaseResult {
        let mut completions = cq.poll();
        for _ in 0..limit {
            let Some(mut completion) = completions.next() else { break };
            self.tally.add(Kind::Completion);
            self.tally.add_status(completion.status());
            let number = Number { wr_id: completion.wr_id(), ..key };
            match self.choices.below(40) {
                // The memory stays in place and returns when the queue pair ends, or earlier.
                0 => self.tally.add(Kind::Ignored),
                1..4 => polled.push(completion.to_wc()),
                _ => {
                    let returned = completion.reclaim();
                    if completion.reclaim().is_some() {
                        return fail(format_args!("a completion returned memory twice: {completion:?}"));
                    }
                    self.tally.add(Kind::ReclaimedLent);
                    self.take_back(number, completion.to_wc().into(), returned)?;
                }
            }
        }
        Ok(())
    }

    fn poll_owned<P: Provider>(&mut self, cq: &mut Cq<P>, key: Number, limit: u64) -> CaseResult {
        for _ in 0..limit {
            let Some(Completed { wc, returned, .. }) = cq.poll_one() else { break };
            self.tally.add(Kind::Completion);
            self.tally.add(Kind::ReclaimedOne);
            self.tally.add_status(wc.status);
            if cq.reclaim(&wc).is_some() {
                return fail(format_args!("a completion returned memory twice: {wc:?}"));
            }
            self.take_back(Number { wr_id: wc.wr_id, ..key }, wc.into(), returned)?;
        }
        Ok(())
    }

    /// Passes completions to a queue that did not return them: forged, from other queues, or
    /// already used.
    fn reclaim_oddly(&mut self, poller: &mut Poller) -> CaseResult {
        let in_flight = self.place(self.stations.len()).and_then(|at| {
            let station = &self.stations[at];
            station.posted.keys().next().map(|number| number.wr_id)
        });
        let elsewhere = self.place(self.pollers.len()).and_then(|at| {
            let other = &self.pollers[at];
            other.polled.last().or(other.spent.last()).copied()
        });
        let made_up = |wr_id| Wc { wr_id, status: WcStatus::SUCCESS, ..Wc::default() };
        let odd = [
            (Kind::ShownInFlight, in_flight.map(made_up)),
            (Kind::ShownOther, elsewhere),
            (Kind::ShownTwice, poller.spent.last().copied()),
            (Kind::ShownMadeUp, Some(made_up(self.choices.any()))),
            (Kind::ShownMadeUp, Some(made_up(SAFE | self.choices.below(1 << 20)))),
        ];
        for (kind, wc) in odd {
            let Some(wc) = wc else { continue };
            // Skips it, because another copy of this completion is still valid.
            if poller.polled.iter().any(|polled| polled.wr_id == wc.wr_id) {
                continue;
            }
            if let Some(returned) = poller.cq.reclaim(&wc) {
                return fail(format_args!(
                    "a queue returned {returned:?} for {wc:?}, not its own ({kind:?})"
                ));
            }
            self.tally.add(kind);
        }
        Ok(())
    }

    /// Accepts the memory returned by a completion, or gives it to the thread that owns the queue
    /// pair.
    pub(super) fn take_back(
        &mut self,
        number: Number,
        outcome: Outcome,
        returned: Option<Returned>,
    ) -> CaseResult {
        if number.wr_id == NEVER {
            return fail("a request of a batch that was not posted completed");
        }
        let owner = self.stations.iter().position(|one| one.posted.contains_key(&number));
        match (returned, owner) {
            (Some(_), _) if number.wr_id & SAFE == 0 => {
                fail(format_args!("memory returned for {number:?}, a request without any"))
            }
            // Sometimes returns the memory through another thread instead.
            (Some(returned), Some(at)) if !self.rarely(40) => {
                let left = self.accept(at, number, outcome, returned)?;
                self.left.extend(left);
                Ok(())
            }
            (Some(returned), _) => {
                self.tally.add(Kind::Strayed);
                self.strays.push(Stray { number, outcome, returned });
                Ok(())
            }
            (None, None) => Ok(()),
            (None, Some(_)) => {
                // The memory may have returned with a later signalled request, polled by another
                // thread.
                self.collect()?;
                match self.stations.iter().find(|one| one.posted.contains_key(&number)) {
                    Some(station) if !station.has_unknown => fail(format_args!(
                        "a completion did not return its memory: {number:?}, {outcome:?}, {:?}",
                        station.posted.get(&number)
                    )),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Gives away memory polled for other threads' queue pairs and collects memory that other
    /// threads polled for this thread's queue pairs.
    pub(super) fn collect(&mut self) -> CaseResult {
        self.world.give_strays(&mut self.strays);
        let stations = &self.stations;
        let strays =
            self.world.take_strays(|number| stations.iter().any(|one| one.posted.contains_key(number)));
        for Stray { number, outcome, returned } in strays {
            // The request may have been dropped together with another request.
            if let Some(at) = self.stations.iter().position(|one| one.posted.contains_key(&number)) {
                self.tally.add(Kind::Collected);
                // The memory of a remaining request may still be in transit from the polling
                // thread.
                let _ = self.accept(at, number, outcome, returned)?;
            }
        }
        Ok(())
    }

    /// Checks the memory returned for a request on a station, then keeps or drops it. Returns the
    /// number of an unsignalled request whose memory did not return together with this memory.
    fn accept(
        &mut self,
        at: usize,
        number: Number,
        outcome: Outcome,
        returned: Returned,
    ) -> CaseResult<Option<Number>> {
        let station = &mut self.stations[at];
        let is_recv =
            station.posted.get(&number).is_some_and(|posted| matches!(posted.what, What::Recv { .. }));
        if station.cqs[usize::from(is_recv)] != number.cq {
            return fail(format_args!("{number:?} came out of a queue that is not its own"));
        }
        let is_success = outcome.is_success();
        station.is_broken |= !is_success;
        let name = station.number;
        self.tally.add(Kind::Reclaimed);
        if self.choices.below(60) == 0 {
            return self.drop_half_way(at, number, returned).map(|()| None);
        }
        let posted = &mut self.stations[at].posted;
        let key = |wr_id| Number { wr_id, ..number };
        let what = |stop: Stop| stop.context(format_args!("station {name}, {number:?}, {outcome:?}"));
        let (chain, left) =
            take_chain(posted, key, number.wr_id, returned).map_err(Stop::Failed).map_err(what)?;
        let left = left.map(key);
        for (place, (posted, memory)) in chain.into_iter().enumerate() {
            // Earlier requests succeeded if this one did; otherwise their outcome is unknown.
            let outcome = if place > 0 && !is_success { Outcome::Forgotten } else { outcome };
            if place > 0 {
                self.tally.add(Kind::Chained);
            }
            accept(self.tally, &posted, &memory, outcome).map_err(what)?;
            self.keep_all(posted, memory)?;
        }
        Ok(left)
    }

    /// Takes some of the returned memory and drops the rest, which the library then releases.
    fn drop_half_way(&mut self, at: usize, number: Number, mut returned: Returned) -> CaseResult {
        let count = self.choices.below(3) as usize;
        let taken: Vec<Memory> = returned.by_ref().take(count).collect();
        drop(returned);
        let posted = &mut self.stations[at].posted;
        let (mut chain, mut next) = (Vec::new(), Some(number.wr_id));
        while let Some((of, one)) = next.and_then(|wr_id| posted.remove_entry(&Number { wr_id, ..number })) {
            next = one.before;
            chain.push((of, one));
        }
        self.tally.add(Kind::DroppedHalfWay);
        if let Some(memory) = taken.iter().find(|memory| !chain.iter().any(|(_, posted)| posted.has(memory)))
        {
            return fail(format_args!("{memory:?} came back with {number:?}, and was not posted there"));
        }
        self.stations[at].dropped.extend(chain.into_iter().skip(1));
        Ok(())
    }

    /// Keeps the memory of a request that has ended.
    pub(super) fn keep_all(&mut self, posted: Posted, memory: Vec<Memory>) -> CaseResult {
        posted.into_mine(memory).into_iter().try_for_each(|mine| self.keep_mine(mine))
    }

    pub(super) fn keep_mine(&mut self, mine: Mine) -> CaseResult {
        match mine {
            Mine::Held(held) => self.keep(held),
            Mine::Frozen(frozen) => self.keep_frozen(frozen),
            Mine::Share => Ok(()),
        }
    }

    /// Accepts the memory that a queue pair returned when it was reset.
    pub(super) fn accept_forgotten(&mut self, station: &mut Station, memory: Vec<Memory>) -> CaseResult {
        let posted = std::mem::take(&mut station.posted);
        if station.qp.reset_ends_requests() {
            let dropped = std::mem::take(&mut station.dropped);
            return self.accept_dismantled(posted, dropped, std::mem::take(&mut station.has_unknown), memory);
        }
        if !memory.is_empty() {
            return fail(format_args!("a reset that does not end requests returned {memory:?}"));
        }
        station.kept.extend(posted);
        Ok(())
    }

    /// Accepts the memory that a queue pair returned when it was destroyed: all memory in flight,
    /// and the memory of some [dropped](Station::dropped) requests.
    pub(super) fn accept_dismantled(
        &mut self,
        mut posted: InFlight,
        mut dropped: InFlight,
        has_unknown: bool,
        memory: Vec<Memory>,
    ) -> CaseResult {
        let mut memory = memory.into_iter().peekable();
        while let Some(first) = memory.peek() {
            let is_posted = posted.values().any(|one| one.begins_with(first));
            let posted = if is_posted { &mut posted } else { &mut dropped };
            // Requests return one after another, each with its pieces in order. Requests without
            // pieces leave no trace. The pieces that follow distinguish shares of the same memory.
            let fitting: Vec<Number> =
                posted.iter().filter(|(_, one)| one.begins_with(first)).map(|(number, _)| *number).collect();
            let longest = fitting.iter().map(|number| posted[number].pieces.len()).max().unwrap_or(0);
            let Some(_) = fitting.first() else {
                let other = memory.next();
                if has_unknown {
                    continue;
                }
                return fail(format_args!("{other:?} came back, which was not posted"));
            };
            let mut pieces: Vec<Memory> = Vec::with_capacity(longest);
            let mut found = None;
            while found.is_none() && pieces.len() < longest {
                let Some(next) = memory.next() else { break };
                pieces.push(next);
                found = fitting.iter().find(|number| posted[number].is_of(&pieces)).copied();
            }
            match found.and_then(|number| posted.remove(&number)) {
                Some(posted) => {
                    accept(self.tally, &posted, &pieces, Outcome::Forgotten)?;
                    self.keep_all(posted, pieces)?;
                }
                None if has_unknown => {}
                None => return fail(format_args!("{pieces:?} came back, which was not posted")),
            }
        }
        posted.retain(|_, one| !one.pieces.is_empty());
        // Other threads polled the rest and hold it.
        self.world.miss(posted);
        Ok(())
    }
}

/// Checks the memory returned for a request.
pub(super) fn accept(tally: &Tally, posted: &Posted, memory: &[Memory], outcome: Outcome) -> CaseResult {
    let looked = posted.check(memory, outcome).map_err(Stop::Failed)?;
    tally.add(match looked {
        Looked::Unchanged => Kind::CheckedSent,
        Looked::Message => Kind::CheckedMessage,
        Looked::Read => Kind::CheckedRead,
        Looked::Outside => Kind::CheckedOutside,
    });
    Ok(())
}

impl From<Wc> for Outcome {
    fn from(wc: Wc) -> Self {
        Self::Completed { status: wc.status, opcode: wc.opcode, byte_len: wc.byte_len }
    }
}
