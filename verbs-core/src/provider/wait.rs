//! [`WaitOps`]: waits of threads that do their device's work meanwhile.
//!
//! A kernel device works by itself, so a thread waits for an event by sleeping at a file. A soft
//! device is worked on by threads of the program: a thread that sleeps at the channel's file alone
//! has to be woken by another thread, which was woken by the packet. A thread that sleeps in a
//! [`Wait`] is woken by the packet.

use core::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A device that a waiting thread can work for.
pub trait WaitOps: Debug + Send + Sync {
    /// Begins a wait of this thread, for the purpose given.
    fn start(self: Arc<Self>, awaited: Awaited) -> Box<dyn Wait>;
}

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// A completion in any queue of the device.
    Completion,
    /// A record in the file of a completion channel. The caller also sleeps at this file.
    Event,
}

/// A thread's wait. Dropping it leaves the work to other threads.
///
/// ```text
///   loop: is there what the caller waits for? ──► end
///         work() ── Look ──► again
///                └─ Sleep ─► sleep until one of the files is readable, then again
/// ```
pub trait Wait: Debug + Send {
    /// Works for the device. Returns [`Next::Sleep`] only if the caller has looked since the last
    /// change.
    fn work(&mut self) -> Next;

    /// Returns the files to sleep at.
    fn files(&self) -> [Option<BorrowedFd<'_>>; WAIT_FILES];
}

/// The next step of a waiting thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Something has changed: the caller looks whether its wait has ended.
    Look,
    /// The caller sleeps.
    Sleep,
}

/// The largest number of files of a [`Wait`].
pub const WAIT_FILES: usize = 5;
