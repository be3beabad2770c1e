//! [`Fuzz`]: random legal and odd calls of the public API in safe code, from three threads, on RC,
//! UC, UD and XRC queue pairs of two devices, or of two contexts of one device. Whatever safe code
//! does, memory that the program holds must not change behind its back, and no memory may be lost
//! or returned twice.
//!
//! | file | what it is |
//! |---|---|
//! | [`handle`] | handles of any state and any provider as one type |
//! | [`memory`] | what must be in which buffer, and messages that say whether they are whole |
//! | [`world`] | state that threads share: devices, addresses, a market for objects |
//! | [`actor`] | one thread: which calls it makes, and what it checks |
//! | [`tally`] | what was done by kind; each kind has to be reached |
//!
//! Everything follows from a seed, as far as one thread goes: what the others and the device do
//! meanwhile is theirs. A round runs in a process of its own, since what it forgets stays forgotten
//! ([`rounds`]).
//!
//! # What it does not prove
//! That a device writes nowhere is seen only where something is looked at: buffers of the program,
//! and what a sanitizer watches. A kernel's device is beyond every sanitizer.
#![forbid(unsafe_code)]

mod actor;
mod handle;
mod memory;
pub mod rounds;
mod tally;
mod world;

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

pub use tally::{Tally, missing, steps};

use crate::pattern::{Choices, seed_of};
use crate::runner::{CaseResult, fail};
use actor::Actor;
use world::World;

/// One round.
#[derive(Clone, Debug)]
pub struct Fuzz {
    /// The device's name; two soft devices of this process without one.
    pub device: Option<String>,
    /// For how long.
    pub duration: Duration,
    /// The seed of all random choices.
    pub seed: u64,
}

/// The number of threads that make calls.
const ACTORS: u64 = 3;

impl Fuzz {
    /// Runs it, and adds to the tally.
    ///
    /// # Errors
    /// A buffer changed that must not, a buffer came back that must not or holds something else
    /// than what was sent, or the devices do not work any more.
    pub fn run(&self, tally: &Tally) -> CaseResult {
        let world = World::open(self.device.as_deref())?;
        let deadline = Instant::now() + self.duration;
        let result = thread::scope(|scope| -> CaseResult {
            let workers: Vec<_> = (0..ACTORS)
                .map(|number| {
                    let (world, seed) = (&world, seed_of(&[self.seed, number]));
                    scope.spawn(move || {
                        let result = Actor::new(world, tally, seed).run(deadline);
                        // One that failed ends it for all.
                        world.stop.store(true, Ordering::Relaxed);
                        result.map_err(|stop| stop.of(format_args!("thread {number}")))
                    })
                })
                .collect();
            let results: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            results.into_iter().try_for_each(|result| match result {
                Ok(result) => result,
                Err(_) => fail("a thread panicked"),
            })
        });
        result?;
        let mut choices = Choices::new(self.seed);
        actor::end_of_all(world.unsold(), &mut choices, tally)?;
        world.nothing_is_lost(tally)?;
        world.still_works(tally)
    }
}
