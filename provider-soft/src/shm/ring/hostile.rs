//! [`run`]: executes a script of calls to both ends, with arbitrary writes by the peer in between.
//!
//! Tests run random scripts, and the fuzz target `ring` in `provider-soft/fuzz` runs arbitrary
//! bytes.

use super::*;

/// Runs a script, which consists of steps with their operands. Each call must return, and both ends
/// must stay within the ring.
///
/// # Panics
/// Panics if an end violates one of these rules.
pub fn run(script: &[u8]) {
    let (own, theirs) = (OwnSegment::new().expect("memory"), OwnSegment::new().expect("memory"));
    let peer = theirs.hostile();
    let mapped = theirs.fd().try_clone_to_owned().expect("a descriptor");
    let (mut producer, mut consumer) = ends(own, PeerSegment::map(mapped).expect("a segment"));
    let mut script = Script(script);
    while let Some(step) = script.byte() {
        match step % 9 {
            step::STORE => peer.store(script.number() as usize, script.number()),
            step::HEADER => peer.store_header(consumer.at, script.number()),
            step::RECORD => {
                let record = Record {
                    len: script.number() as usize % TOO_LONG,
                    traffic_class: step,
                    hop_limit: script.byte().unwrap_or_default(),
                    on_link: step & 8 != 0,
                };
                peer.store_header(consumer.at, record.header(record.hop_limit.is_multiple_of(8)));
            }
            step::LOOK => {
                let [from, len] = [(); 2].map(|()| script.number() as usize % TOO_LONG);
                look(&mut consumer, from, len);
            }
            step::ADVANCE => drop(consumer.advance()),
            step::CONSUMED => peer.store_consumed(script.number()),
            step::PROGRESS => peer.store_consumed(producer.position.wrapping_sub(script.number() % 0x1_0000)),
            step::GROW => peer.grow(),
            _ => send(&mut producer, script.number() as usize, Time(script.number() % 0x10_0000)),
        }
        for (at, end) in [(producer.at, producer.end), (consumer.at, consumer.end)] {
            assert!(at.is_multiple_of(LINE) && at + SHAPE.longest_record() <= end, "{at}");
            assert!(end == SHAPE.window || end == SHAPE.area);
        }
        assert!(producer.unconsumed(producer.consumed) <= SHAPE.area as u64);
        assert!(consumer.position.wrapping_sub(consumer.published) < SHAPE.unpublished());
    }
}

/// Peeks at the current record twice, and copies a part of its packet.
fn look(consumer: &mut Consumer, from: usize, len: usize) {
    let record = consumer.peek();
    if let Ok(Some(Record { len, .. })) = record {
        assert!((bth::LEN..=SHAPE.longest_packet).contains(&len), "{len}");
        assert_eq!(consumer.peek(), record);
    }
    let end = record.ok().flatten().map_or(0, |record| record.len);
    assert_eq!(consumer.copy(from, &mut vec![0; len]), from + len <= end);
}

/// Fills the ring with packets whose length depends on `number`.
fn send(producer: &mut Producer, number: usize, now: Time) {
    let packet = [0x5a; SHAPE.longest_packet];
    let len = bth::LEN + number % (SHAPE.longest_packet - bth::LEN + 1);
    for _ in 0..SHAPE.area / LINE {
        let room = if number.is_multiple_of(2) { producer.has_room() } else { producer.request_room() };
        match room {
            Ok(true) => producer.copy_in_at(now, &packet[..len]),
            Ok(false) | Err(Broken) => return,
        }
    }
    panic!("no packet fills more than one line, yet the ring takes as many as it has lines");
}

const SHAPE: Shape = OutRing::SHAPE;
/// The exclusive upper bound for lengths and offsets in a script, in bytes; above the longest
/// packet.
const TOO_LONG: usize = SHAPE.longest_packet + 300;

/// The first byte of each kind of step. Each comment lists the operands that follow; numbers have 8
/// bytes.
pub(super) mod step {
    /// An offset in the peer's segment, and the word to store there.
    pub(crate) const STORE: u8 = 0;
    /// The header to store in the current record.
    pub(crate) const HEADER: u8 = 1;
    /// A length, and a byte: the hop limit, which ends the lap if it is a multiple of 8.
    pub(crate) const RECORD: u8 = 2;
    /// An offset and a length to copy.
    pub(crate) const LOOK: u8 = 3;
    pub(crate) const ADVANCE: u8 = 4;
    /// The peer's progress to store.
    pub(crate) const CONSUMED: u8 = 5;
    /// The number of bytes that the peer has not consumed.
    pub(crate) const PROGRESS: u8 = 6;
    pub(crate) const GROW: u8 = 7;
    /// A number that selects the length of the packets to send, and the time.
    #[cfg(test)]
    pub(crate) const SEND: u8 = 8;
}

struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Returns the next 8 bytes as a number. Bytes beyond the script's end are 0.
    fn number(&mut self) -> u64 {
        u64::from_le_bytes(core::array::from_fn(|_| self.byte().unwrap_or_default()))
    }
}
