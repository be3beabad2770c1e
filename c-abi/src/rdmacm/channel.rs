//! Event channels.
//!
//! `rdma_event_channel.fd` is an epoll descriptor around the descriptor in the crate `rdmacm`. A
//! program may set `O_NONBLOCK` on it, after which
//! [`rdma_get_cm_event`](super::event::rdma_get_cm_event) fails with `EAGAIN` instead of waiting.
//! The inner descriptors never block, so the program's choice is visible only in the flags of the
//! outer descriptor.
//!
//! # Signals
//! rdma-core waits in a `write(2)`, which a signal interrupts with `EINTR` unless its handler has
//! `SA_RESTART`. Here the wait is a `poll(2)`, which every handler interrupts, regardless of its
//! flags. The process's handlers determine whether rdma-core's call would have been interrupted:
//! see [`restarts`].
//!
//! # Safety
//! See [`rdmacm`](super). Reading a handler and the thread's mask changes neither.
#![allow(unsafe_code)]

use core::cell::Cell;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr::{null, null_mut};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use rdmacm::EventChannel;
use verbs_core::Errno;
use verbs_core::fork::{ForkLock, current_generation};

use super::id::{self, Claimed, of_parent};
use super::{Result, logged, no_memory};
use crate::abi::c::rdma_event_channel;
use crate::abi::{errno, reserve};
use crate::handle::object::Object;
use crate::handle::wait;

/// An event channel. Each thread that waits on it keeps it alive.
#[derive(Debug)]
pub(super) struct Channel {
    events: EventChannel,
    file: Epoll,
    /// Held while an event is read and counted in its id's tally.
    turn: ForkLock<()>,
    /// The generation of the process that opened the channel.
    generation: u32,
    has_soft: bool,
}

type ChannelObject = Object<rdma_event_channel, Arc<Channel>>;

impl Channel {
    /// Opens a channel.
    ///
    /// # Errors
    /// The errors of [`EventChannel::new`]; `ENODEV` if the system has no RDMA device, as in
    /// rdma-core.
    fn new() -> Result<Self> {
        let events = EventChannel::new().map_err(|error| match logged(error) {
            Errno::NOENT if !Path::new(CLASS).exists() => Errno::NODEV,
            errno => errno,
        })?;
        let file = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        file.add(&events, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        let has_soft = events.has_soft();
        Ok(Self { events, file, turn: ForkLock::new(()), generation: current_generation(), has_soft })
    }

    /// Returns whether ids of the channel may belong to soft devices.
    pub(super) const fn has_soft(&self) -> bool {
        self.has_soft
    }

    /// Returns the channel of the crate `rdmacm`.
    ///
    /// # Errors
    /// The errno of [`of_parent`] in a forked child that inherited the channel.
    pub(super) fn events(&self) -> Result<&EventChannel> {
        let is_own = self.generation == current_generation();
        if is_own { Ok(&self.events) } else { Err(of_parent(self.has_soft)) }
    }

    /// Makes the descriptor readable if an id that moved to this channel has pending events. The
    /// kernel does not wake the channel for these events, and epoll rechecks its files only on a
    /// wakeup or a modification.
    ///
    /// # Errors
    /// Any errno from `epoll_ctl(2)`.
    pub(super) fn look_again(&self) -> Result {
        Ok(self.file.modify(&self.events, &mut EpollEvent::new(EpollFlags::EPOLLIN, 0))?)
    }

    /// Returns the next event of a live id and counts it. Waits for an event unless the program
    /// has set `O_NONBLOCK`. If the thread is cancelled in the wait, the caller's reference is
    /// dropped when the thread ends.
    ///
    /// # Errors
    /// `EAGAIN` if the program has set `O_NONBLOCK`; `EINTR` after a signal whose handler does not
    /// restart calls; any other errno from reading events.
    pub(super) fn next(self: Arc<Self>) -> Result<(Claimed, Arc<Self>)> {
        thread_local! {
            static WAITED_FOR: Cell<Option<Arc<Channel>>> = const { Cell::new(None) };
        }
        let mut channel = self;
        loop {
            if let Some(claimed) = channel.claim()? {
                return Ok((claimed, channel));
            }
            let flags = OFlag::from_bits_retain(fcntl(channel.file.0.as_fd(), FcntlArg::F_GETFL)?);
            if flags.contains(OFlag::O_NONBLOCK) {
                return Err(Errno::AGAIN);
            }
            let fd = channel.file.0.as_raw_fd();
            channel = wait::keeping(&WAITED_FOR, channel, || match wait::readable(fd) {
                Err(Errno::INTR) if restarts() => Ok(()),
                waited => waited,
            })?;
        }
    }

    fn claim(&self) -> Result<Option<Claimed>> {
        let events = self.events()?;
        let _turn = self.turn.lock_or(|| ());
        while let Some(event) = events.try_next_event().map_err(logged)? {
            if let Some(claimed) = id::claim(event, self.has_soft) {
                return Ok(Some(claimed));
            }
        }
        Ok(None)
    }
}

/// Returns whether the kernel restarts calls after every handler that may have interrupted this
/// thread. The kernel does not report which handler ran. If a process has both kinds of handlers,
/// every handler therefore ends the wait, so that no signal meant to end it is missed.
///
/// Handlers of faults are excluded. They run because of an instruction, not during a wait, and
/// libraries install them without `SA_RESTART` to report crashes.
fn restarts() -> bool {
    let mut blocked = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: without a new mask, the call writes the thread's mask to `blocked`; it cannot fail
    // for a valid `how`. Zeroed bytes are the empty set.
    let blocked = unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, null(), blocked.as_mut_ptr());
        blocked.assume_init()
    };
    (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal)).all(|signal| {
        // SAFETY: the set is initialised; the call only reads it.
        let is_blocked = unsafe { libc::sigismember(&raw const blocked, signal) } == 1;
        is_blocked || handler_restarts(signal)
    })
}

/// Returns whether a signal has no handler, or a handler that restarts calls.
fn handler_restarts(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action, the call writes the current one to `action`. For a signal
    // reserved by the C library it fails with `EINVAL` and writes nothing. Zeroed bytes are the
    // default action.
    let action = unsafe {
        libc::sigaction(signal, null(), action.as_mut_ptr());
        action.assume_init()
    };
    let flags = action.sa_flags;
    // A one-shot handler is reset to the default action when it runs, but its flags stay.
    let is_handled = match action.sa_sigaction {
        libc::SIG_DFL => flags & libc::SA_RESETHAND != 0,
        libc::SIG_IGN => false,
        _ => true,
    };
    !is_handled || flags & libc::SA_RESTART != 0
}

/// The signals that report faults.
const FAULTS: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT, libc::SIGSYS];

/// Creates a channel.
///
/// # Errors
/// `ENOMEM` when memory is short; the errors of [`Channel::new`].
pub(super) fn create() -> Result<*mut rdma_event_channel> {
    if !reserve::has_room() {
        return Err(no_memory("create_event_channel"));
    }
    let channel = Channel::new()?;
    let fd = channel.file.0.as_raw_fd();
    Ok(ChannelObject::boxed(rdma_event_channel { fd }, Arc::new(channel)))
}

/// Returns a new reference to a channel.
///
/// # Safety
/// `channel` must be live.
pub(super) unsafe fn share(channel: *mut rdma_event_channel) -> Arc<Channel> {
    // SAFETY: guaranteed by the caller.
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

/// `rdma_destroy_event_channel(3)`. Parts of the channel that its ids need stay alive.
///
/// # Safety
/// `channel` must be live and must not be used afterwards.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if !channel.is_null() {
        // SAFETY: `create` created the box.
        drop(unsafe { Box::from_raw(channel.cast::<ChannelObject>()) });
    }
}

/// The sysfs directory that lists RDMA devices.
const CLASS: &str = "/sys/class/infiniband";
