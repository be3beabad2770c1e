//! Work queues, and the tables that let queue pairs share them.

use core::any::Any;
use core::fmt::Debug;

use super::{Provider, RecvQueue};
use crate::error::Result;
use crate::types::{WqAttr, WqState};

/// The objects that a new work queue is created from.
#[derive(Debug)]
pub struct WqParents<'a, P: Provider> {
    /// The protection domain.
    pub pd: &'a P::Pd,
    /// The completion queue of its receives.
    pub cq: &'a P::CqHandle,
}

/// A new work queue: its control object and its queue, usable in two threads.
#[derive(Debug)]
pub struct WqParts<P: Provider> {
    /// The control object.
    pub wq: P::Wq,
    /// The queue.
    pub queue: P::WqQueue,
}

/// A work queue without its queue: its state and destruction.
pub trait WqOps: Any + Debug + Send + Sync {
    /// Its queue.
    type Queue: RecvQueue
    where
        Self: Sized;

    /// Returns the kernel's handle.
    fn handle(&self) -> u32;

    /// Returns the device's number for it.
    fn wq_num(&self) -> u32;

    /// Returns the state after the last call of `modify`. The device may have moved it to
    /// [`WqState::ERR`] since.
    fn state(&self) -> WqState;

    /// Returns its capacity, in receives.
    fn max_wr(&self) -> u32;

    /// Returns the number of scatter/gather elements of a receive.
    fn max_sge(&self) -> u32;

    /// Moves it to another state, or changes its properties. The queue must be the one created with
    /// it. This ends no receive (number 26 of [`Provider`]).
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `EINVAL` for a nonexistent transition. The queue and
    /// its requests are then unchanged.
    fn modify(&self, queue: &mut Self::Queue, attr: &WqAttr) -> Result<()>
    where
        Self: Sized;
}

/// A table of work queues, over which a queue pair spreads received packets (RSS).
pub trait RwqIndTableOps: Any + Debug + Send + Sync {
    /// Returns the kernel's handle.
    fn handle(&self) -> u32;

    /// Returns the device's number for it.
    fn ind_tbl_num(&self) -> u32;
}
