//! [`Actor`]: a thread, its objects and its calls on them.
//!
//! | file | calls |
//! |---|---|
//! | [`post`] | posting each kind of memory, inline sends |
//! | [`batch`] | batches that end by ring, abort, drop or `mem::forget` |
//! | [`halves`] | halves of a queue pair in two threads, and halves of two queue pairs |
//! | [`poll`] | polling, odd completions, checks of returned memory |
//! | [`queues`] | changes to completion queues, and objects that the devices lack |
//! | [`placement`] | flushes and atomic writes |
//! | [`raw_batch`] | raw batches of requests without local memory |
//! | [`scopes`] | borrowed memory, and scopes that end with requests in flight |
//! | [`shares`] | read-only memory, and the program's own memory |
//! | [`srq`] | shared receive queues, destroyed in different orders |
//! | [`windows`] | windows bound, revoked, dropped and leaked while a peer writes |
//! | [`xrc`] | domains, and requests to shared receive queues, destroyed in different orders |
//! | [`connect`] | queue pair states |
//! | [`life`] | creating, dropping, leaking, closing, swapping, exposing, passing between threads |
#![forbid(unsafe_code)]

mod batch;
mod connect;
mod halves;
mod life;
mod placement;
mod poll;
mod post;
mod queues;
mod raw_batch;
mod scopes;
mod shares;
mod srq;
mod windows;
mod xrc;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use verbs::{Ah, CompChannel};
use verbs_harness::pattern::Choices;
use verbs_harness::runner::{CaseResult, Stop};

use super::memory::{Frozen, Held, Plain, Region, Target};
use super::tally::{Kind, Tally};
use super::world::{Number, Poller, Station, Stray, Thing, World};

/// The maximum number of objects of each kind that a thread keeps.
const STATIONS: usize = 14;
const POLLERS: usize = 10;
const HELD: usize = 48;
const REGIONS: usize = 6;
const FROZEN: usize = 12;
const PLAIN: usize = 8;

/// A call, or a few related calls.
type Action<'w> = fn(&mut Actor<'w>) -> CaseResult;

/// A thread that makes random calls.
pub(super) struct Actor<'w> {
    world: &'w World,
    tally: &'w Tally,
    choices: Choices,
    stations: Vec<Station>,
    pollers: Vec<Poller>,
    held: Vec<Held>,
    regions: Vec<Region>,
    frozen: Vec<Frozen>,
    plain: Vec<Plain>,
    /// Memory that this thread polled for queue pairs of other threads.
    strays: Vec<Stray>,
    /// The numbers of unsignalled requests that did not return with a later signalled request.
    left: Vec<Number>,
    /// Address handles, each with the indices of its context and of the destination's context.
    ahs: Vec<(usize, usize, Ah)>,
    channels: Vec<(usize, CompChannel)>,
    /// The published targets of all threads, as of this thread's last read of the list.
    targets: Vec<Arc<Target>>,
    datagram: Vec<(usize, u32)>,
}

impl<'w> Actor<'w> {
    /// The possible calls, each with its relative frequency.
    const ACTIONS: [(u64, Action<'w>); 41] = [
        (220, Self::post_send),
        (260, Self::post_recv),
        (40, Self::post_several),
        (30, Self::post_frozen),
        (30, Self::post_exposed),
        (40, Self::batch),
        (30, Self::post_inline),
        (400, Self::poll),
        (6, Self::two_threads),
        (6, Self::cross_halves),
        (20, Self::change_frozen),
        (12, Self::change_plain),
        (30, Self::collect),
        (40, Self::check_one),
        (12, Self::look_around),
        (30, Self::change_buffers),
        (20, Self::change_exposed),
        (3, Self::connect_two),
        (30, Self::mend),
        (2, Self::connect_to_anything),
        (2, Self::reset),
        (2, Self::error),
        (3, Self::drain_and_back),
        (2, Self::modify_at_random),
        (4, Self::make_station),
        (4, Self::end_station),
        (3, Self::make_poller),
        (3, Self::end_poller),
        (3, Self::name_one),
        (4, Self::swap_two),
        (12, Self::trade),
        (8, Self::listen),
        (1, Self::open_and_close),
        (2, Self::windows),
        (6, Self::scopes),
        (15, Self::raw_batch),
        (2, Self::placement),
        (2, Self::shared_receives),
        (2, Self::domains),
        (4, Self::change_queue),
        (2, Self::lacking),
    ];

    pub(super) fn new(world: &'w World, tally: &'w Tally, seed: u64) -> Self {
        Self {
            world,
            tally,
            choices: Choices::new(seed),
            stations: Vec::new(),
            pollers: Vec::new(),
            held: Vec::new(),
            regions: Vec::new(),
            frozen: Vec::new(),
            plain: Vec::new(),
            strays: Vec::new(),
            left: Vec::new(),
            ahs: Vec::new(),
            channels: Vec::new(),
            targets: Vec::new(),
            datagram: Vec::new(),
        }
    }

    /// Makes calls until the deadline, or until another thread fails, and then destroys all its
    /// objects.
    pub(super) fn run(mut self, deadline: Instant) -> CaseResult {
        let total = Self::ACTIONS.iter().map(|(weight, _)| weight).sum();
        for step in 0_u64.. {
            if self.world.stop.load(Ordering::Relaxed) || Instant::now() > deadline {
                break;
            }
            if self.stations.len() < 4 {
                self.make_station()?;
                self.connect_two()?;
            }
            let mut at = self.choices.below(total);
            let action = Self::ACTIONS.iter().find(|(weight, _)| {
                let is_it = at < *weight;
                at = at.saturating_sub(*weight);
                is_it
            });
            if let Some((_, action)) = action {
                action(&mut self).map_err(|stop| stop.context(format_args!("step {step}")))?;
                self.tally.add(Kind::Step);
            }
        }
        self.world.give_strays(&mut self.strays);
        let Self { stations, pollers, held, regions, frozen, plain, mut choices, tally, .. } = self;
        plain.iter().try_for_each(Plain::check).map_err(Stop::Failed)?;
        let mut things: Vec<_> =
            stations.into_iter().map(|one| Thing::Station(Box::new(one), Vec::new())).collect();
        things.extend(pollers.into_iter().map(Thing::Poller));
        things.extend(held.into_iter().map(Thing::Held));
        things.extend(frozen.into_iter().map(Thing::Frozen));
        things.extend(regions.into_iter().map(|region| Thing::Region(Box::new(region))));
        end_of_all(things, &mut choices, tally)
    }

    /// Returns true once in `one_in` calls on average.
    fn rarely(&mut self, one_in: u64) -> bool {
        self.choices.below(one_in) == 0
    }

    /// Returns a random index into a list of the given length; `None` if empty.
    fn place(&mut self, len: usize) -> Option<usize> {
        (len > 0).then(|| self.choices.below(len as u64) as usize)
    }

    /// Removes and returns the largest of a few random buffers held for a context, or creates one.
    fn take_held(&mut self, context: usize) -> CaseResult<Option<Held>> {
        let mut best: Option<usize> = None;
        for _ in 0..6 {
            let Some(at) = self.place(self.held.len()) else { break };
            if self.held[at].context == context
                && best.is_none_or(|best| self.held[best].len() < self.held[at].len())
            {
                best = Some(at);
            }
        }
        match best {
            Some(at) => Ok(Some(self.held.swap_remove(at))),
            None => self.make_held(context),
        }
    }

    /// Keeps a buffer. If too many are kept, drops one at random.
    fn keep(&mut self, held: Held) -> CaseResult {
        self.held.push(held);
        if self.held.len() > HELD
            && let Some(at) = self.place(self.held.len())
        {
            let one = self.held.swap_remove(at);
            self.checked(&one)?;
            self.tally.add(Kind::BufDrop);
        }
        Ok(())
    }

    /// Keeps read-only memory. If too many shares are kept, drops one at random.
    fn keep_frozen(&mut self, frozen: Frozen) -> CaseResult {
        frozen.check().map_err(Stop::Failed)?;
        self.frozen.push(frozen);
        if self.frozen.len() > FROZEN
            && let Some(at) = self.place(self.frozen.len())
        {
            self.frozen.swap_remove(at).check().map_err(Stop::Failed)?;
            self.tally.add(Kind::CheckedFrozen);
        }
        Ok(())
    }

    fn checked(&self, held: &Held) -> CaseResult {
        self.tally.add(Kind::CheckedHeld);
        held.check().map_err(Stop::Failed)
    }

    /// Checks a random object that the thread holds.
    fn check_one(&mut self) -> CaseResult {
        if let Some(at) = self.place(self.held.len()) {
            self.checked(&self.held[at])?;
        }
        if let Some(at) = self.place(self.regions.len()) {
            self.tally.add(Kind::CheckedRegion);
            self.regions[at].check().map_err(Stop::Failed)?;
        }
        if let Some(at) = self.place(self.frozen.len()) {
            self.tally.add(Kind::CheckedFrozen);
            self.frozen[at].check().map_err(Stop::Failed)?;
        }
        if let Some(at) = self.place(self.plain.len()) {
            self.tally.add(Kind::CheckedPlain);
            self.plain[at].check().map_err(Stop::Failed)?;
        }
        Ok(())
    }

    /// Reads the targets published by all threads.
    fn look_around(&mut self) -> CaseResult {
        self.targets = self.world.targets();
        self.datagram = self.world.datagram();
        Ok(())
    }
}

/// Checks the memory of objects and destroys them in random order.
pub(super) fn end_of_all(mut things: Vec<Thing>, choices: &mut Choices, tally: &Tally) -> CaseResult {
    while !things.is_empty() {
        let at = choices.below(things.len() as u64) as usize;
        match things.swap_remove(at) {
            Thing::Held(held) => {
                tally.add(Kind::CheckedHeld);
                held.check().map_err(Stop::Failed)?;
            }
            Thing::Region(region) => {
                tally.add(Kind::CheckedRegion);
                region.check().map_err(Stop::Failed)?;
            }
            Thing::Frozen(frozen) => {
                tally.add(Kind::CheckedFrozen);
                frozen.check().map_err(Stop::Failed)?;
            }
            Thing::Station(station, pollers) => {
                things.extend(pollers.into_iter().map(Thing::Poller));
                drop(station);
            }
            Thing::Poller(poller) => drop(poller),
        }
    }
    Ok(())
}
