//! [`Signal`]: a descriptor that is readable while MADs may be waiting. Any number of
//! waiting MADs need one write and one read.
//!
//! ```text
//!   sender     publishes MADs ─► set: is_set becomes true ─ was it false? ─► write
//!   receiver   finds none ─► read ─► is_set becomes false ─► looks again ─ is there one? ─► set
//! ```
//!
//! A sender that finds `is_set` true does nothing more: the receiver has yet to set it to false,
//! acquire the sender's publications and look again. A sender that finds `is_set` false writes. The
//! receiver does not consume this write before its second look, because it reads the descriptor
//! before it sets `is_set` to false. In the other order, the receiver would consume the write for a
//! MAD already received and leave `is_set` true: no sender would ever write again.
//!
//! The second look may find only the first of several MADs, so a `set` follows it.
//!
//! Invariant: while a MAD waits and no sender is between publishing it and its write, the receiver
//! is in [`Signal::take`], or the descriptor is readable.

use nix::sys::eventfd::EventFd;

use crate::sync::primitives::atomic::{AtomicBool, Ordering};

/// A descriptor that is readable while MADs may be waiting.
#[derive(Debug)]
pub(crate) struct Signal<F = EventFd> {
    pub(crate) readable: F,
    /// Whether the descriptor is readable, or is about to be.
    is_set: AtomicBool,
}

impl<F: Flag> Signal<F> {
    pub(crate) fn new(readable: F) -> Self {
        Self { readable, is_set: AtomicBool::new(false) }
    }

    /// Makes the descriptor readable, after MADs have been published.
    pub(crate) fn set(&self) {
        if !self.is_set.swap(true, Ordering::AcqRel) {
            self.readable.raise();
        }
    }

    /// Returns the next MAD found by `next`. If there is no MAD, makes the descriptor unreadable.
    pub(crate) fn take<T>(&self, mut next: impl FnMut() -> Option<T>) -> Option<T> {
        next().or_else(|| {
            self.readable.lower();
            self.is_set.swap(false, Ordering::AcqRel);
            let late = next();
            if late.is_some() {
                // There may be more MADs until this function returns `None`.
                self.set();
            }
            late
        })
    }
}

/// A flag that a receiver can wait for, such as a descriptor that is readable or not.
pub(crate) trait Flag {
    fn raise(&self);
    fn lower(&self);
}

impl Flag for EventFd {
    fn raise(&self) {
        // A full counter is already readable.
        let _ = self.write(1);
    }

    fn lower(&self) {
        let _ = self.read();
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::primitives::{Arc, thread};
    use crate::sync::ring::{Consumer, ring};

    impl Flag for AtomicBool {
        fn raise(&self) {
            self.store(true, Ordering::Relaxed);
        }

        fn lower(&self) {
            self.store(false, Ordering::Relaxed);
        }
    }

    fn take(signal: &Signal<AtomicBool>, ring: &mut Consumer<u32>) -> Option<u32> {
        signal.take(|| {
            let value = *ring.next()?;
            ring.free(1);
            Some(value)
        })
    }

    /// Runs a receiver concurrently with a sender of MADs. Each number in `turns` is the size of a
    /// batch of MADs with one signal.
    fn check(turns: &'static [u32]) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let (mut producer, mut consumer) = ring(4, 0).unwrap();
            let signal = Arc::new(Signal::new(AtomicBool::new(false)));
            let its = Arc::clone(&signal);
            let sender = thread::spawn(move || {
                for count in turns {
                    for value in 0..*count {
                        producer.put(value, core::iter::empty());
                        producer.publish();
                    }
                    its.set();
                }
            });
            let mut received = 0;
            while take(&signal, &mut consumer).is_some() {
                received += 1;
            }
            sender.join().unwrap();
            // A receiver that waits for the descriptor must get the remaining MADs.
            while signal.readable.load(Ordering::Relaxed) {
                while take(&signal, &mut consumer).is_some() {
                    received += 1;
                }
            }
            assert_eq!(received, turns.iter().sum::<u32>());
        });
    }

    #[test]
    fn a_receiver_that_waits_for_the_descriptor_gets_each_mad() {
        check(&[1, 1]);
    }

    #[test]
    fn one_signal_serves_all_mads_of_a_turn() {
        check(&[2, 1]);
    }
}
