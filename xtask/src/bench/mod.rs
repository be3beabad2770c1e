//! `cargo xtask bench`: this library's programs against rdma-core's, in one guest and one run.
//!
//! | measurement | method |
//! |---|---|
//! | system calls of `ibv_devinfo -v` | `strace -c -f`, both |
//! | run time of `ibv_devinfo -v` | median of interleaved runs: static, default build, `true` |
//! | instructions of listing and opening | callgrind below `main`, both |
//! | instructions of a posted receive | callgrind below the posting function, both |
//! | 10,000 rounds of `ibv_rc_pingpong` | median of interleaved runs, polling and with `-e` |
//! | control calls while 1 to 3 threads poll | 99th percentile, median of interleaved runs |
//! | 1,000 `cmtime` connections, ours on rxe and on soft | median of interleaved runs |
//! | soft beside rxe, round trips of 8 bytes | median of interleaved runs: writes, sends, events |
//! | soft beside rxe, writes of 64 KiB | the same, for a stream of writes |
//! | bare UDP beside rxe, 8 bytes | the same, with two sockets and no verbs |
//!
//! A ping-pong is between two of our programs, or between two of rdma-core's. The rows about soft
//! come from provider-soft's benchmark, on both devices.
//!
//! Only ratios count: an emulated guest is slow, but equally slow for both sides. `cargo bench -p
//! provider-rxe` measures posting and polling alone, without a kernel.

mod cmtime;
mod guest;
mod table;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Result;

use self::guest::Plan;
pub(crate) use self::table::{ROUND_TRIP, number};
use crate::{apt, c_abi, cache, cargo, process, vm};

/// Compares this library's programs with rdma-core's in a guest and prints a table.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The guest's kernel: 5.10, 6.1, 6.12, 7.2, or a directory
    #[arg(long, default_value = vm::kernel::DEFAULT, value_name = "KERNEL")]
    kernel: vm::kernel::Choice,

    /// Number of interleaved runs of each timed program
    #[arg(long, default_value_t = 5)]
    runs: usize,

    /// Number of rounds of the ping-pong
    #[arg(long, default_value_t = 10_000)]
    rounds: u32,

    /// Fail if a target is missed
    #[arg(long)]
    check: bool,

    /// Measure on this machine with this plan, as the guest does
    #[arg(long, hide = true, value_parser = |plan: &str| serde_json::from_str::<Plan>(plan))]
    here: Option<Plan>,
}

/// Runs `bench`.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(plan) = &args.here {
        let missed = guest::run(plan)?;
        return Ok(ExitCode::from(u8::from(args.check && missed > 0)));
    }
    apt::ensure_tools(&[apt::Tools::Vm, apt::Tools::Interop, apt::Tools::CPrograms, apt::Tools::CBuild])?;
    println!("bench: building ours");
    cargo::build(&["--quiet", "--release", "--package", "rdma-tools", "--bins"])?;
    let examples = ["--package", "libibverbs-rs", "--example", "list_and_open", "--example", "post_recv"];
    let ours = cargo::build(&[&["--quiet", "--release"], &examples[..]].concat())?.join("examples");
    let plan = Plan {
        ours,
        statics: cargo::build_static(&["--bins"], &cargo::host_target(), "release")?,
        theirs: build_theirs()?,
        soft: cargo::build_bench("provider-soft", "verbs")?,
        newest: apt::RDMA_CORE.root()?,
        libraries: c_abi::build(c_abi::PROFILE)?,
        runs: args.runs,
        rounds: args.rounds,
    };
    let mut words: Vec<OsString> = ["bench", "--here", &serde_json::to_string(&plan)?].map(Into::into).into();
    words.extend(args.check.then(|| "--check".into()));
    vm::run_this_program(&args.kernel, 1200, words)
}

/// Builds the C programs for rdma-core's side, with Debian's optimisation for rdma-core, and
/// returns their folder.
fn build_theirs() -> Result<PathBuf> {
    let dir = cache::dir()?.join("bench");
    std::fs::create_dir_all(&dir)?;
    for name in ["list_and_open", "post_recv", "beside_pollers"] {
        let source = cargo::root().join("c-abi/benches/rdma_core").join(name).with_extension("c");
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-o"]).args([dir.join(name), source]).args(["-libverbs", "-lpthread"]);
        process::output(&mut cc)?;
    }
    Ok(dir)
}
