//! One communication manager, whose program and peers are driven by the fuzz input. Connections in
//! every state receive valid and invalid messages from their peers and from unknown peers.
//!
//! After the last step the driver destroys all connections and checks that none remains. A step
//! must not panic, send more than a few messages, or report an event for an ended connection.

use std::collections::{BTreeMap, BTreeSet};

use ib_cm::cm::{
    AcceptParams, Address, Cm, CmId, Config, ConnectParams, Event, ListenId, Path, RejectParams, SidrParams,
    SidrReplyParams, State, Transport,
};
use ib_cm::sim::Rng;
use ib_cm::time::{MILLISECOND, Time};
use ib_cm::wire::{
    Gid, Mad, Message, MsgResponse, Mtu, PortSpace, Reason, ServiceId, apr, drep, dreq, lap, mra, path, rej,
    rep, req, rtu, sidr_rep, sidr_req,
};

/// A step: the program makes a call, a message arrives, and time advances.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Step {
    /// The program's call; see [`call`].
    pub(crate) call: u8,
    /// The number of the slot whose connection the call and the message concern.
    pub(crate) slot: u8,
    /// The attribute of the message, minus 0x10. Values of 11 and more mean no message.
    pub(crate) message: u8,
    /// Bit 0: from an unknown peer. Bit 1: wrong sender id. Bit 2: wrong receiver id. Bit 3: a
    /// service without a listener. Bit 4: wrong queue pair. Bits 5 and 6: the transport. Bit 7:
    /// byte `at` of the message is set to `value`.
    pub(crate) flags: u8,
    /// A value whose meaning depends on the message: reason, acknowledged or rejected message,
    /// timeout, or status.
    pub(crate) number: u8,
    pub(crate) at: u8,
    pub(crate) value: u8,
    /// The time to advance, in units of 50 ms.
    pub(crate) time: u8,
}

impl Step {
    pub(crate) const LEN: usize = 8;

    fn parse(bytes: [u8; Self::LEN]) -> Self {
        let [call, slot, message, flags, number, at, value, time] = bytes;
        Self { call, slot, message, flags, number, at, value, time }
    }

    #[allow(dead_code)]
    pub(crate) fn emit(self) -> [u8; Self::LEN] {
        let Self { call, slot, message, flags, number, at, value, time } = self;
        [call, slot, message, flags, number, at, value, time]
    }
}

/// The values of [`Step::call`].
#[allow(dead_code)]
pub(crate) mod call {
    pub(crate) const NONE: u8 = 0;
    pub(crate) const CONNECT: u8 = 1;
    pub(crate) const ACCEPT: u8 = 2;
    pub(crate) const READY: u8 = 3;
    pub(crate) const REJECT: u8 = 4;
    pub(crate) const SEND_MRA: u8 = 5;
    pub(crate) const PREPARE_MRA: u8 = 6;
    pub(crate) const ESTABLISHED: u8 = 7;
    pub(crate) const DISCONNECT: u8 = 8;
    pub(crate) const DESTROY: u8 = 9;
    pub(crate) const SIDR_REQUEST: u8 = 10;
    pub(crate) const SIDR_REPLY: u8 = 11;
    pub(crate) const TIMEOUT: u8 = 12;
    pub(crate) const LISTEN: u8 = 13;
    pub(crate) const UNLISTEN: u8 = 14;
    pub(crate) const COUNT: u8 = 15;
}

const HERE: Gid = [1; 16];
const STRANGER: Gid = [9; 16];
const SERVICE: ServiceId = ServiceId::ip(PortSpace::TCP, 7174);
const SLOTS: usize = 6;
/// The manager's queue pair number in slot 0; the slot number is added to it.
const OWN_QPN: u32 = 0x100;
/// The peers' communication id and queue pair number in slot 0; the slot number is added to both.
const PEER_ID: u32 = 0x200;

/// A connection as seen by its peer.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// The manager's communication id, once a message has contained it.
    local_id: u32,
    /// The manager's id for the connection.
    handle: Option<CmId>,
}

struct World {
    cm: Cm,
    now: Time,
    slots: [Slot; SLOTS],
    listener: Option<ListenId>,
    live: BTreeSet<CmId>,
    over: BTreeSet<CmId>,
    kinds: BTreeMap<CmId, Vec<core::mem::Discriminant<Event>>>,
}

/// Returns the address of a slot's peer. Each address belongs to two slots.
fn peer(slot: usize) -> Gid {
    [2 + (slot / 2) as u8; 16]
}

fn guid(slot: usize) -> u64 {
    7000 + (slot / 2) as u64
}

impl World {
    fn new() -> Self {
        let config = Config {
            node_guid: 7,
            max_connections: 16,
            max_events: 16,
            max_transmits: 16,
            max_orphans: 2,
            ..Config::default()
        };
        let mut cm = Cm::new(config, Rng::new(1));
        let listener = cm.listen(SERVICE, u64::MAX, 4).expect("the first");
        Self {
            cm,
            now: Time(0),
            slots: [Slot::default(); SLOTS],
            listener: Some(listener),
            live: BTreeSet::new(),
            over: BTreeSet::new(),
            kinds: BTreeMap::new(),
        }
    }

    fn call(&mut self, step: &Step) {
        let index = usize::from(step.slot) % SLOTS;
        let (now, id, qp_num) = (self.now, self.slots[index].handle, OWN_QPN + index as u32);
        let transport =
            [Transport::Rc, Transport::Uc, Transport::Xrc, Transport::Rc][usize::from(step.flags >> 5 & 3)];
        match (step.call % call::COUNT, id) {
            (call::CONNECT, _) => {
                let path = Path {
                    local: HERE,
                    remote: peer(index),
                    hop_limit: step.value,
                    packet_life_time: step.number & 0x1f,
                    ..Path::default()
                };
                let params = ConnectParams {
                    path,
                    alternate: (step.at & 1 != 0).then_some(path),
                    service_id: SERVICE,
                    transport,
                    qp_num,
                    max_cm_retries: step.at & 0xf,
                    ..ConnectParams::default()
                };
                if let Ok(id) = self.cm.connect(now, &params) {
                    self.slots[index].handle = Some(id);
                    self.live.insert(id);
                }
            }
            (call::SIDR_REQUEST, _) => {
                let params = SidrParams::new(Address::gsi(HERE, peer(index)), SERVICE);
                if let Ok(id) = self.cm.sidr_request(now, &params) {
                    self.slots[index].handle = Some(id);
                    self.live.insert(id);
                }
            }
            (call::ACCEPT, Some(id)) => {
                let params = AcceptParams { qp_num, ..AcceptParams::default() };
                let _ = self.cm.accept(now, id, &params);
            }
            (call::READY, Some(id)) => {
                let _ = self.cm.ready_to_use(id, rtu::Data::default());
            }
            (call::REJECT, Some(id)) => {
                let params = RejectParams { reason: Reason(step.number.into()), ..RejectParams::default() };
                let _ = self.cm.reject(now, id, &params);
            }
            (call::SEND_MRA, Some(id)) => {
                let _ = self.cm.send_mra(id, step.number, mra::Data::default());
            }
            (call::PREPARE_MRA, Some(id)) => {
                let _ = self.cm.prepare_mra(id, step.number, mra::Data::default());
            }
            (call::ESTABLISHED, Some(id)) => {
                let _ = self.cm.established(id);
            }
            (call::DISCONNECT, Some(id)) => {
                let _ = self.cm.disconnect(now, id, dreq::Data::default());
            }
            (call::DESTROY, Some(id)) => self.destroy(id),
            (call::SIDR_REPLY, Some(id)) => {
                let _ = self.cm.sidr_reply(id, &SidrReplyParams { qp_num, ..SidrReplyParams::default() });
            }
            (call::TIMEOUT, _) => {
                if let Some(deadline) = self.cm.deadline() {
                    self.now = self.now.max(deadline);
                    self.cm.handle_timeout(self.now);
                }
            }
            (call::LISTEN, _) if self.listener.is_none() => {
                self.listener = self.cm.listen(SERVICE, u64::MAX, 4).ok();
            }
            (call::UNLISTEN, _) => {
                if let Some(listener) = self.listener.take() {
                    self.cm.unlisten(listener).expect("it was there");
                }
            }
            _ => {}
        }
    }

    fn destroy(&mut self, id: CmId) {
        self.cm.destroy(self.now, id);
        assert_eq!(self.cm.state(id), None);
        self.over.insert(id);
    }

    /// Returns the message that arrives in a step, if any.
    fn message(&self, step: &Step) -> Option<Mad> {
        let index = usize::from(step.slot) % SLOTS;
        let wrong = |bit: u8| u32::from(step.flags >> bit & 1);
        let local_comm_id = (PEER_ID + index as u32) ^ wrong(1) << 20;
        let remote_comm_id = self.slots[index].local_id ^ wrong(2) << 20;
        let remote_qpn = (OWN_QPN + index as u32) ^ wrong(4) << 20;
        let local_qpn = (PEER_ID + index as u32) ^ wrong(4) << 20;
        let service_id = ServiceId(SERVICE.0 ^ u64::from(wrong(3)));
        let message = MsgResponse(step.number & 3);
        let reason = Reason(u16::from(step.number >> 2));
        let message: Message = match step.message {
            0 => req::Repr {
                local_comm_id,
                service_id,
                local_ca_guid: guid(index),
                local_qpn,
                local_cm_response_timeout: step.number & 0x1f,
                transport_service_type: step.flags >> 5 & 3,
                extended_transport_type: step.flags >> 5 & 1,
                max_cm_retries: step.number >> 4,
                path_mtu: Mtu::B1024,
                primary: path::Repr {
                    local_gid: self.source(step),
                    remote_gid: HERE,
                    local_ack_timeout: step.number & 0x1f,
                    ..path::Repr::default()
                },
                ..req::Repr::default()
            }
            .into(),
            1 => mra::Repr {
                local_comm_id,
                remote_comm_id,
                message_mraed: message,
                service_timeout: step.number >> 2 & 0x1f,
                ..mra::Repr::default()
            }
            .into(),
            2 => rej::Repr {
                local_comm_id,
                remote_comm_id,
                message_rejected: message,
                reason,
                reject_info_length: step.number,
                ari: rej::Ari::new(&guid(index).to_be_bytes()).unwrap_or_default(),
                ..rej::Repr::default()
            }
            .into(),
            3 => rep::Repr {
                local_comm_id,
                remote_comm_id,
                local_qpn,
                local_eecn: local_qpn,
                local_ca_guid: guid(index),
                target_ack_delay: step.number & 0x1f,
                ..rep::Repr::default()
            }
            .into(),
            4 => rtu::Repr { local_comm_id, remote_comm_id, ..rtu::Repr::default() }.into(),
            5 => dreq::Repr { local_comm_id, remote_comm_id, remote_qpn, ..dreq::Repr::default() }.into(),
            6 => drep::Repr { local_comm_id, remote_comm_id, ..drep::Repr::default() }.into(),
            7 => sidr_req::Repr { request_id: local_comm_id, service_id, ..sidr_req::Repr::default() }.into(),
            8 => sidr_rep::Repr {
                request_id: remote_comm_id,
                status: sidr_rep::Status(step.number),
                info_length: step.number,
                ..sidr_rep::Repr::default()
            }
            .into(),
            9 => lap::Repr { local_comm_id, remote_comm_id, remote_qpn, ..lap::Repr::default() }.into(),
            10 => apr::Repr { local_comm_id, remote_comm_id, ..apr::Repr::default() }.into(),
            _ => return None,
        };
        let mut mad = message.emit(u64::from(step.number), 0);
        if step.flags & 0x80 != 0 {
            mad[usize::from(step.at)] = step.value;
        }
        Some(mad)
    }

    fn source(&self, step: &Step) -> Gid {
        if step.flags & 1 != 0 { STRANGER } else { peer(usize::from(step.slot) % SLOTS) }
    }

    fn arrive(&mut self, step: &Step) {
        if let Some(mad) = self.message(step) {
            let len = if step.message == 0 && step.value == 255 { usize::from(step.at) } else { mad.len() };
            let before = self.cm.len();
            self.cm.input(self.now, &Address::gsi(HERE, self.source(step)), &mad[..len]);
            assert!(self.cm.len() <= before + 1);
        }
    }

    /// Fetches all messages and events and updates the slots from them.
    fn drain(&mut self) {
        let mut sent = 0;
        while let Some(transmit) = self.cm.poll_transmit() {
            sent += 1;
            let (header, message) = Message::parse(&transmit.mad).expect("a MAD has 256 bytes");
            assert_eq!((header.base_version, header.mgmt_class), (1, 7));
            assert_eq!(transmit.to.local, HERE);
            self.learn(&message);
        }
        // A message causes at most two responses; a call and each due timer cause at most one.
        assert!(sent <= 3 + 16, "{sent} messages");
        while let Some(event) = self.cm.poll_event() {
            let id = event.id();
            assert!(!self.over.contains(&id), "an event after the end: {event:?}");
            let kinds = self.kinds.entry(id).or_default();
            let kind = core::mem::discriminant(&event);
            assert!(!kinds.contains(&kind), "an event came twice: {event:?}");
            kinds.push(kind);
            if event.is_last() {
                self.over.insert(id);
            }
            match event {
                Event::Request(request) => {
                    self.live.insert(id);
                    let index = (request.remote_qpn & 0xff) as usize % SLOTS;
                    self.slots[index].handle = Some(id);
                }
                Event::SidrRequest(_) => {
                    self.live.insert(id);
                    self.slots[0].handle = Some(id);
                }
                _ => {}
            }
        }
        if let Some(deadline) = self.cm.deadline() {
            assert!(deadline > self.now);
        }
        assert!(self.cm.len() <= 16);
    }

    fn learn(&mut self, message: &Message) {
        let (local_id, index) = match message {
            Message::Req(req) => (req.local_comm_id, req.local_qpn.wrapping_sub(OWN_QPN)),
            Message::Rep(rep) => (rep.local_comm_id, rep.remote_comm_id.wrapping_sub(PEER_ID)),
            Message::Mra(mra) => (mra.local_comm_id, mra.remote_comm_id.wrapping_sub(PEER_ID)),
            Message::SidrReq(req) => {
                // The message does not identify the slot that sent the request, so slot 0 records
                // the id.
                self.slots[0].local_id = req.request_id;
                return;
            }
            _ => return,
        };
        if let Some(slot) = self.slots.get_mut(index as usize)
            && local_id != 0
        {
            slot.local_id = local_id;
        }
    }

    fn steps(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks_exact(Step::LEN).take(500) {
            let step = Step::parse(chunk.try_into().expect("chunks are exact"));
            self.call(&step);
            self.drain();
            self.arrive(&step);
            self.drain();
            self.now = self.now + u64::from(step.time) * 50 * MILLISECOND;
            self.cm.handle_timeout(self.now);
            self.drain();
        }
    }

    /// Destroys all connections, then checks that none remains and no event follows.
    fn end(mut self) {
        for id in self.live.clone() {
            self.destroy(id);
        }
        self.drain();
        // At most two releases are unanswered. Their DREQs are sent 16 times each.
        for _ in 0..2 * 16 + 2 {
            if let Some(deadline) = self.cm.deadline() {
                self.now = deadline;
                self.cm.handle_timeout(deadline);
                self.drain();
            }
        }
        assert!(self.cm.is_empty(), "{:?}", self.cm);
        assert_eq!(self.cm.deadline(), None);
    }
}

/// Runs at most 500 steps decoded from `bytes`.
pub(crate) fn run(bytes: &[u8]) {
    let mut world = World::new();
    world.steps(bytes);
    world.end();
}

/// Returns the state of the connection in slot 0 after running the steps in `bytes`.
#[allow(dead_code)]
pub(crate) fn state_after(bytes: &[u8]) -> Option<State> {
    let mut world = World::new();
    world.steps(bytes);
    world.cm.state(world.slots[0].handle?)
}
