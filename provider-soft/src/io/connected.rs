//! [`Connected`]: sockets for packets to devices on this host, one per address.
//!
//! The kernel looks up the route of each datagram from an unconnected socket. For a connected
//! socket it remembers the route, which saves an eighth of a loopback round trip. A connected
//! socket on port 4791 would also receive all packets of its peer, including packets for other
//! processes at this address. These sockets therefore have other ports, as packets from network
//! cards do. The connected sockets receive nothing, because peers send to port 4791.
//!
//! Three rules follow:
//! - Packets to other hosts leave from port 4791. The kernel starts the IPv4 identifications of a
//!   connected socket's datagrams at a random value. The ICRC covers the identification, but only
//!   receivers below the socket layer see it: network cards, and the kernel's rxe, which never
//!   shares a network namespace with a soft device. The ICRC here assumes an identification of 0.
//! - A strict peer accepts one source port for each queue pair. The socket for an address is
//!   therefore chosen before the first UDP packet, when a queue pair connects or a link ends, and
//!   does not change. It is closed only after the address has moved to another host, which breaks
//!   the queue pairs' connections anyway.
//! - A full connected socket does not wake the worker when it has space again. The worker retries
//!   after a moment.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use roce::engine::Gid;

use super::sys;

/// The connected sockets of a device.
#[derive(Debug, Default)]
pub(crate) struct Connected {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    remote: Gid,
    /// The connected socket, or `None` if packets to this address leave from the device's socket.
    socket: Option<Sender>,
}

/// A connected socket and its source port.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(super) fd: OwnedFd,
    pub(super) port: u16,
}

/// The index of a connected socket in [`Connected`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Index(u8);

/// The maximum number of addresses with a chosen socket. Packets to further addresses leave from
/// the device's socket.
const MAX: usize = 32;

impl Connected {
    /// Returns whether the socket for an address must still be chosen; if so, call
    /// [`add`](Self::add) next. If the address belongs to another host, it gets no socket, and an
    /// existing socket is closed.
    pub(crate) fn begin(&mut self, remote: Gid, is_here: bool) -> bool {
        let entry = self.entries.iter_mut().find(|entry| entry.remote == remote);
        match entry {
            Some(entry) if !is_here => entry.socket = None,
            Some(_) => {}
            None => return is_here && self.entries.len() < MAX,
        }
        false
    }

    /// Makes packets to an address leave from a connected socket, or from the device's socket if
    /// `socket` is `None`. Does nothing if another thread has already chosen the socket.
    pub(crate) fn add(&mut self, remote: Gid, socket: Option<Sender>) {
        if self.begin(remote, true) {
            self.entries.push(Entry { remote, socket });
        }
    }

    /// Returns the connected socket for packets to an address, if there is one.
    #[inline]
    pub(super) fn find(&self, remote: &Gid) -> Option<Index> {
        let index = self.entries.iter().position(|entry| entry.remote == *remote)?;
        self.entries[index].socket.is_some().then_some(Index(index as u8))
    }

    /// Returns the source port of the connected socket, if `index` names one.
    #[inline]
    pub(super) fn port(&self, index: Option<Index>) -> Option<u16> {
        Some(self.get(index?)?.port)
    }

    /// Returns the connected socket, if `index` names one.
    #[inline]
    pub(super) fn fd(&self, index: Option<Index>) -> Option<BorrowedFd<'_>> {
        Some(self.get(index?)?.fd.as_fd())
    }

    /// Returns the number of bytes in the send queues of all connected sockets.
    pub(super) fn unsent(&self) -> u64 {
        self.entries
            .iter()
            .filter_map(|entry| entry.socket.as_ref())
            .map(|socket| sys::unsent(socket.fd.as_fd()))
            .sum()
    }

    #[inline]
    fn get(&self, index: Index) -> Option<&Sender> {
        self.entries.get(usize::from(index.0))?.socket.as_ref()
    }
}
