//! [`Choice`] and [`ChoiceId`]: ids of a channel with both backends, one of which the address
//! chooses.
//!
//! ```text
//!   create_id ─► Undecided: options are kept
//!      │ bind, resolve_addr, listen
//!      ├─ address or route of a soft device ─────────────► soft
//!      ├─ 0.0.0.0, ::, a loopback address of no device ──► both, on the same port
//!      └─ any other ─────────────────────────────────────► the kernel
//! ```
//!
//! An id on both backends listens on both; both report under its cookie. If it resolves a peer's
//! address instead, that one chooses, and the other backend's id ends. A peer's address that was
//! not resolved leaves the id free to resolve another one, which chooses again.
//!
//! Calls hold the lock of the id for reading. A call that chooses holds it for writing, and does
//! not wait for a peer either.

mod backend;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use verbs::soft::cm::{Port, Resolution, resolve};
use verbs::{Cause, Errno, QpType, Result};

use super::{Backend, Kernel, RawEvent, Soft, Source};
use crate::channel::Ucma;
use crate::cmd::option::IdOption;
use crate::types::{Address, PortSpace};

/// The kernel's part of a channel that has both. Its ids choose.
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
    /// Whether a peer's address has chosen, which another one may change until it is resolved.
    is_tentative: bool,
    /// The address that it was bound to on both backends before.
    bound: Option<Address>,
    /// The soft id. Before the choice it has the answers of an id without an address, and it keeps
    /// the events that the program writes.
    soft: Box<dyn Backend>,
    /// The kernel's id, from the choice of the kernel on.
    kernel: Option<Box<dyn Backend>>,
    /// The channel's parts that make both.
    ucma: Arc<Ucma>,
    channel: Soft,
    /// The options that the ids get.
    kept: Kept,
}

/// The backend that calls go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chosen {
    Not,
    Kernel,
    Soft,
    Both,
}

/// Options that were set.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
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
            // The soft devices are those of the parent.
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
            kept: Kept::default(),
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

    fn soft(&self) -> Option<&Soft> {
        Some(&self.soft)
    }
}

impl ChoiceId {
    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call on the backend that was chosen.
    fn with<T>(&self, call: impl FnOnce(&dyn Backend) -> Result<T>) -> Result<T> {
        call(self.read().backend())
    }

    /// Makes an id of the kernel's, with the options that were set.
    fn make(&self, inner: &Inner) -> Result<Box<dyn Backend>> {
        let id = Kernel(Arc::clone(&inner.ucma)).create_id(self.uid, self.space, self.qp_type)?;
        inner.kept.apply(id)
    }

    /// Makes a soft id, with the options that were set.
    fn make_soft(&self, inner: &Inner) -> Result<Box<dyn Backend>> {
        inner.kept.apply(inner.channel.create_id(self.uid, self.space, self.qp_type)?)
    }

    /// Binds to an address of both backends, and to one port.
    fn bind_both(&self, inner: &mut Inner, address: SocketAddr) -> Result<()> {
        let mut tries = TRIES;
        loop {
            let kernel = self.make(inner)?;
            if let Err(error) = kernel.bind(&address.into()) {
                if address.ip().is_unspecified() {
                    return Err(error);
                }
                // The kernel has no device with a loopback address.
                inner.soft.bind(&address.into())?;
                inner.chosen = Chosen::Soft;
                return Ok(());
            }
            let port = kernel.addresses()?.local.map_or(address.port(), |local| local.port());
            tries -= 1;
            match inner.soft.bind(&Address::from((address.ip(), port))) {
                // The kernel draws another port.
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

impl Kept {
    /// Sets the options of an id.
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
    /// Returns whether the address of a peer chooses.
    fn may_choose(&self) -> bool {
        match self.chosen {
            Chosen::Not | Chosen::Both => true,
            // An id whose address was resolved has a device.
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

/// Returns the backends that have an address to bind to.
fn bound_to(address: &Address) -> Chosen {
    let Some(ip) = address.ip().map(|address| address.ip().to_canonical()) else { return Chosen::Kernel };
    let ports = Port::all();
    if ports.iter().any(|port| port.address() == ip) {
        Chosen::Soft
    } else if !ports.is_empty() && (ip.is_unspecified() || ip.is_loopback()) {
        Chosen::Both
    } else {
        Chosen::Kernel
    }
}

/// Returns whether a soft device of this process is the way to a destination: its own address, the
/// address of the route, or a listener that another process has for its soft device.
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
        return Port::with_address(source).is_some();
    }
    // The question below wakes the listener's process, for each id anew.
    if soft.knows_listener(space, to) {
        return true;
    }
    let ip = to.ip().to_canonical();
    match resolve(space.0, source, to) {
        Ok(Resolution::Pending(_) | Resolution::Shared(_)) => true,
        // Of the other addresses of this machine, the kernel's devices have some.
        Ok(Resolution::Done(route)) => !route.is_local || route.port.address() == ip || ip.is_loopback(),
        Err(_) => false,
    }
}

/// The number of ports that the kernel draws until soft ids have one of them free.
const TRIES: u32 = 16;

#[cfg(test)]
mod tests;
