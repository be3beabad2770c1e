//! [`Left`]: the objects through which peers access a context, and the end of those that a program
//! leaves behind.
//!
//! `ibv_close_device` closes the file of a kernel's device, and the kernel destroys what is left.
//! Here objects keep their device, so that the close destroys what gives peers access: queue pairs,
//! then windows, then regions. The other objects that are left stay until the process ends.
//!
//! # Safety
//! The addresses are those of live objects of the context.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use std::collections::BTreeSet;

use verbs_core::provider::{Destroy as _, Provider};

use crate::c::{ibv_mr, ibv_mw, ibv_qp};
use crate::mr::MrObject;
use crate::mw::MwObject;
use crate::qp::QpObject;
use crate::shared::Exclusive;

/// The live objects of a context that give peers access.
#[derive(Debug)]
pub(crate) struct Left<P> {
    /// The process that opened the device. The objects of a forked child are its parent's.
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

    /// Destroys the objects. The program has leaked their structs, which stay.
    ///
    /// # Safety
    /// The program does not use the objects any more.
    pub(crate) unsafe fn end(&self) {
        const VERB: &str = "close_device";
        if std::process::id() != self.process {
            return;
        }
        // One that the device fails to destroy is left as it is: the close has nothing to report
        // it by.
        // SAFETY: the objects are in memory, because each is taken out before it is freed. One that
        // has ended returns `EINVAL`.
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

/// The addresses of the live objects of a kind. They are not kept up in a forked child whose parent
/// was changing them: the end there destroys nothing.
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
    /// Adds a new object, and returns it.
    pub(crate) fn add(&self, object: *mut C) -> *mut C {
        if let Ok(mut set) = self.set.lock() {
            set.insert(object.expose_provenance());
        }
        object
    }

    /// Forgets an object, before its memory is freed. Until then it may have ended already, while
    /// its end waits for events to be acknowledged.
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
