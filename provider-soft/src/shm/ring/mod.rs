//! [`Producer`], [`Consumer`]: the two ends of a ring of packets in shared memory.
//!
//! The [parent module](crate::shm) describes the layout and the protocol. Each end counts positions
//! as the number of record bytes since the start:
//!
//! ```text
//!        consumed             reading              position
//!   (last value stored)     (the consumer)       (the producer)
//!            ▼                    ▼                    ▼
//!   ─────────┬────────────────────┬────────────────────┬─────────────────
//!   free     │ read               │ published          │ header 0, free
//!   ─────────┴────────────────────┴────────────────────┴─────────────────
//!            └── less than a      └── records          └── a longest record fits here
//!                quarter                                   if there is space
//! ```
//!
//! # Laps
//! A lap begins at offset 0 of the ring and ends wherever the producer chooses. The next lap cannot
//! end until the consumer has read the last complete lap. The producer therefore needs only the end
//! of the last lap:
//!
//! ```text
//!   the consumer is in the same lap               the consumer is in the last lap
//!
//!   0      tail          at         end           0       at        tail      last_end
//!   ┌──────┬─────────────┬──────────┐             ┌───────┬─────────┬─────────┐
//!   │ free │ unread      │ free     │             │ unread│ free    │ unread  │
//!   └──────┴─────────────┴──────────┘             └───────┴─────────┴─────────┘
//!   the lap may end                               the lap cannot end
//! ```
//!
//! A lap is as long as the window of 60 KiB while packets are few, so its lines stay cached on both
//! processors. In a stream such short laps are a disadvantage: the producer overwrites lines that
//! the other processor has just read, and waits for each of them. In a stream, a lap therefore
//! continues beyond the window. After every 60 KiB, the producer compares the time taken with
//! [`FAST`].
//!
//! Both ends are generic over the memory, so the model checker can run the same code over plain
//! words.

use core::fmt;

use roce::engine::Time;
use roce::wire::bth;

use crate::shm::segment::{ConsumedWord, OutRing, OwnSegment, PeerSegment};
use crate::sync::primitives::atomic::{Ordering, fence};

/// Returns both ends of a link: the producer of this process's ring, and the consumer of the peer's
/// ring. Closes the descriptor of `own`.
pub(crate) fn ends(own: OwnSegment, peer: PeerSegment) -> (Producer, Consumer) {
    let (ring, consumed) = own.split();
    (Producer::new(ring, peer.header_only()), Consumer::new(peer, consumed))
}

/// The sending end of a ring, which writes packets.
#[derive(Debug)]
pub(crate) struct Producer<O = OutRing, P = PeerSegment> {
    ring: O,
    peer: P,
    /// The offset of the next record in the ring.
    at: usize,
    /// The offset where the last lap ended.
    last_end: usize,
    /// The offset where this lap ends, unless it is part of a stream. A record of maximum length at
    /// `at` fits before this offset.
    stop: usize,
    /// The length of the part of the ring that may be used, in bytes.
    end: usize,
    /// Whether allocating the ring's memory beyond the window failed.
    is_refused: bool,
    /// The time when the current window started.
    began: Time,
    /// The number of consecutive windows that were filled at the rate [`FAST`] or faster.
    fast: u8,
    /// The position of the next record.
    position: u64,
    /// The last value read from the peer's `consumed`.
    consumed: u64,
    /// The last value stored in `waits`.
    waits: bool,
}

impl<O: Outgoing, P: Incoming> Producer<O, P> {
    fn new(ring: O, peer: P) -> Self {
        const { assert!(O::SHAPE.has_room_when_empty()) }
        Self {
            ring,
            peer,
            at: 0,
            last_end: 0,
            stop: O::SHAPE.window,
            end: O::SHAPE.window,
            is_refused: false,
            began: Time(0),
            fast: 0,
            position: 0,
            consumed: 0,
            waits: false,
        }
    }

    /// Returns whether the ring has grown to full size.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.end == O::SHAPE.area
    }

    /// Returns whether the longest packet fits.
    ///
    /// # Errors
    /// [`Broken`] if the peer's value of `consumed` is invalid.
    #[inline]
    pub(crate) fn has_room(&mut self) -> Result<bool, Broken> {
        if self.fits() { Ok(true) } else { self.look() }
    }

    /// Returns whether a packet of this length fits into the free memory, including the reserve for
    /// short packets.
    ///
    /// # Errors
    /// The errors of [`has_room`](Self::has_room).
    pub(crate) fn has_room_for(&mut self, len: usize) -> Result<bool, Broken> {
        if !self.fits_closely(len) {
            self.look()?;
        }
        Ok(self.fits_closely(len))
    }

    /// Returns whether the longest packet fits, as [`has_room`](Self::has_room) does. If it does
    /// not fit, asks the consumer for a doorbell after its next progress.
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
            // seen below (see the head of `shm`).
            fence(Ordering::SeqCst);
        }
        self.look()
    }

    /// Publishes the packet written into [`space`](Self::space). In a stream, the ring may grow to
    /// full size if `may_grow`.
    ///
    /// # Panics
    /// Panics if the ring has no space ([`has_room_for`](Self::has_room_for)), or if the length is
    /// below a BTH or above the longest packet. Each is a bug in the caller.
    #[inline]
    pub(crate) fn push(&mut self, record: Record, now: Time, may_grow: bool) {
        let Record { len, .. } = record;
        assert!(O::SHAPE.is_packet(len) && self.fits_closely(len));
        let end = self.at + record_len(len);
        let ends_lap = end + O::SHAPE.longest_record() > self.stop && self.ends_lap(end, now, may_grow);
        let next = if ends_lap { 0 } else { end };
        self.ring.store_header(next, UNPUBLISHED, Ordering::Relaxed);
        self.ring.store_header(self.at, record.header(ends_lap), Ordering::Release);
        if ends_lap {
            (self.last_end, self.stop) = (end, O::SHAPE.window);
        }
        self.at = next;
        self.position = self.position.wrapping_add(record_len(len) as u64);
    }

    /// Returns whether the lap ends with the record that ends at `end` and fills a window.
    /// Otherwise the lap continues with another window.
    #[cold]
    fn ends_lap(&mut self, end: usize, now: Time, may_grow: bool) -> bool {
        let is_fast = now < self.began + O::SHAPE.window as u64 * FAST / 1024;
        self.began = now;
        self.fast = if is_fast { self.fast.saturating_add(1) } else { 0 };
        if self.fast >= STREAM && may_grow && !self.is_large() && !self.is_refused {
            self.is_refused = !self.ring.grow();
            self.end = if self.is_refused { O::SHAPE.window } else { O::SHAPE.area };
        }
        // The next caller that needs space reports invalid progress.
        let _ = self.look();
        let may_go_on = end + O::SHAPE.longest_record() <= self.end;
        let may_end = matches!(self.tail(), Tail::InThisLap(tail) if tail >= O::SHAPE.reserve);
        if may_go_on && (is_fast || !may_end) {
            self.stop = self.end.min(self.stop + O::SHAPE.window);
            return false;
        }
        true
    }

    /// Returns whether the longest record and the reserve after it are free, according to the last
    /// value read from `consumed`.
    #[inline]
    fn fits(&self) -> bool {
        self.is_free(O::SHAPE.longest_packet, O::SHAPE.reserve)
    }

    /// Returns whether the record of a packet and the header after it are free.
    #[inline]
    fn fits_closely(&self, len: usize) -> bool {
        self.is_free(len, LINE)
    }

    /// Returns whether there is space for a packet's record, and for `behind` more bytes of later
    /// records. After each of these, a record of maximum length must still be within the ring.
    #[inline]
    fn is_free(&self, len: usize, behind: usize) -> bool {
        let end = self.at + record_len(len);
        let last = self.end - O::SHAPE.longest_record();
        match self.tail() {
            // The lap may end, and records begin up to `last` and before `tail`.
            Tail::InThisLap(tail) => (last + LINE).saturating_sub(end) + tail >= behind,
            Tail::InLastLap(tail) => end + behind <= tail.min(last + LINE),
        }
    }

    /// Returns the consumer's position, according to the last value read from `consumed`.
    #[inline]
    fn tail(&self) -> Tail {
        let unread = self.unconsumed(self.consumed) as usize;
        match unread.checked_sub(self.at) {
            None | Some(0) => Tail::InThisLap(self.at - unread),
            Some(of_last_lap) => Tail::InLastLap(self.last_end.saturating_sub(of_last_lap)),
        }
    }

    /// Reads the peer's progress, and returns whether the longest packet fits now.
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
    /// Returns the memory for the next packet, as long as the longest packet. Its content is
    /// arbitrary. Writing to it before the ring [has space](Self::has_room) damages packets that
    /// the peer has not read.
    #[inline]
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.ring.space(self.at)
    }

    /// Copies a packet into the ring and publishes it. The ring does not grow.
    ///
    /// # Panics
    /// Panics in the same cases as [`push`](Self::push).
    #[cfg(all(test, not(loom)))]
    pub(crate) fn copy_in(&mut self, packet: &[u8], traffic_class: u8, hop_limit: u8) {
        self.write_in(packet);
        let record = Record { len: packet.len(), traffic_class, hop_limit, on_link: false };
        self.push(record, Time(0), false);
    }

    /// Copies a packet into the ring as [`copy_in`](Self::copy_in) does, but lets the ring grow.
    #[cfg(any(fuzzing, all(test, not(loom))))]
    pub(crate) fn copy_in_at(&mut self, now: Time, packet: &[u8]) {
        self.write_in(packet);
        let record = Record { len: packet.len(), traffic_class: 0, hop_limit: 64, on_link: true };
        self.push(record, now, true);
    }

    #[cfg(any(fuzzing, all(test, not(loom))))]
    fn write_in(&mut self, packet: &[u8]) {
        assert_eq!(self.has_room_for(packet.len()), Ok(true));
        self.space()[..packet.len()].copy_from_slice(packet);
    }
}

/// The lap and the offset of the first byte not yet read by the consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    InThisLap(usize),
    InLastLap(usize),
}

/// The receiving end of a ring, which reads packets.
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
    /// The length of the part of the ring that may be read, in bytes.
    end: usize,
    /// The current record, once read, and the offset of the next record.
    current: Option<(Record, usize)>,
}

impl<P: Incoming, C: Progress> Consumer<P, C> {
    fn new(peer: P, progress: C) -> Self {
        Self { peer, progress, at: 0, position: 0, published: 0, end: P::SHAPE.window, current: None }
    }

    /// Returns whether the next record is unpublished. Takes only one load.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.peer.header(self.at) == UNPUBLISHED
    }

    /// Returns the current record, or `None` if the peer has not published it yet.
    ///
    /// # Errors
    /// [`Broken`] if the record's header is invalid, or if the next record would not be within the
    /// ring.
    #[inline]
    pub(crate) fn peek(&mut self) -> Result<Option<Record>, Broken> {
        if self.current.is_none() {
            let header = self.peer.header(self.at);
            if header == UNPUBLISHED {
                return Ok(None);
            }
            // The packet was written before its header, and so was the header behind it.
            fence(Ordering::Acquire);
            self.current = Some(self.parse(self.at, header)?);
        }
        Ok(self.current.map(|(record, _)| record))
    }

    /// Returns the number of published records, including the current one, up to `limit`.
    ///
    /// # Errors
    /// The errors of [`peek`](Self::peek).
    #[inline]
    pub(crate) fn count(&mut self, limit: u32) -> Result<u32, Broken> {
        let (mut at, mut count) = (self.at, 0);
        while count < limit {
            let header = self.peer.header(at);
            if header == UNPUBLISHED {
                break;
            }
            // The header behind the record was written before the record's own header.
            fence(Ordering::Acquire);
            (_, at) = self.parse(at, header)?;
            count += 1;
        }
        Ok(count)
    }

    /// Parses the header of the record at an offset. Returns the record and the offset of the next
    /// record.
    #[inline]
    fn parse(&mut self, at: usize, header: u64) -> Result<(Record, usize), Broken> {
        let (record, ends_lap) = Record::parse(header, P::SHAPE)?;
        if ends_lap {
            return Ok((record, 0));
        }
        let next = at + record_len(record.len);
        let end = next + P::SHAPE.longest_record();
        if end <= self.end || (end <= P::SHAPE.area && self.extend()) {
            Ok((record, next))
        } else {
            Err(Broken)
        }
    }

    /// Makes the whole ring readable if the peer's ring has grown to full size. Returns whether
    /// more of the ring is readable than before.
    #[cold]
    fn extend(&mut self) -> bool {
        let is_whole = self.end < P::SHAPE.area && self.peer.extend();
        if is_whole {
            self.end = P::SHAPE.area;
        }
        is_whole
    }

    /// Copies bytes of the current packet. Returns `false` if the range is not within the packet,
    /// or if there is no [current record](Self::peek). The peer may change the bytes until they are
    /// copied.
    #[inline]
    #[must_use]
    pub(crate) fn copy(&self, from: usize, into: &mut [u8]) -> bool {
        let len = self.current.map_or(0, |(record, _)| record.len);
        let fits = from.checked_add(into.len()).is_some_and(|end| end <= len);
        fits && self.peer.read(self.at + PACKET + from, into)
    }

    /// Moves on to the next record. Returns whether the peer wants a doorbell, because it waits for
    /// space. Does nothing unless [`peek`](Self::peek) has returned a record.
    #[inline]
    #[must_use]
    pub(crate) fn advance(&mut self) -> bool {
        let Some((record, next)) = self.current.take() else { return false };
        self.at = next;
        self.position = self.position.wrapping_add(record_len(record.len) as u64);
        self.position.wrapping_sub(self.published) >= P::SHAPE.unpublished() && self.publish()
    }

    /// Makes the consumer's progress visible to the peer. Returns whether the peer waits for space.
    #[cold]
    fn publish(&mut self) -> bool {
        self.progress.store_consumed(self.position);
        self.published = self.position;
        // Either the producer sees `consumed` after setting `waits`, or `waits` is seen below (see
        // the head of `shm`).
        fence(Ordering::SeqCst);
        self.peer.waits()
    }
}

/// A packet in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The length of the packet, in bytes; at least [`bth::LEN`].
    pub(crate) len: usize,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// Whether the queue pair's packets are as long as a link permits ([`Path::on_link`]).
    ///
    /// [`Path::on_link`]: roce::engine::Path::on_link
    pub(crate) on_link: bool,
}

impl Record {
    #[inline]
    fn header(self, ends_lap: bool) -> u64 {
        self.len as u64
            | u64::from(self.traffic_class) << 32
            | u64::from(self.hop_limit) << 40
            | u64::from(self.on_link) << 48
            | if ends_lap { ENDS_LAP } else { 0 }
    }

    /// Parses a record's header. Returns the record, and whether it is the last record of its lap.
    #[inline]
    fn parse(header: u64, shape: Shape) -> Result<(Self, bool), Broken> {
        let [.., flags, hop_limit, traffic_class, _, _, _, _] = header.to_be_bytes();
        let record = Self { len: header as u32 as usize, traffic_class, hop_limit, on_link: flags & 1 != 0 };
        let ends_lap = header & ENDS_LAP != 0;
        let is_valid = shape.is_packet(record.len) && record.header(ends_lap) == header;
        if is_valid { Ok((record, ends_lap)) } else { Err(Broken) }
    }
}

/// The error returned if the peer has written a value that no producer or consumer writes. The link
/// can no longer be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the peer has written invalid values into its shared memory")
    }
}

/// The part of this process's segment that its producer writes.
pub(crate) trait Outgoing {
    const SHAPE: Shape;

    /// Stores the header of the record at an offset of the ring.
    fn store_header(&mut self, at: usize, header: u64, order: Ordering);

    /// Stores whether the producer wants a doorbell.
    fn store_waits(&mut self, waits: bool);

    /// Allocates the ring's memory beyond the window. Returns `false` if memory is short.
    fn grow(&mut self) -> bool;
}

/// The part of this process's segment that its consumer writes.
pub(crate) trait Progress {
    /// Stores the consumer's position with release.
    fn store_consumed(&mut self, position: u64);
}

/// The peer's segment, which this process only reads. All loads are relaxed.
pub(crate) trait Incoming {
    const SHAPE: Shape;

    /// Gives access to the ring's memory beyond the window, if it exists. Returns whether it does.
    fn extend(&mut self) -> bool;

    /// Loads the header of the record at an offset of the ring.
    fn header(&self, at: usize) -> u64;

    /// Copies bytes starting at an offset in the ring. Returns `false` if they are out of bounds.
    fn read(&self, at: usize, into: &mut [u8]) -> bool;

    /// Loads the position of the peer's consumer.
    fn consumed(&self) -> u64;

    /// Loads whether the peer's producer wants a doorbell.
    fn waits(&self) -> bool;
}

/// The sizes of a ring and its longest packet, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// The size of the window: the part used unless packets are a stream.
    window: usize,
    /// The size of the whole ring.
    area: usize,
    longest_packet: usize,
    /// The size of the reserve for short packets, at least a record header.
    reserve: usize,
}

impl Shape {
    pub(crate) const fn new(window: usize, area: usize, longest_packet: usize, reserve: usize) -> Self {
        Self { window, area, longest_packet, reserve }
    }

    /// Returns the length of the longest record, in bytes.
    #[inline]
    const fn longest_record(self) -> usize {
        record_len(self.longest_packet)
    }

    /// Returns the number of bytes consumed before the consumer publishes its progress.
    #[inline]
    const fn unpublished(self) -> u64 {
        self.window as u64 / 4
    }

    #[inline]
    const fn is_packet(self, len: usize) -> bool {
        len >= bth::LEN && len <= self.longest_packet
    }

    /// Returns whether an empty ring has space for the next record at any offset, even if the
    /// consumer has not published its last progress. In both cases of [`Tail`], the unusable part
    /// of the window is shorter than two records of maximum length: the next record, and a gap too
    /// short for another one.
    pub(crate) const fn has_room_when_empty(self) -> bool {
        let needed = 2 * self.longest_record() + self.reserve - LINE;
        self.window.is_multiple_of(LINE)
            && self.area.is_multiple_of(LINE)
            && self.area >= self.window
            && self.reserve >= LINE
            && self.unpublished() + needed as u64 <= self.window as u64
    }
}

/// Returns the length of the record for a packet, in bytes.
#[inline]
const fn record_len(packet_len: usize) -> usize {
    (PACKET + packet_len).next_multiple_of(LINE)
}

/// The maximum time, in nanoseconds, in which a stream fills 1 KiB: a rate of at least 1 GB/s.
const FAST: u64 = 1000;

/// The number of consecutive windows that a stream fills at the rate [`FAST`] before the ring
/// grows.
const STREAM: u8 = 4;

/// The unit of record lengths, in bytes.
const LINE: usize = 64;

/// The offset of the packet in its record, in bytes. The payload after a BTH is then at offset 32.
pub(crate) const PACKET: usize = 20;

const _: () = assert!(PACKET + bth::LEN == 32);

/// The header of a record that the producer has not published.
const UNPUBLISHED: u64 = 0;

/// The header bit that marks the last record of a lap.
const ENDS_LAP: u64 = 1 << 49;

#[cfg(any(fuzzing, all(test, not(loom))))]
pub mod hostile;
#[cfg(all(test, loom))]
#[path = "tests/models.rs"]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
