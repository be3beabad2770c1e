//! [`Fuzz`]: random calls to the public API in safe code, legal and odd. Three threads make them,
//! on RC, UC, UD and XRC queue pairs, on two devices or in two contexts of one device. Whatever
//! safe code does, memory held by the program must not change. No memory may be lost or returned
//! twice.
//!
//! | file | content |
//! |---|---|
//! | [`handle`] | handles of any state and any provider as one type |
//! | [`memory`] | expected contents of buffers, and messages that show whether they are complete |
//! | [`world`] | state shared by threads: devices, targets, objects passed between threads |
//! | [`actor`] | a thread: its calls and checks |
//! | [`tally`] | counts of each kind of call; each kind must be reached |
//!
//! A seed determines all choices of a thread. The timing of other threads and of the device is not
//! reproducible. Each round runs in a separate process, because memory that it leaks is never freed
//! ([`rounds`]).
//!
//! # What it does not prove
//! A device's stray write is noticed only in checked memory: the program's buffers and memory
//! watched by a sanitizer. No sanitizer watches a device in the kernel.
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
use verbs_harness::pattern::{Choices, seed_of};
use verbs_harness::runner::{CaseResult, fail};

use actor::Actor;
use world::World;

/// A round of random calls.
#[derive(Clone, Debug)]
pub struct Fuzz {
    /// The device's name; `None` creates two soft devices in this process.
    pub device: Option<String>,
    /// The time during which the threads make calls.
    pub duration: Duration,
    /// The seed of all random choices.
    pub seed: u64,
}

/// The number of threads that make calls.
const ACTORS: u64 = 3;

impl Fuzz {
    /// Runs the round and adds to the tally.
    ///
    /// # Errors
    /// Fails if a buffer changed or returned unexpectedly, if a received message differs from the
    /// sent one, or if the devices no longer work.
    pub fn run(&self, tally: &Tally) -> CaseResult {
        let world = World::open(self.device.as_deref())?;
        let deadline = Instant::now() + self.duration;
        let result = thread::scope(|scope| -> CaseResult {
            let workers: Vec<_> = (0..ACTORS)
                .map(|number| {
                    let (world, seed) = (&world, seed_of(&[self.seed, number]));
                    scope.spawn(move || {
                        let result = Actor::new(world, tally, seed).run(deadline);
                        // A failure in one thread ends the round for all threads.
                        world.stop.store(true, Ordering::Relaxed);
                        result.map_err(|stop| stop.context(format_args!("thread {number}")))
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
