//! [`CompChannels`]: the completion channels of an open device.
//!
//! A channel is one descriptor: a datagram socket connected to itself. The program reads and polls
//! it; completion queues write to a shared duplicate. Creating a channel always takes the same few
//! system calls. No state is kept for a channel until a completion queue uses it.
//!
//! ```text
//!   create ──► socket, bound to key + number, connected to itself ──► the program's descriptor
//!   create_cq with it ──► the name has the key? ──► EventPipe over a duplicate, one per channel
//! ```
//!
//! A connected socket receives datagrams only from its peer, here itself. Datagrams sent by other
//! processes between the bind and the connect are removed.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, bind, connect, getsockname, recv, socket,
};
use nix::sys::stat::fstat;
use verbs_core::{Errno, random};

use crate::device::event_pipe::EventPipe;

/// The completion channels of an open device.
#[derive(Debug)]
pub(crate) struct CompChannels {
    /// The prefix of the channels' socket names, which distinguishes channels from other files.
    key: String,
    /// The number of channels created in this open device.
    created: AtomicU64,
    used: Mutex<Used>,
}

/// The channels in use by completion queues.
#[derive(Debug, Default)]
struct Used {
    /// Pipes by inode number, which identifies a channel whatever its descriptor's number. Entries
    /// whose completion queues are gone stay until the next clean-up.
    by_inode: BTreeMap<u64, Weak<EventPipe>>,
    /// The number of entries that triggers the next clean-up.
    clean_at: usize,
}

impl CompChannels {
    /// Returns an empty set of channels, with a name prefix for future ones.
    ///
    /// # Errors
    /// The errors of [`random::draw`].
    pub(crate) fn new() -> Result<Self, Errno> {
        let mut key = String::from("verbs-soft/channel/");
        for _ in 0..4 {
            key.push_str(&format!("{:08x}", random::draw()?));
        }
        key.push('/');
        Ok(Self { key, created: AtomicU64::new(0), used: Mutex::default() })
    }

    /// Creates a channel.
    ///
    /// # Errors
    /// Any errno of `socket(2)`, notably `EMFILE`.
    pub(crate) fn create(&self) -> Result<OwnedFd, Errno> {
        let fd = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        let number = self.created.fetch_add(1, Ordering::Relaxed);
        let name = UnixAddr::new_abstract(format!("{}{number}", self.key).as_bytes())?;
        bind(fd.as_raw_fd(), &name)?;
        connect(fd.as_raw_fd(), &name)?;
        while recv(fd.as_raw_fd(), &mut [0; 8], MsgFlags::MSG_DONTWAIT).is_ok() {}
        Ok(fd)
    }

    /// Returns the pipe of a channel, or `None` if the file is not a channel of this open device.
    ///
    /// # Errors
    /// Any errno of duplicating the descriptor, notably `EMFILE`.
    pub(crate) fn pipe(&self, fd: BorrowedFd<'_>) -> Result<Option<Arc<EventPipe>>, Errno> {
        let name = getsockname::<UnixAddr>(fd.as_raw_fd());
        let is_own = name
            .is_ok_and(|name| name.as_abstract().is_some_and(|name| name.starts_with(self.key.as_bytes())));
        if !is_own {
            return Ok(None);
        }
        let inode = fstat(fd)?.st_ino;
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipe) = used.by_inode.get(&inode).and_then(Weak::upgrade) {
            return Ok(Some(pipe));
        }
        let duplicate = fd.try_clone_to_owned().map_err(|error| Errno::from_io(&error))?;
        let pipe = Arc::new(EventPipe::looped(duplicate, size_of::<u64>()));
        used.insert(inode, &pipe);
        Ok(Some(pipe))
    }
}

impl Used {
    fn insert(&mut self, inode: u64, pipe: &Arc<EventPipe>) {
        if self.by_inode.len() >= self.clean_at {
            self.by_inode.retain(|_, pipe| pipe.strong_count() > 0);
            // The threshold doubles, so the amortised cost per channel is constant.
            self.clean_at = 2 * self.by_inode.len() + 16;
        }
        self.by_inode.insert(inode, Arc::downgrade(pipe));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;

    use nix::errno::Errno as NixErrno;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::socket::sendto;

    use super::*;
    use crate::device::event_pipe::Written;

    fn read(fd: &OwnedFd) -> Result<u64, NixErrno> {
        let mut record = [0; 8];
        recv(fd.as_raw_fd(), &mut record, MsgFlags::MSG_DONTWAIT).map(|_| u64::from_ne_bytes(record))
    }

    #[test]
    fn the_queues_of_a_channel_share_one_duplicate() {
        let channels = CompChannels::new().unwrap();
        let [one, other] = [(); 2].map(|()| channels.create().unwrap());
        let first = channels.pipe(one.as_fd()).unwrap().unwrap();
        // Any descriptor of the channel leads to the same pipe.
        let again = channels.pipe(one.try_clone().unwrap().as_fd()).unwrap().unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        let second = channels.pipe(other.as_fd()).unwrap().unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        assert_eq!((first.write(&7_u64.to_ne_bytes()), read(&other)), (Written::All, Err(NixErrno::EAGAIN)));
        assert_eq!((read(&one), read(&one)), (Ok(7), Err(NixErrno::EAGAIN)));
    }

    #[test]
    fn files_that_are_no_channels_of_this_open_device_are_told_apart() {
        let (channels, others) = (CompChannels::new().unwrap(), CompChannels::new().unwrap());
        let theirs = others.create().unwrap();
        let unnamed = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::empty(), None).unwrap();
        let inet = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        for fd in [theirs.as_fd(), unnamed.as_fd(), inet.as_fd(), file.as_fd()] {
            assert!(channels.pipe(fd).unwrap().is_none(), "{fd:?}");
        }
    }

    #[test]
    fn no_other_socket_writes_to_a_channel() {
        let channels = CompChannels::new().unwrap();
        let channel = channels.create().unwrap();
        let name = getsockname::<UnixAddr>(channel.as_raw_fd()).unwrap();
        let stranger = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::empty(), None).unwrap();
        let sent = sendto(stranger.as_raw_fd(), &[0; 8], &name, MsgFlags::empty());
        assert_eq!(
            (sent, connect(stranger.as_raw_fd(), &name)),
            (Err(NixErrno::EPERM), Err(NixErrno::EPERM))
        );
        assert_eq!(read(&channel), Err(NixErrno::EAGAIN));
    }

    #[test]
    fn a_full_channel_keeps_further_events_and_asks_for_room_once_they_are_read() {
        let channels = CompChannels::new().unwrap();
        let channel = channels.create().unwrap();
        let pipe = channels.pipe(channel.as_fd()).unwrap().unwrap();
        let mut count = 0_u64;
        while pipe.write(&count.to_ne_bytes()) == Written::All {
            count += 1;
        }
        assert_eq!(pipe.write(&(count + 1).to_ne_bytes()), Written::Kept);
        let has_room = || {
            let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)];
            poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
        };
        // The worker waits for free space, so the worker sleeps until the program reads.
        assert!(!has_room(), "{count} events in the socket");
        for expected in 0..count {
            assert_eq!(read(&channel), Ok(expected));
        }
        assert!(has_room());
        assert_eq!(pipe.retry(), Written::All);
        assert_eq!([(); 3].map(|()| read(&channel)), [Ok(count), Ok(count + 1), Err(NixErrno::EAGAIN)]);
    }

    #[test]
    fn channels_whose_queues_are_gone_are_forgotten() {
        let channels = CompChannels::new().unwrap();
        let kept: Vec<_> = (0..40)
            .map(|_| {
                let fd = channels.create().unwrap();
                let pipe = channels.pipe(fd.as_fd()).unwrap().unwrap();
                (fd, pipe)
            })
            .collect();
        for _ in 0..1000 {
            let fd = channels.create().unwrap();
            channels.pipe(fd.as_fd()).unwrap().unwrap();
            let used = channels.used.lock().unwrap();
            assert!(used.by_inode.len() <= 2 * (kept.len() + 1) + 16, "{}", used.by_inode.len());
        }
        for (fd, pipe) in &kept {
            assert!(Arc::ptr_eq(pipe, &channels.pipe(fd.as_fd()).unwrap().unwrap()));
        }
    }
}
