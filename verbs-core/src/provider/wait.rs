//! [`WaitOps`]: threads that do their device's work while they wait.
//!
//! A kernel device runs by itself, so a thread waits for an event by sleeping on a file. The work
//! of a soft device is done by the program's threads: a thread that sleeps only on the channel's
//! file has to be woken by another thread, which the packet has woken. A thread that sleeps in a
//! [`Wait`] is woken by the packet directly.

use core::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A device whose work a waiting thread can do.
pub trait WaitOps: Debug + Send + Sync {
    /// Starts a wait for `awaited` by the calling thread.
    fn start(self: Arc<Self>, awaited: Awaited) -> Box<dyn Wait>;
}

/// The event that ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// A completion in any of the device's queues.
    Completion,
    /// A record in the file of a completion channel. The caller also sleeps on this file.
    Event,
}

/// A wait by one thread. Dropping it leaves the device's work to other threads.
///
/// ```text
///   loop: is there what the caller waits for? ──► end
///         work() ── Look ──► again
///                └─ Sleep ─► sleep until one of the files is readable, then again
/// ```
pub trait Wait: Debug + Send {
    /// Makes progress on the device's behalf. Returns [`Next::Sleep`] only if the caller has
    /// checked for its awaited event since the last progress.
    fn work(&mut self) -> Next;

    /// Returns the files to sleep on.
    fn files(&self) -> [Option<BorrowedFd<'_>>; WAIT_FILES];
}

/// The next step of a waiting thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The device made progress: the caller must check for its awaited event.
    Look,
    /// The device made no progress: the caller may sleep.
    Sleep,
}

/// The maximum number of files in a [`Wait`].
pub const WAIT_FILES: usize = 5;
