//! [`DeviceState`]: the state of a live device, shared by the worker and the threads calling verbs.
//!
//! The [device core](crate::device::device_core) does the work; one thread at a time holds its
//! lock. A *turn* is one hold of the lock, from acquire to release. A turn ends when its share of
//! packets is used up, possibly with work left. This work is not lost. If the worker would sleep
//! too long ([`DeviceCore::must_wake_worker`]), the holder wakes it before releasing the lock. This
//! is unnecessary if the worker is awake, or has left the device to a polling program, which
//! continues with its next poll.
//!
//! | thread | acquires the lock by | with the lock, it |
//! |---|---|---|
//! | posts | [`announce`] | looks at the rings, transmits |
//! | requests an event | [`announce`] | takes the request, like a posting thread |
//! | polls an empty queue | [`try_lock`] | receives, looks at the rings, handles, transmits |
//! | makes a control call | [`lock`] | executes the call, then transmits |
//! | the worker | [`lock`]; [`try_lock`] beside a poller | like a poller, until no more arrives |
//!
//! [`announce`]: CombiningLock::announce
//! [`lock`]: CombiningLock::lock
//! [`try_lock`]: CombiningLock::try_lock

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::Epoll;
use nix::sys::eventfd::{EfdFlags, EventFd};
use roce::engine::{CqId, Gid, Time};
use verbs_core::types::Guid;
use verbs_core::{Cause, Errno, Error, Result, room};

use crate::device::counter_files::CounterFiles;
use crate::device::device_core::{Acks, DeviceCore, Sleep, Spent, Taker};
use crate::device::fork::ForkMark;
use crate::device::gsi_end::GsiEnd;
use crate::device::idle_polls::{IdlePolls, NAP};
use crate::device::limits;
use crate::device::settings::Settings;
use crate::device::sink::{cq_slot, elapsed};
use crate::io::address::address_of;
use crate::io::link::{LinkWatch, PortLink, PortWatch, listed};
use crate::io::{Injector, Socket};
use crate::memory::checked::CheckedMemory;
use crate::memory::device_memory::Budget;
use crate::shm::links::Link;
use crate::shm::peers::{Change, PeerId, Peers};
use crate::sync::combining_lock::{CombiningLock, Guard};
use crate::sync::pending::PendingSet;

/// The state of a live device.
#[derive(Debug)]
pub(crate) struct DeviceState {
    pub(crate) name: Box<str>,
    pub(crate) gid: Gid,
    pub(crate) guid: Guid,
    pub(crate) socket: Socket,
    pub(crate) core: CombiningLock<DeviceCore>,
    pub(crate) pending: PendingSet,
    /// The shared receive queues with new receives.
    pending_srqs: PendingSet,
    /// The [slots](cq_slot) of completion queues with event requests.
    pending_cqs: PendingSet,
    /// The registered memory accessed by the kernel.
    pub(crate) checked_memory: CheckedMemory,
    /// The budget of unallocated device memory.
    pub(crate) dm: Arc<Budget>,
    /// Counts polls of empty queues. Increments may race; a lost increment does no harm.
    pub(crate) polls: AtomicU32,
    /// The number of consecutive checks by pollers that found no packet. A check of the socket
    /// counts as [`LOOKS_AT_SOCKET`] checks of memory. Increments may race as well.
    idle_looks: AtomicU32,
    pub(crate) idle_polls: IdlePolls,
    mark: ForkMark,
    origin: Instant,
    /// A file that is readable while a packet waits for a multicast group. Unset before the device
    /// joins its first group.
    pub(crate) group_packets: OnceLock<Arc<Epoll>>,
    /// The devices of this machine, if packets to them may travel through memory.
    pub(crate) peers: Option<Box<Peers>>,
    /// The socket for connection requests, if a connection manager has used the device and its
    /// address is shared.
    pub(crate) requests: OnceLock<Arc<Socket>>,
    /// Whether a connection manager uses the device.
    has_gsi: AtomicBool,
    /// Whether the process is exiting and leaves connection requests to other processes at its
    /// address.
    leaves_requests: AtomicBool,
    /// The files with the counters, if they have been published.
    counter_files: Mutex<Option<Box<CounterFiles>>>,
    has_counter_files: AtomicBool,
    /// The eventfd that wakes the worker.
    pub(crate) alarm: EventFd,
    /// The eventfd that wakes the driver.
    pub(crate) driver_alarm: EventFd,
    pub(crate) stop: AtomicBool,
    /// The socket that reports interface changes. `None` if the kernel does not permit it.
    pub(crate) link: Option<LinkWatch>,
    /// Interface properties, valid until the next change.
    interfaces: Mutex<KnownInterfaces>,
    /// Whether a report of a change was read, but the worker has not looked at the port since.
    link_changed: AtomicBool,
    /// The state of the port last reported by events. Only the worker changes it.
    port: Mutex<PortLink>,
}

/// The interface properties read since the last change to any interface.
#[derive(Debug, Default)]
struct KnownInterfaces {
    /// The name and MTU of the device's interface, once queried. The inner `None` means that no
    /// interface has the address.
    own: Option<Option<(String, u32)>>,
    /// The MTUs of the interfaces that have other addresses of this machine.
    others: BTreeMap<IpAddr, Option<u32>>,
}

/// The memory allocated for a new device, in bytes: its tables and space for packets.
const MEMORY: usize = 4 << 20;

impl DeviceState {
    /// Creates the state of a device on a socket.
    ///
    /// # Errors
    /// `ENOMEM`; the errno of a failed system call, notably `EMFILE`.
    #[inline(never)]
    pub(crate) fn new(
        name: &str,
        socket: Box<Socket>,
        PortWatch { link, port }: PortWatch,
        peers: Option<Box<Peers>>,
        guid: Guid,
        settings: Settings,
    ) -> Result<Arc<Self>, Errno> {
        room::check(MEMORY)?;
        let config = limits::config(socket.rcvbuf(), socket.slot(), settings.strict_ports);
        let injector = settings.faults.map(|faults| Injector::new(&faults, name));
        let origin = Instant::now();
        Ok(Arc::new(Self {
            name: name.into(),
            gid: socket.gid(),
            guid,
            checked_memory: settings.checked_memory,
            core: CombiningLock::new(DeviceCore::new(&socket, config, injector, origin)),
            socket: *socket,
            pending: PendingSet::new(PendingSet::MAX),
            pending_srqs: PendingSet::new(limits::MAX_SRQ as usize),
            pending_cqs: PendingSet::new(PendingSet::MAX),
            dm: Budget::new(limits::MAX_DM_SIZE),
            polls: AtomicU32::new(0),
            idle_looks: AtomicU32::new(0),
            idle_polls: IdlePolls::default(),
            mark: ForkMark::new()?,
            group_packets: OnceLock::new(),
            peers,
            requests: OnceLock::new(),
            has_gsi: AtomicBool::new(false),
            leaves_requests: AtomicBool::new(false),
            counter_files: Mutex::new(None),
            has_counter_files: AtomicBool::new(false),
            origin,
            alarm: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            driver_alarm: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            stop: AtomicBool::new(false),
            link,
            interfaces: Mutex::default(),
            link_changed: AtomicBool::new(false),
            port: Mutex::new(port),
        }))
    }

    /// Returns whether this process was forked from the device's creator.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.mark.is_gone()
    }

    /// Returns the time on the device's clock: the nanoseconds since the device was created.
    #[inline]
    pub(crate) fn now(&self) -> Time {
        Time(elapsed(self.origin))
    }

    pub(crate) fn error(&self, verb: &'static str, errno: Errno) -> Error {
        Error::new(verb, &self.name, errno)
    }

    /// Checks that this process is not a forked child of the process that created the device.
    ///
    /// # Errors
    /// `ENODEV` with [`Cause::Forked`] in such a child.
    pub(crate) fn check(&self, verb: &'static str) -> Result<()> {
        if self.is_forked() {
            return Err(self.error(verb, Errno::NODEV).because(Cause::Forked));
        }
        Ok(())
    }

    /// Announces work posted to the queue pair in this slot. This thread or the lock holder
    /// executes it.
    #[inline]
    pub(crate) fn posted(&self, slot: usize) {
        self.pending.insert(slot);
        if let Some(guard) = self.core.announce() {
            self.leave(guard, self.now());
        }
    }

    /// Announces receives posted to the shared receive queue in this slot.
    #[inline]
    pub(crate) fn posted_srq(&self, slot: usize) {
        self.pending_srqs.insert(slot);
        if let Some(guard) = self.core.announce() {
            self.leave(guard, self.now());
        }
    }

    /// Announces an event request for a completion queue. Does not wait for the lock, because
    /// constantly polling threads hold it nearly all the time.
    pub(crate) fn requested_event(&self, cq: CqId) {
        self.pending_cqs.insert(cq_slot(cq));
        if let Some(guard) = self.core.announce() {
            self.leave(guard, self.now());
        }
    }

    /// Takes announced event requests and arms their completion queues.
    #[inline]
    pub(crate) fn take_event_requests(&self, guard: &mut Guard<'_, DeviceCore>, now: Time) {
        if !self.pending_cqs.is_empty() {
            self.take_these_event_requests(guard, now);
        }
    }

    #[cold]
    fn take_these_event_requests(&self, guard: &mut Guard<'_, DeviceCore>, now: Time) {
        // Owed acknowledgements leave before the program's next requests. ib_send_lat of perftest
        // expects the event of its send first and the event of the reply second.
        guard.transmit(&self.socket, now, Acks::Alone);
        self.pending_cqs.take(|slot| guard.sink.take_requests(slot));
        // A program waiting for events does not poll, so the worker must receive packets.
        if guard.sink.is_armed() && guard.sleep.packets == Taker::Poller {
            guard.sleep = Sleep::AWAKE;
            self.wake();
        }
    }

    /// Makes progress for a poller that found its queue empty.
    #[inline]
    pub(crate) fn progress(&self) {
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        let found = self.core.try_lock().map_or(Found::Nothing, |guard| self.look(guard, polls));
        let looks = match found {
            Found::Packets => {
                self.polls.store(polls.wrapping_add(POLLS_OF_PACKETS), Ordering::Relaxed);
                self.idle_looks.store(0, Ordering::Relaxed);
                return;
            }
            // A check of memory is cheaper than a check of the socket.
            Found::NothingInMemory => 1,
            Found::Nothing => LOOKS_AT_SOCKET,
        };
        let idle_looks = self.idle_looks.load(Ordering::Relaxed).wrapping_add(looks);
        if idle_looks < MAX_IDLE_LOOKS {
            self.idle_looks.store(idle_looks, Ordering::Relaxed);
            return;
        }
        self.idle_looks.store(0, Ordering::Relaxed);
        self.idle_polls.give_way(|| self.now(), || self.nap());
    }

    /// Sleeps until a packet arrives, for [`NAP`] nanoseconds at most.
    #[cold]
    fn nap(&self) {
        let Some(mut guard) = self.core.try_lock() else { return };
        let must_stay_awake = guard.acks_are_due() || guard.has_work_left();
        if let Some(peers) = self.peers.as_ref().filter(|_| !must_stay_awake) {
            // From here on, a peer that sends through memory wakes this thread. Packets may already
            // be in a ring.
            peers.sleep.begin();
            guard.has_napped = true;
        }
        let has_packets = guard.links.has_packets();
        self.leave(guard, self.now());
        if must_stay_awake || has_packets {
            return;
        }
        let socket = PollFd::new(self.socket.as_fd(), PollFlags::POLLIN);
        let doorbell = self.peers.as_ref().map(|peers| PollFd::new(peers.doorbells(), PollFlags::POLLIN));
        let mut fds = [socket.clone(), doorbell.unwrap_or(socket)];
        let _ = ppoll(&mut fds, Some(Duration::from_nanos(NAP).into()), None);
        if self.peers.is_some() && fds[1].any() == Some(true) {
            self.attend_peers(Attendant::Poller);
        }
    }

    /// Receives packets and handles all other work for a poller. Most polls that find no packets
    /// check nothing else.
    #[inline]
    pub(crate) fn look(&self, mut guard: Guard<'_, DeviceCore>, polls: u32) -> Found {
        if guard.has_napped {
            self.end_nap(&mut guard);
        }
        let mut received = guard.receive(&self.socket);
        // A check that finds no packet must cost little more than its system call, so the clock is
        // not read.
        let mut acks_are_due = !received && guard.acks_are_due();
        if !received && !acks_are_due && !guard.has_work_left() && !polls.is_multiple_of(IDLE_LOOKS) {
            let nothing = if guard.links.is_hot() { Found::NothingInMemory } else { Found::Nothing };
            match guard.try_release() {
                Ok(()) => return nothing,
                Err(pending) => guard = pending,
            }
        }
        let found = if received { Found::Packets } else { Found::Nothing };
        let now = self.now();
        acks_are_due |= !received && guard.acks_are_overdue(now);
        for rest in (0..ROUNDS).rev() {
            self.round(&mut guard, now, received, if acks_are_due { Acks::Now } else { Acks::Behind });
            // The poller may be waiting for the packets just handled, so it gets to run unless
            // there are certainly more. Checking for more costs a system call, as does sending
            // acknowledgements, which the program's reply can carry. The last round does not
            // receive, because no later round would handle the packets.
            if !received || !guard.more() || rest == 0 || guard.spent.is_enough() {
                break;
            }
            received = guard.receive(&self.socket);
            acks_are_due = !received;
        }
        self.release(guard, now);
        found
    }

    /// Marks the device as awake again, unless another thread also sleeps until a packet arrives.
    #[cold]
    fn end_nap(&self, guard: &mut Guard<'_, DeviceCore>) {
        let is_awake = !guard.sleep.is_for_packets() && !guard.waiters.are_asleep();
        if let Some(peers) = self.peers.as_ref().filter(|_| is_awake) {
            peers.sleep.end();
            guard.has_napped = false;
        }
    }

    /// Sends owed acknowledgements before the process exits, if the lock becomes free soon.
    pub(crate) fn settle(&self) {
        if self.is_forked() {
            return;
        }
        // Messages of the connection manager follow. A message without a receiver id would also
        // arrive here, and would be lost when this process ends.
        self.leave_requests();
        for _ in 0..PATIENCE {
            if let Some(mut guard) = self.core.try_lock() {
                let now = self.now();
                // Packets still in the socket belong to incomplete messages.
                guard.transmit(&self.socket, now, Acks::Alone);
                guard.spent = Spent::default();
                guard.transmit(&self.socket, now, Acks::Now);
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Executes a control call with the lock held.
    ///
    /// # Errors
    /// `ENODEV` in a forked child of the process that created the device; any error of the call.
    pub(crate) fn control<T>(
        &self,
        verb: &'static str,
        call: impl FnOnce(&mut DeviceCore, Time) -> Result<T>,
    ) -> Result<T> {
        self.check(verb)?;
        self.controlled(self.core.lock(), call)
    }

    /// Executes a control call as [`control`](Self::control) does, if the lock becomes free soon.
    /// The process may be exiting in a signal handler that interrupted the lock holder.
    ///
    /// # Errors
    /// `EBUSY` if the lock does not become free; the errors of [`control`](Self::control).
    pub(crate) fn control_soon<T>(
        &self,
        verb: &'static str,
        call: impl FnOnce(&mut DeviceCore, Time) -> Result<T>,
    ) -> Result<T> {
        for _ in 0..PATIENCE {
            self.check(verb)?;
            if let Some(guard) = self.core.try_lock() {
                return self.controlled(guard, call);
            }
            std::thread::yield_now();
        }
        Err(self.error(verb, Errno::BUSY))
    }

    fn controlled<T>(
        &self,
        mut guard: Guard<'_, DeviceCore>,
        call: impl FnOnce(&mut DeviceCore, Time) -> Result<T>,
    ) -> Result<T> {
        let now = self.now();
        // Owed acknowledgements leave before the call, which may destroy the queue pair that owes
        // them.
        guard.transmit(&self.socket, now, Acks::Alone);
        // The call may concern a queue whose event this thread has requested.
        self.take_event_requests(&mut guard, now);
        let result = call(&mut guard, now);
        self.leave(guard, now);
        result
    }

    /// Handles all packets in the socket.
    pub(crate) fn catch_up(&self) {
        for _ in 0..CAUGHT_UP {
            let mut guard = self.core.lock();
            // In the order of `handle_requests`.
            let received = self.receive_requests(&mut guard) | guard.receive(&self.socket);
            let now = self.now();
            self.round(&mut guard, now, received, Acks::Now);
            self.leave(guard, now);
            if !received {
                return;
            }
        }
    }

    /// Checks everything once: the rings, received packets, the clock.
    #[inline]
    pub(crate) fn round(&self, guard: &mut Guard<'_, DeviceCore>, now: Time, received: bool, acks: Acks) {
        self.pump(guard, now);
        if received {
            guard.handle(&self.socket, now);
        }
        guard.expire(now);
        guard.transmit(&self.socket, now, acks);
    }

    /// Takes announced work out of the rings and returns whether there was any.
    #[inline]
    fn pump(&self, guard: &mut Guard<'_, DeviceCore>, now: Time) -> bool {
        let pending = guard.take_pending();
        if pending {
            // Receives go first, because a send may go to a queue pair of this device that needs
            // them.
            if !self.pending_srqs.is_empty() {
                guard.pump_srqs(&self.pending_srqs);
            }
            guard.pump(&self.pending, now);
            // After the rings: a reply found in a ring was posted after its event request. That
            // request is therefore visible here, and the acknowledgements leave before the reply.
            self.take_event_requests(guard, now);
        }
        pending
    }

    /// Takes announced work, transmits, and releases the lock.
    pub(crate) fn leave(&self, mut guard: Guard<'_, DeviceCore>, now: Time) {
        self.pump(&mut guard, now);
        guard.transmit(&self.socket, now, Acks::Behind);
        self.release(guard, now);
    }

    /// Releases the lock, wakes the worker if it would sleep too long, and signals received MADs.
    ///
    /// A turn that has used up its share ends even with work pending: the next holder looks at the
    /// rings. If an event request is pending, the worker must become the next holder, because a
    /// program waiting for events does not poll.
    fn release(&self, mut guard: Guard<'_, DeviceCore>, now: Time) {
        let mut wake = false;
        let mut mads = None;
        loop {
            if self.pump(&mut guard, now) {
                guard.transmit(&self.socket, now, Acks::Behind);
            }
            wake |= guard.must_wake_worker(now);
            let completed = guard.sink.completed;
            guard.waiters.tell(completed, &self.driver_alarm);
            if guard.links.has_wanted() {
                wake |= self.want_peers(&mut guard);
            }
            mads = mads.or_else(|| guard.sink.gsi.as_mut().and_then(GsiEnd::take_signal));
            let spent = core::mem::take(&mut guard.spent);
            if guard.has_work_left() {
                wake |= guard.release() && !self.pending_cqs.is_empty();
                break;
            }
            match guard.try_release() {
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
        if let Some(mads) = mads {
            mads.set();
        }
    }

    /// Makes the worker look for the devices of new destinations. Returns whether the worker must
    /// be woken.
    #[cold]
    fn want_peers(&self, guard: &mut Guard<'_, DeviceCore>) -> bool {
        let mut wakes = false;
        while let Some(id) = guard.links.next_wanted() {
            let Some(peers) = &self.peers else { continue };
            match peers.own_id(id.gid, id.slot) {
                Some(own) => self.meet_itself(guard, own),
                None => {
                    peers.want(id);
                    wakes = true;
                }
            }
        }
        wakes
    }

    /// Returns the name and MTU of the interface that has the device's address
    /// ([`Socket::interface`]).
    ///
    /// # Errors
    /// The errors of [`Socket::interface`].
    pub(crate) fn interface(&self) -> Result<Option<(String, u32)>, Errno> {
        self.with_interfaces(|known| self.own_interface(known))
    }

    /// Returns the MTU of the interface that has the device's address.
    ///
    /// # Errors
    /// The errors of [`Socket::interface`].
    pub(crate) fn mtu(&self) -> Result<Option<u32>, Errno> {
        Ok(self.interface()?.map(|(_, mtu)| mtu))
    }

    /// Returns the smaller of two MTUs: of the device's interface, and of the interface with
    /// another address of this machine. Packets between the two addresses travel on the loopback
    /// interface, but each device rejects path MTUs that its interface does not carry. All devices
    /// at one address have the same MTU.
    ///
    /// # Errors
    /// The errors of [`Socket::interface`].
    pub(crate) fn mtu_to_local(&self, address: IpAddr) -> Result<Option<u32>, Errno> {
        if address == self.socket.address() {
            return self.mtu();
        }
        self.with_interfaces(|known| {
            let own = self.own_interface(known)?.map(|(_, mtu)| mtu);
            let other = self.mtu_of_other(known, address)?;
            Ok(own.map(|own| other.map_or(own, |other| own.min(other))))
        })
    }

    /// Returns whether an interface of this host has `address`.
    fn is_of_this_host(&self, address: IpAddr) -> bool {
        self.with_interfaces(|known| self.mtu_of_other(known, address)).is_ok_and(|mtu| mtu.is_some())
    }

    /// Returns the MTU of the interface with an address of this machine.
    fn mtu_of_other(&self, known: &mut KnownInterfaces, address: IpAddr) -> Result<Option<u32>, Errno> {
        let address = listed(address);
        match known.others.get(&address) {
            Some(mtu) => Ok(*mtu),
            None => {
                let mtu = self.socket.interface_of(address)?.map(|(_, mtu)| mtu);
                Ok(*known.others.entry(address).or_insert(mtu))
            }
        }
    }

    fn own_interface(&self, known: &mut KnownInterfaces) -> Result<Option<(String, u32)>, Errno> {
        match &known.own {
            Some(interface) => Ok(interface.clone()),
            None => Ok(known.own.insert(self.socket.interface()?).clone()),
        }
    }

    /// Calls `ask` with the known interface properties.
    ///
    /// The kernel reports a change before the call that caused it returns. Known properties are
    /// therefore valid while no report is pending. Checking this costs one system call.
    fn with_interfaces<T>(&self, ask: impl FnOnce(&mut KnownInterfaces) -> T) -> T {
        let Some(link) = self.link.as_ref().filter(|_| !self.is_forked()) else {
            return ask(&mut KnownInterfaces::default());
        };
        let mut known = self.interfaces.lock().unwrap_or_else(PoisonError::into_inner);
        if self.read_reports(link, &mut known) {
            // The worker relied on this report, now consumed, to wake it.
            self.wake();
        }
        ask(&mut known)
    }

    /// Reads the reports of changes and returns whether there were any. The caller must hold the
    /// lock of `known`, so that no thread uses stale properties after the report.
    fn read_reports(&self, link: &LinkWatch, known: &mut KnownInterfaces) -> bool {
        let any = link.has_changed();
        if any {
            *known = KnownInterfaces::default();
            self.link_changed.store(true, Ordering::Release);
        }
        any
    }

    /// Returns whether another thread has read a change report that the worker must handle.
    pub(crate) fn has_link_changed(&self) -> bool {
        self.link_changed.load(Ordering::Acquire)
    }

    /// Raises port events for all changes since the last port events.
    pub(crate) fn follow_link(&self) {
        let Some(link) = &self.link else { return };
        self.read_reports(link, &mut self.interfaces.lock().unwrap_or_else(PoisonError::into_inner));
        if !self.link_changed.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        let now = PortLink::on(&self.socket);
        if *port != now {
            let mut guard = self.core.lock();
            if port.has_moved(now) {
                guard.move_groups(&self.socket);
            }
            for event_type in port.events(now) {
                guard.sink.raise_for_port(event_type);
            }
            *port = now;
            self.leave(guard, self.now());
        }
    }

    /// Makes the worker also wait for multicast packets, starting with its next sleep, and wakes
    /// the worker.
    pub(crate) fn watch_groups(&self, readable: Arc<Epoll>) {
        self.group_packets.get_or_init(|| readable);
        self.wake();
    }

    /// Returns the socket for connection requests. Only the holder of the device's lock reads from
    /// the socket.
    ///
    /// # Errors
    /// The errors of [`Socket::of_requests`].
    pub(crate) fn request_socket(&self) -> Result<Option<Arc<Socket>>, Errno> {
        if self.requests.get().is_none()
            && let Some(socket) = self.socket.of_requests()?
        {
            let _ = self.requests.set(Arc::new(socket));
        }
        Ok(self.requests.get().cloned())
    }

    /// Sets whether the worker waits for connection requests.
    pub(crate) fn watch_requests(&self, has_gsi: bool) {
        self.has_gsi.store(has_gsi, Ordering::Release);
        self.wake();
    }

    /// Leaves connection requests to the other processes at the address, because this process is
    /// exiting.
    pub(crate) fn leave_requests(&self) {
        self.leaves_requests.store(true, Ordering::Release);
        self.wake();
    }

    /// Returns the socket for connection requests while a connection manager uses the device and
    /// the process is not exiting.
    pub(crate) fn watched_requests(&self) -> Option<&Socket> {
        let is_read = self.has_gsi.load(Ordering::Acquire) && !self.leaves_requests.load(Ordering::Acquire);
        self.requests.get().filter(|_| is_read).map(AsRef::as_ref)
    }

    /// Receives connection requests, unless the process is exiting, and returns whether there were
    /// any.
    fn receive_requests(&self, core: &mut DeviceCore) -> bool {
        !self.leaves_requests.load(Ordering::Acquire) && core.receive_requests(&self.socket)
    }

    /// Handles connection requests. They are received first and handled last: earlier messages from
    /// the same senders, such as the end of a previous handshake, are in the device's socket by
    /// then.
    pub(crate) fn handle_requests(&self) {
        let mut guard = self.core.lock();
        let received = self.receive_requests(&mut guard) | guard.receive(&self.socket);
        let now = self.now();
        self.round(&mut guard, now, received, Acks::Behind);
        self.leave(guard, now);
    }

    /// Connects to the device of a queue pair's peer, if it belongs to this user and machine, so
    /// that even the first packet travels through memory.
    pub(crate) fn meet(&self, gid: Gid, dest_qpn: u32) {
        if self.is_forked() {
            return;
        }
        self.meet_in_memory(gid, dest_qpn);
        self.choose_sender(gid, dest_qpn);
    }

    /// Opens a connected socket for packets to a queue pair's peer, if the peer's address belongs
    /// to this host and the packets do not travel through memory.
    fn choose_sender(&self, gid: Gid, dest_qpn: u32) {
        let is_here = self.is_of_this_host(address_of(gid));
        let mut guard = self.core.lock();
        let now = self.now();
        let connects = guard.outbox.connected.begin(gid, is_here)
            && (self.peers.is_none() || guard.links.route(&gid, (dest_qpn >> 16) as u8, now).is_none());
        self.leave(guard, now);
        if connects {
            let sender = self.socket.sender_to(gid);
            let mut guard = self.core.lock();
            guard.outbox.connected.add(gid, sender);
            self.leave(guard, self.now());
        }
    }

    fn meet_in_memory(&self, gid: Gid, dest_qpn: u32) {
        let Some(peers) = &self.peers else { return };
        let slot = (dest_qpn >> 16) as u8;
        match peers.own_id(gid, slot) {
            Some(own) => {
                let mut guard = self.core.lock();
                self.meet_itself(&mut guard, own);
                self.leave(guard, self.now());
            }
            None => peers.meet(gid, slot),
        }
    }

    /// Makes packets from the device to itself travel through memory.
    fn meet_itself(&self, core: &mut DeviceCore, own: PeerId) {
        if !core.links.has_own()
            && let Ok(link) = Link::own(own)
        {
            core.links.add(link);
        }
    }

    /// Releases the lock and returns whether packets wait in shared memory.
    pub(crate) fn leave_with_packets(&self, mut guard: Guard<'_, DeviceCore>) -> bool {
        let has_packets = guard.links.has_packets();
        self.leave(guard, self.now());
        has_packets
    }

    /// Manages the connections to other devices.
    ///
    /// A peer rings the doorbell once for each sleep. A thread that reads a doorbell therefore
    /// wakes all other threads that sleep until a packet arrives.
    pub(crate) fn attend_peers(&self, attendant: Attendant) {
        let Some(peers) = &self.peers else { return };
        let guard = self.core.lock();
        let is_for_driver = guard.waiters.are_asleep();
        let is_for_worker = attendant == Attendant::Poller && guard.sleep.is_for_packets();
        self.leave(guard, self.now());
        if attendant == Attendant::Poller && (is_for_driver || is_for_worker) {
            // The doorbell has woken the other thread too.
            return;
        }
        if self.attend(peers, !is_for_driver) && !is_for_driver {
            let mut guard = self.core.lock();
            if guard.waiters.are_asleep() {
                self.wake_driver();
            }
            if attendant == Attendant::Poller {
                self.wake_sleeping_worker(&mut guard);
            }
            self.leave(guard, self.now());
        }
    }

    /// Manages connections for the driver, which then handles packets with the lock held and [wakes
    /// the worker](Self::wake_sleeping_worker).
    pub(crate) fn attend_peers_as_driver(&self) {
        if let Some(peers) = &self.peers {
            self.attend(peers, true);
        }
    }

    /// Wakes the worker if it is sleeping until a packet arrives.
    pub(crate) fn wake_sleeping_worker(&self, core: &mut DeviceCore) {
        if core.sleep.is_for_packets() {
            core.sleep = Sleep::AWAKE;
            self.wake();
        }
    }

    /// Manages connections, and reads doorbells if `reads_doorbells`. Returns `false` if another
    /// thread is doing so.
    fn attend(&self, peers: &Peers, reads_doorbells: bool) -> bool {
        peers.attend(reads_doorbells, |change| {
            let mut guard = self.core.lock();
            match change {
                Change::Begun(link) => guard.links.add(*link),
                Change::Ended(number) => {
                    // The peer has ended, so it adds no packets, unless it is hostile.
                    for _ in 0..CAUGHT_UP {
                        let now = self.now();
                        let received = guard.receive(&self.socket);
                        self.round(&mut guard, now, received, Acks::Now);
                        if !received && !guard.links.has_packets() {
                            break;
                        }
                    }
                    if let Some(peer) = guard.links.remove(number) {
                        // Strict peers accept one port, so the choice of socket is final.
                        guard.outbox.connected.add(peer.gid, None);
                    }
                }
            }
            self.leave(guard, self.now());
        })
    }

    /// Makes the worker write the counters to files.
    pub(crate) fn publish_counters(&self, files: CounterFiles) {
        *self.counter_files.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(files));
        self.has_counter_files.store(true, Ordering::Release);
        self.wake();
    }

    /// Writes the counters to files, if they have changed and a write is due. If a later write is
    /// needed, returns its time.
    pub(crate) fn update_counter_files(&self) -> Option<Time> {
        if !self.has_counter_files.load(Ordering::Acquire) {
            return None;
        }
        let mut files = self.counter_files.lock().unwrap_or_else(PoisonError::into_inner);
        files.as_mut()?.update(self.now(), || self.socket.counters())
    }

    /// Writes the final counters to files that remain after the process exits, unless another
    /// thread or process keeps the files locked. Allocates nothing.
    pub(crate) fn finish_counter_files(&self) {
        if !self.has_counter_files.load(Ordering::Acquire) {
            return;
        }
        for _ in 0..PATIENCE {
            if self.is_forked() {
                return;
            }
            if let Ok(mut files) = self.counter_files.try_lock()
                && files.as_mut().is_none_or(|files| files.finish(&self.socket.counters()))
            {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Removes the device's socket name from the shared-memory folder before the process exits.
    /// Allocates nothing.
    pub(crate) fn leave_place(&self) {
        if let Some(peers) = self.peers.as_ref().filter(|_| !self.is_forked()) {
            peers.leave_place();
        }
    }

    /// Wakes the driver, if it sleeps.
    pub(crate) fn wake_driver(&self) {
        let _ = self.driver_alarm.write(1);
    }

    /// Wakes the worker.
    pub(crate) fn wake(&self) {
        // A full counter means that the worker has not woken yet.
        let _ = self.alarm.write(1);
    }
}

/// The number of receive calls that drain a full socket. Each call takes 16 small datagrams or one
/// coalesced datagram.
const CAUGHT_UP: u32 = 1024;

/// The number of attempts by an exiting process to acquire a lock.
const PATIENCE: u32 = 1000;

/// The maximum number of times that a poller receives packets before it checks its queue.
const ROUNDS: u32 = 4;

/// The number that a poll with packets adds to [`DeviceState::polls`]. Such a poll takes longer, so
/// the program polls less often.
const POLLS_OF_PACKETS: u32 = 4;

/// One in this many polls without packets checks everything, including the clock.
const IDLE_LOOKS: u32 = 8;

/// After this many consecutive checks that found no packet, a poller gives up its processor. A
/// ping-pong needs fewer.
const MAX_IDLE_LOOKS: u32 = 256;

/// The number of checks of memory that take as long as one check of the socket.
const LOOKS_AT_SOCKET: u32 = 8;

/// A thread that manages connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attendant {
    Worker,
    Poller,
}

/// The outcome of a poller's check for packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Packets,
    Nothing,
    /// Nothing in memory; the socket was not checked.
    NothingInMemory,
}
