//! Unguessable random numbers from the kernel.
//!
//! Secret queue pair numbers, memory keys and first packet sequence numbers keep out packets from
//! peers that do not know them, as far as their width allows. Each [`draw`] is a separate
//! system call, so this process keeps no state: a child of `fork(2)` cannot repeat its parent's
//! numbers, and no number reveals the next. Numbers are drawn when objects are created, never
//! between post and poll.
//!
//! The crate getrandom finds the C library's `getrandom` with `dlsym(3)`. That function is a
//! cancellation point, which `libibverbs.so.1` could then no longer replace at link time.
//!
//! # Safety
//! The only unsafe code is one system call, which writes four borrowed bytes.
//!
//! # References
//! `getrandom(2)`, `random(4)`
#![allow(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::errno::Errno;

/// Draws 32 bits from the kernel's random number generator.
///
/// Early after boot, waits until the kernel has gathered enough entropy. If the system call does
/// not exist or a filter forbids it, `/dev/urandom` replaces it once `/dev/random` is readable,
/// which shows that the generator is ready.
///
/// # Errors
/// The errno from `getrandom(2)`, or from opening, polling or reading the devices. There is no
/// fallback to guessable numbers.
pub fn draw() -> Result<u32, Errno> {
    draw_from(by_system_call, by_device)
}

type Source = fn(&mut [u8; 4]) -> Result<(), Errno>;

fn draw_from(call: Source, device: Source) -> Result<u32, Errno> {
    let mut bytes = [0; 4];
    loop {
        match call(&mut bytes) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            Err(Errno::NOSYS | Errno::PERM) => {
                device(&mut bytes)?;
                break;
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(u32::from_ne_bytes(bytes))
}

fn by_system_call(bytes: &mut [u8; 4]) -> Result<(), Errno> {
    // SAFETY: the kernel writes at most `bytes.len()` bytes, all within `bytes`.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    match usize::try_from(got) {
        Ok(got) if got == bytes.len() => Ok(()),
        // The kernel never returns fewer bytes than requested, up to 256.
        Ok(_) => Err(Errno::IO),
        Err(_) => Err(Errno::last()),
    }
}

fn by_device(bytes: &mut [u8; 4]) -> Result<(), Errno> {
    let open = |path| File::open(path).map_err(|error| Errno::from_io(&error));
    let (ready, mut source) = (open("/dev/random")?, open("/dev/urandom")?);
    while let Err(errno) = poll(&mut [PollFd::new(ready.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
        if errno != nix::errno::Errno::EINTR {
            return Err(errno.into());
        }
    }
    source.read_exact(bytes).map_err(|error| Errno::from_io(&error))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn nine(bytes: &mut [u8; 4]) -> Result<(), Errno> {
        *bytes = [9; 4];
        Ok(())
    }

    fn absent(_: &mut [u8; 4]) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    fn forbidden(_: &mut [u8; 4]) -> Result<(), Errno> {
        Err(Errno::PERM)
    }

    fn broken(_: &mut [u8; 4]) -> Result<(), Errno> {
        Err(Errno::IO)
    }

    #[test]
    fn draws_differ_from_either_source() {
        for source in [by_system_call as Source, by_device] {
            // Among 1000 draws of 32 bits, two are equal with a chance of 1 in 8,600, and three
            // pairs practically never.
            let drawn: HashSet<u32> = (0..1000).map(|_| draw_from(source, broken).unwrap()).collect();
            assert!(drawn.len() > 997, "{}", drawn.len());
        }
    }

    #[test]
    fn the_devices_take_the_place_of_a_call_that_is_absent_or_forbidden_and_of_no_other() {
        let nines = u32::from_ne_bytes([9; 4]);
        assert_eq!(draw_from(absent, nine), Ok(nines));
        assert_eq!(draw_from(forbidden, nine), Ok(nines));
        assert_eq!(draw_from(broken, nine), Err(Errno::IO));
        assert_eq!(draw_from(absent, broken), Err(Errno::IO), "no number rather than a constant");
    }

    #[test]
    fn a_call_that_a_signal_interrupts_is_made_again() {
        use std::sync::atomic::{AtomicU32, Ordering};
        static CALLS: AtomicU32 = AtomicU32::new(0);
        let twice: Source = |bytes| match CALLS.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Err(Errno::INTR),
            _ => nine(bytes),
        };
        assert_eq!(draw_from(twice, broken), Ok(u32::from_ne_bytes([9; 4])));
        assert_eq!(CALLS.load(Ordering::Relaxed), 3);
    }
}
