//! A model of both ends of a ring, under every interleaving that the memory model allows.
//!
//! The indices are the providers' [`SharedIndex`](verbs_core::ring::SharedIndex). Under `--cfg
//! loom` they are the model checker's atomics, accessed with the same orderings.
//!
//! The model checker watches the slots, which are cells. If a consumer could read a slot before its
//! producer's writes are visible, or a producer could fill a slot that is still being read, the
//! model would report the race.
//!
//! The test is built only with `RUSTFLAGS="--cfg loom"`, as `cargo xtask test` does, because the
//! model checker builds C.
#![cfg(loom)]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;
use verbs_core::ring::{Consumer, Producer, Region, SharedIndex};

/// Returns an index in a region, created in the same way as at both ends of a queue.
#[allow(unsafe_code)]
fn index(region: &Region, offset: usize) -> SharedIndex {
    // SAFETY: the bytes are accessed only through indices, and no device acts on the slots.
    unsafe { region.index(offset) }
}

struct Ring<const SLOTS: usize>([UnsafeCell<u32>; SLOTS]);

#[allow(unsafe_code)]
// SAFETY: the model checks the cells: any racing access fails the test.
unsafe impl<const SLOTS: usize> Sync for Ring<SLOTS> {}

#[allow(unsafe_code)]
impl<const SLOTS: usize> Ring<SLOTS> {
    fn put(&self, slot: u32, value: u32) {
        // SAFETY: the model fails if another thread accesses the cell at the same time.
        self.0[slot as usize].with_mut(|cell| unsafe { *cell = value });
    }

    fn take(&self, slot: u32) -> u32 {
        // SAFETY: as above.
        self.0[slot as usize].with(|cell| unsafe { *cell })
    }
}

/// Passes `total` values through a ring with `SLOTS` slots, published `batch` at a time. A running
/// thread is preempted at most `preemptions` times.
fn pass<const SLOTS: usize>(total: u32, batch: u32, preemptions: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let ring = Arc::new(Ring::<SLOTS>(std::array::from_fn(|_| UnsafeCell::new(u32::MAX))));
        let region = Region::plain(512);
        let mask = SLOTS as u32 - 1;
        let mut producer = Producer::new(index(&region, 128), index(&region, 256), mask);
        let mut consumer = Consumer::new(index(&region, 128), index(&region, 256), mask);
        let filled = Arc::clone(&ring);
        let filling = thread::spawn(move || {
            let mut value = 0;
            while value < total {
                let mut put = 0;
                while put < batch && value < total {
                    let Some(slot) = producer.next_slot() else { break };
                    filled.put(slot, value);
                    producer.advance();
                    (value, put) = (value + 1, put + 1);
                }
                if put > 0 {
                    producer.publish();
                } else {
                    thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < total {
            if let Some(slot) = consumer.next_slot() {
                assert_eq!(ring.take(slot), expected);
                consumer.advance();
                consumer.publish();
                expected += 1;
            } else {
                thread::yield_now();
            }
        }
        filling.join().unwrap();
        assert_eq!(consumer.next_slot(), None);
    });
}

#[test]
fn a_ring_that_is_always_full_or_empty_passes_everything_in_order() {
    pass::<2>(3, 1, None);
}

#[test]
fn a_ring_that_wraps_passes_everything_in_order() {
    // All interleavings take hours. A missing ordering already fails with two preemptions.
    pass::<4>(5, 2, Some(2));
}
