//! [`Held`]: a buffer of the program's with what must be in it; [`Parked`]: what must be in it when
//! it comes back; messages, whose bytes say whether they are whole.
#![forbid(unsafe_code)]

use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use verbs::{Buf, Exposed, QpType, RemoteAccess, RemoteMr, WcOpcode, WcStatus};

use super::handle::AnyRange;
use crate::peer::pattern::{check, fill, filled, seed_of};

/// A buffer that no queue has. Nobody but its owner may change its bytes: `expected` is a copy of
/// them.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) buf: Buf,
    expected: Vec<u8>,
    /// The context whose protection domain it is of.
    pub(super) context: usize,
}

impl Held {
    /// A buffer, filled with the pattern of a seed.
    pub(super) fn new(mut buf: Buf, context: usize, seed: u64) -> Self {
        fill(seed, &mut buf);
        let expected = buf.to_vec();
        Self { buf, expected, context }
    }

    /// A buffer as it came back.
    fn as_is(buf: Buf, context: usize) -> Self {
        let expected = buf.to_vec();
        Self { buf, expected, context }
    }

    pub(super) fn len(&self) -> usize {
        self.buf.len()
    }

    /// Fails when a byte changed while the program held the buffer.
    pub(super) fn check(&self) -> Result<(), String> {
        same(&self.buf, &self.expected).map_err(|why| format!("a held buffer changed: {why}"))
    }

    /// Writes it, as its owner may.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        self.buf[at..at + bytes.len()].copy_from_slice(bytes);
        self.expected[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn refill(&mut self, seed: u64) {
        fill(seed, &mut self.buf);
        self.expected.copy_from_slice(&self.buf);
    }

    pub(super) fn split_off(&mut self, at: usize) -> Self {
        let (buf, expected) = (self.buf.split_off(at), self.expected.split_off(at));
        Self { buf, expected, context: self.context }
    }

    /// Joins what follows, or gives it back.
    pub(super) fn unsplit(&mut self, tail: Self) -> Result<(), Self> {
        let Self { buf, mut expected, context } = tail;
        match self.buf.unsplit(buf) {
            Ok(()) => {
                self.expected.append(&mut expected);
                Ok(())
            }
            Err(buf) => Err(Self { buf, expected, context }),
        }
    }

    /// The buffer for a queue, and what is remembered of it.
    pub(super) fn into_parts(self, range: Range<usize>) -> (Buf, Piece) {
        let piece = Piece {
            addr: self.buf.addr(),
            len: self.buf.len(),
            expected: self.expected,
            range,
            context: self.context,
        };
        (self.buf, piece)
    }
}

fn same(bytes: &[u8], expected: &[u8]) -> Result<(), String> {
    if bytes == expected {
        return Ok(());
    }
    let at = bytes.iter().zip(expected).position(|(byte, wanted)| byte != wanted);
    let at = at.unwrap_or(bytes.len().min(expected.len()));
    let count = bytes.iter().zip(expected).filter(|(byte, wanted)| byte != wanted).count();
    let near = |bytes: &[u8]| format!("{:02x?}", &bytes[at.min(bytes.len())..bytes.len().min(at + 16)]);
    Err(format!(
        "{count} of {} bytes differ, the first at {at}: {} instead of {}",
        expected.len(),
        near(bytes),
        near(expected)
    ))
}

/// The record of a parked buffer.
#[derive(Debug)]
pub(super) struct Piece {
    addr: u64,
    len: usize,
    expected: Vec<u8>,
    /// The range that the request names.
    range: Range<usize>,
    context: usize,
}

impl Piece {
    /// The buffer again, when it was refused.
    pub(super) fn unparked(self, buf: Buf) -> Held {
        Held { buf, expected: self.expected, context: self.context }
    }
}

/// The use that a request makes of its buffers.
#[derive(Debug)]
pub(super) enum What {
    /// They are read only.
    Out,
    /// A message comes into them.
    Recv {
        qp_type: QpType,
        /// The station that alone sends to this one, as far as is known.
        from: Option<u32>,
    },
    /// Exposed memory is read into them.
    Read(Option<(Arc<Target>, u64)>),
    /// Eight bytes come into them.
    Atomic,
}

/// The record of a parked request.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) what: What,
    pub(super) pieces: Vec<Piece>,
}

/// The end of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    /// With a completion.
    Completed { status: WcStatus, opcode: WcOpcode, byte_len: u32 },
    /// With its queue pair.
    Forgotten,
}

/// The result of the check of a request's buffers when they came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    /// Bytes that had to be what they were.
    Unchanged,
    /// A message that had to be whole.
    Message,
    /// Memory that was read and had to be its owner's.
    Read,
    /// Nothing inside of the request's ranges could be said.
    Outside,
}

impl Parked {
    /// Returns whether these are the buffers of this request.
    pub(super) fn is_of(&self, bufs: &[Buf]) -> bool {
        self.pieces.len() == bufs.len()
            && self
                .pieces
                .iter()
                .zip(bufs)
                .all(|(piece, buf)| (piece.addr, piece.len) == (buf.addr(), buf.len()))
    }

    /// Checks what came back against what was parked.
    pub(super) fn check(&self, bufs: &[Buf], outcome: Outcome) -> Result<Looked, String> {
        if !self.is_of(bufs) {
            return Err(format!("other buffers came back than were parked: {bufs:?} for {self:?}"));
        }
        for (piece, buf) in self.pieces.iter().zip(bufs) {
            let Range { start, end } = piece.range;
            same(&buf[..start], &piece.expected[..start])
                .and_then(|()| same(&buf[end..], &piece.expected[end..]))
                .map_err(|why| format!("outside of the range {start}..{end}, {outcome:?}: {why}"))?;
        }
        let inside = |of: fn(&Piece) -> &[u8]| -> Vec<u8> {
            self.pieces.iter().flat_map(|piece| of(piece)[piece.range.clone()].to_vec()).collect()
        };
        let expected = inside(|piece| &piece.expected);
        let got: Vec<u8> = (self.pieces.iter().zip(bufs))
            .flat_map(|(piece, buf)| buf[piece.range.clone()].to_vec())
            .collect();
        let unchanged = |from: usize| same(&got[from..], &expected[from..]).map(|()| Looked::Unchanged);
        match (&self.what, outcome) {
            (What::Out, _) => unchanged(0),
            (_, Outcome::Forgotten) => Ok(Looked::Outside),
            (_, Outcome::Completed { status, .. }) if status != WcStatus::SUCCESS => Ok(Looked::Outside),
            (What::Recv { qp_type, from }, Outcome::Completed { opcode, byte_len, .. }) => {
                if opcode == WcOpcode::RECV_RDMA_WITH_IMM {
                    // Of UC, a message that lost packets may have begun to arrive here before.
                    return if *qp_type == QpType::UC { Ok(Looked::Outside) } else { unchanged(0) };
                }
                let header = if *qp_type == QpType::UD { GRH } else { 0 };
                let end = byte_len as usize;
                if end > got.len() || end < header {
                    return Err(format!("a message of {end} bytes in a receive of {}", got.len()));
                }
                if *qp_type != QpType::UC {
                    unchanged(end)?;
                }
                let sender = check_message(&got[header..end])?;
                match (from, sender) {
                    (Some(from), Some(sender)) if *from != sender => {
                        Err(format!("a message of station {sender} came to one that is connected to {from}"))
                    }
                    _ => Ok(Looked::Message),
                }
            }
            (What::Read(Some((target, offset))), _) if target.is_constant() => {
                same(&got, &target.pattern(*offset, got.len())).map(|()| Looked::Read).or_else(|why| {
                    if target.is_alive() { Err(format!("a read: {why}")) } else { Ok(Looked::Outside) }
                })
            }
            (What::Read(_), _) => Ok(Looked::Outside),
            (What::Atomic, _) => unchanged(8.min(got.len())),
        }
    }

    /// The buffers, for their owner.
    pub(super) fn into_held(self, bufs: Vec<Buf>) -> Vec<Held> {
        self.pieces.into_iter().zip(bufs).map(|(piece, buf)| Held::as_is(buf, piece.context)).collect()
    }

    /// The buffers of a request that was refused.
    pub(super) fn into_unparked(self, bufs: Vec<Buf>) -> Vec<Held> {
        self.pieces.into_iter().zip(bufs).map(|(piece, buf)| piece.unparked(buf)).collect()
    }
}

/// The number of bytes before a datagram.
pub(super) const GRH: usize = 40;

/// The length of the part of a message that identifies it.
const HEADER: usize = 16;

/// The shortest message that says which it is: what it says is confirmed by at least so much after
/// it.
const SHORTEST: usize = HEADER + 8;

/// A message of a station: too short a one is told apart by its length alone.
pub(super) fn message(sender: u32, seed: u64, len: usize) -> Vec<u8> {
    if len < SHORTEST {
        return filled(seed_of(&[len as u64]), len);
    }
    let mut bytes = Vec::with_capacity(len);
    bytes.extend(sender.to_le_bytes());
    bytes.extend((len as u32).to_le_bytes());
    bytes.extend(seed.to_le_bytes());
    bytes.extend(filled(seed_of(&[seed, len as u64]), len - HEADER));
    bytes
}

/// Checks that this is a whole message, and says whose, where it is long enough to say.
fn check_message(bytes: &[u8]) -> Result<Option<u32>, String> {
    let len = bytes.len();
    let Some((header, body)) = bytes.split_first_chunk::<HEADER>().filter(|_| len >= SHORTEST) else {
        return check(seed_of(&[len as u64]), bytes)
            .map(|()| None)
            .map_err(|why| format!("a message of {len} bytes: {why}"));
    };
    let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap_or_default());
    let (sender, said, seed) = (word(0) as u32, (word(0) >> 32) as usize, word(8));
    if said != len {
        return Err(format!("a message of {len} bytes says that it has {said}"));
    }
    check(seed_of(&[seed, len as u64]), body)
        .map(|()| Some(sender))
        .map_err(|why| format!("a message of {len} bytes of station {sender}: {why}"))
}

/// Exposed memory as other threads know it.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) remote: RemoteMr,
    pub(super) access: RemoteAccess,
    pub(super) context: usize,
    seed: u64,
    alive: AtomicBool,
}

impl Target {
    /// Returns whether no request writes it.
    fn is_constant(&self) -> bool {
        !self.access.intersects(RemoteAccess::WRITE | RemoteAccess::ATOMIC)
    }

    pub(super) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Returns the bytes from `offset` on, when it is constant.
    fn pattern(&self, offset: u64, len: usize) -> Vec<u8> {
        let whole = filled(self.seed, self.remote.length as usize);
        whole.get(offset as usize..offset as usize + len).unwrap_or_default().to_vec()
    }
}

/// Exposed memory, and the pieces of the same allocation to both sides of it, which nobody exposed.
#[derive(Debug)]
pub(super) struct Region {
    exposed: Exposed,
    pub(super) before: Held,
    pub(super) after: Held,
    pub(super) target: Arc<Target>,
}

impl Region {
    /// Exposes the middle of a buffer.
    pub(super) fn expose(
        pd: &verbs::Pd,
        mut before: Held,
        access: RemoteAccess,
        seed: u64,
    ) -> Result<Self, (Vec<Held>, verbs::Error)> {
        let len = before.len();
        let mut middle = before.split_off((len / 4) & !7);
        let after = middle.split_off((middle.len() * 2 / 3) & !7);
        middle.refill(seed);
        let context = middle.context;
        let (buf, piece) = middle.into_parts(0..0);
        match pd.expose(buf, access) {
            Ok(exposed) => {
                let (remote, alive) = (exposed.remote(), AtomicBool::new(true));
                let target = Arc::new(Target { remote, access, context, seed, alive });
                Ok(Self { exposed, before, after, target })
            }
            Err((buf, error)) => Err((vec![before, piece.unparked(buf), after], error)),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.exposed.len()
    }

    /// Checks what peers may not write: the neighbours, and the memory itself without such rights.
    pub(super) fn check(&self) -> Result<(), String> {
        self.before
            .check()
            .and_then(|()| self.after.check())
            .map_err(|why| format!("beside exposed memory: {why}"))?;
        if self.target.is_constant() {
            let mut now = vec![0; self.exposed.len()];
            self.exposed.read_at(0, &mut now);
            same(&now, &self.target.pattern(0, now.len()))
                .map_err(|why| format!("memory that was exposed for reading only: {why}"))?;
        }
        Ok(())
    }

    /// Writes it, where peers may; the owner of constant memory does not either.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        let may = !self.target.is_constant() && at + bytes.len() <= self.exposed.len();
        if may {
            self.exposed.write_at(at, bytes);
        }
        may
    }

    /// Takes it back from peers: the three pieces.
    #[allow(clippy::result_large_err)]
    pub(super) fn unexpose(self) -> Result<[Held; 3], (Self, verbs::Error)> {
        let Self { exposed, before, after, target } = self;
        let context = target.context;
        target.alive.store(false, Ordering::Release);
        match exposed.unexpose() {
            Ok(buf) => Ok([before, Held::as_is(buf, context), after]),
            Err((exposed, error)) => Err((Self { exposed, before, after, target }, error)),
        }
    }

    /// Forgets the exposed part: it stays exposed for ever, and nobody gets it.
    pub(super) fn forget(self) -> [Held; 2] {
        let Self { exposed, before, after, .. } = self;
        std::mem::forget(exposed);
        [before, after]
    }

    /// Drops the exposed part.
    pub(super) fn drop_exposed(self) -> [Held; 2] {
        self.target.alive.store(false, Ordering::Release);
        let Self { exposed, before, after, .. } = self;
        drop(exposed);
        [before, after]
    }
}

/// Returns the part of `len` bytes that a range names, as the library reads it; `None` outside of
/// them.
pub(super) fn resolve(range: AnyRange, len: usize) -> Option<Range<usize>> {
    let start = match range.0 {
        Bound::Included(start) => start,
        Bound::Excluded(before) => before.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.1 {
        Bound::Included(last) => last.checked_add(1)?,
        Bound::Excluded(end) => end,
        Bound::Unbounded => len,
    };
    (start <= end && end <= len).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_cut_shifted_or_mixed_is_noticed() {
        for len in [0, 3, 16, 23, 24, 25, 100, 4096] {
            let whole = message(7, 5, len);
            assert_eq!(check_message(&whole), Ok((len >= SHORTEST).then_some(7)), "{len}");
            if len > 0 {
                assert!(check_message(&whole[1..]).is_err(), "{len} shifted");
                assert!(check_message(&whole[..len - 1]).is_err(), "{len} cut");
                let mut mixed = whole.clone();
                mixed[len - 1] ^= 1;
                assert!(check_message(&mixed).is_err(), "{len} mixed");
            }
        }
    }

    #[test]
    fn a_range_is_read_as_the_library_reads_it() {
        use Bound::{Excluded, Included, Unbounded};
        assert_eq!(resolve((Unbounded, Unbounded), 5), Some(0..5));
        assert_eq!(resolve((Excluded(1), Included(3)), 5), Some(2..4));
        assert_eq!(resolve((Included(3), Excluded(2)), 5), None);
        assert_eq!(resolve((Included(0), Included(usize::MAX)), 5), None);
        assert_eq!(resolve((Unbounded, Excluded(6)), 5), None);
    }
}
