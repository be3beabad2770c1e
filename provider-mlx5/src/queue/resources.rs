//! [`QueueResources`]: the device resources of a queue pair, a shared receive queue or a work
//! queue, from its creation until it is destroyed and its queues are gone.
//!
//! Queues may be dropped before or after their object. They share this value: the memory, the
//! doorbell records, the register and the user index are released when the last user is dropped. A
//! send queue checks whether its queue pair has ended before it rings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use verbs_core::ring::Region;

use crate::device::user_index::UserIndex;
use crate::doorbell::dbrec::Slot;
use crate::doorbell::registers::Register;
use crate::memory::QueueMemory;

/// The device resources of an object and its queues; see the module's documentation.
#[derive(Debug)]
pub(crate) struct QueueResources {
    is_over: AtomicBool,
    /// The send queue's doorbell register; `None` for an object without a send queue.
    register: Option<Arc<Register>>,
    /// The user index in the object's completions; `None` for an object without completions.
    user_index: Option<UserIndex>,
    records: Slot,
    memory: QueueMemory,
}

impl QueueResources {
    /// Returns these resources, marked as used by the device. Called once the kernel has created
    /// the object.
    pub(crate) fn new(
        memory: QueueMemory,
        records: Slot,
        register: Option<Arc<Register>>,
        user_index: Option<UserIndex>,
    ) -> Self {
        records.lend();
        memory.set_known(true);
        if let Some(user_index) = &user_index {
            user_index.lend();
        }
        Self { is_over: AtomicBool::new(false), register, user_index, records, memory }
    }

    /// Returns the resources of a simulated queue pair, in plain memory.
    pub(crate) fn of_test(memory: Region, records: Region) -> Self {
        Self::new(QueueMemory::of_test(memory), Slot::of_test(records), None, None)
    }

    /// Returns the memory of the queues.
    pub(crate) const fn memory(&self) -> &QueueMemory {
        &self.memory
    }

    /// Returns the doorbell records.
    pub(crate) const fn records(&self) -> &Slot {
        &self.records
    }

    /// Returns the register, if any.
    pub(crate) fn register(&self) -> Option<&Register> {
        self.register.as_deref()
    }

    /// Returns the user index in the object's completions, if it has one.
    pub(crate) fn user_index(&self) -> Option<u32> {
        self.user_index.as_ref().map(UserIndex::number)
    }

    /// Returns whether the object was destroyed.
    #[inline(always)]
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Sets whether the queue pair is or may be destroyed while its queues may still ring.
    pub(crate) fn set_orphan(&self, is_orphan: bool) {
        if let Some(register) = &self.register {
            register.set_orphan(is_orphan);
        }
    }

    /// Marks the resources as no longer used by the device, once the kernel has confirmed the
    /// destruction of the object and its completion queues have been updated.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.set_orphan(true);
        self.records.take_back();
        self.memory.set_known(false);
        if let Some(user_index) = &self.user_index {
            user_index.take_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use verbs_core::channel::{Expect, Reply};

    use super::*;
    use crate::device::tests::device;
    use crate::doorbell::uar::Name;

    #[test]
    fn the_register_of_an_object_that_has_ended_is_an_orphans() {
        let (device, script) = device();
        script.expect([Expect::anything(Reply::outputs([
            &2_u32.to_ne_bytes(),
            &0x4000_u64.to_ne_bytes(),
            &4096_u32.to_ne_bytes(),
            &7_u32.to_ne_bytes(),
        ]))]);
        script.expect_map(0x4000, 4096, Region::plain(4096));
        let [own, other] = [(); 2].map(|()| Arc::new(device.registers.take(&device.kernel)));
        assert_eq!([&own, &other].map(|register| register.name()), [Name::Page(7); 2]);
        let (memory, records) = (QueueMemory::new(64).unwrap(), device.records.take().unwrap());
        let resources = QueueResources::new(memory, records, Some(own), None);
        assert!(!other.is_beside_orphan() && !resources.is_over());
        resources.end();
        assert!(other.is_beside_orphan() && resources.is_over());
        drop(resources);
        assert!(!other.is_beside_orphan(), "nothing rings it any more");
    }
}
