//! A program with a few ids on two channels. The bytes select its calls and the kernel's faults.
//! Queue pairs use a soft device, which checks the kernel's attributes.
//!
//! A step must not panic or report an event for a dropped id. At the end, all objects are dropped.
//! The kernel must then have destroyed each id that it created exactly once.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::OnceLock;
use std::time::Duration;

use rdmacm::hostile::{Anomaly, Hostile, Uid};
use rdmacm::{
    CmId, ConnParam, EventChannel, EventKind, GroupKey, IbAddress, IdKey, PathRecord, PortSpace, Service,
};
use verbs::state::{Errored, Rts};
use verbs::{AsyncEventType, Context, Cq, CqInit, Device, Ece, Gid, Guid, Pd, Qp, QpInit, QpState, QpType};

/// A step: the program makes a call, an event arrives, and the kernel has at most one anomaly.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Step {
    /// The number of the program's call; see [`call`].
    pub(crate) call: u8,
    /// The slot of the id that the call and the event belong to.
    pub(crate) slot: u8,
    /// The argument of the call.
    pub(crate) arg: u8,
    /// The type of the event to queue, plus 1; 0 queues no event.
    pub(crate) event: u8,
    /// The index of the command, within the step, that has the anomaly.
    pub(crate) nth: u8,
    /// The offset of the changed byte in the reply, or the length of the truncated reply.
    pub(crate) at: u8,
    /// The new value of the changed byte, or the errno of the failed command.
    pub(crate) value: u8,
    /// Bit 0: the command fails. Bit 1: its reply is truncated. Bit 2: a byte of the reply changes.
    /// Bit 3: the event has no cookie. Bit 4: the event's cookie is stale. Bit 5: the event has a
    /// status. Bit 6: the call's id is on the second channel. Bit 7: 256 is added to `at`.
    pub(crate) flags: u8,
}

impl Step {
    pub(crate) const LEN: usize = 8;

    fn parse([call, slot, arg, event, nth, at, value, flags]: [u8; Self::LEN]) -> Self {
        Self { call, slot, arg, event, nth, at, value, flags }
    }

    #[allow(dead_code)]
    pub(crate) fn emit(self) -> [u8; Self::LEN] {
        let Self { call, slot, arg, event, nth, at, value, flags } = self;
        [call, slot, arg, event, nth, at, value, flags]
    }

    fn has(self, bit: u8) -> bool {
        self.flags >> bit & 1 != 0
    }

    fn anomaly(self) -> Anomaly {
        let at = usize::from(self.at) + 256 * usize::from(self.has(7));
        Anomaly {
            nth: self.nth,
            errno: self.has(0).then_some(self.value.into()),
            cut: self.has(1).then_some(at),
            patch: self.has(2).then_some((at, self.value)),
        }
    }
}

/// The numbers of the program's calls.
#[allow(dead_code)]
pub(crate) mod call {
    pub(crate) const NONE: u8 = 0;
    pub(crate) const CREATE: u8 = 1;
    pub(crate) const BIND: u8 = 2;
    pub(crate) const RESOLVE_ADDR: u8 = 3;
    pub(crate) const RESOLVE_ROUTE: u8 = 4;
    pub(crate) const LISTEN: u8 = 5;
    pub(crate) const CONNECT: u8 = 6;
    pub(crate) const CONNECT_WITH: u8 = 7;
    pub(crate) const ACCEPT: u8 = 8;
    pub(crate) const ACCEPT_WITH: u8 = 9;
    pub(crate) const ESTABLISH: u8 = 10;
    pub(crate) const REJECT: u8 = 11;
    pub(crate) const DISCONNECT: u8 = 12;
    pub(crate) const QUERY: u8 = 13;
    pub(crate) const INIT_QP_ATTR: u8 = 14;
    pub(crate) const OPTION: u8 = 15;
    pub(crate) const JOIN: u8 = 16;
    pub(crate) const LEAVE: u8 = 17;
    pub(crate) const MIGRATE: u8 = 18;
    pub(crate) const NOTIFY: u8 = 19;
    pub(crate) const SERVICE: u8 = 20;
    pub(crate) const WRITE_EVENT: u8 = 21;
    pub(crate) const TAKE_QP: u8 = 22;
    pub(crate) const DROP: u8 = 23;
    pub(crate) const COUNT: u8 = 24;
}

/// The maximum number of ids that the program has at a time.
const SLOTS: usize = 6;

/// The device of all ids, with the objects needed to create queue pairs.
struct Host {
    guid: Guid,
    gid: Gid,
    pd: Pd,
    cq: verbs::CqHandle,
    _kept: (Device, Context, Cq),
}

fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| {
        let device = verbs::soft::auto().expect("a free address of 127.0.0.0/8");
        let context = device.open().expect("a soft device opens");
        let gid = context.find_gid(1).expect("it has a GID").gid;
        let pd = context.alloc_pd().expect("memory");
        let cq = context.create_cq(&CqInit::new(64)).expect("memory");
        Host { guid: device.guid(), gid, pd, cq: cq.handle(), _kept: (device, context, cq) }
    })
}

/// An id and the objects that it produced.
struct Slot {
    id: CmId,
    group: Option<GroupKey>,
    qp: Option<Qp<Rts>>,
    failed: Option<Qp<Errored>>,
}

struct World {
    kernel: Hostile,
    channels: [EventChannel; 2],
    slots: [Option<Slot>; SLOTS],
    /// The keys of dropped ids. The ids of other threads may have any other key.
    dropped: BTreeSet<IdKey>,
}

impl World {
    fn new(kind: u8) -> Self {
        let host = host();
        let kernel = Hostile::new(if kind & 1 == 0 { host.guid } else { Guid(0) }, host.gid);
        let channels = [kernel.channel(kind & 2 == 0), kernel.channel(kind & 2 == 0)];
        Self { kernel, channels, slots: [const { None }; SLOTS], dropped: BTreeSet::new() }
    }

    fn enter(&mut self, index: usize, id: CmId) {
        self.clear(index);
        let is_used = self.slots.iter().flatten().any(|slot| slot.id.key() == id.key());
        assert!(!is_used && !self.dropped.contains(&id.key()), "a key that another id has");
        self.slots[index] = Some(Slot { id, group: None, qp: None, failed: None });
    }

    fn clear(&mut self, index: usize) {
        if let Some(slot) = self.slots[index].take() {
            self.dropped.insert(slot.id.key());
        }
    }

    fn call(&mut self, step: Step) {
        let index = usize::from(step.slot) % SLOTS;
        let channel = &self.channels[usize::from(step.has(6))];
        let number = step.call % call::COUNT;
        if number == call::CREATE {
            let spaces = [PortSpace::TCP, PortSpace::UDP, PortSpace::IB, PortSpace::IPOIB];
            let space = spaces[usize::from(step.arg) % spaces.len()];
            if let Ok(id) = channel.create_id(space) {
                self.enter(index, id);
            }
            return;
        }
        if number == call::DROP {
            self.clear(index);
            return;
        }
        let Some(slot) = &mut self.slots[index] else { return };
        let id = &slot.id;
        let data = vec![step.arg; usize::from(step.arg)];
        let param = ConnParam {
            private_data: &data,
            qp_num: step.arg.into(),
            responder_resources: step.arg,
            initiator_depth: step.arg,
            ..ConnParam::default()
        };
        let to = (Ipv4Addr::new(127, 0, 0, step.arg), 7471);
        let timeout = Duration::from_millis(step.arg.into());
        match number {
            call::BIND if step.arg & 1 == 0 => drop(id.bind_addr(to)),
            call::BIND => drop(id.bind_addr(IbAddress::new(host().gid, PortSpace::IB, step.arg.into()))),
            call::RESOLVE_ADDR => drop(id.resolve_addr(None, to, timeout)),
            call::RESOLVE_ROUTE => drop(id.resolve_route(timeout)),
            call::LISTEN => drop(id.listen(step.arg.into())),
            call::CONNECT => {
                if let Ok(qp) = id.create_qp(&host().pd, &init()) {
                    let _ = id.connect(qp, &param);
                }
            }
            call::CONNECT_WITH => drop(id.connect_with(&param)),
            call::ACCEPT => {
                if let Ok(qp) = id.create_qp(&host().pd, &init()) {
                    let _ = id.accept(qp, &param);
                }
            }
            call::ACCEPT_WITH => drop(id.accept_with(&param)),
            call::ESTABLISH => drop(id.establish()),
            call::REJECT if step.arg & 1 == 0 => drop(id.reject(&data)),
            call::REJECT => drop(id.reject_ece(&data)),
            call::DISCONNECT => drop(id.disconnect()),
            call::QUERY => query(id),
            call::INIT_QP_ATTR => drop(id.init_qp_attr(QpState(step.arg))),
            call::OPTION => match step.arg % 5 {
                0 => drop(id.set_tos(step.arg)),
                1 => drop(id.set_reuse_addr(true)),
                2 => drop(id.set_af_only(true)),
                3 => drop(id.set_ack_timeout(step.arg)),
                _ => {
                    let paths: Vec<PathRecord> = id.paths().unwrap_or_default();
                    let _ = id.set_ib_path(&paths);
                    id.set_local_ece(Ece { vendor_id: 1, options: step.arg.into() });
                }
            },
            call::JOIN => {
                if let Ok(group) =
                    id.join_multicast((Ipv4Addr::new(239, 0, 0, step.arg), 0), step.arg & 1 != 0)
                {
                    slot.group = Some(group);
                }
            }
            call::LEAVE => {
                if let Some(group) = slot.group.take() {
                    let _ = id.leave_multicast(group);
                }
            }
            call::MIGRATE => drop(id.migrate(channel)),
            call::NOTIFY => drop(id.notify(AsyncEventType::COMM_EST)),
            call::SERVICE if step.arg & 1 == 0 => drop(id.resolve_service(Service::Id(step.arg.into()))),
            call::SERVICE => drop(id.resolve_service(Service::Name("storage"))),
            call::WRITE_EVENT => drop(id.write_event(step.arg.into(), step.arg.into())),
            call::TAKE_QP => {
                slot.qp = id.take_qp().or(slot.qp.take());
                slot.failed = id.reclaim_qp().ok().flatten().or(slot.failed.take());
            }
            _ => {}
        }
    }

    /// Reads all events from both channels.
    fn read(&mut self) {
        for number in 0..2 {
            // The kernel has only the queued events. Reading may fail.
            while let Ok(Some(event)) = self.channels[number].try_next_event() {
                assert!(!self.dropped.contains(&event.id), "an event of an id that was dropped: {event:?}");
                // Every event can be printed, whatever values it contains.
                assert!(!format!("{event:?}{}", event.status).is_empty());
                match event.kind {
                    EventKind::ConnectRequest(request) => match self.slots.iter().position(Option::is_none) {
                        Some(free) => self.enter(free, request.id),
                        None => drop(self.dropped.insert(request.id.key())),
                    },
                    _ => {
                        if let Err(error) = event.ok() {
                            assert!(!error.to_string().is_empty());
                        }
                    }
                }
            }
        }
    }

    fn steps(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks_exact(Step::LEN).take(200) {
            let step = Step::parse(chunk.try_into().expect("chunks are exact"));
            self.kernel.step(step.anomaly());
            self.call(step);
            if step.event != 0 {
                let uid = match (step.has(3), step.has(4)) {
                    (true, _) => Uid::None,
                    (_, true) => Uid::Stale(step.arg.into()),
                    _ => Uid::Known,
                };
                let status = if step.has(5) { i32::from(step.value) - 128 } else { 0 };
                self.kernel.queue(step.slot.into(), (step.event - 1).into(), uid, status);
            }
            self.read();
        }
    }

    /// Drops all objects and checks that the kernel destroyed each id once.
    fn end(self) {
        let Self { kernel, channels, slots, .. } = self;
        kernel.step(Anomaly { nth: u8::MAX, ..Anomaly::default() });
        drop(slots);
        drop(channels);
        assert!(kernel.is_settled(), "an id is left, or was destroyed twice: {kernel:?}");
    }
}

fn init() -> QpInit {
    QpInit::new(QpType::RC, &host().cq)
}

fn query(id: &CmId) {
    let _ = (id.local_addr(), id.peer_addr(), id.gids(), id.port_num(), id.pkey());
    for path in id.paths().unwrap_or_default() {
        assert!(!format!("{path:?}").is_empty());
    }
    for service in id.services().unwrap_or_default() {
        assert!(!format!("{service:?}").is_empty());
    }
    let _ = (id.remote_ece(), id.qp_type(), id.port_space());
}

/// Runs the steps in the bytes, at most 200. The first byte selects the kernel.
pub(crate) fn run(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let mut world = World::new(*kind);
    world.steps(bytes);
    world.end();
}

/// Runs the steps. Returns the maximum number of connected queue pairs that the program held at a
/// time.
#[allow(dead_code)]
pub(crate) fn queue_pairs_taken(bytes: &[u8]) -> usize {
    let mut world = World::new(bytes[0]);
    let mut taken = 0;
    for step in bytes[1..].chunks_exact(Step::LEN) {
        world.steps(step);
        taken = taken.max(world.slots.iter().flatten().filter(|slot| slot.qp.is_some()).count());
    }
    world.end();
    taken
}
