//! Instructions of a function in this program, counted by callgrind: the program runs itself under
//! `valgrind`. The counts do not depend on the machine's speed or load.

// Each bench uses a part.
#![allow(dead_code)]

use std::path::Path;
use std::process::Command;

/// The cost of one call of a function, all callees included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) instructions: f64,
    /// Instructions with a locked bus: atomic read-modify-writes.
    pub(crate) atomics: f64,
    /// Calls made by the function and its callees.
    pub(crate) calls: f64,
}

/// Runs this program again with `--count SYMBOL` and returns the instructions of one call of the
/// function with that name, all callees included, or the reason why counting failed. That run makes
/// `calls` calls of the function.
pub(crate) fn count_instructions(symbol: &str, calls: u32) -> Result<f64, String> {
    count(symbol, calls).map(|cost| cost.instructions)
}

/// As [`count_instructions`], with callgrind's other counts.
pub(crate) fn count(symbol: &str, calls: u32) -> Result<Cost, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    count_all_in(Command::new("valgrind"), &program, &["--count", symbol], symbol, calls)
}

/// As [`count_instructions`], in a run of another program with these arguments.
pub(crate) fn count_in(
    valgrind: Command,
    program: &Path,
    args: &[&str],
    symbol: &str,
    calls: u32,
) -> Result<f64, String> {
    count_all_in(valgrind, program, args, symbol, calls).map(|cost| cost.instructions)
}

fn count_all_in(
    mut valgrind: Command,
    program: &Path,
    args: &[&str],
    symbol: &str,
    calls: u32,
) -> Result<Cost, String> {
    let out = std::env::temp_dir().join(format!("{symbol}-{}.callgrind", std::process::id()));
    let ran = valgrind
        .args(["--tool=callgrind", "--quiet", "--collect-atstart=no", "--collect-bus=yes"])
        .arg(format!("--toggle-collect={symbol}"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args(args)
        .output()
        .map_err(|error| format!("valgrind could not be started: {error}"))?;
    let profile = std::fs::read_to_string(&out);
    // If the file was never written, removing it fails.
    let _ = std::fs::remove_file(&out);
    if !ran.status.success() {
        return Err(format!(
            "under valgrind: {}, {}",
            ran.status,
            String::from_utf8_lossy(&ran.stderr).trim()
        ));
    }
    let profile = profile.map_err(|error| format!("callgrind wrote no profile: {error}"))?;
    match totals(&profile) {
        Some([instructions, atomics]) if instructions > 0.0 => {
            let each = |sum: f64| sum / f64::from(calls);
            let made = calls_below(&profile, symbol);
            Ok(Cost { instructions: each(instructions), atomics: each(atomics), calls: each(made.into()) })
        }
        _ => Err(format!("callgrind saw no call of {symbol}")),
    }
}

/// Returns the sums of a profile: instructions and those with a locked bus.
fn totals(profile: &str) -> Option<[f64; 2]> {
    let words =
        |name| profile.lines().find_map(|line: &str| line.strip_prefix(name)).map(str::split_whitespace);
    let (events, sums): (Vec<_>, Vec<_>) = (words("events: ")?.collect(), words("totals: ")?.collect());
    let sum = |event: &str| {
        let at = events.iter().position(|name| *name == event)?;
        // Sums of 0 at the end of the line are not written.
        sums.get(at).map_or(Some(0.0), |sum| sum.parse().ok())
    };
    Some([sum("Ir")?, sum("Ge")?])
}

/// Returns the number of calls that a function and its callees made. Names are numbers, `(7)`,
/// explained at the first mention, `(7) main`.
fn calls_below(profile: &str, symbol: &str) -> u32 {
    let number = |name: &str| name.split(' ').next().unwrap_or_default().to_owned();
    let (mut caller, mut callee) = (String::new(), String::new());
    let (mut start, mut edges) = (None, Vec::new());
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("fn=").or_else(|| line.strip_prefix("cfn=")) {
            if name.ends_with(&format!(") {symbol}")) {
                start = Some(number(name));
            }
            let place = if line.starts_with('c') { &mut callee } else { &mut caller };
            *place = number(name);
        } else if let Some(count) = line.strip_prefix("calls=") {
            edges.push((caller.clone(), callee.clone(), number(count).parse().unwrap_or(0)));
        }
    }
    let mut reached: Vec<String> = start.into_iter().collect();
    let mut next = 0;
    while let Some(from) = reached.get(next).cloned() {
        for (_, to, _) in edges.iter().filter(|(caller, _, _)| *caller == from) {
            if !reached.contains(to) {
                reached.push(to.clone());
            }
        }
        next += 1;
    }
    edges.iter().filter(|(caller, _, _)| reached.contains(caller)).map(|(_, _, count)| count).sum()
}
