//! [`Eq`]: an event queue.

use crate::pages::Pages;

/// An event queue.
#[derive(Debug)]
pub(crate) struct Eq {
    pub(crate) eqn: u32,
    /// The context as the driver wrote it.
    pub(crate) context: [u8; 64],
    pub(crate) pages: Pages,
    pub(crate) log_size: u32,
    pub(crate) uar: u32,
    /// The number of the MSI-X vector that the queue raises.
    pub(crate) vector: u16,
    /// The event types to which the queue has subscribed, one bit each.
    pub(crate) events: [u64; 4],
    /// Number of entries written since the queue was created. In this counter, the owner bit is the
    /// bit above the entry's index.
    pub(crate) producer: u32,
    /// Number of entries that the driver has read, as last reported through a UAR page, 24 bits.
    pub(crate) consumer: u32,
    pub(crate) armed: bool,
}

/// Size of an entry, in bytes.
pub(crate) const EQE_SIZE: u64 = 64;

/// Mask for consumer and producer counters, which are 24 bits wide.
pub(crate) const COUNTER: u32 = 0x00ff_ffff;

/// The type of an event.
///
/// # References
/// PRM, "event types"; Linux `include/linux/mlx5/device.h`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(dead_code, reason = "the list follows the manual")]
pub(crate) enum EventType {
    Completion = 0x00,
    PathMigrated = 0x01,
    CommunicationEstablished = 0x02,
    SendQueueDrained = 0x03,
    CqError = 0x04,
    WqCatastrophic = 0x05,
    PathMigrationFailed = 0x07,
    InternalError = 0x08,
    PortChange = 0x09,
    Command = 0x0a,
    PageRequest = 0x0b,
    PageFault = 0x0c,
    NicVportChange = 0x0d,
    WqInvalidRequest = 0x10,
    WqAccess = 0x11,
    SrqCatastrophic = 0x12,
    SrqLastWqe = 0x13,
    SrqLimit = 0x14,
}

impl Eq {
    /// Returns whether the queue has subscribed to events of this type.
    pub(crate) fn takes(&self, kind: u8) -> bool {
        self.events[usize::from(kind >> 6)] >> (kind & 63) & 1 != 0
    }

    /// Returns the number of entries that the driver has not read.
    pub(crate) fn unread(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer) & COUNTER
    }
}
