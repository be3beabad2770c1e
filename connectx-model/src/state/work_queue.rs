//! [`WorkQueue`]: the ring of an Ethernet send or receive queue.

use crate::bus::{Bus, BusFault};
use crate::log::Log;
use crate::pages::Pages;

/// A ring of entries and its doorbell record.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    pub(crate) pages: Pages,
    /// Size of an entry, in bytes.
    pub(crate) stride: u64,
    pub(crate) log_size: u32,
    /// Guest-physical address of the doorbell record: the receive queue's head, then the send
    /// queue's.
    pub(crate) doorbell_record: u64,
    /// The protection domain, checked only on use: drivers create queues without a domain that
    /// never access memory.
    pub(crate) pd: u32,
    pub(crate) uar: u32,
}

impl WorkQueue {
    /// Returns the number of entries in the ring.
    pub(crate) fn size(&self) -> u16 {
        1 << self.log_size
    }

    /// Returns the receive queue's head, as the driver last wrote it.
    pub(crate) fn receive_head<B: Bus>(&self, bus: &B, log: &mut Log) -> Result<u16, BusFault> {
        self.head(bus, log, 0)
    }

    /// Returns the send queue's head, as the driver last wrote it.
    pub(crate) fn send_head<B: Bus>(&self, bus: &B, log: &mut Log) -> Result<u16, BusFault> {
        self.head(bus, log, 4)
    }

    fn head<B: Bus>(&self, bus: &B, log: &mut Log, at: u64) -> Result<u16, BusFault> {
        let mut record = [0; 4];
        bus.read(self.doorbell_record + at, &mut record)?;
        Ok(log.posted(u32::from_be_bytes(record)))
    }

    /// Copies entries to `into`, starting at the position of `counter` and wrapping at the end of
    /// the ring.
    pub(crate) fn read<B: Bus>(&self, bus: &B, counter: u16, into: &mut [u8]) -> Result<(), BusFault> {
        let ring = self.stride << self.log_size;
        let start = u64::from(counter & (self.size() - 1)) * self.stride;
        let straight = usize::try_from(ring - start).unwrap_or(usize::MAX).min(into.len());
        let (first, second) = into.split_at_mut(straight);
        self.pages.read(bus, start, first)?;
        self.pages.read(bus, 0, second)
    }
}
