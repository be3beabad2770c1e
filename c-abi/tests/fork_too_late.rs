//! `ibv_fork_init` after memory was registered without protection, in a separate process.
//!
//! # Safety
//! The functions are declared as in verbs.h.
#![allow(unsafe_code, missing_docs)]

use core::ffi::{c_int, c_uint, c_void};

use ibverbs_c::c::{IBV_FORK_DISABLED, IBV_FORK_UNNEEDED};

// SAFETY: as in verbs.h and driver.h. No address is accessed.
unsafe extern "C" {
    safe fn ibv_fork_init() -> c_int;
    safe fn ibv_is_fork_initialized() -> c_uint;
    safe fn ibv_dontfork_range(base: *mut c_void, size: usize) -> c_int;
    safe fn ibv_dofork_range(base: *mut c_void, size: usize) -> c_int;
}

#[test]
fn memory_that_was_registered_before_cannot_be_protected() {
    let mut byte = 0_u8;
    let addr = (&raw mut byte).cast::<c_void>();
    assert_eq!((ibv_dontfork_range(addr, 1), ibv_dofork_range(addr, 1)), (0, 0));
    if ibv_is_fork_initialized() == IBV_FORK_UNNEEDED {
        assert_eq!(ibv_fork_init(), 0);
        println!("this kernel copies registered pages for a child");
        return;
    }
    assert_eq!(ibv_fork_init(), libc::EINVAL);
    assert_eq!(ibv_is_fork_initialized(), IBV_FORK_DISABLED);
}
