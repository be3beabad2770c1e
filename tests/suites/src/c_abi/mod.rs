//! `c_abi`: unmodified programs on our `libibverbs.so.1` and `librdmacm.so.1`, compared with, and
//! connected to, the same programs on rdma-core's libraries.
//!
//! | module | content |
//! |---|---|
//! | [`utils`] | ibverbs-utils: ping-pongs between the libraries, and the same output on either |
//! | [`perftest`] | perftest: write, read, send and atomic between the libraries |
//! | [`rdmacm`] | rdmacm-utils and `perftest -R`, with ends on either librdmacm |
//! | [`libfabric`] | `fi_pingpong` on libfabric's verbs provider, between the libraries |
//! | [`ucx`] | `ucx_perftest` between the libraries |
//! | [`pyverbs`] | rdma-core's Python tests on both libraries, test by test |
//! | [`program`](mod@program) | the command for a program on either library |
//!
//! `VERBS_C_ABI_DIR` is the directory with our libraries. Without it, every case is skipped.

mod libfabric;
mod perftest;
mod program;
mod pyverbs;
mod rdmacm;
mod ucx;
mod utils;

// Exported for `tests/units.rs`.
#[doc(hidden)]
pub use self::program::unless_c_fails;
#[doc(hidden)]
pub use self::pyverbs::{RACES, lost_race, passed};

use std::path::Path;

use verbs_c_programs::arguments::{Device, same_on_both_libraries};
use verbs_c_programs::beside_poller::waits_for_no_poller;
use verbs_harness::process::Finished;
use verbs_harness::runner::{Case, CaseResult, fail, skip};
use verbs_harness::tools::{DEVICE, Maker, linked_dir, run};

use self::program::{SUITE, program};

/// Returns the suite's cases.
pub fn cases() -> Vec<Case> {
    let loaded = Case::new(SUITE, "programs load our library and no library of C", programs_load_ours);
    let arguments = Case::new(SUITE, "odd arguments have the same results on either library", || {
        same_on_both_libraries(Device::Rxe, DEVICE, true)
    });
    let end = Case::new(SUITE, "the end of a queue pair waits for no poller on either library", || {
        [Maker::Theirs, Maker::Linked].iter().try_for_each(|maker| waits_for_no_poller(maker, DEVICE))
    });
    [loaded, arguments, end]
        .into_iter()
        .chain(utils::cases())
        .chain(perftest::cases())
        .chain(rdmacm::cases())
        .chain(libfabric::cases())
        .chain(ucx::cases())
        .chain(pyverbs::cases())
        .collect()
}

/// Checks that programs load our libraries. Without this check, all other cases could pass even on
/// rdma-core's library.
fn programs_load_ours() -> CaseResult {
    /// Makes the loader list the libraries instead of starting the program.
    const LIST: &str = "LD_TRACE_LOADED_OBJECTS";
    let dir = linked_dir()?;
    let mut listed = 0;
    for (name, package) in [
        ("ibv_devinfo", "ibverbs-utils"),
        ("ib_write_bw", "perftest"),
        ("rping", "rdmacm-utils"),
        ("fi_pingpong", "libfabric-bin"),
        ("ucx_perftest", "ucx-utils"),
    ] {
        let Ok(mut command) = program(&Maker::Linked, name, package) else { continue };
        if name == "ucx_perftest" {
            // UCX loads its RDMA module at run time. Preloading adds the module's libraries to the
            // list.
            command.env("LD_PRELOAD", ucx::module()?);
        }
        is_ours(&dir, &run(command.env(LIST, "1"))?).map_err(|why| why.context(name))?;
        listed += 1;
    }
    if listed == 0 { skip("no program is installed (packages ibverbs-utils, perftest)") } else { Ok(()) }
}

/// Checks that our libibverbs is in a list like `libibverbs.so.1 => /path/libibverbs.so.1
/// (0x00007f0000000000)`, and our librdmacm too if the program needs it.
fn is_ours(dir: &Path, list: &Finished) -> CaseResult {
    let is_from = |name: &str| {
        let line = list.stdout.lines().find(|line| line.trim_start().starts_with(&format!("{name} => ")))?;
        Some(line.trim_start().starts_with(&format!("{name} => {}", dir.join(name).display())))
    };
    let is_all = is_from("libibverbs.so.1").unwrap_or(false) && is_from("librdmacm.so.1").unwrap_or(true);
    if is_all && !list.stdout.contains("not found") {
        return Ok(());
    }
    fail(format_args!("the loader takes other libraries: {:?} {:?}", list.stdout, list.stderr))
}
