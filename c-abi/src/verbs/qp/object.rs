//! [`Qp`]: a provider's queue pair behind a C pointer.
//!
//! # Safety
//! See the crate documentation. The locks guard the provider's objects.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use verbs_core::provider::{Destroy as _, EventsRead, Provider};
use verbs_core::types::QpType;
use verbs_core::{Errno, Error};

use crate::abi::c::mlx5dv::mlx5dv_qp_ex;
use crate::abi::c::{ibv_qp, ibv_qp_ex};
use crate::abi::errno::unavailable;
use crate::handle::destroyable::Exclusive;
use crate::handle::lock::Spin;
use crate::handle::object::{Object, check_handle, public};
use crate::verbs::qp::batch::Batch;

/// A provider's queue pair, with its locks.
pub(crate) struct Qp<P: Provider> {
    pub(crate) sq: Spin<P::Sq>,
    pub(crate) rq: Spin<P::Rq>,
    /// The batch of `ibv_wr_start`, guarded by the lock of `sq`.
    pub(crate) batch: UnsafeCell<Batch>,
    /// Whether batches are rejected: this is a forked child, and its parent held the lock of `sq`.
    pub(crate) is_refused: AtomicBool,
    pub(crate) addressing: Addressing,
    pub(crate) max_inline_data: u32,
    pub(super) handle: u32,
    /// The control object; `None` once it is destroyed, while destruction waits for events to be
    /// acknowledged.
    pub(super) control: Exclusive<Option<P::Qp>>,
    /// Keeps the parent domain in use.
    pub(super) parent: Option<Arc<()>>,
    /// The ConnectX-specific operations, if the program requested them.
    pub(crate) dv: OnceLock<Box<DvQpEx>>,
    /// Shares that keep the completion queues in use until destruction has removed this queue
    /// pair's completions from them.
    pub(super) cqs: [Option<Arc<()>>; 2],
}

pub(crate) type QpObject<P> = Object<ibv_qp_ex, Qp<P>>;

impl<P: Provider> Qp<P> {
    /// Calls `with` with the control object.
    ///
    /// # Errors
    /// `EINVAL` if another thread destroyed the object while this thread handles its last event;
    /// `ENODEV` in a forked child, if a thread of the parent was using it.
    pub(crate) fn control<R>(
        &self,
        verb: &'static str,
        with: impl FnOnce(&mut P::Qp) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut control = self.control.lock().map_err(|errno| unavailable(verb, errno))?;
        control.as_mut().ok_or_else(|| unavailable(verb, Errno::INVAL)).and_then(with)
    }

    /// Destroys the control object. On failure, leaves it unchanged.
    pub(crate) fn destroy_control(&self) -> Result<EventsRead, Error> {
        const VERB: &str = "destroy_qp";
        let mut control = self.control.lock().map_err(|errno| unavailable(VERB, errno))?;
        let qp = control.take().ok_or_else(|| unavailable(VERB, Errno::INVAL))?;
        qp.destroy_counting_events().map_err(|(qp, error)| {
            *control = Some(qp);
            error
        })
    }
}

/// Returns the provider's queue pair if the public struct still has its handle.
///
/// # Safety
/// `qp` must be a live queue pair of the provider.
pub(crate) unsafe fn checked<'a, P: Provider>(
    qp: *mut ibv_qp,
    verb: &'static str,
) -> Result<&'a Qp<P>, Error> {
    // SAFETY: an `ibv_qp` is the head of an `ibv_qp_ex`.
    unsafe {
        let inner: &Qp<P> = QpObject::<P>::own(qp.cast(), verb)?;
        check_handle(public(&raw const (*qp).handle), inner.handle, verb)?;
        Ok(inner)
    }
}

/// The queue pair operations that only ConnectX devices have.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct DvQpEx {
    pub(crate) c: mlx5dv_qp_ex,
    pub(crate) qp: *mut ibv_qp_ex,
}

/// The kind of address in a queue pair's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addressing {
    /// The queue pair has a peer.
    Connected,
    /// Each request names its destination.
    Datagram,
    /// Each request names one of the peer's shared receive queues.
    Xrc,
}

impl Addressing {
    pub(crate) const fn for_type(qp_type: QpType) -> Self {
        match qp_type {
            QpType::UD => Self::Datagram,
            QpType::XRC_SEND => Self::Xrc,
            _ => Self::Connected,
        }
    }
}
