//! Replacing the ring of a completion queue while it has completions.
//!
//! The device ends the old ring with a special entry and continues in the new ring at the index
//! after that entry. The earlier entries move to the new ring, each by one index, so that no entry
//! stays empty.
//!
//! ```text
//!   old   │ 5 │ 6 │ end │          consumer's index 5
//!   new       │ 5 │ 6 │ 8 │ ...    consumer's index 6; the device writes place 8 next
//! ```
//!
//! # References
//! rdma-core `providers/mlx5/cq.c` (`mlx5_cq_resize_copy_cqes`)

use verbs_core::Result;

use super::cqe::cqe_opcode;
use super::poller::{Current, Poller};
use super::shared_cq::Ring;

impl Poller {
    /// Returns the number of unpolled entries.
    pub(crate) fn unread(&self) -> u32 {
        let mut unread = 0;
        while unread <= self.ring.mask() {
            let Some(entry) = self.ring.entry(self.index.wrapping_add(unread)) else { break };
            unread += self.ring.places(entry);
        }
        unread
    }

    /// Returns the 24-bit index of the next entry, as the device counts.
    pub(crate) const fn place(&self) -> u32 {
        self.index & 0xff_ffff
    }

    /// Replaces the ring by running `command`. Returns whether the device has marked the end of the
    /// old ring. After an error, nothing has changed.
    ///
    /// # Errors
    /// The error that `command` returns.
    pub(crate) fn replace(&mut self, new: Ring, command: impl FnOnce() -> Result<()>) -> Result<bool> {
        self.end_poll();
        let new = new.compressed(self.ring.compression);
        let Self { shared, table, ending, ring, index, .. } = self;
        let mut is_whole = false;
        shared.replace(&new, |pending| -> Result<()> {
            command()?;
            let first = *index;
            for place in 0..=ring.mask() {
                let at = first.wrapping_add(place);
                let Some(entry) = ring.entry(at) else { break };
                if entry.op_own() >> 4 == cqe_opcode::RESIZE {
                    is_whole = true;
                    break;
                }
                ring.expand(at, pending);
                ring.copy(at, &new, at.wrapping_add(1));
            }
            *index = first.wrapping_add(1);
            // Must precede the end of any use in the new ring, because the search for its
            // completions starts here.
            shared.consumer.store(*index & 0xff_ffff);
            // The ends of earlier uses have moved as well.
            pending.move_on();
            for user_index in ending.iter() {
                if let Some(entry) = table.get_mut(*user_index) {
                    entry.move_on();
                }
            }
            Ok(())
        })?;
        (self.ring, self.current) = (new, Current::NONE);
        self.end_poll();
        Ok(is_whole)
    }
}
