//! Event channels.
//!
//! `rdma_event_channel.fd` is an epoll descriptor above that of the crate `rdmacm`. A program may
//! set `O_NONBLOCK` on it, after which [`rdma_get_cm_event`](super::event::rdma_get_cm_event) fails
//! with `EAGAIN` instead of waiting: the descriptors below never block, so that their flags do not
//! show what the program wants.
//!
//! # Safety
//! As [`rdmacm`](super).
#![allow(unsafe_code)]

use core::ptr::null_mut;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use rdmacm::EventChannel;
use verbs_core::Errno;

use super::id::{self, Claimed};
use super::{Result, logged};
use crate::c::rdma_event_channel;
use crate::errno;
use crate::object::Object;

/// A channel, which a thread that waits at it keeps alive.
#[derive(Debug)]
pub(super) struct Channel {
    events: EventChannel,
    file: Epoll,
    /// Held from the read of an event until it is counted at its id.
    turn: Mutex<()>,
}

type ChannelObject = Object<rdma_event_channel, Arc<Channel>>;

impl Channel {
    /// # Errors
    /// As [`EventChannel::new`]; `ENODEV` where there is no device at all, as C has it.
    fn new() -> Result<Self> {
        let events = EventChannel::new().map_err(|error| match logged(error) {
            Errno::NOENT if !Path::new(CLASS).exists() => Errno::NODEV,
            errno => errno,
        })?;
        let file = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        file.add(&events, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(Self { events, file, turn: Mutex::new(()) })
    }

    pub(super) fn events(&self) -> &EventChannel {
        &self.events
    }

    /// Makes the descriptor readable if an id that moved here brought events: the kernel wakes no
    /// one for these, and an epoll descriptor looks at its files only then, or when it is asked.
    ///
    /// # Errors
    /// Any errno of `epoll_ctl(2)`.
    pub(super) fn look_again(&self) -> Result {
        Ok(self.file.modify(&self.events, &mut EpollEvent::new(EpollFlags::EPOLLIN, 0))?)
    }

    /// Returns the next event of an id that lives, counted. Waits for it unless the program has set
    /// `O_NONBLOCK`. A signal does not end the wait.
    ///
    /// # Errors
    /// `EAGAIN` where the program has set `O_NONBLOCK`; any other errno of reading events.
    pub(super) fn next(&self) -> Result<Claimed> {
        loop {
            if let Some(claimed) = self.claim()? {
                return Ok(claimed);
            }
            let flags = OFlag::from_bits_retain(fcntl(self.file.0.as_fd(), FcntlArg::F_GETFL)?);
            if flags.contains(OFlag::O_NONBLOCK) {
                return Err(Errno::AGAIN);
            }
            let mut fds = [PollFd::new(self.file.0.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn claim(&self) -> Result<Option<Claimed>> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(event) = self.events.try_next_event().map_err(logged)? {
            if let Some(claimed) = id::claim(event) {
                return Ok(Some(claimed));
            }
        }
        Ok(None)
    }
}

/// Makes a channel.
///
/// # Errors
/// As [`Channel::new`].
pub(super) fn create() -> Result<*mut rdma_event_channel> {
    let channel = Channel::new()?;
    let fd = channel.file.0.as_raw_fd();
    Ok(ChannelObject::boxed(rdma_event_channel { fd }, Arc::new(channel)))
}

/// Returns a share of a channel.
///
/// # Safety
/// `channel` is live.
pub(super) unsafe fn share(channel: *mut rdma_event_channel) -> Arc<Channel> {
    // SAFETY: the caller's promise.
    Arc::clone(unsafe { ChannelObject::inner(channel) })
}

/// `rdma_create_event_channel(3)`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    create().unwrap_or_else(|errno| {
        errno::set(errno.raw());
        null_mut()
    })
}

/// `rdma_destroy_event_channel(3)`. Ids of the channel keep what they need of it.
///
/// # Safety
/// `channel` is live, and not used afterwards.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if !channel.is_null() {
        // SAFETY: `create` made the box.
        drop(unsafe { Box::from_raw(channel.cast::<ChannelObject>()) });
    }
}

/// The folder of RDMA devices.
const CLASS: &str = "/sys/class/infiniband";
