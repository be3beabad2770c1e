//! Random traffic on random topologies with random faults, against a model of the possible results.
//!
//! ```text
//! cargo test -p roce --test sim                                    100 seeds; 1,000 with --release
//! ROCE_SIM_SEEDS=10000 cargo test -p roce --release --test sim      more
//! ROCE_SIM_SEED=1234 cargo test -p roce --test sim                  one, with its trace
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `world` | endpoints, links and their faults, queue pairs, memory |
//! | `traffic` | the traffic: work requests, late receives, mistakes, queue pairs that end early |
//! | `oracle` | the possible results, checked at each step |
//! | `ending` | conditions that must hold once the fabric is idle |

mod ending;
mod oracle;
mod traffic;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use world::World;

/// The result of a check. The error describes the violated condition.
type Check<T = ()> = Result<T, String>;

/// Returns from the function with an error message if the condition is false.
#[macro_export]
macro_rules! ensure {
    ($what:expr, $($message:tt)+) => {
        if !$what {
            return Err(format!($($message)+));
        }
    };
}

/// The number of occurrences of each case, over all seeds. A case that never occurs has not been
/// tested.
type Tally = BTreeMap<String, u64>;

/// Runs the simulation with one seed. The error names the violated condition and contains the end
/// of the trace.
fn run(seed: u64, show: bool) -> Result<Tally, String> {
    let mut world = match catch_unwind(|| World::new(seed)) {
        Ok(world) => world,
        Err(_) => return Err(format!("seed {seed}: panic while the world was created")),
    };
    if show {
        world.fabric.keep_trace(usize::MAX);
    }
    let result = catch_unwind(AssertUnwindSafe(|| world.run()));
    let what = match result {
        Ok(Ok(())) => {
            if show {
                world.fabric.trace().for_each(|record| eprintln!("{record}"));
                eprintln!("{}", world.describe());
            }
            return Ok(world.tally);
        }
        Ok(Err(what)) => what,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            format!("panic: {}", text.unwrap_or("?"))
        }
    };
    let trace: Vec<String> = world.fabric.trace().map(ToString::to_string).collect();
    let tail = trace.len().saturating_sub(if show { usize::MAX } else { 60 });
    Err(format!(
        "{}\n{}\nseed {seed} at {} ns: {what}\nReproduce: ROCE_SIM_SEED={seed} cargo test -p roce --test sim",
        trace[tail..].join("\n"),
        world.describe(),
        world.fabric.now().0,
    ))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

#[test]
fn random_traffic_ends_as_the_model_allows() {
    if let Some(seed) = number("ROCE_SIM_SEED") {
        let tally = run(seed, true).unwrap_or_else(|what| panic!("{what}"));
        eprintln!("{tally:#?}");
        return;
    }
    let seeds = number("ROCE_SIM_SEEDS").unwrap_or(if cfg!(debug_assertions) { 100 } else { 1000 });
    let first = number("ROCE_SIM_FIRST").unwrap_or(0);
    let next = AtomicU64::new(first);
    let failed = Mutex::new(BTreeMap::new());
    let tally = Mutex::new(Tally::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds || failed.lock().unwrap().len() >= 5 {
                        break;
                    }
                    match run(seed, false) {
                        Ok(one) => {
                            let mut all = tally.lock().unwrap();
                            one.into_iter().for_each(|(what, n)| *all.entry(what).or_default() += n);
                        }
                        Err(what) => {
                            failed.lock().unwrap().insert(seed, what);
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    let tally = tally.into_inner().unwrap();
    failed.values().for_each(|what| eprintln!("{what}\n"));
    assert!(failed.is_empty(), "seeds {:?} failed", failed.keys());
    eprintln!("{seeds} seeds: {tally:#?}");
    if seeds >= 500 {
        for what in MET {
            assert!(tally.contains_key(*what), "{seeds} seeds never met: {what}");
        }
    }
}

/// The cases that must occur within 500 seeds.
const MET: &[&str] = &[
    "rc messages delivered",
    "uc messages delivered",
    "ud messages delivered",
    "Send Success",
    "Write Success",
    "Read Success",
    "CompareSwap Success",
    "FetchAdd Success",
    "Bind Success",
    "LocalInvalidate Success",
    "Recv Success",
    "RecvWriteImm Success",
    "Recv LocalLength",
    "Recv RemoteInvalidRequest",
    "Recv Flushed",
    "Send Flushed",
    "Send RetryExceeded",
    "Send RnrRetryExceeded",
    "Send RemoteInvalidRequest",
    "Send RemoteOperation",
    "Send LocalProtection",
    "Write RemoteAccess",
    "Read RemoteAccess",
    "FetchAdd RemoteAccess",
    "queue pairs destroyed",
    "queue pairs reset",
    "queue pairs given up",
    "queue pairs drained",
    "windows of responses used up",
];

#[test]
fn a_seed_runs_the_same_twice() {
    let trace = |seed| {
        let mut world = World::new(seed);
        world.fabric.keep_trace(usize::MAX);
        world.run().unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        world.fabric.trace().map(ToString::to_string).collect::<Vec<_>>()
    };
    for seed in 0..5 {
        assert!(trace(seed) == trace(seed), "seed {seed}");
    }
}
