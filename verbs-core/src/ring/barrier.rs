//! Fences, each named after the accesses that it orders. No other module of the stack issues one
//! for memory of a device.
//!
//! A program and a device share two kinds of memory: host memory that the device reads and writes
//! by DMA (queues, doorbell records, completions), and the device's own (MMIO: registers, and its
//! memory), possibly mapped write-combining. Rust's atomic fences order the first kind among
//! processors; a device needs more on some architectures:
//!
//! | function | orders | x86-64 | aarch64 |
//! |---|---|---|---|
//! | [`to_device`] | host writes before writes that notify the device | compiler | `dmb oshst` |
//! | [`from_device`] | an ownership mark's read before reads behind it | compiler | `dmb oshld` |
//! | [`mmio_wc_start`] | host writes before write-combining MMIO stores | `sfence` | `dsb st` |
//! | [`flush_wc`] | write-combining MMIO stores leave the processor | `sfence` | `dsb st` |
//! | [`wc_read_start`] | reads before reads of write-combining MMIO | `lfence` | `dmb oshld` |
//! | [`seqlock_read`] | reads of a page that the kernel updates | compiler | `dmb ishld` |
//!
//! The first four are `udma_to_device_barrier`, `udma_from_device_barrier`, `mmio_wc_start` and
//! `mmio_flush_writes` of rdma-core, which has the same instructions, except for `lfence` in the
//! second on x86-64.
//!
//! The first two are compiler fences on x86-64, because it keeps stores to write-back memory in
//! order, and loads from it. The kernel's `dma_wmb` and `dma_rmb` are the same. The `lfence` of
//! rdma-core also orders reads of memory that is mapped write-combining, which the processor may
//! make early. Here [`wc_read_start`] does that, where there is such memory, and not for each
//! completion. A program that maps write-combining memory itself, of a GPU for example, needs one
//! of its own.
//!
//! On aarch64 the device is an observer in the outer shareable domain (`osh`). A *store* barrier
//! orders no earlier reads: where the device gets memory to write into (a receive, a read, the
//! entry of a completion that was polled), the last reads of that memory have to come before. That
//! is why doorbell records are stored with [`Release`](Ordering::Release), `stlr` on aarch64.
//!
//! docs/barriers.md lists the places where the ConnectX provider uses them, with what libmlx5 and
//! the kernel's driver do there.
//!
//! Other architectures get a full fence. It orders host memory; whether it orders registers too
//! depends on the architecture (on RISC-V it does not). The ConnectX provider opens no device
//! there: see [`ORDERS_REGISTERS`].
//!
//! # Safety
//! The only unsafe code is the barrier instructions, which access no memory.
//!
//! # References
//! Linux `Documentation/memory-barriers.txt`, `arch/arm64/include/asm/barrier.h`; Intel SDM volume
//! 3, section 9.2 and 12.3 (write combining); Arm ARM, section B2.3
#![allow(unsafe_code)]

use core::sync::atomic::{Ordering, fence};

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use core::sync::atomic::compiler_fence;

/// Whether the fences of this architecture order registers of a device as well as host memory.
pub const ORDERS_REGISTERS: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// Executes a barrier instruction of aarch64.
#[cfg(target_arch = "aarch64")]
macro_rules! instruction {
    ($instruction:literal) => {{
        compiler_fence(Ordering::SeqCst);
        // SAFETY: a barrier instruction accesses no memory. The options do not tell the compiler
        // so, which therefore moves no access across it.
        unsafe { core::arch::asm!($instruction, options(nostack, preserves_flags)) };
    }};
}

/// Orders earlier writes to host memory before later writes that notify the device of them.
#[inline(always)]
pub fn to_device() {
    #[cfg(target_arch = "x86_64")]
    compiler_fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    instruction!("dmb oshst");
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
    instruction!("dmb oshld");
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
    instruction!("dsb st");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}

/// Orders earlier reads, of a completion for example, before later reads of write-combining MMIO,
/// which a processor may otherwise make before.
#[inline(always)]
pub fn wc_read_start() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: LFENCE is part of SSE2, which every x86-64 processor has.
    unsafe {
        core::arch::x86_64::_mm_lfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    from_device();
}

/// Orders reads of a page that the kernel updates: of its sequence number before its data, and of
/// its data before its sequence number again. The other side is a processor, not a device.
#[inline(always)]
pub fn seqlock_read() {
    fence(Ordering::Acquire);
}
