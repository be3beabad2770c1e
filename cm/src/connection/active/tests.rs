use verbs::Ece;
use verbs_core::slots::SlotId;

use super::*;
use crate::event::Status;
use crate::id::IdKey;
use crate::types::{EventType, RejectReason};

const TIMEOUTS: Timeouts =
    Timeouts { resolve: Duration::from_secs(2), connect: Duration::from_secs(30), total: None };
const TICK: Duration = Duration::from_nanos(1);

/// A state machine in simulated time.
struct Sim {
    active: Active,
    now: Instant,
}

impl Sim {
    fn new(addresses: u8, timeouts: Timeouts) -> Self {
        let now = Instant::now();
        Self { active: Active::new((1..=addresses).map(address).collect(), timeouts, now), now }
    }

    /// Returns a machine with one address that waits for the event of a step.
    fn at(step: ConnectStep) -> Self {
        let mut sim = Self::new(1, TIMEOUTS);
        sim.advance_to(step);
        sim
    }

    /// Runs an attempt up to a step and leaves it waiting for the step's event.
    fn advance_to(&mut self, step: ConnectStep) {
        assert!(matches!(self.poll(), Action::ResolveAddr(..)));
        if step != ConnectStep::ResolveAddr {
            self.event(EventKind::AddrResolved);
            assert!(matches!(self.poll(), Action::ResolveRoute(_)));
        }
        if step == ConnectStep::Connect {
            self.event(EventKind::RouteResolved);
            assert!(matches!(self.poll(), Action::SetUp));
            assert!(matches!(self.poll(), Action::Connect));
        }
        assert!(matches!(self.poll(), Action::Wait(_)));
    }

    fn poll(&mut self) -> Action {
        self.active.poll(self.now)
    }

    fn event(&mut self, kind: EventKind) {
        self.active.event(event(kind, 0));
    }

    #[track_caller]
    fn waits_until(&mut self, after: Duration) {
        let Action::Wait(Some(deadline)) = self.poll() else { panic!("no deadline") };
        assert_eq!(deadline, self.now + after);
    }

    #[track_caller]
    fn fails(&mut self) -> ConnectError {
        match self.poll() {
            Action::Failed(error) => error,
            other => panic!("{other:?}"),
        }
    }
}

fn address(last: u8) -> SocketAddr {
    ([192, 0, 2, last], 7471).into()
}

fn event(kind: EventKind, status: i32) -> Event {
    Event { id: IdKey(SlotId(7)), kind, status: Status(status), ece: Ece::default(), param: None }
}

fn established() -> EventKind {
    EventKind::Established(Peer::Conn(PeerParam { private_data: b"hi".to_vec(), ..PeerParam::default() }))
}

fn rejected() -> EventKind {
    let reason = Some(RejectReason::INVALID_SERVICE_ID);
    EventKind::Rejected(Rejection { reason, private_data: b"no".to_vec() })
}

const STEPS: [ConnectStep; 3] = [ConnectStep::ResolveAddr, ConnectStep::ResolveRoute, ConnectStep::Connect];

#[test]
fn an_event_that_is_there_when_its_call_returns_late_counts() {
    for has_event in [true, false] {
        let mut sim = Sim::new(1, TIMEOUTS);
        assert!(matches!(sim.poll(), Action::ResolveAddr(..)));
        sim.now += 2 * TIMEOUTS.resolve;
        // The driver checks for an event without waiting.
        let Action::Wait(Some(deadline)) = sim.poll() else { panic!("no look at the events") };
        assert!(deadline < sim.now);
        if has_event {
            sim.event(EventKind::AddrResolved);
            assert!(matches!(sim.poll(), Action::ResolveRoute(_)));
        } else {
            assert_eq!(sim.fails().step, ConnectStep::ResolveAddr);
        }
    }
}

#[test]
fn the_steps_follow_each_other_each_with_its_time() {
    let mut sim = Sim::new(1, TIMEOUTS);
    let Action::ResolveAddr(to, timeout) = sim.poll() else { panic!("no address") };
    assert_eq!((to, timeout), (address(1), TIMEOUTS.resolve));
    sim.waits_until(TIMEOUTS.resolve + GRACE);
    sim.now += Duration::from_secs(1);
    sim.event(EventKind::AddrResolved);
    let Action::ResolveRoute(timeout) = sim.poll() else { panic!("no route") };
    assert_eq!(timeout, TIMEOUTS.resolve);
    sim.waits_until(TIMEOUTS.resolve + GRACE);
    sim.event(EventKind::RouteResolved);
    assert!(matches!(sim.poll(), Action::SetUp));
    sim.now += 10 * TIMEOUTS.connect;
    assert!(matches!(sim.poll(), Action::Connect), "the program's setup takes none of the time");
    sim.waits_until(TIMEOUTS.connect);
    sim.event(established());
    let Action::Connected(peer) = sim.poll() else { panic!("no connection") };
    assert_eq!(peer.private_data, b"hi");
    assert!(matches!(sim.poll(), Action::Wait(None)), "the outcome comes once");
}

#[test]
fn each_step_that_does_not_end_in_time_is_named() {
    for (step, after, text) in [
        (STEPS[0], TIMEOUTS.resolve + GRACE, "the address was not resolved within 2s (ETIMEDOUT)"),
        (STEPS[1], TIMEOUTS.resolve + GRACE, "the route was not resolved within 2s (ETIMEDOUT)"),
        (STEPS[2], TIMEOUTS.connect, "the peer did not accept within 30s (ETIMEDOUT)"),
    ] {
        let mut sim = Sim::at(step);
        sim.now += after - TICK;
        sim.waits_until(TICK);
        sim.now += TICK;
        let error = sim.fails();
        assert_eq!((error.step, error.address), (step, Some(address(1))));
        assert_eq!(error.to_string(), format!("{}: 192.0.2.1:7471: {text}", step.verb()));
    }
}

#[test]
fn an_event_after_the_deadline_comes_too_late() {
    let mut sim = Sim::at(ConnectStep::Connect);
    sim.now += TIMEOUTS.connect;
    let error = sim.fails();
    assert_eq!(error.error.errno, Errno::TIMEDOUT);
    sim.event(established());
    assert!(matches!(sim.poll(), Action::Wait(None)));
}

#[test]
fn an_event_at_the_deadline_that_was_read_before_the_time_counts() {
    let mut sim = Sim::at(ConnectStep::Connect);
    sim.now += TIMEOUTS.connect;
    sim.event(established());
    assert!(matches!(sim.poll(), Action::Connected(_)));
}

#[test]
fn events_of_other_steps_and_duplicates_change_nothing() {
    for step in STEPS {
        let mut sim = Sim::at(step);
        let others: Vec<EventKind> = vec![
            EventKind::TimewaitExit,
            EventKind::AddrChange,
            EventKind::User(7),
            EventKind::Unknown(EventType(77)),
        ];
        let of_steps = [
            vec![EventKind::AddrResolved, EventKind::AddrError],
            vec![EventKind::RouteResolved, EventKind::RouteError],
            vec![established(), rejected(), EventKind::Unreachable, EventKind::ConnectError],
        ];
        let of_steps = of_steps.into_iter().zip(STEPS).filter(|(_, of)| *of != step);
        for kind in others.into_iter().chain(of_steps.flat_map(|(kinds, _)| kinds)) {
            let text = format!("{kind:?}");
            sim.event(kind);
            assert!(matches!(sim.poll(), Action::Wait(Some(_))), "{step:?}: {text}");
        }
        assert_eq!(sim.active.address(), Some(address(1)));
    }
}

#[test]
fn a_second_event_of_the_same_kind_is_skipped() {
    let mut sim = Sim::at(ConnectStep::ResolveAddr);
    sim.event(EventKind::AddrResolved);
    sim.event(EventKind::AddrResolved);
    assert!(matches!(sim.poll(), Action::ResolveRoute(_)));
    sim.event(EventKind::AddrResolved);
    sim.event(EventKind::RouteResolved);
    sim.event(EventKind::RouteResolved);
    assert!(matches!(sim.poll(), Action::SetUp));
    sim.event(EventKind::RouteResolved);
    assert!(matches!(sim.poll(), Action::Connect));
    sim.event(established());
    sim.event(rejected());
    sim.event(EventKind::Disconnected);
    assert!(matches!(sim.poll(), Action::Connected(_)));
}

#[test]
fn a_failure_of_each_step_keeps_the_connection_managers_reason() {
    for (step, kind, status, errno, text) in [
        (STEPS[0], EventKind::AddrError, -110, Errno::TIMEDOUT, "no host answered for the address in time"),
        (STEPS[1], EventKind::RouteError, -110, Errno::TIMEDOUT, "no route"),
        (STEPS[2], EventKind::Unreachable, -110, Errno::TIMEDOUT, "the peer did not reply"),
        (STEPS[2], EventKind::ConnectError, -5, Errno::IO, "the connection failed"),
        (STEPS[2], rejected(), 8, Errno::CONNREFUSED, "no program listens"),
        (STEPS[2], EventKind::Disconnected, 0, Errno::IO, "the peer ended the connection"),
    ] {
        let mut sim = Sim::at(step);
        sim.active.event(event(kind, status));
        let error = sim.fails();
        assert_eq!((error.step, error.error.errno), (step, errno));
        assert!(error.to_string().contains(&format!("192.0.2.1:7471: {text}")), "{error}");
    }
}

#[test]
fn a_reject_is_returned_with_its_reason_and_private_data() {
    let mut sim = Sim::at(ConnectStep::Connect);
    sim.event(rejected());
    let rejection = sim.fails().rejection.expect("the reject");
    assert_eq!(rejection.reason, Some(RejectReason::INVALID_SERVICE_ID));
    assert_eq!(rejection.private_data, b"no");
}

#[test]
fn a_removed_device_and_a_failed_call_end_the_attempt_in_each_step() {
    for step in STEPS {
        let mut sim = Sim::at(step);
        sim.event(EventKind::DeviceRemoval);
        assert_eq!((sim.fails().error.errno, step), (Errno::NODEV, step));

        let mut sim = Sim::at(step);
        sim.active.call_failed(Error::new(step.verb(), "", Errno::INVAL));
        let error = sim.fails();
        assert_eq!((error.step, error.error.errno), (step, Errno::INVAL));
        sim.active.call_failed(Error::new(step.verb(), "", Errno::INVAL));
        assert!(matches!(sim.poll(), Action::Wait(None)));
    }
}

#[test]
fn addresses_are_tried_in_turn_and_the_last_failure_is_returned() {
    let mut sim = Sim::new(3, TIMEOUTS);
    sim.advance_to(ConnectStep::ResolveAddr);
    sim.active.event(event(EventKind::AddrError, -113));
    sim.advance_to(ConnectStep::ResolveRoute);
    assert_eq!(sim.active.address(), Some(address(2)));
    sim.now += TIMEOUTS.resolve + GRACE;
    sim.advance_to(ConnectStep::Connect);
    sim.event(rejected());
    let error = sim.fails();
    assert_eq!((error.address, error.step), (Some(address(3)), ConnectStep::Connect));
}

#[test]
fn a_second_address_connects_after_the_first_one_failed() {
    let mut sim = Sim::new(2, TIMEOUTS);
    sim.advance_to(ConnectStep::Connect);
    sim.event(rejected());
    sim.advance_to(ConnectStep::Connect);
    sim.event(established());
    assert!(matches!(sim.poll(), Action::Connected(_)));
}

#[test]
fn the_time_for_all_steps_ends_all_attempts() {
    let total = Duration::from_secs(3);
    let mut sim = Sim::new(2, Timeouts { total: Some(total), ..TIMEOUTS });
    assert!(matches!(sim.poll(), Action::ResolveAddr(_, timeout) if timeout == TIMEOUTS.resolve));
    sim.now += Duration::from_secs(2);
    sim.event(EventKind::AddrResolved);
    let Action::ResolveRoute(left) = sim.poll() else { panic!("no route") };
    assert_eq!(left, Duration::from_secs(1));
    sim.waits_until(Duration::from_secs(1));
    sim.now += Duration::from_secs(1);
    let error = sim.fails();
    assert_eq!(error.address, Some(address(1)), "the second one is not tried");
    let text = "resolve_route: 192.0.2.1:7471: the route was not resolved when the 3s for all steps were \
                over (ETIMEDOUT)";
    assert_eq!(error.to_string(), text);
}

#[test]
fn no_call_follows_the_end_of_the_time_for_all_steps() {
    let total = Duration::from_secs(1);
    let mut sim = Sim::new(2, Timeouts { total: Some(total), ..TIMEOUTS });
    sim.advance_to(ConnectStep::ResolveAddr);
    sim.now += total;
    sim.event(EventKind::AddrResolved);
    assert_eq!(sim.fails().step, ConnectStep::ResolveRoute);
    let mut sim = Sim::new(1, Timeouts { total: Some(Duration::ZERO), ..TIMEOUTS });
    assert_eq!(sim.fails().step, ConnectStep::ResolveAddr);
}

#[test]
fn without_an_address_nothing_is_tried() {
    let mut sim = Sim::new(0, TIMEOUTS);
    let error = sim.fails();
    assert_eq!((error.step, error.address), (ConnectStep::Lookup, None));
    assert_eq!(error.to_string(), "getaddrinfo: the name has no address of the family (ENOENT)");
}

#[test]
fn times_beyond_the_clock_are_no_deadlines() {
    let forever = Timeouts { resolve: Duration::MAX, connect: Duration::MAX, total: Some(Duration::MAX) };
    let mut sim = Sim::new(1, forever);
    assert!(matches!(sim.poll(), Action::ResolveAddr(_, Duration::MAX)));
    assert!(matches!(sim.poll(), Action::Wait(None)));
}
