//! `fuzz`: checks that random calls to the public API in safe code, legal and odd, change no buffer
//! that the program holds.
//!
//! `api-fuzz` does the same for longer ([`verbs_api_fuzz`]). The host part of `cargo xtask test`
//! fuzzes soft devices.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use verbs_api_fuzz::rounds;
use verbs_fixtures::fabric::{is_mlx5, is_rxe, under_test};
use verbs_harness::cases;
use verbs_harness::forked;
use verbs_harness::runner::{Case, CaseResult, Stop, fail, skip};

/// Returns the suite's cases.
pub fn cases() -> Vec<Case> {
    cases!("fuzz", random_calls_change_no_buffer_that_the_program_holds)
        .into_iter()
        .map(|case| case.within(Duration::from_secs(400)))
        .collect()
}

/// The duration of the fuzz run.
const FOR: Duration = Duration::from_secs(8);

/// The first kernel whose rxe survives the fuzz run. On 5.10, a processor never leaves rxe's
/// tasklets, so no RCU grace period ends and every thread of the test blocks forever in
/// `membarrier(2)`.
const FIRST_THAT_ENDS: (u32, u32) = (6, 0);

/// The first kernel whose rxe often warns when memory is deregistered while a packet refers to it.
/// Each such deregistration takes 50 s.
const FIRST_THAT_WARNS: (u32, u32) = (6, 12);

/// Kernel functions that are known to warn on Linux 6.1. The first warns in about one run in a
/// dozen. The second warns about the reference count when the process ends.
const WARN: &str = "__rxe_cleanup refcount_warn_saturate";

/// The time limit on a kernel with warnings. It allows for several deregistrations that take 50 s.
const LIMIT: Duration = Duration::from_secs(380);

/// Announces known kernel warnings to the VM until it is dropped.
struct Announced(File);

impl Announced {
    fn new(functions: &str) -> CaseResult<Self> {
        let mut log = File::options().write(true).open("/dev/kmsg")?;
        log.write_all(format!("verbs-tests: known warning of {functions}\n").as_bytes())?;
        Ok(Self(log))
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        // Without this line, the VM would ignore later warnings from these functions.
        self.0.write_all(b"verbs-tests: no known warning\n").expect("/dev/kmsg takes a second line");
    }
}

fn random_calls_change_no_buffer_that_the_program_holds() -> CaseResult {
    if is_mlx5()? {
        // Each call is slow on a ConnectX model in an emulated guest. The program `api-fuzz`
        // reaches all kinds of calls.
        return rounds::one_in_this_process(under_test(), FOR, 1);
    }
    if !is_rxe()? {
        return rounds::in_this_process(under_test(), FOR, 1);
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split(['.', '-']).map_while(|number| number.trim().parse::<u32>().ok());
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        return fail(format_args!("{release:?} is no kernel's release"));
    };
    if (major, minor) < FIRST_THAT_ENDS {
        return skip("this kernel's rxe gets stuck in a tasklet under random traffic");
    }
    if (major, minor) >= FIRST_THAT_WARNS {
        // Apart from these waits, the fuzz run passes there.
        return skip(
            "this kernel's rxe often waits 50 s in __rxe_cleanup when memory is deregistered under load",
        );
    }
    let _announced = Announced::new(WARN)?;
    // When the process ends, the kernel closes the objects leaked by the fuzz run and may then warn
    // as well.
    let run = || match rounds::in_this_process(under_test(), FOR, 1) {
        Ok(()) => 0,
        Err(Stop::Failed(why) | Stop::Skipped(why)) => {
            eprintln!("{why}");
            1
        }
    };
    match forked::run_group(run, LIMIT)? {
        Ok(end) if end.status.success() => {
            print!("{}", end.stdout);
            Ok(())
        }
        Ok(end) => fail(format_args!("{}: {}", end.status, end.stderr)),
        Err(end) => fail(format_args!("not done after {LIMIT:?}: {}", end.stderr)),
    }
}
