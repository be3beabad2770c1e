//! [`Choice`] and [`ChoiceId`]: ids on a channel with both backends. The id's address selects one.
//!
//! ```text
//!   create_id ─► Undecided: options are kept
//!      │ bind, resolve_addr, listen
//!      ├─ address or route of a soft device ─────────────► soft
//!      ├─ 0.0.0.0, ::, a loopback address of no device ──► both, on the same port
//!      └─ any other ─────────────────────────────────────► the kernel
//! ```
//!
//! The kernel may also have a device at the address of a soft device that only programs on this
//! host can reach. A listener on such an address therefore uses both backends; the kernel serves
//! the network.
//!
//! An id on both backends listens on both; events from both carry the id's cookie. If the id
//! instead resolves a peer's address, that address selects one backend. The id on the other backend
//! is destroyed. After a failed resolution the id may resolve another address, which selects again.
//!
//! Calls hold the id's lock for reading. A call that selects the backend holds the lock for
//! writing; such a call does not wait for a peer either.

mod backend;

use core::any::Any;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use provider_soft::cm::{Port, Resolution, resolve};
use verbs::{Cause, Errno, QpType, Result};

use super::{Backend, Kernel, RawEvent, Soft, Source};
use crate::channel::Ucma;
use crate::cmd::option::IdOption;
use crate::types::{Address, PortSpace};

/// The kernel's part of a channel with both backends. The ids that it creates select their backend
/// by address.
#[derive(Debug)]
pub(crate) struct Choice {
    kernel: Kernel,
    soft: Arc<Soft>,
}

/// An id whose backend depends on its address.
#[derive(Debug)]
struct ChoiceId {
    uid: u64,
    space: PortSpace,
    qp_type: QpType,
    inner: RwLock<Inner>,
}

#[derive(Debug)]
struct Inner {
    chosen: Chosen,
    /// Whether a peer's address has selected the backend. Until that address is resolved, another
    /// address may change the selection.
    is_tentative: bool,
    /// The address that the id had bound on both backends before the selection.
    bound: Option<Address>,
    /// The soft id. Before the selection, this id handles calls as an id without an address. It
    /// also holds the events written by the program.
    soft: Box<dyn Backend>,
    /// The kernel's id, once the kernel is selected.
    kernel: Option<Box<dyn Backend>>,
    /// The kernel's and the soft part of the channel, which create the ids of each backend.
    ucma: Arc<Ucma>,
    channel: Soft,
    /// The options to apply to new ids.
    options: SavedOptions,
}

/// The backend that executes the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chosen {
    Not,
    Kernel,
    Soft,
    Both,
}

/// The options that the program has set, for ids that are created later.
#[derive(Clone, Copy, Debug, Default)]
struct SavedOptions {
    tos: Option<u8>,
    reuse: Option<bool>,
    af_only: Option<bool>,
    ack_timeout: Option<u8>,
}

impl Choice {
    pub(crate) fn new(kernel: Kernel, soft: Arc<Soft>) -> Self {
        Self { kernel, soft }
    }
}

impl Source for Choice {
    fn create_id(&self, uid: u64, space: PortSpace, qp_type: QpType) -> Result<Box<dyn Backend>> {
        let soft = match self.soft.create_id(uid, space, qp_type) {
            Ok(soft) => soft,
            // The soft devices belong to the parent.
            Err(error) if error.cause == Cause::Forked => {
                return self.kernel.create_id(uid, space, qp_type);
            }
            Err(error) => return Err(error),
        };
        let inner = Inner {
            chosen: Chosen::Not,
            is_tentative: false,
            bound: None,
            soft,
            kernel: None,
            ucma: Arc::clone(&self.kernel.0),
            channel: Soft::clone(&self.soft),
            options: SavedOptions::default(),
        };
        Ok(Box::new(ChoiceId { uid, space, qp_type, inner: RwLock::new(inner) }))
    }

    fn next(&self) -> Result<Option<RawEvent>> {
        self.kernel.next()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.kernel.fd()
    }

    fn kernel(&self) -> Option<&Arc<Ucma>> {
        self.kernel.kernel()
    }

    fn soft(&self) -> Option<&dyn Any> {
        self.soft.soft()
    }
}

impl ChoiceId {
    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call on the selected backend.
    fn with<T>(&self, call: impl FnOnce(&dyn Backend) -> Result<T>) -> Result<T> {
        call(self.read().backend())
    }

    /// Creates a kernel id with the options that the program has set.
    fn make(&self, inner: &Inner) -> Result<Box<dyn Backend>> {
        let id = Kernel(Arc::clone(&inner.ucma)).create_id(self.uid, self.space, self.qp_type)?;
        inner.options.apply(id)
    }

    /// Creates a soft id with the options that the program has set.
    fn make_soft(&self, inner: &Inner) -> Result<Box<dyn Backend>> {
        inner.options.apply(inner.channel.create_id(self.uid, self.space, self.qp_type)?)
    }

    /// Binds to one address and one port on both backends.
    fn bind_both(&self, inner: &mut Inner, address: SocketAddr) -> Result<()> {
        let mut tries = TRIES;
        loop {
            let kernel = self.make(inner)?;
            if let Err(error) = kernel.bind(&address.into()) {
                if address.ip().is_unspecified() {
                    return Err(error);
                }
                // The kernel has no device at a loopback address.
                inner.soft.bind(&address.into())?;
                inner.chosen = Chosen::Soft;
                return Ok(());
            }
            let port = kernel.addresses()?.local.map_or(address.port(), |local| local.port());
            tries -= 1;
            match inner.soft.bind(&Address::from((address.ip(), port))) {
                // The kernel assigns another port in the next attempt.
                Err(error) if error.errno == Errno::ADDRINUSE && address.port() == 0 && tries > 0 => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    inner.kernel = Some(kernel);
                    inner.chosen = Chosen::Both;
                    return Ok(());
                }
            }
        }
    }
}

impl SavedOptions {
    /// Applies the options to an id.
    fn apply(self, id: Box<dyn Backend>) -> Result<Box<dyn Backend>> {
        let Self { tos, reuse, af_only, ack_timeout } = self;
        let options = [
            tos.map(IdOption::Tos),
            reuse.map(IdOption::ReuseAddr),
            af_only.map(IdOption::AfOnly),
            ack_timeout.map(IdOption::AckTimeout),
        ];
        options.into_iter().flatten().try_for_each(|option| id.set_option(option))?;
        Ok(id)
    }
}

impl Inner {
    /// Returns whether a peer's address may still select the backend.
    fn may_choose(&self) -> bool {
        match self.chosen {
            Chosen::Not | Chosen::Both => true,
            // A resolved id has a device.
            Chosen::Kernel | Chosen::Soft => {
                let has_none = |id: &dyn Backend| id.addresses().is_ok_and(|of| of.device.is_none());
                self.is_tentative && has_none(self.backend())
            }
        }
    }

    fn backend(&self) -> &dyn Backend {
        match (&self.kernel, self.chosen) {
            (Some(kernel), Chosen::Kernel) => &**kernel,
            _ => &*self.soft,
        }
    }
}

/// Returns the backends for binding to an address.
fn bound_to(address: &Address) -> Chosen {
    let Some(ip) = address.ip().map(|address| address.ip().to_canonical()) else { return Chosen::Kernel };
    let ports = Port::all();
    match ports.iter().find(|port| port.address() == ip) {
        Some(port) if port.reaches_network() => Chosen::Soft,
        Some(_) => Chosen::Both,
        None if !ports.is_empty() && (ip.is_unspecified() || ip.is_loopback()) => Chosen::Both,
        None => Chosen::Kernel,
    }
}

/// Returns whether a soft device of this process reaches a destination: the destination is the
/// device's address, the route uses that address, or another process listens there on a soft
/// device.
fn is_reached_by_soft(
    soft: &Soft,
    space: PortSpace,
    source: Option<&Address>,
    destination: &Address,
) -> bool {
    let Some(to) = destination.ip() else { return false };
    let source = match source.map(Address::ip) {
        Some(None) => return false,
        Some(Some(source)) => Some(source.ip().to_canonical()),
        None => None,
    };
    if let Some(source) = source.filter(|source| !source.is_unspecified() && !source.is_loopback()) {
        match Port::with_address(source) {
            Some(port) if port.reaches_network() => return true,
            Some(_) => {}
            None => return false,
        }
    }
    // The query below wakes the listener's process, once for each id that resolves the address.
    if soft.knows_listener(space, to) {
        return true;
    }
    let ip = to.ip().to_canonical();
    match resolve(space.0, source, to) {
        Ok(Resolution::Pending(_) | Resolution::Shared(_)) => true,
        // Kernel devices hold some of this machine's other addresses.
        Ok(Resolution::Done(route)) => {
            let is_own = route.port.address() == ip && route.port.reaches_network();
            !route.is_local || is_own || ip.is_loopback()
        }
        Err(_) => false,
    }
}

/// The number of kernel-assigned ports to try until one is also free for soft ids.
const TRIES: u32 = 16;

#[cfg(test)]
mod tests;
