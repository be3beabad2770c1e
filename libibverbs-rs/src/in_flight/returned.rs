//! [`Returned`]: the memory that a completion returns to the program.

use std::sync::Arc;

use verbs_core::types::WcStatus;

use super::entry::{Entry, Pieces};
use super::routes::{Routes, is_safe};
use super::table::Table;
use crate::memory::Memory;
use crate::memory::buffer::Buf;
use crate::memory::exposed::Exposed;
use crate::memory::frozen::FrozenBuf;
use crate::memory::window::Window;

/// The memory of an ended request and of the unsignalled requests before it.
///
/// Can be sent to any thread. Iterates over the request's memory in the order of its list, then
/// over the memory of preceding unsignalled sends, last posted first. Dropping it releases the
/// remaining memory.
#[derive(Debug)]
pub struct Returned {
    pieces: Pieces,
    /// The table and the `wr_id` of the unsignalled request whose memory follows.
    before: Option<(Arc<Table<Entry>>, u64)>,
}

impl Returned {
    /// Returns the first buffer; `None` if the request had none.
    ///
    /// All other memory is released. A request with one buffer has no other memory, unless an
    /// unsignalled request precedes it.
    pub fn into_buf(mut self) -> Option<Buf> {
        // The usual case, without the iterator's loop.
        if let (Pieces::One(memory), None) = (&mut self.pieces, &self.before) {
            return memory.take().and_then(Memory::into_buf);
        }
        self.find_map(|memory| match memory {
            Memory::Buf(buf) => Some(buf),
            _ => None,
        })
    }

    /// Returns all buffers, in the order of iteration.
    pub fn into_bufs(self) -> Vec<Buf> {
        self.filter_map(|memory| match memory {
            Memory::Buf(buf) => Some(buf),
            _ => None,
        })
        .collect()
    }

    /// Returns the first frozen buffer; `None` if the request had none.
    pub fn into_frozen(mut self) -> Option<FrozenBuf> {
        self.find_map(|memory| match memory {
            Memory::Frozen(buf) => Some(buf),
            _ => None,
        })
    }

    /// Returns the first window; `None` if the request had none.
    pub fn into_window(mut self) -> Option<Window> {
        self.find_map(Memory::into_window)
    }

    /// Returns the first piece of exposed memory; `None` if the request had none.
    pub fn into_exposed(mut self) -> Option<Exposed> {
        self.find_map(|memory| match memory {
            Memory::Exposed(exposed) => Some(exposed),
            _ => None,
        })
    }
}

impl Iterator for Returned {
    type Item = Memory;

    fn next(&mut self) -> Option<Memory> {
        loop {
            if let Some(memory) = self.pieces.next() {
                return Some(memory);
            }
            let (table, number) = self.before.take()?;
            // If the entry is gone, its own completion has returned it and the entries before it.
            let Entry { held, before } = table.take(number)?;
            self.pieces = held.into();
            self.before = before.map(|number| (table, number));
        }
    }
}

impl Drop for Returned {
    fn drop(&mut self) {
        if self.before.is_some() {
            self.for_each(drop);
        }
    }
}

impl Routes {
    /// Removes and returns the memory of a request whose completion is being read. `status` is the
    /// status of that completion.
    #[inline]
    pub(crate) fn reclaim(&mut self, wr_id: u64, status: WcStatus) -> Option<Returned> {
        let mut returned = self.take(wr_id, Table::take)?;
        if let Pieces::One(Some(Memory::Window(window))) = &mut returned.pieces {
            window.settle(status == WcStatus::SUCCESS, self.directory().ticks());
        }
        Some(returned)
    }

    /// Removes and returns the memory of a request whose completion was copied out. Its status is
    /// unknown, because the program may have changed the copy.
    #[inline]
    pub(crate) fn reclaim_polled(&mut self, wr_id: u64) -> Option<Returned> {
        self.take(wr_id, Table::take_polled)
    }

    /// Marks a request whose completion was copied out.
    #[inline]
    pub(crate) fn mark(&mut self, wr_id: u64) {
        if is_safe(wr_id) {
            // A `wr_id` in no table belongs to a destroyed queue pair, which has no slots.
            let _ = self.find(wr_id, |table| table.mark(wr_id).then_some(()));
        }
    }

    #[inline]
    fn take(&mut self, wr_id: u64, take: fn(&Table<Entry>, u64) -> Option<Entry>) -> Option<Returned> {
        if !is_safe(wr_id) {
            return None;
        }
        self.find(wr_id, |table| {
            let Entry { held, before } = take(table, wr_id)?;
            let before = before.map(|number| (Arc::clone(table), number));
            Some(Returned { pieces: held.into(), before })
        })
    }
}
