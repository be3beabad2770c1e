//! [`Turn`]: a lock between processes, held by the one process that is joining the others at an
//! address.
//!
//! The lock is a listener with an abstract name. Other processes connect to it and wait until it is
//! closed. A child forked while a thread of its parent holds the lock inherits the listener. The
//! name would stay in use until the child ends. [`HELD`] therefore lists the listeners. The child
//! closes its copies before it acquires the lock.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, getsockname, listen, socket,
};
use verbs_core::Errno;
use verbs_core::fork::current_generation;

use super::names::{is_own_user, pause, reach, wait};

/// The held lock. Dropping it releases the lock.
#[derive(Debug)]
pub(super) struct Turn {
    // Dropped first, so that [`HELD`] never contains a closed descriptor.
    _held: Held,
    _listener: OwnedFd,
}

impl Turn {
    /// Acquires the lock, waiting if necessary.
    ///
    /// # Errors
    /// `ETIMEDOUT` after the deadline; `EADDRINUSE` if another user has bound the name; any errno
    /// of `socket(2)`, `bind(2)` and `connect(2)`.
    pub(super) fn take(base: &str, deadline: Instant) -> Result<Self, Errno> {
        close_inherited();
        let name = format!("{base}{NAME}");
        let address = UnixAddr::new_abstract(name.as_bytes())?;
        loop {
            let listener = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
            let held = Held::new(listener.as_raw_fd());
            match bind(listener.as_raw_fd(), &address) {
                Ok(()) => {
                    listen(&listener, Backlog::MAXALLOWABLE)?;
                    return Ok(Self { _held: held, _listener: listener });
                }
                Err(nix::errno::Errno::EADDRINUSE) => {}
                Err(errno) => return Err(errno.into()),
            }
            drop(held);
            drop(listener);
            // The stream ends when the other process has joined or ended.
            match reach(&name, deadline)? {
                Some(stream) if is_own_user(&stream) => wait(&stream, deadline)?,
                Some(_) => return Err(Errno::ADDRINUSE),
                // The other process has ended meanwhile, or does not listen yet.
                None => pause(deadline)?,
            }
        }
    }
}

/// The name suffix of the listener.
const NAME: &str = "/join";

/// The listeners of held locks: each slot contains a process generation and a descriptor, or 0 if
/// it is free.
static HELD: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// A slot in [`HELD`], or `None` if all slots are in use.
#[derive(Debug)]
struct Held(Option<&'static AtomicU64>);

impl Held {
    fn new(fd: RawFd) -> Self {
        let entry = u64::from(current_generation()) << 32 | u64::from(fd.cast_unsigned());
        let is_taken = |place: &&AtomicU64| {
            place.compare_exchange(0, entry, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        Self(HELD.iter().find(is_taken))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.store(0, Ordering::Relaxed);
        }
    }
}

/// Closes the listeners inherited from a parent. A descriptor number that the child has closed may
/// be in use again, so the name is compared first.
fn close_inherited() {
    let own = u64::from(current_generation());
    for place in &HELD {
        let entry = place.load(Ordering::Relaxed);
        let is_inherited = entry != 0 && entry >> 32 != own;
        if is_inherited && place.compare_exchange(entry, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let fd = (entry as u32).cast_signed();
            let is_turn =
                |name: UnixAddr| name.as_abstract().is_some_and(|name| name.ends_with(NAME.as_bytes()));
            if getsockname::<UnixAddr>(fd).is_ok_and(is_turn) {
                let _ = nix::unistd::close(fd);
            }
        }
    }
}
