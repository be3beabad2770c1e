//! [`Control`]: the connection manager's side of a connection.
//!
//! Any number of threads may wait for the end. The one that finds it, by an event or by the
//! deadline of its disconnect, makes [`Control::ended`] readable, at which the others wait too: the
//! channel has nothing left for them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use verbs::{Error, Result};

use super::ending::{End, Ending};
use super::wait;
use crate::EventChannel;
use crate::id::CmId;

const VERB: &str = "get_cm_event";

/// The connection manager's side of a connection: it notices the end of the connection, and ends
/// it.
///
/// It has an event channel of its own. A program that does not wait for its peer's messages learns
/// of the end here, and not from completions: whether work requests fail when the peer disconnects
/// depends on the device. The descriptor ([`AsFd`]) is readable when there may be an end, for event
/// loops, which then call [`end`](Self::end).
///
/// Dropping it disconnects, without waiting for the peer.
#[derive(Debug)]
pub struct Control {
    state: Mutex<Ending>,
    /// Before the channel: an id ends before its channel, although both orders are permitted.
    id: CmId,
    channel: EventChannel,
    /// Readable once the connection has ended. The first wait makes it.
    ended: OnceLock<EventFd>,
}

impl Control {
    /// Takes over the id of an established connection, whose events its channel has.
    pub(super) fn new(id: CmId, channel: EventChannel) -> Self {
        Self { state: Mutex::default(), id, channel, ended: OnceLock::new() }
    }

    /// Returns the id: addresses, the device, options.
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// Returns the end of the connection; `None` while there is none. It never waits.
    ///
    /// An end by the peer is confirmed here, so that the peer need not wait for it.
    ///
    /// # Errors
    /// As [`EventChannel::try_next_event`].
    pub fn end(&self) -> Result<Option<End>> {
        let mut state = self.lock();
        while let Some(event) = self.channel.try_next_event()? {
            if event.id == self.id.key() && state.event(&event) {
                // A connection that has ended altogether takes no confirmation.
                let _ = self.id.disconnect();
            }
        }
        let end = state.end(Instant::now());
        drop(state);
        if end.is_some()
            && let Some(ended) = self.ended.get()
        {
            // Full means that it is readable.
            let _ = ended.write(1);
        }
        Ok(end)
    }

    /// Waits until the connection ends, at most for `timeout`. Returns `None` after that.
    ///
    /// # Errors
    /// As [`end`](Self::end); any errno of `eventfd(2)` and `ppoll(2)`.
    pub fn wait(&self, timeout: Duration) -> Result<Option<End>> {
        // A deadline beyond the clock's range means no deadline.
        let deadline = Instant::now().checked_add(timeout);
        if let Some(end) = self.end()? {
            return Ok(Some(end));
        }
        // Before the look at the state: a thread that ends the connection after it finds the file.
        let ended = self.ended_file()?;
        loop {
            if let Some(end) = self.end()? {
                return Ok(Some(end));
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(None);
            }
            let until = deadline.into_iter().chain(self.lock().deadline()).min();
            wait::until_readable(VERB, &[self.channel.as_fd(), ended.as_fd()], until)?;
        }
    }

    /// Disconnects, and waits until the peer has confirmed it, at most for `timeout`. Returns the
    /// end that came first: if the peer has disconnected before, that.
    ///
    /// The queue pair is the program's. It is moved to the error state before
    /// ([`to_error`](verbs::Qp::to_error)), which
    /// [`Connection::disconnect`](crate::Connection::disconnect) does.
    ///
    /// # Errors
    /// Any errno that the kernel returns for the call; as [`wait`](Self::wait).
    ///
    /// # References
    /// `rdma_disconnect(3)`
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self, timeout: Duration) -> Result<End> {
        self.end()?;
        let mut state = self.lock();
        if state.disconnect(Instant::now(), timeout)
            && let Err(error) = self.id.disconnect()
        {
            state.call_failed();
            return Err(error);
        }
        drop(state);
        Ok(self.wait(timeout)?.unwrap_or(End::Unconfirmed))
    }

    fn ended_file(&self) -> Result<&EventFd> {
        if let Some(ended) = self.ended.get() {
            return Ok(ended);
        }
        let made = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|errno| Error::new(VERB, "", errno.into()))?;
        Ok(self.ended.get_or_init(|| made))
    }

    fn lock(&self) -> MutexGuard<'_, Ending> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The descriptor is readable when the connection may have ended. Edge-triggered loops may use it:
/// any news after a call of [`end`](Control::end) makes a new edge.
impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// The descriptor, for event loops that take numbers. The control keeps owning it.
impl AsRawFd for Control {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
