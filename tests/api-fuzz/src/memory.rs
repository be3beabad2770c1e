//! [`Held`], [`Frozen`], [`Region`], [`Plain`]: the program's memory with its expected contents.
//! [`Posted`]: memory in flight with the contents expected on return. Messages: bytes that show
//! whether they are complete.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use verbs::{
    Buf, Exposed, FrozenBuf, HandleError, Memory, QpType, RemoteAccess, RemoteMr, Returned, WcOpcode,
    WcStatus,
};
use verbs_harness::pattern::{check, fill, filled, seed_of};

use super::handle::AnyRange;

/// A buffer in no queue. Only its owner may change its bytes; `expected` is a copy of them.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) buf: Buf,
    expected: Vec<u8>,
    /// The index of the context that contains the buffer's protection domain.
    pub(super) context: usize,
}

impl Held {
    /// Returns a buffer filled with the pattern of a seed.
    pub(super) fn new(mut buf: Buf, context: usize, seed: u64) -> Self {
        fill(seed, &mut buf);
        let expected = buf.to_vec();
        Self { buf, expected, context }
    }

    /// Returns a buffer with its current contents as the expected contents.
    fn as_is(buf: Buf, context: usize) -> Self {
        let expected = buf.to_vec();
        Self { buf, expected, context }
    }

    pub(super) fn len(&self) -> usize {
        self.buf.len()
    }

    /// Fails if a byte has changed while the program held the buffer.
    pub(super) fn check(&self) -> Result<(), String> {
        same(&self.buf, &self.expected).map_err(|why| format!("a held buffer changed: {why}"))
    }

    /// Writes to the buffer as its owner.
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

    /// Joins `tail`, the piece that follows, or returns it.
    pub(super) fn unsplit(&mut self, tail: Self) -> Result<(), Self> {
        let Self { buf, mut expected, context } = tail;
        match self.buf.unsplit(buf) {
            Ok(()) => {
                self.expected.append(&mut expected);
                Ok(())
            }
            Err(failed) => Err(Self { buf: failed.handle, expected, context }),
        }
    }

    /// Returns the buffer to be posted, with its record.
    pub(super) fn into_parts(self, range: Range<usize>) -> (Memory, Piece) {
        let piece = Piece {
            addr: self.buf.addr(),
            len: self.buf.len(),
            content: Content::Owned(self.expected),
            range,
            context: self.context,
        };
        (self.buf.into(), piece)
    }

    /// Returns the same memory, read-only.
    pub(super) fn freeze(self) -> Frozen {
        let Self { buf, expected, context } = self;
        Frozen { buf: buf.freeze(), expected: expected.into(), context }
    }

    /// Returns the program's memory behind the buffer, if the buffer covers all of it.
    pub(super) fn into_plain(self) -> Result<Plain, Self> {
        let Self { buf, expected, context } = self;
        let at = buf.addr();
        let cut = |bytes: &[u8]| {
            let offset = (at as usize).wrapping_sub(bytes.as_ptr() as usize);
            bytes.get(offset..offset.checked_add(expected.len())?).map(|part| part == &expected[..])
        };
        let is_same = |bytes: &[u8]| cut(bytes).unwrap_or(false);
        match buf.into_memory::<Vec<u8>>() {
            Ok(bytes) => {
                let is_whole = is_same(&bytes);
                Ok(Plain::new(PlainBytes::Vec(bytes), is_whole))
            }
            Err(HandleError { handle, .. }) => match handle.into_memory::<Box<[u8]>>() {
                Ok(bytes) => {
                    let is_whole = is_same(&bytes);
                    Ok(Plain::new(PlainBytes::Box(bytes), is_whole))
                }
                Err(HandleError { handle, .. }) => Err(Self { buf: handle, expected, context }),
            },
        }
    }
}

/// A share of read-only memory, which does not change while any share lives.
#[derive(Clone, Debug)]
pub(super) struct Frozen {
    buf: FrozenBuf,
    expected: Arc<[u8]>,
    pub(super) context: usize,
}

impl Frozen {
    /// Wraps the program's memory registered read-only.
    pub(super) fn registered(buf: FrozenBuf, context: usize) -> Self {
        let expected = buf.to_vec().into();
        Self { buf, expected, context }
    }

    pub(super) fn len(&self) -> usize {
        self.buf.len()
    }

    pub(super) fn check(&self) -> Result<(), String> {
        same(&self.buf, &self.expected).map_err(|why| format!("read-only memory changed: {why}"))
    }

    /// Returns whether the bytes are a complete message, fit to send.
    pub(super) fn is_message(&self) -> bool {
        check_message(&self.expected).is_ok()
    }

    /// Returns a share of a part of the memory.
    pub(super) fn slice(&self, range: Range<usize>) -> Self {
        let expected = self.expected[range.clone()].into();
        Self { buf: self.buf.slice(range), expected, context: self.context }
    }

    /// Returns a share to be posted, with its record.
    pub(super) fn share(&self, range: Range<usize>) -> (Memory, Piece) {
        let piece = Piece {
            addr: self.buf.addr(),
            len: self.buf.len(),
            content: Content::Frozen(Arc::clone(&self.expected)),
            range,
            context: self.context,
        };
        (self.buf.clone().into(), piece)
    }

    /// Returns the frozen buffer, if this is its last share.
    pub(super) fn thaw(self) -> Result<Held, Self> {
        let Self { buf, expected, context } = self;
        let (addr, len) = (buf.addr(), buf.len());
        match buf.thaw() {
            // The last share may cover only a part.
            Ok(buf) if (buf.addr(), buf.len()) == (addr, len) => {
                Ok(Held { buf, expected: expected.to_vec(), context })
            }
            Ok(buf) => Ok(Held::as_is(buf, context)),
            Err(failed) => Err(Self { buf: failed.handle, expected, context }),
        }
    }

    /// Returns the program's memory behind the share, if this is the last share.
    pub(super) fn into_plain(self) -> Result<Plain, Self> {
        let Self { buf, expected, context } = self;
        match buf.into_memory::<Vec<u8>>() {
            Ok(bytes) => {
                // The last share may cover only a part.
                let is_whole = bytes.len() != expected.len() || bytes[..] == expected[..];
                Ok(Plain::new(PlainBytes::Vec(bytes), is_whole))
            }
            Err(HandleError { handle, .. }) => Err(Self { buf: handle, expected, context }),
        }
    }
}

/// The program's memory, not registered with any device.
#[derive(Debug)]
pub(super) struct Plain {
    pub(super) bytes: PlainBytes,
    expected: Vec<u8>,
    /// Whether the memory was returned unchanged.
    is_whole: bool,
}

/// The program's memory, by its type.
#[derive(Debug)]
pub(super) enum PlainBytes {
    Vec(Vec<u8>),
    Box(Box<[u8]>),
}

impl Plain {
    pub(super) fn new(bytes: PlainBytes, is_whole: bool) -> Self {
        let expected = match &bytes {
            PlainBytes::Vec(bytes) => bytes.clone(),
            PlainBytes::Box(bytes) => bytes.to_vec(),
        };
        Self { bytes, expected, is_whole }
    }

    /// Fails if a byte has changed while the program had the memory, or before its return.
    pub(super) fn check(&self) -> Result<(), String> {
        if !self.is_whole {
            return Err("memory of the program's came back changed".to_owned());
        }
        let bytes = match &self.bytes {
            PlainBytes::Vec(bytes) => &bytes[..],
            PlainBytes::Box(bytes) => bytes,
        };
        same(bytes, &self.expected).map_err(|why| format!("memory that was deregistered changed: {why}"))
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

/// The program's record of a piece of memory in flight.
#[derive(Debug)]
pub(super) struct Piece {
    addr: u64,
    len: usize,
    content: Content,
    /// The part named by the request.
    range: Range<usize>,
    context: usize,
}

/// The expected bytes of memory in flight.
#[derive(Debug)]
enum Content {
    /// The expected contents: these bytes, except in the range that the request writes.
    Owned(Vec<u8>),
    /// The expected contents: exactly these bytes.
    Frozen(Arc<[u8]>),
    /// Any contents, because peers may write to the memory. The value counts the shares in flight.
    Exposed(#[allow(dead_code)] Arc<()>),
}

impl Piece {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn is_of(&self, memory: &Memory) -> bool {
        let named = match memory {
            Memory::Buf(buf) => (buf.addr(), buf.len()),
            Memory::Frozen(buf) => (buf.addr(), buf.len()),
            Memory::Exposed(exposed) => (exposed.addr(), exposed.len()),
            _ => return false,
        };
        let is_kind = matches!(
            (&self.content, memory),
            (Content::Owned(_), Memory::Buf(_))
                | (Content::Frozen(_), Memory::Frozen(_))
                | (Content::Exposed(_), Memory::Exposed(_))
        );
        is_kind && named == (self.addr, self.len)
    }

    /// Returns the bytes at the time of the post and the current bytes; `None` for exposed memory.
    fn bytes<'a>(&'a self, memory: &'a Memory) -> Option<[&'a [u8]; 2]> {
        match (&self.content, memory) {
            (Content::Owned(expected), Memory::Buf(buf)) => Some([&expected[..], &buf[..]]),
            (Content::Frozen(expected), Memory::Frozen(buf)) => Some([&expected[..], &buf[..]]),
            _ => None,
        }
    }

    /// Returns the memory of a rejected or unsent request.
    fn unposted(self, memory: Memory) -> Mine {
        match (self.content, memory) {
            (Content::Owned(expected), Memory::Buf(buf)) => {
                Mine::Held(Held { buf, expected, context: self.context })
            }
            (Content::Frozen(expected), Memory::Frozen(buf)) => {
                Mine::Frozen(Frozen { buf, expected, context: self.context })
            }
            _ => Mine::Share,
        }
    }

    /// Returns the content of memory that a queue has returned.
    fn returned(self, memory: Memory) -> Mine {
        match (self.content, memory) {
            (Content::Owned(_), Memory::Buf(buf)) => Mine::Held(Held::as_is(buf, self.context)),
            (Content::Frozen(expected), Memory::Frozen(buf)) => {
                Mine::Frozen(Frozen { buf, expected, context: self.context })
            }
            _ => Mine::Share,
        }
    }
}

/// Memory returned to the program.
#[derive(Debug)]
pub(super) enum Mine {
    Held(Held),
    Frozen(Frozen),
    /// A share of exposed memory, which its owner still holds as a [`Region`].
    Share,
}

/// The effect of a request on its buffers.
#[derive(Debug)]
pub(super) enum What {
    /// The buffers are only read.
    Out,
    /// A message is received into the buffers.
    Recv {
        qp_type: QpType,
        /// The number of the only station that sends to this station, if known.
        from: Option<u32>,
    },
    /// Exposed memory is read into the buffers.
    Read(Option<(Arc<Target>, u64)>),
    /// Eight bytes are written into the buffers.
    Atomic,
}

/// The program's record of a request in flight.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) what: What,
    pub(super) pieces: Vec<Piece>,
    /// The `wr_id` of the preceding unsignalled request, whose memory returns after this request's
    /// memory.
    pub(super) before: Option<u64>,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    /// The request ended with a completion.
    Completed { status: WcStatus, opcode: WcOpcode, byte_len: u32 },
    /// The request ended with its queue pair.
    Forgotten,
}

impl Outcome {
    /// Returns whether the request succeeded.
    pub(super) fn is_success(self) -> bool {
        matches!(self, Self::Completed { status: WcStatus::SUCCESS, .. })
    }
}

/// The check made on a request's returned buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    /// The bytes were unchanged.
    Unchanged,
    /// The message was complete.
    Message,
    /// The bytes read matched the owner's memory.
    Read,
    /// Bytes within the request's ranges could not be checked.
    Outside,
}

impl Posted {
    pub(super) fn one(what: What, piece: Piece) -> Self {
        Self { what, pieces: vec![piece], before: None }
    }

    /// Returns whether the device would write read-only memory.
    pub(super) fn writes_frozen(&self) -> bool {
        let is_frozen = |piece: &Piece| matches!(piece.content, Content::Frozen(_));
        !matches!(self.what, What::Out) && self.pieces.iter().any(is_frozen)
    }

    /// Returns whether `memory` is exactly the memory of this request.
    pub(super) fn is_of(&self, memory: &[Memory]) -> bool {
        self.pieces.len() == memory.len()
            && self.pieces.iter().zip(memory).all(|(piece, memory)| piece.is_of(memory))
    }

    /// Returns whether `memory` is the first piece of this request.
    pub(super) fn begins_with(&self, memory: &Memory) -> bool {
        self.pieces.first().is_some_and(|piece| piece.is_of(memory))
    }

    /// Returns whether `memory` is any piece of this request.
    pub(super) fn has(&self, memory: &Memory) -> bool {
        self.pieces.iter().any(|piece| piece.is_of(memory))
    }

    /// Checks the returned memory against the posted memory.
    pub(super) fn check(&self, memory: &[Memory], outcome: Outcome) -> Result<Looked, String> {
        if !self.is_of(memory) {
            return Err(format!("other memory came back than was posted: {memory:?} for {self:?}"));
        }
        let (mut expected, mut got) = (Vec::new(), Vec::new());
        let mut is_exposed = false;
        for (piece, memory) in self.pieces.iter().zip(memory) {
            let Some([before, now]) = piece.bytes(memory) else {
                is_exposed = true;
                continue;
            };
            let Range { start, end } = piece.range;
            let outside = if let Content::Frozen(_) = piece.content { 0..0 } else { start..end };
            same(&now[..outside.start], &before[..outside.start])
                .and_then(|()| same(&now[outside.end..], &before[outside.end..]))
                .map_err(|why| format!("outside of the range {start}..{end}, {outcome:?}: {why}"))?;
            expected.extend_from_slice(&before[start..end]);
            got.extend_from_slice(&now[start..end]);
        }
        if is_exposed {
            return Ok(Looked::Outside);
        }
        let unchanged = |from: usize| same(&got[from..], &expected[from..]).map(|()| Looked::Unchanged);
        match (&self.what, outcome) {
            (What::Out, _) => unchanged(0),
            (_, Outcome::Forgotten) => Ok(Looked::Outside),
            (_, Outcome::Completed { status, .. }) if status != WcStatus::SUCCESS => Ok(Looked::Outside),
            (What::Recv { qp_type, from }, Outcome::Completed { opcode, byte_len, .. }) => {
                if opcode == WcOpcode::RECV_RDMA_WITH_IMM {
                    // On UC, an earlier message that lost packets may have begun to arrive here.
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
                    (Some(from), Some(sender)) if ![*from, ANYBODY].contains(&sender) => {
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

    /// Returns the memory to the program.
    pub(super) fn into_mine(self, memory: Vec<Memory>) -> Vec<Mine> {
        self.pieces.into_iter().zip(memory).map(|(piece, memory)| piece.returned(memory)).collect()
    }

    /// Returns the memory of a rejected or unsent request.
    pub(super) fn into_unposted(self, memory: Vec<Memory>) -> Vec<Mine> {
        self.pieces.into_iter().zip(memory).map(|(piece, memory)| piece.unposted(memory)).collect()
    }
}

/// Requests with the memory returned for each.
type Chain = Vec<(Posted, Vec<Memory>)>;

/// Removes from the records the requests that a completion ended, starting with `wr_id`, and pairs
/// each with its returned memory. These are the completed request and the unsignalled requests
/// before it.
///
/// Also returns the number of an unsignalled request that did not return with the others. Another
/// thread polled its own completion and holds its memory.
///
/// Fails if the memory is not exactly the memory of these requests.
pub(super) fn take_chain<K: Eq + Hash>(
    posted: &mut HashMap<K, Posted>,
    key: impl Fn(u64) -> K,
    wr_id: u64,
    mut returned: Returned,
) -> Result<(Chain, Option<u64>), String> {
    let (mut chain, mut next, mut left) = (Vec::new(), Some(wr_id), None);
    // The chain ends at a request returned by its own completion.
    while let Some((number, one)) = next.and_then(|wr_id| posted.remove(&key(wr_id)).map(|one| (wr_id, one)))
    {
        let memory: Vec<Memory> = returned.by_ref().take(one.pieces.len()).collect();
        if !chain.is_empty() && memory.is_empty() && !one.pieces.is_empty() {
            // Another thread holds the memory returned by that request's completion.
            posted.insert(key(number), one);
            left = Some(number);
            break;
        }
        next = one.before;
        if !one.is_of(&memory) {
            return Err(format!("other memory came back than was posted: {memory:?} for {one:?}"));
        }
        chain.push((one, memory));
    }
    match returned.next() {
        None => Ok((chain, left)),
        Some(memory) => Err(format!("{memory:?} came back with {wr_id:#x}, and was not posted there")),
    }
}

/// The length of the header before a received datagram, in bytes.
pub(super) const GRH: usize = 40;

/// The sender number of messages that any station may send.
pub(super) const ANYBODY: u32 = 0;

/// The length of a message's header in bytes: sender, length and seed.
const HEADER: usize = 16;

/// The minimum length of a message with a header, in bytes: at least 8 bytes after the header
/// confirm its contents.
const SHORTEST: usize = HEADER + 8;

/// Returns a message of a station. The contents of a message too short for a header depend on its
/// length alone.
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

/// Checks that the bytes are a complete message and returns its sender if it has a header.
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

/// Exposed memory as known to other threads.
#[derive(Debug)]
pub(super) struct Target {
    /// Whether the owner posts this memory and writes messages to it, which makes the contents
    /// unpredictable for peers.
    is_posted: bool,
    pub(super) remote: RemoteMr,
    pub(super) access: RemoteAccess,
    pub(super) context: usize,
    seed: u64,
    alive: AtomicBool,
}

impl Target {
    /// Returns whether the memory never changes, because neither its owner nor a peer writes it.
    fn is_constant(&self) -> bool {
        !self.is_posted && self.is_closed()
    }

    /// Returns whether peers cannot write the memory.
    pub(super) fn is_closed(&self) -> bool {
        !self.access.intersects(RemoteAccess::WRITE | RemoteAccess::ATOMIC)
    }

    pub(super) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Returns the `len` bytes of constant memory from `offset`.
    fn pattern(&self, offset: u64, len: usize) -> Vec<u8> {
        let whole = filled(self.seed, self.remote.length as usize);
        whole.get(offset as usize..offset as usize + len).unwrap_or_default().to_vec()
    }
}

/// Exposed memory and the unexposed pieces of the same allocation before and after it.
#[derive(Debug)]
pub(super) struct Region {
    exposed: Exposed,
    /// Counts the requests with this memory in flight; each holds a clone.
    flights: Arc<()>,
    pub(super) before: Held,
    pub(super) after: Held,
    pub(super) target: Arc<Target>,
}

impl Region {
    /// Exposes the middle part of a buffer.
    pub(super) fn expose(
        pd: &verbs::Pd,
        mut before: Held,
        access: RemoteAccess,
        is_posted: bool,
        seed: u64,
    ) -> Result<Self, Vec<Held>> {
        let len = before.len();
        let mut middle = before.split_off((len / 4) & !7);
        let after = middle.split_off((middle.len() * 2 / 3) & !7);
        middle.refill(seed);
        let context = middle.context;
        let Held { buf, expected, .. } = middle;
        match pd.expose(buf, access) {
            Ok(exposed) => {
                let (remote, alive) = (exposed.remote(), AtomicBool::new(true));
                let target = Arc::new(Target { is_posted, remote, access, context, seed, alive });
                Ok(Self { exposed, flights: Arc::default(), before, after, target })
            }
            Err(HandleError { handle: buf, .. }) => Err(vec![before, Held { buf, expected, context }, after]),
        }
    }

    /// Returns whether the owner may post the memory.
    pub(super) fn is_posted(&self) -> bool {
        self.target.is_posted
    }

    /// Returns whether a message to send can be written to the memory: only if peers cannot write
    /// to it and none of it is in flight.
    pub(super) fn takes_message(&self) -> bool {
        self.target.is_posted && self.target.is_closed() && Arc::strong_count(&self.flights) == 1
    }

    /// Returns a share to be posted, with its record.
    pub(super) fn share(&self, range: Range<usize>) -> (Memory, Piece) {
        let piece = Piece {
            addr: self.exposed.addr(),
            len: self.exposed.len(),
            content: Content::Exposed(Arc::clone(&self.flights)),
            range,
            context: self.target.context,
        };
        (self.exposed.clone().into(), piece)
    }

    /// Reads the memory in every way the API offers, while peers may write to it. Returns a sum,
    /// which keeps the compiler from optimising the reads away.
    pub(super) fn look(&self) -> u64 {
        let mut sum = 0_u64;
        let mut len = 0;
        self.exposed.for_each_piece(.., |piece| {
            len += piece.len();
            sum = sum.wrapping_add(piece.iter().map(|byte| u64::from(*byte)).sum());
        });
        assert_eq!(len, self.exposed.len(), "pieces cover the memory");
        let word = self.exposed.atomic(0).map_or(0, |word| word.load(Ordering::Relaxed));
        sum.wrapping_add(word)
    }

    pub(super) fn len(&self) -> usize {
        self.exposed.len()
    }

    /// Checks the bytes that peers must not write: both neighbours, and the memory itself unless
    /// peers may write to it.
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

    /// Writes a message to send.
    pub(super) fn write_message(&self, at: usize, bytes: &[u8]) {
        self.exposed.write_at(at, bytes);
    }

    /// Writes to the memory and returns true, if peers may write to it too. Other memory stays
    /// constant.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        let may = !self.target.is_closed() && at + bytes.len() <= self.exposed.len();
        if may {
            self.exposed.write_at(at, bytes);
        }
        may
    }

    /// Ends the peers' access to the memory and returns the three pieces.
    #[allow(clippy::result_large_err)]
    pub(super) fn unexpose(self) -> Result<[Held; 3], (Self, verbs::Error)> {
        let Self { exposed, flights, before, after, target } = self;
        let context = target.context;
        target.alive.store(false, Ordering::Release);
        match exposed.unexpose() {
            Ok(buf) => Ok([before, Held::as_is(buf, context), after]),
            Err(HandleError { handle: exposed, error }) => {
                Err((Self { exposed, flights, before, after, target }, error))
            }
        }
    }

    /// Leaks the exposed part, which then stays exposed.
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

/// Returns the part of `len` bytes that a range names under the library's rules; `None` if it lies
/// outside.
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
