//! Instructions of a function of this program, counted by callgrind: the program runs itself under
//! `valgrind`. The counts do not depend on the machine's speed or load.

use std::path::Path;
use std::process::Command;

/// Runs this program again with `--count SYMBOL` and returns the instructions of one call of the
/// function with that name, all callees included, or the reason why there is no count. That run
/// makes `calls` calls of the function.
pub(crate) fn count_instructions(symbol: &str, calls: u32) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    count_in(Command::new("valgrind"), &program, &["--count", symbol], symbol, calls)
}

/// As [`count_instructions`], in a run of another program with these arguments.
pub(crate) fn count_in(
    mut valgrind: Command,
    program: &Path,
    args: &[&str],
    symbol: &str,
    calls: u32,
) -> Result<f64, String> {
    let out = std::env::temp_dir().join(format!("{symbol}-{}.callgrind", std::process::id()));
    let ran = valgrind
        .args(["--tool=callgrind", "--quiet", "--collect-atstart=no"])
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
    let total = profile.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse::<f64>().ok());
    match total {
        Some(total) if total > 0.0 => Ok(total / f64::from(calls)),
        _ => Err(format!("callgrind saw no call of {symbol}")),
    }
}
