//! Compressed completions: a block represents several completions and occupies as many slots, but
//! the device writes only a few of these slots.
//!
//! ```text
//! slot       0       1        2 … 7   8           9 … 15   16          17 …
//! contents   title   minis            minis                minis
//!                    0 … 7            8 … 15               16 … 23
//! ```
//! The title is an entry for the first completion, with the number of completions as its byte count
//! and [`COMPRESSED`] as its format. Each completion has an 8-byte mini entry; its remaining fields
//! equal those in the title. The device writes the title last and leaves the other slots as they
//! were in the previous round. Before the driver returns the slots, it rewrites the owner bits of
//! all slots in the block, because the old bits would be valid again in the next round.
//!
//! The manual does not define when a device closes a block (`cqe_compression_timeout`). The model
//! closes a block at the end of the call that produced its completions: a register store or the
//! passage of time. A block closes earlier when it has the maximum number of completions, or before
//! a completion that does not fit. Receive completions in a block are for consecutive queue
//! positions, because their mini entries contain no position.
//!
//! # References
//! PRM, "CQE compression"; Linux `drivers/net/ethernet/mellanox/mlx5/core/en_rx.c`
//! (`mlx5e_decompress_cqes_start`, `mlx5e_cqes_update_owner`), `include/linux/mlx5/device.h`
//! (`mlx5_mini_cqe8`); DPDK `drivers/net/mlx5/mlx5_rx.c` (`mlx5_rx_poll_len`)

use std::collections::VecDeque;

use roce::engine::CqFull;

use crate::bus::{Bus, BusFault};
use crate::complaint::Rule;
use crate::function::Core;
use crate::layout::caps::cmd_hca_cap as caps;
use crate::layout::cq::cqc;
use crate::layout::cqe::{cqe, mini_cqe};
use crate::refusal::{Refusal, Status};
use crate::state::compression::{Compression, MiniFormat, is_success};
use crate::trace::format;

/// The format value that marks the title entry of a compressed block.
pub(crate) const COMPRESSED: u32 = 3;
/// Number of mini entries per slot.
pub(crate) const MINIS: usize = 8;
/// Opcode of an entry that the device has not written.
const INVALID: u8 = 15;

impl Compression {
    /// Returns the compression that the context of a new completion queue selects; `None` without
    /// compression.
    pub(crate) fn from_context<B: Bus>(
        core: &Core<B>,
        context: &[u8],
        entry_size: u64,
    ) -> Result<Option<Self>, Refusal> {
        let number = cqc::MINI_CQE_RES_FORMAT.get32(context);
        if !cqc::CQE_COMP_EN.is_set(context) {
            return if number == 0 {
                Ok(None)
            } else {
                let what = format!("format {number} of mini entries without compression");
                Err(Refusal::broken(Status::BadParam, Rule::CommandParameter, what))
            };
        }
        let of_size = if entry_size == 128 { caps::CQE_COMPRESSION_128 } else { caps::CQE_COMPRESSION };
        let (format, needed) = match number {
            0 => (Some(MiniFormat::Hash), of_size),
            1 => (Some(MiniFormat::Checksum), of_size),
            3 => (Some(MiniFormat::ChecksumStride), caps::MINI_CQE_RESP_STRIDE_INDEX),
            _ => (None, of_size),
        };
        match format {
            Some(format) if core.caps.general(of_size) == 1 && core.caps.general(needed) == 1 => {
                Ok(Some(Self { format, open: Vec::new(), closed: VecDeque::new() }))
            }
            _ => {
                let what = format!("compression of {entry_size} bytes with format {number} of mini entries");
                Err(Refusal::broken(Status::BadParam, Rule::CommandCapability, what))
            }
        }
    }
}

impl<B: Bus> Core<B> {
    /// Adds a completion to the open block of a queue with compression. If the completion does not
    /// fit, closes the block first. Returns whether the completion was added to a block.
    ///
    /// # Errors
    /// [`CqFull`] if the queue's memory cannot be written; a complaint is recorded.
    pub(super) fn keep(&mut self, cqn: u32, entry: &[u8; 64], data: &[u8]) -> Result<bool, CqFull> {
        let fits =
            |compression: &Compression| data.is_empty() && is_success(entry) && compression.follows(entry);
        let Some(compression) = self.cqs.get(&cqn).and_then(|cq| cq.compression.as_ref()) else {
            return Ok(false);
        };
        if !fits(compression) {
            self.close(cqn)?;
        }
        if !data.is_empty() || !is_success(entry) {
            return Ok(false);
        }
        let most = self.caps.general(caps::CQE_COMPRESSION_MAX_NUM);
        if let Some(compression) = self.cqs.get_mut(&cqn).and_then(|cq| cq.compression.as_mut()) {
            compression.open.push(*entry);
            if compression.len() >= most {
                self.close(cqn)?;
            }
        }
        Ok(true)
    }

    /// Closes the open blocks of all queues. A queue whose memory cannot be written enters the
    /// error state.
    pub(crate) fn close_all(&mut self) {
        let open = |cq: &&super::Cq| cq.compression.as_ref().is_some_and(|open| open.len() > 0);
        let cqns: Vec<u32> = self.cqs.values().filter(open).map(|cq| cq.cqn).collect();
        for cqn in cqns {
            if self.close(cqn).is_err() {
                self.cq_error(cqn);
            }
        }
    }

    /// Writes the open block of a queue, then raises the completion event if the queue is armed for
    /// these completions.
    ///
    /// # Errors
    /// [`CqFull`] if the queue's memory cannot be written; a complaint is recorded.
    pub(crate) fn close(&mut self, cqn: u32) -> Result<(), CqFull> {
        let Some(compression) = self.cqs.get_mut(&cqn).and_then(|cq| cq.compression.as_mut()) else {
            return Ok(());
        };
        let mut block = std::mem::take(&mut compression.open);
        let completions = block.len() as u32;
        let solicited = match &mut block[..] {
            [] => return Ok(()),
            [only] => {
                self.put(cqn, only, &[])?;
                cqe::SE.is_set(only)
            }
            [title, ..] => {
                let solicited = cqe::SE.is_set(title);
                self.put_block(cqn, &mut block)?;
                solicited
            }
        };
        self.written(cqn, completions, solicited);
        Ok(())
    }

    /// Writes a block to the slots from the producer index, the title last.
    fn put_block(&mut self, cqn: u32, block: &mut [[u8; 64]]) -> Result<(), CqFull> {
        let Some(cq) = self.cqs.get_mut(&cqn) else { return Err(CqFull) };
        let (first, count) = (cq.producer, block.len() as u32);
        for (entry, index) in block.iter_mut().zip(first..) {
            cqe::OWNER.set(entry, index >> cq.log_size & 1);
        }
        let Some(compression) = &mut cq.compression else { return Err(CqFull) };
        let arrays: Vec<(u32, [u8; 64])> = block
            .chunks(MINIS)
            .zip(0u32..)
            .map(|(part, number)| {
                let at = first.wrapping_add(if number == 0 { 1 } else { number * MINIS as u32 });
                // The manual leaves the bytes after the last mini entry undefined. The model fills
                // them so that they would look like a completion in the next round if the driver
                // left them unchanged.
                let mut array = [(at >> cq.log_size & 1 ^ 1) as u8; 64];
                for (place, entry) in array.chunks_exact_mut(mini_cqe::SIZE).zip(part) {
                    place.copy_from_slice(&compression.mini(entry));
                }
                (at, array)
            })
            .collect();
        compression.closed.push_back((first, count));
        cq.producer = first.wrapping_add(count);
        let mask = (1 << cq.log_size) - 1;
        let place = |index: u32| u64::from(index & mask) * cq.entry_size + cq.entry_size.saturating_sub(64);
        let mut written =
            arrays.iter().try_for_each(|(at, array)| cq.pages.write(&self.bus, place(*at), array));
        if let (Ok(()), Some(title)) = (written, block.first()) {
            let mut title = *title;
            cqe::BYTE_CNT.set(&mut title, count);
            cqe::FORMAT.set(&mut title, COMPRESSED);
            written = match cq.pages.locate(place(first)) {
                Some((address, 64..)) => self.bus.publish(address, &title),
                _ => Err(BusFault { address: place(first), len: 64 }),
            };
        }
        if let Err(fault) = written {
            self.log.complain(Rule::DmaFault, format!("completion queue {cqn:#x}: {fault}"));
            return Err(CqFull);
        }
        for (place, entry) in block.iter().enumerate() {
            let index = first.wrapping_add(place as u32);
            self.log.trace.line(|| format::compressed(cqn, index, &entry[..], place, count));
        }
        Ok(())
    }

    /// Checks the slots that the driver has returned, up to `consumer`. Complains about slots in
    /// blocks whose owner bits would turn them into completions in the next round.
    pub(super) fn check_owners(&mut self, cqn: u32, consumer: u32) {
        let Some(cq) = self.cqs.get_mut(&cqn) else { return };
        let unread = cq.pending(consumer);
        let Some(compression) = &mut cq.compression else { return };
        let until = cq.producer.wrapping_sub(unread);
        let mut left = Vec::new();
        while let Some((first, count)) = compression.closed.front_mut() {
            if *count == 0 {
                compression.closed.pop_front();
                continue;
            }
            if until.wrapping_sub(*first).cast_signed() <= 0 {
                break;
            }
            let index = *first;
            (*first, *count) = (first.wrapping_add(1), *count - 1);
            let last_byte = u64::from(index & ((1 << cq.log_size) - 1)) * cq.entry_size + cq.entry_size - 1;
            let mut op_own = [0];
            let next_turn = (index >> cq.log_size & 1 ^ 1) as u8;
            let is_read = cq.pages.read(&self.bus, last_byte, &mut op_own).is_ok();
            if is_read && op_own[0] >> 4 != INVALID && op_own[0] & 1 == next_turn {
                left.push(index);
            }
        }
        if !left.is_empty() && !cq.ignore_overrun {
            let what = format!("completion queue {cqn:#x}: entries {left:?}");
            self.log.complain(Rule::CqOwner, what);
        }
    }
}

#[cfg(test)]
mod tests;
