//! Models of the ring over plain words, for every interleaving of a producer and a consumer.
//!
//! # Safety
//! The packets are plain words in cells of the model checker, which reports racing accesses. This
//! shows that the consumer has read a packet before it is overwritten.
#![allow(unsafe_code)]

use super::*;
use crate::sync::primitives::atomic::AtomicU64;
use crate::sync::primitives::{Arc, UnsafeCell, thread};

/// The memory written by one process: a ring of `AREA` lines with a window of `LINES`, for packets
/// of at most `LONGEST` bytes. Only one word in each line of a packet is written and checked.
struct Memory<const LINES: usize, const AREA: usize, const LONGEST: usize> {
    headers: Box<[AtomicU64]>,
    packets: Box<[UnsafeCell<u64>]>,
    consumed: AtomicU64,
    waits: AtomicU64,
}

// SAFETY: the cells blocked the auto impl. The model checker checks all accesses to them.
unsafe impl<const LINES: usize, const AREA: usize, const LONGEST: usize> Sync
    for Memory<LINES, AREA, LONGEST>
{
}

/// A [`Memory`] shared by both processes.
type Shared<const LINES: usize, const AREA: usize, const LONGEST: usize> = Arc<Memory<LINES, AREA, LONGEST>>;

impl<const LINES: usize, const AREA: usize, const LONGEST: usize> Memory<LINES, AREA, LONGEST> {
    /// Returns a ring with an unpublished record at its start. The other lines look like records,
    /// as leftover bytes of old packets may.
    fn new() -> Arc<Self> {
        let old = Record { len: bth::LEN, traffic_class: 0xff, hop_limit: 0xff, on_link: true }.header(false);
        let headers = (0..AREA).map(|line| if line == 0 { UNPUBLISHED } else { old });
        Arc::new(Self {
            headers: headers.map(AtomicU64::new).collect(),
            packets: (0..AREA).map(|_| UnsafeCell::new(0)).collect(),
            consumed: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        })
    }
}

impl<const LINES: usize, const AREA: usize, const LONGEST: usize> Outgoing for Shared<LINES, AREA, LONGEST> {
    const SHAPE: Shape = Shape::new(LINES * LINE, AREA * LINE, LONGEST, LINE);

    fn store_header(&mut self, at: usize, header: u64, order: Ordering) {
        self.headers[at / LINE].store(header, order);
    }

    fn store_waits(&mut self, waits: bool) {
        self.waits.store(waits.into(), Ordering::Relaxed);
    }

    fn grow(&mut self) -> bool {
        true
    }
}

impl<const LINES: usize, const AREA: usize, const LONGEST: usize> Progress for Shared<LINES, AREA, LONGEST> {
    fn store_consumed(&mut self, position: u64) {
        self.consumed.store(position, Ordering::Release);
    }
}

impl<const LINES: usize, const AREA: usize, const LONGEST: usize> Incoming for Shared<LINES, AREA, LONGEST> {
    const SHAPE: Shape = <Self as Outgoing>::SHAPE;

    fn extend(&mut self) -> bool {
        true
    }

    fn header(&self, at: usize) -> u64 {
        self.headers[at / LINE].load(Ordering::Relaxed)
    }

    fn read(&self, _at: usize, _into: &mut [u8]) -> bool {
        unreachable!("the models read whole words")
    }

    fn consumed(&self) -> u64 {
        self.consumed.load(Ordering::Relaxed)
    }

    fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed) != 0
    }
}

type Out<const LINES: usize, const AREA: usize, const LONGEST: usize> =
    Producer<Shared<LINES, AREA, LONGEST>, Shared<LINES, AREA, LONGEST>>;
type In<const LINES: usize, const AREA: usize, const LONGEST: usize> =
    Consumer<Shared<LINES, AREA, LONGEST>, Shared<LINES, AREA, LONGEST>>;

/// Returns the producer and the consumer of a ring, which are in different processes.
fn link<const LINES: usize, const AREA: usize, const LONGEST: usize>()
-> (Out<LINES, AREA, LONGEST>, In<LINES, AREA, LONGEST>) {
    let (sender, receiver) = (Memory::new(), Memory::new());
    (Producer::new(Arc::clone(&sender), Arc::clone(&receiver)), Consumer::new(sender, receiver))
}

/// Publishes a packet whose words all have the same value, which is also the traffic class.
fn put<const LINES: usize, const AREA: usize, const LONGEST: usize>(
    out: &mut Out<LINES, AREA, LONGEST>,
    len: usize,
    value: u8,
) {
    for line in 0..record_len(len) / LINE {
        // SAFETY: the model checker reports a race.
        out.ring.packets[out.at / LINE + line].with_mut(|word| unsafe { *word = value.into() });
    }
    let record = Record { len, traffic_class: value, hop_limit: 64, on_link: false };
    out.push(record, Time(0), true);
}

/// Removes a packet, if there is one. Returns the packet's value, and whether the producer wants a
/// doorbell.
fn take<const LINES: usize, const AREA: usize, const LONGEST: usize>(
    end: &mut In<LINES, AREA, LONGEST>,
) -> Option<(u8, bool)> {
    let record = end.peek().unwrap()?;
    for line in 0..record_len(record.len) / LINE {
        // SAFETY: the model checker reports a race.
        let word = end.peer.packets[end.at / LINE + line].with(|word| unsafe { *word });
        assert_eq!(word, u64::from(record.traffic_class), "line {line}");
    }
    Some((record.traffic_class, end.advance()))
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn a_consumer_sees_whole_packets_in_order_and_no_old_bytes_as_records() {
    check(|| {
        let (mut out, mut end) = link::<6, 6, 108>();
        let sender = thread::spawn(move || {
            put(&mut out, 108, 1);
            put(&mut out, 12, 2);
        });
        let mut values = Vec::new();
        for _ in 0..3 {
            values.extend(take(&mut end));
        }
        sender.join().unwrap();
        values.extend(core::iter::from_fn(|| take(&mut end)));
        assert_eq!(values.iter().map(|(value, _)| *value).collect::<Vec<_>>(), [1, 2]);
    });
}

/// Runs a producer that has filled the ring, waits for space and then pushes some more packets. The
/// consumer removes only the packets of the full ring, and rings the doorbell when required. `fast`
/// is the number of consecutive windows that the producer has already filled fast.
fn wait_for_room<const LINES: usize, const AREA: usize, const LONGEST: usize>(
    lens: &'static [usize],
    fast: u8,
    more: u8,
) {
    check(move || {
        let (mut out, mut end) = link::<LINES, AREA, LONGEST>();
        out.fast = fast;
        let mut lens = lens.iter().cycle();
        let mut full = 0;
        while out.has_room().unwrap() {
            full += 1;
            put(&mut out, *lens.next().unwrap(), full);
        }
        let doorbell = Arc::new(loom::sync::Notify::new());
        let its = Arc::clone(&doorbell);
        let receiver = thread::spawn(move || {
            for expected in 1..=full {
                let (value, wants_doorbell) = take(&mut end).expect("the ring was full");
                assert_eq!(value, expected);
                if wants_doorbell {
                    its.notify();
                }
            }
            end
        });
        for value in full + 1..=full + more {
            while !out.request_room().unwrap() {
                // A lost doorbell is a deadlock, which the model checker reports.
                doorbell.wait();
            }
            put(&mut out, *lens.next().unwrap(), value);
        }
        let mut end = receiver.join().unwrap();
        for expected in full + 1..=full + more {
            assert_eq!(take(&mut end).map(|(value, _)| value), Some(expected));
        }
        assert_eq!(take(&mut end), None);
    });
}

#[test]
fn a_producer_that_waits_for_room_gets_a_doorbell_and_overwrites_no_unread_packet() {
    wait_for_room::<6, 6, 44>(&[12], 0, 2);
}

#[test]
fn packets_of_different_lengths_skip_the_end_of_the_ring_without_loss() {
    wait_for_room::<6, 6, 108>(&[108, 12], 0, 1);
}

#[test]
fn a_ring_that_grows_has_room_in_its_new_part_and_then_at_its_start() {
    wait_for_room::<6, 8, 44>(&[12], STREAM, 2);
}

#[test]
fn a_lap_behind_a_longer_one_overwrites_no_unread_packet() {
    check(|| {
        let (mut out, mut end) = link::<6, 9, 108>();
        out.fast = STREAM;
        // The first lap has two more packets than the window. Both ends are still in the first lap.
        for value in 1..=4 {
            assert!(out.has_room().unwrap());
            put(&mut out, 108, value);
            assert_eq!(take(&mut end).map(|(value, _)| value), Some(value));
        }
        let sender = thread::spawn(move || {
            let mut value = 4;
            for _ in 0..4 {
                if out.has_room().unwrap() {
                    value += 1;
                    put(&mut out, 108, value);
                }
            }
            (out, value)
        });
        let mut values: Vec<_> = (0..3).filter_map(|_| take(&mut end)).collect();
        let (out, last) = sender.join().unwrap();
        values.extend(core::iter::from_fn(|| take(&mut end)));
        assert!(values.iter().map(|(value, _)| *value).eq(5..=last));
        assert!(out.is_large() && last > 6);
    });
}
