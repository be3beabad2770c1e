//! [`Device`]: a device that is alive: the machine behind its turn, the socket, the background thread.
//!
//! ```text
//!   DeviceInfo (OwnDevice) ─┐
//!   Context, Pd, Mr, Cq, Qp ┴─► Arc<Device> ──► Arc<Shared> ◄── the background thread
//!                                 last one dropped: the thread is stopped and joined, then all is closed
//! ```
//!
//! The thread has no share in the `Device`, so it never keeps one alive.
//!
//! A turn ends when its share of packets is used up ([`crate::machine`]), with work left. It is not lost: with the turn in hand,
//! the holder sees that the background thread sleeps too long ([`Machine::oversleeps`]) and wakes it, unless the thread is
//! awake or has left the device to a program that polls, which goes on with its next poll.
//!
//! | who | how it takes the turn | what it does with it |
//! |---|---|---|
//! | posts | [`Turn::ring`] | looks at the rings, transmits |
//! | polls an empty queue | [`Turn::try_take`] | receives, looks at the rings, handles, transmits |
//! | control calls | [`Turn::take`] | their call, then transmits |
//! | the background thread | [`Turn::take`]; [`Turn::try_take`] while somebody may poll | as who polls, until nothing more comes |

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use nix::sys::eventfd::{EfdFlags, EventFd};
use roce::engine::{Gid, Time};
use verbs_core::types::Guid;
use verbs_core::{Errno, Error, Result};

use crate::bells::Bells;
use crate::fork::Mark;
use crate::io::Socket;
use crate::limits;
use crate::machine::{Acks, Machine, Spent};
use crate::turn::{Guard, Turn};
use crate::watch;

/// A device that is alive, for those who keep it so.
#[derive(Debug)]
pub(crate) struct Device {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A device, for those who work on it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) name: Box<str>,
    pub(crate) gid: Gid,
    pub(crate) guid: Guid,
    pub(crate) socket: Socket,
    pub(crate) turn: Turn<Machine>,
    pub(crate) bells: Bells,
    /// Moves while callers poll. Racy increments are good enough.
    pub(crate) polls: AtomicU32,
    /// How many polls in a row found nothing. As racy.
    in_vain: AtomicU32,
    mark: Mark,
    origin: Instant,
    /// Wakes the background thread.
    pub(crate) alarm: EventFd,
    pub(crate) stop: AtomicBool,
}

impl Device {
    /// A device on a socket.
    ///
    /// # Errors
    /// What the system calls say that make it: `EMFILE`, `EAGAIN` for a thread too many.
    pub(crate) fn new(
        name: &str,
        socket: Socket,
        guid: Guid,
        strict_ports: bool,
    ) -> Result<Arc<Self>, Errno> {
        let config = limits::config(socket.rcvbuf(), strict_ports);
        let shared = Arc::new(Shared {
            name: name.into(),
            gid: socket.gid(),
            guid,
            turn: Turn::new(Machine::new(&socket, config)),
            socket,
            bells: Bells::new(Bells::MAX),
            polls: AtomicU32::new(0),
            in_vain: AtomicU32::new(0),
            mark: Mark::new()?,
            origin: Instant::now(),
            alarm: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            stop: AtomicBool::new(false),
        });
        crate::exit::remember(&shared);
        let its = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || watch::run(&its));
        let thread = thread.map_err(|error| Errno::from_io(&error))?;
        Ok(Arc::new(Self { shared, thread: Mutex::new(Some(thread)) }))
    }
}

impl core::ops::Deref for Device {
    type Target = Shared;

    #[inline]
    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.shared.is_forked() {
            // There is no thread here to join, and none that would ever drop its share: what keeps the parent's address
            // taken is closed by hand. Nothing uses the numbers any more, for nothing is left that could.
            core::mem::forget(thread);
            for fd in [self.shared.socket.as_fd().as_raw_fd(), self.shared.alarm.as_fd().as_raw_fd()] {
                let _ = nix::unistd::close(fd);
            }
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Is this a child of the process that made the device?
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.mark.is_gone()
    }

    /// Nanoseconds since the device was made.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        Time(self.origin.elapsed().as_nanos() as u64)
    }

    pub(crate) fn error(&self, verb: &'static str, errno: Errno) -> Error {
        Error::new(verb, &self.name, errno)
    }

    /// `ENODEV` in a child of the process that made the device.
    pub(crate) fn check(&self, verb: &'static str) -> Result<()> {
        if self.is_forked() { Err(self.error(verb, Errno::NODEV)) } else { Ok(()) }
    }

    /// Something was posted to the queue pair with this bell.
    #[inline]
    pub(crate) fn posted(&self, slot: usize) {
        self.bells.ring(slot);
        if let Some(guard) = self.turn.ring() {
            self.leave(guard, self.now());
        }
    }

    /// Somebody polls, and found nothing.
    #[inline]
    pub(crate) fn progress(&self) {
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        let received = self.turn.try_take().is_some_and(|guard| self.look(guard, polls));
        if received {
            self.in_vain.store(0, Ordering::Relaxed);
            return;
        }
        let in_vain = self.in_vain.load(Ordering::Relaxed).wrapping_add(1);
        self.in_vain.store(in_vain, Ordering::Relaxed);
        if in_vain.is_multiple_of(LOOKS_IN_VAIN) {
            // What is waited for is made by a program, not by a device: it may be waiting for this processor.
            std::thread::yield_now();
        }
    }

    /// Looks at everything for somebody who polls. Says whether packets came.
    #[inline]
    fn look(&self, mut guard: Guard<'_, Machine>, polls: u32) -> bool {
        let mut received = guard.receive(&self.socket);
        // A look that finds nothing is to cost little more than its system call, and the clock is not needed for it.
        let mut acks_are_due = !received && guard.acks_are_due();
        if !received && !acks_are_due && !guard.has_left() && !polls.is_multiple_of(IDLE_LOOKS) {
            match guard.give_back() {
                Ok(()) => return false,
                Err(rung) => guard = rung,
            }
        }
        let (found, now) = (received, self.now());
        for rest in (0..ROUNDS).rev() {
            self.round(&mut guard, now, received, if acks_are_due { Acks::Now } else { Acks::Behind });
            // What came may be what the caller waits for: unless there is certainly more, it is the caller's turn. To find
            // out that there is not costs a system call, and so do acknowledgements, which the answer can carry. The last
            // round receives nothing, since none follows that would handle it.
            if !received || !guard.more() || rest == 0 || guard.spent.is_enough() {
                break;
            }
            received = guard.receive(&self.socket);
            acks_are_due = !received;
        }
        self.give_back(guard, now);
        found
    }

    /// Sends what is owed, if the turn can be had soon: the process exits.
    pub(crate) fn settle(&self) {
        for _ in 0..PATIENCE {
            if self.is_forked() {
                return;
            }
            if let Some(mut guard) = self.turn.try_take() {
                let now = self.now();
                // Packets that nobody looked at are of messages that nobody was told of.
                guard.transmit(&self.socket, now, Acks::Alone);
                guard.spent = Spent::default();
                guard.transmit(&self.socket, now, Acks::Now);
                return;
            }
            std::thread::yield_now();
        }
    }

    /// A control call.
    ///
    /// # Errors
    /// `ENODEV` in a child of the process that made the device; what the call says.
    pub(crate) fn control<T>(
        &self,
        verb: &'static str,
        call: impl FnOnce(&mut Machine, Time) -> Result<T>,
    ) -> Result<T> {
        self.check(verb)?;
        let mut guard = self.turn.take();
        let now = self.now();
        // What is owed to a peer leaves before the call: it may be the end of the queue pair that owes it.
        guard.transmit(&self.socket, now, Acks::Alone);
        let result = call(&mut guard, now);
        self.leave(guard, now);
        result
    }

    /// One look at everything, the socket first: the rings, what was received, the clock.
    #[inline]
    pub(crate) fn round(&self, guard: &mut Guard<'_, Machine>, now: Time, received: bool, acks: Acks) {
        self.pump(guard, now);
        if received {
            guard.handle(&self.socket, now);
        }
        guard.expire(now);
        guard.transmit(&self.socket, now, acks);
    }

    /// Says whether there was something.
    #[inline]
    fn pump(&self, guard: &mut Guard<'_, Machine>, now: Time) -> bool {
        let rung = guard.was_rung();
        if rung {
            guard.pump(&self.bells, now);
        }
        rung
    }

    /// Sees to what was rung for, sends what there is to be sent, and gives the turn back.
    pub(crate) fn leave(&self, mut guard: Guard<'_, Machine>, now: Time) {
        self.pump(&mut guard, now);
        guard.transmit(&self.socket, now, Acks::Behind);
        self.give_back(guard, now);
    }

    /// Gives the turn back, and wakes the background thread if it would sleep too long.
    ///
    /// A turn that has sent its share ends even if it was rung for: the next holder looks at the rings.
    fn give_back(&self, mut guard: Guard<'_, Machine>, now: Time) {
        let mut wake = false;
        loop {
            if self.pump(&mut guard, now) {
                guard.transmit(&self.socket, now, Acks::Behind);
            }
            wake |= guard.oversleeps(now);
            let spent = core::mem::take(&mut guard.spent);
            if guard.has_left() {
                guard.pass_on();
                break;
            }
            match guard.give_back() {
                Ok(()) => break,
                Err(again) => {
                    guard = again;
                    guard.spent = spent;
                }
            }
        }
        if wake {
            self.wake();
        }
    }

    /// Wakes the background thread.
    pub(crate) fn wake(&self) {
        // Full means that it has not got round to waking yet.
        let _ = self.alarm.write(1);
    }
}

/// So often a process that exits asks for the turn.
const PATIENCE: u32 = 1000;

/// So often a poller looks when there is more, before it looks at its own queue.
const ROUNDS: u32 = 4;

/// So often who polls looks at everything, the clock included, when nothing was received.
const IDLE_LOOKS: u32 = 8;

/// After so many looks in a row that found nothing, who polls lets others run. More than a ping-pong needs.
const LOOKS_IN_VAIN: u32 = 32;
