//! Costs with many objects, compared with costs with few objects in the same run.
//!
//! ```console
//! $ cargo bench -p provider-soft --bench scale [-- [--check] [ROW]...]
//! ```
//!
//! | part | content |
//! |---|---|
//! | `messages` | a message on each of 1 to 10,000 connections in turn, over UDP |
//! | `peers` | a round trip beside 1 to 1,000 devices of another process; idle cost per device |
//! | `setup` | creating and connecting 1,000 pairs of queue pairs |
//! | `control` | each control call with 16 and with 10,000 live objects of its kind |
//!
//! The compared costs are measured alternately. With `--check`, a missed limit makes the run fail.
//! Without `--bench` (as started by `cargo test`), the run has few objects and only shows that the
//! benchmark works.
#![deny(unsafe_code)]

mod control;
mod ends;
mod messages;
mod peers;
#[path = "../verbs/process.rs"]
#[allow(dead_code, reason = "the other benchmark exchanges bytes as well as lines")]
mod process;
mod setup;

use std::env;
use std::process::ExitCode;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<ExitCode> {
    let mut arguments: Vec<String> = env::args().skip(1).collect();
    raise_descriptors()?;
    if let [peer, count, is_shared] = &arguments[..]
        && peer == "peer"
    {
        return peers::serve(count.parse()?, is_shared.parse()?).map(|()| ExitCode::SUCCESS);
    }
    let mut take = |name: &str| {
        let before = arguments.len();
        arguments.retain(|argument| argument != name);
        arguments.len() < before
    };
    let (is_full, check) = (take("--bench"), take("--check"));
    let mut table = Table { wanted: arguments, is_full, is_met: true };
    println!("{:44} {:>12} {:>12} {:>7}  limit", "", "few", "many", "ratio");
    messages::measure(&mut table)?;
    peers::measure(&mut table)?;
    setup::measure(&mut table)?;
    control::measure(&mut table)?;
    Ok(if table.is_met || !check { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Raises the limit on open descriptors, because 1,000 devices need 12,000 of them.
fn raise_descriptors() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

/// The table of results, whose rows are printed as they are measured.
struct Table {
    /// Words that select rows by name. If there are none, all rows are selected.
    wanted: Vec<String>,
    is_full: bool,
    is_met: bool,
}

impl Table {
    fn wants(&self, name: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|word| name.contains(word.as_str()))
    }

    /// Prints a row: the cost with few and with many objects, in nanoseconds, the ratio of the
    /// costs, and the limit for the ratio.
    fn row(&mut self, name: &str, few: f64, many: f64, ratio: f64, limit: Option<f64>) {
        let limit = limit.filter(|_| self.is_full);
        let is_met = limit.is_none_or(|limit| ratio <= limit);
        self.is_met &= is_met;
        let limit = limit.map_or_else(String::new, |limit| format!("{limit}"));
        let missed = if is_met { "" } else { "  missed" };
        println!("{name:44} {few:9.0} ns {many:9.0} ns {ratio:7.2}  {limit}{missed}");
    }
}

/// Returns the median of `values`.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
