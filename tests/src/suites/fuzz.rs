//! `fuzz`: random legal and odd calls of the public API in safe code change no buffer that the
//! program holds.
//!
//! `api-fuzz` does the same for longer ([`crate::api_fuzz`]); soft devices have it in the host part
//! of `cargo xtask test`.

use std::time::Duration;

use crate::api_fuzz::rounds;
use crate::cases;
use crate::fabric::under_test;
use crate::runner::{Case, CaseResult, fail, skip};

/// The suite.
pub fn cases() -> Vec<Case> {
    cases!("fuzz", random_calls_change_no_buffer_that_the_program_holds)
        .into_iter()
        .map(|case| case.within(Duration::from_secs(400)))
        .collect()
}

/// The first kernel whose rxe comes through it. On 5.10 a processor does not leave rxe's tasklets
/// any more, so that no RCU grace period ends, and every thread of the test waits for one in
/// `membarrier(2)` for good.
const FIRST_THAT_ENDS: (u32, u32) = (6, 0);

/// The first kernel whose rxe warns when memory is deregistered while a packet refers to it.
const FIRST_THAT_WARNS: (u32, u32) = (6, 12);

fn random_calls_change_no_buffer_that_the_program_holds() -> CaseResult {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split(['.', '-']).map_while(|number| number.trim().parse::<u32>().ok());
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        return fail(format_args!("{release:?} is no kernel's release"));
    };
    if (major, minor) < FIRST_THAT_ENDS {
        return skip("this kernel's rxe gets stuck in a tasklet under random traffic");
    }
    if (major, minor) >= FIRST_THAT_WARNS {
        // The fuzz itself passes there, but a warning of the kernel's fails the VM.
        return skip("this kernel's rxe warns in __rxe_cleanup when memory is deregistered under load");
    }
    rounds::in_this_process(under_test(), Duration::from_secs(8), 1)
}
