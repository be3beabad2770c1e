//! The control calls of the general services interface: queue pair 1 as a source and sink of
//! management datagrams.

use crate::engine::Engine;
use crate::engine::gsi::Gsi;
use crate::engine::memory::Memory;
use crate::engine::types::{GSI_QPN, Mad, MadDestination, PostRefused, Refused};

impl<M: Memory> Engine<M> {
    /// Opens the general services interface: packets for queue pair 1 are passed to
    /// [`Sink::mad`](crate::engine::Sink::mad).
    ///
    /// The interface belongs to the default partition. It accepts packets in that partition that
    /// carry the queue key [`GSI_QKEY`](crate::engine::GSI_QKEY) and consist of a single send of
    /// [`MAD_LEN`](crate::engine::MAD_LEN) bytes. Other packets are dropped and counted.
    ///
    /// # Errors
    /// [`Refused::Busy`] if the interface is already open or a queue pair has the number 1;
    /// [`Refused::NoMemory`] if an allocation fails.
    pub fn open_gsi(&mut self) -> Result<(), Refused> {
        let objects = &mut self.objects;
        if objects.gsi.is_some() || objects.well_known[GSI_QPN as usize].is_some() {
            return Err(Refused::Busy);
        }
        objects.scheduler.reserve(objects.qps.len() + 1)?;
        objects.gsi = Some(Gsi::new()?);
        Ok(())
    }

    /// Closes the general services interface. Management datagrams not yet sent are dropped.
    pub fn close_gsi(&mut self) {
        self.objects.gsi = None;
        self.objects.scheduler.drop_stale(GSI_QPN);
    }

    /// Queues a management datagram to send.
    ///
    /// # Errors
    /// [`PostRefused::NoSuchQueue`] if the interface is not open; [`PostRefused::QueueFull`] if 512
    /// datagrams wait to be sent.
    pub fn send_mad(&mut self, to: &MadDestination, mad: &Mad) -> Result<(), PostRefused> {
        let objects = &mut self.objects;
        let gsi = objects.gsi.as_mut().ok_or(PostRefused::NoSuchQueue)?;
        if gsi.push(to, mad)? {
            objects.scheduler.ready.push_back(GSI_QPN);
        }
        Ok(())
    }
}
