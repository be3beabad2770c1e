//! An rxe device removed while ids use it, in every state.
//!
//! Each id gets one event and can do nothing more. The removal waits until the process has closed
//! the device, because rxe cannot be detached from its users.

use std::collections::BTreeMap;
use std::net::IpAddr;

use rdmacm::{CmId, ConnParam, EventChannel, EventKind, EventType, IdKey, PortSpace};
use verbs_fixtures::cm_fabric::{
    Client, Connected, Parts, RESOLVING, Server, arrived, connect, expect, next,
};
use verbs_harness::cases;
use verbs_harness::runner::{Case, CaseResult, fail};

use super::server::{SUITE, at};
use crate::lifecycle::unplug::{ADDRESS, Interface, delete, spare, succeeds};

pub(super) fn cases() -> Vec<Case> {
    cases!(SUITE, ids_in_every_state_are_told_that_their_device_was_removed)
}

fn ids_in_every_state_are_told_that_their_device_was_removed() -> CaseResult {
    let interface = Interface::new()?;
    let device = spare(&interface)?;
    let here = at(IpAddr::from(ADDRESS));

    let listens = Server::new(here, PortSpace::TCP, 4)?;
    let channel = EventChannel::new()?;
    let create = || channel.create_id(PortSpace::TCP);
    let (bound, resolved) = (create()?, create()?);
    bound.bind_addr(here)?;
    resolved.resolve_addr(None, listens.address, RESOLVING)?;
    expect(&channel, EventType::ADDR_RESOLVED)?;
    let routed = Client::new(listens.address, PortSpace::TCP)?;
    let (asks, asks_parts) = Client::requesting(&listens)?;
    let (request, _) = listens.request()?;
    let (answered, answered_parts) = Client::requesting(&listens)?;
    let (accepted, _) = listens.request()?;
    let accepted_parts = Parts::for_id(&accepted)?;
    accepted.accept(accepted_parts.qp(&accepted)?, &ConnParam::default())?;
    let (waits, waits_parts) = Client::requesting(&listens)?;
    arrived(&listens.channel)?;
    let (connected, ended) = (connect(here)?, connect(here)?);
    ended.client.id.disconnect()?;
    expect(&ended.server.channel, EventType::DISCONNECTED)?;
    ended.accepted.disconnect()?;
    expect(&ended.client.channel, EventType::DISCONNECTED)?;
    drop(device);

    let deleting = delete()?;
    let told = || -> CaseResult {
        are_told(&channel, &[("bound", &bound), ("resolved", &resolved)])?;
        are_told(&listens.channel, &[("listening", &listens.listener), ("accepted", &accepted)])?;
        for (name, Client { channel, id }) in
            [("routed", &routed), ("asking", &asks), ("answered", &answered), ("waiting", &waits)]
        {
            are_told(channel, &[(name, id)])?;
        }
        for (name, Connected { server, client, accepted, .. }) in
            [("connected", &connected), ("disconnected", &ended)]
        {
            are_told(&client.channel, &[(name, &client.id)])?;
            are_told(&server.channel, &[(name, accepted), ("its listener", &server.listener)])?;
        }
        // The kernel raises no event for the id of an unaccepted request and ends it after the
        // others. The id that sent the request was on the same device. When that id ends, the
        // request is rejected. The device may still deliver this reject.
        const GONE: &str = "the device of the id is gone";
        let depths = ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::default() };
        for (refused, reasons) in [
            (resolved.resolve_route(RESOLVING), &[GONE] as &[&str]),
            (request.accept_with(&depths), &[GONE, "the peer has given up"]),
        ] {
            match refused {
                Err(error) if reasons.iter().any(|reason| error.to_string().contains(reason)) => {}
                // Fails without a panic, which would wait for the removal while the ids exist.
                other => return fail(format_args!("{other:?} on a device that is gone")),
            }
        }
        Ok(())
    };
    let told = told();
    drop((bound, resolved, listens, routed, request, connected, ended));
    drop((asks, asks_parts, answered, answered_parts, accepted, accepted_parts, waits, waits_parts));
    let deleted = succeeds(deleting);
    told.and(deleted)
}

/// Waits until each id has received the removal event on its channel exactly once.
fn are_told(channel: &EventChannel, ids: &[(&str, &CmId)]) -> CaseResult {
    let mut left: BTreeMap<IdKey, &str> = ids.iter().map(|(name, id)| (id.key(), *name)).collect();
    while !left.is_empty() {
        let event = next(channel).map_err(|stop| stop.context(format_args!("{left:?} are not told")))?;
        // The end of a connection raises another event.
        if matches!(event.kind, EventKind::DeviceRemoval) && left.remove(&event.id).is_none() {
            return fail(format_args!("{event:?}, of an id that was told before"));
        }
    }
    Ok(())
}
