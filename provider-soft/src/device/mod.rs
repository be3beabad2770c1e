//! [`Device`]: a live device as owned by its objects: the state in [`DeviceState`] and the worker
//! thread.
//!
//! ```text
//!   DeviceInfo (OwnDevice) ─┐
//!   Context, Pd, Mr, Cq, Qp ┴─► Arc<Device> ──► Arc<DeviceState> ◄── the worker
//!         the last one dropped stops and joins the worker, then all is closed
//! ```
//!
//! The worker holds no reference to the `Device`, so it never keeps one alive.
//!
//! | module | content |
//! |---|---|
//! | [`error`] | rejections as errors with the kernel's errno |
//! | [`worker`] | the background thread |
//! | [`waiters`], [`drivers`] | the threads that wait for completions or events |
//! | [`wait`] | a thread that sleeps until a completion, and works for the device meanwhile |
//! | [`idle_polls`] | how a thread that polls an empty queue gives up its processor |
//! | [`exit`] | acknowledgements sent while the process exits |
//! | [`state`] | **start here**: the state of a live device and the threads working on it |
//! | [`acks`] | when acknowledgements are sent that are not urgent |
//! | [`device_core`] | the state under the lock: the engine of [`roce`], packets in and out |
//! | [`sink`] | the engine's results: completions, retired work requests, events |
//! | [`gsi_end`] | received management datagrams, for a connection manager |
//! | [`xrc_domains`] | the XRC domains and the users of their handles |
//! | [`event_pipe`] | events, through a file that a program can wait on |
//! | [`settings`] | the choices made when a device is created |
//! | [`counter_files`] | the counters as files, in the sysfs format |
//! | [`slots`] | objects by slot, and slots by number |
//! | [`limits`] | the device's limits and attributes |
//! | [`wqe`] | a work request on its way through a ring |
//! | [`random`] | the source of queue pair numbers and keys |
//! | [`fork`] | detects a forked child of the process that created the device |

pub(crate) mod acks;
pub(crate) mod counter_files;
pub(crate) mod device_core;
pub(crate) mod drivers;
pub(crate) mod error;
pub(crate) mod event_pipe;
pub(crate) mod exit;
pub(crate) mod fork;
pub(crate) mod gsi_end;
pub(crate) mod idle_polls;
pub(crate) mod limits;
pub(crate) mod random;
pub(crate) mod settings;
pub(crate) mod sink;
pub(crate) mod slots;
pub(crate) mod state;
pub(crate) mod wait;
pub(crate) mod waiters;
pub(crate) mod worker;
pub(crate) mod wqe;
pub(crate) mod xrc_domains;

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;

use verbs_core::fork::ForkLock;
use verbs_core::types::Guid;
use verbs_core::{Errno, room, thread};

use crate::device::settings::Settings;
use crate::device::state::DeviceState;
use crate::io::link::PortWatch;
use crate::io::{Membership, Socket};
use crate::shm::peers::Peers;
use crate::shm::place::Place;

/// A live device. Dropping the last reference stops it.
#[derive(Debug)]
pub(crate) struct Device {
    shared: Arc<DeviceState>,
    worker: Mutex<Option<JoinHandle<()>>>,
    /// Whether the address was chosen automatically.
    pub(crate) is_auto: bool,
}

impl Device {
    /// Creates a device on a socket. The device exchanges packets through memory with devices found
    /// by `place`.
    ///
    /// # Errors
    /// `ENOMEM`; the errno of a failed system call: notably `EMFILE`, and `EAGAIN` if the process
    /// cannot start another thread.
    pub(crate) fn new(
        name: &str,
        socket: Box<Socket>,
        guid: Guid,
        settings: Settings,
        place: Option<Place>,
        is_auto: bool,
    ) -> Result<Arc<Self>, Errno> {
        // Created before the device, because both need much of the caller's stack.
        let link = PortWatch::on(&socket);
        let peers = place.and_then(|place| Peers::listen(place, &socket));
        let shared = DeviceState::new(name, socket, link, peers, guid, settings)?;
        Self::start(name, shared, is_auto)
    }

    /// Starts the worker of a new device. Not inlined: its local values would otherwise occupy the
    /// stack while the device is created.
    ///
    /// # Errors
    /// `ENOMEM`, `EAGAIN` as for [`new`](Self::new).
    #[inline(never)]
    fn start(name: &str, shared: Arc<DeviceState>, is_auto: bool) -> Result<Arc<Self>, Errno> {
        room::check(room::CALL)?;
        exit::remember(&shared);
        let its = Arc::clone(&shared);
        let device = Arc::new(Self { shared, worker: Mutex::default(), is_auto });
        let worker = thread::start(name, move || worker::run(&its))?;
        *device.worker.lock().unwrap_or_else(PoisonError::into_inner) = Some(worker);
        // Starting the thread may have used up the memory left. Dropping the device ends the
        // thread.
        room::check(room::CALL)?;
        let mut devices = DEVICES.lock_or(Vec::new);
        devices.retain(|device| device.strong_count() > 0);
        devices.push(Arc::downgrade(&device));
        drop(devices);
        if let Some(notice) = NOTICE.get() {
            notice();
        }
        Ok(device)
    }

    /// Returns the live devices of this process in order of creation.
    pub(crate) fn live() -> Vec<Arc<Self>> {
        let devices = DEVICES.lock_or(Vec::new);
        devices.iter().filter_map(Weak::upgrade).filter(|device| !device.is_forked()).collect()
    }
}

impl core::ops::Deref for Device {
    type Target = DeviceState;

    #[inline]
    fn deref(&self) -> &DeviceState {
        &self.shared
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let worker = self.worker.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.shared.is_forked() {
            // A child has no thread to join, so nothing drops the thread's reference. The child
            // explicitly closes the descriptors that keep the parent's address in use. No code can
            // reach these descriptors afterwards.
            core::mem::forget(worker);
            let fds =
                [self.shared.socket.as_fd(), self.shared.alarm.as_fd(), self.shared.driver_alarm.as_fd()];
            let fds = fds.into_iter().chain(self.shared.link.as_ref().map(AsFd::as_fd));
            let membership = self.shared.socket.membership().map(Membership::files);
            let requests = self.shared.requests.get().map(|requests| requests.as_fd());
            for fd in fds.chain(membership.into_iter().flatten()).chain(requests) {
                let _ = nix::unistd::close(fd.as_raw_fd());
            }
            if let Some(peers) = &self.shared.peers {
                peers.for_each_file(|fd| {
                    let _ = nix::unistd::close(fd.as_raw_fd());
                });
            }
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(worker) = worker {
            let _ = worker.join();
        }
    }
}

/// Registers a function that runs after the process has created a device, once
/// [`Port::all`](crate::cm::Port::all) includes it. Only the first registration counts. The
/// function runs in the thread creating the device, inside calls of [`cm`](crate::cm), so it must
/// neither wait for a lock nor call that module.
pub fn at_new_port(notice: fn()) {
    let _ = NOTICE.set(notice);
}

static NOTICE: OnceLock<fn()> = OnceLock::new();

/// All devices created by this process, including some that may be gone.
static DEVICES: ForkLock<Vec<Weak<Device>>> = ForkLock::new(Vec::new());
