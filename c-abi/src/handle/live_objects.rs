//! [`LiveObjects`]: the objects of a context that give peers access.
//!
//! In C, `ibv_close_device` closes the kernel device's file, and the kernel destroys the remaining
//! objects. Here, objects keep their device open, so closing destroys only the objects that give
//! peers access: queue pairs, then windows, then regions. The other objects stay until the process
//! ends.

use core::marker::PhantomData;
use std::collections::BTreeSet;

use crate::abi::c::{ibv_mr, ibv_mw, ibv_qp};
use crate::handle::destroyable::Exclusive;

/// The live objects of a context that give peers access.
#[derive(Debug)]
pub(crate) struct LiveObjects {
    /// The id of the process that opened the device. In a forked child, the objects belong to the
    /// parent.
    process: u32,
    pub(crate) qps: Addresses<ibv_qp>,
    pub(crate) mws: Addresses<ibv_mw>,
    pub(crate) mrs: Addresses<ibv_mr>,
}

impl LiveObjects {
    pub(crate) fn new() -> Self {
        Self {
            process: std::process::id(),
            qps: Addresses::default(),
            mws: Addresses::default(),
            mrs: Addresses::default(),
        }
    }

    /// Returns whether this process opened the device.
    pub(crate) fn is_own(&self) -> bool {
        std::process::id() == self.process
    }
}

/// The addresses of the live objects of one kind. If the parent was changing the set at a fork, the
/// child no longer updates it, and destroys nothing when the device is closed.
#[derive(Debug)]
pub(crate) struct Addresses<C> {
    set: Exclusive<BTreeSet<usize>>,
    _of: PhantomData<fn() -> C>,
}

impl<C> Default for Addresses<C> {
    fn default() -> Self {
        Self { set: Exclusive::new(BTreeSet::new()), _of: PhantomData }
    }
}

impl<C> Addresses<C> {
    /// Adds a new object and returns it.
    pub(crate) fn add(&self, object: *mut C) -> *mut C {
        if let Ok(mut set) = self.set.lock() {
            set.insert(object.expose_provenance());
        }
        object
    }

    /// Removes an object before its memory is freed. The object may already be destroyed, while the
    /// call still waits for events to be acknowledged.
    pub(crate) fn remove(&self, object: *mut C) {
        if let Ok(mut set) = self.set.lock() {
            set.remove(&object.addr());
        }
    }

    /// Empties the set and returns its objects.
    pub(crate) fn take(&self) -> impl Iterator<Item = *mut C> {
        let taken = self.set.lock().map(|mut set| core::mem::take(&mut *set)).unwrap_or_default();
        taken.into_iter().map(core::ptr::with_exposed_provenance_mut)
    }
}
