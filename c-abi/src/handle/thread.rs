//! An identifier of the calling thread.
//!
//! # Safety
//! The code reads registers and changes nothing.
#![allow(unsafe_code)]

/// Returns a nonzero number that is unique among live threads: the address of the C library's
/// thread block. This takes one instruction, whereas `pthread_self` is a call.
#[inline(always)]
pub(crate) fn current() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let thread;
        // SAFETY: in the x86-64 ABI, the thread's segment begins with its own address.
        unsafe {
            core::arch::asm!("mov {}, fs:[0]", out(reg) thread, options(nostack, preserves_flags, readonly));
        }
        thread
    }
    #[cfg(target_arch = "aarch64")]
    {
        let thread;
        // SAFETY: any program may read the register.
        unsafe {
            core::arch::asm!("mrs {}, tpidr_el0", out(reg) thread, options(nomem, nostack, preserves_flags));
        }
        thread
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    // SAFETY: the call has no preconditions.
    unsafe {
        libc::pthread_self() as usize
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::current;

    #[test]
    fn threads_have_numbers_of_their_own() {
        let both = Barrier::new(2);
        let number = || {
            let (first, _, second) = (current(), both.wait(), current());
            assert_eq!(first, second);
            first
        };
        let (one, other) = std::thread::scope(|scope| {
            let other = scope.spawn(number);
            (number(), other.join().unwrap())
        });
        assert!(one != other && one != 0 && other != 0);
    }
}
