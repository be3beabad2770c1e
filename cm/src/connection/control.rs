//! [`Control`]: the connection manager's side of a connection.
//!
//! Any number of threads may wait for the end. The thread that detects it, by an event or by the
//! deadline of its disconnect, makes [`Control::ended`] readable. The other threads also wait for
//! this file, because the channel has no further events for them.

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

/// The connection manager's side of a connection. It detects the end of the connection and can
/// disconnect.
///
/// A program that is not waiting for messages detects the end through this type, not through
/// completions: whether work requests fail when the peer disconnects depends on the device. The
/// descriptor ([`AsFd`]) is readable when the connection may have ended. Event loops then call
/// [`end`](Self::end).
///
/// Dropping the control disconnects without waiting for the peer.
#[derive(Debug)]
pub struct Control {
    state: Mutex<Ending>,
    /// Declared before the channel, so that it is dropped first. Both orders are permitted.
    id: CmId,
    channel: EventChannel,
    /// Readable once the connection has ended. Created by the first call that waits.
    ended: OnceLock<EventFd>,
}

impl Control {
    /// Takes ownership of an established connection's id and channel.
    pub(super) fn new(id: CmId, channel: EventChannel) -> Self {
        Self { state: Mutex::default(), id, channel, ended: OnceLock::new() }
    }

    /// Returns the id, for its addresses, device and options.
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// Returns the end of the connection without waiting; `None` if it has not ended.
    ///
    /// If the peer disconnected, this call confirms the disconnect, so that the peer stops waiting.
    ///
    /// # Errors
    /// Same as [`EventChannel::try_next_event`].
    pub fn end(&self) -> Result<Option<End>> {
        let mut state = self.lock();
        while let Some(event) = self.channel.try_next_event()? {
            if event.id == self.id.key() && state.event(&event) {
                // A connection that is already gone accepts no confirmation.
                let _ = self.id.disconnect();
            }
        }
        let end = state.end(Instant::now());
        drop(state);
        if end.is_some()
            && let Some(ended) = self.ended.get()
        {
            // If the counter is full, the file is already readable.
            let _ = ended.write(1);
        }
        Ok(end)
    }

    /// Waits at most `timeout` for the end of the connection. Returns `None` on timeout.
    ///
    /// # Errors
    /// The errors of [`end`](Self::end); any errno from `eventfd(2)` and `ppoll(2)`.
    pub fn wait(&self, timeout: Duration) -> Result<Option<End>> {
        // A deadline beyond the clock's range means no deadline.
        let deadline = Instant::now().checked_add(timeout);
        if let Some(end) = self.end()? {
            return Ok(Some(end));
        }
        // The file is created before the state is checked, so that a thread ending the connection
        // afterwards finds it.
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

    /// Disconnects and waits for the peer's confirmation, at most `timeout`. Returns the first end,
    /// which is [`End::ByPeer`] if the peer disconnected first.
    ///
    /// The call does not touch the queue pair. Move it to the error state first
    /// ([`to_error`](verbs::Qp::to_error)), as
    /// [`Connection::disconnect`](crate::Connection::disconnect) does.
    ///
    /// # Errors
    /// Any errno the kernel returns for the call; the errors of [`wait`](Self::wait).
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

/// The descriptor is readable when the connection may have ended. It also suits edge-triggered
/// loops: any change after a call to [`end`](Control::end) makes a new edge.
impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// The raw descriptor for event loops. The control keeps ownership.
impl AsRawFd for Control {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
