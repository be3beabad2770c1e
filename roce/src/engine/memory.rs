//! [`Memory`], which holds payload, [`Space`], which holds outgoing packets, and [`Sink`], which
//! receives completions and events.

use super::types::{Completion, CqId, Event, Path, Qpn, ReceivedMad, Sge, SrqId, Stall};
use crate::wire::MASK_24;

/// Access to the memory that holds payload: this process's memory, the translated pages of a guest,
/// or a vector in a test.
///
/// The engine only passes ranges that lie inside a registration, and only while the registration
/// exists.
pub trait Memory {
    /// The implementor's representation of a memory registration.
    type Region: core::fmt::Debug;

    /// Copies `dst.len()` bytes at `offset` in the region into `dst`.
    ///
    /// # Errors
    /// [`Fault`] if the bytes cannot be reached, for example because a page is gone.
    fn read(&mut self, region: &Self::Region, offset: u64, dst: &mut [u8]) -> Result<(), Fault>;

    /// Copies `src` to `offset` in the region, in order of increasing address.
    ///
    /// # Errors
    /// [`Fault`] if the bytes cannot be reached.
    fn write(&mut self, region: &Self::Region, offset: u64, src: &[u8]) -> Result<(), Fault>;

    /// If the 8 aligned bytes at `offset` equal `compare`, replaces them with `swap`. Returns their
    /// previous value. Atomic within this process.
    ///
    /// # Errors
    /// [`Fault`] if the bytes cannot be reached.
    fn compare_swap(
        &mut self,
        region: &Self::Region,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, Fault>;

    /// Adds `add` to the 8 aligned bytes at `offset` and returns their previous value. Atomic
    /// within this process.
    ///
    /// # Errors
    /// [`Fault`] if the bytes cannot be reached.
    fn fetch_add(&mut self, region: &Self::Region, offset: u64, add: u64) -> Result<u64, Fault>;

    /// Stores `data` in the 8 aligned bytes at `offset`, after all earlier writes. No access by
    /// this process sees a partial store.
    ///
    /// # Errors
    /// [`Fault`] if the bytes cannot be reached.
    fn atomic_write(&mut self, region: &Self::Region, offset: u64, data: [u8; 8]) -> Result<(), Fault>;

    /// Makes all earlier writes to the range visible to the whole host; with `persistent`, also
    /// durable.
    ///
    /// # Errors
    /// [`Fault`] if the memory does not support the requested flush. The default implementation
    /// suits memory that is coherent but not durable.
    fn flush(
        &mut self,
        _region: &Self::Region,
        _offset: u64,
        _length: u64,
        persistent: bool,
    ) -> Result<(), Fault> {
        if persistent { Err(Fault) } else { Ok(()) }
    }

    /// Checks that the range can be read now. If not, the engine may postpone the read request
    /// ([`Sink::postpone`]); the response reads the range later.
    ///
    /// # Errors
    /// [`Fault`] if the bytes cannot be reached. The default implementation checks nothing; the
    /// response then fails instead.
    fn present(&mut self, _region: &Self::Region, _offset: u64, _length: u64) -> Result<(), Fault> {
        Ok(())
    }

    /// Reports that a work request or a peer has invalidated this registration. The engine makes no
    /// further access until the registration is changed. An implementor that offers other ways to
    /// access the same bytes must close them now.
    fn invalidated(&mut self, _region: &Self::Region) {}
}

/// The memory for outgoing packets: the caller's buffer, or a location chosen by destination, such
/// as a queue shared with the destination.
pub trait Space {
    /// Returns the memory for a packet to queue pair `dest_qp` at the end of `path`. The packet,
    /// from BTH to pad, is written to the start of the memory.
    /// [`poll_transmit`](super::Engine::poll_transmit) states the required length.
    ///
    /// Called once for each packet, before anything is written to its memory. Writing the packet
    /// may still fail, for example because its payload cannot be read. For the next packet, this
    /// method is then called again. A packet returned by `poll_transmit` is therefore in the memory
    /// returned by the last call. Memory returned by earlier calls may be reused.
    fn space(&mut self, path: &Path, dest_qp: u32) -> &mut [u8];
}

/// A packet written to the memory that the last [`Space::space`] call returned.
///
/// Smaller than a [`Transmit`], which the compiler stores and loads in parts of different sizes.
/// Such a load waits until earlier stores, including the payload, have left the store buffer.
/// Without this wait, an 8-byte round trip through memory takes 0.88 times as long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Written {
    /// The length of the packet in bytes, from BTH to pad.
    pub(crate) len: usize,
    /// The number of the sending queue pair.
    pub(crate) qpn: Qpn,
}

/// The same buffer for every packet.
impl Space for [u8] {
    #[inline(always)]
    fn space(&mut self, _path: &Path, _dest_qp: u32) -> &mut [u8] {
        self
    }
}

/// The same buffer for every packet.
impl<const N: usize> Space for [u8; N] {
    #[inline(always)]
    fn space(&mut self, _path: &Path, _dest_qp: u32) -> &mut [u8] {
        self
    }
}

/// Returns the memory for a packet. Passes only the low 24 bits of `dest_qp`, the width on the
/// wire.
#[inline(always)]
pub(crate) fn space_for<'a>(space: &'a mut (impl Space + ?Sized), path: &Path, dest_qp: u32) -> &'a mut [u8] {
    space.space(path, dest_qp & MASK_24)
}

/// Error: the memory cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// Error: the completion queue is full, so the completion is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqFull;

/// Error: the caller has no space for a management datagram, so the datagram is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadsFull;

/// Receives completions and events, immediately and in order.
pub trait Sink {
    /// Reports the completion of a work request.
    ///
    /// # Errors
    /// [`CqFull`] if the completion queue is full. The engine then raises [`Event::CqError`] and
    /// moves the queue pair to the error state.
    fn complete(&mut self, cq: CqId, completion: &Completion) -> Result<(), CqFull>;

    /// Reports the completion of a work request, along with the bytes not written to its elements.
    ///
    /// Called only for queue pairs created with
    /// [`QpInit::inline_completion`](super::QpInit::inline_completion). A sink without such queue
    /// pairs can keep the default implementation, which returns [`CqFull`].
    ///
    /// # Errors
    /// Same as [`complete`](Self::complete).
    fn complete_with_data(
        &mut self,
        _cq: CqId,
        _completion: &Completion,
        _data: &[u8],
    ) -> Result<(), CqFull> {
        Err(CqFull)
    }

    /// Releases the oldest `count` sends of a queue pair. Their slots and memory may be reused.
    fn retire_send(&mut self, qpn: Qpn, count: u32);

    /// Releases the oldest `count` receives of a queue pair. Their slots and memory may be reused.
    fn retire_recv(&mut self, qpn: Qpn, count: u32);

    /// Reports that queue pairs have taken the oldest `count` receives from a shared receive queue.
    /// Their slots are free. Each receive now belongs to one queue pair and completes when its
    /// message ends; these completions may come in any order.
    fn retire_srq(&mut self, srq: SrqId, count: u32);

    /// Chooses the memory for a send whose first packet arrives at a shared receive queue with
    /// [`Engine::set_srq_matching`](super::Engine::set_srq_matching), and stores the memory's
    /// elements in `sges`. With `None`, the default, the send takes the oldest receive of the
    /// queue, if any.
    fn match_message(&mut self, _first: &FirstPacket<'_>, _sges: &mut [Sge]) -> Option<Matched> {
        None
    }

    /// Reports an asynchronous event.
    fn event(&mut self, event: Event);

    /// Receives a management datagram. Called only if the engine's [general services
    /// interface](super::Engine::open_gsi) is open. Unknown peers may send these datagrams, so a
    /// sink must limit how many it keeps. The default implementation keeps none.
    ///
    /// # Errors
    /// [`MadsFull`] if there is no space. The datagram is then dropped and counted in
    /// [`DroppedDatagrams::mads_full`](super::DroppedDatagrams::mads_full).
    fn mad(&mut self, _mad: &ReceivedMad) -> Result<(), MadsFull> {
        Err(MadsFull)
    }

    /// Returns whether the memory access that just failed will succeed later because its pages are
    /// being brought in.
    ///
    /// If true, the engine stops the send queue or the responses until
    /// [`Engine::resume`](super::Engine::resume), or makes the peer repeat its request: see
    /// [`Stall`]. The sink may be called for the same access again before then. If false, the
    /// access fails as usual. By default, no access is postponed.
    fn postpone(&mut self, _qpn: Qpn, _stall: &Stall) -> bool {
        false
    }
}

/// The first packet of a send, for [`Sink::match_message`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct FirstPacket<'a> {
    /// The number of the receiving queue pair.
    pub qpn: Qpn,
    /// The shared receive queue that the queue pair uses.
    pub srq: SrqId,
    /// The packet's payload.
    pub payload: &'a [u8],
    /// Whether the packet contains the whole message.
    pub whole: bool,
    /// Whether the shared receive queue holds a receive. With neither a receive nor a match, the
    /// peer repeats the message later.
    pub posted: bool,
}

/// The memory chosen by [`Sink::match_message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matched {
    /// The `wr_id` to report in the completion.
    pub wr_id: u64,
    /// The number of elements stored in `sges`; at most 32.
    pub sges: usize,
    /// The number of bytes to skip at the beginning of the message. If it exceeds the first
    /// packet's payload, only that payload is skipped.
    pub header: usize,
}
