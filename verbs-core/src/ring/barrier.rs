//! Fences, each named after the accesses that it orders. No other module of the stack issues one.
//!
//! A program and a device share two kinds of memory: host memory that the device reads and writes
//! by DMA (queues, doorbell records, completions), and the device's registers (MMIO), possibly
//! mapped write-combining. Rust's atomic fences order the first kind among processors; a device
//! needs more on some architectures:
//!
//! | function | orders | x86-64 | aarch64 |
//! |---|---|---|---|
//! | [`to_device`] | host writes before writes that notify the device | compiler | `dmb oshst` |
//! | [`from_device`] | an ownership mark's read before reads behind it | compiler | `dmb oshld` |
//! | [`mmio_wc_start`] | host writes before write-combining MMIO stores | `sfence` | `dsb st` |
//! | [`flush_wc`] | write-combining MMIO stores leave the processor | `sfence` | `dsb st` |
//!
//! x86-64 keeps stores to write-back memory in order and loads in order, so a compiler fence
//! suffices for the first two. Other architectures get a full `SeqCst` fence, which is at least as
//! strong as what their kernels use.
//!
//! # Safety
//! The only unsafe code is the barrier instructions, which access no memory.
//!
//! # References
//! Linux `Documentation/memory-barriers.txt`; Intel SDM volume 3, section 9.2; Arm ARM, section
//! B2.3
#![allow(unsafe_code)]

use core::sync::atomic::{Ordering, compiler_fence};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use core::sync::atomic::fence;

/// Orders earlier writes to host memory before later writes that notify the device of them.
#[inline(always)]
pub fn to_device() {
    #[cfg(target_arch = "x86_64")]
    compiler_fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: a barrier instruction accesses no memory.
        unsafe { core::arch::asm!("dmb oshst", options(nostack, preserves_flags)) };
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}

/// Orders a read of an ownership mark that the device wrote before later reads of the data that it
/// handed over.
#[inline(always)]
pub fn from_device() {
    #[cfg(target_arch = "x86_64")]
    compiler_fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: a barrier instruction accesses no memory.
        unsafe { core::arch::asm!("dmb oshld", options(nostack, preserves_flags)) };
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}

/// Orders earlier writes to host memory before later stores into write-combining MMIO.
#[inline(always)]
pub fn mmio_wc_start() {
    flush_wc();
}

/// Makes earlier stores into write-combining MMIO leave the processor before any later access.
#[inline(always)]
pub fn flush_wc() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SFENCE is part of SSE, which every x86-64 processor has.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: a barrier instruction accesses no memory.
        unsafe { core::arch::asm!("dsb st", options(nostack, preserves_flags)) };
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}
