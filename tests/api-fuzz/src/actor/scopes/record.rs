//! [`Record`]: the program's record of the memory lent to a scope.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::ops::Range;

use verbs::ScopedBuf;
use verbs_harness::runner::{CaseResult, fail};

use super::Back;

/// The program's record of lent memory and of the requests that hold it.
pub(super) struct Record {
    /// The address of the memory.
    start: usize,
    expected: Vec<u8>,
    /// Unfinished requests, keyed by the end of the connection and the `wr_id`.
    pub(super) entries: HashMap<(usize, u64), Entry>,
    /// Parts written by a device and not yet seen by the program.
    pub(super) unseen: Vec<Range<usize>>,
    /// The number of tokens that each end holds.
    pub(super) tokens: [usize; 2],
    /// The number of unsignalled requests of each end since its last signalled one.
    pub(super) unsignaled: [usize; 2],
    /// The number of receives of each end that have no matching send.
    pub(super) receives: [usize; 2],
    /// Whether a request of the scope has failed.
    pub(super) is_broken: bool,
}

/// A request that holds borrowed memory.
pub(super) struct Entry {
    /// The part of the borrowed memory written by the device.
    pub(super) writes: Option<Range<usize>>,
    pub(super) is_writable: bool,
    /// The number of earlier unsignalled requests whose memory returns together with this memory.
    pub(super) chained: usize,
}

impl Record {
    pub(super) fn new(room: &[u8]) -> Self {
        Self {
            start: room.as_ptr().addr(),
            expected: room.to_vec(),
            entries: HashMap::new(),
            unseen: Vec::new(),
            tokens: [0; 2],
            unsignaled: [0; 2],
            receives: [0; 2],
            is_broken: false,
        }
    }

    /// Returns the offset of a buffer in the borrowed memory.
    pub(super) fn at(&self, buf: &ScopedBuf<'_>) -> usize {
        buf.as_ptr().addr() - self.start
    }

    /// Returns the position of a part of a buffer within the borrowed memory.
    pub(super) fn part(&self, buf: &ScopedBuf<'_>, part: &Range<usize>) -> Range<usize> {
        let at = self.at(buf);
        at + part.start..at + part.end
    }

    /// Fails if a byte has changed while the program held the buffer.
    pub(super) fn check(&self, buf: &ScopedBuf<'_>) -> CaseResult {
        let at = self.at(buf);
        if buf[..] == self.expected[at..at + buf.len()] { Ok(()) } else { fail("a borrowed buffer changed") }
    }

    /// Records all bytes of a buffer as expected.
    pub(super) fn update(&mut self, buf: &ScopedBuf<'_>) {
        self.accept(buf, &(0..buf.len()));
    }

    /// Records the bytes in a part of a buffer as expected.
    pub(super) fn accept(&mut self, buf: &ScopedBuf<'_>, part: &Range<usize>) {
        let place = self.part(buf, part);
        self.expected[place].copy_from_slice(&buf[part.clone()]);
    }

    pub(super) fn add(
        &mut self,
        side: usize,
        wr_id: u64,
        is_recv: bool,
        is_writable: bool,
        writes: Option<Range<usize>>,
    ) -> CaseResult {
        let chained = if is_recv { 0 } else { core::mem::take(&mut self.unsignaled[side]) };
        self.tokens[side] += 1;
        match self.entries.insert((side, wr_id), Entry { writes, is_writable, chained }) {
            None => Ok(()),
            Some(_) => fail(format_args!("the number {wr_id:#x} was given twice")),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.entries.is_empty() && self.unsignaled == [0; 2] && self.receives == [0; 2]
    }

    /// Checks that each queue pair of the scope is returned exactly when no request and no
    /// completion kept by the program holds memory of the scope.
    pub(super) fn wants(&self, back: &Back, is_alone: bool) -> CaseResult {
        let scoped = if is_alone { &back[..1] } else { &back[..] };
        for (qp, tokens) in scoped.iter().zip(self.tokens) {
            if !self.is_broken && qp.is_some() != (tokens == 0) {
                return fail(format_args!("{qp:?} came back from a scope, of which it has {tokens}"));
            }
        }
        Ok(())
    }

    /// Fails if a byte changed that no request in the scope writes.
    pub(super) fn check_after(&self, room: &[u8]) -> CaseResult {
        let mut may = vec![false; room.len()];
        let written = self.entries.values().filter_map(|entry| entry.writes.as_ref());
        for part in written.chain(&self.unseen) {
            may[part.clone()].fill(true);
        }
        let changed = |at: &usize| !may[*at] && room[*at] != self.expected[*at];
        match (0..room.len()).find(changed) {
            None => Ok(()),
            Some(at) => fail(format_args!("byte {at} of borrowed memory changed")),
        }
    }
}
