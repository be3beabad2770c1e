//! Threads started by the libraries.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow};

use crate::errno::Errno;

/// The stack size of a thread in bytes, fixed here so that the environment (`RUST_MIN_STACK`)
/// cannot change it.
const STACK: usize = 2 << 20;

/// The maximum number of bytes that a starting thread maps besides its stack: a guard page, a
/// signal stack and the first memory it gets from the allocator.
const BESIDE: usize = 1 << 20;

/// Starts a thread and waits until it runs, because a thread that starts while memory is short
/// would abort the process.
///
/// All signals are blocked in the thread, so that the program's threads handle them.
///
/// # Errors
/// `ENOMEM`; `EAGAIN` if the process cannot start more threads.
pub fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Errno> {
    check_room(STACK + BESIDE)?;
    // This is not a channel, because waiting on a channel leaks an allocation in a thread that Rust
    // did not start.
    let running = Arc::new((Mutex::new(false), Condvar::new()));
    let its = Arc::clone(&running);
    // The new thread inherits the mask.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = thread::Builder::new().stack_size(STACK).name(name.into()).spawn(move || {
        *its.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        its.1.notify_one();
        drop(its);
        run();
    });
    // This was the previous mask, so the kernel accepts it again.
    let _ = mask.thread_set_mask();
    let thread = thread.map_err(|error| Errno::from_io(&error))?;
    let is_running = running.0.lock().unwrap_or_else(PoisonError::into_inner);
    drop(running.1.wait_while(is_running, |is_running| !*is_running));
    Ok(thread)
}

/// Checks that `len` bytes of address space are available.
fn check_room(len: usize) -> Result<(), Errno> {
    memmap2::MmapMut::map_anon(len).map(drop).map_err(|error| Errno::from_io(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_under_its_name_and_blocks_all_signals() {
        let before = SigSet::thread_get_mask().unwrap();
        let (send, seen) = std::sync::mpsc::channel();
        let thread = start("named", move || {
            let name = thread::current().name().map(str::to_owned);
            send.send((name, SigSet::thread_get_mask().unwrap())).unwrap();
        });
        thread.unwrap().join().unwrap();
        let (name, mask) = seen.recv().unwrap();
        assert_eq!(name.as_deref(), Some("named"));
        assert!(mask.contains(nix::sys::signal::Signal::SIGUSR1));
        assert_eq!(SigSet::thread_get_mask().unwrap(), before, "the caller's mask");
    }

    #[test]
    fn a_length_that_no_process_has_is_enomem() {
        assert_eq!((check_room(1 << 20), check_room(1 << 60)), (Ok(()), Err(Errno::NOMEM)));
    }
}
