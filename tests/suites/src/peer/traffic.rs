//! Random operations on a connection, many at a time, each of them checked.
//!
//! A [`Script`] is the sequence of operations derived from a seed. The requester executes it. The
//! responder derives the contents of each receive and the final contents of its memory from the
//! same script.
//!
//! | operation | checked by |
//! |---|---|
//! | send, with and without immediate | the responder: order, length, immediate, every byte |
//! | write with immediate | the responder: order, length, immediate; bytes as for a write |
//! | write | the requester, when a later operation reads it; the responder, at the end |
//! | read | the requester: every byte |
//! | atomic | the requester: the old value; the responder: the final value |
//!
//! An exposed region consists of slots that are written and read, a read-only library, and a
//! counter.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use verbs::{
    Buf, Completed, Exposed, PostBufReason, PostReason, Provider, QpType, RemoteAccess, RemoteMr, SendFlags,
    SendOp, WcFlags, WcOpcode, WcStatus,
};
use verbs_harness::pattern::{Choices, check, fill, filled, seed_of};
use verbs_harness::runner::{CaseResult, Stop, fail};

use super::session::{End, INLINE, Role, Session, Shape, buf_of};

/// Number, length and concurrency of operations.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The number of operations in each direction.
    pub operations: u64,
    /// The longest message, in bytes.
    pub max_size: usize,
    /// The number of requests in flight and of posted receives.
    pub depth: usize,
    /// Whether a write that must not pass an earlier read is posted at once with a fence. Otherwise
    /// it is posted when the read has ended.
    ///
    /// rxe (seen on Linux 6.1 and 7.2) may never execute a fenced request when the last read before
    /// it ends.
    pub fence: bool,
    /// Whether to send empty messages, too. Both ends need the same value.
    ///
    /// rxe (Linux 6.12 and 7.2) fails a repeated read, with a warning in the log, if an empty
    /// operation came in between.
    pub empty: bool,
}

const SLOTS: usize = 4;
const LIBRARY_SEED: u64 = 0x006c_6962;

impl Limits {
    /// Returns a slot's length: the longest message's, rounded up so that the next slot is aligned.
    const fn slot(&self) -> usize {
        self.max_size.next_multiple_of(8)
    }

    const fn library_at(&self) -> usize {
        SLOTS * self.slot()
    }

    const fn counter_at(&self) -> usize {
        self.library_at() + self.slot()
    }

    /// Returns the length of the exposed region.
    pub const fn region(&self) -> usize {
        self.counter_at() + 8
    }
}

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Send {
        imm: Option<u32>,
    },
    Write {
        slot: usize,
        imm: Option<u32>,
    },
    /// Reads the bytes of the last write to a slot, which had this seed.
    ReadSlot {
        slot: usize,
        seed: u64,
    },
    ReadLibrary {
        offset: usize,
    },
    CompareSwap {
        compare: u64,
        swap: u64,
        before: u64,
    },
    FetchAdd {
        add: u64,
        before: u64,
    },
}

/// A random operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Operation {
    act: Act,
    len: usize,
    /// The seed of its bytes, if it sends any.
    seed: u64,
    inline: bool,
}

impl Operation {
    fn takes_receive(&self) -> bool {
        matches!(self.act, Act::Send { .. } | Act::Write { imm: Some(_), .. })
    }

    fn opcode(&self) -> WcOpcode {
        match self.act {
            Act::Send { .. } => WcOpcode::SEND,
            Act::Write { .. } => WcOpcode::RDMA_WRITE,
            Act::ReadSlot { .. } | Act::ReadLibrary { .. } => WcOpcode::RDMA_READ,
            Act::CompareSwap { .. } => WcOpcode::COMP_SWAP,
            Act::FetchAdd { .. } => WcOpcode::FETCH_ADD,
        }
    }
}

/// The operations derived from a seed and their effects.
#[derive(Clone, Debug)]
struct Script {
    choices: Choices,
    seed: u64,
    max_size: usize,
    min_size: u64,
    reads: bool,
    left: u64,
    /// The seed and length of the last write to each slot.
    slots: [(u64, usize); SLOTS],
    counter: u64,
}

impl Script {
    fn new((seed, reads): (u64, bool), limits: &Limits) -> Self {
        Self {
            choices: Choices::new(seed),
            seed,
            max_size: limits.max_size,
            min_size: u64::from(!limits.empty),
            reads,
            left: limits.operations,
            slots: [(0, 0); SLOTS],
            counter: 0,
        }
    }

    fn len(&mut self) -> usize {
        let max = self.max_size as u64;
        let len = match self.choices.below(4) {
            0 => self.choices.below(INLINE.into()),
            1 => (256 << self.choices.below(5)) + self.choices.below(5) - 2,
            _ => self.choices.below(max + 1),
        };
        len.clamp(self.min_size, max) as usize
    }
}

impl Iterator for Script {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        self.left = self.left.checked_sub(1)?;
        let seed = seed_of(&[self.seed, self.left]);
        let mut len = self.len();
        let choices = &mut self.choices;
        let imm = (choices.below(2) == 0).then(|| choices.any() as u32);
        let slot = choices.below(SLOTS as u64) as usize;
        let act = match choices.below(if self.reads { 10 } else { 6 }) {
            0..3 => Act::Send { imm },
            3..6 => {
                self.slots[slot] = (seed, len);
                Act::Write { slot, imm }
            }
            6 if self.slots[slot].1 as u64 >= self.min_size => {
                let (seed, written) = self.slots[slot];
                len = written;
                Act::ReadSlot { slot, seed }
            }
            6 | 7 => {
                let offset = 8 * choices.below((self.max_size - len) as u64 / 8 + 1) as usize;
                Act::ReadLibrary { offset }
            }
            8 => {
                len = 8;
                let before = self.counter;
                let compare = if imm.is_some() { before } else { !before };
                let swap = choices.any();
                if compare == before {
                    self.counter = swap;
                }
                Act::CompareSwap { compare, swap, before }
            }
            _ => {
                len = 8;
                let (before, add) = (self.counter, choices.any());
                self.counter = before.wrapping_add(add);
                Act::FetchAdd { add, before }
            }
        };
        let sends = matches!(act, Act::Send { .. } | Act::Write { .. });
        let inline = sends && len <= INLINE as usize && choices.below(2) == 0;
        Some(Operation { act, len, seed, inline })
    }
}

/// An end of a connection with random operations in both directions.
#[derive(Debug)]
pub struct Flow<P: Provider> {
    end: End<P>,
    memory: Exposed,
    peers: RemoteMr,
    limits: Limits,
    /// The operations of this end and those in flight.
    out: Script,
    next: Option<Operation>,
    pending: VecDeque<Operation>,
    idle: Vec<Buf>,
    /// The operations of the other end up to the last completed receive, then the number of
    /// receives to come.
    incoming: Script,
    awaited: u64,
    /// The number of completed operations.
    pub operations: u64,
    /// The number of bytes moved by them.
    pub bytes: u64,
}

impl<P: Provider> Flow<P> {
    /// Initialises the memory to be exposed by an end, before its [`Flow`] is created.
    pub fn region(limits: &Limits, mut buf: Buf) -> Buf {
        buf.fill(0);
        fill(LIBRARY_SEED, &mut buf[limits.library_at()..limits.counter_at()]);
        buf
    }

    /// Posts the first receives. Each script is given by a seed and whether it has reads and
    /// atomics: first this end's, then the other's. Needs `2 * depth` buffers as long as the
    /// longest message.
    ///
    /// # Errors
    /// A rejected post.
    pub fn new(
        end: End<P>,
        memory: Exposed,
        peers: RemoteMr,
        limits: Limits,
        scripts: [(u64, bool); 2],
        mut bufs: Vec<Buf>,
    ) -> CaseResult<Self> {
        let [out, incoming] = scripts.map(|script| Script::new(script, &limits));
        let awaited = incoming.clone().filter(Operation::takes_receive).count() as u64;
        let mut end = end;
        for buf in bufs.drain(limits.depth..) {
            end.qp.post_recv_buf(buf, ..)?;
        }
        Ok(Self {
            end,
            memory,
            peers,
            limits,
            out,
            next: None,
            pending: VecDeque::with_capacity(limits.depth),
            idle: bufs,
            incoming,
            awaited,
            operations: 0,
            bytes: 0,
        })
    }

    /// Starts new operations on the same connection. The previous ones must be done and
    /// [settled](Self::settle) on both ends.
    pub fn again(&mut self, seeds: [u64; 2]) {
        let [out, incoming] = seeds.map(|seed| Script::new((seed, true), &self.limits));
        self.awaited = incoming.clone().filter(Operation::takes_receive).count() as u64;
        (self.out, self.incoming) = (out, incoming);
        self.memory.write_at(self.limits.counter_at(), &[0; 8]);
    }

    /// Checks completed operations and posts as many as fit. Returns whether any completed.
    ///
    /// # Errors
    /// A failed or wrong operation.
    pub fn pump(&mut self) -> CaseResult<bool> {
        let mut any = false;
        while let Some(ended) = self.end.cq.poll_one() {
            any = true;
            if ended.wc.status != WcStatus::SUCCESS {
                return fail(format_args!("{:?}, with {:?} under way", ended.wc, self.pending.front()));
            }
            if ended.wc.opcode.is_recv() { self.received(ended)? } else { self.done(ended)? }
        }
        while self.pending.len() < self.limits.depth {
            let Some(operation) = self.next.take().or_else(|| self.out.next()) else { break };
            if !self.post(operation)? {
                self.next = Some(operation);
                break;
            }
            any = true;
        }
        Ok(any)
    }

    /// Returns whether all operations of this end have completed and all of the other end have
    /// arrived.
    pub fn is_done(&self) -> bool {
        self.awaited == 0 && self.pending.is_empty() && self.next.is_none() && self.out.left == 0
    }

    /// Describes the outstanding operations, for the message of a timeout.
    pub fn state(&self) -> String {
        format!(
            "{} requests under way, the oldest {:?}; {} to be posted; {} receives to come",
            self.pending.len(),
            self.pending.front(),
            self.out.left,
            self.awaited
        )
    }

    /// Checks the final contents of the memory, once both ends are done.
    ///
    /// # Errors
    /// Contents that differ from the results of the other end's operations.
    pub fn settle(&mut self) -> CaseResult {
        self.incoming.by_ref().for_each(drop);
        let mut bytes = vec![0; self.limits.region()];
        self.memory.read_at(0, &mut bytes);
        for (slot, (seed, len)) in self.incoming.slots.iter().enumerate() {
            let at = slot * self.limits.slot();
            check(*seed, &bytes[at..at + len])
                .map_err(|why| Stop::Failed(format!("slot {slot} of {len} bytes in the end: {why}")))?;
        }
        check(LIBRARY_SEED, &bytes[self.limits.library_at()..self.limits.counter_at()])
            .map_err(|why| Stop::Failed(format!("the library in the end: {why}")))?;
        let counter = bytes[self.limits.counter_at()..].first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
        if counter == Some(self.incoming.counter) {
            Ok(())
        } else {
            fail(format_args!("the counter is {counter:x?} in the end, not {:x}", self.incoming.counter))
        }
    }

    /// Posts an operation, if there is room for it.
    fn post(&mut self, operation: Operation) -> CaseResult<bool> {
        let rkey = self.peers.rkey;
        let at = |offset: usize| self.peers.addr + offset as u64;
        let counter = at(self.limits.counter_at());
        let op = match operation.act {
            Act::Send { imm: None } => SendOp::Send,
            Act::Send { imm: Some(imm_data) } => SendOp::SendWithImm { imm_data },
            Act::Write { slot, imm } => {
                let remote_addr = at(slot * self.limits.slot());
                match imm {
                    None => SendOp::RdmaWrite { remote_addr, rkey },
                    Some(imm_data) => SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data },
                }
            }
            Act::ReadSlot { slot, .. } => {
                SendOp::RdmaRead { remote_addr: at(slot * self.limits.slot()), rkey }
            }
            Act::ReadLibrary { offset } => {
                SendOp::RdmaRead { remote_addr: at(self.limits.library_at() + offset), rkey }
            }
            Act::CompareSwap { compare, swap, .. } => {
                SendOp::AtomicCmpAndSwp { remote_addr: counter, rkey, compare, swap }
            }
            Act::FetchAdd { add, .. } => SendOp::AtomicFetchAndAdd { remote_addr: counter, rkey, add },
        };
        let mut flags = SendFlags::SIGNALED;
        // A write may pass a read posted before it, unless it is fenced (IBTA 10.8.3.3).
        if let Act::Write { slot, .. } = operation.act
            && self
                .pending
                .iter()
                .any(|other| matches!(other.act, Act::ReadSlot { slot: read, .. } if read == slot))
        {
            if !self.limits.fence {
                return Ok(false);
            }
            flags |= SendFlags::FENCE;
        }
        let posted = if operation.inline {
            self.end.qp.post_send_inline(INLINE_ID, op, flags, &filled(operation.seed, operation.len))
        } else {
            let Some(mut buf) = self.idle.pop() else { return Ok(false) };
            if matches!(operation.act, Act::Send { .. } | Act::Write { .. }) {
                fill(operation.seed, &mut buf[..operation.len]);
            } else {
                buf[..operation.len].fill(0xee);
            }
            self.end.qp.post_send_buf(op, flags, buf, ..operation.len).map(drop).map_err(|error| {
                self.idle.extend(error.returned);
                error.reason
            })
        };
        match posted {
            Ok(()) => {
                self.pending.push_back(operation);
                Ok(true)
            }
            Err(PostBufReason::Post(PostReason::QueueFull)) => Ok(false),
            Err(reason) => fail(format_args!("{operation:?} was refused: {reason}")),
        }
    }

    /// Checks the result of an operation of this end.
    fn done(&mut self, ended: Completed) -> CaseResult {
        let Some(operation) = self.pending.pop_front() else {
            return fail(format_args!("nothing was under way, and yet {:?}", ended.wc));
        };
        if ended.wc.opcode != operation.opcode() || operation.inline != (ended.wc.wr_id == INLINE_ID) {
            return fail(format_args!("{operation:?} was to end, not {:?}", ended.wc));
        }
        if !operation.inline {
            let buf = buf_of(ended)?;
            let bytes = &buf[..operation.len];
            let number = bytes.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
            let seen = match operation.act {
                Act::Send { .. } | Act::Write { .. } => Ok(()),
                Act::ReadSlot { seed, .. } => check(seed, bytes),
                Act::ReadLibrary { offset } => {
                    let library = filled(LIBRARY_SEED, offset + operation.len);
                    if library[offset..] == *bytes {
                        Ok(())
                    } else {
                        Err("that is not in the library".to_owned())
                    }
                }
                Act::CompareSwap { before, .. } | Act::FetchAdd { before, .. } if number == Some(before) => {
                    Ok(())
                }
                Act::CompareSwap { .. } | Act::FetchAdd { .. } => Err(format!("{number:x?} was there")),
            };
            seen.map_err(|why| Stop::Failed(format!("{operation:x?}: {why}")))?;
            self.idle.push(buf);
        }
        self.operations += 1;
        self.bytes += operation.len as u64;
        Ok(())
    }

    /// Checks a received message and posts its memory again.
    fn received(&mut self, ended: Completed) -> CaseResult {
        let Some(operation) = self.incoming.by_ref().find(Operation::takes_receive) else {
            return fail(format_args!("nothing was to come, and yet {:?}", ended.wc));
        };
        let wc = ended.wc;
        let (imm, opcode) = match operation.act {
            Act::Write { imm, .. } => (imm, WcOpcode::RECV_RDMA_WITH_IMM),
            Act::Send { imm } => (imm, WcOpcode::RECV),
            _ => (None, WcOpcode::RECV),
        };
        let seen = wc.wc_flags.contains(WcFlags::WITH_IMM).then_some(wc.imm_data);
        if (wc.opcode, wc.byte_len as usize, seen) != (opcode, operation.len, imm) {
            return fail(format_args!("{operation:?} was to arrive, not {wc:?}"));
        }
        let buf = buf_of(ended)?;
        if opcode == WcOpcode::RECV {
            check(operation.seed, &buf[..operation.len])
                .map_err(|why| Stop::Failed(format!("{operation:?}: {why}")))?;
        }
        self.end.qp.post_recv_buf(buf, ..)?;
        self.awaited -= 1;
        Ok(())
    }
}

/// The number of all inline requests, which hold no memory.
const INLINE_ID: u64 = 1;

/// Beyond the time without progress, with retries, in an emulated guest on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs both directions of a connection between two peers to the end.
///
/// # Errors
/// A failed or wrong operation, or no progress.
pub fn between_peers<P: Provider>(session: &mut Session<P>, role: Role, limits: &Limits) -> CaseResult {
    let mtu = u64::from(session.mtu.0);
    let (ours, theirs) = (
        seed_of(&[mtu, u64::from(role == Role::Requester)]),
        seed_of(&[mtu, u64::from(role != Role::Requester)]),
    );
    let end = session.connect(&Shape::of(QpType::RC))?;
    let scripts = [(ours, session.reads[0]), (theirs, session.reads[1])];
    let region = Flow::<P>::region(limits, session.pd.alloc_buf(limits.region())?);
    let access = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
    let memory = session.expose(region, access)?;
    let peers = session.told_of_memory()?;
    let bufs = (0..2 * limits.depth)
        .map(|_| session.pd.alloc_buf(limits.max_size))
        .collect::<verbs::Result<Vec<_>>>()?;
    let mut flow = Flow::new(end, memory, peers, *limits, scripts, bufs)?;
    session.link.meet("start")?;
    let mut progress = Instant::now();
    while !flow.is_done() {
        if flow.pump()? {
            progress = Instant::now();
        } else if progress.elapsed() > PATIENCE {
            return fail(format_args!("nothing happens any more: {}", flow.state()));
        } else {
            std::thread::yield_now();
        }
    }
    session.link.meet("done")?;
    flow.settle()?;
    session.link.meet("settled")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { operations: 5000, max_size: 3000, depth: 8, fence: true, empty: true };

    #[test]
    fn a_script_is_the_same_each_time_and_another_with_another_seed() {
        let script = |seed| Script::new((seed, true), &LIMITS).collect::<Vec<_>>();
        assert_eq!(script(1), script(1));
        assert_ne!(script(1), script(2));
        assert_eq!(script(1).len(), 5000);
    }

    #[test]
    fn a_script_has_every_operation_and_stays_within_its_memory() {
        let mut seen = [false; 8];
        for operation in Script::new((1, true), &LIMITS) {
            let place = match operation.act {
                Act::Send { imm } => usize::from(imm.is_some()),
                Act::Write { imm, slot } => {
                    assert!(slot < SLOTS);
                    2 + usize::from(imm.is_some())
                }
                Act::ReadSlot { .. } => 4,
                Act::ReadLibrary { offset } => {
                    assert!(offset + operation.len <= LIMITS.slot());
                    5
                }
                Act::CompareSwap { .. } => 6,
                Act::FetchAdd { .. } => 7,
            };
            seen[place] = true;
            assert!(operation.len <= LIMITS.max_size);
        }
        assert_eq!(seen, [true; 8]);
    }

    #[test]
    fn what_a_script_leaves_behind_is_what_its_last_writes_wrote() {
        let mut script = Script::new((3, true), &LIMITS);
        let mut slots = [(0, 0); SLOTS];
        for operation in script.by_ref() {
            if let Act::Write { slot, .. } = operation.act {
                slots[slot] = (operation.seed, operation.len);
            }
        }
        assert_eq!(script.slots, slots);
        assert!(slots.iter().all(|(_, len)| *len > 0));
    }
}
