//! Fences, each named after the accesses it orders. No other module of the stack issues fences for
//! device memory.
//!
//! A program and a device share two kinds of memory. The device reads and writes host memory by
//! DMA: queues, doorbell records, completions. The device's own memory and registers are MMIO,
//! possibly mapped write-combining. Rust's atomic fences order accesses to host memory among
//! processors; a device needs more on some architectures:
//!
//! | function | orders | x86-64 | aarch64 |
//! |---|---|---|---|
//! | [`to_device`] | host writes before writes that notify the device | compiler | `dmb oshst` |
//! | [`from_device`] | reads of an ownership mark before its data | compiler | `dmb oshld` |
//! | [`mmio_wc_start`] | host writes before write-combining MMIO stores | `sfence` | `dsb st` |
//! | [`flush_wc`] | write-combining MMIO stores leave the processor | `sfence` | `dsb st` |
//! | [`wc_read_start`] | reads before reads of write-combining MMIO | `lfence` | `dmb oshld` |
//! | [`seqlock_read`] | reads of a page that the kernel updates | compiler | `dmb ishld` |
//!
//! The first four are `udma_to_device_barrier`, `udma_from_device_barrier`, `mmio_wc_start` and
//! `mmio_flush_writes` of rdma-core, with the same instructions except for the `lfence` in
//! rdma-core's `udma_from_device_barrier` on x86-64.
//!
//! The first two are compiler fences on x86-64, which keeps loads from and stores to write-back
//! memory in order. The kernel's `dma_wmb` and `dma_rmb` are the same. rdma-core's `lfence` also
//! orders reads of write-combining memory, which the processor may execute early. Here,
//! [`wc_read_start`] orders them only where such memory exists, instead of once per completion. A
//! program that maps write-combining memory itself, such as GPU memory, needs its own fence.
//!
//! On aarch64 the device is an observer in the outer shareable domain (`osh`). A *store* barrier
//! does not order earlier reads. Before the device may write to memory (the buffer of a receive or
//! a read, the entry of a polled completion), the last reads of that memory must be done. Doorbell
//! records are therefore stored with [`Release`](Ordering::Release), `stlr` on aarch64.
//!
//! docs/barriers.md lists the uses of these fences in the ConnectX provider, next to the fences in
//! libmlx5 and the kernel's driver.
//!
//! On other architectures, each function is a full fence. The fence orders host memory; whether it
//! also orders registers depends on the architecture (on RISC-V it does not). The ConnectX provider
//! opens no device there: see [`ORDERS_REGISTERS`].
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

/// Whether this architecture's fences order device registers as well as host memory.
pub const ORDERS_REGISTERS: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// Executes an aarch64 barrier instruction.
#[cfg(target_arch = "aarch64")]
macro_rules! instruction {
    ($instruction:literal) => {{
        compiler_fence(Ordering::SeqCst);
        // SAFETY: a barrier instruction accesses no memory. The options do not state this, so the
        // compiler moves no access across it.
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

/// Orders a read of an ownership mark, written by the device, before later reads of the data that
/// it covers.
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

/// Flushes earlier stores into write-combining MMIO from the processor before any later access.
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

/// Orders earlier reads, such as reading a completion, before later reads of write-combining MMIO,
/// which the processor could otherwise execute early.
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

/// Orders reads of a page updated by the kernel: its sequence number before its data, and its data
/// before the second read of the sequence number. The writer is a processor, not a device.
#[inline(always)]
pub fn seqlock_read() {
    fence(Ordering::Acquire);
}
