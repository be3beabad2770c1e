//! [`Turn`]: who works on a device now, and how nothing is left undone when nobody may wait.
//!
//! A device is worked on by whoever has its turn: a thread that posts, one that polls, the background thread. The data path
//! never waits for it. A thread that posts puts its work where the holder finds it (a ring, and a bit that says which ring),
//! and *rings*: one atomic operation on one word sets RUNG and, if the turn is free, takes it.
//!
//! ```text
//!   word: 0            free
//!         HELD         somebody works
//!         HELD|RUNG    somebody works, and there is work that it may not have seen
//! ```
//!
//! - Free: the ringer has the turn now, and does its work itself.
//! - Held: the ringer leaves at once. The holder cannot miss it: it gives the turn back only by a compare-and-exchange from
//!   HELD to 0, which fails while RUNG is set; it then clears RUNG, looks at the rings again, and tries again.
//!
//! So after every ring some thread clears RUNG and looks at the rings afterwards. That it then sees the work: the ringer
//! wrote the work before its operation on the word (release), and the holder reads that write, or one later in the word's
//! order of modifications, of which all are read-modify-writes, when it clears RUNG (acquire). There is only one word, so no
//! order between two words has to be argued.
//!
//! A turn that has lasted long enough is [passed on](Guard::pass_on): RUNG stays as it is, and whoever takes the turn next
//! clears it and looks at the rings, as above. The holder must know, before it lets go, that somebody will take the turn.
//! A ring that comes after the change of the word takes the turn itself.
//!
//! Who polls takes the turn if it is free, and otherwise leaves: the holder receives anyway. Control calls wait for the
//! turn, spinning and then yielding; a holder never does a blocking system call. So that they are not starved by threads
//! that poll as fast as they can, those yield once before they take the turn while someone waits. They do not leave it
//! alone: who waits may have no processor just now, and everybody would wait for that.
//!
//! # Safety
//! The value is reached only through a [`Guard`], which exists only between a successful change of the word from not HELD
//! to HELD (acquire) and the change back (release), and there is one at a time.
#![allow(unsafe_code)]

use core::ops::{Deref, DerefMut};

use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::thread;

/// A value that one thread at a time works on.
#[derive(Debug)]
pub(crate) struct Turn<T> {
    word: AtomicU32,
    /// How many threads wait in [`take`](Self::take).
    waiting: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the cell blocked the auto impl. Guards exclude each other, so what crosses threads is `T` itself.
unsafe impl<T: Send> Sync for Turn<T> {}

impl<T> Turn<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { word: AtomicU32::new(0), waiting: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Says that there is work, and takes the turn if it is free. With `None` the holder does the work.
    #[inline]
    pub(crate) fn ring(&self) -> Option<Guard<'_, T>> {
        let before = self.word.fetch_or(HELD | RUNG, Ordering::AcqRel);
        // Not `then_some`: a guard that is made and thrown away gives back the turn of somebody else.
        (before & HELD == 0).then(|| Guard { turn: self })
    }

    /// Takes the turn if it is free.
    #[inline]
    pub(crate) fn try_take(&self) -> Option<Guard<'_, T>> {
        self.give_way();
        self.grab()
    }

    /// Lets threads run that wait for the turn, before it is taken again.
    #[inline]
    pub(crate) fn give_way(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
    }

    /// Has nobody the turn, just now?
    pub(crate) fn is_free(&self) -> bool {
        self.word.load(Ordering::Relaxed) & HELD == 0
    }

    /// Waits for the turn.
    pub(crate) fn take(&self) -> Guard<'_, T> {
        if let Some(guard) = self.grab() {
            return guard;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut spins = 0;
        let guard = loop {
            if let Some(guard) = self.grab() {
                break guard;
            }
            spins += 1;
            if spins < SPINS { core::hint::spin_loop() } else { thread::yield_now() }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// From not HELD to HELD; a ring that nobody has seen to yet stays.
    #[inline]
    fn grab(&self) -> Option<Guard<'_, T>> {
        let seen = self.word.load(Ordering::Relaxed);
        if seen & HELD != 0 {
            return None;
        }
        let taken = self.word.compare_exchange(seen, seen | HELD, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Guard { turn: self })
    }
}

/// The turn. Dropped in a panic, it is given back and what was rung for waits for the next holder.
pub(crate) struct Guard<'t, T> {
    turn: &'t Turn<T>,
}

impl<T> Guard<'_, T> {
    /// Was it rung for since this was last asked? Then the rings are to be looked at, after this.
    #[inline]
    pub(crate) fn was_rung(&mut self) -> bool {
        // The load spares the common case a write to the word.
        self.turn.word.load(Ordering::Relaxed) & RUNG != 0
            && self.turn.word.fetch_and(!RUNG, Ordering::AcqRel) & RUNG != 0
    }

    /// Gives the turn back, unless it was rung for: then the guard comes back, and [`was_rung`](Self::was_rung) says so.
    #[inline]
    pub(crate) fn give_back(self) -> Result<(), Self> {
        let word = &self.turn.word;
        match word.compare_exchange(HELD, 0, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => {
                core::mem::forget(self);
                Ok(())
            }
            Err(_) => Err(self),
        }
    }
}

impl<T> Guard<'_, T> {
    /// Gives the turn back even if it was rung for. The next holder finds what was rung for; there must be one.
    #[inline]
    pub(crate) fn pass_on(self) {
        drop(self);
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.turn.word.fetch_and(!HELD, Ordering::Release);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is one guard at a time, and it is borrowed.
        self.turn.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: there is one guard at a time, and it is borrowed mutably.
        self.turn.value.with_mut(|value| unsafe { &mut *value })
    }
}

/// Somebody works.
const HELD: u32 = 1;
/// There is work that the holder may not have seen.
const RUNG: u32 = 2;
/// So often a waiting thread looks before it lets others run.
const SPINS: u32 = 100;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_ring_while_the_turn_is_held_comes_back_to_the_holder() {
        let turn = Turn::new(());
        let mut guard = turn.try_take().unwrap();
        assert!(!guard.was_rung());
        assert!(turn.ring().is_none());
        let mut guard = guard.give_back().unwrap_err();
        assert!(guard.was_rung() && !guard.was_rung());
        assert!(guard.give_back().is_ok());
        assert!(turn.try_take().is_some());
    }

    #[test]
    fn who_rings_while_the_turn_is_free_has_it() {
        let turn = Turn::new(0);
        let mut guard = turn.ring().unwrap();
        assert!(turn.try_take().is_none());
        assert!(guard.was_rung());
        *guard += 1;
        drop(guard);
        assert_eq!(*turn.take(), 1);
    }

    #[test]
    fn what_a_turn_that_is_passed_on_was_rung_for_waits_for_the_next() {
        let turn = Turn::new(());
        let mut guard = turn.try_take().unwrap();
        assert!(turn.ring().is_none());
        assert!(guard.was_rung());
        assert!(turn.ring().is_none());
        guard.pass_on();
        let mut guard = turn.try_take().unwrap();
        assert!(guard.was_rung() && !guard.was_rung());
        assert!(guard.give_back().is_ok());
    }

    #[test]
    fn what_a_panicking_holder_was_rung_for_waits_for_the_next() {
        let turn = Turn::new(());
        let guard = turn.try_take().unwrap();
        assert!(turn.ring().is_none());
        drop(guard);
        assert!(turn.try_take().unwrap().was_rung());
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::bells::Bells;
    use crate::sync::Arc;

    /// What two posters put where a holder finds it, and how much of it was found.
    struct Shared {
        turn: Turn<u32>,
        bells: Bells,
        posted: [AtomicU32; 2],
    }

    impl Shared {
        /// As the device does: look at what was posted while it was rung for, give the turn back, and again.
        fn work(&self, mut guard: Guard<'_, u32>) {
            loop {
                if guard.was_rung() {
                    // Relaxed: the word and the bells alone have to make it visible.
                    self.bells.take(|bell| *guard += self.posted[bell].swap(0, Ordering::Relaxed));
                }
                match guard.give_back() {
                    Ok(()) => break,
                    Err(again) => guard = again,
                }
            }
        }

        fn post(&self, which: usize) {
            self.posted[which].fetch_add(1, Ordering::Relaxed);
            self.bells.ring(which);
            if let Some(guard) = self.turn.ring() {
                self.work(guard);
            }
        }
    }

    #[test]
    fn what_is_posted_is_found_by_someone_before_all_have_left() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let posted = [AtomicU32::new(0), AtomicU32::new(0)];
            let shared = Arc::new(Shared { turn: Turn::new(0), bells: Bells::new(2), posted });
            let threads: Vec<_> = (0..2)
                .map(|which| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || shared.post(which))
                })
                .collect();
            // One who polls.
            if let Some(guard) = shared.turn.try_take() {
                shared.work(guard);
            }
            for thread in threads {
                thread.join().unwrap();
            }
            let found = *shared.turn.try_take().expect("everyone has left");
            assert_eq!(found, 2);
        });
    }

    #[test]
    fn what_is_posted_to_a_turn_that_is_passed_on_is_found_by_who_comes_next() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let posted = [AtomicU32::new(0), AtomicU32::new(0)];
            let shared = Arc::new(Shared { turn: Turn::new(0), bells: Bells::new(2), posted });
            let poster = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.post(0))
            };
            // A turn that is used up, whatever it was rung for meanwhile.
            if let Some(guard) = shared.turn.try_take() {
                guard.pass_on();
            }
            poster.join().unwrap();
            // The thread that was woken.
            shared.work(shared.turn.take());
            assert_eq!(*shared.turn.take(), 1);
        });
    }
}
