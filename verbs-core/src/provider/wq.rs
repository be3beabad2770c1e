//! Work queues and the tables that let queue pairs share them.

use core::any::Any;
use core::fmt::Debug;

use super::{Provider, RecvQueue};
use crate::error::Result;
use crate::types::{WqAttr, WqState};

/// The objects needed to create a work queue.
#[derive(Debug)]
pub struct WqParents<'a, P: Provider> {
    /// The protection domain.
    pub pd: &'a P::Pd,
    /// The completion queue for its receives.
    pub cq: &'a P::CqHandle,
}

/// A new work queue: its control object and its queue, each usable from a different thread.
#[derive(Debug)]
pub struct WqParts<P: Provider> {
    /// The control object.
    pub wq: P::Wq,
    /// The queue for posting receives.
    pub queue: P::WqQueue,
}

/// A work queue without its queue: its state and destruction.
pub trait WqOps: Any + Debug + Send + Sync {
    /// The type of the queue for posting receives.
    type Queue: RecvQueue
    where
        Self: Sized;

    /// Returns the kernel's handle for the work queue.
    fn handle(&self) -> u32;

    /// Returns the queue's number on the device.
    fn wq_num(&self) -> u32;

    /// Returns the state after the last call to `modify`. The device may have moved the queue to
    /// [`WqState::ERR`] since.
    fn state(&self) -> WqState;

    /// Returns the queue's capacity, in receives.
    fn max_wr(&self) -> u32;

    /// Returns the maximum number of scatter/gather elements per receive.
    fn max_sge(&self) -> u32;

    /// Moves the work queue to another state, or changes its properties. `queue` must be the queue
    /// created with it. The call ends no receive (promise 26 of [`Provider`]).
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `EINVAL` for a nonexistent transition. In that case,
    /// the queue and its requests are unchanged.
    fn modify(&self, queue: &mut Self::Queue, attr: &WqAttr) -> Result<()>
    where
        Self: Sized;
}

/// A table of work queues, over which a queue pair spreads received packets (RSS).
pub trait RwqIndTableOps: Any + Debug + Send + Sync {
    /// Returns the kernel's handle for the table.
    fn handle(&self) -> u32;

    /// Returns the table's number on the device.
    fn ind_tbl_num(&self) -> u32;
}
