//! [`Wait`]: a thread that sleeps until there is a completion and makes its device progress
//! meanwhile.
//!
//! One of the waiting threads of a device is its *driver*. It sleeps at the socket and the
//! doorbells, so a packet wakes it directly, and it handles the packet. The other threads are woken
//! by the thread that adds their completion or event.
//!
//! ```text
//!                 packet            event, if it belongs to another thread
//!   peer ──────────────────► driver ─────────────────────────────────────► waiting thread
//!          (without a driver: worker)
//! ```
//!
//! The worker does all timed work, such as retransmitting, raising moderated events and connecting
//! to peers. It leaves packets to the driver ([`Taker::Waiter`]). A thread may become the driver
//! anew for each message. To avoid waking each time, the worker adapts:
//!
//! | since the worker last looked | the worker sleeps |
//! |---|---|
//! | the driver has been in one wait | until the driver's wait ends: the driver sets the alarm |
//! | waits of drivers have ended | at most 1 ms |
//! | no thread waits or has waited | until a packet arrives |
//!
//! A packet waits at most 1 ms while a program that has waited for events does other work.
//!
//! After the driver leaves, another waiting thread, if any, becomes the driver.
//!
//! Before a thread sleeps, it looks for packets for [`SPIN`] nanoseconds, about the cost of a
//! sleep.
//!
//! A thread that waits for a completion has a descriptor, and other threads use it to wake the
//! thread. If no descriptor is free, the thread is parked instead, for [`NAP`] at a time, because
//! its caller has a deadline. A driver then waits only on the device's files, and a thread waiting
//! for an event only on its channel's file.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use roce::engine::Time;
use verbs_core::provider::{Awaited, Next, WAIT_FILES, Wait as WaitTrait, WaitOps};

use crate::device::Device;
use crate::device::device_core::{Acks, DeviceCore, Sleep, Taker};
use crate::device::drivers::TICK;
use crate::device::state::{DeviceState, Found};
use crate::device::waiters::{Waiter, Waker};
use crate::sync::combining_lock::Guard;

/// The time, in nanoseconds, for which a thread looks for packets before it sleeps.
pub(super) const SPIN: u64 = 20_000;

/// The longest sleep of a thread without a descriptor.
const NAP: Duration = Duration::from_millis(1);

impl WaitOps for Device {
    fn start(self: Arc<Self>, awaited: Awaited) -> Box<dyn WaitTrait> {
        Box::new(Wait::start(self, awaited))
    }
}

/// The state of a waiting thread.
#[derive(Debug)]
struct Wait {
    device: Arc<Device>,
    awaited: Awaited,
    is_driver: bool,
    /// Whether the thread sleeps as the driver.
    is_asleep: bool,
    /// The number of completions at the caller's last [look](Next::Look).
    seen: u32,
    /// The number of the thread's [`Waiter`], and the file that wakes the thread.
    waiter: Option<(u64, Option<Arc<EventFd>>)>,
}

/// The kind of sleep, returned by [`Wait::watch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SleepMode {
    Files,
    Parked,
}

impl Wait {
    fn start(device: Arc<Device>, awaited: Awaited) -> Self {
        let mut wait = Self { device, awaited, is_driver: false, is_asleep: false, seen: 0, waiter: None };
        if !wait.device.is_forked() {
            let mut guard = wait.device.core.lock();
            wait.is_driver = !core::mem::replace(&mut guard.waiters.is_driven, true);
            // Any count that differs from the current one: the caller has not looked yet.
            wait.seen = guard.sink.completed.wrapping_sub(1);
            wait.device.leave(guard, wait.device.now());
        }
        wait
    }

    /// Looks for packets for [`SPIN`] nanoseconds. Returns whether there may be a new completion or
    /// event.
    fn spins(&mut self) -> bool {
        let shared: &DeviceState = &self.device;
        let start = shared.now();
        for looks in 1_u32.. {
            if let Some(guard) = shared.core.try_lock() {
                let seen = core::mem::replace(&mut self.seen, guard.sink.completed);
                if self.awaited == Awaited::Completion && seen != self.seen {
                    shared.leave(guard, shared.now());
                    return true;
                }
                if shared.look(guard, looks) == Found::Packets {
                    return true;
                }
            }
            core::hint::spin_loop();
            if looks.is_multiple_of(LOOKS_A_CLOCK) && shared.now() >= start + SPIN {
                break;
            }
        }
        false
    }

    /// Records the end of a sleep.
    fn wake_up(&mut self, core: &mut DeviceCore) {
        if core::mem::take(&mut self.is_asleep) {
            core.waiters.is_asleep = false;
            // Fails if no thread has written.
            let _ = self.device.driver_alarm.read();
            if let Some(peers) = self.device.peers.as_ref().filter(|_| !core.sleep.is_for_packets()) {
                peers.sleep.end();
            }
        }
        if let Some(waiter) = self.waiter(core)
            && !core::mem::take(&mut waiter.watches)
            && let Waker::File(file) = &waiter.waker
        {
            let _ = file.read();
        }
    }

    fn waiter<'a>(&self, core: &'a mut DeviceCore) -> Option<&'a mut Waiter> {
        let (number, _) = self.waiter.as_ref()?;
        core.waiters.others.iter_mut().find(|waiter| waiter.number == *number)
    }

    /// Arranges for other threads to wake this thread. Returns the kind of sleep.
    fn watch(&mut self, core: &mut DeviceCore) -> SleepMode {
        let file = match self.waiter.as_ref() {
            Some((_, Some(file))) => Some(Arc::clone(file)),
            _ => {
                let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
                EventFd::from_flags(flags).ok().map(Arc::new)
            }
        };
        if file.is_none() && self.awaited == Awaited::Event {
            return SleepMode::Files;
        }
        let (waker, mode) = match &file {
            Some(file) => (Waker::File(Arc::clone(file)), SleepMode::Files),
            None if self.is_driver => (Waker::Driver, SleepMode::Files),
            None => (Waker::Thread(std::thread::current()), SleepMode::Parked),
        };
        if let Some(waiter) = self.waiter(core) {
            (waiter.waker, waiter.watches) = (waker, true);
        } else {
            if core.waiters.others.try_reserve(1).is_err() {
                return SleepMode::Parked;
            }
            let waiters = &mut core.waiters;
            if waiters.others.is_empty() {
                waiters.told = core.sink.completed;
            }
            waiters.made += 1;
            let (number, awaited) = (waiters.made, self.awaited);
            waiters.others.push(Waiter { number, waker, awaited, watches: true });
            self.waiter = Some((number, None));
        }
        if let Some((_, own)) = &mut self.waiter {
            *own = file;
        }
        mode
    }

    /// Handles packets until there are none, as the driver. Returns whether there were any.
    fn drive(&self, guard: &mut Guard<'_, DeviceCore>, now: Time) -> bool {
        let shared: &DeviceState = &self.device;
        let received = guard.receive(&shared.socket);
        // Acknowledgements leave before the thread sleeps. If it does not sleep, the program's next
        // message may carry them.
        shared.round(guard, now, received, if received { Acks::Behind } else { Acks::Now });
        received || guard.sleep_from(now).until == Some(Time(0))
    }
}

impl WaitTrait for Wait {
    fn work(&mut self) -> Next {
        let device = Arc::clone(&self.device);
        if device.is_forked() {
            return Next::Sleep;
        }
        let was_asleep = self.is_asleep;
        if was_asleep {
            // This precedes the packets, so the doorbell for a later packet stays set.
            device.attend_peers_as_driver();
        }
        if self.is_driver && !was_asleep && self.spins() {
            return Next::Look;
        }
        let mut guard = device.core.lock();
        let now = device.now();
        self.wake_up(&mut guard);
        if was_asleep {
            device.wake_sleeping_worker(&mut guard);
        }
        if !guard.waiters.is_driven {
            (guard.waiters.is_driven, self.is_driver) = (true, true);
        }
        let (mut next, mut mode) = (Next::Sleep, SleepMode::Files);
        if self.is_driver && self.drive(&mut guard, now) {
            next = Next::Look;
        }
        if self.awaited == Awaited::Completion && guard.sink.completed != self.seen {
            next = Next::Look;
        }
        self.seen = guard.sink.completed;
        if next == Next::Sleep {
            if self.is_driver {
                (self.is_asleep, guard.waiters.is_asleep) = (true, true);
                if let Some(peers) = &device.peers {
                    // From here on, a peer that sends through memory wakes this thread. Packets may
                    // already be in a ring.
                    peers.sleep.begin();
                    if guard.links.has_packets() {
                        next = Next::Look;
                    }
                }
            }
            if !self.is_driver || self.awaited == Awaited::Completion {
                mode = self.watch(&mut guard);
            }
        }
        device.leave(guard, now);
        if mode == SleepMode::Files || next == Next::Look {
            return next;
        }
        std::thread::park_timeout(NAP);
        Next::Look
    }

    fn files(&self) -> [Option<BorrowedFd<'_>>; WAIT_FILES] {
        let mut files = [None; WAIT_FILES];
        files[0] = self.waiter.as_ref().and_then(|(_, file)| Some(file.as_ref()?.as_fd()));
        if self.is_driver {
            files[1] = Some(self.device.socket.as_fd());
            files[2] = self.device.peers.as_ref().map(|peers| peers.doorbells());
            files[3] = self.device.group_packets.get().map(|groups| groups.0.as_fd());
            files[4] = Some(self.device.driver_alarm.as_fd());
        }
        files
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let device = Arc::clone(&self.device);
        if device.is_forked() {
            return;
        }
        let mut guard = device.core.lock();
        self.wake_up(&mut guard);
        if let Some((number, _)) = self.waiter.take() {
            guard.waiters.others.retain(|waiter| waiter.number != number);
        }
        let now = device.now();
        let waiters = &mut guard.waiters;
        if self.is_driver {
            waiters.is_driven = false;
            waiters.ended = waiters.ended.wrapping_add(1);
        }
        let mut must_wake = false;
        if !waiters.is_driven {
            // If this thread was chosen as the next driver, another thread must take over.
            if let Some(heir) = waiters.others.first_mut() {
                heir.watches = false;
                heir.waker.wake(&device.driver_alarm);
            } else {
                must_wake = guard.sleep.packets == Taker::Waiter
                    && guard.sleep.until.is_none_or(|until| until > now + TICK);
            }
        }
        if must_wake {
            guard.sleep = Sleep::AWAKE;
            device.wake();
        }
        device.leave(guard, now);
    }
}

/// The number of checks for packets between two readings of the clock.
const LOOKS_A_CLOCK: u32 = 16;
