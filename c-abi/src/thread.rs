//! The calling thread's number.
//!
//! # Safety
//! Registers are read, and nothing is changed.
#![allow(unsafe_code)]

/// Returns a number that no other live thread has, and that is not 0: the address of what the C
/// library keeps of the thread. One instruction, where `pthread_self` is a call.
#[inline(always)]
pub(crate) fn current() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let thread;
        // SAFETY: the ABI of x86-64 has the thread's address at the beginning of its segment.
        unsafe {
            core::arch::asm!("mov {}, fs:[0]", out(reg) thread, options(nostack, preserves_flags, readonly));
        }
        thread
    }
    #[cfg(target_arch = "aarch64")]
    {
        let thread;
        // SAFETY: the register can be read in any program.
        unsafe {
            core::arch::asm!("mrs {}, tpidr_el0", out(reg) thread, options(nomem, nostack, preserves_flags));
        }
        thread
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    // SAFETY: no condition.
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
