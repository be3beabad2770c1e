//! Shared receive queues, and the XRC domains that some of them use.

use core::any::Any;
use core::fmt::Debug;

use super::{Provider, RecvQueue};
use crate::error::Result;
use crate::types::{SrqAttr, SrqAttrMask};

/// The objects that a new shared receive queue is created from.
#[derive(Debug)]
pub struct SrqParents<'a, P: Provider> {
    /// The protection domain.
    pub pd: &'a P::Pd,
    /// The XRC domain of a queue of the kind [`XRC`](crate::types::SrqType::XRC).
    pub xrcd: Option<&'a P::Xrcd>,
    /// The completion queue of a queue of the kinds [`XRC`](crate::types::SrqType::XRC) and
    /// [`TM`](crate::types::SrqType::TM).
    pub cq: Option<&'a P::CqHandle>,
}

/// A new shared receive queue: its control object and its queue, usable in two threads.
#[derive(Debug)]
pub struct SrqParts<P: Provider> {
    /// The control object.
    pub srq: P::Srq,
    /// The queue.
    pub queue: P::SrqQueue,
}

/// A shared receive queue without its queue: its attributes and destruction.
pub trait SrqOps: Any + Debug + Send + Sync {
    /// Its queue.
    type Queue: RecvQueue
    where
        Self: Sized;

    /// Returns the kernel's handle.
    fn handle(&self) -> u32;

    /// Returns the number that XRC initiators address it by. Queues of other kinds have one on
    /// ConnectX, and `None` elsewhere.
    fn srq_num(&self) -> Option<u32>;

    /// Returns its capacity as granted by the device, with 0 as the limit.
    fn attr(&self) -> SrqAttr;

    /// Changes its limit, or its size. The queue must be the one created with it; `&mut` of the
    /// queue is the lock, so other threads can create queue pairs meanwhile. Unpublished requests
    /// in the queue are published first.
    ///
    /// # Errors
    /// [`Cause::Limit`](crate::Cause::Limit) for a value beyond the queue's or the device's limit
    /// and for a size below the number of receives in the queue; any other errno the kernel
    /// returns. No request ends because of an error.
    fn modify(&self, queue: &mut Self::Queue, attr: &SrqAttr, mask: SrqAttrMask) -> Result<()>
    where
        Self: Sized;

    /// Queries its attributes.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `EIO` once the device is gone.
    fn query(&self) -> Result<SrqAttr>;
}

/// An XRC domain, shared between processes by a file.
pub trait XrcdOps: Any + Debug + Send + Sync {
    /// Returns the kernel's handle.
    fn handle(&self) -> u32;
}
