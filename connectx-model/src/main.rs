//! `connectx-model`: a ConnectX for QEMU's `vfio-user-pci`.
//!
//! Prints `ready` once every socket listens, serves until QEMU exits, then reports the broken
//! rules.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use connectx_model::fabric::Fabric;
use connectx_model::function::{Config, Function};
use connectx_model::port::PortKind;
use connectx_model::trace::Trace;
use connectx_model::vfio::{MappedBus, Server};

/// A strict software ConnectX, for QEMU's vfio-user-pci
///
/// Exits with 0 if the guest broke no rule, with 1 if it did, and with 2 if serving failed.
#[derive(Parser)]
struct Args {
    /// Socket that a function listens on; once or twice, for one or two functions
    #[arg(long = "socket", value_name = "PATH", required = true)]
    sockets: Vec<PathBuf>,

    /// Link layer of the ports
    #[arg(long, value_enum)]
    port: Port,

    /// Socket that accepts lines to inject faults
    #[arg(long, value_name = "PATH")]
    control: PathBuf,

    /// File for the trace of device activity
    #[arg(long, value_name = "PATH")]
    trace: Option<PathBuf>,

    /// File for the complaints and notes, one line each; a note begins with "note: "
    #[arg(long, value_name = "PATH")]
    complaints: Option<PathBuf>,

    /// File of fault lines that execute at the start
    #[arg(long, value_name = "PATH")]
    script: Option<PathBuf>,

    /// Whether small payloads may be placed in completions, if the driver requests it
    #[arg(long, value_enum, default_value = "on")]
    scatter_to_cqe: Switch,
}

#[derive(Clone, Copy, ValueEnum)]
enum Port {
    Ib,
    Roce,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("connectx-model: {error}");
            ExitCode::from(2)
        }
    }
}

/// Serves a guest until QEMU exits. Returns whether the run was free of complaints.
fn run(args: &Args) -> io::Result<bool> {
    if args.sockets.len() > 2 {
        return Err(io::Error::other("at most two --socket options are allowed"));
    }
    let mut trace = match &args.trace {
        Some(path) => Trace::to_file(path).map_err(|error| named(path, &error))?,
        None => Trace::off(),
    };
    let complaints = match &args.complaints {
        Some(path) => Some(File::create(path).map_err(|error| named(path, &error))?),
        None => None,
    };
    let buses: Vec<MappedBus> = args.sockets.iter().map(|_| MappedBus::new()).collect();
    let port = match args.port {
        Port::Ib => PortKind::Ib,
        Port::Roce => PortKind::Roce,
    };
    let functions = buses.iter().enumerate().map(|(index, bus)| {
        let config = Config { index, port, scatter_to_cqe: args.scatter_to_cqe == Switch::On };
        Function::new(config, bus.clone(), trace.for_function(index))
    });
    let mut fabric = Fabric::new(functions.collect());
    let sockets = args.sockets.iter().map(PathBuf::as_path).zip(buses).collect();
    let mut server = Server::listen(sockets, &args.control)?;
    if let Some(path) = &args.script {
        let script = std::fs::read_to_string(path).map_err(|error| named(path, &error))?;
        fabric.script(&script, server.now()).map_err(|error| named(path, &error))?;
    }
    println!("ready");
    io::stdout().flush()?;
    let served = server.run(&mut fabric);
    fabric.finish();
    trace.flush();
    let kept = report(&mut fabric, complaints)?;
    served.map(|()| kept)
}

/// Reports the broken rules and the notes. Returns whether the run was free of complaints.
fn report(fabric: &mut Fabric<MappedBus>, file: Option<File>) -> io::Result<bool> {
    let count = fabric.complaint_count();
    let notes = fabric.take_notes().into_iter().map(|note| format!("note: {note}"));
    let lines: Vec<String> = fabric.take_complaints().iter().map(ToString::to_string).chain(notes).collect();
    if let Some(mut file) = file {
        for line in &lines {
            writeln!(file, "{line}")?;
        }
    }
    for line in &lines {
        eprintln!("{line}");
    }
    if count > 0 {
        eprintln!("{count} complaints");
    }
    if fabric.note_count() > 0 {
        eprintln!("{} notes", fabric.note_count());
    }
    Ok(count == 0)
}

fn named(path: &std::path::Path, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}
