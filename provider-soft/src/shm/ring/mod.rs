//! [`Producer`], [`Consumer`]: the two ends of a ring of packets in shared memory.
//!
//! The [folder](crate::shm) has the layout and the protocol. Each end counts positions in bytes
//! since the start:
//!
//! ```text
//!        consumed             reading              position
//!   (last value stored)     (the consumer)       (the producer)
//!            ▼                    ▼                    ▼
//!   ─────────┬────────────────────┬────────────────────┬─────────────────
//!   free     │ read               │ published          │ header 0, free
//!   ─────────┴────────────────────┴────────────────────┴─────────────────
//!            └── less than a      └── records          └── a longest record fits here
//!                quarter                                   if there is room
//! ```
//!
//! Both ends are generic over the memory, so that the model checker runs the same code over plain
//! words.

use core::fmt;

use roce::wire::bth;

use crate::shm::segment::{ConsumedWord, OutRing, OwnSegment, PeerSegment};
use crate::sync::primitives::atomic::{Ordering, fence};

/// Returns both ends of a link: the producer of this process's ring, and the consumer of the
/// peer's. The descriptor of `own` is closed.
pub(crate) fn ends(own: OwnSegment, peer: PeerSegment) -> (Producer, Consumer) {
    let (ring, consumed) = own.split();
    (Producer::new(ring, peer.clone()), Consumer::new(peer, consumed))
}

/// The end of this process's ring: it puts packets in.
#[derive(Debug)]
pub(crate) struct Producer<O = OutRing, P = PeerSegment> {
    ring: O,
    peer: P,
    /// The offset of the next record in the ring.
    at: usize,
    /// The position of the next record.
    position: u64,
    /// The last value read of the peer's `consumed`.
    consumed: u64,
    /// The last value stored in `waits`.
    waits: bool,
}

impl<O: Outgoing, P: Incoming> Producer<O, P> {
    fn new(ring: O, peer: P) -> Self {
        const { assert!(O::SHAPE.has_room_when_empty()) }
        Self { ring, peer, at: 0, position: 0, consumed: 0, waits: false }
    }

    /// Returns whether the longest packet fits.
    ///
    /// # Errors
    /// [`Broken`] if the peer's progress is impossible.
    #[inline]
    pub(crate) fn has_room(&mut self) -> Result<bool, Broken> {
        if self.fits() { Ok(true) } else { self.look() }
    }

    /// Returns whether a packet of this length fits into all free memory, including the part that
    /// is kept free for short packets.
    ///
    /// # Errors
    /// The errors of [`has_room`](Self::has_room).
    pub(crate) fn has_room_for(&mut self, len: usize) -> Result<bool, Broken> {
        if !self.fits_closely(len) {
            self.look()?;
        }
        Ok(self.fits_closely(len))
    }

    /// Returns whether the longest packet fits, as [`has_room`](Self::has_room) does. After `false`
    /// the consumer rings the doorbell when it has consumed more.
    ///
    /// # Errors
    /// The errors of [`has_room`](Self::has_room).
    pub(crate) fn request_room(&mut self) -> Result<bool, Broken> {
        if self.has_room()? {
            return Ok(true);
        }
        if !self.waits {
            self.waits = true;
            self.ring.store_waits(true);
            // Either the consumer sees `waits` after its next store of `consumed`, or that store is
            // seen below: see the head of `shm`.
            fence(Ordering::SeqCst);
        }
        self.look()
    }

    /// Publishes the packet written into the space of the next record.
    ///
    /// # Panics
    /// Panics if the ring has no room ([`has_room_for`](Self::has_room_for)), or for a length below
    /// a BTH or above the longest packet: a defect of the caller.
    #[inline]
    pub(crate) fn push(&mut self, record: Record) {
        let Record { len, .. } = record;
        assert!(O::SHAPE.is_packet(len) && self.fits_closely(len));
        let (next, step) = O::SHAPE.after(self.at, len);
        self.ring.store_header(next, UNPUBLISHED, Ordering::Relaxed);
        self.ring.store_header(self.at, record.header(), Ordering::Release);
        self.at = next;
        self.position = self.position.wrapping_add(step);
    }

    /// Returns whether the longest record and the reserve behind it are free, by the last value
    /// read of `consumed`.
    #[inline]
    fn fits(&self) -> bool {
        let (_, step) = O::SHAPE.after(self.at, O::SHAPE.longest_packet);
        self.unconsumed(self.consumed) + step + O::SHAPE.reserve as u64 <= O::SHAPE.ring as u64
    }

    /// Returns whether the record of a packet and the header behind it are free.
    #[inline]
    fn fits_closely(&self, len: usize) -> bool {
        let (_, step) = O::SHAPE.after(self.at, len);
        self.unconsumed(self.consumed) + step + LINE as u64 <= O::SHAPE.ring as u64
    }

    /// Reads the peer's progress, and returns whether there is room now.
    #[cold]
    fn look(&mut self) -> Result<bool, Broken> {
        let consumed = self.peer.consumed();
        // The peer has read the bytes before `consumed`, which may now be overwritten.
        fence(Ordering::Acquire);
        if self.unconsumed(consumed) > self.unconsumed(self.consumed) {
            return Err(Broken);
        }
        self.consumed = consumed;
        let fits = self.fits();
        if fits && self.waits {
            self.waits = false;
            self.ring.store_waits(false);
        }
        Ok(fits)
    }

    #[inline]
    fn unconsumed(&self, consumed: u64) -> u64 {
        self.position.wrapping_sub(consumed)
    }
}

impl<P: Incoming> Producer<OutRing, P> {
    /// Returns the space of the next packet, as long as the longest one. Its content is arbitrary.
    /// Writing it before there is [room](Self::has_room) damages packets that the peer has not
    /// read.
    #[inline]
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.ring.space(self.at)
    }

    /// Copies a packet into the ring and publishes it.
    ///
    /// # Panics
    /// As [`push`](Self::push).
    #[cfg(test)]
    pub(crate) fn copy_in(&mut self, packet: &[u8], traffic_class: u8, hop_limit: u8) {
        assert!(self.fits_closely(packet.len()));
        self.space()[..packet.len()].copy_from_slice(packet);
        self.push(Record { len: packet.len(), traffic_class, hop_limit, on_link: false });
    }
}

/// The end of the peer's ring: it takes packets out.
#[derive(Debug)]
pub(crate) struct Consumer<P = PeerSegment, C = ConsumedWord> {
    peer: P,
    progress: C,
    /// The offset of the current record in the ring.
    at: usize,
    /// The position of the current record.
    position: u64,
    /// The last position stored in `consumed`.
    published: u64,
    /// The current record, once it was seen.
    current: Option<Record>,
}

impl<P: Incoming, C: Progress> Consumer<P, C> {
    fn new(peer: P, progress: C) -> Self {
        Self { peer, progress, at: 0, position: 0, published: 0, current: None }
    }

    /// Returns whether the next record is unpublished, with one load.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.peer.header(self.at) == UNPUBLISHED
    }

    /// Returns the current record, or `None` if the peer has not published any.
    ///
    /// # Errors
    /// [`Broken`] if its header is invalid.
    #[inline]
    pub(crate) fn peek(&mut self) -> Result<Option<Record>, Broken> {
        if self.current.is_none() {
            let header = self.peer.header(self.at);
            if header == UNPUBLISHED {
                return Ok(None);
            }
            // The packet was written before its header, and so was the header behind it.
            fence(Ordering::Acquire);
            self.current = Some(Record::parse(header, P::SHAPE)?);
        }
        Ok(self.current)
    }

    /// Returns the number of published records, at most `limit`. The current one counts.
    ///
    /// # Errors
    /// [`Broken`] if a header is invalid.
    #[inline]
    pub(crate) fn count(&self, limit: u32) -> Result<u32, Broken> {
        let (mut at, mut count) = (self.at, 0);
        while count < limit {
            let header = self.peer.header(at);
            if header == UNPUBLISHED {
                break;
            }
            // The header behind the record was written before its own.
            fence(Ordering::Acquire);
            (at, _) = P::SHAPE.after(at, Record::parse(header, P::SHAPE)?.len);
            count += 1;
        }
        Ok(count)
    }

    /// Copies bytes of the current packet. Returns `false` if they are not within it, or if there
    /// is no [current record](Self::peek). The peer may change the bytes until they are copied.
    #[inline]
    #[must_use]
    pub(crate) fn copy(&self, from: usize, into: &mut [u8]) -> bool {
        let len = self.current.map_or(0, |record| record.len);
        let fits = from.checked_add(into.len()).is_some_and(|end| end <= len);
        fits && self.peer.read(self.at + PACKET + from, into)
    }

    /// Moves on to the next record. Returns whether the peer wants a doorbell, because it waits for
    /// room. Does nothing unless [`peek`](Self::peek) has returned a record.
    #[inline]
    #[must_use]
    pub(crate) fn advance(&mut self) -> bool {
        let Some(record) = self.current.take() else { return false };
        let (next, step) = P::SHAPE.after(self.at, record.len);
        self.at = next;
        self.position = self.position.wrapping_add(step);
        self.position.wrapping_sub(self.published) >= P::SHAPE.unpublished() && self.publish()
    }

    /// Makes the progress visible to the peer. Returns whether it waits for room.
    #[cold]
    fn publish(&mut self) -> bool {
        self.progress.store_consumed(self.position);
        self.published = self.position;
        // Either the producer sees `consumed` after it has set `waits`, or `waits` is seen below:
        // see the head of `shm`.
        fence(Ordering::SeqCst);
        self.peer.waits()
    }
}

/// A packet in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The length of the packet in bytes, at least [`bth::LEN`].
    pub(crate) len: usize,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// Whether the packets of its queue pair are as long as a link permits ([`Path::on_link`]).
    ///
    /// [`Path::on_link`]: roce::engine::Path::on_link
    pub(crate) on_link: bool,
}

impl Record {
    #[inline]
    fn header(self) -> u64 {
        self.len as u64
            | u64::from(self.traffic_class) << 32
            | u64::from(self.hop_limit) << 40
            | u64::from(self.on_link) << 48
    }

    #[inline]
    fn parse(header: u64, shape: Shape) -> Result<Self, Broken> {
        let [.., flags, hop_limit, traffic_class, _, _, _, _] = header.to_be_bytes();
        let record = Self { len: header as u32 as usize, traffic_class, hop_limit, on_link: flags & 1 != 0 };
        if shape.is_packet(record.len) && record.header() == header { Ok(record) } else { Err(Broken) }
    }
}

/// The peer has written a value that no producer or consumer writes. The link cannot be used any
/// more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the peer has written invalid values into its shared memory")
    }
}

/// The producer's part of the memory that this process writes.
pub(crate) trait Outgoing {
    const SHAPE: Shape;

    /// Stores the header of the record at an offset of the ring.
    fn store_header(&mut self, at: usize, header: u64, order: Ordering);

    /// Stores whether the producer wants a doorbell.
    fn store_waits(&mut self, waits: bool);
}

/// The consumer's part of the memory that this process writes.
pub(crate) trait Progress {
    /// Stores the consumer's position with release.
    fn store_consumed(&mut self, position: u64);
}

/// The memory that the peer writes. All loads are relaxed.
pub(crate) trait Incoming {
    const SHAPE: Shape;

    /// Loads the header of the record at an offset of the ring.
    fn header(&self, at: usize) -> u64;

    /// Copies bytes from an offset of the ring on. Returns `false` if they are out of bounds.
    fn read(&self, at: usize, into: &mut [u8]) -> bool;

    /// Loads the position of the peer's consumer.
    fn consumed(&self) -> u64;

    /// Loads whether the peer's producer wants a doorbell.
    fn waits(&self) -> bool;
}

/// The sizes of a ring and of its longest packet, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    ring: usize,
    longest_packet: usize,
    /// Kept free for short packets, at least the header of a record.
    reserve: usize,
}

impl Shape {
    pub(crate) const fn new(ring: usize, longest_packet: usize, reserve: usize) -> Self {
        Self { ring, longest_packet, reserve }
    }

    /// Returns the offset of the record behind one at `at`, and the distance in positions.
    #[inline]
    const fn after(self, at: usize, packet_len: usize) -> (usize, u64) {
        let end = at + record_len(packet_len);
        if end + record_len(self.longest_packet) <= self.ring {
            (end, (end - at) as u64)
        } else {
            (0, (self.ring - at) as u64)
        }
    }

    /// Returns the number of consumed bytes that make the consumer publish them.
    #[inline]
    const fn unpublished(self) -> u64 {
        self.ring as u64 / 4
    }

    #[inline]
    const fn is_packet(self, len: usize) -> bool {
        len >= bth::LEN && len <= self.longest_packet
    }

    /// Returns whether the producer of an empty ring has room at any offset, although the consumer
    /// has not published its last progress. A record and the skipped end of the ring are shorter
    /// than two longest records, including the header behind them.
    const fn has_room_when_empty(self) -> bool {
        let needed = 2 * record_len(self.longest_packet) + self.reserve - LINE;
        self.ring.is_multiple_of(LINE)
            && self.reserve >= LINE
            && self.unpublished() + needed as u64 <= self.ring as u64
    }
}

/// Returns the length of a record with a packet.
#[inline]
const fn record_len(packet_len: usize) -> usize {
    (PACKET + packet_len).next_multiple_of(LINE)
}

/// The unit of records in bytes.
const LINE: usize = 64;

/// The offset of the packet in its record. The payload behind a BTH is at 32.
pub(crate) const PACKET: usize = 20;

const _: () = assert!(PACKET + bth::LEN == 32);

/// The header of a record that the producer has not published.
const UNPUBLISHED: u64 = 0;

#[cfg(all(test, not(loom)))]
pub(crate) mod hostile;
#[cfg(all(test, loom))]
#[path = "tests/models.rs"]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
