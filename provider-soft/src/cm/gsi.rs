//! [`Gsi`]: queue pair 1 of a device.
//!
//! ```text
//!   any thread that holds the device's lock            the connection manager's thread
//!   packet ─► engine ─► GsiEnd ──► ring ─────────────► Gsi::recv
//!                       release ─► eventfd ──────────► poll(2)
//!                       engine ◄── lock ◄───────────── Gsi::send
//! ```
//!
//! The descriptor becomes readable when the lock is released, once for all MADs of a turn. The
//! woken thread runs at once on another processor. If woken earlier, it would have to wait for the
//! lock before sending, while the holder still looks for packets. [`signal`](crate::sync::signal)
//! proves that no MAD is lost.
//!
//! The ring is bounded, because any host can fill it. MADs beyond its capacity are dropped and
//! counted ([`Counters::datagrams_mads_full`](crate::Counters::datagrams_mads_full)).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};
use roce::engine::{self, MadDestination, Path, PostRefused};
use verbs_core::types::Gid;
use verbs_core::{Cause, Errno, Result};

use super::port::Port;
use crate::device::Device;
use crate::device::device_core::DeviceCore;
use crate::device::error::{allocation, refusal};
use crate::device::gsi_end::GsiEnd;
use crate::io::Requests;
use crate::sync::ring::{Consumer, ring};
use crate::sync::signal::Signal;

/// The length of a management datagram, in bytes.
pub const MAD_LEN: usize = engine::MAD_LEN;

/// The general services interface of a device: sends and receives management datagrams (MADs).
/// Dropping it closes queue pair 1.
///
/// Packets for queue pair 1 are received if they belong to the default partition, carry the queue
/// key 0x80010000 and contain exactly [`MAD_LEN`] bytes. Linux's rxe makes the same checks; its MAD
/// layer sends this length. MADs may be lost, duplicated or forged, like all datagrams.
///
/// To wait, use `poll(2)` on [`as_fd`](AsFd::as_fd), which is readable until [`recv`](Self::recv)
/// has returned `None`. The descriptor must not be read from or written to.
#[derive(Debug)]
pub struct Gsi {
    device: Arc<Device>,
    received: Mutex<Consumer<engine::ReceivedMad>>,
    signal: Arc<Signal>,
}

/// The other end of a MAD: the destination of a sent MAD, or the source of a received MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadAddress {
    /// The IP address, as a GID.
    pub gid: Gid,
    /// The queue pair number: 1, unless a received MAD came from another queue pair.
    pub qpn: u32,
    /// The traffic class (TOS). In a received MAD it is 0 unless the device has a datagram queue
    /// pair.
    pub traffic_class: u8,
    /// The hop limit of packets; 0 stands for the system default. It is always 0 in the address of
    /// a received MAD.
    pub hop_limit: u8,
}

impl MadAddress {
    /// Returns the general services interface at an address, with system defaults.
    pub fn new(gid: Gid) -> Self {
        Self { gid, qpn: engine::GSI_QPN, traffic_class: 0, hop_limit: 0 }
    }
}

/// A received MAD.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedMad {
    /// The MAD's source, which is also the destination of a reply.
    pub from: MadAddress,
    /// The packet's partition key: 0xffff, or 0x7fff from a limited member. Both match the key at
    /// index 0.
    pub pkey: u16,
    /// The bytes of the MAD.
    pub mad: [u8; MAD_LEN],
}

impl Port {
    /// Takes the device's general services interface. All contexts of the device share the
    /// interface, so only one [`Gsi`] of a device can exist at a time.
    ///
    /// # Errors
    /// `EBUSY` if it is already taken; `ENOMEM`, `EMFILE`; `ENODEV` in a forked child of the
    /// process that created the device.
    pub fn take_gsi(&self) -> Result<Gsi> {
        Gsi::take(&self.device)
    }
}

impl Gsi {
    pub(super) fn take(device: &Arc<Device>) -> Result<Self> {
        device.check(TAKE)?;
        let (producer, received) = ring(CAPACITY, 0).map_err(|bytes| allocation(device, TAKE, bytes))?;
        let readable = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|errno| device.error(TAKE, errno.into()))?;
        let signal = Arc::new(Signal::new(readable));
        let end = GsiEnd::new(producer, Arc::clone(&signal));
        let requests = device.request_socket().map_err(|errno| device.error(TAKE, errno))?;
        device.control(TAKE, |core, _| {
            core.engine.open_gsi().map_err(|refused| match refused {
                engine::Refused::Busy => device
                    .error(TAKE, Errno::BUSY)
                    .because(Cause::InUse { by: "another part of this process" }),
                other => refusal(device, TAKE, other),
            })?;
            core.sink.gsi = Some(end);
            core.requests = requests.map(|socket| Box::new(Requests::new(socket)));
            Ok(())
        })?;
        device.watch_requests(true);
        Ok(Self { device: Arc::clone(device), received: Mutex::new(received), signal })
    }

    /// Returns the port of the device.
    pub fn port(&self) -> Port {
        Port { device: Arc::clone(&self.device) }
    }

    /// Sends a MAD from the device's address. The MAD leaves before the call returns, unless the
    /// socket is full.
    ///
    /// # Errors
    /// - `EAGAIN`: 512 MADs already wait for space in the socket. Treat the MAD as lost.
    /// - `ENETUNREACH`: the destination has an address of the other family.
    /// - `ENODEV` in a forked child of the process that created the device.
    pub fn send(&self, to: &MadAddress, mad: &[u8; MAD_LEN]) -> Result<()> {
        let to = self.destination(to)?;
        self.device.control(SEND, |core, _| self.post(core, &to, mad))
    }

    /// Sends a MAD as [`send`](Self::send) does, from a function run by
    /// [`at_exit`](super::at_exit), but does not wait long for the device's lock.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send); `EBUSY` if the device's lock does not become free soon.
    pub fn send_at_exit(&self, to: &MadAddress, mad: &[u8; MAD_LEN]) -> Result<()> {
        let to = self.destination(to)?;
        self.device.control_soon(SEND, |core, _| self.post(core, &to, mad))
    }

    /// Leaves further connection requests to the other processes that share the device's address.
    /// For use while this process exits.
    pub fn leave_requests(&self) {
        self.device.leave_requests();
    }

    /// Handles all packets that the device received before the call: MADs and data for queue pairs.
    pub fn catch_up(&self) {
        if !self.device.is_forked() {
            self.device.catch_up();
        }
    }

    fn destination(&self, to: &MadAddress) -> Result<MadDestination> {
        let device = &self.device;
        if to.gid.to_ipv4().is_some() != Gid(device.gid).to_ipv4().is_some() {
            return Err(device.error(SEND, Errno::NETUNREACH));
        }
        let path = Path {
            local: device.gid,
            remote: to.gid.0,
            traffic_class: to.traffic_class,
            hop_limit: to.hop_limit,
            ..Path::default()
        };
        Ok(MadDestination { path, qpn: to.qpn, pkey: Port::PKEY })
    }

    fn post(&self, core: &mut DeviceCore, to: &MadDestination, mad: &[u8; MAD_LEN]) -> Result<()> {
        core.engine.send_mad(to, mad).map_err(|refused| {
            let full = refused == PostRefused::QueueFull;
            self.device.error(SEND, if full { Errno::AGAIN } else { Errno::INVAL })
        })
    }

    /// Returns the next received MAD, without waiting. Returns `None` in a forked child.
    pub fn recv(&self) -> Option<ReceivedMad> {
        if self.device.is_forked() {
            return None;
        }
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        self.signal.take(|| take_next(&mut received))
    }
}

/// The descriptor is readable while MADs may be waiting.
impl AsFd for Gsi {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.readable.as_fd()
    }
}

impl Drop for Gsi {
    fn drop(&mut self) {
        // Fails only in a forked child, where the interface belongs to the parent.
        let _ = self.device.control("close_gsi", |core, _| {
            self.device.watch_requests(false);
            core.engine.close_gsi();
            core.sink.gsi = None;
            core.requests = None;
            Ok(())
        });
    }
}

fn take_next(received: &mut Consumer<engine::ReceivedMad>) -> Option<ReceivedMad> {
    let engine::ReceivedMad { arrival, src_qpn, pkey, mad, .. } = *received.next()?;
    received.free(1);
    let (gid, traffic_class) = (Gid(arrival.remote), arrival.traffic_class);
    Some(ReceivedMad { from: MadAddress { gid, qpn: src_qpn, traffic_class, hop_limit: 0 }, pkey, mad })
}

const TAKE: &str = "take_gsi";
const SEND: &str = "send_mad";

/// The ring's capacity: 8192 MADs, or 2.6 MiB, whose pages are allocated on first use. A full ring
/// drops MADs from all senders alike, and lost requests are repeated only after seconds. At 20,000
/// MADs per second, the connection manager's thread may run 400 ms late.
const CAPACITY: u32 = 8192;
