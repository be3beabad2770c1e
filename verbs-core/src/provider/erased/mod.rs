//! [`Erased`]: a provider whose objects hide their original provider.
//!
//! Each erased object is a box around a provider's object. A private trait extends the object's
//! public trait with the operations that consume the object or take other objects of its provider;
//! accessors are inherited. An erased context is a `dyn ContextOps<Erased>`, which
//! [`context::ErasedContext`] implements for every provider.
//!
//! `downcast` returns an object as its provider's own type.
//!
//! | module | the erased objects |
//! |---|---|
//! | this file | objects without queues: domains, regions, windows, address handles |
//! | [`completion`] | completion queues, which fetch completions in batches |
//! | [`queue`] | queue pairs and shared receive queues, with their queues |
//! | [`steering`] | work queues, flow rules, counters |
//! | [`context`] | the context: [`context::ErasedContext`] creates all other objects |
//!
//! # Safety
//! Each unsafe call has the same requirements as the function that contains it.
#![allow(unsafe_code)]
// Objects are returned by value so that they are not lost; destruction is not a hot path.
#![allow(clippy::result_large_err)]

use core::any::Any;
use core::fmt::Debug;
use std::os::fd::OwnedFd;

use super::{AhOps, ContextOps, Destroy, DmOps, DmahOps, MrOps, MwOps, PdOps, Provider, TdOps, XrcdOps};
use crate::errno::Errno;
use crate::error::{Cause, Error, Result};
use crate::types::{Av, MwType};

/// A provider whose objects hide their original provider.
#[derive(Debug)]
pub enum Erased {}

// SAFETY: every object is a box around a provider's object. A context of that provider created the
// object, and the provider makes the same promises. By number:
// - 1 to 4, 19: the boxed queues pass each call's requests to the provider in one call and return
//   the provider's result.
// - 5 to 8: a `Wc` in the batch is a copy of a completion of the provider's queue, whose request
//   had ended when it was copied. `next` returns each copy once and in order. A copy is overwritten
//   only by the next fetch, which needs `&mut self` and so the end of every view. A queue with
//   copies left cannot be downcast (`ErasedCq::downcast`), so they do not reach another queue.
// - 9 to 13: `modify`, `reg_mr` and `destroy` are the provider's own; keys are read from the
//   provider's region each time.
// - 14, 15: `destroy_boxed` moves the object out of its box, and on `Err` puts that same object
//   into a new box. If the provider unwinds, only the empty box is dropped here. Dropping an erased
//   object drops the provider's object and does nothing else. `downcast` compares the type before
//   it moves the object and returns the box unopened if the type differs.
// - 16: the descriptors are the provider's.
// - 17: `ErasedContext` rejects objects of another provider's family by their type; the provider
//   checks its own objects.
// - 18: `reg_mr` is the provider's. The box for the returned region is allocated without unwinding:
//   if memory is exhausted, the process ends.
// - 20, 24 to 26: the boxed queues are the provider's. `modify` rejects queues of another provider
//   by their type.
unsafe impl Provider for Erased {
    type Context = dyn ContextOps<Self>;
    type Pd = ErasedPd;
    type Mr = ErasedMr;
    type Cq = ErasedCq;
    type CqHandle = ErasedCqHandle;
    type Qp = ErasedQp;
    type Sq = ErasedSendQueue;
    type Rq = ErasedRecvQueue;
    type Ah = ErasedAh;
    type Srq = ErasedSrq;
    type SrqQueue = ErasedSrqQueue;
    type Xrcd = ErasedXrcd;
    type Mw = ErasedMw;
    type Dm = ErasedDm;
    type Dmah = ErasedDmah;
    type Td = ErasedTd;
    type Wq = ErasedWq;
    type WqQueue = ErasedWqQueue;
    type RwqIndTable = ErasedRwqIndTable;
    type Flow = ErasedFlow;
    type FlowAction = ErasedFlowAction;
    type Counters = ErasedCounters;
    type CompCntr = ErasedCompCntr;
}

/// Defines an erased object: a box around a private trait object, its constructor, and its
/// downcasts.
macro_rules! erased_object {
    ($(#[$doc:meta])* $vis:vis $erased:ident, $dyn:ident, $($ops:tt)+) => {
        $(#[$doc])*
        #[derive(Debug)]
        $vis struct $erased(Box<dyn $dyn>);

        impl $erased {
            /// Erases a provider's object.
            $vis fn new<T: $($ops)+>(object: T) -> Self {
                Self(Box::new(object))
            }

            /// Returns a reference to the provider's own object; `None` if its type is not `T`.
            $vis fn downcast_ref<T: Any>(&self) -> Option<&T> {
                let any: &dyn Any = &*self.0;
                any.downcast_ref()
            }

            /// Returns the object as its provider's own type.
            ///
            /// # Errors
            /// Returns the object unchanged if it belongs to another provider.
            $vis fn downcast<T: Any>(self) -> Result<T, Self> {
                if self.downcast_ref::<T>().is_none() {
                    return Err(self);
                }
                let any: Box<dyn Any> = self.0;
                match any.downcast::<T>() {
                    Ok(object) => Ok(*object),
                    Err(_) => unreachable!("the type was just checked"),
                }
            }
        }
    };
}

/// Implements [`Destroy`] for an erased object, which is a box. Also defines the private trait
/// `$dyn` and implements it for each provider's object type `T`. The braces contain methods of this
/// trait that take other objects of the same provider.
macro_rules! destroy_through_box {
    ($erased:ident, $dyn:ident: $ops:ident $({
        $($(#[$doc:meta])* fn $call:ident($($args:tt)*) -> $result:ty $body:block)+
    })?) => {
        trait $dyn: $ops {
            $($($(#[$doc])* fn $call($($args)*) -> $result;)+)?
            fn destroy_boxed(self: Box<Self>) -> Result<$crate::provider::EventsRead, (Box<dyn $dyn>, Error)>;
        }

        impl<T: $ops + Destroy> $dyn for T {
            $($(fn $call($($args)*) -> $result $body)+)?
            fn destroy_boxed(self: Box<Self>) -> Result<$crate::provider::EventsRead, (Box<dyn $dyn>, Error)> {
                self.destroy_counting_events()
                    .map_err(|(object, error)| (Box::new(object) as Box<dyn $dyn>, error))
            }
        }

        impl Destroy for $erased {
            fn destroy(self) -> Result<(), (Self, Error)> {
                self.destroy_counting_events().map(drop)
            }
            fn destroy_counting_events(self) -> Result<$crate::provider::EventsRead, (Self, Error)> {
                self.0.destroy_boxed().map_err(|(object, error)| (Self(object), error))
            }
        }
    };
}

/// Implements [`RecvQueue`] for an erased receive queue.
macro_rules! recv_queue_through_box {
    ($($erased:ident),*) => {$(
        impl RecvQueue for $erased {
            #[inline]
            unsafe fn post_one(&mut self, wr: &RecvWr<'_>) -> Result<(), PostReason> {
                // SAFETY: the caller upholds the same contract.
                unsafe { self.0.post_one(wr) }
            }
            #[inline]
            fn ring(&mut self) {
                self.0.ring();
            }
            #[inline]
            unsafe fn post_recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
                // SAFETY: the caller upholds the same contract.
                unsafe { self.0.post_recv(wrs) }
            }
            unsafe fn post_srq_ops(&mut self, wrs: &mut [OpsWr<'_>]) -> Result<(), PostError> {
                // SAFETY: the caller upholds the same contract.
                unsafe { self.0.post_srq_ops(wrs) }
            }
        }
    )*};
}

mod completion;
mod context;
mod queue;
mod steering;

pub use completion::{ErasedCompletion, ErasedCq, ErasedCqHandle};
pub use context::erase;
pub use queue::{ErasedQp, ErasedRecvQueue, ErasedSendQueue, ErasedSrq, ErasedSrqQueue};
pub use steering::{
    ErasedCompCntr, ErasedCounters, ErasedFlow, ErasedFlowAction, ErasedRwqIndTable, ErasedWq, ErasedWqQueue,
};

erased_object! {
    /// An erased protection domain.
    pub ErasedPd, DynPd, PdOps + Destroy
}
destroy_through_box!(ErasedPd, DynPd: PdOps);

impl PdOps for ErasedPd {
    fn handle(&self) -> u32 {
        self.0.handle()
    }
}

erased_object! {
    /// An erased memory region.
    pub ErasedMr, DynMr, MrOps + Destroy
}
destroy_through_box!(ErasedMr, DynMr: MrOps);

impl ErasedMr {
    /// Returns a mutable reference to the provider's own region; `None` if its type is not `T`.
    fn downcast_mut<T: Any>(&mut self) -> Option<&mut T> {
        let any: &mut dyn Any = &mut *self.0;
        any.downcast_mut()
    }
}

impl MrOps for ErasedMr {
    fn handle(&self) -> u32 {
        self.0.handle()
    }
    fn lkey(&self) -> u32 {
        self.0.lkey()
    }
    fn rkey(&self) -> u32 {
        self.0.rkey()
    }
}

erased_object! {
    /// An erased address handle.
    pub ErasedAh, DynAh, AhOps + Destroy
}
destroy_through_box!(ErasedAh, DynAh: AhOps);

impl AhOps for ErasedAh {
    fn av(&self) -> &Av {
        self.0.av()
    }
}

erased_object! {
    /// An erased XRC domain.
    pub ErasedXrcd, DynXrcd, XrcdOps + Destroy
}
destroy_through_box!(ErasedXrcd, DynXrcd: XrcdOps);

impl XrcdOps for ErasedXrcd {
    fn handle(&self) -> u32 {
        self.0.handle()
    }
}

erased_object! {
    /// An erased memory window.
    pub ErasedMw, DynMw, MwOps + Destroy
}
destroy_through_box!(ErasedMw, DynMw: MwOps);

impl MwOps for ErasedMw {
    fn handle(&self) -> u32 {
        self.0.handle()
    }
    fn rkey(&self) -> u32 {
        self.0.rkey()
    }
    fn mw_type(&self) -> MwType {
        self.0.mw_type()
    }
    fn revocation_ends_access(&self) -> bool {
        self.0.revocation_ends_access()
    }
}

erased_object! {
    /// Erased device memory.
    pub ErasedDm, DynDm, DmOps + Destroy
}
destroy_through_box!(ErasedDm, DynDm: DmOps);

impl DmOps for ErasedDm {
    fn handle(&self) -> u32 {
        self.0.handle()
    }
    fn length(&self) -> u64 {
        self.0.length()
    }
    fn copy_to(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.copy_to(offset, bytes)
    }
    fn copy_from(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.0.copy_from(offset, bytes)
    }
    fn export_dmabuf_fd(&self) -> Result<OwnedFd> {
        self.0.export_dmabuf_fd()
    }
}

erased_object! {
    /// An erased DMA handle.
    pub ErasedDmah, DynDmah, DmahOps + Destroy
}
destroy_through_box!(ErasedDmah, DynDmah: DmahOps);

impl DmahOps for ErasedDmah {
    fn handle(&self) -> u32 {
        self.0.handle()
    }
}

erased_object! {
    /// An erased thread domain.
    pub ErasedTd, DynTd, TdOps + Destroy
}
destroy_through_box!(ErasedTd, DynTd: TdOps);

impl TdOps for ErasedTd {}

/// Returns the error for a call that received another provider's object.
fn foreign(verb: &'static str, what: &'static str) -> Error {
    Error::new(verb, "", Errno::INVAL).because(Cause::Foreign { what })
}
