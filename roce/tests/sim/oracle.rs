//! The model of the possible results, checked at each step.

use roce::engine::{Completion, CqId, Event, Opcode, Service, State, Status};
use roce::sim::Report;
use roce::wire::packet::LINK_MTU;

use crate::traffic::{RECV, SHARED};
use crate::world::{EMPTY, Effect, Expect, Gone, Half, Meter, Recv, Weather, World};
use crate::{Check, ensure};

impl World {
    /// Checks that the read responses to a peer never exceed the window plus the bytes that the
    /// response rate has added since.
    fn check_responses(&mut self) -> Check {
        let now = self.fabric.now().0;
        for from in 0..self.eps.len() {
            let config = *self.fabric.endpoint(self.eps[from].id).engine().config();
            if config.response_rate == 0 {
                continue;
            }
            for to in 0..self.eps.len() {
                let sent = self.fabric.read_responses(self.eps[from].id, self.eps[to].id);
                let meter = &mut self.meters[from * self.eps.len() + to];
                if sent == meter.seen {
                    continue;
                }
                let leaked = u128::from(now - meter.at) * u128::from(config.response_rate);
                let (packets, bytes) = (sent.packets - meter.seen.packets, sent.bytes - meter.seen.bytes);
                let cost = u128::from(bytes + packets * PACKET_COST) * 1000;
                *meter = Meter { seen: sent, level: meter.level.saturating_sub(leaked) + cost, at: now };
                let level = meter.level.div_ceil(1000);
                let most = u128::from(u64::from(config.window_bytes).max(LARGEST));
                let excess = if self.halves.iter().any(|half| half.attr.path.on_link) { EXCESS } else { 0 };
                ensure!(
                    level <= most + u128::from(excess),
                    "{level} bytes of responses are in flight from {from} to {to}"
                );
                if level + u128::from(LARGEST) > most && u64::from(config.window_bytes) > LARGEST {
                    self.count("windows of responses used up");
                }
            }
        }
        Ok(())
    }

    /// Checks all new reports from the engines against the model.
    pub(crate) fn listen(&mut self) -> Check {
        self.check_responses()?;
        for ep in 0..self.eps.len() {
            let id = self.eps[ep].id;
            while let Some(report) = self.fabric.next_report(id) {
                if let Report::Complete(cq, _) = report {
                    ensure!(self.fabric.poll(id, cq).is_some(), "a completion was reported and is missing");
                }
                if self.weather != Weather::Damage {
                    self.hear(ep, report)?;
                }
            }
        }
        Ok(())
    }

    fn hear(&mut self, ep: usize, report: Report) -> Check {
        let of = |world: &Self, qpn| {
            world
                .by_qpn
                .get(&(world.eps[ep].id, qpn))
                .copied()
                .ok_or(format!("{report:?}: no such queue pair"))
        };
        match report {
            Report::Complete(cq, wc) => {
                let half = of(self, wc.qpn)?;
                ensure!(
                    !matches!(self.halves[half].gone, Some(Gone::Destroyed | Gone::Reset)),
                    "half {half} is gone, and completes {wc:?}"
                );
                self.count(&format!("{:?} {:?}", wc.opcode, wc.status));
                if wc.wr_id & RECV == 0 {
                    self.send_ended(half, cq, &wc).map_err(|what| format!("half {half}: {wc:?}: {what}"))
                } else {
                    self.recv_ended(half, cq, &wc).map_err(|what| format!("half {half}: {wc:?}: {what}"))
                }
            }
            Report::RetireSend(qpn, count) => {
                let half = of(self, qpn)?;
                let Half { retired_sends, sends, .. } = &mut self.halves[half];
                *retired_sends += count as usize;
                ensure!(*retired_sends <= sends.len(), "half {half}: more sends retired than posted");
                Ok(())
            }
            Report::RetireRecv(qpn, count) => {
                let half = of(self, qpn)?;
                let Half { retired_recvs, recvs, .. } = &mut self.halves[half];
                *retired_recvs += count as usize;
                ensure!(*retired_recvs <= recvs.len(), "half {half}: more receives retired than posted");
                Ok(())
            }
            Report::RetireSrq(srq, count) => {
                let found = self.srqs.iter_mut().find(|shared| shared.ep == ep && shared.id == srq);
                let shared = found.ok_or("an unknown shared queue retires receives")?;
                shared.retired += count as usize;
                ensure!(shared.retired <= shared.recvs.len(), "{srq:?}: more receives retired than posted");
                Ok(())
            }
            Report::Event(event) => {
                if matches!(event, Event::SqDrained(_)) {
                    self.count("queue pairs drained");
                }
                ensure!(!matches!(event, Event::CqError(_)), "{event:?}, and the queue has no limit");
                Ok(())
            }
        }
    }

    /// Returns whether a queue pair may be in the error state: a receive is invalid, the peer sent
    /// an invalid request, or the program moved the queue pair there.
    pub(crate) fn may_be_failed(&self, half: usize) -> bool {
        let half = &self.halves[half];
        half.gone == Some(Gone::Error) || half.bad_recv || self.halves[half.peer].offended
    }

    /// Returns whether a queue pair may run out of retries, because too many packets are lost or
    /// the peer does not respond.
    fn may_give_up(&self, half: usize) -> bool {
        let peer = self.halves[half].peer;
        let responds = matches!(self.state(peer), Some(State::Rtr | State::Rts | State::Sqd | State::Sqe));
        let lossy = match self.weather {
            Weather::Clear => false,
            Weather::Light => self.halves[half].attr.retry_cnt < 7,
            Weather::Heavy | Weather::Partitions | Weather::Damage => true,
        };
        lossy || !responds
    }

    // Sends.

    fn send_ended(&mut self, half: usize, cq: CqId, wc: &Completion) -> Check {
        let index = (wc.wr_id & 0xffff_ffff) as usize;
        ensure!((wc.wr_id >> 32) as usize == half, "it is another queue pair's");
        let sender = &self.halves[half];
        ensure!(cq == sender.send_cq, "it completes on {cq:?}");
        ensure!(index < sender.sends.len(), "it was not posted");
        ensure!(index >= sender.ended, "it has ended before: {} have", sender.ended);
        ensure!(sender.retired_sends > index, "it is not retired: {} are", sender.retired_sends);
        for skipped in sender.ended..index {
            let sender = &self.halves[half];
            ensure!(sender.failed_at.is_none(), "send {skipped} is flushed and does not complete");
            ensure!(!sender.sends[skipped].signaled, "send {skipped} is signalled and does not complete");
            self.succeeded(half, skipped).map_err(|what| format!("send {skipped} before it: {what}"))?;
        }
        self.halves[half].ended = index + 1;
        let sender = &self.halves[half];
        let send = &sender.sends[index];
        if wc.status == Status::Success {
            ensure!(sender.failed_at.is_none(), "one before it has failed");
            ensure!(send.signaled, "it is not signalled");
            ensure!(wc.opcode == opcode(&send.what), "another opcode");
            let received = matches!(send.what, Effect::Read { .. });
            ensure!(!received || wc.byte_len as usize == send.len, "it is {} bytes long", send.len);
            return self.succeeded(half, index);
        }
        let reliable = sender.service == Service::Rc;
        let takes_receive = send.message.is_some();
        let peer = &self.halves[sender.peer];
        let allowed = match wc.status {
            Status::Flushed => sender.failed_at.is_some() || sender.failed || self.may_be_failed(half),
            _ if sender.failed_at.is_some() => false,
            Status::RetryExceeded => reliable && self.may_give_up(half),
            Status::RnrRetryExceeded => reliable && takes_receive && sender.attr.rnr_retry < 7,
            // The receive is too short or its memory is not writable.
            Status::RemoteInvalidRequest | Status::RemoteOperation if takes_receive && peer.bad_recv => true,
            status => send.mistake.contains(&status),
        };
        ensure!(allowed, "the model does not allow that; mistake {:?}", mistake(&send.what));
        let sender = &mut self.halves[half];
        sender.failed_at.get_or_insert(index);
        sender.failed = true;
        Ok(())
    }

    /// Checks the conditions that a successful send must meet.
    pub(crate) fn succeeded(&mut self, half: usize, index: usize) -> Check {
        let sender = &self.halves[half];
        let send = &sender.sends[index];
        let fails_the_receive = send.mistake.contains(&Status::Success);
        ensure!(send.mistake.is_empty() || fails_the_receive, "it must fail: {:?}", mistake(&send.what));
        let (id, delivered) = (self.eps[sender.ep].id, self.halves[sender.peer].delivered);
        if let (Service::Rc, Some(message)) = (sender.service, send.message) {
            // All earlier messages have arrived; so has this message, unless it fails its receive.
            let expected = if fails_the_receive { message } else { message + 1 };
            ensure!(delivered >= expected, "it is message {message}, and {delivered} have arrived");
        }
        match &send.what {
            Effect::Read { into, pieces, expect } => {
                let found: Vec<u8> = {
                    let bytes = self.fabric.bytes(id, into);
                    pieces.iter().flat_map(|piece| bytes[piece.clone()].iter().copied()).collect()
                };
                match expect {
                    Expect::Bytes(bytes) => ensure!(found == *bytes, "it read something else"),
                    Expect::Area { offset, bytes } => {
                        let later = sender.sends[index + 1..].iter().take_while(|send| !send.fence);
                        let later: Vec<_> = later.filter_map(|send| written(&send.what)).collect();
                        for (n, (found, before)) in found.iter().zip(bytes).enumerate() {
                            let at = offset + n;
                            let covers = |(start, bytes): &(usize, &[u8])| {
                                at.checked_sub(*start).and_then(|at| bytes.get(at)) == Some(found)
                            };
                            let known = found == before || later.iter().any(covers);
                            ensure!(
                                known,
                                "it read {found} at {at}, which is {before}, and no write explains it"
                            );
                        }
                    }
                }
            }
            Effect::CompareSwap { into, found, .. } | Effect::FetchAdd { into, found, .. } => {
                let returned = word(self.fabric.bytes(id, into));
                ensure!(returned == *found, "it returned {returned:#x}, and the word was {found:#x}");
            }
            Effect::Count { into } => {
                let returned = word(self.fabric.bytes(id, into));
                let at = self.halves[sender.peer].ep;
                ensure!(
                    !self.eps[at].counted.contains(&returned),
                    "two atomics returned {returned} from the counter"
                );
                self.eps[at].counted.push(returned);
                self.eps[at].uncounted -= 1;
            }
            _ => {}
        }
        Ok(())
    }

    // Receives.

    fn recv_ended(&mut self, half: usize, cq: CqId, wc: &Completion) -> Check {
        let (index, of) = ((wc.wr_id & 0xffff_ffff) as usize, (wc.wr_id >> 32 & 0xfff) as usize);
        let receiver = &mut self.halves[half];
        ensure!(cq == receiver.recv_cq, "it completes on {cq:?}");
        let recv = if wc.wr_id & SHARED != 0 {
            ensure!(receiver.srq == Some(of), "it is another shared queue's");
            let srq = &mut self.srqs[of];
            srq.completed += 1;
            srq.recvs.get_mut(index)
        } else {
            ensure!(of == half, "it is another queue pair's");
            ensure!(index == receiver.ended_recvs, "it is not receive {}'s turn", receiver.ended_recvs);
            ensure!(receiver.retired_recvs > index, "it is not retired");
            receiver.ended_recvs += 1;
            receiver.recvs.get_mut(index)
        };
        let recv = recv.ok_or("it was not posted")?;
        ensure!(!std::mem::replace(&mut recv.ended, true), "it has ended before");
        if wc.status == Status::Success {
            return self.arrived(half, wc);
        }
        let Recv { capacity, forbidden, .. } = *recv;
        let receiver = &self.halves[half];
        let peer = &self.halves[receiver.peer];
        let next = peer.messages.get(receiver.delivered);
        let allowed = match wc.status {
            Status::Flushed => receiver.failed || self.may_be_failed(half),
            Status::LocalLength => {
                next.is_some_and(|message| !message.write && message.bytes.len() > capacity)
            }
            Status::LocalProtection => forbidden,
            // The message that took the receive cannot be completed.
            Status::RemoteAccess | Status::RemoteInvalidRequest => peer.offended,
            _ => false,
        };
        ensure!(allowed, "the model does not allow that");
        self.halves[half].failed = true;
        Ok(())
    }

    /// Checks the conditions that a received message must meet.
    fn arrived(&mut self, half: usize, wc: &Completion) -> Check {
        let receiver = &self.halves[half];
        let (id, peer) = (self.eps[receiver.ep].id, &self.halves[receiver.peer]);
        let ordered = self.weather == Weather::Clear;
        let (number, name) = match receiver.service {
            Service::Rc => (receiver.delivered, "rc messages delivered"),
            Service::Uc => (wc.imm.unwrap_or(u32::MAX) as usize, "uc messages delivered"),
            _ => (wc.imm.unwrap_or(u32::MAX) as usize, "ud messages delivered"),
        };
        let message = peer.messages.get(number).ok_or(format!("message {number} was not sent"))?;
        ensure!(!message.unwanted, "message {number} must not arrive");
        if receiver.service != Service::Rc && ordered {
            let last = receiver.arrived.last();
            ensure!(last.is_none_or(|last| *last < number), "{last:?} has arrived before {number}");
        }
        let opcode = if message.write { Opcode::RecvWriteImm } else { Opcode::Recv };
        ensure!(wc.opcode == opcode, "message {number} is {opcode:?}");
        ensure!(wc.imm == message.imm, "message {number} has immediate data {:?}", message.imm);
        ensure!(
            wc.invalidated == message.invalidates,
            "message {number} invalidates {:?}",
            message.invalidates
        );
        let header = if receiver.service == Service::Ud { 40 } else { 0 };
        let len = header + message.bytes.len();
        ensure!(wc.byte_len as usize == len, "message {number} is {len} bytes long");
        ensure!(wc.grh == (header > 0), "a GRH, or none");
        ensure!(header == 0 || wc.src_qpn == peer.qpn.0, "it is from {:#x}", peer.qpn.0);

        let (index, of) = ((wc.wr_id & 0xffff_ffff) as usize, (wc.wr_id >> 32 & 0xfff) as usize);
        let recv = if wc.wr_id & SHARED != 0 {
            &self.srqs[of].recvs[index]
        } else {
            &self.halves[half].recvs[index]
        };
        let bytes = self.fabric.bytes(id, &recv.region).to_vec();
        let mut found = recv.pieces.iter().flat_map(|piece| bytes[piece.clone()].iter().copied());
        if !message.write {
            let payload: Vec<u8> = found.by_ref().take(len).skip(header).collect();
            ensure!(payload == message.bytes, "message {number} holds other bytes");
        }
        // Without retransmission, a message whose end was lost may already have been written to
        // this receive.
        let untouched = found.all(|byte| byte == EMPTY) || receiver.service != Service::Rc;
        ensure!(untouched, "message {number} wrote behind its end");
        let between = recv.pieces.windows(2).flat_map(|pair| bytes[pair[0].end..pair[1].start].iter());
        ensure!(between.copied().all(|byte| byte == EMPTY), "message {number} wrote between its pieces");

        let recv = if wc.wr_id & SHARED != 0 {
            &mut self.srqs[of].recvs[index]
        } else {
            &mut self.halves[half].recvs[index]
        };
        recv.holds = Some(bytes);
        self.halves[half].delivered += 1;
        self.halves[half].arrived.push(number);
        self.count(name);
        Ok(())
    }
}

/// The cost of each response packet in addition to its bytes, followed by the cost of the largest
/// packet.
const PACKET_COST: u64 = 768;
const LARGEST: u64 = 4096 + 64 + PACKET_COST;

/// The maximum number of bytes by which the longest packet exceeds the largest path MTU.
const EXCESS: u64 = LINK_MTU as u64 - 4096;

pub(crate) fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// Returns the offset and the bytes that a send writes; `None` if it is not a write.
pub(crate) fn written(what: &Effect) -> Option<(usize, &[u8])> {
    match what {
        Effect::Write { offset, bytes } => Some((*offset, bytes)),
        _ => None,
    }
}

fn mistake(what: &Effect) -> Option<&'static str> {
    match what {
        Effect::Nothing(why) => Some(why),
        _ => None,
    }
}

fn opcode(what: &Effect) -> Opcode {
    match what {
        Effect::Message | Effect::Nothing(_) => Opcode::Send,
        Effect::Write { .. } => Opcode::Write,
        Effect::Read { .. } => Opcode::Read,
        Effect::CompareSwap { .. } => Opcode::CompareSwap,
        Effect::FetchAdd { .. } | Effect::Count { .. } => Opcode::FetchAdd,
        Effect::Bind => Opcode::Bind,
        Effect::LocalInvalidate => Opcode::LocalInvalidate,
    }
}
