//! Waits for kernel tasks still working on a queue pair after a command has returned.
//!
//! | kernel | RESET waits for the pair's tasks | deregistering waits for references |
//! |---|---|---|
//! | 5.10 | tasklets only, not a task run inline by a poster | no: the last reference frees it |
//! | 6.1 | as above | yes, for a limited time ([`PATIENCE`]) |
//! | 6.12, 7.2 | yes (`rxe_disable_task` waits until the task is done) | as above |
//!
//! The sources of these four releases were read. A kernel between two of them is treated as the
//! older one.
//!
//! A task holds a reference while it works on one packet, and copies at most one packet during that
//! time. Therefore, if the kernel does not wait, an RCU grace period after the command suffices on
//! kernels without preemption. It waits for every softirq, which processes tasklets and received
//! packets. It also waits for every thread in the kernel, such as a poster running tasks inline for
//! loopback. On preemptible kernels (`PREEMPT` in `uname -v`) a grace period does not wait for such
//! a poster and no other wait exists: there [`reset_ends_requests`] is false, and [`after_dereg`]
//! fails.
//!
//! # Safety
//! `membarrier(2)` takes no pointers.
//!
//! # References
//! `membarrier(2)`; Linux `Documentation/RCU/whatisRCU.rst`, `drivers/infiniband/sw/rxe/`
//! (`rxe_task.c`, `rxe_qp.c` `rxe_qp_reset`, `rxe_pool.c` `__rxe_cleanup`, `rxe_resp.c`)
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::time::Duration;

use verbs_core::Errno;
use verbs_core::fork::ForkLock;

/// The maximum duration of a destroy method whose success is trusted.
///
/// `__rxe_cleanup` waits 50 s for the last reference (some kernels of 2022 and 2023 without later
/// updates: 200 ticks, which this limit does not cover), then warns and frees the object under the
/// reference; `rxe_dereg_mr` returns success nevertheless. The margin allows for a clock tick and a
/// busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(45);

/// The wait required after the kernel has confirmed a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// None: the kernel has waited.
    Nothing,
    /// A grace period.
    GracePeriod,
    /// A wait that this kernel does not offer.
    Impossible,
}

/// Returns whether a queue pair's requests have ended after the kernel confirmed RESET and
/// [`after_reset`] returned.
pub(crate) fn reset_ends_requests() -> bool {
    static POSSIBLE: ForkLock<Option<bool>> = ForkLock::new(None);
    POSSIBLE.get_or_init(|| match here().0 {
        Wait::Nothing => true,
        // The system call fails if some processors are kept free of ticks (`nohz_full`).
        Wait::GracePeriod => grace_period().is_ok(),
        Wait::Impossible => false,
    })
}

/// Waits until tasks running when RESET was confirmed have ended, if [`reset_ends_requests`] is
/// true.
///
/// # Errors
/// The errno of `membarrier(2)`.
pub(crate) fn after_reset() -> Result<(), Errno> {
    if reset_ends_requests() { perform(here().0) } else { Ok(()) }
}

/// Waits until tasks running when deregistering was confirmed have ended.
///
/// # Errors
/// `EOPNOTSUPP` on a preemptible kernel that does not wait; the errno of `membarrier(2)`.
pub(crate) fn after_dereg() -> Result<(), Errno> {
    perform(here().1)
}

fn perform(wait: Wait) -> Result<(), Errno> {
    match wait {
        Wait::Nothing => Ok(()),
        Wait::GracePeriod => grace_period(),
        Wait::Impossible => Err(Errno::OPNOTSUPP),
    }
}

/// Returns the waits after RESET and after deregistering on the running kernel.
fn here() -> (Wait, Wait) {
    static HERE: ForkLock<Option<(Wait, Wait)>> = ForkLock::new(None);
    HERE.get_or_init(|| {
        let name = uname();
        let [release, version] = name.each_ref().map(|field| text(field));
        on(release, version)
    })
}

/// Returns the waits after RESET and after deregistering on a kernel of this release and version.
fn on(release: &str, version: &str) -> (Wait, Wait) {
    let release = parse(release);
    let wait = |first_that_waits| match release {
        Some(release) if release >= first_that_waits => Wait::Nothing,
        Some(_) if !version.contains("PREEMPT") => Wait::GracePeriod,
        _ => Wait::Impossible,
    };
    (wait(WORKQUEUES), wait(REFERENCES))
}

/// The first release with tasks in workqueues, among the sources read. From that release on, RESET
/// waits for the tasks.
const WORKQUEUES: (u32, u32) = (6, 12);

/// The first release where deregistering waits for references, among the sources read.
const REFERENCES: (u32, u32) = (6, 1);

/// Waits for an RCU grace period.
fn grace_period() -> Result<(), Errno> {
    const NO_FLAGS: libc::c_uint = 0;
    const THIS_CPU: libc::c_int = 0;
    // SAFETY: the system call takes three numbers.
    let done =
        unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, NO_FLAGS, THIS_CPU) };
    if done == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// Returns the release and the version of the running kernel.
fn uname() -> [[u8; 65]; 2] {
    // SAFETY: a `utsname` consists of arrays of characters, so zeros are valid.
    let mut name: libc::utsname = unsafe { core::mem::zeroed() };
    // SAFETY: the function writes only to the struct. It does not fail for a valid struct; if it
    // did, the zeros would parse as no release.
    unsafe { libc::uname(&raw mut name) };
    [name.release, name.version].map(|field| field.map(|byte| byte as u8))
}

/// Returns the text of a field, or an empty string if it is not UTF-8.
fn text(field: &[u8]) -> &str {
    CStr::from_bytes_until_nul(field).ok().and_then(|text| text.to_str().ok()).unwrap_or("")
}

/// Returns the first two numbers of a release such as `6.12.43+deb13-amd64` or `7.2-rc1`.
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
        for strange in ["", "six.one", "6", "6.", "6.x", "-6.1"] {
            assert_eq!(parse(strange), None, "{strange}");
        }
        assert!(parse(text(&uname()[0])).is_some());
    }

    #[test]
    fn the_waits_follow_from_the_kernel() {
        use Wait::{GracePeriod, Impossible, Nothing};
        let (voluntary, preemptible) = ("#1 SMP Debian 5.10.1", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.1");
        for (release, version, expected) in [
            ("5.10.0-46-amd64", voluntary, (GracePeriod, GracePeriod)),
            ("5.10.0-46-rt-amd64", "#1 SMP PREEMPT_RT Debian 5.10.1", (Impossible, Impossible)),
            ("6.1.0-56-amd64", voluntary, (GracePeriod, Nothing)),
            ("6.1.0-56-amd64", preemptible, (Impossible, Nothing)),
            ("6.12.43+deb13-amd64", preemptible, (Nothing, Nothing)),
            ("10.0.1", preemptible, (Nothing, Nothing)),
            ("strange", voluntary, (Impossible, Impossible)),
        ] {
            assert_eq!(on(release, version), expected, "{release} {version}");
        }
    }

    #[test]
    fn a_grace_period_ends() {
        match grace_period() {
            Ok(()) | Err(Errno::NOSYS | Errno::INVAL) => {}
            Err(errno) => panic!("{errno}"),
        }
    }
}
