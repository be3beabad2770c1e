//! `connectx-trace`: shows a trace of the model and finds the first difference between two traces.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use connectx_model::trace::compare::compare;
use connectx_model::trace::format::KINDS;
use connectx_model::trace::parse::{Entry, parse, section};

/// Traces of the ConnectX model
#[derive(Parser)]
enum Args {
    #[command(flatten)]
    Command(Command),
}

#[derive(Subcommand)]
enum Command {
    /// Finds the first difference between two traces: exits with 0 if there is none, with 1
    /// otherwise
    ///
    /// Addresses, timestamps and stale bytes may differ. Numbers of objects and keys may differ
    /// too, if the mapping between the traces is consistent.
    Compare {
        /// First trace
        first: PathBuf,
        /// Second trace; the first one if omitted
        second: Option<PathBuf>,
        /// Compare only the part from this mark to the next
        #[arg(long, value_name = "MARK")]
        section: Option<String>,
        /// Mark in the second trace, if its name differs
        #[arg(long, value_name = "MARK", requires = "section")]
        with: Option<String>,
        /// Compare only lines of these kinds, such as wqe,store
        #[arg(long, value_name = "KINDS", value_delimiter = ',')]
        only: Vec<String>,
    },
    /// Shows a trace with line numbers
    Show {
        /// Trace
        trace: PathBuf,
        /// Show only the part from this mark to the next
        #[arg(long, value_name = "MARK")]
        section: Option<String>,
        /// Show only lines of these kinds, such as wqe,store
        #[arg(long, value_name = "KINDS", value_delimiter = ',')]
        only: Vec<String>,
    },
}

fn main() -> ExitCode {
    let Args::Command(command) = Args::parse();
    match run(&command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("connectx-trace: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(command: &Command) -> Result<bool, String> {
    match command {
        Command::Compare { first, second, section, with, only } => {
            let second = second.as_ref().unwrap_or(first);
            let one = read(first, section.as_deref(), only)?;
            let other = read(second, with.as_deref().or(section.as_deref()), only)?;
            if one.is_empty() && other.is_empty() {
                return Err("nothing to compare: neither trace has a selected line".to_owned());
            }
            let found = compare(&one, &other);
            match &found {
                None => println!("no difference in {} lines", one.len()),
                Some(difference) => print!("{difference}"),
            }
            Ok(found.is_none())
        }
        Command::Show { trace, section, only } => {
            for entry in read(trace, section.as_deref(), only)? {
                println!("{entry}");
            }
            Ok(true)
        }
    }
}

fn read(path: &Path, mark: Option<&str>, only: &[String]) -> Result<Vec<Entry>, String> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| named(&error))?;
    let mut entries = parse(&text).map_err(|error| named(&error))?;
    if let Some(mark) = mark {
        entries = section(&entries, mark).ok_or_else(|| named(&format!("no mark named {mark:?}")))?.to_vec();
    }
    if let Some(unknown) = only.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
        return Err(format!("unknown kind of line {unknown:?}; the kinds are {}", KINDS.join(", ")));
    }
    entries.retain(|entry| only.is_empty() || only.contains(&entry.kind));
    Ok(entries)
}
