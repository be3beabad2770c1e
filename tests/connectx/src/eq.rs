//! [`Eq`]: event queues.

use crate::function::pages::Pages;

/// An event queue.
#[derive(Debug)]
pub(crate) struct Eq {
    pub(crate) eqn: u32,
    /// Its context, as the driver gave it.
    pub(crate) context: [u8; 64],
    pub(crate) pages: Pages,
    pub(crate) log_size: u32,
    pub(crate) uar: u32,
    /// The MSI-X vector.
    pub(crate) vector: u16,
    /// Which event types it takes.
    pub(crate) events: [u64; 4],
    /// Entries written, ever; the owner bit is the bit above the index.
    pub(crate) producer: u32,
    /// Entries read, 24 bits, as the driver last told.
    pub(crate) consumer: u32,
    pub(crate) armed: bool,
}
