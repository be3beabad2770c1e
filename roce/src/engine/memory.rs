//! [`Memory`], where payload lives, and [`Sink`], where what happened is told.

use super::types::{Completion, CqId, Event, Qpn, SrqId};

/// Where payload lives: memory of this process, translated pages of a guest, a vector in a test.
///
/// The engine calls it only with ranges inside of what was registered, and only while it is
/// registered.
pub trait Memory {
    /// What a registration is to the implementor.
    type Region: core::fmt::Debug;

    /// Copies `dst.len()` bytes out, from `offset` of the region on.
    ///
    /// # Errors
    /// The bytes cannot be reached (a page that is gone).
    fn read(&mut self, region: &Self::Region, offset: u64, dst: &mut [u8]) -> Result<(), Fault>;

    /// Copies `src` in, from `offset` of the region on, in the order of addresses.
    ///
    /// # Errors
    /// The bytes cannot be reached.
    fn write(&mut self, region: &Self::Region, offset: u64, src: &[u8]) -> Result<(), Fault>;

    /// Where the 8 aligned bytes at `offset` equal `compare`, puts `swap`; tells what was there.
    /// Atomic to this process.
    ///
    /// # Errors
    /// The bytes cannot be reached.
    fn compare_swap(
        &mut self,
        region: &Self::Region,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, Fault>;

    /// Adds to the 8 aligned bytes at `offset`; tells what was there. Atomic to this process.
    ///
    /// # Errors
    /// The bytes cannot be reached.
    fn fetch_add(&mut self, region: &Self::Region, offset: u64, add: u64) -> Result<u64, Fault>;

    /// A work request, here or afar, has made this registration invalid: nothing reaches it until
    /// it is changed. Who reaches the same bytes by other ways closes them now.
    fn invalidated(&mut self, _region: &Self::Region) {}
}

/// Memory could not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// A completion queue has no room: the completion is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqFull;

/// Where what happened is told, at once and in order.
pub trait Sink {
    /// A work request ended.
    ///
    /// # Errors
    /// The queue has no room: the engine raises [`Event::CqError`] and moves the queue pair to the
    /// error state.
    fn complete(&mut self, cq: CqId, completion: &Completion) -> Result<(), CqFull>;

    /// A work request ended, and what would have been written to its elements is `data`: nothing
    /// was written there.
    ///
    /// Only queue pairs that were made with
    /// [`QpInit::inline_completion`](super::QpInit::inline_completion) ask for it. A sink without
    /// such queue pairs keeps this body, which has no room.
    ///
    /// # Errors
    /// As [`complete`](Self::complete).
    fn complete_with_data(
        &mut self,
        _cq: CqId,
        _completion: &Completion,
        _data: &[u8],
    ) -> Result<(), CqFull> {
        Err(CqFull)
    }

    /// The oldest `count` sends of a queue pair are done with: their slots and memory are free.
    fn retire_send(&mut self, qpn: Qpn, count: u32);

    /// The oldest `count` receives of a queue pair are done with.
    fn retire_recv(&mut self, qpn: Qpn, count: u32);

    /// The oldest `count` receives of a shared receive queue have left it: their slots are free.
    /// Each belongs to a queue pair now, and completes, in any order, when its message ends.
    fn retire_srq(&mut self, srq: SrqId, count: u32);

    /// Something else happened.
    fn event(&mut self, event: Event);
}
