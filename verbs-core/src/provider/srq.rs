//! Shared receive queues and the XRC domains that some of them use.

use core::any::Any;
use core::fmt::Debug;

use super::{Provider, RecvQueue};
use crate::error::Result;
use crate::types::{SrqAttr, SrqAttrMask};

/// The objects needed to create a shared receive queue.
#[derive(Debug)]
pub struct SrqParents<'a, P: Provider> {
    /// The protection domain.
    pub pd: &'a P::Pd,
    /// The XRC domain, for a queue of the kind [`XRC`](crate::types::SrqType::XRC).
    pub xrcd: Option<&'a P::Xrcd>,
    /// The completion queue, for a queue of the kind [`XRC`](crate::types::SrqType::XRC) or
    /// [`TM`](crate::types::SrqType::TM).
    pub cq: Option<&'a P::CqHandle>,
}

/// A new shared receive queue: its control object and its queue, each usable from a different
/// thread.
#[derive(Debug)]
pub struct SrqParts<P: Provider> {
    /// The control object.
    pub srq: P::Srq,
    /// The queue for posting receives.
    pub queue: P::SrqQueue,
}

/// A shared receive queue without its queue: its attributes and destruction.
pub trait SrqOps: Any + Debug + Send + Sync {
    /// The type of the queue for posting receives.
    type Queue: RecvQueue
    where
        Self: Sized;

    /// Returns the kernel's handle for the shared receive queue.
    fn handle(&self) -> u32;

    /// Returns the queue number that XRC initiators use. Queues of other kinds have a number on
    /// ConnectX, and `None` elsewhere.
    fn srq_num(&self) -> Option<u32>;

    /// Returns the queue's capacity as granted by the device. `srq_limit` is 0.
    fn attr(&self) -> SrqAttr;

    /// Changes the limit or the size. `queue` must be the queue created with this object. Only
    /// `queue` is borrowed mutably, so other threads can create queue pairs during the call.
    /// Unpublished requests in the queue are published first.
    ///
    /// # Errors
    /// [`Cause::Limit`](crate::Cause::Limit) for a value beyond the queue's or the device's limit
    /// and for a size below the number of receives in the queue; any other errno the kernel
    /// returns. No request ends because of an error.
    fn modify(&self, queue: &mut Self::Queue, attr: &SrqAttr, mask: SrqAttrMask) -> Result<()>
    where
        Self: Sized;

    /// Queries the queue's attributes.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `EIO` once the device is gone.
    fn query(&self) -> Result<SrqAttr>;
}

/// An XRC domain, which processes can share through a file.
pub trait XrcdOps: Any + Debug + Send + Sync {
    /// Returns the kernel's handle for the domain.
    fn handle(&self) -> u32;
}
