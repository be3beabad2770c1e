//! `fuzz`: random legal and odd calls of the public API in safe code change no buffer that the
//! program holds.
//!
//! `api-fuzz` does the same for longer ([`crate::api_fuzz`]); soft devices have it in the host part
//! of `cargo xtask test`.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use crate::api_fuzz::rounds;
use crate::cases;
use crate::fabric::{is_mlx5, is_rxe, under_test};
use crate::forked;
use crate::runner::{Case, CaseResult, Stop, fail, skip};

/// The suite.
pub fn cases() -> Vec<Case> {
    cases!("fuzz", random_calls_change_no_buffer_that_the_program_holds)
        .into_iter()
        .map(|case| case.within(Duration::from_secs(400)))
        .collect()
}

/// The time of the fuzz.
const FOR: Duration = Duration::from_secs(8);

/// The first kernel whose rxe comes through it. On 5.10 a processor does not leave rxe's tasklets
/// any more, so that no RCU grace period ends, and every thread of the test waits for one in
/// `membarrier(2)` for good.
const FIRST_THAT_ENDS: (u32, u32) = (6, 0);

/// The first kernel whose rxe warns often when memory is deregistered while a packet refers to it.
/// Each time the deregistration takes 50 s.
const FIRST_THAT_WARNS: (u32, u32) = (6, 12);

/// The function that warns, in one of some dozen runs on 6.1, and one that warns of the number of
/// references when the process with the object ends.
const WARN: &str = "__rxe_cleanup refcount_warn_saturate";

/// The time that the fuzz has on a kernel that may warn, with some deregistrations of 50 s.
const LIMIT: Duration = Duration::from_secs(380);

/// Tells the VM which warnings of the kernel are known, for as long as this lives.
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
        // Without this line later warnings of the functions would be ignored.
        self.0.write_all(b"verbs-tests: no known warning\n").expect("/dev/kmsg takes a second line");
    }
}

fn random_calls_change_no_buffer_that_the_program_holds() -> CaseResult {
    if is_mlx5()? {
        // Each call takes its time on a ConnectX model in an emulated guest. `cargo xtask fuzz api
        // --device mlx5` reaches them all.
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
        // The fuzz itself passes there, but waits for that.
        return skip(
            "this kernel's rxe often waits 50 s in __rxe_cleanup when memory is deregistered under load",
        );
    }
    let _announced = Announced::new(WARN)?;
    // The kernel closes what the fuzz forgets when the process ends, and may warn of that too.
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
