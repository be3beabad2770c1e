//! Counts the instructions of a function or a program with callgrind, for benches: the program runs
//! itself under `valgrind`. The counts do not depend on the machine's speed or load.
//!
//! The crate gungraun needs a runner of the same version installed. It reports only a benchmark's
//! totals. Our benches need the cost of one call without the harness, in C programs too.

use std::path::Path;
use std::process::Command;

/// The cost of one call to a function, including all callees.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Instructions executed.
    pub instructions: f64,
    /// Instructions that lock the bus: atomic read-modify-writes.
    pub atomics: f64,
    /// Calls made by the function and its callees.
    pub calls: f64,
}

/// Runs this program again with `--count SYMBOL` and returns the number of instructions in one call
/// to the function with that name, including all callees. That run must call the function `calls`
/// times.
///
/// # Errors
/// Fails if valgrind is missing, if the program fails, or if it does not call the function.
pub fn count_instructions(symbol: &str, calls: u32) -> Result<f64, String> {
    count(symbol, calls).map(|cost| cost.instructions)
}

/// Counts like [`count_instructions`], and also returns callgrind's other counts.
///
/// # Errors
/// The same errors as [`count_instructions`].
pub fn count(symbol: &str, calls: u32) -> Result<Cost, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    count_all_in(Command::new("valgrind"), &program, &["--count", symbol], symbol, calls)
}

/// Counts like [`count_instructions`], but in a run of another program with these arguments.
/// `valgrind` is the command, with the environment of that run.
///
/// # Errors
/// The same errors as [`count_instructions`].
pub fn count_in(
    valgrind: Command,
    program: &Path,
    args: &[&str],
    symbol: &str,
    calls: u32,
) -> Result<f64, String> {
    count_all_in(valgrind, program, args, symbol, calls).map(|cost| cost.instructions)
}

/// Runs this program again with these arguments and returns the number of instructions in the whole
/// run.
///
/// # Errors
/// Fails if valgrind is missing or the program fails.
pub fn count_run(args: &[&str]) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let profile = profile(Command::new("valgrind"), &[], &program, args)?;
    match totals(&profile) {
        Some([instructions, _]) if instructions > 0.0 => Ok(instructions),
        _ => Err("callgrind counted nothing".to_owned()),
    }
}

fn count_all_in(
    valgrind: Command,
    program: &Path,
    args: &[&str],
    symbol: &str,
    calls: u32,
) -> Result<Cost, String> {
    let toggle = format!("--toggle-collect={symbol}");
    let options = ["--collect-atstart=no", "--collect-bus=yes", &toggle];
    let profile = profile(valgrind, &options, program, args)?;
    match totals(&profile) {
        Some([instructions, atomics]) if instructions > 0.0 => {
            let each = |sum: f64| sum / f64::from(calls);
            let made = calls_below(&profile, symbol);
            Ok(Cost { instructions: each(instructions), atomics: each(atomics), calls: each(made.into()) })
        }
        _ => Err(format!("callgrind saw no call of {symbol}")),
    }
}

/// Runs a program under callgrind with these options and returns the profile.
fn profile(mut valgrind: Command, options: &[&str], program: &Path, args: &[&str]) -> Result<String, String> {
    let out = std::env::temp_dir().join(format!("{}.callgrind", std::process::id()));
    let ran = valgrind
        .args(["--tool=callgrind", "--quiet"])
        .args(options)
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
    profile.map_err(|error| format!("callgrind wrote no profile: {error}"))
}

/// Returns the totals of a profile: all instructions and those that lock the bus.
fn totals(profile: &str) -> Option<[f64; 2]> {
    let words =
        |name| profile.lines().find_map(|line: &str| line.strip_prefix(name)).map(str::split_whitespace);
    let (events, sums): (Vec<_>, Vec<_>) = (words("events: ")?.collect(), words("totals: ")?.collect());
    let sum = |event: &str| {
        let at = events.iter().position(|name| *name == event)?;
        // Callgrind omits zeros at the end of the line.
        sums.get(at).map_or(Some(0.0), |sum| sum.parse().ok())
    };
    // Callgrind counts bus locks only on request.
    Some([sum("Ir")?, sum("Ge").unwrap_or(0.0)])
}

/// Returns the number of calls that a function and its callees made. A profile refers to a function
/// as `(7)` once it has named the function: `(7) main`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_that_were_not_counted_or_not_written_are_zero() {
        assert_eq!(totals("events: Ir\n\ntotals: 42\n"), Some([42.0, 0.0]));
        assert_eq!(totals("events: Ir Ge\ntotals: 42 7\n"), Some([42.0, 7.0]));
        assert_eq!(totals("events: Ir Ge\ntotals: 42\n"), Some([42.0, 0.0]));
        assert_eq!(totals("events: Ir\n"), None);
    }

    #[test]
    fn calls_are_those_of_a_function_and_of_its_callees() {
        let profile = "fn=(1) main\ncfn=(2) posted\ncalls=9 1\n1 9\n\nfn=(2)\ncfn=(3) ring\ncalls=2 1\n1 2\n\n\
                       fn=(3)\ncfn=(4) store\ncalls=3 1\n1 3\n";
        assert_eq!(calls_below(profile, "posted"), 5);
        assert_eq!(calls_below(profile, "store"), 0);
    }
}
