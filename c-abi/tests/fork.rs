//! `ibv_fork_init`, and the exclusion of page ranges from forks, in a process without earlier
//! memory registrations.
//!
//! # Safety
//! The functions are declared as in verbs.h. The process maps memory for the test, which no other
//! thread uses.
#![allow(unsafe_code, missing_docs)]

use core::ffi::{c_int, c_uint, c_void};

use ibverbs_c::c::{IBV_FORK_DISABLED, IBV_FORK_ENABLED, IBV_FORK_UNNEEDED};

// SAFETY: as in verbs.h and driver.h. No address is accessed.
unsafe extern "C" {
    safe fn ibv_fork_init() -> c_int;
    safe fn ibv_is_fork_initialized() -> c_uint;
    safe fn ibv_dontfork_range(base: *mut c_void, size: usize) -> c_int;
    safe fn ibv_dofork_range(base: *mut c_void, size: usize) -> c_int;
}

/// Returns whether the page at an address is excluded from forks.
fn is_excluded(addr: *mut c_void) -> bool {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in smaps.lines() {
        if let Some((start, end)) = line.split(' ').next().and_then(|range| range.split_once('-')) {
            let number = |text| usize::from_str_radix(text, 16);
            if let (Ok(start), Ok(end)) = (number(start), number(end)) {
                inside = (start..end).contains(&addr.addr());
            }
        } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
            return flags.contains(" dc");
        }
    }
    panic!("no mapping at {addr:?}")
}

#[test]
fn pages_are_excluded_while_a_range_covers_them_where_the_kernel_copies_none() {
    if ibv_is_fork_initialized() == IBV_FORK_UNNEEDED {
        // Nothing is protected, before or after the call.
        assert_eq!(ibv_fork_init(), 0);
        assert_eq!(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
        println!("this kernel copies registered pages for a child");
        return;
    }
    assert_eq!(ibv_is_fork_initialized(), IBV_FORK_DISABLED);
    assert_eq!((ibv_fork_init(), ibv_fork_init()), (0, 0));
    assert_eq!(ibv_is_fork_initialized(), IBV_FORK_ENABLED);

    // SAFETY: the call only returns a number.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the call creates a new mapping.
    let base = unsafe {
        libc::mmap(core::ptr::null_mut(), 8 * page, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    assert_ne!(base, libc::MAP_FAILED);
    let at = |number: usize| base.wrapping_byte_add(number * page);
    let excluded = || (0..8).filter(|number| is_excluded(at(*number))).collect::<Vec<_>>();

    // A single byte covers its page. Nested and overlapping ranges count separately.
    assert_eq!(ibv_dontfork_range(at(1).wrapping_byte_add(7), 1), 0);
    assert_eq!(excluded(), [1]);
    assert_eq!(ibv_dontfork_range(at(0), 4 * page), 0);
    assert_eq!(ibv_dontfork_range(at(3), 2 * page), 0);
    assert_eq!(excluded(), [0, 1, 2, 3, 4]);
    assert_eq!(ibv_dofork_range(at(0), 4 * page), 0);
    assert_eq!(excluded(), [1, 3, 4]);
    assert_eq!(ibv_dofork_range(at(1).wrapping_byte_add(7), 1), 0);
    assert_eq!(ibv_dofork_range(at(3), 2 * page), 0);
    assert_eq!(excluded(), [0; 0]);

    // An empty range is valid.
    assert_eq!((ibv_dontfork_range(at(5), 0), ibv_dontfork_range(core::ptr::null_mut(), page)), (0, 0));
    assert_eq!((ibv_dofork_range(at(5), 0), ibv_dofork_range(core::ptr::null_mut(), page)), (0, 0));
    assert_eq!(excluded(), [0; 0]);

    // Including a page that was unmapped meanwhile succeeds. Excluding an unmapped page fails; the
    // first page of every process is unmapped.
    assert_eq!(ibv_dontfork_range(at(7), page), 0);
    // SAFETY: nothing uses the mapping afterwards.
    assert_eq!(unsafe { libc::munmap(base, 8 * page) }, 0);
    assert_eq!(ibv_dofork_range(at(7), page), 0);
    assert_eq!(ibv_dontfork_range(core::ptr::without_provenance_mut(page), page), -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
}
