//! [`Left`]: the objects through which peers access a context, and their end if the program does
//! not destroy them.
//!
//! In C, `ibv_close_device` closes the kernel device's file, and the kernel destroys the remaining
//! objects. Here objects keep their device open, so closing destroys whatever gives peers access:
//! queue pairs, then windows, then regions. Other remaining objects stay until the process ends.
//!
//! # Safety
//! The addresses are those of live objects of the context.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use std::collections::BTreeSet;

use verbs_core::provider::{Destroy as _, Provider};

use crate::abi::c::{ibv_mr, ibv_mw, ibv_qp};
use crate::handle::shared::Exclusive;
use crate::verbs::mr::MrObject;
use crate::verbs::mw::MwObject;
use crate::verbs::qp::QpObject;

/// The live objects of a context that give peers access.
#[derive(Debug)]
pub(crate) struct Left<P> {
    /// The process that opened the device. In a forked child, the objects belong to the parent.
    process: u32,
    pub(crate) qps: Addresses<ibv_qp>,
    pub(crate) mws: Addresses<ibv_mw>,
    pub(crate) mrs: Addresses<ibv_mr>,
    _provider: PhantomData<fn() -> P>,
}

impl<P: Provider> Left<P> {
    pub(crate) fn new() -> Self {
        Self {
            process: std::process::id(),
            qps: Addresses::default(),
            mws: Addresses::default(),
            mrs: Addresses::default(),
            _provider: PhantomData,
        }
    }

    /// Destroys the objects. Their structs stay, leaked by the program.
    ///
    /// # Safety
    /// The program no longer uses the objects.
    pub(crate) unsafe fn end(&self) {
        const VERB: &str = "close_device";
        if std::process::id() != self.process {
            return;
        }
        // An object that the device fails to destroy stays: closing has no way to report it.
        // SAFETY: the objects are in memory, because each is removed from the sets before it is
        // freed. An object that has already been destroyed returns `EINVAL`.
        unsafe {
            for qp in self.qps.take() {
                let _ = QpObject::<P>::inner(qp.cast()).destroy_control();
            }
            for mw in self.mws.take() {
                let _ = MwObject::<P>::inner(mw).destroy(VERB, |mw| mw.destroy());
            }
            for mr in self.mrs.take() {
                let _ = MrObject::<P>::inner(mr).destroy(VERB, |mr| mr.destroy());
            }
        }
    }
}

/// The addresses of the live objects of one kind. If the parent was changing the set at a fork, the
/// forked child no longer updates it and destroys nothing at the end.
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

    /// Removes an object before its memory is freed. It may already be destroyed by then, while the
    /// call waits for events to be acknowledged.
    pub(crate) fn remove(&self, object: *mut C) {
        if let Ok(mut set) = self.set.lock() {
            set.remove(&object.addr());
        }
    }

    fn take(&self) -> impl Iterator<Item = *mut C> {
        let taken = self.set.lock().map(|mut set| core::mem::take(&mut *set)).unwrap_or_default();
        taken.into_iter().map(core::ptr::with_exposed_provenance_mut)
    }
}
