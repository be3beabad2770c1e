//! [`Mailbox`] and [`Forwarder`]: connection requests between processes that share an address.
//!
//! Only the service id determines the listening process. The kernel does not know service ids: it
//! delivers a request to any process at the address that has a connection manager. The receiving
//! process forwards it:
//!
//! ```text
//!   listener:  listen at \0verbs-soft/cm/2/mad/10.0.0.1/0000000001061c06
//!   other:     connect, see that the listener is of this user (SO_PEERCRED), send the request
//! ```
//!
//! A name belongs to one process, so a service has one listener at an address. Each process also
//! has a name with its slot, for messages without a service id. For example, a peer that gives up
//! before the reply does not know the receiver's id. All processes receive such messages.
//! Connections to services stay open for later requests. Requests that do not fit into a
//! connection's buffer wait for space. A listener can be this far behind when many clients connect
//! at once, and their next attempts would come only after seconds.
//!
//! # Without free descriptors
//! A process without a free descriptor closes its spare descriptor ([`SpareFd`]) to accept a
//! connection. The connection keeps that descriptor's number until another connection needs it. The
//! mailbox then shuts down its oldest connection, returns the requests that have arrived on it, and
//! closes it. The forwarding process opens a new connection for its next request.
//!
//! # References
//! `unix(7)` (`SOCK_SEQPACKET`)

use std::collections::{BTreeMap, VecDeque};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, bind, listen, recv, send, socket,
};
use verbs_core::Errno;
use verbs_core::types::Gid;

use super::gsi::{MAD_LEN, MadAddress, ReceivedMad};
use super::port::Port;
use super::rendezvous::{process_name, service_name};
use crate::io::names::is_reached;
use crate::io::owner::Owner;
use crate::io::spare::SpareFd;

/// Receives requests for a service, or other messages, forwarded by other processes. Dropping the
/// mailbox frees the name.
///
/// Its descriptor is readable while requests may be waiting. Do not read from it.
#[derive(Debug)]
pub struct Mailbox {
    listener: UnixListener,
    /// Connections from other processes. The epoll data of a connection is its index plus 1.
    streams: Vec<UnixStream>,
    epoll: Epoll,
    spare: SpareFd,
}

impl Mailbox {
    /// Binds the name of a service at a port's address. Returns `None` if the address is not
    /// shared.
    ///
    /// # Errors
    /// `EADDRINUSE`: another process has a listener for the service at this address; any other
    /// errno of `socket(2)`, `bind(2)` and `epoll_create1(2)`, notably `EMFILE`.
    pub fn bind(port: &Port, service: u64) -> Result<Option<Self>, Errno> {
        Self::with_name(port, &service_name(port, service))
    }

    /// Binds the name of this process at a port's address. Returns `None` if the address is not
    /// shared.
    ///
    /// # Errors
    /// The errors of [`bind`](Self::bind). Here `EADDRINUSE` means that a forked child of the
    /// slot's previous owner still has the name.
    pub fn bind_process(port: &Port) -> Result<Option<Self>, Errno> {
        Self::with_name(port, &process_name(port, port.slot()))
    }

    fn with_name(port: &Port, name: &str) -> Result<Option<Self>, Errno> {
        if port.slot() == 0 {
            return Ok(None);
        }
        let listener = packets()?;
        bind(listener.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
        listen(&listener, Backlog::MAXALLOWABLE)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(Some(Self { listener: listener.into(), streams: Vec::new(), epoll, spare: SpareFd::new() }))
    }

    /// Returns the next request, without waiting.
    pub fn recv(&mut self) -> Option<ReceivedMad> {
        for _ in 0..CONNECTIONS {
            let mut events = [EpollEvent::empty()];
            if self.epoll.wait(&mut events, EpollTimeout::ZERO) != Ok(1) {
                return None;
            }
            match usize::try_from(events[0].data()).unwrap_or(0).checked_sub(1) {
                None => self.admit()?,
                Some(index) => {
                    let mut bytes = [0; LEN + 1];
                    let stream = self.streams.get(index)?;
                    match recv(stream.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
                        Ok(LEN) => return Some(parse(&bytes)),
                        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => {}
                        _ => self.forget(index),
                    }
                }
            }
        }
        None
    }

    /// Accepts a connection from another process. If the list of connections is full, closes the
    /// new connection, so that the mailbox does not stay readable. If no descriptor is free, shuts
    /// down the oldest connection instead; a later call accepts the new connection.
    fn admit(&mut self) -> Option<()> {
        let accept = || self.listener.accept().map_err(|error| Errno::from_io(&error));
        let stream = match self.spare.lend(accept) {
            Ok((stream, _)) => stream,
            // Requests already sent can still be read. Later sends fail.
            Err(Errno::MFILE) => return self.streams.first()?.shutdown(Shutdown::Read).ok(),
            Err(_) => return None,
        };
        if Owner::from_stream(&stream).is_ok_and(Owner::is_own_user)
            && self.streams.len() < CONNECTIONS
            && self.streams.try_reserve(1).is_ok()
        {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, self.streams.len() as u64 + 1);
            self.epoll.add(&stream, event).ok()?;
            self.streams.push(stream);
        } else {
            drop(stream);
            self.spare.restore();
        }
        Some(())
    }

    /// Drops a connection. Later connections move up, so the first connection is always the oldest.
    fn forget(&mut self, index: usize) {
        let _ = self.epoll.delete(&self.streams[index]);
        drop(self.streams.remove(index));
        self.spare.restore();
        for (index, moved) in self.streams.iter().enumerate().skip(index) {
            let mut event = EpollEvent::new(EpollFlags::EPOLLIN, index as u64 + 1);
            let _ = self.epoll.modify(moved, &mut event);
        }
    }
}

/// The descriptor is readable while requests may be waiting.
impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

/// Forwards requests to the processes that listen for their services.
#[derive(Debug)]
pub struct Forwarder {
    /// Connections to listening processes, by service id.
    streams: BTreeMap<u64, Stream>,
    /// The total number of requests that wait for space in any connection.
    waiting: usize,
    /// An epoll instance that is readable while a connection with waiting requests has space.
    /// Created when a request first has to wait.
    writable: Option<Epoll>,
    /// A spare descriptor, for forwarding requests when all other descriptors are in use.
    spare: SpareFd,
}

/// A connection to the listener of a service.
#[derive(Debug)]
struct Stream {
    socket: OwnedFd,
    /// The requests that wait for space in the socket's buffer, oldest first.
    waiting: VecDeque<[u8; LEN]>,
}

impl Default for Forwarder {
    fn default() -> Self {
        Self { streams: BTreeMap::new(), waiting: 0, writable: None, spare: SpareFd::new() }
    }
}

impl Forwarder {
    /// Forwards a request to the process listening for its service at a port's address. Returns
    /// whether such a process exists. If the process has no space for the request yet,
    /// [`flush`](Self::flush) sends the request later.
    pub fn forward(&mut self, port: &Port, service: u64, request: &ReceivedMad) -> bool {
        if port.slot() == 0 {
            return false;
        }
        let bytes = emit(request);
        if let Some(stream) = self.streams.get(&service) {
            let delivery =
                if stream.waiting.is_empty() { send_to(&stream.socket, &bytes) } else { Delivery::Full };
            match delivery {
                Delivery::Sent => return true,
                Delivery::Full => {
                    self.hold(service, bytes);
                    return true;
                }
                // Another listener may have the name now.
                Delivery::Ended => self.close(service),
            }
        }
        // Without a descriptor the request is lost, as on a network. The listening process may
        // exist.
        let Ok(socket) = self.spare.lend(packets) else { return true };
        let is_sent = is_forwarded(&socket, &service_name(port, service), &bytes);
        if self.spare.is_lent() {
            drop(socket);
            self.spare.restore();
        } else if is_sent == Some(true) {
            self.close_ended();
            if self.streams.len() >= CONNECTIONS
                && let Some(first) = self.streams.keys().next().copied()
            {
                self.close(first);
            }
            self.streams.insert(service, Stream { socket, waiting: VecDeque::new() });
        }
        is_sent.is_some()
    }

    /// Sends waiting requests to the processes that have space for them now.
    pub fn flush(&mut self) {
        if self.waiting == 0 {
            return;
        }
        let mut ended = Vec::new();
        for (service, stream) in &mut self.streams {
            while let Some(bytes) = stream.waiting.front() {
                match send_to(&stream.socket, bytes) {
                    Delivery::Sent => {
                        stream.waiting.pop_front();
                        self.waiting -= 1;
                        if stream.waiting.is_empty()
                            && let Some(writable) = &self.writable
                        {
                            let _ = writable.delete(&stream.socket);
                        }
                    }
                    Delivery::Full => break,
                    Delivery::Ended => {
                        ended.push(*service);
                        break;
                    }
                }
            }
        }
        ended.into_iter().for_each(|service| self.close(service));
    }

    /// Returns a file that is readable while [`flush`](Self::flush) can send a waiting request.
    /// Returns `None` if no request has had to wait.
    pub fn writable(&self) -> Option<BorrowedFd<'_>> {
        self.writable.as_ref().map(|epoll| epoll.0.as_fd())
    }

    /// Keeps a request until the connection has space for it. The request is lost, as on a network,
    /// if too many requests wait, or if memory or descriptors are short.
    fn hold(&mut self, service: u64, bytes: [u8; LEN]) {
        let Some(stream) = self.streams.get_mut(&service) else { return };
        if self.waiting >= WAITING || stream.waiting.try_reserve(1).is_err() {
            return;
        }
        if self.writable.is_none() {
            self.writable = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).ok();
        }
        let Some(writable) = &self.writable else { return };
        if stream.waiting.is_empty()
            && writable.add(&stream.socket, EpollEvent::new(EpollFlags::EPOLLOUT, 0)).is_err()
        {
            return;
        }
        stream.waiting.push_back(bytes);
        self.waiting += 1;
    }

    /// Closes the connection to a service and drops its waiting requests.
    fn close(&mut self, service: u64) {
        let Some(stream) = self.streams.remove(&service) else { return };
        self.waiting -= stream.waiting.len();
        // A forked child may hold the socket as well, so closing it is not enough.
        if !stream.waiting.is_empty()
            && let Some(writable) = &self.writable
        {
            let _ = writable.delete(&stream.socket);
        }
    }

    /// Closes connections to listeners that have ended.
    fn close_ended(&mut self) {
        let files = self.streams.values().map(|stream| stream.socket.as_fd());
        let mut fds: Vec<_> = files.map(|file| PollFd::new(file, PollFlags::empty())).collect();
        let Ok(1..) = poll(&mut fds, PollTimeout::ZERO) else { return };
        let ended = fds.iter().zip(self.streams.keys()).filter(|(fd, _)| fd.any() == Some(true));
        let ended: Vec<_> = ended.map(|(_, service)| *service).collect();
        ended.into_iter().for_each(|service| self.close(service));
    }

    /// Forwards a message to each other process at a port's address. A process without a free
    /// descriptor or buffer space loses the message, as on a network.
    pub fn forward_to_all(&mut self, port: &Port, message: &ReceivedMad) {
        if port.slot() == 0 {
            return;
        }
        let bytes = emit(message);
        let mut unconnected = None;
        for slot in (1..=u8::MAX).filter(|slot| *slot != port.slot()) {
            let Some(stream) = unconnected.take().or_else(|| self.spare.lend(packets).ok()) else { break };
            if is_forwarded(&stream, &process_name(port, slot), &bytes).is_none() {
                unconnected = Some(stream);
            }
        }
        drop(unconnected);
        self.spare.restore();
    }
}

/// Connects `stream` to the process of this user that has bound `name`, and sends a message.
/// Returns whether the message was sent, or `None` if no process of this user has bound the name.
/// Sending fails if the process cannot queue the connection, or has shut it down to accept another.
fn is_forwarded(stream: &OwnedFd, name: &str, bytes: &[u8; LEN]) -> Option<bool> {
    match is_reached(stream, name) {
        Ok(true) if Owner::from_stream(stream).is_ok_and(Owner::is_own_user) => {
            Some(send_to(stream, bytes) == Delivery::Sent)
        }
        // The process's backlog of connections is full.
        Err(Errno::AGAIN) => Some(false),
        Ok(_) | Err(_) => None,
    }
}

/// Creates a sequenced-packet socket.
fn packets() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

/// The result of sending a request over a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Delivery {
    Sent,
    /// The receive buffer has no space for the request.
    Full,
    /// The listener has ended.
    Ended,
}

fn send_to(socket: &OwnedFd, bytes: &[u8; LEN]) -> Delivery {
    match send(socket.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
        Ok(_) => Delivery::Sent,
        Err(nix::errno::Errno::EAGAIN) => Delivery::Full,
        Err(_) => Delivery::Ended,
    }
}

/// The length of a forwarded request, in bytes: source GID, source queue pair, partition key,
/// traffic class, hop limit, MAD.
const LEN: usize = 16 + 4 + 2 + 1 + 1 + MAD_LEN;

fn emit(request: &ReceivedMad) -> [u8; LEN] {
    let MadAddress { gid, qpn, traffic_class, hop_limit } = request.from;
    let mut bytes = [0; LEN];
    bytes[..16].copy_from_slice(&gid.0);
    bytes[16..20].copy_from_slice(&qpn.to_ne_bytes());
    bytes[20..22].copy_from_slice(&request.pkey.to_ne_bytes());
    bytes[22..24].copy_from_slice(&[traffic_class, hop_limit]);
    bytes[24..].copy_from_slice(&request.mad);
    bytes
}

fn parse(bytes: &[u8; LEN + 1]) -> ReceivedMad {
    let (mut gid, mut mad) = ([0; 16], [0; MAD_LEN]);
    gid.copy_from_slice(&bytes[..16]);
    mad.copy_from_slice(&bytes[24..LEN]);
    let qpn = u32::from_ne_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
    let from = MadAddress { gid: Gid(gid), qpn, traffic_class: bytes[22], hop_limit: bytes[23] };
    ReceivedMad { from, pkey: u16::from_ne_bytes([bytes[20], bytes[21]]), mad }
}

/// The maximum number of connections to other processes, and from other processes.
const CONNECTIONS: usize = 256;

/// The maximum number of waiting requests. Together they have 1.1 MiB.
const WAITING: usize = 4096;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_the_same_behind_the_way() {
        let from = MadAddress { gid: Gid([7; 16]), qpn: 0x12_3456, traffic_class: 3, hop_limit: 64 };
        let request = ReceivedMad { from, pkey: 0x7fff, mad: [9; MAD_LEN] };
        let mut bytes = [0; LEN + 1];
        bytes[..LEN].copy_from_slice(&emit(&request));
        let parsed = parse(&bytes);
        assert_eq!((parsed.from, parsed.pkey, parsed.mad), (from, 0x7fff, request.mad));
    }
}
