//! [`GsiEnd`]: passes management datagrams (MADs) to the holder of the general services interface.

use std::sync::Arc;

use roce::engine::{MadsFull, ReceivedMad};

use crate::sync::ring::Producer;
use crate::sync::signal::Signal;

/// The device's end of the interface, guarded by the device's lock.
#[derive(Debug)]
pub(crate) struct GsiEnd {
    producer: Producer<ReceivedMad>,
    signal: Arc<Signal>,
    /// Whether MADs were passed on in this turn.
    has_new: bool,
}

impl GsiEnd {
    pub(crate) fn new(producer: Producer<ReceivedMad>, signal: Arc<Signal>) -> Self {
        Self { producer, signal, has_new: false }
    }

    /// Passes a MAD to the interface's holder. The [signal](Self::take_signal) wakes the holder.
    ///
    /// # Errors
    /// [`MadsFull`] if the ring is full.
    pub(crate) fn push(&mut self, mad: &ReceivedMad) -> Result<(), MadsFull> {
        if !self.producer.has_room() {
            return Err(MadsFull);
        }
        self.producer.put(*mad, core::iter::empty());
        self.producer.publish();
        self.has_new = true;
        Ok(())
    }

    /// Returns the signal if MADs were passed on in this turn. The lock holder sets the signal
    /// after releasing the lock.
    #[inline]
    pub(crate) fn take_signal(&mut self) -> Option<Arc<Signal>> {
        core::mem::take(&mut self.has_new).then(|| Arc::clone(&self.signal))
    }
}
