//! [`OwnSleep`], [`PeerSleep`]: a page with a counter that is odd while a device's threads sleep.
//!
//! A device has one page, which all its peers map. A receiver polls its rings while it is awake, so
//! senders need no system call. Before it sleeps it stores a new odd number and looks at its rings
//! once more:
//!
//! ```text
//!   receiver   begin: odd ─► fence ─► looks at all rings ─ all empty? ─► waits for the doorbell
//!   sender     push ─► fence ─► odd? ─► rings the doorbell, once for each odd value
//! ```
//!
//! One of the two fences comes first. If it is the receiver's fence, the sender sees the odd
//! counter. Otherwise the receiver sees the packet. The doorbell is a byte on a Unix socket that
//! stays readable until the receiver reads it, so it may arrive before the receiver waits.
//!
//! Several threads of a device may sleep at the same time: the worker, a thread in a
//! [wait](crate::device::wait), and briefly a poller. Each sleep has a new number, because the
//! doorbell for the previous sleep may have been read. The end of a sleep changes the number only
//! if no other thread sleeps until a packet arrives. The device's lock guards this decision. A
//! thread that reads a doorbell also wakes the other threads, because all of them may have been
//! asleep.

use core::sync::atomic::AtomicU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use verbs_core::Errno;

use crate::shm::segment::{Own, Peer, SLEEPS};
use crate::sync::primitives::atomic::{Ordering, fence};

/// The sleep page of this process's device.
#[derive(Debug)]
pub(crate) struct OwnSleep {
    file: OwnedFd,
    memory: Own,
}

impl OwnSleep {
    /// Creates the sleep page of a device that is awake.
    ///
    /// # Errors
    /// The errors of [`OwnSegment::new`](crate::shm::segment::OwnSegment::new).
    pub(crate) fn new() -> Result<Self, Errno> {
        let (file, memory) = Own::create(PAGE_LEN, PAGE_LEN, PAGE_MAGIC)?;
        Ok(Self { file, memory })
    }

    /// Returns the descriptor to send to peers.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Marks the device as asleep, under a new number. The caller must then look at all rings once
    /// more, and sleep only if all are empty.
    pub(crate) fn begin(&self) {
        begin(self.memory.word(SLEEPS));
    }

    /// Marks the device as awake. Does nothing if it is awake.
    pub(crate) fn end(&self) {
        end(self.memory.word(SLEEPS));
    }
}

/// The sleep page of a peer's device.
#[derive(Debug)]
pub(crate) struct PeerSleep {
    memory: Peer,
}

impl PeerSleep {
    /// Maps the sleep page of a received descriptor.
    ///
    /// # Errors
    /// `EINVAL` if the file is not a sealed page of this layout; `ENOMEM` if memory is short.
    pub(crate) fn map(file: OwnedFd) -> Result<Self, Errno> {
        Ok(Self { memory: Peer::map(file.as_fd(), PAGE_LEN, PAGE_LEN, PAGE_MAGIC)? })
    }

    /// Returns a number for the peer's current sleep, or `None` if the peer is awake. One doorbell
    /// is enough for each number. Call this function once after pushing any number of packets. The
    /// call includes the fence.
    #[inline]
    pub(crate) fn epoch_if_asleep(&self) -> Option<u32> {
        epoch_if_asleep(|| self.memory.word(SLEEPS))
    }
}

#[inline]
fn begin(counter: &impl Counter) {
    loop {
        let epoch = counter.load();
        if counter.replace(epoch, epoch.wrapping_add(1) | 1) {
            break;
        }
    }
    fence(Ordering::SeqCst);
}

#[inline]
fn end(counter: &impl Counter) {
    let epoch = counter.load();
    if is_odd(epoch) {
        // A failure means that another thread has ended this sleep, or started a sleep that it will
        // end itself.
        let _ = counter.replace(epoch, epoch.wrapping_add(1));
    }
}

#[inline]
fn epoch_if_asleep(load: impl FnOnce() -> u64) -> Option<u32> {
    fence(Ordering::SeqCst);
    let epoch = load();
    is_odd(epoch).then_some(epoch as u32)
}

#[inline]
fn is_odd(epoch: u64) -> bool {
    epoch & 1 != 0
}

/// A counter in this process's memory: a standard atomic, or the model checker's replacement.
/// Fences order its accesses.
trait Counter {
    fn load(&self) -> u64;

    /// Replaces the value `old`, unless another thread has already replaced it.
    fn replace(&self, old: u64, new: u64) -> bool;
}

impl Counter for AtomicU64 {
    #[inline]
    fn load(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    #[inline]
    fn replace(&self, old: u64, new: u64) -> bool {
        self.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

const PAGE_LEN: usize = 4096;

/// The magic number of a sleep page. The last byte is the layout version.
const PAGE_MAGIC: u64 = u64::from_be_bytes(*b"vrbslep\x01");

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::shm::segment::{OwnSegment, PeerSegment};

    #[test]
    fn a_peer_sees_each_sleep_under_another_number_and_none_while_the_device_is_awake() {
        let own = OwnSleep::new().unwrap();
        let peer = PeerSleep::map(own.fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(peer.epoch_if_asleep(), None);
        own.end();
        assert_eq!(peer.epoch_if_asleep(), None);
        own.begin();
        let first = peer.epoch_if_asleep();
        assert!(first.is_some());
        own.begin();
        let second = peer.epoch_if_asleep();
        assert!(second.is_some() && second != first, "a second thread sleeps");
        own.end();
        own.end();
        assert_eq!(peer.epoch_if_asleep(), None);
        own.begin();
        assert!(peer.epoch_if_asleep().is_some_and(|epoch| ![first, second].contains(&Some(epoch))));
    }

    #[test]
    fn a_page_and_a_segment_are_not_mistaken_for_each_other() {
        let (page, segment) = (OwnSleep::new().unwrap(), OwnSegment::new().unwrap());
        let duplicate = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
        assert_eq!(PeerSleep::map(duplicate(segment.fd())).map(|_| ()), Err(Errno::INVAL));
        assert_eq!(PeerSegment::map(duplicate(page.fd())).map(|_| ()), Err(Errno::INVAL));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::primitives::{Arc, atomic, thread};

    impl Counter for atomic::AtomicU64 {
        fn load(&self) -> u64 {
            self.load(Ordering::Relaxed)
        }

        fn replace(&self, old: u64, new: u64) -> bool {
            self.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        }
    }

    /// A sleeping device, and the number of packets in its ring.
    struct Device {
        sleeps: atomic::AtomicU64,
        pushed: atomic::AtomicU64,
        doorbell: loom::sync::Notify,
    }

    impl Device {
        fn new() -> Arc<Self> {
            let word = || atomic::AtomicU64::new(0);
            Arc::new(Self { sleeps: word(), pushed: word(), doorbell: loom::sync::Notify::new() })
        }

        /// Sends the given number of packets, with at most one doorbell for each sleep. Returns
        /// whether any doorbell was rung.
        fn send(&self, count: u64) -> bool {
            let mut rung = None;
            for pushed in 1..=count {
                self.pushed.store(pushed, Ordering::Release);
                let epoch = epoch_if_asleep(|| self.sleeps.load(Ordering::Relaxed));
                if epoch.is_some() && epoch != rung {
                    self.doorbell.notify();
                    rung = epoch;
                }
            }
            rung.is_some()
        }

        fn received(&self) -> u64 {
            self.pushed.load(Ordering::Relaxed)
        }
    }

    fn check(model: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    #[test]
    fn a_device_that_looks_again_before_it_sleeps_gets_every_packet() {
        check(|| {
            let device = Device::new();
            let its = Arc::clone(&device);
            let sender = thread::spawn(move || its.send(2));
            while device.received() < 2 {
                begin(&device.sleeps);
                if device.received() < 2 {
                    // A lost wake-up is a deadlock, which the model checker reports.
                    device.doorbell.wait();
                }
                end(&device.sleeps);
            }
            sender.join().unwrap();
        });
    }

    /// Returns whether the model checker finds an interleaving that loses a wake-up. `falls_asleep`
    /// returns whether the device is about to wait.
    fn loses_a_wake_up(falls_asleep: impl Fn(&Device) -> bool + Send + Sync + 'static) -> bool {
        use std::sync::atomic::AtomicBool;
        let lost = std::sync::Arc::new(AtomicBool::new(false));
        let found = std::sync::Arc::clone(&lost);
        check(move || {
            let device = Device::new();
            let its = Arc::clone(&device);
            let sender = thread::spawn(move || its.send(1));
            let waits = falls_asleep(&device);
            let has_rung = sender.join().unwrap();
            if waits && !has_rung {
                found.store(true, Ordering::Relaxed);
            }
        });
        lost.load(Ordering::Relaxed)
    }

    /// Returns whether a waiting thread can lose its wake-up while the worker's sleep ends.
    /// `end_worker` ends that sleep; its argument indicates whether the other thread sleeps.
    fn is_lost_beside_the_worker(end_worker: impl Fn(&Device, bool) + Copy + Send + Sync + 'static) -> bool {
        use std::sync::atomic::AtomicBool;
        let lost = std::sync::Arc::new(AtomicBool::new(false));
        let found = std::sync::Arc::clone(&lost);
        check(move || {
            let device = Device::new();
            // The device's lock, which guards the flag "the other thread sleeps".
            let lock = Arc::new(loom::sync::Mutex::new(false));
            begin(&device.sleeps);
            let (its, guard) = (Arc::clone(&device), Arc::clone(&lock));
            let worker = thread::spawn(move || end_worker(&its, *guard.lock().unwrap()));
            let its = Arc::clone(&device);
            let sender = thread::spawn(move || its.send(1));
            let waits = {
                let mut is_asleep = lock.lock().unwrap();
                *is_asleep = true;
                begin(&device.sleeps);
                device.received() == 0
            };
            worker.join().unwrap();
            let has_rung = sender.join().unwrap();
            if waits && !has_rung {
                found.store(true, Ordering::Relaxed);
            }
        });
        lost.load(Ordering::Relaxed)
    }

    #[test]
    fn the_end_of_the_workers_sleep_loses_no_wake_up_of_a_thread_that_waits() {
        assert!(!is_lost_beside_the_worker(|device, is_other_asleep| {
            if !is_other_asleep {
                end(&device.sleeps);
            }
        }));
        assert!(is_lost_beside_the_worker(|device, _| end(&device.sleeps)));
    }

    #[test]
    fn a_wake_up_is_lost_by_a_device_that_looks_before_it_begins_to_sleep_and_by_no_other() {
        assert!(!loses_a_wake_up(|device| {
            begin(&device.sleeps);
            device.received() == 0
        }));
        assert!(loses_a_wake_up(|device| {
            let is_empty = device.received() == 0;
            begin(&device.sleeps);
            is_empty
        }));
    }
}
