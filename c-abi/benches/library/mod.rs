//! The cost of the linked library on a soft device, measured in a C program, `cost.c`.
//!
//! The device's work depends on time. Posting sends is therefore measured with batches that are
//! aborted, and polling with completions that have already arrived.

use std::path::{Path, PathBuf};
use std::process::Command;

use callgrind::count_in;

/// The number of calls to each function in `cost.c`.
const CALLS: u32 = 64;
const EMPTY: &str = "cost_nothing";

/// Each function of `cost.c` with its operations per call and the maximum number of instructions
/// per operation, as a guard against regressions. Receives have no limit, because posting them
/// makes the device work.
const FUNCTIONS: [(&str, u32, Option<f64>); 7] = [
    ("cost_recv_1", 1, None),
    ("cost_recv_16", 16, None),
    ("cost_wr_1", 1, Some(350.0)),
    ("cost_wr_16", 16, Some(300.0)),
    ("cost_poll_1", 1, Some(115.0)),
    ("cost_poll_2", 2, Some(90.0)),
    ("cost_poll_16", 16, Some(70.0)),
];

/// Prints the table and returns whether all limits are met. Without the library, or without a C
/// compiler and verbs.h, it prints the reason instead.
///
/// # Errors
/// Fails if the C program or valgrind fails.
pub(crate) fn table() -> Result<bool, String> {
    let (library, program) = match library().and_then(|library| Ok((library, compile()?))) {
        Ok(both) => both,
        Err(why) => {
            println!("the linked library was not measured: {why}");
            return Ok(true);
        }
    };
    let counts = FUNCTIONS.map(|(symbol, ..)| count(&library, &program, symbol));
    let empty = count(&library, &program, EMPTY);
    // Removing the file fails if it was never written.
    let _ = std::fs::remove_file(&program);
    let empty = empty?;
    println!("{:<22} {:>7} {:>8} {:>7}", "libibverbs.so.1, soft", "a call", "C", "limit");
    let mut are_met = true;
    for ((symbol, per_call, limit), count) in FUNCTIONS.into_iter().zip(counts) {
        let each = (count? - empty) / f64::from(per_call);
        let is_met = limit.is_none_or(|limit| each <= limit);
        are_met &= is_met;
        println!(
            "{symbol:<22} {per_call:>7} {each:>8.1} {:>7}{}",
            limit.map_or_else(String::new, |limit| format!("{limit:.0}")),
            if is_met { "" } else { "  over a limit" }
        );
    }
    Ok(are_met)
}

/// Returns the folder where `cargo xtask c-abi` links the library.
fn library() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    // This program is TARGET/PROFILE/deps/NAME.
    let folder = program.ancestors().nth(3).map(|target| target.join("c-abi"));
    match folder {
        Some(folder) if folder.join("libibverbs.so.1").exists() => Ok(folder),
        _ => Err("`cargo xtask c-abi` links it".to_owned()),
    }
}

fn compile() -> Result<PathBuf, String> {
    let program = std::env::temp_dir().join(format!("cost-{}", std::process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/library/cost.c");
    cc(&program, &[source.to_owned()])?;
    Ok(program)
}

/// Compiles a C program that uses libibverbs. On failure, returns the compiler's message.
pub(crate) fn cc(program: &Path, arguments: &[String]) -> Result<(), String> {
    let compiled = Command::new("cc")
        .args(["-O2", "-o"])
        .arg(program)
        .args(arguments)
        .arg("-libverbs")
        .output()
        .map_err(|error| format!("cc could not be started: {error}"))?;
    match compiled.status.success() {
        true => Ok(()),
        false => Err(format!("cc: {}", String::from_utf8_lossy(&compiled.stderr).trim())),
    }
}

fn count(library: &Path, program: &Path, symbol: &str) -> Result<f64, String> {
    let mut valgrind = Command::new("valgrind");
    valgrind.env("LD_LIBRARY_PATH", library).env("VERBS_SOFT", "auto");
    count_in(valgrind, program, &[symbol], symbol, CALLS)
}
