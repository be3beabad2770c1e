//! Connections by address: the end of connections and ids; the remaining resources.

use rdmacm::{Address, CmId, ConnParam, EventChannel, EventKind, EventType, IdKey, PortSpace, RejectReason};
use verbs::state::Rts;
use verbs::{Errno, Qp, SendFlags, SendOp, WcStatus};
use verbs_fixtures::cm_fabric::{
    Client, Connected, Parts, RESOLVING, Server, arrived, connect, expect, here, is_readable, next,
};
use verbs_fixtures::fabric::{PATIENCE, rxe_is_before};
use verbs_harness::cases;
use verbs_harness::runner::{Case, CaseResult, fail};

use super::SUITE;

/// Returns the cases of this file.
pub fn cases() -> Vec<Case> {
    cases!(
        SUITE,
        either_side_ends_a_connection_and_the_other_one_confirms,
        both_sides_may_end_a_connection_at_once,
        the_end_of_either_id_ends_its_connection,
        the_end_of_an_id_between_reply_and_connection_is_a_reject,
        an_id_frees_its_port_in_every_state,
        events_of_an_id_end_with_it,
    )
}

/// Connects with a short acknowledgement timeout, which also shortens the timewait period of an
/// ended connection.
fn short_lived() -> CaseResult<Connected> {
    let server = Server::new(here()?, PortSpace::TCP, 4)?;
    let channel = EventChannel::new()?;
    let id = channel.create_id(PortSpace::TCP)?;
    id.set_ack_timeout(10)?;
    let client = Client { channel, id }.resolved(None, server.address)?;
    Connected::between(server, client, &ConnParam::default(), &ConnParam::default())
}

/// Reads an event, which must be of this kind and for this id.
fn expect_for(channel: &EventChannel, id: IdKey, wanted: EventType) -> CaseResult {
    let event = expect(channel, wanted)?;
    if event.id == id { Ok(()) } else { fail(format_args!("{event:?} of another id than {id}")) }
}

/// Moves a queue pair to the error state. Its receive and another send must be flushed.
fn flushes(mut parts: Parts, qp: Qp<Rts>) -> CaseResult {
    let mut qp = qp.to_error()?;
    assert_eq!(parts.cq.poll_within(PATIENCE)?.status, WcStatus::WR_FLUSH_ERR);
    if rxe_is_before(6, 1)? {
        // In the error state, rxe on this kernel does not wake the task that flushes new requests.
        return Ok(());
    }
    qp.post_send_buf(SendOp::Send, SendFlags::SIGNALED, parts.pd.alloc_buf(1)?, ..)?;
    assert_eq!(parts.cq.poll_within(PATIENCE)?.status, WcStatus::WR_FLUSH_ERR);
    Ok(())
}

fn either_side_ends_a_connection_and_the_other_one_confirms() -> CaseResult {
    for client_ends in [true, false] {
        let Connected { server, client, accepted, ends: [near, far], .. } = short_lived()?;
        let (near, far) = ((&client.id, &client.channel, near), (&accepted, &server.channel, far));
        let (ends, confirms) = if client_ends { (near, far) } else { (far, near) };
        ends.0.disconnect()?;
        expect_for(confirms.1, confirms.0.key(), EventType::DISCONNECTED)?;
        assert!(!is_readable(ends.1, std::time::Duration::ZERO)?, "it is not confirmed");
        confirms.0.disconnect()?;
        expect_for(ends.1, ends.0.key(), EventType::DISCONNECTED)?;
        for (id, channel, (parts, qp)) in [ends, confirms] {
            expect_for(channel, id.key(), EventType::TIMEWAIT_EXIT)?;
            flushes(parts, qp)?;
            assert!(channel.try_next_event()?.is_none());
        }
    }
    Ok(())
}

fn both_sides_may_end_a_connection_at_once() -> CaseResult {
    let Connected { server, client, accepted, .. } = short_lived()?;
    client.id.disconnect()?;
    accepted.disconnect()?;
    let both = [(&client.id, &client.channel), (&accepted, &server.channel)];
    for (id, channel) in both {
        expect_for(channel, id.key(), EventType::DISCONNECTED)?;
        // Confirms the disconnection, unless the first call did.
        id.disconnect()?;
    }
    both.into_iter().try_for_each(|(id, channel)| expect_for(channel, id.key(), EventType::TIMEWAIT_EXIT))
}

fn the_end_of_either_id_ends_its_connection() -> CaseResult {
    for client_ends in [true, false] {
        let Connected { server, client: Client { channel, id }, accepted, ends: _ends, .. } =
            connect(here()?)?;
        let (ended, left, channel) =
            if client_ends { (id, accepted, &server.channel) } else { (accepted, id, &channel) };
        drop(ended);
        expect_for(channel, left.key(), EventType::DISCONNECTED)?;
    }
    Ok(())
}

fn the_end_of_an_id_between_reply_and_connection_is_a_reject() -> CaseResult {
    let server = Server::new(here()?, PortSpace::TCP, 4)?;
    for client_ends in [true, false] {
        let client = Client::new(server.address, PortSpace::TCP)?;
        let param =
            ConnParam { qp_num: 7, responder_resources: 1, initiator_depth: 1, ..ConnParam::default() };
        client.id.connect_with(&param)?;
        let (accepted, _) = server.request()?;
        let parts = Parts::for_id(&accepted)?;
        accepted.accept(parts.qp(&accepted)?, &ConnParam::default())?;
        expect(&client.channel, EventType::CONNECT_RESPONSE)?;
        let Client { channel, id } = client;
        let (ended, left, channel) =
            if client_ends { (id, accepted, &server.channel) } else { (accepted, id, &channel) };
        drop(ended);
        let event = expect(channel, EventType::REJECTED)?;
        let EventKind::Rejected(rejection) = &event.kind else { return fail("no reject") };
        assert_eq!((event.id, rejection.reason), (left.key(), Some(RejectReason::CONSUMER_DEFINED)));
    }
    Ok(())
}

/// The name of an id state, with a function that brings a new id into this state.
type State = (&'static str, fn(&EventChannel, CmId, Address) -> CaseResult<Box<dyn std::any::Any>>);

/// The states in which an id is bound to a port, in the order in which an id passes through them.
const STATES: &[State] = &[
    ("bound", |_, id, _| Ok(Box::new(id))),
    ("listening", |_, id, _| {
        id.listen(1)?;
        Ok(Box::new(id))
    }),
    ("resolving", |_, id, to| {
        id.resolve_addr(None, to, RESOLVING)?;
        Ok(Box::new(id))
    }),
    ("resolved", |channel, id, to| {
        id.resolve_addr(None, to, RESOLVING)?;
        expect(channel, EventType::ADDR_RESOLVED)?;
        Ok(Box::new(id))
    }),
    ("connecting", |_, id, to| {
        let client = Client { channel: EventChannel::new()?, id };
        client.id.migrate(&client.channel)?;
        let client = client.resolved(None, to)?;
        let parts = Parts::for_id(&client.id)?;
        client.id.connect(parts.qp(&client.id)?, &ConnParam::default())?;
        Ok(Box::new((client, parts)))
    }),
];

fn an_id_frees_its_port_in_every_state() -> CaseResult {
    let (here, channel) = (here()?, EventChannel::new()?);
    let server = Server::new(here, PortSpace::TCP, 4)?;
    for (name, reach) in STATES {
        let id = channel.create_id(PortSpace::TCP)?;
        id.bind_addr(here)?;
        let Some(address) = id.local_addr()? else { return fail("it is not bound") };
        let held = reach(&channel, id, server.address).map_err(|stop| stop.context(name))?;
        let other = channel.create_id(PortSpace::TCP)?;
        assert_eq!(other.bind_addr(address).unwrap_err().errno, Errno::ADDRINUSE, "{name}");
        drop(held);
        if let Err(error) = other.bind_addr(address) {
            return fail(format_args!("{name}: {error}"));
        }
    }
    // A closed listener's port is free even while its connections exist.
    let Connected { server, client, accepted, .. } = connect(here)?;
    let address = server.address;
    drop(server.listener);
    channel.create_id(PortSpace::TCP)?.bind_addr(address)?;
    drop((client, accepted));
    Ok(())
}

fn events_of_an_id_end_with_it() -> CaseResult {
    let server = Server::new(here()?, PortSpace::TCP, 4)?;
    let channel = EventChannel::new()?;
    let [ends, stays] = [channel.create_id(PortSpace::TCP)?, channel.create_id(PortSpace::TCP)?];
    ends.resolve_addr(None, server.address, RESOLVING)?;
    arrived(&channel)?;
    drop(ends);
    assert!(channel.try_next_event()?.is_none());
    stays.resolve_addr(None, server.address, RESOLVING)?;
    assert_eq!(next(&channel)?.id, stays.key());
    Ok(())
}
