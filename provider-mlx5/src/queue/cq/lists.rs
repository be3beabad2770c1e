//! [`Lists`]: the places of the requests' lists in the queues of a queue pair. The poller copies
//! [data in completions](super::scatter) to their elements.

use std::sync::{Arc, Weak};

use crate::device::regions::Regions;
use crate::queue::resources::QueueResources;

/// The lists of requests in a queue pair's queues.
#[derive(Clone, Debug)]
pub(crate) struct Lists {
    pub(crate) regions: Arc<Regions>,
    pub(crate) send: Option<SendLists>,
    pub(crate) recv: Option<RecvLists>,
}

/// The entries of a send queue.
#[derive(Clone, Debug)]
pub(crate) struct SendLists {
    /// The memory's owner, not kept alive by completions.
    pub(crate) resources: Weak<QueueResources>,
    /// The handle of the protection domain.
    pub(crate) pd: u32,
    /// The offset of the queue in its memory, in bytes.
    pub(crate) offset: usize,
    /// The number of blocks, a power of two.
    pub(crate) blocks: u32,
}

/// The entries of a receive queue, at the start of its memory.
#[derive(Clone, Debug)]
pub(crate) struct RecvLists {
    /// The memory's owner, as in [`SendLists`].
    pub(crate) resources: Weak<QueueResources>,
    pub(crate) pd: u32,
    /// The number of entries, a power of two.
    pub(crate) entries: u32,
    /// Units of an entry.
    pub(crate) units: u32,
    /// Units before the list.
    pub(crate) head: u32,
}
