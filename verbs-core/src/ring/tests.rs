//! Tests of ring ends that start, or restart, from the current shared indices.

use super::{Consumer, Producer, Region, SharedIndex};

const PRODUCER: usize = 128;
const CONSUMER: usize = 256;

/// Creates a ring whose shared indices have these values, as left by the other end or an earlier
/// use of the queue.
fn memory(producer: u32, consumer: u32) -> Region {
    let region = Region::plain(512);
    region.poke(PRODUCER, producer);
    region.poke(CONSUMER, consumer);
    region
}

#[allow(unsafe_code)]
fn index(region: &Region, offset: usize) -> SharedIndex {
    // SAFETY: the test has one thread, and no device acts on the slots.
    unsafe { region.index(offset) }
}

fn ends(region: &Region, mask: u32) -> (Producer, Consumer) {
    let index = |offset| index(region, offset);
    (
        Producer::new(index(PRODUCER), index(CONSUMER), mask),
        Consumer::new(index(PRODUCER), index(CONSUMER), mask),
    )
}

#[test]
fn an_end_begins_where_its_own_index_stands() {
    let region = memory(6, 3);
    let (mut producer, mut consumer) = ends(&region, 7);
    assert_eq!(producer.capacity(), 7);
    // Three slots are filled already, so four are free.
    let mut filled = Vec::new();
    while let Some(slot) = producer.next_slot() {
        filled.push(slot);
        producer.advance();
    }
    assert_eq!(filled, [6, 7, 0, 1]);
    let emptied: Vec<_> =
        core::iter::from_fn(|| consumer.next_slot().inspect(|_| consumer.advance())).collect();
    assert_eq!(emptied, [3, 4, 5]);
    producer.publish();
    consumer.publish();
    assert_eq!((region.peek::<u32>(PRODUCER), region.peek::<u32>(CONSUMER)), (2, 6));
}

#[test]
fn an_index_that_is_too_large_is_taken_round_the_ring() {
    for high in [8, 0x8000_0000, !7] {
        let region = memory(high | 6, high | 3);
        let (mut producer, mut consumer) = ends(&region, 7);
        assert_eq!((producer.next_slot(), consumer.next_slot()), (Some(6), Some(3)), "{high:#x}");
        assert_eq!(consumer.next_slots(8), (3, 6, 3), "{high:#x}");
        producer.resync();
        assert_eq!(producer.next_slot(), Some(6), "{high:#x}");
    }
}

#[test]
fn a_producer_that_is_synchronised_again_forgets_what_it_did_not_publish() {
    let region = memory(0, 0);
    let (mut producer, _) = ends(&region, 3);
    for _ in 0..3 {
        producer.next_slot().unwrap();
        producer.advance();
    }
    assert_eq!(producer.next_slot(), None);
    // As after a reset: the kernel has drained the queue, and its index is 2.
    region.poke(PRODUCER, 2_u32);
    region.poke(CONSUMER, 2_u32);
    producer.resync();
    let filled: Vec<_> =
        core::iter::from_fn(|| producer.next_slot().inspect(|_| producer.advance())).collect();
    assert_eq!(filled, [2, 3, 0]);
    producer.publish();
    assert_eq!(region.peek::<u32>(PRODUCER), 1);
}

#[test]
fn an_index_shows_its_value() {
    let region = memory(17, 0);
    assert_eq!(format!("{:?}", index(&region, PRODUCER)), "SharedIndex(17)");
}
