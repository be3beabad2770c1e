//! Both ends of a ring under every interleaving that the memory model allows.
//!
//! The slots are cells that the model checker watches: if a consumer could read a slot before its producer's writes are
//! visible, or a producer could fill one that is still being read, the model would report the race.
//!
//! Built with `RUSTFLAGS="--cfg loom"` only, as `cargo xtask test` does: the model checker builds C.
#![cfg(loom)]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use verbs_core::ring::{Consumer, Index, Producer};

#[derive(Clone)]
struct Watched(Arc<AtomicU32>);

impl Index for Watched {
    fn load_acquire(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    fn store_release(&self, value: u32) {
        self.0.store(value, Ordering::Release);
    }
}

struct Ring<const SLOTS: usize>([UnsafeCell<u32>; SLOTS]);

#[allow(unsafe_code)]
// SAFETY: the cells are what the model checks: an access that another thread could race with fails the test.
unsafe impl<const SLOTS: usize> Sync for Ring<SLOTS> {}

#[allow(unsafe_code)]
impl<const SLOTS: usize> Ring<SLOTS> {
    fn put(&self, slot: u32, value: u32) {
        // SAFETY: the model fails when another thread accesses the cell at the same time.
        self.0[slot as usize].with_mut(|cell| unsafe { *cell = value });
    }

    fn take(&self, slot: u32) -> u32 {
        // SAFETY: as above.
        self.0[slot as usize].with(|cell| unsafe { *cell })
    }
}

/// `total` values through a ring of `SLOTS`, published `batch` at a time, with at most `preemptions` of a running thread.
fn pass<const SLOTS: usize>(total: u32, batch: u32, preemptions: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let ring = Arc::new(Ring::<SLOTS>(std::array::from_fn(|_| UnsafeCell::new(u32::MAX))));
        let (pi, ci) = (Watched(Arc::new(AtomicU32::new(0))), Watched(Arc::new(AtomicU32::new(0))));
        let mask = SLOTS as u32 - 1;
        let mut producer = Producer::new(pi.clone(), ci.clone(), mask);
        let mut consumer = Consumer::new(pi, ci, mask);
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
    // All interleavings take hours; a lost order shows with two preemptions.
    pass::<4>(5, 2, Some(2));
}
