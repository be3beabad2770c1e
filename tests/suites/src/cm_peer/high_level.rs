//! A [`Listener`] and a [`Connector`], which most programs use to connect.
//!
//! The listener rejects a client without the right private data and returns the messages of the
//! next one. Neither side handles events of the connection manager.

use rdmacm::{ConnParam, Connection, Connector, End, Listener, ListenerInit, Resources};
use verbs::{Completed, Errno, Result, SendFlags, SendOp};
use verbs_harness::pattern;
use verbs_harness::runner::{CaseResult, fail};

use super::exchange::{LONGEST, length_of};
use super::{Connects, Listens, Step, with_port};
use crate::fabric::PATIENCE;

/// The step.
pub const STEP: Step = Step { name: "listener and connector", listens, connects };

/// The private data of an accepted client.
const MEMBER: &[u8] = b"member";
/// The private data of a rejected client and of its rejection.
const STRANGER: &[u8] = b"stranger";
const MEMBERS_ONLY: &[u8] = b"members only";

fn listens(side: &mut Listens) -> CaseResult {
    let Some(address) = side.tcp.address.ip() else { return fail("the listener has no IP address") };
    let init = ListenerInit::default();
    let listener = Listener::bind_with(with_port(address, 0), &init, |request| {
        if !request.peer.private_data().starts_with(MEMBER) {
            request.id.reject(MEMBERS_ONLY)?;
            return Ok(None);
        }
        let (mut qp, resources) = Resources::create(&request.id, Resources::CAP)?;
        qp.post_recv_buf(resources.pd.alloc_buf(LONGEST)?, ..)?;
        request.id.accept(qp, &ConnParam::default())?;
        Ok(Some(resources))
    })?;
    side.link.tell(&listener.local_addr().port().to_string())?;
    let Some(mut client) = listener.accept_within(PATIENCE)? else {
        return fail(format_args!("no connection within {PATIENCE:?}"));
    };
    for _ in 0..side.plan.rounds {
        let received = client.resources.next_recv(PATIENCE)?.ok()?;
        let len = received.received();
        client.qp.post_recv_buf(client.resources.pd.alloc_buf(LONGEST)?, ..)?;
        client.qp.post_send_buf(SendOp::Send, SendFlags::empty(), received.into_buf()?, ..len)?;
        client.resources.next_send(PATIENCE)?.ok()?;
    }
    // The last acknowledgement must arrive before the peer ends the connection.
    side.link.meet(RETURNED)?;
    match client.control.wait(PATIENCE)? {
        Some(End::ByPeer) => Ok(()),
        other => fail(format_args!("the end of the connection is {other:?}")),
    }
}

fn connects(side: &mut Connects) -> CaseResult {
    let to = with_port(side.tcp, side.link.hear()?.parse()?);
    let connector = |private_data| Connector {
        param: ConnParam { private_data, ..ConnParam::default() },
        ..Connector::default()
    };
    match connector(STRANGER).connect(to) {
        Err(error) if error.error.errno == Errno::CONNREFUSED => {
            let rejection = error.rejection.as_ref();
            if !rejection.is_some_and(|rejection| rejection.private_data.starts_with(MEMBERS_ONLY)) {
                return fail(format_args!("a reject without the listener's words: {error:?}"));
            }
        }
        other => return fail(format_args!("{other:?} instead of a reject")),
    }
    let mut server = connector(MEMBER).connect_with(to, |id| {
        let (mut qp, resources) = Resources::create(id, Resources::CAP)?;
        qp.post_recv_buf(resources.pd.alloc_buf(LONGEST)?, ..)?;
        Ok((qp, resources))
    })?;
    for round in 0..side.plan.rounds {
        let message = pattern::filled(pattern::seed_of(&[round]), length_of(round));
        let returned = send(&mut server, message)?;
        let len = returned.received();
        if len != length_of(round) {
            return fail(format_args!("{len} bytes returned instead of {}", length_of(round)));
        }
        pattern::check(pattern::seed_of(&[round]), &returned.into_buf()?[..len]).or_else(fail)?;
    }
    side.link.meet(RETURNED)?;
    match server.disconnect(PATIENCE)?.end {
        End::Confirmed => Ok(()),
        other => fail(format_args!("the end of the connection is {other:?}")),
    }
}

/// The point where both sides meet once all messages have returned and are acknowledged.
const RETURNED: &str = "returned";

/// Sends a message and returns the next one received.
fn send(server: &mut Connection, message: Vec<u8>) -> Result<Completed> {
    let message = server.resources.pd.register(message)?;
    server.qp.post_send_buf(SendOp::Send, SendFlags::empty(), message, ..)?;
    server.resources.next_send(PATIENCE)?.ok()?;
    let received = server.resources.next_recv(PATIENCE)?.ok()?;
    server.qp.post_recv_buf(server.resources.pd.alloc_buf(LONGEST)?, ..)?;
    Ok(received)
}
