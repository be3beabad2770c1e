//! [`Membership`]: processes of the same user that share an address.
//!
//! An address has one UDP port 4791, but MPI ranks or a server's workers are separate processes.
//! Each process has a *slot* at the address: a UDP socket, and the upper 8 bits of its queue pair
//! numbers and communication ids. The kernel chooses the socket of each packet: the sockets form a
//! group (`SO_REUSEPORT`), and a [`filter`] computes the index in the group from the packet's
//! headers. No process forwards data; all have the same role.
//!
//! ```text
//!              ┌─ for queue pair 0x5aabcd ───────────► socket 2: the process with slot 0x5a
//!   packet ────┼─ a CM message to the id 0x59...... ──► socket 1: the process with slot 0x59
//!              └─ a connection request ───────────────► socket 0: all processes
//! ```
//!
//! The slot is the index of the socket, combined (XOR) with a *mask* that the first process draws.
//! An attacker therefore has to guess all 24 bits of a queue pair number.
//!
//! Socket 0 receives connection requests, whose process is determined only by the service id, and
//! messages without the receiver's id. Each process with a connection manager reads and forwards
//! both.
//!
//! # When processes end
//! The kernel numbers the sockets of a group in the order of `bind(2)`. When a socket is closed,
//! the kernel moves the last socket to the closed socket's index. Therefore no socket of a group is
//! closed while any process uses the address: a *store* shared by all processes keeps each socket
//! open. The next process takes the slot of a process that has ended.
//!
//! | abstract name of a Unix socket | held by | for |
//! |---|---|---|
//! | `BASE/join` | the process that joins | joining one process at a time |
//! | `BASE/group` | all processes | getting the store: any of them replies |
//! | `BASE/INDEX` | the process with the slot | freeing the slot when the process ends in any way |
//!
//! `BASE` contains the user, because only processes of one user may share a UDP port. Like the
//! address, the names belong to the network namespace.
//!
//! # Two kinds of groups
//! The sockets of a group accept packets from the network, or only packets from this host
//! ([`Reach`]). An address has only one group at a time, because the kernel would deliver packets
//! from this host to sockets of either group. The names for the second kind are `BASE/host/group`
//! and `BASE/host/INDEX`.
//!
//! # References
//! `socket(7)` (`SO_REUSEPORT`, `SO_ATTACH_REUSEPORT_CBPF`, `SO_PEEK_OFF`), `unix(7)`
//! (`SCM_RIGHTS`); IBTA volume 1, 9.2 (BTH), 12.6 (communication management messages)

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram, UnixListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use libc::sock_filter;
use verbs_core::Errno;

use super::names::{is_own_user, pause, reach, wait};
use super::socket::Reach;
use super::spare::SpareFd;
use super::sys;
use super::turn::Turn;

/// A process's slot in the group of processes that share an address. Dropping the membership frees
/// the slot.
#[derive(Debug)]
pub(crate) struct Membership {
    slot: u8,
    group: UnixListener,
    store: Store,
    /// The socket for connection requests.
    requests: OwnedFd,
    /// The Unix socket bound to the name of the slot's index.
    claim: UnixDatagram,
    /// A spare descriptor, for replying when all other descriptors are in use.
    spare: Mutex<SpareFd>,
    /// The common prefix of the Unix socket names for the address.
    base: Box<str>,
    /// Whether the kernel has joined packets for several processes.
    pub(super) has_joined: AtomicBool,
}

/// The highest socket index.
const LAST: u8 = 254;

/// The maximum time to wait for another process to join or to reply. A stopped process (for
/// example, in a debugger) does not reply.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time allowed for an exiting process to close all its sockets.
const ENDING: Duration = Duration::from_millis(500);

/// The maximum number of processes admitted by one call. The next constant is the maximum number of
/// packets dropped when a process joins.
const ADMITTED: usize = 64;
const DISCARDED: usize = 1 << 16;

impl Membership {
    /// Joins the processes that share an address, or starts sharing it. `base` is the common prefix
    /// of the [names](base_name); `open` opens a socket at the address, bound with `SO_REUSEPORT`,
    /// for packets from `reach`. Also returns the UDP socket of the slot.
    ///
    /// # Errors
    /// - `ETIMEDOUT`: the processes sharing the address do not reply.
    /// - `EUSERS`: all slots are in use.
    /// - `EADDRINUSE`: another user has a name or the port, or processes of this user share the
    ///   address with another `reach`.
    /// - any other errno of `open`, `socket(2)`, `bind(2)`, `connect(2)` and `sendmsg(2)`, notably
    ///   `EMFILE`.
    pub(super) fn join(
        base: &str,
        reach: Reach,
        open: impl Fn(bool) -> Result<OwnedFd, Errno>,
    ) -> Result<(Self, OwnedFd), Errno> {
        let deadline = Instant::now() + PATIENCE;
        let _turn = Turn::take(base, deadline)?;
        let names = names_of(base, reach);
        let (group, store) = match find(&names, deadline)? {
            Some(found) => found,
            None if is_group(&names_of(base, reach.other()), deadline)? => return Err(Errno::ADDRINUSE),
            None => begin(&names, &open)?,
        };
        let (mask, requests) = store.get(0)?.ok_or(Errno::NODEV)?;
        // Slot 0 would stand for queue pairs 0 and 1.
        let (index, claim) = claim(&names, mask)?;
        let socket = loop {
            match store.get(index)? {
                Some((_, socket)) => break socket,
                None => store.push(mask, open(true)?.as_fd())?,
            }
        };
        // Discards packets for the process that had the slot before.
        let _ = (0..DISCARDED).find(|_| sys::discard(socket.as_fd()).is_err());
        let spare = Mutex::new(SpareFd::new());
        let (base, has_joined) = (base.into(), AtomicBool::new(false));
        let slot = index ^ mask;
        Ok((Self { slot, group, store, requests, claim, spare, base, has_joined }, socket))
    }

    /// Returns the slot, which is not 0.
    pub(crate) fn slot(&self) -> u8 {
        self.slot
    }

    /// Returns a duplicate descriptor of the socket for connection requests.
    ///
    /// # Errors
    /// Any errno of `fcntl(2)`, notably `EMFILE`.
    pub(super) fn requests(&self) -> Result<OwnedFd, Errno> {
        self.requests.try_clone().map_err(|error| Errno::from_io(&error))
    }

    /// Replies to joining processes, without waiting.
    pub(crate) fn admit(&self) {
        let files = [self.group.as_fd(), self.store.ends[0].as_fd(), self.store.ends[1].as_fd()];
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let accept = || self.group.accept().map_err(|error| Errno::from_io(&error));
        // If another process has replied, no process is waiting.
        for _ in 0..ADMITTED {
            let Ok((stream, _)) = spare.lend(accept) else { break };
            if is_own_user(&stream) {
                // The process may have given up.
                let _ = sys::send_files(stream.as_fd(), &[0], &files);
            }
        }
    }

    /// Makes the kernel receive each packet for the address separately, if it has joined packets
    /// for several processes. Does nothing while another process joins; the next such packet
    /// triggers this again.
    pub(crate) fn join_no_packets(&self) {
        if !self.has_joined.swap(false, Ordering::AcqRel) {
            return;
        }
        let Ok(_turn) = Turn::take(&self.base, Instant::now()) else { return };
        for index in 0..=LAST {
            let Ok(Some((_, socket))) = self.store.get(index) else { break };
            let _ = sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 0);
        }
    }

    /// Returns the descriptors that a forked child must close to release the slot.
    pub(crate) fn files(&self) -> [BorrowedFd<'_>; 5] {
        let [push, get] = &self.store.ends;
        let requests = self.requests.as_fd();
        [self.group.as_fd(), push.as_fd(), get.as_fd(), requests, self.claim.as_fd()]
    }
}

/// The descriptor is readable while processes wait to be [admitted](Membership::admit).
impl AsFd for Membership {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.group.as_fd()
    }
}

/// Returns the common prefix of an address's socket names.
pub(super) fn base_name(address: IpAddr, port: u16, scope: u32) -> String {
    base_of(sys::effective_user(), address, port, scope)
}

/// Returns the names that group sockets of a user's processes may have at a shared address. Only
/// one of the names is in use.
pub(crate) fn group_names(uid: u32, address: IpAddr, port: u16, scope: u32) -> [String; 2] {
    let base = base_of(uid, address, port, scope);
    [Reach::Network, Reach::Host].map(|reach| names_of(&base, reach) + GROUP)
}

fn base_of(uid: u32, address: IpAddr, port: u16, scope: u32) -> String {
    // The 1 is the version of names, store and filter.
    format!("verbs-soft/share/1/{uid}/{address}%{scope}/{port}")
}

/// Returns the common prefix of a group's socket names.
fn names_of(base: &str, reach: Reach) -> String {
    match reach {
        Reach::Network => base.to_owned(),
        Reach::Host => format!("{base}/host"),
    }
}

const GROUP: &str = "/group";

/// The sockets of an address, by index. They are messages in a stream and never removed.
#[derive(Debug)]
struct Store {
    /// The receiving end of the stream, followed by the sending end.
    ends: [OwnedFd; 2],
}

impl Store {
    fn new() -> Result<Self, Errno> {
        let ends = sys::stream_pair()?;
        // Each message is charged 768 bytes.
        sys::set_option(ends[0].as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, 512 << 10)?;
        Ok(Self { ends })
    }

    /// Appends a socket, together with the mask. Only the process that holds the [`Turn`] may call
    /// this.
    fn push(&self, mask: u8, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        sys::send_files(self.ends[0].as_fd(), &[mask], &[socket])
    }

    /// Returns the mask and a descriptor of the socket with an index, if it exists. Only the
    /// process that holds the [`Turn`] may call this, because all processes share the stream's read
    /// offset.
    fn get(&self, index: u8) -> Result<Option<(u8, OwnedFd)>, Errno> {
        let end = self.ends[1].as_fd();
        sys::set_option(end, libc::SOL_SOCKET, libc::SO_PEEK_OFF, index.into())?;
        let mut mask = [0];
        match sys::receive_files(end, &mut mask, libc::MSG_PEEK) {
            Ok(Some((_, mut files))) => Ok(Some((mask[0], files.pop().ok_or(Errno::MFILE)?))),
            Ok(None) => Ok(None),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// Returns whether any process listens under the group name with this prefix.
fn is_group(names: &str, deadline: Instant) -> Result<bool, Errno> {
    Ok(reach(&format!("{names}{GROUP}"), deadline)?.is_some())
}

/// Finds the processes that share an address. Returns their listener and store, or `None` if there
/// are no such processes.
fn find(names: &str, deadline: Instant) -> Result<Option<(UnixListener, Store)>, Errno> {
    let name = format!("{names}{GROUP}");
    loop {
        let Some(stream) = reach(&name, deadline)? else { return Ok(None) };
        if !is_own_user(&stream) {
            return Err(Errno::ADDRINUSE);
        }
        wait(&stream, deadline)?;
        let files = match sys::receive_files(stream.as_fd(), &mut [0], 0) {
            Ok(Some((_, files))) => files,
            // The process was the last one sharing the address and ended before it replied.
            Ok(None) | Err(Errno::CONNRESET) => continue,
            Err(errno) => return Err(errno),
        };
        // Descriptors are missing from the message if this process has too few free ones.
        let [group, push, get] = <[OwnedFd; 3]>::try_from(files).map_err(|_| Errno::MFILE)?;
        return Ok(Some((group.into(), Store { ends: [push, get] })));
    }
}

/// Starts sharing an address, as its first process.
fn begin(
    names: &str,
    open: &impl Fn(bool) -> Result<OwnedFd, Errno>,
) -> Result<(UnixListener, Store), Errno> {
    // An ending process may close its sockets after its names. The kernel would number new sockets
    // after these, and later move them. While such a socket exists, no other socket can have the
    // port alone. The sockets of the ending process allow sharing the port; any other owner's
    // socket does not.
    let deadline = Instant::now() + ENDING;
    let requests = loop {
        match open(false) {
            Ok(socket) => break socket,
            Err(Errno::ADDRINUSE) => drop(open(true)?),
            Err(errno) => return Err(errno),
        }
        pause(deadline).map_err(|_| Errno::ADDRINUSE)?;
    };
    // The socket that had the port alone is not closed, because a child forked by another thread
    // may have a copy, at least until it executes its program. From now on the socket is shared.
    sys::set_option(requests.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    // The kernel forms the group when a second socket is bound to the port.
    let second = open(true)?;
    let mask = verbs_core::random::draw()? as u8;
    sys::set_filter(requests.as_fd(), libc::SO_ATTACH_REUSEPORT_CBPF, &filter(mask))?;
    // Requests must arrive one by one, even if a peer has joined them into one datagram.
    let _ = sys::set_option(requests.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 0);
    let store = Store::new()?;
    for socket in [&requests, &second] {
        store.push(mask, socket.as_fd())?;
    }
    let group = UnixListener::bind_addr(&abstract_name(&format!("{names}{GROUP}"))?);
    let group = group.and_then(|group| group.set_nonblocking(true).map(|()| group));
    Ok((group.map_err(|error| Errno::from_io(&error))?, store))
}

/// Claims a free index other than the mask, by binding its name.
fn claim(names: &str, mask: u8) -> Result<(u8, UnixDatagram), Errno> {
    for index in (1..=LAST).filter(|index| *index != mask) {
        match UnixDatagram::bind_addr(&abstract_name(&format!("{names}/{index}"))?) {
            Ok(claim) => return Ok((index, claim)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(Errno::from_io(&error)),
        }
    }
    Err(Errno::USERS)
}

fn abstract_name(name: &str) -> Result<UnixAddress, Errno> {
    UnixAddress::from_abstract_name(name).map_err(|error| Errno::from_io(&error))
}

/// Returns the BPF program that computes the index of the socket for a packet. The program uses the
/// slot in the queue pair number, or in the communication id of a message for the general services
/// interface, and otherwise returns 0. The kernel runs it on the UDP payload. If a load is beyond
/// the payload's end, the program returns 0.
fn filter(mask: u8) -> [sock_filter; 15] {
    use libc::{BPF_ABS, BPF_ALU, BPF_B, BPF_H, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_XOR};
    const ACCUMULATOR: u32 = 0x10;
    let step = |code: u32, then, otherwise, k| sock_filter { code: code as u16, jt: then, jf: otherwise, k };
    let load = |size, at| step(BPF_LD | size | BPF_ABS, 0, 0, at);
    let is = |value, then, otherwise| step(BPF_JMP | BPF_JEQ | BPF_K, then, otherwise, value);
    [
        // The upper 8 bits of the queue pair number in the BTH; 0 for queue pair 1.
        load(BPF_B, 5),
        is(0, 0, 9),
        // The management class and the attribute of a datagram, after 20 bytes of BTH and DETH.
        load(BPF_B, 21),
        is(CM_CLASS, 0, 10),
        load(BPF_H, 36),
        is(CM_REQ, 8, 0),
        is(CM_SIDR_REQ, 7, 0),
        is(CM_SIDR_REP, 0, 2),
        // A SIDR_REP begins with the id of its request.
        load(BPF_B, 44),
        is(0, 4, 1),
        // All other messages have the receiver's id after the sender's id.
        load(BPF_B, 48),
        is(0, 2, 0),
        step(BPF_ALU | BPF_XOR | BPF_K, 0, 0, mask.into()),
        step(BPF_RET | ACCUMULATOR, 0, 0, 0),
        step(BPF_RET | BPF_K, 0, 0, 0),
    ]
}

/// The management class for communication management.
const CM_CLASS: u32 = 0x07;
/// The attribute ids of communication management messages.
const CM_REQ: u32 = 0x10;
const CM_SIDR_REQ: u32 = 0x17;
const CM_SIDR_REP: u32 = 0x18;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::net::UdpSocket;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;
    use crate::io::address::Name;

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 9, 3, 1));

    /// The membership and the socket of a process that shares a port.
    struct Process {
        membership: Membership,
        socket: UdpSocket,
    }

    impl Process {
        fn open(port: u16, is_shared: bool) -> Result<OwnedFd, Errno> {
            let socket = sys::datagram_socket(libc::AF_INET)?;
            sys::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, is_shared.into())?;
            sys::bind(socket.as_fd(), &Name::new(ADDRESS, port, 0))?;
            Ok(socket)
        }

        fn join(port: u16) -> Result<Self, Errno> {
            let open = |is_shared| Self::open(port, is_shared);
            let (membership, socket) = Membership::join(&base_name(ADDRESS, port, 0), Reach::Network, open)?;
            Ok(Self { membership, socket: socket.into() })
        }

        /// Joins as another process, while the processes `others` admit it.
        fn join_beside(port: u16, others: &[Self]) -> Self {
            let done = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| admit(others, &done));
                let joined = Self::join(port);
                done.store(true, Ordering::Release);
                joined.unwrap()
            })
        }

        /// Returns the first byte of each packet that this process has received.
        fn received(&self) -> Vec<u8> {
            received(&self.socket)
        }
    }

    fn admit(processes: &[Process], done: &AtomicBool) {
        while !done.load(Ordering::Acquire) {
            processes.iter().for_each(|process| process.membership.admit());
            thread::yield_now();
        }
    }

    fn received(socket: &UdpSocket) -> Vec<u8> {
        let mut packet = [0; 512];
        core::iter::from_fn(|| socket.recv(&mut packet).is_ok().then_some(packet[0])).collect()
    }

    /// Returns a port that is free on the address.
    fn free_port() -> u16 {
        UdpSocket::bind((ADDRESS, 0)).unwrap().local_addr().unwrap().port()
    }

    /// Returns a packet for a queue pair. Its first byte is `tag`.
    fn packet(tag: u8, qpn: u32) -> [u8; 280] {
        let mut packet = [0; 280];
        packet[0] = tag;
        packet[4..8].copy_from_slice(&qpn.to_be_bytes());
        packet
    }

    /// Returns a communication management message whose data begins with two ids.
    fn mad(tag: u8, attribute: u32, ids: [u32; 2]) -> [u8; 280] {
        let mut mad = packet(tag, 1);
        mad[21] = CM_CLASS as u8;
        mad[36..38].copy_from_slice(&(attribute as u16).to_be_bytes());
        mad[44..48].copy_from_slice(&ids[0].to_be_bytes());
        mad[48..52].copy_from_slice(&ids[1].to_be_bytes());
        mad
    }

    #[test]
    fn each_packet_arrives_at_the_process_of_its_numbers() {
        const REP: u32 = 0x13;
        let port = free_port();
        let members = [Process::join(port).unwrap()];
        let second = Process::join_beside(port, &members);
        let [first] = members;
        let [one, two] = [&first, &second].map(|process| u32::from(process.membership.slot()));
        assert!(one != 0 && two != 0 && one != two);
        let requests = UdpSocket::from(first.membership.requests().unwrap());
        let stranger = UdpSocket::bind((ADDRESS, 0)).unwrap();
        let send = |packet: &[u8]| {
            assert_eq!(stranger.send_to(packet, (ADDRESS, port)).unwrap(), packet.len());
        };
        send(&packet(1, one << 16 | 0x11));
        send(&packet(2, two << 16 | 0x11));
        send(&packet(3, 1));
        send(&mad(4, CM_REQ, [two << 24, 0]));
        send(&mad(5, CM_SIDR_REQ, [two << 24, 0]));
        send(&mad(6, REP, [one << 24, two << 24 | 7]));
        send(&mad(7, REP, [two << 24, one << 24 | 7]));
        send(&mad(8, CM_SIDR_REP, [two << 24 | 7, one << 24]));
        send(&packet(9, two << 16 | 0x11)[..12]);
        send(&mad(10, REP, [one << 24, 7]));
        send(&mad(11, CM_SIDR_REP, [7, one << 24]));
        assert_eq!(first.received(), [1, 7]);
        assert_eq!(second.received(), [2, 6, 8, 9]);
        assert_eq!(received(&requests), [3, 4, 5, 10, 11]);
    }

    #[test]
    fn the_slot_of_a_process_that_has_ended_is_taken_again_and_no_packet_goes_astray() {
        let port = free_port();
        let mut members = vec![Process::join(port).unwrap()];
        for _ in 0..3 {
            let next = Process::join_beside(port, &members);
            members.push(next);
        }
        let stranger = UdpSocket::bind((ADDRESS, 0)).unwrap();
        let slots: Vec<u8> = members.iter().map(|member| member.membership.slot()).collect();
        let send = |tag: u8, slot: u8| {
            stranger.send_to(&packet(tag, u32::from(slot) << 16), (ADDRESS, port)).unwrap();
        };
        drop(members.remove(0));
        drop(members.remove(0));
        (0..4).for_each(|member| send(member as u8, slots[member]));
        assert_eq!(members.iter().map(Process::received).collect::<Vec<_>>(), [[2], [3]]);
        let next = Process::join_beside(port, &members);
        assert_eq!(next.membership.slot(), slots[0]);
        assert_eq!(next.received(), [], "packets for the process that has ended");
        send(9, slots[0]);
        assert_eq!(next.received(), [9]);
    }

    #[test]
    fn a_port_that_is_not_shared_is_eaddrinuse() {
        let alone = UdpSocket::bind((ADDRESS, 0)).unwrap();
        let port = alone.local_addr().unwrap().port();
        assert_eq!(Process::join(port).err(), Some(Errno::ADDRINUSE));
        drop(alone);
        assert!(Process::join(port).is_ok());
    }

    #[test]
    fn a_port_of_another_program_and_a_group_of_the_other_kind_are_seen_at_once() {
        let port = free_port();
        let base = base_name(ADDRESS, port, 0);
        let opened = Cell::new(0);
        let open = |is_shared| {
            opened.set(opened.get() + 1);
            Process::open(port, is_shared)
        };
        let alone = Process::open(port, false).unwrap();
        assert_eq!(Membership::join(&base, Reach::Host, open).err(), Some(Errno::ADDRINUSE));
        assert_eq!(opened.get(), 2, "one alone, one shared");
        drop(alone);
        let network = Membership::join(&base, Reach::Network, open).unwrap();
        opened.set(0);
        assert_eq!(Membership::join(&base, Reach::Host, open).err(), Some(Errno::ADDRINUSE));
        assert_eq!(opened.get(), 0);
        drop(network);
        assert!(Membership::join(&base, Reach::Host, open).is_ok());
    }

    #[test]
    fn copies_of_sockets_in_a_child_that_another_thread_forks_do_not_keep_the_port() {
        let port = free_port();
        let copies = RefCell::new(Vec::new());
        let open = |is_shared| {
            let socket = Process::open(port, is_shared)?;
            copies.borrow_mut().push(socket.try_clone().unwrap());
            Ok(socket)
        };
        let (first, socket) = Membership::join(&base_name(ADDRESS, port, 0), Reach::Network, open).unwrap();
        let stranger = UdpSocket::bind((ADDRESS, 0)).unwrap();
        stranger.send_to(&packet(1, u32::from(first.slot()) << 16), (ADDRESS, port)).unwrap();
        assert_eq!(received(&socket.into()), [1]);
    }

    #[test]
    fn after_the_last_process_the_address_begins_anew() {
        let port = free_port();
        for _ in 0..3 {
            drop(Process::join(port).unwrap());
        }
        assert!(UdpSocket::bind((ADDRESS, port)).is_ok(), "the port is free");
    }

    #[test]
    fn a_process_that_begins_while_the_last_one_ends_gets_its_packets() {
        let port = free_port();
        thread::scope(|scope| {
            for tag in 1..=3 {
                scope.spawn(move || {
                    let stranger = UdpSocket::bind((ADDRESS, 0)).unwrap();
                    for _ in 0..200 {
                        // The only process may have ended before it replied.
                        let process = Process::join(port).unwrap();
                        let slot = u32::from(process.membership.slot());
                        stranger.send_to(&packet(tag, slot << 16), (ADDRESS, port)).unwrap();
                        process.membership.admit();
                        assert_eq!(process.received(), [tag], "slot {slot:#x}");
                    }
                });
            }
        });
    }

    #[test]
    fn a_full_queue_of_clients_is_a_time_out() {
        let name = format!("verbs-soft/test/{}", std::process::id());
        let _listener = UnixListener::bind_addr(&abstract_name(&name).unwrap()).unwrap();
        let soon = || Instant::now() + Duration::from_millis(10);
        let mut clients = Vec::new();
        let full = loop {
            match reach(&name, soon()) {
                Ok(client) => clients.push(client),
                Err(errno) => break errno,
            }
        };
        assert_eq!(full, Errno::TIMEDOUT);
        assert!(matches!(reach("verbs-soft/test/nobody", soon()), Ok(None)));
    }

    #[test]
    fn processes_that_join_at_once_have_different_slots() {
        let port = free_port();
        let members = [Process::join(port).unwrap()];
        let done = AtomicBool::new(false);
        let mut slots: Vec<u8> = thread::scope(|scope| {
            scope.spawn(|| admit(&members, &done));
            let joining: Vec<_> = (0..8).map(|_| scope.spawn(|| Process::join(port).unwrap())).collect();
            let joined: Vec<_> = joining.into_iter().map(|joining| joining.join().unwrap()).collect();
            done.store(true, Ordering::Release);
            joined.iter().map(|process| process.membership.slot()).collect()
        });
        slots.push(members[0].membership.slot());
        slots.sort_unstable();
        slots.dedup();
        assert!(slots.len() == 9 && slots[0] != 0, "{slots:?}");
    }
}
