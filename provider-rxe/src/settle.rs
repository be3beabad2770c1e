//! What the kernel does not wait for: work on a queue pair that goes on for a moment after a command has returned.
//!
//! | kernel, as read | moving to RESET waits for the queue pair's tasks | deregistering waits for references to the region |
//! |---|---|---|
//! | 5.10 | for tasklets, not for a task that a poster runs inline | no: the last reference frees it |
//! | 6.1 | as above | yes, for a while ([`PATIENCE`]) |
//! | 6.12, 7.2 | yes (`rxe_disable_task` waits until the task is done) | as above |
//!
//! A kernel between two of these is taken for the older one.
//!
//! A task holds a reference while it works on one packet, and copies no more than a packet under it. So where the kernel
//! does not wait, an RCU grace period after the command is enough: it waits for every softirq that ran, where tasklets and
//! received packets are worked on, and on kernels without preemption also for tasks that a poster runs inline, for
//! loopback. On preemptible kernels of the older kind a poster can be preempted within such a task for longer than a grace
//! period lasts: what this module cannot close.
//!
//! # Safety
//! `membarrier(2)` takes no pointers.
//!
//! # References
//! `membarrier(2)`; Linux `Documentation/RCU/whatisRCU.rst`, `drivers/infiniband/sw/rxe/` (`rxe_task.c`, `rxe_qp.c`
//! `rxe_qp_reset`, `rxe_pool.c` `__rxe_cleanup`, `rxe_resp.c`)
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::sync::OnceLock;
use std::time::Duration;

use verbs_core::Errno;

/// How long a destroy method may have taken to be believed.
///
/// `__rxe_cleanup` waits 50 s for the last reference (some kernels of 2022 and 2023 that were not updated since: 200 ticks,
/// which this does not cover), then warns, frees the object under the reference, and `rxe_dereg_mr` returns success all the same. The margin is for a clock
/// tick and a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(45);

/// Waits until tasks that were running when this was called have ended, on kernels that have not waited for them.
///
/// # Errors
/// The errno of `membarrier(2)`: `ENOSYS`, or `EINVAL` where some processors are kept free of ticks (`nohz_full`).
pub(crate) fn wait_for_tasks() -> Result<(), Errno> {
    static WAITS: OnceLock<bool> = OnceLock::new();
    if *WAITS.get_or_init(|| release().is_some_and(|release| release >= WORKQUEUES)) {
        return Ok(());
    }
    grace_period()
}

/// The first release that was read in which tasks run in workqueues, and RESET waits for them.
const WORKQUEUES: (u32, u32) = (6, 12);

/// Waits for an RCU grace period.
fn grace_period() -> Result<(), Errno> {
    const NO_FLAGS: libc::c_uint = 0;
    const THIS_CPU: libc::c_int = 0;
    // SAFETY: the system call takes three numbers.
    let done =
        unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, NO_FLAGS, THIS_CPU) };
    if done == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// Major and minor number of the running kernel.
fn release() -> Option<(u32, u32)> {
    // SAFETY: a `utsname` consists of arrays of characters, for which zeros will do.
    let mut name: libc::utsname = unsafe { core::mem::zeroed() };
    // SAFETY: it writes to the struct that it is given, and no further.
    if unsafe { libc::uname(&raw mut name) } != 0 {
        return None;
    }
    let bytes = name.release.map(|byte| byte as u8);
    parse(CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok()?)
}

/// The first two numbers of `6.12.43+deb13-amd64`, or of `7.2-rc1`.
fn parse(release: &str) -> Option<(u32, u32)> {
    let (major, rest) = release.split_once('.')?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((major.parse().ok()?, rest[..end].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_known_by_its_first_two_numbers() {
        assert_eq!(parse("6.12.43+deb13-amd64"), Some((6, 12)));
        assert_eq!(parse("7.2-rc1"), Some((7, 2)));
        assert_eq!(parse("6.5"), Some((6, 5)));
        assert!(parse("6.1.0-40-amd64") < Some(WORKQUEUES) && parse("6.12.1") >= Some(WORKQUEUES));
        assert!(parse("5.10.0-32-amd64") < Some(WORKQUEUES) && parse("10.0.1") > Some(WORKQUEUES));
        for strange in ["", "six.one", "6", "6.", "6.x", "-6.1"] {
            assert_eq!(parse(strange), None, "{strange}");
        }
        assert!(release().is_some());
    }

    #[test]
    fn a_grace_period_ends() {
        match grace_period() {
            Ok(()) | Err(Errno::NOSYS | Errno::INVAL) => {}
            Err(errno) => panic!("{errno}"),
        }
        wait_for_tasks().unwrap();
    }
}
