//! [`Lists`]: the location of the request lists in a queue pair's queues. The poller copies [data
//! in completions](super::scatter) to the elements of these lists.

use std::sync::{Arc, Weak};

use crate::device::regions::Regions;
use crate::queue::resources::QueueResources;

/// The location of the request lists in a queue pair's queues.
#[derive(Clone, Debug)]
pub(crate) struct Lists {
    pub(crate) regions: Arc<Regions>,
    pub(crate) send: Option<SendLists>,
    pub(crate) recv: Option<RecvLists>,
}

/// The position and shape of a send queue's entries.
#[derive(Clone, Debug)]
pub(crate) struct SendLists {
    /// The owner of the queue's memory. Completions do not keep the owner alive.
    pub(crate) resources: Weak<QueueResources>,
    /// The handle of the protection domain.
    pub(crate) pd: u32,
    /// The offset of the queue in the memory, in bytes.
    pub(crate) offset: usize,
    /// The number of 64-byte blocks, a power of two.
    pub(crate) blocks: u32,
}

/// The shape of a receive queue's entries, which are at the start of the memory.
#[derive(Clone, Debug)]
pub(crate) struct RecvLists {
    /// The owner of the queue's memory, as in [`SendLists`].
    pub(crate) resources: Weak<QueueResources>,
    pub(crate) pd: u32,
    /// The number of entries, a power of two.
    pub(crate) entries: u32,
    /// The number of 16-byte units in an entry.
    pub(crate) units: u32,
    /// The number of 16-byte units before the list in an entry.
    pub(crate) head: u32,
}
