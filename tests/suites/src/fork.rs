//! `fork`: the registered memory of a process that forks while the device uses the memory.
//!
//! Since Linux 5.12, the kernel copies registered pages for the child. Before that, the parent's
//! first write after the fork moves the parent to a copy while the device keeps the old page. On
//! 5.10, this affects only huge pages, because ordinary pages are already copied. `fork_init`
//! excludes the pages from forks.
//!
//! # Safety
//! A case forks while its process has one thread. The child calls only functions safe after a fork
//! (`read`, `setrlimit`, `_exit`) and reads memory that may be missing, which ends it. The
//! environment is changed before a second thread exists.
#![allow(unsafe_code)]

use std::fs;
use std::io::{PipeWriter, Read};
use std::path::Path;

use memmap2::{MmapMut, MmapOptions};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use verbs::{Buf, Cause, Errno, ForkStatus, SendFlags, SendOp, fork_init, is_fork_initialized};
use verbs_core::ring::page_size;
use verbs_fixtures::fabric::{self, Pair, Shape, next_completed, pattern, rxe_is_before};
use verbs_harness::cases;
use verbs_harness::runner::{Case, CaseResult, fail, skip};

const SUITE: &str = "fork";

/// Returns the suite's cases.
pub fn cases() -> Vec<Case> {
    cases!(
        SUITE,
        the_status_says_whether_the_kernel_copies_registered_pages,
        a_fork_without_protection_takes_huge_pages_from_the_device_before_linux_5_12,
        a_fork_leaves_protected_pages_to_the_device,
        a_fork_leaves_pages_to_the_device_that_the_environment_protects,
        a_child_lacks_protected_pages_until_they_are_deregistered,
        a_child_lacks_the_pages_of_a_scope_until_it_ends,
        protection_after_a_registration_is_refused,
        protection_after_a_registration_in_a_scope_is_refused,
    )
}

/// Returns whether the kernel copies registered pages for a child process.
fn kernel_copies() -> CaseResult<bool> {
    Ok(!rxe_is_before(5, 12)?)
}

/// A child process that has done nothing since it was forked. Dropping this value ends it.
struct Child {
    pid: Pid,
    _stop: PipeWriter,
}

impl Child {
    fn new() -> CaseResult<Self> {
        let (mut wait, stop) = std::io::pipe()?;
        // SAFETY: see the head of the file.
        match unsafe { fork() }? {
            ForkResult::Parent { child } => Ok(Self { pid: child, _stop: stop }),
            ForkResult::Child => {
                drop(stop);
                let _ = wait.read(&mut [0]);
                // SAFETY: ends the child without destructors of the parent's objects.
                unsafe { libc::_exit(0) }
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The pipe's writer is dropped only after this, so the child must be killed.
        let _ = nix::sys::signal::kill(self.pid, Signal::SIGKILL);
        let _ = waitpid(self.pid, None);
    }
}

/// Forks a child that reads one byte. Returns whether it could read the byte.
fn child_can_read(byte: *const u8) -> CaseResult<bool> {
    // SAFETY: see the head of the file.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => match waitpid(child, None)? {
            WaitStatus::Exited(_, 0) => Ok(true),
            WaitStatus::Signaled(_, Signal::SIGSEGV, _) => Ok(false),
            status => fail(format_args!("the child ended with {status:?}")),
        },
        ForkResult::Child => {
            // SAFETY: the byte is mapped in the parent; if it is not mapped in the child, the read
            // ends the child, without a core dump. `_exit` ends it without destructors of the
            // parent's objects.
            unsafe {
                let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
                let _ = byte.read_volatile();
                libc::_exit(0)
            }
        }
    }
}

/// Returns two huge pages of memory, which the case reserves from the kernel's pool.
fn huge() -> CaseResult<MmapMut> {
    const POOL: &str = "/proc/sys/vm/nr_hugepages";
    const SIZE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
    if !Path::new(SIZE).exists() {
        return skip(format_args!("the kernel has no huge pages of 2 MiB: there is no {SIZE}"));
    }
    let written = fs::write(POOL, "16");
    let have: u32 = fs::read_to_string(POOL)?.trim().parse()?;
    if written.is_err() || have < 8 {
        return skip(format_args!("the guest has {have} huge pages"));
    }
    Ok(MmapOptions::new().len(HUGE).huge(Some(21)).map_anon()?)
}

const HUGE: usize = 4 << 20;

/// Sends from registered memory that the process writes after a fork. Returns whether the device
/// sent the new contents.
fn device_sends_what_is_written(pair: &mut Pair<verbs::Erased>, buf: Buf) -> CaseResult<bool> {
    let mut buf = buf;
    let (old, new) = (pattern(1, 4096), pattern(2, 4096));
    buf[..4096].copy_from_slice(&old);
    let child = Child::new()?;
    buf[..4096].copy_from_slice(&new);
    pair.b.qp.post_recv_buf(pair.pd.alloc_buf(4096)?, ..)?;
    pair.a.qp.post_send_buf(SendOp::Send, SendFlags::empty(), buf, ..4096)?;
    drop(next_completed(&mut pair.a.cq)?);
    let received = next_completed(&mut pair.b.cq)?.into_buf();
    drop(child);
    match received.ok().as_deref() {
        Some(bytes) if *bytes == new => Ok(true),
        Some(bytes) if *bytes == old => Ok(false),
        other => {
            fail(format_args!("neither the old nor the new bytes arrived: {:?}", other.map(<[u8]>::len)))
        }
    }
}

fn the_status_says_whether_the_kernel_copies_registered_pages() -> CaseResult {
    let before = if kernel_copies()? { ForkStatus::Unneeded } else { ForkStatus::Disabled };
    assert_eq!(is_fork_initialized(), before);
    fork_init()?;
    fork_init()?;
    let after = if kernel_copies()? { ForkStatus::Unneeded } else { ForkStatus::Enabled };
    assert_eq!(is_fork_initialized(), after);
    Ok(())
}

fn a_fork_without_protection_takes_huge_pages_from_the_device_before_linux_5_12() -> CaseResult {
    let mut pair = Pair::new(&fabric::open()?, &Shape::default())?;
    let buf = pair.pd.register(huge()?)?;
    let kept = device_sends_what_is_written(&mut pair, buf)?;
    assert_eq!(kept, kernel_copies()?, "the device has the page that the process writes");
    Ok(())
}

fn a_fork_leaves_protected_pages_to_the_device() -> CaseResult {
    // SAFETY: this process has one thread; nothing has read the environment yet.
    unsafe { std::env::set_var("RDMAV_HUGEPAGES_SAFE", "1") };
    fork_init()?;
    leaves_pages_to_the_device()
}

fn a_fork_leaves_pages_to_the_device_that_the_environment_protects() -> CaseResult {
    // SAFETY: as above.
    unsafe {
        std::env::set_var("RDMAV_HUGEPAGES_SAFE", "1");
        std::env::set_var("IBV_FORK_SAFE", "1");
    }
    assert_ne!(is_fork_initialized(), ForkStatus::Disabled);
    leaves_pages_to_the_device()
}

fn leaves_pages_to_the_device() -> CaseResult {
    let mut pair = Pair::new(&fabric::open()?, &Shape::default())?;
    let ordinary = pair.pd.alloc_buf(8192)?;
    assert!(device_sends_what_is_written(&mut pair, ordinary)?, "an ordinary page");
    let huge = pair.pd.register(huge()?)?;
    assert!(device_sends_what_is_written(&mut pair, huge)?, "a huge page");
    Ok(())
}

fn a_child_lacks_protected_pages_until_they_are_deregistered() -> CaseResult {
    if kernel_copies()? {
        return skip("this kernel copies registered pages, so that none is excluded from forks");
    }
    fork_init()?;
    let context = fabric::open()?;
    let pd = context.alloc_pd()?;
    let map = MmapMut::map_anon(3 * page_size())?;
    let start = map.as_ptr();
    assert!(child_can_read(start)?);
    let mut first = pd.register(map)?;
    // A second region on the same pages.
    let second = pd.expose(first.split_off(page_size()), verbs::RemoteAccess::READ)?;
    assert!(!child_can_read(start)?, "a registered page is in the child");
    drop(second);
    assert!(!child_can_read(start)?, "a page with one of two regions is in the child");
    // `first` is the only remaining piece of the allocation, so the memory is returned.
    let map: MmapMut = first.into_memory()?;
    assert!(child_can_read(map.as_ptr())?, "a page without regions is not in the child");
    Ok(())
}

fn a_child_lacks_the_pages_of_a_scope_until_it_ends() -> CaseResult {
    if kernel_copies()? {
        return skip("this kernel copies registered pages, so that none is excluded from forks");
    }
    fork_init()?;
    let pd = fabric::open()?.alloc_pd()?;
    let mut map = MmapMut::map_anon(3 * page_size())?;
    let start = map.as_ptr();
    let (read, written) = map.split_at_mut(page_size());
    let (result, _) = pd.scope(no_queue_pairs(), |scope, _| {
        let _read = scope.register_bytes(read)?;
        // Registering a part of a page excludes the whole page.
        let _written = scope.register(&mut written[100..200])?;
        CaseResult::Ok([0, 1, 2].map(|page| child_can_read(start.wrapping_add(page * page_size()))))
    });
    let [read, written, other] = result?;
    assert_eq!([read?, written?, other?], [false, false, true], "pages that the child has");
    for page in 0..3 {
        assert!(child_can_read(start.wrapping_add(page * page_size()))?, "page {page} is not in the child");
    }
    Ok(())
}

/// Returns an empty list of queue pairs, for a scope that posts no requests.
fn no_queue_pairs() -> Vec<verbs::Qp<verbs::state::Rts>> {
    Vec::new()
}

fn protection_after_a_registration_is_refused() -> CaseResult {
    is_refused_after(|pd| {
        drop(pd.alloc_buf(4096)?);
        Ok(())
    })
}

fn protection_after_a_registration_in_a_scope_is_refused() -> CaseResult {
    is_refused_after(|pd| {
        let bytes = [7; 64];
        let (result, _) = pd.scope(no_queue_pairs(), |scope, _| scope.register_bytes(&bytes).map(drop));
        result?;
        Ok(())
    })
}

fn is_refused_after(registration: impl FnOnce(&verbs::Pd) -> CaseResult) -> CaseResult {
    if kernel_copies()? {
        return skip("this kernel copies registered pages, so that protection is never too late");
    }
    registration(&fabric::open()?.alloc_pd()?)?;
    let error = fork_init().unwrap_err();
    assert_eq!((error.verb, error.errno), ("fork_init", Errno::INVAL));
    assert!(matches!(error.cause, Cause::Other { .. }), "{error}");
    assert_eq!(is_fork_initialized(), ForkStatus::Disabled);
    Ok(())
}
