//! [`Engine::poll_transmit`]: the order of outgoing packets.
//!
//! | class | packets | bounded by |
//! |---|---|---|
//! | requests | work requests, MADs | [`Config::burst`] consecutive packets from a queue pair |
//! | NAKs | negative acknowledgements | one per queue pair |
//! | ACKs | plain acknowledgements | one per queue pair; [`Urgency::Now`]: if responses wait |
//! | responses | read responses, atomic results | a quantum of a queue pair, a window of a peer |
//!
//! The classes are sent in this order, so packets caused by a peer leave after packets posted by
//! this side's programs. A class sends at most [`SHARE`] packets before the classes below it may
//! send. After a quantum of responses, all classes get a full share again, so no class starves
//! another.
//!
//! # The longest wait
//! Assume that a hostile peer sends as many requests as it can, of any kind, on all its queue
//! pairs. The table states the maximum that leaves the engine before an innocent peer's packet.
//! "Queue" means the earlier packets of the same class. A *round* is at most `SHARE` packets of
//! each of the other classes and a quantum of responses
//! ([`response_queue`](super::response_queue)):
//!
//! | an innocent peer's | leaves after at most |
//! |---|---|
//! | posted request | its queue, a burst of each queue pair; a round for each `SHARE` of them |
//! | NAK | its queue, one of each queue pair; a round for each `SHARE`, and one more |
//! | acknowledgement | its queue, one of each queue pair; a round for each `SHARE`, and one more |
//! | read response | a round for each other *peer* with responses; `SHARE` of each other class |
//!
//! A quantum is at most 64 packets and less than 65,732 bytes. The requests in the first row come
//! from this device: no received packet makes a queue pair send more requests than its programs
//! have posted. On a device without other requests, a request therefore leaves at once, behind only
//! the packets that the caller has already fetched. The queue pairs of one peer are also served in
//! rotation, but share the queue position and the credit of their remote address. They are not
//! protected from each other. Responses to a peer without credit also wait for new credit.
//!
//! [`Config::burst`]: super::Config::burst

use super::Engine;
use super::memory::{Memory, Sink, Space, Written};
use super::objects::Objects;
use super::qp::ResponseClass;
use super::scheduler::SHARE;
use super::types::{GSI_QPN, Path, Time, Transmit, Urgency};
use super::{requester, responder};

/// A [`Space`] that stores the path of the last packet.
struct LastPath<'a, S: ?Sized> {
    space: &'a mut S,
    path: Path,
}

impl<S: Space + ?Sized> Space for LastPath<'_, S> {
    #[inline]
    fn space(&mut self, path: &Path, dest_qp: u32) -> &mut [u8] {
        self.path = *path;
        self.space.space(path, dest_qp)
    }
}

impl<M: Memory> Objects<M> {
    /// Writes the next request packet.
    #[inline]
    fn send_request<S: Sink>(
        &mut self,
        now: Time,
        space: &mut (impl Space + ?Sized),
        sink: &mut S,
    ) -> Option<Written> {
        while let Some(&number) = self.scheduler.ready.front() {
            let burst = self.config.burst;
            let sent = self.with(number, now, sink, |qp, world| requester::transmit(qp, world, space));
            let first = self.scheduler.ready.front() == Some(&number);
            if let Some(written) = sent.flatten() {
                if first {
                    self.scheduler.burst += 1;
                    if self.scheduler.burst >= burst {
                        self.scheduler.burst = 0;
                        self.scheduler.ready.rotate_left(1);
                    }
                }
                return Some(written);
            }
            if first {
                match self.qps.get_mut(number) {
                    Some(qp) => self.scheduler.leave(qp),
                    None => {
                        self.scheduler.ready.pop_front();
                        if number == GSI_QPN
                            && let Some(written) = self.send_mad(space)
                        {
                            return Some(written);
                        }
                    }
                }
            }
        }
        None
    }

    /// Writes the next management datagram. The next datagram waits until the general services
    /// interface comes up in the rotation again.
    #[cold]
    fn send_mad(&mut self, space: &mut (impl Space + ?Sized)) -> Option<Written> {
        let gsi = self.gsi.as_mut()?;
        let sent = gsi.transmit(space);
        if !gsi.is_empty() {
            self.scheduler.ready.push_back(GSI_QPN);
        }
        sent
    }

    /// Writes the next NAK.
    fn send_nak<S: Sink>(
        &mut self,
        now: Time,
        space: &mut (impl Space + ?Sized),
        sink: &mut S,
    ) -> Option<Written> {
        // Each queue pair is tried once. If its packet does not fit the space, the queue pair moves
        // to the end of the list.
        for _ in 0..self.scheduler.naks.len() {
            let number = self.scheduler.naks.pop_front()?;
            if let Some(qp) = self.qps.get_mut(number) {
                qp.in_naks = false;
            }
            let sent = self.with(number, now, sink, |qp, world| {
                responder::transmit(qp, world, ResponseClass::Nak, space)
            });
            if let Some(written) = sent.flatten() {
                return Some(written);
            }
        }
        None
    }

    /// Writes the next plain acknowledgement.
    fn send_ack<S: Sink>(
        &mut self,
        now: Time,
        space: &mut (impl Space + ?Sized),
        sink: &mut S,
    ) -> Option<Written> {
        // Each queue pair is tried once. If its packet does not fit the space, the queue pair moves
        // to the end of the list.
        for _ in 0..self.scheduler.acks.len() {
            let number = self.scheduler.acks.pop_front()?;
            if let Some(qp) = self.qps.get_mut(number) {
                qp.in_acks = false;
            }
            let sent = self.with(number, now, sink, |qp, world| {
                responder::transmit(qp, world, ResponseClass::Ack, space)
            });
            if let Some(written) = sent.flatten() {
                return Some(written);
            }
        }
        None
    }

    /// Writes the next response packet of queue pair `number` or, if it has none, of the next queue
    /// pair with a response.
    fn send_response<S: Sink>(
        &mut self,
        mut number: u32,
        now: Time,
        space: &mut (impl Space + ?Sized),
        sink: &mut S,
    ) -> Option<Written> {
        // This loop terminates because a queue pair that sends nothing leaves the response queue.
        loop {
            let sent = self.with(number, now, sink, |qp, world| {
                let written = responder::transmit(qp, world, ResponseClass::Resource, space)?;
                Some((written, qp.resp.responses.pending() == Some(ResponseClass::Resource)))
            });
            let (sent, more) = sent.flatten().unzip();
            let more = more == Some(true);
            let spent =
                sent.is_some_and(|written: Written| self.response_queue.sent(written.len, &self.config));
            if spent || !more {
                self.scheduler.begin_round();
                self.response_queue.end_turn(more);
                if !more && let Some(qp) = self.qps.get_mut(number) {
                    qp.in_response_queue = false;
                }
            }
            if sent.is_some() {
                return sent;
            }
            number = self.response_queue.next(now, &self.config)?;
        }
    }

    /// Writes the next packet. `response` is the queue pair whose response is next, or `None` if no
    /// response may be sent.
    #[inline]
    fn transmit<S: Sink>(
        &mut self,
        now: Time,
        urgency: Urgency,
        response: Option<u32>,
        space: &mut (impl Space + ?Sized),
        sink: &mut S,
    ) -> Option<Transmit> {
        let mut space = LastPath { space, path: Path::default() };
        let Written { len, qpn } = self.write(now, urgency, response, &mut space, sink)?;
        Some(Transmit { len, path: space.path, qpn })
    }

    /// Writes the next packet of the first class that may send.
    #[inline]
    fn write<S: Sink>(
        &mut self,
        now: Time,
        urgency: Urgency,
        response: Option<u32>,
        space: &mut (impl Space + ?Sized),
        sink: &mut S,
    ) -> Option<Written> {
        if urgency == Urgency::Owed {
            return self.send_nak(now, space, sink).or_else(|| self.send_ack(now, space, sink));
        }
        loop {
            if self.scheduler.requests_sent < SHARE
                && !self.scheduler.ready.is_empty()
                && let Some(written) = self.send_request(now, space, sink)
            {
                self.scheduler.requests_sent += 1;
                return Some(written);
            }
            if self.scheduler.naks_sent < SHARE
                && !self.scheduler.naks.is_empty()
                && let Some(written) = self.send_nak(now, space, sink)
            {
                self.scheduler.naks_sent += 1;
                return Some(written);
            }
            if (response.is_some() || urgency == Urgency::All)
                && self.scheduler.acks_sent < SHARE
                && !self.scheduler.acks.is_empty()
                && let Some(written) = self.send_ack(now, space, sink)
            {
                self.scheduler.acks_sent += 1;
                return Some(written);
            }
            if let Some(number) = response
                && let Some(written) = self.send_response(number, now, space, sink)
            {
                return Some(written);
            }
            if self.scheduler.begin_round() < SHARE {
                return None;
            }
        }
    }
}

impl<M: Memory> Engine<M> {
    /// Writes the next packet to send into its [`Space`], from BTH to pad, without space for the
    /// ICRC. A `&mut [u8]` serves as the space for any packet.
    ///
    /// Packets of one queue pair are kept together where possible, so a caller can send them as
    /// segments of one buffer. Returns `None` if nothing of this urgency can be sent now; another
    /// call or the passage of time may change that.
    ///
    /// The space for any packet must hold a payload of the path MTU plus
    /// [`MAX_HEADER_LEN`](crate::wire::packet::MAX_HEADER_LEN) bytes. A caller without that much
    /// space must not call this function.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        urgency: Urgency,
        space: &mut (impl Space + ?Sized),
        sink: &mut impl Sink,
    ) -> Option<Transmit> {
        let objects = &mut self.objects;
        let response = if objects.response_queue.is_idle() {
            None
        } else {
            objects.response_queue.next(now, &objects.config)
        };
        objects.transmit(now, urgency, response, space, sink)
    }
}

/// Methods for callers that delay read responses because their link is slower than
/// [`Config::response_rate`].
///
/// [`Config::response_rate`]: super::Config::response_rate
impl<M: Memory> Engine<M> {
    /// Returns whether read responses or atomic results wait to be sent, with or without credit.
    #[inline]
    pub fn has_responses(&self) -> bool {
        !self.objects.response_queue.is_idle()
    }

    /// Writes the next packet as [`poll_transmit`](Self::poll_transmit) does, but skips read
    /// responses and atomic results.
    pub fn poll_transmit_prompt(
        &mut self,
        now: Time,
        urgency: Urgency,
        space: &mut (impl Space + ?Sized),
        sink: &mut impl Sink,
    ) -> Option<Transmit> {
        self.objects.transmit(now, urgency, None, space, sink)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use crate::engine::testing::{ALL, HERE, Host, PEER, THERE, connected};
    use crate::engine::{
        Gid, MAD_LEN, MadDestination, Path, Payload, Qpn, SendFlags, SendOp, SendWr, Service, Sge, State,
        UdDestination,
    };
    use crate::wire::packet::MAX_PACKET_LEN;
    use crate::wire::{Headers, ICRC_LEN, NakCode, Opcode, Psn, Syndrome, bth, reth};

    /// A new buffer for each call, along with the call's arguments.
    #[derive(Default)]
    struct Buffers(Vec<(Gid, u32, Vec<u8>)>);

    impl Space for Buffers {
        fn space(&mut self, path: &Path, dest_qp: u32) -> &mut [u8] {
            self.0.push((path.remote, dest_qp, vec![0xee; MAX_PACKET_LEN]));
            &mut self.0.last_mut().unwrap().2
        }
    }

    /// Returns the destinations and headers of the packets sent. Asserts that each packet is in the
    /// memory returned by the last call.
    fn leave(host: &mut Host, buffers: &mut Buffers) -> Vec<(Gid, u32, Headers)> {
        let mut left = Vec::new();
        while let Some(transmit) = host.engine.poll_transmit(host.now, Urgency::All, buffers, &mut host.log) {
            let (remote, dest_qp, buffer) = buffers.0.last().unwrap();
            let (headers, _) = Headers::parse(&buffer[..transmit.len + ICRC_LEN]).unwrap();
            assert_eq!((transmit.path.remote, headers.bth.dest_qp), (*remote, *dest_qp));
            assert!(buffer[transmit.len..].iter().all(|byte| *byte == 0xee), "only the front is written");
            left.push((*remote, *dest_qp, headers));
        }
        left
    }

    fn post(host: &mut Host, qpn: Qpn, op: SendOp, sge: Sge) {
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let wr = SendWr { wr_id: 1, op, flags, payload: Payload::Sges(&[sge]), remote_srq: 0 };
        host.engine.post_send(qpn, &wr, host.now, &mut host.log).unwrap();
    }

    #[test]
    fn memory_is_requested_once_for_each_packet_by_path_and_destination() {
        const ELSEWHERE: Gid = [7; 16];
        let mut host = Host::new();
        host.engine.open_gsi().unwrap();
        let mr = host.register(4096, ALL);
        let (rc, ud) = (host.init(Service::Rc), host.init(Service::Ud));
        let [first, second, datagrams] = [rc, rc, ud].map(|init| host.qp(&init, &connected()));

        // The expected packets: three of a write, a datagram, a MAD, two of a response, a NAK.
        post(&mut host, first, SendOp::Write { addr: 0, rkey: 0, imm: None }, mr.sge(0, 600));
        let to = UdDestination {
            path: Path { local: HERE, remote: ELSEWHERE, ..Path::default() },
            qpn: 0xff00_0099,
            qkey: 1,
        };
        post(&mut host, datagrams, SendOp::Datagram { to, imm: None }, mr.sge(0, 5));
        let path = Path { local: HERE, remote: ELSEWHERE, ..Path::default() };
        let mad = MadDestination { path, qpn: GSI_QPN, pkey: 0xffff };
        host.engine.send_mad(&mad, &[3; MAD_LEN]).unwrap();
        let read = bth::Repr::new(Opcode::RC_RDMA_READ_REQUEST, first.0, Psn::new(0xff_fffe));
        let reth = Some(reth::Repr { va: mr.addr, rkey: mr.key, dmalen: 300 });
        host.arrive(&Headers { reth, ..Headers::new(read) }, &[]);
        let early = bth::Repr::new(Opcode::RC_SEND_ONLY, second.0, Psn::new(5));
        host.arrive(&Headers::new(early), &[]);

        let mut buffers = Buffers::default();
        let left = leave(&mut host, &mut buffers);
        let to_queue_pairs: Vec<_> = left.iter().map(|(remote, dest_qp, _)| (*remote, *dest_qp)).collect();
        let peer = (THERE, PEER);
        assert_eq!(
            to_queue_pairs,
            [peer, peer, peer, (ELSEWHERE, 0x99), (ELSEWHERE, GSI_QPN), peer, peer, peer]
        );
        let nak = left[5].2.aeth.map(|aeth| aeth.syndrome);
        assert_eq!(nak, Some(Syndrome::nak(NakCode::PSN_SEQUENCE_ERROR)));
        assert_eq!(buffers.0.len(), left.len());
    }

    #[test]
    fn a_packet_after_one_that_fails_is_in_the_memory_of_the_last_call() {
        let mut host = Host::new();
        let init = host.init(Service::Rc);
        let [first, second] = [0, 1].map(|_| host.qp(&init, &connected()));
        let (gone, mr) = (host.register(64, ALL), host.register(64, ALL));
        host.engine.memory().lose(gone.buffer);
        post(&mut host, first, SendOp::Send { imm: None }, gone.sge(0, 64));
        post(&mut host, second, SendOp::Send { imm: None }, mr.sge(0, 64));

        let mut buffers = Buffers::default();
        let left = leave(&mut host, &mut buffers);
        assert_eq!((left.len(), buffers.0.len()), (1, 2));
        assert_eq!((host.state(first), host.state(second)), (State::Err, State::Rts));
    }
}
