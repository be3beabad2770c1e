//! Compressed completions: the device writes a block of similar completions as one entry and a few
//! bytes per completion, and the poller expands the block in place.
//!
//! ```text
//!   place      0       1       2 ... 7   8           9 ... 15   16         17 ...
//!   block      title   minis   (stale)   minis       (stale)    minis      (stale)
//!                      0...7             8...15                 16...23
//!   expanded   entry   entry   entries   entry       entries    entry      entries
//! ```
//!
//! A block occupies as many entries as it has completions. Its title is the first completion, with
//! the number of completions as its length and all bits of [`FORMAT`](cqe::FORMAT). An 8-byte mini
//! entry holds a completion's fields that differ from the title. The other entries keep their
//! contents from the previous round; only the title's owner bit is valid.
//!
//! The fast paths of the poller do not support the format. They leave the title to the slow path,
//! which expands the block before it passes the title. Afterwards all entries of the block belong
//! to the current round, with valid owner bits. They are then polled like other entries, returned
//! one by one, moved by a resize, or skipped if their queue pair has ended. A queue without
//! compression has no titles.
//!
//! Only one thread at a time expands a block: it holds the lock of [`SharedCq`](super::SharedCq).
//! Other threads take the same lock to find the last completion, and skip over a block by its size.
//!
//! # Safety
//! The device writes all of a block before the title, and writes none of its entries again before
//! the poller returns them.
//!
//! # References
//! `mlx5dv_create_cq(3)`; Linux `drivers/net/ethernet/mellanox/mlx5/core/en_rx.c`
//! (`mlx5e_decompress_cqes_start`, `mlx5e_cqes_update_owner`), `include/linux/mlx5/device.h`
//! (`mlx5_mini_cqe8`); DPDK `drivers/net/mlx5/mlx5_rx.c` (`mlx5_rx_poll_len`)
#![allow(unsafe_code)]

#[cfg(test)]
mod tests;

use verbs_core::types::WcStatus;

use super::completion::Completion;
use super::compression::CqeCompression;
use super::cqe::{self, CQE64, Cqe, cqe_opcode};
use super::poller::Poller;
use super::shared_cq::{Pending, Ring};
use super::table::Queues;

/// The size of a mini entry in bytes and the number of mini entries that fit in an entry.
const MINI: usize = 8;
const MINIS: u32 = (CQE64 / MINI) as u32;
/// The offset of the length in a mini entry, in bytes.
const LENGTH: usize = 4;
/// The offset of the operation in a send's mini entry, in bytes; the request's position comes
/// first.
const OPERATION: usize = 2;

/// The fields of an entry.
type Fields = [u8; CQE64];

impl Ring {
    /// Sets the format of compressed completions that the device may write into the ring.
    pub(crate) fn compressed(mut self, compression: Option<CqeCompression>) -> Self {
        self.compression = compression;
        self
    }

    /// Returns the number of completions in the block with this title; `None` for any other entry,
    /// and for a title that no device would write.
    pub(super) fn block(&self, cqe: Cqe<'_>) -> Option<u32> {
        self.compression?;
        let op_own = cqe.op_own();
        if op_own & cqe::FORMAT != cqe::FORMAT || op_own >> 4 > cqe_opcode::RESP_SEND_INV {
            return None;
        }
        Some(cqe.byte_cnt()).filter(|count| (2..=self.mask() + 1).contains(count))
    }

    /// Returns the number of entries occupied by the completions that an entry represents.
    pub(super) fn places(&self, cqe: Cqe<'_>) -> u32 {
        self.block(cqe).unwrap_or(1)
    }

    /// Expands a block in place if its title is at `first`.
    pub(super) fn expand(&self, first: u32, _lock: &Pending<'_>) {
        let Some(form) = self.compression else { return };
        let Some(count) = self.entry(first).and_then(|cqe| self.block(cqe)) else { return };
        // SAFETY: entries of the ring, aligned to 8. The device wrote the block before the title,
        // which it has handed over, and writes none of them now.
        let read = |at: u32| unsafe { self.fields(at).cast::<[u64; CQE64 / 8]>().read_volatile() };
        let bytes = |words: [u64; CQE64 / 8]| -> Fields { zerocopy::transmute!(words) };
        let title = bytes(read(first));
        let mut minis = title;
        for number in 0..count {
            let place = first.wrapping_add(number);
            if number % MINIS == 0 {
                // The title occupies the first entry, so the first mini entries are in the second.
                minis = bytes(read(if number == 0 { first.wrapping_add(1) } else { place }));
            }
            let mini = &minis[(number % MINIS) as usize * MINI..][..MINI];
            let entry = expanded(&title, mini, number, form, u8::from(place & (self.mask() + 1) != 0));
            let target = self.fields(place).cast::<[u64; CQE64 / 8]>();
            // SAFETY: as above. Other threads read entries only under the lock.
            unsafe { target.write_volatile(zerocopy::transmute!(entry)) };
        }
    }
}

/// Returns the full entry for one completion in a block.
fn expanded(title: &Fields, mini: &[u8], number: u32, form: CqeCompression, owner: u8) -> Fields {
    let mut entry = *title;
    let mut put = |at: usize, bytes: &[u8]| entry[at..at + bytes.len()].copy_from_slice(bytes);
    put(cqe::at::BYTE_CNT, &mini[LENGTH..]);
    if title[cqe::at::OP_OWN] >> 4 == cqe_opcode::REQ {
        put(cqe::at::WQE_COUNTER, &mini[..2]);
        put(cqe::at::SOP_DROP_QPN, &mini[OPERATION..=OPERATION]);
    } else {
        // The receives in a block are consecutive.
        let counter = [title[cqe::at::WQE_COUNTER], title[cqe::at::WQE_COUNTER + 1]];
        let counter = u16::from_be_bytes(counter).wrapping_add(number as u16);
        put(cqe::at::WQE_COUNTER, &counter.to_be_bytes());
        let field = form.received();
        put(field.start, &mini[..field.len()]);
    }
    put(cqe::at::OP_OWN, &[title[cqe::at::OP_OWN] & !(cqe::FORMAT | cqe::OWNER) | owner]);
    entry
}

impl Poller {
    /// Expands the block whose title is at index `at` and returns its first completion; `None` if
    /// that completion must be skipped.
    #[cold]
    pub(super) fn first_of_block<'a>(
        &self,
        queues: &Queues,
        cqe: Cqe<'a>,
        at: u32,
    ) -> Option<Completion<'a>> {
        self.shared.locked(|lock| self.ring.expand(at, lock));
        let (wr_id, kind) = match cqe.op_own() >> 4 {
            cqe_opcode::REQ => queues.send.as_ref()?.complete(cqe.wqe_counter()),
            _ => (queues.recv.as_ref()?.complete(cqe.wqe_counter())?, queues.recv_kind),
        };
        Some(Completion::new(cqe, wr_id, WcStatus::SUCCESS, kind))
    }

    /// Expands the block of the entry that the poller has just skipped because its queue pair has
    /// ended or is unknown, if that entry is a block's title. The poller then examines the block's
    /// other completions one by one.
    #[cold]
    #[inline(never)]
    pub(super) fn skipped(&self) {
        if self.ring.compression.is_some() {
            self.shared.locked(|lock| self.ring.expand(self.index.wrapping_sub(1), lock));
        }
    }
}
