//! Completion channels and asynchronous events.

use std::process::Command;

use verbs::{
    AsyncEvent, AsyncEventType, CompChannel, Context, CqId, Element, PortState, Provider, RecvWr, SendFlags,
    SendOp, SendWr, WcOpcode,
};

use super::SUITE;
use crate::both;
use crate::fabric::{
    Arena, PATIENCE, PORT, Pair, Remote, Shape, eventually, is_rxe, post_recv, post_send, wait_for,
};
use crate::runner::{Case, CaseResult, fail, skip};
use crate::tools::run;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        one_event_for_each_time_that_was_asked,
        a_solicited_event_comes_for_solicited_messages_only,
        a_completion_queue_that_overflows_is_told,
        queues_of_one_channel_are_told_apart,
        a_link_that_goes_down_and_up_is_told,
    )
}

const EVENTS: Shape = Shape { events: true, ..DEFAULT };
const DEFAULT: Shape = Shape {
    qp_type: verbs::QpType::RC,
    cap: verbs::QpCap {
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    },
    cqe: 64,
    sq_sig_all: false,
    events: false,
    path_mtu: verbs::Mtu::MTU_1024,
    rts: verbs::RtsAttr { sq_psn: None, timeout: 10, retry_cnt: 3, rnr_retry: 7, max_rd_atomic: 1 },
};

fn channel<P: Provider>(end: &crate::fabric::End<P>) -> CaseResult<&CompChannel> {
    end.channel.as_ref().map_or_else(|| fail("no channel"), Ok)
}

/// Waits for the next event of a channel, and returns the queue that it names.
fn wait_for_event(channel: &CompChannel) -> CaseResult<CqId> {
    match channel.wait(Some(PATIENCE))? {
        Some(event) => Ok(event.cq),
        None => fail(format_args!("no event after {PATIENCE:?}")),
    }
}

/// Sends 8 bytes from a to b and waits for both completions.
fn send_one<P: Provider>(pair: &mut Pair<P>, arena: &Arena<P>, flags: SendFlags) -> CaseResult {
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(0..8)] }])?;
    let wr =
        SendWr { wr_id: 1, op: SendOp::Send, sge: &[arena.sge(8..16)], flags: flags | SendFlags::SIGNALED };
    post_send(&mut pair.a.qp, &[wr])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?;
    Ok(())
}

fn one_event_for_each_time_that_was_asked<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &EVENTS)?;
    let arena = Arena::new(&pair.pd, 16)?;
    send_one(&mut pair, &arena, SendFlags::SOLICITED)?;
    assert_eq!(channel(&pair.b)?.next_event()?, None, "none was asked for");
    for round in 0..3 {
        pair.b.cq.req_notify(false)?;
        send_one(&mut pair, &arena, SendFlags::empty())?;
        assert_eq!(wait_for_event(channel(&pair.b)?)?, pair.b.cq.id(), "round {round}");
        // It was one.
        send_one(&mut pair, &arena, SendFlags::empty())?;
        assert_eq!(channel(&pair.b)?.next_event()?, None, "round {round}");
    }
    Ok(())
}

fn a_solicited_event_comes_for_solicited_messages_only<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &EVENTS)?;
    let arena = Arena::new(&pair.pd, 16)?;
    pair.b.cq.req_notify(true)?;
    send_one(&mut pair, &arena, SendFlags::empty())?;
    assert_eq!(channel(&pair.b)?.next_event()?, None, "an unsolicited message raised an event");
    send_one(&mut pair, &arena, SendFlags::SOLICITED)?;
    assert_eq!(wait_for_event(channel(&pair.b)?)?, pair.b.cq.id());
    Ok(())
}

fn a_completion_queue_that_overflows_is_told<P: Provider>(context: &Context<P>) -> CaseResult {
    let events = context.async_events()?;
    let mut pair = Pair::new(context, &Shape { cqe: 1, cap: Shape::default().cap, ..DEFAULT })?;
    let arena = Arena::new(&pair.pd, 16)?;
    let (recv, send) = ([arena.sge(0..8)], [arena.sge(8..16)]);
    let count = u64::from(pair.b.cq.cqe()) * 4 + 4;
    let mut sent = 0;
    for wr_id in 0..count {
        // What overflows is lost, so that the sender is told what is not so, or nothing.
        if post_recv(&mut pair.b.qp, &[RecvWr { wr_id, sge: &recv }]).is_err() {
            break;
        }
        let wr = SendWr { wr_id, op: SendOp::Send, sge: &send, flags: SendFlags::empty() };
        if post_send(&mut pair.a.qp, &[wr]).is_err() {
            break;
        }
        sent = wr_id;
    }
    let mut seen = Vec::new();
    eventually("the queue's event", || {
        seen.extend(events.next_event().ok().flatten());
        seen.iter().any(|event| event.event_type == AsyncEventType::CQ_ERR)
    })
    .map_err(|_| crate::runner::Stop::Failed(format!("no CQ_ERR after {sent} messages, only {seen:?}")))?;
    let of_queue: Vec<_> = seen.iter().filter(|e| e.event_type == AsyncEventType::CQ_ERR).collect();
    assert_eq!(of_queue[0].element, Element::Cq(pair.b.cq.id()), "{seen:?}");
    Ok(())
}

fn queues_of_one_channel_are_told_apart<P: Provider>(context: &Context<P>) -> CaseResult {
    let channel = context.create_comp_channel()?;
    let mut pair = Pair::new(context, &DEFAULT)?;
    let arena = Arena::new(&pair.pd, 16)?;
    let init = verbs::CqInit { channel: Some(&channel), ..verbs::CqInit::new(16) };
    let mut cqs = [context.create_cq(&init)?, context.create_cq(&init)?];
    for which in [0, 1, 1, 0] {
        let qp = crate::fabric::create_qp(&pair.pd, &cqs[which], &DEFAULT)?;
        let own = Remote::of(&qp);
        let mut qp = crate::fabric::connect(context, qp, &DEFAULT, own)?;
        for cq in &mut cqs {
            cq.req_notify(false)?;
        }
        post_recv(&mut qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(0..8)] }])?;
        let wr = SendWr { wr_id: 1, op: SendOp::Send, sge: &[arena.sge(8..16)], flags: SendFlags::SIGNALED };
        post_send(&mut qp, &[wr])?;
        assert_eq!(wait_for_event(&channel)?, cqs[which].id());
        crate::fabric::wait(&mut cqs[which], 2)?;
        // The second completion may cause another event if the queue was armed late enough; the
        // other queue causes none.
        while let Some(event) = channel.next_event()? {
            assert_eq!(event.cq, cqs[which].id());
        }
    }
    pair.a.cq.req_notify(false)?;
    Ok(())
}

fn a_link_that_goes_down_and_up_is_told<P: Provider>(context: &Context<P>) -> CaseResult {
    if !is_rxe()? {
        return skip("the device has no link of its own that could be taken down");
    }
    let events = context.async_events()?;
    let expect = |event_type: AsyncEventType| {
        let mut seen = Vec::new();
        let is_it =
            |event: &AsyncEvent| (event.element, event.event_type) == (Element::Port(PORT), event_type);
        eventually(event_type.name().unwrap_or_default(), || {
            seen.extend(events.next_event().ok().flatten());
            seen.last().is_some_and(is_it)
        })
    };
    let link = |state: &str| -> CaseResult {
        let ip = run(Command::new("ip").args(["link", "set", "veth0", state]))?;
        assert!(ip.status.success(), "{ip:?}");
        Ok(())
    };
    link("down")?;
    let told = expect(AsyncEventType::PORT_ERR);
    let down = context.query_port(PORT)?.state;
    // Up again whatever was seen: others need it.
    link("up")?;
    told?;
    assert_ne!(down, PortState::ACTIVE);
    expect(AsyncEventType::PORT_ACTIVE)?;
    eventually("the port is active", || {
        context.query_port(PORT).is_ok_and(|port| port.state == PortState::ACTIVE)
    })?;
    eventually("the address' GID is back", || {
        context.find_gid(PORT).is_ok_and(|gid| gid.gid.to_ipv4().is_some())
    })
}
