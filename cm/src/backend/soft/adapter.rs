//! [`Adapter`]: a soft device in use, with its queue pair 1 and its communication manager.
//!
//! ```text
//!   ids, time ─► Cm ─► poll_transmit ─► Gsi::send          the thread of a call, or the manager's
//!   Gsi::recv ─► Cm ─► poll_event ─► ids                   the manager's thread
//! ```
//!
//! An adapter exists while an id uses the device. It then remains for up to [`LINGER`] while
//! connections of dropped ids are released. An adapter keeps the device and its address alive.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use ib_cm::Random;
use ib_cm::cm::{Address, Cm, CmId, Config, ListenId};
use ib_cm::intake::{Intake, is_request};
use ib_cm::time::Time;
use ib_cm::wire::{Attribute, Ece as WireEce, Mtu, ServiceId, mad};
use nix::sys::epoll::Epoll;
use provider_soft::cm::{Forwarder, Gsi, MAD_LEN, MadAddress, Mailbox, Port, ReceivedMad};
use verbs::{Ece, Errno, Gid};

use super::key::Key;

/// A soft device that ids use, with its queue pair 1 and communication manager.
#[derive(Debug)]
pub(super) struct Adapter {
    pub(super) port: Port,
    pub(super) gsi: Gsi,
    pub(super) cm: Cm,
    /// Mailboxes, by service, into which other processes at this address forward requests for this
    /// process.
    mailboxes: BTreeMap<ServiceId, Mailbox>,
    /// The mailbox into which other processes at this address forward messages without a receiver
    /// id.
    pub(super) process_mailbox: Option<Mailbox>,
    /// A message from a mailbox, to be handled after messages that were sent earlier.
    forwarded: Option<ReceivedMad>,
    /// Forwards messages to other processes at this address.
    forwarder: Forwarder,
    /// Whether the manager's thread waits for [`Forwarder::writable`].
    watches_forwarder: bool,
    /// Received requests that have not been handled yet.
    intake: Intake,
    /// The port's active MTU at the last check.
    active_mtu: Mtu,
    /// The soft ids of connections and service lookups, by communication id.
    pub(super) connections: BTreeMap<CmId, Key>,
    /// The listeners of each service, by service id.
    pub(super) services: BTreeMap<ServiceId, (ListenId, Vec<Key>)>,
    /// The number of ids that use this device.
    pub(super) users: usize,
    /// Whether an interface had the device's address when the adapter was created.
    pub(super) has_address: bool,
    /// The time when an unused adapter is closed, even if peers have not confirmed the release of
    /// its connections.
    pub(super) ends_at: Option<Time>,
    /// The time when release requests are next repeated.
    pub(super) repeats_at: Option<Time>,
}

/// The number of requests to handle before timers, events and calls of other threads are handled.
pub(super) const ROUND: usize = 64;

/// The number of MADs to receive before requests are handled, even if more are pending: the
/// capacity of queue pair 1.
pub(super) const RECEIVED: usize = 8192;

/// The number of other messages to handle before requests are handled.
pub(super) const OTHERS: usize = 512;

/// The cost of a message to all processes at the address, counted in other messages.
const COST_OF_ALL: usize = 31;

/// The maximum number of requests waiting to be handled. Under a flood, they take 1.2 MiB.
pub(super) const INTAKE: usize = 4096;

/// The maximum time for releasing connections after the last id is gone: 10 s, in nanoseconds.
pub(super) const LINGER: u64 = 10_000_000_000;

/// The interval between repeated release requests: 1 s, in nanoseconds. With the protocol's
/// interval of 4.6 s and a packet loss of 20 %, one peer in a hundred would miss the end of the
/// connection.
pub(super) const REPEAT: u64 = 1_000_000_000;

impl Adapter {
    /// Opens queue pair 1 of a device. `has_address` states whether an interface has the device's
    /// address.
    ///
    /// # Errors
    /// The errors of [`Port::take_gsi`], notably `EBUSY`.
    pub(super) fn new(port: &Port, has_address: bool) -> Result<Self, Errno> {
        let gsi = port.take_gsi().map_err(|error| error.errno)?;
        let config = Config {
            node_guid: port.node_guid().0,
            ack_delay: Port::ACK_DELAY,
            id_prefix: port.slot(),
            ..Config::default()
        };
        Ok(Self {
            port: port.clone(),
            gsi,
            cm: Cm::new(config, SystemRandom),
            mailboxes: BTreeMap::new(),
            // Without the mailbox, a peer that gives up its request is noticed only by its silence.
            process_mailbox: Mailbox::bind_process(port).ok().flatten(),
            forwarded: None,
            forwarder: Forwarder::default(),
            watches_forwarder: false,
            intake: Intake::new(INTAKE),
            active_mtu: Mtu(port.active_mtu()?.0),
            connections: BTreeMap::new(),
            services: BTreeMap::new(),
            users: 0,
            has_address,
            ends_at: None,
            repeats_at: None,
        })
    }

    pub(super) fn is_used(&self) -> bool {
        self.users > 0 || !self.services.is_empty()
    }

    /// Returns whether the port can carry packets of this path MTU. Checks again because the
    /// interface's MTU may have been raised. If the MTU was lowered, the queue pair's state
    /// transition fails.
    pub(super) fn carries(&mut self, mtu: Mtu) -> bool {
        if mtu > self.active_mtu
            && let Ok(active) = self.port.active_mtu()
        {
            self.active_mtu = Mtu(active.0);
        }
        mtu <= self.active_mtu
    }

    /// Passes MADs from queue pair 1 to the communication manager: at most [`OTHERS`] other
    /// messages, then at most [`ROUND`] requests, and fewer if memory for their events is short.
    /// Returns whether more may be pending without the descriptor being readable.
    ///
    /// Queue pair 1 drops MADs that do not fit, regardless of their sender, so it is emptied first.
    pub(super) fn receive(&mut self, now: Time) -> bool {
        self.forwarder.flush();
        let local = self.port.gid().0;
        let (mut has_more, mut others) = (true, 0);
        for _ in 0..RECEIVED {
            if others >= OTHERS || !self.cm.has_room() {
                break;
            }
            let received = match self.gsi.recv() {
                Some(received) if self.is_forwarded(&received) => {
                    others += 1;
                    continue;
                }
                Some(received) => {
                    if self.port.slot() != 0 && has_no_receiver(&received.mad) {
                        self.forwarder.forward_to_all(&self.port, &received);
                        others += COST_OF_ALL;
                    }
                    received
                }
                None => match self.forwarded.take() {
                    Some(forwarded) => forwarded,
                    None => {
                        // The process mailbox is last: a request must precede the message that
                        // gives it up.
                        let mut mailboxes = self.mailboxes.values_mut().chain(&mut self.process_mailbox);
                        self.forwarded = mailboxes.find_map(Mailbox::recv);
                        if self.forwarded.is_none() {
                            has_more = false;
                            break;
                        }
                        // The sender's earlier messages are in the device's socket and must be
                        // handled first.
                        self.gsi.catch_up();
                        continue;
                    }
                },
            };
            let from = Address {
                qpn: received.from.qpn,
                traffic_class: received.from.traffic_class,
                ..Address::gsi(local, received.from.gid.0)
            };
            if !self.intake.sort(&from, &received.mad) {
                self.cm.input(now, &from, &received.mad);
                self.send();
                others += 1;
            }
        }
        for _ in 0..ROUND {
            if !self.cm.has_room() {
                return true;
            }
            let Some((from, mad)) = self.intake.take() else { return has_more };
            self.cm.input(now, &from, &mad);
            self.send();
        }
        true
    }

    /// Passes the forwarder's file to `watch`, which registers it with the manager's thread, once
    /// requests wait for it. If that fails, the next call tries again.
    pub(super) fn watch_forwarder(&mut self, watch: impl Fn(BorrowedFd<'_>) -> Result<(), Errno>) {
        if !self.watches_forwarder
            && let Some(writable) = self.forwarder.writable()
        {
            self.watches_forwarder = watch(writable).is_ok();
        }
    }

    /// Forwards a request for another process. Returns whether there was one.
    fn is_forwarded(&mut self, received: &ReceivedMad) -> bool {
        let service = requested_service(&received.mad).filter(|of| !self.services.contains_key(of));
        service.is_some_and(|ServiceId(of)| self.forwarder.forward(&self.port, of, received))
    }

    /// Sends the pending messages. A message that cannot be sent is lost, as on a network.
    pub(super) fn send(&mut self) {
        while let Some((to, mad)) = self.next_message() {
            let _ = self.gsi.send(&to, &mad);
        }
    }

    /// Sends the pending messages while the process exits, until one cannot be sent. Returns false
    /// if the device is held by a thread that can no longer run.
    pub(super) fn send_at_exit(&mut self) -> bool {
        while let Some((to, mad)) = self.next_message() {
            if let Err(error) = self.gsi.send_at_exit(&to, &mad) {
                return error.errno != Errno::BUSY;
            }
        }
        true
    }

    /// Passes received MADs to the communication manager while the process exits. Drops requests,
    /// because unknown hosts may send them endlessly and no program will read them. Returns the
    /// same as [`send_at_exit`](Self::send_at_exit).
    pub(super) fn receive_at_exit(&mut self, now: Time) -> bool {
        let local = self.port.gid().0;
        let mut others = 0;
        for _ in 0..RECEIVED {
            if others == OTHERS {
                break;
            }
            let Some(received) = self.gsi.recv() else { break };
            if is_request(&received.mad) {
                continue;
            }
            let from = Address {
                qpn: received.from.qpn,
                traffic_class: received.from.traffic_class,
                ..Address::gsi(local, received.from.gid.0)
            };
            self.cm.input(now, &from, &received.mad);
            others += 1;
        }
        self.send_at_exit()
    }

    fn next_message(&mut self) -> Option<(MadAddress, [u8; MAD_LEN])> {
        let transmit = self.cm.poll_transmit()?;
        let to = MadAddress {
            qpn: transmit.to.qpn,
            traffic_class: transmit.to.traffic_class,
            ..MadAddress::new(Gid(transmit.to.remote))
        };
        Some((to, transmit.mad))
    }

    /// Adds a listener for a service. `watch` registers a descriptor with the manager's thread.
    ///
    /// # Errors
    /// `ENOMEM` if the communication manager cannot hold another service; `EADDRINUSE` if another
    /// process at the address has the service; any errno from [`Mailbox::bind`] and `watch`.
    pub(super) fn listen(
        &mut self,
        service: ServiceId,
        key: Key,
        watch: impl Fn(&Mailbox) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if let Some((_, keys)) = self.services.get_mut(&service) {
            keys.try_reserve(1).map_err(|_| Errno::NOMEM)?;
            keys.push(key);
            return Ok(());
        }
        let mailbox = Mailbox::bind(&self.port, service.0)?;
        mailbox.as_ref().map_or(Ok(()), watch)?;
        // The id limits unread requests, so this backlog is unlimited.
        let listener = self.cm.listen(service, u64::MAX, usize::MAX).map_err(|_| Errno::NOMEM)?;
        self.services.insert(service, (listener, vec![key]));
        self.mailboxes.extend(mailbox.map(|mailbox| (service, mailbox)));
        Ok(())
    }

    /// Removes a listener from a service. `epoll` is the instance of the manager's thread.
    pub(super) fn unlisten(&mut self, service: ServiceId, key: Key, epoll: &Epoll) {
        let Some((listener, keys)) = self.services.get_mut(&service) else { return };
        keys.retain(|other| *other != key);
        if keys.is_empty() {
            let _ = self.cm.unlisten(*listener);
            self.services.remove(&service);
            if let Some(mailbox) = self.mailboxes.remove(&service) {
                let _ = epoll.delete(mailbox);
            }
        }
    }

    /// Removes the adapter's files from the instance of the manager's thread, before the adapter is
    /// closed. Closing the descriptors is not enough, because a forked child may hold the files as
    /// well.
    pub(super) fn unwatch(&self, epoll: &Epoll) {
        let _ = epoll.delete(&self.gsi);
        for mailbox in self.mailboxes.values().chain(&self.process_mailbox) {
            let _ = epoll.delete(mailbox);
        }
        if let Some(writable) = self.forwarder.writable() {
            let _ = epoll.delete(writable);
        }
    }
}

/// Returns the service id in a request. It follows the MAD header, an id and 4 bytes.
fn requested_service(mad: &[u8; MAD_LEN]) -> Option<ServiceId> {
    let service = mad[32..].first_chunk().filter(|_| is_request(mad))?;
    Some(ServiceId(u64::from_be_bytes(*service)))
}

/// Returns whether a message ends a connection using only the sender's id: a REJ from a peer that
/// gives up its request before the reply. The REJ data begin with the ids of the sender and the
/// receiver.
fn has_no_receiver(mad: &[u8; MAD_LEN]) -> bool {
    let header = mad::Packet::new_checked(mad);
    header.is_ok_and(|header| header.mgmt_class() == mad::CLASS && header.attr_id() == Attribute::REJ)
        && mad[28..32] == [0; 4]
}

/// The kernel's random number generator.
#[derive(Debug)]
pub(super) struct SystemRandom;

impl Random for SystemRandom {
    fn draw(&mut self) -> Option<u32> {
        verbs_core::random::draw().ok()
    }
}

pub(super) const fn ece_to_wire(ece: Ece) -> WireEce {
    WireEce { vendor_id: ece.vendor_id, attr_mod: ece.options }
}

pub(super) const fn ece_from_wire(ece: WireEce) -> Ece {
    Ece { vendor_id: ece.vendor_id, options: ece.attr_mod }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::time::{Duration, Instant};

    use ib_cm::wire::{Message, rej, req, rtu};
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn port() -> (verbs::Device, Port) {
        let device = crate::own_device::own_device();
        let gid = device.open().unwrap().find_gid(1).unwrap().gid;
        let port = Port::with_address(gid.to_ipv6().to_canonical()).unwrap();
        (device, port)
    }

    #[test]
    fn a_message_without_a_receiver_is_a_rej_of_one_id() {
        let rej = |remote_comm_id| {
            let rej = rej::Repr { local_comm_id: 7, remote_comm_id, ..rej::Repr::default() };
            Message::from(rej).emit(1, 0)
        };
        assert!(has_no_receiver(&rej(0)));
        assert!(!has_no_receiver(&rej(0x100)));
        assert!(!has_no_receiver(&Message::from(rtu::Repr::default()).emit(1, 0)));
    }

    #[test]
    fn a_flood_of_requests_is_handled_in_rounds() {
        is_handled_in_rounds(Message::from(req::Repr::default()), ROUND);
    }

    #[test]
    fn a_flood_of_other_messages_is_handled_in_rounds() {
        is_handled_in_rounds(Message::from(rtu::Repr::default()), OTHERS);
    }

    #[test]
    fn requests_of_strangers_keep_no_message_from_a_process_that_exits() {
        let ((_keeps, port), (_keeps_too, stranger)) = (port(), port());
        let mut adapter = Adapter::new(&port, true).unwrap();
        let to = MadAddress::new(port.gid());
        let stranger = stranger.take_gsi().unwrap();
        let request = Message::from(req::Repr::default()).emit(1, 0);
        let last = Message::from(rtu::Repr::default()).emit(1, 0);
        for mad in [request; 2 * ROUND].iter().chain([&last]) {
            while stranger.send(&to, mad).is_err() {}
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        while adapter.cm.counters().received == 0 {
            assert!(Instant::now() < deadline, "nothing was read");
            adapter.receive_at_exit(Time(0));
        }
        assert_eq!(adapter.cm.counters().received, 1, "requests are read");
    }

    /// Sends messages of an unknown peer. Checks that one call handles at most `most` of them.
    #[track_caller]
    fn is_handled_in_rounds(message: Message, most: usize) {
        let (sent, most) = (5 * most as u64 / 2, most as u64);
        let ((_keeps, port), (_keeps_too, stranger)) = (port(), port());
        let mut adapter = Adapter::new(&port, true).unwrap();
        let to = MadAddress::new(port.gid());
        let stranger = stranger.take_gsi().unwrap();
        let mad = message.emit(1, 0);
        for _ in 0..sent {
            while stranger.send(&to, &mad).is_err() {}
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut received = 0;
        while received < sent {
            assert!(Instant::now() < deadline, "{received} arrived");
            let is_more = adapter.receive(Time(0));
            let count = adapter.cm.counters().received - received;
            assert!(count <= most, "{count} at once");
            assert_eq!(is_more, count == most);
            received += count;
            if !is_more && received < sent {
                let mut fds = [PollFd::new(adapter.gsi.as_fd(), PollFlags::POLLIN)];
                poll(&mut fds, PollTimeout::from(1000_u16)).unwrap();
            }
        }
    }
}
