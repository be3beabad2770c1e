//! Connections, rejects and lookups.
//!
//! | step | content |
//! |---|---|
//! | `messages` | private data and verified messages both ways; the connecting side disconnects |
//! | `the listener ends` | the same, but the other side disconnects |
//! | `rejected` | a reject carries its private data |
//! | `dropped` | dropping a request rejects it |
//! | `nobody` | a port without a listener rejects, with an explanation |
//! | `many` | many simultaneous connections are established, and end |
//! | `datagrams` | a datagram service is looked up, and answers |
//! | `datagrams rejected` | a lookup is rejected, with an explanation |
//! | `nobody for datagrams` | a port without a service rejects, with an explanation |
//! | [`high_level`] | a listener rejects a client, and returns the messages of the next one |

use std::time::Duration;

use rdmacm::{
    CmId, ConnParam, Event, EventChannel, EventKind, EventType, Message, Peer, PortSpace, RejectReason,
};
use verbs::{Errno, Qp, QpInit, QpType};
use verbs_harness::pattern;
use verbs_harness::runner::{CaseResult, fail};

use super::exchange::{LONGEST, answer, ask, exchange, post_receives};
use super::{Connects, Listens, Step, high_level};
use crate::cm_fabric::{Client, Parts, Server, accept_many, connect_many, expect, next, take};
use crate::peer::link::Link;

/// The steps, in order.
pub const ALL: &[Step] = &[
    Step {
        name: MESSAGES,
        listens: |side| accept(side, MESSAGES, false),
        connects: |side| connect(side, MESSAGES, true),
    },
    Step {
        name: LISTENER_ENDS,
        listens: |side| accept(side, LISTENER_ENDS, true),
        connects: |side| connect(side, LISTENER_ENDS, false),
    },
    Step { name: REJECTED, listens: reject, connects: is_rejected },
    Step { name: DROPPED, listens: drop_request, connects: is_dropped },
    Step { name: "nobody", listens: |_| Ok(()), connects: nobody },
    Step { name: "many", listens: accept_all, connects: connect_all },
    Step { name: DATAGRAMS, listens: serve, connects: look_up },
    Step { name: DATAGRAMS_REJECTED, listens: refuse, connects: is_refused },
    Step { name: "nobody for datagrams", listens: |_| Ok(()), connects: no_service },
    high_level::STEP,
];

const MESSAGES: &str = "messages";
const LISTENER_ENDS: &str = "the listener ends";
const REJECTED: &str = "rejected";
const DROPPED: &str = "dropped";
const DATAGRAMS: &str = "datagrams";
const DATAGRAMS_REJECTED: &str = "datagrams rejected";

/// A port without a listener.
const NOBODY: u16 = 1;

/// Returns the private data of a step's message, of the largest length allowed by the protocol.
fn data_of(step: &str, id: &CmId, message: Message) -> Vec<u8> {
    let len = id.max_private_data(message);
    let seed: Vec<u64> = step.bytes().map(u64::from).collect();
    pattern::filled(pattern::seed_of(&seed), len)
}

/// Checks the private data of a peer's message. `id` has the port space of the peer's id.
fn verify(step: &str, id: &CmId, message: Message, data: &[u8]) -> CaseResult {
    let wanted = data_of(step, id, message);
    if data == wanted { Ok(()) } else { fail(format_args!("private data {data:?} instead of {wanted:?}")) }
}

/// Returns the request of a step, dropping requests of an earlier step. A client that misses a
/// reject repeats its request; the repetition is a new request. The client may have received the
/// reject since.
fn request(server: &Server, step: &str) -> CaseResult<CmId> {
    loop {
        let (id, peer) = server.request()?;
        if peer.private_data() == data_of(step, &id, Message::Connect) {
            return Ok(id);
        }
    }
}

/// Rejects the requests of a step until the client has seen a rejection.
fn refuse_all(
    server: &Server,
    step: &str,
    link: &mut Link,
    refuse: impl Fn(CmId) -> CaseResult,
) -> CaseResult {
    refuse(request(server, step)?)?;
    while !link.has_heard() {
        if let Some(event) = server.channel.next_event_within(LOOK)?
            && let EventKind::ConnectRequest(request) = event.kind
        {
            refuse(request.id)?;
        }
    }
    link.meet(REFUSED)
}

/// The point where both sides meet after a rejection.
const REFUSED: &str = "refused";

/// The interval between looks at the link.
const LOOK: Duration = Duration::from_millis(50);

/// Creates a queue pair that receives long messages.
fn qp(parts: &Parts, id: &CmId) -> CaseResult<Qp<verbs::state::Init>> {
    let mut qp = id.create_qp(&parts.pd, &QpInit::new(QpType::RC, &parts.cq))?;
    parts.post_recv(&mut qp, LONGEST)?;
    Ok(qp)
}

fn accept(side: &mut Listens, step: &str, ends: bool) -> CaseResult {
    let channel = &side.tcp.channel;
    let id = request(&side.tcp, step)?;
    let mut parts = Parts::of(&id)?;
    let data = data_of(step, &id, Message::Accept);
    id.accept(qp(&parts, &id)?, &ConnParam { private_data: &data, ..ConnParam::default() })?;
    expect(channel, EventType::ESTABLISHED)?;
    let mut qp = take(&id)?;
    exchange(&mut parts, &mut qp, false, side.plan.rounds)?;
    end(&id, channel, ends)
}

fn connect(side: &mut Connects, step: &str, ends: bool) -> CaseResult {
    let client = Client::new(side.tcp, PortSpace::TCP)?;
    let Client { channel, id } = &client;
    let mut parts = Parts::of(id)?;
    let data = data_of(step, id, Message::Connect);
    id.connect(qp(&parts, id)?, &ConnParam { private_data: &data, ..ConnParam::default() })?;
    let established = expect(channel, EventType::ESTABLISHED)?;
    let EventKind::Established(peer) = established.kind else {
        return fail(format_args!("{established:?}"));
    };
    verify(step, id, Message::Accept, peer.private_data())?;
    let mut qp = take(id)?;
    exchange(&mut parts, &mut qp, true, side.plan.rounds)?;
    end(id, channel, ends)
}

/// Disconnects on one side and waits for the event on the other.
fn end(id: &CmId, channel: &EventChannel, begins: bool) -> CaseResult {
    if begins {
        id.disconnect()?;
    }
    expect(channel, EventType::DISCONNECTED)?;
    if !begins {
        id.disconnect()?;
    }
    Ok(())
}

fn reject(side: &mut Listens) -> CaseResult {
    refuse_all(&side.tcp, REJECTED, &mut side.link, |id| {
        Ok(id.reject(&data_of(REJECTED, &id, Message::Reject))?)
    })
}

fn is_rejected(side: &mut Connects) -> CaseResult {
    let (id, data) = rejection(side, REJECTED, side.tcp.port(), RejectReason::CONSUMER_DEFINED)?;
    verify(REJECTED, &id, Message::Reject, &data)?;
    side.link.meet(REFUSED)
}

fn drop_request(side: &mut Listens) -> CaseResult {
    refuse_all(&side.tcp, DROPPED, &mut side.link, |id| {
        drop(id);
        Ok(())
    })
}

fn is_dropped(side: &mut Connects) -> CaseResult {
    rejection(side, DROPPED, side.tcp.port(), RejectReason::CONSUMER_DEFINED)?;
    side.link.meet(REFUSED)
}

fn nobody(side: &mut Connects) -> CaseResult {
    rejection(side, "nobody", NOBODY, RejectReason::INVALID_SERVICE_ID).map(drop)
}

/// Connects, and returns the id rejected for the given reason, with the private data of the reject.
fn rejection(side: &Connects, step: &str, port: u16, wanted: RejectReason) -> CaseResult<(CmId, Vec<u8>)> {
    let Client { channel, id } = Client::new(super::with_port(side.tcp, port), PortSpace::TCP)?;
    let parts = Parts::of(&id)?;
    let data = data_of(step, &id, Message::Connect);
    id.connect(parts.qp(&id)?, &ConnParam { private_data: &data, ..ConnParam::default() })?;
    let event = next(&channel)?;
    let EventKind::Rejected(rejection) = &event.kind else { return fail(format_args!("{event:?}")) };
    assert_eq!(rejection.reason, Some(wanted));
    let data = rejection.private_data.clone();
    in_words(event, Errno::CONNREFUSED, wanted.name().unwrap_or_default())?;
    assert!(id.reclaim_qp()?.is_some(), "the id has no queue pair");
    Ok((id, data))
}

/// Checks that an event is an error with the given text.
fn in_words(event: Event, errno: Errno, text: &str) -> CaseResult {
    match event.ok() {
        Err(error) if error.errno == errno && error.to_string().contains(text) => Ok(()),
        other => fail(format_args!("{other:?} instead of {text:?}")),
    }
}

fn accept_all(side: &mut Listens) -> CaseResult {
    accept_many(&side.tcp.channel, side.plan.connections)
}

fn connect_all(side: &mut Connects) -> CaseResult {
    connect_many(side.tcp, side.plan.connections)
}

fn serve(side: &mut Listens) -> CaseResult {
    let Listens { udp, link, .. } = side;
    let id = request(udp, DATAGRAMS)?;
    let mut parts = Parts::of(&id)?;
    let mut qp = id.create_ud_qp(&parts.pd, &QpInit::new(QpType::UD, &parts.cq))?;
    post_receives(&parts, &mut qp)?;
    let data = data_of(DATAGRAMS, &id, Message::Accept);
    let param = ConnParam { qp_num: qp.qp_num(), private_data: &data, ..ConnParam::default() };
    id.accept_with(&param)?;
    answer(&mut parts, &mut qp, || {
        // A client that misses the answer repeats its lookup, which is a new request.
        if let Some(event) = udp.channel.try_next_event()?
            && let EventKind::ConnectRequest(request) = event.kind
        {
            request.id.accept_with(&param)?;
        }
        Ok(link.has_heard())
    })?;
    link.meet("enough datagrams")
}

fn look_up(side: &mut Connects) -> CaseResult {
    let Client { channel, id } = Client::new(side.udp, PortSpace::UDP)?;
    let data = data_of(DATAGRAMS, &id, Message::Connect);
    id.connect_with(&ConnParam { private_data: &data, ..ConnParam::default() })?;
    let established = expect(&channel, EventType::ESTABLISHED)?;
    let EventKind::Established(Peer::Ud(service)) = established.kind else {
        return fail(format_args!("{established:?}"));
    };
    verify(DATAGRAMS, &id, Message::Accept, &service.private_data)?;
    assert_eq!(service.qkey, PortSpace::UDP_QKEY);
    let mut parts = Parts::of(&id)?;
    let mut qp = id.create_ud_qp(&parts.pd, &QpInit::new(QpType::UD, &parts.cq))?;
    post_receives(&parts, &mut qp)?;
    ask(&mut parts, &mut qp, &service, side.plan.rounds)?;
    side.link.meet("enough datagrams")
}

fn refuse(side: &mut Listens) -> CaseResult {
    refuse_all(&side.udp, DATAGRAMS_REJECTED, &mut side.link, |id| Ok(id.reject(b"not today")?))
}

fn is_refused(side: &mut Connects) -> CaseResult {
    let words = "the peer's program rejected the request";
    is_unreachable(side, DATAGRAMS_REJECTED, side.udp.port(), words)?;
    side.link.meet(REFUSED)
}

fn no_service(side: &mut Connects) -> CaseResult {
    is_unreachable(side, "nobody for datagrams", NOBODY, "no program listens on the port")
}

fn is_unreachable(side: &Connects, step: &str, port: u16, words: &str) -> CaseResult {
    let Client { channel, id } = Client::new(super::with_port(side.udp, port), PortSpace::UDP)?;
    let data = data_of(step, &id, Message::Connect);
    id.connect_with(&ConnParam { private_data: &data, ..ConnParam::default() })?;
    let event = next(&channel)?;
    if !matches!(event.kind, EventKind::Unreachable) {
        return fail(format_args!("{event:?}"));
    }
    in_words(event, Errno::HOSTUNREACH, words)
}
