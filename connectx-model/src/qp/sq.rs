//! Fetches work requests from send queues in order and passes them to the engine.
//!
//! ```text
//!        done              fetched              rung
//!   ──────┼───────────────────┼───────────────────┼──────
//!   ended │ in the engine, or │ waiting for       │ not announced
//!         │ one waiting       │ earlier ones      │
//! ```
//! Positions are 16-bit counters of basic blocks (64 bytes). A queue has at most 2^15 blocks, half
//! of the counter's range.
//!
//! Invariant: a work request is copied at the doorbell, and checked exactly once, before use.

use std::sync::Arc;

use roce::engine::{
    Network, Opcode, Payload, PostRefused, Qpn, SendFlags, SendOp, SendWr, State, Status, UdDestination,
};

use crate::bus::{Bus, BusFault};
use crate::complaint::Rule;
use crate::destination::Destination;
use crate::function::{Core, Function};
use crate::layout::cqe::cqe;
use crate::layout::wqe::ctrl;
use crate::qp::completion::wr_id;
use crate::qp::request::{Bytes, Ctrl, Mistake, Work, opcode};
use crate::qp::rq::UNREADABLE;
use crate::qp::{udav, wqe};
use crate::state::qp::{BASIC_BLOCK, HeldSend, Service, Waiting};
use crate::state::uar::Announced;
use crate::state::work::Local;
use crate::trace::format::{self, Queue};

impl<B: Bus> Function<B> {
    /// Handles a doorbell for a send queue. `doorbell` contains the first 8 bytes of the last
    /// posted work request. If that request was stored through BlueFlame, `blue_flame` contains all
    /// of it and replaces the copy in the queue.
    ///
    /// If the doorbell was held back, `head` is the doorbell record's value at the time of the
    /// doorbell.
    ///
    /// Returns the announced work requests, or `None` if the doorbell was rejected. Also handles
    /// doorbells for Ethernet send queues.
    pub(crate) fn ring_sq(
        &mut self,
        uar: u32,
        doorbell: [u8; 8],
        blue_flame: Option<&[u8]>,
        head: Option<u16>,
    ) -> Option<Announced> {
        if let Some(several) = self.ring_eth(uar, doorbell, blue_flame) {
            return Some(Announced { last: Vec::new(), several });
        }
        let (qpn, ds) = (ctrl::QPN.get32(&doorbell), ctrl::DS.get32(&doorbell) as usize);
        let index = ctrl::WQE_INDEX.get(&doorbell) as u16;
        let Some(qp) = self.core.qps.get(&qpn) else {
            self.core.log.complain(Rule::DoorbellObject, format!("queue pair {qpn:#x}"));
            return None;
        };
        let Some(shape) = qp.sq else {
            self.core.log.complain(Rule::DoorbellObject, format!("queue pair {qpn:#x} has no send queue"));
            return None;
        };
        if qp.uar != uar {
            let what = format!("queue pair {qpn:#x} of UAR {:#x} in UAR {uar:#x}", qp.uar);
            self.core.log.complain(Rule::DoorbellUar, what);
            return None;
        }
        let (rung, done) = (qp.run.send.rung, qp.run.send.done);
        let head = head.or_else(|| self.send_head(qpn))?;
        self.core.log.trace.line(|| format::record(Queue::Send, qpn, head.into()));
        if matches!(self.state(qpn), State::Reset | State::Init | State::Rtr) {
            self.core.log.complain(Rule::WqeState, format!("queue pair {qpn:#x} is {:?}", self.state(qpn)));
            return None;
        }
        let end = index.wrapping_add(ds.div_ceil(4) as u16);
        let (told, meant) = (head.wrapping_sub(rung), end.wrapping_sub(rung));
        if told == 0 && meant == 0 {
            self.core
                .log
                .complain(Rule::DoorbellStale, format!("queue pair {qpn:#x} was already rung up to {rung}"));
            return None;
        }
        if u32::from(head.wrapping_sub(done)) > 1 << shape.log_size {
            let what =
                format!("queue pair {qpn:#x}: head {head}, tail {done}, {} blocks", 1 << shape.log_size);
            self.core.log.complain(Rule::WqeOverrun, what);
            self.collapse(qpn);
            return None;
        }
        // The doorbell and the record disagree. The model cannot know which one is right, and
        // ignores the doorbell.
        if told != meant {
            let late = told < meant && meant <= 1 << shape.log_size;
            let rule = if late { Rule::DoorbellRecordFirst } else { Rule::DoorbellOrder };
            let what = format!("queue pair {qpn:#x}: the doorbell ends at {end}, the record has {head}");
            self.core.log.complain(rule, what);
            return None;
        }
        // A device may use any of these bytes from the doorbell, or all of them from the queue.
        let mut begin = [0; 8];
        let qp = self.core.qps.get(&qpn)?;
        if shape.read(&qp.pages, &self.core.bus, index, &mut begin).is_ok() && begin != doorbell {
            let what = format!(
                "queue pair {qpn:#x} at {index}: doorbell {doorbell:02x?}, the work request begins with {begin:02x?}"
            );
            self.core.log.complain(Rule::DoorbellOrder, what);
            return None;
        }
        let send = &mut self.core.qps.get_mut(&qpn)?.run.send;
        send.rung = head;
        if !send.broken {
            self.core.announce(qpn, rung, head);
        }
        let last = self.core.qps.get(&qpn)?.run.send.posted.get(index).map(<[u8]>::to_vec);
        let several = usize::from(told) != ds.div_ceil(4);
        self.advance(qpn, blue_flame.map(|bytes| (index, bytes)));
        self.settle();
        Some(Announced { last: last.unwrap_or_default(), several })
    }

    /// Returns the head of a send queue, as stored in the doorbell record.
    pub(crate) fn send_head(&mut self, qpn: u32) -> Option<u16> {
        let record = self.core.qps.get(&qpn)?.doorbell_record?;
        self.core.posted(record.checked_add(4)?)
    }

    /// Fetches and executes as many announced work requests as possible.
    fn advance(&mut self, qpn: u32, blue_flame: Option<(u16, &[u8])>) {
        // Each iteration fetches at least one block, and at most 2^16 blocks are announced.
        loop {
            self.run_waiting(qpn);
            let Some(qp) = self.core.qps.get(&qpn) else { break };
            let send = &qp.run.send;
            if send.waiting.is_some() || send.broken || send.fetched == send.rung {
                break;
            }
            let at = send.fetched;
            let instead = blue_flame.filter(|(index, _)| *index == at).map(|(_, bytes)| bytes);
            self.fetch(qpn, instead);
        }
    }

    /// Resumes the send queues that were waiting for earlier work requests to end.
    pub(crate) fn settle(&mut self) {
        self.send_own();
        while let Some(qpn) = self.core.attention.runnable.pop_first() {
            self.advance(qpn, None);
        }
    }

    /// Continues or flushes waiting work requests after a command has changed the queue pair's
    /// state.
    pub(crate) fn state_changed(&mut self, qpn: u32) {
        self.core.attention.runnable.insert(qpn);
        if self.state(qpn) == State::Err {
            self.core.watch(qpn);
        }
        self.settle();
        self.look();
    }

    /// Returns the state of a queue pair; RESET if it does not exist.
    pub(crate) fn state(&self, qpn: u32) -> State {
        self.engine.query_qp(Qpn(qpn)).map_or(State::Reset, |(state, _)| state)
    }

    /// Fetches the next work request and passes it on. If given, `instead` is used in place of the
    /// request in the queue.
    fn fetch(&mut self, qpn: u32, instead: Option<&[u8]>) {
        let Some(qp) = self.core.qps.get(&qpn) else { return };
        let (service, signature, at) = (qp.service, qp.signature, qp.run.send.fetched);
        let left = qp.run.send.rung.wrapping_sub(at);
        let announced = if instead.is_none() { qp.run.send.posted.get(at) } else { None };
        let bytes =
            announced.map_or_else(|| self.core.wqe(qpn, at, left, instead), |bytes| Ok(bytes.to_vec()));
        let Ok(bytes) = bytes else {
            self.core.log.complain(Rule::DmaFault, format!("the send queue of queue pair {qpn:#x}"));
            self.collapse(qpn);
            return;
        };
        let (index, opcode) = (ctrl::WQE_INDEX.get(&bytes) as u16, ctrl::OPCODE.get(&bytes) as u8);
        let ds = ctrl::DS.get32(&bytes) as usize;
        let address = match service {
            Service::Ud | Service::Qp1 => format::Address::Datagram,
            Service::XrcInitiator => format::Address::Xrc,
            _ => format::Address::None,
        };
        self.core.log.trace.line(|| format::wqe(qpn, address, &bytes));
        if ds == 0 || ds * 16 > bytes.len() {
            let what = format!("queue pair {qpn:#x} at {at}: {ds} units in {left} announced blocks");
            self.core.log.complain(Rule::WqeSize, what);
            // The position of the next work request is unknown, so this request takes all announced
            // blocks.
            self.hand_over(
                qpn,
                wr_id(at, opcode),
                left,
                true,
                Work::Local(Local::Fail(Status::LocalQpOperation)),
            );
            return;
        }
        let blocks = ds.div_ceil(4) as u16;
        let number = wr_id(at, opcode);
        let Some(qp) = self.core.qps.get_mut(&qpn) else { return };
        let lacks_fence = qp.run.send.lacks_fence(&bytes);
        let flushes = matches!(self.state(qpn), State::Err | State::Sqe);
        if let Some(fault) = if flushes { None } else { self.core.faults.send(qpn) } {
            let local = Local::Forced { syndrome: fault.syndrome, vendor: fault.vendor };
            self.hand_over(qpn, number, blocks, true, Work::Local(local));
            return;
        }
        let mistake = if index != at {
            Some(Mistake::new(Rule::WqeIndex, format!("it carries {index}")))
        } else if ctrl::QPN.get32(&bytes) != qpn {
            Some(Mistake::new(Rule::WqeQpn, format!("it carries {:#x}", ctrl::QPN.get32(&bytes))))
        } else {
            None
        };
        let parsed = match mistake {
            Some(mistake) => Err(mistake),
            None if flushes => {
                // In the error state, even an invalid request is only flushed.
                self.hand_over(qpn, number, blocks, true, Work::Local(Local::Fail(Status::Flushed)));
                return;
            }
            None => Ctrl::parse(&bytes).and_then(|ctrl| {
                if signature && !wqe::signature_is_right(&bytes) {
                    return Err(Mistake::new(Rule::WqeSignature, "the checksum is wrong"));
                }
                if !signature && ctrl::SIGNATURE.is_set(&bytes) {
                    return Err(Mistake::new(Rule::WqeSignature, "the queue pair asked for none"));
                }
                if ctrl.opcode == opcode::TAG_MATCHING && self.core.tag_queue(qpn).is_none() {
                    return Err(Mistake::new(Rule::WqeTagMatching, "the queue pair has no matching list"));
                }
                let work = wqe::decode(service, &self.core.port, &ctrl, &bytes)?;
                Ok((ctrl.signaled, self.of_window(&ctrl, work)?))
            }),
        };
        if let Ok((_, Work::Send { op: SendOp::Datagram { to, .. }, .. })) = &parsed
            && to.path.network == Network::Udp
        {
            let mac = udav::mac(bytes.get(ctrl::SIZE..).unwrap_or_default());
            self.core.destinations.add(Destination { gid: to.path.remote, mac, qpn });
        }
        if lacks_fence && parsed.is_ok() {
            let what = format!("queue pair {qpn:#x} at {at}: fence mode {}", ctrl::FM.get(&bytes));
            self.core.log.complain(Rule::UmrFence, what);
        }
        let (signaled, work) = parsed.unwrap_or_else(|mistake| {
            if let Some((rule, what)) = mistake.complaint {
                self.core.log.complain(rule, format!("queue pair {qpn:#x} at {at}: {what}"));
            }
            (true, Work::Local(Local::Fail(mistake.status)))
        });
        self.hand_over(qpn, number, blocks, signaled, work);
    }

    /// Passes a work request to the engine. A request that the engine cannot execute becomes the
    /// queue's waiting request.
    fn hand_over(&mut self, qpn: u32, number: u64, blocks: u16, signaled: bool, work: Work) {
        let Some(qp) = self.core.qps.get_mut(&qpn) else { return };
        qp.run.send.fetched = qp.run.send.fetched.wrapping_add(blocks);
        let local = match work {
            Work::Send { op, flags, mut bytes, remote_srq } => {
                let inlined = self.inline_element(&mut bytes);
                let wr = SendWr { wr_id: number, op, flags, payload: bytes.payload(), remote_srq };
                match self.post(qpn, HeldSend { blocks, _inlined: inlined }, &wr) {
                    Ok(()) => return,
                    Err(PostRefused::MessageTooLong) => Local::Fail(Status::LocalLength),
                    Err(_) => Local::Fail(Status::LocalQpOperation),
                }
            }
            Work::Local(local) => local,
        };
        if let Some(qp) = self.core.qps.get_mut(&qpn) {
            qp.run.send.waiting = Some(Waiting { wr_id: number, blocks, signaled, local });
        }
    }

    /// Converts inline bytes in front of elements to a new first element. Returns these bytes,
    /// which must live as long as the element is in use.
    fn inline_element(&mut self, bytes: &mut Bytes) -> Option<Arc<[u8]>> {
        let Bytes::Elements { before, sges } = bytes else { return None };
        if before.is_empty() {
            return None;
        }
        let inlined = Arc::<[u8]>::from(std::mem::take(before));
        // If no key is available, the element is unreadable, so the send fails.
        sges.insert(0, self.inlined(&inlined).unwrap_or(UNREADABLE));
        Some(inlined)
    }

    pub(super) fn post(&mut self, qpn: u32, held: HeldSend, wr: &SendWr<'_>) -> Result<(), PostRefused> {
        // If the queue pair is in the error state, the request ends within the engine call below.
        if let Some(qp) = self.core.qps.get_mut(&qpn) {
            qp.run.send.held.push_back(held);
        }
        let now = self.core.now;
        self.engine.post_send(Qpn(qpn), wr, now, &mut self.core).inspect_err(|_| {
            if let Some(qp) = self.core.qps.get_mut(&qpn) {
                qp.run.send.held.pop_back();
            }
        })
    }

    /// Executes the waiting work request once all earlier ones have ended.
    fn run_waiting(&mut self, qpn: u32) {
        let state = self.state(qpn);
        let Some(qp) = self.core.qps.get_mut(&qpn) else { return };
        let send = &mut qp.run.send;
        // IBTA 10.3.1.5: no work request starts while the send queue drains.
        if !send.held.is_empty() || state == State::Sqd {
            return;
        }
        let Some(Waiting { wr_id, blocks, signaled, local }) = send.waiting.take() else { return };
        let flushes = matches!(state, State::Err | State::Sqe);
        let ended = match local {
            _ if flushes => Err(Status::Flushed),
            Local::Nop => Ok(()),
            Local::Umr(umr) => self.change_key(qpn, &umr),
            Local::List(change) => match self.core.change_list(qpn, &change) {
                Ok(completion) => return self.end_list_change(qpn, wr_id, blocks, completion),
                Err(status) => Err(status),
            },
            Local::Fail(status) => Err(status),
            Local::Forced { syndrome, vendor } => {
                if let Some(qp) = self.core.qps.get_mut(&qpn) {
                    qp.run.send.forced = Some((syndrome, vendor));
                }
                // Only the engine's error state may cause flushes.
                Err(match super::completion::status(syndrome) {
                    Status::Flushed => Status::General,
                    status => status,
                })
            }
        };
        match ended {
            Ok(()) => self.end(qpn, wr_id, blocks, signaled),
            Err(status) => self.fail(qpn, wr_id, blocks, status),
        }
    }

    /// Completes a work request that the model itself has executed successfully.
    fn end(&mut self, qpn: u32, wr_id: u64, blocks: u16, signaled: bool) {
        let Some(qp) = self.core.qps.get_mut(&qpn) else { return };
        qp.run.send.done = qp.run.send.done.wrapping_add(blocks);
        let done = qp.run.send.done;
        self.core.compare_sends(qpn, done);
        if signaled && self.core.send_completion(qpn, wr_id, Opcode::Send, 0).is_err() {
            self.core.cq_error(self.core.qps.get(&qpn).map_or(0, |qp| qp.send_cqn));
            self.collapse(qpn);
        }
    }

    /// Completes a list operation on a tag matching queue. The completion entry, if any, goes to
    /// that queue's completion queue.
    fn end_list_change(&mut self, qpn: u32, wr_id: u64, blocks: u16, completion: Option<(u32, [u8; 64])>) {
        self.end(qpn, wr_id, blocks, false);
        let Some((cqn, mut entry)) = completion else { return };
        cqe::WQE_COUNTER.set(&mut entry, (wr_id & 0xffff) as u32);
        if self.core.write_cqe(cqn, &mut entry, &[], false).is_err() {
            self.core.cq_error(cqn);
            self.collapse(qpn);
        }
    }

    /// Completes a work request with an error, which also fails its queue pair. The engine gets a
    /// substitute send for this purpose and fails it.
    fn fail(&mut self, qpn: u32, wr_id: u64, blocks: u16, status: Status) {
        let op = match self.core.qps.get(&qpn).map(|qp| qp.service) {
            Some(Service::Ud | Service::Qp0 | Service::Qp1) => {
                let to = UdDestination { path: Default::default(), qpn: 0, qkey: 0 };
                SendOp::Datagram { to, imm: None }
            }
            _ => SendOp::Send { imm: None },
        };
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let wr = SendWr { wr_id, op, flags, payload: Payload::Inline(&[]), remote_srq: 0 };
        if self.post(qpn, HeldSend { blocks, _inlined: None }, &wr).is_ok() && status != Status::Flushed {
            let now = self.core.now;
            self.engine.fail_oldest_send(Qpn(qpn), status, 0, now, &mut self.core);
        }
    }

    /// Puts a queue pair with an inconsistent ring in the error state and sends a fatal queue pair
    /// event.
    pub(crate) fn collapse(&mut self, qpn: u32) {
        let Some(qp) = self.core.qps.get_mut(&qpn) else { return };
        qp.run.send.broken = true;
        qp.run.recv.broken = true;
        if let Some(waiting) = qp.run.send.waiting.take() {
            qp.run.send.done = qp.run.send.done.wrapping_add(waiting.blocks);
        }
        qp.forget_posted();
        let change = roce::engine::AttrChange { state: Some(State::Err), ..Default::default() };
        let now = self.core.now;
        let _ = self.engine.modify_qp(Qpn(qpn), &change, now, &mut self.core);
        roce::engine::Sink::event(&mut self.core, roce::engine::Event::QpFatal(Qpn(qpn)));
    }
}

impl<B: Bus> Core<B> {
    /// Reads the work request at position `at`, which has at most `left` blocks and may wrap around
    /// the end of the queue. If given, `instead` is the copy of the request that was stored through
    /// BlueFlame.
    pub(super) fn wqe(
        &self,
        qpn: u32,
        at: u16,
        left: u16,
        instead: Option<&[u8]>,
    ) -> Result<Vec<u8>, BusFault> {
        const BLOCK: usize = BASIC_BLOCK as usize;
        let nothing = BusFault { address: 0, len: 0 };
        let qp = self.qps.get(&qpn).ok_or(nothing)?;
        let shape = qp.sq.ok_or(nothing)?;
        let mut bytes = vec![0; BLOCK];
        match instead.and_then(|instead| instead.get(..BLOCK)) {
            Some(first) => bytes.copy_from_slice(first),
            None => shape.read(&qp.pages, &self.bus, at, &mut bytes)?,
        }
        let ds = ctrl::DS.get32(&bytes) as usize;
        let blocks = ds.div_ceil(4).min(left.into()).max(1);
        bytes.resize(blocks * BLOCK, 0);
        if let Some(rest) = bytes.get_mut(BLOCK..) {
            match instead.and_then(|instead| instead.get(BLOCK..blocks * BLOCK)) {
                Some(stored) => rest.copy_from_slice(stored),
                None => shape.read(&qp.pages, &self.bus, at.wrapping_add(1), rest)?,
            }
        }
        if ds > 0 && ds * 16 <= bytes.len() {
            bytes.truncate(ds * 16);
        }
        Ok(bytes)
    }

    /// Schedules checks for new receives on a queue pair in the error state. New receives must be
    /// flushed, but have no doorbell.
    pub(super) fn watch(&mut self, qpn: u32) {
        if self.attention.flushing.insert(qpn) {
            self.attention.pause = super::rq::SHORTEST_PAUSE;
            self.attention.next_look = Some(self.now + super::rq::SHORTEST_PAUSE);
        }
    }
}
