//! [`Soak`]: long-running random traffic on many connections of one device, from many threads.
//! Nothing may be lost, and memory must not grow.
//!
//! Each thread owns both ends of its connections, which run rounds of [`traffic`](super::traffic).
//! When all operations of a round have ended and everything has arrived, the thread checks the
//! memory, replaces one of its connections, and starts the next round.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use verbs::{Context, Mtu, Pd, Provider, RemoteAccess};
use verbs_harness::pattern::{Choices, seed_of};
use verbs_harness::runner::{CaseResult, fail};

use super::session::loopback;
use super::traffic::{Flow, Limits};

/// The parameters of a soak.
#[derive(Clone, Copy, Debug)]
pub struct Soak {
    /// The duration.
    pub duration: Duration,
    /// The number of queue pairs of all threads together, rounded down to pairs for each thread.
    pub qps: usize,
    /// The number of threads.
    pub threads: usize,
    /// The seed of all random choices.
    pub seed: u64,
    /// See [`Limits::fence`].
    pub fence: bool,
}

/// The results of a soak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The number of rounds of all threads.
    pub rounds: u64,
    /// The number of completed operations, each of them checked.
    pub operations: u64,
    /// The number of bytes moved.
    pub bytes: u64,
    /// The number of connections made.
    pub connections: u64,
    /// The resident set after everything was created and used once, in bytes.
    pub resident_at_first: u64,
    /// The largest resident set since then, in bytes.
    pub resident_at_most: u64,
}

/// The accepted growth of the resident set, in bytes: memory that the allocator keeps in the arenas
/// of [`Soak::threads`].
const TOLERANCE: u64 = 8 << 20;

/// The limits of a round.
const ROUND: Limits = Limits { operations: 200, max_size: 12 << 10, depth: 8, fence: true, empty: true };

/// Beyond the time of a connection without progress, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Counters written by the threads and read by the main thread.
#[derive(Debug, Default)]
struct Counters {
    rounds: AtomicU64,
    operations: AtomicU64,
    bytes: AtomicU64,
    connections: AtomicU64,
    stop: AtomicBool,
}

impl Soak {
    /// Runs the soak. Calls `look` each second with the totals so far.
    ///
    /// # Errors
    /// Data was lost or wrong, or memory grows.
    pub fn run<P: Provider>(&self, context: &Context<P>, mut look: impl FnMut(&Totals)) -> CaseResult<Totals>
    where
        Context<P>: Sync,
    {
        let counters = Counters::default();
        let limits = Limits { fence: self.fence, ..ROUND };
        let threads = self.threads.max(1);
        let pairs = (self.qps / 2 / threads).max(1);
        let started = Instant::now();
        let mut totals = Totals::default();
        let result = thread::scope(|scope| -> CaseResult {
            let mut workers: Vec<_> = (0..threads as u64)
                .map(|number| {
                    let counters = &counters;
                    scope.spawn(move || {
                        let result = work(context, pairs, seed_of(&[self.seed, number]), &limits, counters);
                        // A failed thread ends the soak for all.
                        counters.stop.store(true, Ordering::Relaxed);
                        result
                    })
                })
                .collect();
            while started.elapsed() < self.duration && !counters.stop.load(Ordering::Relaxed) {
                let left = self.duration.saturating_sub(started.elapsed());
                thread::park_timeout(left.min(Duration::from_secs(1)));
                let before = totals.rounds;
                counters.copy_to(&mut totals);
                let resident = resident()?;
                // Everything was used once after the first rounds. A tenth of the duration allows
                // for memory that settles later.
                let is_warm = totals.rounds >= 2 * threads as u64 && started.elapsed() >= self.duration / 10;
                if is_warm && totals.resident_at_first == 0 {
                    totals.resident_at_first = resident;
                }
                if totals.resident_at_first > 0 {
                    totals.resident_at_most = totals.resident_at_most.max(resident);
                }
                if before != totals.rounds {
                    look(&totals);
                }
            }
            counters.stop.store(true, Ordering::Relaxed);
            workers.drain(..).try_for_each(|worker| match worker.join() {
                Ok(result) => result,
                Err(_) => fail("a thread panicked"),
            })
        });
        result?;
        counters.copy_to(&mut totals);
        let grown = totals.resident_at_most.saturating_sub(totals.resident_at_first);
        if totals.resident_at_first == 0 {
            return fail(format_args!(
                "only {} rounds in {:?}: too short to say anything",
                totals.rounds, self.duration
            ));
        }
        if grown > TOLERANCE {
            return fail(format_args!(
                "memory grows: {grown} bytes more than after the first rounds; {totals:?}"
            ));
        }
        Ok(totals)
    }
}

impl Counters {
    fn copy_to(&self, totals: &mut Totals) {
        totals.rounds = self.rounds.load(Ordering::Relaxed);
        totals.operations = self.operations.load(Ordering::Relaxed);
        totals.bytes = self.bytes.load(Ordering::Relaxed);
        totals.connections = self.connections.load(Ordering::Relaxed);
    }
}

/// Runs a thread's connections until the soak ends.
fn work<P: Provider>(
    context: &Context<P>,
    pairs: usize,
    seed: u64,
    limits: &Limits,
    counters: &Counters,
) -> CaseResult {
    let pd = context.alloc_pd()?;
    let mut choices = Choices::new(seed);
    let mut flows = (0..pairs)
        .map(|_| connection(&pd, &mut choices, limits, counters))
        .collect::<CaseResult<Vec<[Flow<P>; 2]>>>()?;
    loop {
        let mut progress = Instant::now();
        while !flows.iter().flatten().all(Flow::is_done) {
            let mut any = false;
            for flow in flows.iter_mut().flatten() {
                any |= flow.pump()?;
            }
            if any {
                progress = Instant::now();
            } else if progress.elapsed() > PATIENCE {
                let states: Vec<_> =
                    flows.iter().flatten().filter(|flow| !flow.is_done()).map(Flow::state).collect();
                return fail(format_args!("lost after {:?}: {}", counters, states.join("; ")));
            } else {
                thread::yield_now();
            }
        }
        for flow in flows.iter_mut().flatten() {
            flow.settle()?;
            counters.operations.fetch_add(std::mem::take(&mut flow.operations), Ordering::Relaxed);
            counters.bytes.fetch_add(std::mem::take(&mut flow.bytes), Ordering::Relaxed);
        }
        counters.rounds.fetch_add(1, Ordering::Relaxed);
        if counters.stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        for [one, other] in &mut flows {
            let (there, back) = (choices.any(), choices.any());
            one.again([there, back]);
            other.again([back, there]);
        }
        let place = choices.below(pairs as u64) as usize;
        drop(flows.swap_remove(place));
        flows.push(connection(&pd, &mut choices, limits, counters)?);
    }
}

/// Returns a connection with its first round.
fn connection<P: Provider>(
    pd: &Pd<P>,
    choices: &mut Choices,
    limits: &Limits,
    counters: &Counters,
) -> CaseResult<[Flow<P>; 2]> {
    let mtu = choices.one_of(&[Mtu::MTU_256, Mtu::MTU_512, Mtu::MTU_1024, Mtu::MTU_2048, Mtu::MTU_4096]);
    let [one, other] = loopback(pd, mtu, choices)?;
    let (there, back) = (choices.any(), choices.any());
    let expose = || -> CaseResult<_> {
        let region = Flow::<P>::region(limits, pd.alloc_buf(limits.region())?);
        let access = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
        Ok(pd.expose(region, access)?)
    };
    let bufs = || -> CaseResult<Vec<_>> {
        // One registration, split into pieces.
        let mut whole = pd.alloc_buf(2 * limits.depth * limits.max_size)?;
        // Touched now, so that the resident set does not grow with each longest message so far.
        whole.fill(0);
        let mut bufs = Vec::new();
        while !whole.is_empty() {
            let rest = whole.split_off(limits.max_size);
            bufs.push(std::mem::replace(&mut whole, rest));
        }
        Ok(bufs)
    };
    let (one_memory, other_memory) = (expose()?, expose()?);
    let (one_remote, other_remote) = (one_memory.remote(), other_memory.remote());
    counters.connections.fetch_add(1, Ordering::Relaxed);
    Ok([
        Flow::new(one, one_memory, other_remote, *limits, [(there, true), (back, true)], bufs()?)?,
        Flow::new(other, other_memory, one_remote, *limits, [(back, true), (there, true)], bufs()?)?,
    ])
}

/// Returns the resident set of this process, in bytes.
///
/// # References
/// `proc_pid_statm(5)`
fn resident() -> CaseResult<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    let page_size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?.unwrap_or(4096).cast_unsigned();
    match pages {
        Some(pages) => Ok(pages * page_size),
        None => fail(format_args!("{statm:?} is no statm")),
    }
}
